//! After a crash the files are in the state after one of their changes: the last one if the machine
//! kept its power, else one at or after the last that was synced. Nothing before that change is
//! missing.

use super::{Invariant, InvariantResult};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};
use crate::model_tree::first_difference;

pub(super) struct NoSyncedFileLoss;

impl Invariant for NoSyncedFileLoss {
    fn name(&self) -> &'static str {
        "synced_files_are_never_lost"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::FilesAtStart { lost_power, snapshot: sight } = fact else { return Ok(()) };
        let mut odd = None;
        for (_, version) in ledger.files.at_start(*lost_power) {
            match first_difference(&version.tree.snapshot(), sight) {
                None => return Ok(()),
                // The latest version is the expected one, if any is.
                Some(why) => drop(odd.get_or_insert(why)),
            }
        }
        Err(format!("files are as they never were: {}", odd.unwrap_or_default()))
    }
}
