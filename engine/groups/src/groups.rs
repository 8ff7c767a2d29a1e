//! The handle of groups.

use std::sync::Arc;
use std::time::Duration;

use engine_core::numbering::GROUPS_LOG;
use engine_core::projection::EventProjection;
use engine_core::{EngineCore, EngineError};
use hlc::Cut;
use storage::Log;
use storage::catalog::CatalogError;

use crate::group_catalog::{GroupCatalog, GroupDifference, KeyComparison, OffsetDifference};
use crate::group_projection::GroupProjection;

#[derive(Clone, Copy, Debug)]
pub struct GroupOptions {
    /// The time for which past committed offsets and groups can be read. Their current state is
    /// kept whatever its age.
    pub offsets_retention: Duration,
}

impl Default for GroupOptions {
    fn default() -> GroupOptions {
        GroupOptions { offsets_retention: Duration::from_secs(7 * 24 * 60 * 60) }
    }
}

/// Consumer groups, and their past.
#[derive(Clone)]
pub struct Groups {
    pub(crate) core: Arc<EngineCore>,
    pub(crate) log: Arc<Log>,
    pub(crate) options: GroupOptions,
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Groups").finish_non_exhaustive()
    }
}

impl Groups {
    /// The groups of an engine, which starts with [`Groups::projection`] as one of its wings.
    ///
    /// # Errors
    /// Their log cannot be opened.
    pub fn open(core: Arc<EngineCore>, options: GroupOptions) -> Result<Groups, EngineError> {
        let log = core.store().log(GROUPS_LOG)?;
        Ok(Groups { core, log, options })
    }

    /// The state of groups in the catalog.
    pub fn projection() -> Box<dyn EventProjection> {
        Box::new(GroupProjection)
    }

    /// The catalog's view of groups.
    pub(crate) fn catalog(&self) -> Result<GroupCatalog, CatalogError> {
        Ok(GroupCatalog::new(self.core.catalog().get()?))
    }

    /// Compares the first committed offset after the key `last` at two moments; `None` after the
    /// last one.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn compare_offset(
        &self,
        last: Option<&[u8]>,
        from: Cut,
        until: Cut,
    ) -> Result<Option<KeyComparison<OffsetDifference>>, EngineError> {
        Ok(self.catalog()?.compare_offset(last, from, until)?)
    }

    /// Compares the first group after the key `last` at two moments; `None` after the last one.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn compare_group(
        &self,
        last: Option<&[u8]>,
        from: Cut,
        until: Cut,
    ) -> Result<Option<KeyComparison<GroupDifference>>, EngineError> {
        Ok(self.catalog()?.compare_group(last, from, until)?)
    }
}
