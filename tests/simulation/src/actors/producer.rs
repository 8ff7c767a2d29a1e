//! A producer. Some are idempotent and send again what was not answered. The others send each batch
//! once, now and then several before the first is answered.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use kafka_records::{BatchBuilder, CompressionType};
use testkit::rng::SeededRng;

use super::requests::{PartitionBatch, init_producer_id, produce_frame, receive_produce_response};
use super::{COMPACTED_TOPIC, pause, random_partition};
use crate::audit::BATCH_HEADER;
use crate::coverage::CoveragePoint;
use crate::facts::SimFact;
use crate::ledger::{AckMode, BatchAck, SentBatch};
use crate::wire::SimClient;
use crate::world::SimWorld;

/// Kafka's codes after which a producer takes a new identity: out of order, fenced, unknown.
const NEW_IDENTITY_CODES: [i16; 4] = [45, 47, 59, 90];
const DUPLICATE: i16 = 46;
/// The number of times that a batch is sent.
const TRIES_MAX: u32 = 30;

/// The identity of an idempotent producer, and its last sequence number.
struct ProducerIdentity {
    id: i64,
    epoch: i16,
    next: BTreeMap<(String, u32), i32>,
}

pub(crate) struct SimProducer {
    world: Rc<SimWorld>,
    client: SimClient,
    rng: SeededRng,
    name: String,
    is_idempotent: bool,
    identity: Option<ProducerIdentity>,
}

/// Batches in flight, by their number in the ledger.
struct ProduceAttempt {
    ids: Vec<u64>,
    batches: Vec<PartitionBatch>,
    acks: AckMode,
}

impl SimProducer {
    pub(crate) fn new(world: &Rc<SimWorld>, nth: u32, mut rng: SeededRng) -> SimProducer {
        SimProducer {
            world: Rc::clone(world),
            client: SimClient::new(world, rng.fork()),
            rng,
            name: format!("producer{nth}"),
            is_idempotent: nth.is_multiple_of(2),
            identity: None,
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 1, 120).await;
            if self.rng.one_in(40) {
                self.client.disconnect();
            }
            if self.is_idempotent {
                self.send_until_answered().await;
            } else {
                self.send_once().await;
            }
        }
    }

    /// Sends one batch again and again until there is a response.
    async fn send_until_answered(&mut self) {
        if self.identity.is_none() {
            let granted = init_producer_id(&mut self.client).await.ok().flatten();
            self.identity =
                granted.map(|(id, epoch)| ProducerIdentity { id, epoch, next: BTreeMap::new() });
        }
        if self.identity.is_none() {
            return;
        }
        let sending = self.new_batches(AckMode::All, 1);
        let frame = produce_frame(sending.acks, &sending.batches);
        for attempt in 0..TRIES_MAX {
            let answers = match self.client.send(&frame).await {
                // The response is lost: the batch may be there.
                Ok(()) if self.rng.one_in(12) => {
                    pause(&mut self.rng, 0, 10).await;
                    self.client.disconnect();
                    None
                }
                Ok(()) => receive_produce_response(&mut self.client).await.ok(),
                Err(_) => None,
            };
            let code = answers.as_ref().and_then(|answers| answers.first()).map(|(code, _)| *code);
            match code {
                Some(0) => {
                    if attempt > 0 {
                        self.world.cover(CoveragePoint::RetriedBatch);
                    }
                    return self.record_answers(&sending, &answers.unwrap_or_default());
                }
                Some(DUPLICATE) => return,
                Some(code) if NEW_IDENTITY_CODES.contains(&code) => break,
                _ if self.world.is_over() => return,
                _ => pause(&mut self.rng, 10, 200).await,
            }
        }
        // It is unknown whether the batch is there. The next batch is another producer's.
        self.identity = None;
    }

    /// Sends some batches, in one request or several.
    async fn send_once(&mut self) {
        let acks = *self.rng.pick(&[AckMode::None, AckMode::Leader, AckMode::All, AckMode::All]);
        let requests = if self.rng.one_in(3) { self.rng.between(2, 5) } else { 1 };
        let mut sent = Vec::new();
        for _ in 0..requests {
            let count = self.rng.between(1, 3);
            let sending = self.new_batches(acks, count);
            let frame = produce_frame(acks, &sending.batches);
            if self.client.send(&frame).await.is_err() {
                return;
            }
            sent.push(sending);
        }
        if self.rng.one_in(15) {
            pause(&mut self.rng, 0, 10).await;
            return self.client.disconnect();
        }
        for sending in &sent {
            if acks == AckMode::None {
                continue;
            }
            let Ok(answers) = receive_produce_response(&mut self.client).await else { return };
            self.record_answers(sending, &answers);
        }
    }

    /// Requests for one batch each, recorded in the ledger, for a caller that does not wait for the
    /// responses.
    pub(super) fn encode_requests(&mut self, count: u64) -> Vec<Vec<u8>> {
        let frame = |sending: ProduceAttempt| produce_frame(sending.acks, &sending.batches);
        (0..count).map(|_| frame(self.new_batches(AckMode::All, 1))).collect()
    }

    /// Sends one batch to each place; returns whether all of them were acknowledged.
    pub(super) async fn deliver(&mut self, places: &[(&str, u32)]) -> bool {
        let sending = self.batches_for(places, AckMode::All);
        let frame = produce_frame(sending.acks, &sending.batches);
        if self.client.send(&frame).await.is_err() {
            return false;
        }
        let Ok(answers) = receive_produce_response(&mut self.client).await else { return false };
        self.record_answers(&sending, &answers);
        answers.iter().all(|(code, _)| *code == 0)
    }

    /// Records new batches in the ledger.
    fn new_batches(&mut self, acks: AckMode, count: u64) -> ProduceAttempt {
        let places: Vec<_> = (0..count).map(|_| random_partition(&mut self.rng)).collect();
        self.batches_for(&places, acks)
    }

    fn batches_for(&mut self, places: &[(&str, u32)], acks: AckMode) -> ProduceAttempt {
        let mut sending = ProduceAttempt { ids: Vec::new(), batches: Vec::new(), acks };
        for &(topic, partition) in places {
            let id = self.world.ledger.borrow().batches.len() as u64;
            let sequence = self.next_sequence(topic, partition);
            let (records, bytes) = self.build_batch(topic, id, sequence);
            self.world.note(
                &self.name,
                &format!(
                    "sends {id} to {topic}/{partition}, {records} records, {acks:?}, {sequence:?}"
                ),
            );
            let batch = SentBatch {
                topic: topic.to_owned(),
                partition,
                acks,
                sequence: sequence.map(|(id, _, sequence)| (id, sequence)),
                transaction: None,
                sent: self.world.next_step(),
                clock_steps: self.world.clock_steps.get(),
                acked: None,
            };
            self.world.ledger.borrow_mut().batches.push(batch);
            self.advance_sequence(topic, partition, records);
            sending.ids.push(id);
            sending.batches.push((topic.to_owned(), partition, bytes));
        }
        sending
    }

    fn next_sequence(&self, topic: &str, partition: u32) -> Option<(i64, i16, i32)> {
        let identity = self.identity.as_ref()?;
        let next = identity.next.get(&(topic.to_owned(), partition)).copied().unwrap_or(0);
        Some((identity.id, identity.epoch, next))
    }

    fn advance_sequence(&mut self, topic: &str, partition: u32, records: u64) {
        if let Some(identity) = &mut self.identity {
            *identity.next.entry((topic.to_owned(), partition)).or_default() += records as i32;
        }
    }

    /// A batch whose values name it. User times come in any order.
    fn build_batch(
        &mut self,
        topic: &str,
        id: u64,
        sequence: Option<(i64, i16, i32)>,
    ) -> (u64, Bytes) {
        let codec =
            *self.rng.pick(&[CompressionType::None, CompressionType::None, CompressionType::Lz4]);
        let mut builder = BatchBuilder::new(codec);
        let records = self.rng.between(1, 4);
        for nth in 0..records {
            // A few keys that occur often, and many that occur once: time decides what becomes of
            // these.
            let keys = if self.rng.one_in(6) { 80 } else { 6 };
            let key = format!("key{}", self.rng.below(keys));
            let padding = "x".repeat(self.rng.below(200) as usize);
            let value = format!("{id}:{nth}:{padding}");
            let around = self.world.clock.wall_ms() as i64 - 2000;
            let time = around + self.rng.below(4000) as i64;
            if topic == COMPACTED_TOPIC && self.rng.one_in(5) {
                let batch = id.to_string();
                let header = (BATCH_HEADER, Some(batch.as_bytes()));
                builder.record(time, Some(key.as_bytes()), None, &[header]);
            } else {
                builder.record(time, Some(key.as_bytes()), Some(value.as_bytes()), &[]);
            }
        }
        if let Some((id, epoch, first)) = sequence {
            builder.producer(id, epoch, first);
        }
        (records, builder.build())
    }

    /// Records the responses in the ledger.
    fn record_answers(&mut self, sending: &ProduceAttempt, answers: &[(i16, i64)]) {
        if answers.len() != sending.ids.len() {
            let (got, sent) = (answers.len(), sending.ids.len());
            return self.world.fail(&self.name, &format!("{sent} batches, {got} answers"));
        }
        for (id, (code, base)) in sending.ids.iter().zip(answers) {
            self.world
                .note(&self.name, &format!("gets the answer for {id}: code {code}, offset {base}"));
            if *code != 0 {
                continue;
            }
            let acked = BatchAck {
                step: self.world.next_step(),
                base: *base as u64,
                wall_ms: self.world.clock.wall_ms(),
                clock_steps: self.world.clock_steps.get(),
            };
            self.world.ledger.borrow_mut().batches[*id as usize].acked = Some(acked);
            self.world.report(&SimFact::Acked { batch: *id });
        }
    }
}
