//! An engine on a memory disk with a manual clock. Its batches are plain lists of times.

#![allow(
    missing_docs,
    clippy::new_without_default,
    reason = "a fixture's names say what it is, and each use says what it makes"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use engine::{
    BatchFormat, Durability, Engine, EngineError, EngineOptions, KeyedRecord, Offset, Payload,
    PayloadHeader, ProducerSequence, RecordBatch, RewriteOutcome, Topic,
};
use hlc::{Cut, ManualClock, SysTime, UserTime};
use storage::AppendReceipt;
use storage::disk::MemoryDisk;

/// A batch is its base offset, followed by the user time of each record.
pub struct TimeListFormat;

impl BatchFormat for TimeListFormat {
    fn finalize_header(
        &self,
        payload: &mut Payload,
        base: Offset,
        _epoch: u32,
        _append_time: Option<SysTime>,
    ) -> Option<(usize, u32)> {
        payload.header.as_mut_slice().copy_from_slice(&base.0.to_le_bytes());
        None
    }

    fn producer(&self, _start: &[u8]) -> Option<ProducerSequence> {
        None
    }

    fn times(&self, batch: &Bytes) -> Result<Vec<(Offset, UserTime)>, String> {
        let mut numbers = batch
            .chunks_exact(8)
            .map(|bytes| i64::from_le_bytes(bytes.try_into().expect("chunks of eight")));
        let base = numbers.next().ok_or("empty")? as u64;
        Ok(numbers
            .enumerate()
            .map(|(nth, time)| (Offset(base + nth as u64), UserTime(time)))
            .collect())
    }

    /// The records have no keys.
    fn rewrite(
        &self,
        _batch: &Bytes,
        _delete_horizon: Option<SysTime>,
        _keep: &mut dyn FnMut(&KeyedRecord<'_>) -> bool,
    ) -> Result<RewriteOutcome, String> {
        Ok(RewriteOutcome::Unchanged)
    }
}

pub const START: u64 = 1_795_252_948_000;

pub struct EngineFixture {
    pub disk: MemoryDisk,
    pub clock: Arc<ManualClock>,
    pub engine: Engine,
}

impl EngineFixture {
    pub fn new() -> EngineFixture {
        EngineFixture::on_disk(MemoryDisk::new(), Arc::new(ManualClock::at(SysTime(START))))
    }

    pub fn on_disk(disk: MemoryDisk, clock: Arc<ManualClock>) -> EngineFixture {
        EngineFixture::with(disk, clock, EngineOptions::default())
    }

    pub fn with(
        disk: MemoryDisk,
        clock: Arc<ManualClock>,
        options: EngineOptions,
    ) -> EngineFixture {
        let engine = Engine::open(
            Arc::new(disk.clone()),
            options,
            Arc::clone(&clock) as Arc<dyn hlc::WallClock>,
            Arc::new(TimeListFormat),
        )
        .expect("the engine opens");
        EngineFixture { disk, clock, engine }
    }

    /// Stops without cleaning up, and starts again on what a crash leaves on the disk.
    pub fn crash(self, choose: impl FnMut(usize) -> usize) -> EngineFixture {
        let left = self.disk.after_crash(choose);
        let clock = Arc::clone(&self.clock);
        // The old incarnation may still write to its own disk, which nobody reads any more.
        drop(self.engine);
        EngineFixture::on_disk(left, clock)
    }

    pub fn restart(self) -> EngineFixture {
        let EngineFixture { disk, clock, engine } = self;
        engine.close();
        drop(engine);
        EngineFixture::on_disk(disk, clock)
    }

    pub async fn topic(&self, name: &str, partitions: u32) -> Arc<Topic> {
        let mut id = [0; 16];
        id[..name.len().min(16)].copy_from_slice(&name.as_bytes()[..name.len().min(16)]);
        id[15] = self.engine.topics().all().len() as u8;
        let created =
            self.engine.topics().create(name, partitions, BTreeMap::new(), id, false).await;
        created.expect("the topic is created")
    }

    pub async fn append(
        &self,
        topic: &Arc<Topic>,
        partition: u32,
        times: &[i64],
    ) -> Result<AppendReceipt, EngineError> {
        self.append_as(Durability::Synced, topic, partition, times).await
    }

    pub async fn append_as(
        &self,
        durability: Durability,
        topic: &Arc<Topic>,
        partition: u32,
        times: &[i64],
    ) -> Result<AppendReceipt, EngineError> {
        let rest: Vec<u8> = times.iter().flat_map(|time| time.to_le_bytes()).collect();
        let times = (
            UserTime(*times.iter().min().expect("a record")),
            UserTime(*times.iter().max().expect("a record")),
        );
        let batch = RecordBatch {
            count: (rest.len() / 8) as u32,
            payload: Payload { header: PayloadHeader::new(&[0; 8]), rest: rest.into() },
            times,
            producer: None,
            expected_base: None,
            holder: None,
        };
        let batches = vec![(Arc::clone(topic), partition, batch)];
        self.engine.append(batches, durability).await.remove(0)
    }

    pub fn clock_ms(&self) -> u64 {
        self.engine.wall_now().0
    }

    pub fn now(&self) -> Cut {
        Cut::through(self.engine.frontier())
    }

    pub fn advance_clock(&self, ms: u64) {
        self.clock.advance(std::time::Duration::from_millis(ms));
    }
}
