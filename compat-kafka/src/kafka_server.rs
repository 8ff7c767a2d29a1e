//! The state that every request uses: the engine, the groups, the options, and the counters.

use std::collections::BTreeMap;
use std::sync::Arc;

use admission::Holder;
use engine::Engine;
use engine::security::{Operation, Resource};
use fileview::tree::{TreeOptions, ViewTree};
use history_api::{HistoryApi, HistoryContext};
use kafka_client_metrics::{ClientMetric, ClientMetrics};
use kafka_connections::MemoryBudget;
use kafka_fetch_sessions::{FetchSessionCounts, FetchSessions};
use kafka_format::KafkaFormat;
use kafka_groups::{CommittedPartition, GroupCoordinator};
use kafka_protocol::ResponseError;
use kafka_share_groups::ShareSessionCounts;
use kafka_topics::{MomentRowQuota, ReadableTopic, ReadableTopics};

use crate::admission_control::AdmissionControl;
use crate::broker_settings::DynamicState;
use crate::client_log::ClientLog;
use crate::cluster_view::ClusterView;
use crate::coordinators::Coordinators;
use crate::corruption::{Corruption, CorruptionCache};
use crate::file_run::FileLoader;
use crate::frame_buffer_pool::FrameBufferPool;
use crate::history_support::{HistoryGroupCoordinator, HistoryTopics};
use crate::link_devices::ArenaSource;
use crate::metrics::{KafkaMetrics, add};
use crate::options::KafkaOptions;
use crate::request::RequestContext;

pub struct KafkaServer {
    pub(crate) engine: Arc<Engine>,
    pub(crate) options: KafkaOptions,
    pub(crate) cluster: ClusterView,
    pub(crate) coordinators: Coordinators,
    pub(crate) admission: AdmissionControl,
    /// The settings that clients change while the server runs.
    pub(crate) settings: DynamicState,
    pub(crate) client_metrics: Arc<ClientMetrics>,
    /// The topics that clients read, and moments of them.
    pub(crate) topics: Arc<ReadableTopics>,
    pub(crate) format: KafkaFormat,
    /// Reads the journal's files for responses.
    pub(crate) loader: FileLoader,
    /// Buffers for large requests.
    pub(crate) frame_buffers: FrameBufferPool,
    /// The fetch sessions of all clients.
    pub(crate) fetch_sessions: FetchSessions,
    /// The payloads that are known to be corrupt.
    pub(crate) corruption_cache: CorruptionCache,
    pub(crate) client_log: ClientLog,
    metrics: Arc<KafkaMetrics>,
    history: Arc<HistoryApi>,
}

impl KafkaServer {
    /// Creates the server on `engine` and restores the groups. It must be called within a runtime.
    /// Its history API has a tree of files of its own.
    ///
    /// # Errors
    ///
    /// The catalog cannot be read.
    pub fn new(
        engine: Arc<Engine>,
        options: KafkaOptions,
    ) -> Result<Arc<KafkaServer>, engine::EngineError> {
        let tree = TreeOptions { patience: options.moment_patience, ..TreeOptions::default() };
        let tree = ViewTree::new(Arc::clone(&engine), tree);
        KafkaServer::with_tree(engine, options, &tree)
    }

    /// [`KafkaServer::new`] with a tree of files that others show too. They share its memory.
    ///
    /// # Errors
    ///
    /// The catalog cannot be read.
    pub fn with_tree(
        engine: Arc<Engine>,
        options: KafkaOptions,
        tree: &ViewTree,
    ) -> Result<Arc<KafkaServer>, engine::EngineError> {
        let topics = ReadableTopics::new(Arc::clone(&engine), options.moment_patience);
        let topics = Arc::new(topics);
        let coordinators = Coordinators::open(&engine, &options, &topics)?;
        let context = history_context(&engine, &coordinators.groups, &topics, &options);
        let history = Arc::new(HistoryApi::new(context, tree));
        if let Some(devices) = &options.links {
            engine.data_cache().set_memory_source(Arc::new(ArenaSource(devices.arena.clone())));
        }
        let loader = FileLoader::new(Arc::clone(engine.data_cache()));
        let admission = AdmissionControl::new(&options, engine.budgets());
        let fetch_sessions = FetchSessions::new(options.fetch_sessions_max, engine.budgets());
        let client_metrics = ClientMetrics::new(options.telemetry_bytes_max, engine.budgets());
        let metrics = Arc::<KafkaMetrics>::default();
        let kafka = Arc::new(KafkaServer {
            engine,
            cluster: ClusterView::new(&options),
            coordinators,
            admission,
            settings: DynamicState::new(options.dynamic.clone()),
            client_metrics,
            topics,
            format: KafkaFormat { decompressed_bytes_max: options.decompressed_bytes_max },
            loader,
            frame_buffers: FrameBufferPool::new(
                options.links.as_ref().map(|devices| devices.arena.clone()),
            ),
            fetch_sessions,
            corruption_cache: CorruptionCache::default(),
            client_log: ClientLog::new(),
            metrics,
            history,
            options,
        });
        kafka.restore_subscriptions()?;
        Ok(kafka)
    }

    /// The groups, for the client that sent a request.
    pub(crate) fn groups_for(&self, context: &RequestContext) -> GroupCoordinator {
        self.coordinators.groups.on_behalf_of(self.holder(context))
    }

    /// The account in budgets of the client that sent a request.
    pub(crate) fn holder(&self, context: &RequestContext) -> Holder {
        self.engine.security().holder(&context.connection.requester())
    }

    pub fn metrics(&self) -> &KafkaMetrics {
        &self.metrics
    }

    /// The use of each memory budget, by name: the bytes held, and the connections ended to make
    /// room.
    pub fn budgets(&self) -> [(&'static str, u64, u64); 3] {
        let row = |name, budget: &MemoryBudget| (name, budget.held_bytes(), budget.evicted());
        [
            row("large_requests", &self.admission.large_requests),
            row("pipelined_requests", &self.admission.pipelined_requests),
            row("responses", &self.admission.responses),
        ]
    }

    /// The counts of the fetch sessions.
    pub fn fetch_session_counts(&self) -> FetchSessionCounts {
        self.fetch_sessions.counts()
    }

    /// The metrics that clients have pushed last, by name.
    pub fn client_metrics(&self) -> BTreeMap<String, ClientMetric> {
        self.client_metrics.metrics()
    }

    /// The number of known clients that push metrics or ask for the metrics to push, and of their
    /// requests that were refused.
    pub fn client_metrics_counts(&self) -> (u64, u64) {
        self.client_metrics.counts()
    }

    /// The counts of the share sessions.
    pub fn share_session_counts(&self) -> ShareSessionCounts {
        self.coordinators.shares.sessions.counts()
    }

    /// The history API, which is served over HTTP too.
    pub fn history(&self) -> &Arc<HistoryApi> {
        &self.history
    }

    /// Counts and remembers a payload whose bytes are not those that were written.
    pub(crate) fn record_corruption(&self, corruption: &Corruption) {
        add(&self.metrics.corrupt_reads, 1);
        self.corruption_cache.record(corruption);
    }

    /// [`ReadableTopics::resolve_limited`] for a client that has to be allowed to do `operation` to
    /// the topic.
    ///
    /// # Errors
    ///
    /// The client may not, or there is no such topic, or the moment cannot be read.
    pub(crate) async fn readable_for(
        &self,
        context: &RequestContext,
        operation: Operation,
        name: &str,
        rows: &mut MomentRowQuota,
    ) -> Result<ReadableTopic, ResponseError> {
        self.authorize(context, operation, Resource::topic(name))?;
        self.topics.resolve_limited(name, rows).await
    }

    /// Partitions of what has that name, as a commit names them to its group.
    pub(crate) fn committed_partitions(
        &self,
        name: &str,
        indexes: impl Iterator<Item = i32>,
    ) -> Vec<CommittedPartition> {
        let Some(id) = self.topics.id_of(name) else { return Vec::new() };
        indexes.filter_map(|index| Some((id, u32::try_from(index).ok()?))).collect()
    }

    /// Answers all members that wait in groups, so that connections can end.
    pub fn close(&self) {
        self.coordinators.close();
    }
}

fn history_context(
    engine: &Arc<Engine>,
    groups: &Arc<GroupCoordinator>,
    topics: &Arc<ReadableTopics>,
    options: &KafkaOptions,
) -> HistoryContext {
    HistoryContext {
        engine: Arc::clone(engine),
        groups: Arc::new(HistoryGroupCoordinator(Arc::clone(groups))),
        moment_topics: Arc::new(HistoryTopics(Arc::clone(topics))),
        patience: options.moment_patience,
        open_files_max: options.open_files_max,
    }
}

impl std::fmt::Debug for KafkaServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kafka").finish_non_exhaustive()
    }
}
