//! A time in text: a number, or a date with its zone.

use jiff::Timestamp;

use crate::number::from_text;
use crate::{ExtractError, TimeUnit};

/// The longest date that is parsed.
const DATE_BYTES_MAX: usize = 64;

/// Parses a time. Surrounding spaces do not count.
pub(crate) fn parse_time(text: &[u8], unit: TimeUnit) -> Result<i64, ExtractError> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return Err(ExtractError::Missing("text where its time should be"));
    }
    // No number contains one of these, and every date does.
    let is_date = text.iter().take(DATE_BYTES_MAX).any(|byte| matches!(byte, b':' | b'T' | b't'));
    if is_date { parse_date(text) } else { from_text(text, unit) }
}

fn parse_date(text: &[u8]) -> Result<i64, ExtractError> {
    let bad = || {
        let expected = "a date with a time and a zone was expected, as in 2026-11-21T09:00:00.123Z";
        ExtractError::not_a_time(expected, text)
    };
    let date = (text.len() <= DATE_BYTES_MAX).then_some(text).ok_or_else(bad)?;
    let date = std::str::from_utf8(date).map_err(|_| bad())?;
    let date: Timestamp = date.parse().map_err(|_| bad())?;
    i64::try_from(date.as_nanosecond().div_euclid(1_000_000)).map_err(|_| ExtractError::OutOfRange)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_dates_are_told_apart() {
        let parse = |text: &str| parse_time(text.as_bytes(), TimeUnit::Seconds);
        assert_eq!(parse(" 1700000000 "), Ok(1_700_000_000_000));
        assert_eq!(parse("2023-11-14T22:13:20Z"), Ok(1_700_000_000_000));
        assert_eq!(parse("2023-11-14T23:13:20.1239+01:00"), Ok(1_700_000_000_123));
        assert_eq!(parse("20231114T221320.123Z"), Ok(1_700_000_000_123));
        assert_eq!(parse("1969-12-31T23:59:59.9999Z"), Ok(-1));
    }

    #[test]
    fn a_date_without_a_zone_is_none() {
        for text in ["2023-11-14T22:13:20", "2023-11-14", "T", "22:13", "\u{feff}1:1", ":::"] {
            let verdict = parse_time(text.as_bytes(), TimeUnit::Millis);
            assert!(matches!(verdict, Err(ExtractError::NotATime { .. })), "{text}: {verdict:?}");
        }
        assert_eq!(
            parse_time(b"  ", TimeUnit::Millis),
            Err(ExtractError::Missing("text where its time should be"))
        );
        assert!(parse_time(&[b':'; 1 << 20], TimeUnit::Millis).is_err());
        assert!(parse_time(&[0xff, b':'], TimeUnit::Millis).is_err());
    }
}
