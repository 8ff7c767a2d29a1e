//! A transaction that ends changes no offset that was committed after the transaction's own, and
//! brings no group back that was deleted after it.

use super::{Invariant, InvariantResult};
use crate::facts::{OffsetRace, SimFact};
use crate::ledger::{LedgerStep, SimLedger};

pub(super) struct LaterChangesWin;

impl Invariant for LaterChangesWin {
    fn name(&self) -> &'static str {
        "later_changes_win"
    }

    fn on_fact(&mut self, fact: &SimFact, _: LedgerStep, _: &SimLedger) -> InvariantResult {
        let SimFact::OffsetRaced { race, found: Some(offset) } = fact else { return Ok(()) };
        match race {
            OffsetRace::CommittedLater { later } if offset != later => Err(format!(
                "{later} was committed after the transaction's offset, and {offset} is found"
            )),
            OffsetRace::GroupDeleted => {
                Err(format!("a deleted group has the offset {offset} of a transaction"))
            }
            _ => Ok(()),
        }
    }
}
