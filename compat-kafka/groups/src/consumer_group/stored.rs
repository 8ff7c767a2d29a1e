//! The state that survives a restart: a header of the group, and each member by itself, so that a
//! change costs as much as what it changes.
//!
//! Each is its version, then postcard. `docs/FORMAT.md` has their fields.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::groups::StoredGroup;
use serde::{Deserialize, Serialize};

use super::super::effects::GroupChange;
use super::super::error::GroupError;
use super::super::group_header::{CONSUMER_GROUP, GroupHeader};
use super::super::options::Options;
use super::super::partitions::{AssignedPartitions, PartitionSet, each};
use super::super::snapshot::{GroupSnapshotError, decode_versioned, encode_versioned, millis};
use super::super::topic_subscription::GroupTopics;
use super::super::unsaved_changes::{TakenChanges, UnsavedChanges};
use super::describe::ConsumerGroupState;
use super::member::{ClassicMembership, ConsumerGroupMember, MemberState};
use super::{ConsumerGroup, MemberTimer};

/// The first byte of a member.
const MEMBER_VERSION: u8 = 1;

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredConsumerGroup {
    pub header: GroupHeader,
    /// By member id.
    pub members: BTreeMap<String, StoredConsumerMember>,
}

impl StoredConsumerGroup {
    /// Returns true if bytes of the log are of a group of this kind.
    pub fn is_one(stored: &StoredGroup) -> bool {
        stored.snapshot.first() == Some(&CONSUMER_GROUP)
    }

    /// Decodes it from the log.
    ///
    /// # Errors
    /// The bytes are not a group of this kind.
    pub fn decode(stored: &StoredGroup) -> Result<StoredConsumerGroup, GroupSnapshotError> {
        let member = |(id, bytes): (&String, &Vec<u8>)| {
            Ok((id.clone(), decode_versioned(MEMBER_VERSION, bytes)?))
        };
        Ok(StoredConsumerGroup {
            header: decode_versioned(CONSUMER_GROUP, &stored.snapshot)?,
            members: stored
                .members
                .iter()
                .map(member)
                .collect::<Result<_, GroupSnapshotError>>()?,
        })
    }

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
        (group.epoch, group.assignment_epoch) = (header.epoch, header.assignment_epoch);
        group.topics_hash = header.topics_hash;
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
        group.empty_since = group.members.is_empty().then_some(now);
        group.unsaved = UnsavedChanges::restored(header.changes);
        Ok(group)
    }

    /// True if the log lacks anything.
    pub fn has_unsaved(&self) -> bool {
        self.unsaved.is_any()
    }

    /// Takes the changes that the log lacks, with the number of the last one.
    pub fn take_unsaved(&mut self) -> (u64, GroupChange) {
        let TakenChanges { count, members, is_whole } = self.unsaved.take(self.members.keys());
        let header = GroupHeader {
            epoch: self.epoch,
            assignment_epoch: self.assignment_epoch,
            topics_hash: self.topics_hash,
            changes: count,
        };
        let member = |id: String| {
            let member = self.members.get(&id);
            let encode =
                |member| encode_versioned(MEMBER_VERSION, &StoredConsumerMember::of(member));
            (id, member.map(encode))
        };
        let change = GroupChange {
            snapshot: encode_versioned(CONSUMER_GROUP, &header),
            members: members.into_iter().map(member).collect(),
            is_whole,
        };
        (count, change)
    }

    /// The log has all changes up to a number.
    pub fn saved(&mut self, count: u64) {
        self.unsaved.saved(count);
    }

    /// The log may lack the changes that [`ConsumerGroup::take_unsaved`] gave: it is tried again.
    /// Its members get an error. The rebalance timeout of those that revoke partitions starts again
    /// with their next heartbeat.
    pub fn save_failed(&mut self, change: &GroupChange) {
        self.unsaved.save_failed(change);
        for (id, _) in &change.members {
            if self.unsaved_change_of(id).is_some() {
                self.deadlines.cancel(&(id.clone(), MemberTimer::Revocation));
            }
        }
    }
}
