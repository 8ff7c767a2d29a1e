//! Groups as of a moment, and resetting groups to a moment.

use history_documents::{
    GroupSeekResult, GroupsResponse, HistoryRequest, PendingMomentPolicy, RestoreGroupRequest,
    SeekGroupRequest,
};
use hlc::Moment;

use super::{SERVER_WAIT_MAX, group_moment_request};
use crate::{Client, ClientError};

impl Client {
    /// The groups that existed at `at`, or exist now; or one of them.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn groups_at(
        &mut self,
        at: Option<&Moment>,
        group: Option<&str>,
    ) -> Result<GroupsResponse, ClientError> {
        let groups = HistoryRequest::Groups(group_moment_request(at, group));
        self.request_history(groups, SERVER_WAIT_MAX).await
    }

    /// Resets a group without members to a moment, in one commit.
    ///
    /// In every partition that the group has read, or in those of `topics`, it commits the first
    /// offset that is not in the moment. A dry run only returns what it would commit.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn seek_group(
        &mut self,
        request: SeekGroupRequest,
    ) -> Result<GroupSeekResult, ClientError> {
        self.request_history(HistoryRequest::SeekGroup(request), SERVER_WAIT_MAX).await
    }

    /// Restores what a group without members had committed at `at`, and nothing else, in one
    /// commit.
    ///
    /// A dry run only returns what it would commit.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn restore_group(
        &mut self,
        group: &str,
        at: &Moment,
        dry_run: bool,
    ) -> Result<GroupSeekResult, ClientError> {
        let restore = RestoreGroupRequest {
            group: group.to_owned(),
            at: at.to_string(),
            dry_run,
            when: PendingMomentPolicy::default(),
            patience_ms: None,
        };
        self.request_history(HistoryRequest::RestoreGroup(restore), SERVER_WAIT_MAX).await
    }
}
