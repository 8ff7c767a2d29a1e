//! Decompresses the records of a batch, never past a limit.
//!
//! The output buffer is never larger than the limit. It grows with the decompressed bytes, or with
//! what the input could possibly decompress to: an announced size alone reserves nothing.
//!
//! One cost is outside our buffer: zstd allocates the window that a frame asks for, at most 128 MiB
//! of address space, and touches as much of it as it has decompressed. So a zstd batch can take
//! twice the limit for a moment; an invalid one no more than that.

use std::io::{self, Read};

use bytes::Bytes;
use xxhash_rust::xxh32::xxh32;

use crate::{BatchError, CompressionType};

/// The limit on the cost of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecompressionLimit {
    /// The most bytes that the decompressed records may take. Records that arrive uncompressed cost
    /// nothing more than they did already, and are not limited.
    pub decompressed_bytes_max: usize,
}

/// 128 MiB: the window of zstd's highest level, and the most that the Java client accepts.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// Decompresses bytes that are packed as the records after the header of a batch are. If they are
/// not compressed, the result shares the bytes of `packed`.
///
/// # Errors
/// They are not packed so, or would take more than the limit.
pub fn decompress(
    codec: CompressionType,
    packed: Bytes,
    limit: DecompressionLimit,
) -> Result<Bytes, BatchError> {
    let mut out = DecompressBuffer::new(limit);
    let result = match codec {
        CompressionType::None => return Ok(packed),
        CompressionType::Gzip => out.read_from(flate2::bufread::MultiGzDecoder::new(&packed[..])),
        CompressionType::Snappy => snappy(&packed, &mut out),
        CompressionType::Lz4 => lz4(&packed, &mut out),
        CompressionType::Zstd => zstd(&packed, &mut out),
    };
    match result {
        Ok(()) => Ok(out.into_bytes()),
        Err(DecompressError::LimitReached) => {
            Err(BatchError::TooLarge { max: limit.decompressed_bytes_max })
        }
        Err(DecompressError::Corrupt(why)) => Err(BatchError::Undecodable { codec, why }),
    }
}

/// The reason why decompression ended early.
enum DecompressError {
    /// The limit is reached and there is more.
    LimitReached,
    Corrupt(String),
}

fn corrupt(why: impl ToString) -> DecompressError {
    DecompressError::Corrupt(why.to_string())
}

/// A buffer that grows up to the limit.
struct DecompressBuffer {
    /// Zeroes after `len`: room for output.
    bytes: Vec<u8>,
    len: usize,
    max: usize,
}

impl DecompressBuffer {
    const STEP: usize = 16 << 10;

    fn new(limit: DecompressionLimit) -> DecompressBuffer {
        DecompressBuffer { bytes: Vec::new(), len: 0, max: limit.decompressed_bytes_max }
    }

    /// Reads `reader` to its end.
    fn read_from(&mut self, mut reader: impl Read) -> Result<(), DecompressError> {
        loop {
            let step = self.len.max(DecompressBuffer::STEP);
            let room = self.reserve(step);
            let is_full = room.is_empty();
            let mut probe = [0];
            match reader.read(if is_full { &mut probe } else { room }) {
                Ok(0) => return Ok(()),
                Ok(_) if is_full => return Err(DecompressError::LimitReached),
                Ok(read) => self.len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(corrupt(error)),
            }
        }
    }

    /// Room for at most `bytes` bytes of output; less if the limit is near.
    fn reserve(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.len.saturating_add(bytes).min(self.max);
        if end > self.bytes.len() {
            if end > self.bytes.capacity() {
                let capacity = end.max(self.bytes.capacity() * 2).min(self.max);
                self.bytes.reserve_exact(capacity - self.bytes.len());
            }
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.len..end]
    }

    fn into_bytes(mut self) -> Bytes {
        self.bytes.truncate(self.len);
        self.bytes.into()
    }
}

fn zstd(packed: &[u8], out: &mut DecompressBuffer) -> Result<(), DecompressError> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(packed).map_err(corrupt)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(corrupt)?;
    out.read_from(decoder)
}

/// The magic of the Java library's stream of snappy blocks. Two version numbers follow.
pub(crate) const XERIAL_MAGIC: [u8; 8] = *b"\x82SNAPPY\0";
/// The magic and the two versions.
const XERIAL_HEADER_BYTES: usize = 16;

/// Snappy turns 3 bytes into 64 at best. A block that announces more than this many times its own
/// size is invalid.
const SNAPPY_EXPANSION_MAX: usize = 22;

fn snappy(packed: &[u8], out: &mut DecompressBuffer) -> Result<(), DecompressError> {
    if !packed.starts_with(&XERIAL_MAGIC) {
        return snappy_block(packed, out);
    }
    let mut rest = packed;
    while !rest.is_empty() {
        // A stream that was flushed and restarted has its magic again in the place of a length.
        if rest.starts_with(&XERIAL_MAGIC) {
            rest = rest.get(XERIAL_HEADER_BYTES..).ok_or_else(|| corrupt("header ends early"))?;
            continue;
        }
        let (len, after) = rest.split_first_chunk().ok_or_else(|| corrupt("length ends early"))?;
        let len = u32::from_be_bytes(*len) as usize;
        let (block, after) =
            after.split_at_checked(len).ok_or_else(|| corrupt("block ends early"))?;
        snappy_block(block, out)?;
        rest = after;
    }
    Ok(())
}

fn snappy_block(block: &[u8], out: &mut DecompressBuffer) -> Result<(), DecompressError> {
    let len = snap::raw::decompress_len(block).map_err(corrupt)?;
    if len > block.len().saturating_mul(SNAPPY_EXPANSION_MAX) {
        return Err(corrupt(format!("block announces too much. len={len}")));
    }
    let room = out.reserve(len);
    if room.len() < len {
        return Err(DecompressError::LimitReached);
    }
    out.len += snap::raw::Decoder::new().decompress(block, room).map_err(corrupt)?;
    Ok(())
}

/// Reads LZ4's frame format, from the frame's descriptor to its end mark. This is our own code,
/// because the one in `lz4_flex` reserves two to three blocks of up to 4 MiB as the descriptor
/// announces.
///
/// It reads one frame, and nothing after it, as the Java client does. The checksums of blocks and
/// content are skipped, because the CRC of the batch covers the same bytes.
fn lz4(packed: &[u8], out: &mut DecompressBuffer) -> Result<(), DecompressError> {
    let (frame, mut rest) = Lz4Frame::parse(packed)?;
    loop {
        let (word, after) = rest.split_first_chunk().ok_or_else(|| corrupt("block size is cut"))?;
        let word = u32::from_le_bytes(*word);
        if word == 0 {
            return Ok(());
        }
        let (len, is_stored) = ((word & !LZ4_STORED) as usize, word & LZ4_STORED != 0);
        if len > frame.block_bytes_max {
            return Err(corrupt(format!("block is too large. len={len}")));
        }
        let (block, after) =
            after.split_at_checked(len).ok_or_else(|| corrupt("block ends early"))?;
        if is_stored {
            lz4_stored(block, out)?
        } else {
            frame.unpack(block, out)?
        }
        let checksum = if frame.has_block_checksums { 4 } else { 0 };
        rest = after.get(checksum..).ok_or_else(|| corrupt("block checksum is cut"))?;
    }
}

const LZ4_MAGIC: [u8; 4] = 0x184D_2204_u32.to_le_bytes();
/// The bit of a block's length that means "not compressed".
const LZ4_STORED: u32 = 1 << 31;
/// The longest distance, in bytes, over which a block may refer back.
const LZ4_WINDOW: usize = 64 << 10;
/// One more byte of a match's length is 255 more bytes of output, and nothing yields more.
const LZ4_EXPANSION_MAX: usize = 255;

/// The fields of the descriptor that decompression needs.
struct Lz4Frame {
    block_bytes_max: usize,
    is_linked: bool,
    has_block_checksums: bool,
}

impl Lz4Frame {
    fn parse(packed: &[u8]) -> Result<(Lz4Frame, &[u8]), DecompressError> {
        let cut = || corrupt("frame descriptor is cut");
        let after = packed.strip_prefix(&LZ4_MAGIC).ok_or_else(|| corrupt("not a frame"))?;
        let [flags, size, ..] = *after else { return Err(cut()) };
        if flags >> 6 != 1 {
            return Err(corrupt(format!("frame version is unknown. flags={flags:#04x}")));
        }
        if flags & 1 != 0 {
            return Err(corrupt("frame needs a dictionary"));
        }
        let block_bytes_max = match size >> 4 & 7 {
            code @ 4..=7 => 1 << (2 * code + 8),
            code => return Err(corrupt(format!("block size is unknown. code={code}"))),
        };
        let content_size = if flags & 1 << 3 != 0 { 8 } else { 0 };
        let (descriptor, after) = after.split_at_checked(2 + content_size).ok_or_else(cut)?;
        let (checksum, rest) = after.split_first().ok_or_else(cut)?;
        if *checksum != (xxh32(descriptor, 0) >> 8) as u8 {
            return Err(corrupt("frame descriptor is corrupt"));
        }
        let is_linked = flags & 1 << 5 == 0;
        let has_block_checksums = flags & 1 << 4 != 0;
        Ok((Lz4Frame { block_bytes_max, is_linked, has_block_checksums }, rest))
    }

    fn unpack(&self, block: &[u8], out: &mut DecompressBuffer) -> Result<(), DecompressError> {
        let bytes_max = self.block_bytes_max.min(block.len().saturating_mul(LZ4_EXPANSION_MAX));
        let start = out.len;
        let room = out.reserve(bytes_max).len();
        let (before, after) = out.bytes.split_at_mut(start);
        let window = if self.is_linked { before.len().min(LZ4_WINDOW) } else { 0 };
        let window = &before[before.len() - window..];
        match lz4_flex::block::decompress_into_with_dict(block, &mut after[..room], window) {
            Ok(len) => out.len += len,
            // Only the limit can leave too little room here. If the block's own maximum does, the
            // block is invalid.
            Err(lz4_flex::block::DecompressError::OutputTooSmall { .. }) if room < bytes_max => {
                return Err(DecompressError::LimitReached);
            }
            Err(error) => return Err(corrupt(error)),
        }
        Ok(())
    }
}

fn lz4_stored(block: &[u8], out: &mut DecompressBuffer) -> Result<(), DecompressError> {
    let room = out.reserve(block.len());
    if room.len() < block.len() {
        return Err(DecompressError::LimitReached);
    }
    room.copy_from_slice(block);
    out.len += block.len();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a few bytes at a time, and is interrupted in between.
    struct InterruptedReader {
        left: usize,
        is_next: bool,
    }

    impl Read for InterruptedReader {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.is_next = !self.is_next;
            if self.is_next {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let count = buffer.len().min(self.left).min(1000);
            buffer[..count].fill(7);
            self.left -= count;
            Ok(count)
        }
    }

    #[test]
    fn a_read_that_is_interrupted_goes_on() {
        for (length, is_all) in [(0, true), (99_999, true), (100_000, true), (100_001, false)] {
            let mut out =
                DecompressBuffer::new(DecompressionLimit { decompressed_bytes_max: 100_000 });
            let filled = out.read_from(InterruptedReader { left: length, is_next: false });
            assert_eq!(filled.is_ok(), is_all, "{length}");
            if is_all {
                assert_eq!(out.into_bytes(), vec![7; length]);
            }
        }
    }

    /// Memory doubles as it grows, and never exceeds the limit.
    #[test]
    fn an_output_takes_no_more_than_its_limit_and_moves_seldom() {
        const MAX: usize = (1 << 20) + 123;
        let mut out = DecompressBuffer::new(DecompressionLimit { decompressed_bytes_max: MAX });
        let (mut moves, mut capacity) = (0, 0);
        while out.len < MAX {
            let room = out.reserve(1001).len();
            assert_eq!(room, 1001.min(MAX - out.len));
            out.len += room;
            assert!(out.bytes.capacity() <= MAX.min(2 * out.len), "{}", out.bytes.capacity());
            moves += usize::from(out.bytes.capacity() != capacity);
            capacity = out.bytes.capacity();
        }
        assert!(out.reserve(1).is_empty());
        assert!(moves <= 13, "{moves}");
    }
}
