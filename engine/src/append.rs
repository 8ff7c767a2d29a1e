//! From a batch to an entry: what the engine hands to the store, and what it decides on the
//! writer's thread, where the order of appends is known.

use std::sync::Arc;

use bytes::Bytes;
use hlc::{Hlc, SysTime, UserTime};
use storage::{Append, LogId, Offset, Payload, Stage};

use crate::error::EngineError;
use crate::producers::Producers;

/// The smallest and the largest user time of a batch. In journals of old, where finding them would
/// have meant to decompress, the smallest may be a bound below it, and the largest a producer's claim.
pub type TimeRange = (UserTime, UserTime);

/// An idempotent producer's claim about a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerNote {
    /// The producer's id.
    pub id: i64,
    /// Its epoch.
    pub epoch: i16,
    /// The sequence number of the first record.
    pub first_sequence: i32,
    /// The sequence number of the last record.
    pub last_sequence: i32,
}

/// Records to append: one batch, validated.
#[derive(Debug)]
pub struct Batch {
    /// Its bytes, of which the head is filled in when the offset is known.
    pub payload: Payload,
    /// How many records.
    pub count: u32,
    /// Their user times.
    pub times: TimeRange,
    /// Whose it is, if an idempotent producer's.
    pub producer: Option<ProducerNote>,
}

/// What the engine must know of the bytes of a batch.
pub trait Format: Send + Sync + 'static {
    /// Fills in the head of a batch that takes `base`, and its time, if the topic gives out append
    /// times. Returns an index and the CRC-32C of the payload from there on, where it is known.
    fn seal(
        &self,
        payload: &mut Payload,
        base: Offset,
        epoch: u32,
        append_time: Option<SysTime>,
    ) -> Option<(usize, u32)>;

    /// Whose a stored batch is, from its first bytes.
    fn producer(&self, start: &[u8]) -> Option<ProducerNote>;

    /// The offset and user time of each record of a stored batch, in order.
    ///
    /// # Errors
    /// The batch cannot be read.
    fn times(&self, batch: &Bytes) -> Result<Vec<(Offset, UserTime)>, String>;

    /// A stored batch without the records for which `keep` says no. It is asked by rising offset, and
    /// nothing of a batch that is not made of keyed records, or that cannot be read to its end.
    ///
    /// A batch that keeps a tombstone and has no delete horizon gets `delete_horizon`, if there is one.
    ///
    /// # Errors
    /// The batch cannot be read.
    fn rewrite(
        &self,
        batch: &Bytes,
        delete_horizon: Option<SysTime>,
        keep: &mut dyn FnMut(&KeyedRecord<'_>) -> bool,
    ) -> Result<Rewritten, String>;
}

/// A stored record, as compaction sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedRecord<'a> {
    /// Its place in the log.
    pub offset: Offset,
    /// Null and empty differ.
    pub key: Option<&'a [u8]>,
    /// It says that its key has no value any more.
    pub is_tombstone: bool,
    /// From when on the tombstones of its batch may be dropped, once that is known.
    pub delete_horizon: Option<SysTime>,
}

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewritten {
    /// Nothing: its bytes stand.
    Unchanged,
    /// Other bytes, over the same offsets.
    Changed(Bytes),
    /// It has no record left. These are its bytes where its offsets must remain.
    Empty(Bytes),
}

/// What an append means.
#[derive(Debug)]
pub(crate) enum Note {
    Event,
    File,
    Records { producer: Option<ProducerNote>, append_time: bool },
}

pub(crate) struct Stager {
    pub(crate) producers: Producers,
    pub(crate) format: Arc<dyn Format>,
}

impl Stage for Stager {
    type Note = Note;
    type Refusal = EngineError;

    fn stage(
        &mut self,
        append: &mut Append<Note>,
        base: Offset,
        stamp: Hlc,
    ) -> Result<(), EngineError> {
        self.producers.advance(stamp);
        let Note::Records { producer, append_time } = &append.note else { return Ok(()) };
        if let Some(note) = producer {
            self.producers.check(append.log, note)?;
            self.producers.stage(append.log, note, base, stamp);
        }
        let time = append_time.then(|| stamp.time());
        if let Some(time) = time {
            let time = UserTime(time.0 as i64);
            append.user = (time, time);
        }
        append.crc_from = self.format.seal(&mut append.payload, base, append.epoch, time);
        Ok(())
    }

    fn commit(&mut self) {
        self.producers.commit();
    }

    fn rollback(&mut self) {
        self.producers.rollback();
    }

    fn state(&self) -> Vec<u8> {
        self.producers.encode()
    }
}

impl Batch {
    pub(crate) fn into_append(self, log: LogId, append_time: bool) -> Append<Note> {
        Append {
            log,
            kind: crate::namespace::event::KIND_RECORDS,
            epoch: 0,
            count: self.count,
            user: self.times,
            payload: self.payload,
            crc_from: None,
            note: Note::Records { producer: self.producer, append_time },
        }
    }
}
