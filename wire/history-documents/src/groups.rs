//! Groups at a moment: their members and committed offsets; and resetting a group to a moment.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::completeness::{complete, is_complete};
use crate::moment::{Isolation, PendingMomentPolicy, Stamp};

/// A request for groups, or for committed offsets, of a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupMomentRequest {
    /// The moment, of system time; the frontier if `None`.
    #[serde(default)]
    pub at: Option<String>,
    /// The group; all if `None`.
    #[serde(default)]
    pub group: Option<String>,
    /// The policy for a moment that is not final yet.
    #[serde(default, skip_serializing_if = "PendingMomentPolicy::is_default")]
    pub when: PendingMomentPolicy,
    /// The longest wait for the moment; if `None`, as long as the server's settings say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_ms: Option<u64>,
}

/// A request to reset a group to a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SeekGroupRequest {
    /// The group.
    pub group: String,
    /// The moment, of either time.
    pub at: String,
    /// The topics; if `None`, all topics with committed offsets of the group.
    #[serde(default)]
    pub topics: Option<Vec<String>>,
    /// True to say only what would happen.
    #[serde(default)]
    pub dry_run: bool,
    /// The policy for a moment that is not final yet.
    #[serde(default, skip_serializing_if = "PendingMomentPolicy::is_default")]
    pub when: PendingMomentPolicy,
    /// The longest wait for the moment; if `None`, as long as the server's settings say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_ms: Option<u64>,
    /// The isolation level of the group's members. Readers of committed records go on at the first
    /// record that was not decided at the moment.
    #[serde(default, skip_serializing_if = "Isolation::is_default")]
    pub isolation: Isolation,
}

/// A request to restore what a group had committed at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreGroupRequest {
    /// The group.
    pub group: String,
    /// The moment, of system time.
    pub at: String,
    /// True to say only what would happen.
    #[serde(default)]
    pub dry_run: bool,
    /// The policy for a moment that is not final yet.
    #[serde(default, skip_serializing_if = "PendingMomentPolicy::is_default")]
    pub when: PendingMomentPolicy,
    /// The longest wait for the moment; if `None`, as long as the server's settings say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_ms: Option<u64>,
}

/// The committed offsets of groups as of a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OffsetsResponse {
    /// The moment of the answer.
    pub at: Option<String>,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// `frontier` in milliseconds since 1970.
    pub frontier_ms: u64,
    /// The groups.
    pub groups: Vec<GroupOffsetsAtMoment>,
    /// True if nothing was left out. The answer leaves out what the requester may not see.
    #[serde(default = "complete", skip_serializing_if = "is_complete")]
    pub complete: bool,
}

/// A group as of a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupOffsetsAtMoment {
    /// Its name.
    pub group: String,
    /// Its committed offsets.
    pub offsets: Vec<CommittedOffsetAtMoment>,
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommittedOffsetAtMoment {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The next record to read.
    pub offset: i64,
    /// The leader epoch in the commit, or −1.
    #[serde(default = "no_epoch")]
    pub leader_epoch: i32,
    /// The metadata of the commit.
    #[serde(default)]
    pub metadata: String,
    /// The stamp of the commit.
    pub committed: Stamp,
    /// `committed` in milliseconds since 1970.
    pub committed_ms: u64,
}

fn no_epoch() -> i32 {
    -1
}

/// The groups that existed at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupsResponse {
    /// The moment of the answer.
    pub at: String,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// `frontier` in milliseconds since 1970.
    pub frontier_ms: u64,
    /// The groups, by name.
    pub groups: Vec<GroupAtMoment>,
    /// True if nothing was left out. The answer leaves out what the requester may not see.
    #[serde(default = "complete", skip_serializing_if = "is_complete")]
    pub complete: bool,
}

/// A group as of a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupAtMoment {
    /// Its name.
    pub group: String,
    /// Its members as of the last completed rebalance; `None` if it never had a member.
    pub membership: Option<GroupMembership>,
    /// The stamp at which that rebalance completed.
    pub changed: Option<Stamp>,
    /// `changed` in milliseconds since 1970.
    pub changed_ms: Option<u64>,
    /// Its committed offsets.
    pub offsets: Vec<CommittedOffsetAtMoment>,
    /// For each topic that the group was reset in, the moment.
    pub sought: BTreeMap<String, String>,
    /// The settings that it had of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// The membership of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupMembership {
    /// The generation.
    pub generation: i32,
    /// `Stable`, or `Empty` without members; of a group whose partitions the server assigns also
    /// `Assigning` and `Reconciling`.
    pub state: String,
    /// `classic`; `consumer` for a group whose partitions the server assigns; `share` for one whose
    /// members share partitions.
    #[serde(rename = "type", default = "classic")]
    pub group_type: String,
    /// `consumer`, `connect`, …
    pub kind: Option<String>,
    /// The assignment protocol.
    pub protocol: Option<String>,
    /// The id of the group leader, which assigned the partitions.
    pub leader: Option<String>,
    /// The members.
    pub members: Vec<MemberAtMoment>,
}

fn classic() -> String {
    "classic".to_owned()
}

/// A member of a group as of a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberAtMoment {
    /// Its id.
    pub id: String,
    /// Its instance id, if it was a static member.
    pub instance: Option<String>,
    /// Its client id.
    pub client_id: String,
    /// The host that it connected from.
    pub host: String,
    /// The partitions that were assigned to it, by topic; `None` if the group's members were not
    /// consumers.
    pub reads: Option<BTreeMap<String, Vec<i32>>>,
}

/// The result of a reset, or of a dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupSeekResult {
    /// The group.
    pub group: String,
    /// The moment, in its resolved form.
    pub at: String,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// `frontier` in milliseconds since 1970.
    pub frontier_ms: u64,
    /// By topic and partition, including those that did not change.
    pub offsets: Vec<SeekOffsetChange>,
    /// Offsets that were skipped, because their topic does not exist any more.
    pub skipped: Vec<SkippedOffset>,
    /// The stamp of the commit; `None` in a dry run.
    pub committed: Option<Stamp>,
    /// `committed` in milliseconds since 1970.
    pub committed_ms: Option<u64>,
}

/// The offset of a partition before and after the reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SeekOffsetChange {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset that was committed.
    pub before: Option<i64>,
    /// The offset that is committed now.
    pub after: Option<i64>,
}

/// A committed offset of a topic that does not exist any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkippedOffset {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset that was committed.
    pub offset: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_comes_out_as_it_went_in() {
        let text = concat!(
            r#"{"group":"g","membership":{"generation":2,"state":"Stable","type":"classic","kind":"consumer","protocol":"range","leader":"m","#,
            r#""members":[{"id":"m","instance":null,"client_id":"c","host":"/h","reads":{"a":[0,1]}}]},"#,
            r#""changed":"sh0000000000050001","changed_ms":5,"offsets":[],"sought":{"a":"s5"}}"#,
        );
        let group: GroupAtMoment = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&group).unwrap(), text);
    }
}
