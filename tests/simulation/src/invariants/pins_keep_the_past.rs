//! While a pin stands, nothing that its moment shows is removed in its topics: no log start
//! advances, no compaction goes beyond it, and no read of the moment is refused. Once no pin
//! stands, old records are removed.

use super::{Invariant, InvariantResult};
use crate::audit::{AuditPartition, NodeAudit};
use crate::facts::{MomentRefusal, SimFact};
use crate::ledger::{LedgerPin, LedgerStep, SimLedger};
use crate::topic_settings::SHORT_RETENTION_MS;

/// The time by which a batch may be older than its retention: retention ran by a slightly earlier
/// clock.
const GRACE_MS: u64 = 50;

#[derive(Default)]
pub(super) struct PinsKeepThePast {
    /// Records that were old by this clock have been removed.
    retention_applied_ms: Option<u64>,
}

impl Invariant for PinsKeepThePast {
    fn name(&self) -> &'static str {
        "pins_keep_the_past"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        let is_refused = |pin: &&LedgerPin| match fact {
            SimFact::CutRefused { at, reason: MomentRefusal::BeforeHistory, .. } => {
                pin.at == *at && pin.topics.is_none()
            }
            SimFact::MomentRefused { topic, at, reason: MomentRefusal::Invalid } => {
                let held = ledger.partition_at(topic, 0, *at);
                pin.at == *at && held.is_some_and(|held| pin.covers(&held.now))
            }
            _ => false,
        };
        if let SimFact::RetentionApplied { wall_ms } = fact {
            self.retention_applied_ms = Some(*wall_ms);
        }
        match ledger.pins.iter().filter(|pin| !pin.is_over).find(is_refused) {
            None => Ok(()),
            Some(pin) => Err(format!("{fact:?}, although {} pins it", pin.name)),
        }
    }

    fn on_audit(&mut self, audit: &NodeAudit, ledger: &SimLedger) -> InvariantResult {
        for pin in ledger.pins.iter().filter(|pin| !pin.is_over) {
            check(pin, audit).map_err(|why| format!("{} at {}: {why}", pin.name, pin.at))?;
        }
        if !audit.has_all_entries() {
            return Ok(());
        }
        let Some(wall_ms) = self.retention_applied_ms else { return Ok(()) };
        self.retention_applied_ms = None;
        let short = audit.partitions.iter().filter(|held| held.topic == "short");
        for entry in short.flat_map(|held| &held.entries) {
            if entry.stamp.time().0 + SHORT_RETENTION_MS + GRACE_MS < wall_ms {
                let (base, stamp) = (entry.base, entry.stamp);
                return Err(format!("the batch at {base}, of {stamp}, is there at {wall_ms}"));
            }
        }
        Ok(())
    }
}

fn check(pin: &LedgerPin, audit: &NodeAudit) -> InvariantResult {
    for (place, start) in &pin.starts {
        let held = audit.partitions.iter().find(|held| held.place == *place);
        let Some(AuditPartition { topic, start: now, compacted_to, .. }) = held else {
            return Err(format!("{place:?} is gone"));
        };
        if now > start {
            return Err(format!("{topic}/{} began at {start}, and begins at {now}", place.1));
        }
        if *compacted_to > pin.at {
            return Err(format!("{topic}/{} is compacted to {compacted_to}", place.1));
        }
    }
    Ok(())
}
