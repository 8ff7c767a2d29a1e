//! A reader of what is committed: all partitions as of one moment, and again later.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use hlc::{Hlc, SysTime};
use kafka_records::{BatchIterator, CommittedBatches};
use testkit::requests::fetch_request;
use testkit::rng::SeededRng;

use super::requests::moment_name;
use super::{COMPACTED_TOPIC, STANDING_TOPICS, TRANSIENT_TOPICS, pause};
use crate::audit::{AuditOccasion, AuditRecord, read_records};
use crate::facts::{CommittedContents, OffsetSpan, SimFact};
use crate::wire::SimClient;
use crate::world::SimWorld;

const WHO: &str = "committed_reader";
const FETCH: i16 = 12;
const COMMITTED: i8 = 1;

pub(crate) struct CommittedReader {
    world: Rc<SimWorld>,
    client: SimClient,
    rng: SeededRng,
    /// Moments that were answered, to be read again.
    known_bounds: Vec<Hlc>,
}

impl CommittedReader {
    pub(crate) fn new(world: &Rc<SimWorld>, mut rng: SeededRng) -> CommittedReader {
        let client = SimClient::new(world, rng.fork());
        CommittedReader { world: Rc::clone(world), client, rng, known_bounds: Vec::new() }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 20, 300).await;
            let now = self.world.clock.wall_ms();
            let at = match self.rng.below(6) {
                0..3 => Hlc::at(SysTime(now.saturating_sub(self.rng.below(3000)))),
                3 => Hlc::at(SysTime(now)),
                _ if self.known_bounds.is_empty() => continue,
                _ => *self.rng.pick(&self.known_bounds),
            };
            self.read(at).await;
        }
    }

    async fn read(&mut self, at: Hlc) {
        let life = self.world.incarnation.get();
        let standing = STANDING_TOPICS.iter().map(|(name, partitions, _)| (*name, *partitions));
        let topics = standing.chain(TRANSIENT_TOPICS.map(|name| (name, 2)));
        let mut partitions = BTreeMap::new();
        for (topic, count) in topics.filter(|(name, _)| *name != COMPACTED_TOPIC) {
            for partition in 0..count {
                let Ok(read) = self.read_partition(&moment_name(topic, at), partition).await else {
                    return;
                };
                // Records that were committed on one node may be gone with the next.
                if self.world.incarnation.get() != life {
                    return;
                }
                match read {
                    Err(why) => return self.world.fail(WHO, &why),
                    Ok(Some(read)) => _ = partitions.insert((topic.to_owned(), partition), read),
                    // It did not exist, or what it held is removed.
                    Ok(None) => {}
                }
            }
        }
        let records: usize = partitions.values().map(|(_, records)| records.len()).sum();
        self.world.note(WHO, &format!("at {at}: {} partitions, {records}", partitions.len()));
        if partitions.is_empty() {
            return;
        }
        self.known_bounds.push(at);
        self.world.audit(AuditOccasion::NewEntries);
        self.world.report(&SimFact::Committed(CommittedContents { at, partitions }));
    }

    /// Reads the contents of a partition, to its end.
    async fn read_partition(
        &mut self,
        topic: &str,
        partition: u32,
    ) -> std::io::Result<Result<Option<(OffsetSpan, Vec<AuditRecord>)>, String>> {
        let (mut records, mut next) = (Vec::new(), 0);
        loop {
            let request =
                fetch_request(topic, partition as i32, next as i64, std::time::Duration::ZERO)
                    .with_isolation_level(COMMITTED);
            let answer = self.client.call(FETCH, &request).await?;
            let answer = &answer.responses[0].partitions[0];
            let span = OffsetSpan {
                start: answer.log_start_offset as u64,
                end: answer.high_watermark as u64,
            };
            if answer.error_code == 1 && next < span.start {
                (records, next) = (Vec::new(), span.start);
                continue;
            }
            if answer.error_code != 0 {
                return Ok(Ok(None));
            }
            if answer.last_stable_offset != answer.high_watermark {
                return Ok(Err(format!("{topic}/{partition} is not stable to its end")));
            }
            let aborted = answer.aborted_transactions.iter().flatten();
            let aborted = aborted.map(|one| (one.first_offset, one.producer_id.0));
            let mut committed = CommittedBatches::new(aborted);
            let before = next;
            for batch in BatchIterator::new(&answer.records.clone().unwrap_or_default()) {
                let (header, batch) = match batch {
                    Ok((header, batch)) => (header, Bytes::copy_from_slice(batch)),
                    Err(error) => return Ok(Err(error.to_string())),
                };
                next = header.last_offset() as u64 + 1;
                if committed.admits(&header, &batch) {
                    match read_records(&batch) {
                        Ok(read) => records.extend(read),
                        Err(why) => return Ok(Err(why)),
                    }
                }
            }
            if next >= span.end || next == before {
                records.retain(|record| record.offset >= span.start);
                return Ok(Ok(Some((span, records))));
            }
        }
    }
}
