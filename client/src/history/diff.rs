//! What differs between two moments.

use std::collections::BTreeMap;
use std::time::Duration;

use hlc::Moment;
use serde::{Deserialize, Serialize};

use super::{GroupMembership, PendingMomentPolicy, Stamp};
use crate::{Client, ClientError};

/// What a difference is about. Each can be read back as far as it is kept, and no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiffCategory {
    /// Topics and their settings.
    Topics,
    /// What was appended.
    Records,
    /// Pins.
    Pins,
    /// Committed offsets.
    Offsets,
    /// Who is in groups.
    Groups,
}

/// What is asked of a difference.
#[derive(Clone, Copy, Debug)]
pub struct DiffQuery<'a> {
    /// The earlier moment, by system time.
    pub from: &'a Moment,
    /// The later one.
    pub until: &'a Moment,
    /// Only these topics, and what was committed for them.
    pub topics: Option<&'a [String]>,
    /// Only these sections.
    pub only: Option<&'a [DiffCategory]>,
    /// What to do if the later moment is not past yet.
    pub when: PendingMomentPolicy,
    /// How long to wait for it.
    pub patience: Duration,
    /// Where the page begins: [`DiffResponse::next`] of the one before it.
    pub after: Option<&'a str>,
}

#[derive(Serialize)]
struct DiffDocument<'a> {
    op: &'static str,
    from: String,
    until: String,
    topics: Option<&'a [String]>,
    only: Option<&'a [DiffCategory]>,
    when: PendingMomentPolicy,
    patience_ms: u64,
    after: Option<&'a str>,
}

/// A page of what differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffResponse {
    /// The earlier moment.
    pub from: String,
    /// The later one, as it was answered for.
    pub until: String,
    /// How far the server can answer for.
    pub frontier: Stamp,
    /// What differs.
    pub changes: Vec<DiffChange>,
    /// Where the next page begins, if there may be more.
    pub next: Option<String>,
}

/// What it was, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeforeAndAfter<T> {
    /// At the earlier moment.
    pub before: T,
    /// At the later one.
    pub after: T,
}

/// A committed offset, at one of two moments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffsetAtMoment {
    /// The next record to read.
    pub offset: i64,
    /// The leader's epoch that the committer knew, or −1.
    pub leader_epoch: i32,
    /// What the committer noted.
    pub metadata: String,
}

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DiffChange {
    /// A topic was created; as it was at the later moment.
    TopicCreated {
        /// Its name.
        topic: String,
        /// Its id.
        id: String,
        /// How many partitions it had.
        partitions: u32,
        /// The settings made on it.
        configs: BTreeMap<String, String>,
        /// When.
        stamp: Stamp,
    },
    /// A topic has other settings, or more partitions.
    TopicChanged {
        /// Its name.
        topic: String,
        /// Its id.
        id: String,
        /// How many partitions it had.
        partitions: BeforeAndAfter<u32>,
        /// The settings that differ.
        configs: BTreeMap<String, BeforeAndAfter<Option<String>>>,
    },
    /// A topic was deleted; as it was last.
    TopicDeleted {
        /// Its name.
        topic: String,
        /// Its id.
        id: String,
        /// How many partitions it had.
        partitions: u32,
        /// When.
        stamp: Stamp,
    },
    /// Records were appended to a partition.
    Appended {
        /// The topic.
        topic: String,
        /// Its id.
        id: String,
        /// The partition.
        partition: i32,
        /// The first that was appended.
        start: i64,
        /// Behind the last.
        end: i64,
        /// How many.
        records: u64,
        /// Bytes of the batches that hold them.
        bytes: u64,
    },
    /// A pin was set, or extended.
    PinSet {
        /// Its name.
        pin: String,
        /// Its moment.
        at: String,
        /// When it ceases to stand: milliseconds since 1970.
        expires_ms: u64,
        /// When.
        stamp: Stamp,
    },
    /// A pin was removed, or found expired.
    PinRemoved {
        /// Its name.
        pin: String,
        /// When.
        stamp: Stamp,
    },
    /// A group has another committed offset.
    Offset {
        /// The group.
        group: String,
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// What was committed before.
        before: Option<OffsetAtMoment>,
        /// What was committed after.
        after: Option<OffsetAtMoment>,
    },
    /// Somebody joined a group that nobody had joined before.
    GroupCreated {
        /// The group.
        group: String,
        /// Who was in it before: nobody.
        before: Option<GroupMembership>,
        /// Who was in it after.
        after: Option<GroupMembership>,
    },
    /// A group has another generation.
    GroupChanged {
        /// The group.
        group: String,
        /// Who was in it before.
        before: Option<GroupMembership>,
        /// Who was in it after.
        after: Option<GroupMembership>,
    },
    /// A group was deleted.
    GroupDeleted {
        /// The group.
        group: String,
        /// Who was in it before.
        before: Option<GroupMembership>,
        /// Who was in it after: nobody.
        after: Option<GroupMembership>,
    },
}

impl Client {
    /// A page of what differs between two moments of system time.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn diff(&mut self, ask: &DiffQuery<'_>) -> Result<DiffResponse, ClientError> {
        let DiffQuery { from, until, topics, only, when, patience, after } = *ask;
        let (from, until) = (from.to_string(), until.to_string());
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let question =
            DiffDocument { op: "diff", from, until, topics, only, when, patience_ms, after };
        self.request_history(question, patience).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_comes_out_as_it_went_in() {
        let text = concat!(
            r#"{"from":"s5","until":"s6","frontier":"sh0000000000060001","changes":["#,
            r#"{"kind":"appended","topic":"a","id":"i","partition":0,"start":1,"end":3,"records":2,"bytes":99},"#,
            r#"{"kind":"topic_changed","topic":"a","id":"i","partitions":{"before":1,"after":2},"configs":{"k":{"before":null,"after":"v"}}},"#,
            r#"{"kind":"offset","group":"g","topic":"a","partition":0,"before":null,"after":{"offset":1,"leader_epoch":-1,"metadata":""}},"#,
            r#"{"kind":"group_deleted","group":"g","before":null,"after":null},"#,
            r#"{"kind":"pin_removed","pin":"p","stamp":"sh0000000000050001"}],"next":"t1.0"}"#,
        );
        let page: DiffResponse = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&page).unwrap(), text);
    }
}
