//! The fixture of the tests: a group, its clients as they follow the protocol, and its log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use engine::groups::StoredGroup;
use uuid::Uuid;

use super::super::error::GroupError;
use super::super::options::Options;
use super::super::test_topics::{TestTopics, id};
use super::{ConsumerGroup, ConsumerHeartbeat, ConsumerHeartbeatAnswer, PartitionSet};

pub(super) fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A client that follows the protocol.
#[derive(Debug, Clone, Default)]
pub(super) struct TestClient {
    pub(super) id: String,
    pub(super) instance: Option<String>,
    pub(super) epoch: i32,
    pub(super) owned: PartitionSet,
    pub(super) topics: BTreeSet<String>,
    pub(super) regex: String,
    /// True if its next heartbeat says everything.
    pub(super) says_all: bool,
}

impl TestClient {
    pub(super) fn new(id: &str, topics: &[&str]) -> TestClient {
        let topics = topics.iter().map(|name| (*name).to_owned()).collect();
        TestClient { id: id.to_owned(), topics, says_all: true, ..TestClient::default() }
    }

    pub(super) fn request(&self) -> ConsumerHeartbeat {
        let joins = self.epoch == 0;
        let says_all = self.says_all || joins;
        ConsumerHeartbeat {
            member_id: self.id.clone(),
            member_epoch: self.epoch,
            instance_id: self.instance.clone(),
            rebalance_timeout: says_all.then_some(s(60)),
            topics: says_all.then(|| self.topics.clone()),
            regex: says_all.then(|| self.regex.clone()),
            owned: Some(self.owned.clone()),
            client_id: "app".to_owned(),
            client_host: "/10.0.0.1".to_owned(),
            ..ConsumerHeartbeat::default()
        }
    }

    /// Takes an answer in, and gives up at once the partitions that it loses.
    pub(super) fn hear(&mut self, answer: Result<ConsumerHeartbeatAnswer, GroupError>) {
        match answer {
            Ok(answer) => {
                self.epoch = answer.member_epoch;
                self.says_all = false;
                if let Some(assignment) = answer.assignment {
                    let indexes = |(topic, indexes): (_, BTreeMap<u32, i32>)| {
                        (topic, indexes.into_keys().collect())
                    };
                    self.owned = assignment.into_iter().map(indexes).collect();
                }
            }
            Err(_) => self.forget(),
        }
    }

    /// It was fenced: it gives up all it has, and joins again.
    pub(super) fn forget(&mut self) {
        (self.epoch, self.owned, self.says_all) = (0, PartitionSet::new(), true);
    }
}

pub(super) struct TestConsumerGroup {
    pub(super) group: ConsumerGroup,
    pub(super) topics: TestTopics,
    pub(super) now: Duration,
    pub(super) log: StoredGroup,
}

impl TestConsumerGroup {
    pub(super) fn new(topics: &[(&str, u32)]) -> TestConsumerGroup {
        TestConsumerGroup {
            group: ConsumerGroup::new(Arc::new(Options::default())),
            topics: TestTopics::new(topics),
            now: s(100),
            log: StoredGroup::whole(Vec::new()),
        }
    }

    pub(super) fn beat(
        &mut self,
        request: &ConsumerHeartbeat,
    ) -> Result<ConsumerHeartbeatAnswer, GroupError> {
        let mut new_id = || Uuid::from_u128(7);
        request.check(&self.group.base.options)?;
        if request.leaves() {
            let answer = self.group.leave(self.now, request);
            self.group.assert_sound();
            return answer;
        }
        let mut full_group = self.group.clone();
        let bare_answer = self.group.bare_heartbeat(self.now, request, &self.topics);
        let answer = full_group.heartbeat(self.now, request, &self.topics, &mut new_id);
        match bare_answer {
            Some(bare_answer) => assert_eq!(Ok(bare_answer), answer),
            None => self.group = full_group,
        }
        self.group.assert_sound();
        answer
    }

    /// A client sends a heartbeat, hears the answer, and all is stored.
    pub(super) fn client(&mut self, client: &mut TestClient) {
        let answer = self.beat(&client.request());
        self.save();
        client.hear(answer);
    }

    /// Clients send heartbeats, with time between, until nothing changes any more.
    pub(super) fn settle(&mut self, clients: &mut [&mut TestClient]) {
        for _ in 0..20 {
            self.pass(s(1));
            clients.iter_mut().for_each(|client| self.client(client));
        }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.group.tick(self.now);
        self.group.assert_sound();
    }

    /// Writes what the log lacks.
    pub(super) fn save(&mut self) {
        if self.group.base.unsaved.is_any() {
            let (count, change) = self.group.take_unsaved();
            change.apply(&mut self.log);
            self.group.base.unsaved.saved(count);
        }
    }

    /// The log refuses what it lacks.
    pub(super) fn fail_to_save(&mut self) {
        let (_, change) = self.group.take_unsaved();
        self.group.save_failed(&change);
        self.group.assert_sound();
    }

    /// A restart: only what is in the log is left.
    pub(super) fn restart(&mut self) {
        let options = Arc::clone(&self.group.base.options);
        self.group = if self.log.snapshot.is_empty() {
            ConsumerGroup::new(options)
        } else {
            ConsumerGroup::restore(options, &self.log, self.now, &self.topics).unwrap()
        };
        self.group.assert_sound();
    }
}

pub(super) fn partitions(topic: &str, indexes: &[u32]) -> PartitionSet {
    let indexes: BTreeSet<u32> = indexes.iter().copied().collect();
    if indexes.is_empty() {
        PartitionSet::new()
    } else {
        PartitionSet::from([(id(topic), indexes)])
    }
}
