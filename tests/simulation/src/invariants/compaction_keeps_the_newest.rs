//! Compaction, against a replay. A compacted topic read as of a moment has the newest value that
//! each key had then, no value of a key that was deleted then, and nothing that was never there.

use std::collections::BTreeMap;

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::audit::AuditRecord;
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

pub(super) struct CompactionKeepsTheNewest;

impl Invariant for CompactionKeepsTheNewest {
    fn name(&self) -> &'static str {
        "compaction_keeps_the_newest"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::Moment(moment) = fact else { return Ok(()) };
        let seen = ledger.partition_at(&moment.topic, moment.partition, moment.at);
        let Some(seen) = seen.filter(|seen| seen.now.compacted_to > Hlc::ZERO) else {
            return Ok(());
        };
        let name = format!("{}/{} at {}", moment.topic, moment.partition, moment.at);
        let replayed: Vec<&AuditRecord> =
            seen.entries_before(moment.at).flat_map(|entry| &entry.records).collect();
        if let Some(odd) = moment.records.iter().find(|record| !replayed.contains(record)) {
            return Err(format!("{name}: {odd:?} was never there"));
        }
        let newest: BTreeMap<_, _> = replayed.iter().map(|record| (&record.key, *record)).collect();
        let is_there = |newest: &&&AuditRecord| {
            // A tombstone may have expired; then nothing of its key is there.
            let is_gone =
                newest.is_tombstone && moment.records.iter().all(|record| record.key != newest.key);
            is_gone || moment.records.contains(newest)
        };
        match newest.values().find(|newest| !is_there(newest)) {
            Some(missing) => Err(format!("{name}: {missing:?} is missing")),
            None => Ok(()),
        }
    }
}
