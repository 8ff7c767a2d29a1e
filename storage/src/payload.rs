//! Payloads: the bytes of an entry, on their way to the journal, in memory, or in a file.

use std::sync::Arc;

use bytes::Bytes;

use crate::checksum::combine_checksums;
use crate::data_file::DataFile;
use crate::entry::Entry;
use crate::error::StorageError;

/// Combining two checksums takes as long as checksumming about this many bytes.
const COMBINE_BYTES_MIN: usize = 8 << 10;

/// The longest header that a payload may have, in bytes.
pub const PAYLOAD_HEADER_BYTES_MAX: usize = 64;

/// The first bytes of a payload: the part that the service fills in, kept apart so that the rest
/// stays where the network put it.
#[derive(Clone, Copy)]
pub struct PayloadHeader {
    bytes: [u8; PAYLOAD_HEADER_BYTES_MAX],
    length: u8,
}

impl PayloadHeader {
    /// A copy of `bytes`.
    ///
    /// # Panics
    /// If there are more than [`PAYLOAD_HEADER_BYTES_MAX`].
    pub fn new(bytes: &[u8]) -> PayloadHeader {
        assert!(
            bytes.len() <= PAYLOAD_HEADER_BYTES_MAX,
            "a head has at most {PAYLOAD_HEADER_BYTES_MAX} bytes"
        );
        let mut head =
            PayloadHeader { bytes: [0; PAYLOAD_HEADER_BYTES_MAX], length: bytes.len() as u8 };
        head.bytes[..bytes.len()].copy_from_slice(bytes);
        head
    }

    /// No bytes.
    pub fn empty() -> PayloadHeader {
        PayloadHeader::new(&[])
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The bytes, to be filled in.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.length)]
    }
}

impl std::fmt::Debug for PayloadHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Head({} bytes)", self.length)
    }
}

/// The bytes of an entry: its header, then the rest.
#[derive(Clone, Debug)]
pub struct Payload {
    /// The part that the service fills in.
    pub header: PayloadHeader,
    /// The part that is never touched.
    pub rest: Bytes,
}

impl Payload {
    pub fn without_header(bytes: Bytes) -> Payload {
        Payload { header: PayloadHeader::empty(), rest: bytes }
    }

    /// The number of its bytes.
    pub fn len(&self) -> usize {
        self.header.as_slice().len() + self.rest.len()
    }

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The CRC-32C of its bytes. `known` is that of the bytes from an index on, if the caller knows
    /// it: they are not read again then.
    pub(crate) fn crc(&self, known: Option<(usize, u32)>) -> u32 {
        let (head, rest) = (self.header.as_slice(), &self.rest);
        match known {
            Some((0, crc)) => crc,
            Some((from, crc)) if from <= head.len() && rest.len() > COMBINE_BYTES_MIN => {
                let length = head.len() - from + rest.len();
                combine_checksums(crc32c::crc32c(&head[..from]), crc, length)
            }
            _ => crc32c::crc32c_append(crc32c::crc32c(head), rest),
        }
    }

    /// All of it in one piece; copies unless there is no header.
    pub fn to_bytes(&self) -> Bytes {
        if self.header.as_slice().is_empty() {
            return self.rest.clone();
        }
        [self.header.as_slice(), &self.rest].concat().into()
    }
}

/// The bytes of an entry, in memory or in a file.
#[derive(Clone, Debug)]
pub struct EntryPayload {
    pub entry: Entry,
    pub location: PayloadLocation,
}

#[derive(Clone, Debug)]
pub enum PayloadLocation {
    Memory(Payload),
    File {
        file: Arc<DataFile>,
        /// The position in the file at which the payload begins.
        at: u64,
    },
}

impl EntryPayload {
    /// The whole payload in one piece, read from the file if necessary.
    ///
    /// # Errors
    /// The disk fails, or returns other bytes than were written.
    pub fn read(&self) -> Result<Bytes, StorageError> {
        match &self.location {
            PayloadLocation::Memory(payload) => Ok(payload.to_bytes()),
            PayloadLocation::File { file, at } => read_checked(file, *at, &self.entry),
        }
    }
}

/// The payload of `entry`, from its file.
pub(crate) fn read_checked(file: &DataFile, at: u64, entry: &Entry) -> Result<Bytes, StorageError> {
    let mut bytes = vec![0; entry.length as usize];
    file.read_exact(&mut bytes, at)?;
    if crc32c::crc32c(&bytes) != entry.payload_crc {
        return Err(file.corruption_error(at, "a payload"));
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A known checksum of a part of a payload is used for it; computing it gives the same.
    #[test]
    fn a_checksum_that_is_known_from_an_index_on_is_that_of_the_whole() {
        let bytes = |length: usize, first: u8| -> Vec<u8> {
            (0..length).map(|i| (i * 31) as u8 ^ first).collect()
        };
        for head in [0, 1, 16, 64] {
            for rest in [0, 1, 100, COMBINE_BYTES_MIN, COMBINE_BYTES_MIN + 1, 3 * COMBINE_BYTES_MIN]
            {
                let (head, rest) = (bytes(head, 3), bytes(rest, 7));
                let whole = [&head[..], &rest].concat();
                let payload = Payload {
                    header: PayloadHeader::new(&head),
                    rest: Bytes::copy_from_slice(&rest),
                };
                let expected = crc32c::crc32c(&whole);
                for from in [0, 1, head.len() / 2, head.len(), head.len() + 1] {
                    let suffix_crc = crc32c::crc32c(&whole[from.min(whole.len())..]);
                    let place = (head.len(), rest.len(), from);
                    assert_eq!(payload.crc(Some((from, suffix_crc))), expected, "{place:?}");
                }
                assert_eq!(payload.crc(None), expected);
            }
        }
    }

    /// Otherwise the body would be read once more for nothing.
    #[test]
    fn a_checksum_that_is_known_of_all_is_taken_as_it_is() {
        let payload =
            |rest| Payload { header: PayloadHeader::new(&[1; 8]), rest: vec![2; rest].into() };
        assert_eq!(payload(5).crc(Some((0, 77))), 77);
        // A long body is not read; reading a short one is faster than combining checksums.
        let long = payload(COMBINE_BYTES_MIN + 1);
        assert_ne!(long.crc(Some((8, 77))), long.crc(Some((8, 78))));
        assert_eq!(payload(9).crc(Some((8, 77))), payload(9).crc(None));
    }
}
