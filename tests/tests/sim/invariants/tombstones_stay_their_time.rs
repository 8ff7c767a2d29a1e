//! A record without a value says that its key is deleted. It goes once a later record of the key supersedes
//! it, as every record; else when it has stayed for `delete.retention.ms`, and never before; but then it
//! does go.

use std::collections::{BTreeMap, BTreeSet};

use hlc::Hlc;

use super::{Invariant, Verdict};
use crate::actors::DELETE_RETENTION_MS;
use crate::audit::{Audit, Partition, Record, Stored};
use crate::facts::Fact;
use crate::ledger::{Ledger, Step};

/// How far stamps may run ahead of the wall clock by which tombstones go.
const SKEW_MAX_MS: u64 = 500;

#[derive(Default)]
pub(super) struct TombstonesStayTheirTime {
    /// Tombstones that are stamped before have had their time.
    cleaned: Option<Hlc>,
}

impl Invariant for TombstonesStayTheirTime {
    fn name(&self) -> &'static str {
        "tombstones_stay_their_time"
    }

    fn on_fact(&mut self, fact: &Fact, _step: Step, _ledger: &Ledger) -> Verdict {
        if let Fact::Cleaned { before } = fact {
            self.cleaned = Some(*before);
        }
        Ok(())
    }

    fn on_audit(&mut self, audit: &Audit, ledger: &Ledger) -> Verdict {
        if !audit.is_whole() {
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
    held: &Partition,
    ever: impl Iterator<Item = &'a Stored> + Clone,
    cleaned: Hlc,
    shown_ms: u64,
) -> Verdict {
    let stored = |entry: &'a Stored| entry.records.iter().map(move |record| (entry.stamp, record));
    let kept = held.entries.iter().flat_map(|entry| &entry.records);
    let kept: BTreeSet<u64> = kept.map(|record| record.offset).collect();
    // What is above the horizon supersedes nothing yet.
    let below = ever.clone().filter(|entry| entry.stamp < held.compacted_to).flat_map(stored);
    let newest: BTreeMap<_, u64> = below.map(|(_, r)| (&r.key, r.offset)).collect();
    let is_newest = |record: &Record| newest.get(&record.key) == Some(&record.offset);
    let known = ever.flat_map(stored).filter(|(_, record)| {
        record.is_tombstone && record.offset >= held.start && record.offset < held.end
    });
    for (stamp, record) in known {
        let is_due = stamp.time().0 + DELETE_RETENTION_MS <= shown_ms + SKEW_MAX_MS;
        match kept.contains(&record.offset) {
            false if is_newest(record) && !is_due => {
                return Err(format!("{record:?}, of {stamp}, has gone by {shown_ms}"));
            }
            true if stamp < cleaned => {
                return Err(format!("{record:?}, of {stamp}, is still there"));
            }
            _ => {}
        }
    }
    Ok(())
}
