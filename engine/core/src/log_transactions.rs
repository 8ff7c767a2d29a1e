//! The transactions of one partition: the open ones, and the entries of ended ones.
//!
//! An ended transaction that has records in a partition has a marker behind them, and an entry in
//! the partition's *transaction log*: a log of its own, in the order of the markers, because a
//! reader that leaves out what was aborted, or what was not decided before its moment, must not
//! search the records for it. Its user times are chosen so that the store's own index answers both
//! questions ([`EndedTransaction::user_times`]).
//!
//! Invariant: a reader that sees a record of a transaction finds the transaction among the open
//! ones, or in the transaction log, whatever happens meanwhile. A transaction is open before its
//! first record is visible, and stays so until its marker and its entry are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use hlc::{Cut, Hlc, UserTime};
use parking_lot::Mutex;
use storage::{Log, LogId, Offset, PayloadHeader};

use crate::user_time::NO_TIMES;

/// The value while no transaction is open.
const NONE_OPEN: u64 = u64::MAX;

/// The transaction log of a partition's log.
pub(crate) fn transaction_log_of(log: LogId) -> LogId {
    LogId(log.0 | TRANSACTION_LOG_BIT)
}

/// The partition's log of a transaction log.
pub(crate) fn partition_log_of(log: LogId) -> Option<LogId> {
    let is_one = log.0 & TRANSACTION_LOG_BIT != 0 && log.0 >> 63 == 0;
    is_one.then_some(LogId(log.0 & !TRANSACTION_LOG_BIT))
}

/// No partition has a log with this bit.
const TRANSACTION_LOG_BIT: u64 = 1 << 62;

/// The open transactions of a partition.
#[derive(Debug)]
pub struct LogTransactions {
    /// By first offset.
    open: Mutex<BTreeMap<Offset, OpenInterval>>,
    /// The smallest of these offsets.
    first_unstable: AtomicU64,
    /// True if the partition ever had a transaction. Most have none, and no transaction log.
    is_used: AtomicBool,
    /// The transaction log, once it was looked up.
    pub(crate) ended: OnceLock<Arc<Log>>,
}

/// A transaction without a marker.
#[derive(Clone, Copy, Debug)]
struct OpenInterval {
    producer: i64,
    /// The stamp of its decision, if it is committed and its marker could not be written yet.
    committed: Option<Hlc>,
}

impl Default for LogTransactions {
    fn default() -> LogTransactions {
        LogTransactions {
            open: Mutex::default(),
            first_unstable: AtomicU64::new(NONE_OPEN),
            is_used: AtomicBool::new(false),
            ended: OnceLock::new(),
        }
    }
}

impl LogTransactions {
    /// The first offset of the oldest open transaction.
    pub fn first_unstable(&self) -> Option<Offset> {
        let first = self.first_unstable.load(Ordering::Acquire);
        (first != NONE_OPEN).then_some(Offset(first))
    }

    /// The transactions without a marker that begin below `end` and were not committed in `cut`:
    /// the first offset and the producer of each.
    pub fn uncommitted_below(&self, end: Offset, cut: Cut) -> Vec<(Offset, i64)> {
        let open = self.open.lock();
        let is_undecided = |interval: &OpenInterval| {
            !interval.committed.is_some_and(|decided| cut.admits(decided))
        };
        let undecided = open.range(..end).filter(|(_, interval)| is_undecided(interval));
        undecided.map(|(first, interval)| (*first, interval.producer)).collect()
    }

    /// The transactions without a marker that begin below `end` and were committed in `cut`. A
    /// reader asks for them before it reads the transaction log: one that gets its marker meanwhile
    /// is there by then.
    pub(crate) fn committed_below(&self, end: Offset, cut: Cut) -> Vec<EndedTransaction> {
        let open = self.open.lock();
        let ended = |(first, interval): (&Offset, &OpenInterval)| {
            let decided = interval.committed.filter(|decided| cut.admits(*decided))?;
            let (producer, first, marker) = (interval.producer, *first, Offset(u64::MAX));
            let (stable_to, is_committed) = (marker, true);
            Some(EndedTransaction { producer, first, marker, decided, stable_to, is_committed })
        };
        open.range(..end).filter_map(ended).collect()
    }

    /// Notes that the transaction of a producer is committed though its marker could not be
    /// written: the decision alone says what is in a cut.
    pub fn note_commit(&self, producer: i64, decided: Hlc) {
        let mut open = self.open.lock();
        let of_producer = open.values_mut().filter(|interval| interval.producer == producer);
        of_producer.for_each(|interval| interval.committed = Some(decided));
    }

    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Remembers that the partition had a transaction.
    pub(crate) fn set_used(&self) {
        self.is_used.store(true, Ordering::Release);
    }

    pub(crate) fn begin(&self, first: Offset, producer: i64) {
        self.set_used();
        let mut open = self.open.lock();
        open.insert(first, OpenInterval { producer, committed: None });
        self.publish_first(&open);
    }

    pub(crate) fn end(&self, first: Offset) {
        let mut open = self.open.lock();
        open.remove(&first);
        self.publish_first(&open);
    }

    fn publish_first(&self, open: &BTreeMap<Offset, OpenInterval>) {
        let first = open.first_key_value().map_or(NONE_OPEN, |(first, _)| first.0);
        self.first_unstable.store(first, Ordering::Release);
    }
}

/// An entry of a transaction log: a transaction that has ended in the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedTransaction {
    pub producer: i64,
    /// The offset of its first record.
    pub first: Offset,
    /// The offset of its marker.
    pub marker: Offset,
    /// The stamp of its decision. It alone says whether the transaction is in a cut (TIME.md 7).
    pub decided: Hlc,
    /// Below this offset, no transaction was open behind the marker.
    pub stable_to: Offset,
    pub is_committed: bool,
}

/// The length of an entry.
const BYTES: usize = 41;

impl EndedTransaction {
    /// An entry of the right length, until its contents are known.
    pub(crate) const PLACEHOLDER: EndedTransaction = EndedTransaction {
        producer: -1,
        first: Offset(0),
        marker: Offset(0),
        decided: Hlc::ZERO,
        stable_to: Offset(0),
        is_committed: false,
    };

    /// The producer, the first offset, and the offset of the marker.
    pub(crate) fn interval(&self) -> (i64, Offset, Offset) {
        (self.producer, self.first, self.marker)
    }

    /// The user times of its entry. The largest is the offset of the marker if the transaction was
    /// aborted, and none otherwise: so "the first that reaches" an offset is the first aborted one
    /// with a marker there or behind it.
    pub(crate) fn user_times(&self) -> (UserTime, UserTime) {
        if self.is_committed {
            return NO_TIMES;
        }
        (UserTime(self.first.0 as i64), UserTime(self.marker.0 as i64))
    }

    pub(crate) fn encode(&self) -> PayloadHeader {
        let mut bytes = [0; BYTES];
        let EndedTransaction { producer, first, marker, decided, stable_to, is_committed } = *self;
        let fields = [producer as u64, first.0, marker.0, decided.bits(), stable_to.0];
        for (at, field) in bytes.chunks_exact_mut(8).zip(fields) {
            at.copy_from_slice(&field.to_le_bytes());
        }
        bytes[BYTES - 1] = u8::from(is_committed);
        PayloadHeader::new(&bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<EndedTransaction> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let field = |nth: usize| {
            u64::from_le_bytes(bytes[nth * 8..nth * 8 + 8].try_into().expect("eight bytes"))
        };
        Some(EndedTransaction {
            producer: field(0) as i64,
            first: Offset(field(1)),
            marker: Offset(field(2)),
            decided: Hlc::from_bits(field(3)),
            stable_to: Offset(field(4)),
            is_committed: bytes[BYTES - 1] != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_encoded_as_the_format_says() {
        let ended = EndedTransaction {
            producer: -2,
            first: Offset(1),
            marker: Offset(258),
            decided: Hlc::from_bits(3),
            stable_to: Offset(4),
            is_committed: true,
        };
        let bytes = ended.encode();
        let expected = [
            [254, 255, 255, 255, 255, 255, 255, 255],
            [1, 0, 0, 0, 0, 0, 0, 0],
            [2, 1, 0, 0, 0, 0, 0, 0],
            [3, 0, 0, 0, 0, 0, 0, 0],
            [4, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes.as_slice(), [expected.concat(), vec![1]].concat());
        assert_eq!(EndedTransaction::decode(bytes.as_slice()), Some(ended));
        assert_eq!(EndedTransaction::decode(&bytes.as_slice()[1..]), None);
    }

    #[test]
    fn the_oldest_open_transaction_is_known_whichever_ends_first() {
        let transactions = LogTransactions::default();
        assert_eq!(transactions.first_unstable(), None);
        for (first, producer) in [(5, 1), (9, 2), (12, 3)] {
            transactions.begin(Offset(first), producer);
        }
        transactions.end(Offset(9));
        assert_eq!(transactions.first_unstable(), Some(Offset(5)));
        transactions.end(Offset(5));
        assert_eq!(transactions.uncommitted_below(Offset(13), Cut::ALL), [(Offset(12), 3)]);
        transactions.end(Offset(12));
        assert_eq!(transactions.first_unstable(), None);
    }

    #[test]
    fn a_commit_counts_from_its_decision_on() {
        let transactions = LogTransactions::default();
        transactions.begin(Offset(5), 1);
        transactions.begin(Offset(9), 2);
        let decided = Hlc::from_bits(7);
        transactions.note_commit(1, decided);
        let (before, after) = (Cut::below(decided), Cut::through(decided));
        assert_eq!(transactions.uncommitted_below(Offset(10), before).len(), 2);
        assert_eq!(transactions.uncommitted_below(Offset(10), after), [(Offset(9), 2)]);
        let committed = transactions.committed_below(Offset(10), after);
        assert_eq!(
            committed.iter().map(|transaction| transaction.first).collect::<Vec<_>>(),
            [Offset(5)]
        );
        assert!(transactions.committed_below(Offset(10), before).is_empty());
        assert_eq!(transactions.first_unstable(), Some(Offset(5)), "until its marker is there");
    }

    #[test]
    fn a_transaction_log_belongs_to_one_partition() {
        let log = transaction_log_of(LogId(7));
        assert_eq!(partition_log_of(log), Some(LogId(7)));
        assert_eq!(partition_log_of(LogId(7)), None);
        assert_eq!(partition_log_of(LogId(u64::MAX - 1)), None);
    }
}
