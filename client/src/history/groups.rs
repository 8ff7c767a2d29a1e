//! Groups as they were, and setting them to a moment.

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

/// The groups that were there at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupsResponse {
    /// The moment that was answered for.
    pub at: String,
    /// How far the server can answer for.
    pub frontier: Stamp,
    /// The groups, by name.
    pub groups: Vec<GroupAtMoment>,
}

/// A group as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupAtMoment {
    /// Its name.
    pub group: String,
    /// Who was in it, as of the last rebalance that was completed; none if nobody had ever joined.
    pub membership: Option<GroupMembership>,
    /// When that was.
    pub changed: Option<Stamp>,
    /// What it had committed.
    pub offsets: Vec<CommittedOffsetAtMoment>,
    /// The topics that it was set to a moment in, and the moments.
    pub sought: BTreeMap<String, String>,
}

/// Who was in a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMembership {
    /// The generation.
    pub generation: i32,
    /// `Stable`, or `Empty` without members.
    pub state: String,
    /// `consumer`, `connect`, …
    pub kind: Option<String>,
    /// How partitions were assigned.
    pub protocol: Option<String>,
    /// The id of the member that assigned them.
    pub leader: Option<String>,
    /// The members.
    pub members: Vec<MemberAtMoment>,
}

/// A member of a group as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberAtMoment {
    /// Its id.
    pub id: String,
    /// Its instance id, if it was a static member.
    pub instance: Option<String>,
    /// What the client called itself.
    pub client_id: String,
    /// Where it connected from.
    pub host: String,
    /// The partitions that it was given, by topic; none if the group's members were no consumers.
    pub reads: Option<BTreeMap<String, Vec<i32>>>,
}

/// How a group was set, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSeekResult {
    /// The group.
    pub group: String,
    /// The moment, with all that was left open when it was asked.
    pub at: String,
    /// How far the server can answer for.
    pub frontier: Stamp,
    /// By topic and partition, also where nothing changed.
    pub offsets: Vec<SeekOffsetChange>,
    /// What was left out, for its topic is not there any more.
    pub skipped: Vec<SkippedOffset>,
    /// When it was committed; not at all in a dry run.
    pub committed: Option<Stamp>,
}

/// What a group has of a partition before and after it was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeekOffsetChange {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// What was committed.
    pub before: Option<i64>,
    /// What is committed now.
    pub after: Option<i64>,
}

/// What was committed for a topic that is not there any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedOffset {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// What was committed.
    pub offset: i64,
}

impl Client {
    /// The groups that were there at `at`, or are now; or one of them.
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

    /// Commits for a group without members, in every partition of what it has read or of `topics`, the
    /// first offset that is not in the moment: all at once. A dry run only says what that would be.
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

    /// Commits again what a group without members had committed at `at`, and nothing else: all at once.
    /// A dry run only says what that would be.
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
