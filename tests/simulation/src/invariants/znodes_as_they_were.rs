//! The znodes of a moment are answered the same for ever, and as their writer knows them.

use std::collections::BTreeMap;

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::facts::{AsOfAnswer, SimFact};
use crate::ledger::{LedgerStep, SimLedger};

#[derive(Default)]
pub(super) struct ZnodesAsTheyWere {
    known: BTreeMap<Hlc, Vec<String>>,
}

impl Invariant for ZnodesAsTheyWere {
    fn name(&self) -> &'static str {
        "znodes_as_they_were"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        _ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::Znodes(AsOfAnswer { at, answer, expected, .. }) = fact else {
            return Ok(());
        };
        for known in expected.iter().chain(self.known.get(at)) {
            if known != answer {
                return Err(format!("at {at} there was {known:?}, and the answer is {answer:?}"));
            }
        }
        self.known.insert(*at, answer.clone());
        Ok(())
    }
}
