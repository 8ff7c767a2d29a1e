//! While a pin stands, nothing that its moment shows goes, in the topics that it is about: no start moves,
//! no compaction goes beyond it, and no read of the moment is refused. Once no pin stands, what is old goes.

use super::{Invariant, Verdict};
use crate::actors::SHORT_RETENTION_MS;
use crate::audit::{Audit, Partition};
use crate::facts::{Fact, Refusal};
use crate::ledger::{Ledger, Pin, Step};

/// How much older than its retention a batch may be: it went by the clock of a little before.
const GRACE_MS: u64 = 50;

#[derive(Default)]
pub(super) struct PinsKeepThePast {
    /// What was old by this clock has gone.
    let_go_ms: Option<u64>,
}

impl Invariant for PinsKeepThePast {
    fn name(&self) -> &'static str {
        "pins_keep_the_past"
    }

    fn on_fact(&mut self, fact: &Fact, _step: Step, ledger: &Ledger) -> Verdict {
        let is_refused = |pin: &&Pin| match fact {
            Fact::CutRefused { at, why: Refusal::GivenUp, .. } => {
                pin.at == *at && pin.topics.is_none()
            }
            Fact::MomentRefused { topic, at, why: Refusal::Invalid } => {
                let held = ledger.partition_at(topic, 0, *at);
                pin.at == *at && held.is_some_and(|held| pin.is_about(&held.now))
            }
            _ => false,
        };
        if let Fact::LetGo { wall_ms } = fact {
            self.let_go_ms = Some(*wall_ms);
        }
        match ledger.pins.iter().filter(|pin| !pin.is_over).find(is_refused) {
            None => Ok(()),
            Some(pin) => Err(format!("{fact:?}, and {} keeps it", pin.name)),
        }
    }

    fn on_audit(&mut self, audit: &Audit, ledger: &Ledger) -> Verdict {
        for pin in ledger.pins.iter().filter(|pin| !pin.is_over) {
            check(pin, audit).map_err(|why| format!("{} at {}: {why}", pin.name, pin.at))?;
        }
        let Some(wall_ms) = self.let_go_ms.filter(|_| audit.is_whole()) else { return Ok(()) };
        self.let_go_ms = None;
        let short = audit.partitions.iter().filter(|held| held.topic == "short");
        for entry in short.flat_map(|held| &held.entries) {
            if entry.stamp.time().0 + SHORT_RETENTION_MS + GRACE_MS < wall_ms {
                let (base, stamp) = (entry.base, entry.stamp);
                return Err(format!("the batch at {base}, of {stamp}, is there at {wall_ms}"));
            }
        }
        Ok(())
    }
}

fn check(pin: &Pin, audit: &Audit) -> Verdict {
    for (place, start) in &pin.starts {
        let held = audit.partitions.iter().find(|held| held.place == *place);
        let Some(Partition { topic, start: now, compacted_to, .. }) = held else {
            return Err(format!("{place:?} is gone"));
        };
        if now > start {
            return Err(format!("{topic}/{} began at {start}, and begins at {now}", place.1));
        }
        if *compacted_to > pin.at {
            return Err(format!("{topic}/{} is compacted to {compacted_to}", place.1));
        }
    }
    Ok(())
}
