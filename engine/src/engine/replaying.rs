//! What is made anew when the engine opens: producers from the journal, topics and groups from their
//! logs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hlc::{Cut, Hlc};
use storage::catalog::{Applied, Catalog, CatalogDirectory, CatalogError};
use storage::{Offset, Piece, Replay, Replayed, Store};

use super::Shared;
use crate::append::{Format, Stager};
use crate::files::{FILES_LOG, FileError, FilesFill, is_file_kind};
use crate::group_horizon::refill;
use crate::groups::Groups;
use crate::namespace::event::{Event, KIND_CATALOG, KIND_NAMESPACE, KIND_RECORDS};
use crate::namespace::{GROUPS_LOG, NAMESPACE_LOG};
use crate::namespace_horizon::take_restated;
use crate::producers::Producers;

/// Remembers again what producers wrote last.
pub(super) struct Rebuild {
    pub(super) format: Arc<dyn Format>,
    pub(super) producers: Producers,
}

impl Replay for Rebuild {
    fn restore(&mut self, state: &[u8]) -> std::io::Result<()> {
        self.producers = Producers::decode(state).map_err(std::io::Error::other)?;
        Ok(())
    }

    fn entry(&mut self, replayed: &Replayed<'_>) -> std::io::Result<()> {
        let entry = replayed.entry;
        self.producers.advance(entry.stamp);
        match entry.kind {
            KIND_RECORDS => {
                if let Some(note) = self.format.producer(replayed.start) {
                    self.producers.record(replayed.log, &note, entry.base, entry.stamp);
                }
            }
            // Their logs say what happened, once the store has opened.
            KIND_NAMESPACE | KIND_CATALOG => {}
            kind if is_file_kind(kind) => {}
            kind => {
                return Err(std::io::Error::other(format!(
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

/// Makes the namespace anew from its log.
pub(super) fn replay_namespace(store: &Store<Stager>, shared: &Shared) -> Result<(), String> {
    let logs = store.log_source();
    let log = |id| store.log(id).map_err(|error| error.to_string());
    let (names, groups) = (log(NAMESPACE_LOG)?, log(GROUPS_LOG)?);
    let mut namespace = shared.namespace.write();
    take_restated(&mut namespace, &names, &logs)?;
    for event in Events::new(Arc::clone(&names), Offset(0)) {
        let (event, stamp, _) = event?;
        namespace.apply(&event, stamp, &logs)?;
    }
    drop(namespace);
    let last = names.tip().stamp.max(groups.tip().stamp);
    shared.applied.store(last.bits(), Ordering::Release);
    Ok(())
}

/// Finds a catalog that can be brought up to date, and puts it to use: the last one, or one in memory. The
/// first event of files that is not in it yet is returned.
pub(super) fn open_catalog(store: &Store<Stager>, shared: &Shared) -> Result<Offset, String> {
    let slot = &shared.catalog;
    let open =
        [CatalogDirectory::open_last, CatalogDirectory::open_new, CatalogDirectory::open_in_memory];
    let mut last = None;
    for open in open {
        match fill_whole(store, shared, open(&slot.directory)) {
            Ok(files_next) => return Ok(files_next),
            Err(FillError::Catalog(error)) => {
                tracing::warn!(%error, "another catalog is made");
                last = Some(error.to_string());
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Err(last.unwrap_or_default())
}

fn fill_whole(
    store: &Store<Stager>,
    shared: &Shared,
    made: Result<Catalog, CatalogError>,
) -> Result<Offset, FillError> {
    let catalog = shared.catalog.watched(made?);
    let mut fill = CatalogFill::begin(store, shared, &catalog)?;
    fill.advance(Hlc::MAX)?;
    let files_next = fill.finish()?;
    shared.catalog.put(catalog);
    Ok(files_next)
}

/// Why a catalog could not be filled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FillError {
    /// Another catalog may do.
    #[error("{0}")]
    Catalog(#[from] CatalogError),
    /// What it is made from cannot be read.
    #[error("replay what the catalog is made from: {0}")]
    Journal(String),
    /// The engine is being closed.
    #[error("it is being closed")]
    Closing,
}

impl From<FileError> for FillError {
    fn from(error: FileError) -> FillError {
        match error {
            FileError::Loading(error) => FillError::Catalog(error),
            error => FillError::Journal(error.to_string()),
        }
    }
}

impl From<String> for FillError {
    fn from(why: String) -> FillError {
        FillError::Journal(why)
    }
}

impl From<std::io::Error> for FillError {
    fn from(error: std::io::Error) -> FillError {
        FillError::Journal(error.to_string())
    }
}

/// A catalog on its way to what the journal says: events of groups and deletions of topics in the order of
/// the journal, and events of files in that of their own log.
pub(super) struct CatalogFill<'a> {
    shared: &'a Shared,
    groups: Groups,
    groups_log: Arc<storage::Log>,
    names_log: Arc<storage::Log>,
    /// Where both logs began when they were begun to be read.
    starts: [Offset; 2],
    changes: Ahead,
    names: Ahead,
    files: FilesFill,
}

impl<'a> CatalogFill<'a> {
    /// Goes on where `catalog` stopped; from the beginning if that is not known, or is nothing that the
    /// journal has.
    pub(super) fn begin(
        store: &Store<Stager>,
        shared: &'a Shared,
        catalog: &Arc<Catalog>,
    ) -> Result<CatalogFill<'a>, FillError> {
        let (names, log) = (store.log(NAMESPACE_LOG)?, store.log(GROUPS_LOG)?);
        let groups = Groups::new(Arc::clone(catalog));
        let (lost_to, starts) = (log.horizon().lost_to, [log.start(), names.start()]);
        let seen = catalog.applied()?.filter(|applied| is_known(&names, &log, *applied));
        if seen.is_none() {
            refill(&groups, &log)?;
        }
        // What was restated knows of the deletions before.
        let floor = Cut::through(seen.map_or(lost_to, |seen| seen.stamp));
        let unseen = match seen {
            Some(_) => log.offset_at(floor)?,
            None => Offset(0),
        };
        let names_unseen = names.offset_at(floor)?;
        let files = FilesFill::begin(store.log(FILES_LOG)?, Arc::clone(catalog))?;
        let changes = Ahead::new(Arc::clone(&log), unseen);
        let mut ends = Ahead::new(Arc::clone(&names), names_unseen);
        // Deletions whose events were given up. The namespace still has them, except those of forgotten topics:
        // the catalog has nothing of these.
        let restated =
            shared.namespace.read().deletions(floor.bound().previous(), names.horizon().lost_to);
        ends.before = restated
            .into_iter()
            .map(|(stamp, id)| (Event::TopicDeleted { id }, stamp, 0))
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

    /// Applies what the journal has up to the stamp `until`; how many events that were.
    pub(super) fn advance(&mut self, until: Hlc) -> Result<u64, FillError> {
        let is_closing = || self.shared.catalog.is_closing();
        let mut count = self.files.advance(&is_closing)?;
        while let Some((event, stamp, position)) = self.take_next(until)? {
            if is_closing() {
                return Err(FillError::Closing);
            }
            let deleted = self.shared.deleted_by(&event, stamp);
            if event.kind() == KIND_CATALOG || deleted.is_some() {
                self.groups.apply(&event, stamp, position, deleted.as_deref())?;
            }
            count += 1;
        }
        Ok(count)
    }

    /// The next event of either log: what a deletion ends in the catalog was committed before it.
    fn take_next(&mut self, until: Hlc) -> Result<Option<Replayable>, FillError> {
        let (change, name) = (self.changes.stamp()?, self.names.stamp()?);
        let first = match (change, name) {
            (Some(change), Some(name)) if name < change => &mut self.names,
            (None, Some(_)) => &mut self.names,
            _ => &mut self.changes,
        };
        Ok(first.take(until))
    }

    /// Says that it is all there, and which event of files is the next.
    pub(super) fn finish(&self) -> Result<Offset, FillError> {
        if [self.groups_log.start(), self.names_log.start()] != self.starts {
            return Err(FillError::Journal("offsets or names were given up meanwhile".to_owned()));
        }
        Ok(self.files.next())
    }
}

/// The events of a log, one of which may have been looked at.
struct Ahead {
    /// Events to apply before those of the log.
    before: VecDeque<Replayable>,
    events: Events,
    next: Option<Replayable>,
}

impl Ahead {
    fn new(log: Arc<storage::Log>, from: Offset) -> Ahead {
        Ahead { before: VecDeque::new(), events: Events::new(log, from), next: None }
    }

    fn stamp(&mut self) -> Result<Option<Hlc>, String> {
        if self.next.is_none() {
            self.next = match self.before.pop_front() {
                Some(event) => Some(event),
                None => self.events.try_next()?,
            };
        }
        Ok(self.next.as_ref().map(|(_, stamp, _)| *stamp))
    }

    fn take(&mut self, until: Hlc) -> Option<Replayable> {
        self.next.take_if(|(_, stamp, _)| *stamp <= until)
    }
}

/// Whether a catalog that has seen so much can be brought up to date from the journal.
fn is_known(names: &storage::Log, groups: &storage::Log, applied: Applied) -> bool {
    if applied.stamp < groups.horizon().lost_to {
        tracing::info!("the catalog misses entries that were given up; it is rebuilt");
        return false;
    }
    let is_known = [names, groups].iter().any(|log| has_entry(log, applied).unwrap_or(false));
    if !is_known && applied.stamp <= names.horizon().lost_to {
        tracing::info!("the last entry that the catalog knows was given up; it is rebuilt");
    } else if !is_known {
        tracing::warn!("the catalog knows of entries that the journal has not; it is rebuilt");
    }
    is_known
}

/// Whether a log has the entry up to which the catalog has seen the journal.
fn has_entry(log: &storage::Log, applied: Applied) -> std::io::Result<bool> {
    let tip = log.tip_at(Cut::through(applied.stamp))?;
    let Some(last) = tip.end.0.checked_sub(1) else { return Ok(false) };
    let entry = log.entry_at(Offset(last))?;
    Ok(entry
        .is_some_and(|entry| (entry.stamp, entry.position) == (applied.stamp, applied.position)))
}

/// An event, its stamp, and its position in the journal.
type Replayable = (Event, Hlc, u64);

/// The events of a log, in order.
pub(crate) struct Events {
    log: Arc<storage::Log>,
    next: Offset,
    read: VecDeque<Piece>,
}

impl Events {
    pub(crate) fn new(log: Arc<storage::Log>, from: Offset) -> Events {
        Events { next: from.max(log.start()), log, read: VecDeque::new() }
    }

    fn try_next(&mut self) -> Result<Option<Replayable>, String> {
        const AT_ONCE: usize = 1 << 20;
        if self.read.is_empty() {
            let pieces = self.log.read(self.next, self.log.end(), AT_ONCE);
            self.read = pieces.map_err(|error| error.to_string())?.into();
        }
        let Some(piece) = self.read.pop_front() else { return Ok(None) };
        self.next = piece.entry.end();
        let payload = piece.read().map_err(|error| error.to_string())?;
        Ok(Some((Event::decode(&payload)?, piece.entry.stamp, piece.entry.position)))
    }
}

impl Iterator for Events {
    type Item = Result<Replayable, String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.try_next().transpose()
    }
}
