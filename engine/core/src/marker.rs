//! The end of a transaction in its partitions: markers, and the entries of transaction logs.
//!
//! A decision and its markers are one request to the store, in this order: they share one write and
//! one sync. The next start writes the markers that a crash cut off; a marker is never there
//! without its decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hlc::Hlc;
use storage::{GroupNumber, LogAppend, LogId, Offset, Payload, UndoLog};

use crate::append::{AppendNote, event_append};
use crate::error::EngineError;
use crate::log_transactions::{EndedTransaction, LogTransactions, transaction_log_of};
use crate::namespace::Partition;
use crate::numbering::{KIND_ENDED_TRANSACTION, KIND_MARKER};
use crate::producers::ProducerStates;
use crate::user_time::NO_TIMES;

/// The end of a producer's transaction: commit or abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionEnd {
    pub producer: i64,
    /// The epoch with which the producer goes on.
    pub epoch: i16,
    pub is_committed: bool,
}

/// The stamp of a decision, once it is known.
#[derive(Debug, Default)]
pub struct DecisionStamp(AtomicU64);

impl DecisionStamp {
    /// The stamp of a decision that is in the journal.
    pub fn known(stamp: Hlc) -> Arc<DecisionStamp> {
        Arc::new(DecisionStamp(AtomicU64::new(stamp.bits())))
    }

    pub(crate) fn set(&self, stamp: Hlc) {
        self.0.store(stamp.bits(), Ordering::Release);
    }

    fn get(&self) -> Hlc {
        Hlc::from_bits(self.0.load(Ordering::Acquire))
    }
}

/// The facts about a marker that the writer's thread needs.
#[derive(Clone, Debug)]
pub struct MarkerNote {
    end: TransactionEnd,
    decision: Arc<DecisionStamp>,
    transactions: Arc<LogTransactions>,
}

/// The appends that end a transaction in a partition. Both are refused if it has none there.
pub(crate) fn marker_appends(
    partition: &Partition,
    end: TransactionEnd,
    marker: Payload,
    decision: &Arc<DecisionStamp>,
) -> [LogAppend<AppendNote>; 2] {
    let note = AppendNote::Marker(MarkerNote {
        end,
        decision: Arc::clone(decision),
        transactions: Arc::clone(&partition.transactions),
    });
    let marker =
        LogAppend { user: NO_TIMES, ..event_append(partition.log.id, KIND_MARKER, marker, note) };
    let (log, kind) = (transaction_log_of(partition.log.id), KIND_ENDED_TRANSACTION);
    let payload =
        Payload { header: EndedTransaction::PLACEHOLDER.encode(), rest: Default::default() };
    [marker, event_append(log, kind, payload, AppendNote::EndedTransaction)]
}

/// The entry of a transaction log whose marker was the last that a crash left.
pub(crate) fn ended_append(partition: LogId, ended: &EndedTransaction) -> LogAppend<AppendNote> {
    let payload = Payload { header: ended.encode(), rest: Default::default() };
    let log = transaction_log_of(partition);
    let append = event_append(log, KIND_ENDED_TRANSACTION, payload, AppendNote::Event);
    LogAppend { user: ended.user_times(), ..append }
}

/// A transaction that begins or ends with an append that is not visible yet: its partition, and the
/// offset of its first record.
#[derive(Debug)]
enum StagedBoundary {
    Begun(Arc<LogTransactions>, Offset),
    Ended(Arc<LogTransactions>, Offset),
}

/// Transactions that begin or end with the appends that are being written.
#[derive(Debug, Default)]
pub(crate) struct MarkerStage {
    staged: UndoLog<StagedBoundary>,
    /// The transaction that the last marker ended.
    last: Option<(LogId, EndedTransaction)>,
}

impl MarkerStage {
    /// Records that a transaction has its first record at `first`. It is open from now on, before
    /// the record is visible.
    pub(crate) fn open(
        &mut self,
        transactions: &Arc<LogTransactions>,
        first: Offset,
        producer: i64,
    ) {
        transactions.begin(first, producer);
        self.staged.push(StagedBoundary::Begun(Arc::clone(transactions), first));
    }

    pub(crate) fn stage_marker(
        &mut self,
        producers: &mut ProducerStates,
        log: LogId,
        note: &MarkerNote,
        marker: Offset,
        stamp: Hlc,
    ) -> Result<(), EngineError> {
        self.last = None;
        let decided = note.decision.get();
        if decided == Hlc::ZERO {
            // The clock gave the decision no stamp: there is none.
            return Err(EngineError::NoOpenTransaction { producer: note.end.producer });
        }
        let TransactionEnd { producer, epoch, is_committed } = note.end;
        let open = producers
            .stage_marker(log, producer, epoch, stamp)
            .ok_or(EngineError::NoOpenTransaction { producer })?;
        assert!(
            decided > open.stamp && decided < stamp,
            "a transaction is decided behind its first record and before its marker: decided at {decided}, first record at {}, marker at {stamp}",
            open.stamp
        );
        let stable_to = producers.first_open(log).unwrap_or(Offset(marker.0 + 1));
        let first = open.first;
        let ended = EndedTransaction { producer, first, marker, decided, stable_to, is_committed };
        self.last = Some((log, ended));
        self.staged.push(StagedBoundary::Ended(Arc::clone(&note.transactions), first));
        Ok(())
    }

    /// Completes the entry that belongs to the last marker.
    pub(crate) fn stage_ended(
        &mut self,
        append: &mut LogAppend<AppendNote>,
    ) -> Result<(), EngineError> {
        let belongs = |(log, _): &mut (LogId, _)| transaction_log_of(*log) == append.log;
        let Some((_, ended)) = self.last.take_if(belongs) else {
            return Err(EngineError::NoOpenTransaction { producer: -1 });
        };
        append.payload.header = ended.encode();
        append.user = ended.user_times();
        Ok(())
    }

    /// Begins a group: later changes belong to it.
    pub(crate) fn begin(&mut self, group: GroupNumber) {
        self.staged.begin(group);
        self.last = None;
    }

    /// The markers and entries of the groups up to `group` are visible: their transactions are over.
    pub(crate) fn commit(&mut self, group: GroupNumber) {
        for boundary in self.staged.commit(group) {
            if let StagedBoundary::Ended(transactions, first) = boundary {
                transactions.end(first);
            }
        }
    }

    /// The groups from `from` on will never be visible: what they begin is not open.
    pub(crate) fn rollback(&mut self, from: GroupNumber) {
        self.last = None;
        while let Some(boundary) = self.staged.pop(from) {
            if let StagedBoundary::Begun(transactions, first) = boundary {
                transactions.end(first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_of_a_dropped_group_is_not_open_and_one_whose_marker_is_dropped_still_is() {
        let transactions = Arc::new(LogTransactions::default());
        let open = |stage: &mut MarkerStage, number, first| {
            stage.begin(GroupNumber(number));
            stage.open(&transactions, Offset(first), 9);
        };
        let end = |stage: &mut MarkerStage, number, first| {
            stage.begin(GroupNumber(number));
            stage.staged.push(StagedBoundary::Ended(Arc::clone(&transactions), Offset(first)));
        };
        let mut stage = MarkerStage::default();
        open(&mut stage, 1, 10);
        end(&mut stage, 2, 10);
        open(&mut stage, 3, 20);
        assert_eq!(transactions.first_unstable(), Some(Offset(10)), "no marker is visible");
        stage.commit(GroupNumber(1));
        stage.rollback(GroupNumber(2));
        assert_eq!(transactions.first_unstable(), Some(Offset(10)), "its marker was dropped");
        stage.commit(GroupNumber(3));
        end(&mut stage, 2, 10);
        open(&mut stage, 3, 30);
        stage.commit(GroupNumber(2));
        assert_eq!(transactions.first_unstable(), Some(Offset(30)));
        stage.rollback(GroupNumber(3));
        assert_eq!(transactions.first_unstable(), None);
    }
}
