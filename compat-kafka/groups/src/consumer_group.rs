//! A group of the consumer protocol (KIP-848): the server assigns partitions, and each member moves
//! to its assignment by its own heartbeats.
//!
//! A state machine: its inputs are requests, topics and time. The operations are in files beside
//! this one: `heartbeat`, `leave`, `classic_members` (members that still speak the classic
//! protocol), `migrate` (from a classic group, and to one), `reconcile` (one step of a member),
//! `assign` (the assignors), `commit` and `describe`; `stored` is what survives a restart. This
//! file has what they share.
//!
//! It is made of a [`ModernGroup`], as share and streams groups are: an answer shows only what is
//! stored.
//!
//! Invariant: a partition has at most one holder, to which it is assigned or which has not
//! confirmed that it gave it up. It is asserted in [`ConsumerGroup::count`].

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use engine::TopicId;

use super::assignor::Assignor;
use super::deadlines::DeadlineQueue;
use super::error::GroupError;
use super::modern_group::ModernGroup;
use super::options::Options;
use super::partitions::{AssignedPartitions, PartitionSet, each};
use super::topic_subscription::{GroupSubscription, GroupTopics};
use assign::{AssignableMember, AssignmentTask};
use member::ConsumerGroupMember;
use reconcile::ReconcileContext;

mod assign;
mod classic_members;
mod commit;
mod describe;
mod heartbeat;
mod leave;
mod member;
mod migrate;
#[cfg(test)]
mod properties;
mod reconcile;
mod stored;
#[cfg(test)]
mod test_consumer_group;
#[cfg(test)]
mod tests;

pub use describe::{ConsumerGroupState, ConsumerGroupSummary, ConsumerMemberSummary};
pub use heartbeat::{ConsumerHeartbeat, ConsumerHeartbeatAnswer};
pub use member::MemberState;
pub use stored::{ClassicMembershipSnapshot, StoredConsumerGroup, StoredConsumerMember};

/// The purpose of a deadline of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum MemberTimer {
    /// It has to send a heartbeat.
    Session,
    /// It has to confirm that it gave partitions up.
    Revocation,
    /// A member of the classic protocol has to join again.
    Join,
    /// A member of the classic protocol has to fetch its assignment.
    Sync,
}

/// One group. Times are of a monotonic clock of the caller.
#[derive(Debug, Clone)]
pub struct ConsumerGroup {
    pub(super) base: ModernGroup<ConsumerGroupMember>,
    /// The member of each instance id.
    instances: HashMap<String, String>,
    /// The member that has each partition, or may still have it.
    holders: HashMap<(TopicId, u32), String>,
    subscription: GroupSubscription,
    /// The number of members that speak the classic protocol.
    classic_members: usize,
    /// The number of them that support each protocol.
    classic_protocols: HashMap<String, usize>,
    /// The number of members that are not at their targets.
    unreconciled_members: usize,
    deadlines: DeadlineQueue<(String, MemberTimer)>,
    /// The end of each member's session. Its deadline in `deadlines` may be earlier.
    sessions: HashMap<String, Duration>,
}

impl ConsumerGroup {
    /// A group that nobody has joined.
    pub fn new(options: Arc<Options>) -> ConsumerGroup {
        ConsumerGroup {
            base: ModernGroup::new(options, 0),
            instances: HashMap::new(),
            holders: HashMap::new(),
            subscription: GroupSubscription::default(),
            classic_members: 0,
            classic_protocols: HashMap::new(),
            unreconciled_members: 0,
            deadlines: DeadlineQueue::default(),
            sessions: HashMap::new(),
        }
    }

    /// The bytes that its members take.
    pub fn bytes(&self) -> usize {
        self.base.member_bytes + self.subscription.bytes()
    }

    /// The time at which [`ConsumerGroup::tick`] has to be called next.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(at, _)| at)
    }

    /// Removes the members whose time is up by `now`.
    pub fn tick(&mut self, now: Duration) {
        while let Some((at, key)) = self.deadlines.first()
            && at <= now
        {
            let (id, timer) = key.clone();
            self.deadlines.cancel(&(id.clone(), timer));
            let session = self.sessions.get(&id).copied();
            match session {
                Some(session) if timer == MemberTimer::Session && session > now => {
                    self.deadlines.set((id, timer), session);
                }
                _ => self.fence(now, &[id]),
            }
        }
    }

    /// Inserts a member, or replaces it, with all that depends on it.
    fn put(
        &mut self,
        now: Duration,
        member: ConsumerGroupMember,
        topics: &dyn GroupTopics,
    ) -> Result<(), GroupError> {
        let before = self.base.members.get(&member.id);
        let is_subscription_same = before.is_some_and(|before| {
            (&before.topics, &before.regex) == (&member.topics, &member.regex)
        });
        if !is_subscription_same {
            self.subscription.add(&member.topics, &member.regex, topics)?;
        }
        if let Some(before) = self.base.take(&member.id) {
            if !is_subscription_same {
                self.subscription.remove(&before.topics, &before.regex);
            }
            self.uncount(&before);
        }
        self.count(&member);
        if !self.sessions.contains_key(&member.id) {
            self.start_session(now, &member);
        }
        let id = member.id.clone();
        self.base.put(&id, member);
        Ok(())
    }

    /// Removes a member, with all that depends on it.
    fn remove(&mut self, now: Duration, id: &str) -> Option<ConsumerGroupMember> {
        let member = self.base.remove(now, id)?;
        self.subscription.remove(&member.topics, &member.regex);
        self.uncount(&member);
        self.sessions.remove(id);
        for timer in
            [MemberTimer::Session, MemberTimer::Revocation, MemberTimer::Join, MemberTimer::Sync]
        {
            self.deadlines.cancel(&(id.to_owned(), timer));
        }
        Some(member)
    }

    /// Counts a member in, apart from its subscription.
    fn count(&mut self, member: &ConsumerGroupMember) {
        for partition in each(&member.assigned).chain(each(&member.revoking)) {
            let holder = self.holders.insert(partition, member.id.clone());
            assert!(holder.is_none(), "a partition has one holder: {partition:?}");
        }
        if let Some(instance) = &member.instance {
            self.instances.insert(instance.clone(), member.id.clone());
        }
        self.classic_members += usize::from(member.classic.is_some());
        for (name, _) in member.classic.iter().flat_map(|classic| &classic.protocols) {
            *self.classic_protocols.entry(name.clone()).or_default() += 1;
        }
        self.unreconciled_members += self.unreconciled(member);
    }

    fn uncount(&mut self, member: &ConsumerGroupMember) {
        for partition in each(&member.assigned).chain(each(&member.revoking)) {
            self.holders.remove(&partition);
        }
        if let Some(instance) = &member.instance {
            self.instances.remove(instance);
        }
        self.classic_members -= usize::from(member.classic.is_some());
        for (name, _) in member.classic.iter().flat_map(|classic| &classic.protocols) {
            if let Some(count) = self.classic_protocols.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.classic_protocols.remove(name);
                }
            }
        }
        self.unreconciled_members -= self.unreconciled(member);
    }

    /// 1 for a member that is not at its target.
    fn unreconciled(&self, member: &ConsumerGroupMember) -> usize {
        usize::from(!member.is_reconciled_to(self.base.assignment_epoch))
    }

    /// The session timeout of a member.
    fn session_timeout(&self, member: &ConsumerGroupMember) -> Duration {
        let classic = member.classic.as_ref().map(|classic| classic.session_timeout);
        classic.unwrap_or(self.base.options.consumer.session_timeout)
    }

    fn start_session(&mut self, now: Duration, member: &ConsumerGroupMember) {
        let until = now + self.session_timeout(member);
        self.sessions.insert(member.id.clone(), until);
        let key = (member.id.clone(), MemberTimer::Session);
        if self.deadlines.at(&key).is_none_or(|at| at > until) {
            self.deadlines.set(key, until);
        }
    }

    /// Restarts the session of a member. A deadline that is too early now is set again when it is
    /// due.
    fn refresh_session(&mut self, now: Duration, id: &str) {
        if let Some(member) = self.base.members.get(id) {
            let until = now + self.session_timeout(member);
            if let Some(session) = self.sessions.get_mut(id) {
                *session = until;
            }
        }
    }

    /// Looks up the topics of all members again, if they may have changed, and raises the epoch if
    /// they have, or if the members' subscriptions have.
    fn update_topics(&mut self, now: Duration, is_changed: bool, topics: &dyn GroupTopics) {
        let is_looked_up = self.subscription.refresh(now, topics);
        let hash = if is_looked_up { self.subscription.hash() } else { self.base.topics_hash };
        self.base.update_topics(is_changed, hash);
    }

    /// Computes the targets of the members, unless they are those of the epoch, or were computed
    /// just now.
    fn update_targets(&mut self, now: Duration) {
        let interval = self.base.options.consumer.assignment_interval;
        if !self.base.is_assignment_due()
            || self.base.is_assignment_recent(now, interval)
            || self.subscription.is_unresolved()
        {
            return;
        }
        let subscribed: Vec<BTreeSet<TopicId>> = self
            .base
            .members
            .values()
            .map(|member| self.subscription.topics_of(&member.topics, &member.regex))
            .collect();
        let assignable = self.base.members.values().zip(&subscribed).map(|(member, subscribed)| {
            let (instance, before) = (member.instance.as_deref(), &member.target);
            AssignableMember { id: &member.id, instance, subscribed, before }
        });
        let topics = self.subscription.partition_counts();
        let task = AssignmentTask { members: assignable.collect(), topics: &topics };
        let targets = self.preferred_assignor().assign(&task);
        self.base.set_targets(now, targets);
        self.unreconciled_members =
            self.base.members.values().map(|member| self.unreconciled(member)).sum();
    }

    /// The assignor that most members prefer.
    fn preferred_assignor(&self) -> Assignor {
        let preferred = |assignor: &Assignor| {
            let has_voted =
                |member: &&ConsumerGroupMember| member.assignor.as_deref() == Some(assignor.name());
            self.base.members.values().filter(has_voted).count()
        };
        // Among equals, the first one wins.
        let best = self
            .base
            .options
            .consumer
            .assignors
            .iter()
            .rev()
            .max_by_key(|assignor| preferred(assignor));
        best.copied().unwrap_or(Assignor::Uniform)
    }

    /// Moves a copy of a member one step towards its target.
    fn reconcile(
        &mut self,
        now: Duration,
        member: &mut ConsumerGroupMember,
        is_subscription_new: bool,
        owned: Option<&PartitionSet>,
    ) {
        let subscribed = self.subscription.topics_of(&member.topics, &member.regex);
        let id = member.id.clone();
        let revoking = member.revoking.clone();
        let is_held_by_other =
            |topic, index| self.holders.get(&(topic, index)).is_some_and(|holder| *holder != id);
        let target_epoch = self.base.assignment_epoch;
        ReconcileContext {
            target_epoch,
            subscribed: &subscribed,
            is_subscription_new,
            owned,
            is_held_by_other: &is_held_by_other,
        }
        .step(member);
        let key = (member.id.clone(), MemberTimer::Revocation);
        let is_revoking = member.state == MemberState::UnrevokedPartitions;
        if !is_revoking || member.classic.is_some() {
            self.deadlines.cancel(&key);
        } else if self.deadlines.at(&key).is_none() || member.revoking != revoking {
            self.deadlines.set(key, now + member.rebalance_timeout);
        }
    }

    /// Asserts what must hold between any two events.
    #[cfg(test)]
    fn assert_sound(&self) {
        let mut holders = HashMap::new();
        for member in self.base.members.values() {
            for partition in each(&member.assigned).chain(each(&member.revoking)) {
                assert!(holders.insert(partition, member.id.clone()).is_none(), "{partition:?}");
            }
            let session = self.sessions[&member.id];
            let deadline = self.deadlines.at(&(member.id.clone(), MemberTimer::Session));
            assert!(deadline.is_some_and(|at| at <= session), "a session ends: {member:?}");
            let is_timed =
                self.deadlines.at(&(member.id.clone(), MemberTimer::Revocation)).is_some();
            let is_revoking = member.state == MemberState::UnrevokedPartitions;
            assert!(is_revoking || !is_timed, "{member:?}");
            assert!(
                member.epoch <= self.base.assignment_epoch && member.epoch >= member::LEFT_EPOCH
            );
            let instance = member.instance.as_ref().map(|instance| &self.instances[instance]);
            assert!(instance.is_none_or(|id| *id == member.id));
        }
        assert_eq!(holders, self.holders);
        assert_eq!(self.sessions.len(), self.base.members.len());
        self.base.assert_sound();
        let unreconciled: usize =
            self.base.members.values().map(|member| self.unreconciled(member)).sum();
        assert_eq!(self.unreconciled_members, unreconciled);
        let classic = self.base.members.values().filter(|member| member.classic.is_some()).count();
        assert_eq!(classic, self.classic_members);
    }
}
