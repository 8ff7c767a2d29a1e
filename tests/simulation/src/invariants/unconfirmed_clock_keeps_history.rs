//! While a clock that is far ahead at the start is not confirmed, nothing is removed by its time:
//! no log start advances, and nothing is compacted further. The invariants of pins check that no
//! pin expires by it.

use std::collections::BTreeMap;

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::audit::{NodeAudit, PartitionKey};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

#[derive(Default)]
pub(super) struct UnconfirmedClockKeepsHistory {
    is_unconfirmed: bool,
    /// The log start and the end of compaction of each partition, when first seen since.
    first_seen: BTreeMap<PartitionKey, (u64, Hlc)>,
}

impl Invariant for UnconfirmedClockKeepsHistory {
    fn name(&self) -> &'static str {
        "unconfirmed_clock_keeps_history"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        _ledger: &SimLedger,
    ) -> InvariantResult {
        if let SimFact::ClockUnconfirmed(is_doubted) = fact {
            self.is_unconfirmed = *is_doubted;
            self.first_seen.clear();
        }
        Ok(())
    }

    fn on_audit(&mut self, audit: &NodeAudit, _ledger: &SimLedger) -> InvariantResult {
        if !self.is_unconfirmed {
            return Ok(());
        }
        for held in &audit.partitions {
            let now = (held.start, held.compacted_to);
            let kept = *self.first_seen.entry(held.place).or_insert(now);
            if kept != now {
                let (topic, index) = (&held.topic, held.place.1);
                return Err(format!("{topic}/{index} went from {kept:?} to {now:?}"));
            }
        }
        Ok(())
    }
}
