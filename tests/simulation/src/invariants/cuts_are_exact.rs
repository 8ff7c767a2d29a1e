//! A cut ends, in each partition of each topic that existed then, after the last batch that is
//! stamped below it. It has no other partition.

use super::{Invariant, InvariantResult};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

pub(super) struct CutsAreExact;

impl Invariant for CutsAreExact {
    fn name(&self) -> &'static str {
        "cuts_are_exact"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::Cut { cut, .. } = fact else { return Ok(()) };
        let mut expected = 0;
        for seen in ledger.partitions.values().filter(|seen| seen.now.exists_at(cut.at)) {
            expected += 1;
            let place = (seen.now.topic.clone(), seen.now.place.1);
            let Some(span) = cut.spans.get(&place) else {
                return Err(format!("the cut at {} misses {place:?}", cut.at));
            };
            let end = seen.end_at(cut.at);
            // Entries that were removed before the first entry was ever seen are unknown.
            if span.end != end && !(end == 0 && span.end <= seen.now.start) {
                return Err(format!("{place:?} ends at {end} in {}, and not {}", cut.at, span.end));
            }
        }
        if cut.spans.len() != expected {
            return Err(format!("{expected} partitions existed at {}: {:?}", cut.at, cut.spans));
        }
        Ok(())
    }
}
