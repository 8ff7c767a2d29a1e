//! Records as a person lays them out: text with letters for the parts of a record, as kcat has
//! them.

use std::io::{self, Write};

use hlc::Hlc;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use kafka_records::KafkaRecord;

/// The text for a time that is not known.
const UNKNOWN: &str = "-";

/// A layout of records, such as `%t/%p %o %k=%s\n`.
#[derive(Clone, Debug)]
pub struct RecordTemplate {
    parts: Vec<TemplatePart>,
    zone: TimeZone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(Vec<u8>),
    Topic,
    Partition,
    Offset,
    Key,
    KeyLength,
    Value,
    ValueLength,
    Headers,
    TimestampMs,
    Timestamp,
    AcceptedMs,
    Accepted,
    Stamp,
}

/// The reasons why a text is no layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error(
        "%{0} is nothing: there are %t topic, %p partition, %o offset, %k key, %v or %s value, %h headers, %T and %d the \
         timestamp (in ms, as a date), %A and %a when it was accepted (the same), %m its stamp, %K and %S lengths, and %%"
    )]
    Letter(char),
    #[error("a layout ends with a single {0}: give {0}{0} for the character itself")]
    Unfinished(char),
    #[error("\\{0} is nothing: there are \\n, \\r, \\t, \\\\ and \\xHH")]
    Escape(String),
}

impl RecordTemplate {
    /// Parses a layout. Dates are written in `zone`. A record ends with a new line, whether the
    /// layout does or not.
    ///
    /// # Errors
    /// There is no such letter or escape.
    pub fn parse(text: &str, zone: TimeZone) -> Result<RecordTemplate, TemplateError> {
        let (mut parts, mut literal) = (Vec::new(), Vec::new());
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            let part = match char {
                '%' => match chars.next().ok_or(TemplateError::Unfinished('%'))? {
                    '%' => {
                        literal.push(b'%');
                        continue;
                    }
                    letter => part_of(letter)?,
                },
                '\\' => {
                    literal.push(unescape(&mut chars)?);
                    continue;
                }
                other => {
                    literal.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes());
                    continue;
                }
            };
            if !literal.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut literal)));
            }
            parts.push(part);
        }
        if !literal.ends_with(b"\n") {
            literal.push(b'\n');
        }
        parts.push(TemplatePart::Text(literal));
        Ok(RecordTemplate { parts, zone })
    }

    /// The same layout with dates in another zone.
    #[must_use]
    pub fn in_zone(self, zone: TimeZone) -> RecordTemplate {
        RecordTemplate { zone, ..self }
    }

    pub(crate) fn write(
        &self,
        topic: &str,
        partition: u32,
        record: &KafkaRecord,
        stamp: Option<Hlc>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let length = |bytes: Option<&[u8]>| bytes.map_or(-1, |bytes| bytes.len() as i64);
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        let accepted = stamp.map(|stamp| stamp.time().0 as i64);
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => out.write_all(text)?,
                TemplatePart::Topic => out.write_all(topic.as_bytes())?,
                TemplatePart::Partition => write!(out, "{partition}")?,
                TemplatePart::Offset => write!(out, "{}", record.offset)?,
                TemplatePart::Key => out.write_all(key.unwrap_or_default())?,
                TemplatePart::KeyLength => write!(out, "{}", length(key))?,
                TemplatePart::Value => out.write_all(value.unwrap_or_default())?,
                TemplatePart::ValueLength => write!(out, "{}", length(value))?,
                TemplatePart::Headers => write_headers(record, out)?,
                TemplatePart::TimestampMs => write!(out, "{}", record.timestamp)?,
                TemplatePart::Timestamp => self.write_date(Some(record.timestamp), out)?,
                TemplatePart::AcceptedMs => match accepted {
                    Some(ms) => write!(out, "{ms}")?,
                    None => out.write_all(UNKNOWN.as_bytes())?,
                },
                TemplatePart::Accepted => self.write_date(accepted, out)?,
                TemplatePart::Stamp => match stamp {
                    Some(stamp) => write!(out, "{stamp}")?,
                    None => out.write_all(UNKNOWN.as_bytes())?,
                },
            }
        }
        Ok(())
    }

    fn write_date(&self, ms: Option<i64>, out: &mut impl Write) -> io::Result<()> {
        // A record may have no timestamp, which is -1.
        let time = ms.filter(|ms| *ms >= 0).and_then(|ms| Timestamp::from_millisecond(ms).ok());
        match time {
            Some(time) if self.zone == TimeZone::UTC => write!(out, "{time:.3}"),
            Some(time) => {
                write!(
                    out,
                    "{}",
                    time.to_zoned(self.zone.clone()).strftime("%Y-%m-%dT%H:%M:%S.%3f%:z")
                )
            }
            None => out.write_all(UNKNOWN.as_bytes()),
        }
    }
}

fn part_of(letter: char) -> Result<TemplatePart, TemplateError> {
    Ok(match letter {
        't' => TemplatePart::Topic,
        'p' => TemplatePart::Partition,
        'o' => TemplatePart::Offset,
        'k' => TemplatePart::Key,
        'K' => TemplatePart::KeyLength,
        's' | 'v' => TemplatePart::Value,
        'S' => TemplatePart::ValueLength,
        'h' => TemplatePart::Headers,
        'T' => TemplatePart::TimestampMs,
        'd' => TemplatePart::Timestamp,
        'A' => TemplatePart::AcceptedMs,
        'a' => TemplatePart::Accepted,
        'm' => TemplatePart::Stamp,
        other => return Err(TemplateError::Letter(other)),
    })
}

/// The byte of an escape, after its backslash.
fn unescape(chars: &mut std::str::Chars<'_>) -> Result<u8, TemplateError> {
    match chars.next().ok_or(TemplateError::Unfinished('\\'))? {
        'n' => Ok(b'\n'),
        'r' => Ok(b'\r'),
        't' => Ok(b'\t'),
        '\\' => Ok(b'\\'),
        'x' => {
            let digits: String = chars.by_ref().take(2).collect();
            let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            let byte = if is_hex { u8::from_str_radix(&digits, 16).ok() } else { None };
            byte.ok_or_else(|| TemplateError::Escape(format!("x{digits}")))
        }
        other => Err(TemplateError::Escape(other.to_string())),
    }
}

/// `name=value`, separated by commas, as kcat writes headers. A header without a value is its name.
fn write_headers(record: &KafkaRecord, out: &mut impl Write) -> io::Result<()> {
    for (nth, (name, value)) in record.headers.iter().enumerate() {
        if nth > 0 {
            out.write_all(b",")?;
        }
        out.write_all(name)?;
        if let Some(value) = value {
            out.write_all(b"=")?;
            out.write_all(value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hlc::SysTime;

    use super::*;

    fn shown(layout: &str, stamp: Option<Hlc>, zone: TimeZone) -> String {
        let record = KafkaRecord {
            offset: 9,
            timestamp: 1_795_251_600_123,
            key: Some(Bytes::from_static(b"k1")),
            value: None,
            headers: vec![
                (Bytes::from_static(b"a"), Some(Bytes::from_static(b"1"))),
                (Bytes::from_static(b"b"), None),
            ],
        };
        let template = RecordTemplate::parse(layout, zone).unwrap();
        let mut out = Vec::new();
        template.write("orders", 3, &record, stamp, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_letter_is_a_part_of_the_record() {
        let stamp = Hlc::new(SysTime(1_795_251_600_456), 7);
        let shown = |layout| shown(layout, Some(stamp), TimeZone::UTC);
        assert_eq!(shown("%t %T %p/%o %k %v %h"), "orders 1795251600123 3/9 k1  a=1,b\n");
        assert_eq!(shown("%K,%S,%s|"), "2,-1,|\n");
        assert_eq!(shown("%d %a\\n"), "2026-11-21T09:00:00.123Z 2026-11-21T09:00:00.456Z\n");
        assert_eq!(shown("%A %m"), format!("1795251600456 {stamp}\n"));
        assert_eq!(shown("100%% \\x41\\tå\\\\"), "100% A\tå\\\n");
    }

    #[test]
    fn a_date_has_the_offset_of_its_zone() {
        let zone = TimeZone::fixed(jiff::tz::offset(-5));
        assert_eq!(shown("%d", None, zone), "2026-11-21T04:00:00.123-05:00\n");
    }

    #[test]
    fn what_a_server_does_not_say_is_a_dash() {
        assert_eq!(shown("%a %A %m", None, TimeZone::UTC), "- - -\n");
    }

    #[test]
    fn what_is_no_layout_is_refused_with_what_there_is() {
        let refused = |layout| RecordTemplate::parse(layout, TimeZone::UTC).unwrap_err();
        assert_eq!(refused("%x"), TemplateError::Letter('x'));
        assert_eq!(refused("a%"), TemplateError::Unfinished('%'));
        assert_eq!(refused("a\\"), TemplateError::Unfinished('\\'));
        for escape in ["\\q", "\\x4", "\\xg0", "\\x+1"] {
            assert!(matches!(refused(escape), TemplateError::Escape(_)), "{escape}");
        }
        assert!(refused("%x").to_string().contains("%A and %a when it was accepted"));
    }
}
