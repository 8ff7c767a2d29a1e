//! All requests, by their field `op`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::budgets::BudgetsRequest;
use crate::cuts::CutRequest;
use crate::diffs::DiffRequest;
use crate::groups::{GroupMomentRequest, RestoreGroupRequest, SeekGroupRequest};
use crate::health::HealthRequest;
use crate::moment::MomentRequest;
use crate::pins::{PinRequest, PinsRequest, UnpinRequest};
use crate::plugins::{
    AddPluginRequest, PluginsRequest, RemovePluginRequest, TestPluginRequest, UserTimesRequest,
};
use crate::security::{SecurityLogRequest, SecurityMomentRequest};
use crate::topics::TopicsRequest;
use crate::tree::TreeRequest;

/// The longest request document.
pub const DOCUMENT_BYTES_MAX: usize = 1 << 20;

macro_rules! history_requests {
    ($($(#[$doc:meta])* $name:ident($request:ty) = $op:literal,)*) => {
        /// A request. Its field `op` says which one.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "op")]
        pub enum HistoryRequest {
            $($(#[$doc])* #[serde(rename = $op)] $name($request),)*
        }

        impl HistoryRequest {
            /// All values of `op`.
            pub const OPERATIONS: &[&str] = &[$($op),*];
        }
    };
}

history_requests! {
    /// The end of each partition at one moment.
    Cut(CutRequest) = "cut",
    /// The differences between two moments.
    Diff(DiffRequest) = "diff",
    /// The topics of a moment.
    Topics(TopicsRequest) = "topics",
    /// The committed offsets of a moment.
    Offsets(GroupMomentRequest) = "offsets",
    /// The groups of a moment, with their members.
    Groups(GroupMomentRequest) = "groups",
    /// Resets a group to a moment.
    SeekGroup(SeekGroupRequest) = "seek_group",
    /// Restores what a group had committed.
    RestoreGroup(RestoreGroupRequest) = "restore_group",
    /// Sets or extends a pin.
    Pin(PinRequest) = "pin",
    /// Removes a pin.
    Unpin(UnpinRequest) = "unpin",
    /// The pins in force.
    Pins(PinsRequest) = "pins",
    /// The plug-ins.
    Plugins(PluginsRequest) = "plugins",
    /// Adds or replaces a plug-in.
    AddPlugin(AddPluginRequest) = "plugin-add",
    /// Removes a plug-in.
    RemovePlugin(RemovePluginRequest) = "plugin-remove",
    /// The user time that would be found in a record.
    TestPlugin(TestPluginRequest) = "plugin-test",
    /// The user times of stored records.
    UserTimes(UserTimesRequest) = "user-times",
    /// The access control lists of a moment.
    Acls(SecurityMomentRequest) = "acls",
    /// The users of a moment.
    Users(SecurityMomentRequest) = "users",
    /// The quotas of a moment.
    Quotas(SecurityMomentRequest) = "quotas",
    /// The changes of access control lists, users and quotas.
    SecurityLog(SecurityLogRequest) = "security-log",
    /// The budgets that clients share.
    Budgets(BudgetsRequest) = "budgets",
    /// The health of the server: what is well, and what is not.
    Health(HealthRequest) = "health",
    /// The moment that a text means.
    Moment(MomentRequest) = "moment",
    /// The tree of files.
    Tree(TreeRequest) = "tree",
}

/// The reason that a document is not a request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It is not JSON.
    #[error("not JSON: {0}")]
    NotJson(serde_json::Error),
    /// It is not an object, or has no text `op`.
    #[error("a request is an object with a field op, as in {{\"op\":\"pins\"}}")]
    MissingOperation,
    /// There is no operation of that name.
    #[error("there is no operation {0:?}")]
    UnknownOperation(String),
    /// A field is missing, unknown, or of another type.
    #[error("not a request: {0}")]
    Fields(serde_json::Error),
}

impl HistoryRequest {
    /// Parses the text of a document.
    ///
    /// # Errors
    /// The document is not a request; the error says why.
    pub fn from_slice(text: &[u8]) -> Result<HistoryRequest, RequestError> {
        HistoryRequest::from_document(serde_json::from_slice(text).map_err(RequestError::NotJson)?)
    }

    /// Parses a document.
    ///
    /// # Errors
    /// The document is not a request; the error says why.
    pub fn from_document(document: Value) -> Result<HistoryRequest, RequestError> {
        match document.as_object().and_then(|fields| fields.get("op")) {
            Some(Value::String(op)) if HistoryRequest::OPERATIONS.contains(&op.as_str()) => {
                serde_json::from_value(document).map_err(RequestError::Fields)
            }
            Some(Value::String(op)) => Err(RequestError::UnknownOperation(op.clone())),
            _ => Err(RequestError::MissingOperation),
        }
    }
}

#[cfg(test)]
mod tests;
