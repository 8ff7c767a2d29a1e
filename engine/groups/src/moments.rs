//! Setting a group to a moment, and restoring what it had committed at one.
//!
//! Invariants of both:
//! - It is one event. A reader of the group's offsets, at any moment, sees all of it or nothing.
//! - It is decided while no topic is created or deleted and no log start advances, so the committed
//!   offsets can be read.
//! - It does not check the members of the group: its coordinator does that.
//!
//! A partition that a topic gets *after* its group was set to a moment is read from its beginning,
//! because nothing of it existed at the moment. Otherwise the client's reset policy would decide.
//! That is usually the end of the partition, and loses what was written before the client found it
//! (KAFKA-20035).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine_core::blocking::block_in_place;
use engine_core::log_history::{earliest_bound, is_retained, is_retained_by_user_time};
use engine_core::namespace::{Partition, Topic};
use engine_core::{EngineError, Isolation, SeekError, TruncatedPartition, WaitPolicy};
use hlc::{Cut, Hlc, Moment};
use storage::Offset;

use crate::event::{GroupEvent, LATER_PARTITIONS, OffsetCommit};
use crate::group_catalog::CommittedOffset;
use crate::groups::Groups;

/// The mode of a set: commit the change, or only report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupSetMode {
    /// Commit the change.
    Commit,
    /// Only report what would change.
    DryRun,
}

/// The committed offset of one partition before and after the group was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetChange {
    pub topic: String,
    pub partition: u32,
    /// The offset that was committed before.
    pub before: Option<i64>,
    /// The offset that is committed now.
    pub after: Option<i64>,
}

/// An offset that could not be set, because its topic does not exist any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedPartition {
    pub topic: String,
    pub partition: u32,
    /// The offset that was committed for it.
    pub offset: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSetResult {
    /// The moment, as an absolute moment.
    pub at: Moment,
    /// The frontier when the change was made.
    pub frontier: Hlc,
    /// By topic and partition, including unchanged ones.
    pub offsets: Vec<OffsetChange>,
    /// The offsets that were left unchanged.
    pub skipped: Vec<SkippedPartition>,
    /// The stamp of the commit; `None` in a dry run.
    pub committed: Option<Hlc>,
}

/// The reason that a group was not set.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GroupSetError {
    /// It is not known what the group reads.
    #[error(
        "the group {0} has committed nothing, so it is not known what it reads: name the topics"
    )]
    NothingCommitted(String),
    /// The group had committed nothing at the moment.
    #[error("the group {group} had committed nothing at that moment ({moment})")]
    NothingAtMoment { group: String, moment: Moment },
    /// No such topic exists now.
    #[error("there is no topic {0}")]
    UnknownTopic(String),
    /// The moment cannot be read, or the change cannot be made.
    #[error(transparent)]
    Seek(#[from] SeekError),
}

impl From<EngineError> for GroupSetError {
    fn from(error: EngineError) -> GroupSetError {
        GroupSetError::Seek(error.into())
    }
}

/// Commits by topic and partition, including [`LATER_PARTITIONS`].
pub(crate) type CommitsByPartition = BTreeMap<(String, u32), OffsetCommit>;

/// The place where a group is to go on.
#[derive(Clone, Copy, Debug)]
pub struct GroupSeekTarget<'a> {
    pub moment: Moment,
    /// The topics; `None` for all for which the group has committed something.
    pub topics: Option<&'a [String]>,
    /// The isolation level of its members.
    pub isolation: Isolation,
}

impl Groups {
    /// Sets a group to a moment: commits, in every partition of what it reads, the first offset
    /// that is not in the moment. This covers all topics for which the group has committed
    /// something, or the named ones.
    ///
    /// # Errors
    /// [`GroupSetError`].
    pub async fn seek(
        &self,
        group: &str,
        target: GroupSeekTarget<'_>,
        when: WaitPolicy,
        mode: GroupSetMode,
    ) -> Result<GroupSetResult, GroupSetError> {
        let GroupSeekTarget { moment, topics, isolation } = target;
        let (at, known) = self.core.seek().resolve_moment(moment, when).await?;
        let changing = self.core.lock_changes().await;
        let now = self.stored_offsets_of(group, Cut::ALL)?;
        let (topics, skipped) = self.topics_to_seek(group, topics, &now)?;
        let after = self.offsets_of_moment(&topics, at, known, isolation)?;
        let offsets = offset_changes(&now, &after, &[]);
        let frontier = self.core.frontier();
        let committed = match mode {
            GroupSetMode::Commit => {
                let (group, offsets) = (group.to_owned(), after.into_values().collect());
                let event = GroupEvent::OffsetsSet { group, offsets, removed: Vec::new() };
                Some(self.submit(event, Some(changing)).await?)
            }
            GroupSetMode::DryRun => None,
        };
        Ok(GroupSetResult { at, frontier, offsets, skipped, committed })
    }

    /// The topics to seek in, and the partitions of deleted topics for which the group has offsets.
    fn topics_to_seek(
        &self,
        group: &str,
        topic_names: Option<&[String]>,
        now: &CommitsByPartition,
    ) -> Result<(Vec<Arc<Topic>>, Vec<SkippedPartition>), GroupSetError> {
        if let Some(names) = topic_names {
            let names: BTreeSet<&String> = names.iter().collect();
            let topic = |name: &String| {
                self.core
                    .topics()
                    .named(name)
                    .ok_or_else(|| GroupSetError::UnknownTopic(name.clone()))
            };
            let topics = names.into_iter().map(topic).collect::<Result<Vec<_>, _>>()?;
            return Ok((topics, Vec::new()));
        }
        let (mut topics, mut skipped) = (BTreeMap::new(), Vec::new());
        let real = now.iter().filter(|((_, partition), _)| *partition != LATER_PARTITIONS);
        for ((name, partition), commit) in real {
            match self.core.topics().named(name) {
                Some(topic) => drop(topics.insert(name, topic)),
                None => skipped.push(SkippedPartition {
                    topic: name.clone(),
                    partition: *partition,
                    offset: commit.offset,
                }),
            }
        }
        if topics.is_empty() {
            return Err(GroupSetError::NothingCommitted(group.to_owned()));
        }
        Ok((topics.into_values().collect(), skipped))
    }

    fn offsets_of_moment(
        &self,
        topics: &[Arc<Topic>],
        at: Moment,
        known: Cut,
        isolation: Isolation,
    ) -> Result<CommitsByPartition, SeekError> {
        let (mut offsets, mut lost) = (CommitsByPartition::new(), Vec::new());
        for topic in topics {
            for partition in &topic.partitions {
                let end = self.core.seek().end_at(partition, at, known)?;
                let horizon = partition.log.horizon();
                let is_whole = match at {
                    Moment::Sys(cut) => is_retained(&horizon, cut),
                    Moment::User { before, .. } => {
                        is_retained_by_user_time(&horizon, before, known, end)
                    }
                };
                if !is_whole {
                    lost.push(TruncatedPartition {
                        topic: Arc::clone(&topic.name),
                        partition: partition.index,
                        earliest: earliest_bound(&horizon),
                    });
                }
                let next = self.next_offset(partition, end, known, isolation)?;
                insert_offset(&mut offsets, topic, partition.index, next.0 as i64, String::new());
            }
            let count = topic.partitions.len() as i64;
            insert_offset(&mut offsets, topic, LATER_PARTITIONS, count, at.to_string());
        }
        if lost.is_empty() { Ok(offsets) } else { Err(SeekError::BeforeHistory { lost }) }
    }

    /// The next offset of a reader that has read what a partition shows below `end` as of `cut`. A
    /// reader of committed records has seen nothing of the transactions that were not decided then,
    /// and goes on at the first record of the oldest of them.
    fn next_offset(
        &self,
        partition: &Partition,
        end: Offset,
        cut: Cut,
        isolation: Isolation,
    ) -> Result<Offset, SeekError> {
        if isolation == Isolation::Uncommitted {
            return Ok(end);
        }
        let undecided = self.core.undecided_in(partition, Offset(0)..end, cut)?;
        let first = undecided.first().map_or(end, |first| first.first.min(end));
        Ok(first.max(partition.start()))
    }

    /// Commits again exactly the offsets that a group had committed at a moment of system time.
    /// Offsets that it had not committed then are removed.
    ///
    /// # Errors
    /// [`GroupSetError`].
    pub async fn restore(
        &self,
        group: &str,
        cut: Cut,
        when: WaitPolicy,
        mode: GroupSetMode,
    ) -> Result<GroupSetResult, GroupSetError> {
        let (cut, _) = self.core.wait_until_closed(cut, when).await?;
        let changing = self.core.lock_changes().await;
        let at = Moment::Sys(cut);
        let mut past = self.stored_offsets_of(group, cut)?;
        self.check_retained(cut)?;
        if past.is_empty() {
            return Err(GroupSetError::NothingAtMoment { group: group.to_owned(), moment: at });
        }
        let (skipped, deleted) = self.skip_deleted_topics(&mut past, cut);
        let now = self.stored_offsets_of(group, Cut::ALL)?;
        let is_removed =
            |place: &&(String, u32)| !past.contains_key(*place) && !deleted.contains(&place.0);
        let removed: Vec<(String, u32)> = now.keys().filter(is_removed).cloned().collect();
        let offsets = offset_changes(&now, &past, &removed);
        let frontier = self.core.frontier();
        let committed = match mode {
            GroupSetMode::Commit => {
                let (group, offsets) = (group.to_owned(), past.into_values().collect());
                let event = GroupEvent::OffsetsSet { group, offsets, removed };
                Some(self.submit(event, Some(changing)).await?)
            }
            GroupSetMode::DryRun => None,
        };
        Ok(GroupSetResult { at, frontier, offsets, skipped, committed })
    }

    /// Takes out the offsets of topics that existed in `cut` and do not exist any more: an offset
    /// means nothing in another topic of the same name. Returns these offsets, and the names of
    /// these topics: offsets committed since for a new topic of that name must stay.
    fn skip_deleted_topics(
        &self,
        past: &mut CommitsByPartition,
        cut: Cut,
    ) -> (Vec<SkippedPartition>, BTreeSet<String>) {
        let (mut skipped, mut deleted) = (Vec::new(), BTreeSet::new());
        let namespace = self.core.namespace();
        past.retain(|(topic, partition), commit| {
            let id = |topic: &Arc<Topic>| topic.id;
            let id_then = namespace.topic_at(topic, cut).as_ref().map(id);
            // A moment topic has a name and offsets too, but it is not in the namespace. A removed
            // topic was not in the cut: as long as offsets of a cut that held it can be read, it is
            // not removed.
            let stays = id_then.is_none() || namespace.topic(topic).map(id) == id_then;
            if !stays {
                deleted.insert(topic.clone());
            }
            if !stays && *partition != LATER_PARTITIONS {
                let (topic, offset) = (topic.clone(), commit.offset);
                skipped.push(SkippedPartition { topic, partition: *partition, offset });
            }
            stays
        });
        (skipped, deleted)
    }

    pub(crate) fn stored_offsets_of(
        &self,
        group: &str,
        cut: Cut,
    ) -> Result<CommitsByPartition, EngineError> {
        let offsets = block_in_place(|| self.catalog()?.stored_offsets(Some(group), cut))?;
        let commit = |offset: crate::group_catalog::GroupOffset| {
            let (topic, partition) = (offset.topic, offset.partition);
            let place = (topic.clone(), partition);
            (place, offset.committed.into_commit(topic, partition))
        };
        Ok(offsets.into_iter().map(commit).collect())
    }
}

pub(crate) fn insert_offset(
    offsets: &mut CommitsByPartition,
    topic: &Topic,
    partition: u32,
    offset: i64,
    metadata: String,
) {
    let topic = topic.name.to_string();
    let committed = CommittedOffset { offset, leader_epoch: -1, metadata, retention_ms: None };
    offsets.insert((topic.clone(), partition), committed.into_commit(topic, partition));
}

fn offset_changes(
    now: &CommitsByPartition,
    after: &CommitsByPartition,
    removed: &[(String, u32)],
) -> Vec<OffsetChange> {
    let places: BTreeSet<&(String, u32)> = after.keys().chain(removed).collect();
    let offset =
        |offsets: &CommitsByPartition, place| offsets.get(place).map(|commit| commit.offset);
    places
        .into_iter()
        .filter(|(_, partition)| *partition != LATER_PARTITIONS)
        .map(|place| OffsetChange {
            topic: place.0.clone(),
            partition: place.1,
            before: offset(now, place),
            after: offset(after, place),
        })
        .collect()
}
