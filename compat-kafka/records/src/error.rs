//! What can be wrong with a batch. Each variant is a different answer to the client.

use crate::CompressionType;

/// Why bytes from outside are not a record batch we can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Fewer bytes than a header takes.
    #[error("record batch is shorter than its header. have={have}, need={need}")]
    TooShort {
        /// Bytes at hand.
        have: usize,
        /// Bytes a header takes.
        need: usize,
    },
    /// The length field disagrees with the bytes at hand, or could not be any batch's length.
    #[error("record batch length is wrong. says={says}, have={have}")]
    Length {
        /// Length of the whole batch by its own account.
        says: i64,
        /// Bytes at hand.
        have: usize,
    },
    /// The bytes are not those that were checksummed.
    #[error("record batch is corrupt. crc={crc:#010x}, computed={computed:#010x}")]
    Crc {
        /// What the header says.
        crc: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// A message set from before Kafka 0.11, which Kafka 4 does not take either.
    #[error("message format is too old. magic={magic}")]
    OldMagic {
        /// 0 or 1.
        magic: i8,
    },
    /// No format we know of.
    #[error("message format is unknown. magic={magic}")]
    BadMagic {
        /// The byte found.
        magic: i8,
    },
    /// The compression bits name no codec.
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
    /// The compressed stream is broken.
    #[error("records cannot be decompressed: {why}. codec={codec:?}")]
    Undecodable {
        /// The codec the header names.
        codec: CompressionType,
        /// What its decoder says.
        why: String,
    },
    /// A record does not parse, or does not fit its batch.
    #[error("record is malformed: {what}. index={index}")]
    BadRecord {
        /// Which record of the batch, from 0.
        index: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}
