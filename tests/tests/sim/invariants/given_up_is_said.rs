//! The horizon: a moment of which records were given up is an error, never silently less; and a moment
//! that is whole is no error.

use hlc::Hlc;

use super::{Invariant, Verdict};
use crate::facts::{Fact, Refusal};
use crate::ledger::{Ledger, Seen, Step};

pub(super) struct GivenUpIsSaid;

impl Invariant for GivenUpIsSaid {
    fn name(&self) -> &'static str {
        "given_up_is_said"
    }

    fn on_fact(&mut self, fact: &Fact, _step: Step, ledger: &Ledger) -> Verdict {
        match fact {
            // What follows begins at the start; but the moment's own end is not below it.
            Fact::Moment(moment) if moment.span.end < moment.span.start => {
                Err(format!("{moment:?} ends before it begins"))
            }
            Fact::Cut { cut, .. } => match cut.spans.iter().find(|(_, s)| s.end < s.start) {
                Some(odd) => Err(format!("the cut at {} has {odd:?}", cut.at)),
                None => Ok(()),
            },
            Fact::MomentRefused { topic, at, why: Refusal::Invalid } => {
                let held = |index| ledger.partition_at(topic, index, *at);
                let partitions: Vec<&Seen> = (0..).map_while(held).collect();
                let lies_ahead = latest(ledger) < *at;
                let is_whole = partitions.iter().all(|seen| is_whole(seen, *at));
                if !lies_ahead && !partitions.is_empty() && is_whole {
                    return Err(format!("{topic} is whole at {at}, and was refused"));
                }
                Ok(())
            }
            Fact::CutRefused { at, why: Refusal::GivenUp, .. } => {
                let existed = |seen: &&Seen| seen.now.exists_at(*at);
                let mut partitions = ledger.partitions.values().filter(existed);
                match partitions.all(|seen| is_whole(seen, *at)) {
                    true => Err(format!("the cut at {at} is whole, and was refused")),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// Whether nothing that was in the cut with this bound, and nothing that tells what was, is missing; also
/// that its topic was there.
fn is_whole(seen: &Seen, bound: Hlc) -> bool {
    let is_lost = match seen.lost_to() {
        Some(lost_to) => bound <= lost_to,
        // What was given up was never seen: then nothing can be said.
        None => seen.now.start > 0,
    };
    !is_lost && bound >= seen.now.compacted_to && !seen.now.is_forgotten
}

/// The last stamp that was seen: what is asked for behind it may lie in the future.
fn latest(ledger: &Ledger) -> Hlc {
    let last = |seen: &Seen| seen.entries.values().next_back().map(|entry| entry.stamp);
    ledger.partitions.values().filter_map(last).max().unwrap_or_default()
}
