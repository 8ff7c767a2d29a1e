//! Context of every operation: the engine, and what the server above this crate provides.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use admission::Holder;
use engine::groups::StoredGroup;
use engine::{Engine, TopicView};
use history_documents::GroupMembership;

use crate::error::HistoryApiError;

/// The part of the coordinator of consumer groups that the operations need.
pub trait HistoryGroups: Send + Sync + 'static {
    /// Holds a group without members, and creates it if it does not exist. Members cannot join
    /// until the hold is dropped.
    ///
    /// # Errors
    /// It has members, or another request changes it.
    fn hold(&self, group: &str, holder: &Holder) -> Result<Box<dyn Send>, HistoryApiError>;

    /// A group's generation and its members; `None` for a snapshot that cannot be read.
    fn membership(&self, stored: &StoredGroup) -> Option<GroupMembership>;
}

/// The result of [`MomentTopics::view`].
pub type MomentViewFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Arc<TopicView>>, HistoryApiError>> + Send + 'a>>;

/// The views of topics whose name has a moment.
pub trait MomentTopics: Send + Sync + 'static {
    /// The view that a name asks for; `None` if it has no moment. The caller checks that its
    /// records are still there.
    fn view<'a>(&'a self, name: &'a str) -> MomentViewFuture<'a>;
}

/// The context of every operation.
#[derive(Clone)]
pub struct HistoryContext {
    pub engine: Arc<Engine>,
    /// The consumer groups.
    pub groups: Arc<dyn HistoryGroups>,
    /// The topics whose name has a moment.
    pub moment_topics: Arc<dyn MomentTopics>,
    /// The longest wait of a request for a moment that is not final yet, unless it says so itself.
    pub patience: Duration,
    /// The most files of the tree that clients may have open.
    pub open_files_max: usize,
}
