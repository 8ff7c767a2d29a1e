//! While nobody has confirmed a clock that is far ahead at the start, nothing goes by its time: no partition
//! begins later, and none is compacted further. That no pin ends by it, those of pins see to.

use std::collections::BTreeMap;

use hlc::Hlc;

use super::{Invariant, Verdict};
use crate::audit::{Audit, Place};
use crate::facts::Fact;
use crate::ledger::{Ledger, Step};

#[derive(Default)]
pub(super) struct DoubtGivesNothingUp {
    is_doubted: bool,
    /// Where partitions began and to where they were compacted, when they were first seen since.
    kept: BTreeMap<Place, (u64, Hlc)>,
}

impl Invariant for DoubtGivesNothingUp {
    fn name(&self) -> &'static str {
        "doubt_gives_nothing_up"
    }

    fn on_fact(&mut self, fact: &Fact, _step: Step, _ledger: &Ledger) -> Verdict {
        if let Fact::Doubted(is_doubted) = fact {
            self.is_doubted = *is_doubted;
            self.kept.clear();
        }
        Ok(())
    }

    fn on_audit(&mut self, audit: &Audit, _ledger: &Ledger) -> Verdict {
        if !self.is_doubted {
            return Ok(());
        }
        for held in &audit.partitions {
            let now = (held.start, held.compacted_to);
            let kept = *self.kept.entry(held.place).or_insert(now);
            if kept != now {
                let (topic, index) = (&held.topic, held.place.1);
                return Err(format!("{topic}/{index} went from {kept:?} to {now:?}"));
            }
        }
        Ok(())
    }
}
