//! Numbers as times: exact, and never converted through a float.

use crate::ExtractError;

/// The longest number that is parsed: longer than the text of any float.
const NUMBER_BYTES_MAX: usize = 64;
/// The largest power of ten that fits into 128 bits.
const POWER_MAX: u32 = 38;

/// The unit of a number since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeUnit {
    Seconds,
    #[default]
    Millis,
    Micros,
    Nanos,
}

impl TimeUnit {
    /// Its power of ten relative to a millisecond.
    fn power(self) -> i32 {
        match self {
            TimeUnit::Seconds => 3,
            TimeUnit::Millis => 0,
            TimeUnit::Micros => -3,
            TimeUnit::Nanos => -6,
        }
    }

    pub(crate) fn parse(name: &str) -> Option<TimeUnit> {
        match name {
            "s" => Some(TimeUnit::Seconds),
            "ms" => Some(TimeUnit::Millis),
            "us" => Some(TimeUnit::Micros),
            "ns" => Some(TimeUnit::Nanos),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            TimeUnit::Seconds => "s",
            TimeUnit::Millis => "ms",
            TimeUnit::Micros => "us",
            TimeUnit::Nanos => "ns",
        }
    }
}

/// Parses eight bytes, big-endian: a signed number.
pub(crate) fn from_be64(bytes: &[u8], unit: TimeUnit) -> Result<i64, ExtractError> {
    let bytes: [u8; 8] = bytes
        .try_into()
        .map_err(|_| ExtractError::not_a_time("a number in 8 bytes was expected", bytes))?;
    let number = i64::from_be_bytes(bytes);
    scale(number < 0, number.unsigned_abs().into(), unit.power())
}

/// Parses a decimal number, with an optional fraction and exponent.
pub(crate) fn from_text(text: &[u8], unit: TimeUnit) -> Result<i64, ExtractError> {
    let bad = || ExtractError::not_a_time("a number or a date was expected", text);
    if text.len() > NUMBER_BYTES_MAX {
        return Err(bad());
    }
    let (is_negative, rest) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let (mantissa, exponent) = match rest.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&rest[..at], exponent(&rest[at + 1..]).ok_or_else(bad)?),
        None => (rest, 0),
    };
    let (whole, fraction) = match mantissa.iter().position(|byte| *byte == b'.') {
        Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
        None => (mantissa, &[][..]),
    };
    if whole.is_empty() || (mantissa.len() > whole.len() && fraction.is_empty()) {
        return Err(bad());
    }
    let zeros = fraction.iter().rev().take_while(|byte| **byte == b'0').count();
    let fraction = &fraction[..fraction.len() - zeros];
    let mut number: u128 = 0;
    for byte in whole.iter().chain(fraction) {
        let digit = byte.is_ascii_digit().then(|| u128::from(byte - b'0')).ok_or_else(bad)?;
        number = number
            .checked_mul(10)
            .and_then(|number| number.checked_add(digit))
            .ok_or(ExtractError::OutOfRange)?;
    }
    scale(is_negative, number, exponent + unit.power() - fraction.len() as i32)
}

fn exponent(text: &[u8]) -> Option<i32> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > 4 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let size = digits.iter().fold(0, |size, digit| size * 10 + i32::from(digit - b'0'));
    Some(if is_negative { -size } else { size })
}

/// `number` times ten to the `power`, rounded down.
fn scale(is_negative: bool, number: u128, power: i32) -> Result<i64, ExtractError> {
    let (quotient, is_exact) = if power >= 0 {
        let factor = if number == 0 { Some(1) } else { ten_to(power.unsigned_abs()) };
        let product = factor.and_then(|factor| number.checked_mul(factor));
        (product.ok_or(ExtractError::OutOfRange)?, true)
    } else {
        match ten_to(power.unsigned_abs()) {
            Some(divisor) => (number / divisor, number.is_multiple_of(divisor)),
            None => (0, number == 0),
        }
    };
    let signed = i128::try_from(quotient).map_err(|_| ExtractError::OutOfRange)?;
    let signed = if is_negative { -signed - i128::from(!is_exact) } else { signed };
    i64::try_from(signed).map_err(|_| ExtractError::OutOfRange)
}

fn ten_to(power: u32) -> Option<u128> {
    (power <= POWER_MAX).then(|| 10u128.pow(power))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fractions_and_exponents_are_exact_and_round_down() {
        let parse = |text: &str, unit| from_text(text.as_bytes(), unit).unwrap();
        assert_eq!(parse("1700000000.123", TimeUnit::Seconds), 1_700_000_000_123);
        // A float would make it .122999…
        assert_eq!(parse("1700000000.1230000", TimeUnit::Seconds), 1_700_000_000_123);
        assert_eq!(parse("1.700000000123e9", TimeUnit::Seconds), 1_700_000_000_123);
        assert_eq!(parse("1700000000123999", TimeUnit::Micros), 1_700_000_000_123);
        assert_eq!(parse("-0.0001", TimeUnit::Seconds), -1);
        assert_eq!(parse("-1500", TimeUnit::Micros), -2);
        assert_eq!(parse("9007199254740993", TimeUnit::Millis), 9_007_199_254_740_993);
        assert_eq!(parse("0001700000000123", TimeUnit::Millis), 1_700_000_000_123);
        assert_eq!(parse("0e9999", TimeUnit::Seconds), 0);
        assert_eq!(parse("5e-9999", TimeUnit::Seconds), 0);
    }

    #[test]
    fn what_is_no_number_or_too_large_a_one_is_an_error() {
        for text in
            ["", "-", "1.", ".5", "1e", "1e12345", "0x10", "1_000", "NaN", "inf", "1,5", "١"]
        {
            let verdict = from_text(text.as_bytes(), TimeUnit::Millis);
            assert!(matches!(verdict, Err(ExtractError::NotATime { .. })), "{text}: {verdict:?}");
        }
        for text in ["9223372036854775808", "1e30", "99999999999999999999999999999999999999999"] {
            assert_eq!(from_text(text.as_bytes(), TimeUnit::Millis), Err(ExtractError::OutOfRange));
        }
        assert!(from_text(&[b'0'; 65], TimeUnit::Millis).is_err());
    }

    #[test]
    fn eight_bytes_are_a_signed_number() {
        assert_eq!(from_be64(&(-7i64).to_be_bytes(), TimeUnit::Millis), Ok(-7));
        assert_eq!(
            from_be64(&i64::MIN.to_be_bytes(), TimeUnit::Nanos),
            Ok(i64::MIN / 1_000_000 - 1)
        );
        assert_eq!(
            from_be64(&i64::MAX.to_be_bytes(), TimeUnit::Seconds),
            Err(ExtractError::OutOfRange)
        );
        assert!(from_be64(&[0; 7], TimeUnit::Millis).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn every_millisecond_is_read_from_any_unit(ms in -1i64 << 60..1i64 << 60) {
            let text = ms.to_string();
            prop_assert_eq!(from_text(text.as_bytes(), TimeUnit::Millis), Ok(ms));
            let (sign, size) = (if ms < 0 { "-" } else { "" }, ms.unsigned_abs());
            let seconds = format!("{sign}{}.{:03}", size / 1000, size % 1000);
            prop_assert_eq!(from_text(seconds.as_bytes(), TimeUnit::Seconds), Ok(ms));
            prop_assert_eq!(from_text(format!("{text}000999").as_bytes(), TimeUnit::Nanos),
                Ok(if ms < 0 { ms - 1 } else { ms }));
        }
    }
}
