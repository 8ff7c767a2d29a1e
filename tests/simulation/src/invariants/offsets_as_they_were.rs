//! The offsets that were committed at a moment are answered the same for ever, and as the committer
//! knows them.

use std::collections::BTreeMap;

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::facts::{AsOfAnswer, SimFact};
use crate::ledger::{LedgerStep, SimLedger};

#[derive(Default)]
pub(super) struct OffsetsAsTheyWere {
    known: BTreeMap<Hlc, Vec<String>>,
}

impl Invariant for OffsetsAsTheyWere {
    fn name(&self) -> &'static str {
        "offsets_as_they_were"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        _ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::Offsets { offsets: AsOfAnswer { at, answer, expected, .. }, .. } = fact else {
            return Ok(());
        };
        let known = expected.as_ref().or_else(|| self.known.get(at));
        if let Some(known) = known.filter(|known| *known != answer) {
            return Err(format!("at {at} there was {known:?}, and the answer is {answer:?}"));
        }
        self.known.insert(*at, answer.clone());
        Ok(())
    }
}
