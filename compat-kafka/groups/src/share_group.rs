//! A share group (KIP-932): its members share partitions, and each record is delivered to one of
//! them.
//!
//! This is its membership: the members, and the partitions that each fetches from. Several members
//! may have the same partition, so nobody waits until another has given one up: a member has its
//! target with its next heartbeat. The records that a member has are in the crate
//! `kafka-share-groups`.
//!
//! A state machine, made of a [`ModernGroup`] as a consumer group is, and stored as that is: an
//! answer shows only what is stored. `heartbeat` is the operation of members, `assign` the assignor,
//! `stored` what survives a restart.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use engine::TopicId;

use super::deadlines::DeadlineQueue;
use super::member::OVERHEAD_BYTES;
use super::modern_group::{ModernGroup, ModernMember};
use super::options::Options;
use super::partitions::{PartitionSet, set_bytes};
use super::topic_subscription::{GroupSubscription, GroupTopics};
use assign::AssignableMember;

mod assign;
mod heartbeat;
mod stored;
#[cfg(test)]
mod tests;

pub use heartbeat::{ShareHeartbeat, ShareHeartbeatAnswer};
pub use stored::{StoredShareGroup, StoredShareMember};

/// The one assignor of share groups, by Kafka's name.
const ASSIGNOR: &str = "simple";

/// Share groups have no regular expressions.
const NO_REGEX: &str = "";

/// The state of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareGroupState {
    /// No members.
    Empty,
    Stable,
}

impl ShareGroupState {
    fn of(members: usize) -> ShareGroupState {
        if members == 0 { ShareGroupState::Empty } else { ShareGroupState::Stable }
    }

    /// The name that Kafka's tools show and filter by.
    pub fn name(self) -> &'static str {
        match self {
            ShareGroupState::Empty => "Empty",
            ShareGroupState::Stable => "Stable",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShareGroupMember {
    rack: Option<String>,
    client_id: String,
    client_host: String,
    topics: BTreeSet<String>,
    epoch: i32,
    /// The epoch before, which a member may still name if the response was lost.
    previous_epoch: i32,
    /// The partitions that it fetches from.
    assigned: PartitionSet,
    /// The partitions that it is to fetch from.
    target: PartitionSet,
}

impl ModernMember for ShareGroupMember {
    type Target = PartitionSet;

    fn epoch(&self) -> i32 {
        self.epoch
    }

    fn target_mut(&mut self) -> &mut PartitionSet {
        &mut self.target
    }

    fn bytes(&self, id: &str) -> usize {
        let texts = id.len()
            + self.client_id.len()
            + self.client_host.len()
            + self.rack.as_ref().map_or(0, String::len)
            + self.topics.iter().map(|topic| topic.len() + 32).sum::<usize>();
        OVERHEAD_BYTES + texts + set_bytes(&self.assigned) + set_bytes(&self.target)
    }
}

/// One group. Times are of a monotonic clock of the caller.
#[derive(Debug, Clone)]
pub struct ShareGroup {
    pub(super) base: ModernGroup<ShareGroupMember>,
    subscription: GroupSubscription,
    /// The end of each member's session.
    sessions: DeadlineQueue<String>,
}

/// A group and its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareGroupSummary {
    pub state: ShareGroupState,
    pub epoch: i32,
    /// The epoch of the members' targets.
    pub assignment_epoch: i32,
    pub assignor: &'static str,
    pub members: Vec<ShareMemberSummary>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareMemberSummary {
    pub id: String,
    pub rack: Option<String>,
    pub epoch: i32,
    pub client_id: String,
    /// The host that the client connects from.
    pub client_host: String,
    /// The topics that it named.
    pub topics: Vec<String>,
    pub assigned: PartitionSet,
}

impl ShareGroup {
    /// A group that nobody has joined.
    pub fn new(options: Arc<Options>) -> ShareGroup {
        ShareGroup {
            base: ModernGroup::new(options, 0),
            subscription: GroupSubscription::default(),
            sessions: DeadlineQueue::default(),
        }
    }

    /// A group that is there, and that nobody has joined yet.
    pub fn without_members(options: Arc<Options>) -> ShareGroup {
        let mut group = ShareGroup::new(options);
        group.base.unsaved.mark_group();
        group
    }

    pub fn state(&self) -> ShareGroupState {
        ShareGroupState::of(self.base.members.len())
    }

    /// The bytes that its members take.
    pub fn bytes(&self) -> usize {
        self.base.member_bytes + self.subscription.bytes()
    }

    /// The time at which [`ShareGroup::tick`] has to be called next.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.sessions.first().map(|(at, _)| at)
    }

    /// Removes the members whose sessions have ended by `now`.
    pub fn tick(&mut self, now: Duration) {
        while let Some((at, id)) = self.sessions.first()
            && at <= now
        {
            let id = id.clone();
            self.remove(now, &id);
        }
    }

    /// The group and its members.
    pub fn describe(&self) -> ShareGroupSummary {
        let member = |(id, member): (&String, &ShareGroupMember)| ShareMemberSummary {
            id: id.clone(),
            rack: member.rack.clone(),
            epoch: member.epoch,
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            topics: member.topics.iter().cloned().collect(),
            assigned: member.assigned.clone(),
        };
        ShareGroupSummary {
            state: self.state(),
            epoch: self.base.epoch,
            assignment_epoch: self.base.assignment_epoch,
            assignor: ASSIGNOR,
            members: self.base.members.iter().map(member).collect(),
        }
    }

    /// Inserts a member, or replaces it, with all that depends on it.
    fn put(&mut self, id: &str, member: ShareGroupMember, topics: &dyn GroupTopics) {
        let before = self.base.take(id);
        let is_same = before.as_ref().is_some_and(|before| before.topics == member.topics);
        if !is_same {
            let added = self.subscription.add(&member.topics, NO_REGEX, topics);
            added.expect("there is no regular expression to be invalid");
            if let Some(before) = before {
                self.subscription.remove(&before.topics, NO_REGEX);
            }
        }
        self.base.put(id, member);
    }

    /// Removes a member, with all that depends on it.
    fn remove(&mut self, now: Duration, id: &str) {
        let Some(member) = self.base.remove(now, id) else { return };
        self.subscription.remove(&member.topics, NO_REGEX);
        self.sessions.cancel(id);
        self.base.raise_epoch();
    }

    /// Looks up the topics of all members again, if they may have changed, and raises the epoch if
    /// they have, or if the members' subscriptions have.
    fn update_topics(&mut self, now: Duration, is_changed: bool, topics: &dyn GroupTopics) {
        let hash = if self.subscription.refresh(now, topics) {
            self.subscription.hash()
        } else {
            self.base.topics_hash
        };
        self.base.update_topics(is_changed, hash);
    }

    /// Computes the targets of the members, unless they are those of the epoch, or were computed
    /// just now.
    fn update_targets(&mut self, now: Duration) {
        let interval = self.base.options.share.assignment_interval;
        if !self.base.is_assignment_due() || self.base.is_assignment_recent(now, interval) {
            return;
        }
        let subscribed: Vec<BTreeSet<TopicId>> = self
            .base
            .members
            .values()
            .map(|member| self.subscription.topics_of(&member.topics, NO_REGEX))
            .collect();
        let members = self.base.members.values().zip(&subscribed);
        let members: Vec<AssignableMember<'_>> = members
            .map(|(member, subscribed)| AssignableMember { subscribed, before: &member.target })
            .collect();
        let targets = assign::assign(&members, &self.subscription.partition_counts());
        self.base.set_targets(now, targets);
    }

    /// Asserts what must hold between any two events.
    #[cfg(test)]
    fn assert_sound(&self) {
        self.base.assert_sound();
        for (id, member) in &self.base.members {
            assert!(self.sessions.at(id.as_str()).is_some(), "a session ends: {id}");
            assert!(member.epoch <= self.base.assignment_epoch);
        }
    }
}
