//! A prefix in the order of stamps survives a crash, over all partitions: no batch survives without
//! all batches that were accepted before it.

use std::collections::BTreeSet;

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::audit::{AuditOccasion, NodeAudit, PartitionKey};
use crate::ledger::SimLedger;

#[derive(Default)]
pub(super) struct PrefixDurability {
    /// The batches that were readable when the node died.
    before: BTreeSet<(Hlc, PartitionKey, u64)>,
}

impl Invariant for PrefixDurability {
    fn name(&self) -> &'static str {
        "prefix_durability"
    }

    fn on_audit(&mut self, audit: &NodeAudit, _ledger: &SimLedger) -> InvariantResult {
        match audit.occasion {
            AuditOccasion::NodeExit => self.before = stamps(audit),
            AuditOccasion::Start { .. } => {
                let (before, after) = (std::mem::take(&mut self.before), stamps(audit));
                let Some((last, ..)) = after.last() else { return Ok(()) };
                let is_kept = |(_, place, base): &&(Hlc, PartitionKey, u64)| {
                    let held = audit.partitions.iter().find(|held| held.place == *place);
                    held.is_none_or(|held| *base >= held.start && held.compacted_to == Hlc::ZERO)
                };
                let lost = before.difference(&after).filter(|(stamp, ..)| stamp < last);
                if let Some((stamp, place, base)) = lost.into_iter().find(is_kept) {
                    return Err(format!("{stamp} of {place:?} at {base} is gone; {last} is there"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn stamps(audit: &NodeAudit) -> BTreeSet<(Hlc, PartitionKey, u64)> {
    let of = |held: &crate::audit::AuditPartition| {
        let place = held.place;
        held.entries.iter().map(move |entry| (entry.stamp, place, entry.base)).collect::<Vec<_>>()
    };
    audit.partitions.iter().flat_map(of).collect()
}
