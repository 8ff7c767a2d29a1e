//! The grammar of a topic's setting for its user time.
//!
//! ```text
//! spec   := kind [ ':' argument ] { ';' option }
//! option := name '=' value
//!
//! timestamp                      the record's own timestamp
//! header:NAME                    the last header of that name
//!   ;as=text|be64                its value is text (the default), or 8 bytes
//! json:/POINTER                  a field of the value: RFC 6901
//! csv:COLUMN                     a field of the value's first line, counted from 1: RFC 4180
//!   ;separator=,                 one character
//! be64:OFFSET                    8 bytes of the value from that offset on, big-endian, signed
//! pmu;time-base=N                the value is a C37.118 frame; N is its unit's TIME_BASE
//! wasm:NAME                      a plug-in extracts it
//!
//! header, json, csv and be64:
//!   ;unit=s|ms|us|ns             the unit of numbers, since 1970; ms is the default
//! ```
//!
//! In arguments and values, `%` and two hex digits stand for a byte: `%3B` is a semicolon, `%25` a
//! percent sign. In text, a number may have a fraction and an exponent. A date with a zone (RFC
//! 3339) is recognised whatever the unit.

use crate::SpecError;
use crate::number::TimeUnit;
use crate::plugin::check_plugin_name;

/// The maximum length of a specification.
pub(crate) const SPEC_BYTES_MAX: usize = 1024;
/// The maximum depth of a JSON pointer.
const POINTER_PARTS_MAX: usize = 32;
/// The largest column and the largest offset.
const BYTE_OFFSET_MAX: usize = 1 << 30;
/// TIME_BASE has 24 bits.
const TIME_BASE_MAX: u32 = 0x00ff_ffff;

/// The source of user time: the setting `freezeframe.user.time` of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserTimeSpec {
    kind: UserTimeKind,
    unit: TimeUnit,
}

/// The place of the user time in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserTimeKind {
    /// The record's own timestamp.
    Timestamp,
    Header {
        name: String,
        /// The encoding of the time in its value.
        form: HeaderEncoding,
    },
    /// A field of a JSON document.
    Json {
        /// The parts of the JSON pointer to it.
        pointer: Vec<String>,
    },
    /// A field of comma-separated values.
    Csv {
        /// The column, counted from 1.
        column: usize,
        separator: u8,
    },
    /// 8 bytes of the value.
    Be64 {
        /// The offset of the first of them.
        offset: usize,
    },
    /// A frame of a phasor measurement unit.
    Pmu {
        /// The units of FRACSEC in a second.
        time_base: u32,
    },
    /// The result of a plug-in.
    Wasm {
        /// The name of the plug-in.
        name: String,
    },
}

/// The encoding of a time in a header's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderEncoding {
    /// A number, or a date.
    Text,
    /// 8 bytes, big-endian.
    Be64,
}

impl UserTimeSpec {
    /// Parses a specification.
    ///
    /// # Errors
    /// It is not valid; the error says what is.
    pub fn parse(text: &str) -> Result<UserTimeSpec, SpecError> {
        if text.len() > SPEC_BYTES_MAX {
            return Err(SpecError::TooLong { bytes: text.len() });
        }
        let mut fields = text.split(';');
        let first = fields.next().unwrap_or_default();
        let (kind, argument) = match first.split_once(':') {
            Some((kind, argument)) => (kind, Some(percent_decode(argument)?)),
            None => (first, None),
        };
        let mut options = SpecOptions::parse(fields)?;
        let kind = parse_kind(kind, argument, &mut options)?;
        let unit = options.unit(&kind)?;
        options.expect_empty(&kind)?;
        Ok(UserTimeSpec { kind, unit })
    }

    /// The place of the user time.
    pub fn kind(&self) -> &UserTimeKind {
        &self.kind
    }

    /// The unit of numbers.
    pub fn unit(&self) -> TimeUnit {
        self.unit
    }

    /// Returns true if it is the default: the record's own timestamp.
    pub fn is_timestamp(&self) -> bool {
        self.kind == UserTimeKind::Timestamp
    }
}

impl UserTimeKind {
    pub fn name(&self) -> &'static str {
        match self {
            UserTimeKind::Timestamp => "timestamp",
            UserTimeKind::Header { .. } => "header",
            UserTimeKind::Json { .. } => "json",
            UserTimeKind::Csv { .. } => "csv",
            UserTimeKind::Be64 { .. } => "be64",
            UserTimeKind::Pmu { .. } => "pmu",
            UserTimeKind::Wasm { .. } => "wasm",
        }
    }

    fn options(&self) -> &'static str {
        match self {
            UserTimeKind::Timestamp | UserTimeKind::Wasm { .. } => "takes no options",
            UserTimeKind::Header { .. } => "takes unit=s|ms|us|ns and as=text|be64",
            UserTimeKind::Csv { .. } => "takes unit=s|ms|us|ns and separator=, (one character)",
            UserTimeKind::Json { .. } | UserTimeKind::Be64 { .. } => "takes unit=s|ms|us|ns",
            UserTimeKind::Pmu { .. } => PMU_USAGE,
        }
    }
}

const PMU_USAGE: &str =
    "wants time-base=N, the TIME_BASE of its unit's configuration frame, from 1 to 16777215";

fn parse_kind(
    kind: &str,
    argument: Option<String>,
    options: &mut SpecOptions,
) -> Result<UserTimeKind, SpecError> {
    let wants = |kind, wants| {
        let given = argument.clone().unwrap_or_default();
        SpecError::Argument { kind, wants, given }
    };
    let nothing = |kind| match &argument {
        None => Ok(()),
        Some(_) => Err(wants(kind, "takes no argument")),
    };
    let place = |kind, least: usize, need| {
        let number = argument.as_deref().and_then(|text| text.parse::<usize>().ok());
        number.filter(|number| (least..=BYTE_OFFSET_MAX).contains(number)).ok_or(wants(kind, need))
    };
    Ok(match kind {
        "timestamp" => nothing("timestamp").map(|()| UserTimeKind::Timestamp)?,
        "header" => {
            let name = argument.clone().filter(|name| !name.is_empty());
            let name =
                name.ok_or(wants("header", "wants a header's name, as in header:event-time"))?;
            UserTimeKind::Header { name, form: options.form()? }
        }
        "json" => {
            let pointer = argument.as_deref().and_then(parse_pointer);
            let need = "wants a JSON pointer of at most 32 parts, as in json:/event/time";
            UserTimeKind::Json { pointer: pointer.ok_or(wants("json", need))? }
        }
        "csv" => {
            let column = place("csv", 1, "wants a column, counted from 1, as in csv:3")?;
            UserTimeKind::Csv { column, separator: options.separator()? }
        }
        "be64" => UserTimeKind::Be64 {
            offset: place("be64", 0, "wants an offset in bytes, as in be64:8")?,
        },
        "pmu" => nothing("pmu").and_then(|()| options.time_base())?,
        "wasm" => {
            let name = argument.clone().filter(|name| check_plugin_name(name).is_ok());
            let need =
                "wants a plug-in's name (letters, digits, '.', '_' and '-'), as in wasm:my-format";
            UserTimeKind::Wasm { name: name.ok_or(wants("wasm", need))? }
        }
        _ => return Err(SpecError::Kind(kind.to_owned())),
    })
}

/// The parts of a JSON pointer, as RFC 6901 defines it.
fn parse_pointer(text: &str) -> Option<Vec<String>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let tokens = text.strip_prefix('/')?.split('/');
    let tokens: Option<Vec<String>> = tokens
        .map(|token| {
            let is_sound = token.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
            is_sound.then(|| token.replace("~1", "/").replace("~0", "~"))
        })
        .collect();
    tokens.filter(|tokens| tokens.len() <= POINTER_PARTS_MAX)
}

fn percent_decode(text: &str) -> Result<String, SpecError> {
    let bad = || SpecError::InvalidEscape(text.to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let (byte, after) = match byte {
            b'%' => {
                let digits = after.get(..2).ok_or_else(bad)?;
                let digit = |digit: u8| (digit as char).to_digit(16).ok_or_else(bad);
                ((digit(digits[0])? * 16 + digit(digits[1])?) as u8, &after[2..])
            }
            byte => (*byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

/// The options that have not been consumed yet.
struct SpecOptions(Vec<(String, String)>);

impl SpecOptions {
    fn parse<'a>(fields: impl Iterator<Item = &'a str>) -> Result<SpecOptions, SpecError> {
        let options = fields.map(|field| match field.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), percent_decode(value)?)),
            None => Ok((field.to_owned(), String::new())),
        });
        Ok(SpecOptions(options.collect::<Result<_, SpecError>>()?))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.remove(at).1)
    }

    fn unit(&mut self, kind: &UserTimeKind) -> Result<TimeUnit, SpecError> {
        let has_unit = matches!(
            kind,
            UserTimeKind::Header { .. }
                | UserTimeKind::Json { .. }
                | UserTimeKind::Csv { .. }
                | UserTimeKind::Be64 { .. }
        );
        if !has_unit {
            return Ok(TimeUnit::Millis);
        }
        let Some(name) = self.take("unit") else { return Ok(TimeUnit::default()) };
        let option = format!("unit={name}");
        let (kind, wants) = (kind.name(), "wants unit=s, ms, us or ns");
        TimeUnit::parse(&name).ok_or(SpecError::Option { kind, wants, option })
    }

    fn form(&mut self) -> Result<HeaderEncoding, SpecError> {
        match self.take("as").as_deref() {
            None | Some("text") => Ok(HeaderEncoding::Text),
            Some("be64") => Ok(HeaderEncoding::Be64),
            Some(other) => {
                let option = format!("as={other}");
                Err(SpecError::Option { kind: "header", wants: "wants as=text or as=be64", option })
            }
        }
    }

    fn separator(&mut self) -> Result<u8, SpecError> {
        let Some(separator) = self.take("separator") else { return Ok(b',') };
        match separator.as_bytes() {
            [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\r' | b'\n') => Ok(*byte),
            _ => Err(SpecError::Option {
                kind: "csv",
                wants: "wants separator= and one character that is no quote; %3B is a semicolon, %09 a tab",
                option: format!("separator={separator}"),
            }),
        }
    }

    fn time_base(&mut self) -> Result<UserTimeKind, SpecError> {
        let given = self.take("time-base").unwrap_or_default();
        let base = given.parse().ok().filter(|base| (1..=TIME_BASE_MAX).contains(base));
        let option = format!("time-base={given}");
        let bad = SpecError::Option { kind: "pmu", wants: PMU_USAGE, option };
        base.map(|time_base| UserTimeKind::Pmu { time_base }).ok_or(bad)
    }

    /// Every remaining option is unknown to the kind, or was given twice.
    fn expect_empty(self, kind: &UserTimeKind) -> Result<(), SpecError> {
        match self.0.into_iter().next() {
            None => Ok(()),
            Some((option, _)) => {
                Err(SpecError::Option { kind: kind.name(), wants: kind.options(), option })
            }
        }
    }
}

impl std::fmt::Display for TimeUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> UserTimeKind {
        UserTimeSpec::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).kind
    }

    #[test]
    fn every_kind_is_read_with_its_options() {
        assert_eq!(kind("timestamp"), UserTimeKind::Timestamp);
        let form = HeaderEncoding::Text;
        assert_eq!(
            kind("header:event-time"),
            UserTimeKind::Header { name: "event-time".into(), form }
        );
        let form = HeaderEncoding::Be64;
        assert_eq!(
            kind("header:a%3Bb:c;as=be64"),
            UserTimeKind::Header { name: "a;b:c".into(), form }
        );
        let pointer = |tokens: &[&str]| UserTimeKind::Json {
            pointer: tokens.iter().map(|token| (*token).to_owned()).collect(),
        };
        assert_eq!(kind("json:"), pointer(&[]));
        assert_eq!(kind("json:/"), pointer(&[""]));
        assert_eq!(kind("json:/a~1b/m~0n/~01/0"), pointer(&["a/b", "m~n", "~1", "0"]));
        assert_eq!(kind("csv:3"), UserTimeKind::Csv { column: 3, separator: b',' });
        assert_eq!(kind("csv:1;separator=%3B"), UserTimeKind::Csv { column: 1, separator: b';' });
        assert_eq!(kind("be64:0"), UserTimeKind::Be64 { offset: 0 });
        assert_eq!(kind("pmu;time-base=1000000"), UserTimeKind::Pmu { time_base: 1_000_000 });
        assert_eq!(kind("wasm:my-format"), UserTimeKind::Wasm { name: "my-format".into() });
        assert_eq!(UserTimeSpec::parse("json:/t;unit=ns").unwrap().unit(), TimeUnit::Nanos);
        assert_eq!(
            UserTimeSpec::parse("csv:2;separator=|;unit=s").unwrap().unit(),
            TimeUnit::Seconds
        );
    }

    #[test]
    fn what_is_none_is_refused_with_what_would_be() {
        for (text, expected) in [
            ("", "give timestamp, header:NAME"),
            ("avro:x", "give timestamp, header:NAME"),
            ("Timestamp", "give timestamp"),
            ("timestamp:x", "takes no argument"),
            ("timestamp;unit=s", "takes no options"),
            ("header", "wants a header's name"),
            ("header:", "wants a header's name"),
            ("header:x;as=hex", "as=text or as=be64"),
            ("json", "wants a JSON pointer"),
            ("json:a", "wants a JSON pointer"),
            ("json:/a~2", "wants a JSON pointer"),
            ("json:/a;unit=h", "unit=s, ms, us or ns"),
            ("json:/a;unit=s;unit=ms", "takes unit=s|ms|us|ns"),
            ("json:/a;", "takes unit=s|ms|us|ns"),
            ("csv:0", "counted from 1"),
            ("csv:-1", "counted from 1"),
            ("csv:1;separator=ab", "one character"),
            ("csv:1;separator=\"", "no quote"),
            ("be64", "wants an offset"),
            ("be64:99999999999", "wants an offset"),
            ("pmu", "wants time-base=N"),
            ("pmu;time-base=16777216", "wants time-base=N"),
            ("pmu;time-base=60;unit=s", "wants time-base=N"),
            ("wasm:../etc", "wants a plug-in's name"),
            ("wasm:", "wants a plug-in's name"),
            ("header:%zz", "two hex digits"),
            ("header:%ff", "two hex digits"),
        ] {
            let error = UserTimeSpec::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert_eq!(UserTimeSpec::parse(&"x".repeat(1025)), Err(SpecError::TooLong { bytes: 1025 }));
        assert!(UserTimeSpec::parse(&format!("json:{}", "/a".repeat(33))).is_err());
    }
}
