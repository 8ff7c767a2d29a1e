//! The differences between two moments.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::completeness::{complete, is_complete};
use crate::groups::GroupMembership;
use crate::moment::{Isolation, PendingMomentPolicy, Stamp};
use crate::znodes::ZnodeDiffEntry;

/// The categories of changes. Each one can be read as far back as it is retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiffCategory {
    /// Topics and their settings.
    Topics,
    /// Appended records.
    Records,
    /// Pins.
    Pins,
    /// Committed offsets.
    Offsets,
    /// Members of groups.
    Groups,
    /// Znodes that everybody may read.
    Znodes,
}

/// A request for a page of differences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiffRequest {
    /// The earlier moment, by system time.
    pub from: String,
    /// The later one.
    pub until: String,
    /// Restricts the result to these topics, and to offsets committed for them.
    #[serde(default)]
    pub topics: Option<Vec<String>>,
    /// Restricts the result to these categories.
    #[serde(default)]
    pub only: Option<Vec<DiffCategory>>,
    /// The isolation level: it selects the records of transactions that are appended records.
    #[serde(default, skip_serializing_if = "Isolation::is_default")]
    pub isolation: Isolation,
    /// The action if the later moment is not final yet.
    #[serde(default)]
    pub when: PendingMomentPolicy,
    /// The longest wait for it; if `None`, as long as the server's settings say.
    #[serde(default)]
    pub patience_ms: Option<u64>,
    /// The start of the page: [`DiffResponse::next`] of the previous one.
    #[serde(default)]
    pub after: Option<String>,
    /// The most differences on the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A page of differences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffResponse {
    /// The earlier moment.
    pub from: String,
    /// The later moment, in its resolved form.
    pub until: String,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// `frontier` in milliseconds since 1970.
    pub frontier_ms: u64,
    /// The changes.
    pub changes: Vec<DiffChange>,
    /// The start of the next page, if there may be more.
    pub next: Option<String>,
    /// True if nothing was left out of what may differ. The answer leaves out what the requester
    /// may not see.
    #[serde(default = "complete", skip_serializing_if = "is_complete")]
    pub complete: bool,
}

/// A value at both moments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BeforeAndAfter<T> {
    /// At the earlier moment.
    pub before: T,
    /// At the later one.
    pub after: T,
}

/// A committed offset, at one of the two moments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OffsetAtMoment {
    /// The next record to read.
    pub offset: i64,
    /// The leader epoch in the commit, or −1.
    pub leader_epoch: i32,
    /// The metadata of the commit.
    pub metadata: String,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DiffChange {
    /// A topic was created. The fields are as of the later moment.
    TopicCreated {
        /// Its name.
        topic: String,
        /// Its id.
        id: String,
        /// The number of its partitions.
        partitions: u32,
        /// The settings of the topic itself.
        configs: BTreeMap<String, String>,
        /// The stamp of its creation.
        stamp: Stamp,
        /// `stamp` in milliseconds since 1970.
        stamp_ms: u64,
    },
    /// A topic got other settings or more partitions.
    TopicChanged {
        /// Its name.
        topic: String,
        /// Its id.
        id: String,
        /// The number of partitions.
        partitions: BeforeAndAfter<u32>,
        /// The settings that differ.
        configs: BTreeMap<String, BeforeAndAfter<Option<String>>>,
    },
    /// A topic was deleted. The fields are its last values.
    TopicDeleted {
        /// Its name.
        topic: String,
        /// Its id.
        id: String,
        /// The number of partitions that it had.
        partitions: u32,
        /// The stamp of its deletion.
        stamp: Stamp,
        /// `stamp` in milliseconds since 1970.
        stamp_ms: u64,
    },
    /// A partition shows records that it did not show at the earlier moment. There may be several
    /// of these for a partition, one after the other: each has the next of them.
    Appended {
        /// The topic.
        topic: String,
        /// Its id.
        id: String,
        /// The partition.
        partition: i32,
        /// The offset of the first. Of committed records, it is below the earlier end of the
        /// partition if a transaction that began before the earlier moment was committed after it.
        start: i64,
        /// The offset after the last one.
        end: i64,
        /// The number of records. Among committed records, it counts neither those of aborted and
        /// undecided transactions, which are in the range too, nor markers.
        records: u64,
        /// The size of the batches that hold them.
        bytes: u64,
    },
    /// A pin was set or extended.
    PinSet {
        /// Its name.
        pin: String,
        /// Its moment.
        at: String,
        /// The time at which it expires: milliseconds since 1970.
        expires_ms: u64,
        /// The stamp of the change.
        stamp: Stamp,
        /// `stamp` in milliseconds since 1970.
        stamp_ms: u64,
    },
    /// A pin was removed, or has expired.
    PinRemoved {
        /// Its name.
        pin: String,
        /// The stamp of its removal.
        stamp: Stamp,
        /// `stamp` in milliseconds since 1970.
        stamp_ms: u64,
    },
    /// The committed offset of a group changed.
    Offset {
        /// The group.
        group: String,
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// The offset at the earlier moment.
        before: Option<OffsetAtMoment>,
        /// The offset at the later moment.
        after: Option<OffsetAtMoment>,
    },
    /// A group got its first member.
    GroupCreated {
        /// The group.
        group: String,
        /// The members before: none.
        before: Option<GroupMembership>,
        /// The members after.
        after: Option<GroupMembership>,
    },
    /// A group has another generation.
    GroupChanged {
        /// The group.
        group: String,
        /// The members before.
        before: Option<GroupMembership>,
        /// The members after.
        after: Option<GroupMembership>,
    },
    /// A group was deleted.
    GroupDeleted {
        /// The group.
        group: String,
        /// The members before.
        before: Option<GroupMembership>,
        /// The members after: none.
        after: Option<GroupMembership>,
    },
    /// A znode was created.
    ZnodeCreated(ZnodeDiffEntry),
    /// The data or the access control list of a znode changed, or it was deleted and created again.
    ZnodeChanged(ZnodeDiffEntry),
    /// A znode was deleted.
    ZnodeDeleted(ZnodeDiffEntry),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_comes_out_as_it_went_in() {
        let text = concat!(
            r#"{"from":"s5","until":"s6","frontier":"sh0000000000060001","frontier_ms":6,"changes":["#,
            r#"{"kind":"appended","topic":"a","id":"i","partition":0,"start":1,"end":3,"records":2,"bytes":99},"#,
            r#"{"kind":"topic_changed","topic":"a","id":"i","partitions":{"before":1,"after":2},"configs":{"k":{"before":null,"after":"v"}}},"#,
            r#"{"kind":"offset","group":"g","topic":"a","partition":0,"before":null,"after":{"offset":1,"leader_epoch":-1,"metadata":""}},"#,
            r#"{"kind":"group_deleted","group":"g","before":null,"after":null},"#,
            r#"{"kind":"pin_removed","pin":"p","stamp":"sh0000000000050001","stamp_ms":5}],"next":"t1.0"}"#,
        );
        let page: DiffResponse = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&page).unwrap(), text);
    }
}
