//! A member of a group whose partitions the server assigns: it joins, does as it is told, leaves,
//! and is sometimes silent for too long, or gone without a word.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse;
use kafka_protocol::messages::{ConsumerGroupHeartbeatRequest, GroupId};
use kafka_protocol::protocol::StrBytes;
use testkit::requests::topic_name;
use testkit::rng::SeededRng;
use tokio::time::Instant;
use uuid::Uuid;

use super::pause;
use crate::facts::{OwnedPartitions, SimFact};
use crate::node::GROUP_SESSION_TIMEOUT;
use crate::wire::SimClient;
use crate::world::SimWorld;

/// Longer than two sessions: a member that does not hear within one what to give up, or does not
/// say within another that it did, has given up all before it is fenced.
const REBALANCE_TIMEOUT_MS: i32 = 7000;
/// Kafka's codes for a member that must join again: unknown, no such group, fenced.
const FENCED_CODES: [i16; 3] = [25, 69, 110];

pub(crate) struct GroupMember {
    world: Rc<SimWorld>,
    client: SimClient,
    rng: SeededRng,
    nth: usize,
    name: String,
    /// The number of its starts.
    starts: u32,
    epoch: i32,
    owned: BTreeMap<Uuid, Vec<i32>>,
    /// The send time of the last heartbeat that was answered.
    answered: Instant,
    says_all: bool,
}

impl GroupMember {
    pub(crate) fn new(world: &Rc<SimWorld>, nth: usize, mut rng: SeededRng) -> GroupMember {
        GroupMember {
            world: Rc::clone(world),
            client: SimClient::new(world, rng.fork()),
            rng,
            nth,
            name: format!("member{nth}"),
            starts: 0,
            epoch: 0,
            owned: BTreeMap::new(),
            answered: Instant::now(),
            says_all: true,
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            // Some are silent for longer than they may be.
            let most_ms = if self.rng.one_in(25) { 5000 } else { 300 };
            pause(&mut self.rng, 20, most_ms).await;
            if self.answered.elapsed() >= GROUP_SESSION_TIMEOUT {
                self.forget("its session has ended");
            }
            if self.rng.one_in(40) {
                self.forget("it starts again");
                self.starts += 1;
            } else if self.rng.one_in(40) {
                self.leave().await;
            } else {
                self.heartbeat().await;
            }
        }
    }

    fn request(&self) -> ConsumerGroupHeartbeatRequest {
        let says_all = self.says_all || self.epoch == 0;
        let owned = self.owned.iter().map(|(topic, indexes)| {
            TopicPartitions::default().with_topic_id(*topic).with_partitions(indexes.clone())
        });
        // One names topics; the others' expression finds them, and those that come and go.
        let by_name = self.nth == 0;
        let names =
            if by_name { vec![topic_name("plain"), topic_name("short")] } else { Vec::new() };
        let regex = if by_name { "" } else { "p.*|short" };
        ConsumerGroupHeartbeatRequest::default()
            .with_group_id(GroupId(StrBytes::from_static_str("members")))
            .with_member_id(StrBytes::from_string(format!("{}-{}", self.name, self.starts)))
            .with_member_epoch(self.epoch)
            .with_rebalance_timeout_ms(if says_all { REBALANCE_TIMEOUT_MS } else { -1 })
            .with_subscribed_topic_names(says_all.then_some(names))
            .with_subscribed_topic_regex(says_all.then(|| StrBytes::from_static_str(regex)))
            .with_topic_partitions(Some(owned.collect()))
    }

    async fn heartbeat(&mut self) {
        let sent = Instant::now();
        match self.client.call(1, &self.request()).await {
            Ok(answer) => self.hear(sent, answer),
            // The server may have heard it.
            Err(_) => self.says_all = true,
        }
    }

    fn hear(&mut self, sent: Instant, answer: ConsumerGroupHeartbeatResponse) {
        let code = answer.error_code;
        if FENCED_CODES.contains(&code) {
            self.forget("it is fenced");
            return;
        }
        if code != 0 {
            self.says_all = true;
            return;
        }
        (self.answered, self.epoch, self.says_all) = (sent, answer.member_epoch, false);
        if let Some(assignment) = answer.assignment {
            let topics = assignment.topic_partitions.into_iter();
            self.owned = topics.map(|topic| (topic.topic_id, topic.partitions)).collect();
            let count: usize = self.owned.values().map(Vec::len).sum();
            self.world.note(&self.name, &format!("owns {count} in epoch {}", self.epoch));
        }
        self.report();
    }

    async fn leave(&mut self) {
        let request = self.request().with_member_epoch(-1);
        self.forget("it leaves");
        // It may be heard or not: what it had is nobody's until its session ends.
        let _ = self.client.call(1, &request).await;
    }

    fn forget(&mut self, why: &str) {
        if self.epoch != 0 {
            self.world.note(&self.name, why);
        }
        (self.epoch, self.says_all) = (0, true);
        self.owned.clear();
        self.answered = Instant::now();
        self.report();
    }

    fn report(&self) {
        let each = |(topic, indexes): (&Uuid, &Vec<i32>)| {
            indexes.iter().map(|index| (*topic, *index)).collect::<Vec<_>>()
        };
        let partitions: BTreeSet<(Uuid, i32)> = self.owned.iter().flat_map(each).collect();
        self.world.report(&SimFact::Owned(OwnedPartitions {
            member: self.nth,
            partitions,
            now: Instant::now(),
            until: self.answered + GROUP_SESSION_TIMEOUT,
        }));
    }
}
