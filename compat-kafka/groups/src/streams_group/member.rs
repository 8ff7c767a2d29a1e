//! One member of a streams group: a thread of an application.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::consumer_group::MemberState;
use super::super::member::OVERHEAD_BYTES;
use super::super::modern_group::ModernMember;
use super::tasks::{GivenTasks, MemberTasks};

/// The host and port at which the application answers queries of its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserEndpoint {
    pub host: String,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamsGroupMember {
    pub(super) rack: Option<String>,
    pub(super) client_id: String,
    pub(super) client_host: String,
    pub(super) rebalance_timeout: Duration,
    /// The epoch of the topology that it runs.
    pub(super) topology_epoch: i32,
    /// The process that it is a thread of.
    pub(super) process: String,
    pub(super) endpoint: Option<UserEndpoint>,
    pub(super) tags: BTreeMap<String, String>,
    pub(super) epoch: i32,
    /// The epoch before, which a member may still name if the response was lost.
    pub(super) previous_epoch: i32,
    pub(super) state: MemberState,
    /// The tasks that it has.
    pub(super) assigned: GivenTasks,
    /// The tasks that it must give up, and may still have.
    pub(super) revoking: GivenTasks,
    /// The tasks that it is to have.
    pub(super) target: MemberTasks,
}

impl StreamsGroupMember {
    pub(super) fn new() -> StreamsGroupMember {
        StreamsGroupMember {
            rack: None,
            client_id: String::new(),
            client_host: String::new(),
            rebalance_timeout: Duration::ZERO,
            topology_epoch: -1,
            process: String::new(),
            endpoint: None,
            tags: BTreeMap::new(),
            epoch: 0,
            previous_epoch: 0,
            state: MemberState::Stable,
            assigned: GivenTasks::default(),
            revoking: GivenTasks::default(),
            target: MemberTasks::default(),
        }
    }

    /// True if there is nothing left to do for this member at that epoch of the assignment.
    pub(super) fn is_reconciled_to(&self, assignment_epoch: i32) -> bool {
        self.state == MemberState::Stable && self.epoch == assignment_epoch
    }

    /// Moves to an epoch, and remembers the one before.
    pub(super) fn move_to(&mut self, epoch: i32) {
        self.previous_epoch = self.epoch;
        self.epoch = epoch;
    }
}

impl ModernMember for StreamsGroupMember {
    type Target = MemberTasks;

    fn epoch(&self) -> i32 {
        self.epoch
    }

    fn target_mut(&mut self) -> &mut MemberTasks {
        &mut self.target
    }

    fn bytes(&self, id: &str) -> usize {
        let texts = [&self.client_id, &self.client_host, &self.process];
        OVERHEAD_BYTES
            + id.len()
            + texts.iter().map(|text| text.len()).sum::<usize>()
            + self.rack.as_ref().map_or(0, String::len)
            + self.endpoint.as_ref().map_or(0, |endpoint| endpoint.host.len())
            + self.tags.iter().map(|(key, value)| key.len() + value.len() + 64).sum::<usize>()
            + self.assigned.bytes()
            + self.revoking.bytes()
            + self.target.bytes()
    }
}
