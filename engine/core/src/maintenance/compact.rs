//! Compacts a partition if it is due: reads its batches, and replaces them by what stays.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use hlc::{Cut, Hlc, SysTime};
use storage::{CompactionHorizon, Entry, EntryPayload, EntrySink, Log, Offset, StorageError};

use super::CoreMaintenance;
use crate::append::BatchFormat;
use crate::compaction::{
    BatchRole, BatchSource, CompactedBatch, CompactionError, CompactionOptions, CompactionOutcome,
    CompactionSettings, SourceBatch, compact,
};
use crate::error::EngineError;
use crate::log_transactions::EndedTransaction;
use crate::namespace::{Partition, Topic};
use crate::numbering::KIND_MARKER;
use crate::transaction_intervals::TransactionIntervals;

/// The most bytes of a log that are read at once.
const READ_BYTES: usize = 1 << 20;

impl CoreMaintenance<'_> {
    pub(super) fn compact_if_due(
        self,
        topic: &Topic,
        partition: &Partition,
    ) -> Result<bool, EngineError> {
        let defaults = self.core.topic_defaults();
        let Some(settings) = CompactionSettings::of(&topic.config, &defaults) else {
            return Ok(false);
        };
        let Some(now) = self.core.retention_time() else { return Ok(false) };
        let log = &*partition.log;
        let Some(due) = self.plan_compaction(&settings, topic, partition, now)? else {
            return Ok(false);
        };
        let start = log.start();
        let aborted = self.core.aborted_transactions(partition, &(start..due.undecided_from))?;
        let options = CompactionOptions {
            horizon: due.horizon,
            start,
            first_dirty: log.horizon().clean_to.max(start),
            undecided_from: due.undecided_from,
            now,
            delete_retention: settings.delete_retention,
            memory_bytes: self.core.dynamic_maintenance().compaction_bytes_max,
            seed: RandomState::new().hash_one(log.id.0),
        };
        let (name, index) = (&*topic.name, partition.index);
        let (mut change_lock, mut aborted_from) = (None, None);
        let format = &*self.core.format;
        let source = LogPrefixSource { log, until: due.until, format, aborted: aborted.into() };
        let mut fill = |emit: EntrySink<'_>| {
            let outcome = compact_into(&source, &options, format, emit)?;
            tracing::info!(topic = name, partition = index, ?outcome, "compacted");
            aborted_from = outcome.aborted_from;
            let compacted_to = self.compacted_to(partition, &outcome)?;
            Ok::<_, EngineError>(CompactionHorizon { compacted_to, clean_to: outcome.until })
        };
        let compacted =
            self.core.store.replace_prefix(log.id, due.until, &mut fill, &mut |compacted| {
                // Pins do not change from here until the horizon is on stable storage. A pin may
                // have been set since the plan was made: the history that it holds must not change.
                let Some(lock) = self.core.lock_changes_blocking() else { return false };
                change_lock = Some(lock);
                self.may_compact_to(topic, compacted.compacted_to, now)
            });
        drop(change_lock);
        if compacted? {
            let ended = self.core.compacted_transaction_log_start(partition, aborted_from)?;
            self.core.store.advance_log_start(&[ended])?;
            return Ok(true);
        }
        Ok(false)
    }

    /// The start of the first transaction that is open or was not decided below the horizon, up to
    /// `until`.
    fn undecided_from(
        self,
        partition: &Partition,
        until: Offset,
        horizon: Hlc,
    ) -> Result<Offset, EngineError> {
        let mut undecided_from = partition.stable_end().min(until);
        // Once the end has moved forward, other transactions may lie around it.
        loop {
            let around = self.core.transactions_around(partition, undecided_from)?;
            let is_late =
                |ended: &&EndedTransaction| ended.is_committed && ended.decided >= horizon;
            match around.iter().filter(is_late).map(|ended| ended.first).min() {
                Some(first) => undecided_from = first,
                None => return Ok(undecided_from),
            }
        }
    }

    /// The bound from which on cuts read as before. A transaction supersedes from its decision on,
    /// which may be newer than all that was compacted: its marker lies behind that.
    fn compacted_to(
        self,
        partition: &Partition,
        outcome: &CompactionOutcome,
    ) -> Result<Hlc, EngineError> {
        if outcome.compacted_to == Hlc::ZERO {
            return Ok(Hlc::ZERO);
        }
        let around = self.core.transactions_around(partition, outcome.superseded_by)?;
        let committed = around.iter().filter(|ended| ended.is_committed);
        let decided_to = committed.map(|ended| ended.decided.next()).max();
        Ok(outcome.compacted_to.max(decided_to.unwrap_or(Hlc::ZERO)))
    }

    /// Returns true if a topic's settings and the pins still allow compaction up to a bound: a run
    /// takes long.
    fn may_compact_to(self, topic: &Topic, bound: Hlc, now: SysTime) -> bool {
        let topic = self.core.topics().by_id(&topic.id);
        let settings = topic
            .as_ref()
            .and_then(|topic| CompactionSettings::of(&topic.config, &self.core.topic_defaults()));
        let (Some(topic), Some(settings)) = (topic, settings) else { return false };
        let earliest = self.core.pins().holds(Some(&topic.id)).earliest;
        bound <= settings.horizon(now) && earliest.is_none_or(|hold| bound <= hold.at.bound())
    }

    /// The range of a log that is to be compacted, if it is due.
    fn plan_compaction(
        self,
        settings: &CompactionSettings,
        topic: &Topic,
        partition: &Partition,
        now: SysTime,
    ) -> Result<Option<CompactionPlan>, EngineError> {
        let log = &*partition.log;
        let mut horizon = settings.horizon(now);
        if let Some(hold) = self.core.pins().holds(Some(&topic.id)).earliest {
            horizon = horizon.min(hold.at.bound());
        }
        let (until, _) = self.core.store.replaceable_prefix(log.id, Cut::below(horizon))?;
        let (start, replaced) = (log.start(), log.horizon());
        let clean_to = replaced.clean_to;
        // A run that ran out of memory for keys replaced more than it compacted. If a pin or a
        // longer lag now ends in between, the rest waits: a replaced range can only be replaced as
        // a whole.
        if until <= clean_to.max(start) || until < replaced.released_tip().end {
            return Ok(None);
        }
        let undecided_from = self.undecided_from(partition, until, horizon)?;
        if undecided_from <= clean_to.max(start) {
            return Ok(None);
        }
        let dirty = log.bytes_between(clean_to.max(start), undecided_from)?;
        let total = log.bytes_between(start, undecided_from)?;
        let oldest = log.entry_at(clean_to.max(start))?.map(|entry| entry.stamp.time());
        let is_due = settings.is_due(dirty, total, oldest, now);
        Ok(is_due.then_some(CompactionPlan { until, horizon, undecided_from }))
    }
}

impl From<CompactionError> for EngineError {
    fn from(error: CompactionError) -> EngineError {
        match error {
            CompactionError::Disk(error) => EngineError::Storage(error),
            CompactionError::EndsEarly { .. } | CompactionError::Memory { .. } => {
                EngineError::Internal(error.to_string().into())
            }
        }
    }
}

struct CompactionPlan {
    until: Offset,
    horizon: Hlc,
    undecided_from: Offset,
}

/// Compacts a source, and emits the result and what was not reached.
fn compact_into(
    source: &LogPrefixSource<'_>,
    options: &CompactionOptions,
    format: &dyn BatchFormat,
    emit: EntrySink<'_>,
) -> Result<CompactionOutcome, CompactionError> {
    let put = |entry: Entry, payload| storage::CompactedEntry { entry, payload };
    let mut emit_kept =
        |compacted: CompactedBatch<Entry>| emit(put(compacted.entry, compacted.batch));
    let outcome = compact(source, options, format, &mut emit_kept)?;
    // The memory for keys was full: the next run does the rest.
    for stored in source.batches(outcome.until) {
        let SourceBatch { entry, batch, .. } = stored?;
        emit(put(entry, batch))?;
    }
    Ok(outcome)
}

/// Aborted transactions, up to their markers; and the markers.
struct AbortedTransactions {
    intervals: TransactionIntervals,
    markers: HashSet<Offset>,
}

impl From<Vec<EndedTransaction>> for AbortedTransactions {
    fn from(ended: Vec<EndedTransaction>) -> AbortedTransactions {
        let markers = ended.iter().map(|ended| ended.marker).collect();
        AbortedTransactions {
            intervals: TransactionIntervals::new(ended.iter().map(EndedTransaction::interval)),
            markers,
        }
    }
}

/// The batches of a log below an offset.
struct LogPrefixSource<'a> {
    log: &'a Log,
    until: Offset,
    format: &'a dyn BatchFormat,
    aborted: AbortedTransactions,
}

impl BatchSource for LogPrefixSource<'_> {
    type Entry = Entry;

    fn batches(
        &self,
        from: Offset,
    ) -> impl Iterator<Item = Result<SourceBatch<Entry>, StorageError>> {
        LogBatchIterator { log: self.log, next: from, until: self.until, read: VecDeque::new() }
    }

    fn role(&self, stored: &SourceBatch<Entry>) -> BatchRole {
        if stored.entry.kind == KIND_MARKER {
            return match self.format.marker_producer(&stored.batch) {
                Some((producer, _)) if self.aborted.markers.contains(&stored.base) => {
                    BatchRole::AbortMarker { producer }
                }
                _ => BatchRole::CommitMarker,
            };
        }
        if self.aborted.intervals.is_empty() {
            return BatchRole::Committed;
        }
        match self.format.producer(&stored.batch).filter(|producer| producer.is_transactional) {
            Some(producer) if self.aborted.intervals.contains(producer.id, stored.base) => {
                BatchRole::Aborted { producer: producer.id }
            }
            _ => BatchRole::Committed,
        }
    }
}

struct LogBatchIterator<'a> {
    log: &'a Log,
    next: Offset,
    until: Offset,
    read: VecDeque<EntryPayload>,
}

impl LogBatchIterator<'_> {
    fn try_next(&mut self) -> Result<Option<SourceBatch<Entry>>, StorageError> {
        if self.read.is_empty() && self.next < self.until {
            self.read = self.log.read(self.next, self.until, READ_BYTES)?.into();
        }
        let Some(piece) = self.read.pop_front() else { return Ok(None) };
        let entry = piece.entry;
        self.next = entry.end();
        let (base, end, stamp) = (entry.base, entry.end(), entry.stamp);
        Ok(Some(SourceBatch { base, end, stamp, batch: piece.read()?, entry }))
    }
}

impl Iterator for LogBatchIterator<'_> {
    type Item = Result<SourceBatch<Entry>, StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.try_next().transpose()
    }
}
