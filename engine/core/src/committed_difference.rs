//! The committed records that a partition shows at one cut, and did not show at an earlier one.
//!
//! It is no range of offsets: a transaction that was committed between the cuts may have records
//! below the end of the earlier one, and records that were written between them may be undecided at
//! the later one, or aborted.
//!
//! Invariant: the transaction of a batch follows from its producer and its offset. So the answer
//! does not depend on the markers that are still there.

use std::ops::Range;

use hlc::Cut;
use storage::{EntryPayload, Offset, PayloadLocation};

use crate::blocking::{block_in_place, read_log_from, tip_at};
use crate::engine_core::EngineCore;
use crate::error::EngineError;
use crate::log_transactions::EndedTransaction;
use crate::namespace::Partition;
use crate::numbering::KIND_MARKER;
use crate::transaction_intervals::TransactionIntervals;
use crate::transactions::ExcludedTransaction;

/// The most bytes of batches that are looked at, at once.
const STEP_BYTES: usize = 4 << 20;
/// The bytes of a batch that name its producer.
const HEADER_BYTES: usize = 64;

/// The committed records that a partition shows at a cut, and not at an earlier one.
#[derive(Debug)]
pub struct CommittedDifference<'a> {
    core: &'a EngineCore,
    partition: &'a Partition,
    /// The ends of the partition at both cuts.
    ends: Range<Offset>,
    /// The transactions that were committed between the cuts, and began before the earlier one.
    earlier: Vec<EndedTransaction>,
    /// The transactions that are not decided at the later cut.
    undecided: Vec<ExcludedTransaction>,
    /// The number of entries of the transaction log that were read for the two.
    read: usize,
}

/// A part of [`CommittedDifference`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DifferencePart {
    /// From the first of the records up to the one behind the last. Others may lie between them.
    pub range: Range<Offset>,
    pub records: u64,
    /// The bytes of the batches that hold them.
    pub bytes: u64,
    /// The number of batches that were looked at.
    pub batches: usize,
    /// The number of ends of transactions that were looked at for it.
    pub transactions: usize,
    /// The start of the next part, if there is one.
    pub next: Option<Offset>,
}

impl EngineCore {
    /// The committed records that a partition shows at `until`, and did not show at `from`. Both
    /// are closed, and the history reaches back to `from`.
    ///
    /// # Errors
    /// The logs cannot be read.
    pub fn committed_difference<'a>(
        &'a self,
        partition: &'a Partition,
        from: Cut,
        until: Cut,
    ) -> Result<CommittedDifference<'a>, EngineError> {
        let log = &partition.log;
        let ends = tip_at(log, from)?.end..tip_at(log, until)?.end;
        let mut earlier = Vec::new();
        let without_marker = partition.transactions.committed_below(ends.start, until);
        let read = self.each_decided_from(partition, ends.start, from, |ended| {
            if ended.is_committed && until.admits(ended.decided) {
                earlier.push(ended);
            }
        })?;
        for ended in without_marker {
            let is_known =
                earlier.iter().any(|known: &EndedTransaction| known.first == ended.first);
            if !is_known && !from.admits(ended.decided) {
                earlier.push(ended);
            }
        }
        let (undecided, more) = if ends.is_empty() {
            (Vec::new(), 0)
        } else {
            self.undecided_below(partition, ends.end, until)?
        };
        let read = read + more;
        Ok(CommittedDifference { core: self, partition, ends, earlier, undecided, read })
    }
}

impl CommittedDifference<'_> {
    /// The first cut from which on all of it is still there, if some has been removed: that after
    /// the decision of the last transaction that has lost records.
    pub fn earliest(&self) -> Option<Cut> {
        let start = self.partition.start();
        let cut_off = self.earlier.iter().filter(|ended| ended.first < start);
        cut_off.map(|ended| ended.decided).max().map(Cut::through)
    }

    /// The part that begins at `from`; `None` for the first. It ends after `batches_max` batches
    /// that had to be looked at one by one: those of transactions, and what lies between them.
    /// Aborted transactions that lie around them count as batches.
    ///
    /// Call [`CommittedDifference::earliest`] after it, because records may be removed meanwhile.
    ///
    /// # Errors
    /// The logs cannot be read.
    pub fn part(
        &self,
        from: Option<Offset>,
        batches_max: usize,
    ) -> Result<DifferencePart, EngineError> {
        let first = self.earlier.iter().map(|ended| ended.first).min().unwrap_or(self.ends.start);
        let mut next = from.unwrap_or(first).max(first);
        let mut part = DifferencePart { transactions: self.read, ..DifferencePart::default() };
        let is_full =
            |part: &DifferencePart| part.batches + part.transactions >= self.read + batches_max;
        while next < self.ends.end && !is_full(&part) {
            // The earlier transactions are open up to the end of the earlier cut.
            let mixed = if next < self.ends.start {
                Some(next)
            } else {
                self.core.transactions_from(self.partition, next)?
            };
            next = match mixed {
                Some(mixed) if mixed <= next => self.scan(next, batches_max, &mut part)?,
                _ => {
                    let plain = next..mixed.map_or(self.ends.end, |mixed| mixed.min(self.ends.end));
                    part.add(&plain, self.bytes_of(&plain)?);
                    plain.end
                }
            };
        }
        part.next = (next < self.ends.end).then_some(next);
        Ok(part)
    }

    /// Looks at some batches from `from` on, until `part` has looked at `batches_max`. Returns
    /// where it stopped.
    fn scan(
        &self,
        from: Offset,
        batches_max: usize,
        part: &mut DifferencePart,
    ) -> Result<Offset, EngineError> {
        let log = &self.partition.log;
        // Below the end of the earlier cut, only the earlier transactions count.
        let is_below = from < self.ends.start;
        let until = if is_below { self.ends.start } else { self.ends.end };
        let mut pieces = read_log_from(log, from, || log.read(from, until, STEP_BYTES))?;
        pieces.truncate(batches_max - part.batches);
        let Some(last) = pieces.last() else { return Ok(until) };
        let next = last.entry.end();
        let transactions = if is_below {
            TransactionIntervals::new(self.earlier.iter().map(EndedTransaction::interval))
        } else {
            let aborted = self.core.aborted_transactions(self.partition, &(from..next))?;
            part.transactions += aborted.len();
            let undecided = self.undecided.iter().filter(|one| one.first < next);
            let undecided = undecided.map(|one| (one.producer, one.first, Offset(u64::MAX)));
            let aborted = aborted.iter().map(EndedTransaction::interval);
            TransactionIntervals::new(aborted.chain(undecided))
        };
        for piece in &pieces {
            part.batches += 1;
            if piece.entry.kind == KIND_MARKER {
                continue;
            }
            let base = piece.entry.base;
            let producer = self.transactional_producer(piece)?;
            let is_among = producer.is_some_and(|producer| transactions.contains(producer, base));
            // Below, only the earlier transactions count; above, all that are not left out.
            if is_among == is_below {
                part.add(&(base..piece.entry.end()), u64::from(piece.entry.length));
            }
        }
        Ok(next)
    }

    /// The producer of a batch of a transaction; `None` for another batch.
    fn transactional_producer(&self, piece: &EntryPayload) -> Result<Option<i64>, EngineError> {
        let start = 0..HEADER_BYTES.min(piece.entry.length as usize);
        let start = match piece.location {
            PayloadLocation::Memory(_) => piece.read_range(start),
            PayloadLocation::File { .. } => block_in_place(|| piece.read_range(start)),
        };
        let producer = self.core.format.producer(&start?);
        Ok(producer.filter(|producer| producer.is_transactional).map(|producer| producer.id))
    }

    fn bytes_of(&self, range: &Range<Offset>) -> Result<u64, EngineError> {
        let log = &self.partition.log;
        Ok(read_log_from(log, range.start, || log.bytes_between(range.start, range.end))?)
    }
}

impl DifferencePart {
    fn add(&mut self, range: &Range<Offset>, bytes: u64) {
        if self.records == 0 {
            self.range.start = range.start;
        }
        self.range.end = range.end;
        self.records += range.end.0 - range.start.0;
        self.bytes += bytes;
    }
}
