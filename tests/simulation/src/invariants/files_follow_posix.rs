//! File operations that POSIX allows succeed, and those that it forbids are refused.

use super::{Invariant, InvariantResult};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

pub(super) struct FilesFollowPosix;

impl Invariant for FilesFollowPosix {
    fn name(&self) -> &'static str {
        "files_follow_posix"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        _ledger: &SimLedger,
    ) -> InvariantResult {
        match fact {
            SimFact::FileChange { change, is_allowed: true, refused: Some(why) } => {
                Err(format!("{change} was refused: {why}"))
            }
            SimFact::FileChange { change, is_allowed: false, refused: None } => {
                Err(format!("{change} was done"))
            }
            _ => Ok(()),
        }
    }
}
