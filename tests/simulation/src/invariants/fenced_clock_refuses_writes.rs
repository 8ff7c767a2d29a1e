//! A clock that cannot be trusted issues no stamps: no stamp is further ahead of the wall clock
//! than the largest skew, until a wall clock that is behind is confirmed. While the wall clock has
//! jumped, no write is accepted.

use std::collections::BTreeMap;

use super::{Invariant, InvariantResult};
use crate::audit::NodeAudit;
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

/// The default of `clock.skew-max`.
const SKEW_MAX_MS: u64 = 500;

#[derive(Default)]
pub(super) struct FencedClockRefusesWrites {
    /// Since when the clock is not trusted.
    clock_jumped: Option<LedgerStep>,
    /// Acknowledged since the last audit.
    acked: BTreeMap<u64, u64>,
    /// Stamps may be ahead of the wall clock, because it was confirmed behind them.
    may_run_ahead: bool,
}

impl Invariant for FencedClockRefusesWrites {
    fn name(&self) -> &'static str {
        "fenced_clock_refuses_writes"
    }

    fn on_fact(&mut self, fact: &SimFact, step: LedgerStep, ledger: &SimLedger) -> InvariantResult {
        match fact {
            SimFact::ClockJumped(true) => self.clock_jumped = Some(step),
            SimFact::ClockJumped(false) => self.clock_jumped = None,
            SimFact::StampsAhead => self.may_run_ahead = true,
            SimFact::Acked { batch: id } => {
                let batch = ledger.batch(*id);
                if self.clock_jumped.is_some_and(|since| batch.sent > since) {
                    return Err(format!("batch {id} was accepted under a clock that jumped"));
                }
                let acked = batch.acked.filter(|acked| acked.clock_steps == batch.clock_steps);
                self.acked.extend(acked.map(|acked| (*id, acked.wall_ms)));
            }
            _ => {}
        }
        Ok(())
    }

    fn on_audit(&mut self, audit: &NodeAudit, _ledger: &SimLedger) -> InvariantResult {
        for entry in audit.partitions.iter().flat_map(|held| &held.entries) {
            let Some(wall_ms) = entry.batch().and_then(|id| self.acked.remove(&id)) else {
                continue;
            };
            let stamp_ms = entry.stamp.time().0;
            if stamp_ms > wall_ms + SKEW_MAX_MS && !self.may_run_ahead {
                return Err(format!(
                    "{} was given out when the clock showed {wall_ms}",
                    entry.stamp
                ));
            }
        }
        Ok(())
    }
}
