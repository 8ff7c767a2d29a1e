//! The faults of a batch. Each variant is a different error for the client.

use crate::CompressionType;

/// The reason why bytes are not a valid record batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Fewer bytes than a header has.
    #[error("the record batch has {have} bytes, and its header takes {need}")]
    TooShort {
        /// Bytes available.
        have: usize,
        /// Bytes of a header.
        need: usize,
    },
    /// The length field disagrees with the available bytes, or is invalid for any batch.
    #[error("the record batch has {have} bytes, and its length field says {says}")]
    Length {
        /// The length of the whole batch, by its length field.
        says: i64,
        /// Bytes available.
        have: usize,
    },
    /// The checksum does not match.
    #[error(
        "the record batch is corrupt: its CRC is {computed:#010x}, and its header says {crc:#010x}"
    )]
    Crc {
        /// The CRC in the header.
        crc: u32,
        /// The CRC of the bytes.
        computed: u32,
    },
    /// A message set from before Kafka 0.11, which Kafka 4 refuses too.
    #[error("the message format {magic} is too old")]
    OldMagic {
        /// 0 or 1.
        magic: i8,
    },
    /// The magic byte is of no known format.
    #[error("the message format {magic} is unknown")]
    BadMagic {
        /// The byte found.
        magic: i8,
    },
    /// The compression bits are no known codec.
    #[error("the compression codec {bits} is unknown")]
    UnknownCodec {
        /// The low three bits of the attributes.
        bits: i16,
    },
    /// Intact, but the header contradicts itself.
    #[error("the header of the record batch is not coherent: {what}, and {value} was found")]
    Incoherent {
        /// The rule that does not hold.
        what: &'static str,
        /// The field that breaks it.
        value: i64,
    },
    /// The records take more room than the caller allows.
    #[error("the records are larger than {max} bytes when decompressed")]
    TooLarge {
        /// The limit, in bytes.
        max: usize,
    },
    /// The compressed stream is invalid.
    #[error("the records cannot be decompressed as {codec:?}: {why}")]
    Undecodable {
        /// The codec in the header.
        codec: CompressionType,
        /// The message of the decoder.
        why: String,
    },
    /// A record does not parse, or does not fit its batch.
    #[error("record {index} is malformed: {what}")]
    BadRecord {
        /// The index of the record in the batch, from 0.
        index: usize,
        /// A description of the fault.
        what: &'static str,
    },
}
