//! What idempotent producers wrote last, per log: Kafka's dedup of the last five batches (KIP-98),
//! kept on the writer's thread, where the order of appends is decided.

use std::collections::{HashMap, VecDeque};

use hlc::Hlc;
use serde::{Deserialize, Serialize};
use storage::{LogId, Offset};

use crate::append::ProducerNote;
use crate::error::EngineError;

/// How many batches of a producer are remembered.
const REMEMBERED: usize = 5;
/// A producer that has not written for this long is forgotten (`producer.id.expiration.ms`).
const EXPIRY_MS: u64 = 24 * 3600 * 1000;
/// How many producers a log remembers at most; the longest silent are forgotten first.
const PRODUCERS_MAX: usize = 20_000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Written {
    first: i32,
    last: i32,
    base: Offset,
    stamp: Hlc,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Producer {
    epoch: i16,
    written: VecDeque<Written>,
}

impl Producer {
    fn newest(&self) -> Option<&Written> {
        self.written.back()
    }
}

/// All producers of all logs.
#[derive(Debug, Default)]
pub(crate) struct Producers {
    by_log: HashMap<LogId, HashMap<i64, Producer>>,
    /// What staged batches replaced, newest last.
    undo: Vec<(LogId, i64, Option<Producer>)>,
}

impl Producers {
    /// Whether a batch follows what its producer wrote last, by the rules of Kafka's
    /// `ProducerStateManager`: a producer not known may begin anywhere, a new epoch begins at 0.
    pub(crate) fn check(&self, log: LogId, note: &ProducerNote) -> Result<(), EngineError> {
        let Some(producer) = self.by_log.get(&log).and_then(|producers| producers.get(&note.id))
        else {
            return Ok(());
        };
        if note.epoch < producer.epoch {
            return Err(EngineError::StaleProducerEpoch {
                producer: note.id,
                epoch: note.epoch,
                newest: producer.epoch,
            });
        }
        let expected = if note.epoch > producer.epoch {
            0
        } else {
            let same = |written: &&Written| {
                written.first == note.first_sequence && written.last == note.last_sequence
            };
            if let Some(written) = producer.written.iter().find(same) {
                let time_ms = written.stamp.time().0 as i64;
                return Err(EngineError::Duplicate { base: written.base, time_ms });
            }
            producer.newest().map_or(0, |newest| next(newest.last))
        };
        if note.first_sequence == expected {
            return Ok(());
        }
        Err(EngineError::OutOfOrderSequence {
            producer: note.id,
            epoch: note.epoch,
            expected,
            got: note.first_sequence,
        })
    }

    /// Remembers a batch that is being written.
    pub(crate) fn stage(&mut self, log: LogId, note: &ProducerNote, base: Offset, stamp: Hlc) {
        let before = self.record(log, note, base, stamp);
        self.undo.push((log, note.id, before));
    }

    /// Remembers a batch that was written; what was known of its producer before.
    pub(crate) fn record(
        &mut self,
        log: LogId,
        note: &ProducerNote,
        base: Offset,
        stamp: Hlc,
    ) -> Option<Producer> {
        let producers = self.by_log.entry(log).or_default();
        if producers.len() >= PRODUCERS_MAX && !producers.contains_key(&note.id) {
            forget(producers, stamp);
        }
        let before = producers.get(&note.id).cloned();
        let new = || Producer { epoch: note.epoch, written: VecDeque::with_capacity(REMEMBERED) };
        let producer = producers.entry(note.id).or_insert_with(new);
        if producer.epoch != note.epoch {
            *producer = new();
        }
        if producer.written.len() == REMEMBERED {
            producer.written.pop_front();
        }
        let (first, last) = (note.first_sequence, note.last_sequence);
        producer.written.push_back(Written { first, last, base, stamp });
        before
    }

    /// All that is remembered of what was committed.
    pub(crate) fn encode(&self) -> Vec<u8> {
        assert!(self.undo.is_empty(), "nothing is staged when a segment is sealed");
        postcard::to_stdvec(&self.by_log).expect("producers can be encoded")
    }

    /// What [`Producers::encode`] gave.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Producers, postcard::Error> {
        Ok(Producers { by_log: postcard::from_bytes(bytes)?, undo: Vec::new() })
    }

    pub(crate) fn commit(&mut self) {
        self.undo.clear();
    }

    pub(crate) fn rollback(&mut self) {
        while let Some((log, id, before)) = self.undo.pop() {
            let producers = self.by_log.entry(log).or_default();
            match before {
                Some(before) => producers.insert(id, before),
                None => producers.remove(&id),
            };
        }
    }
}

fn next(sequence: i32) -> i32 {
    if sequence == i32::MAX { 0 } else { sequence + 1 }
}

/// Drops who has not written for long; or, if all have, the silent half.
fn forget(producers: &mut HashMap<i64, Producer>, now: Hlc) {
    let newest =
        |producer: &Producer| producer.newest().map_or(0, |written| written.stamp.time().0);
    producers.retain(|_, producer| newest(producer) + EXPIRY_MS > now.time().0);
    if producers.len() < PRODUCERS_MAX {
        return;
    }
    let mut times: Vec<u64> = producers.values().map(newest).collect();
    let middle = times.len() / 2;
    let (_, median, _) = times.select_nth_unstable(middle);
    let median = *median;
    producers.retain(|_, producer| newest(producer) > median);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogId = LogId(1);

    fn note(epoch: i16, first: i32, count: i32) -> ProducerNote {
        ProducerNote { id: 9, epoch, first_sequence: first, last_sequence: first + (count - 1) }
    }

    fn write(producers: &mut Producers, note: ProducerNote, base: u64) -> Result<(), EngineError> {
        producers.check(LOG, &note)?;
        producers.stage(LOG, &note, Offset(base), Hlc::from_bits(base + 1));
        producers.commit();
        Ok(())
    }

    #[test]
    fn the_last_five_batches_are_known_again_and_say_where_they_went() {
        let mut producers = Producers::default();
        for nth in 0..6 {
            write(&mut producers, note(0, nth * 10, 10), nth as u64 * 10).unwrap();
        }
        for nth in 1..6 {
            let again = producers.check(LOG, &note(0, nth * 10, 10));
            let expected = Offset(nth as u64 * 10);
            assert!(matches!(again, Err(EngineError::Duplicate { base, .. }) if base == expected));
        }
        let sixth_last = producers.check(LOG, &note(0, 0, 10));
        assert!(matches!(sixth_last, Err(EngineError::OutOfOrderSequence { .. })));
    }

    #[test]
    fn a_gap_is_refused_and_an_unknown_producer_may_begin_anywhere() {
        let mut producers = Producers::default();
        write(&mut producers, note(0, 500, 1), 0).unwrap();
        let gap = producers.check(LOG, &note(0, 502, 1));
        assert!(matches!(
            gap,
            Err(EngineError::OutOfOrderSequence { expected: 501, got: 502, .. })
        ));
    }

    #[test]
    fn a_new_epoch_begins_at_zero_and_fences_the_old_one() {
        let mut producers = Producers::default();
        write(&mut producers, note(0, 0, 1), 0).unwrap();
        assert!(producers.check(LOG, &note(1, 7, 1)).is_err());
        write(&mut producers, note(1, 0, 1), 1).unwrap();
        let stale = producers.check(LOG, &note(0, 1, 1));
        assert!(matches!(stale, Err(EngineError::StaleProducerEpoch { newest: 1, .. })));
    }

    #[test]
    fn sequence_numbers_wrap_to_zero() {
        let mut producers = Producers::default();
        write(&mut producers, note(0, i32::MAX, 1), 0).unwrap();
        assert!(producers.check(LOG, &note(0, 0, 1)).is_ok());
    }

    #[test]
    fn a_group_that_failed_leaves_no_trace() {
        let mut producers = Producers::default();
        write(&mut producers, note(0, 0, 1), 0).unwrap();
        producers.stage(LOG, &note(0, 1, 1), Offset(1), Hlc::from_bits(2));
        producers.stage(LOG, &note(0, 2, 1), Offset(2), Hlc::from_bits(3));
        producers.rollback();
        assert!(producers.check(LOG, &note(0, 1, 1)).is_ok());
    }

    #[test]
    fn the_producers_of_a_log_are_bounded() {
        let mut producers = Producers::default();
        for id in 0..(PRODUCERS_MAX as i64 * 2) {
            let note = ProducerNote { id, ..note(0, 0, 1) };
            producers.record(LOG, &note, Offset(0), Hlc::from_bits((id as u64) << 16));
        }
        assert!(producers.by_log[&LOG].len() <= PRODUCERS_MAX);
    }
}
