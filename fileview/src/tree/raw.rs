//! All batches of a partition as one file, byte for byte, with aborted transactions and markers.
//! The log's index knows the position of each batch.

use std::sync::Arc;

use bytes::Bytes;
use engine::blocking::{block_in_place, read};
use engine::{Offset, Partition, PartitionView};
use parking_lot::Mutex;

use super::TreeError;
use super::scan::{LogGeneration, VisibleRange};
use super::text::READ_BYTES_MAX;

/// The longest batch whose bytes are kept between two reads.
const BATCH_BYTES_MAX: usize = 1088 << 10;

/// The total size of all batches that hold visible records.
pub(crate) fn raw_size(range: &VisibleRange) -> Result<u64, TreeError> {
    loop {
        let generation = LogGeneration::of(&range.partition);
        let end = range.raw_end();
        let bytes = block_in_place(|| range.partition.log.bytes_between(range.start, end))?;
        if generation == LogGeneration::of(&range.partition) {
            return Ok(bytes);
        }
    }
}

/// The offset after a batch, and its position in the file in bytes.
#[derive(Clone, Copy)]
struct RawPosition {
    offset: Offset,
    at: u64,
}

/// The batches of a partition, open.
pub(crate) struct OpenRaw {
    partition: Arc<Partition>,
    generation: LogGeneration,
    start: Offset,
    /// The end. Positions are computed backwards from here, because compaction changes only what
    /// lies before.
    end: Mutex<RawPosition>,
    /// The position where the last read ended, and the bytes of the last batch if more reads may
    /// need them.
    last: Mutex<Option<(RawPosition, Bytes)>>,
    grows: bool,
}

impl OpenRaw {
    pub(crate) fn new(range: &VisibleRange, grows: bool) -> Result<OpenRaw, TreeError> {
        let generation = LogGeneration::of(&range.partition);
        let end = range.raw_end();
        let at = block_in_place(|| range.partition.log.bytes_between(range.start, end))?;
        generation.check(&range.partition, range.start)?;
        // Checked again: the generation may have changed after the range was read.
        range.check_kept()?;
        Ok(OpenRaw {
            partition: Arc::clone(&range.partition),
            generation,
            start: range.start,
            end: Mutex::new(RawPosition { offset: end, at }),
            last: Mutex::new(None),
            grows,
        })
    }

    pub(crate) fn size(&self) -> Result<u64, TreeError> {
        let end = *self.end.lock();
        if !self.grows {
            return Ok(end.at);
        }
        let offset = self.partition.end();
        let appended = block_in_place(|| self.partition.log.bytes_between(end.offset, offset))?;
        // If the log is unchanged from the old end on, the added size is right.
        self.generation.check(&self.partition, end.offset)?;
        let mut present = self.end.lock();
        if offset > present.offset {
            *present = RawPosition { offset, at: end.at + appended };
        }
        Ok(present.at)
    }

    pub(crate) fn read(&self, at: u64, length: usize) -> Result<Bytes, TreeError> {
        let requested_end = at.saturating_add(length.min(READ_BYTES_MAX) as u64);
        if self.grows && requested_end > self.end.lock().at {
            self.size()?;
        }
        let end = *self.end.lock();
        let until = requested_end.min(end.at);
        if at >= until {
            return Ok(Bytes::new());
        }
        block_in_place(|| {
            let mut out = Vec::with_capacity((until - at) as usize);
            let mut place = self.resume(at, until, end, &mut out)?;
            while place.at < until {
                place = self.read_from(place, at..until, end.offset, &mut out)?;
            }
            Ok(out.into())
        })
    }

    /// The position to read from. Bytes of `[at, until)` that are cached are appended to `out`
    /// first.
    fn resume(
        &self,
        at: u64,
        until: u64,
        end: RawPosition,
        out: &mut Vec<u8>,
    ) -> Result<RawPosition, TreeError> {
        let last = self.last.lock().clone();
        if let Some((behind, bytes)) = last
            && let Some(before) = behind.at.checked_sub(at)
            && before <= bytes.len() as u64
        {
            let from = bytes.len() - before as usize;
            let length = (until - at).min(before) as usize;
            out.extend_from_slice(&bytes[from..from + length]);
            return Ok(behind);
        }
        self.batch_at(at, end)
    }

    /// Appends the bytes in `wanted` of the batches from `place` on.
    fn read_from(
        &self,
        mut place: RawPosition,
        wanted: std::ops::Range<u64>,
        end: Offset,
        out: &mut Vec<u8>,
    ) -> Result<RawPosition, TreeError> {
        let view = PartitionView {
            partition: Arc::clone(&self.partition),
            start: Offset(0),
            end: Some(end),
        };
        let bytes_max = usize::try_from(wanted.end - place.at).unwrap_or(usize::MAX);
        let pieces = view.read(place.offset.0 as i64, bytes_max)?;
        self.generation.check(&self.partition, place.offset)?;
        if pieces.is_empty() {
            return Err(TreeError::Gone(format!(
                "the record at offset {} is not kept any more",
                place.offset.0
            )));
        }
        for piece in pieces {
            let behind = place.at + u64::from(piece.entry.length);
            let (first, last) = (wanted.start.max(place.at), wanted.end.min(behind));
            let begin = place.at;
            place = RawPosition { offset: piece.entry.end(), at: behind };
            if first < last {
                let bytes = read(&piece)?;
                out.extend_from_slice(&bytes[(first - begin) as usize..(last - begin) as usize]);
                if place.at >= wanted.end {
                    // A sequential reader needs the rest of the batch next.
                    let is_small = bytes.len() <= BATCH_BYTES_MAX;
                    let bytes = if is_small { bytes } else { Bytes::new() };
                    *self.last.lock() = Some((place, bytes));
                }
            }
            if place.at >= wanted.end {
                break;
            }
        }
        Ok(place)
    }

    /// The batch that holds the byte at `at`, which lies before `end`.
    fn batch_at(&self, at: u64, end: RawPosition) -> Result<RawPosition, TreeError> {
        let log = &self.partition.log;
        loop {
            let generation = LogGeneration::of(&self.partition);
            let total = log.bytes_before(end.offset)?;
            // The position in the file of the entry that holds an offset. Positions before the
            // file's first byte belong to removed entries.
            let place = |offset: Offset| -> Result<u64, TreeError> {
                let behind = total.saturating_sub(log.bytes_before(offset)?);
                Ok(end.at.saturating_sub(behind))
            };
            let (mut first, mut last) = (self.start.0, end.offset.0 - 1);
            while first < last {
                let middle = first + (last - first).div_ceil(2);
                if place(Offset(middle))? <= at {
                    first = middle;
                } else {
                    last = middle - 1;
                }
            }
            let position = RawPosition { offset: Offset(first), at: place(Offset(first))? };
            if generation == LogGeneration::of(&self.partition) {
                self.generation.check(&self.partition, position.offset)?;
                return Ok(position);
            }
        }
    }
}
