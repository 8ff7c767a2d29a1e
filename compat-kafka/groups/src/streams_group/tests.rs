//! Tests of one streams group: its members join with a topology, get tasks, give them up, and go;
//! and property tests with members that lose answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use engine::groups::StoredGroup;
use proptest::prelude::*;

use super::super::commit::{CommitFence, CommitKind};
use super::super::error::GroupError;
use super::super::options::{Options, StreamsOptions};
use super::super::test_topics::TestTopics;
use super::tasks::TaskSet;
use super::topology::{InternalTopic, Subtopology, Topology};
use super::{
    MemberTasks, StreamsGroup, StreamsGroupState, StreamsHeartbeat, StreamsHeartbeatAnswer,
    UserEndpoint,
};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn internal(name: &str) -> InternalTopic {
    InternalTopic { name: name.to_owned(), ..InternalTopic::default() }
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// It reads t, writes r, and counts in c what it reads from r.
fn word_count() -> Topology {
    let reader = Subtopology {
        sources: names(&["t"]),
        repartition_sinks: names(&["r"]),
        ..Subtopology::default()
    };
    let count = Subtopology {
        repartition_sources: vec![internal("r")],
        changelogs: vec![internal("c")],
        copartitioned: vec![names(&["r"])],
        ..Subtopology::default()
    };
    let subtopologies = [("0".to_owned(), reader), ("1".to_owned(), count)];
    Topology { epoch: 0, subtopologies: subtopologies.into() }
}

fn options(delay: Duration, standbys: u32) -> Options {
    let streams = StreamsOptions {
        initial_rebalance_delay: delay,
        assignment_interval: Duration::ZERO,
        standbys,
        ..StreamsOptions::default()
    };
    Options { streams, ..Options::default() }
}

struct TestStreamsGroup {
    options: Options,
    group: StreamsGroup,
    topics: TestTopics,
    now: Duration,
    log: StoredGroup,
}

impl TestStreamsGroup {
    fn new(options: Options, topics: &[(&str, u32)]) -> TestStreamsGroup {
        TestStreamsGroup {
            group: StreamsGroup::new(Arc::new(options.clone())),
            options,
            topics: TestTopics::new(topics),
            now: s(100),
            log: StoredGroup::whole(Vec::new()),
        }
    }

    fn ready(standbys: u32) -> TestStreamsGroup {
        let topics = [("t", 2), ("r", 2), ("c", 2)];
        TestStreamsGroup::new(options(Duration::ZERO, standbys), &topics)
    }

    fn send(&mut self, request: &StreamsHeartbeat) -> Result<StreamsHeartbeatAnswer, GroupError> {
        request.check(&self.options)?;
        let answer = self.group.heartbeat(self.now, request, &self.topics);
        self.group.assert_sound();
        answer
    }

    fn join(&mut self, id: &str) -> Result<StreamsHeartbeatAnswer, GroupError> {
        self.send(&joining(id, word_count()))
    }

    fn beat(
        &mut self,
        id: &str,
        epoch: i32,
        owned: Option<&MemberTasks>,
    ) -> Result<StreamsHeartbeatAnswer, GroupError> {
        self.send(&heartbeat(id, epoch, owned))
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.group.tick(self.now);
        self.group.assert_sound();
    }

    fn save(&mut self) {
        if self.group.base.unsaved.is_any() {
            let (count, change) = self.group.take_unsaved();
            change.apply(&mut self.log);
            self.group.base.unsaved.saved(count);
        }
    }

    fn restart(&mut self) {
        let options = Arc::new(self.options.clone());
        self.group = if self.log.snapshot.is_empty() {
            StreamsGroup::new(options)
        } else {
            StreamsGroup::restore(options, &self.log, self.now, &self.topics).unwrap()
        };
        self.group.assert_sound();
    }
}

/// The process of a member is the first letter of its id.
fn joining(id: &str, topology: Topology) -> StreamsHeartbeat {
    StreamsHeartbeat {
        topology: Some(topology),
        rebalance_timeout: Some(s(30)),
        process: Some(id[..1].to_owned()),
        endpoint: Some(UserEndpoint { host: id.to_owned(), port: 80 }),
        ..heartbeat(id, 0, Some(&MemberTasks::default()))
    }
}

fn heartbeat(id: &str, epoch: i32, owned: Option<&MemberTasks>) -> StreamsHeartbeat {
    StreamsHeartbeat {
        member_id: id.to_owned(),
        member_epoch: epoch,
        owned: owned.cloned(),
        client_id: "app".to_owned(),
        ..StreamsHeartbeat::default()
    }
}

fn count(tasks: &TaskSet) -> usize {
    tasks.values().map(BTreeSet::len).sum()
}

fn codes(answer: &StreamsHeartbeatAnswer) -> Vec<i8> {
    answer.statuses.iter().map(|status| status.code).collect()
}

#[test]
fn tasks_are_assigned_once_all_topics_are_there() {
    let mut test = TestStreamsGroup::new(options(Duration::ZERO, 0), &[]);
    let answer = test.join("a").unwrap();
    assert_eq!((codes(&answer), answer.missing_topics.len()), (vec![1], 0), "t is missing");
    assert_eq!(test.group.state(), StreamsGroupState::NotReady);
    test.topics.set("t", 3);
    let answer = test.beat("a", answer.member_epoch, None).unwrap();
    let missing = &answer.missing_topics;
    let missing: Vec<_> =
        missing.iter().map(|topic| (topic.name.as_str(), topic.partitions)).collect();
    assert_eq!((codes(&answer), missing), (vec![3], vec![("c", 3), ("r", 3)]));
    test.topics.set("r", 3);
    test.topics.set("c", 2);
    let answer = test.beat("a", answer.member_epoch, None).unwrap();
    assert_eq!(codes(&answer), [2], "c has too few partitions");
    test.topics.set("c", 3);
    let answer = test.beat("a", answer.member_epoch, None).unwrap();
    assert_eq!(codes(&answer), [] as [i8; 0]);
    assert_eq!(count(&answer.tasks.unwrap().active), 6);
    assert_eq!(test.group.state(), StreamsGroupState::Stable);
    let topology = test.group.describe().topology.unwrap();
    assert_eq!(topology.subtopologies["1"].changelogs[0].partitions, 3);
}

/// A join of t with u; and, if `repartitioned` says how many partitions it has, of u with what was
/// read from t and written to r.
fn join_of_topics(repartitioned: Option<u32>) -> Topology {
    let Some(partitions) = repartitioned else {
        let sources = names(&["t", "u"]);
        let copartitioned = vec![sources.clone()];
        let join = Subtopology { sources, copartitioned, ..Subtopology::default() };
        return Topology { epoch: 0, subtopologies: [("0".to_owned(), join)].into() };
    };
    let mut topology = word_count();
    let join = topology.subtopologies.get_mut("1").unwrap();
    join.sources = names(&["u"]);
    join.copartitioned = vec![names(&["r", "u"])];
    join.repartition_sources[0].partitions = partitions;
    topology
}

#[test]
fn topics_that_are_joined_need_the_same_number_of_partitions() {
    let mut test = TestStreamsGroup::new(options(Duration::ZERO, 0), &[("t", 3), ("u", 2)]);
    let answer = test.send(&joining("a", join_of_topics(None))).unwrap();
    assert_eq!(codes(&answer), [2]);
    let detail = &answer.statuses[0].detail;
    assert!(detail.starts_with("Following topics do not have the same number"), "{detail}");
    assert_eq!(answer.tasks.unwrap(), MemberTasks::default());
    test.topics.set("u", 3);
    let answer = test.beat("a", answer.member_epoch, None).unwrap();
    assert_eq!(codes(&answer), [] as [i8; 0]);
    assert_eq!(count(&answer.tasks.unwrap().active), 3);
}

#[test]
fn a_repartition_topic_follows_the_topic_that_it_is_joined_with() {
    for (fixed, expected) in [(0, Ok(5)), (5, Ok(5)), (4, Err(2))] {
        let mut test = TestStreamsGroup::new(options(Duration::ZERO, 0), &[("t", 3), ("u", 5)]);
        let answer = test.send(&joining("a", join_of_topics(Some(fixed)))).unwrap();
        let topic = answer.missing_topics.iter().find(|topic| topic.name == "r");
        let partitions = topic.map(|topic| topic.partitions).ok_or(codes(&answer)[0]);
        assert_eq!(partitions, expected, "{fixed}: {answer:?}");
    }
}

#[test]
fn a_moment_that_is_yet_to_come_is_looked_up_until_it_has_passed() {
    let moment = "t@s4102358400000";
    let reader = Subtopology { sources: names(&[moment]), ..Subtopology::default() };
    let topology = Topology { epoch: 0, subtopologies: [("0".to_owned(), reader)].into() };
    let mut test = TestStreamsGroup::new(options(Duration::ZERO, 0), &[("t", 3)]);
    let answer = test.send(&joining("a", topology)).unwrap();
    assert_eq!(codes(&answer), [1]);
    test.topics.pass(moment, 3);
    let answer = test.beat("a", answer.member_epoch, None).unwrap();
    assert_eq!(codes(&answer), [] as [i8; 0]);
    assert_eq!(count(&answer.tasks.unwrap().active), 3);
}

#[test]
fn empty_groups_of_topics_take_memory_too() {
    let mut topology = word_count();
    let before = topology.bytes();
    topology.subtopologies.get_mut("1").unwrap().copartitioned.resize(1000, BTreeSet::new());
    assert!(topology.bytes() >= before + 999 * size_of::<BTreeSet<String>>());
}

#[test]
fn a_group_waits_for_the_first_members_together() {
    let topics = [("t", 2), ("r", 2), ("c", 2)];
    let mut test = TestStreamsGroup::new(options(s(3), 0), &topics);
    let first = test.join("a").unwrap();
    assert_eq!((codes(&first), &first.tasks), (vec![5], &Some(MemberTasks::default())));
    test.pass(s(1));
    let second = test.join("b").unwrap();
    assert_eq!(test.group.next_deadline(), Some(s(103)));
    test.pass(s(2));
    assert_eq!(test.group.state(), StreamsGroupState::Reconciling);
    for answer in [first, second] {
        let answer = test.beat(&answer.member_id, answer.member_epoch, None).unwrap();
        assert_eq!(count(&answer.tasks.unwrap().active), 2);
    }
    assert_eq!(test.group.state(), StreamsGroupState::Stable);
}

#[test]
fn a_member_has_a_task_only_once_another_gave_it_up() {
    let mut test = TestStreamsGroup::ready(0);
    let first = test.join("a").unwrap();
    let tasks = first.tasks.clone().unwrap();
    let second = test.join("b").unwrap();
    assert_eq!(count(&second.tasks.unwrap().active), 0);
    let answer = test.beat("a", first.member_epoch, Some(&tasks)).unwrap();
    let tasks_left = answer.tasks.unwrap();
    assert_eq!((count(&tasks_left.active), answer.member_epoch), (2, first.member_epoch));
    // It has not said that it gave the others up.
    let waiting = test.beat("b", second.member_epoch, None).unwrap();
    assert_eq!(waiting.tasks, None);
    let settled = test.beat("a", answer.member_epoch, Some(&tasks_left)).unwrap();
    assert_eq!(settled.member_epoch, second.member_epoch);
    let second = test.beat("b", waiting.member_epoch, None).unwrap();
    let second_tasks = second.tasks.unwrap();
    assert_eq!(count(&second_tasks.active), 2);
    assert_eq!(test.group.state(), StreamsGroupState::Stable);
    // One that does not give up in time is removed.
    test.join("c").unwrap();
    let answer = test.beat("b", second.member_epoch, Some(&second_tasks)).unwrap();
    assert_eq!(count(&answer.tasks.unwrap().active), 1, "it has to give one up");
    let mut epoch = settled.member_epoch;
    for _ in 0..2 {
        test.pass(s(15));
        epoch = test.beat("a", epoch, None).unwrap().member_epoch;
    }
    test.pass(s(1));
    assert_eq!(test.beat("b", answer.member_epoch, None), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_member_that_hears_an_error_has_its_whole_time_to_give_tasks_up() {
    let mut test = TestStreamsGroup::ready(0);
    let first = test.join("a").unwrap();
    let tasks = first.tasks.clone().unwrap();
    test.join("b").unwrap();
    test.save();
    // The revocation from `a` cannot be stored, and `a` hears an error.
    test.beat("a", first.member_epoch, Some(&tasks)).unwrap();
    let (_, change) = test.group.take_unsaved();
    test.group.save_failed(&change);
    test.save();
    test.pass(s(20));
    test.beat("a", first.member_epoch, Some(&tasks)).unwrap();
    test.pass(s(20));
    let answer = test.beat("a", first.member_epoch, Some(&tasks)).unwrap();
    assert_eq!(count(&answer.tasks.unwrap().active), 2);
}

#[test]
fn standbys_are_in_other_processes_and_endpoints_say_where() {
    let mut test = TestStreamsGroup::ready(1);
    let first = test.join("a").unwrap();
    assert_eq!(count(&first.tasks.clone().unwrap().standby), 0, "there is one process");
    test.join("b").unwrap();
    let owned = test.beat("a", first.member_epoch, first.tasks.as_ref()).unwrap();
    test.beat("a", owned.member_epoch, owned.tasks.as_ref()).unwrap();
    test.beat("b", owned.member_epoch + 1, None).unwrap();
    let after = test.beat("a", owned.member_epoch + 1, None).unwrap();
    let members = test.group.describe().members;
    let copies: usize = members.iter().map(|member| count(&member.assigned.standby)).sum();
    assert_eq!(copies, 2, "{members:?}");
    let endpoints = after.endpoints.unwrap();
    let active: usize = endpoints.iter().map(|endpoint| endpoint.active["r"].len()).sum();
    let standby: usize =
        endpoints.iter().filter_map(|endpoint| endpoint.standby.get("r")).map(Vec::len).sum();
    assert_eq!((endpoints.len(), active, standby), (2, 2, 2));
    let mut known_epochs = heartbeat("a", after.member_epoch, None);
    known_epochs.endpoint_epoch = after.endpoint_epoch;
    assert_eq!(test.send(&known_epochs).unwrap().endpoints, None);
}

#[test]
fn a_heartbeat_that_changes_nothing_writes_nothing() {
    let mut test = TestStreamsGroup::ready(0);
    let epoch = test.join("a").unwrap().member_epoch;
    test.save();
    test.pass(s(1));
    let answer = test.beat("a", epoch, None).unwrap();
    assert_eq!((answer.tasks, answer.member_epoch), (None, epoch));
    assert!(!test.group.base.unsaved.is_any());
    test.restart();
    assert_eq!(test.beat("a", epoch, None).unwrap().tasks, None);
    assert!(!test.group.base.unsaved.is_any(), "nor does the first one after a restart");
}

#[test]
fn wrong_requests_are_refused() {
    let mut test = TestStreamsGroup::ready(0);
    let invalid = Err(GroupError::InvalidStreamsRequest);
    assert_eq!(test.beat("a", 0, None), invalid, "no topology");
    assert_eq!(test.beat("", 1, None), invalid);
    assert_eq!(test.beat("a", -2, None), invalid);
    assert_eq!(test.beat("a", 1, None), Err(GroupError::UnknownMemberId));
    assert_eq!(test.beat("a", -1, None), Err(GroupError::UnknownMemberId));
    let epoch = test.join("a").unwrap().member_epoch;
    assert_eq!(test.beat("a", epoch + 1, None), Err(GroupError::FencedMemberEpoch));
    let too_many = MemberTasks {
        active: BTreeMap::from([("0".to_owned(), BTreeSet::from([2]))]),
        ..MemberTasks::default()
    };
    assert_eq!(test.beat("a", epoch, Some(&too_many)), invalid);
    let mut late_beat = heartbeat("a", epoch, None);
    late_beat.topology = Some(word_count());
    assert_eq!(test.send(&late_beat), invalid);
    // Topologies that no topics would fit.
    let broken: [fn(&mut Topology); 6] = [
        |topology| topology.epoch = -1,
        |topology| topology.subtopologies.get_mut("1").unwrap().changelogs[0].partitions = 1,
        |topology| topology.subtopologies.get_mut("0").unwrap().sources.clear(),
        |topology| topology.subtopologies.get_mut("0").unwrap().repartition_sinks.clear(),
        |topology| topology.subtopologies.get_mut("1").unwrap().copartitioned.push(names(&["x"])),
        |topology| {
            let subtopology = topology.subtopologies.get_mut("0").unwrap();
            subtopology.sources.clear();
            subtopology.repartition_sources.push(internal("r"));
        },
    ];
    for change in broken {
        let mut topology = word_count();
        change(&mut topology);
        let mut test = TestStreamsGroup::ready(0);
        let refused = test.send(&joining("a", topology.clone()));
        assert_eq!(refused, Err(GroupError::InvalidTopology), "{topology:?}");
        assert!(test.group.describe().topology.is_none(), "nothing is kept of it");
    }
}

#[test]
fn the_first_topology_stays() {
    let mut test = TestStreamsGroup::ready(0);
    let mut newer = word_count();
    newer.epoch = 1;
    test.send(&joining("a", newer.clone())).unwrap();
    let old = test.join("b").unwrap();
    assert_eq!(codes(&old), [0], "it is told that its topology is old");
    newer.subtopologies.remove("1");
    assert_eq!(test.send(&joining("c", newer)), Err(GroupError::OtherTopology));
}

#[test]
fn a_member_may_end_the_whole_application() {
    let mut test = TestStreamsGroup::ready(0);
    let epoch = test.join("a").unwrap().member_epoch;
    test.join("b").unwrap();
    let mut request = heartbeat("a", epoch, None);
    request.is_shutdown = true;
    assert_eq!(codes(&test.send(&request).unwrap()), [4]);
    assert_eq!(codes(&test.join("b").unwrap()), [4]);
    for id in ["a", "b"] {
        test.beat(id, -1, None).unwrap();
    }
    assert_eq!(test.group.state(), StreamsGroupState::Empty);
    assert_eq!(codes(&test.join("b").unwrap()), [] as [i8; 0], "it begins again");
}

#[test]
fn commits_are_those_of_who_has_the_task() {
    let mut test = TestStreamsGroup::ready(0);
    let first = test.join("a").unwrap();
    let tasks = first.tasks.clone().unwrap();
    test.join("b").unwrap();
    let fence = |id: &str, epoch| CommitFence {
        member_id: id.to_owned(),
        generation_id: epoch,
        group_instance_id: None,
        kind: CommitKind::Plain,
        knows_epochs: true,
    };
    let check = |test: &TestStreamsGroup, id: &str, epoch, topic: &str, index| {
        let partitions = || vec![(super::super::test_topics::id(topic), index)];
        test.group.check_commit(&fence(id, epoch), &partitions)
    };
    assert_eq!(check(&test, "a", first.member_epoch, "t", 0), Ok(()));
    assert_eq!(check(&test, "x", 1, "t", 0), Err(GroupError::UnknownMemberId));
    let answer = test.beat("a", first.member_epoch, Some(&tasks)).unwrap();
    let tasks_left = answer.tasks.unwrap();
    let settled = test.beat("a", answer.member_epoch, Some(&tasks_left)).unwrap();
    // It was at the epoch before when it got what it still has.
    let (topic, index) = match tasks_left.active.first_key_value().unwrap() {
        (id, indexes) if id == "0" => ("t", *indexes.first().unwrap()),
        (_, indexes) => ("r", *indexes.first().unwrap()),
    };
    assert_eq!(check(&test, "a", first.member_epoch, topic, index), Ok(()));
    let stale = Err(GroupError::StaleMemberEpoch);
    assert_eq!(check(&test, "a", first.member_epoch - 1, topic, index), stale);
    assert_eq!(check(&test, "a", settled.member_epoch + 1, topic, index), stale);
    assert_eq!(check(&test, "a", first.member_epoch, "u", 0), stale);
    test.save();
    test.restart();
    assert_eq!(check(&test, "a", first.member_epoch, topic, index), Ok(()), "before any heartbeat");
    let revoked = (0..2)
        .find(|index| !tasks_left.active.get("0").is_some_and(|indexes| indexes.contains(index)));
    if let Some(index) = revoked {
        assert_eq!(check(&test, "a", first.member_epoch, "t", index), stale);
    }
    assert!(test.group.subscriptions().include("r") && !test.group.subscriptions().include("c"));
}

/// A member of the property test: what a client knows.
#[derive(Debug, Clone, Default)]
struct TestMember {
    epoch: i32,
    owned: MemberTasks,
    /// The tasks that it owned when it last said so.
    said: Option<MemberTasks>,
}

impl TestMember {
    fn beat(&mut self, test: &mut TestStreamsGroup, id: &str, is_answer_lost: bool) {
        let request = match self.epoch {
            0 => joining(id, word_count()),
            epoch => {
                let is_news = self.said.as_ref() != Some(&self.owned);
                heartbeat(id, epoch, is_news.then_some(&self.owned))
            }
        };
        let answer = test.send(&request);
        if is_answer_lost {
            self.said = None;
            return;
        }
        match answer {
            Ok(answer) => {
                self.said = Some(request.owned.unwrap_or_else(|| self.owned.clone()));
                self.epoch = answer.member_epoch;
                if let Some(tasks) = answer.tasks {
                    self.owned = tasks;
                }
            }
            Err(_) => *self = TestMember::default(),
        }
    }
}

proptest! {
    /// No task is active at two members, and in the end each task has a member, whatever the order
    /// of heartbeats, lost answers, silence, topics and restarts.
    #[test]
    fn no_task_is_active_twice_and_in_the_end_each_has_a_member(
        standbys in 0..2u32,
        events in prop::collection::vec((0..4usize, 0..9u8, 0..20u64), 1..60),
    ) {
        let mut test = TestStreamsGroup::ready(standbys);
        let mut members = vec![TestMember::default(); 4];
        let ids = ["a1", "a2", "b1", "c1"];
        for (who, what, seconds) in events {
            match what {
                0..=3 => members[who].beat(&mut test, ids[who], false),
                4 => members[who].beat(&mut test, ids[who], true),
                5 => {
                    let _ = test.beat(ids[who], -1, None);
                    members[who] = TestMember::default();
                }
                6 => {
                    let size = 1 + seconds as u32 % 3;
                    ["t", "r", "c"].iter().for_each(|name| test.topics.set(name, size));
                }
                7 => test.topics.set("c", seconds as u32 % 4),
                _ => {
                    // No answer shows a change that was not stored.
                    test.save();
                    test.restart();
                }
            }
            test.save();
            test.pass(s(seconds));
            // A removed member finds out by itself in time, or by its next heartbeat.
            let described = test.group.describe();
            for (member, id) in members.iter_mut().zip(ids) {
                if member.epoch > 0 && !described.members.iter().any(|member| member.id == id) {
                    *member = TestMember::default();
                }
            }
            let mut active = BTreeSet::new();
            for member in &members {
                for (subtopology, indexes) in &member.owned.active {
                    for index in indexes {
                        prop_assert!(active.insert((subtopology, *index)), "{members:?}");
                    }
                }
            }
        }
        ["t", "r", "c"].iter().for_each(|name| test.topics.set(name, 3));
        for _ in 0..8 {
            for (member, id) in members.iter_mut().zip(ids) {
                member.beat(&mut test, id, false);
            }
            test.pass(s(1));
        }
        let active: usize = members.iter().map(|member| count(&member.owned.active)).sum();
        prop_assert_eq!(active, 6, "{:?}", members);
        let copies: usize = members.iter().map(|member| count(&member.owned.standby)).sum();
        prop_assert_eq!(copies, 3 * standbys as usize);
        prop_assert_eq!(test.group.state(), StreamsGroupState::Stable);
    }
}
