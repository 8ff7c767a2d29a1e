//! Descriptions of a group for administrators.

use std::collections::BTreeMap;

use super::StreamsGroup;
use super::member::{StreamsGroupMember, UserEndpoint};
use super::tasks::MemberTasks;
use super::topology::Topology;

/// The state of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamsGroupState {
    /// No members.
    Empty,
    /// Topics that the topology needs are missing, or do not fit it.
    NotReady,
    /// The members' targets are older than the epoch.
    Assigning,
    /// Members are on their way to their targets.
    Reconciling,
    /// Every member has its target.
    Stable,
}

impl StreamsGroupState {
    /// The name that Kafka's tools show and filter by.
    pub fn name(self) -> &'static str {
        match self {
            StreamsGroupState::Empty => "Empty",
            StreamsGroupState::NotReady => "NotReady",
            StreamsGroupState::Assigning => "Assigning",
            StreamsGroupState::Reconciling => "Reconciling",
            StreamsGroupState::Stable => "Stable",
        }
    }
}

/// A group and its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamsGroupSummary {
    pub state: StreamsGroupState,
    pub epoch: i32,
    /// The epoch of the members' targets.
    pub assignment_epoch: i32,
    /// Its internal topics have their numbers of partitions, if they are known.
    pub topology: Option<Topology>,
    pub members: Vec<StreamsMemberSummary>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamsMemberSummary {
    pub id: String,
    pub rack: Option<String>,
    pub epoch: i32,
    pub client_id: String,
    /// The host that the client connects from.
    pub client_host: String,
    pub topology_epoch: i32,
    pub process: String,
    pub endpoint: Option<UserEndpoint>,
    pub tags: BTreeMap<String, String>,
    pub assigned: MemberTasks,
    pub target: MemberTasks,
}

impl StreamsGroup {
    /// The state of the group.
    pub fn state(&self) -> StreamsGroupState {
        let is_ready = |topology: &Topology| topology.epoch == self.ready_epoch;
        if self.base.members.is_empty() {
            StreamsGroupState::Empty
        } else if !self.topology.as_ref().is_some_and(is_ready) {
            StreamsGroupState::NotReady
        } else if self.base.epoch > self.base.assignment_epoch {
            StreamsGroupState::Assigning
        } else if self.unreconciled_members > 0 {
            StreamsGroupState::Reconciling
        } else {
            StreamsGroupState::Stable
        }
    }

    /// The group and its members.
    pub fn describe(&self) -> StreamsGroupSummary {
        let member = |(id, member): (&String, &StreamsGroupMember)| StreamsMemberSummary {
            id: id.clone(),
            rack: member.rack.clone(),
            epoch: member.epoch,
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            topology_epoch: member.topology_epoch,
            process: member.process.clone(),
            endpoint: member.endpoint.clone(),
            tags: member.tags.clone(),
            assigned: member.assigned.tasks(),
            target: member.target.clone(),
        };
        StreamsGroupSummary {
            state: self.state(),
            epoch: self.base.epoch,
            assignment_epoch: self.base.assignment_epoch,
            topology: self.described_topology(),
            members: self.base.members.iter().map(member).collect(),
        }
    }

    fn described_topology(&self) -> Option<Topology> {
        let mut topology = self.topology.clone()?;
        let configured = self.configured.as_ref().filter(|configured| configured.is_ready());
        let configured = configured.and_then(|configured| configured.subtopologies.as_ref());
        for (id, configured) in configured.into_iter().flatten() {
            if let Some(subtopology) = topology.subtopologies.get_mut(id) {
                subtopology.repartition_sources.clone_from(&configured.repartition_sources);
                subtopology.changelogs.clone_from(&configured.changelogs);
            }
        }
        Some(topology)
    }
}
