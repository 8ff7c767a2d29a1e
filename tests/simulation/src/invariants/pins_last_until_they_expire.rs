//! A pin that was set is listed, in this incarnation of the node and the next, until it expires or
//! is removed. Then it is not.

use super::{Invariant, InvariantResult};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

pub(super) struct PinsLastUntilTheyExpire;

impl Invariant for PinsLastUntilTheyExpire {
    fn name(&self) -> &'static str {
        "pins_last_until_they_expire"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::Pins { listed, at_least_ms } = fact else { return Ok(()) };
        for pin in &ledger.pins {
            let is_gone = pin.is_removed || pin.expires_ms <= *at_least_ms;
            let is_listed = listed.contains(&pin.name);
            if is_listed && is_gone {
                return Err(format!("{pin:?} is listed at {at_least_ms}"));
            }
            if !is_listed && !pin.is_over {
                return Err(format!("{pin:?} is not listed"));
            }
        }
        Ok(())
    }
}
