//! Options of an engine.

use engine_core::CoreOptions;
use engine_files::FileOptions;
use engine_groups::GroupOptions;
use engine_security::SecurityOptions;
use engine_znodes::ZnodeOptions;

#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Options of the spine.
    pub core: CoreOptions,
    pub files: FileOptions,
    pub groups: GroupOptions,
    pub znodes: ZnodeOptions,
    pub security: SecurityOptions,
}
