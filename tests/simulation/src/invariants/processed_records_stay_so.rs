//! A record that a member of a share group was told is done with is not delivered again, whatever
//! happens to the node; and none is delivered more often than it may be.

use super::{Invariant, InvariantResult};
use crate::facts::{SharedRange, SimFact};
use crate::ledger::{LedgerStep, SimLedger};
use tokio::time::Instant;

/// Kafka's default limit on deliveries, which the node has.
const DELIVERIES_MAX: i16 = 5;

#[derive(Default)]
pub(super) struct ProcessedStaysSo {
    processed: Vec<(Instant, SharedRange)>,
}

impl Invariant for ProcessedStaysSo {
    fn name(&self) -> &'static str {
        "processed_records_stay_so"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        _ledger: &SimLedger,
    ) -> InvariantResult {
        match fact {
            SimFact::Processed { now, range } => self.processed.push((*now, *range)),
            SimFact::Delivered { asked, range, deliveries } => {
                if !(1..=DELIVERIES_MAX).contains(deliveries) {
                    return Err(format!("{range:?} was delivered {deliveries} times"));
                }
                // An answer may be older than what became known while it was on its way.
                let mut known = self.processed.iter().filter(|(now, _)| now <= asked).rev();
                if let Some((_, done)) = known.find(|(_, done)| done.meets(range)) {
                    return Err(format!("{range:?} was delivered, and {done:?} was done before"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
