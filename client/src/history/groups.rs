//! Groups as of a moment, and resetting groups to a moment.

use std::collections::BTreeMap;

use hlc::Moment;
use serde::{Deserialize, Serialize};

use super::{CommittedOffsetAtMoment, SERVER_WAIT_MAX, Stamp};
use crate::{Client, ClientError};

#[derive(Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum GroupHistoryRequest<'a> {
    Groups { at: Option<String>, group: Option<&'a str> },
    SeekGroup { group: &'a str, at: String, topics: Option<&'a [String]>, dry_run: bool },
    RestoreGroup { group: &'a str, at: String, dry_run: bool },
}

/// The groups that existed at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupsResponse {
    /// The moment of the answer.
    pub at: String,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// The groups, by name.
    pub groups: Vec<GroupAtMoment>,
}

/// A group as of a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupAtMoment {
    /// Its name.
    pub group: String,
    /// Its members as of the last completed rebalance; `None` if it never had a member.
    pub membership: Option<GroupMembership>,
    /// When that rebalance completed.
    pub changed: Option<Stamp>,
    /// Its committed offsets.
    pub offsets: Vec<CommittedOffsetAtMoment>,
    /// For each topic that the group was reset in, the moment.
    pub sought: BTreeMap<String, String>,
}

/// The membership of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMembership {
    /// The generation.
    pub generation: i32,
    /// `Stable`, or `Empty` without members.
    pub state: String,
    /// `consumer`, `connect`, …
    pub kind: Option<String>,
    /// The assignment protocol.
    pub protocol: Option<String>,
    /// The id of the group leader, which assigned the partitions.
    pub leader: Option<String>,
    /// The members.
    pub members: Vec<MemberAtMoment>,
}

/// A member of a group as of a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSeekResult {
    /// The group.
    pub group: String,
    /// The moment, in its resolved form.
    pub at: String,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// By topic and partition, including those that did not change.
    pub offsets: Vec<SeekOffsetChange>,
    /// Offsets that were skipped, because their topic does not exist any more.
    pub skipped: Vec<SkippedOffset>,
    /// When it was committed; `None` in a dry run.
    pub committed: Option<Stamp>,
}

/// The offset of a partition before and after the reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedOffset {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset that was committed.
    pub offset: i64,
}

impl Client {
    /// The groups that existed at `at`, or exist now; or one of them.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn groups_at(
        &mut self,
        at: Option<&Moment>,
        group: Option<&str>,
    ) -> Result<GroupsResponse, ClientError> {
        let question = GroupHistoryRequest::Groups { at: at.map(Moment::to_string), group };
        self.request_history(question, SERVER_WAIT_MAX).await
    }

    /// Resets a group without members to a moment, in one commit.
    ///
    /// In every partition that the group has read, or in those of `topics`, it commits the first
    /// offset that is not in the moment. A dry run only returns what it would commit.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn seek_group(
        &mut self,
        group: &str,
        at: &Moment,
        topics: Option<&[String]>,
        dry_run: bool,
    ) -> Result<GroupSeekResult, ClientError> {
        let question =
            GroupHistoryRequest::SeekGroup { group, at: at.to_string(), topics, dry_run };
        self.request_history(question, SERVER_WAIT_MAX).await
    }

    /// Restores what a group without members had committed at `at`, and nothing else, in one
    /// commit.
    ///
    /// A dry run only returns what it would commit.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn restore_group(
        &mut self,
        group: &str,
        at: &Moment,
        dry_run: bool,
    ) -> Result<GroupSeekResult, ClientError> {
        let question = GroupHistoryRequest::RestoreGroup { group, at: at.to_string(), dry_run };
        self.request_history(question, SERVER_WAIT_MAX).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_the_document_that_was_agreed_on() {
        let topics = ["a".to_owned()];
        let at = "s5".to_owned();
        let seek = GroupHistoryRequest::SeekGroup {
            group: "g",
            at: at.clone(),
            topics: Some(&topics),
            dry_run: true,
        };
        assert_eq!(
            serde_json::to_string(&seek).unwrap(),
            r#"{"op":"seek_group","group":"g","at":"s5","topics":["a"],"dry_run":true}"#
        );
        let restore = GroupHistoryRequest::RestoreGroup { group: "g", at, dry_run: false };
        assert_eq!(
            serde_json::to_string(&restore).unwrap(),
            r#"{"op":"restore_group","group":"g","at":"s5","dry_run":false}"#
        );
        assert_eq!(
            serde_json::to_string(&GroupHistoryRequest::Groups { at: None, group: None }).unwrap(),
            r#"{"op":"groups","at":null,"group":null}"#
        );
    }

    #[test]
    fn a_group_comes_out_as_it_went_in() {
        let text = concat!(
            r#"{"group":"g","membership":{"generation":2,"state":"Stable","kind":"consumer","protocol":"range","leader":"m","#,
            r#""members":[{"id":"m","instance":null,"client_id":"c","host":"/h","reads":{"a":[0,1]}}]},"#,
            r#""changed":"sh0000000000050001","offsets":[],"sought":{"a":"s5"}}"#,
        );
        let group: GroupAtMoment = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&group).unwrap(), text);
    }
}
