//! What a setting's value must look like, and how it is spelled.
//!
//! Kafka reads a value before it shows it: blanks around it go, and so do leading zeroes and words that
//! come twice. So every value has one spelling here, in which it is stored and listed.

use std::borrow::Cow;

use user_time::Spec;

/// What a value must look like.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Long {
        min: i64,
    },
    Int {
        min: i64,
    },
    /// How hard a codec tries: so hard, or as it is set by itself.
    Level {
        min: i64,
        max: i64,
        or: Option<i64>,
    },
    Ratio,
    Bool,
    OneOf(&'static [&'static str]),
    /// None of the words, some, or all.
    ListOf(&'static [&'static str]),
    /// Which replicas: partition and broker, or all.
    Replicas,
    UserTime,
}

/// What would be a value.
type Expected = Cow<'static, str>;

impl Kind {
    /// A value in its one spelling.
    pub(super) fn read(self, text: &str) -> Result<String, Expected> {
        // A specification of user time can begin or end with a blank that means something.
        let value = if matches!(self, Kind::UserTime) { text } else { trim(text) };
        match self {
            Kind::Long { min } => whole(value, min, i64::MAX),
            Kind::Int { min } => whole(value, min, i64::from(i32::MAX)),
            Kind::Level { min, max, or } => match (whole(value, min, max), or) {
                (Err(_), Some(or)) if value == or.to_string() => Ok(value.to_owned()),
                (Err(expected), Some(or)) => Err(format!("{expected}, or {or}").into()),
                (level, _) => level,
            },
            Kind::Ratio => match value.parse::<f64>() {
                Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(spell(ratio)),
                _ => Err("a fraction from 0 to 1".into()),
            },
            Kind::Bool => {
                let words = ["true", "false"];
                let word = words.into_iter().find(|word| word.eq_ignore_ascii_case(value));
                word.map(str::to_owned).ok_or_else(|| "true or false".into())
            }
            Kind::OneOf(words) if words.contains(&value) => Ok(value.to_owned()),
            Kind::OneOf(words) => Err(format!("one of {}", words.join(", ")).into()),
            Kind::ListOf(words) => {
                let mut list = split(value);
                if !list.iter().all(|word| words.contains(word)) {
                    return Err(format!("a list of {}, or nothing", words.join(", ")).into());
                }
                let mut seen = Vec::new();
                list.retain(|word| {
                    !seen.contains(word) && {
                        seen.push(*word);
                        true
                    }
                });
                Ok(list.join(","))
            }
            Kind::Replicas => Ok(split(value).join(",")),
            Kind::UserTime => match Spec::parse(value) {
                Ok(_) => Ok(value.to_owned()),
                Err(error) => Err(error.to_string().into()),
            },
        }
    }

    /// Whether what [`Kind::read`] gave may be set from now on. It is taken from a journal all the same.
    pub(super) fn check_new(self, value: &str) -> Result<(), Expected> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_replica = |word: &&str| {
            word.split_once(':').is_some_and(|(one, other)| is_number(one) && is_number(other))
        };
        let is_fine = match self {
            Kind::Replicas => value == "*" || split(value).iter().all(is_replica),
            _ => true,
        };
        if is_fine { Ok(()) } else { Err("* or a list of PARTITION:BROKER".into()) }
    }
}

/// Without the blanks that Java trims.
fn trim(text: &str) -> &str {
    text.trim_matches(|c| c <= ' ')
}

fn split(list: &str) -> Vec<&str> {
    if list.is_empty() { Vec::new() } else { list.split(',').map(trim).collect() }
}

fn whole(text: &str, min: i64, max: i64) -> Result<String, Expected> {
    match text.parse::<i64>() {
        Ok(number) if (min..=max).contains(&number) => Ok(number.to_string()),
        _ => Err(match (min, max) {
            (i64::MIN, _) => "a whole number".into(),
            (_, i64::MAX) => format!("a whole number, {min} or more").into(),
            _ => format!("a whole number from {min} to {max}").into(),
        }),
    }
}

/// As Java spells it.
fn spell(ratio: f64) -> String {
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
        let (long, int) = (Kind::Long { min: -1 }, Kind::Int { min: 0 });
        let policy = Kind::ListOf(&["delete", "compact"]);
        for (kind, given, spelled) in [
            (long, " 7\t", "7"),
            (long, "+7", "7"),
            (long, "-0", "0"),
            (long, "007", "7"),
            (int, "2147483647", "2147483647"),
            (Kind::Ratio, ".5", "0.5"),
            (Kind::Ratio, "1", "1.0"),
            (Kind::Ratio, "0", "0.0"),
            (Kind::Ratio, "0.001", "0.001"),
            (Kind::Ratio, "0.00025", "2.5E-4"),
            (Kind::Ratio, "1e-9", "1.0E-9"),
            (Kind::Bool, " TRUE", "true"),
            (Kind::OneOf(&["lz4"]), "lz4 ", "lz4"),
            (policy, "", ""),
            (policy, " ", ""),
            (policy, "compact , delete", "compact,delete"),
            (policy, "delete,compact,delete", "delete,compact"),
            (Kind::Replicas, "0:1 , 1:2", "0:1,1:2"),
        ] {
            assert_eq!(kind.read(given).as_deref(), Ok(spelled), "{given:?}");
            assert_eq!(kind.read(spelled).as_deref(), Ok(spelled), "{given:?}");
        }
    }

    #[test]
    fn what_is_no_value_is_told_what_would_be() {
        let policy = Kind::ListOf(&["delete", "compact"]);
        for (kind, given, expected) in [
            (Kind::Long { min: -1 }, "-2", "a whole number, -1 or more"),
            (Kind::Long { min: -1 }, "9223372036854775808", "a whole number, -1 or more"),
            (Kind::Long { min: i64::MIN }, "1e3", "a whole number"),
            (Kind::Int { min: 4 }, "3", "a whole number from 4 to 2147483647"),
            (Kind::Int { min: 4 }, "2147483648", "a whole number from 4 to 2147483647"),
            (Kind::Ratio, "1.1", "a fraction from 0 to 1"),
            (Kind::Ratio, "NaN", "a fraction from 0 to 1"),
            (Kind::Bool, "yes", "true or false"),
            (Kind::OneOf(&["lz4", "zstd"]), "LZ4", "one of lz4, zstd"),
            (policy, "Compact", "a list of delete, compact, or nothing"),
            (policy, "compact,", "a list of delete, compact, or nothing"),
            (policy, ",", "a list of delete, compact, or nothing"),
        ] {
            assert_eq!(kind.read(given).unwrap_err(), expected, "{given:?}");
        }
    }

    #[test]
    fn replicas_are_named_by_partition_and_broker() {
        for fine in ["", "*", "0:1", "0:1,12:3"] {
            assert_eq!(Kind::Replicas.check_new(fine), Ok(()), "{fine:?}");
        }
        for wrong in ["x", "0", "0:", ":1", "*,0:1", "0:1,,1:1", "-1:1"] {
            assert!(Kind::Replicas.check_new(wrong).is_err(), "{wrong:?}");
        }
    }
}
