//! What the engine rebuilds when it opens: producer states from the journal, topics and groups from
//! their logs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hlc::{Cut, Hlc};
use storage::catalog::{AppliedPosition, Catalog, CatalogDirectory, CatalogError};
use storage::journal::RecoverError;
use storage::{EntryPayload, Offset, ReplayHandler, ReplayedEntry, StorageError, Store};

use super::EngineState;
use crate::append::{BatchFormat, EngineAppendStage};
use crate::files::{FILES_LOG, FileError, FileNamesFill, is_file_kind};
use crate::group_horizon::refill_groups;
use crate::groups::GroupCatalog;
use crate::namespace::event::{KIND_CATALOG, KIND_NAMESPACE, KIND_RECORDS, MetadataEvent};
use crate::namespace::{GROUPS_LOG, NAMESPACE_LOG};
use crate::namespace_horizon::load_restatement;
use crate::producers::ProducerStates;

/// Rebuilds the state of producers from the journal.
pub(super) struct ProducerReplay {
    pub(super) format: Arc<dyn BatchFormat>,
    pub(super) producers: ProducerStates,
}

impl ReplayHandler for ProducerReplay {
    fn restore(&mut self, state: &[u8]) -> Result<(), RecoverError> {
        self.producers =
            ProducerStates::decode(state).map_err(|why| RecoverError::Unusable(why.to_string()))?;
        Ok(())
    }

    fn entry(&mut self, replayed: &ReplayedEntry<'_>) -> Result<(), RecoverError> {
        let entry = replayed.entry;
        self.producers.advance_activity(entry.stamp);
        match entry.kind {
            KIND_RECORDS => {
                if let Some(note) = self.format.producer(replayed.start) {
                    self.producers.record(replayed.log, &note, entry.base, entry.stamp);
                }
            }
            // Their logs are replayed once the store is open.
            KIND_NAMESPACE | KIND_CATALOG => {}
            kind if is_file_kind(kind) => {}
            kind => {
                return Err(RecoverError::Unusable(format!(
                    "entry of a kind that this version does not know. kind={kind}, position={}",
                    entry.position
                )));
            }
        }
        Ok(())
    }

    fn state(&self) -> Vec<u8> {
        self.producers.encode()
    }
}

/// Rebuilds the namespace from its log.
pub(super) fn replay_namespace(
    store: &Store<EngineAppendStage>,
    shared: &EngineState,
) -> Result<(), String> {
    let logs = store.log_source();
    let log = |id| store.log(id).map_err(|error| error.to_string());
    let (names, groups) = (log(NAMESPACE_LOG)?, log(GROUPS_LOG)?);
    let mut namespace = shared.namespace.write();
    load_restatement(&mut namespace, &names, &logs)?;
    for event in EventReader::new(Arc::clone(&names), Offset(0)) {
        let (event, stamp, _) = event?;
        namespace.apply(&event, stamp, &logs)?;
    }
    drop(namespace);
    let last = names.tip().stamp.max(groups.tip().stamp);
    shared.applied_stamp.store(last.bits(), Ordering::Release);
    Ok(())
}

/// Finds a catalog that can be brought up to date, and puts it into use: the last one, or one in
/// memory. Returns the first event of files that it does not have yet.
pub(super) fn open_catalog(
    store: &Store<EngineAppendStage>,
    shared: &EngineState,
) -> Result<Offset, String> {
    let slot = &shared.catalog;
    let open = [
        CatalogDirectory::open_latest,
        CatalogDirectory::open_new,
        CatalogDirectory::open_in_memory,
    ];
    let mut last = None;
    for open in open {
        match fill_from_start(store, shared, open(&slot.directory)) {
            Ok(files_next) => return Ok(files_next),
            Err(CatalogFillError::Catalog(error)) => {
                tracing::warn!(%error, "another catalog is made");
                last = Some(error.to_string());
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Err(last.unwrap_or_default())
}

fn fill_from_start(
    store: &Store<EngineAppendStage>,
    shared: &EngineState,
    made: Result<Catalog, CatalogError>,
) -> Result<Offset, CatalogFillError> {
    let catalog = shared.catalog.watch_for_failure(made?);
    let mut fill = CatalogFill::begin(store, shared, &catalog)?;
    fill.advance(Hlc::MAX)?;
    let files_next = fill.finish()?;
    shared.catalog.install(catalog);
    Ok(files_next)
}

/// Why a catalog could not be filled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CatalogFillError {
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

impl From<FileError> for CatalogFillError {
    fn from(error: FileError) -> CatalogFillError {
        match error {
            FileError::Loading(error) => CatalogFillError::Catalog(error),
            error => CatalogFillError::Journal(error.to_string()),
        }
    }
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

/// A catalog while it catches up with the journal. Events of groups and deletions of topics are
/// applied in the order of the journal, and events of files in the order of their own log.
pub(super) struct CatalogFill<'a> {
    shared: &'a EngineState,
    groups: GroupCatalog,
    groups_log: Arc<storage::Log>,
    names_log: Arc<storage::Log>,
    /// The log starts of both logs when reading began.
    starts: [Offset; 2],
    changes: PeekableEvents,
    names: PeekableEvents,
    files: FileNamesFill,
}

impl<'a> CatalogFill<'a> {
    /// Continues where `catalog` stopped. Begins at the log start if that position is not known, or
    /// is not in the journal.
    pub(super) fn begin(
        store: &Store<EngineAppendStage>,
        shared: &'a EngineState,
        catalog: &Arc<Catalog>,
    ) -> Result<CatalogFill<'a>, CatalogFillError> {
        let (names, log) = (store.log(NAMESPACE_LOG)?, store.log(GROUPS_LOG)?);
        let groups = GroupCatalog::new(Arc::clone(catalog));
        let (lost_to, starts) = (log.horizon().lost_to, [log.start(), names.start()]);
        let seen = catalog.applied()?.filter(|applied| can_catch_up(&names, &log, *applied));
        if seen.is_none() {
            refill_groups(&groups, &log)?;
        }
        // The restatement reflects the deletions before it.
        let floor = Cut::through(seen.map_or(lost_to, |seen| seen.stamp));
        let unseen = match seen {
            Some(_) => log.offset_at(floor)?,
            None => Offset(0),
        };
        let names_unseen = names.offset_at(floor)?;
        let files = FileNamesFill::begin(store.log(FILES_LOG)?, Arc::clone(catalog))?;
        let changes = PeekableEvents::new(Arc::clone(&log), unseen);
        let mut ends = PeekableEvents::new(Arc::clone(&names), names_unseen);
        // Deletions whose events are below the log start. The namespace still has them, except
        // those of removed topics: the catalog holds nothing of these.
        let restated =
            shared.namespace.read().deletions(floor.bound().previous(), names.horizon().lost_to);
        ends.queued = restated
            .into_iter()
            .map(|(stamp, id)| (MetadataEvent::TopicDeleted { id }, stamp, 0))
            .collect();
        let (groups_log, names_log) = (log, names);
        Ok(CatalogFill {
            shared,
            groups,
            groups_log,
            names_log,
            starts,
            changes,
            names: ends,
            files,
        })
    }

    /// Applies the journal's events up to the stamp `until`; returns how many.
    pub(super) fn advance(&mut self, until: Hlc) -> Result<u64, CatalogFillError> {
        let is_closing = || self.shared.catalog.is_closing();
        let mut count = self.files.advance(&is_closing)?;
        while let Some((event, stamp, position)) = self.next_event(until)? {
            if is_closing() {
                return Err(CatalogFillError::Closing);
            }
            let deleted = self.shared.deleted_topic_name(&event, stamp);
            if event.kind() == KIND_CATALOG || deleted.is_some() {
                self.groups.apply(&event, stamp, position, deleted.as_deref())?;
            }
            count += 1;
        }
        Ok(count)
    }

    /// The next event of either log. A deletion has to be applied after the commits before it,
    /// because it ends them.
    fn next_event(&mut self, until: Hlc) -> Result<Option<LogEvent>, CatalogFillError> {
        let (change, name) = (self.changes.peek_stamp()?, self.names.peek_stamp()?);
        let first = match (change, name) {
            (Some(change), Some(name)) if name < change => &mut self.names,
            (None, Some(_)) => &mut self.names,
            _ => &mut self.changes,
        };
        Ok(first.take_until(until))
    }

    /// Records that the catalog is complete. Returns the first event of files that it does not
    /// have.
    pub(super) fn finish(&self) -> Result<Offset, CatalogFillError> {
        if [self.groups_log.start(), self.names_log.start()] != self.starts {
            return Err(CatalogFillError::Journal(
                "the log start of offsets or names advanced meanwhile".to_owned(),
            ));
        }
        Ok(self.files.next())
    }
}

/// The events of a log, with a peek at the next one.
struct PeekableEvents {
    /// Events to apply before those of the log.
    queued: VecDeque<LogEvent>,
    events: EventReader,
    next: Option<LogEvent>,
}

impl PeekableEvents {
    fn new(log: Arc<storage::Log>, from: Offset) -> PeekableEvents {
        PeekableEvents { queued: VecDeque::new(), events: EventReader::new(log, from), next: None }
    }

    fn peek_stamp(&mut self) -> Result<Option<Hlc>, String> {
        if self.next.is_none() {
            self.next = match self.queued.pop_front() {
                Some(event) => Some(event),
                None => self.events.try_next()?,
            };
        }
        Ok(self.next.as_ref().map(|(_, stamp, _)| *stamp))
    }

    fn take_until(&mut self, until: Hlc) -> Option<LogEvent> {
        self.next.take_if(|(_, stamp, _)| *stamp <= until)
    }
}

/// Whether a catalog that has applied so much can be brought up to date from the journal.
fn can_catch_up(names: &storage::Log, groups: &storage::Log, applied: AppliedPosition) -> bool {
    if applied.stamp < groups.horizon().lost_to {
        tracing::info!("the catalog lacks entries before the log start; it is rebuilt");
        return false;
    }
    let is_known = [names, groups].iter().any(|log| has_entry(log, applied).unwrap_or(false));
    if !is_known && applied.stamp <= names.horizon().lost_to {
        tracing::info!(
            "the last entry that the catalog has is before the log start; it is rebuilt"
        );
    } else if !is_known {
        tracing::warn!("the catalog knows of entries that the journal has not; it is rebuilt");
    }
    is_known
}

/// Whether a log has the last entry that the catalog applied.
fn has_entry(log: &storage::Log, applied: AppliedPosition) -> Result<bool, StorageError> {
    let tip = log.tip_at(Cut::through(applied.stamp))?;
    let Some(last) = tip.end.0.checked_sub(1) else { return Ok(false) };
    let entry = log.entry_at(Offset(last))?;
    Ok(entry
        .is_some_and(|entry| (entry.stamp, entry.position) == (applied.stamp, applied.position)))
}

/// An event, its stamp, and its position in the journal.
type LogEvent = (MetadataEvent, Hlc, u64);

/// The events of a log, in order.
pub(crate) struct EventReader {
    log: Arc<storage::Log>,
    next: Offset,
    read: VecDeque<EntryPayload>,
}

impl EventReader {
    pub(crate) fn new(log: Arc<storage::Log>, from: Offset) -> EventReader {
        EventReader { next: from.max(log.start()), log, read: VecDeque::new() }
    }

    fn try_next(&mut self) -> Result<Option<LogEvent>, String> {
        const AT_ONCE: usize = 1 << 20;
        if self.read.is_empty() {
            let pieces = self.log.read(self.next, self.log.end(), AT_ONCE);
            self.read = pieces.map_err(|error| error.to_string())?.into();
        }
        let Some(piece) = self.read.pop_front() else { return Ok(None) };
        self.next = piece.entry.end();
        let payload = piece.read().map_err(|error| error.to_string())?;
        Ok(Some((MetadataEvent::decode(&payload)?, piece.entry.stamp, piece.entry.position)))
    }
}

impl Iterator for EventReader {
    type Item = Result<LogEvent, String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.try_next().transpose()
    }
}
