//! Bitemporal: a partition as of a user time, as known at a moment, ends at the first record that
//! was known then and is as late by its own time; or where it ended at the moment. That never
//! changes, whatever arrives late. It is an error once records that decide it may be gone.

use super::{Invariant, InvariantResult};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

pub(super) struct UserTimeEndsAreExact;

impl Invariant for UserTimeEndsAreExact {
    fn name(&self) -> &'static str {
        "user_time_ends_are_exact"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::UserTimeEnd { topic, partition, time, known, end } = fact else {
            return Ok(());
        };
        let name = format!("{topic}/{partition} as of {time}, as known at {known}");
        let Some(seen) = ledger.partition_at(topic, *partition, *known) else {
            return Err(format!("{name} did not exist, and was answered"));
        };
        let mut records = seen.entries_before(*known).flat_map(|entry| &entry.records);
        let first = records.find(|record| record.time >= *time);
        let expected = first.map_or_else(|| seen.end_at(*known), |record| record.offset);
        if *end != expected {
            return Err(format!("{name} ends at {expected}, and not at {end}"));
        }
        Ok(())
    }
}
