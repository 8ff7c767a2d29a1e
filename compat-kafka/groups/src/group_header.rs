//! The state that survives a restart of a group whose partitions the server assigns, besides its
//! members.

use serde::{Deserialize, Serialize};

/// The first byte of the header of a consumer group. A classic group's snapshot begins with
/// another.
pub(super) const CONSUMER_GROUP: u8 = 2;
/// The first byte of the header of a share group.
pub(super) const SHARE_GROUP: u8 = 3;
/// The first byte of the header of a streams group.
pub(super) const STREAMS_GROUP: u8 = 4;

/// The state of a group that survives a restart, besides its members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupHeader {
    pub epoch: i32,
    pub assignment_epoch: i32,
    /// A hash of the topics at the epoch.
    pub topics_hash: u64,
    /// Rises with every change, so that two headers of different members differ.
    pub changes: u64,
}
