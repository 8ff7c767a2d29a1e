//! The heartbeat of a member: it joins with its topology, says which tasks it has, learns its
//! tasks, or leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::super::error::GroupError;
use super::super::modern_group::ModernMember;
use super::super::options::Options;
use super::super::topic_subscription::{GroupTopics, may_subscribe};
use super::configure::ConfiguredTopology;
use super::member::{StreamsGroupMember, UserEndpoint};
use super::tasks::{MemberTasks, TaskSet};
use super::topology::{InternalTopic, Topology};
use super::{MemberTimer, NOT_READY, StreamsGroup, StreamsStatus};

/// The epoch of a member that joins.
const JOINING: i32 = 0;
/// The epoch of a member that leaves.
const LEAVING: i32 = -1;

/// A heartbeat. A field that is `None` has not changed since the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamsHeartbeat {
    /// The client makes it.
    pub member_id: String,
    /// The member's epoch; 0 to join, -1 to leave.
    pub member_epoch: i32,
    /// The epoch of the endpoints that it knows.
    pub endpoint_epoch: i32,
    pub rack: Option<String>,
    pub rebalance_timeout: Option<Duration>,
    /// Said by members that join.
    pub topology: Option<Topology>,
    /// The tasks that the member has.
    pub owned: Option<MemberTasks>,
    pub process: Option<String>,
    pub endpoint: Option<UserEndpoint>,
    pub tags: Option<BTreeMap<String, String>>,
    /// The whole application is to end.
    pub is_shutdown: bool,
    pub client_id: String,
    pub client_host: String,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamsHeartbeatAnswer {
    pub member_id: String,
    pub member_epoch: i32,
    /// The time until the member is to send the next one.
    pub interval: Duration,
    pub statuses: Vec<StreamsStatus>,
    /// `None` if it is what the member knows.
    pub tasks: Option<MemberTasks>,
    pub endpoint_epoch: i32,
    /// `None` if it is what the member knows.
    pub endpoints: Option<Vec<Arc<EndpointPartitions>>>,
    /// Internal topics that are to be made.
    pub missing_topics: Vec<InternalTopic>,
}

/// The partitions whose state can be queried at an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPartitions {
    pub endpoint: UserEndpoint,
    /// By topic.
    pub active: BTreeMap<String, Vec<u32>>,
    pub standby: BTreeMap<String, Vec<u32>>,
}

impl StreamsHeartbeat {
    /// Checks what depends on no group.
    pub(in super::super) fn check(&self, options: &Options) -> Result<(), GroupError> {
        let is_rack_empty = self.rack.as_ref().is_some_and(String::is_empty);
        let is_complete = self.rebalance_timeout.is_some()
            && self.topology.is_some()
            && self.owned.as_ref().is_none_or(MemberTasks::is_empty);
        let is_epoch_valid = match self.member_epoch {
            JOINING => is_complete,
            epoch => epoch >= LEAVING && self.topology.is_none(),
        };
        if self.member_id.is_empty() || is_rack_empty || !is_epoch_valid {
            return Err(GroupError::InvalidStreamsRequest);
        }
        // The rest takes time as it has bytes.
        if self.bytes() > options.member_bytes_max {
            return Err(GroupError::TooLarge);
        }
        let Some(topology) = &self.topology else { return Ok(()) };
        topology.check()?;
        let sources: BTreeSet<String> = topology.sources().into_iter().map(str::to_owned).collect();
        if may_subscribe(&sources) { Ok(()) } else { Err(GroupError::TooLarge) }
    }

    pub fn joins(&self) -> bool {
        self.member_epoch == JOINING
    }

    /// The bytes of what the group keeps of it.
    pub(in super::super) fn bytes(&self) -> usize {
        let texts = [&self.member_id, &self.client_id, &self.client_host];
        let optional = [&self.rack, &self.process];
        let tags = self.tags.iter().flatten();
        texts.iter().map(|text| text.len()).sum::<usize>()
            + optional.iter().map(|text| text.as_ref().map_or(0, String::len)).sum::<usize>()
            + self.endpoint.as_ref().map_or(0, |endpoint| endpoint.host.len())
            + tags.map(|(key, value)| key.len() + value.len() + 64).sum::<usize>()
            + self.topology.as_ref().map_or(0, Topology::bytes)
    }

    fn apply(&self, member: &mut StreamsGroupMember) {
        member.rack = self.rack.clone().or(member.rack.take());
        member.rebalance_timeout = self.rebalance_timeout.unwrap_or(member.rebalance_timeout);
        member.endpoint = self.endpoint.clone().or(member.endpoint.take());
        if let Some(topology) = &self.topology {
            member.topology_epoch = topology.epoch;
        }
        if let Some(process) = &self.process {
            member.process.clone_from(process);
        }
        if let Some(tags) = &self.tags {
            member.tags.clone_from(tags);
        }
        member.client_id.clone_from(&self.client_id);
        member.client_host.clone_from(&self.client_host);
    }
}

impl StreamsGroup {
    /// Handles a heartbeat. Its answer may be given once the member's changes are stored.
    pub fn heartbeat(
        &mut self,
        now: Duration,
        request: &StreamsHeartbeat,
        topics: &dyn GroupTopics,
    ) -> Result<StreamsHeartbeatAnswer, GroupError> {
        if request.member_epoch == LEAVING {
            return self.leave(now, request);
        }
        let id = request.member_id.as_str();
        let before = self.find_or_join(request)?;
        let is_topology_new = self.check_topology(request)?;
        let topology = match &request.topology {
            Some(topology) if is_topology_new => topology,
            _ => self.topology.as_ref().ok_or(GroupError::UnknownMemberId)?,
        };
        let lookup = self.look_up(topology, is_topology_new, topics)?;
        let configured = lookup.as_ref().map(|lookup| &lookup.configured);
        if let Some(configured) = configured.or(self.configured.as_ref()) {
            check_owned(configured, request.owned.as_ref())?;
        }
        // Nothing fails from here on.
        if is_topology_new {
            self.topology.clone_from(&request.topology);
            self.base.unsaved.mark(super::stored::TOPOLOGY);
        }
        let is_first = self.base.members.is_empty();
        let mut member = before.clone();
        request.apply(&mut member);
        let mut is_changed = false;
        if member != before || !self.base.members.contains_key(id) {
            self.put(id, member);
            is_changed = true;
        }
        if let Some(lookup) = lookup {
            is_changed |= lookup.hash != self.base.topics_hash;
            (self.topics_version, self.base.topics_hash) = (lookup.version, lookup.hash);
            (self.topics, self.configured) = (lookup.topics, Some(lookup.configured));
            self.endpoints.clear();
        }
        self.raise_epoch_if(is_changed);
        if is_first && !self.base.options.streams.initial_rebalance_delay.is_zero() {
            self.delayed_until = Some(now + self.base.options.streams.initial_rebalance_delay);
        }
        let key = (id.to_owned(), MemberTimer::Session);
        self.deadlines.set(key, now + self.base.options.streams.session_timeout);
        let delay = self.update_targets(now);
        self.reconcile(now, id, request.owned.as_ref());
        if request.is_shutdown && self.shutdown_by.is_none() {
            self.shutdown_by = Some(id.to_owned());
        }
        self.answer(request, &before, delay)
    }

    /// The additional bytes of the group once a heartbeat is granted: none for a member as it is.
    pub fn growth_by_heartbeat(&self, request: &StreamsHeartbeat) -> usize {
        let member = self.base.members.get(&request.member_id);
        let old_bytes = member.map_or(0, |member| member.bytes(&request.member_id));
        let topology = self.topology.as_ref().map_or(0, Topology::bytes);
        let grows = request.member_epoch != LEAVING;
        if grows { request.bytes().saturating_sub(old_bytes + topology) } else { 0 }
    }

    fn leave(
        &mut self,
        now: Duration,
        request: &StreamsHeartbeat,
    ) -> Result<StreamsHeartbeatAnswer, GroupError> {
        if !self.base.members.contains_key(&request.member_id) {
            return Err(GroupError::UnknownMemberId);
        }
        if request.is_shutdown && self.shutdown_by.is_none() {
            self.shutdown_by = Some(request.member_id.clone());
        }
        self.fence(now, &request.member_id);
        Ok(StreamsHeartbeatAnswer {
            member_id: request.member_id.clone(),
            member_epoch: LEAVING,
            ..StreamsHeartbeatAnswer::default()
        })
    }

    /// The member that sends a heartbeat, as it was; a new one if it joins.
    fn find_or_join(&self, request: &StreamsHeartbeat) -> Result<StreamsGroupMember, GroupError> {
        if let Some(member) = self.base.members.get(&request.member_id) {
            let epoch = request.member_epoch;
            let has_all = |owned: &MemberTasks| member.assigned.has_all(owned);
            let is_lost = epoch == member.previous_epoch
                && epoch < member.epoch
                && request.owned.as_ref().is_some_and(has_all);
            return if request.joins() || epoch == member.epoch || is_lost {
                Ok(member.clone())
            } else {
                Err(GroupError::FencedMemberEpoch)
            };
        }
        if !request.joins() {
            return Err(GroupError::UnknownMemberId);
        }
        let is_full = self.base.members.len() >= self.base.options.streams.group_max_size
            || self.bytes() > self.base.options.group_bytes_max;
        if is_full { Err(GroupError::GroupMaxSizeReached) } else { Ok(StreamsGroupMember::new()) }
    }

    /// Returns true if a member brings the topology that the group is to have.
    fn check_topology(&self, request: &StreamsHeartbeat) -> Result<bool, GroupError> {
        match (&request.topology, &self.topology) {
            (Some(_), None) => Ok(true),
            // A member with an older topology learns that it is old.
            (Some(topology), Some(current))
                if topology.epoch < current.epoch || topology == current =>
            {
                Ok(false)
            }
            (Some(_), Some(_)) => Err(GroupError::OtherTopology),
            (None, _) => Ok(false),
        }
    }

    /// Raises the epoch if anything is to be assigned anew.
    fn raise_epoch_if(&mut self, mut is_changed: bool) {
        let is_ready = self.configured.as_ref().is_some_and(ConfiguredTopology::is_ready);
        let ready_epoch = match &self.topology {
            Some(topology) if is_ready => topology.epoch,
            _ => NOT_READY,
        };
        let standbys = self.base.options.streams.standbys;
        if (self.ready_epoch, self.standbys) != (ready_epoch, standbys) {
            (self.ready_epoch, self.standbys) = (ready_epoch, standbys);
            is_changed = true;
        }
        if is_changed {
            self.base.raise_epoch();
        }
    }

    fn answer(
        &mut self,
        request: &StreamsHeartbeat,
        before: &StreamsGroupMember,
        delay: Option<StreamsStatus>,
    ) -> Result<StreamsHeartbeatAnswer, GroupError> {
        let member =
            self.base.members.get(&request.member_id).ok_or(GroupError::UnknownMemberId)?;
        let is_changed = request.joins() || before.assigned != member.assigned;
        if is_changed && member.endpoint.is_some() {
            self.endpoint_epoch += 1;
        }
        let endpoints = if request.endpoint_epoch == self.endpoint_epoch {
            None
        } else {
            Some(self.update_endpoints())
        };
        let member =
            self.base.members.get(&request.member_id).ok_or(GroupError::UnknownMemberId)?;
        let tasks = member.assigned.tasks();
        // Tasks that differ from those that the member says may be in an answer that was lost.
        let is_lost = request.owned.as_ref().is_some_and(|owned| *owned != tasks);
        let topology_epoch = self.topology.as_ref().map_or(NOT_READY, |topology| topology.epoch);
        let is_stale = member.topology_epoch < topology_epoch;
        let stale =
            is_stale.then(|| StreamsStatus::stale_topology(member.topology_epoch, topology_epoch));
        let configured = self.configured.as_ref();
        let problem = configured.and_then(|configured| configured.problem.clone());
        let shutdown = self.shutdown_by.as_deref().map(StreamsStatus::shutdown);
        Ok(StreamsHeartbeatAnswer {
            member_id: request.member_id.clone(),
            member_epoch: member.epoch,
            interval: self.base.options.streams.heartbeat_interval,
            statuses: [stale, delay, problem, shutdown].into_iter().flatten().collect(),
            tasks: (is_changed || is_lost).then_some(tasks),
            endpoint_epoch: self.endpoint_epoch,
            endpoints,
            missing_topics: configured.map(|topology| topology.missing.clone()).unwrap_or_default(),
        })
    }

    /// Updates the endpoints at which the state of each partition can be queried, and returns them.
    fn update_endpoints(&mut self) -> Vec<Arc<EndpointPartitions>> {
        let mut endpoints = std::mem::take(&mut self.endpoints);
        for (id, member) in &self.base.members {
            let Some(endpoint) = &member.endpoint else { continue };
            if endpoints.contains_key(id) {
                continue;
            }
            let tasks = member.assigned.tasks();
            let partitions = EndpointPartitions {
                endpoint: endpoint.clone(),
                active: self.partitions_of(&tasks.active),
                standby: self.partitions_of(&tasks.standby),
            };
            endpoints.insert(id.clone(), Arc::new(partitions));
        }
        self.endpoints = endpoints;
        self.endpoints.values().map(Arc::clone).collect()
    }

    /// The partitions that tasks read.
    pub(super) fn partitions_of(&self, tasks: &TaskSet) -> BTreeMap<String, Vec<u32>> {
        let mut partitions = BTreeMap::new();
        for (id, indexes) in tasks {
            let topology = self.topology.as_ref();
            let subtopology = topology.and_then(|topology| topology.subtopologies.get(id));
            for name in subtopology.into_iter().flat_map(|subtopology| subtopology.read_topics()) {
                let count = self.topics.get(name).map_or(0, |topic| topic.partitions);
                let indexes = indexes.iter().copied().filter(|index| *index < count);
                partitions.insert(name.to_owned(), indexes.collect());
            }
        }
        partitions
    }
}

/// Fails if a member says that it has tasks that cannot be.
fn check_owned(
    configured: &ConfiguredTopology,
    owned: Option<&MemberTasks>,
) -> Result<(), GroupError> {
    if !configured.is_ready() {
        return Ok(());
    }
    let Some(owned) = owned else { return Ok(()) };
    let is_any = |(id, indexes): (&String, &BTreeSet<u32>)| {
        configured.tasks(id).is_some_and(|tasks| indexes.iter().all(|index| *index < tasks))
    };
    if owned.active.iter().chain(&owned.standby).all(is_any) {
        Ok(())
    } else {
        Err(GroupError::InvalidStreamsRequest)
    }
}
