//! A clock that cannot be trusted stamps nothing: no stamp is further ahead of the wall clock than the
//! largest skew, until somebody confirms a wall clock that is behind; and while the wall clock has jumped,
//! nothing is accepted.

use std::collections::BTreeMap;

use super::{Invariant, Verdict};
use crate::audit::Audit;
use crate::facts::Fact;
use crate::ledger::{Ledger, Step};

/// `clock.skew-max`, as it is if nobody sets it.
const SKEW_MAX_MS: u64 = 500;

#[derive(Default)]
pub(super) struct FencedRefuses {
    /// Since when the clock is mistrusted.
    mistrusted: Option<Step>,
    /// Acknowledged since the last audit.
    acked: BTreeMap<u64, u64>,
    /// Stamps may be ahead of the wall clock: somebody has confirmed it so.
    may_run_ahead: bool,
}

impl Invariant for FencedRefuses {
    fn name(&self) -> &'static str {
        "fenced_refuses"
    }

    fn on_fact(&mut self, fact: &Fact, step: Step, ledger: &Ledger) -> Verdict {
        match fact {
            Fact::Mistrusted(true) => self.mistrusted = Some(step),
            Fact::Mistrusted(false) => self.mistrusted = None,
            Fact::RanAhead => self.may_run_ahead = true,
            Fact::Acked { batch: id } => {
                let batch = ledger.batch(*id);
                if self.mistrusted.is_some_and(|since| batch.sent > since) {
                    return Err(format!("batch {id} was accepted under a clock that jumped"));
                }
                let acked = batch.acked.filter(|acked| acked.clock_steps == batch.clock_steps);
                self.acked.extend(acked.map(|acked| (*id, acked.wall_ms)));
            }
            _ => {}
        }
        Ok(())
    }

    fn on_audit(&mut self, audit: &Audit, _ledger: &Ledger) -> Verdict {
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
