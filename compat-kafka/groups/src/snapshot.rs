//! The state of a group that survives a restart: the last generation that was stored, as one value.
//!
//! A group that was between two generations is restored as the earlier one. Members that know the
//! later one get `IllegalGeneration`, and join again. An encoded snapshot is its version, then
//! postcard.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::member::ClassicGroupMember;

/// The first byte of every snapshot that this code writes. Groups of other kinds have others.
const VERSION: u8 = 1;

/// The state of a group that survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSnapshot {
    pub generation: i32,
    /// The protocol type, once anyone has joined.
    pub protocol_type: Option<String>,
    /// The protocol that the members chose; `None` exactly if there are none.
    pub protocol: Option<String>,
    /// The leader's member id; `None` exactly if there are no members.
    pub leader: Option<String>,
    /// The members, each with an assignment.
    pub members: Vec<MemberSnapshot>,
}

/// The state of a member that survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberSnapshot {
    pub member_id: String,
    pub group_instance_id: Option<String>,
    /// The name that the client gives itself.
    pub client_id: String,
    pub client_host: String,
    pub session_timeout_ms: u64,
    pub rebalance_timeout_ms: u64,
    /// All protocols of the member, with its metadata, by its preference.
    pub protocols: Vec<(String, Vec<u8>)>,
    /// The member's assignment from the leader.
    pub assignment: Vec<u8>,
}

/// The reason why bytes are not a snapshot that a group can have written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupSnapshotError {
    /// Written by a later version, or not by this software.
    #[error("unknown snapshot version. version={version:?}")]
    Version {
        /// The first byte, if there is one.
        version: Option<u8>,
    },
    /// The bytes end early, or do not match the version's format.
    #[error("malformed snapshot")]
    Malformed(#[source] postcard::Error),
    /// The fields contradict each other.
    #[error("inconsistent snapshot. claim={claim:?}")]
    Inconsistent {
        /// The invariant that is violated.
        claim: &'static str,
    },
}

impl GroupSnapshot {
    pub fn encode(&self) -> Vec<u8> {
        encode_versioned(VERSION, self)
    }

    /// Decodes it from the log.
    ///
    /// # Errors
    /// The bytes are not a snapshot of a classic group.
    pub fn decode(bytes: &[u8]) -> Result<GroupSnapshot, GroupSnapshotError> {
        decode_versioned(VERSION, bytes)
    }

    pub(super) fn check(&self) -> Result<(), GroupSnapshotError> {
        let ids: HashSet<&str> = self.members.iter().map(|m| m.member_id.as_str()).collect();
        let statics = self.members.iter().filter_map(|m| m.group_instance_id.as_deref());
        let instances: HashSet<&str> = statics.clone().collect();
        let has_members = !self.members.is_empty();
        ensure(self.generation >= 0, "generations begin at 0")?;
        ensure(ids.len() == self.members.len(), "member ids differ")?;
        ensure(instances.len() == statics.count(), "instance ids differ")?;
        ensure(self.leader.as_deref().is_none_or(|id| ids.contains(id)), "the leader is a member")?;
        ensure(self.leader.is_some() == has_members, "members have a leader")?;
        ensure(self.protocol.is_some() == has_members, "members have a protocol")?;
        ensure(!has_members || self.protocol_type.is_some(), "members have a protocol type")?;
        let supports = |member: &MemberSnapshot| {
            let names = member.protocols.iter().map(|(name, _)| name);
            names.clone().collect::<HashSet<_>>().len() == names.len()
                && names.clone().any(|name| Some(name) == self.protocol.as_ref())
        };
        ensure(self.members.iter().all(supports), "all members support the protocol")
    }
}

/// A version, then postcard.
pub(super) fn encode_versioned<T: Serialize>(version: u8, value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![version]).expect("plain values, into memory")
}

pub(super) fn decode_versioned<T: DeserializeOwned>(
    version: u8,
    bytes: &[u8],
) -> Result<T, GroupSnapshotError> {
    match bytes.split_first() {
        Some((first, rest)) if *first == version => {
            postcard::from_bytes(rest).map_err(GroupSnapshotError::Malformed)
        }
        other => Err(GroupSnapshotError::Version { version: other.map(|(version, _)| *version) }),
    }
}

fn ensure(holds: bool, claim: &'static str) -> Result<(), GroupSnapshotError> {
    if holds { Ok(()) } else { Err(GroupSnapshotError::Inconsistent { claim }) }
}

impl MemberSnapshot {
    pub(super) fn of(member: &ClassicGroupMember, assignment: Option<&Bytes>) -> MemberSnapshot {
        let protocols = member.protocols.iter();
        MemberSnapshot {
            member_id: member.id.clone(),
            group_instance_id: member.group_instance_id.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            session_timeout_ms: to_millis(member.session_timeout),
            rebalance_timeout_ms: to_millis(member.rebalance_timeout),
            protocols: protocols.map(|(name, data)| (name.clone(), data.to_vec())).collect(),
            assignment: assignment.map(|bytes| bytes.to_vec()).unwrap_or_default(),
        }
    }
}

impl From<MemberSnapshot> for ClassicGroupMember {
    fn from(stored: MemberSnapshot) -> ClassicGroupMember {
        let protocols = stored.protocols.into_iter();
        ClassicGroupMember {
            id: stored.member_id,
            group_instance_id: stored.group_instance_id,
            client_id: stored.client_id,
            client_host: stored.client_host,
            session_timeout: millis(stored.session_timeout_ms),
            rebalance_timeout: millis(stored.rebalance_timeout_ms),
            protocols: protocols.map(|(name, data)| (name, Bytes::from(data))).collect(),
            assignment: Some(Bytes::from(stored.assignment)),
            is_new: false,
            join: None,
            sync: None,
        }
    }
}

/// Capped, so that adding it to the current time cannot overflow.
pub(super) fn millis(stored: u64) -> Duration {
    Duration::from_millis(stored.min(u64::from(u32::MAX)))
}

fn to_millis(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_its_version_and_then_its_fields_in_order() {
        let member = MemberSnapshot {
            member_id: "m".to_owned(),
            group_instance_id: None,
            client_id: "c".to_owned(),
            client_host: "h".to_owned(),
            session_timeout_ms: 10,
            rebalance_timeout_ms: 300,
            protocols: vec![("range".to_owned(), vec![1, 2])],
            assignment: vec![3],
        };
        let snapshot = GroupSnapshot {
            generation: 1,
            protocol_type: Some("consumer".to_owned()),
            protocol: Some("range".to_owned()),
            leader: Some("m".to_owned()),
            members: vec![member],
        };
        let head = b"\x01\x02\x01\x08consumer\x01\x05range\x01\x01m\x01";
        let tail = b"\x01m\x00\x01c\x01h\x0a\xac\x02\x01\x05range\x02\x01\x02\x01\x03";
        assert_eq!(snapshot.encode(), [head.as_slice(), tail.as_slice()].concat());
        assert_eq!(GroupSnapshot::decode(&snapshot.encode()), Ok(snapshot));
    }

    #[test]
    fn a_snapshot_of_another_version_is_refused_by_it() {
        assert_eq!(
            GroupSnapshot::decode(&[9, 0]),
            Err(GroupSnapshotError::Version { version: Some(9) })
        );
        assert_eq!(GroupSnapshot::decode(&[]), Err(GroupSnapshotError::Version { version: None }));
    }
}
