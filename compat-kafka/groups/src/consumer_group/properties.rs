//! Property tests: whatever the order of requests, time, topics, failed writes, lost answers and
//! restarts, no two members own a partition, and in the end each has one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::TopicId;
use engine::groups::StoredGroup;
use proptest::prelude::*;

use super::super::modern_group::ModernState;
use super::test_consumer_group::{TestClient, TestConsumerGroup, s};
use super::{ConsumerHeartbeat, ConsumerHeartbeatAnswer, MemberTimer};

const TOPICS: [&str; 4] = ["t0", "t1", "x0", "x1"];

#[derive(Debug, Clone)]
enum Event {
    /// A client sends a heartbeat. Its answer may be lost.
    Beat {
        who: usize,
        is_lost: bool,
    },
    /// A client sends all it has to say, with other topics.
    Subscribe {
        who: usize,
        topics: u8,
        by_regex: bool,
    },
    Leave {
        who: usize,
        for_a_while: bool,
    },
    /// A static member starts again, under another id.
    StartAgain {
        who: usize,
    },
    Topic {
        which: usize,
        partitions: u32,
    },
    /// The write of what the log lacks.
    Write {
        is_stored: bool,
    },
    Pass {
        seconds: u64,
    },
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    let client = || 0..5usize;
    prop_oneof![
        20 => (client(), prop::bool::weighted(0.15)).prop_map(|(who, is_lost)| Event::Beat { who, is_lost }),
        4 => (client(), 0u8..16, prop::bool::weighted(0.3))
            .prop_map(|(who, topics, by_regex)| Event::Subscribe { who, topics, by_regex }),
        2 => (client(), any::<bool>()).prop_map(|(who, for_a_while)| Event::Leave { who, for_a_while }),
        2 => client().prop_map(|who| Event::StartAgain { who }),
        2 => (0..4usize, 0u32..6).prop_map(|(which, partitions)| Event::Topic { which, partitions }),
        12 => prop::bool::weighted(0.8).prop_map(|is_stored| Event::Write { is_stored }),
        5 => (0u64..12).prop_map(|seconds| Event::Pass { seconds }),
        1 => (12u64..80).prop_map(|seconds| Event::Pass { seconds }),
        2 => Just(Event::Restart),
    ]
}

/// An answer that waits until it is stored.
struct HeldAnswer {
    who: usize,
    change: u64,
    sent: Duration,
    answer: ConsumerHeartbeatAnswer,
}

struct Model {
    test: TestConsumerGroup,
    clients: Vec<TestClient>,
    /// The time of each client's last heartbeat that was answered: after its session it owns
    /// nothing any more.
    answered: Vec<Duration>,
    held: Vec<HeldAnswer>,
    starts: u32,
}

impl Model {
    fn new() -> Model {
        let client = |nth: usize| TestClient {
            // The last two are static.
            instance: (nth >= 3).then(|| format!("i{nth}")),
            ..TestClient::new(&format!("m{nth}"), &["t0", "t1"])
        };
        let test = TestConsumerGroup::new(&[("t0", 3), ("t1", 2), ("x0", 2)]);
        let answered = vec![test.now; 5];
        let clients = (0..5).map(client).collect();
        Model { test, clients, answered, held: Vec::new(), starts: 0 }
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Beat { who, is_lost } => self.beat(*who, *is_lost),
            Event::Subscribe { who, topics, by_regex } => {
                let client = &mut self.clients[*who];
                let is_named = |(nth, _): &(usize, &&str)| topics & 1 << nth != 0;
                let names = TOPICS.iter().enumerate().filter(is_named);
                client.topics = names.map(|(_, name)| (*name).to_owned()).collect();
                client.regex = if *by_regex { "x.*".to_owned() } else { String::new() };
                client.says_all = true;
                self.beat(*who, false);
            }
            Event::Leave { who, for_a_while } => self.leave(*who, *for_a_while),
            Event::StartAgain { who } => {
                self.starts += 1;
                let start = self.starts;
                let client = &mut self.clients[*who];
                client.forget();
                client.id = format!("m{who}-{start}");
                self.held.retain(|answer| answer.who != *who);
            }
            Event::Topic { which, partitions } => self.test.topics.set(TOPICS[*which], *partitions),
            Event::Write { is_stored } => self.write(*is_stored),
            Event::Pass { seconds } => {
                self.pass(s(*seconds));
                if *seconds >= 5 {
                    // Writes do not take longer: they have failed.
                    self.lose_held();
                }
                self.expire();
            }
            Event::Restart => {
                self.write(true);
                self.held.clear();
                let lost = |client: &mut TestClient| client.says_all = true;
                self.clients.iter_mut().for_each(lost);
                self.test.restart();
            }
        }
        self.check();
    }

    /// A member that does not confirm in time that it gave partitions up is removed, though its
    /// session goes on, and its client does not know that. As in Kafka, the time runs from when the
    /// group decided it: the client may have heard of it later. So nothing is promised of such a
    /// client.
    fn pass(&mut self, time: Duration) {
        let (group, until) = (&self.test.group, self.test.now + time);
        let owes = |client: &TestClient| {
            let deadline = group.deadlines.at(&(client.id.clone(), MemberTimer::Revocation));
            deadline.is_some_and(|at| at <= until)
        };
        let owe_answer: Vec<bool> = self.clients.iter().map(owes).collect();
        self.test.pass(time);
        for (client, _) in self.clients.iter_mut().zip(owe_answer).filter(|(_, owes)| *owes) {
            client.forget();
        }
    }

    /// A client whose session has ended for certain knows that it owns nothing.
    fn expire(&mut self) {
        for (client, answered_at) in self.clients.iter_mut().zip(&self.answered) {
            if self.test.now - *answered_at >= s(45) {
                client.forget();
            }
        }
    }

    fn beat(&mut self, client: usize, is_lost: bool) {
        if self.held.iter().any(|answer| answer.who == client) {
            // It has waited for an answer too long.
            self.held.retain(|answer| answer.who != client);
            self.clients[client].says_all = true;
        }
        let request = self.clients[client].request();
        match self.test.beat(&request) {
            Err(_) => {
                self.clients[client].forget();
            }
            Ok(answer) => {
                if is_lost {
                    // It says everything again, and whether it was heard is unknown.
                    self.clients[client].says_all = true;
                } else {
                    match self.test.group.base.unsaved_change_of(&answer.member_id) {
                        Some(change) => {
                            let sent = self.test.now;
                            self.held.push(HeldAnswer { who: client, change, sent, answer });
                        }
                        None => self.hear(client, self.test.now, answer),
                    }
                }
            }
        }
    }

    fn leave(&mut self, leaver: usize, for_a_while: bool) {
        let client = &self.clients[leaver];
        let epoch = if for_a_while && client.instance.is_some() { -2 } else { -1 };
        let request = ConsumerHeartbeat { member_epoch: epoch, ..client.request() };
        let _ = self.test.beat(&request);
        self.held.retain(|answer| answer.who != leaver);
        self.clients[leaver].forget();
    }

    fn write(&mut self, is_stored: bool) {
        if !self.test.group.base.unsaved.is_any() {
            return;
        }
        let (count, change) = self.test.group.take_unsaved();
        if !is_stored {
            self.test.group.save_failed(&change);
            self.lose_held();
            return;
        }
        change.apply(&mut self.test.log);
        self.test.group.base.unsaved.saved(count);
        for HeldAnswer { who, change, sent, answer } in std::mem::take(&mut self.held) {
            assert!(change <= count, "all changes were written");
            self.hear(who, sent, answer);
        }
    }

    fn hear(&mut self, client: usize, sent: Duration, answer: ConsumerHeartbeatAnswer) {
        self.answered[client] = sent;
        self.clients[client].hear(Ok(answer));
    }

    /// The answers that wait are never given.
    fn lose_held(&mut self) {
        for answer in std::mem::take(&mut self.held) {
            self.clients[answer.who].says_all = true;
        }
    }

    /// No two clients own a partition.
    fn check(&self) {
        let mut owners = BTreeSet::<(TopicId, u32)>::new();
        for client in &self.clients {
            for (topic, indexes) in &client.owned {
                for index in indexes {
                    assert!(owners.insert((*topic, *index)), "{:?}", self.clients);
                }
            }
        }
    }

    /// With time and heartbeats, each partition of what clients subscribe to gets one owner.
    fn settle(&mut self) {
        self.write(true);
        for _ in 0..70 {
            self.pass(s(1));
            self.expire();
            for client in 0..self.clients.len() {
                self.beat(client, false);
                self.write(true);
                self.check();
            }
        }
        let owned: BTreeMap<TopicId, usize> = self
            .clients
            .iter()
            .flat_map(|client| &client.owned)
            .fold(BTreeMap::new(), |mut owned, (topic, indexes)| {
                *owned.entry(*topic).or_default() += indexes.len();
                owned
            });
        let subscribed = self.test.topics.partitions().into_iter().filter(|(topic, _)| {
            let name =
                TOPICS.iter().find(|name| super::super::test_topics::id(name) == *topic).unwrap();
            let reads = |client: &TestClient| {
                client.topics.contains(*name) || client.regex == "x.*" && name.starts_with('x')
            };
            self.clients.iter().any(reads)
        });
        let expected: BTreeMap<TopicId, usize> =
            subscribed.map(|(topic, count)| (topic, count as usize)).collect();
        assert_eq!(owned, expected);
        assert_eq!(self.test.group.state(), super::ConsumerGroupState::Stable);
    }
}

proptest! {
    #[test]
    fn a_partition_has_one_owner_and_in_the_end_each_has_one(
        events in proptest::collection::vec(event(), 0..80),
    ) {
        let mut model = Model::new();
        events.iter().for_each(|event| model.apply(event));
        model.settle();
    }

    #[test]
    fn what_is_stored_is_the_group(events in proptest::collection::vec(event(), 0..40)) {
        let mut model = Model::new();
        events.iter().for_each(|event| model.apply(event));
        model.write(true);
        let described = model.test.group.describe();
        let mut whole = StoredGroup::whole(Vec::new());
        let (_, change) = {
            let mut group = model.test.group.clone();
            group.base.unsaved.mark_whole();
            group.take_unsaved()
        };
        change.apply(&mut whole);
        if !model.test.log.snapshot.is_empty() {
            prop_assert_eq!(&whole, &model.test.log);
            model.test.restart();
            prop_assert_eq!(model.test.group.describe(), described);
        }
    }
}
