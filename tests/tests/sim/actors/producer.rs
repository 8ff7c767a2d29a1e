//! A producer: some are idempotent and send again what was not answered; the others send each batch once,
//! now and then several before the first is answered.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use kafka_records::{BatchBuilder, Codec};

use super::requests::{Parcel, produce_frame, produced, producer_id};
use super::{KEYED, pause, somewhere};
use crate::audit::BATCH_HEADER;
use crate::chance::Chance;
use crate::facts::Fact;
use crate::ledger::{Acked, Acks, Batch};
use crate::reached::Reached;
use crate::wire::Client;
use crate::world::World;

/// Kafka's codes after which a producer takes a new identity: out of order, fenced, unknown.
const OUT_OF_ORDER: [i16; 4] = [45, 47, 59, 90];
const DUPLICATE: i16 = 46;
/// How often a batch is sent again.
const TRIES_MAX: u32 = 30;

/// Who an idempotent producer is, and what it sent last.
struct Identity {
    id: i64,
    epoch: i16,
    next: BTreeMap<(String, u32), i32>,
}

pub(crate) struct Producer {
    world: Rc<World>,
    client: Client,
    chance: Chance,
    name: String,
    is_idempotent: bool,
    identity: Option<Identity>,
}

/// Batches on their way, by their number in the ledger.
struct Sending {
    ids: Vec<u64>,
    parcels: Vec<Parcel>,
    acks: Acks,
}

impl Producer {
    pub(crate) fn new(world: &Rc<World>, nth: u32, chance: Chance) -> Producer {
        Producer {
            world: Rc::clone(world),
            client: Client::new(world),
            chance,
            name: format!("producer{nth}"),
            is_idempotent: nth.is_multiple_of(2),
            identity: None,
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.chance, 1, 120).await;
            if self.chance.one_in(40) {
                self.client.hang_up();
            }
            match self.is_idempotent {
                true => self.send_until_answered().await,
                false => self.send_some().await,
            }
        }
    }

    /// One batch, again and again until there is an answer.
    async fn send_until_answered(&mut self) {
        if self.identity.is_none() {
            let granted = producer_id(&mut self.client).await.ok().flatten();
            self.identity =
                granted.map(|(id, epoch)| Identity { id, epoch, next: BTreeMap::new() });
        }
        if self.identity.is_none() {
            return;
        }
        let sending = self.new_batches(Acks::All, 1);
        let frame = produce_frame(sending.acks, &sending.parcels);
        for attempt in 0..TRIES_MAX {
            let answers = match self.client.send(&frame).await {
                // The answer is lost: the batch may be there.
                Ok(()) if self.chance.one_in(12) => {
                    pause(&mut self.chance, 0, 10).await;
                    self.client.hang_up();
                    None
                }
                Ok(()) => produced(&mut self.client).await.ok(),
                Err(_) => None,
            };
            let code = answers.as_ref().and_then(|answers| answers.first()).map(|(code, _)| *code);
            match code {
                Some(0) => {
                    if attempt > 0 {
                        self.world.reach(Reached::Retried);
                    }
                    return self.settle(&sending, &answers.unwrap_or_default());
                }
                Some(DUPLICATE) => return,
                Some(code) if OUT_OF_ORDER.contains(&code) => break,
                _ if self.world.is_over() => return,
                _ => pause(&mut self.chance, 10, 200).await,
            }
        }
        // Whether it is there is not known; what comes next is another producer's.
        self.identity = None;
    }

    /// Some batches, in one request or several.
    async fn send_some(&mut self) {
        let acks = *self.chance.pick(&[Acks::None, Acks::Leader, Acks::All, Acks::All]);
        let requests = if self.chance.one_in(3) { self.chance.between(2, 5) } else { 1 };
        let mut sent = Vec::new();
        for _ in 0..requests {
            let count = self.chance.between(1, 3);
            let sending = self.new_batches(acks, count);
            let frame = produce_frame(acks, &sending.parcels);
            if self.client.send(&frame).await.is_err() {
                return;
            }
            sent.push(sending);
        }
        if self.chance.one_in(15) {
            pause(&mut self.chance, 0, 10).await;
            return self.client.hang_up();
        }
        for sending in &sent {
            if acks == Acks::None {
                continue;
            }
            let Ok(answers) = produced(&mut self.client).await else { return };
            self.settle(sending, &answers);
        }
    }

    /// Requests for one batch each, entered in the ledger, for somebody who does not wait for the answers.
    pub(super) fn frames(&mut self, count: u64) -> Vec<Vec<u8>> {
        let frame = |sending: Sending| produce_frame(sending.acks, &sending.parcels);
        (0..count).map(|_| frame(self.new_batches(Acks::All, 1))).collect()
    }

    /// Sends one batch to each place; whether all of them were acknowledged.
    pub(super) async fn deliver(&mut self, places: &[(&str, u32)]) -> bool {
        let sending = self.batches_for(places, Acks::All);
        let frame = produce_frame(sending.acks, &sending.parcels);
        if self.client.send(&frame).await.is_err() {
            return false;
        }
        let Ok(answers) = produced(&mut self.client).await else { return false };
        self.settle(&sending, &answers);
        answers.iter().all(|(code, _)| *code == 0)
    }

    /// Enters new batches in the ledger.
    fn new_batches(&mut self, acks: Acks, count: u64) -> Sending {
        let places: Vec<_> = (0..count).map(|_| somewhere(&mut self.chance)).collect();
        self.batches_for(&places, acks)
    }

    fn batches_for(&mut self, places: &[(&str, u32)], acks: Acks) -> Sending {
        let mut sending = Sending { ids: Vec::new(), parcels: Vec::new(), acks };
        for &(topic, partition) in places {
            let id = self.world.ledger.borrow().batches.len() as u64;
            let sequence = self.next_sequence(topic, partition);
            let (records, bytes) = self.build(topic, id, sequence);
            self.world.note(
                &self.name,
                &format!(
                    "sends {id} to {topic}/{partition}, {records} records, {acks:?}, {sequence:?}"
                ),
            );
            let batch = Batch {
                topic: topic.to_owned(),
                partition,
                acks,
                sequence: sequence.map(|(id, _, sequence)| (id, sequence)),
                sent: self.world.step(),
                clock_steps: self.world.clock_steps.get(),
                acked: None,
            };
            self.world.ledger.borrow_mut().batches.push(batch);
            self.advance(topic, partition, records);
            sending.ids.push(id);
            sending.parcels.push((topic.to_owned(), partition, bytes));
        }
        sending
    }

    fn next_sequence(&self, topic: &str, partition: u32) -> Option<(i64, i16, i32)> {
        let identity = self.identity.as_ref()?;
        let next = identity.next.get(&(topic.to_owned(), partition)).copied().unwrap_or(0);
        Some((identity.id, identity.epoch, next))
    }

    fn advance(&mut self, topic: &str, partition: u32, records: u64) {
        if let Some(identity) = &mut self.identity {
            *identity.next.entry((topic.to_owned(), partition)).or_default() += records as i32;
        }
    }

    /// A batch whose values name it. User times come in any order.
    fn build(&mut self, topic: &str, id: u64, sequence: Option<(i64, i16, i32)>) -> (u64, Bytes) {
        let codec = *self.chance.pick(&[Codec::None, Codec::None, Codec::Lz4]);
        let mut builder = BatchBuilder::new(codec);
        let records = self.chance.between(1, 4);
        for nth in 0..records {
            // A few that come often, and many that come once: what becomes of these is up to time.
            let keys = if self.chance.one_in(6) { 80 } else { 6 };
            let key = format!("key{}", self.chance.below(keys));
            let padding = "x".repeat(self.chance.below(200) as usize);
            let value = format!("{id}:{nth}:{padding}");
            let around = self.world.clock.wall_ms() as i64 - 2000;
            let time = around + self.chance.below(4000) as i64;
            match topic == KEYED && self.chance.one_in(5) {
                true => {
                    let batch = id.to_string();
                    let header = (BATCH_HEADER, Some(batch.as_bytes()));
                    builder.record(time, Some(key.as_bytes()), None, &[header])
                }
                false => builder.record(time, Some(key.as_bytes()), Some(value.as_bytes()), &[]),
            };
        }
        if let Some((id, epoch, first)) = sequence {
            builder.producer(id, epoch, first);
        }
        (records, builder.build())
    }

    /// Enters the answers in the ledger.
    fn settle(&mut self, sending: &Sending, answers: &[(i16, i64)]) {
        if answers.len() != sending.ids.len() {
            let (got, sent) = (answers.len(), sending.ids.len());
            return self.world.fail(&self.name, &format!("{sent} batches, {got} answers"));
        }
        for (id, (code, base)) in sending.ids.iter().zip(answers) {
            self.world.note(&self.name, &format!("is told of {id}: code {code}, offset {base}"));
            if *code != 0 {
                continue;
            }
            let acked = Acked {
                step: self.world.step(),
                base: *base as u64,
                wall_ms: self.world.clock.wall_ms(),
                clock_steps: self.world.clock_steps.get(),
            };
            self.world.ledger.borrow_mut().batches[*id as usize].acked = Some(acked);
            self.world.tell(&Fact::Acked { batch: *id });
        }
    }
}
