//! What every request finds: the engine, the groups, the options, and the counters.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;
use std::time::Duration;

use engine::{Engine, PartitionView, SeekError, Topic, TopicId, TopicView, WaitPolicy};
use hlc::split_moment_topic;
use kafka_protocol::ResponseError;
use parking_lot::RwLock;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::corruption::{Corruption, CorruptionCache};
use crate::error_code::seek_error;
use crate::extension::ExtensionOperations;
use crate::file_run::FileLoader;
use crate::format::KafkaFormat;
use crate::frame_buffer_pool::{FrameBufferPool, LARGE_BYTES_MIN};
use crate::group_log::EngineGroupLog;
use crate::groups::{GroupCoordinator, Options as GroupOptions};
use crate::memory_budget::MemoryBudget;
use crate::metrics::{KafkaMetrics, add};
use crate::moment_cache::{MomentCache, MomentRowQuota, MomentTopicError};
use crate::transfer_pace::TransferLimits;

/// Small requests may take this part of what large ones may.
const SMALL_REQUEST_DIVISOR: usize = 4;

/// Where clients are told to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvertisedAddress {
    /// A name or an address.
    pub host: String,
    /// A port.
    pub port: u16,
}

/// How Kafka's face behaves. Names in parentheses are Kafka's.
#[derive(Clone, Debug)]
pub struct KafkaOptions {
    /// This broker's id (`node.id`).
    pub node_id: i32,
    /// The cluster's name.
    pub cluster_id: String,
    /// Where clients are told to connect (`advertised.listeners`); where they came, if not set.
    pub advertised: Option<AdvertisedAddress>,
    /// The rack that clients are told of (`broker.rack`).
    pub rack: Option<String>,
    /// Whether asking for a topic makes it (`auto.create.topics.enable`).
    pub auto_create_topics: bool,
    /// How many partitions a topic gets that does not say (`num.partitions`).
    pub partitions: u32,
    /// Whether topics may be deleted (`delete.topic.enable`).
    pub delete_topics: bool,
    /// The longest request, in bytes (`socket.request.max.bytes`).
    pub request_bytes_max: usize,
    /// The most connections (`max.connections`).
    pub connections_max: usize,
    /// The most connections from one address (`max.connections.per.ip`).
    pub connections_per_ip_max: usize,
    /// The most bytes of large requests that have arrived and were not answered; small ones that
    /// are pipelined may take a quarter as much besides (`queued.max.request.bytes`).
    pub requests_bytes_max: usize,
    /// The most bytes of answers in memory that clients have not taken yet.
    pub responses_bytes_max: usize,
    /// How slowly a client may send a request or take an answer.
    pub transfer_limits: TransferLimits,
    /// A connection that is idle for longer is closed (`connections.max.idle.ms`).
    pub idle_max: Duration,
    /// The most bytes that one fetch returns (`fetch.max.bytes`).
    pub fetch_bytes_max: usize,
    /// The most offsets' metadata that a commit may carry (`offset.metadata.max.bytes`).
    pub offset_metadata_bytes_max: usize,
    /// How long a read waits for a moment that is not past yet.
    pub moment_patience: Duration,
    /// How many bytes a batch may unpack to when it is looked into.
    pub decompressed_bytes_max: usize,
    /// The broker's settings, as DescribeConfigs lists them: name and value.
    pub broker_configs: Vec<(String, String)>,
    /// What Kafka's settings are if nobody sets them, by name.
    pub broker_defaults: BTreeMap<String, String>,
    /// Groups.
    pub groups: GroupOptions,
    /// Makes the ids of new topics and group members, each unique. A simulation gives them by its seed.
    pub new_id: fn() -> [u8; 16],
}

impl Default for KafkaOptions {
    fn default() -> KafkaOptions {
        KafkaOptions {
            node_id: 1,
            cluster_id: "freezeframe".to_owned(),
            advertised: None,
            rack: None,
            auto_create_topics: true,
            partitions: 1,
            delete_topics: true,
            request_bytes_max: 100 << 20,
            connections_max: 4096,
            connections_per_ip_max: usize::MAX,
            requests_bytes_max: 512 << 20,
            responses_bytes_max: 256 << 20,
            transfer_limits: TransferLimits::default(),
            idle_max: Duration::from_secs(600),
            fetch_bytes_max: 55 << 20,
            offset_metadata_bytes_max: 4096,
            moment_patience: Duration::from_secs(5),
            decompressed_bytes_max: 128 << 20,
            broker_configs: Vec::new(),
            broker_defaults: BTreeMap::new(),
            groups: GroupOptions::default(),
            new_id: || Uuid::new_v4().into_bytes(),
        }
    }
}

/// Kafka's face.
pub struct KafkaServer {
    pub(crate) engine: Arc<Engine>,
    pub(crate) options: KafkaOptions,
    pub(crate) groups: GroupCoordinator,
    pub(crate) moment_cache: MomentCache,
    pub(crate) format: KafkaFormat,
    /// For large requests that have arrived, or do.
    pub(crate) large_request_budget: Arc<MemoryBudget>,
    /// For small requests that came before an earlier one was answered.
    pub(crate) pipelined_request_budget: Arc<MemoryBudget>,
    /// For answers that were not taken yet.
    pub(crate) response_budget: Arc<MemoryBudget>,
    /// Reads the journal's files for answers.
    pub(crate) loader: FileLoader,
    /// Memory for large requests.
    pub(crate) frame_buffers: FrameBufferPool,
    /// Turns to unpack large batches that are produced.
    pub(crate) decompression_permits: Semaphore,
    /// What of the journal is known to be rotten.
    pub(crate) corruption_cache: CorruptionCache,
    bound_address: OnceLock<SocketAddr>,
    metrics: KafkaMetrics,
    /// Operations of the extension API that other parts of the server brought.
    extension_operations: RwLock<Vec<Arc<dyn ExtensionOperations>>>,
}

/// A topic as a reader named it: the present, or a moment.
#[derive(Clone, Debug)]
pub(crate) enum ReadableTopic {
    Present(Arc<Topic>),
    Past(Arc<TopicView>),
}

impl ReadableTopic {
    pub(crate) fn topic(&self) -> &Arc<Topic> {
        match self {
            ReadableTopic::Present(topic) => topic,
            ReadableTopic::Past(view) => &view.topic,
        }
    }

    /// Whether all of it is still there. Whoever has read some of it asks this behind that: else what
    /// was given up or compacted meanwhile would be missing from the answer, unsaid.
    pub(crate) fn check_kept(&self) -> Result<(), SeekError> {
        match self {
            ReadableTopic::Present(_) => Ok(()),
            ReadableTopic::Past(view) => view.check_retained(),
        }
    }

    /// [`ReadableTopic::check_kept`], of one partition alone: a topic may have many.
    pub(crate) fn check_partition_kept(&self, index: i32) -> Result<(), ResponseError> {
        let ReadableTopic::Past(view) = self else { return Ok(()) };
        let Ok(index) = usize::try_from(index) else { return Ok(()) };
        view.check_partition_retained(index).map_err(|error| seek_error(&error))
    }

    /// What may be seen of partition `index`.
    pub(crate) fn view(&self, index: i32) -> Option<PartitionView> {
        let index = usize::try_from(index).ok()?;
        match self {
            ReadableTopic::Present(topic) => {
                topic.partitions.get(index).map(PartitionView::present)
            }
            ReadableTopic::Past(view) => view.partitions.get(index).cloned(),
        }
    }
}

impl KafkaServer {
    /// Kafka's face over `engine`. Restores the groups; must be called within a runtime.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn new(
        engine: Arc<Engine>,
        options: KafkaOptions,
    ) -> Result<Arc<KafkaServer>, engine::EngineError> {
        let log = Arc::new(EngineGroupLog::new(Arc::clone(&engine)));
        let new_id = options.new_id;
        let new_member_id = move || Uuid::from_bytes(new_id());
        let groups = GroupCoordinator::new(options.groups.clone(), log, new_member_id);
        for (group, snapshot) in engine.groups().snapshots()? {
            if let Err(error) = groups.restore(&group, &snapshot) {
                tracing::warn!(%group, %error, "a group cannot be restored; its members join again");
                groups.restore_unknown(&group);
            }
        }
        for offset in engine.groups().committed_offsets(None)? {
            groups.restore_without_members(&offset.group);
        }
        let loader = FileLoader::new(Arc::clone(engine.data_cache()));
        let stall_max = options.transfer_limits.stall_max;
        let budget = |bytes, frame_bytes_max| MemoryBudget::new(bytes, frame_bytes_max, stall_max);
        Ok(Arc::new(KafkaServer {
            engine,
            groups,
            moment_cache: MomentCache::default(),
            format: KafkaFormat { decompressed_bytes_max: options.decompressed_bytes_max },
            large_request_budget: budget(options.requests_bytes_max, options.request_bytes_max),
            pipelined_request_budget: budget(
                options.requests_bytes_max / SMALL_REQUEST_DIVISOR,
                LARGE_BYTES_MIN,
            ),
            response_budget: budget(options.responses_bytes_max, 0),
            loader,
            frame_buffers: FrameBufferPool::default(),
            // Half of the cores are left to those who bring small ones.
            decompression_permits: Semaphore::new(
                available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)),
            ),
            corruption_cache: CorruptionCache::default(),
            bound_address: OnceLock::new(),
            metrics: KafkaMetrics::default(),
            extension_operations: RwLock::default(),
            options,
        }))
    }

    /// Counters.
    pub fn metrics(&self) -> &KafkaMetrics {
        &self.metrics
    }

    /// What is held of each budget for memory, by its name: bytes, and how many connections were ended to make room.
    pub fn budgets(&self) -> [(&'static str, u64, u64); 3] {
        let row = |name, budget: &MemoryBudget| (name, budget.held_bytes(), budget.evicted());
        [
            row("large_requests", &self.large_request_budget),
            row("pipelined_requests", &self.pipelined_request_budget),
            row("answers", &self.response_budget),
        ]
    }

    /// Adds operations to the extension API. Those of this crate come first, and then whoever came first.
    pub fn register_operations(&self, ops: Arc<dyn ExtensionOperations>) {
        self.extension_operations.write().push(ops);
    }

    /// Who answers the operation `op`, of those that were added.
    pub(crate) fn operations_for(&self, op: &str) -> Option<Arc<dyn ExtensionOperations>> {
        self.extension_operations
            .read()
            .iter()
            .find(|more| more.operations().contains(&op))
            .cloned()
    }

    /// Counts and remembers a payload that was read and is not what was written.
    pub(crate) fn record_corruption(&self, rotten: &Corruption) {
        add(&self.metrics.corrupt_reads, 1);
        self.corruption_cache.record(rotten);
    }

    /// Says where the listener is bound.
    pub(crate) fn set_bound_address(&self, address: SocketAddr) {
        let _ = self.bound_address.set(address);
    }

    /// Where clients are told to connect.
    pub(crate) fn advertised_address(&self, came_to: SocketAddr) -> AdvertisedAddress {
        let bound = self.bound_address.get().copied().unwrap_or(came_to);
        match &self.options.advertised {
            // Port 0 in a setting stands for the port that was bound.
            Some(address) if address.port == 0 => {
                AdvertisedAddress { port: bound.port(), ..address.clone() }
            }
            Some(address) => address.clone(),
            None => AdvertisedAddress { host: came_to.ip().to_string(), port: came_to.port() },
        }
    }

    /// The topic that a reader named: a topic, or a moment of one that is still there. A real topic of
    /// the very name wins. `Ok(None)` if there is none.
    ///
    /// # Errors
    /// The name asks for a moment that cannot be read.
    pub(crate) async fn readable(
        &self,
        name: &str,
    ) -> Result<Option<ReadableTopic>, MomentTopicError> {
        let readable = self.readable_unchecked(name).await?;
        if let Some(readable) = &readable {
            readable.check_kept()?;
        }
        Ok(readable)
    }

    /// [`Kafka::readable`], for an answer that may say `rows` more of moments, and not without end: a
    /// request has room for the names of many.
    ///
    /// # Errors
    /// As [`Kafka::readable`], or nothing is left of `rows`.
    pub(crate) async fn readable_within_quota(
        &self,
        name: &str,
        rows: &MomentRowQuota,
    ) -> Result<Option<ReadableTopic>, MomentTopicError> {
        if self.engine.topics().named(name).is_none() && split_moment_topic(name).is_some() {
            rows.check()?;
        }
        self.readable(name).await
    }

    /// [`Kafka::readable`], but what it finds may have lost records since it was first asked for. Whoever
    /// reads of a partition asks [`ReadableTopic::check_partition_kept`] behind that.
    ///
    /// # Errors
    /// As [`Kafka::readable`].
    pub(crate) async fn readable_unchecked(
        &self,
        name: &str,
    ) -> Result<Option<ReadableTopic>, MomentTopicError> {
        if let Some(topic) = self.engine.topics().named(name) {
            return Ok(Some(ReadableTopic::Present(topic)));
        }
        let when = WaitPolicy::Wait(self.options.moment_patience);
        let view = self.moment_cache.resolve(&self.engine, name, when).await?;
        Ok(view.map(ReadableTopic::Past))
    }

    /// The topic that a reader named by id.
    pub(crate) fn readable_by_id(&self, id: &TopicId) -> Option<ReadableTopic> {
        if let Some(topic) = self.engine.topics().by_id(id) {
            return Some(ReadableTopic::Present(topic));
        }
        self.moment_cache.by_id(id).map(ReadableTopic::Past)
    }

    /// Answers all who wait in groups, so that connections can end.
    pub fn close(&self) {
        self.groups.close();
    }
}

impl std::fmt::Debug for KafkaServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kafka").finish_non_exhaustive()
    }
}
