//! In each partition stamps rise strictly with offsets, and no two batches have one stamp.

use std::collections::BTreeMap;

use super::{Invariant, InvariantResult};
use crate::audit::NodeAudit;
use crate::ledger::SimLedger;

pub(super) struct StampsIncrease;

impl Invariant for StampsIncrease {
    fn name(&self) -> &'static str {
        "stamps_increase"
    }

    fn on_audit(&mut self, audit: &NodeAudit, _ledger: &SimLedger) -> InvariantResult {
        let mut all = BTreeMap::new();
        for held in &audit.partitions {
            if !held.entries.is_sorted_by(|a, b| a.stamp < b.stamp) {
                let stamps: Vec<_> = held.entries.iter().map(|entry| entry.stamp).collect();
                return Err(format!("{}/{}: {stamps:?}", held.topic, held.place.1));
            }
            for entry in &held.entries {
                let here = (&held.topic, held.place.1, entry.base);
                if let Some(there) = all.insert(entry.stamp, here) {
                    return Err(format!("{} is the stamp of {here:?} and {there:?}", entry.stamp));
                }
            }
        }
        Ok(())
    }
}
