//! Reading what groups have committed and who is in them, now and at a moment.

use hlc::{Cut, Hlc};

use crate::blocking::on_disk;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::groups::{Committed, GroupOffset};
use crate::namespace::event::LATER_PARTITIONS;
use crate::seek::{SeekError, When};

/// A group as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupThen {
    /// The group.
    pub group: String,
    /// Its coordinator's last snapshot, and when it was saved; one without members may have none.
    pub snapshot: Option<(Hlc, Vec<u8>)>,
    /// What it had committed.
    pub offsets: Vec<GroupOffset>,
    /// The topics that it was set to a moment in, with the moment as it is spelled. Partitions that
    /// such a topic got afterwards begin at their beginning, and not at their end.
    pub sought: Vec<(String, String)>,
}

impl Engine {
    /// What a group committed for a partition. For one that its topic got after the group was set to a
    /// moment, where it begins.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn committed(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> Result<Option<Committed>, EngineError> {
        let groups = self.shared.groups()?;
        let held = |partition| on_disk(|| groups.committed(group, topic, partition, Cut::ALL));
        if let Some(committed) = held(partition)? {
            return Ok(Some(committed));
        }
        let later = held(LATER_PARTITIONS)?;
        let is_later = |later: &Committed| i64::from(partition) >= later.offset;
        Ok(later.filter(is_later).and_then(|_| self.beginning(topic, partition)))
    }

    fn beginning(&self, topic: &str, partition: u32) -> Option<Committed> {
        let topic = self.topic(topic)?;
        let start = topic.partitions.get(partition as usize)?.start();
        let (offset, metadata) = (start.0 as i64, String::new());
        Some(Committed { offset, leader_epoch: -1, metadata, retention_ms: None })
    }

    /// Whether a group has committed anything.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn has_offsets(&self, group: &str) -> Result<bool, EngineError> {
        on_disk(|| Ok(self.shared.groups()?.has_offsets(group)?))
    }

    /// All offsets of a group, or of all groups. [`Engine::offsets_at`] has those of the past.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn committed_offsets(&self, group: Option<&str>) -> Result<Vec<GroupOffset>, EngineError> {
        let held = on_disk(|| self.shared.groups()?.held(group, Cut::ALL))?;
        let mut offsets = Vec::with_capacity(held.len());
        // What stands for later partitions comes behind all that are not.
        for of_topic in held.chunk_by(|a, b| (&a.group, &a.topic) == (&b.group, &b.topic)) {
            match of_topic {
                [known @ .., later] if later.partition == LATER_PARTITIONS => {
                    offsets.extend_from_slice(known);
                    offsets.extend(self.later_offsets(known, later));
                }
                known => offsets.extend_from_slice(known),
            }
        }
        Ok(offsets)
    }

    /// Of the partitions that a topic got after its group was set to a moment, those that nothing was
    /// committed for.
    fn later_offsets(&self, known: &[GroupOffset], later: &GroupOffset) -> Vec<GroupOffset> {
        let Some(topic) = self.topic(&later.topic) else { return Vec::new() };
        let first = u32::try_from(later.committed.offset).unwrap_or(u32::MAX);
        let is_known = |partition| known.iter().any(|offset| offset.partition == partition);
        (first..topic.partitions.len() as u32)
            .filter(|partition| !is_known(*partition))
            .filter_map(|partition| {
                let committed = self.beginning(&later.topic, partition)?;
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
        when: When,
    ) -> Result<(Cut, Hlc, Vec<GroupOffset>), SeekError> {
        let (at, frontier) = self.settle(cut, when).await?;
        let offsets = on_disk(|| self.shared.groups()?.offsets(group, at));
        let offsets = offsets.map_err(EngineError::from)?;
        // Asked last: what is given up meanwhile is missing from the answer.
        self.check_groups_kept(at)?;
        Ok((at, frontier, offsets))
    }

    /// Groups as of `cut`, by name: who was in them, and what they had committed.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn groups_at(
        &self,
        group: Option<&str>,
        cut: Cut,
        when: When,
    ) -> Result<(Cut, Hlc, Vec<GroupThen>), SeekError> {
        let (at, frontier) = self.settle(cut, when).await?;
        let groups = on_disk(|| self.groups_in(group, at))?;
        self.check_groups_kept(at)?;
        Ok((at, frontier, groups))
    }

    fn groups_in(&self, group: Option<&str>, at: Cut) -> Result<Vec<GroupThen>, EngineError> {
        let kept = self.shared.groups()?;
        let mut groups = std::collections::BTreeMap::<String, GroupThen>::new();
        let named = |group: &str| GroupThen {
            group: group.to_owned(),
            snapshot: None,
            offsets: Vec::new(),
            sought: Vec::new(),
        };
        for held in kept.held(group, at)? {
            let then = groups.entry(held.group.clone()).or_insert_with(|| named(&held.group));
            if held.partition == LATER_PARTITIONS {
                then.sought.push((held.topic, held.committed.metadata));
            } else {
                then.offsets.push(held);
            }
        }
        let snapshots = match group {
            Some(group) => {
                let found = kept.snapshot(group, at)?;
                found.map(|(stamp, value)| (group.to_owned(), stamp, value)).into_iter().collect()
            }
            None => kept.snapshots_with_stamps(at)?,
        };
        for (group, stamp, value) in snapshots {
            let then = groups.entry(group.clone()).or_insert_with(|| named(&group));
            then.snapshot = Some((stamp, value));
        }
        Ok(groups.into_values().collect())
    }
}
