//! An engine with manual maintenance and Kafka batches on an in-memory disk, and its tree.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    reason = "helpers of tests, of which each file uses its part"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use compat_kafka::KafkaFormat;
use engine::groups::OffsetCommit;
use engine::{
    BatchFormat as _, CoreOptions, Durability, Engine, EngineOptions, PartitionView, Payload,
    PayloadHeader, RecordBatch, Topic, WaitPolicy,
};
use fileview::tree::{TreeError, TreeOptions, ViewEntry, ViewNode, ViewTree};
use fileview::{RecordRenderer, RecordSelection, ViewFormat};
use hlc::{Cut, Hlc, ManualClock, Moment, MomentSelector, SysTime, UserTime};
use kafka_records::{BatchBuilder, CompressionType, HEADER_BYTES};
use storage::disk::MemoryDisk;

pub const START: u64 = 1_795_252_948_000;
const FORMAT: KafkaFormat = KafkaFormat { decompressed_bytes_max: 1 << 20 };

/// A record: its key, its value, and its timestamp.
pub type TreeTestRecord = (Option<Vec<u8>>, Option<Vec<u8>>, i64);

pub fn record(key: &str, value: &str, time: i64) -> TreeTestRecord {
    (Some(key.into()), Some(value.into()), time)
}

pub struct TreeFixture {
    disk: MemoryDisk,
    pub clock: Arc<ManualClock>,
    pub engine: Arc<Engine>,
    pub tree: Arc<ViewTree>,
    options: TreeOptions,
}

impl TreeFixture {
    pub fn new() -> TreeFixture {
        TreeFixture::with(TreeOptions::default())
    }

    pub fn with(options: TreeOptions) -> TreeFixture {
        let clock = Arc::new(ManualClock::at(SysTime(START)));
        TreeFixture::on(MemoryDisk::new(), clock, options)
    }

    fn on(disk: MemoryDisk, clock: Arc<ManualClock>, options: TreeOptions) -> TreeFixture {
        // Almost nothing stays in memory, so that reads go to files.
        let storage = storage::Options {
            manual_maintenance: true,
            tail_bytes_max: 1,
            ..storage::Options::default()
        };
        let engine = Engine::open(
            Arc::new(disk.clone()),
            EngineOptions {
                core: CoreOptions { storage, ..CoreOptions::default() },
                ..EngineOptions::default()
            },
            Arc::clone(&clock) as Arc<dyn hlc::WallClock>,
            Arc::new(FORMAT),
        );
        let engine = Arc::new(engine.unwrap());
        let tree = Arc::new(ViewTree::new(Arc::clone(&engine), options));
        TreeFixture { disk, clock, engine, tree, options }
    }

    pub fn restart(self) -> TreeFixture {
        let TreeFixture { disk, clock, engine, tree, options } = self;
        drop(tree);
        engine.close();
        drop(engine);
        TreeFixture::on(disk, clock, options)
    }

    pub fn advance_clock(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    /// The current moment, closed. The clock then moves past it.
    pub fn now(&self) -> Cut {
        let now = Cut::through(self.engine.frontier());
        self.advance_clock(1);
        now
    }

    pub async fn topic(&self, name: &str, partitions: u32, configs: &[(&str, &str)]) -> Arc<Topic> {
        let configs: BTreeMap<String, String> =
            configs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.engine.frontier().bits().to_le_bytes());
        let created = self.engine.topics().create(name, partitions, configs, id, false).await;
        created.unwrap()
    }

    pub async fn produce(&self, topic: &str, partition: u32, records: &[TreeTestRecord]) -> Hlc {
        self.produce_as(topic, partition, records, CompressionType::None).await
    }

    pub async fn produce_as(
        &self,
        topic: &str,
        partition: u32,
        records: &[TreeTestRecord],
        codec: CompressionType,
    ) -> Hlc {
        let mut builder = BatchBuilder::new(codec);
        for (key, value, time) in records {
            builder.record(*time, key.as_deref(), value.as_deref(), &[]);
        }
        let bytes = builder.build();
        let times = records.iter().map(|(.., time)| UserTime(*time));
        let batch = RecordBatch {
            count: records.len() as u32,
            times: (times.clone().min().unwrap(), times.max().unwrap()),
            producer: FORMAT.producer(&bytes),
            payload: Payload {
                header: PayloadHeader::new(&bytes[..HEADER_BYTES]),
                rest: bytes.slice(HEADER_BYTES..),
            },
        };
        let topic = self.engine.topics().named(topic).unwrap();
        let batches = vec![(topic, partition, batch)];
        self.engine.append(batches, Durability::Synced).await.remove(0).unwrap().stamp
    }

    pub async fn commit(&self, group: &str, topic: &str, partition: u32, offset: i64) {
        let (topic, metadata) = (topic.to_owned(), String::new());
        let commit = OffsetCommit {
            topic,
            partition,
            offset,
            leader_epoch: -1,
            metadata,
            retention_ms: None,
        };
        self.engine.groups().commit(group, vec![commit]).await.unwrap();
    }

    /// Rolls the open segment, then indexes and sorts it.
    pub async fn roll_and_maintain(&self) {
        self.engine.maintenance().roll_segment().await.unwrap();
        self.engine.maintenance().index_and_sort().await.unwrap();
    }

    /// Reclaims the space of everything that was removed.
    pub async fn reclaim(&self) {
        for _ in 0..2 {
            self.engine.maintenance().reclaim().await.unwrap();
        }
    }

    // ---- The tree ----

    pub async fn node(&self, path: &str) -> Result<ViewNode, TreeError> {
        self.tree.resolve(path.as_bytes()).await
    }

    /// All bytes at a path. Checks that their number is the size announced before.
    pub async fn read(&self, path: &str) -> Result<Vec<u8>, TreeError> {
        let node = self.node(path).await?;
        read_node(&self.tree, &node, 1000).await
    }

    pub async fn text(&self, path: &str) -> String {
        let read = self.read(path).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        String::from_utf8(read).unwrap()
    }

    /// The Linux error number of a failed read.
    pub async fn errno(&self, path: &str) -> i32 {
        match self.read(path).await {
            Ok(_) => panic!("{path} can be read"),
            Err(error) => error.errno(),
        }
    }

    /// The names at a path, sorted, listed a few at a time.
    pub async fn names(&self, path: &str) -> Vec<String> {
        let node = self.node(path).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        let listed = list_node(&self.tree, &node, 3).await.unwrap();
        let mut names: Vec<String> =
            listed.into_iter().map(|listed| String::from_utf8(listed.name).unwrap()).collect();
        names.sort();
        names
    }
}

/// All bytes of a node, read in pieces. Checks that their number is the size announced before.
pub async fn read_node(
    tree: &ViewTree,
    node: &ViewNode,
    length: usize,
) -> Result<Vec<u8>, TreeError> {
    let stat = tree.stat(node).await?;
    let open = tree.open(node).await?;
    assert_eq!(open.size().await?, stat.size, "{node:?}");
    let mut all = Vec::new();
    loop {
        let read = open.read(all.len() as u64, length).await?;
        if read.is_empty() {
            break;
        }
        assert!(read.len() <= length);
        all.extend_from_slice(&read);
    }
    assert_eq!(all.len() as u64, stat.size, "{node:?}");
    Ok(all)
}

/// All names of a directory.
pub async fn list_node(
    tree: &ViewTree,
    node: &ViewNode,
    max: usize,
) -> Result<Vec<ViewEntry>, TreeError> {
    let (mut all, mut after) = (Vec::<ViewEntry>::new(), 0);
    loop {
        let page = tree.list(node, after, max).await?;
        let Some(last) = page.last() else { return Ok(all) };
        assert!(page.iter().all(|listed| listed.cookie > after));
        after = last.cookie;
        all.extend(page);
    }
}

/// What a partition shows, rendered at once from what the engine returns.
pub async fn render_expected(
    engine: &Engine,
    topic: &str,
    partition: u32,
    format: ViewFormat,
    ask: Option<MomentSelector>,
) -> Result<Vec<u8>, engine::SeekError> {
    let user = ask.as_ref().and_then(RecordSelection::user_times);
    let view = match ask {
        None => PartitionView::present(
            &engine.topics().named(topic).unwrap().partitions[partition as usize],
        ),
        Some(ask) => {
            let known = match ask {
                MomentSelector::At(Moment::User { known, .. })
                | MomentSelector::Window(_, Moment::User { known, .. }) => {
                    MomentSelector::At(Moment::Sys(known.unwrap()))
                }
                ask => ask,
            };
            let wanted = partition..partition + 1;
            // By user time it is complete only if the prefix by user time is.
            engine.seek().view_partitions(topic, wanted.clone(), ask, WaitPolicy::Refuse).await?;
            engine
                .seek()
                .view_partitions(topic, wanted, known, WaitPolicy::Refuse)
                .await?
                .partitions
                .remove(0)
        }
    };
    let (start, end) = (view.start().0 as i64, view.end().0 as i64);
    if start >= end {
        return Ok(Vec::new());
    }
    let pieces = view.read(start, usize::MAX).unwrap();
    let batches: Bytes =
        pieces.iter().flat_map(|piece| piece.read().unwrap().to_vec()).collect::<Vec<u8>>().into();
    let selection = RecordSelection::between(start, end).and_user(user);
    let renderer = RecordRenderer::new(topic, partition, format, selection).unwrap();
    let mut out = Vec::new();
    renderer.render(&batches, u64::MAX, &mut out).unwrap();
    Ok(out)
}
