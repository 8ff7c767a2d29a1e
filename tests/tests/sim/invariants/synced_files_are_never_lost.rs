//! After a death files are as one of the changes to them had left them: the last one if the machine kept its
//! power, else one at or after the last that was synced. Nothing in between is missing.

use super::{Invariant, Verdict};
use crate::facts::Fact;
use crate::ledger::{Ledger, Step};
use crate::tree::difference;

pub(super) struct SyncedFilesAreNeverLost;

impl Invariant for SyncedFilesAreNeverLost {
    fn name(&self) -> &'static str {
        "synced_files_are_never_lost"
    }

    fn on_fact(&mut self, fact: &Fact, _step: Step, ledger: &Ledger) -> Verdict {
        let Fact::FilesFound { lost_power, sight } = fact else { return Ok(()) };
        let mut odd = None;
        for (_, version) in ledger.files.at_start(*lost_power) {
            match difference(&version.tree.sight(), sight) {
                None => return Ok(()),
                // The latest is what they should be, if anything.
                Some(why) => drop(odd.get_or_insert(why)),
            }
        }
        Err(format!("files are as they never were: {}", odd.unwrap_or_default()))
    }
}
