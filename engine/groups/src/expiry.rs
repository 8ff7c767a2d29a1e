//! Finding and removing expired committed offsets.
//!
//! The group coordinator decides when an offset expires, because it knows the members. This module
//! knows the age of offsets. The event that removes an offset says how old the offset has to be: an
//! offset that was committed in the meantime is not removed, whatever was in flight when the
//! offsets were read.

use engine_core::blocking::block_in_place;
use engine_core::{EngineError, PendingStamp};
use hlc::{Cut, Hlc};

use crate::event::GroupEvent;
use crate::group_catalog::{ExpiredOffsets, OffsetExpiry};
use crate::groups::Groups;

impl Groups {
    /// The first group after `last` by name that has or had committed offsets. Starts with the
    /// first group if `last` is `None`.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn next_group(&self, last: Option<&str>) -> Result<Option<String>, EngineError> {
        block_in_place(|| Ok(self.catalog()?.next_group(last)?))
    }

    /// The stamp of the last change of a group's members; `None` if it never had any.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn saved_at(&self, group: &str) -> Result<Option<Hlc>, EngineError> {
        let saved = block_in_place(|| self.catalog()?.snapshot(group, Cut::ALL))?;
        Ok(saved.map(|(stamp, _)| stamp))
    }

    /// Expired offsets of the topics of a group after `last`, by name, about a thousand at a time.
    /// Starts with the first topic if `last` is `None`. Returns `None` after the last topic.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn expired_offsets(
        &self,
        group: &str,
        last: Option<&str>,
        expiry: OffsetExpiry,
    ) -> Result<Option<ExpiredOffsets>, EngineError> {
        block_in_place(|| Ok(self.catalog()?.expired_offsets(group, last, expiry)?))
    }

    /// Begins to remove offsets of a group, as far as they are expired.
    ///
    /// # Errors
    /// The engine accepts no more events.
    pub fn begin_expire_offsets(
        &self,
        group: &str,
        partitions: Vec<(String, u32)>,
        expiry: OffsetExpiry,
    ) -> Result<PendingStamp, EngineError> {
        let (group, until, now_ms) = (group.to_owned(), expiry.until.bits(), expiry.now.0);
        let event = GroupEvent::OffsetsExpired { group, partitions, until, now_ms };
        self.begin_submit(event)
    }
}
