//! How an engine is set up.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use storage::catalog::CatalogFaults;
use storage::proof::SigningKey;

use crate::config::TopicDefaults;
use crate::files::FileOptions;
use crate::maintenance::MaintenanceOptions;

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// How the journal is kept.
    pub storage: storage::Options,
    /// The directory of the catalog; `None` for one that is gone with the process.
    pub catalog: Option<PathBuf>,
    /// What goes wrong with the catalog, in tests.
    pub catalog_faults: CatalogFaults,
    /// What topics get that say nothing themselves.
    pub topic_defaults: TopicDefaults,
    /// The most partitions that one topic may have.
    pub partitions_max: u32,
    /// The most topics that there may be at a time.
    pub topics_max: usize,
    /// The most partitions that all topics may have at a time.
    pub all_partitions_max: usize,
    /// How many bytes of appends may be on their way to the disk.
    pub in_flight_bytes_max: usize,
    /// How many pins may stand at a time.
    pub pins_max: usize,
    /// How long the records of a deleted topic are kept, if its settings do not end them before.
    pub deleted_topic_retention: Duration,
    /// How far back committed offsets and groups can be read. What they are now is kept whatever its age.
    pub offsets_retention: Duration,
    /// How many bytes of answers to cuts are kept; 0 for none.
    pub cut_cache_bytes_max: usize,
    /// When it looks after what it keeps.
    pub maintenance: MaintenanceOptions,
    /// Who signs the proofs of sealed segments; nobody does without.
    pub signing_key: Option<Arc<SigningKey>>,
    /// How files are kept.
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
