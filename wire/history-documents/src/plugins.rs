//! Plug-ins that find the user times of records, and the user times they found.
//!
//! Bytes are in hex: the longest module still fits into a request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hex::HexBytes;
use crate::moment::Stamp;

/// A request for the plug-ins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginsRequest {}

/// A request to add or replace a plug-in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddPluginRequest {
    /// Its name.
    pub name: String,
    /// Its module.
    pub module: HexBytes,
}

/// A request to remove a plug-in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemovePluginRequest {
    /// Its name.
    pub name: String,
}

/// A request for the user time that would be found in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestPluginRequest {
    /// A value of the setting `freezeframe.user.time`.
    pub spec: String,
    /// The record's key.
    #[serde(default)]
    pub key: Option<HexBytes>,
    /// The record's value.
    #[serde(default)]
    pub value: Option<HexBytes>,
    /// The record's timestamp.
    #[serde(default)]
    pub timestamp: Option<i64>,
    /// The record's headers.
    #[serde(default)]
    pub headers: Vec<(String, HexBytes)>,
}

/// A request for the user times of records from an offset on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserTimesRequest {
    /// The topic. It may be a moment topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The first offset.
    pub from: i64,
}

/// A plug-in that a topic's setting can name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PluginDescription {
    /// Its name.
    pub name: String,
    /// The size of its module.
    pub bytes: u64,
    /// The stamp of its last write.
    pub written: Stamp,
    /// `written` in milliseconds since 1970.
    pub written_ms: u64,
}

/// The plug-ins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PluginsResponse {
    /// The plug-ins, by name.
    pub plugins: Vec<PluginDescription>,
}

/// The plug-in that was added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AddPluginResponse {
    /// Its name.
    pub added: String,
}

/// The plug-in that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovePluginResponse {
    /// Its name.
    pub removed: String,
}

/// The user time of a tested record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TestPluginResponse {
    /// In milliseconds.
    pub user_time: i64,
}

/// The user times of some records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UserTimesResponse {
    /// True if the user times of all records are their own timestamps. Then `times` is empty.
    pub own: bool,
    /// The offset after the last record that was read.
    pub next: i64,
    /// The offset of each record, rising, and its user time if it has one.
    pub times: Vec<(i64, Option<i64>)>,
}
