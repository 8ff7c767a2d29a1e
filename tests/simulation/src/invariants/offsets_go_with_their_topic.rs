//! An offset that was committed before its topic was deleted is gone, also where a topic of that
//! name is created again.

use super::{Invariant, InvariantResult};
use crate::facts::{OffsetRace, SimFact};
use crate::ledger::{LedgerStep, SimLedger};

pub(super) struct OffsetsGoWithTheirTopic;

impl Invariant for OffsetsGoWithTheirTopic {
    fn name(&self) -> &'static str {
        "offsets_go_with_their_topic"
    }

    fn on_fact(&mut self, fact: &SimFact, _: LedgerStep, _: &SimLedger) -> InvariantResult {
        match fact {
            SimFact::OffsetRaced { race: OffsetRace::TopicRecreated, found: Some(offset) } => {
                Err(format!("a new topic has the offset {offset} of the one before it"))
            }
            _ => Ok(()),
        }
    }
}
