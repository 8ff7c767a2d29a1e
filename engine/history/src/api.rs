//! The API: a request in, the text of its response out.

use std::fmt;

use fileview::tree::ViewTree;
use history_documents::HistoryRequest;
use serde::Serialize;

use crate::context::HistoryContext;
use crate::document::document_text;
use crate::error::HistoryApiError;
use crate::tree::TreeOperations;
use crate::{cuts, diffs, groups, pins, plugins, seeks, topics};

/// Answers the requests of the history API.
pub struct HistoryApi {
    context: HistoryContext,
    tree: TreeOperations,
}

impl HistoryApi {
    /// An API over `context`, which shows files as `tree` does.
    pub fn new(context: HistoryContext, tree: &ViewTree) -> HistoryApi {
        HistoryApi { context, tree: TreeOperations::new(tree) }
    }

    /// Answers one request with the text of the response document.
    ///
    /// # Errors
    /// Why it failed. [`HistoryApiError::document`] is the response to send then.
    pub async fn answer(&self, request: HistoryRequest) -> Result<String, HistoryApiError> {
        let context = &self.context;
        match request {
            HistoryRequest::Cut(request) => cuts::cut(context, request).await,
            HistoryRequest::Diff(request) => text(diffs::diff(context, request).await),
            HistoryRequest::Topics(request) => text(topics::topics(context, request).await),
            HistoryRequest::Offsets(request) => text(groups::offsets(context, request).await),
            HistoryRequest::Groups(request) => text(groups::groups(context, request).await),
            HistoryRequest::SeekGroup(request) => text(seeks::seek(context, request).await),
            HistoryRequest::RestoreGroup(request) => text(seeks::restore(context, request).await),
            HistoryRequest::Pin(request) => text(pins::pin(context, request).await),
            HistoryRequest::Unpin(request) => text(pins::unpin(context, request).await),
            HistoryRequest::Pins(request) => text(Ok(pins::pins(context, request))),
            HistoryRequest::Plugins(request) => text(plugins::plugins(context, request)),
            HistoryRequest::AddPlugin(request) => text(plugins::add_plugin(context, request).await),
            HistoryRequest::RemovePlugin(request) => {
                text(plugins::remove_plugin(context, request).await)
            }
            HistoryRequest::TestPlugin(request) => text(plugins::test_user_time(context, request)),
            HistoryRequest::UserTimes(request) => text(plugins::user_times(context, request).await),
            HistoryRequest::Tree(request) => self.tree.answer(request).await,
        }
    }
}

impl fmt::Debug for HistoryApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HistoryApi").finish_non_exhaustive()
    }
}

fn text(document: Result<impl Serialize, HistoryApiError>) -> Result<String, HistoryApiError> {
    document_text(&document?)
}
