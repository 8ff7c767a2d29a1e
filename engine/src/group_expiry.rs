//! Finding and removing committed offsets that are old.
//!
//! When an offset expires is the coordinator's to say, who knows the members. Here is what is known of its
//! age. An offset is removed by an event that says how old it was: one that was committed since is not
//! removed, whatever was on its way when somebody looked.

use hlc::{Cut, Hlc};

use crate::blocking::on_disk;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::groups::GroupOffset;
use crate::namespace::event::{Event, LATER_PARTITIONS};

/// What of a group was committed long ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldOffsets {
    /// The group.
    pub group: String,
    /// When its members changed for the last time; `None` if it never had any.
    pub saved: Option<Hlc>,
    /// Topics and partitions. There may be none.
    pub partitions: Vec<(String, u32)>,
}

impl Engine {
    /// What was committed at `until` or before by the first group behind `last`, or of all, by name. `None`
    /// behind the last group.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn next_old_offsets(
        &self,
        last: Option<&str>,
        until: Hlc,
    ) -> Result<Option<OldOffsets>, EngineError> {
        on_disk(|| {
            let groups = self.shared.groups()?;
            let Some(group) = groups.group_behind(last)? else { return Ok(None) };
            let saved = groups.snapshot(&group, Cut::ALL)?.map(|(saved, _)| saved);
            let held = groups.held(Some(&group), Cut::ALL)?;
            let by_topic = held.chunk_by(|a, b| a.topic == b.topic);
            let old = by_topic.flat_map(|of_topic| old_of_topic(of_topic, until));
            let partitions = old.map(|offset| (offset.topic.clone(), offset.partition)).collect();
            Ok(Some(OldOffsets { group, saved, partitions }))
        })
    }

    /// Removes offsets of a group, as far as they were committed at `until` or before; returns the moment.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn expire_offsets(
        &self,
        group: &str,
        partitions: Vec<(String, u32)>,
        until: Hlc,
    ) -> Result<Hlc, EngineError> {
        let group = group.to_owned();
        self.change(Event::OffsetsExpired { group, partitions, until: until.bits() }, None).await
    }
}

/// The old ones of one topic. Where its group was set to a moment, they say together where it reads on, and
/// are old together.
fn old_of_topic(of_topic: &[GroupOffset], until: Hlc) -> impl Iterator<Item = &GroupOffset> {
    let is_old = move |offset: &GroupOffset| offset.stamp <= until;
    let is_one = of_topic.iter().any(|offset| offset.partition == LATER_PARTITIONS);
    let stays = is_one && !of_topic.iter().all(is_old);
    of_topic.iter().filter(move |offset| !stays && is_old(offset))
}
