//! No two members of a group own a partition at a time: a member owns what it was told last, until
//! it is told otherwise, leaves, or has not been heard for as long as its session lasts.

use std::collections::BTreeMap;

use super::{Invariant, InvariantResult};
use crate::facts::{OwnedPartitions, SimFact};
use crate::ledger::{LedgerStep, SimLedger};

#[derive(Default)]
pub(super) struct OneOwner {
    owned: BTreeMap<usize, OwnedPartitions>,
}

impl Invariant for OneOwner {
    fn name(&self) -> &'static str {
        "partitions_have_one_owner"
    }

    fn on_fact(
        &mut self,
        fact: &SimFact,
        _step: LedgerStep,
        _ledger: &SimLedger,
    ) -> InvariantResult {
        let SimFact::Owned(owned) = fact else { return Ok(()) };
        for other in self.owned.values() {
            let is_alive = other.member != owned.member && other.until > owned.now;
            let shared = other.partitions.intersection(&owned.partitions).next();
            if is_alive && let Some(partition) = shared {
                return Err(format!("{partition:?} is owned by {other:?}, and by {owned:?}"));
            }
        }
        self.owned.insert(owned.member, owned.clone());
        Ok(())
    }
}
