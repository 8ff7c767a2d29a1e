//! A cut that was answered once is answered the same for ever: the same ends, and the same hash of
//! its content. Data that were not durable may be lost with the machine, and their answers with
//! them.

use std::collections::BTreeMap;

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::facts::{NodeExitKind, SimCut, SimFact};
use crate::ledger::{LedgerStep, SimLedger};

#[derive(Default)]
pub(super) struct CutsRepeat {
    answered: BTreeMap<Hlc, SimCut>,
}

impl Invariant for CutsRepeat {
    fn name(&self) -> &'static str {
        "cuts_repeat"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        _ledger: &SimLedger,
    ) -> InvariantResult {
        match fact {
            SimFact::NodeExited(NodeExitKind::PowerLoss) => {
                self.answered.retain(|_, cut| cut.is_durable)
            }
            SimFact::Cut { cut, .. } => {
                if let Some(before) = self.answered.get(&cut.at) {
                    let ends = |cut: &SimCut| -> Vec<_> {
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
