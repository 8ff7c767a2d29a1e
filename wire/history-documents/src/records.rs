//! The queries that only HTTP serves: the records of a topic as of a moment, and files of the tree.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::moment::Isolation;

/// The text or bytes that records are returned as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RecordsFormat {
    /// One document with an array.
    #[default]
    Json,
    /// One record a line, as `cat --format jsonl` prints it.
    Jsonl,
    /// A stream of Apache Arrow's IPC format.
    Arrow,
}

/// A request for a page of records: the query of `GET /v1/records/TOPIC[/PARTITION]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordsRequest {
    /// The moment as of which they are read; if `None`, now. With the ends of a window of user
    /// time, the system time as of which the window is known.
    #[serde(default)]
    pub at: Option<String>,
    /// The beginning of a window: only records from then on.
    #[serde(default)]
    pub from: Option<String>,
    /// The end of a window; if `None`, `at`.
    #[serde(default)]
    pub until: Option<String>,
    /// The transactions whose records are returned.
    #[serde(default, skip_serializing_if = "Isolation::is_default")]
    pub isolation: Isolation,
    /// The most records of the page, up to 100,000; if `None`, 1000.
    #[serde(default)]
    pub limit: Option<usize>,
    /// The cursor of the page before. It has the moment of the first page, so that `at`, `from` and
    /// `until` are not read again.
    #[serde(default)]
    pub after: Option<String>,
    /// The format.
    #[serde(default)]
    pub format: RecordsFormat,
}

/// The query of `GET /v1/tree/PATH`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TreeQuery {
    /// The moment or window as of which the path is read; if `None`, now, or the one in the path.
    #[serde(default)]
    pub at: Option<String>,
    /// In a directory: the cookie of the last name of the page before.
    #[serde(default)]
    pub after: Option<String>,
    /// In a directory: the most names of the page; if `None`, 1000.
    #[serde(default)]
    pub limit: Option<usize>,
    /// In a directory: whether each name comes with its attributes.
    #[serde(default)]
    pub stat: bool,
}
