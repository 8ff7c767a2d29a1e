//! A frame: 80 bytes of header, then the payload, then zeros up to the next multiple of 8.
//! `docs/FORMAT.md` has the layout.

use hlc::{Hlc, UserTime};

use crate::entry::{Entry, LogId, Offset};

/// The length of a frame's header.
pub const FRAME_BYTES: usize = 80;
/// The index of the salted checksum in the header.
const SALTED_CRC_AT: usize = 76;
/// Frames begin at multiples of this.
pub const PAYLOAD_ALIGN: u64 = 8;
/// No payload is longer than this: a longer length is corruption, not a reason to allocate.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of the payload in bytes.
    pub length: u32,
    /// CRC-32C of the payload.
    pub payload_crc: u32,
    /// The time at which the service accepted it.
    pub stamp: Hlc,
    pub log: LogId,
    /// The first offset that it takes in its log.
    pub base: Offset,
    /// The number of offsets that it takes.
    pub count: u32,
    /// A leader epoch, set by the log's user.
    pub epoch: u32,
    /// The smallest user time in it.
    pub user_min: UserTime,
    /// The largest user time in it.
    pub user_max: UserTime,
    /// Everything below this position was on stable storage when the frame was written.
    pub synced_to: u64,
    /// A kind of entry, set by the log's user.
    pub kind: u8,
}

/// The reason bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// No magic number: usually the zeros after the last frame.
    #[error("no frame begins here")]
    Magic,
    /// The header's checksum does not match.
    #[error("the frame header's checksum does not match")]
    Header,
    /// The payload's checksum does not match.
    #[error("the payload's checksum does not match")]
    Payload,
    /// The header of the segment is incomplete, although frames were written after it.
    #[error("the segment's header is not whole")]
    Segment,
    /// The file ends before the frame does.
    #[error("the file ends inside the frame")]
    Short,
}

/// `length` with the padding that follows it.
pub fn padded(length: u64) -> u64 {
    length.next_multiple_of(PAYLOAD_ALIGN)
}

impl FrameHeader {
    /// The first four bytes of each frame.
    pub const MAGIC: [u8; 4] = *b"FFJ1";

    /// The header bytes of a frame that begins at `position`, without a salted checksum: in a
    /// compacted prefix.
    pub fn encode(&self, position: u64) -> [u8; FRAME_BYTES] {
        self.encode_with(position, |_| 0)
    }

    /// The header bytes of a frame that begins at `position` in a segment with this salt.
    pub fn encode_salted(&self, position: u64, salt: u64) -> [u8; FRAME_BYTES] {
        self.encode_with(position, |bytes| salted_crc(bytes, position, salt))
    }

    fn encode_with(
        &self,
        position: u64,
        seal: impl FnOnce(&[u8; FRAME_BYTES]) -> u32,
    ) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&FrameHeader::MAGIC);
        put(&[0; 4]);
        put(&self.length.to_le_bytes());
        put(&self.payload_crc.to_le_bytes());
        put(&self.stamp.bits().to_le_bytes());
        put(&self.log.0.to_le_bytes());
        put(&self.base.0.to_le_bytes());
        put(&self.count.to_le_bytes());
        put(&self.epoch.to_le_bytes());
        put(&self.user_min.0.to_le_bytes());
        put(&self.user_max.0.to_le_bytes());
        put(&self.synced_to.to_le_bytes());
        put(&[self.kind]);
        let seal = seal(&bytes);
        bytes[SALTED_CRC_AT..].copy_from_slice(&seal.to_le_bytes());
        let crc = header_crc(&bytes, position);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header of a frame that begins at `position`.
    ///
    /// # Errors
    /// The bytes are not a header, or that of a frame at another position.
    pub fn decode(bytes: &[u8; FRAME_BYTES], position: u64) -> Result<FrameHeader, FrameError> {
        let u32_at = |at: usize| {
            u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes of eighty"))
        };
        let u64_at = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes of eighty"))
        };
        if !bytes.starts_with(&FrameHeader::MAGIC) {
            return Err(FrameError::Magic);
        }
        if u32_at(4) != header_crc(bytes, position) || u32_at(8) > PAYLOAD_BYTES_MAX {
            return Err(FrameError::Header);
        }
        Ok(FrameHeader {
            length: u32_at(8),
            payload_crc: u32_at(12),
            stamp: Hlc::from_bits(u64_at(16)),
            log: LogId(u64_at(24)),
            base: Offset(u64_at(32)),
            count: u32_at(40),
            epoch: u32_at(44),
            user_min: UserTime(u64_at(48) as i64),
            user_max: UserTime(u64_at(56) as i64),
            synced_to: u64_at(64),
            kind: bytes[72],
        })
    }

    /// Decodes the header of a frame that begins at `position` in a segment with this salt. Nobody
    /// can make bytes that pass without knowing the salt.
    ///
    /// # Errors
    /// As [`FrameHeader::decode`].
    pub fn decode_salted(
        bytes: &[u8; FRAME_BYTES],
        position: u64,
        salt: u64,
    ) -> Result<FrameHeader, FrameError> {
        let frame = FrameHeader::decode(bytes, position)?;
        let is_sealed = bytes[SALTED_CRC_AT..] == salted_crc(bytes, position, salt).to_le_bytes();
        if is_sealed { Ok(frame) } else { Err(FrameError::Header) }
    }

    /// The offset after its last one; saturates at the largest offset.
    pub fn end_offset(&self) -> Offset {
        Offset(self.base.0.saturating_add(u64::from(self.count)))
    }

    /// The position after its payload, if it begins at `position`.
    pub fn payload_end(&self, position: u64) -> u64 {
        position + FRAME_BYTES as u64 + u64::from(self.length)
    }

    /// The position after this frame, if it begins at `position`.
    pub fn end(&self, position: u64) -> u64 {
        position + FRAME_BYTES as u64 + padded(u64::from(self.length))
    }
}

/// The checksum of a header and the salt.
fn salted_crc(bytes: &[u8; FRAME_BYTES], position: u64, salt: u64) -> u32 {
    let crc = crc32c::crc32c(&salt.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &position.to_le_bytes());
    crc32c::crc32c_append(crc, &bytes[8..SALTED_CRC_AT])
}

fn header_crc(bytes: &[u8; FRAME_BYTES], position: u64) -> u32 {
    let crc = crc32c::crc32c(&position.to_le_bytes());
    crc32c::crc32c_append(crc, &bytes[8..])
}

impl FrameHeader {
    /// The entry whose payload begins at `position`. Publishing fills in its place in its log.
    pub(crate) fn entry_at(&self, position: u64) -> Entry {
        Entry {
            stamp: self.stamp,
            base: self.base,
            count: self.count,
            length: self.length,
            position,
            user_min: self.user_min,
            user_max: self.user_max,
            user_time_max: self.user_max,
            bytes: 0,
            payload_crc: self.payload_crc,
            epoch: self.epoch,
            kind: self.kind,
            chain: 0,
        }
    }
}

impl Entry {
    /// The position at which its frame begins in the journal. An empty payload begins where its
    /// frame ends, which may be in another segment.
    pub(crate) fn frame(&self) -> u64 {
        self.position - FRAME_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use hlc::SysTime;

    use super::*;

    fn frame() -> FrameHeader {
        FrameHeader {
            length: 5,
            payload_crc: 6,
            stamp: Hlc::new(SysTime(7), 8),
            log: LogId(9),
            base: Offset(10),
            count: 11,
            epoch: 12,
            user_min: UserTime(-13),
            user_max: UserTime(14),
            synced_to: 15,
            kind: 16,
        }
    }

    #[test]
    fn a_frame_reads_as_it_was_written() {
        assert_eq!(FrameHeader::decode(&frame().encode(800), 800), Ok(frame()));
    }

    #[test]
    fn a_frame_that_stands_at_another_position_is_no_frame() {
        assert_eq!(FrameHeader::decode(&frame().encode(800), 808), Err(FrameError::Header));
    }

    #[test]
    fn a_frame_of_a_segment_of_another_salt_is_no_frame_there() {
        let sealed = frame().encode_salted(800, 5);
        assert_eq!(FrameHeader::decode_salted(&sealed, 800, 5), Ok(frame()));
        assert_eq!(FrameHeader::decode(&sealed, 800), Ok(frame()));
        for header in [sealed, frame().encode(800)] {
            assert_eq!(FrameHeader::decode_salted(&header, 800, 6), Err(FrameError::Header));
        }
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let good = frame().encode_salted(0, 5);
        for bit in 0..FRAME_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::decode(&bad, 0).is_err(), "bit {bit}");
            assert!(FrameHeader::decode_salted(&bad, 0, 5).is_err(), "bit {bit}");
        }
    }

    /// Without the salt one can make a header's checksum, but not its salted checksum.
    #[test]
    fn a_salted_checksum_covers_all_of_the_header_and_where_it_stands() {
        let sealed = frame().encode_salted(800, 5);
        let changed = [FrameHeader { kind: 17, ..frame() }, FrameHeader { length: 6, ..frame() }];
        let moved = frame().encode(808);
        for (header, position) in
            changed.map(|frame| (frame.encode(800), 800)).into_iter().chain([(moved, 808)])
        {
            let mut forged = header;
            forged[SALTED_CRC_AT..].copy_from_slice(&sealed[SALTED_CRC_AT..]);
            let crc = header_crc(&forged, position);
            forged[4..8].copy_from_slice(&crc.to_le_bytes());
            assert!(FrameHeader::decode(&forged, position).is_ok());
            assert_eq!(FrameHeader::decode_salted(&forged, position, 5), Err(FrameError::Header));
        }
    }

    #[test]
    fn a_payload_longer_than_any_is_corruption() {
        let longest = FrameHeader { length: PAYLOAD_BYTES_MAX, ..frame() };
        assert_eq!(FrameHeader::decode(&longest.encode(0), 0), Ok(longest));
        let longer = FrameHeader { length: PAYLOAD_BYTES_MAX + 1, ..frame() };
        assert_eq!(FrameHeader::decode(&longer.encode(0), 0), Err(FrameError::Header));
    }

    #[test]
    fn a_frame_ends_behind_its_padding_and_takes_its_offsets() {
        for (length, padding) in [(0, 0), (1, 7), (7, 1), (8, 0), (9, 7)] {
            let frame = FrameHeader { length, ..frame() };
            let behind = 800 + 80 + u64::from(length);
            assert_eq!(frame.payload_end(800), behind);
            assert_eq!(frame.end(800), behind + padding);
        }
        assert_eq!(frame().end_offset(), Offset(21));
        assert_eq!(
            FrameHeader { base: Offset(u64::MAX - 1), ..frame() }.end_offset(),
            Offset(u64::MAX)
        );
    }
}
