//! B2: everything sent after a frontier was answered is stamped above it. An entry that is not
//! visible while a frontier holds never appears below it.

use hlc::Hlc;

use super::{Invariant, InvariantResult};
use crate::audit::{NodeAudit, PartitionKey};
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

#[derive(Default)]
pub(super) struct NothingBelowTheFrontier {
    /// Promises by the time of their response, each later than all before it: no later stamp is as
    /// early.
    promised: Vec<(LedgerStep, Hlc)>,
    /// In the middle of a group: a frontier, and the readable end of each partition.
    sync_observations: Vec<(Hlc, Vec<(PartitionKey, u64)>)>,
}

impl NothingBelowTheFrontier {
    fn promise(&mut self, step: LedgerStep, promise: Hlc) {
        if self.promised.last().is_none_or(|(_, known)| *known < promise) {
            self.promised.push((step, promise));
        }
    }

    fn promised_before(&self, step: LedgerStep) -> Hlc {
        let before = self.promised.partition_point(|(answered, _)| *answered < step);
        self.promised[..before].last().map_or(Hlc::ZERO, |(_, promise)| *promise)
    }
}

impl Invariant for NothingBelowTheFrontier {
    fn name(&self) -> &'static str {
        "nothing_below_the_frontier"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        step: LedgerStep,
        _ledger: &SimLedger,
    ) -> InvariantResult {
        match fact {
            SimFact::Cut { cut, .. } => self.promise(step, cut.frontier.max(cut.at.previous())),
            SimFact::Moment(moment) => self.promise(step, moment.at.previous()),
            SimFact::Topics { topics: names, .. } => self.promise(step, names.frontier),
            SimFact::Offsets { offsets, .. } => self.promise(step, offsets.frontier),
            SimFact::SyncObservation { frontier, ends } => {
                self.sync_observations.push((*frontier, ends.clone()))
            }
            // Entries that were not on stable storage may be taken back, and their offsets reused.
            SimFact::NodeExited(_) => self.sync_observations.clear(),
            _ => {}
        }
        Ok(())
    }

    fn on_audit(&mut self, audit: &NodeAudit, ledger: &SimLedger) -> InvariantResult {
        for held in &audit.partitions {
            for (id, entry) in held.entries.iter().filter_map(|e| Some((e.batch()?, e))) {
                let batch = ledger.batch(id);
                let promised = self.promised_before(batch.sent);
                if entry.stamp <= promised {
                    let stamp = entry.stamp;
                    return Err(format!(
                        "batch {id} has {stamp}, and {promised} was promised before it was sent: {batch:?}"
                    ));
                }
            }
        }
        for (frontier, ends) in std::mem::take(&mut self.sync_observations) {
            for held in &audit.partitions {
                let Some((_, end)) = ends.iter().find(|(place, _)| *place == held.place) else {
                    continue;
                };
                let late = held.entries.iter().find(|entry| entry.base >= *end);
                if let Some(late) = late.filter(|late| late.stamp <= frontier) {
                    let (name, stamp) = (&held.topic, late.stamp);
                    return Err(format!("{name}: {stamp} was not visible under {frontier}"));
                }
            }
        }
        Ok(())
    }
}
