//! One member of a consumer group.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use super::super::member::{OVERHEAD_BYTES, protocols_bytes};
use super::super::modern_group::ModernMember;
use super::super::partitions::{self, AssignedPartitions, PartitionSet};

/// The epoch of a static member that has left and may come back (KIP-848).
pub(super) const LEFT_EPOCH: i32 = -2;

/// The progress of a member towards its target assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum MemberState {
    /// It owns all of its target assignment.
    Stable,
    /// It has been told to give partitions up, and has not confirmed that.
    UnrevokedPartitions,
    /// It waits for partitions that others still have.
    UnreleasedPartitions,
}

/// The parts of a join request of the classic protocol that the group keeps of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClassicMembership {
    pub(super) session_timeout: Duration,
    /// By the member's preference; each name once.
    pub(super) protocols: Vec<(String, Bytes)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConsumerGroupMember {
    pub(super) id: String,
    pub(super) instance: Option<String>,
    pub(super) rack: Option<String>,
    pub(super) client_id: String,
    pub(super) client_host: String,
    pub(super) rebalance_timeout: Duration,
    /// The topics that it named.
    pub(super) topics: BTreeSet<String>,
    /// The regular expression that its topics match; empty if it has none.
    pub(super) regex: String,
    /// The assignor that it prefers.
    pub(super) assignor: Option<String>,
    /// `None` for a member of the consumer protocol.
    pub(super) classic: Option<ClassicMembership>,
    pub(super) epoch: i32,
    /// The epoch before, which a member may still name if the response was lost.
    pub(super) previous_epoch: i32,
    pub(super) state: MemberState,
    /// The partitions that it has.
    pub(super) assigned: AssignedPartitions,
    /// The partitions that it must give up, and may still have.
    pub(super) revoking: AssignedPartitions,
    /// The partitions that it is to have.
    pub(super) target: PartitionSet,
}

impl ConsumerGroupMember {
    pub(super) fn new(id: String) -> ConsumerGroupMember {
        ConsumerGroupMember {
            id,
            instance: None,
            rack: None,
            client_id: String::new(),
            client_host: String::new(),
            rebalance_timeout: Duration::ZERO,
            topics: BTreeSet::new(),
            regex: String::new(),
            assignor: None,
            classic: None,
            epoch: 0,
            previous_epoch: 0,
            state: MemberState::Stable,
            assigned: AssignedPartitions::new(),
            revoking: AssignedPartitions::new(),
            target: PartitionSet::new(),
        }
    }

    /// True if there is nothing left to do for this member at that epoch of the assignment.
    pub(super) fn is_reconciled_to(&self, assignment_epoch: i32) -> bool {
        self.state == MemberState::Stable && self.epoch == assignment_epoch
    }

    pub(super) fn has_left(&self) -> bool {
        self.epoch == LEFT_EPOCH
    }

    /// Moves to an epoch, and remembers the one before.
    pub(super) fn move_to(&mut self, epoch: i32) {
        self.previous_epoch = self.epoch;
        self.epoch = epoch;
    }
}

impl ModernMember for ConsumerGroupMember {
    type Target = PartitionSet;

    fn epoch(&self) -> i32 {
        self.epoch
    }

    fn target_mut(&mut self) -> &mut PartitionSet {
        &mut self.target
    }

    fn bytes(&self, id: &str) -> usize {
        let texts = [id, &self.client_id, &self.client_host, &self.regex];
        let optional = [&self.instance, &self.rack, &self.assignor];
        let texts = texts.iter().map(|text| text.len()).sum::<usize>()
            + optional.iter().map(|text| text.as_ref().map_or(0, String::len)).sum::<usize>()
            + self.topics.iter().map(|topic| topic.len() + 32).sum::<usize>();
        let counts = |sets: &AssignedPartitions| {
            partitions::bytes(sets.len(), sets.values().map(|indexes| indexes.len()).sum())
        };
        let target = partitions::set_bytes(&self.target);
        let classic =
            self.classic.as_ref().map_or(0, |classic| protocols_bytes(&classic.protocols));
        OVERHEAD_BYTES + texts + counts(&self.assigned) + counts(&self.revoking) + target + classic
    }

    fn is_classic(&self) -> bool {
        self.classic.is_some()
    }
}
