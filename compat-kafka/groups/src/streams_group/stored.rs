//! The state that survives a restart: a header of the group, its topology, and each member by
//! itself. `docs/FORMAT.md` has their fields.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::groups::StoredGroup;
use serde::{Deserialize, Serialize};

use super::super::consumer_group::MemberState;
use super::super::effects::GroupChange;
use super::super::group_header::{GroupHeader, STREAMS_GROUP};
use super::super::modern_group::{MEMBER_VERSION, ModernState, decode_members, encode_member};
use super::super::options::Options;
use super::super::snapshot::{GroupSnapshotError, decode_versioned, encode_versioned, millis};
use super::super::topic_subscription::GroupTopics;
use super::describe::StreamsGroupState;
use super::member::{StreamsGroupMember, UserEndpoint};
use super::tasks::{GivenTasks, MemberTasks, TaskRole};
use super::topology::Topology;
use super::{MemberTimer, StreamsGroup, held_by};

/// The topology is stored in the place of a member: no member has this id.
pub(super) const TOPOLOGY: &str = "";

/// The state of a group that survives a restart, besides its topology and its members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamsGroupHeader {
    pub group: GroupHeader,
    /// The epoch of the topology whose topics are all there; -1 if they are not.
    pub ready_epoch: i32,
    /// The number of standbys that each task with state is to have.
    pub standbys: u32,
}

/// The state of a member that survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredStreamsMember {
    pub rack: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub rebalance_timeout_ms: u64,
    pub topology_epoch: i32,
    pub process: String,
    pub endpoint: Option<UserEndpoint>,
    pub tags: BTreeMap<String, String>,
    pub epoch: i32,
    pub previous_epoch: i32,
    pub state: MemberState,
    pub assigned: GivenTasks,
    pub revoking: GivenTasks,
    pub target: MemberTasks,
}

/// The state of a group that survives a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredStreamsGroup {
    pub header: StreamsGroupHeader,
    pub topology: Option<Topology>,
    /// By member id.
    pub members: BTreeMap<String, StoredStreamsMember>,
}

impl StoredStreamsGroup {
    /// Returns true if bytes of the log are of a group of this kind.
    pub fn is_one(stored: &StoredGroup) -> bool {
        stored.snapshot.first() == Some(&STREAMS_GROUP)
    }

    /// Decodes it from the log.
    ///
    /// # Errors
    /// The bytes are not a group of this kind.
    pub fn decode(stored: &StoredGroup) -> Result<StoredStreamsGroup, GroupSnapshotError> {
        let topology = stored.members.get(TOPOLOGY);
        let members = stored.members.iter().filter(|(id, _)| id.as_str() != TOPOLOGY);
        Ok(StoredStreamsGroup {
            header: decode_versioned(STREAMS_GROUP, &stored.snapshot)?,
            topology: topology.map(|bytes| decode_versioned(MEMBER_VERSION, bytes)).transpose()?,
            members: decode_members(members)?,
        })
    }

    /// The state of the group when it was stored.
    pub fn state(&self) -> StreamsGroupState {
        let StreamsGroupHeader { group, ready_epoch, .. } = &self.header;
        let is_stable = |member: &StoredStreamsMember| {
            member.state == MemberState::Stable && member.epoch == group.assignment_epoch
        };
        if self.members.is_empty() {
            StreamsGroupState::Empty
        } else if self.topology.as_ref().is_none_or(|topology| topology.epoch != *ready_epoch) {
            StreamsGroupState::NotReady
        } else if group.epoch > group.assignment_epoch {
            StreamsGroupState::Assigning
        } else if self.members.values().all(is_stable) {
            StreamsGroupState::Stable
        } else {
            StreamsGroupState::Reconciling
        }
    }

    /// The partitions that a member's active tasks read, by topic. The number of partitions that
    /// each topic had is not known, so that those of a topic with fewer than others may be too
    /// many.
    pub fn reads(&self, member: &StoredStreamsMember) -> BTreeMap<String, Vec<i32>> {
        let mut reads = BTreeMap::<String, Vec<i32>>::new();
        for (id, indexes) in &member.assigned.active {
            let topology = self.topology.as_ref();
            let subtopology = topology.and_then(|topology| topology.subtopologies.get(id));
            for topic in subtopology.into_iter().flat_map(|subtopology| subtopology.read_topics()) {
                let readers = reads.entry(topic.to_owned()).or_default();
                readers.extend(indexes.keys().map(|index| *index as i32));
            }
        }
        reads
    }
}

impl StoredStreamsMember {
    fn of(member: &StreamsGroupMember) -> StoredStreamsMember {
        let member = member.clone();
        StoredStreamsMember {
            rack: member.rack,
            client_id: member.client_id,
            client_host: member.client_host,
            rebalance_timeout_ms: member.rebalance_timeout.as_millis() as u64,
            topology_epoch: member.topology_epoch,
            process: member.process,
            endpoint: member.endpoint,
            tags: member.tags,
            epoch: member.epoch,
            previous_epoch: member.previous_epoch,
            state: member.state,
            assigned: member.assigned,
            revoking: member.revoking,
            target: member.target,
        }
    }

    fn into_member(self) -> StreamsGroupMember {
        StreamsGroupMember {
            rack: self.rack,
            client_id: self.client_id,
            client_host: self.client_host,
            rebalance_timeout: millis(self.rebalance_timeout_ms),
            topology_epoch: self.topology_epoch,
            process: self.process,
            endpoint: self.endpoint,
            tags: self.tags,
            epoch: self.epoch,
            previous_epoch: self.previous_epoch,
            state: self.state,
            assigned: self.assigned,
            revoking: self.revoking,
            target: self.target,
        }
    }
}

impl StreamsGroup {
    /// Restores a group. Its members' sessions restart.
    ///
    /// # Errors
    /// The bytes are not a group, or contradict each other.
    pub fn restore(
        options: Arc<Options>,
        stored: &StoredGroup,
        now: Duration,
        topics: &dyn GroupTopics,
    ) -> Result<StreamsGroup, GroupSnapshotError> {
        let StoredStreamsGroup { header, topology, members } = StoredStreamsGroup::decode(stored)?;
        let until = now + options.streams.session_timeout;
        let mut group = StreamsGroup::new(options);
        group.base.begin_restore(&header.group);
        (group.ready_epoch, group.standbys) = (header.ready_epoch, header.standbys);
        group.topics =
            topology.as_ref().map(|topology| topology.existing_topics(topics)).unwrap_or_default();
        group.topology = topology;
        for (id, member) in members {
            let member = member.into_member();
            let is_taken = |(subtopology, index): (String, u32)| {
                let holders = group.holders.get(&subtopology).and_then(|tasks| tasks.get(&index));
                holders.into_iter().flatten().any(|holder| holder.role == TaskRole::Active)
            };
            let mut active = held_by(&member).filter(|(_, role)| *role == TaskRole::Active);
            if active.any(|(task, _)| is_taken(task)) {
                return Err(GroupSnapshotError::Inconsistent {
                    claim: "a task is active at one member",
                });
            }
            drop(active);
            group.deadlines.set((id.clone(), MemberTimer::Session), until);
            if member.state == MemberState::UnrevokedPartitions {
                let until = now + member.rebalance_timeout;
                group.deadlines.set((id.clone(), MemberTimer::Revocation), until);
            }
            group.put(&id, member);
        }
        group.base.end_restore(now, &header.group);
        Ok(group)
    }

    /// Takes the changes that the log lacks, with the number of the last one.
    pub fn take_unsaved(&mut self) -> (u64, GroupChange) {
        let (topology, ready_epoch, standbys) = (&self.topology, self.ready_epoch, self.standbys);
        let topology_id = topology.as_ref().map(|_| TOPOLOGY.to_owned());
        let header = |group| {
            encode_versioned(STREAMS_GROUP, &StreamsGroupHeader { group, ready_epoch, standbys })
        };
        self.base.take_unsaved(&topology_id, header, |id, member| {
            if id == TOPOLOGY {
                topology.as_ref().map(encode_member)
            } else {
                member.map(|member| encode_member(&StoredStreamsMember::of(member)))
            }
        })
    }

    /// The log may lack the changes that [`StreamsGroup::take_unsaved`] gave: it is tried again.
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
