//! Plug-ins that find user times: add, list, remove, and test. Also the user times that were found
//! in records.
//!
//! Bytes are in hex: the longest module still fits into a request.

use std::sync::Arc;

use engine::blocking::block_in_place;
use engine::{NO_TIMES, PluginFilesError};
use hlc::UserTime;
use serde::Deserialize;
use serde_json::{Value, json};
use user_time::{RecordParts, SpecError, UserTimeExtractor, UserTimeKind, UserTimeSpec};

use super::moment::stamp_text;
use super::{HistoryApiError, HistoryErrorCode};
use crate::core::KafkaServer;
use crate::moment_cache::MomentTopicError;

/// The most records in one response, if their first batch has no more.
const RECORDS_MAX: usize = 10_000;
/// The most bytes of batches that are read for one response.
const SCAN_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PluginsRequest {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AddPluginRequest {
    name: String,
    module: HexBytes,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemovePluginRequest {
    name: String,
}

/// The user time that would be found in a record.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TestUserTimeRequest {
    spec: String,
    #[serde(default)]
    key: Option<HexBytes>,
    #[serde(default)]
    value: Option<HexBytes>,
    #[serde(default)]
    timestamp: Option<i64>,
    #[serde(default)]
    headers: Vec<(String, HexBytes)>,
}

/// The user times of records from an offset on. The topic may be a moment topic.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UserTimesRequest {
    topic: String,
    partition: i32,
    from: i64,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct HexBytes(Vec<u8>);

impl TryFrom<String> for HexBytes {
    type Error = &'static str;

    fn try_from(text: String) -> Result<HexBytes, &'static str> {
        let digit = |digit: u8| (digit as char).to_digit(16).map(|digit| digit as u8);
        let pair = |pair: &[u8]| match pair {
            [high, low] => Some((digit(*high)? << 4) | digit(*low)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        bytes.map(HexBytes).ok_or("bytes are spelled in pairs of hex digits")
    }
}

impl From<PluginFilesError> for HistoryApiError {
    fn from(error: PluginFilesError) -> HistoryApiError {
        let code = match error {
            PluginFilesError::Plugin(_) => HistoryErrorCode::BadPlugin,
            PluginFilesError::Unknown(_) => HistoryErrorCode::UnknownPlugin,
            PluginFilesError::Files(_) => HistoryErrorCode::Internal,
        };
        HistoryApiError::new(code, error.to_string())
    }
}

pub(super) fn plugins(
    kafka: &Arc<KafkaServer>,
    PluginsRequest {}: PluginsRequest,
) -> Result<Value, HistoryApiError> {
    let plugins = kafka.engine.plugins().list()?.into_iter().map(
        |plugin| json!({ "name": plugin.name, "bytes": plugin.bytes, "written": stamp_text(plugin.written) }),
    );
    Ok(json!({ "plugins": plugins.collect::<Vec<_>>() }))
}

pub(super) async fn add_plugin(
    kafka: &Arc<KafkaServer>,
    request: AddPluginRequest,
) -> Result<Value, HistoryApiError> {
    let AddPluginRequest { name, module } = request;
    kafka.engine.plugins().add(&name, module.0.into()).await?;
    Ok(json!({ "added": name }))
}

pub(super) async fn remove_plugin(
    kafka: &Arc<KafkaServer>,
    request: RemovePluginRequest,
) -> Result<Value, HistoryApiError> {
    kafka.engine.plugins().remove(&request.name).await?;
    Ok(json!({ "removed": request.name }))
}

pub(super) fn test_user_time(
    kafka: &Arc<KafkaServer>,
    request: TestUserTimeRequest,
) -> Result<Value, HistoryApiError> {
    let TestUserTimeRequest { spec, key, value, timestamp, headers } = request;
    let extractor = extractor(kafka, &spec)?;
    let record = RecordParts {
        timestamp: timestamp.unwrap_or(-1),
        key: key.as_ref().map(|bytes| bytes.0.as_slice()),
        value: value.as_ref().map(|bytes| bytes.0.as_slice()),
        headers: headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.0.as_slice()))),
    };
    let time = block_in_place(|| extractor.extract(record));
    let time = time
        .map_err(|error| HistoryApiError::new(HistoryErrorCode::Unreadable, error.to_string()))?;
    Ok(json!({ "user_time": time.0 }))
}

fn extractor(kafka: &KafkaServer, text: &str) -> Result<UserTimeExtractor, HistoryApiError> {
    let bad = |error: SpecError| HistoryApiError::new(HistoryErrorCode::BadSpec, error.to_string());
    let spec = UserTimeSpec::parse(text).map_err(bad)?;
    let UserTimeKind::Wasm { name } = spec.kind() else {
        return UserTimeExtractor::parse(text).map_err(bad);
    };
    let plugin = kafka.engine.user_times().load_plugin(name);
    let plugin = plugin.map_err(|error| {
        HistoryApiError::new(HistoryErrorCode::UnknownPlugin, error.to_string())
    })?;
    Ok(UserTimeExtractor::with_plugin(spec, plugin))
}

pub(super) async fn user_times(
    kafka: &Arc<KafkaServer>,
    request: UserTimesRequest,
) -> Result<Value, HistoryApiError> {
    let UserTimesRequest { topic, partition, from } = request;
    let unknown = || {
        let what = format!("no such topic or partition. topic={topic}, partition={partition}");
        HistoryApiError::new(HistoryErrorCode::UnknownTopic, what)
    };
    let readable = match kafka.readable(&topic).await {
        Ok(found) => found.ok_or_else(unknown)?,
        Err(MomentTopicError::Grammar(error)) => {
            return Err(HistoryApiError::new(HistoryErrorCode::BadMoment, error.to_string()));
        }
        Err(MomentTopicError::Seek(error)) => return Err(error.into()),
        Err(refused @ MomentTopicError::TooMany) => {
            return Err(HistoryApiError::new(HistoryErrorCode::TooLarge, refused.to_string()));
        }
    };
    let view = readable.view(partition).ok_or_else(unknown)?;
    if view.partition.uses_record_timestamps() {
        return Ok(json!({ "own": true, "next": from, "times": [] }));
    }
    let (mut next, mut times) = (from, Vec::new());
    'pieces: for piece in view.read(from, SCAN_BYTES_MAX)? {
        let end = piece.entry.end().min(view.end()).0 as i64;
        for (offset, time) in kafka.engine.user_times().of_batch(&view.partition, &piece)? {
            let offset = offset.0 as i64;
            if offset >= from && offset < end {
                if times.len() >= RECORDS_MAX {
                    next = offset;
                    break 'pieces;
                }
                let time = time.filter(|time| *time != NO_TIMES.1);
                times.push((offset, time.map(|UserTime(ms)| ms)));
            }
        }
        next = end;
    }
    readable.check_kept().map_err(|_| {
        let what = "the log start has advanced past the moment meanwhile: ask for a later one";
        HistoryApiError::new(HistoryErrorCode::BeforeHistory, what)
    })?;
    Ok(json!({ "own": false, "next": next, "times": times }))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{code, kafka};
    use super::super::handle_json;
    use super::*;

    /// A plug-in that always returns this time.
    fn saying(ms: i64) -> String {
        let text = format!(
            "(module (memory (export \"memory\") 1) \
               (func (export \"alloc\") (param i32) (result i32) (i32.const 1024)) \
               (func (export \"user_time\") (param i32 i32 i32 i32 i64) (result i64) \
                 (i64.const {ms})))"
        );
        wat::parse_str(text).unwrap().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[tokio::test]
    async fn a_plug_in_is_added_tried_replaced_listed_and_removed() {
        let kafka = kafka().await;
        assert_eq!(handle_json(&kafka, json!({"op": "plugins"})).await, json!({"plugins": []}));
        for ms in [17, 18] {
            let add = json!({"op": "plugin-add", "name": "p", "module": saying(ms)});
            assert_eq!(handle_json(&kafka, add).await, json!({"added": "p"}));
            let test = json!({"op": "plugin-test", "spec": "wasm:p", "value": "00"});
            assert_eq!(handle_json(&kafka, test).await, json!({"user_time": ms}));
        }
        let listed = handle_json(&kafka, json!({"op": "plugins"})).await;
        assert_eq!(listed["plugins"][0]["name"], "p", "{listed}");
        assert_eq!(listed["plugins"].as_array().unwrap().len(), 1);
        let remove = json!({"op": "plugin-remove", "name": "p"});
        assert_eq!(handle_json(&kafka, remove.clone()).await, json!({"removed": "p"}));
        assert_eq!(code(&kafka, remove).await, "unknown_plugin");
        let test = json!({"op": "plugin-test", "spec": "wasm:p"});
        assert_eq!(code(&kafka, test).await, "unknown_plugin");
    }

    #[tokio::test]
    async fn a_spec_is_tried_without_a_topic() {
        let kafka = kafka().await;
        let test =
            |spec: &str, value: &str| json!({"op": "plugin-test", "spec": spec, "value": value});
        assert_eq!(
            handle_json(&kafka, test("csv:1;unit=s", "31372c")).await,
            json!({"user_time": 17_000})
        );
        assert_eq!(code(&kafka, test("csv:2", "31")).await, "unreadable");
        assert_eq!(code(&kafka, test("csv:0", "31")).await, "bad_spec");
        assert_eq!(code(&kafka, test("csv:1", "3")).await, "bad_request");
        assert_eq!(code(&kafka, test("csv:1", "zz")).await, "bad_request");
        let header = json!({"op": "plugin-test", "spec": "header:h", "headers": [["h", "35"]]});
        assert_eq!(handle_json(&kafka, header).await, json!({"user_time": 5}));
    }

    #[tokio::test]
    async fn what_cannot_be_a_plug_in_is_refused() {
        let kafka = kafka().await;
        for (name, module) in [("p", "00"), ("../p", &saying(1)), ("", &saying(1)), ("p", "")] {
            let add = json!({"op": "plugin-add", "name": name, "module": module});
            assert_eq!(code(&kafka, add).await, "bad_plugin", "{name}");
        }
        let times = json!({"op": "user-times", "topic": "a", "partition": 9, "from": 0});
        assert_eq!(code(&kafka, times).await, "unknown_topic");
        let times = json!({"op": "user-times", "topic": "a", "partition": 0, "from": 0});
        assert_eq!(handle_json(&kafka, times).await, json!({"own": true, "next": 0, "times": []}));
    }
}
