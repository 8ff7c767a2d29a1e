//! The value of a key, open.
//!
//! A short value is kept in memory. Of the long values, the whole tree keeps only the one that was
//! read last. Others are read from the log again. So open values use little memory, however many
//! there are.

use std::sync::Arc;

use bytes::Bytes;
use engine::blocking::block_in_place;
use engine::{Offset, Partition};
use parking_lot::Mutex;

use super::TreeError;
use super::scan::{for_each_record, read_all_step};
use super::text::READ_BYTES_MAX;

/// The longest value that an open handle keeps.
const HELD_BYTES_MAX: usize = 256 << 10;

/// The long value that was read last, and its position.
pub(crate) type LastValue = Arc<Mutex<Option<(ValuePosition, Bytes)>>>;

/// The position of a record: its log and its offset.
type ValuePosition = (u64, Offset);

pub(crate) struct OpenValue {
    partition: Arc<Partition>,
    offset: Offset,
    length: u64,
    /// The value, if it is short.
    held: Option<Bytes>,
    last: LastValue,
}

impl OpenValue {
    pub(crate) fn new(
        partition: &Arc<Partition>,
        offset: Offset,
        last: &LastValue,
    ) -> Result<OpenValue, TreeError> {
        let mut open = OpenValue {
            partition: Arc::clone(partition),
            offset,
            length: 0,
            held: None,
            last: Arc::clone(last),
        };
        let value = block_in_place(|| value_at(partition, offset))?;
        open.length = value.len() as u64;
        if value.len() <= HELD_BYTES_MAX {
            open.held = Some(value);
        } else {
            *last.lock() = Some((open.position(), value));
        }
        Ok(open)
    }

    pub(crate) fn size(&self) -> u64 {
        self.length
    }

    pub(crate) fn read(&self, at: u64, length: usize) -> Result<Bytes, TreeError> {
        match &self.held {
            Some(value) => Ok(part(value, at, length)),
            // A copy, so that it does not keep the rest in memory.
            None => block_in_place(|| {
                self.with_long(|value| Bytes::copy_from_slice(&part(value, at, length)))
            }),
        }
    }

    /// Runs `act` on the long value, one at a time: long values of several readers are never in
    /// memory together.
    fn with_long<T>(&self, act: impl FnOnce(&Bytes) -> T) -> Result<T, TreeError> {
        let mut last = self.last.lock();
        if let Some((place, value)) = &*last
            && *place == self.position()
        {
            return Ok(act(value));
        }
        *last = None;
        let value = value_at(&self.partition, self.offset)?;
        Ok(act(&last.insert((self.position(), value)).1))
    }

    fn position(&self) -> ValuePosition {
        (self.partition.log.id.0, self.offset)
    }
}

impl Drop for OpenValue {
    fn drop(&mut self) {
        if self.held.is_none() {
            let mut last = self.last.lock();
            if last.as_ref().is_some_and(|(place, _)| *place == self.position()) {
                *last = None;
            }
        }
    }
}

fn part(value: &Bytes, at: u64, length: usize) -> Bytes {
    let from = usize::try_from(at).unwrap_or(usize::MAX).min(value.len());
    value.slice(from..from.saturating_add(length.min(READ_BYTES_MAX)).min(value.len()))
}

/// Reads the value of the record at an offset. May block on the disk.
fn value_at(partition: &Arc<Partition>, offset: Offset) -> Result<Bytes, TreeError> {
    let offsets = offset..Offset(offset.0 + 1);
    let step = read_all_step(partition, offsets.start, offsets.end, 0)?;
    let mut value = None;
    for batch in &step.batches {
        for_each_record(batch, &offsets, None, |record| {
            value.clone_from(&record.value);
            Ok(())
        })?;
    }
    // A copy, so that it does not keep the whole batch in memory.
    value.map(|value| Bytes::copy_from_slice(&value)).ok_or_else(|| {
        TreeError::Gone(format!(
            "record {} of partition {} is not kept any more",
            offset.0, partition.index
        ))
    })
}
