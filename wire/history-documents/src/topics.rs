//! Topics at a moment.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::completeness::{complete, is_complete};
use crate::moment::{PendingMomentPolicy, Stamp};

/// A request for the topics of a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopicsRequest {
    /// The moment, of system time; the frontier if `None`.
    #[serde(default)]
    pub at: Option<String>,
    /// The policy for a moment that is not final yet.
    #[serde(default, skip_serializing_if = "PendingMomentPolicy::is_default")]
    pub when: PendingMomentPolicy,
    /// The longest wait for the moment; if `None`, as long as the server's settings say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_ms: Option<u64>,
}

/// The topics that existed at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TopicsResponse {
    /// The moment of the answer.
    pub at: Option<String>,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// `frontier` in milliseconds since 1970.
    pub frontier_ms: u64,
    /// The topics.
    pub topics: Vec<TopicAtMoment>,
    /// True if nothing was left out. The answer leaves out what the requester may not see.
    #[serde(default = "complete", skip_serializing_if = "is_complete")]
    pub complete: bool,
}

/// A topic as of a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TopicAtMoment {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// The number of partitions that it had.
    pub partitions: u32,
    /// The stamp of its creation.
    pub created: Stamp,
    /// `created` in milliseconds since 1970.
    pub created_ms: u64,
    /// The stamp of its deletion; `None` if it still exists.
    pub deleted: Option<Stamp>,
    /// `deleted` in milliseconds since 1970.
    pub deleted_ms: Option<u64>,
    /// The settings of the topic itself.
    #[serde(default)]
    pub configs: BTreeMap<String, String>,
}
