//! The JSON documents of the history API: requests, responses and errors.
//!
//! The server reads and writes them over Kafka's wire and over HTTP, and the client library speaks
//! them. `docs/HISTORY-API.md` describes them. Each file is about one subject, and holds its
//! requests and its responses.
//!
//! A request with an unknown field is refused. Where a document says `null` for "none", its type
//! says so too: such a field is always written.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod base64;
mod budgets;
mod completeness;
mod cuts;
mod decimal;
mod diffs;
mod error_code;
mod groups;
mod health;
mod hex;
mod moment;
mod pins;
mod plugins;
mod records;
mod refusal;
mod request;
mod schema;
mod security;
mod topics;
mod tree;
mod znodes;

pub use base64::{Base64Bytes, Base64Error};
pub use budgets::{BudgetDescription, BudgetHolder, BudgetsRequest, BudgetsResponse};
pub use cuts::{CutPartitionOffsets, CutRequest, CutResponse};
pub use diffs::{
    BeforeAndAfter, DiffCategory, DiffChange, DiffRequest, DiffResponse, OffsetAtMoment,
};
pub use error_code::{HistoryErrorCode, ReceivedErrorCode};
pub use groups::{
    CommittedOffsetAtMoment, GroupAtMoment, GroupMembership, GroupMomentRequest,
    GroupOffsetsAtMoment, GroupSeekResult, GroupsResponse, MemberAtMoment, OffsetsResponse,
    RestoreGroupRequest, SeekGroupRequest, SeekOffsetChange, SkippedOffset,
};
pub use health::{HealthFinding, HealthLevel, HealthRequest, HealthResponse};
pub use hex::{HexBytes, HexError};
pub use moment::{
    Isolation, MomentRequest, MomentResponse, PendingMomentPolicy, Stamp, StampError,
};
pub use pins::{
    PinDescription, PinRequest, PinResponse, PinsRequest, PinsResponse, UnpinRequest, UnpinResponse,
};
pub use plugins::{
    AddPluginRequest, AddPluginResponse, PluginDescription, PluginsRequest, PluginsResponse,
    RemovePluginRequest, RemovePluginResponse, TestPluginRequest, TestPluginResponse,
    UserTimesRequest, UserTimesResponse,
};
pub use records::{RecordsFormat, RecordsRequest, TreeQuery};
pub use refusal::{HistoryRefusal, RefusalDocument, ServerRefusal};
pub use request::{DOCUMENT_BYTES_MAX, HistoryRequest, RequestError};
pub use security::{
    AclDescription, AclsResponse, MechanismAtMoment, QuotaEntityNames, QuotasAtMoment,
    QuotasResponse, SecurityChangeDescription, SecurityLogEntry, SecurityLogRequest,
    SecurityLogResponse, SecurityMomentRequest, UserAtMoment, UsersResponse,
};
pub use topics::{TopicAtMoment, TopicsRequest, TopicsResponse};
pub use tree::{
    TreeCloseResponse, TreeDirectoryEntry, TreeFileHandle, TreeKeysFormat, TreeKeysResponse,
    TreeListResponse, TreeName, TreeNodeKind, TreeNodeStat, TreeReadResponse, TreeRequest,
};
pub use znodes::{
    ZNODE_HISTORY_OPCODE, ZnodeChangeDocument, ZnodeChangeName, ZnodeDiffEntry, ZnodeDiffRequest,
    ZnodeDiffResponse, ZnodeHistoryRequest, ZnodeLogEntry, ZnodeLogRequest, ZnodeLogResponse,
    ZnodeRestoreChange, ZnodeRestoreRequest, ZnodeRestoreResponse, ZnodeSummary,
};
