//! A group of the streams protocol (KIP-1071): the server knows the topology of an application, and
//! assigns its tasks to the threads that run it.
//!
//! A state machine, made of a [`ModernGroup`] as a consumer group is, and stored as that is: an
//! answer shows only what is stored. `topology` is what the application says of itself, and `configure`
//! what that comes to with the topics that there are; `heartbeat` is the operation of members,
//! `assign` the assignor, `reconcile` one step of a member, `commit` the checks before offsets are
//! committed, and `stored` what survives a restart.
//!
//! The caller creates internal topics: an answer names the missing ones.
//!
//! Invariant: a task is active at one member at most: the one to which it is assigned, or which has
//! not confirmed that it gave it up. It is asserted in [`StreamsGroup::count`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use hlc::split_moment_topic;
use xxhash_rust::xxh3::Xxh3;

use super::deadlines::DeadlineQueue;
use super::error::GroupError;
use super::modern_group::ModernGroup;
use super::options::Options;
use super::partitions::each;
use super::topic_subscription::{GroupTopic, GroupTopics};
use assign::{AssignableMember, AssignableSubtopology};
use configure::ConfiguredTopology;
use member::StreamsGroupMember;
use reconcile::StepContext;
use tasks::TaskRole;

mod assign;
mod commit;
mod configure;
mod describe;
mod heartbeat;
mod member;
mod reconcile;
mod status;
mod stored;
mod tasks;
#[cfg(test)]
mod tests;
mod topology;

pub use describe::{StreamsGroupState, StreamsGroupSummary, StreamsMemberSummary};
pub use heartbeat::{EndpointPartitions, StreamsHeartbeat, StreamsHeartbeatAnswer};
pub use member::UserEndpoint;
pub use status::StreamsStatus;
pub use stored::{StoredStreamsGroup, StoredStreamsMember, StreamsGroupHeader};
pub use tasks::{GivenTasks, MemberTasks, TaskSet};
pub use topology::{InternalTopic, Subtopology, Topology};

/// The epoch of a group that nobody has joined, as in Kafka.
const FIRST_EPOCH: i32 = 1;
/// In place of the epoch of a topology: none is ready.
const NOT_READY: i32 = -1;

/// The purpose of a deadline of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum MemberTimer {
    /// It has to send a heartbeat.
    Session,
    /// It has to confirm that it gave tasks up.
    Revocation,
}

/// The member that has a task, or may still have it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TaskHolder {
    member: String,
    process: String,
    role: TaskRole,
}

type HoldersByTask = HashMap<String, HashMap<u32, Vec<TaskHolder>>>;

/// One group. Times are of a monotonic clock of the caller.
#[derive(Debug, Clone)]
pub struct StreamsGroup {
    pub(super) base: ModernGroup<StreamsGroupMember>,
    /// The time before which no targets are computed, so that more members may come.
    delayed_until: Option<Duration>,
    holders: HoldersByTask,
    /// `None` until a member has said it.
    topology: Option<Topology>,
    /// The epoch of the topology, once its topics are there.
    ready_epoch: i32,
    /// The topology, configured with `topics`.
    configured: Option<ConfiguredTopology>,
    /// The topics that the topology needs, as far as they exist.
    topics: BTreeMap<String, GroupTopic>,
    /// The [`GroupTopics::version`] of `topics`; `None` while they may change without it.
    topics_version: Option<u64>,
    /// The number of standbys that the targets have, or are to have.
    standbys: u32,
    /// The member that wants the whole application to end.
    shutdown_by: Option<String>,
    /// Rises whenever a member with an endpoint gets other tasks.
    endpoint_epoch: i32,
    /// By member, as far as they were asked for since it changed.
    endpoints: BTreeMap<String, Arc<EndpointPartitions>>,
    /// The number of members that are not at their targets.
    unreconciled_members: usize,
    deadlines: DeadlineQueue<(String, MemberTimer)>,
}

/// A topology, configured with the topics that exist now.
struct TopologyLookup {
    version: Option<u64>,
    topics: BTreeMap<String, GroupTopic>,
    hash: u64,
    configured: ConfiguredTopology,
}

impl StreamsGroup {
    /// A group that nobody has joined.
    pub fn new(options: Arc<Options>) -> StreamsGroup {
        StreamsGroup {
            standbys: options.streams.standbys,
            base: ModernGroup::new(options, FIRST_EPOCH),
            delayed_until: None,
            holders: HashMap::new(),
            topology: None,
            ready_epoch: NOT_READY,
            configured: None,
            topics: BTreeMap::new(),
            topics_version: None,
            shutdown_by: None,
            endpoint_epoch: 0,
            endpoints: BTreeMap::new(),
            unreconciled_members: 0,
            deadlines: DeadlineQueue::default(),
        }
    }

    /// The bytes that its members and its topology take.
    pub fn bytes(&self) -> usize {
        self.base.member_bytes + self.topology.as_ref().map_or(0, Topology::bytes)
    }

    /// The time at which [`StreamsGroup::tick`] has to be called next.
    pub fn next_deadline(&self) -> Option<Duration> {
        let first = self.deadlines.first().map(|(at, _)| at);
        first.into_iter().chain(self.delayed_until).min()
    }

    /// Removes the members whose time is up by `now`, and computes targets that were put off until
    /// then.
    pub fn tick(&mut self, now: Duration) {
        while let Some((at, (id, _))) = self.deadlines.first()
            && at <= now
        {
            let id = id.clone();
            self.fence(now, &id);
        }
        if self.delayed_until.is_some_and(|until| until <= now) {
            self.delayed_until = None;
            self.update_targets(now);
        }
    }

    /// Inserts a member, or replaces it, with all that depends on it.
    fn put(&mut self, id: &str, member: StreamsGroupMember) {
        if let Some(before) = self.base.take(id) {
            self.uncount(id, &before);
        }
        self.count(id, &member);
        self.base.put(id, member);
    }

    /// Removes a member, with all that depends on it; a new assignment is due.
    fn fence(&mut self, now: Duration, id: &str) {
        for timer in [MemberTimer::Session, MemberTimer::Revocation] {
            self.deadlines.cancel(&(id.to_owned(), timer));
        }
        let Some(member) = self.base.remove(now, id) else { return };
        self.uncount(id, &member);
        if self.base.members.is_empty() {
            self.shutdown_by = None;
            self.delayed_until = None;
        }
        self.base.raise_epoch();
    }

    fn count(&mut self, id: &str, member: &StreamsGroupMember) {
        for (task, role) in held_by(member) {
            let of_subtopology = self.holders.entry(task.0).or_default();
            let holders = of_subtopology.entry(task.1).or_default();
            let is_taken = role == TaskRole::Active
                && holders.iter().any(|holder| holder.role == TaskRole::Active);
            assert!(!is_taken, "a task is active at one member: {holders:?} {id}");
            let process = member.process.clone();
            holders.push(TaskHolder { member: id.to_owned(), process, role });
        }
        self.unreconciled_members += self.unreconciled(member);
    }

    fn uncount(&mut self, id: &str, member: &StreamsGroupMember) {
        for ((subtopology, index), _) in held_by(member) {
            let Some(of_subtopology) = self.holders.get_mut(&subtopology) else { continue };
            if let Some(holders) = of_subtopology.get_mut(&index) {
                holders.retain(|holder| holder.member != id);
                if holders.is_empty() {
                    of_subtopology.remove(&index);
                }
            }
            if of_subtopology.is_empty() {
                self.holders.remove(&subtopology);
            }
        }
        self.endpoints.remove(id);
        self.unreconciled_members -= self.unreconciled(member);
    }

    /// 1 for a member that is not at its target.
    fn unreconciled(&self, member: &StreamsGroupMember) -> usize {
        usize::from(!member.is_reconciled_to(self.base.assignment_epoch))
    }

    /// Looks the topics of a topology up, unless they are those that are known.
    ///
    /// # Errors
    /// The topology is not valid.
    fn look_up(
        &self,
        topology: &Topology,
        is_new: bool,
        topics: &dyn GroupTopics,
    ) -> Result<Option<TopologyLookup>, GroupError> {
        let version = topics.version();
        if self.topics_version == Some(version) && !is_new {
            return Ok(None);
        }
        let topics = topology.existing_topics(topics);
        // A moment can be read once it has passed, which changes no topic.
        let is_passing =
            |name: &str| !topics.contains_key(name) && split_moment_topic(name).is_some();
        let is_any_passing = topology.sources().into_iter().any(is_passing);
        let version = (!is_any_passing).then_some(version);
        let hash = hash(&topics);
        let configured = match &self.configured {
            Some(configured) if !is_new && hash == self.base.topics_hash => configured.clone(),
            _ => {
                let partitions = |name: &str| topics.get(name).map(|topic| topic.partitions);
                ConfiguredTopology::of(topology, &partitions)?
            }
        };
        Ok(Some(TopologyLookup { version, topics, hash, configured }))
    }

    /// Computes the targets of the members, unless they are those of the epoch. If that has to
    /// wait, returns for what.
    fn update_targets(&mut self, now: Duration) -> Option<StreamsStatus> {
        if self.delayed_until.is_some_and(|until| now < until) {
            return Some(StreamsStatus::delayed("initial rebalance delay"));
        }
        if !self.base.is_assignment_due() {
            return None;
        }
        if self.base.is_assignment_recent(now, self.base.options.streams.assignment_interval) {
            return Some(StreamsStatus::delayed("assignment interval"));
        }
        let configured = self.configured.as_ref().filter(|configured| configured.is_ready());
        let subtopologies = configured.and_then(|configured| configured.subtopologies.as_ref());
        let assignable = subtopologies.into_iter().flatten().map(|(id, subtopology)| {
            let (tasks, is_stateful) = (subtopology.tasks, subtopology.is_stateful);
            AssignableSubtopology { id, tasks, is_stateful }
        });
        let members = self
            .base
            .members
            .values()
            .map(|member| AssignableMember { process: &member.process, before: &member.target });
        let members: Vec<AssignableMember<'_>> = members.collect();
        let assignable: Vec<AssignableSubtopology<'_>> = assignable.collect();
        let targets = assign::assign(&members, &assignable, self.standbys);
        self.base.set_targets(now, targets);
        self.unreconciled_members =
            self.base.members.values().map(|member| self.unreconciled(member)).sum();
        None
    }

    /// Moves a member one step towards its target.
    fn reconcile(&mut self, now: Duration, id: &str, owned: Option<&MemberTasks>) {
        let Some(before) = self.base.members.get(id) else { return };
        let mut member = before.clone();
        let is_held = |subtopology: &str, index: u32, role: TaskRole| {
            let of_subtopology = self.holders.get(subtopology);
            let holders = of_subtopology.and_then(|holders| holders.get(&index));
            holders.into_iter().flatten().filter(|holder| holder.member != id).any(|holder| {
                let is_active_twice = role == TaskRole::Active && holder.role == TaskRole::Active;
                is_active_twice || holder.process == before.process
            })
        };
        let target_epoch = self.base.assignment_epoch;
        StepContext { target_epoch, owned, is_held: &is_held }.step(&mut member);
        let key = (id.to_owned(), MemberTimer::Revocation);
        if member.state != super::consumer_group::MemberState::UnrevokedPartitions {
            self.deadlines.cancel(&key);
        } else if self.deadlines.at(&key).is_none() || member.revoking != before.revoking {
            self.deadlines.set(key, now + member.rebalance_timeout);
        }
        if member != *before {
            self.put(id, member);
        }
    }

    /// Asserts what must hold between any two events.
    #[cfg(test)]
    fn assert_sound(&self) {
        assert!(FIRST_EPOCH <= self.base.assignment_epoch);
        self.base.assert_sound();
        let unreconciled: usize =
            self.base.members.values().map(|member| self.unreconciled(member)).sum();
        assert_eq!(unreconciled, self.unreconciled_members);
        let mut active = BTreeMap::new();
        for (id, member) in &self.base.members {
            let timer = |timer| self.deadlines.at(&(id.clone(), timer));
            assert!(timer(MemberTimer::Session).is_some(), "a session ends: {id}");
            let is_revoking =
                member.state == super::consumer_group::MemberState::UnrevokedPartitions;
            assert!(is_revoking || timer(MemberTimer::Revocation).is_none(), "{member:?}");
            assert!(member.epoch <= self.base.assignment_epoch, "{member:?}");
            for (task, role) in held_by(member) {
                if role == TaskRole::Active {
                    assert_eq!(active.insert(task, id), None, "a task is active at one member");
                }
            }
        }
        let task_count =
            self.holders.values().flat_map(HashMap::values).map(Vec::len).sum::<usize>();
        assert_eq!(
            task_count,
            self.base.members.values().map(|member| held_by(member).count()).sum::<usize>()
        );
    }
}

/// Each task that a member has, or may still have.
fn held_by(
    member: &StreamsGroupMember,
) -> impl Iterator<Item = ((String, u32), TaskRole)> + use<'_> {
    let (assigned, revoking) = (&member.assigned, &member.revoking);
    let active = each(&assigned.active).chain(each(&revoking.active));
    let standby = each(&assigned.standby).chain(each(&revoking.standby));
    active.map(|task| (task, TaskRole::Active)).chain(standby.map(|task| (task, TaskRole::Standby)))
}

/// Differs, as good as certainly, if the topics or the numbers of their partitions do.
fn hash(topics: &BTreeMap<String, GroupTopic>) -> u64 {
    let mut hash = Xxh3::new();
    for topic in topics.values() {
        hash.update(&topic.id);
        hash.update(&topic.partitions.to_le_bytes());
    }
    hash.digest()
}
