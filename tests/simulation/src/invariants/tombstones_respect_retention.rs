//! A record without a value deletes its key. It is removed once a later record of the key
//! supersedes it, like every record. Otherwise it is removed after `delete.retention.ms`, never
//! before, and then it must go.

use std::collections::{BTreeMap, BTreeSet};

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::audit::{AuditBatch, AuditPartition, AuditRecord, NodeAudit};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};
use crate::topic_settings::DELETE_RETENTION_MS;

/// The distance by which stamps may run ahead of the wall clock that tombstones expire by.
const SKEW_MAX_MS: u64 = 500;

#[derive(Default)]
pub(super) struct TombstonesRespectRetention {
    /// Tombstones that are stamped before have expired.
    cleaned: Option<Hlc>,
}

impl Invariant for TombstonesRespectRetention {
    fn name(&self) -> &'static str {
        "tombstones_respect_retention"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        _ledger: &SimLedger,
    ) -> InvariantResult {
        if let SimFact::TombstonesCleaned { before } = fact {
            self.cleaned = Some(*before);
        }
        Ok(())
    }

    fn on_audit(&mut self, audit: &NodeAudit, ledger: &SimLedger) -> InvariantResult {
        if !audit.has_all_entries() {
            return Ok(());
        }
        let cleaned = self.cleaned.take().unwrap_or(Hlc::ZERO);
        let compacted = audit.partitions.iter().filter(|held| held.compacted_to > Hlc::ZERO);
        for held in compacted {
            let Some(seen) = ledger.partitions.get(&held.place) else { continue };
            check(held, seen.entries.values(), cleaned, audit.shown_ms)
                .map_err(|why| format!("{}/{}: {why}", held.topic, held.place.1))?;
        }
        Ok(())
    }
}

fn check<'a>(
    held: &AuditPartition,
    ever: impl Iterator<Item = &'a AuditBatch> + Clone,
    cleaned: Hlc,
    shown_ms: u64,
) -> InvariantResult {
    let stored =
        |entry: &'a AuditBatch| entry.records.iter().map(move |record| (entry.stamp, record));
    let kept = held.entries.iter().flat_map(|entry| &entry.records);
    let kept: BTreeSet<u64> = kept.map(|record| record.offset).collect();
    // Records above the horizon supersede nothing yet.
    let below = ever.clone().filter(|entry| entry.stamp < held.compacted_to).flat_map(stored);
    let newest: BTreeMap<_, u64> = below.map(|(_, r)| (&r.key, r.offset)).collect();
    let is_newest = |record: &AuditRecord| newest.get(&record.key) == Some(&record.offset);
    let known = ever.flat_map(stored).filter(|(_, record)| {
        record.is_tombstone && record.offset >= held.start && record.offset < held.end
    });
    for (stamp, record) in known {
        let is_due = stamp.time().0 + DELETE_RETENTION_MS <= shown_ms + SKEW_MAX_MS;
        let is_kept = kept.contains(&record.offset);
        if !is_kept && is_newest(record) && !is_due {
            return Err(format!("{record:?}, of {stamp}, has gone by {shown_ms}"));
        }
        if is_kept && stamp < cleaned {
            return Err(format!("{record:?}, of {stamp}, is still there"));
        }
    }
    Ok(())
}
