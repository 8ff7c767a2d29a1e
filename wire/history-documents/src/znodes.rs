//! The past of znodes. A ZooKeeper client asks for it over its own connection, with the identity
//! that the connection has: request 17990 ("FF"), with one document each way.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base64::Base64Bytes;
use crate::moment::Stamp;

/// The number of the request.
pub const ZNODE_HISTORY_OPCODE: i32 = i32::from_be_bytes([0, 0, b'F', b'F']);

/// A request, by its field `op`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum ZnodeHistoryRequest {
    /// The transactions that changed a znode.
    Log(ZnodeLogRequest),
    /// The znodes that differ between two moments.
    Diff(ZnodeDiffRequest),
    /// Puts a subtree back to what it was.
    Restore(ZnodeRestoreRequest),
}

/// A request for a page of transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZnodeLogRequest {
    /// The znode.
    pub path: String,
    /// True if changes of znodes below it count too.
    #[serde(default)]
    pub recursive: bool,
    /// Only transactions after this one, by its zxid. It is refused if some of those were removed.
    #[serde(default)]
    pub after: Option<i64>,
    /// Only transactions from this moment of system time on.
    #[serde(default)]
    pub from: Option<String>,
    /// Only transactions before this moment of system time.
    #[serde(default)]
    pub until: Option<String>,
    /// The most transactions on the page.
    #[serde(default)]
    pub limit: Option<usize>,
    /// The longest wait for a transaction if there is none yet, in milliseconds, at most 60,000.
    #[serde(default)]
    pub wait_ms: u64,
}

/// A page of transactions, in order. Changes of znodes that the client may not read are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ZnodeLogResponse {
    /// The transactions.
    pub transactions: Vec<ZnodeLogEntry>,
    /// Every transaction up to this one was looked at: `after` for the next page.
    pub through: i64,
    /// True if there are no more transactions.
    pub complete: bool,
}

/// A transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ZnodeLogEntry {
    /// Its number.
    pub zxid: i64,
    /// The stamp at which it took effect.
    pub stamp: Stamp,
    /// `stamp` in milliseconds since 1970.
    pub stamp_ms: u64,
    /// The session that asked for it, in hex; `0x0` for the server.
    pub session: String,
    /// The identities that the session had, without hashes; `server` for the server. Empty for
    /// clients that had others and may administer none of the znodes.
    pub by: String,
    /// The changes that it made, in order.
    pub changes: Vec<ZnodeChangeDocument>,
}

/// The kind of a change of a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ZnodeChangeName {
    /// It was created.
    Created,
    /// It was deleted.
    Deleted,
    /// It got other data.
    DataChanged,
    /// It got another access control list.
    AclChanged,
    /// The number of its next sequential child was raised.
    SequenceRaised,
}

/// A change of a znode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ZnodeChangeDocument {
    /// The kind of the change.
    pub kind: ZnodeChangeName,
    /// The znode.
    pub path: String,
    /// The znode after it; at a deletion, before it.
    #[serde(flatten)]
    pub znode: ZnodeSummary,
    /// Its new data in base64, if it got any.
    pub data: Option<Base64Bytes>,
}

/// A znode without its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ZnodeSummary {
    /// The number of times that its data was changed.
    pub version: i32,
    /// The number of times that its list was changed.
    pub aversion: i32,
    /// The length of its data in bytes.
    pub data_length: i32,
    /// The session that it ends with, in hex; `0x0` if none.
    pub ephemeral_owner: String,
    /// Its access control list: `SCHEME:ID:PERMISSIONS`, with the permissions of `cdrwa`.
    pub acl: Vec<String>,
}

/// A request for a page of differences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZnodeDiffRequest {
    /// The znode at and below which to compare.
    pub path: String,
    /// The earlier moment of system time.
    pub from: String,
    /// The later one.
    pub until: String,
    /// The start of the page: [`ZnodeDiffResponse::next`] of the previous one.
    #[serde(default)]
    pub after: Option<String>,
    /// The most differences on the page.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// A page of differences. Znodes that the client may not read are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ZnodeDiffResponse {
    /// The earlier moment.
    pub from: String,
    /// The later moment.
    pub until: String,
    /// The znodes that differ, parents first.
    pub changes: Vec<ZnodeDiffEntry>,
    /// The start of the next page, if there may be more. It says nothing to the client, and holds
    /// until the server ends.
    pub next: Option<String>,
}

/// A znode that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ZnodeDiffEntry {
    /// The znode.
    pub path: String,
    /// At the earlier moment; `null` if it was not there.
    pub before: Option<ZnodeSummary>,
    /// At the later moment; `null` if it was not there.
    pub after: Option<ZnodeSummary>,
}

/// A request to put a subtree back to what it was, in one transaction. Ephemeral znodes are left
/// out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZnodeRestoreRequest {
    /// The top of the subtree.
    pub path: String,
    /// The moment of system time.
    pub at: String,
    /// True to return only what it would change.
    #[serde(default)]
    pub dry_run: bool,
}

/// The changes that a restore made, or would make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ZnodeRestoreResponse {
    /// The moment.
    pub at: String,
    /// The transaction; `null` if there was nothing to change, or if it was a dry run.
    pub zxid: Option<i64>,
    /// The changes, in order.
    pub changes: Vec<ZnodeRestoreChange>,
}

/// A change of a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ZnodeRestoreChange {
    /// The kind of the change.
    pub kind: ZnodeChangeName,
    /// The znode.
    pub path: String,
}
