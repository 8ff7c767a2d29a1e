//! Nobody deletes an offset that a member of the group has committed for a topic that it reads.

use super::{Invariant, InvariantResult};
use crate::facts::{OffsetRace, SimFact};
use crate::ledger::{LedgerStep, SimLedger};

pub(super) struct MembersKeepWhatTheyCommit;

impl Invariant for MembersKeepWhatTheyCommit {
    fn name(&self) -> &'static str {
        "members_keep_what_they_commit"
    }

    fn on_fact(&mut self, fact: &SimFact, _: LedgerStep, _: &SimLedger) -> InvariantResult {
        match fact {
            SimFact::OffsetRaced { race: OffsetRace::MemberCommitted { committed }, found }
                if *found != Some(*committed) =>
            {
                Err(format!("a member has committed {committed}, and {found:?} is found"))
            }
            _ => Ok(()),
        }
    }
}
