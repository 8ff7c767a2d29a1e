//! One member of a group.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;

use super::member_requests::{JoinRequest, RequestToken};

/// The memory of a member, besides the bytes that it sent.
pub(super) const OVERHEAD_BYTES: usize = 256;
/// The memory of a protocol, besides its name and metadata.
const PROTOCOL_OVERHEAD_BYTES: usize = 64;

#[derive(Debug, Clone)]
pub(super) struct ClassicGroupMember {
    pub(super) id: String,
    pub(super) group_instance_id: Option<String>,
    pub(super) client_id: String,
    pub(super) client_host: String,
    pub(super) session_timeout: Duration,
    pub(super) rebalance_timeout: Duration,
    /// By the member's preference; each name once.
    pub(super) protocols: Vec<(String, Bytes)>,
    /// `None` until the leader's first assignment has arrived.
    pub(super) assignment: Option<Bytes>,
    /// Added, and not yet part of a generation: it does not know its id, so it cannot send
    /// heartbeats.
    pub(super) is_new: bool,
    /// The join request that waits.
    pub(super) join: Option<RequestToken>,
    /// The sync request that waits.
    pub(super) sync: Option<RequestToken>,
}

impl ClassicGroupMember {
    pub(super) fn new(id: String, request: JoinRequest) -> ClassicGroupMember {
        ClassicGroupMember {
            id,
            protocols: own_protocols(&request.protocols),
            group_instance_id: request.group_instance_id,
            client_id: request.client_id,
            client_host: request.client_host,
            session_timeout: request.session_timeout,
            rebalance_timeout: request.rebalance_timeout,
            assignment: None,
            is_new: false,
            join: None,
            sync: None,
        }
    }

    /// Updates what a member may change by joining again.
    pub(super) fn update(&mut self, request: &JoinRequest) {
        self.protocols = own_protocols(&request.protocols);
        self.session_timeout = request.session_timeout;
        self.rebalance_timeout = request.rebalance_timeout;
    }

    pub(super) fn is_static(&self) -> bool {
        self.group_instance_id.is_some()
    }

    /// A member with a waiting request need not send heartbeats, unless it is new. A new one may
    /// have disconnected and joined a second time, and this one would stay for ever.
    pub(super) fn is_session_exempt(&self) -> bool {
        !self.is_new && (self.join.is_some() || self.sync.is_some())
    }

    pub(super) fn has_protocols(&self, protocols: &[(String, Bytes)]) -> bool {
        self.protocols == protocols
    }

    pub(super) fn metadata(&self, protocol: &str) -> Bytes {
        let protocol_entry = self.protocols.iter().find(|(name, _)| name == protocol);
        protocol_entry.map(|(_, metadata)| metadata.clone()).unwrap_or_default()
    }

    pub(super) fn bytes(&self) -> usize {
        let assignment = self.assignment.as_ref().map_or(0, Bytes::len);
        OVERHEAD_BYTES + named_bytes(self) + protocols_bytes(&self.protocols) + assignment
    }
}

fn named_bytes(member: &ClassicGroupMember) -> usize {
    let instance = member.group_instance_id.as_ref().map_or(0, String::len);
    member.id.len() + instance + member.client_id.len() + member.client_host.len()
}

pub(super) fn protocols_bytes(protocols: &[(String, Bytes)]) -> usize {
    protocols.iter().map(|(name, data)| PROTOCOL_OVERHEAD_BYTES + name.len() + data.len()).sum()
}

/// A copy: a slice would keep the whole request in memory while the member exists.
pub(super) fn own_protocols(protocols: &[(String, Bytes)]) -> Vec<(String, Bytes)> {
    let mut names = HashSet::new();
    let firsts = protocols.iter().filter(|(name, _)| names.insert(name.as_str()));
    firsts.map(|(name, metadata)| (name.clone(), Bytes::copy_from_slice(metadata))).collect()
}
