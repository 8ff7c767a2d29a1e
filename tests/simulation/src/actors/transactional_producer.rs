//! A transactional producer: batches to several partitions in one transaction, which it commits or
//! aborts. Some share a transactional id, and fence each other. After any error it is initialized
//! again.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest, ProducerId, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use kafka_records::{BatchBuilder, CompressionType};
use testkit::requests::topic_name;
use testkit::rng::SeededRng;

use super::requests::{PartitionBatch, produce_request};
use super::{COMPACTED_TOPIC, pause, random_partition};
use crate::coverage::CoveragePoint;
use crate::facts::SimFact;
use crate::ledger::{
    AckMode, BatchAck, ProducerStart, SentBatch, SimTransaction, TransactionOutcome,
};
use crate::wire::SimClient;
use crate::world::SimWorld;

/// Kafka's codes after which a request is sent again: no such topic yet, not the leader, the last
/// transaction is not complete, the disk refuses it, no coordinator.
const RETRIABLE_CODES: [i16; 6] = [3, 6, 15, 16, 51, 56];
/// Another partition of the request cannot be added.
const NOT_ATTEMPTED: i16 = 55;
/// The producer's epoch is not the current one.
const FENCED: i16 = 47;
const TRIES_MAX: u32 = 6;
const TIMEOUT_MS: i32 = 1500;

/// The versions of a client's transaction requests: with KIP-890, partitions are added by their
/// first batch, and each end raises the epoch.
struct ProtocolVersions {
    produce: i16,
    end: i16,
}

const V1: ProtocolVersions = ProtocolVersions { produce: 9, end: 3 };
const V2: ProtocolVersions = ProtocolVersions { produce: 12, end: 5 };

/// The identity of an initialized producer.
struct ProducerIdentity {
    /// Its number in the ledger.
    number: usize,
    id: i64,
    epoch: i16,
    next: BTreeMap<(String, u32), i32>,
}

pub(crate) struct TransactionalProducer {
    world: Rc<SimWorld>,
    client: SimClient,
    rng: SeededRng,
    name: String,
    id: &'static str,
    versions: ProtocolVersions,
    identity: Option<ProducerIdentity>,
}

impl TransactionalProducer {
    pub(crate) fn new(world: &Rc<SimWorld>, nth: u32, mut rng: SeededRng) -> TransactionalProducer {
        let (id, versions) = if nth == 0 { ("alone", V1) } else { ("shared", V2) };
        TransactionalProducer {
            world: Rc::clone(world),
            client: SimClient::new(world, rng.fork()),
            rng,
            name: format!("transactional{nth}"),
            id,
            versions,
            identity: None,
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 5, 150).await;
            if self.identity.is_none() {
                // The others that share its id have their turn.
                pause(&mut self.rng, 0, 600).await;
                self.identity = self.initialize().await;
            } else if self.run_transaction().await.is_none() {
                self.identity = None;
            }
        }
    }

    fn transactional_id(&self) -> TransactionalId {
        TransactionalId(StrBytes::from_static_str(self.id))
    }

    async fn initialize(&mut self) -> Option<ProducerIdentity> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(self.transactional_id()))
            .with_transaction_timeout_ms(TIMEOUT_MS)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let answer = self.client.call(4, &request).await.ok()?;
        let (id, epoch) = (answer.producer_id.0, answer.producer_epoch);
        self.world.note(&self.name, &format!("is {id}, {epoch}: code {}", answer.error_code));
        if answer.error_code != 0 {
            return None;
        }
        let initialized = self.world.next_step();
        let mut ledger = self.world.ledger.borrow_mut();
        let number = ledger.producers.len();
        ledger.producers.push(ProducerStart { id: (self.id, id), epoch, initialized });
        Some(ProducerIdentity { number, id, epoch, next: BTreeMap::new() })
    }

    /// `None` if it must be initialized again.
    async fn run_transaction(&mut self) -> Option<()> {
        let number = self.begin();
        for _ in 0..self.rng.between(1, 3) {
            let count = self.rng.between(1, 3);
            self.send(number, count).await?;
            // Some are open for longer than they may be.
            let most_ms = if self.rng.one_in(12) { 4000 } else { 200 };
            pause(&mut self.rng, 0, most_ms).await;
            if self.rng.one_in(15) {
                return None;
            }
        }
        let commits = !self.rng.one_in(4);
        self.end(number, commits).await
    }

    fn begin(&mut self) -> usize {
        let producer = self.identity.as_ref().map_or(0, |identity| identity.number);
        let mut ledger = self.world.ledger.borrow_mut();
        ledger.transactions.push(SimTransaction { producer, outcome: TransactionOutcome::Aborted });
        ledger.transactions.len() - 1
    }

    /// Sends a batch to each of some partitions, until all are answered.
    async fn send(&mut self, transaction: usize, count: u64) -> Option<()> {
        let mut left: BTreeMap<(String, u32), (u64, Bytes)> = BTreeMap::new();
        for _ in 0..count {
            let (topic, partition) = random_partition(&mut self.rng);
            // The order in which records supersede one another is another matter there.
            if topic != COMPACTED_TOPIC && !left.contains_key(&(topic.to_owned(), partition)) {
                let batch = self.new_batch(transaction, topic, partition)?;
                left.insert((topic.to_owned(), partition), batch);
            }
        }
        for _ in 0..TRIES_MAX {
            if left.is_empty() {
                return Some(());
            }
            if self.versions.produce == V1.produce && !self.add_partitions(left.keys()).await? {
                pause(&mut self.rng, 10, 100).await;
                continue;
            }
            let batches: Vec<PartitionBatch> = left
                .iter()
                .map(|((topic, p), (_, batch))| (topic.clone(), *p, batch.clone()))
                .collect();
            let request = produce_request(AckMode::All, &batches)
                .with_transactional_id(Some(self.transactional_id()));
            let Ok(answer) = self.client.call(self.versions.produce, &request).await else {
                // It is sent again: the batches may be there.
                pause(&mut self.rng, 10, 200).await;
                continue;
            };
            for topic in &answer.responses {
                for found in &topic.partition_responses {
                    let place = (topic.name.to_string(), found.index as u32);
                    let Some((id, _)) = left.get(&place) else {
                        self.world.fail(&self.name, &format!("an answer for {place:?}"));
                        return None;
                    };
                    let (id, code) = (*id, found.error_code);
                    self.world.note(&self.name, &format!("gets the answer for {id}: code {code}"));
                    match code {
                        0 => {
                            self.acknowledge(id, found.base_offset);
                            left.remove(&place);
                        }
                        code if RETRIABLE_CODES.contains(&code) => {}
                        code => {
                            if code == FENCED {
                                self.world.cover(CoveragePoint::ProducerFenced);
                            }
                            return None;
                        }
                    }
                }
            }
            if !left.is_empty() {
                pause(&mut self.rng, 10, 200).await;
            }
        }
        None
    }

    /// Returns true if they are added; `None` if they cannot be.
    async fn add_partitions<'a>(
        &mut self,
        places: impl Iterator<Item = &'a (String, u32)>,
    ) -> Option<bool> {
        let identity = self.identity.as_ref()?;
        let topics = places.map(|(topic, partition)| {
            AddPartitionsToTxnTopic::default()
                .with_name(topic_name(topic))
                .with_partitions(vec![*partition as i32])
        });
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(self.transactional_id())
            .with_v3_and_below_producer_id(ProducerId(identity.id))
            .with_v3_and_below_producer_epoch(identity.epoch)
            .with_v3_and_below_topics(topics.collect());
        let Ok(answer) = self.client.call(3, &request).await else { return Some(false) };
        let topics = answer.results_by_topic_v3_and_below.iter();
        let codes: Vec<i16> = topics
            .flat_map(|topic| &topic.results_by_partition)
            .map(|found| found.partition_error_code)
            .collect();
        let can_be =
            |code: &i16| *code == 0 || RETRIABLE_CODES.contains(code) || *code == NOT_ATTEMPTED;
        codes.iter().all(can_be).then(|| codes.iter().all(|code| *code == 0))
    }

    /// A batch whose values name it, recorded in the ledger.
    fn new_batch(
        &mut self,
        transaction: usize,
        topic: &str,
        partition: u32,
    ) -> Option<(u64, Bytes)> {
        let identity = self.identity.as_mut()?;
        let id = self.world.ledger.borrow().batches.len() as u64;
        let next = identity.next.entry((topic.to_owned(), partition)).or_default();
        let mut builder = BatchBuilder::new(CompressionType::None);
        builder.producer(identity.id, identity.epoch, *next).transactional();
        let records = self.rng.between(1, 3);
        *next += records as i32;
        for nth in 0..records {
            let (key, value) = (format!("key{}", self.rng.below(6)), format!("{id}:{nth}:"));
            let time = self.world.clock.wall_ms() as i64 - 2000 + self.rng.below(4000) as i64;
            builder.record(time, Some(key.as_bytes()), Some(value.as_bytes()), &[]);
        }
        self.world.note(&self.name, &format!("sends {id} to {topic}/{partition}, {transaction}"));
        let batch = SentBatch {
            topic: topic.to_owned(),
            partition,
            acks: AckMode::All,
            // They begin again with each epoch.
            sequence: None,
            transaction: Some(transaction),
            sent: self.world.next_step(),
            clock_steps: self.world.clock_steps.get(),
            acked: None,
        };
        self.world.ledger.borrow_mut().batches.push(batch);
        Some((id, builder.build()))
    }

    fn acknowledge(&self, id: u64, base: i64) {
        let acked = BatchAck {
            step: self.world.next_step(),
            base: base as u64,
            wall_ms: self.world.clock.wall_ms(),
            clock_steps: self.world.clock_steps.get(),
        };
        self.world.ledger.borrow_mut().batches[id as usize].acked = Some(acked);
        self.world.report(&SimFact::Acked { batch: id });
    }

    async fn end(&mut self, transaction: usize, commits: bool) -> Option<()> {
        let identity = self.identity.as_ref()?;
        if commits {
            self.set_outcome(transaction, TransactionOutcome::Unknown);
        }
        let request = EndTxnRequest::default()
            .with_transactional_id(self.transactional_id())
            .with_producer_id(ProducerId(identity.id))
            .with_producer_epoch(identity.epoch)
            .with_committed(commits);
        for _ in 0..TRIES_MAX {
            let Ok(answer) = self.client.call(self.versions.end, &request).await else {
                self.world.cover(CoveragePoint::TransactionOutcomeUnknown);
                return None;
            };
            let code = answer.error_code;
            self.world.note(&self.name, &format!("ends {transaction}, {commits}: code {code}"));
            if code == 0 {
                if commits {
                    let step = self.world.next_step();
                    self.set_outcome(transaction, TransactionOutcome::Committed(step));
                }
                if self.versions.end == V2.end {
                    let identity = self.identity.as_mut()?;
                    (identity.id, identity.epoch) = (answer.producer_id.0, answer.producer_epoch);
                    identity.next.clear();
                }
                return Some(());
            }
            if !RETRIABLE_CODES.contains(&code) {
                return None;
            }
            pause(&mut self.rng, 10, 200).await;
        }
        None
    }

    fn set_outcome(&self, transaction: usize, outcome: TransactionOutcome) {
        self.world.ledger.borrow_mut().transactions[transaction].outcome = outcome;
    }
}
