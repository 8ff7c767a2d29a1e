//! The API: a request in, the text of its response out.

use std::fmt;
use std::sync::{Arc, OnceLock};

use engine::security::CursorSeal;
use fileview::tree::ViewTree;
use history_documents::{HistoryRequest, RecordsRequest, TreeQuery};
use serde::Serialize;

use crate::access::HistoryAccess;
use crate::context::HistoryContext;
use crate::document::document_text;
use crate::error::HistoryApiError;
use crate::groups::GroupTurns;
use crate::health::ServerHealth;
use crate::records::RecordsAnswer;
use crate::tree::TreeOperations;
use crate::tree_files::TreeContents;
use crate::turns::HistoryTurns;
use crate::{
    budgets, cuts, diffs, groups, health, moment, pins, plugins, records, security, seeks, topics,
    tree_files,
};

/// Answers the requests of the history API.
pub struct HistoryApi {
    context: HistoryContext,
    tree: TreeOperations,
    cursor_seal: CursorSeal,
    turns: HistoryTurns,
    group_turns: GroupTurns,
    health: OnceLock<Arc<dyn ServerHealth>>,
}

impl HistoryApi {
    /// An API over `context`, which shows files as `tree` does.
    pub fn new(context: HistoryContext, tree: &ViewTree) -> HistoryApi {
        let budgets = context.engine.core().budgets();
        let tree = TreeOperations::new(tree, context.open_files_max, budgets);
        let turns = HistoryTurns::new(budgets);
        let (cursor_seal, group_turns) = (CursorSeal::new(), GroupTurns::new(budgets));
        let health = OnceLock::new();
        HistoryApi { context, tree, cursor_seal, turns, group_turns, health }
    }

    /// Gives it the server that knows how it is, once that has started.
    pub fn set_health(&self, server: Arc<dyn ServerHealth>) {
        assert!(self.health.set(server).is_ok(), "a server starts once");
    }

    /// Answers one request with the text of the response document, as far as `access` allows it.
    ///
    /// # Errors
    /// The operation failed; the error says why. [`HistoryApiError::document`] is the response to
    /// send then.
    pub async fn answer(
        &self,
        request: HistoryRequest,
        access: &HistoryAccess,
    ) -> Result<String, HistoryApiError> {
        use HistoryRequest as Request;
        let context = &self.context;
        match request {
            Request::Cut(request) => cuts::cut(context, access, request).await,
            Request::Diff(request) => {
                text(diffs::diff(context, access, &self.cursor_seal, &self.turns, request).await)
            }
            Request::Topics(request) => text(topics::topics(context, access, request).await),
            Request::Offsets(request) => {
                text(groups::offsets(context, access, &self.group_turns, request).await)
            }
            Request::Groups(request) => {
                text(groups::groups(context, access, &self.group_turns, request).await)
            }
            Request::SeekGroup(request) => text(seeks::seek(context, access, request).await),
            Request::RestoreGroup(request) => text(seeks::restore(context, access, request).await),
            Request::Pin(request) => text(pins::pin(context, access, request).await),
            Request::Unpin(request) => text(pins::unpin(context, access, request).await),
            Request::Pins(request) => text(pins::pins(context, access, request)),
            Request::Plugins(request) => text(plugins::plugins(context, access, request)),
            Request::AddPlugin(request) => {
                text(plugins::add_plugin(context, access, request).await)
            }
            Request::RemovePlugin(request) => {
                text(plugins::remove_plugin(context, access, request).await)
            }
            Request::TestPlugin(request) => text(plugins::test_user_time(context, access, request)),
            Request::UserTimes(request) => {
                text(plugins::user_times(context, access, &self.turns, request).await)
            }
            Request::Acls(request) => text(security::acls(context, access, request).await),
            Request::Users(request) => text(security::users(context, access, request).await),
            Request::Quotas(request) => text(security::quotas(context, access, request).await),
            Request::SecurityLog(request) => {
                text(security::log(context, access, &self.turns, request).await)
            }
            Request::Budgets(request) => text(budgets::budgets(context, access, request)),
            Request::Health(request) => {
                text(health::health(self.health.get(), access, &self.turns, request).await)
            }
            Request::Moment(request) => text(moment::moment(context, access, request).await),
            Request::Tree(request) => self.tree.answer(access, request).await,
        }
    }
}

impl HistoryApi {
    /// Reads a page of the records of a topic, or of one of its partitions, as far as `access`
    /// allows it.
    ///
    /// # Errors
    /// As [`HistoryApi::answer`].
    pub async fn records(
        &self,
        topic: &str,
        partition: Option<u32>,
        request: RecordsRequest,
        access: &HistoryAccess,
    ) -> Result<RecordsAnswer, HistoryApiError> {
        let tree = self.tree.shown_to(access);
        records::records(&self.context, access, &tree, &self.turns, topic, partition, request).await
    }

    /// Opens a file of the tree, or lists a directory, as far as `access` shows it. The path is
    /// names with slashes between them, from the root.
    ///
    /// # Errors
    /// As [`HistoryApi::answer`].
    pub async fn tree_contents(
        &self,
        path: &[u8],
        query: TreeQuery,
        access: &HistoryAccess,
    ) -> Result<TreeContents, HistoryApiError> {
        tree_files::contents(&self.context, &self.tree, &self.turns, access, path, query).await
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
