//! Once a transactional producer is initialized, nothing that an earlier one of its transactional
//! id sends is acknowledged.

use super::{Invariant, InvariantResult};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

pub(super) struct FencedProducersWriteNothing;

impl Invariant for FencedProducersWriteNothing {
    fn name(&self) -> &'static str {
        "fenced_producers_write_nothing"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::Acked { batch: id } = fact else { return Ok(()) };
        let batch = ledger.batch(*id);
        let Some(transaction) = batch.transaction else { return Ok(()) };
        let own = &ledger.producers[ledger.transactions[transaction].producer];
        let fences = ledger.producers.iter().find(|other| {
            other.id == own.id && other.epoch > own.epoch && other.initialized < batch.sent
        });
        match fences {
            None => Ok(()),
            Some(other) => Err(format!("batch {id} of {own:?} was taken after {other:?}")),
        }
    }
}
