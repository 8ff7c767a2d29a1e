//! Files with overwrites: names, attributes and every byte are, now and as of any moment, the
//! result of the changes up to there. A change is in a moment as a whole or not at all, and that
//! never changes.

use super::{Invariant, InvariantResult};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};
use crate::model_tree::first_difference;

pub(super) struct FilesAsTheyWere;

impl Invariant for FilesAsTheyWere {
    fn name(&self) -> &'static str {
        "files_as_they_were"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::Files { at, snapshot: sight } = fact else { return Ok(()) };
        let mut odd = String::new();
        let candidates: Vec<_> = match at {
            None => vec![ledger.files.last_certain()],
            Some(bound) => ledger.files.within(*bound).map(|(_, version)| version).collect(),
        };
        for version in &candidates {
            match first_difference(&version.tree.snapshot(), sight) {
                None => return Ok(()),
                Some(why) => odd = why,
            }
        }
        let count = candidates.len();
        Err(format!("of {count} that files may be in the cut at {at:?} they are none: {odd}"))
    }
}
