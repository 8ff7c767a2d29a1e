//! Sizes in bytes: a number with kB, MB, GB, KiB, MiB or GiB.

/// The units and their bytes. `B` is last, because the others end with it.
const UNITS: [(&str, u64); 7] = [
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("B", 1),
];

/// Splits a size into its number and the bytes of its unit: 1 without a unit.
pub(crate) fn split_byte_size(text: &str) -> (&str, u64) {
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, bytes) = unit.unwrap_or((text, 1));
    (number.trim(), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_and_a_unit() {
        for (text, number, bytes) in [
            ("5", "5", 1),
            ("7B", "7", 1),
            ("1 kB", "1", 1_000),
            ("20MB", "20", 1_000_000),
            ("1.5GiB", "1.5", 1 << 30),
            ("1TB", "1T", 1),
            ("", "", 1),
        ] {
            assert_eq!(split_byte_size(text), (number, bytes), "{text}");
        }
    }
}
