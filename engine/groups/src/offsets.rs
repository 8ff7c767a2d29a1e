//! Reading committed offsets and group members, now and as of a moment.

use engine_core::blocking::block_in_place;
use engine_core::{EngineError, SeekError, WaitPolicy};
use hlc::{Cut, Hlc};

use crate::configs::ResourceType;
use crate::event::LATER_PARTITIONS;
use crate::group_catalog::{CommittedOffset, GroupOffset, ResourceConfig, StoredGroup};
use crate::groups::Groups;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupAtCut {
    pub group: String,
    /// Its coordinator's last snapshot, and when it was saved. A group without members may have
    /// none.
    pub snapshot: Option<(Hlc, StoredGroup)>,
    pub offsets: Vec<GroupOffset>,
    /// The topics in which it was set to a moment, with the text of the moment. Partitions that
    /// such a topic got later are read from their beginning, not from their end.
    pub seek_moments: Vec<(String, String)>,
    /// The settings that it has of its own.
    pub config: ResourceConfig,
}

impl Groups {
    /// The offset that a group committed for a partition. For a partition that was added after the
    /// group was set to a moment, the partition's start.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn committed_offset(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> Result<Option<CommittedOffset>, EngineError> {
        let groups = self.catalog()?;
        let committed_in = |partition| {
            block_in_place(|| groups.committed_offset(group, topic, partition, Cut::ALL))
        };
        if let Some(committed) = committed_in(partition)? {
            return Ok(Some(committed));
        }
        let later = committed_in(LATER_PARTITIONS)?;
        let is_later = |later: &CommittedOffset| i64::from(partition) >= later.offset;
        Ok(later.filter(is_later).and_then(|_| self.implied_offset(topic, partition)))
    }

    fn implied_offset(&self, topic: &str, partition: u32) -> Option<CommittedOffset> {
        let topic = self.core.topics().named(topic)?;
        let start = topic.partitions.get(partition as usize)?.start();
        let (offset, metadata) = (start.0 as i64, String::new());
        Some(CommittedOffset { offset, leader_epoch: -1, metadata, retention_ms: None })
    }

    /// Returns true if a group has committed anything, or an open transaction may do so.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn has_offsets(&self, group: &str) -> Result<bool, EngineError> {
        let groups = self.catalog()?;
        block_in_place(|| Ok(groups.has_offsets(group)? || groups.has_pending_offsets(group)?))
    }

    /// Returns true if an open transaction may commit an offset of a group for a partition.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn has_pending_offset(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> Result<bool, EngineError> {
        block_in_place(|| Ok(self.catalog()?.has_pending_offset(group, topic, partition)?))
    }

    /// All offsets of a group, or of all groups. [`Groups::offsets_at`] reads past ones.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn committed_offsets(&self, group: Option<&str>) -> Result<Vec<GroupOffset>, EngineError> {
        let stored = block_in_place(|| self.catalog()?.stored_offsets(group, Cut::ALL))?;
        let mut offsets = Vec::with_capacity(stored.len());
        // The entry for later partitions sorts after all others of its topic.
        for of_topic in stored.chunk_by(|a, b| (&a.group, &a.topic) == (&b.group, &b.topic)) {
            match of_topic {
                [known @ .., later] if later.partition == LATER_PARTITIONS => {
                    offsets.extend_from_slice(known);
                    offsets.extend(self.later_partition_offsets(known, later));
                }
                known => offsets.extend_from_slice(known),
            }
        }
        Ok(offsets)
    }

    /// Up to `count` committed offsets behind the key `after`, and the key to go on after, if there
    /// may be more. Each costs two seeks, however many offsets were committed before it. Implied
    /// offsets are left out.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn committed_offsets_after(
        &self,
        after: Option<&[u8]>,
        count: usize,
    ) -> Result<(Vec<GroupOffset>, Option<Vec<u8>>), EngineError> {
        let groups = self.catalog()?;
        let (mut offsets, next) =
            block_in_place(|| groups.stored_offsets_after(after, count, Cut::ALL))?;
        offsets.retain(|offset| offset.partition != LATER_PARTITIONS);
        Ok((offsets, next))
    }

    /// The implied offsets of partitions that were added after the group was set to a moment, where
    /// nothing was committed.
    fn later_partition_offsets(
        &self,
        known: &[GroupOffset],
        later: &GroupOffset,
    ) -> Vec<GroupOffset> {
        let Some(topic) = self.core.topics().named(&later.topic) else { return Vec::new() };
        let first = u32::try_from(later.committed.offset).unwrap_or(u32::MAX);
        let is_known = |partition| known.iter().any(|offset| offset.partition == partition);
        (first..topic.partitions.len() as u32)
            .filter(|partition| !is_known(*partition))
            .filter_map(|partition| {
                let committed = self.implied_offset(&later.topic, partition)?;
                Some(GroupOffset { partition, committed, ..later.clone() })
            })
            .collect()
    }

    /// Committed offsets as of `cut`.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn offsets_at(
        &self,
        group: Option<&str>,
        cut: Cut,
        when: WaitPolicy,
    ) -> Result<(Cut, Hlc, Vec<GroupOffset>), SeekError> {
        let (at, frontier) = self.core.wait_until_closed(cut, when).await?;
        let offsets = block_in_place(|| self.catalog()?.offsets(group, at));
        let offsets = offsets.map_err(EngineError::from)?;
        // Checked last: history that was removed meanwhile is missing from the answer.
        self.check_retained(at)?;
        Ok((at, frontier, offsets))
    }

    /// Groups as of `cut`, by name: their members, and what they had committed.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn at(
        &self,
        group: Option<&str>,
        cut: Cut,
        when: WaitPolicy,
    ) -> Result<(Cut, Hlc, Vec<GroupAtCut>), SeekError> {
        let (at, frontier) = self.core.wait_until_closed(cut, when).await?;
        let groups = block_in_place(|| self.groups_in(group, at))?;
        self.check_retained(at)?;
        Ok((at, frontier, groups))
    }

    fn groups_in(&self, group: Option<&str>, at: Cut) -> Result<Vec<GroupAtCut>, EngineError> {
        let catalog = self.catalog()?;
        let mut groups = std::collections::BTreeMap::<String, GroupAtCut>::new();
        let empty = |group: &str| GroupAtCut {
            group: group.to_owned(),
            snapshot: None,
            offsets: Vec::new(),
            seek_moments: Vec::new(),
            config: ResourceConfig::new(),
        };
        for offset in catalog.stored_offsets(group, at)? {
            let at_cut = groups.entry(offset.group.clone()).or_insert_with(|| empty(&offset.group));
            if offset.partition == LATER_PARTITIONS {
                at_cut.seek_moments.push((offset.topic, offset.committed.metadata));
            } else {
                at_cut.offsets.push(offset);
            }
        }
        let snapshots = match group {
            Some(group) => {
                let snapshot = catalog.snapshot(group, at)?;
                snapshot
                    .map(|(stamp, value)| (group.to_owned(), stamp, value))
                    .into_iter()
                    .collect()
            }
            None => catalog.snapshots_with_stamps(at)?,
        };
        let mut members = match group {
            Some(group) => [(group.to_owned(), catalog.members(group, at)?)].into(),
            None => catalog.all_members(at)?,
        };
        for (group, stamp, value) in snapshots {
            let at_cut = groups.entry(group.clone()).or_insert_with(|| empty(&group));
            let members = members.remove(&group).unwrap_or_default();
            at_cut.snapshot = Some((stamp, StoredGroup { snapshot: value, members }));
        }
        let configs = match group {
            Some(group) => {
                let config = catalog.config(ResourceType::Group as u8, group, at)?;
                [(group.to_owned(), config)].into()
            }
            None => catalog.configs(ResourceType::Group as u8, at)?,
        };
        for (group, config) in configs {
            // There may be settings for a group that is not there yet.
            if let Some(at_cut) = groups.get_mut(&group) {
                at_cut.config = config;
            }
        }
        Ok(groups.into_values().collect())
    }
}
