//! Facts as of a moment are answered the same for ever, and as the only actor that changes them
//! knows them: topics, committed offsets, znodes.

use std::collections::BTreeMap;

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::facts::{AsOfAnswer, SimFact};
use crate::ledger::{LedgerStep, SimLedger};

/// The invariant of one kind of answers.
pub(super) struct AnswersAsTheyWere {
    name: &'static str,
    /// The answer in a fact, if that is of this kind.
    answer_in: fn(&SimFact) -> Option<&AsOfAnswer>,
    known: BTreeMap<Hlc, Vec<String>>,
}

impl AnswersAsTheyWere {
    fn new(
        name: &'static str,
        answer_in: fn(&SimFact) -> Option<&AsOfAnswer>,
    ) -> AnswersAsTheyWere {
        AnswersAsTheyWere { name, answer_in, known: BTreeMap::new() }
    }

    pub(super) fn topics() -> AnswersAsTheyWere {
        AnswersAsTheyWere::new("topics_as_they_were", |fact| match fact {
            SimFact::Topics { topics, .. } => Some(topics),
            _ => None,
        })
    }

    pub(super) fn offsets() -> AnswersAsTheyWere {
        AnswersAsTheyWere::new("offsets_as_they_were", |fact| match fact {
            SimFact::Offsets { offsets, .. } => Some(offsets),
            _ => None,
        })
    }

    pub(super) fn znodes() -> AnswersAsTheyWere {
        AnswersAsTheyWere::new("znodes_as_they_were", |fact| match fact {
            SimFact::Znodes(znodes) => Some(znodes),
            _ => None,
        })
    }
}

impl Invariant for AnswersAsTheyWere {
    fn name(&self) -> &'static str {
        self.name
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        _ledger: &SimLedger,
    ) -> InvariantResult {
        let Some(AsOfAnswer { at, answer, expected, .. }) = (self.answer_in)(fact) else {
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
