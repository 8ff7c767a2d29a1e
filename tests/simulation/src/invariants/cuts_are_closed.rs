//! Closure: for everything in a cut, all that happened before it is in the cut too. A write that
//! was acknowledged before another thing was sent happened before it, for any clients.

use super::{Invariant, InvariantResult};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

pub(super) struct CutClosure;

impl Invariant for CutClosure {
    fn name(&self) -> &'static str {
        "cuts_are_closed"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::Cut { cut, .. } = fact else { return Ok(()) };
        let (mut latest_inside, mut outside) = (0, Vec::new());
        for seen in ledger.partitions.values().filter(|seen| seen.now.exists_at(cut.at)) {
            let Some(span) = cut.spans.get(&(seen.now.topic.clone(), seen.now.place.1)) else {
                continue;
            };
            for entry in seen.entries.values() {
                let Some(id) = entry.batch() else { continue };
                if entry.end <= span.end {
                    latest_inside = latest_inside.max(ledger.batch(id).sent);
                } else if ledger.batch(id).acked.is_some() {
                    outside.push(id);
                }
            }
        }
        let acked = |id: &u64| ledger.batch(*id).acked.map(|acked| acked.step);
        match outside.iter().find(|id| acked(id).is_some_and(|step| step < latest_inside)) {
            None => Ok(()),
            Some(id) => Err(format!(
                "batch {id} is not in the cut at {}, and something sent after its answer is: {:?}",
                cut.at,
                ledger.batch(*id)
            )),
        }
    }
}
