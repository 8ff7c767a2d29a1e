//! The valid values of a setting, and their canonical form.
//!
//! Kafka normalises a value before it shows it: it removes surrounding blanks, leading zeroes and
//! repeated list items. So each value has one canonical form here, in which it is stored and
//! listed.

use std::borrow::Cow;

use user_time::UserTimeSpec;

/// The valid values of a setting.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConfigValueKind {
    Long {
        min: i64,
    },
    Int {
        min: i64,
    },
    /// A compression level in a range, or a special value for the codec's default.
    Level {
        min: i64,
        max: i64,
        or: Option<i64>,
    },
    Ratio,
    Bool,
    OneOf(&'static [&'static str]),
    /// A list of none, some, or all of these words.
    ListOf(&'static [&'static str]),
    /// Replicas: a list of `partition:broker`, or all.
    Replicas,
    UserTime,
}

/// The form of a valid value.
type ExpectedValue = Cow<'static, str>;

impl ConfigValueKind {
    /// The canonical form of a value.
    pub(super) fn parse(self, text: &str) -> Result<String, ExpectedValue> {
        // A specification of user time can begin or end with a significant blank.
        let value = if matches!(self, ConfigValueKind::UserTime) { text } else { trim(text) };
        match self {
            ConfigValueKind::Long { min } => parse_integer(value, min, i64::MAX),
            ConfigValueKind::Int { min } => parse_integer(value, min, i64::from(i32::MAX)),
            ConfigValueKind::Level { min, max, or } => match (parse_integer(value, min, max), or) {
                (Err(_), Some(or)) if value == or.to_string() => Ok(value.to_owned()),
                (Err(expected), Some(or)) => Err(format!("{expected}, or {or}").into()),
                (level, _) => level,
            },
            ConfigValueKind::Ratio => match value.parse::<f64>() {
                Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(format_ratio(ratio)),
                _ => Err("a fraction from 0 to 1".into()),
            },
            ConfigValueKind::Bool => {
                let words = ["true", "false"];
                let word = words.into_iter().find(|word| word.eq_ignore_ascii_case(value));
                word.map(str::to_owned).ok_or_else(|| "true or false".into())
            }
            ConfigValueKind::OneOf(words) if words.contains(&value) => Ok(value.to_owned()),
            ConfigValueKind::OneOf(words) => Err(format!("one of {}", words.join(", ")).into()),
            ConfigValueKind::ListOf(words) => {
                let mut list = split(value);
                if !list.iter().all(|word| words.contains(word)) {
                    return Err(format!("a list of {}, or nothing", words.join(", ")).into());
                }
                let mut words = Vec::new();
                list.retain(|word| {
                    !words.contains(word) && {
                        words.push(*word);
                        true
                    }
                });
                Ok(list.join(","))
            }
            ConfigValueKind::Replicas => Ok(split(value).join(",")),
            ConfigValueKind::UserTime => match UserTimeSpec::parse(value) {
                Ok(_) => Ok(value.to_owned()),
                Err(error) => Err(error.to_string().into()),
            },
        }
    }

    /// Checks that the result of [`ConfigValueKind::parse`] may be set from now on. A value from a
    /// journal is accepted without this check.
    pub(super) fn check_new(self, value: &str) -> Result<(), ExpectedValue> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_replica = |word: &&str| {
            word.split_once(':')
                .is_some_and(|(first, second)| is_number(first) && is_number(second))
        };
        let is_fine = match self {
            ConfigValueKind::Replicas => value == "*" || split(value).iter().all(is_replica),
            _ => true,
        };
        if is_fine { Ok(()) } else { Err("* or a list of PARTITION:BROKER".into()) }
    }
}

/// Removes the blanks that Java's `trim` removes.
fn trim(text: &str) -> &str {
    text.trim_matches(|c| c <= ' ')
}

fn split(list: &str) -> Vec<&str> {
    if list.is_empty() { Vec::new() } else { list.split(',').map(trim).collect() }
}

fn parse_integer(text: &str, min: i64, max: i64) -> Result<String, ExpectedValue> {
    match text.parse::<i64>() {
        Ok(number) if (min..=max).contains(&number) => Ok(number.to_string()),
        _ => Err(match (min, max) {
            (i64::MIN, _) => "a whole number".into(),
            (_, i64::MAX) => format!("a whole number, {min} or more").into(),
            _ => format!("a whole number from {min} to {max}").into(),
        }),
    }
}

/// A ratio as Java formats it.
fn format_ratio(ratio: f64) -> String {
    if ratio == 0.0 || ratio >= 1e-3 {
        return format!("{ratio:?}");
    }
    let text = format!("{ratio:e}");
    let (digits, exponent) = text.split_once('e').expect("written with an exponent");
    let point = if digits.contains('.') { "" } else { ".0" };
    format!("{digits}{point}E{exponent}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_the_spelling_in_which_kafka_lists_it() {
        let (long, int) = (ConfigValueKind::Long { min: -1 }, ConfigValueKind::Int { min: 0 });
        let policy = ConfigValueKind::ListOf(&["delete", "compact"]);
        for (kind, text, spelled) in [
            (long, " 7\t", "7"),
            (long, "+7", "7"),
            (long, "-0", "0"),
            (long, "007", "7"),
            (int, "2147483647", "2147483647"),
            (ConfigValueKind::Ratio, ".5", "0.5"),
            (ConfigValueKind::Ratio, "1", "1.0"),
            (ConfigValueKind::Ratio, "0", "0.0"),
            (ConfigValueKind::Ratio, "0.001", "0.001"),
            (ConfigValueKind::Ratio, "0.00025", "2.5E-4"),
            (ConfigValueKind::Ratio, "1e-9", "1.0E-9"),
            (ConfigValueKind::Bool, " TRUE", "true"),
            (ConfigValueKind::OneOf(&["lz4"]), "lz4 ", "lz4"),
            (policy, "", ""),
            (policy, " ", ""),
            (policy, "compact , delete", "compact,delete"),
            (policy, "delete,compact,delete", "delete,compact"),
            (ConfigValueKind::Replicas, "0:1 , 1:2", "0:1,1:2"),
        ] {
            assert_eq!(kind.parse(text).as_deref(), Ok(spelled), "{text:?}");
            assert_eq!(kind.parse(spelled).as_deref(), Ok(spelled), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_value_is_told_what_would_be() {
        let policy = ConfigValueKind::ListOf(&["delete", "compact"]);
        for (kind, text, expected) in [
            (ConfigValueKind::Long { min: -1 }, "-2", "a whole number, -1 or more"),
            (
                ConfigValueKind::Long { min: -1 },
                "9223372036854775808",
                "a whole number, -1 or more",
            ),
            (ConfigValueKind::Long { min: i64::MIN }, "1e3", "a whole number"),
            (ConfigValueKind::Int { min: 4 }, "3", "a whole number from 4 to 2147483647"),
            (ConfigValueKind::Int { min: 4 }, "2147483648", "a whole number from 4 to 2147483647"),
            (ConfigValueKind::Ratio, "1.1", "a fraction from 0 to 1"),
            (ConfigValueKind::Ratio, "NaN", "a fraction from 0 to 1"),
            (ConfigValueKind::Bool, "yes", "true or false"),
            (ConfigValueKind::OneOf(&["lz4", "zstd"]), "LZ4", "one of lz4, zstd"),
            (policy, "Compact", "a list of delete, compact, or nothing"),
            (policy, "compact,", "a list of delete, compact, or nothing"),
            (policy, ",", "a list of delete, compact, or nothing"),
        ] {
            assert_eq!(kind.parse(text).unwrap_err(), expected, "{text:?}");
        }
    }

    #[test]
    fn replicas_are_named_by_partition_and_broker() {
        for fine in ["", "*", "0:1", "0:1,12:3"] {
            assert_eq!(ConfigValueKind::Replicas.check_new(fine), Ok(()), "{fine:?}");
        }
        for wrong in ["x", "0", "0:", ":1", "*,0:1", "0:1,,1:1", "-1:1"] {
            assert!(ConfigValueKind::Replicas.check_new(wrong).is_err(), "{wrong:?}");
        }
    }
}
