//! Entries of a file's log: their header, and reading the data after it.
//!
//! A write's bytes are stored as they came. A long write carries checksums of its chunks, so that a
//! read of a few bytes does not have to read and check all of them.

use std::ops::Range;

use bytes::Bytes;
use storage::{Entry, EntryPayload, Payload, PayloadHeader, PayloadLocation, StorageError};

use super::error::FileError;
use super::event::{KIND_FILE_PUNCH_HOLE, KIND_FILE_TRUNCATE, KIND_FILE_WRITE};

/// The longest write, in bytes: it stays in memory until the journal has it.
pub const WRITE_BYTES_MAX: usize = 16 << 20;

const FIXED_BYTES: usize = 16;
/// An entry up to this length is read whole.
pub(crate) const SHORT_BYTES_MAX: usize = FIXED_BYTES + CHUNK_UNIT;
/// The most chunk checksums that fit into a payload's header after the fixed part.
const CHUNKS_MAX: usize = 12;
/// The length of what follows the header of a hole.
const HOLE_BYTES: usize = 8;
/// Chunk sizes are multiples of this.
const CHUNK_UNIT: usize = 64 << 10;

/// The first bytes of an entry that changes a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileEntryHeader {
    /// The offset of the data; for a truncation, the new length.
    pub(crate) offset: u64,
    chunk_bytes: usize,
    chunk_crcs: Vec<u32>,
}

impl FileEntryHeader {
    pub(crate) fn bytes(&self) -> usize {
        FIXED_BYTES + 4 * self.chunk_crcs.len()
    }

    fn encode(&self) -> PayloadHeader {
        let mut bytes = Vec::with_capacity(self.bytes());
        bytes.extend_from_slice(&self.offset.to_le_bytes());
        bytes.extend_from_slice(&[0, self.chunk_crcs.len() as u8]);
        bytes.extend_from_slice(&((self.chunk_bytes / CHUNK_UNIT) as u16).to_le_bytes());
        let crcs: Vec<u8> = self.chunk_crcs.iter().flat_map(|crc| crc.to_le_bytes()).collect();
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes), &crcs);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&crcs);
        PayloadHeader::new(&bytes)
    }

    /// Reads and parses the header of an entry, and nothing else of it.
    pub(crate) fn read(piece: &EntryPayload) -> Result<FileEntryHeader, FileError> {
        FileEntryHeader::parse(&piece.entry, |range| piece.read_range(range))
    }

    fn parse(
        entry: &Entry,
        read: impl Fn(Range<usize>) -> Result<Bytes, StorageError>,
    ) -> Result<FileEntryHeader, FileError> {
        let damaged = |why| corruption_error(entry, why);
        let short = |_| damaged("its header is truncated");
        let length = entry.length as usize;
        let fixed = read(0..FIXED_BYTES.min(length))?;
        let fixed: &[u8; FIXED_BYTES] = (&*fixed).try_into().map_err(short)?;
        let count = usize::from(fixed[9]);
        let end = FIXED_BYTES + 4 * count;
        if fixed[8] != 0 || count > CHUNKS_MAX || end > length {
            return Err(damaged("its header is invalid"));
        }
        let crcs = if count == 0 { Bytes::new() } else { read(FIXED_BYTES..end)? };
        let crc = u32::from_le_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]);
        if crc32c::crc32c_append(crc32c::crc32c(&fixed[..12]), &crcs) != crc {
            return Err(damaged("its header's checksum does not match"));
        }
        let head = FileEntryHeader {
            offset: u64::from_le_bytes(std::array::from_fn(|nth| fixed[nth])),
            chunk_bytes: usize::from(u16::from_le_bytes([fixed[10], fixed[11]])) * CHUNK_UNIT,
            chunk_crcs: crcs
                .chunks_exact(4)
                .map(|crc| u32::from_le_bytes([crc[0], crc[1], crc[2], crc[3]]))
                .collect(),
        };
        let data = length - end;
        let chunks = if head.chunk_bytes == 0 { 0 } else { data.div_ceil(head.chunk_bytes) };
        // After a hole's header comes the end of the hole, which `read_hole` checks.
        let written = if entry.kind == KIND_FILE_PUNCH_HOLE { 0 } else { data as u64 };
        let reach = head.offset.checked_add(written);
        let cannot_be = chunks != count
            || reach.is_none_or(|reach| reach > crate::interval_tree::FILE_BYTES_MAX)
            || !match entry.kind {
                KIND_FILE_WRITE => data > 0,
                KIND_FILE_PUNCH_HOLE => data == HOLE_BYTES,
                _ => data == 0,
            };
        if cannot_be {
            return Err(damaged("its header is invalid"));
        }
        Ok(head)
    }
}

fn corruption_error(entry: &Entry, why: &str) -> FileError {
    let (offset, position) = (entry.base.0, entry.position);
    FileError::Corrupt(format!(
        "the entry at offset {offset}, at position {position} of the journal, is corrupt: {why}"
    ))
}

/// An entry to append to a file's log.
pub(crate) struct FileEntry {
    pub(crate) kind: u8,
    pub(crate) payload: Payload,
    pub(crate) crc_from: Option<(usize, u32)>,
}

impl FileEntry {
    /// A write. Computes its checksums, on the caller's thread.
    pub(crate) fn write(offset: u64, data: Bytes) -> FileEntry {
        let chunk_bytes = match data.len() {
            0..=CHUNK_UNIT => 0,
            length => length.div_ceil(CHUNKS_MAX).next_multiple_of(CHUNK_UNIT),
        };
        let (mut chunk_crcs, mut chunks_crc) = (Vec::new(), 0);
        if chunk_bytes > 0 {
            for chunk in data.chunks(chunk_bytes) {
                let crc = crc32c::crc32c(chunk);
                chunk_crcs.push(crc);
                chunks_crc = crc32c::crc32c_combine(chunks_crc, crc, chunk.len());
            }
        }
        let head = FileEntryHeader { offset, chunk_bytes, chunk_crcs }.encode();
        let head_crc = crc32c::crc32c(head.as_slice());
        let crc = match chunk_bytes {
            0 => crc32c::crc32c_append(head_crc, &data),
            _ => crc32c::crc32c_combine(head_crc, chunks_crc, data.len()),
        };
        let payload = Payload { header: head, rest: data };
        FileEntry { kind: KIND_FILE_WRITE, payload, crc_from: Some((0, crc)) }
    }

    pub(crate) fn truncate(length: u64) -> FileEntry {
        let head = FileEntryHeader { offset: length, chunk_bytes: 0, chunk_crcs: Vec::new() };
        let payload = Payload { header: head.encode(), rest: Bytes::new() };
        FileEntry { kind: KIND_FILE_TRUNCATE, payload, crc_from: None }
    }

    pub(crate) fn punch_hole(range: Range<u64>) -> FileEntry {
        let head = FileEntryHeader { offset: range.start, chunk_bytes: 0, chunk_crcs: Vec::new() };
        let rest = Bytes::copy_from_slice(&range.end.to_le_bytes());
        let payload = Payload { header: head.encode(), rest };
        FileEntry { kind: KIND_FILE_PUNCH_HOLE, payload, crc_from: None }
    }
}

/// The range that a hole covers.
pub(crate) fn read_hole(piece: &EntryPayload) -> Result<Range<u64>, FileError> {
    let entry = &piece.entry;
    let payload = piece.read()?;
    let head = FileEntryHeader::parse(entry, |range| Ok(payload.slice(range)))?;
    let end = payload[head.bytes()..].try_into().expect("the header says that it has 8 bytes");
    let range = head.offset..u64::from_le_bytes(end);
    if range.is_empty() || range.end > crate::interval_tree::FILE_BYTES_MAX {
        return Err(corruption_error(entry, "it is a hole of nothing"));
    }
    Ok(range)
}

/// A block of a write's data that was read and checked together.
pub(crate) struct DataBlock {
    bytes: Bytes,
    /// The offset of the block within the data.
    from: usize,
    /// True if the bytes were read from the disk for this block.
    is_read: bool,
}

impl DataBlock {
    /// Returns true if the block has the bytes `within` of the data.
    pub(crate) fn contains(&self, within: Range<usize>) -> bool {
        self.from <= within.start && within.end <= self.from + self.bytes.len()
    }

    /// The bytes `within` of the data.
    pub(crate) fn bytes(&self, within: Range<usize>) -> &[u8] {
        &self.bytes[within.start - self.from..within.end - self.from]
    }

    /// The bytes `within`, to be kept: copied if most of the block would be kept alive for nothing.
    pub(crate) fn copy_range(&self, within: Range<usize>) -> Bytes {
        if self.is_read && within.len() < self.bytes.len() / 2 {
            return Bytes::copy_from_slice(self.bytes(within));
        }
        self.bytes.slice(within.start - self.from..within.end - self.from)
    }

    pub(crate) fn bytes_read(&self) -> usize {
        if self.is_read { self.bytes.len() } else { 0 }
    }
}

/// The block of a write's data that has the bytes `within`, checked: all of a short write, whole
/// chunks of a long one.
pub(crate) fn read_data(
    piece: &EntryPayload,
    within: Range<usize>,
) -> Result<DataBlock, FileError> {
    let entry = &piece.entry;
    let is_read = matches!(piece.location, PayloadLocation::File { .. });
    let all = if is_read && entry.length as usize <= SHORT_BYTES_MAX {
        Some(piece.read()?)
    } else {
        None
    };
    let read = |range: Range<usize>| match &all {
        Some(all) => Ok(all.slice(range)),
        None => piece.read_range(range),
    };
    let head = FileEntryHeader::parse(entry, read)?;
    let data = entry.length as usize - head.bytes();
    if entry.kind != KIND_FILE_WRITE || within.end > data {
        return Err(corruption_error(entry, "an index says that it holds more"));
    }
    if all.is_some() || !is_read {
        let bytes = read(head.bytes()..entry.length as usize)?;
        return Ok(DataBlock { bytes, from: 0, is_read });
    }
    if head.chunk_crcs.is_empty() {
        return Err(corruption_error(entry, "a long write has no checksums"));
    }
    let first = within.start / head.chunk_bytes;
    let from = first * head.chunk_bytes;
    let to = within.end.next_multiple_of(head.chunk_bytes).min(data);
    let bytes = read(head.bytes() + from..head.bytes() + to)?;
    for (chunk, crc) in bytes.chunks(head.chunk_bytes).zip(&head.chunk_crcs[first..]) {
        if crc32c::crc32c(chunk) != *crc {
            return Err(corruption_error(entry, "a chunk's checksum does not match"));
        }
    }
    Ok(DataBlock { bytes, from, is_read })
}

#[cfg(test)]
mod tests {
    use hlc::{Hlc, UserTime};
    use storage::Offset;

    use super::*;

    fn piece(entry: FileEntry) -> EntryPayload {
        let length = entry.payload.len() as u32;
        let (user_min, user_max, user_peak) = (UserTime(0), UserTime(0), UserTime(0));
        let entry_of = Entry {
            stamp: Hlc::ZERO,
            base: Offset(0),
            count: 1,
            length,
            position: 0,
            user_min,
            user_max,
            user_time_max: user_peak,
            bytes: 0,
            payload_crc: 0,
            epoch: 0,
            kind: entry.kind,
            chain: 0,
        };
        EntryPayload { entry: entry_of, location: PayloadLocation::Memory(entry.payload) }
    }

    /// Pins down the bytes on disk.
    #[test]
    fn a_write_is_encoded_as_the_format_says() {
        let entry = FileEntry::write(0x0102, Bytes::from_static(b"abc"));
        let mut expected = vec![2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        expected.extend(crc32c::crc32c(&expected).to_le_bytes());
        expected.extend(b"abc");
        assert_eq!(entry.payload.to_bytes(), expected);
        assert_eq!(entry.crc_from, Some((0, crc32c::crc32c(&expected))));
        let truncated = FileEntry::truncate(0x0102);
        assert_eq!(truncated.payload.to_bytes(), &expected[..16]);
        let hole = piece(FileEntry::punch_hole(0x0102..0x0304));
        let end = [4, 3, 0, 0, 0, 0, 0, 0];
        assert_eq!(hole.read().unwrap(), [&expected[..16], &end].concat());
        assert_eq!(read_hole(&hole).unwrap(), 0x0102..0x0304);
        // A hole that reaches the maximum file size is no longer than its data would be.
        let last = (1 << 62) - 4..1 << 62;
        assert_eq!(read_hole(&piece(FileEntry::punch_hole(last.clone()))).unwrap(), last);
        for cannot_be in [5..5, 5..(1 << 62) + 1] {
            assert!(read_hole(&piece(FileEntry::punch_hole(cannot_be))).is_err());
        }

        let data = Bytes::from(vec![5; 3 * CHUNK_UNIT + 1]);
        let entry = FileEntry::write(1, data.clone());
        let head = entry.payload.header.as_slice();
        assert_eq!(head[8..12], [0, 4, 1, 0]);
        let whole = crc32c::crc32c(&data[..CHUNK_UNIT]).to_le_bytes();
        let last = crc32c::crc32c(&[5]).to_le_bytes();
        assert_eq!(head[16..], [whole, whole, whole, last].concat());
        assert_eq!(
            head[12..16],
            crc32c::crc32c(&[&head[..12], &head[16..]].concat()).to_le_bytes()
        );
        assert_eq!(entry.crc_from, Some((0, crc32c::crc32c(&entry.payload.to_bytes()))));
    }

    #[test]
    fn a_head_is_read_back_and_any_flipped_byte_of_it_is_noticed() {
        for length in [1, CHUNK_UNIT, CHUNK_UNIT + 1, 5 * CHUNK_UNIT, WRITE_BYTES_MAX] {
            let written = piece(FileEntry::write(77, Bytes::from(vec![1; length])));
            let head = FileEntryHeader::read(&written).unwrap();
            assert_eq!((head.offset, written.entry.length as usize), (77, head.bytes() + length));
            for at in 0..head.bytes() {
                let mut spoilt = written.clone();
                let PayloadLocation::Memory(payload) = &mut spoilt.location else { unreachable!() };
                payload.header.as_mut_slice()[at] ^= 4;
                assert!(FileEntryHeader::read(&spoilt).is_err(), "byte {at} of {length}");
            }
        }
        let mut short = piece(FileEntry::truncate(5));
        short.entry.length = 9;
        assert!(FileEntryHeader::read(&short).is_err());
    }
}
