//! Of very many logs, each is found again in any moment, however much has been written to others since:
//! what was acknowledged in it is there from its stamp on, and not before.

use super::{Invariant, Verdict};
use crate::facts::Fact;
use crate::ledger::{Ledger, Step};

pub(super) struct HoardsAreFoundAgain;

impl Invariant for HoardsAreFoundAgain {
    fn name(&self) -> &'static str {
        "hoards_are_found_again"
    }

    fn on_fact(&mut self, fact: &Fact, _step: Step, ledger: &Ledger) -> Verdict {
        let Fact::Hoarded { nth, at, bytes } = fact else { return Ok(()) };
        let hoarded = &ledger.hoard[*nth];
        let expected = hoarded.within(*at);
        match *bytes == expected {
            true => Ok(()),
            false => {
                Err(format!("file {nth} at {at}: {bytes:?}, and not {expected:?}: {hoarded:?}"))
            }
        }
    }
}
