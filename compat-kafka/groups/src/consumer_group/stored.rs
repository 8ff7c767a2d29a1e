//! The state that survives a restart: a header of the group, and each member by itself, so that a
//! change costs as much as what it changes.
//!
//! Each is its version, then postcard. `docs/FORMAT.md` has their fields.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::groups::StoredGroup;
use serde::{Deserialize, Serialize};

use super::super::effects::GroupChange;
use super::super::error::GroupError;
use super::super::group_header::CONSUMER_GROUP;
use super::super::modern_group::{ModernState, StoredMember, StoredModernGroup, encode_member};
use super::super::options::Options;
use super::super::partitions::{AssignedPartitions, PartitionSet, each};
use super::super::snapshot::{GroupSnapshotError, encode_versioned, millis};
use super::super::topic_subscription::GroupTopics;
use super::describe::ConsumerGroupState;
use super::member::{ClassicMembership, ConsumerGroupMember, MemberState};
use super::{ConsumerGroup, MemberTimer};

/// The state of a member that survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredConsumerMember {
    pub instance: Option<String>,
    pub rack: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub rebalance_timeout_ms: u64,
    pub topics: BTreeSet<String>,
    pub regex: String,
    pub assignor: Option<String>,
    /// `Some` for a member of the classic protocol.
    pub classic: Option<ClassicMembershipSnapshot>,
    pub epoch: i32,
    pub previous_epoch: i32,
    pub state: MemberState,
    pub assigned: AssignedPartitions,
    pub revoking: AssignedPartitions,
    pub target: PartitionSet,
}

/// The parts of a classic member's join request that survive a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassicMembershipSnapshot {
    pub session_timeout_ms: u64,
    /// By the member's preference.
    pub protocols: Vec<(String, Vec<u8>)>,
}

/// The state of a group that survives a restart.
pub type StoredConsumerGroup = StoredModernGroup<StoredConsumerMember>;

impl StoredMember for StoredConsumerMember {
    const HEADER_VERSION: u8 = CONSUMER_GROUP;
}

impl StoredConsumerGroup {
    /// The state of the group when it was stored.
    pub fn state(&self) -> ConsumerGroupState {
        let epoch = self.header.assignment_epoch;
        let is_stable = |member: &StoredConsumerMember| {
            member.state == MemberState::Stable && member.epoch == epoch
        };
        ConsumerGroupState::of(
            self.members.len(),
            self.header.epoch > epoch,
            self.members.values().all(is_stable),
        )
    }
}

impl StoredConsumerMember {
    fn of(member: &ConsumerGroupMember) -> StoredConsumerMember {
        let classic = member.classic.as_ref().map(|classic| {
            let protocols = classic.protocols.iter();
            let protocols = protocols.map(|(name, data)| (name.clone(), data.to_vec()));
            ClassicMembershipSnapshot {
                session_timeout_ms: classic.session_timeout.as_millis() as u64,
                protocols: protocols.collect(),
            }
        });
        StoredConsumerMember {
            instance: member.instance.clone(),
            rack: member.rack.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            rebalance_timeout_ms: member.rebalance_timeout.as_millis() as u64,
            topics: member.topics.clone(),
            regex: member.regex.clone(),
            assignor: member.assignor.clone(),
            classic,
            epoch: member.epoch,
            previous_epoch: member.previous_epoch,
            state: member.state,
            assigned: member.assigned.clone(),
            revoking: member.revoking.clone(),
            target: member.target.clone(),
        }
    }

    fn into_member(self, id: String) -> ConsumerGroupMember {
        let protocol = |(name, data)| (name, Bytes::from(data));
        let classic = self.classic.map(|classic| ClassicMembership {
            session_timeout: millis(classic.session_timeout_ms),
            protocols: classic.protocols.into_iter().map(protocol).collect(),
        });
        ConsumerGroupMember {
            id,
            instance: self.instance,
            rack: self.rack,
            client_id: self.client_id,
            client_host: self.client_host,
            rebalance_timeout: millis(self.rebalance_timeout_ms),
            topics: self.topics,
            regex: self.regex,
            assignor: self.assignor,
            classic,
            epoch: self.epoch,
            previous_epoch: self.previous_epoch,
            state: self.state,
            assigned: self.assigned,
            revoking: self.revoking,
            target: self.target,
        }
    }
}

impl ConsumerGroup {
    /// Restores a group. Its members' sessions restart.
    ///
    /// # Errors
    /// The bytes are not a group, or contradict each other.
    pub fn restore(
        options: Arc<Options>,
        stored: &StoredGroup,
        now: Duration,
        topics: &dyn GroupTopics,
    ) -> Result<ConsumerGroup, GroupSnapshotError> {
        let StoredConsumerGroup { header, members } = StoredConsumerGroup::decode(stored)?;
        let mut group = ConsumerGroup::new(options);
        group.base.begin_restore(&header);
        for (id, member) in members {
            let member = member.into_member(id.clone());
            let is_held = |partition| group.holders.contains_key(&partition);
            if each(&member.assigned).chain(each(&member.revoking)).any(is_held) {
                return Err(GroupSnapshotError::Inconsistent {
                    claim: "a partition has one holder",
                });
            }
            let is_revoking = member.state == MemberState::UnrevokedPartitions;
            let timer = is_revoking.then(|| (id.clone(), MemberTimer::Revocation));
            let until = now + member.rebalance_timeout;
            let put = group.put(now, member, topics);
            put.map_err(|_: GroupError| GroupSnapshotError::Inconsistent {
                claim: "a regular expression is valid",
            })?;
            timer.into_iter().for_each(|timer| group.deadlines.set(timer, until));
        }
        group.base.end_restore(now, &header);
        Ok(group)
    }

    /// Takes the changes that the log lacks, with the number of the last one.
    pub fn take_unsaved(&mut self) -> (u64, GroupChange) {
        let encode = |member: &_| encode_member(&StoredConsumerMember::of(member));
        let header = |header| encode_versioned(CONSUMER_GROUP, &header);
        self.base.take_unsaved([], header, |_, member| member.map(encode))
    }

    /// The log may lack the changes that [`ConsumerGroup::take_unsaved`] gave: it is tried again.
    /// Its members get an error. The rebalance timeout of those that revoke partitions starts again
    /// with their next heartbeat.
    pub fn save_failed(&mut self, change: &GroupChange) {
        self.base.unsaved.save_failed(change);
        for (id, _) in &change.members {
            if self.base.unsaved_change_of(id).is_some() {
                self.deadlines.cancel(&(id.clone(), MemberTimer::Revocation));
            }
        }
    }
}
