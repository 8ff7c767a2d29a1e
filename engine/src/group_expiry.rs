//! Finding and removing committed offsets that are old.
//!
//! When an offset expires is the coordinator's to say, who knows the members. Here is what is known of its
//! age. An offset is removed by an event that says how old it has to be: one that was committed since is not
//! removed, whatever was on its way when somebody looked.

use hlc::{Cut, Hlc};

use crate::blocking::on_disk;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::group_commits::Committing;
use crate::groups::{Expiry, OldOffsets};
use crate::namespace::event::Event;

impl Engine {
    /// The first group behind `last`, or of all, by name, that has or had committed offsets.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn group_behind(&self, last: Option<&str>) -> Result<Option<String>, EngineError> {
        on_disk(|| Ok(self.shared.groups()?.group_behind(last)?))
    }

    /// When the members of a group changed for the last time; `None` if it never had any.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn group_saved(&self, group: &str) -> Result<Option<Hlc>, EngineError> {
        let saved = on_disk(|| self.shared.groups()?.snapshot(group, Cut::ALL))?;
        Ok(saved.map(|(stamp, _)| stamp))
    }

    /// Old offsets of topics of a group behind `last`, or of all, by name: a thousand or somewhat more at a
    /// time. `None` behind the last topic.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn old_offsets(
        &self,
        group: &str,
        last: Option<&str>,
        expiry: Expiry,
    ) -> Result<Option<OldOffsets>, EngineError> {
        on_disk(|| Ok(self.shared.groups()?.old_offsets(group, last, expiry)?))
    }

    /// Begins to remove offsets of a group, as far as they are old.
    ///
    /// # Errors
    /// Nothing is taken any more.
    pub fn begin_expire_offsets(
        &self,
        group: &str,
        partitions: Vec<(String, u32)>,
        expiry: Expiry,
    ) -> Result<Committing, EngineError> {
        let (group, until, now_ms) = (group.to_owned(), expiry.until.bits(), expiry.now.0);
        let event = Event::OffsetsExpired { group, partitions, until, now_ms };
        Ok(Committing::begun(self.begin_change(event, None)?))
    }
}
