//! A pin that was set is listed, in this life of the node and the next, until it expires or is removed; and
//! then it is not.

use super::{Invariant, Verdict};
use crate::facts::Fact;
use crate::ledger::{Ledger, Step};

pub(super) struct PinsStandUntilTheyExpire;

impl Invariant for PinsStandUntilTheyExpire {
    fn name(&self) -> &'static str {
        "pins_stand_until_they_expire"
    }

    fn on_fact(&mut self, fact: &Fact, _step: Step, ledger: &Ledger) -> Verdict {
        let Fact::Pins { listed, at_least_ms } = fact else { return Ok(()) };
        for pin in &ledger.pins {
            let is_gone = pin.is_removed || pin.expires_ms <= *at_least_ms;
            match listed.contains(&pin.name) {
                true if is_gone => return Err(format!("{pin:?} is listed at {at_least_ms}")),
                false if !pin.is_over => return Err(format!("{pin:?} is not listed")),
                _ => {}
            }
        }
        Ok(())
    }
}
