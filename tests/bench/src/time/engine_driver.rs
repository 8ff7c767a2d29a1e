//! An engine with small Kafka batches in it: the only file here that uses the engine's calls.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use compat_kafka::KafkaFormat;
use engine::{
    CoreOptions, Durability, Engine, EngineOptions, PartitionView, Payload, PayloadHeader,
    RecordBatch, Topic, WaitPolicy,
};
use hlc::{Cut, Hlc, OsClock, UserTime};
use storage::disk::RealDisk;
use tokio::runtime::Runtime;

use crate::batch::{BenchBatch as Encoded, header_bytes};

const VALUE: [u8; 16] = [7; 16];

pub(crate) struct EngineDriver {
    engine: Engine,
    runtime: Runtime,
}

impl EngineDriver {
    /// Opens the engine in `directory`; so much of its index files stays in memory.
    pub(crate) fn open(directory: &Path, index_bytes: usize) -> Result<EngineDriver> {
        let storage = storage::Options { index_bytes_max: index_bytes, ..Default::default() };
        let options = EngineOptions {
            core: CoreOptions { storage, partitions_max: 100_000, ..CoreOptions::default() },
            ..EngineOptions::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let within = runtime.enter();
        let format = Arc::new(KafkaFormat { decompressed_bytes_max: 1 << 20 });
        let disk = Arc::new(RealDisk::open(directory)?);
        let engine = Engine::open(disk, options, Arc::new(OsClock), format)?;
        drop(within);
        Ok(EngineDriver { engine, runtime })
    }

    pub(crate) fn create(&self, name: &str, partitions: u32) -> Result<Arc<Topic>> {
        let id = id_of(name);
        let created = self.engine.topics().create(name, partitions, BTreeMap::new(), id, false);
        Ok(self.runtime.block_on(created)?)
    }

    pub(crate) fn topic(&self, name: &str) -> Result<Arc<Topic>> {
        self.engine.topics().named(name).context("the topic that was made is there")
    }

    /// Appends batches of one record in one request, each to a partition and with a user time.
    pub(crate) fn append(
        &self,
        topic: &Arc<Topic>,
        batches: impl Iterator<Item = (u32, u64)>,
    ) -> Result<()> {
        let batches = batches
            .map(|(partition, time)| {
                Ok((Arc::clone(topic), partition, batch(i64::try_from(time)?)))
            })
            .collect::<Result<Vec<_>>>()?;
        let appended = self.runtime.block_on(self.engine.append(batches, Durability::Written));
        let failed = appended.into_iter().find_map(Result::err);
        failed.map_or(Ok(()), |error| Err(anyhow!("append: {error}")))
    }

    /// The frontier, after the clock has passed it.
    pub(crate) fn now(&self) -> Hlc {
        self.engine.frontier()
    }

    /// The number of partitions in a cut.
    pub(crate) fn cut(&self, cut: Cut) -> Result<usize> {
        let when = WaitPolicy::Wait(Duration::from_secs(5));
        Ok(self.runtime.block_on(self.engine.cuts().at(cut, None, when))?.partitions.len())
    }

    /// The stamps of a partition's first and last batches.
    pub(crate) fn span(&self, topic: &Topic) -> Result<(Hlc, Hlc)> {
        let log = &topic.partitions[0].log;
        let first = log.entry_at(engine::Offset(0))?.context("the partition is empty")?;
        Ok((first.stamp, log.tip().stamp))
    }

    /// The first offset of a topic's only partition that is not in a cut.
    pub(crate) fn by_stamp(&self, topic: &Topic, cut: Cut) -> Result<u64> {
        Ok(topic.partitions[0].log.offset_at(cut)?.0)
    }

    /// The batch of a topic's only partition in which some user time is `time` or later, found and
    /// not read.
    pub(crate) fn batch_by_user_time(&self, topic: &Topic, time: u64) -> Result<u64> {
        let log = &topic.partitions[0].log;
        let found = log.first_reaching(UserTime(i64::try_from(time)?), engine::Offset(0))?;
        Ok(found.context("a batch with that time")?.entry.base.0)
    }

    /// The first offset of a topic's only partition at or after a user time; batch `nth` has time
    /// `nth`.
    pub(crate) fn by_user_time(&self, topic: &Topic, time: u64) -> Result<u64> {
        let view = PartitionView::present(&topic.partitions[0]);
        let found = self.engine.seek().first_at_or_after(&view, UserTime(i64::try_from(time)?))?;
        let found = found.context("a record with that time")?;
        ensure!(found.offset.0 == time, "wrong record. time={time}, offset={}", found.offset.0);
        Ok(found.offset.0)
    }

    pub(crate) fn close(self) {
        let EngineDriver { engine, runtime } = self;
        let _within = runtime.enter();
        engine.close();
    }
}

/// Ids only have to differ.
fn id_of(name: &str) -> [u8; 16] {
    let mut id = [0; 16];
    name.bytes().enumerate().for_each(|(nth, byte)| id[nth % 16] ^= byte.wrapping_add(nth as u8));
    id[15] |= 1;
    id
}

fn batch(time: i64) -> RecordBatch {
    let encoded = Encoded::single(&VALUE, time);
    let header = PayloadHeader::new(&header_bytes(&encoded.header, &encoded.records));
    let payload = Payload { header, rest: encoded.records };
    RecordBatch {
        payload,
        count: 1,
        times: (UserTime(time), UserTime(time)),
        producer: None,
        expected_base: None,
        holder: None,
    }
}
