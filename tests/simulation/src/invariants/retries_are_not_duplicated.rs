//! No batch is twice in a partition, however often it was sent. The batches of an idempotent
//! producer are in the order of their sequence numbers.

use std::collections::{BTreeMap, BTreeSet};

use super::{Invariant, InvariantResult};
use crate::audit::NodeAudit;
use crate::ledger::SimLedger;

pub(super) struct NoRetryDuplicates;

impl Invariant for NoRetryDuplicates {
    fn name(&self) -> &'static str {
        "retries_are_not_duplicated"
    }

    fn on_audit(&mut self, audit: &NodeAudit, ledger: &SimLedger) -> InvariantResult {
        if !audit.has_all_entries() {
            return Ok(());
        }
        let mut found = BTreeSet::new();
        for held in &audit.partitions {
            let mut last: BTreeMap<i64, i32> = BTreeMap::new();
            for (id, base) in held.entries.iter().filter_map(|e| Some((e.batch()?, e.base))) {
                // A retry goes by the topic's name, which another topic may have by now.
                let scope = ledger.batch(id).sequence.map(|_| held.place);
                if !found.insert((id, scope)) {
                    return Err(format!("batch {id} is there twice: {:?}", ledger.batch(id)));
                }
                let Some((producer, sequence)) = ledger.batch(id).sequence else { continue };
                let before = last.insert(producer, sequence);
                if before.is_some_and(|before| before >= sequence) {
                    return Err(format!("{sequence} of {producer} at {base} follows {before:?}"));
                }
            }
        }
        Ok(())
    }
}
