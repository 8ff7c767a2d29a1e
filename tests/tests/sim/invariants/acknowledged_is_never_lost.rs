//! What was acknowledged is where its producer was told, after any crash: with `acks=all` whatever happens,
//! with `acks=1` as long as the machine keeps its power.

use std::collections::BTreeSet;

use super::{Invariant, Verdict};
use crate::audit::Audit;
use crate::facts::{Death, Fact};
use crate::ledger::{Acks, Ledger, Step};

#[derive(Default)]
pub(super) struct AcknowledgedIsNeverLost {
    held: BTreeSet<u64>,
    /// When the machine lost its power last.
    power_lost: Step,
}

impl Invariant for AcknowledgedIsNeverLost {
    fn name(&self) -> &'static str {
        "acknowledged_is_never_lost"
    }

    fn on_fact(&mut self, fact: &Fact, step: Step, ledger: &Ledger) -> Verdict {
        match fact {
            // An answer may come late, from a machine that has lost its power meanwhile.
            Fact::Acked { batch: id } => {
                let batch = ledger.batch(*id);
                if batch.acks == Acks::All || batch.sent > self.power_lost {
                    self.held.insert(*id);
                }
            }
            Fact::Died(Death::PowerLost) => {
                self.power_lost = step;
                self.held.retain(|batch| ledger.batch(*batch).acks == Acks::All);
            }
            _ => {}
        }
        Ok(())
    }

    fn on_audit(&mut self, audit: &Audit, ledger: &Ledger) -> Verdict {
        if !audit.is_whole() {
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

/// Whether a batch is where its producer was told; or may have been given up by now.
pub(super) fn is_there(audit: &Audit, ledger: &Ledger, id: u64) -> bool {
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
