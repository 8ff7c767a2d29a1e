//! Amounts of bytes as people write them: `4GiB`, `64MiB`, `1GB`, `1024`.

use std::{fmt, str::FromStr};

/// A count of bytes that was given on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

const UNITS: [(&str, u64); 9] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
    ("", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let refuse = || format!("not an amount of bytes, such as 4GiB, 64MiB or 1024: {text}");
        let number: u64 = number.parse().map_err(|_| refuse())?;
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(refuse)?;
        number.checked_mul(*factor).map(ByteSize).ok_or_else(refuse)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary =
            UNITS[..3].iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit));
        match binary {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_with_binary_decimal_or_no_unit() {
        for (text, bytes) in
            [("4GiB", 4 << 30), ("64 MiB", 64 << 20), ("1GB", 1_000_000_000), ("17", 17)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "GiB", "1.5GiB", "-1", "99999999999GiB", "1 parsec"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn amounts_are_written_as_they_are_read() {
        for text in ["4GiB", "1MiB", "100KiB", "1000000"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
    }
}
