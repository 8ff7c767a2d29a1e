//! An engine with manual maintenance and Kafka's batches, over a disk in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use compat_kafka::KafkaFormat;
use engine::{
    BatchFormat, CoreOptions, Durability, Engine, EngineError, EngineOptions, KeyedRecord, Offset,
    PartitionView, Payload, PayloadHeader, ProducerSequence, RecordBatch, RewriteOutcome,
    SeekError, Topic, TopicView, WaitPolicy,
};
use hlc::{Cut, ManualClock, Moment, MomentSelector, SysTime, UserTime};
use kafka_records::{BatchBuilder, CompressionType, DecompressionLimit, HEADER_BYTES, records};
use parking_lot::Mutex;
use storage::AppendReceipt;
use storage::disk::MemoryDisk;
use tokio::sync::mpsc;

use super::START;

const LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 1 << 20 };

/// Kafka's batches. It counts how many were parsed when the journal was replayed.
#[derive(Debug)]
pub struct CountingFormat {
    format: KafkaFormat,
    pub replayed: AtomicU64,
    /// The number of batches that compaction has parsed.
    pub compacted: AtomicU64,
    /// Compaction signals here that it parses a batch, and waits there; once.
    pub pause: Mutex<Option<(mpsc::UnboundedSender<()>, std::sync::mpsc::Receiver<()>)>>,
}

impl CountingFormat {
    fn new() -> CountingFormat {
        let format = KafkaFormat { decompressed_bytes_max: 1 << 20 };
        CountingFormat {
            format,
            replayed: AtomicU64::new(0),
            compacted: AtomicU64::new(0),
            pause: Mutex::default(),
        }
    }
}

impl BatchFormat for CountingFormat {
    fn finalize_header(
        &self,
        payload: &mut Payload,
        base: Offset,
        epoch: u32,
        append_time: Option<SysTime>,
    ) -> Option<(usize, u32)> {
        self.format.finalize_header(payload, base, epoch, append_time)
    }

    fn producer(&self, start: &[u8]) -> Option<ProducerSequence> {
        self.replayed.fetch_add(1, Ordering::Relaxed);
        self.format.producer(start)
    }

    fn times(&self, batch: &Bytes) -> Result<Vec<(Offset, UserTime)>, String> {
        self.format.times(batch)
    }

    fn user_times(
        &self,
        batch: &Bytes,
        extractor: &user_time::UserTimeExtractor,
    ) -> Result<Vec<(Offset, Option<UserTime>)>, String> {
        self.format.user_times(batch, extractor)
    }

    fn rewrite(
        &self,
        batch: &Bytes,
        delete_horizon: Option<SysTime>,
        keep: &mut dyn FnMut(&KeyedRecord<'_>) -> bool,
    ) -> Result<RewriteOutcome, String> {
        self.compacted.fetch_add(1, Ordering::Relaxed);
        let pause = self.pause.lock().take();
        if let Some((here, on)) = pause {
            let _ = here.send(());
            let _ = on.recv();
        }
        self.format.rewrite(batch, delete_horizon, keep)
    }
}

/// A record: its key, its value, and its own time.
pub type TestRecordInput = (Option<String>, Option<String>, i64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestReadRecord {
    pub offset: u64,
    pub key: Option<String>,
    pub value: Option<String>,
    pub time: i64,
}

pub struct TestKafkaEngine {
    pub disk: MemoryDisk,
    pub clock: Arc<ManualClock>,
    pub engine: Arc<Engine>,
    pub format: Arc<CountingFormat>,
    pub options: EngineOptions,
}

impl TestKafkaEngine {
    /// Almost nothing stays in memory, so that reads go to files.
    pub fn options() -> EngineOptions {
        let storage = storage::Options {
            manual_maintenance: true,
            tail_bytes_max: 1,
            ..storage::Options::default()
        };
        EngineOptions {
            core: CoreOptions { storage, ..CoreOptions::default() },
            ..EngineOptions::default()
        }
    }

    pub fn new() -> TestKafkaEngine {
        TestKafkaEngine::with(TestKafkaEngine::options())
    }

    pub fn with(options: EngineOptions) -> TestKafkaEngine {
        TestKafkaEngine::on(MemoryDisk::new(), Arc::new(ManualClock::at(SysTime(START))), options)
    }

    pub fn on(
        disk: MemoryDisk,
        clock: Arc<ManualClock>,
        options: EngineOptions,
    ) -> TestKafkaEngine {
        let format = Arc::new(CountingFormat::new());
        let engine = Engine::open(
            Arc::new(disk.clone()),
            options.clone(),
            Arc::clone(&clock) as Arc<dyn hlc::WallClock>,
            Arc::clone(&format) as Arc<dyn BatchFormat>,
        );
        let engine = Arc::new(engine.expect("the engine opens"));
        TestKafkaEngine { disk, clock, engine, format, options }
    }

    /// Stops cleanly, and starts again.
    pub fn restart(self) -> TestKafkaEngine {
        let TestKafkaEngine { disk, clock, engine, options, .. } = self;
        engine.close();
        drop(engine);
        TestKafkaEngine::on(disk, clock, options)
    }

    /// Starts again on what a crash leaves, with the fewest writes that may have reached the disk.
    pub fn crash(self) -> TestKafkaEngine {
        let left = self.disk.after_crash(|_| 0);
        let (clock, options) = (Arc::clone(&self.clock), self.options.clone());
        // Past the clock's bound.
        clock.advance(Duration::from_secs(3));
        drop(self.engine);
        TestKafkaEngine::on(left, clock, options)
    }

    pub async fn topic(&self, name: &str, partitions: u32, configs: &[(&str, &str)]) -> Arc<Topic> {
        let configs: BTreeMap<String, String> =
            configs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let id = *uuid::Uuid::new_v4().as_bytes();
        self.engine.topics().create(name, partitions, configs, id, false).await.unwrap()
    }

    pub async fn produce(
        &self,
        topic: &str,
        partition: u32,
        records: &[TestRecordInput],
    ) -> AppendReceipt {
        self.produce_as(topic, partition, records, None).await.unwrap()
    }

    pub async fn produce_as(
        &self,
        topic: &str,
        partition: u32,
        records: &[TestRecordInput],
        producer: Option<(i64, i16, i32)>,
    ) -> Result<AppendReceipt, EngineError> {
        let mut builder = BatchBuilder::new(CompressionType::None);
        for (key, value, time) in records {
            let bytes = |text: &Option<String>| text.clone().map(String::into_bytes);
            builder.record(*time, bytes(key).as_deref(), bytes(value).as_deref(), &[]);
        }
        if let Some((id, epoch, sequence)) = producer {
            builder.producer(id, epoch, sequence);
        }
        let times = records.iter().map(|(.., time)| *time);
        self.append_batch(topic, partition, &builder.build(), times).await
    }

    /// Appends a batch whose records have these times.
    pub async fn append_batch(
        &self,
        topic: &str,
        partition: u32,
        bytes: &Bytes,
        times: impl ExactSizeIterator<Item = i64> + Clone,
    ) -> Result<AppendReceipt, EngineError> {
        let batch = RecordBatch {
            count: times.len() as u32,
            times: (UserTime(times.clone().min().unwrap()), UserTime(times.max().unwrap())),
            producer: self.format.format.producer(bytes),
            expected_base: None,
            holder: None,
            payload: Payload {
                header: PayloadHeader::new(&bytes[..HEADER_BYTES]),
                rest: bytes.slice(HEADER_BYTES..),
            },
        };
        let topic = self.engine.topics().named(topic).unwrap();
        self.engine.append(vec![(topic, partition, batch)], Durability::Synced).await.remove(0)
    }

    /// Makes compaction wait in the middle of the next log. It signals when it is there, and goes
    /// on when it is told to, or when the sender is dropped.
    pub fn pause_compaction(&self) -> (mpsc::UnboundedReceiver<()>, std::sync::mpsc::Sender<()>) {
        let (here, arrived) = mpsc::unbounded_channel();
        let (go, on) = std::sync::mpsc::channel();
        *self.format.pause.lock() = Some((here, on));
        (arrived, go)
    }

    /// Rolls the open segment, indexes and sorts it.
    pub async fn roll_and_index(&self) {
        self.engine.maintenance().roll_segment().await.unwrap();
        self.engine.maintenance().index_and_sort().await.unwrap();
    }

    /// Reclaims the space of everything that was removed.
    pub async fn reclaim(&self) {
        for _ in 0..2 {
            self.engine.maintenance().reclaim().await.unwrap();
        }
    }

    pub fn advance_clock(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    /// The current moment, closed.
    pub fn now(&self) -> Cut {
        Cut::through(self.engine.frontier())
    }

    pub async fn at(&self, topic: &str, cut: Cut) -> Result<TopicView, SeekError> {
        self.engine
            .seek()
            .view(topic, MomentSelector::At(Moment::Sys(cut)), WaitPolicy::Refuse)
            .await
    }

    pub async fn before(&self, topic: &str, time: i64, known: Cut) -> Result<TopicView, SeekError> {
        let moment = Moment::User { before: UserTime(time), known: Some(known) };
        self.engine.seek().view(topic, MomentSelector::At(moment), WaitPolicy::Refuse).await
    }

    pub async fn hash(&self, topic: &str, cut: Cut) -> Result<u128, SeekError> {
        let topics = [topic.to_owned()];
        Ok(self.engine.cuts().at(cut, Some(&topics), WaitPolicy::Refuse).await?.hash)
    }

    /// The view of a partition's present.
    pub fn present(&self, topic: &str, partition: u32) -> PartitionView {
        let topic = self.engine.topics().named(topic).unwrap();
        PartitionView::present(&topic.partitions[partition as usize])
    }
}

/// All records in a view.
pub fn read_all(view: &PartitionView) -> Vec<TestReadRecord> {
    let (mut next, end) = (view.start().0, view.end().0);
    let mut found = Vec::new();
    while next < end {
        let pieces = view.read(next as i64, 64 << 10).unwrap();
        let Some(last) = pieces.last() else { break };
        let behind = last.entry.end().0;
        for piece in &pieces {
            for record in records(&piece.read().unwrap(), LIMIT).unwrap() {
                let record = record.unwrap();
                let text = |bytes: Option<Bytes>| {
                    bytes.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
                };
                let offset = record.offset as u64;
                let (key, value) = (text(record.key), text(record.value));
                if offset >= next && offset < end {
                    found.push(TestReadRecord { offset, key, value, time: record.timestamp });
                }
            }
        }
        assert!(behind > next, "a read gets ahead");
        next = behind;
    }
    found
}
