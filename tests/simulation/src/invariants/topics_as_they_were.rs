//! The topics at a moment are answered the same for ever, and as the topic admin knows them.

use std::collections::BTreeMap;

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::facts::{AsOfAnswer, SimFact};
use crate::ledger::{LedgerStep, SimLedger};

#[derive(Default)]
pub(super) struct TopicsAsTheyWere {
    known: BTreeMap<Hlc, Vec<String>>,
}

impl Invariant for TopicsAsTheyWere {
    fn name(&self) -> &'static str {
        "topics_as_they_were"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        _ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::Topics { topics: AsOfAnswer { at, answer, expected, .. }, .. } = fact else {
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
