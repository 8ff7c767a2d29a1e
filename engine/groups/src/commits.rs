//! Commits and removals of group offsets, and the snapshots that group coordinators save.

use std::collections::{BTreeMap, BTreeSet};

use engine_core::blocking::block_in_place;
use engine_core::{ChangesGuard, EngineError, PendingStamp};
use hlc::{Cut, Hlc};

use crate::event::{GroupEvent, LATER_PARTITIONS, OffsetCommit};
use crate::group_catalog::StoredGroup;
use crate::group_projection::GroupProjection;
use crate::groups::Groups;
use crate::moments::{CommitsByPartition, insert_offset};

impl Groups {
    /// Appends an event, and waits until it is applied.
    pub(crate) async fn submit(
        &self,
        event: GroupEvent,
        changing: Option<ChangesGuard>,
    ) -> Result<Hlc, EngineError> {
        self.core.submit_projected(&GroupProjection, event.encode(), changing).await
    }

    /// Appends an event: when this returns, its place among other changes is fixed.
    pub(crate) fn begin_submit(&self, event: GroupEvent) -> Result<PendingStamp, EngineError> {
        self.core.begin_submit_projected(&GroupProjection, event.encode(), None)
    }

    /// Commits offsets of a group, all of them or none; returns the stamp.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn commit(
        &self,
        group: &str,
        offsets: Vec<OffsetCommit>,
    ) -> Result<Hlc, EngineError> {
        self.begin_commit(group, offsets)?.wait().await
    }

    /// Begins [`Groups::commit`]: when this returns, the commit's place among other changes
    /// is fixed.
    ///
    /// # Errors
    /// The engine accepts no more events.
    pub fn begin_commit(
        &self,
        group: &str,
        offsets: Vec<OffsetCommit>,
    ) -> Result<PendingStamp, EngineError> {
        let event = GroupEvent::OffsetsCommitted { group: group.to_owned(), offsets };
        self.begin_submit(event)
    }

    /// Removes committed offsets of a group. Nothing is committed for these partitions afterwards,
    /// not even an implied offset of a partition that was added after the group was set to a
    /// moment.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn delete_offsets(
        &self,
        group: &str,
        partitions: Vec<(String, u32)>,
    ) -> Result<Hlc, EngineError> {
        let changing = self.core.lock_changes().await;
        self.begin_delete_offsets(group, partitions, changing)?.wait().await
    }

    /// Begins [`Groups::delete_offsets`]: when this returns, the removal's place among other
    /// changes is fixed. `changing` keeps topics from getting partitions until it is applied.
    ///
    /// # Errors
    /// The catalog cannot be read, or the engine accepts no more events.
    pub fn begin_delete_offsets(
        &self,
        group: &str,
        partitions: Vec<(String, u32)>,
        changing: ChangesGuard,
    ) -> Result<PendingStamp, EngineError> {
        let OffsetRestatement { offsets, removed: ended } =
            self.offsets_without(group, &partitions)?;
        let group = group.to_owned();
        let event = if offsets.is_empty() && ended.is_empty() {
            GroupEvent::OffsetsDeleted { group, partitions }
        } else {
            let removed = [partitions, ended].concat();
            GroupEvent::OffsetsSet { group, offsets: offsets.into_values().collect(), removed }
        };
        self.core.begin_submit_projected(&GroupProjection, event.encode(), Some(changing))
    }

    /// The offsets to restate for the topics in which the group was set to a moment, so that
    /// nothing is committed for `partitions`.
    fn offsets_without(
        &self,
        group: &str,
        partitions: &[(String, u32)],
    ) -> Result<OffsetRestatement, EngineError> {
        let mut by_topic = BTreeMap::<&str, BTreeSet<u32>>::new();
        for (topic, partition) in partitions {
            by_topic.entry(topic).or_default().insert(*partition);
        }
        let mut restated = OffsetRestatement::default();
        if !self.has_later_partitions(group, by_topic.keys())? {
            return Ok(restated);
        }
        let commits = self.stored_offsets_of(group, Cut::ALL)?;
        for (topic, removed) in by_topic {
            if let Some(later) = commits.get(&(topic.to_owned(), LATER_PARTITIONS)) {
                self.restate_later_partitions(&commits, later, &removed, &mut restated);
            }
        }
        Ok(restated)
    }

    /// Returns true if the group was set to a moment in any of these topics.
    fn has_later_partitions<'t>(
        &self,
        group: &str,
        mut topics: impl Iterator<Item = &'t &'t str>,
    ) -> Result<bool, EngineError> {
        let groups = self.catalog()?;
        let read = |topic| groups.committed_offset(group, topic, LATER_PARTITIONS, Cut::ALL);
        block_in_place(|| {
            topics.try_fold(false, |has_later, topic| Ok(has_later || read(topic)?.is_some()))
        })
    }

    fn restate_later_partitions(
        &self,
        commits: &CommitsByPartition,
        later: &OffsetCommit,
        removed: &BTreeSet<u32>,
        restated: &mut OffsetRestatement,
    ) {
        let name = &later.topic;
        let is_held = |partition| commits.contains_key(&(name.clone(), partition));
        let stays = |partition: &u32| !removed.contains(partition);
        let first = u32::try_from(later.offset).unwrap_or(u32::MAX);
        let topic = self.core.topics().named(name);
        let count = topic.as_ref().map_or(0, |topic| topic.partitions.len() as u32);
        let implied: Vec<u32> =
            (first..count).filter(|index| !is_held(*index)).filter(stays).collect();
        let mut known = commits.keys().filter(|(topic, _)| topic == name).map(|(_, index)| index);
        let any_left = known.any(|index| *index != LATER_PARTITIONS && stays(index));
        let topic = if any_left || !implied.is_empty() { topic } else { None };
        let Some(topic) = topic else {
            // The group no longer reads the topic, so later partitions do not concern it.
            restated.removed.push((name.clone(), LATER_PARTITIONS));
            return;
        };
        if removed.iter().all(|index| *index < first) {
            return;
        }
        for index in implied {
            let start = topic.partitions[index as usize].start();
            insert_offset(&mut restated.offsets, &topic, index, start.0 as i64, String::new());
        }
        let metadata = later.metadata.clone();
        insert_offset(&mut restated.offsets, &topic, LATER_PARTITIONS, i64::from(count), metadata);
    }

    /// Saves a group's snapshot.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn save(&self, group: &str, snapshot: Vec<u8>) -> Result<Hlc, EngineError> {
        self.submit(GroupEvent::GroupSaved { group: group.to_owned(), snapshot }, None).await
    }

    /// Saves a group whose members are stored one by one: its snapshot without them, and those that
    /// changed. `None` removes a member, and `is_whole` all that are not named.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn save_changes(
        &self,
        group: &str,
        snapshot: Vec<u8>,
        members: Vec<(String, Option<Vec<u8>>)>,
        is_whole: bool,
    ) -> Result<Hlc, EngineError> {
        let group = group.to_owned();
        let event = GroupEvent::GroupChanged { group, snapshot, members, is_whole };
        self.submit(event, None).await
    }

    /// Deletes a group and its offsets.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn delete(&self, group: &str) -> Result<Hlc, EngineError> {
        self.submit(GroupEvent::GroupDeleted { group: group.to_owned() }, None).await
    }

    /// The stored state of all groups, by group.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn stored(&self) -> Result<Vec<(String, StoredGroup)>, EngineError> {
        block_in_place(|| {
            let catalog = self.catalog()?;
            let mut members = catalog.all_members(Cut::ALL)?;
            let with_members = |(group, snapshot): (String, Vec<u8>)| {
                let members = members.remove(&group).unwrap_or_default();
                (group, StoredGroup { snapshot, members })
            };
            Ok(catalog.snapshots(Cut::ALL)?.into_iter().map(with_members).collect())
        })
    }

    /// The number of groups with a snapshot.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn snapshot_count(&self) -> Result<usize, EngineError> {
        block_in_place(|| Ok(self.catalog()?.snapshots(Cut::ALL)?.len()))
    }
}

/// The offsets that are committed and removed in addition to a removal of offsets.
#[derive(Default)]
struct OffsetRestatement {
    offsets: CommitsByPartition,
    removed: Vec<(String, u32)>,
}
