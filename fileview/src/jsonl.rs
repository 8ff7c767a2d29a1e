//! One JSON object a line for each record, for output and input: printed records can be produced
//! again.
//!
//! ```text
//! {"topic":"a","partition":0,"offset":5,"timestamp":1795251600000,"accepted":1795251600007,"stamp":"sh01a1fe6c72410000","key":null,"value":"text","headers":[["h","v"]]}
//! ```
//! `timestamp` is what the record says of itself, `accepted` is when the service took it; both are
//! milliseconds since 1970. `stamp` is a moment: everything that was accepted before the record's
//! batch. A server that is not Freezeframe does not say when it accepted a record, and then both
//! are left out.
//!
//! Bytes that are valid UTF-8 become a JSON string, and other bytes become `{"base64":"…"}`. So
//! each value has one spelling, and the two forms cannot be confused. Headers are pairs in the
//! order written, because a name may occur more than once.

use std::io::Write;

use bytes::Bytes;
use history_documents::{Stamp, base64};
use hlc::Hlc;
use kafka_records::KafkaRecord;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap};

/// The difference of two user times up to this far from 0 fits an `i64`.
const TIMESTAMP_MAX: i64 = i64::MAX / 2;

/// A parsed line: the parts of the record that a producer needs.
///
/// Topic, offset and stamp say where the record was, not what it is. They are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLine {
    /// The partition that the record was in, if the line has it.
    pub partition: Option<i32>,
    /// The timestamp, if the line has it.
    pub timestamp: Option<i64>,
    /// Null differs from empty.
    pub key: Option<Bytes>,
    /// Null differs from empty.
    pub value: Option<Bytes>,
    /// In the order written.
    pub headers: Vec<(String, Option<Bytes>)>,
}

/// The reasons why a line is not a record.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The line is not such a JSON object.
    #[error("not a record as `cat --format jsonl` prints one")]
    Json(#[from] serde_json::Error),
    /// The timestamp is out of range.
    #[error("a timestamp is -1 for none, or milliseconds since 1970, and not {0}")]
    Timestamp(i64),
    /// The partition number is invalid.
    #[error("the partition {0} is negative")]
    Partition(i32),
    #[error("the name of a header is text")]
    HeaderName,
}

impl RecordLine {
    /// Parses one line.
    ///
    /// # Errors
    /// The line is not a record, or has unknown fields.
    pub fn parse(line: &[u8]) -> Result<RecordLine, LineError> {
        let read: JsonRecordInput = serde_json::from_slice(line)?;
        if let Some(timestamp) = read.timestamp.filter(|t| !(-1..=TIMESTAMP_MAX).contains(t)) {
            return Err(LineError::Timestamp(timestamp));
        }
        if let Some(partition) = read.partition.filter(|partition| *partition < 0) {
            return Err(LineError::Partition(partition));
        }
        let header = |(name, value): (JsonBytesInput, JsonBytesInput)| {
            let name = name.0.ok_or(LineError::HeaderName)?;
            let name = String::from_utf8(name).map_err(|_| LineError::HeaderName)?;
            Ok((name, value.0.map(Bytes::from)))
        };
        Ok(RecordLine {
            partition: read.partition,
            timestamp: read.timestamp,
            key: read.key.0.map(Bytes::from),
            value: read.value.0.map(Bytes::from),
            headers: read.headers.into_iter().map(header).collect::<Result<_, LineError>>()?,
        })
    }
}

/// Writes a record as one line.
pub(crate) fn write(
    topic: &str,
    partition: u32,
    record: &KafkaRecord,
    stamp: Option<Hlc>,
    mut out: impl Write,
) -> std::io::Result<()> {
    let headers = record.headers.iter();
    let line = JsonRecord {
        topic,
        partition,
        offset: record.offset,
        timestamp: record.timestamp,
        accepted: stamp.map(|stamp| stamp.time().0),
        stamp: stamp.map(Stamp),
        key: JsonBytes(record.key.as_deref()),
        value: JsonBytes(record.value.as_deref()),
        headers: headers
            .map(|(name, value)| (JsonBytes(Some(name)), JsonBytes(value.as_deref())))
            .collect(),
    };
    serde_json::to_writer(&mut out, &line)?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
struct JsonRecord<'a> {
    topic: &'a str,
    partition: u32,
    offset: i64,
    timestamp: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stamp: Option<Stamp>,
    key: JsonBytes<'a>,
    value: JsonBytes<'a>,
    headers: Vec<(JsonBytes<'a>, JsonBytes<'a>)>,
}

/// Bytes to serialize.
struct JsonBytes<'a>(Option<&'a [u8]>);

impl Serialize for JsonBytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(bytes) = self.0 else {
            return serializer.serialize_none();
        };
        match std::str::from_utf8(bytes) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("base64", &base64::encode(bytes))?;
                map.end()
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRecordInput {
    #[serde(default, rename = "topic")]
    _topic: serde::de::IgnoredAny,
    #[serde(default)]
    partition: Option<i32>,
    #[serde(default, rename = "offset")]
    _offset: serde::de::IgnoredAny,
    #[serde(default)]
    timestamp: Option<i64>,
    #[serde(default, rename = "accepted")]
    _accepted: serde::de::IgnoredAny,
    #[serde(default, rename = "stamp")]
    _stamp: serde::de::IgnoredAny,
    #[serde(default)]
    key: JsonBytesInput,
    // Required: a misspelt field name must not become a tombstone.
    value: JsonBytesInput,
    #[serde(default)]
    headers: Vec<(JsonBytesInput, JsonBytesInput)>,
}

/// Deserialized bytes.
#[derive(Default)]
struct JsonBytesInput(Option<Vec<u8>>);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected null, a string, or {\"base64\":\"…\"}")]
enum JsonBytesForm {
    Null(()),
    Text(String),
    Bytes(JsonBase64Form),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonBase64Form {
    base64: String,
}

impl<'de> Deserialize<'de> for JsonBytesInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonBytesInput, D::Error> {
        Ok(JsonBytesInput(match JsonBytesForm::deserialize(deserializer)? {
            JsonBytesForm::Null(()) => None,
            JsonBytesForm::Text(text) => Some(text.into_bytes()),
            JsonBytesForm::Bytes(encoded) => Some(
                base64::decode(&encoded.base64)
                    .ok_or_else(|| serde::de::Error::custom("this is not base64"))?,
            ),
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(record: &KafkaRecord) -> String {
        let mut out = Vec::new();
        write("a", 3, record, Some(Hlc::from_bits(7 << 16 | 1)), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn record(value: Option<&'static [u8]>) -> KafkaRecord {
        KafkaRecord {
            offset: 5,
            timestamp: 7,
            key: None,
            value: value.map(Bytes::from_static),
            headers: Vec::new(),
        }
    }

    #[test]
    fn a_record_is_one_line_of_nine_fields() {
        let record = KafkaRecord {
            key: Some(Bytes::from_static(b"k")),
            headers: vec![
                (Bytes::from_static(b"h"), Some(Bytes::from_static(b"1"))),
                (Bytes::from_static(b"h"), None),
            ],
            ..record(Some(b"a\n\"b\""))
        };
        assert_eq!(
            line(&record),
            r#"{"topic":"a","partition":3,"offset":5,"timestamp":7,"accepted":7,"stamp":"sh0000000000070001","key":"k","value":"a\n\"b\"","headers":[["h","1"],["h",null]]}"#
                .to_owned()
                + "\n"
        );
    }

    #[test]
    fn a_record_of_another_server_has_no_stamp() {
        let mut out = Vec::new();
        write("a", 3, &record(None), None, &mut out).unwrap();
        let expected = r#"{"topic":"a","partition":3,"offset":5,"timestamp":7,"key":null,"value":null,"headers":[]}"#;
        assert_eq!(String::from_utf8(out).unwrap(), format!("{expected}\n"));
    }

    #[test]
    fn bytes_that_are_no_text_are_base64() {
        assert!(line(&record(Some(b"\xff"))).contains(r#""value":{"base64":"/w=="}"#));
    }

    #[test]
    fn null_and_empty_stay_apart() {
        let value = |value| RecordLine::parse(line(&record(value)).as_bytes()).unwrap().value;
        assert_eq!(value(None), None);
        assert_eq!(value(Some(b"")), Some(Bytes::new()));
    }

    #[test]
    fn a_line_needs_a_value_and_nothing_else() {
        let parsed = RecordLine::parse(br#"{"value":"v"}"#).unwrap();
        assert_eq!(parsed.value.as_deref(), Some(&b"v"[..]));
        assert_eq!((parsed.partition, parsed.timestamp, parsed.key), (None, None, None));
        for line in [
            "",
            "v",
            "{}",
            r#"{"vaule":"v"}"#,
            r#"{"value":"v","extra":1}"#,
            r#"{"value":5}"#,
            r#"{"value":{"base64":"?"}}"#,
            r#"{"value":{"base64":"","x":1}}"#,
            r#"{"value":"v","timestamp":-2}"#,
            r#"{"value":"v","timestamp":9223372036854775807}"#,
            r#"{"value":"v","partition":-1}"#,
            r#"{"value":"v","headers":[[null,"v"]]}"#,
            r#"{"value":"v"} {"value":"w"}"#,
        ] {
            assert!(RecordLine::parse(line.as_bytes()).is_err(), "{line}");
        }
    }

    fn bytes() -> impl Strategy<Value = Bytes> {
        prop_oneof![any::<String>().prop_map(Bytes::from), any::<Vec<u8>>().prop_map(Bytes::from),]
    }

    proptest! {
        #[test]
        fn whatever_is_printed_reads_back_as_it_was(
            key in proptest::option::of(bytes()),
            value in proptest::option::of(bytes()),
            headers in proptest::collection::vec((any::<String>(), proptest::option::of(bytes())), 0..4),
            timestamp in -1..=TIMESTAMP_MAX,
        ) {
            let record = KafkaRecord {
                offset: 0,
                timestamp,
                key: key.clone(),
                value: value.clone(),
                headers: headers.iter().map(|(n, v)| (Bytes::from(n.clone()), v.clone())).collect(),
            };
            let text = line(&record);
            prop_assert_eq!(text.matches('\n').count(), 1);
            let expected =
                RecordLine { partition: Some(3), timestamp: Some(timestamp), key, value, headers };
            prop_assert_eq!(RecordLine::parse(text.trim_end().as_bytes()).unwrap(), expected);
        }
    }
}
