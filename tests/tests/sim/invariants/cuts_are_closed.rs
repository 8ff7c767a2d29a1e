//! Closure: whatever is in a cut, all that happened before it is in it too. What was acknowledged before
//! another thing was sent happened before it, by whichever clients.

use super::{Invariant, Verdict};
use crate::facts::Fact;
use crate::ledger::{Ledger, Step};

pub(super) struct CutsAreClosed;

impl Invariant for CutsAreClosed {
    fn name(&self) -> &'static str {
        "cuts_are_closed"
    }

    fn on_fact(&mut self, fact: &Fact, _step: Step, ledger: &Ledger) -> Verdict {
        let Fact::Cut { cut, .. } = fact else { return Ok(()) };
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
