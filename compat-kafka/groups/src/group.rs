//! A group of whichever protocol its members speak.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::classic_group::ClassicGroup;
use super::commit::{CommitFence, OffsetExpirationCondition};
use super::consumer_group::{
    ConsumerGroup, ConsumerGroupSummary, ConsumerHeartbeat, ConsumerHeartbeatAnswer,
};
use super::describe::{GroupOverview, GroupSummary, GroupType};
use super::effects::{GroupChange, GroupEffect};
use super::error::GroupError;
use super::member_requests::GroupHeartbeatRequest;
use super::member_requests::{JoinRequest, JoinResult, RequestToken, SyncRequest, SyncResult};
use super::member_requests::{LeaveMemberRequest, LeaveMemberResult};
use super::modern_group::{CommittedPartition, ModernState};
use super::options::Options;
use super::share_group::{ShareGroup, ShareGroupSummary, ShareHeartbeat, ShareHeartbeatAnswer};
use super::state::ClassicGroupState;
use super::streams_group::{
    StreamsGroup, StreamsGroupSummary, StreamsHeartbeat, StreamsHeartbeatAnswer,
};
use super::subscriptions::{
    CONSUMER_PROTOCOL_TYPE, GroupSubscriptions, SHARE_PROTOCOL_TYPE, STREAMS_PROTOCOL_TYPE,
};
use super::topic_subscription::GroupTopics;

/// A group of whichever protocol its members speak.
#[derive(Debug)]
pub(super) enum Group {
    Classic(ClassicGroup),
    Consumer(ConsumerGroup),
    Share(ShareGroup),
    Streams(StreamsGroup),
    /// Deleted, or closed with the service.
    Closed,
}

/// The answer of a group of either kind to a member of the classic protocol.
pub(super) enum ClassicAnswer<T> {
    /// An effect with the answer follows, sooner or later.
    Follows,
    /// This, once the changes of that member are stored.
    Now(T),
}

impl Group {
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Group::Classic(group) => group.state() == ClassicGroupState::Dead,
            Group::Consumer(_) | Group::Share(_) | Group::Streams(_) => false,
            Group::Closed => true,
        }
    }

    /// The name of its state, and its generation or epoch.
    pub(super) fn progress(&self) -> (&'static str, i32) {
        match self {
            Group::Classic(group) => (group.state().name(), group.generation()),
            Group::Consumer(group) => (group.state().name(), group.base.epoch),
            Group::Share(group) => (group.state().name(), group.base.epoch),
            Group::Streams(group) => (group.state().name(), group.base.epoch),
            Group::Closed => (ClassicGroupState::Dead.name(), -1),
        }
    }

    /// The state common to groups whose members have epochs; `None` for a classic group and a
    /// closed one.
    pub(super) fn modern(&self) -> Option<&dyn ModernState> {
        match self {
            Group::Consumer(group) => Some(&group.base),
            Group::Share(group) => Some(&group.base),
            Group::Streams(group) => Some(&group.base),
            Group::Classic(_) | Group::Closed => None,
        }
    }

    fn modern_mut(&mut self) -> Option<&mut dyn ModernState> {
        match self {
            Group::Consumer(group) => Some(&mut group.base),
            Group::Share(group) => Some(&mut group.base),
            Group::Streams(group) => Some(&mut group.base),
            Group::Classic(_) | Group::Closed => None,
        }
    }

    pub(super) fn member_count(&self) -> usize {
        match self {
            Group::Classic(group) => group.member_count(),
            _ => self.modern().map_or(0, ModernState::member_count),
        }
    }

    /// The reason why it last began to rebalance; for logs.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Group::Classic(group) => group.reason(),
            Group::Consumer(_) | Group::Share(_) | Group::Streams(_) => "members or topics changed",
            Group::Closed => "closed",
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Group::Classic(group) => group.bytes(),
            Group::Consumer(group) => group.bytes(),
            Group::Share(group) => group.bytes(),
            Group::Streams(group) => group.bytes(),
            Group::Closed => 0,
        }
    }

    /// True if only the epoch would be lost if this group were removed.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Group::Classic(group) => group.is_idle(),
            _ => self.modern().is_some_and(ModernState::is_idle),
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        match self {
            Group::Classic(group) => group.next_deadline(),
            Group::Consumer(group) => group.next_deadline(),
            Group::Share(group) => group.next_deadline(),
            Group::Streams(group) => group.next_deadline(),
            Group::Closed => None,
        }
    }

    pub(super) fn tick(&mut self, now: Duration, topics: &dyn GroupTopics) -> Vec<GroupEffect> {
        match self {
            Group::Classic(group) => group.tick(now),
            Group::Consumer(group) => {
                group.tick(now);
                self.downgrade(now, topics)
            }
            Group::Share(group) => {
                group.tick(now);
                Vec::new()
            }
            Group::Streams(group) => {
                group.tick(now);
                Vec::new()
            }
            Group::Closed => Vec::new(),
        }
    }

    /// Ends the group. All waiting requests are told to find the coordinator again.
    pub(super) fn close(&mut self) -> Vec<GroupEffect> {
        match std::mem::replace(self, Group::Closed) {
            Group::Classic(mut group) => group.close(),
            Group::Consumer(_) | Group::Share(_) | Group::Streams(_) | Group::Closed => Vec::new(),
        }
    }

    pub(super) fn join(
        &mut self,
        now: Duration,
        token: RequestToken,
        request: JoinRequest,
        topics: &dyn GroupTopics,
        ids: &mut dyn FnMut() -> Uuid,
    ) -> (ClassicAnswer<JoinResult>, Vec<GroupEffect>) {
        if let Group::Consumer(group) = self
            && !group.base.members.is_empty()
        {
            let answer = group.classic_join(now, &request, topics, ids);
            return (ClassicAnswer::Now(answer), self.downgrade(now, topics));
        }
        if matches!(self, Group::Share(_)) || self.is_used_by_streams() {
            let error = GroupError::InconsistentGroupProtocol;
            let refused = JoinResult::with_error(error, &request.member_id);
            return (ClassicAnswer::Now(refused), Vec::new());
        }
        (ClassicAnswer::Follows, self.as_classic().join(now, token, request, ids))
    }

    fn is_used_by_streams(&self) -> bool {
        matches!(self, Group::Streams(group) if !group.base.members.is_empty())
    }

    /// An empty group changes its kind with its next member, unless it is a share group.
    fn as_classic(&mut self) -> &mut ClassicGroup {
        let options = match self {
            Group::Consumer(group) => Some(&group.base.options),
            Group::Streams(group) => Some(&group.base.options),
            Group::Classic(_) | Group::Share(_) | Group::Closed => None,
        };
        if let Some(options) = options.map(Arc::clone) {
            *self = Group::Classic(ClassicGroup::in_place_of_another(options));
        }
        match self {
            Group::Classic(group) => group,
            Group::Consumer(_) | Group::Share(_) | Group::Streams(_) | Group::Closed => {
                unreachable!("requests find open groups, and share groups stay what they are")
            }
        }
    }

    pub(super) fn sync(
        &mut self,
        now: Duration,
        token: RequestToken,
        request: SyncRequest,
        topics: &dyn GroupTopics,
    ) -> (ClassicAnswer<SyncResult>, Vec<GroupEffect>) {
        match self {
            Group::Classic(group) => (ClassicAnswer::Follows, group.sync(now, token, request)),
            Group::Consumer(group) => {
                (ClassicAnswer::Now(group.classic_sync(now, &request, topics)), Vec::new())
            }
            Group::Share(_) | Group::Streams(_) => {
                let error = SyncResult::with_error(GroupError::UnknownMemberId);
                (ClassicAnswer::Now(error), Vec::new())
            }
            Group::Closed => {
                let error = SyncResult::with_error(GroupError::CoordinatorNotAvailable);
                (ClassicAnswer::Now(error), Vec::new())
            }
        }
    }

    pub(super) fn heartbeat(
        &mut self,
        now: Duration,
        request: &GroupHeartbeatRequest,
    ) -> Result<(), GroupError> {
        match self {
            Group::Classic(group) => group.heartbeat(now, request),
            Group::Consumer(group) => group.classic_heartbeat(now, request),
            Group::Share(_) | Group::Streams(_) => Err(GroupError::UnknownMemberId),
            Group::Closed => Err(GroupError::CoordinatorNotAvailable),
        }
    }

    pub(super) fn leave(
        &mut self,
        now: Duration,
        leaving: &[LeaveMemberRequest],
        topics: &dyn GroupTopics,
    ) -> (Result<Vec<LeaveMemberResult>, GroupError>, Vec<GroupEffect>) {
        match self {
            Group::Classic(group) => group.leave(now, leaving),
            Group::Consumer(group) => {
                let result = group.classic_leave(now, leaving);
                (Ok(result), self.downgrade(now, topics))
            }
            Group::Share(_) | Group::Streams(_) => (Err(GroupError::UnknownMemberId), Vec::new()),
            Group::Closed => (Err(GroupError::CoordinatorNotAvailable), Vec::new()),
        }
    }

    /// [`ConsumerGroup::bare_heartbeat`]
    pub(super) fn bare_heartbeat(
        &mut self,
        now: Duration,
        request: &ConsumerHeartbeat,
        topics: &dyn GroupTopics,
    ) -> Option<ConsumerHeartbeatAnswer> {
        match self {
            Group::Consumer(group) => group.bare_heartbeat(now, request, topics),
            _ => None,
        }
    }

    /// Handles a heartbeat of the consumer protocol. A member that joins makes a classic group one
    /// of that protocol.
    pub(super) fn consumer_heartbeat(
        &mut self,
        now: Duration,
        request: &ConsumerHeartbeat,
        topics: &dyn GroupTopics,
        ids: &mut dyn FnMut() -> Uuid,
    ) -> (Result<ConsumerHeartbeatAnswer, GroupError>, Vec<GroupEffect>) {
        match self {
            Group::Consumer(group) if request.leaves() => {
                let result = group.leave(now, request);
                (result, self.downgrade(now, topics))
            }
            Group::Consumer(group) => (group.heartbeat(now, request, topics, ids), Vec::new()),
            Group::Classic(classic) if request.member_epoch == 0 => {
                let joined =
                    ConsumerGroup::from_classic(classic, now, topics).and_then(|mut group| {
                        let answer = group.heartbeat(now, request, topics, ids)?;
                        Ok((answer, group))
                    });
                match joined {
                    Ok((answer, group)) => {
                        let effects = classic.abandon(GroupError::RebalanceInProgress);
                        *self = Group::Consumer(group);
                        (Ok(answer), effects)
                    }
                    Err(error) => (Err(error), Vec::new()),
                }
            }
            Group::Classic(_) | Group::Share(_) | Group::Streams(_) => {
                (Err(GroupError::GroupIdNotFound), Vec::new())
            }
            Group::Closed => (Err(GroupError::CoordinatorNotAvailable), Vec::new()),
        }
    }

    /// Handles a heartbeat of a member of a share group. A group that nobody has ever used becomes
    /// one.
    pub(super) fn share_heartbeat(
        &mut self,
        now: Duration,
        request: &ShareHeartbeat,
        is_new: bool,
        topics: &dyn GroupTopics,
    ) -> Result<ShareHeartbeatAnswer, GroupError> {
        match self {
            Group::Share(group) => group.heartbeat(now, request, topics),
            Group::Classic(classic) if is_new && request.joins() => {
                let mut group = ShareGroup::new(Arc::clone(&classic.options));
                let answer = group.heartbeat(now, request, topics)?;
                *self = Group::Share(group);
                Ok(answer)
            }
            Group::Classic(_) | Group::Consumer(_) | Group::Streams(_) => {
                Err(GroupError::GroupIdNotFound)
            }
            Group::Closed => Err(GroupError::CoordinatorNotAvailable),
        }
    }

    /// Makes a share group without members of a group that nobody has ever used.
    pub(super) fn create_share(&mut self, is_new: bool) -> Result<(), GroupError> {
        match self {
            Group::Share(_) => Ok(()),
            Group::Classic(classic) if is_new => {
                *self = Group::Share(ShareGroup::without_members(Arc::clone(&classic.options)));
                Ok(())
            }
            Group::Classic(_) | Group::Consumer(_) | Group::Streams(_) => {
                Err(GroupError::OtherGroupType)
            }
            Group::Closed => Err(GroupError::CoordinatorNotAvailable),
        }
    }

    /// Handles a heartbeat of a member of a streams group. A classic group without members becomes
    /// one: so an application goes over to the streams protocol, and keeps its offsets.
    pub(super) fn streams_heartbeat(
        &mut self,
        now: Duration,
        request: &StreamsHeartbeat,
        topics: &dyn GroupTopics,
    ) -> Result<StreamsHeartbeatAnswer, GroupError> {
        match self {
            Group::Streams(group) => group.heartbeat(now, request, topics),
            Group::Classic(classic) if classic.member_count() == 0 && request.joins() => {
                let mut group = StreamsGroup::new(Arc::clone(&classic.options));
                let answer = group.heartbeat(now, request, topics)?;
                *self = Group::Streams(group);
                Ok(answer)
            }
            Group::Classic(_) | Group::Consumer(_) | Group::Share(_) => {
                Err(GroupError::GroupIdNotFound)
            }
            Group::Closed => Err(GroupError::CoordinatorNotAvailable),
        }
    }

    /// Goes on with other options.
    pub(super) fn set_options(&mut self, options: Arc<Options>) {
        if let Group::Classic(group) = self {
            group.options = options;
        } else if let Some(group) = self.modern_mut() {
            group.set_options(options);
        }
    }

    /// True if the log lacks changes of a group whose members are stored one by one.
    pub(super) fn has_unsaved(&self) -> bool {
        self.modern().is_some_and(ModernState::has_unsaved)
    }

    /// Takes the changes of such a group that the log lacks, with the number of the last one.
    pub(super) fn take_unsaved(&mut self) -> Option<(u64, GroupChange)> {
        match self {
            Group::Consumer(group) => Some(group.take_unsaved()),
            Group::Share(group) => Some(group.take_unsaved()),
            Group::Streams(group) => Some(group.take_unsaved()),
            Group::Classic(_) | Group::Closed => None,
        }
    }

    /// The log has all changes up to a number.
    pub(super) fn saved(&mut self, count: u64) {
        if let Some(group) = self.modern_mut() {
            group.saved(count);
        }
    }

    /// The log may lack what [`Group::take_unsaved`] gave: it is tried again.
    pub(super) fn save_failed(&mut self, change: &GroupChange) {
        match self {
            Group::Consumer(group) => group.save_failed(change),
            Group::Share(group) => group.save_failed(change),
            Group::Streams(group) => group.save_failed(change),
            Group::Classic(_) | Group::Closed => {}
        }
    }

    /// A group whose last member of the consumer protocol is gone becomes a classic one again.
    fn downgrade(&mut self, now: Duration, topics: &dyn GroupTopics) -> Vec<GroupEffect> {
        match self {
            Group::Consumer(group) if group.may_become_classic() => {
                let (classic, effects) = group.to_classic(now, topics);
                *self = Group::Classic(classic);
                effects
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn check_commit(
        &mut self,
        now: Duration,
        fence: &CommitFence,
        partitions: &dyn Fn() -> Vec<CommittedPartition>,
    ) -> Result<(), GroupError> {
        match self {
            Group::Classic(group) => group.check_commit(now, fence),
            Group::Consumer(group) => group.check_commit(fence, partitions),
            Group::Streams(group) => group.check_commit(fence, partitions),
            Group::Share(_) => Err(GroupError::GroupIdNotFound),
            Group::Closed => Err(GroupError::CoordinatorNotAvailable),
        }
    }

    /// Checks whether a member that names its epoch may see offsets. Classic groups have no such
    /// members.
    pub(super) fn check_fetch(&self, member: Option<&str>, epoch: i32) -> Result<(), GroupError> {
        match self {
            Group::Consumer(group) => group.base.check_fetch(member, epoch),
            Group::Streams(group) => group.base.check_fetch(member, epoch),
            Group::Share(_) => Err(GroupError::GroupIdNotFound),
            Group::Classic(_) | Group::Closed => Ok(()),
        }
    }

    pub(super) fn check_offset_delete(&self) -> Result<GroupSubscriptions, GroupError> {
        match self {
            Group::Classic(group) => group.check_offset_delete(),
            Group::Consumer(group) => Ok(group.subscriptions()),
            Group::Streams(group) => Ok(group.subscriptions()),
            Group::Share(_) => Err(GroupError::GroupIdNotFound),
            Group::Closed => Err(GroupError::GroupIdNotFound),
        }
    }

    pub(super) fn check_delete(&self) -> Result<(), GroupError> {
        match self {
            Group::Classic(group) => group.check_delete(),
            _ => self.modern().ok_or(GroupError::GroupIdNotFound)?.check_delete(),
        }
    }

    pub(super) fn offset_expiration_condition(&self, now: Duration) -> OffsetExpirationCondition {
        match self {
            Group::Classic(group) => group.offset_expiration_condition(now),
            Group::Consumer(group) => {
                group.base.offset_expiration_condition(now, || group.subscriptions())
            }
            Group::Streams(group) => {
                group.base.offset_expiration_condition(now, || group.subscriptions())
            }
            // A share group keeps what it knows of its partitions until it is deleted.
            Group::Share(_) | Group::Closed => OffsetExpirationCondition::InUse,
        }
    }

    pub(super) fn describe_classic(&self) -> Result<GroupSummary, GroupError> {
        match self {
            Group::Classic(group) => Ok(group.describe()),
            Group::Consumer(_) | Group::Share(_) | Group::Streams(_) => {
                Err(GroupError::OtherGroupType)
            }
            Group::Closed => Err(GroupError::GroupIdNotFound),
        }
    }

    pub(super) fn describe_share(&self) -> Result<ShareGroupSummary, GroupError> {
        match self {
            Group::Share(group) => Ok(group.describe()),
            Group::Classic(_) | Group::Consumer(_) | Group::Streams(_) => {
                Err(GroupError::OtherGroupType)
            }
            Group::Closed => Err(GroupError::GroupIdNotFound),
        }
    }

    pub(super) fn describe_consumer(&self) -> Result<ConsumerGroupSummary, GroupError> {
        match self {
            Group::Consumer(group) => Ok(group.describe()),
            Group::Classic(_) | Group::Share(_) | Group::Streams(_) => {
                Err(GroupError::OtherGroupType)
            }
            Group::Closed => Err(GroupError::GroupIdNotFound),
        }
    }

    pub(super) fn describe_streams(&self) -> Result<StreamsGroupSummary, GroupError> {
        match self {
            Group::Streams(group) => Ok(group.describe()),
            Group::Classic(_) | Group::Consumer(_) | Group::Share(_) => {
                Err(GroupError::OtherGroupType)
            }
            Group::Closed => Err(GroupError::GroupIdNotFound),
        }
    }

    /// The group's line in the list; `None` if it is closed.
    pub(super) fn overview(&self, group_id: &str) -> Option<GroupOverview> {
        let (protocol_type, group_type) = match self {
            Group::Classic(group) => {
                (group.protocol_type.clone().unwrap_or_default(), GroupType::Classic)
            }
            Group::Consumer(_) => (CONSUMER_PROTOCOL_TYPE.to_owned(), GroupType::Consumer),
            Group::Share(_) => (SHARE_PROTOCOL_TYPE.to_owned(), GroupType::Share),
            Group::Streams(_) => (STREAMS_PROTOCOL_TYPE.to_owned(), GroupType::Streams),
            Group::Closed => return None,
        };
        let (state, _) = self.progress();
        let group_id = group_id.to_owned();
        (!self.is_closed()).then_some(GroupOverview { group_id, protocol_type, group_type, state })
    }

    /// The additional bytes of the group once a join of the classic protocol is granted.
    pub(super) fn growth_by_join(&self, request: &JoinRequest) -> usize {
        match self {
            Group::Classic(group) => group.growth_by_join(request),
            Group::Consumer(group) => {
                let instance = request.group_instance_id.as_deref();
                request.bytes().saturating_sub(group.bytes_of(&request.member_id, instance))
            }
            Group::Share(_) | Group::Streams(_) | Group::Closed => request.bytes(),
        }
    }

    /// The additional bytes of the group once a heartbeat of a share group is granted.
    pub(super) fn growth_by_share_heartbeat(&self, request: &ShareHeartbeat) -> usize {
        match self {
            Group::Share(group) => group.growth_by_heartbeat(request),
            _ => request.bytes(),
        }
    }

    /// The additional bytes of the group once a heartbeat of a streams group is granted.
    pub(super) fn growth_by_streams_heartbeat(&self, request: &StreamsHeartbeat) -> usize {
        match self {
            Group::Streams(group) => group.growth_by_heartbeat(request),
            _ => request.bytes(),
        }
    }

    /// The additional bytes of the group once a heartbeat of the consumer protocol is granted.
    pub(super) fn growth_by_heartbeat(&self, request: &ConsumerHeartbeat) -> usize {
        match self {
            Group::Consumer(group) => group.growth_by_heartbeat(request),
            _ => request.bytes(),
        }
    }

    /// The additional bytes of the group once a leader's assignments are there.
    pub(super) fn growth_by_sync(&self, request: &SyncRequest) -> usize {
        match self {
            Group::Classic(group) => group.growth_by_sync(request),
            Group::Consumer(_) | Group::Share(_) | Group::Streams(_) | Group::Closed => 0,
        }
    }

    /// A classic group that nobody has joined.
    pub(super) fn new(options: Arc<Options>) -> Group {
        Group::Classic(ClassicGroup::new(options))
    }
}
