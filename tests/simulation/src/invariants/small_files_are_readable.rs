//! Of very many logs, each is found in any moment, however much has been written to others since:
//! what was acknowledged in it is there from its stamp on, and not before.

use super::{Invariant, InvariantResult};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

pub(super) struct SmallFilesAreReadable;

impl Invariant for SmallFilesAreReadable {
    fn name(&self) -> &'static str {
        "small_files_are_readable"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::SmallFile { nth, at, bytes } = fact else { return Ok(()) };
        let small_file = &ledger.small_files[*nth];
        let expected = small_file.bytes_at(*at);
        if *bytes != expected {
            return Err(format!(
                "file {nth} at {at}: {bytes:?}, and not {expected:?}: {small_file:?}"
            ));
        }
        Ok(())
    }
}
