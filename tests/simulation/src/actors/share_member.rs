//! A member of a share group: it fetches, processes what it gets or not, leaves, and loses its
//! connection.

use std::rc::Rc;

use kafka_protocol::messages::share_acknowledge_request::{
    AcknowledgePartition, AcknowledgeTopic, AcknowledgementBatch,
};
use kafka_protocol::messages::share_fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::share_fetch_response::ShareFetchResponse;
use kafka_protocol::messages::{
    GroupId, ShareAcknowledgeRequest, ShareFetchRequest, ShareGroupHeartbeatRequest,
};
use kafka_protocol::protocol::StrBytes;
use testkit::requests::topic_name;
use testkit::rng::SeededRng;
use tokio::time::Instant;
use uuid::Uuid;

use super::pause;
use crate::facts::{SharedRange, SimFact};
use crate::wire::SimClient;
use crate::world::SimWorld;

/// Kafka's numbers of what a member says of a record: it was processed, or is to be delivered
/// again.
const ACCEPT: i8 = 1;
const RELEASE: i8 = 2;
/// To close a session, or to leave a group.
const CLOSING: i32 = -1;

pub(crate) struct ShareMember {
    world: Rc<SimWorld>,
    client: SimClient,
    rng: SeededRng,
    name: String,
    /// The number of its joins.
    joins: u32,
    epoch: i32,
    assigned: Vec<(Uuid, Vec<i32>)>,
    session_epoch: i32,
    /// The records that it has.
    held: Vec<SharedRange>,
}

impl ShareMember {
    pub(crate) fn new(world: &Rc<SimWorld>, nth: usize, mut rng: SeededRng) -> ShareMember {
        ShareMember {
            world: Rc::clone(world),
            client: SimClient::new(world, rng.fork()),
            rng,
            name: format!("sharer{nth}"),
            joins: 0,
            epoch: 0,
            assigned: Vec::new(),
            session_epoch: 0,
            held: Vec::new(),
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 20, 300).await;
            if self.rng.one_in(40) {
                self.leave().await;
            } else if self.epoch == 0 || self.rng.one_in(4) {
                self.heartbeat().await;
            } else if self.held.is_empty() {
                self.fetch().await;
            } else {
                self.acknowledge().await;
            }
        }
    }

    fn group() -> GroupId {
        GroupId(StrBytes::from_static_str("sharers"))
    }

    fn id(&self) -> StrBytes {
        StrBytes::from_string(format!("{}-{}", self.name, self.joins))
    }

    fn heartbeat_request(&self) -> ShareGroupHeartbeatRequest {
        let names = (self.epoch == 0).then(|| vec![topic_name("plain"), topic_name("short")]);
        ShareGroupHeartbeatRequest::default()
            .with_group_id(Self::group())
            .with_member_id(self.id())
            .with_member_epoch(self.epoch)
            .with_subscribed_topic_names(names)
    }

    async fn heartbeat(&mut self) {
        // The server may have heard it if there is no answer: it says it again.
        let Ok(answer) = self.client.call(1, &self.heartbeat_request()).await else { return };
        if answer.error_code != 0 {
            (self.epoch, self.session_epoch) = (0, 0);
            return;
        }
        self.epoch = answer.member_epoch;
        if let Some(assignment) = answer.assignment {
            let topics = assignment.topic_partitions.into_iter();
            self.assigned = topics.map(|topic| (topic.topic_id, topic.partitions)).collect();
            self.session_epoch = 0;
        }
    }

    async fn fetch(&mut self) {
        let named: &[(Uuid, Vec<i32>)] = if self.session_epoch == 0 { &self.assigned } else { &[] };
        let topics = named.iter().map(|(id, indexes)| {
            let partitions =
                indexes.iter().map(|index| FetchPartition::default().with_partition_index(*index));
            FetchTopic::default().with_topic_id(*id).with_partitions(partitions.collect())
        });
        let request = ShareFetchRequest::default()
            .with_group_id(Some(Self::group()))
            .with_member_id(Some(self.id()))
            .with_share_session_epoch(self.session_epoch)
            .with_max_wait_ms(200)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_max_records(10)
            .with_batch_size(10)
            .with_topics(topics.collect());
        let asked = Instant::now();
        match self.client.call(1, &request).await {
            Ok(answer) if answer.error_code == 0 => {
                self.session_epoch += 1;
                self.hear(asked, answer);
            }
            // Its session is gone, or its connection is, and with it the session.
            Ok(_) | Err(_) => self.session_epoch = 0,
        }
    }

    fn hear(&mut self, asked: Instant, answer: ShareFetchResponse) {
        for topic in answer.responses {
            for partition in topic.partitions {
                for acquired in partition.acquired_records {
                    let range = SharedRange {
                        topic: topic.topic_id,
                        partition: partition.partition_index,
                        first: acquired.first_offset,
                        last: acquired.last_offset,
                    };
                    let deliveries = acquired.delivery_count;
                    self.world.report(&SimFact::Delivered { asked, range, deliveries });
                    self.held.push(range);
                }
            }
        }
    }

    async fn acknowledge(&mut self) {
        let held = std::mem::take(&mut self.held);
        if self.rng.one_in(10) {
            // It forgets what it has, which is delivered again after a while.
            return;
        }
        let kind = if self.rng.one_in(4) { RELEASE } else { ACCEPT };
        let topics = held.iter().map(|range| {
            let batch = AcknowledgementBatch::default()
                .with_first_offset(range.first)
                .with_last_offset(range.last)
                .with_acknowledge_types(vec![kind]);
            let partition = AcknowledgePartition::default()
                .with_partition_index(range.partition)
                .with_acknowledgement_batches(vec![batch]);
            AcknowledgeTopic::default().with_topic_id(range.topic).with_partitions(vec![partition])
        });
        // Each range by itself: a partition may be named once only.
        for (range, topic) in held.iter().zip(topics.collect::<Vec<_>>()) {
            let request = ShareAcknowledgeRequest::default()
                .with_group_id(Some(Self::group()))
                .with_member_id(Some(self.id()))
                .with_share_session_epoch(self.session_epoch)
                .with_topics(vec![topic]);
            match self.client.call(1, &request).await {
                Ok(answer) if answer.error_code == 0 => {
                    self.session_epoch += 1;
                    let code = answer.responses.first().and_then(|topic| topic.partitions.first());
                    let is_done = code.is_some_and(|partition| partition.error_code == 0);
                    if is_done && kind == ACCEPT {
                        self.world
                            .report(&SimFact::Processed { now: Instant::now(), range: *range });
                    }
                }
                Ok(_) | Err(_) => {
                    self.session_epoch = 0;
                    return;
                }
            }
        }
    }

    async fn leave(&mut self) {
        let request = self.heartbeat_request().with_member_epoch(CLOSING);
        // It may be heard or not: what it has is released with its connection or after a while.
        let _ = self.client.call(1, &request).await;
        self.joins += 1;
        (self.epoch, self.session_epoch) = (0, 0);
        self.held.clear();
        self.assigned.clear();
    }
}
