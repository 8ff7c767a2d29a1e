//! A stored batch stays unchanged while it is kept: the same batch, at the same offset, with the
//! same stamp.

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::audit::{AuditOccasion, NodeAudit};
use crate::ledger::SimLedger;

pub(super) struct HistoryIsImmutable;

impl Invariant for HistoryIsImmutable {
    fn name(&self) -> &'static str {
        "history_is_immutable"
    }

    fn on_audit(&mut self, audit: &NodeAudit, ledger: &SimLedger) -> InvariantResult {
        for held in &audit.partitions {
            let Some(seen) = ledger.partitions.get(&held.place) else { continue };
            let name = format!("{}/{}", held.topic, held.place.1);
            let may_lose = audit.occasion == (AuditOccasion::Start { lost_power: true });
            if !may_lose && held.end < seen.now.end {
                return Err(format!("{name} ended at {}, and ends at {}", seen.now.end, held.end));
            }
            if held.start < seen.now.start {
                return Err(format!("{name} began at {}, and at {}", seen.now.start, held.start));
            }
            for entry in &held.entries {
                let Some(before) = seen.entries.get(&entry.base) else { continue };
                let is_same = if held.compacted_to > Hlc::ZERO {
                    before.stamp == entry.stamp
                        && entry.records.iter().all(|record| before.records.contains(record))
                } else {
                    before == entry
                };
                // A crash may take a batch back, and another may get its offset.
                if !is_same && !may_lose {
                    return Err(format!("{name}: {before:?} has become {entry:?}"));
                }
            }
        }
        Ok(())
    }
}
