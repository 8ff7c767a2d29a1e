//! A batch of `acks=all` that a consumer could see is on stable storage already: no crash takes it back.
//! What could be seen when the node died is known, as is what consumers were shown.

use std::collections::BTreeMap;

use super::{Invariant, Verdict};
use crate::audit::{Audit, Occasion, Partition, Place};
use crate::facts::Fact;
use crate::ledger::{Acks, Ledger, Step};

#[derive(Default)]
pub(super) struct ShownIsNeverLost {
    /// What could be seen when the node died: batch, partition, offset.
    visible: Vec<(u64, Place, u64)>,
    /// Up to where each partition could be seen in the middle of a group.
    glimpsed: BTreeMap<Place, u64>,
    shown: Vec<u64>,
}

impl Invariant for ShownIsNeverLost {
    fn name(&self) -> &'static str {
        "shown_is_never_lost"
    }

    fn on_fact(&mut self, fact: &Fact, _step: Step, ledger: &Ledger) -> Verdict {
        match fact {
            Fact::Shown { batch } if ledger.batch(*batch).acks == Acks::All => {
                self.shown.push(*batch);
            }
            Fact::Glimpse { ends, .. } => self.glimpsed = ends.iter().copied().collect(),
            _ => {}
        }
        Ok(())
    }

    fn on_audit(&mut self, audit: &Audit, ledger: &Ledger) -> Verdict {
        match audit.occasion {
            Occasion::Death => self.visible = durable_batches(audit, ledger),
            Occasion::Start { .. } => {
                let shown = std::mem::take(&mut self.shown);
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

fn durable_batches(audit: &Audit, ledger: &Ledger) -> Vec<(u64, Place, u64)> {
    let mut found = Vec::new();
    for held in &audit.partitions {
        let batches = held.entries.iter().filter_map(|entry| Some((entry.batch()?, entry.base)));
        let durable = batches.filter(|(id, _)| ledger.batch(*id).acks == Acks::All);
        found.extend(durable.map(|(id, base)| (id, held.place, base)));
    }
    found
}

/// Where a batch was seen.
fn find(ledger: &Ledger, id: u64) -> Option<(u64, Place, u64)> {
    ledger.partitions.iter().find_map(|(place, seen)| {
        let entry = seen.entries.values().find(|entry| entry.batch() == Some(id))?;
        Some((id, *place, entry.base))
    })
}

fn has(held: &Partition, id: u64, base: u64) -> bool {
    let is_gone = base < held.start || held.compacted_to > hlc::Hlc::ZERO && base < held.end;
    let at_base = held.entries.binary_search_by_key(&base, |entry| entry.base);
    is_gone || at_base.is_ok_and(|index| held.entries[index].batch() == Some(id))
}
