//! What is made anew when the engine opens: producers from the journal, topics and groups from their
//! logs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hlc::{Cut, Hlc};
use storage::catalog::Applied;
use storage::{Offset, Piece, Replay, Replayed, Store};

use super::Shared;
use crate::append::{Format, Stager};
use crate::files::is_file_kind;
use crate::group_horizon::refill;
use crate::namespace::event::{Event, KIND_CATALOG, KIND_NAMESPACE, KIND_RECORDS};
use crate::namespace::{GROUPS_LOG, NAMESPACE_LOG};
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

/// Makes the namespace anew from its log, and brings the catalog up to date from both logs.
pub(super) fn replay_events(store: &Store<Stager>, shared: &Arc<Shared>) -> Result<(), String> {
    let logs = store.log_source();
    let fail = |error: std::io::Error| error.to_string();
    let names = store.log(NAMESPACE_LOG).map_err(fail)?;
    let groups = store.log(GROUPS_LOG).map_err(fail)?;
    let catalog = shared.groups.catalog();
    let lost_to = groups.horizon().lost_to;
    let mut seen = catalog.applied().map_err(|error| error.to_string())?;
    if let Some(applied) = seen {
        if applied.stamp < lost_to {
            tracing::info!("the catalog misses entries that were given up; it is rebuilt");
            seen = None;
        } else if ![&names, &groups].iter().any(|log| has_entry(log, applied).unwrap_or(false)) {
            tracing::warn!("the catalog knows of entries that the journal has not; it is rebuilt");
            seen = None;
        }
    }
    if seen.is_none() {
        refill(&shared.groups, &groups)?;
    }
    // What was restated knows of the deletions before.
    let floor = seen.map_or(lost_to, |seen| seen.stamp);
    let unseen = match seen {
        Some(applied) => groups.offset_at(Cut::through(applied.stamp)).map_err(fail)?,
        None => Offset(0),
    };
    let mut changes = Events::new(groups.as_ref(), unseen).peekable();
    for event in Events::new(names.as_ref(), Offset(0)) {
        let (event, stamp, position) = event?;
        // What a deletion ends in the catalog was committed before it.
        while let Some(change) = changes.next_if(|change| is_before(change, stamp)) {
            replay_change(shared, change?)?;
        }
        let deleted = match &event {
            Event::TopicDeleted { id } => {
                shared.namespace.read().topic_by_id(id).map(|topic| Arc::clone(&topic.name))
            }
            _ => None,
        };
        shared.namespace.write().apply(&event, stamp, &logs)?;
        if deleted.is_some() && stamp > floor {
            let applied = shared.groups.apply(&event, stamp, position, deleted.as_deref());
            applied.map_err(|error| error.to_string())?;
        }
    }
    for change in changes {
        replay_change(shared, change?)?;
    }
    let last = names.tip().stamp.max(groups.tip().stamp);
    shared.applied.store(last.bits(), Ordering::Release);
    Ok(())
}

fn is_before(event: &Result<Replayable, String>, stamp: Hlc) -> bool {
    event.as_ref().is_ok_and(|(_, at, _)| *at < stamp)
}

fn replay_change(shared: &Shared, (event, stamp, position): Replayable) -> Result<(), String> {
    shared.groups.apply(&event, stamp, position, None).map_err(|error| error.to_string())
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
pub(crate) struct Events<'a> {
    log: &'a storage::Log,
    next: Offset,
    read: std::collections::VecDeque<Piece>,
}

impl<'a> Events<'a> {
    pub(crate) fn new(log: &'a storage::Log, from: Offset) -> Events<'a> {
        Events { log, next: from.max(log.start()), read: std::collections::VecDeque::new() }
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

impl Iterator for Events<'_> {
    type Item = Result<Replayable, String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.try_next().transpose()
    }
}
