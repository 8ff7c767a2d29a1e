//! Options of the spine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use storage::catalog::CatalogFaults;
use storage::proof::SigningKey;

use crate::config::TopicDefaults;
use crate::namespace_accounts::NamespaceLimits;

/// Options of the spine.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// Options of the store.
    pub storage: storage::Options,
    /// The directory of the catalog; `None` for a catalog in memory, which is lost with the
    /// process.
    pub catalog: Option<PathBuf>,
    /// Faults of the catalog, for tests.
    pub catalog_faults: CatalogFaults,
    /// The defaults of settings that topics do not set themselves, as they are at first.
    pub topic_defaults: TopicDefaults,
    /// The most partitions that one topic may have.
    pub partitions_max: u32,
    /// The most topics that may exist at a time.
    pub topics_max: usize,
    /// The most partitions that all topics may have at a time.
    pub all_partitions_max: usize,
    /// The most bytes of appends that may be in flight to the disk.
    pub in_flight_bytes_max: usize,
    /// The most pins that may exist at a time.
    pub pins_max: usize,
    /// The time that the records of a deleted topic are kept, unless its settings remove them
    /// earlier.
    pub deleted_topic_retention: Duration,
    /// The most bytes of answers to cuts that are cached; 0 for none.
    pub cut_cache_bytes_max: usize,
    /// The intervals and limits of maintenance.
    pub maintenance: MaintenanceOptions,
    /// The key that signs the proofs of sealed segments; without it they are not signed.
    pub signing_key: Option<Arc<SigningKey>>,
}

impl CoreOptions {
    pub(crate) fn namespace_limits(&self) -> NamespaceLimits {
        NamespaceLimits {
            topics: self.topics_max,
            partitions: self.all_partitions_max,
            pins: self.pins_max,
        }
    }
}

impl Default for CoreOptions {
    fn default() -> CoreOptions {
        CoreOptions {
            storage: storage::Options::default(),
            catalog: None,
            catalog_faults: CatalogFaults::default(),
            topic_defaults: TopicDefaults::new(),
            partitions_max: 10_000,
            topics_max: 100_000,
            all_partitions_max: 500_000,
            in_flight_bytes_max: 32 << 20,
            pins_max: 100,
            deleted_topic_retention: Duration::from_secs(7 * 24 * 60 * 60),
            cut_cache_bytes_max: 16 << 20,
            maintenance: MaintenanceOptions::default(),
            signing_key: None,
        }
    }
}

/// The intervals of maintenance, and the resources that it may use.
#[derive(Clone, Copy, Debug)]
pub struct MaintenanceOptions {
    /// The interval between runs of retention.
    pub retention_interval: Duration,
    /// The minimum time that a segment of the journal stays open, whatever `segment.ms` a topic
    /// has: all topics share it, and each sealed segment costs some files.
    pub segment_age_min: Duration,
    /// The initial value of the options that may change while it runs.
    pub dynamic: DynamicMaintenance,
    /// The most bytes of offsets and groups, or of topics, that one event restates; a larger item
    /// gets its own event.
    pub restated_bytes_max: usize,
}

/// The options of maintenance that may change while the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicMaintenance {
    /// The interval between runs of compaction, and between checks of the age of the open segment.
    pub compaction_interval: Duration,
    /// The memory that compaction uses for the keys of one log, in bytes.
    pub compaction_bytes_max: usize,
}

impl Default for DynamicMaintenance {
    fn default() -> DynamicMaintenance {
        DynamicMaintenance {
            compaction_interval: Duration::from_secs(15),
            compaction_bytes_max: 128 << 20,
        }
    }
}

impl Default for MaintenanceOptions {
    fn default() -> MaintenanceOptions {
        MaintenanceOptions {
            retention_interval: Duration::from_secs(300),
            segment_age_min: Duration::from_secs(60),
            dynamic: DynamicMaintenance::default(),
            restated_bytes_max: 1 << 20,
        }
    }
}
