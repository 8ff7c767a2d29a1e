//! No two topics exist at a time whose names differ only by `.` and `_`: the names of their metrics
//! would be the same.

use std::collections::BTreeMap;

use super::{Invariant, InvariantResult};
use crate::audit::NodeAudit;
use crate::ledger::SimLedger;

pub(super) struct TopicNamesDoNotCollide;

impl Invariant for TopicNamesDoNotCollide {
    fn name(&self) -> &'static str {
        "topic_names_do_not_collide"
    }

    fn on_audit(&mut self, audit: &NodeAudit, _: &SimLedger) -> InvariantResult {
        let mut names: BTreeMap<String, &str> = BTreeMap::new();
        for partition in audit.partitions.iter().filter(|partition| partition.deleted.is_none()) {
            let name = partition.topic.as_str();
            let other = names.insert(name.replace('.', "_"), name);
            if let Some(other) = other.filter(|other| *other != name) {
                return Err(format!("topics {name} and {other} exist"));
            }
        }
        Ok(())
    }
}
