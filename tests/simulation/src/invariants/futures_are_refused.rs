//! A moment in the far future is an error at once, and no other moment gets that error. Nothing
//! ahead of the frontier is answered.

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::facts::{MomentRefusal, SimFact};
use crate::ledger::{LedgerStep, SimLedger};

/// A distance that is certainly far: clocks are set by less.
const FAR_MS: u64 = 600_000;

#[derive(Default)]
pub(super) struct FutureMomentRefusal {
    latest: Hlc,
    /// Stamps, and so the frontier, may be far ahead of the wall clock, because it was confirmed
    /// behind them.
    may_run_ahead: bool,
}

impl Invariant for FutureMomentRefusal {
    fn name(&self) -> &'static str {
        "futures_are_refused"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        _ledger: &SimLedger,
    ) -> InvariantResult {
        match fact {
            SimFact::Cut { cut, .. } => {
                self.latest = self.latest.max(cut.frontier);
                if cut.at <= cut.frontier.next() {
                    Ok(())
                } else {
                    Err(format!("{} was answered under {}", cut.at, cut.frontier))
                }
            }
            SimFact::CutRefused { at, wall_ms, reason: why, .. } => {
                let ahead_ms = at.time().0.saturating_sub(*wall_ms);
                match why {
                    MomentRefusal::Future if *at <= self.latest => {
                        Err(format!("{at} is past, for {} was a frontier", self.latest))
                    }
                    MomentRefusal::Future if ahead_ms == 0 => {
                        Err(format!("{at} is not ahead of {wall_ms}"))
                    }
                    _ => Ok(()),
                }
            }
            SimFact::StampsAhead => {
                self.may_run_ahead = true;
                Ok(())
            }
            SimFact::Moment(moment)
                if moment.at.time().0 > moment.wall_ms + FAR_MS && !self.may_run_ahead =>
            {
                Err(format!("{} lies in the far future, and was read", moment.at))
            }
            _ => Ok(()),
        }
    }
}
