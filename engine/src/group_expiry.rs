//! Finding and removing committed offsets that are old.
//!
//! When an offset expires is the coordinator's to say, who knows the members. Here is what is known of its
//! age. An offset is removed by an event that says how old it has to be: one that was committed since is not
//! removed, whatever was on its way when somebody looked.

use hlc::{Cut, Hlc};

use crate::blocking::block_in_place;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::group_commits::PendingCommit;
use crate::groups::{ExpiredOffsets, OffsetExpiry};
use crate::namespace::event::MetadataEvent;

impl Engine {
    /// The first group behind `last`, or of all, by name, that has or had committed offsets.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn next_group(&self, last: Option<&str>) -> Result<Option<String>, EngineError> {
        block_in_place(|| Ok(self.shared.groups()?.next_group(last)?))
    }

    /// When the members of a group changed for the last time; `None` if it never had any.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn group_saved_at(&self, group: &str) -> Result<Option<Hlc>, EngineError> {
        let saved = block_in_place(|| self.shared.groups()?.snapshot(group, Cut::ALL))?;
        Ok(saved.map(|(stamp, _)| stamp))
    }

    /// Old offsets of topics of a group behind `last`, or of all, by name: a thousand or somewhat more at a
    /// time. `None` behind the last topic.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn expired_offsets(
        &self,
        group: &str,
        last: Option<&str>,
        expiry: OffsetExpiry,
    ) -> Result<Option<ExpiredOffsets>, EngineError> {
        block_in_place(|| Ok(self.shared.groups()?.expired_offsets(group, last, expiry)?))
    }

    /// Begins to remove offsets of a group, as far as they are old.
    ///
    /// # Errors
    /// Nothing is taken any more.
    pub fn begin_expire_offsets(
        &self,
        group: &str,
        partitions: Vec<(String, u32)>,
        expiry: OffsetExpiry,
    ) -> Result<PendingCommit, EngineError> {
        let (group, until, now_ms) = (group.to_owned(), expiry.until.bits(), expiry.now.0);
        let event = MetadataEvent::OffsetsExpired { group, partitions, until, now_ms };
        Ok(PendingCommit::new(self.begin_submit_event(event, None)?))
    }
}
