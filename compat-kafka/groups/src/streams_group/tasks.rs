//! The tasks of a member: active ones, and standbys that keep copies of their state.

use serde::{Deserialize, Serialize};

use super::super::partitions::{
    AssignedPartitions, PartitionSet, bytes, has_all, has_any, set_bytes,
};

/// Tasks by the id of their subtopology.
pub type TaskSet = PartitionSet<String>;

/// Tasks by the id of their subtopology, each with the member epoch at which it was assigned.
pub(super) type AssignedTasks = AssignedPartitions<String>;

/// The role of a member in a task: it runs the task, or keeps a copy of its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum TaskRole {
    Active,
    Standby,
}

/// Tasks that a member is to have, or says that it has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberTasks {
    pub active: TaskSet,
    pub standby: TaskSet,
}

/// Tasks that a member was given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenTasks {
    pub active: AssignedTasks,
    pub standby: AssignedTasks,
}

impl MemberTasks {
    pub fn is_empty(&self) -> bool {
        self.active.is_empty() && self.standby.is_empty()
    }

    /// About the memory that they take.
    pub(super) fn bytes(&self) -> usize {
        set_bytes(&self.active) + set_bytes(&self.standby)
    }
}

impl GivenTasks {
    pub fn is_empty(&self) -> bool {
        self.active.is_empty() && self.standby.is_empty()
    }

    /// True if any of these tasks is among them.
    pub(super) fn has_any(&self, owned: &MemberTasks) -> bool {
        has_any(&self.active, &owned.active) || has_any(&self.standby, &owned.standby)
    }

    /// True if all of these tasks are among them.
    pub(super) fn has_all(&self, owned: &MemberTasks) -> bool {
        has_all(&self.active, &owned.active) && has_all(&self.standby, &owned.standby)
    }

    /// The tasks, without epochs.
    pub fn tasks(&self) -> MemberTasks {
        let task_set = |tasks: &AssignedTasks| {
            let tasks = tasks.iter();
            tasks.map(|(id, indexes)| (id.clone(), indexes.keys().copied().collect())).collect()
        };
        MemberTasks { active: task_set(&self.active), standby: task_set(&self.standby) }
    }

    /// About the memory that they take.
    pub(super) fn bytes(&self) -> usize {
        let bytes_of = |tasks: &AssignedTasks| {
            bytes(tasks.len(), tasks.values().map(|indexes| indexes.len()).sum())
        };
        bytes_of(&self.active) + bytes_of(&self.standby)
    }
}
