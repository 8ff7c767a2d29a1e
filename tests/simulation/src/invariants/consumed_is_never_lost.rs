//! A batch of `acks=all` that a consumer could read is on stable storage already: no crash takes it
//! back. The model knows what was readable when the node died, and what consumers read.

use std::collections::BTreeMap;

use super::{Invariant, InvariantResult};
use crate::audit::{AuditOccasion, AuditPartition, NodeAudit, PartitionKey};
use crate::facts::SimFact;
use crate::ledger::{AckMode, LedgerStep, SimLedger};

#[derive(Default)]
pub(super) struct NoConsumedLoss {
    /// The batches that were readable when the node died: batch, partition, offset.
    visible: Vec<(u64, PartitionKey, u64)>,
    /// The readable end of each partition in the middle of a group.
    observed_ends: BTreeMap<PartitionKey, u64>,
    consumed: Vec<u64>,
}

impl Invariant for NoConsumedLoss {
    fn name(&self) -> &'static str {
        "consumed_is_never_lost"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        match fact {
            SimFact::Consumed { batch } if ledger.batch(*batch).acks == AckMode::All => {
                self.consumed.push(*batch);
            }
            SimFact::SyncObservation { ends, .. } => {
                self.observed_ends = ends.iter().copied().collect()
            }
            _ => {}
        }
        Ok(())
    }

    fn on_audit(&mut self, audit: &NodeAudit, ledger: &SimLedger) -> InvariantResult {
        match audit.occasion {
            AuditOccasion::NodeExit => self.visible = durable_batches(audit, ledger),
            AuditOccasion::Start { .. } => {
                let shown = std::mem::take(&mut self.consumed);
                let known = shown.iter().filter_map(|id| find(ledger, *id));
                for (id, place, base) in std::mem::take(&mut self.visible).into_iter().chain(known)
                {
                    let held = audit.partitions.iter().find(|held| held.place == place);
                    if held.is_none_or(|held| !has(held, id, base)) {
                        let batch = ledger.batch(id);
                        return Err(format!(
                            "batch {id} could be seen at {base}, and is gone: {batch:?}"
                        ));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn durable_batches(audit: &NodeAudit, ledger: &SimLedger) -> Vec<(u64, PartitionKey, u64)> {
    let mut found = Vec::new();
    for held in &audit.partitions {
        let batches = held.entries.iter().filter_map(|entry| Some((entry.batch()?, entry.base)));
        let durable = batches.filter(|(id, _)| ledger.batch(*id).acks == AckMode::All);
        found.extend(durable.map(|(id, base)| (id, held.place, base)));
    }
    found
}

/// The place of a batch.
fn find(ledger: &SimLedger, id: u64) -> Option<(u64, PartitionKey, u64)> {
    ledger.partitions.iter().find_map(|(place, seen)| {
        let entry = seen.entries.values().find(|entry| entry.batch() == Some(id))?;
        Some((id, *place, entry.base))
    })
}

fn has(held: &AuditPartition, id: u64, base: u64) -> bool {
    let is_gone = base < held.start || held.compacted_to > hlc::Hlc::ZERO && base < held.end;
    let at_base = held.entries.binary_search_by_key(&base, |entry| entry.base);
    is_gone || at_base.is_ok_and(|index| held.entries[index].batch() == Some(id))
}
