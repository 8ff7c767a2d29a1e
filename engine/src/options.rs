//! Options of an engine.

use engine_core::CoreOptions;
use engine_files::FileOptions;
use engine_groups::GroupOptions;

/// Options of an engine.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Options of the spine.
    pub core: CoreOptions,
    /// Options of files.
    pub files: FileOptions,
    /// Options of groups.
    pub groups: GroupOptions,
}
