//! Groups as they were, and setting them to a moment.

use std::collections::BTreeMap;

use hlc::Moment;
use serde::{Deserialize, Serialize};

use super::{CommittedThen, SERVER_WAIT, Stamp};
use crate::{Client, ClientError};

#[derive(Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Question<'a> {
    Groups { at: Option<String>, group: Option<&'a str> },
    SeekGroup { group: &'a str, at: String, topics: Option<&'a [String]>, dry_run: bool },
    RestoreGroup { group: &'a str, at: String, dry_run: bool },
}

/// The groups that were there at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupsAnswer {
    /// The moment that was answered for.
    pub at: String,
    /// How far the server can answer for.
    pub frontier: Stamp,
    /// The groups, by name.
    pub groups: Vec<GroupState>,
}

/// A group as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupState {
    /// Its name.
    pub group: String,
    /// Who was in it, as of the last rebalance that was completed; none if nobody had ever joined.
    pub membership: Option<Membership>,
    /// When that was.
    pub changed: Option<Stamp>,
    /// What it had committed.
    pub offsets: Vec<CommittedThen>,
    /// The topics that it was set to a moment in, and the moments.
    pub sought: BTreeMap<String, String>,
}

/// Who was in a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
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
    pub members: Vec<MemberThen>,
}

/// A member of a group as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberThen {
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
pub struct GroupSet {
    /// The group.
    pub group: String,
    /// The moment, with all that was left open when it was asked.
    pub at: String,
    /// How far the server can answer for.
    pub frontier: Stamp,
    /// By topic and partition, also where nothing changed.
    pub offsets: Vec<OffsetSet>,
    /// What was left out, for its topic is not there any more.
    pub skipped: Vec<Skipped>,
    /// When it was committed; not at all in a dry run.
    pub committed: Option<Stamp>,
}

/// What a group has of a partition before and after it was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffsetSet {
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
pub struct Skipped {
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
    ) -> Result<GroupsAnswer, ClientError> {
        let question = Question::Groups { at: at.map(Moment::to_string), group };
        self.question(question, SERVER_WAIT).await
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
    ) -> Result<GroupSet, ClientError> {
        let question = Question::SeekGroup { group, at: at.to_string(), topics, dry_run };
        self.question(question, SERVER_WAIT).await
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
    ) -> Result<GroupSet, ClientError> {
        let question = Question::RestoreGroup { group, at: at.to_string(), dry_run };
        self.question(question, SERVER_WAIT).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_the_document_that_was_agreed_on() {
        let topics = ["a".to_owned()];
        let at = "s5".to_owned();
        let seek = Question::SeekGroup {
            group: "g",
            at: at.clone(),
            topics: Some(&topics),
            dry_run: true,
        };
        assert_eq!(
            serde_json::to_string(&seek).unwrap(),
            r#"{"op":"seek_group","group":"g","at":"s5","topics":["a"],"dry_run":true}"#
        );
        let restore = Question::RestoreGroup { group: "g", at, dry_run: false };
        assert_eq!(
            serde_json::to_string(&restore).unwrap(),
            r#"{"op":"restore_group","group":"g","at":"s5","dry_run":false}"#
        );
        assert_eq!(
            serde_json::to_string(&Question::Groups { at: None, group: None }).unwrap(),
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
        let group: GroupState = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&group).unwrap(), text);
    }
}
