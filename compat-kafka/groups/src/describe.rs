//! Descriptions of groups for administrators.

use bytes::Bytes;

use super::classic_group::ClassicGroup;
use super::member::ClassicGroupMember;
use super::state::ClassicGroupState;

/// The kind of a group, by the protocol that its members speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupType {
    Classic,
    Consumer,
    Share,
    Streams,
}

impl GroupType {
    /// The name that Kafka's tools show and filter by.
    pub fn name(self) -> &'static str {
        match self {
            GroupType::Classic => "classic",
            GroupType::Consumer => "consumer",
            GroupType::Share => "share",
            GroupType::Streams => "streams",
        }
    }
}

/// One line in the list of groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOverview {
    pub group_id: String,
    /// `consumer`, `connect`, …; empty if nobody has ever joined.
    pub protocol_type: String,
    pub group_type: GroupType,
    /// The state of the group, as Kafka's tools show it.
    pub state: &'static str,
}

/// A group and its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSummary {
    /// The state of the group.
    pub state: ClassicGroupState,
    /// `consumer`, `connect`, …; empty if nobody has ever joined.
    pub protocol_type: String,
    /// The protocol that the members chose; empty unless the group is stable.
    pub protocol_data: String,
    pub members: Vec<MemberSummary>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberSummary {
    pub member_id: String,
    pub group_instance_id: Option<String>,
    /// The name that the client gives itself.
    pub client_id: String,
    /// The host that the client connects from.
    pub client_host: String,
    /// The member's metadata for the chosen protocol; empty unless the group is stable.
    pub metadata: Bytes,
    /// The member's last assignment from the leader.
    pub assignment: Bytes,
}

impl ClassicGroup {
    /// The group and its members.
    pub fn describe(&self) -> GroupSummary {
        let is_stable = self.state == ClassicGroupState::Stable;
        let protocol =
            if is_stable { self.protocol.clone().unwrap_or_default() } else { String::new() };
        GroupSummary {
            state: self.state,
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            members: self.roster.iter().map(|member| member.describe(&protocol)).collect(),
            protocol_data: protocol,
        }
    }
}

impl ClassicGroupMember {
    fn describe(&self, protocol: &str) -> MemberSummary {
        MemberSummary {
            member_id: self.id.clone(),
            group_instance_id: self.group_instance_id.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            metadata: self.metadata(protocol),
            assignment: self.assignment.clone().unwrap_or_default(),
        }
    }
}
