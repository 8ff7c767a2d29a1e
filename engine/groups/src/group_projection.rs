//! Groups as a projection of the journal into the catalog.

use std::collections::HashSet;
use std::sync::Arc;

use engine_core::SeekError;
use engine_core::event_reader::EventReader;
use engine_core::log_history::earliest_bound;
use engine_core::numbering::{GROUPS_LOG, KIND_GROUPS};
use engine_core::projection::{CatalogFillError, EventProjection, ProjectedEvent};
use hlc::Hlc;
use storage::catalog::{AppliedPosition, Catalog, CatalogError};
use storage::{Log, LogId, Offset};

use crate::event::GroupEvent;
use crate::group_catalog::GroupCatalog;

/// Committed offsets and the snapshots of groups.
pub(crate) struct GroupProjection;

impl EventProjection for GroupProjection {
    fn log(&self) -> LogId {
        GROUPS_LOG
    }

    fn kind(&self) -> u8 {
        KIND_GROUPS
    }

    fn apply(
        &self,
        catalog: &Arc<Catalog>,
        event: ProjectedEvent<'_>,
        at: AppliedPosition,
    ) -> Result<(), CatalogFillError> {
        let groups = GroupCatalog::new(Arc::clone(catalog));
        match event {
            ProjectedEvent::Entry(payload) => groups.apply(&GroupEvent::decode(payload)?, at)?,
            ProjectedEvent::TopicDeleted(topic) => groups.apply_topic_deletion(topic, at)?,
        }
        Ok(())
    }

    fn reset(&self, catalog: &Arc<Catalog>, log: &Arc<Log>) -> Result<(), CatalogFillError> {
        let groups = GroupCatalog::new(Arc::clone(catalog));
        groups.clear()?;
        if log.start() == Offset(0) {
            return Ok(());
        }
        let kept_from = earliest_bound(&log.horizon());
        for event in EventReader::new(Arc::clone(log), log.start()) {
            match GroupEvent::decode(&event?.0)? {
                GroupEvent::TransactionsRestated { horizon, transactions, offsets }
                    if Hlc::from_bits(horizon) == kept_from =>
                {
                    groups.load_transactions(&transactions, &offsets)?;
                }
                GroupEvent::MembersRestated { horizon, members }
                    if Hlc::from_bits(horizon) == kept_from =>
                {
                    groups.load_members(&members)?;
                }
                GroupEvent::ConfigsRestated { horizon, configs }
                    if Hlc::from_bits(horizon) == kept_from =>
                {
                    groups.load_configs(&configs)?;
                }
                GroupEvent::GroupsRestated { horizon, offsets, groups: states, is_last }
                    if Hlc::from_bits(horizon) == kept_from =>
                {
                    groups.load_restatement(&offsets, &states)?;
                    if is_last {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        Err(CatalogFillError::Journal(format!(
            "the log start of offsets and groups advanced without a restatement for the horizon {kept_from}"
        )))
    }

    fn topics_in_use(&self, catalog: &Arc<Catalog>) -> Result<HashSet<String>, CatalogError> {
        GroupCatalog::new(Arc::clone(catalog)).topics_with_versions()
    }

    fn truncated(&self, earliest: Hlc) -> SeekError {
        SeekError::BeforeOffsets { earliest }
    }
}
