//! A request after a response gets a frontier at least as late, from one incarnation of the node to
//! the next.

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

#[derive(Default)]
pub(super) struct FrontierNeverFalls {
    /// Frontiers by the time of their response, each later than all before it.
    answered: Vec<(LedgerStep, Hlc)>,
}

impl Invariant for FrontierNeverFalls {
    fn name(&self) -> &'static str {
        "frontier_never_falls"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        step: LedgerStep,
        _ledger: &SimLedger,
    ) -> InvariantResult {
        let (asked, frontier) = match fact {
            SimFact::Cut { request_step: asked, cut } => (*asked, cut.frontier),
            SimFact::Topics { request_step: asked, topics: names } => (*asked, names.frontier),
            SimFact::Offsets { request_step: asked, offsets } => (*asked, offsets.frontier),
            _ => return Ok(()),
        };
        let before = self.answered.partition_point(|(answered, _)| *answered < asked);
        if let Some((_, known)) = self.answered[..before].last().filter(|(_, k)| *k > frontier) {
            return Err(format!("{frontier} was answered, and {known} before it was asked for"));
        }
        if self.answered.last().is_none_or(|(_, known)| *known < frontier) {
            self.answered.push((step, frontier));
        }
        Ok(())
    }
}
