//! A catalog while it catches up with the journal, at a start and in a rebuild.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use hlc::{Cut, Hlc};
use storage::catalog::{AppliedPosition, Catalog, CatalogDirectory, CatalogError};
use storage::{Log, Offset, StorageError};

use crate::engine_core::{EngineState, EngineStore};
use crate::event_reader::{EventReader, LogEvent};
use crate::namespace::event::{NamespaceEvent, namespace_events};
use crate::numbering::NAMESPACE_LOG;
use crate::projection::{
    CatalogFillError, EngineWings, EventProjection, ProjectedEvent, ProjectionFill,
};

/// Finds a catalog that can be brought up to date, and puts it into use: the last one, or one in
/// memory.
pub(crate) fn open_catalog(
    store: &EngineStore,
    shared: &EngineState,
    wings: &EngineWings,
) -> Result<(), String> {
    for projection in &wings.events {
        let log = store.log(projection.log()).map_err(|error| error.to_string())?;
        shared.applied_stamp.fetch_max(log.tip().stamp.bits(), Ordering::AcqRel);
    }
    let open = [
        CatalogDirectory::open_latest,
        CatalogDirectory::open_new,
        CatalogDirectory::open_in_memory,
    ];
    let mut last = None;
    for open in open {
        match fill_from_start(store, shared, wings, open(&shared.catalog.directory)) {
            Ok(()) => return Ok(()),
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
    store: &EngineStore,
    shared: &EngineState,
    wings: &EngineWings,
    made: Result<Catalog, CatalogError>,
) -> Result<(), CatalogFillError> {
    let catalog = shared.catalog.watch_for_failure(made?);
    let mut fill = CatalogFill::begin(store, shared, wings, &catalog)?;
    fill.pause_readers();
    fill.advance(Hlc::MAX)?;
    fill.finish()?;
    shared.catalog.install(catalog);
    Ok(())
}

/// A catalog while it catches up with the journal. The events of projections and the deletions of
/// topics are applied in the order of the journal, and those of readers' projections in the order
/// of their own logs.
pub(crate) struct CatalogFill<'a> {
    shared: &'a EngineState,
    catalog: Arc<Catalog>,
    names: PeekableEvents<NamespaceEvent>,
    projections: Vec<ProjectionEvents<'a>>,
    readers: Vec<Box<dyn ProjectionFill + 'a>>,
    /// The log starts when reading began.
    starts: Vec<(Arc<Log>, Offset)>,
}

/// The events of one projection that the catalog lacks.
struct ProjectionEvents<'a> {
    projection: &'a dyn EventProjection,
    events: PeekableEvents<Bytes>,
}

impl<'a> CatalogFill<'a> {
    /// Continues where `catalog` stopped. Begins at the log starts if that position is not known,
    /// or is not in the journal.
    pub(crate) fn begin(
        store: &EngineStore,
        shared: &'a EngineState,
        wings: &'a EngineWings,
        catalog: &Arc<Catalog>,
    ) -> Result<CatalogFill<'a>, CatalogFillError> {
        let names = store.log(NAMESPACE_LOG)?;
        let mut logs = Vec::new();
        for projection in &wings.events {
            logs.push((&**projection, store.log(projection.log())?));
        }
        let all = || std::iter::once(&names).chain(logs.iter().map(|(_, log)| log));
        let starts = all().map(|log| (Arc::clone(log), log.start())).collect();
        let seen = catalog.applied()?.filter(|seen| can_catch_up(&names, &logs, *seen));
        if seen.is_none() {
            for (projection, log) in &logs {
                projection.reset(catalog, log)?;
            }
        }
        // A restatement reflects the deletions before it.
        let restated = logs.iter().map(|(_, log)| log.horizon().lost_to).min();
        let floor = Cut::through(match seen {
            Some(seen) => seen.stamp,
            None => restated.unwrap_or(Hlc::ZERO),
        });
        let mut projections = Vec::new();
        for (projection, log) in logs {
            let from = if seen.is_some() { log.offset_at(floor)? } else { Offset(0) };
            let events = PeekableEvents::new(EventReader::new(log, from));
            projections.push(ProjectionEvents { projection, events });
        }
        let names_unseen = names.offset_at(floor)?;
        let mut ends = PeekableEvents::new(namespace_events(Arc::clone(&names), names_unseen));
        // Deletions whose events are below the log start. The namespace still has them, except
        // those of removed topics: the catalog holds nothing of these.
        let lost =
            shared.namespace.read().deletions(floor.bound().previous(), names.horizon().lost_to);
        let deletion = |(stamp, id)| (NamespaceEvent::TopicDeleted { id }, stamp, 0);
        ends.queued = lost.into_iter().map(deletion).collect();
        let readers = wings.readers.iter().map(|wing| wing.begin_fill(catalog));
        let readers = readers.collect::<Result<_, _>>()?;
        let catalog = Arc::clone(catalog);
        Ok(CatalogFill { shared, catalog, names: ends, projections, readers, starts })
    }

    /// Applies the journal's events up to the stamp `until`; returns how many.
    pub(crate) fn advance(&mut self, until: Hlc) -> Result<u64, CatalogFillError> {
        let is_closing = || self.shared.catalog.is_closing();
        let mut count = 0;
        for reader in &mut self.readers {
            count += reader.advance(&is_closing)?;
        }
        while self.apply_next(until)? {
            if self.shared.catalog.is_closing() {
                return Err(CatalogFillError::Closing);
            }
            count += 1;
        }
        Ok(count)
    }

    /// Applies the next event of any log, if its stamp is at most `until`. A deletion has to be
    /// applied after the commits before it, because it ends them.
    fn apply_next(&mut self, until: Hlc) -> Result<bool, CatalogFillError> {
        let mut first = None;
        for (nth, events) in self.projections.iter_mut().enumerate() {
            let stamp = events.events.peek_stamp()?;
            first = first.into_iter().chain(stamp.map(|stamp| (stamp, Some(nth)))).min();
        }
        let name = self.names.peek_stamp()?.map(|stamp| (stamp, None));
        match first.into_iter().chain(name).min() {
            Some((stamp, _)) if stamp > until => Ok(false),
            Some((_, Some(nth))) => {
                let ProjectionEvents { projection, events } = &mut self.projections[nth];
                let Some((payload, stamp, position)) = events.next.take() else { return Ok(false) };
                let at = AppliedPosition { position, stamp };
                projection.apply(&self.catalog, ProjectedEvent::Entry(&payload), at)?;
                Ok(true)
            }
            Some((_, None)) => {
                let Some((event, stamp, position)) = self.names.next.take() else {
                    return Ok(false);
                };
                if let Some(topic) = self.shared.deleted_topic_name(&event, stamp) {
                    for ProjectionEvents { projection, .. } in &self.projections {
                        let at = AppliedPosition { position, stamp };
                        projection.apply(
                            &self.catalog,
                            ProjectedEvent::TopicDeleted(&topic),
                            at,
                        )?;
                    }
                }
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Makes readers wait until the fill is dropped.
    pub(crate) fn pause_readers(&mut self) {
        self.readers.iter_mut().for_each(|reader| reader.pause_readers());
    }

    /// Ends the fill: the catalog is complete.
    pub(crate) fn finish(&mut self) -> Result<(), CatalogFillError> {
        if self.starts.iter().any(|(log, start)| log.start() != *start) {
            return Err(CatalogFillError::Journal(
                "the log start of offsets or names advanced meanwhile".to_owned(),
            ));
        }
        self.readers.iter_mut().for_each(|reader| reader.finish());
        Ok(())
    }
}

/// The events of a log, with a peek at the next one.
struct PeekableEvents<E> {
    /// Events to apply before those of the log.
    queued: VecDeque<LogEvent<E>>,
    events: Box<dyn Iterator<Item = Result<LogEvent<E>, String>>>,
    next: Option<LogEvent<E>>,
}

impl<E> PeekableEvents<E> {
    fn new(events: impl Iterator<Item = Result<LogEvent<E>, String>> + 'static) -> Self {
        PeekableEvents { queued: VecDeque::new(), events: Box::new(events), next: None }
    }

    fn peek_stamp(&mut self) -> Result<Option<Hlc>, String> {
        if self.next.is_none() {
            self.next = match self.queued.pop_front() {
                Some(event) => Some(event),
                None => self.events.next().transpose()?,
            };
        }
        Ok(self.next.as_ref().map(|(_, stamp, _)| *stamp))
    }
}

/// Returns true if a catalog that has applied this much can be brought up to date from the journal.
fn can_catch_up(
    names: &Arc<Log>,
    logs: &[(&dyn EventProjection, Arc<Log>)],
    applied: AppliedPosition,
) -> bool {
    if logs.iter().any(|(_, log)| applied.stamp < log.horizon().lost_to) {
        tracing::info!("the catalog lacks entries before the log start; it is rebuilt");
        return false;
    }
    let mut all = std::iter::once(names).chain(logs.iter().map(|(_, log)| log));
    let is_known = all.any(|log| has_entry(log, applied).unwrap_or(false));
    if !is_known && applied.stamp <= names.horizon().lost_to {
        tracing::info!(
            "the last entry that the catalog has is before the log start; it is rebuilt"
        );
    } else if !is_known {
        tracing::warn!("the catalog knows of entries that the journal has not; it is rebuilt");
    }
    is_known
}

/// Returns true if a log has the last entry that the catalog applied.
fn has_entry(log: &Log, applied: AppliedPosition) -> Result<bool, StorageError> {
    let tip = log.tip_at(Cut::through(applied.stamp))?;
    let Some(last) = tip.end.0.checked_sub(1) else { return Ok(false) };
    let entry = log.entry_at(Offset(last))?;
    Ok(entry
        .is_some_and(|entry| (entry.stamp, entry.position) == (applied.stamp, applied.position)))
}
