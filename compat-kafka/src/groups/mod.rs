//! Kafka's classic consumer groups: who is in a group, who leads it, and who was assigned what.
//!
//! [`Group`] is one group as a pure state machine: it reads no clock, does no I/O, and says what is
//! to be done as [`Effect`]s. [`Coordinator`] holds all groups, and brings time, waiting requests
//! and a log to them. [`GroupSnapshot`] is what of a group survives a restart.
//!
//! Absent on purpose: committed offsets (they live in the engine; here is only the fence that a
//! commit must pass), the newer server-assigned protocol of KIP-848, and every wire format but the
//! topic list inside a consumer's subscription.

mod assignment;
mod commit;
mod coordinator;
mod deadlines;
mod describe;
mod error;
mod heartbeat;
mod join;
mod leave;
mod machine;
mod member;
mod options;
mod pending;
mod rebalance;
mod replace;
mod roster;
mod snapshot;
mod state;
mod subscriptions;
mod sync;

pub use assignment::assigned;
pub use commit::{CommitFence, CommitKind, OffsetUse};
pub use coordinator::{BoxFuture, Coordinator, GroupLog, HeldGroup};
pub use describe::{GroupDescription, ListedGroup, MemberDescription};
pub use error::GroupError;
pub use heartbeat::HeartbeatRequest;
pub use join::{JoinAnswer, JoinRequest, JoinedMember};
pub use leave::{LeavingMember, LeftMember};
pub use machine::{Effect, Group, Token, WriteId, WriteResult};
pub use options::Options;
pub use snapshot::{BadSnapshot, GroupSnapshot, MemberSnapshot};
pub use state::GroupState;
pub use subscriptions::Subscriptions;
pub use sync::{SyncAnswer, SyncRequest};
