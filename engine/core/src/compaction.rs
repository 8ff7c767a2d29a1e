//! Compaction: the last record of each key stays.
//!
//! Pure: it reads a [`BatchSource`] and hands what stays to its caller. Scheduling, and the
//! replacement of the log's prefix, are elsewhere; [`CompactionSettings`] says which log is due.
//!
//! Invariants:
//! - **The horizon.** A record is dropped only if the record that supersedes it has a stamp below
//!   [`CompactionOutcome::compacted_to`]. So the state by key at every moment from there on is
//!   unchanged (TIME.md 6), and so is the offset at which it ends.
//! - **Offsets** never change. The part of a batch that stays keeps its offsets and its stamp.
//! - **Tombstones** (KIP-534): the first run that sees one as the last record of its key drops what
//!   it supersedes, and writes its delete horizon into its batch. A run after that time drops the
//!   tombstone.
//! - A record without a key is dropped, because nothing could ever supersede it. A compacted topic
//!   accepts no such records, so it is older than the topic's compaction policy.
//! - **Transactions.** A record of an aborted transaction supersedes nothing, and stays until a
//!   committed one supersedes it, because readers of uncommitted records see it until then. A run
//!   ends in front of every transaction that is open, or was not decided below the horizon. The
//!   marker of a commit is dropped at once: no cut from the horizon on needs it. That of an abort
//!   stays as long as a record of its transaction.
//! - A batch that cannot be read stays as it is, and no tombstone after it is dropped: the
//!   tombstone might be what keeps a key of that batch from coming back.

mod keys;
mod settings;

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use hlc::{Hlc, SysTime};
use storage::{Offset, StorageError};

use crate::append::{BatchFormat, KeyedRecord, RewriteOutcome};
use keys::KeyOffsetMap;
pub use settings::CompactionSettings;

/// The source of a log's batches. It is read twice.
pub trait BatchSource {
    /// The source's own data about a batch, besides its bytes. It is handed back with the part of
    /// the batch that stays.
    type Entry;

    /// The batches from the one that holds `from`, or the first after it, to the end of the log, by
    /// rising offset.
    ///
    /// The iterator is lazy: a run fetches no batch that it does not need.
    fn batches(
        &self,
        from: Offset,
    ) -> impl Iterator<Item = Result<SourceBatch<Self::Entry>, StorageError>>;

    /// The role of a batch in transactions.
    fn role(&self, _stored: &SourceBatch<Self::Entry>) -> BatchRole {
        BatchRole::Committed
    }
}

/// The role of a batch in transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchRole {
    /// Its records belong to no transaction, or to one that is committed.
    Committed,
    /// Its records belong to an aborted transaction of this producer.
    Aborted { producer: i64 },
    /// It is the marker of a commit.
    CommitMarker,
    /// It is the marker of an abort.
    AbortMarker { producer: i64 },
}

/// A batch of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceBatch<E> {
    /// The first offset of the batch.
    pub base: Offset,
    /// The offset after its last.
    pub end: Offset,
    /// The stamp at which it was accepted.
    pub stamp: Hlc,
    pub batch: Bytes,
    /// The source's own data about it.
    pub entry: E,
}

/// A batch that stays. Its offsets and its stamp are unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactedBatch<E> {
    /// The source's own data about it.
    pub entry: E,
    /// Its new bytes.
    pub batch: Bytes,
    /// True if the bytes differ from the old ones.
    pub is_changed: bool,
}

/// The parameters of one compaction run.
#[derive(Clone, Copy, Debug)]
pub struct CompactionOptions {
    /// Only batches accepted before this may be compacted.
    pub horizon: Hlc,
    /// The first offset that is kept.
    pub start: Offset,
    /// The end of the last run: each key occurs at most once below it.
    pub first_dirty: Offset,
    /// The start of the first transaction that is open, or was not decided below the horizon: the
    /// run ends there.
    pub undecided_from: Offset,
    /// The wall clock.
    pub now: SysTime,
    /// The time that a tombstone stays after a run first sees it.
    pub delete_retention: Duration,
    /// Memory for the keys. If the keys do not fit, the run ends before the batch that exceeds it.
    pub memory_bytes: usize,
    /// Any number that a producer cannot know. It seeds the hash of the keys.
    pub seed: u64,
}

impl CompactionOptions {
    /// The time until which a tombstone stays that this run sees first.
    fn delete_horizon(&self) -> SysTime {
        self.now.saturating_add(self.delete_retention)
    }
}

/// The result of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionOutcome {
    /// Everything below was compacted: the next run's first dirty offset, and the end of the prefix
    /// that the retained batches replace.
    pub until: Offset,
    /// From this bound on, cuts read as before, if they have the decisions of all transactions that
    /// begin below `superseded_by`. [`Hlc::ZERO`] if no record and no batch was dropped: then all
    /// cuts read as before.
    pub compacted_to: Hlc,
    /// Below this offset is every record that superseded another. It is behind `until` if the
    /// memory for keys was full before the last key of a batch.
    pub superseded_by: Offset,
    pub batches_kept: u64,
    /// Batches that stay with other bytes.
    pub batches_changed: u64,
    /// Batches of which nothing stays.
    pub batches_dropped: u64,
    /// Records that stay, except those in batches that cannot be read.
    pub records_kept: u64,
    pub records_dropped: u64,
    /// Bytes that the run read and replaces.
    pub bytes_before: u64,
    /// Bytes that replace them.
    pub bytes_after: u64,
    /// Batches that could not be read and stay as they are.
    pub unreadable: u64,
    /// The first batch of an aborted transaction that stays.
    pub aborted_from: Option<Offset>,
}

impl CompactionOutcome {
    /// Returns true if the retained batches differ from the existing ones. If not, nothing needs to
    /// be replaced.
    pub fn is_change(&self) -> bool {
        self.batches_changed > 0 || self.batches_dropped > 0
    }
}

/// The reason that a log was not compacted. The caller must discard everything that was emitted.
#[derive(Debug, thiserror::Error)]
pub enum CompactionError {
    /// A batch could not be fetched, or what stays could not be written.
    #[error(transparent)]
    Disk(#[from] StorageError),
    /// The log ends before the offset up to which it is said to be compacted.
    #[error(
        "the log ends at offset {}, before its compacted part, which ends at {}",
        .reached.0, .until.0
    )]
    EndsEarly {
        /// The actual end of the batches.
        reached: Offset,
        /// The expected end of the batches.
        until: Offset,
    },
    /// The keys of a single batch do not fit into the memory.
    #[error(
        "the keys of one batch need more memory than the {memory_bytes} bytes that compaction may take: the batch at offset {}",
        .base.0
    )]
    Memory {
        /// The first offset of that batch.
        base: Offset,
        /// The memory that compaction may use.
        memory_bytes: usize,
    },
}

/// Compacts a log below a horizon. Hands what stays of its batches to `emit`, by rising offset,
/// from its start up to [`CompactionOutcome::until`].
///
/// The last batch of the compacted range is emitted even if nothing stays of it: it holds the
/// offset at which cuts end. Batches that an earlier run compacted, and that are now above the
/// horizon because a new pin lowered it, are emitted unchanged.
///
/// # Errors
/// [`CompactionError`], also for what `emit` refuses.
pub fn compact<S: BatchSource>(
    source: &S,
    options: &CompactionOptions,
    format: &dyn BatchFormat,
    emit: &mut dyn FnMut(CompactedBatch<S::Entry>) -> Result<(), StorageError>,
) -> Result<CompactionOutcome, CompactionError> {
    let index = DirtyKeyIndex::build(source, options, format)?;
    let mut cleaning = CompactionPass::new(options, format, index);
    // The last batch that was compacted, if nothing stays of it.
    let mut emptied: Option<CompactedBatch<S::Entry>> = None;
    let mut reached = options.start;
    for stored in source.batches(options.start) {
        let stored = stored?;
        if stored.base >= cleaning.index.until {
            break;
        }
        reached = stored.end;
        // An earlier run went further than this one may.
        if stored.stamp >= options.horizon {
            if let Some(last) = emptied.take() {
                emit(cleaning.count_retained(last))?;
            }
            emit(cleaning.pass_through(stored))?;
            continue;
        }
        let role = source.role(&stored);
        let (compacted, is_empty) = cleaning.compact_batch(stored, role);
        if is_empty {
            emptied = Some(compacted);
        } else {
            emptied = None;
            emit(cleaning.count_retained(compacted))?;
        }
    }
    if let Some(last) = emptied {
        emit(cleaning.count_retained(last))?;
    }
    // Otherwise replacing the prefix would lose what was not read.
    if reached < cleaning.index.until {
        return Err(CompactionError::EndsEarly { reached, until: cleaning.index.until });
    }
    Ok(cleaning.into_outcome())
}

/// The last offset of each key in the dirty range.
struct DirtyKeyIndex {
    keys: KeyOffsetMap,
    until: Offset,
    /// The end of the last batch of which a key was added.
    superseded_by: Offset,
    /// The newest stamp in the range.
    newest_stamp: Hlc,
}

impl DirtyKeyIndex {
    fn build<S: BatchSource>(
        source: &S,
        options: &CompactionOptions,
        format: &dyn BatchFormat,
    ) -> Result<DirtyKeyIndex, CompactionError> {
        let from = options.first_dirty.max(options.start);
        let keys = KeyOffsetMap::new(options.memory_bytes, options.seed);
        let mut index =
            DirtyKeyIndex { keys, until: from, superseded_by: from, newest_stamp: Hlc::ZERO };
        for stored in source.batches(from) {
            let stored = stored?;
            if stored.stamp >= options.horizon || stored.base >= options.undecided_from {
                break;
            }
            index.newest_stamp = stored.stamp;
            index.superseded_by = stored.end;
            let is_committed = source.role(&stored) == BatchRole::Committed;
            if is_committed && !index.add_batch(&stored.batch, format) {
                // The keys of this batch that fitted still supersede what is below it: the batch
                // stays, and is below the horizon.
                if index.until == from {
                    let memory_bytes = options.memory_bytes;
                    return Err(CompactionError::Memory { base: stored.base, memory_bytes });
                }
                break;
            }
            index.until = stored.end;
        }
        Ok(index)
    }

    /// Returns true if all keys of a batch fitted. An unreadable batch has none.
    fn add_batch(&mut self, batch: &Bytes, format: &dyn BatchFormat) -> bool {
        let mut fits = true;
        let _ = format.rewrite(batch, None, &mut |record| {
            if let Some(key) = record.key {
                fits = fits && self.keys.put(key, record.offset);
            }
            true
        });
        fits
    }

    fn supersedes(&self, key: &[u8], offset: Offset) -> bool {
        self.keys.last_offset(key).is_some_and(|last| last > offset)
    }
}

/// The second pass, which drops records.
struct CompactionPass<'a> {
    options: &'a CompactionOptions,
    format: &'a dyn BatchFormat,
    index: DirtyKeyIndex,
    batches_read: u64,
    /// The producers of whose aborted transaction a record stays.
    aborted: HashSet<i64>,
    outcome: CompactionOutcome,
}

impl<'a> CompactionPass<'a> {
    fn new(
        options: &'a CompactionOptions,
        format: &'a dyn BatchFormat,
        index: DirtyKeyIndex,
    ) -> CompactionPass<'a> {
        let outcome = CompactionOutcome {
            until: index.until,
            compacted_to: Hlc::ZERO,
            superseded_by: index.superseded_by,
            batches_kept: 0,
            batches_changed: 0,
            batches_dropped: 0,
            records_kept: 0,
            records_dropped: 0,
            bytes_before: 0,
            bytes_after: 0,
            unreadable: 0,
            aborted_from: None,
        };
        let (batches_read, aborted) = (0, HashSet::new());
        CompactionPass { options, format, index, batches_read, aborted, outcome }
    }

    /// The part of a batch that stays, and whether that is nothing.
    fn compact_batch<E>(
        &mut self,
        stored: SourceBatch<E>,
        role: BatchRole,
    ) -> (CompactedBatch<E>, bool) {
        self.count_read(&stored.batch);
        // This includes the stamp of the last batch, which stays: a cut from there on has the same
        // end.
        self.index.newest_stamp = self.index.newest_stamp.max(stored.stamp);
        let SourceBatch { base, entry, .. } = stored;
        let is_needed = match role {
            BatchRole::Committed | BatchRole::Aborted { .. } => None,
            BatchRole::CommitMarker => Some(false),
            BatchRole::AbortMarker { producer } => Some(self.aborted.remove(&producer)),
        };
        if let Some(is_needed) = is_needed {
            let batch = stored.batch;
            return (CompactedBatch { entry, batch, is_changed: false }, !is_needed);
        }
        let is_committed = role == BatchRole::Committed;
        // A tombstone that the index has not seen may still have something to supersede: it was in
        // a batch that could not be read when it was dirty.
        let is_indexed = stored.end > self.options.first_dirty;
        let is_safe = self.outcome.unreadable == 0 && is_committed;
        let delete_horizon = (is_indexed && is_safe).then(|| self.options.delete_horizon());
        let (mut retained, mut dropped) = (0, 0);
        let rewritten = self.format.rewrite(&stored.batch, delete_horizon, &mut |record| {
            let stays = self.must_retain(record, is_safe);
            *(if stays { &mut retained } else { &mut dropped }) += 1;
            stays
        });
        self.outcome.records_kept += retained;
        self.outcome.records_dropped += dropped;
        let (batch, is_changed, is_empty) = match rewritten {
            Ok(RewriteOutcome::Unchanged) => (stored.batch, false, false),
            Ok(RewriteOutcome::Changed(batch)) => (batch, true, false),
            Ok(RewriteOutcome::Empty(batch)) => {
                let is_changed = batch != stored.batch;
                (batch, is_changed, true)
            }
            Err(why) => {
                self.outcome.unreadable += 1;
                tracing::debug!(why, base = base.0, "a batch stays as it is");
                (stored.batch, false, false)
            }
        };
        if let BatchRole::Aborted { producer } = role
            && !is_empty
        {
            self.aborted.insert(producer);
            self.outcome.aborted_from.get_or_insert(base);
        }
        (CompactedBatch { entry, batch, is_changed }, is_empty)
    }

    fn must_retain(&self, record: &KeyedRecord<'_>, is_safe: bool) -> bool {
        let Some(key) = record.key else { return false };
        if self.index.supersedes(key, record.offset) {
            return false;
        }
        let is_due = || record.delete_horizon.is_some_and(|time| self.options.now >= time);
        !(record.is_tombstone && is_safe && is_due())
    }

    /// Passes on a batch that this run must not touch.
    fn pass_through<E>(&mut self, stored: SourceBatch<E>) -> CompactedBatch<E> {
        self.count_read(&stored.batch);
        self.count_retained(CompactedBatch {
            entry: stored.entry,
            batch: stored.batch,
            is_changed: false,
        })
    }

    fn count_read(&mut self, batch: &Bytes) {
        self.batches_read += 1;
        self.outcome.bytes_before += batch.len() as u64;
    }

    fn count_retained<E>(&mut self, compacted: CompactedBatch<E>) -> CompactedBatch<E> {
        self.outcome.batches_kept += 1;
        self.outcome.batches_changed += u64::from(compacted.is_changed);
        self.outcome.bytes_after += compacted.batch.len() as u64;
        compacted
    }

    fn into_outcome(self) -> CompactionOutcome {
        let batches_dropped = self.batches_read - self.outcome.batches_kept;
        let is_less = self.outcome.records_dropped > 0 || batches_dropped > 0;
        let compacted_to = if is_less { self.index.newest_stamp.next() } else { Hlc::ZERO };
        CompactionOutcome { batches_dropped, compacted_to, ..self.outcome }
    }
}
