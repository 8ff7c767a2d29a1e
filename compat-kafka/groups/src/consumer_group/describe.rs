//! Descriptions of a group for administrators.

use std::fmt;

use super::super::partitions::{AssignedPartitions, PartitionSet};
use super::ConsumerGroup;
use super::member::ConsumerGroupMember;

/// The state of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConsumerGroupState {
    /// No members.
    Empty,
    /// The members' targets are older than the epoch.
    Assigning,
    /// Members are on their way to their targets.
    Reconciling,
    /// Every member has its target.
    Stable,
}

impl ConsumerGroupState {
    pub(super) fn of(members: usize, is_assigning: bool, are_stable: bool) -> ConsumerGroupState {
        match (members, is_assigning, are_stable) {
            (0, ..) => ConsumerGroupState::Empty,
            (_, true, _) => ConsumerGroupState::Assigning,
            (_, _, true) => ConsumerGroupState::Stable,
            (_, _, false) => ConsumerGroupState::Reconciling,
        }
    }

    /// The name that Kafka's tools show and filter by.
    pub fn name(self) -> &'static str {
        match self {
            ConsumerGroupState::Empty => "Empty",
            ConsumerGroupState::Assigning => "Assigning",
            ConsumerGroupState::Reconciling => "Reconciling",
            ConsumerGroupState::Stable => "Stable",
        }
    }
}

impl fmt::Display for ConsumerGroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A group and its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerGroupSummary {
    pub state: ConsumerGroupState,
    pub epoch: i32,
    /// The epoch of the members' targets.
    pub assignment_epoch: i32,
    /// The assignor of the targets.
    pub assignor: &'static str,
    pub members: Vec<ConsumerMemberSummary>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerMemberSummary {
    pub id: String,
    pub instance: Option<String>,
    pub rack: Option<String>,
    pub epoch: i32,
    pub client_id: String,
    /// The host that the client connects from.
    pub client_host: String,
    /// The topics that it named.
    pub topics: Vec<String>,
    pub regex: String,
    pub assigned: AssignedPartitions,
    pub target: PartitionSet,
    /// True if it speaks the classic protocol.
    pub is_classic: bool,
}

impl ConsumerGroup {
    pub fn state(&self) -> ConsumerGroupState {
        let is_assigning = self.base.epoch > self.base.assignment_epoch;
        ConsumerGroupState::of(
            self.base.members.len(),
            is_assigning,
            self.unreconciled_members == 0,
        )
    }

    /// The group and its members.
    pub fn describe(&self) -> ConsumerGroupSummary {
        ConsumerGroupSummary {
            state: self.state(),
            epoch: self.base.epoch,
            assignment_epoch: self.base.assignment_epoch,
            assignor: self.preferred_assignor().name(),
            members: self.base.members.values().map(ConsumerGroupMember::describe).collect(),
        }
    }
}

impl ConsumerGroupMember {
    fn describe(&self) -> ConsumerMemberSummary {
        ConsumerMemberSummary {
            id: self.id.clone(),
            instance: self.instance.clone(),
            rack: self.rack.clone(),
            epoch: self.epoch,
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            topics: self.topics.iter().cloned().collect(),
            regex: self.regex.clone(),
            assigned: self.assigned.clone(),
            target: self.target.clone(),
            is_classic: self.classic.is_some(),
        }
    }
}
