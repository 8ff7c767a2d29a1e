//! A topic read as of a moment of system time has, in each partition, exactly what was stamped
//! before the moment, from the log start on.

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

pub(super) struct MomentsArePrefixes;

impl Invariant for MomentsArePrefixes {
    fn name(&self) -> &'static str {
        "moments_are_prefixes"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::Moment(moment) = fact else { return Ok(()) };
        let name = format!("{}/{} at {}", moment.topic, moment.partition, moment.at);
        let seen = ledger.partition_at(&moment.topic, moment.partition, moment.at);
        let Some(seen) = seen else { return Err(format!("{name} did not exist, and was read")) };
        if moment.span.end != seen.end_at(moment.at) {
            let (end, found) = (seen.end_at(moment.at), moment.span.end);
            return Err(format!("{name} ends at {end}, and not at {found}"));
        }
        if seen.now.compacted_to > Hlc::ZERO {
            return Ok(());
        }
        let records = seen.entries_before(moment.at).flat_map(|entry| &entry.records);
        let expected: Vec<_> =
            records.filter(|record| record.offset >= moment.span.start).collect();
        if moment.records.iter().eq(expected.iter().copied()) {
            Ok(())
        } else {
            Err(format!("{name}: {:?}, and not {expected:?}", moment.records))
        }
    }
}
