//! The faults of a batch. Each variant is a different error for the client.

use crate::CompressionType;

/// The reason why bytes are not a valid record batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Fewer bytes than a header has.
    #[error("record batch is shorter than its header. have={have}, need={need}")]
    TooShort {
        /// Bytes available.
        have: usize,
        /// Bytes of a header.
        need: usize,
    },
    /// The length field disagrees with the available bytes, or is invalid for any batch.
    #[error("record batch length is wrong. says={says}, have={have}")]
    Length {
        /// The length of the whole batch, by its length field.
        says: i64,
        /// Bytes available.
        have: usize,
    },
    /// The checksum does not match.
    #[error("record batch is corrupt. crc={crc:#010x}, computed={computed:#010x}")]
    Crc {
        /// The CRC in the header.
        crc: u32,
        /// The CRC of the bytes.
        computed: u32,
    },
    /// A message set from before Kafka 0.11, which Kafka 4 refuses too.
    #[error("message format is too old. magic={magic}")]
    OldMagic {
        /// 0 or 1.
        magic: i8,
    },
    /// The magic byte is of no known format.
    #[error("message format is unknown. magic={magic}")]
    BadMagic {
        /// The byte found.
        magic: i8,
    },
    /// The compression bits are no known codec.
    #[error("compression codec is unknown. codec={bits}")]
    UnknownCodec {
        /// The low three bits of the attributes.
        bits: i16,
    },
    /// Intact, but the header contradicts itself.
    #[error("record batch header is not coherent: {what}. value={value}")]
    Incoherent {
        /// The rule that does not hold.
        what: &'static str,
        /// The field that breaks it.
        value: i64,
    },
    /// The records take more room than the caller allows.
    #[error("records are too large when decompressed. max={max}")]
    TooLarge {
        /// The limit, in bytes.
        max: usize,
    },
    /// The compressed stream is invalid.
    #[error("records cannot be decompressed: {why}. codec={codec:?}")]
    Undecodable {
        /// The codec in the header.
        codec: CompressionType,
        /// The message of the decoder.
        why: String,
    },
    /// A record does not parse, or does not fit its batch.
    #[error("record is malformed: {what}. index={index}")]
    BadRecord {
        /// The index of the record in the batch, from 0.
        index: usize,
        /// A description of the fault.
        what: &'static str,
    },
}
