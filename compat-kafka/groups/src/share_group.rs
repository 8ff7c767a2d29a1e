//! A share group (KIP-932): its members share partitions, and each record is delivered to one of
//! them.
//!
//! This is its membership: the members, and the partitions that each fetches from. Several members
//! may have the same partition, so nobody waits until another has given one up: a member has its
//! target with its next heartbeat. The records that a member has are in `crate::share`.
//!
//! A state machine, as [`ConsumerGroup`](super::ConsumerGroup) is, and stored as that is: an answer
//! shows only what is stored. `heartbeat` is the operation of members, `assign` the assignor,
//! `stored` what survives a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use engine::TopicId;

use super::deadlines::DeadlineQueue;
use super::error::GroupError;
use super::member::OVERHEAD_BYTES;
use super::options::{Options, assignment_interval};
use super::partitions::{PartitionSet, set_bytes};
use super::topic_subscription::{GroupSubscription, GroupTopics};
use super::unsaved_changes::UnsavedChanges;
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
struct ShareGroupMember {
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

impl ShareGroupMember {
    /// The bytes that it takes.
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
    options: Arc<Options>,
    /// The group epoch: rises with every change of members, subscriptions or partitions.
    epoch: i32,
    /// The epoch of the members' targets. It is never above `epoch`.
    assignment_epoch: i32,
    /// The time at which the targets were computed, if that was in this incarnation.
    assigned_at: Option<Duration>,
    members: BTreeMap<String, ShareGroupMember>,
    subscription: GroupSubscription,
    /// [`GroupSubscription::hash`] at `epoch`.
    topics_hash: u64,
    /// The end of each member's session.
    sessions: DeadlineQueue<String>,
    member_bytes: usize,
    unsaved: UnsavedChanges,
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
            options,
            epoch: 0,
            assignment_epoch: 0,
            assigned_at: None,
            members: BTreeMap::new(),
            subscription: GroupSubscription::default(),
            topics_hash: 0,
            sessions: DeadlineQueue::default(),
            member_bytes: 0,
            unsaved: UnsavedChanges::of_new_group(),
        }
    }

    /// A group that is there, and that nobody has joined yet.
    pub fn without_members(options: Arc<Options>) -> ShareGroup {
        let mut group = ShareGroup::new(options);
        group.unsaved.mark_group();
        group
    }

    /// Goes on with other options.
    pub fn set_options(&mut self, options: Arc<Options>) {
        self.options = options;
    }

    pub fn epoch(&self) -> i32 {
        self.epoch
    }

    pub fn member_count(&self) -> usize {
        self.members.len()
    }

    pub fn state(&self) -> ShareGroupState {
        ShareGroupState::of(self.members.len())
    }

    /// The bytes that its members take.
    pub fn bytes(&self) -> usize {
        self.member_bytes + self.subscription.bytes()
    }

    /// True if only the epoch would be lost if this group were removed.
    pub fn is_idle(&self) -> bool {
        self.members.is_empty() && !self.unsaved.is_any()
    }

    /// Checks whether the group may be deleted.
    pub fn check_delete(&self) -> Result<(), GroupError> {
        if self.members.is_empty() { Ok(()) } else { Err(GroupError::NonEmptyGroup) }
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
            self.remove(&id);
        }
    }

    /// The number of the last change of a member, or of the group if there is no such member;
    /// `None` if the log has it.
    pub fn unsaved_change_of(&self, member: &str) -> Option<u64> {
        self.unsaved.change_of(member, || self.members.contains_key(member))
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
            epoch: self.epoch,
            assignment_epoch: self.assignment_epoch,
            assignor: ASSIGNOR,
            members: self.members.iter().map(member).collect(),
        }
    }

    /// Inserts a member, or replaces it, with all that depends on it.
    fn put(&mut self, id: &str, member: ShareGroupMember, topics: &dyn GroupTopics) {
        let before = self.members.remove(id);
        let is_same = before.as_ref().is_some_and(|before| before.topics == member.topics);
        if !is_same {
            let added = self.subscription.add(&member.topics, NO_REGEX, topics);
            added.expect("there is no regular expression to be invalid");
        }
        if let Some(before) = before {
            if !is_same {
                self.subscription.remove(&before.topics, NO_REGEX);
            }
            self.member_bytes -= before.bytes(id);
        }
        self.member_bytes += member.bytes(id);
        self.unsaved.mark(id);
        self.members.insert(id.to_owned(), member);
    }

    /// Removes a member, with all that depends on it.
    fn remove(&mut self, id: &str) {
        let Some(member) = self.members.remove(id) else { return };
        self.subscription.remove(&member.topics, NO_REGEX);
        self.member_bytes -= member.bytes(id);
        self.sessions.cancel(id);
        self.unsaved.mark_removed(id);
        self.raise_epoch();
    }

    fn raise_epoch(&mut self) {
        self.epoch += 1;
        self.unsaved.mark_group();
    }

    /// Looks up the topics of all members again, if they may have changed, and raises the epoch if
    /// they have, or if the members' subscriptions have.
    fn update_topics(&mut self, now: Duration, is_changed: bool, topics: &dyn GroupTopics) {
        let hash = if self.subscription.refresh(now, topics) {
            self.subscription.hash()
        } else {
            self.topics_hash
        };
        if is_changed || hash != self.topics_hash {
            self.topics_hash = hash;
            self.raise_epoch();
        }
    }

    /// Computes the targets of the members, unless they are those of the epoch, or were computed
    /// just now.
    fn update_targets(&mut self, now: Duration) {
        let interval = self.options.share.assignment_interval;
        let interval = assignment_interval(interval, self.members.len());
        let is_soon = self.assigned_at.is_some_and(|at| now.saturating_sub(at) < interval);
        if self.assignment_epoch >= self.epoch || is_soon {
            return;
        }
        let subscribed: Vec<BTreeSet<TopicId>> = self
            .members
            .values()
            .map(|member| self.subscription.topics_of(&member.topics, NO_REGEX))
            .collect();
        let members = self.members.values().zip(&subscribed);
        let members: Vec<AssignableMember<'_>> = members
            .map(|(member, subscribed)| AssignableMember { subscribed, before: &member.target })
            .collect();
        let targets = assign::assign(&members, &self.subscription.partition_counts());
        for ((id, member), target) in self.members.iter_mut().zip(targets) {
            if member.target != target {
                self.member_bytes -= set_bytes(&member.target);
                self.member_bytes += set_bytes(&target);
                member.target = target;
                self.unsaved.mark_untold(id.clone());
            }
        }
        self.assignment_epoch = self.epoch;
        self.assigned_at = Some(now);
        self.unsaved.mark_group();
    }

    /// Asserts what must hold between any two events.
    #[cfg(test)]
    fn assert_sound(&self) {
        assert!(self.assignment_epoch <= self.epoch);
        let bytes: usize = self.members.iter().map(|(id, member)| member.bytes(id)).sum();
        assert_eq!(bytes, self.member_bytes);
        for (id, member) in &self.members {
            assert!(self.sessions.at(id.as_str()).is_some(), "a session ends: {id}");
            assert!(member.epoch <= self.assignment_epoch);
        }
    }
}
