//! The codecs in a batch's attributes.

use crate::BatchError;

/// The compression of a batch's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompressionType {
    /// No compression.
    None,
    /// RFC 1952.
    Gzip,
    /// Raw snappy, or snappy in the framing of the Java library (xerial).
    Snappy,
    /// The LZ4 frame format.
    Lz4,
    /// RFC 8878.
    Zstd,
}

impl CompressionType {
    /// The bits of the attributes that hold the codec.
    pub(crate) const MASK: i16 = 0b111;

    /// All codecs, in the order of their numbers on the wire.
    pub const ALL: [CompressionType; 5] = [
        CompressionType::None,
        CompressionType::Gzip,
        CompressionType::Snappy,
        CompressionType::Lz4,
        CompressionType::Zstd,
    ];

    pub(crate) fn from_attributes(attributes: i16) -> Result<CompressionType, BatchError> {
        match attributes & CompressionType::MASK {
            0 => Ok(CompressionType::None),
            1 => Ok(CompressionType::Gzip),
            2 => Ok(CompressionType::Snappy),
            3 => Ok(CompressionType::Lz4),
            4 => Ok(CompressionType::Zstd),
            bits => Err(BatchError::UnknownCodec { bits }),
        }
    }

    pub(crate) fn bits(self) -> i16 {
        match self {
            CompressionType::None => 0,
            CompressionType::Gzip => 1,
            CompressionType::Snappy => 2,
            CompressionType::Lz4 => 3,
            CompressionType::Zstd => 4,
        }
    }
}
