//! The codecs that a batch's attributes can name.

use crate::BatchError;

/// How the records of a batch are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// As they are.
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

impl Codec {
    /// Where the attributes keep the codec.
    pub(crate) const MASK: i16 = 0b111;

    /// All codecs, in the order of their numbers on the wire.
    pub const ALL: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

    pub(crate) fn of(attributes: i16) -> Result<Codec, BatchError> {
        match attributes & Codec::MASK {
            0 => Ok(Codec::None),
            1 => Ok(Codec::Gzip),
            2 => Ok(Codec::Snappy),
            3 => Ok(Codec::Lz4),
            4 => Ok(Codec::Zstd),
            bits => Err(BatchError::UnknownCodec { bits }),
        }
    }

    pub(crate) fn bits(self) -> i16 {
        match self {
            Codec::None => 0,
            Codec::Gzip => 1,
            Codec::Snappy => 2,
            Codec::Lz4 => 3,
            Codec::Zstd => 4,
        }
    }
}
