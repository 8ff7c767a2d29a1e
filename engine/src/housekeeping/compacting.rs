//! Compacting a partition, if it is due: its batches read, and what stays of them put in their place.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io;

use hlc::{Cut, Hlc, SysTime};
use storage::{Compacted, Emit, Entry, Log, Offset, Piece};

use crate::compaction::{
    CompactError, CompactOptions, CompactionSettings, Kept, Outcome, Source, Stored, compact,
};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::namespace::{Partition, Topic};

/// How many bytes of a log are asked for at once.
const READ_BYTES: usize = 1 << 20;

impl Engine {
    pub(super) fn compact_if_due(
        &self,
        topic: &Topic,
        partition: &Partition,
    ) -> Result<bool, EngineError> {
        let defaults = self.topic_defaults();
        let Some(settings) = CompactionSettings::of(&topic.config, defaults) else {
            return Ok(false);
        };
        let Some(now) = self.time_to_give_up() else { return Ok(false) };
        let log = &*partition.log;
        let Some(due) = self.due(&settings, topic, log, now)? else { return Ok(false) };
        let options = CompactOptions {
            horizon: due.horizon,
            start: log.start(),
            first_dirty: log.horizon().clean_to.max(log.start()),
            now,
            delete_retention: settings.delete_retention,
            memory_bytes: self.options.housekeeping.compaction_bytes_max,
            seed: RandomState::new().hash_one(log.id.0),
        };
        let (name, index) = (&*topic.name, partition.index);
        let mut held = None;
        let mut fill = |emit: Emit<'_>| {
            let source = Below { log, until: due.until };
            let outcome = fill(&source, &options, &*self.format, emit)?;
            tracing::info!(topic = name, partition = index, ?outcome, "compacted");
            Ok(Compacted { compacted_to: outcome.compacted_to, clean_to: outcome.until })
        };
        let compacted = self.store.replace(log.id, due.until, &mut fill, &mut |compacted| {
            // Pins stay as they are from here until the horizon is on stable storage. One may have been
            // set meanwhile: what it holds stays as it is.
            let Some(lock) = self.hold_changes_here() else { return false };
            held = Some(lock);
            self.may_compact_to(topic, compacted.compacted_to, now)
        });
        drop(held);
        Ok(compacted?)
    }

    /// Whether a topic's settings, and the pins, still let its past go up to a bound: a run takes long.
    fn may_compact_to(&self, topic: &Topic, bound: Hlc, now: SysTime) -> bool {
        let topic = self.topic_by_id(&topic.id);
        let settings = topic
            .as_ref()
            .and_then(|topic| CompactionSettings::of(&topic.config, self.topic_defaults()));
        let (Some(topic), Some(settings)) = (topic, settings) else { return false };
        let earliest = self.holds(Some(&topic.id)).earliest;
        bound <= settings.horizon(now) && earliest.is_none_or(|hold| bound <= hold.at.bound())
    }

    /// What of a log is to be compacted, if it is due.
    fn due(
        &self,
        settings: &CompactionSettings,
        topic: &Topic,
        log: &Log,
        now: SysTime,
    ) -> Result<Option<Due>, EngineError> {
        let mut horizon = settings.horizon(now);
        if let Some(hold) = self.holds(Some(&topic.id)).earliest {
            horizon = horizon.min(hold.at.bound());
        }
        let (until, _) = self.store.replaceable(log.id, Cut::below(horizon))?;
        let (start, replaced) = (log.start(), log.horizon());
        let clean_to = replaced.clean_to;
        // A run whose room for keys was full replaced more than it cleaned. If a pin or a longer lag
        // has come to lie in between, the rest waits: what was replaced cannot be in part.
        if until <= clean_to.max(start) || until < replaced.freed().end {
            return Ok(None);
        }
        let dirty = log.bytes_between(clean_to.max(start), until)?;
        let total = log.bytes_between(start, until)?;
        let oldest = log.entry_at(clean_to.max(start))?.map(|entry| entry.stamp.time());
        Ok(settings.is_due(dirty, total, oldest, now).then_some(Due { until, horizon }))
    }
}

struct Due {
    until: Offset,
    horizon: Hlc,
}

/// Compacts what a source has, and emits it with what was not reached.
fn fill(
    source: &Below<'_>,
    options: &CompactOptions,
    format: &dyn crate::append::Format,
    emit: Emit<'_>,
) -> io::Result<Outcome> {
    let put = |entry: Entry, payload| storage::Kept { entry, payload };
    let mut emit_kept = |kept: Kept<Entry>| emit(put(kept.entry, kept.batch));
    let outcome =
        compact(source, options, format, &mut emit_kept).map_err(|error| match error {
            CompactError::Disk(error) => error,
            error => io::Error::other(error),
        })?;
    // The room for keys was full: the rest is for the next run.
    for stored in source.batches(outcome.until) {
        let Stored { entry, batch, .. } = stored?;
        emit(put(entry, batch))?;
    }
    Ok(outcome)
}

/// The batches of a log below an offset.
struct Below<'a> {
    log: &'a Log,
    until: Offset,
}

impl Source for Below<'_> {
    type Entry = Entry;

    fn batches(&self, from: Offset) -> impl Iterator<Item = io::Result<Stored<Entry>>> {
        Batches { log: self.log, next: from, until: self.until, read: VecDeque::new() }
    }
}

struct Batches<'a> {
    log: &'a Log,
    next: Offset,
    until: Offset,
    read: VecDeque<Piece>,
}

impl Batches<'_> {
    fn try_next(&mut self) -> io::Result<Option<Stored<Entry>>> {
        if self.read.is_empty() && self.next < self.until {
            self.read = self.log.read(self.next, self.until, READ_BYTES)?.into();
        }
        let Some(piece) = self.read.pop_front() else { return Ok(None) };
        let entry = piece.entry;
        self.next = entry.end();
        let (base, end, stamp) = (entry.base, entry.end(), entry.stamp);
        Ok(Some(Stored { base, end, stamp, batch: piece.read()?, entry }))
    }
}

impl Iterator for Batches<'_> {
    type Item = io::Result<Stored<Entry>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.try_next().transpose()
    }
}
