//! Kafka's classic consumer groups: members, leaders, and assignments.
//!
//! [`ClassicGroup`] is one group as a pure state machine. It reads no clock and does no I/O; it
//! returns what is to be done as [`GroupEffect`]s. [`GroupCoordinator`] holds all groups, and
//! connects them to time, waiting requests and a log. [`GroupSnapshot`] is the state of a group
//! that survives a restart.
//!
//! Absent on purpose: committed offsets (the engine has them; here is only the check that a commit
//! must pass), the newer server-assigned protocol of KIP-848, and every wire format except the
//! topic list inside a consumer's subscription.

mod assignment;
mod classic_group;
mod commit;
mod coordinator;
mod deadlines;
mod describe;
mod effects;
mod error;
mod heartbeat;
mod join;
mod join_timer;
mod leave;
mod member;
mod member_requests;
mod options;
mod pending;
mod pending_write;
mod rebalance;
mod replace;
mod restore;
mod roster;
mod snapshot;
mod state;
mod subscriptions;
mod sync;

pub use assignment::assigned;
pub use classic_group::ClassicGroup;
pub use commit::{CommitFence, CommitKind, OffsetExpirationCondition};
pub use coordinator::{GroupCoordinator, GroupLog, GroupLogFuture, HeldGroup};
pub use describe::{GroupOverview, GroupSummary, MemberSummary};
pub use effects::{GroupEffect, WriteId, WriteResult};
pub use error::GroupError;
pub use heartbeat::GroupHeartbeatRequest;
pub use leave::{LeaveMemberRequest, LeaveMemberResult};
pub use member_requests::{
    JoinRequest, JoinResult, JoinedMember, RequestToken, SyncRequest, SyncResult,
};
pub use options::Options;
pub use snapshot::{GroupSnapshot, GroupSnapshotError, MemberSnapshot};
pub use state::ClassicGroupState;
pub use subscriptions::GroupSubscriptions;
