//! Health of a server: the checks that are well, and those that are not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A request for the health of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthRequest {}

/// The findings, in the order of their importance to an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthResponse {
    /// The version of the server, such as `0.1.0`.
    pub version: String,
    /// A finding for each thing that was looked at, and more if more than one is wrong with it.
    pub findings: Vec<HealthFinding>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthFinding {
    /// The subject of the check, such as `clock`.
    pub what: String,
    /// The health of the subject.
    pub level: HealthLevel,
    /// The finding, in words.
    pub found: String,
    /// The advice; `None` if it is well.
    pub help: Option<String>,
}

/// The health of something. The larger level is worse.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum HealthLevel {
    /// It is well.
    Ok,
    /// It works, and somebody should look at it.
    Warning,
    /// It does not work, or soon will not.
    Error,
}

impl HealthFinding {
    /// Something that is well.
    pub fn ok(what: &str, found: impl Into<String>) -> HealthFinding {
        let (what, found) = (what.to_owned(), found.into());
        HealthFinding { what, level: HealthLevel::Ok, found, help: None }
    }

    /// A finding that an operator should look at, with advice.
    pub fn warning(what: &str, found: impl Into<String>, help: impl Into<String>) -> HealthFinding {
        let level = HealthLevel::Warning;
        HealthFinding { level, help: Some(help.into()), ..HealthFinding::ok(what, found) }
    }

    /// Something that does not work, and what to do.
    pub fn error(what: &str, found: impl Into<String>, help: impl Into<String>) -> HealthFinding {
        let level = HealthLevel::Error;
        HealthFinding { level, help: Some(help.into()), ..HealthFinding::ok(what, found) }
    }
}
