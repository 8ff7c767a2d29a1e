//! What the history API needs of this crate: groups that are held, their members in snapshots, and
//! topics whose name has a moment.

use std::sync::Arc;
use std::time::Duration;

use engine::{Engine, WaitPolicy};
use history_api::{GroupHold, HistoryApiError, HistoryGroups, MomentTopics, MomentViewFuture};
use history_documents::{GroupMembership, HistoryErrorCode, MemberAtMoment};

use crate::groups::{
    GroupCoordinator, GroupError, GroupSnapshot, HeldGroup, MemberSnapshot, assigned,
};
use crate::moment_cache::{MomentCache, MomentTopicError};

impl HistoryGroups for GroupCoordinator {
    fn hold(&self, group: &str) -> Result<Box<dyn GroupHold>, HistoryApiError> {
        Ok(Box::new(GroupCoordinator::hold(self, group)?))
    }

    fn membership(&self, snapshot: &[u8]) -> Option<GroupMembership> {
        match GroupSnapshot::decode(snapshot) {
            Ok(snapshot) => Some(membership(snapshot)),
            Err(error) => {
                tracing::warn!(%error, "the snapshot of a group cannot be read");
                None
            }
        }
    }
}

impl GroupHold for HeldGroup {}

/// The topics whose name has a moment, from the cache that consumers use too.
pub(crate) struct CachedMomentTopics {
    pub(crate) engine: Arc<Engine>,
    pub(crate) cache: Arc<MomentCache>,
    /// How long a request waits for a moment that is not final yet.
    pub(crate) patience: Duration,
}

impl MomentTopics for CachedMomentTopics {
    fn view<'a>(&'a self, name: &'a str) -> MomentViewFuture<'a> {
        let when = WaitPolicy::Wait(self.patience);
        Box::pin(async move { Ok(self.cache.resolve(&self.engine, name, when).await?) })
    }
}

fn membership(snapshot: GroupSnapshot) -> GroupMembership {
    let kind = snapshot.protocol_type.as_deref();
    let members: Vec<MemberAtMoment> =
        snapshot.members.iter().map(|one| member(one, kind)).collect();
    GroupMembership {
        generation: snapshot.generation,
        state: if members.is_empty() { "Empty" } else { "Stable" }.to_owned(),
        kind: snapshot.protocol_type,
        protocol: snapshot.protocol,
        leader: snapshot.leader,
        members,
    }
}

fn member(member: &MemberSnapshot, kind: Option<&str>) -> MemberAtMoment {
    MemberAtMoment {
        id: member.member_id.clone(),
        instance: member.group_instance_id.clone(),
        client_id: member.client_id.clone(),
        host: member.client_host.clone(),
        // Other kinds of groups use another format.
        reads: assigned(kind, &member.assignment),
    }
}

impl From<MomentTopicError> for HistoryApiError {
    fn from(error: MomentTopicError) -> HistoryApiError {
        match error {
            MomentTopicError::Grammar(error) => error.into(),
            MomentTopicError::Seek(error) => error.into(),
            MomentTopicError::TooMany => {
                HistoryApiError::new(HistoryErrorCode::TooLarge, error.to_string())
            }
        }
    }
}

impl From<GroupError> for HistoryApiError {
    fn from(error: GroupError) -> HistoryApiError {
        match error {
            GroupError::NonEmptyGroup => HistoryApiError::new(
                HistoryErrorCode::GroupActive,
                "the group has members, which would go on from where they are, and commit that: stop \
                 them, and wait until they have left or their session has ended",
            ),
            GroupError::InvalidGroupId => {
                HistoryApiError::new(HistoryErrorCode::BadRequest, "a group has a name")
            }
            GroupError::CoordinatorNotAvailable => HistoryApiError::new(
                HistoryErrorCode::GroupBusy,
                "the group is being changed by somebody else; try again",
            ),
            GroupError::TooManyGroups => HistoryApiError::new(
                HistoryErrorCode::TooManyGroups,
                "there are as many groups as there may be",
            ),
            GroupError::GroupIdNotFound => {
                HistoryApiError::new(HistoryErrorCode::UnknownGroup, error.to_string())
            }
            // Only group members get these, and no operation here is a member's.
            GroupError::UnknownMemberId
            | GroupError::IllegalGeneration
            | GroupError::RebalanceInProgress
            | GroupError::InconsistentGroupProtocol
            | GroupError::MemberIdRequired
            | GroupError::FencedInstanceId
            | GroupError::InvalidSessionTimeout
            | GroupError::GroupMaxSizeReached
            | GroupError::GroupSubscribedToTopic
            | GroupError::TooManyBytes
            | GroupError::TooLarge => {
                HistoryApiError::new(HistoryErrorCode::Internal, error.to_string())
            }
        }
    }
}
