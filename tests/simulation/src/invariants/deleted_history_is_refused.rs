//! The horizon: a moment of which records were removed is an error, never silently less. A moment
//! that is complete is no error.

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::facts::{MomentRefusal, SimFact};
use crate::ledger::{LedgerStep, PartitionRecord, SimLedger};

pub(super) struct DeletedHistoryRefusal;

impl Invariant for DeletedHistoryRefusal {
    fn name(&self) -> &'static str {
        "deleted_history_is_refused"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        match fact {
            // The rest begins at the log start; but the moment's own end is not below it.
            SimFact::Moment(moment) if moment.span.end < moment.span.start => {
                Err(format!("{moment:?} ends before it begins"))
            }
            SimFact::Cut { cut, .. } => match cut.spans.iter().find(|(_, s)| s.end < s.start) {
                Some(odd) => Err(format!("the cut at {} has {odd:?}", cut.at)),
                None => Ok(()),
            },
            SimFact::MomentRefused { topic, at, reason: MomentRefusal::Invalid } => {
                let held = |index| ledger.partition_at(topic, index, *at);
                let partitions: Vec<&PartitionRecord> = (0..).map_while(held).collect();
                let lies_ahead = latest(ledger) < *at;
                let is_whole = partitions.iter().all(|seen| is_whole(seen, *at));
                if !lies_ahead && !partitions.is_empty() && is_whole {
                    return Err(format!("{topic} is whole at {at}, and was refused"));
                }
                Ok(())
            }
            SimFact::CutRefused { at, reason: MomentRefusal::BeforeHistory, .. } => {
                let existed = |seen: &&PartitionRecord| seen.now.exists_at(*at);
                let mut partitions = ledger.partitions.values().filter(existed);
                if partitions.all(|seen| is_whole(seen, *at)) {
                    Err(format!("the cut at {at} is whole, and was refused"))
                } else {
                    Ok(())
                }
            }
            _ => Ok(()),
        }
    }
}

/// True if its topic existed, and nothing is missing from the cut with this bound.
fn is_whole(seen: &PartitionRecord, bound: Hlc) -> bool {
    let start = seen.now.start;
    let is_lost = match seen.entries.range(..start).next_back() {
        Some((_, last)) if last.end >= start => bound <= last.stamp,
        // The last of what was removed was never seen: then nothing can be said.
        _ => start > 0,
    };
    !is_lost && bound >= seen.now.compacted_to && !seen.now.is_removed
}

/// The last stamp that was seen: a moment after it may lie in the future.
fn latest(ledger: &SimLedger) -> Hlc {
    let last = |seen: &PartitionRecord| seen.entries.values().next_back().map(|entry| entry.stamp);
    ledger.partitions.values().filter_map(last).max().unwrap_or_default()
}
