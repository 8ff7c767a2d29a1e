//! A cut that was answered once is answered the same for ever: the same ends, and the same hash of its
//! content. What was not durable may go with the machine, and its answers with it.

use std::collections::BTreeMap;

use hlc::Hlc;

use super::{Invariant, Verdict};
use crate::facts::{Cut, Death, Fact};
use crate::ledger::{Ledger, Step};

#[derive(Default)]
pub(super) struct CutsRepeat {
    answered: BTreeMap<Hlc, Cut>,
}

impl Invariant for CutsRepeat {
    fn name(&self) -> &'static str {
        "cuts_repeat"
    }

    fn on_fact(&mut self, fact: &Fact, _step: Step, _ledger: &Ledger) -> Verdict {
        match fact {
            Fact::Died(Death::PowerLost) => self.answered.retain(|_, cut| cut.is_durable),
            Fact::Cut { cut, .. } => {
                if let Some(before) = self.answered.get(&cut.at) {
                    let ends = |cut: &Cut| -> Vec<_> {
                        cut.spans.iter().map(|(place, span)| (place.clone(), span.end)).collect()
                    };
                    if (&before.hash, ends(before)) != (&cut.hash, ends(cut)) {
                        return Err(format!("{before:?} has become {cut:?}"));
                    }
                    if before.is_durable && !cut.is_durable {
                        return Err(format!("{} was durable, and is not any more", cut.at));
                    }
                }
                self.answered.insert(cut.at, cut.clone());
            }
            _ => {}
        }
        Ok(())
    }
}
