//! The assignors of the server: which member is to have which partition.

use std::collections::{BTreeMap, BTreeSet};

use engine::TopicId;

use super::super::assignor::Assignor;
use super::super::partitions::PartitionSet;

mod range;
#[cfg(test)]
mod tests;
mod uniform;

impl Assignor {
    /// Assigns every partition of every topic that a member subscribes to, to one of those members.
    pub(super) fn assign(self, task: &AssignmentTask<'_>) -> Vec<PartitionSet> {
        match self {
            Assignor::Uniform => uniform::assign(task),
            Assignor::Range => range::assign(task),
        }
    }
}

/// The members and the partitions of an assignment.
pub(super) struct AssignmentTask<'a> {
    /// By member id.
    pub(super) members: Vec<AssignableMember<'a>>,
    /// The number of partitions of each topic that any member subscribes to.
    pub(super) topics: &'a BTreeMap<TopicId, u32>,
}

/// A member, as assignors see it.
pub(super) struct AssignableMember<'a> {
    pub(super) id: &'a str,
    pub(super) instance: Option<&'a str>,
    /// The topics that it subscribes to: those in [`AssignmentTask::topics`].
    pub(super) subscribed: &'a BTreeSet<TopicId>,
    /// Its last target.
    pub(super) before: &'a PartitionSet,
}
