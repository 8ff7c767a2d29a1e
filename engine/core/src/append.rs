//! Appends of the engine, and the decisions about them on the writer's thread, where the order of
//! appends is known.

use std::sync::Arc;

use admission::Holder;
use bytes::Bytes;
use hlc::{Hlc, SysTime, UserTime};
use parking_lot::Mutex;
use storage::journal::RecoverError;
use storage::{AppendStage, Entry, GroupNumber, LogAppend, LogId, Offset, Payload, ReplayedEntry};
use user_time::UserTimeExtractor;

use crate::active_rules::{ActiveRules, RuleChange};
use crate::applier::{EventSender, PublishedEvent, applied_position};
use crate::error::EngineError;
use crate::log_transactions::LogTransactions;
use crate::marker::{DecisionStamp, MarkerNote, MarkerStage, TransactionEnd};
use crate::numbering::{is_event_kind, is_known_kind};
use crate::producers::{ProducerOrigin, ProducerSequence, ProducerStates};
use crate::replay::unknown_kind;

/// The smallest and the largest user time of a batch.
///
/// In old journals, where finding them would have required decompression, the smallest may be a
/// lower bound and the largest a producer's claim.
pub type TimeRange = (UserTime, UserTime);

/// One validated batch of records to append.
#[derive(Debug)]
pub struct RecordBatch {
    /// Its bytes. Its header is completed when the offset is known.
    pub payload: Payload,
    /// The number of offsets. As many records are in it, or fewer if it comes from another log.
    pub count: u32,
    /// Their user times; [`NO_TIMES`](crate::NO_TIMES) without records.
    pub times: TimeRange,
    /// The producer's sequence, if an idempotent producer sent it.
    pub producer: Option<ProducerSequence>,
    /// The offset that it must get, for a batch of another log, which keeps its offsets and its times.
    pub expected_base: Option<Offset>,
    /// The account that the state of that producer is charged to. Without one, it is charged like
    /// producers that a restart found.
    pub holder: Option<Holder>,
}

/// The format of batches: all that the engine needs to know about their bytes.
pub trait BatchFormat: Send + Sync + 'static {
    /// Completes the header of a batch at the offset `base`, and sets its time if the topic uses
    /// append times.
    ///
    /// Returns an index and the CRC-32C of the payload from that index on, where it is known.
    fn finalize_header(
        &self,
        payload: &mut Payload,
        base: Offset,
        epoch: u32,
        append_time: Option<SysTime>,
    ) -> Option<(usize, u32)>;

    /// The producer sequence of a stored batch, from its first bytes.
    fn producer(&self, start: &[u8]) -> Option<ProducerSequence>;

    /// The marker of a transaction's end. Its header is completed when the offset is known.
    ///
    /// # Panics
    /// The format has no transactions.
    fn marker(&self, _end: &TransactionEnd, _time: SysTime) -> Payload {
        panic!("this format has no transactions")
    }

    /// The producer and the epoch of a stored marker, from its first bytes.
    fn marker_producer(&self, _start: &[u8]) -> Option<(i64, i16)> {
        None
    }

    /// The offset and user time of each record of a stored batch, in order.
    ///
    /// # Errors
    /// The batch cannot be read.
    fn times(&self, batch: &Bytes) -> Result<Vec<(Offset, UserTime)>, String>;

    /// The offset of each record of a stored batch, in order, and the user time that `extractor`
    /// finds in it, if the record has a readable one.
    ///
    /// # Errors
    /// The batch cannot be read, or its records have no fields.
    fn user_times(
        &self,
        _batch: &Bytes,
        _extractor: &UserTimeExtractor,
    ) -> Result<Vec<(Offset, Option<UserTime>)>, String> {
        Err("records of this format have no fields".to_owned())
    }

    /// A stored batch without the records for which `keep` returns false.
    ///
    /// `keep` is called by rising offset. It is not called for a batch that is not made of keyed
    /// records, or that cannot be read to its end.
    ///
    /// If a tombstone stays in the batch and the batch has no delete horizon, it gets
    /// `delete_horizon`, if that is given.
    ///
    /// # Errors
    /// The batch cannot be read.
    fn rewrite(
        &self,
        batch: &Bytes,
        delete_horizon: Option<SysTime>,
        keep: &mut dyn FnMut(&KeyedRecord<'_>) -> bool,
    ) -> Result<RewriteOutcome, String>;
}

/// A stored record, as compaction sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedRecord<'a> {
    pub offset: Offset,
    /// Null and empty differ.
    pub key: Option<&'a [u8]>,
    /// True for a tombstone: its key has no value any more.
    pub is_tombstone: bool,
    /// The time from which the tombstones of its batch may be dropped, once that is known.
    pub delete_horizon: Option<SysTime>,
}

/// The result of rewriting a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RewriteOutcome {
    /// The bytes stay as they are.
    Unchanged,
    /// Other bytes, for the same offsets.
    Changed(Bytes),
    /// No record is left. These are the bytes to keep where the offsets must remain.
    Empty(Bytes),
}

/// The meaning of an append.
#[derive(Debug)]
pub enum AppendNote {
    /// It concerns neither producers nor user time.
    Event,
    /// An event that changes the user time of logs.
    Rules { logs: Vec<LogId>, change: RuleChange },
    /// A change that holds only if no other change came in between: its log must end at this
    /// offset.
    IfLogEndsAt(Offset),
    /// A batch of records.
    Records(BatchNote),
    /// An append of a wing that decides itself what it means.
    Wing(Arc<dyn WingAppend>),
    /// An event that decides a transaction. The markers that follow it have its stamp.
    Decision(Arc<DecisionStamp>),
    /// A marker.
    Marker(MarkerNote),
    /// The entry of the transaction log that belongs to the marker before it.
    EndedTransaction,
}

/// An append of a wing whose contents depend on the appends before it.
pub trait WingAppend: std::fmt::Debug + Send + Sync {
    /// Completes the payload, on the writer's thread, in the order of the log. The header may be
    /// filled in, and the rest may be dropped, but not changed. It must not wait.
    ///
    /// The append is visible once it completes without an error. An error of any append of its
    /// group undoes it, and then no later append of the log has been staged.
    fn stage(&self, payload: &mut Payload, base: Offset, stamp: Hlc);
}

/// The facts about a batch that the writer's thread needs.
#[derive(Clone, Debug)]
pub struct BatchNote {
    pub(crate) producer: Option<ProducerSequence>,
    pub(crate) expected_base: Option<Offset>,
    pub(crate) origin: Option<ProducerOrigin>,
    /// The transactions of the partition, for a batch that belongs to one.
    pub(crate) transactions: Option<Arc<LogTransactions>>,
    /// True if its records get the time of the append.
    pub(crate) append_time: bool,
    /// True if that time is also their user time.
    pub(crate) append_time_is_user_time: bool,
    /// The stamp from which the rule holds that found its user times; zero for the records' own
    /// timestamps.
    pub(crate) rule_since: Hlc,
    /// For a strict topic: the partition's largest visible user time when the batch was queued.
    pub(crate) strict_user_time_max: Option<UserTime>,
}

/// The stage that decides about an append on the writer's thread, after the order of appends is
/// fixed.
pub struct EngineAppendStage {
    /// Read elsewhere, and changed here alone.
    pub(crate) producers: Arc<Mutex<ProducerStates>>,
    pub(crate) rules: ActiveRules,
    pub(crate) format: Arc<dyn BatchFormat>,
    pub(crate) markers: MarkerStage,
    /// Where published events go.
    pub(crate) events: EventSender,
}

impl AppendStage for EngineAppendStage {
    type Note = AppendNote;
    type Refusal = EngineError;

    fn begin(&mut self, group: GroupNumber) {
        self.producers.lock().begin(group);
        self.rules.begin(group);
        self.markers.begin(group);
    }

    fn stage(
        &mut self,
        append: &mut LogAppend<AppendNote>,
        base: Offset,
        stamp: Hlc,
    ) -> Result<(), EngineError> {
        let producers = Arc::clone(&self.producers);
        let mut producers = producers.lock();
        self.stage_append(&mut producers, append, base, stamp)?;
        producers.advance_activity(stamp);
        Ok(())
    }

    fn publish(&mut self, log: LogId, entry: &Entry, payload: &Payload) {
        if is_event_kind(entry.kind) {
            let payload = payload.rest.clone();
            self.events.add(PublishedEvent { log, payload, at: applied_position(entry) });
        }
    }

    fn commit(&mut self, group: GroupNumber) {
        self.events.send();
        self.producers.lock().commit(group);
        self.rules.commit(group);
        self.markers.commit(group);
    }

    fn check_kind(&self, entry: &Entry) -> Result<(), RecoverError> {
        if is_known_kind(entry.kind) { Ok(()) } else { Err(unknown_kind(entry)) }
    }

    fn replay(&mut self, replayed: &ReplayedEntry<'_>) {
        let position = replayed.entry.position;
        unreachable!("the engine stages all that it writes, and has not staged {position}");
    }

    fn rollback(&mut self, from: GroupNumber) {
        self.producers.lock().rollback(from);
        self.rules.rollback(from);
        self.markers.rollback(from);
    }

    fn state(&self) -> Vec<u8> {
        self.producers.lock().encode()
    }
}

impl EngineAppendStage {
    fn stage_append(
        &mut self,
        producers: &mut ProducerStates,
        append: &mut LogAppend<AppendNote>,
        base: Offset,
        stamp: Hlc,
    ) -> Result<(), EngineError> {
        let note = match &append.note {
            AppendNote::Records(note) => note,
            AppendNote::Rules { logs, change } => {
                self.rules.change(logs, *change, stamp);
                return Ok(());
            }
            AppendNote::IfLogEndsAt(end) if *end != base => {
                return Err(unexpected_base(*end, base));
            }
            AppendNote::Wing(wing) => {
                let wing = Arc::clone(wing);
                wing.stage(&mut append.payload, base, stamp);
                return Ok(());
            }
            AppendNote::Decision(decision) => {
                decision.set(stamp);
                return Ok(());
            }
            AppendNote::Marker(marker) => {
                self.markers.stage_marker(producers, append.log, marker, base, stamp)?;
                append.crc_from =
                    self.format.finalize_header(&mut append.payload, base, append.epoch, None);
                return Ok(());
            }
            AppendNote::EndedTransaction => return self.markers.stage_ended(append),
            AppendNote::Event | AppendNote::IfLogEndsAt(_) => return Ok(()),
        };
        if let Some(expected) = note.expected_base.filter(|expected| *expected != base) {
            return Err(unexpected_base(expected, base));
        }
        // A duplicate is a duplicate whatever its user time: the first copy was accepted.
        if let Some(producer) = &note.producer {
            producers.check(append.log, producer)?;
        }
        self.rules.check(append.log, note.rule_since)?;
        if let (Some(producer), Some(origin)) = (&note.producer, &note.origin) {
            producers.admit(append.log, producer.id, origin)?;
        }
        let time = note.append_time.then(|| stamp.time());
        if note.append_time_is_user_time
            && let Some(time) = time
        {
            let time = UserTime(time.0 as i64);
            append.user = (time, time);
        }
        if let Some(strict_max) = note.strict_user_time_max {
            let (min, max) = append.user;
            self.rules.advance_user_time_max(append.log, strict_max, min, max)?;
        }
        if let Some(producer) = &note.producer
            && producers.stage(append.log, producer, note.origin.as_ref(), base, stamp)
            && let Some(transactions) = &note.transactions
        {
            self.markers.open(transactions, base, producer.id);
        }
        append.crc_from =
            self.format.finalize_header(&mut append.payload, base, append.epoch, time);
        Ok(())
    }
}

/// The error of an append that must begin at `expected`, where the log ends at `base`.
fn unexpected_base(expected: Offset, base: Offset) -> EngineError {
    let (start, offset) = (Offset(0), expected.0 as i64);
    EngineError::OffsetOutOfRange { offset, start, end: base }
}

/// The append of one event. Events have no user time.
pub(crate) fn event_append(
    log: LogId,
    kind: u8,
    payload: Payload,
    note: AppendNote,
) -> LogAppend<AppendNote> {
    let user = (UserTime(0), UserTime(0));
    LogAppend { log, kind, epoch: 0, count: 1, user, payload, crc_from: None, note }
}
