//! Options of an engine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use storage::catalog::CatalogFaults;
use storage::proof::SigningKey;

use crate::config::TopicDefaults;
use crate::files::FileOptions;
use crate::maintenance::MaintenanceOptions;

#[derive(Clone, Debug)]
pub struct EngineOptions {
    pub storage: storage::Options,
    /// The directory of the catalog; `None` for a catalog in memory, which is lost with the
    /// process.
    pub catalog: Option<PathBuf>,
    /// Faults of the catalog, for tests.
    pub catalog_faults: CatalogFaults,
    /// The defaults of settings that topics do not set themselves.
    pub topic_defaults: TopicDefaults,
    /// The most partitions that one topic may have.
    pub partitions_max: u32,
    /// The most topics that may exist at a time.
    pub topics_max: usize,
    /// The most partitions that all topics may have at a time.
    pub all_partitions_max: usize,
    /// How many bytes of appends may be in flight to the disk.
    pub in_flight_bytes_max: usize,
    /// How many pins may exist at a time.
    pub pins_max: usize,
    /// How long the records of a deleted topic are kept, unless its settings remove them earlier.
    pub deleted_topic_retention: Duration,
    /// How far back committed offsets and groups can be read. Their current state is kept whatever
    /// its age.
    pub offsets_retention: Duration,
    /// How many bytes of answers to cuts are cached; 0 for none.
    pub cut_cache_bytes_max: usize,
    /// When maintenance runs.
    pub maintenance: MaintenanceOptions,
    /// The key that signs the proofs of sealed segments; without it they are not signed.
    pub signing_key: Option<Arc<SigningKey>>,
    pub files: FileOptions,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            storage: storage::Options::default(),
            catalog: None,
            catalog_faults: CatalogFaults::default(),
            topic_defaults: TopicDefaults::new(),
            partitions_max: 10_000,
            topics_max: 100_000,
            all_partitions_max: 500_000,
            in_flight_bytes_max: 128 << 20,
            pins_max: 100,
            deleted_topic_retention: Duration::from_secs(7 * 24 * 60 * 60),
            offsets_retention: Duration::from_secs(7 * 24 * 60 * 60),
            cut_cache_bytes_max: 16 << 20,
            maintenance: MaintenanceOptions::default(),
            signing_key: None,
            files: FileOptions::default(),
        }
    }
}
