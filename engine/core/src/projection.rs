//! State in the catalog that follows from a log of events, and how a wing brings such state along.
//!
//! The catalog is soft: whatever is in it can be built again from the journal. The spine decides
//! when: at a start, and while the service runs, after a catalog failed. A wing says what its
//! events do. There are two kinds:
//! - An [`EventProjection`] is applied by the namespace's thread, in journal order together with
//!   the events of the namespace: groups, whose offsets end when their topic is deleted.
//! - A [`ReaderProjection`] is brought up to date by its readers, from its own log: files, whose
//!   changes depend on nothing else.

use std::collections::HashSet;
use std::sync::Arc;

use hlc::{Cut, Hlc};
use storage::catalog::{AppliedPosition, Catalog, CatalogError};
use storage::{Log, LogId, StorageError};

use crate::seek_error::SeekError;

/// An event that concerns an [`EventProjection`].
#[derive(Clone, Copy, Debug)]
pub enum ProjectedEvent<'a> {
    /// The payload of an entry of the projection's log.
    Entry(&'a [u8]),
    /// The topic of this name was deleted.
    TopicDeleted(&'a str),
}

/// State that is applied in journal order, together with the events of the namespace.
pub trait EventProjection: Send + Sync + 'static {
    /// The log of its events.
    fn log(&self) -> LogId;

    /// The kind of its events.
    fn kind(&self) -> u8;

    /// Applies an event to `catalog`, and records `at` as the last one applied, in one atomic
    /// write.
    ///
    /// # Errors
    /// The catalog fails, or the event cannot be decoded.
    fn apply(
        &self,
        catalog: &Arc<Catalog>,
        event: ProjectedEvent<'_>,
        at: AppliedPosition,
    ) -> Result<(), CatalogFillError>;

    /// Clears its state in `catalog`, and loads what was restated for the log start of `log`. The
    /// entries from the log start on are applied afterwards.
    ///
    /// # Errors
    /// The catalog fails, or `log` has no restatement that belongs to its log start.
    fn reset(&self, catalog: &Arc<Catalog>, log: &Arc<Log>) -> Result<(), CatalogFillError>;

    /// The topics of which `catalog` has any version, including tombstones. A rebuild needs the
    /// events of their deletion.
    ///
    /// # Errors
    /// The catalog fails.
    fn topics_in_use(&self, catalog: &Arc<Catalog>) -> Result<HashSet<String>, CatalogError>;

    /// The error for a cut before its log start, where the earliest readable cut has the bound
    /// `earliest`.
    fn truncated(&self, earliest: Hlc) -> SeekError;
}

/// State that its readers bring up to date.
pub trait ReaderProjection: Send + Sync + 'static {
    /// Begins to fill `catalog`, and continues where it stopped. Begins at the log start if that
    /// position is not known, or is not in the journal.
    ///
    /// # Errors
    /// The catalog or the journal cannot be read.
    fn begin_fill(
        &self,
        catalog: &Arc<Catalog>,
    ) -> Result<Box<dyn ProjectionFill + '_>, CatalogFillError>;

    /// Checks that its state can still be read at `cut`. State whose history is never removed
    /// always can.
    ///
    /// # Errors
    /// Its history has been removed so far back.
    fn check_retained(&self, _cut: Cut) -> Result<(), SeekError> {
        Ok(())
    }
}

/// A [`ReaderProjection`] while another catalog catches up with its log.
pub trait ProjectionFill {
    /// Applies the events that the catalog lacks, unless `is_closing`; returns how many.
    ///
    /// # Errors
    /// The catalog or the journal cannot be read.
    fn advance(&mut self, is_closing: &dyn Fn() -> bool) -> Result<u64, CatalogFillError>;

    /// Makes readers wait until the fill is dropped. Then [`ProjectionFill::advance`] is called a
    /// last time, and the catalog is put into use.
    fn pause_readers(&mut self);

    /// Makes readers continue with the filled catalog once they may. Called while they are paused.
    fn finish(&mut self);
}

/// The reason that a catalog could not be filled.
#[derive(Debug, thiserror::Error)]
pub enum CatalogFillError {
    /// The catalog failed; another one may work.
    #[error("{0}")]
    Catalog(#[from] CatalogError),
    /// The journal cannot be read.
    #[error("replay what the catalog is made from: {0}")]
    Journal(String),
    /// The engine is being closed.
    #[error("it is being closed")]
    Closing,
}

impl From<String> for CatalogFillError {
    fn from(why: String) -> CatalogFillError {
        CatalogFillError::Journal(why)
    }
}

impl From<StorageError> for CatalogFillError {
    fn from(error: StorageError) -> CatalogFillError {
        CatalogFillError::Journal(error.to_string())
    }
}

/// The source of plug-in modules.
pub trait PluginModules: Send + Sync + 'static {
    /// The bytes of a plug-in's module as of `at`.
    ///
    /// # Errors
    /// In words for the user: it did not exist, is too long, or cannot be read.
    fn read(&self, plugin: &str, at: Cut) -> Result<Vec<u8>, String>;
}

/// The projections and plug-in modules that wings bring along.
pub struct EngineWings {
    /// State that is applied in journal order.
    pub events: Vec<Box<dyn EventProjection>>,
    /// State that its readers bring up to date.
    pub readers: Vec<Box<dyn ReaderProjection>>,
    /// The modules of plug-ins.
    pub plugins: Box<dyn PluginModules>,
}

impl EngineWings {
    /// The projection with that log.
    pub(crate) fn of_log(&self, log: LogId) -> Option<&dyn EventProjection> {
        self.events.iter().map(|projection| &**projection).find(|wing| wing.log() == log)
    }
}

impl std::fmt::Debug for EngineWings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineWings").finish_non_exhaustive()
    }
}
