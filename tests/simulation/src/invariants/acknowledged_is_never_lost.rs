//! An acknowledged batch is at the offset that its producer got, after any crash: with `acks=all`
//! always, with `acks=1` if the machine keeps its power.

use std::collections::BTreeSet;

use super::{Invariant, InvariantResult};
use crate::audit::NodeAudit;
use crate::facts::{NodeExitKind, SimFact};
use crate::ledger::{AckMode, LedgerStep, SimLedger};

#[derive(Default)]
pub(super) struct NoAcknowledgedLoss {
    held: BTreeSet<u64>,
    /// The step at which the machine last lost its power.
    power_lost: LedgerStep,
}

impl Invariant for NoAcknowledgedLoss {
    fn name(&self) -> &'static str {
        "acknowledged_is_never_lost"
    }

    fn on_fact(&mut self, fact: &SimFact, step: LedgerStep, ledger: &SimLedger) -> InvariantResult {
        match fact {
            // A response may come late, from a machine that has lost its power meanwhile.
            SimFact::Acked { batch: id } => {
                let batch = ledger.batch(*id);
                if batch.acks == AckMode::All || batch.sent > self.power_lost {
                    self.held.insert(*id);
                }
            }
            SimFact::NodeExited(NodeExitKind::PowerLoss) => {
                self.power_lost = step;
                self.held.retain(|batch| ledger.batch(*batch).acks == AckMode::All);
            }
            _ => {}
        }
        Ok(())
    }

    fn on_audit(&mut self, audit: &NodeAudit, ledger: &SimLedger) -> InvariantResult {
        if !audit.has_all_entries() {
            return Ok(());
        }
        match self.held.iter().find(|batch| !is_there(audit, ledger, **batch)) {
            None => Ok(()),
            Some(batch) => {
                Err(format!("batch {batch} was acknowledged: {:?}", ledger.batch(*batch)))
            }
        }
    }
}

/// True if a batch is at its producer's offset, or may have been removed by retention.
pub(super) fn is_there(audit: &NodeAudit, ledger: &SimLedger, id: u64) -> bool {
    let batch = ledger.batch(id);
    let Some(acked) = batch.acked else { return true };
    audit
        .partitions
        .iter()
        .filter(|held| (&*held.topic, held.place.1) == (&*batch.topic, batch.partition))
        .any(|held| {
            let is_gone = acked.base < held.start
                || (held.compacted_to > hlc::Hlc::ZERO && acked.base < held.end);
            let at_base = held.entries.binary_search_by_key(&acked.base, |entry| entry.base);
            is_gone || at_base.is_ok_and(|index| held.entries[index].batch() == Some(id))
        })
}
