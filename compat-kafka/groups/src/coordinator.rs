//! All groups, with what one of them lacks: time, waiting requests, and a log.
//!
//! Each group is a [`GroupSlot`] behind a lock of its own. No lock is held over an await. The map's
//! lock is taken before a slot's, never after. Writes of one group take turns, so the log gets its
//! generations in order. One task handles all deadlines (`timer_queue`).
//!
//! A request whose future is dropped stops waiting. Its member stays in the group, as in Kafka,
//! until the group's timers remove it: the client may only have lost its connection.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use admission::{Budget, Holder};
use engine::TopicId;
use engine::groups::StoredGroup;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use budgets::GroupBudgets;
use slot::{GroupSlot, GroupSlotState};
use timer_queue::{TimerKey, TimerQueue};

use super::classic_group::ClassicGroup;
use super::commit::{CommitFence, OffsetExpirationCondition};
use super::consumer_group::{
    ConsumerGroup, ConsumerGroupSummary, ConsumerHeartbeat, ConsumerHeartbeatAnswer,
    StoredConsumerGroup,
};
use super::describe::{GroupOverview, GroupSummary};
use super::effects::{GroupChange, GroupEffect, WriteResult};
use super::error::GroupError;
use super::group::{ClassicAnswer, Group};
use super::member_requests::GroupHeartbeatRequest;
use super::member_requests::{JoinRequest, JoinResult, RequestToken, SyncRequest, SyncResult};
use super::member_requests::{LeaveMemberRequest, LeaveMemberResult};
use super::modern_group::CommittedPartition;
use super::options::Options;
use super::share_group::{ShareGroup, StoredShareGroup};
use super::snapshot::{GroupSnapshot, GroupSnapshotError};
use super::streams_group::{StoredStreamsGroup, StreamsGroup};
use super::subscriptions::GroupSubscriptions;
use super::topic_subscription::{ClientTopics, GroupTopics, TopicFilter};

mod budgets;
mod hold;
mod share;
mod slot;
mod streams;
#[cfg(test)]
mod tests;
mod timer_queue;
mod writes;

pub use hold::HeldGroup;
pub use share::OffsetsLease;

/// The future of a [`GroupLog`] call.
pub type GroupLogFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// Storage for groups that survives a restart. For one group there is one call at a time. A future
/// that is dropped before it ends, because it took too long, counts as a failure.
pub trait GroupLog: Send + Sync + 'static {
    /// Writes a change of the group. It is done when the change survives a crash.
    fn put(&self, group: &str, change: GroupChange) -> GroupLogFuture<Result<(), String>>;

    /// Removes the group's snapshot and offsets, if there are any.
    fn delete(&self, group: &str) -> GroupLogFuture<Result<(), String>>;

    /// Returns true if the group has committed offsets: then it is kept without members too.
    fn has_offsets(&self, group: &str) -> GroupLogFuture<bool>;
}

/// The memory of a group without its id and its members.
const SLOT_BYTES: usize = 1024;

/// The source of the random part of member ids. A seeded one makes runs reproducible.
type MemberIdGenerator = Mutex<Box<dyn FnMut() -> Uuid + Send>>;

/// All groups. Clones share them; the timer task ends with the last clone.
#[derive(Clone)]
pub struct GroupCoordinator {
    shared: Arc<CoordinatorState>,
    /// The account of new groups, and of those of which a restart does not know it; `None` for the
    /// server itself.
    holder: Option<Holder>,
}

struct CoordinatorState {
    /// The options of the coordinator itself. Options that may differ between groups are in
    /// `group_options`.
    options: Arc<Options>,
    group_options: Mutex<GroupOptions>,
    log: Arc<dyn GroupLog>,
    topics: Arc<dyn GroupTopics>,
    member_ids: MemberIdGenerator,
    started: Instant,
    groups: Mutex<GroupMap>,
    timers: Arc<TimerQueue>,
    next_token: AtomicU64,
    budgets: GroupBudgets,
}

/// The options of groups.
struct GroupOptions {
    /// The options of groups without settings of their own.
    of_all: Arc<Options>,
    /// The options of the other groups, and their settings.
    own: HashMap<String, (Arc<Options>, GroupConfig)>,
}

/// The settings that a group has of its own, by name.
type GroupConfig = BTreeMap<String, String>;

#[derive(Default)]
struct GroupMap {
    by_id: HashMap<String, Arc<GroupSlot>>,
    is_closed: bool,
}

/// The action if a group does not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MissingGroupPolicy {
    Refuse,
    Create,
}

impl GroupCoordinator {
    /// Spawns the timer task, so it has to be called within a tokio runtime.
    pub fn new(
        options: Options,
        log: Arc<dyn GroupLog>,
        topics: Arc<dyn GroupTopics>,
        member_ids: impl FnMut() -> Uuid + Send + 'static,
    ) -> GroupCoordinator {
        let options = Arc::new(options);
        let budgets = GroupBudgets::new(&options);
        let group_options = GroupOptions { of_all: Arc::clone(&options), own: HashMap::new() };
        let shared = Arc::new(CoordinatorState {
            options,
            group_options: Mutex::new(group_options),
            log,
            topics,
            member_ids: Mutex::new(Box::new(member_ids)),
            started: Instant::now(),
            groups: Mutex::default(),
            timers: Arc::new(TimerQueue::new()),
            next_token: AtomicU64::new(0),
            budgets,
        });
        tokio::spawn(run_timers(Arc::downgrade(&shared), shared.timers.clone()));
        GroupCoordinator { shared, holder: None }
    }

    /// The same groups for one client, which is charged for those that it makes.
    pub fn on_behalf_of(&self, holder: Holder) -> GroupCoordinator {
        GroupCoordinator { shared: Arc::clone(&self.shared), holder: Some(holder) }
    }

    /// The budgets of all groups.
    pub fn budgets(&self) -> [Arc<Budget>; 2] {
        let GroupBudgets { groups, bytes, .. } = &self.shared.budgets;
        [Arc::clone(groups), Arc::clone(bytes)]
    }

    /// Restores a group from what is stored, before any request for it. `groups_max` does not
    /// apply: a restart loses no group that was accepted before.
    ///
    /// # Errors
    /// The bytes are not a group that this code can have stored.
    pub fn restore(&self, group: &str, stored: &StoredGroup) -> Result<(), GroupSnapshotError> {
        let now = self.shared.now();
        let options = self.shared.options_of(group);
        let (machine, effects) = if StoredConsumerGroup::is_one(stored) {
            let topics = &*self.shared.topics;
            (Group::Consumer(ConsumerGroup::restore(options, stored, now, topics)?), Vec::new())
        } else if StoredShareGroup::is_one(stored) {
            let topics = &*self.shared.topics;
            (Group::Share(ShareGroup::restore(options, stored, now, topics)?), Vec::new())
        } else if StoredStreamsGroup::is_one(stored) {
            let topics = &*self.shared.topics;
            (Group::Streams(StreamsGroup::restore(options, stored, now, topics)?), Vec::new())
        } else {
            let snapshot = GroupSnapshot::decode(&stored.snapshot)?;
            let (machine, effects) = ClassicGroup::restore(options, snapshot, now)?;
            (Group::Classic(machine), effects)
        };
        let slot = GroupSlot::new(group, machine, self.shared.budgets.restored());
        self.shared.groups.lock().by_id.insert(group.to_owned(), slot.clone());
        let mut inner = slot.inner.lock();
        inner.is_stored = true;
        self.shared.apply_effects(&slot, &mut inner, now, effects);
        Ok(())
    }

    /// Restores a group that has only offsets: nobody has ever joined it.
    pub fn restore_without_members(&self, group: &str) {
        self.restore_empty(group, ClassicGroup::new(self.shared.options_of(group)));
    }

    /// Restores a group whose members are unknown: they have time to join again.
    pub fn restore_unknown(&self, group: &str) {
        let mut machine = ClassicGroup::new(self.shared.options_of(group));
        machine.empty_since = Some(self.shared.now());
        self.restore_empty(group, machine);
    }

    fn restore_empty(&self, group: &str, machine: ClassicGroup) {
        let mut groups = self.shared.groups.lock();
        if let Entry::Vacant(vacant) = groups.by_id.entry(group.to_owned()) {
            let grants = self.shared.budgets.restored();
            let slot = GroupSlot::new(group, Group::Classic(machine), grants);
            let slot = Arc::clone(vacant.insert(slot));
            drop(groups);
            let mut inner = slot.inner.lock();
            inner.is_stored = true;
            self.shared.apply_effects(&slot, &mut inner, self.shared.now(), Vec::new());
        }
    }

    /// Joins a member. It returns when the group's next generation begins.
    pub async fn join(&self, group: &str, request: JoinRequest) -> JoinResult {
        let member_id = request.member_id.clone();
        let refuse = |error| JoinResult::with_error(error, &member_id);
        let waiter = match self.begin_join(group, request) {
            Ok(waiter) => waiter,
            Err(error) => return refuse(error),
        };
        waiter.answer().await.unwrap_or_else(|| refuse(GroupError::CoordinatorNotAvailable))
    }

    fn begin_join(
        &self,
        group: &str,
        request: JoinRequest,
    ) -> Result<BegunRequest<JoinResult>, GroupError> {
        check_group_id(group)?;
        request.check(&self.shared.options)?;
        tracing::debug!(group, member = request.member_id, reason = request.reason, "join");
        let is_newcomer = request.member_id.is_empty();
        let absent =
            if is_newcomer { MissingGroupPolicy::Create } else { MissingGroupPolicy::Refuse };
        let token = self.shared.next_token();
        let (sender, receiver) = oneshot::channel();
        let updated = self.update_group(group, absent, |slot, inner, now| {
            inner.joins.insert(token, sender);
            let growth = inner.group.growth_by_join(&request);
            if let Err(error) = self.shared.check_growth(inner, growth) {
                let answer = JoinResult::with_error(error, &request.member_id);
                let effects = vec![GroupEffect::Join { token, answer }];
                return ((slot.clone(), ClassicAnswer::Follows), None, effects);
            }
            let ids = &mut || self.shared.member_ids.lock()();
            let topics = &*self.shared.topics;
            let (answer, effects) = inner.group.join(now, token, request, topics, ids);
            let waits_for = match &answer {
                ClassicAnswer::Now(answer) => Some(answer.member_id.clone()),
                ClassicAnswer::Follows => None,
            };
            ((slot.clone(), answer), waits_for, effects)
        });
        let ((slot, answer), saved) = updated.map_err(as_unknown_member)?;
        let pending = PendingGroupRequest {
            slot,
            token,
            receiver,
            cancel: |inner, token| drop(inner.joins.remove(&token)),
        };
        Ok(BegunRequest::new(answer, saved, pending))
    }

    /// Returns a member's assignment when the leader's assignments are stored.
    pub async fn sync(&self, group: &str, request: SyncRequest) -> SyncResult {
        match self.begin_sync(group, request) {
            Ok(waiter) => waiter
                .answer()
                .await
                .unwrap_or_else(|| SyncResult::with_error(GroupError::CoordinatorNotAvailable)),
            Err(error) => SyncResult::with_error(error),
        }
    }

    fn begin_sync(
        &self,
        group: &str,
        request: SyncRequest,
    ) -> Result<BegunRequest<SyncResult>, GroupError> {
        check_group_id(group)?;
        let token = self.shared.next_token();
        let member = request.member_id.clone();
        let (sender, receiver) = oneshot::channel();
        let updated = self.update_group(group, MissingGroupPolicy::Refuse, |slot, inner, now| {
            inner.syncs.insert(token, sender);
            let growth = inner.group.growth_by_sync(&request);
            if let Err(error) = self.shared.check_growth(inner, growth) {
                let answer = SyncResult::with_error(error);
                let effects = vec![GroupEffect::Sync { token, answer }];
                return ((slot.clone(), ClassicAnswer::Follows), None, effects);
            }
            let topics = &*self.shared.topics;
            let (answer, effects) = inner.group.sync(now, token, request, topics);
            let waits_for = matches!(answer, ClassicAnswer::Now(_)).then_some(member);
            ((slot.clone(), answer), waits_for, effects)
        });
        let ((slot, answer), saved) = updated.map_err(as_unknown_member)?;
        let pending = PendingGroupRequest {
            slot,
            token,
            receiver,
            cancel: |inner, token| drop(inner.syncs.remove(&token)),
        };
        Ok(BegunRequest::new(answer, saved, pending))
    }

    /// Records a heartbeat of a member.
    pub fn heartbeat(
        &self,
        group: &str,
        request: &GroupHeartbeatRequest,
    ) -> Result<(), GroupError> {
        check_group_id(group)?;
        let result = self.update_group(group, MissingGroupPolicy::Refuse, |_, inner, now| {
            (inner.group.heartbeat(now, request), None, Vec::new())
        });
        result.map_err(as_unknown_member)?.0
    }

    /// Handles a heartbeat of a member of the consumer protocol (KIP-848). It returns when what the
    /// answer shows is stored. As in Kafka, the regular expressions of all members are resolved by
    /// what the client that asks may know of.
    pub async fn consumer_heartbeat(
        &self,
        group: &str,
        request: ConsumerHeartbeat,
        may_know: TopicFilter<'_>,
    ) -> Result<ConsumerHeartbeatAnswer, GroupError> {
        check_group_id(group)?;
        request.check(&self.shared.options)?;
        let member_id = |answer: &ConsumerHeartbeatAnswer| answer.member_id.clone();
        let joins = request.member_epoch == 0;
        self.modern_heartbeat(group, joins, member_id, |inner, now| {
            let topics = &ClientTopics { topics: &*self.shared.topics, may_know };
            if let Some(answer) = inner.group.bare_heartbeat(now, &request, topics) {
                return (Ok(answer), Vec::new());
            }
            let growth = inner.group.growth_by_heartbeat(&request);
            if let Err(error) = self.shared.check_growth(inner, growth) {
                return (Err(error), Vec::new());
            }
            let ids = &mut || self.shared.member_ids.lock()();
            inner.group.consumer_heartbeat(now, &request, topics, ids)
        })
        .await
    }

    /// Handles a heartbeat by `act`, and returns its answer once the changes of the member in it
    /// (`member_id`) are stored.
    async fn modern_heartbeat<A>(
        &self,
        group: &str,
        joins: bool,
        member_id: impl FnOnce(&A) -> String,
        act: impl FnOnce(&mut GroupSlotState, Duration) -> (Result<A, GroupError>, Vec<GroupEffect>),
    ) -> Result<A, GroupError> {
        let absent = if joins { MissingGroupPolicy::Create } else { MissingGroupPolicy::Refuse };
        let (answer, saved) = self.update_group(group, absent, |_, inner, now| {
            let (answer, effects) = act(inner, now);
            let waits_for = answer.as_ref().ok().map(member_id);
            (answer, waits_for, effects)
        })?;
        let answer = answer?;
        wait_until_saved(saved).await?;
        Ok(answer)
    }

    /// Removes members from a group: one result each, in order.
    pub async fn leave(
        &self,
        group: &str,
        leaving: &[LeaveMemberRequest],
    ) -> Result<Vec<LeaveMemberResult>, GroupError> {
        check_group_id(group)?;
        let updated = self.update_group(group, MissingGroupPolicy::Refuse, |_, inner, now| {
            let is_consumer = matches!(inner.group, Group::Consumer(_));
            let (results, effects) = inner.group.leave(now, leaving, &*self.shared.topics);
            // No member has an empty id: all changes are waited for.
            (results, is_consumer.then(String::new), effects)
        });
        match updated.map_err(as_unknown_member) {
            Err(error @ GroupError::UnknownMemberId) => {
                Ok(leaving.iter().map(|member| member.result(Some(error))).collect())
            }
            Err(error) => Err(error),
            Ok((results, saved)) => {
                wait_until_saved(saved).await?;
                results
            }
        }
    }

    /// Checks whether this client may commit offsets. A client without group management creates the
    /// group, if there is none. Any other gets [`GroupError::GroupIdNotFound`], which is
    /// `GROUP_ID_NOT_FOUND` from version 9 of `OffsetCommit` and `ILLEGAL_GENERATION` everywhere
    /// else.
    ///
    /// `partitions` are those that are committed for; a member of the consumer protocol may commit
    /// for the partitions that it has. The writes that `queue` puts into the log precede all later
    /// decisions about the group: its deletion, and a reset to a moment.
    pub fn commit<T>(
        &self,
        group: &str,
        fence: &CommitFence,
        partitions: &dyn Fn() -> Vec<CommittedPartition>,
        queue: impl FnOnce() -> T,
    ) -> Result<T, GroupError> {
        let is_simple = fence.generation_id < 0;
        let absent =
            if is_simple { MissingGroupPolicy::Create } else { MissingGroupPolicy::Refuse };
        let (queued, _) = self.update_group(group, absent, |_, inner, now| {
            let queued = inner.group.check_commit(now, fence, partitions).map(|()| {
                inner.is_stored = true;
                queue()
            });
            (queued, None, Vec::new())
        })?;
        queued
    }

    /// Checks whether a member that names its epoch may see the offsets of its group.
    pub fn check_fetch(
        &self,
        group: &str,
        member: Option<&str>,
        epoch: i32,
    ) -> Result<(), GroupError> {
        match self.read_group(group, |group| group.check_fetch(member, epoch)) {
            // There are no offsets either.
            Err(GroupError::GroupIdNotFound) => Ok(()),
            checked => checked?,
        }
    }

    /// Deletes offsets of the group, if any may be deleted: `queue` gets the topics whose offsets
    /// may not. The writes that it puts into the log precede all later decisions about the group,
    /// so members that join afterwards lose no commit.
    pub fn delete_offsets<T>(
        &self,
        group: &str,
        queue: impl FnOnce(&GroupSubscriptions) -> T,
    ) -> Result<T, GroupError> {
        let slot = self.shared.find(group)?;
        let inner = slot.inner.lock();
        if inner.is_being_deleted || inner.is_held {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        if inner.group.is_closed() {
            return Err(GroupError::GroupIdNotFound);
        }
        Ok(queue(&inner.group.check_offset_delete()?))
    }

    /// Lets offsets of the group expire, if any may: `queue` gets the condition. The writes that it
    /// puts into the log precede all later decisions about the group, so members that join
    /// afterwards have not seen those offsets. `None` if the group does not exist, or another
    /// request acts on it.
    pub fn expire<T>(
        &self,
        group: &str,
        queue: impl FnOnce(&OffsetExpirationCondition) -> T,
    ) -> Option<T> {
        let slot = self.shared.find(group).ok()?;
        let inner = slot.inner.lock();
        if inner.is_being_deleted || inner.is_held {
            return None;
        }
        match inner.group.offset_expiration_condition(self.shared.now()) {
            OffsetExpirationCondition::InUse => None,
            offset_use => Some(queue(&offset_use)),
        }
    }

    /// A classic group and its members.
    pub fn describe(&self, group: &str) -> Result<GroupSummary, GroupError> {
        self.read_group(group, Group::describe_classic)?
    }

    /// A group of the consumer protocol and its members.
    pub fn describe_consumer(&self, group: &str) -> Result<ConsumerGroupSummary, GroupError> {
        self.read_group(group, Group::describe_consumer)?
    }

    /// The name of a topic of a group, if it exists, or is still known.
    pub fn topic_name(&self, id: &TopicId) -> Option<Arc<str>> {
        self.shared.topics.name_of(id)
    }

    /// Returns true if there is such a group.
    pub fn contains(&self, group: &str) -> bool {
        self.read_group(group, |_| ()).is_ok()
    }

    /// True if the group has no members, and nothing of it is on its way to the log.
    pub fn is_idle(&self, group: &str) -> bool {
        self.read_group(group, Group::is_idle).unwrap_or(false)
    }

    /// All groups, by id.
    pub fn list(&self) -> Vec<GroupOverview> {
        let slots: Vec<Arc<GroupSlot>> =
            self.shared.groups.lock().by_id.values().cloned().collect();
        let overviews = slots.iter().filter_map(|slot| slot.inner.lock().group.overview(&slot.id));
        let mut overviews: Vec<_> = overviews.collect();
        overviews.sort_unstable_by(|a, b| a.group_id.cmp(&b.group_id));
        overviews
    }

    /// Deletes a group that has no members, with its offsets.
    pub async fn delete(&self, group: &str) -> Result<(), GroupError> {
        let slot = self.shared.find(group)?;
        let deletion = self.shared.begin_delete(&slot, &mut slot.inner.lock())?;
        deletion.await.unwrap_or(Err(GroupError::CoordinatorNotAvailable))
    }

    /// Refuses all requests from now on, including those that wait. Writes in flight go on.
    pub fn close(&self) {
        let slots: Vec<Arc<GroupSlot>> = {
            let mut groups = self.shared.groups.lock();
            groups.is_closed = true;
            groups.by_id.drain().map(|(_, slot)| slot).collect()
        };
        for slot in slots {
            let mut inner = slot.inner.lock();
            let effects = inner.group.close();
            self.shared.apply_effects(&slot, &mut inner, self.shared.now(), effects);
        }
    }

    /// Runs `act` on the group, and applies the effects. If `act` names a member, what the group
    /// says of it may have to be waited for. A group that died between the lookup and the lock has
    /// left the map by then, so the lookup is repeated.
    fn update_group<T>(
        &self,
        group: &str,
        absent: MissingGroupPolicy,
        act: impl FnOnce(
            &Arc<GroupSlot>,
            &mut GroupSlotState,
            Duration,
        ) -> (T, Option<String>, Vec<GroupEffect>),
    ) -> Result<(T, Option<SaveWait>), GroupError> {
        loop {
            let slot = self.find(group, absent)?;
            let mut inner = slot.inner.lock();
            if inner.group.is_closed() {
                continue;
            }
            if inner.is_being_deleted || inner.is_held {
                return Err(GroupError::CoordinatorNotAvailable);
            }
            if let Some(holder) = &self.holder {
                inner.grants.claim(holder);
            }
            let now = self.shared.now();
            inner.idle_until = None;
            let (answer, waits_for, effects) = act(&slot, &mut inner, now);
            self.shared.apply_effects(&slot, &mut inner, now, effects);
            let saved = waits_for.and_then(|member| inner.wait_until_saved(&member));
            return Ok((answer, saved));
        }
    }

    fn find(&self, id: &str, absent: MissingGroupPolicy) -> Result<Arc<GroupSlot>, GroupError> {
        match absent {
            MissingGroupPolicy::Refuse => self.shared.find(id),
            MissingGroupPolicy::Create => {
                let server = Holder::server;
                self.shared.find_or_create(id, self.holder.as_ref().unwrap_or(&server()))
            }
        }
    }

    fn read_group<T>(&self, group: &str, look: impl FnOnce(&Group) -> T) -> Result<T, GroupError> {
        let slot = self.shared.find(group)?;
        let inner = slot.inner.lock();
        if inner.group.is_closed() {
            Err(GroupError::GroupIdNotFound)
        } else {
            Ok(look(&inner.group))
        }
    }
}

impl CoordinatorState {
    /// Time since the start: the time base of all groups.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The options of one group.
    fn options_of(&self, group: &str) -> Arc<Options> {
        let options = self.group_options.lock();
        let group_options = options.own.get(group).map(|(own_options, _)| own_options);
        Arc::clone(group_options.unwrap_or(&options.of_all))
    }

    fn next_token(&self) -> RequestToken {
        RequestToken(self.next_token.fetch_add(1, Ordering::Relaxed))
    }

    fn find(&self, id: &str) -> Result<Arc<GroupSlot>, GroupError> {
        let groups = self.groups.lock();
        if groups.is_closed {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        groups.by_id.get(id).cloned().ok_or(GroupError::GroupIdNotFound)
    }

    fn find_or_create(&self, id: &str, holder: &Holder) -> Result<Arc<GroupSlot>, GroupError> {
        let mut groups = self.groups.lock();
        if groups.is_closed {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        if let Some(slot) = groups.by_id.get(id) {
            return Ok(slot.clone());
        }
        let grants = self.budgets.take(holder, slot_bytes(id))?;
        let slot = GroupSlot::new(id, Group::new(self.options_of(id)), grants);
        groups.by_id.insert(id.to_owned(), slot.clone());
        Ok(slot)
    }

    /// Checks whether the group has room to grow by so many bytes.
    fn check_growth(&self, inner: &GroupSlotState, growth: usize) -> Result<(), GroupError> {
        self.budgets.check_growth(&inner.grants, growth)
    }

    /// Charges what the group has. One that is gone gives everything back.
    fn update_bytes(&self, slot: &GroupSlot, inner: &mut GroupSlotState) {
        if inner.group.is_closed() {
            inner.grants.release();
        } else {
            inner.grants.settle(slot_bytes(&slot.id) + inner.group.bytes());
        }
    }

    /// Applies the effects, and schedules the group's next deadline.
    fn apply_effects(
        self: &Arc<Self>,
        slot: &Arc<GroupSlot>,
        inner: &mut GroupSlotState,
        now: Duration,
        effects: Vec<GroupEffect>,
    ) {
        inner.note_kind();
        for effect in effects {
            match effect {
                GroupEffect::Join { token, answer } => inner.answer_join(token, answer),
                GroupEffect::Sync { token, answer } => inner.answer_sync(token, answer),
                GroupEffect::Persist { write, snapshot } => {
                    self.queue_snapshot(slot, inner, write, snapshot)
                }
            }
        }
        self.queue_changes(slot, inner);
        self.update_bytes(slot, inner);
        inner.log_transition(&slot.id);
        inner.update_idle_deadline(now, self.options.empty_group_retention);
        self.timers.schedule(slot, inner);
    }

    fn on_timer(self: &Arc<Self>, key: TimerKey, slot: Arc<GroupSlot>) {
        let mut inner = slot.inner.lock();
        inner.timer.take_if(|armed| *armed == key);
        if inner.group.is_closed() || inner.is_being_deleted {
            return;
        }
        let now = self.now();
        let is_forgotten = inner.idle_until.is_some_and(|until| until <= now);
        let effects = inner.group.tick(now, &*self.topics);
        if is_forgotten {
            inner.idle_until = None;
        }
        self.apply_effects(&slot, &mut inner, now, effects);
        if is_forgotten {
            tokio::spawn(self.clone().delete_if_idle(slot.clone(), inner.idle_until));
        }
    }
}

/// A request that waits. When it is dropped, it is removed from the waiting requests.
struct PendingGroupRequest<T> {
    slot: Arc<GroupSlot>,
    token: RequestToken,
    receiver: oneshot::Receiver<T>,
    cancel: fn(&mut GroupSlotState, RequestToken),
}

impl<T> PendingGroupRequest<T> {
    /// `None` only if the group ended without an answer.
    async fn answer(mut self) -> Option<T> {
        (&mut self.receiver).await.ok()
    }
}

impl<T> Drop for PendingGroupRequest<T> {
    fn drop(&mut self) {
        (self.cancel)(&mut self.slot.inner.lock(), self.token);
    }
}

/// The end of a write that an answer waits for.
type SaveWait = oneshot::Receiver<WriteResult>;

/// Waits until what an answer shows is stored. If it is not, the answer must not be given.
async fn wait_until_saved(saved: Option<SaveWait>) -> Result<(), GroupError> {
    let Some(saved) = saved else { return Ok(()) };
    match saved.await {
        Ok(WriteResult::Stored) => Ok(()),
        Ok(WriteResult::Failed) | Err(_) => Err(GroupError::CoordinatorNotAvailable),
    }
}

/// A join or a sync whose answer comes later.
enum BegunRequest<T> {
    /// From an effect.
    Follows(PendingGroupRequest<T>),
    /// Once it is stored.
    Saved(T, Option<SaveWait>),
}

impl<T> BegunRequest<T> {
    fn new(
        answer: ClassicAnswer<T>,
        saved: Option<SaveWait>,
        pending: PendingGroupRequest<T>,
    ) -> BegunRequest<T> {
        match answer {
            ClassicAnswer::Follows => BegunRequest::Follows(pending),
            ClassicAnswer::Now(answer) => BegunRequest::Saved(answer, saved),
        }
    }

    /// `None` only if the group ended without an answer, or it cannot be stored.
    async fn answer(self) -> Option<T> {
        match self {
            BegunRequest::Follows(pending) => pending.answer().await,
            BegunRequest::Saved(answer, saved) => {
                wait_until_saved(saved).await.is_ok().then_some(answer)
            }
        }
    }
}

async fn run_timers(shared: Weak<CoordinatorState>, alarms: Arc<TimerQueue>) {
    while let Some(started) = shared.upgrade().map(|shared| shared.started) {
        for (key, slot) in alarms.next_due(started).await {
            match shared.upgrade() {
                Some(shared) => shared.on_timer(key, slot),
                None => return,
            }
        }
    }
}

impl Drop for CoordinatorState {
    fn drop(&mut self) {
        self.timers.close();
    }
}

/// The memory of a group without members. Its id is a key, too.
fn slot_bytes(id: &str) -> usize {
    SLOT_BYTES + 2 * id.len()
}

fn check_group_id(group: &str) -> Result<(), GroupError> {
    if group.is_empty() { Err(GroupError::InvalidGroupId) } else { Ok(()) }
}

/// A member of a missing group is unknown too, and has to join again.
fn as_unknown_member(error: GroupError) -> GroupError {
    match error {
        GroupError::GroupIdNotFound => GroupError::UnknownMemberId,
        error => error,
    }
}
