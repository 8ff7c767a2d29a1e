//! The offset of a user time is that of the first record, in the order of offsets, whose own time
//! is as late: in any order of times, and inside a moment as of that moment.

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::facts::{SimFact, UserTimeSearch};
use crate::ledger::{LedgerStep, SimLedger};

pub(super) struct UserTimesAreExact;

impl Invariant for UserTimesAreExact {
    fn name(&self) -> &'static str {
        "user_times_are_exact"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::UserTimeSearch(UserTimeSearch { topic, partition, at, time, found }) = fact
        else {
            return Ok(());
        };
        let Some(seen) = ledger.partition_at(topic, *partition, *at) else {
            return Err(format!("{topic}/{partition} did not exist at {at}, and was searched"));
        };
        if seen.now.compacted_to > Hlc::ZERO {
            return Ok(());
        }
        let records = || seen.entries_before(*at).flat_map(|entry| &entry.records);
        let first = |start: u64| {
            let kept = records().find(|record| record.offset >= start && record.time >= *time);
            kept.map(|record| (record.offset, record.time))
        };
        // The partition may have begun earlier at the request than it does now.
        let is_first = |start: u64| *found == first(start);
        let starts = (0..=seen.now.start).rev();
        if starts.into_iter().any(is_first) {
            return Ok(());
        }
        Err(format!(
            "{topic}/{partition} at {at} from {time}: {found:?}, and not {:?}",
            first(seen.now.start)
        ))
    }
}
