//! In each partition batches follow one another without a gap, and each batch's records take its
//! offsets: all of them, unless it was compacted.

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::audit::{AuditPartition, NodeAudit};
use crate::ledger::SimLedger;

pub(super) struct OffsetsAreDense;

impl Invariant for OffsetsAreDense {
    fn name(&self) -> &'static str {
        "offsets_are_dense"
    }

    fn on_audit(&mut self, audit: &NodeAudit, _ledger: &SimLedger) -> InvariantResult {
        if !audit.has_all_entries() {
            return Ok(());
        }
        audit.partitions.iter().try_for_each(check)
    }
}

fn check(held: &AuditPartition) -> InvariantResult {
    let is_compacted = held.compacted_to > Hlc::ZERO;
    let name = format!("{}/{}", held.topic, held.place.1);
    let mut next = None;
    for entry in &held.entries {
        if next
            .is_some_and(|next| if is_compacted { entry.base < next } else { entry.base != next })
        {
            return Err(format!("{name}: a batch at {}, and {next:?} is next", entry.base));
        }
        let offsets: Vec<u64> = entry.records.iter().map(|record| record.offset).collect();
        let are_all = entry.is_marker || offsets.iter().copied().eq(entry.base..entry.end);
        let are_some = offsets.iter().all(|offset| (entry.base..entry.end).contains(offset));
        if !(are_all || is_compacted && are_some) {
            return Err(format!("{name}: {offsets:?} in {}..{}", entry.base, entry.end));
        }
        next = Some(entry.end);
    }
    match next {
        Some(next) if next != held.end => Err(format!("{name}: ends at {next}, not {}", held.end)),
        None if held.start != held.end => {
            Err(format!("{name}: nothing in {}..{}", held.start, held.end))
        }
        _ => Ok(()),
    }
}
