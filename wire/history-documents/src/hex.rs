//! Bytes in hex: two digits a byte.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// Bytes that a document spells in pairs of hex digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct HexBytes(pub Vec<u8>);

/// A text that does not consist of pairs of hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes are spelled in pairs of hex digits")]
pub struct HexError;

impl TryFrom<String> for HexBytes {
    type Error = HexError;

    fn try_from(text: String) -> Result<HexBytes, HexError> {
        let digit = |digit: u8| (digit as char).to_digit(16).map(|digit| digit as u8);
        let pair = |pair: &[u8]| match pair {
            [high, low] => Some((digit(*high)? << 4) | digit(*low)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        bytes.map(HexBytes).ok_or(HexError)
    }
}

impl fmt::Display for HexBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for HexBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_pairs_of_digits_and_nothing_else_reads() {
        assert_eq!(HexBytes(vec![0, 0xab]).to_string(), "00ab");
        assert_eq!(HexBytes::try_from("00aB".to_owned()), Ok(HexBytes(vec![0, 0xab])));
        for text in ["0", "zz", "é", "+1"] {
            assert_eq!(HexBytes::try_from(text.to_owned()), Err(HexError), "{text}");
        }
    }
}
