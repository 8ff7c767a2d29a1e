//! The requests of members that may wait, and their results.

use std::time::Duration;

use bytes::Bytes;

use super::error::GroupError;

/// Identifies a join or sync request that waits. The caller chooses it, and uses none twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestToken(pub u64);

/// A request to be part of the next generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRequest {
    /// Empty if the member has none yet.
    pub member_id: String,
    /// Set by members that keep their assignment over a restart (KIP-345).
    pub group_instance_id: Option<String>,
    /// The name that the client gives itself.
    pub client_id: String,
    /// The host that the client connects from.
    pub client_host: String,
    /// The longest time that the member may be silent.
    pub session_timeout: Duration,
    /// The longest time that the member may take to join a rebalance. Version 0 has none: it is the
    /// session's.
    pub rebalance_timeout: Duration,
    /// The kind of the members: `consumer`, `connect`, …
    pub protocol_type: String,
    /// The assignment protocols that the member supports, with its metadata for each; the best
    /// first.
    pub protocols: Vec<(String, Bytes)>,
    /// Versions 4 and up: a member without an id first gets one (KIP-394).
    pub require_known_member_id: bool,
    /// Versions 9 and up: the response may tell the leader to skip the assignment (KIP-814).
    pub supports_skip_assignment: bool,
    /// The reason why the client joins, in its own words; for logs.
    pub reason: Option<String>,
}

/// The response to a [`JoinRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinResult {
    /// `None` if the member is part of the generation.
    pub error: Option<GroupError>,
    /// The generation, or -1 after most errors.
    pub generation_id: i32,
    pub protocol_type: Option<String>,
    /// The protocol that the members chose.
    pub protocol_name: Option<String>,
    /// The member id of the leader; empty after most errors.
    pub leader: String,
    /// The member's id; with [`GroupError::MemberIdRequired`], the one to join with.
    pub member_id: String,
    /// All members, for the leader only.
    pub members: Vec<JoinedMember>,
    /// The leader need not assign: the existing assignment stays in force.
    pub skip_assignment: bool,
}

impl JoinResult {
    /// A response with only an error.
    pub fn with_error(error: GroupError, member_id: &str) -> JoinResult {
        JoinResult {
            error: Some(error),
            generation_id: -1,
            protocol_type: None,
            protocol_name: None,
            leader: String::new(),
            member_id: member_id.to_owned(),
            members: Vec::new(),
            skip_assignment: false,
        }
    }
}

/// A member, as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedMember {
    pub member_id: String,
    pub group_instance_id: Option<String>,
    /// The member's metadata for the protocol chosen.
    pub metadata: Bytes,
}

/// A request for the member's assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncRequest {
    pub member_id: String,
    pub group_instance_id: Option<String>,
    /// The generation from the response to the join.
    pub generation_id: i32,
    /// Versions 5 and up: the protocol type that the member knows of.
    pub protocol_type: Option<String>,
    /// Versions 5 and up: the protocol that the member knows of.
    pub protocol_name: Option<String>,
    /// Assignments by member id, from the leader only.
    pub assignments: Vec<(String, Bytes)>,
}

/// The response to a [`SyncRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncResult {
    /// `None` if the assignment is valid.
    pub error: Option<GroupError>,
    pub protocol_type: Option<String>,
    /// The protocol that the members chose.
    pub protocol_name: Option<String>,
    /// The member's assignment from the leader; may be empty.
    pub assignment: Bytes,
}

impl SyncResult {
    /// A response with only an error.
    pub fn with_error(error: GroupError) -> SyncResult {
        SyncResult {
            error: Some(error),
            protocol_type: None,
            protocol_name: None,
            assignment: Bytes::new(),
        }
    }
}

/// A heartbeat of a member of a classic group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupHeartbeatRequest {
    pub member_id: String,
    pub group_instance_id: Option<String>,
    /// The generation that the member is part of.
    pub generation_id: i32,
}

/// A request that a member leaves, or that an administrator removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaveMemberRequest {
    /// The member's id; empty to remove the member with the instance id.
    pub member_id: String,
    pub group_instance_id: Option<String>,
    /// The reason, in the client's words; for logs.
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaveMemberResult {
    pub member_id: String,
    pub group_instance_id: Option<String>,
    /// `None` if the member has left.
    pub error: Option<GroupError>,
}

impl LeaveMemberRequest {
    pub(super) fn result(&self, error: Option<GroupError>) -> LeaveMemberResult {
        LeaveMemberResult {
            member_id: self.member_id.clone(),
            group_instance_id: self.group_instance_id.clone(),
            error,
        }
    }
}
