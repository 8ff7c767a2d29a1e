//! Deciding transactions, and what readers leave out of a partition because of them.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use hlc::{Cut, Hlc, UserTime};
use parking_lot::Mutex;
use storage::{
    AppendResults, Durability, EntryPayload, Log, LogAppend, LogId, Offset, StorageError,
};
use tokio::sync::oneshot;

use crate::append::AppendNote;
use crate::applier::PendingStamp;
use crate::blocking::{block_in_place, read, read_log_from, tip_at};
use crate::engine_core::{EngineCore, EngineState, EngineStore};
use crate::error::EngineError;
use crate::log_transactions::{EndedTransaction, transaction_log_of};
use crate::marker::{DecisionStamp, TransactionEnd, ended_append, marker_appends};
use crate::namespace::Partition;
use crate::numbering::KIND_MARKER;
use crate::producers::{ActiveProducer, OpenTransaction, ProducerStates};
use crate::projection::EventProjection;
use crate::replay::UnfinishedMarker;

/// The most bytes of a transaction log that are read at once.
const READ_BYTES: usize = 64 << 10;

/// A transaction to be decided.
pub struct TransactionDecision<'a> {
    /// The projection that the event belongs to, and the event.
    pub projection: &'a dyn EventProjection,
    pub event: Vec<u8>,
    pub end: TransactionEnd,
    /// The partitions in which it may have records.
    pub partitions: Vec<Arc<Partition>>,
}

/// A decision, and its markers, on their way to the journal.
#[derive(Debug)]
pub struct EndingTransaction {
    decision: PendingStamp,
    markers: PendingMarkers,
}

/// Markers on their way to the journal.
#[derive(Debug)]
struct PendingMarkers {
    end: TransactionEnd,
    partitions: Vec<Arc<Partition>>,
    results: oneshot::Receiver<AppendResults<EngineError>>,
}

impl EndingTransaction {
    /// Waits until the decision is applied. Returns its stamp, and the partitions whose markers
    /// could not be written.
    ///
    /// # Errors
    /// The disk fails: there is no decision.
    pub async fn wait(self) -> Result<(Hlc, Vec<Arc<Partition>>), EngineError> {
        let decided = self.decision.wait().await?;
        Ok((decided, self.markers.missing(decided).await))
    }
}

impl PendingMarkers {
    async fn missing(self, decided: Hlc) -> Vec<Arc<Partition>> {
        let missing = match self.results.await {
            Ok(results) => missing_markers(self.partitions, &results),
            Err(_) => self.partitions,
        };
        note_decision(self.end, decided, missing)
    }
}

/// Makes known to readers how a transaction ended in partitions that lack its marker.
fn note_decision(
    end: TransactionEnd,
    decided: Hlc,
    missing: Vec<Arc<Partition>>,
) -> Vec<Arc<Partition>> {
    if end.is_committed {
        missing.iter().for_each(|one| one.transactions.note_commit(end.producer, decided));
    }
    missing
}

/// The partitions whose marker, or the entry that belongs to it, was not written.
fn missing_markers(
    partitions: Vec<Arc<Partition>>,
    results: &[Result<storage::AppendReceipt, storage::AppendError<EngineError>>],
) -> Vec<Arc<Partition>> {
    let is_missing = |result: &Result<_, storage::AppendError<EngineError>>| match result {
        Ok(_) => false,
        // The transaction has no record there, or its marker is there already.
        Err(storage::AppendError::Refused(EngineError::NoOpenTransaction { .. })) => false,
        Err(_) => true,
    };
    let pairs = partitions.into_iter().zip(results.chunks_exact(2));
    pairs.filter(|(_, pair)| pair.iter().any(is_missing)).map(|(one, _)| one).collect()
}

/// A transaction of which a reader leaves out the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExcludedTransaction {
    /// The offset of its first record. From there on up to its marker, or to the end of what is
    /// read, all records of its producer belong to it.
    pub first: Offset,
    pub producer: i64,
}

impl EngineCore {
    /// Appends a decision and its markers. When this returns, their place is fixed: later appends
    /// come behind them.
    ///
    /// # Errors
    /// The engine accepts no more events.
    pub fn begin_decision(
        &self,
        decision: TransactionDecision<'_>,
    ) -> Result<EndingTransaction, EngineError> {
        let TransactionDecision { projection, event, end, partitions } = decision;
        let stamp = Arc::new(DecisionStamp::default());
        let markers = self.marker_appends(end, &stamp, &partitions);
        let (sender, results) = oneshot::channel();
        let decision = self.append_decision(projection, event, stamp, (markers, sender))?;
        Ok(EndingTransaction { decision, markers: PendingMarkers { end, partitions, results } })
    }

    /// Writes the markers of a transaction that was decided at `decided`; returns the partitions
    /// where that failed.
    pub async fn write_markers(
        &self,
        end: TransactionEnd,
        decided: Hlc,
        partitions: Vec<Arc<Partition>>,
    ) -> Vec<Arc<Partition>> {
        let markers = self.marker_appends(end, &DecisionStamp::known(decided), &partitions);
        let (sender, results) = oneshot::channel();
        self.store.append(markers, Durability::Synced, move |results| {
            let _ = sender.send(results);
        });
        PendingMarkers { end, partitions, results }.missing(decided).await
    }

    /// [`EngineCore::write_markers`], on a thread that may block.
    pub fn write_markers_blocking(
        &self,
        end: TransactionEnd,
        decided: Hlc,
        partitions: Vec<Arc<Partition>>,
    ) -> Vec<Arc<Partition>> {
        let markers = self.marker_appends(end, &DecisionStamp::known(decided), &partitions);
        let (sender, results) = std::sync::mpsc::channel();
        self.store.append(markers, Durability::Synced, move |results| {
            let _ = sender.send(results);
        });
        if self.is_manually_stepped() {
            while self.step() {}
        }
        let missing = match results.recv() {
            Ok(results) => missing_markers(partitions, &results),
            Err(_) => partitions,
        };
        note_decision(end, decided, missing)
    }

    fn marker_appends(
        &self,
        end: TransactionEnd,
        decision: &Arc<DecisionStamp>,
        partitions: &[Arc<Partition>],
    ) -> Vec<LogAppend<AppendNote>> {
        if partitions.is_empty() {
            return Vec::new();
        }
        let marker = self.format.marker(&end, self.wall_now());
        let appends = partitions
            .iter()
            .flat_map(|partition| marker_appends(partition, end, marker.clone(), decision));
        appends.collect()
    }

    /// The transactions that have records and no marker: the partition, the producer, and the start
    /// of each. Transactions of deleted topics are missing.
    pub fn open_transactions(&self) -> Vec<(Arc<Partition>, i64, OpenTransaction)> {
        let open = self.producers.lock().open_transactions();
        let partitions = self.partitions_by_log();
        let known = |(log, producer, open): (LogId, i64, OpenTransaction)| {
            Some((Arc::clone(partitions.get(&log)?), producer, open))
        };
        open.into_iter().filter_map(known).collect()
    }

    /// The producers that a partition remembers, by id.
    pub fn active_producers(&self, partition: &Partition) -> Vec<ActiveProducer> {
        let mut found = self.producers.lock().of_log(partition.log.id);
        found.sort_unstable_by_key(|producer| producer.id);
        found
    }

    /// Makes sure that the transaction log of a partition is there, before a transaction begins in
    /// it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn prepare_transactions(&self, partition: &Partition) -> Result<(), EngineError> {
        let ended = &partition.transactions.ended;
        if ended.get().is_none() {
            let log = block_in_place(|| self.store.log(transaction_log_of(partition.log.id)))?;
            ended.get_or_init(|| log);
        }
        Ok(())
    }

    /// Completes the transaction logs in which a crash left the last entry out. `decided` is asked
    /// for the decision of a producer's last transaction: its stamp, and whether it is committed.
    ///
    /// # Errors
    /// The disk refuses it.
    pub fn complete_transaction_logs(
        &self,
        decided: impl Fn(i64) -> Option<(Hlc, bool)>,
    ) -> Result<(), EngineError> {
        for (partition, marker) in std::mem::take(&mut *self.unfinished.lock()) {
            let UnfinishedMarker { producer, first, marker, .. } = marker;
            let Some((decided, is_committed)) = decided(producer) else {
                let what = format!(
                    "the marker of producer {producer} at offset {} of partition {} has no decision",
                    marker.0, partition.index
                );
                return Err(EngineError::Corrupt(what));
            };
            let stable_to = self.producers.lock().first_open(partition.log.id);
            let stable_to = stable_to.unwrap_or(Offset(marker.0 + 1));
            let ended =
                EndedTransaction { producer, first, marker, decided, stable_to, is_committed };
            let (sender, receiver) = std::sync::mpsc::channel();
            let append = ended_append(partition.log.id, &ended);
            self.store.append(vec![append], Durability::Synced, move |mut results| {
                let _ = sender.send(results.pop().expect("one append, one result"));
            });
            if self.is_manually_stepped() {
                while self.step() {}
            }
            receiver.recv().map_err(|_| EngineError::closing())??;
        }
        Ok(())
    }

    fn partitions_by_log(&self) -> HashMap<LogId, Arc<Partition>> {
        partitions_by_log(&self.shared)
    }

    /// The transaction log of a partition; `None` if it never had a transaction.
    fn transaction_log<'a>(
        &self,
        partition: &'a Partition,
    ) -> Result<Option<&'a Arc<Log>>, StorageError> {
        let ended = &partition.transactions.ended;
        if let Some(log) = ended.get() {
            return Ok(Some(log));
        }
        if !partition.transactions.is_used() {
            return Ok(None);
        }
        let log = block_in_place(|| self.store.log(transaction_log_of(partition.log.id)))?;
        Ok(Some(ended.get_or_init(|| log)))
    }

    /// The aborted transactions with a record or their marker in `range`, or around it, by first
    /// offset.
    ///
    /// Its cost depends on them alone.
    ///
    /// # Errors
    /// The transaction log cannot be read.
    pub fn aborted_in(
        &self,
        partition: &Partition,
        range: Range<Offset>,
    ) -> Result<Vec<ExcludedTransaction>, EngineError> {
        let mut found = Vec::new();
        self.collect_aborted(partition, &range, &mut found)?;
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// The transactions that a reader of committed records leaves out of `range` in a cut that ends
    /// there or behind it: the aborted ones, and those that were not decided before `cut` (TIME.md
    /// 7).
    ///
    /// # Errors
    /// The transaction log cannot be read.
    pub fn excluded_in(
        &self,
        partition: &Partition,
        range: Range<Offset>,
        cut: Cut,
    ) -> Result<Vec<ExcludedTransaction>, EngineError> {
        let mut found = self.undecided_in(partition, range.clone(), cut)?;
        self.collect_aborted(partition, &range, &mut found)?;
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// The transactions that begin below the end of `range`, and were not decided in `cut`.
    ///
    /// # Errors
    /// The transaction log cannot be read.
    pub fn undecided_in(
        &self,
        partition: &Partition,
        range: Range<Offset>,
        cut: Cut,
    ) -> Result<Vec<ExcludedTransaction>, EngineError> {
        let (mut found, _) = self.undecided_below(partition, range.end, cut)?;
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// The transactions that begin below `end`, and were not decided in `cut`, in any order; some
    /// of them twice. Also how many entries of the transaction log were read.
    pub(crate) fn undecided_below(
        &self,
        partition: &Partition,
        end: Offset,
        cut: Cut,
    ) -> Result<(Vec<ExcludedTransaction>, usize), EngineError> {
        // The open transactions first: one that ends meanwhile is in the transaction log by then.
        let open = partition.transactions.uncommitted_below(end, cut).into_iter();
        let open = open.map(|(first, producer)| ExcludedTransaction { first, producer });
        let mut found: Vec<_> = open.collect();
        let read = self.each_decided_from(partition, end, cut, |ended| {
            let EndedTransaction { first, producer, .. } = ended;
            found.push(ExcludedTransaction { first, producer });
        })?;
        Ok((found, read))
    }

    /// The transactions that have ended and lie around an offset: they begin before it, and their
    /// markers are at it or behind it.
    ///
    /// # Errors
    /// The transaction log cannot be read.
    pub(crate) fn transactions_around(
        &self,
        partition: &Partition,
        at: Offset,
    ) -> Result<Vec<EndedTransaction>, EngineError> {
        let mut found = Vec::new();
        let Some(log) = self.transaction_log(partition)? else { return Ok(Vec::new()) };
        let mut from = first_marker_from(log, partition, at)?;
        loop {
            let pieces = read_log_from(log, from, || log.read(from, log.end(), READ_BYTES))?;
            let Some(last) = pieces.last() else { return Ok(found) };
            from = last.entry.end();
            for piece in &pieces {
                let ended = read_ended(piece)?;
                if ended.first < at && ended.marker >= at {
                    found.push(ended);
                }
                if ended.stable_to >= at {
                    return Ok(found);
                }
            }
        }
    }

    /// The aborted transactions with a record or their marker in `range`, or around it.
    ///
    /// # Errors
    /// The transaction log cannot be read.
    pub(crate) fn aborted_transactions(
        &self,
        partition: &Partition,
        range: &Range<Offset>,
    ) -> Result<Vec<EndedTransaction>, EngineError> {
        let Some(log) = self.transaction_log(partition)? else { return Ok(Vec::new()) };
        let (mut from, mut reach) = (log.start(), UserTime(range.start.0 as i64));
        let mut found = Vec::new();
        // The largest user time of the log is the last marker of an aborted transaction.
        while log.tip().user_time_max >= reach {
            let next = read_log_from(log, from, || log.first_reaching(reach, from))?;
            let Some(piece) = next else { break };
            let ended = read_ended(&piece)?;
            if ended.first < range.end {
                found.push(ended);
            }
            if ended.stable_to >= range.end {
                break;
            }
            from = piece.entry.end();
            reach = UserTime(ended.marker.0 as i64 + 1);
        }
        Ok(found)
    }

    /// The offset up to which the transaction log of a partition may be removed, once all records
    /// below `start` are.
    ///
    /// # Errors
    /// The logs cannot be read.
    pub(crate) fn transaction_log_start(
        &self,
        partition: &Partition,
        start: Offset,
    ) -> Result<(LogId, Offset), EngineError> {
        let id = transaction_log_of(partition.log.id);
        // Not kept: most partitions never have a transaction.
        let log = self.store.log(id)?;
        Ok((id, first_marker_from(&log, partition, start)?))
    }

    /// The same after compaction, of whose aborted transactions the first with a record left begins
    /// at `aborted_from`. Entries of transactions that were decided at or behind the compaction
    /// horizon stay: cuts from there on can be read.
    ///
    /// # Errors
    /// The logs cannot be read.
    pub(crate) fn compacted_transaction_log_start(
        &self,
        partition: &Partition,
        aborted_from: Option<Offset>,
    ) -> Result<(LogId, Offset), EngineError> {
        let horizon = partition.log.horizon();
        let until = aborted_from.map_or(horizon.clean_to, |first| first.min(horizon.clean_to));
        let (id, start) = self.transaction_log_start(partition, until)?;
        let log = self.store.log(id)?;
        let decided = tip_at(&log, Cut::below(horizon.compacted_to))?.end;
        Ok((id, start.min(decided)))
    }

    fn collect_aborted(
        &self,
        partition: &Partition,
        range: &Range<Offset>,
        found: &mut Vec<ExcludedTransaction>,
    ) -> Result<(), EngineError> {
        let clean_to = partition.log.horizon().clean_to;
        for ended in self.aborted_transactions(partition, range)? {
            let EndedTransaction { first, producer, marker, .. } = ended;
            // Compaction drops a marker once no record of its transaction is left. A reader that
            // knew of it would leave out what the producer wrote later.
            if marker >= clean_to || has_marker(partition, marker)? {
                found.push(ExcludedTransaction { first, producer });
            }
        }
        Ok(())
    }

    /// Calls `visit` with the transactions that have ended, begin below `end`, and were not decided
    /// in `cut`. Returns how many entries of the transaction log it read: those up to the end of
    /// the last one that was open at `end`.
    pub(crate) fn each_decided_from(
        &self,
        partition: &Partition,
        end: Offset,
        cut: Cut,
        mut visit: impl FnMut(EndedTransaction),
    ) -> Result<usize, EngineError> {
        let Some(log) = self.transaction_log(partition)? else { return Ok(0) };
        // An entry has a larger stamp than the decision.
        let mut from = tip_at(log, cut)?.end.max(log.start());
        let mut read = 0;
        loop {
            let pieces = read_log_from(log, from, || log.read(from, log.end(), READ_BYTES))?;
            let Some(last) = pieces.last() else { return Ok(read) };
            from = last.entry.end();
            for piece in &pieces {
                let ended = read_ended(piece)?;
                read += 1;
                if !cut.admits(ended.decided) && ended.first < end {
                    visit(ended);
                }
                if ended.stable_to >= end {
                    return Ok(read);
                }
            }
        }
    }

    /// The first offset at `from` or behind it that may belong to a transaction: no record between
    /// the two does.
    pub(crate) fn transactions_from(
        &self,
        partition: &Partition,
        from: Offset,
    ) -> Result<Option<Offset>, EngineError> {
        // The open ones first: one that ends meanwhile is in the transaction log by then.
        let open = partition.transactions.first_unstable();
        let Some(log) = self.transaction_log(partition)? else { return Ok(open) };
        let next = first_marker_from(log, partition, from)?;
        let next = read_log_from(log, next, || log.payload_at(next))?;
        let Some(next) = next.as_ref().map(read_ended).transpose()? else { return Ok(open) };
        // Transactions that end later were open at its marker, or begin behind it.
        let first = next.first.min(next.stable_to);
        Ok(Some(open.map_or(first, |open| open.min(first))))
    }
}

/// The first entry of a partition's transaction log that may have a marker at `at` or behind it.
fn first_marker_from(log: &Log, partition: &Partition, at: Offset) -> Result<Offset, StorageError> {
    let records = &partition.log;
    // Read first: a marker that comes meanwhile is not below `at`.
    let end = log.end();
    let entry = read_log_from(records, at, || records.entry_at(at))?;
    // The entry of a marker comes behind it, and before what follows the marker.
    Ok(match entry {
        Some(entry) => tip_at(log, Cut::below(entry.stamp))?.end.max(log.start()),
        None => end,
    })
}

/// Returns true if the marker at an offset is still there.
fn has_marker(partition: &Partition, marker: Offset) -> Result<bool, StorageError> {
    let log = &partition.log;
    let entry = read_log_from(log, marker, || log.entry_at(marker))?;
    Ok(entry.is_some_and(|entry| entry.base == marker && entry.kind == KIND_MARKER))
}

fn read_ended(piece: &EntryPayload) -> Result<EndedTransaction, EngineError> {
    let bytes = read(piece)?;
    EndedTransaction::decode(&bytes).ok_or_else(|| {
        EngineError::Corrupt(format!(
            "the entry of a transaction log at position {} has {} bytes",
            piece.entry.position,
            bytes.len()
        ))
    })
}

fn partitions_by_log(shared: &EngineState) -> HashMap<LogId, Arc<Partition>> {
    let namespace = shared.namespace.read();
    let partitions = namespace.topics_including_deleted().flat_map(|(topic, _)| &topic.partitions);
    partitions.map(|partition| (partition.log.id, Arc::clone(partition))).collect()
}

/// Makes known to readers which transactions are open; returns the markers that a crash left
/// without an entry in their transaction log.
pub(crate) fn restore_transactions(
    store: &EngineStore,
    shared: &EngineState,
    producers: &Mutex<ProducerStates>,
    unfinished: HashMap<LogId, VecDeque<UnfinishedMarker>>,
) -> Result<Vec<(Arc<Partition>, UnfinishedMarker)>, EngineError> {
    let mut producers = producers.lock();
    if producers.transactional_logs().next().is_none() {
        return Ok(Vec::new());
    }
    let partitions = partitions_by_log(shared);
    producers.retain_transactional(|log| partitions.contains_key(&log));
    for log in producers.transactional_logs() {
        partitions[&log].transactions.set_used();
    }
    let open = producers.open_transactions();
    for (log, producer, transaction) in open {
        match partitions.get(&log) {
            // Compaction ends below the oldest open transaction, and may drop markers.
            Some(held) if transaction.first >= held.log.horizon().clean_to => {
                held.transactions.begin(transaction.first, producer);
            }
            _ => producers.forget_open(log, producer),
        }
    }
    let mut without = Vec::new();
    for (log, markers) in unfinished {
        let (Some(partition), Some(last)) = (partitions.get(&log), markers.back()) else {
            continue;
        };
        // With the records, their entries in the transaction log are removed.
        if last.marker < partition.start() {
            continue;
        }
        // The entry of a marker is written right behind it.
        if store.log(transaction_log_of(log))?.tip().stamp < last.stamp {
            without.push((Arc::clone(partition), *last));
        }
    }
    Ok(without)
}
