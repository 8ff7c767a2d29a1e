//! One step of a member towards its target (KIP-1071): as in KIP-848, a member first gives up what
//! it must, and confirms that by what it says it has. Only then it gets what nobody else has any
//! more.

use std::collections::BTreeMap;

use super::super::consumer_group::MemberState;
use super::member::StreamsGroupMember;
use super::tasks::{AssignedTasks, GivenTasks, MemberTasks, TaskRole, TaskSet};

/// The inputs of a step besides the member.
pub(super) struct StepContext<'a> {
    /// The epoch of the targets.
    pub(super) target_epoch: i32,
    /// The tasks that the member says it has; `None` if it does not say.
    pub(super) owned: Option<&'a MemberTasks>,
    /// True if others still have a task, so that this member must not have it yet.
    pub(super) is_held: &'a dyn Fn(&str, u32, TaskRole) -> bool,
}

impl StepContext<'_> {
    /// Moves the member one step on.
    pub(super) fn step(&self, member: &mut StreamsGroupMember) {
        match member.state {
            MemberState::Stable if member.epoch != self.target_epoch => {
                self.advance(member, member.epoch);
            }
            MemberState::Stable => {}
            MemberState::UnrevokedPartitions if self.may_own(&member.revoking) => {}
            // Kafka counts each time that a member gave tasks up.
            MemberState::UnrevokedPartitions => self.advance(member, member.epoch + 1),
            MemberState::UnreleasedPartitions => self.advance(member, member.epoch),
        }
    }

    /// True if the member may still have any of these tasks. It may have all if it does not say.
    fn may_own(&self, tasks: &GivenTasks) -> bool {
        self.owned.is_none_or(|owned| tasks.has_any(owned))
    }

    fn advance(&self, member: &mut StreamsGroupMember, epoch: i32) {
        let target = &member.target;
        let (kept, revoked) = split(&member.assigned.active, &target.active);
        let (kept_copies, revoked_copies) = split(&member.assigned.standby, &target.standby);
        let mut kept = GivenTasks { active: kept, standby: kept_copies };
        let revoked = GivenTasks { active: revoked, standby: revoked_copies };
        if !revoked.is_empty() && self.may_own(&revoked) {
            member.state = MemberState::UnrevokedPartitions;
            member.move_to(epoch);
            (member.assigned, member.revoking) = (kept, revoked);
            return;
        }
        let mut is_any_held = self.add_free(&mut kept.active, &target.active, TaskRole::Active);
        is_any_held |= self.add_free(&mut kept.standby, &target.standby, TaskRole::Standby);
        member.state =
            if is_any_held { MemberState::UnreleasedPartitions } else { MemberState::Stable };
        if member.epoch != self.target_epoch {
            member.move_to(self.target_epoch);
        }
        (member.assigned, member.revoking) = (kept, GivenTasks::default());
    }

    /// Adds the tasks of the target that nobody has. Returns whether others still have any.
    fn add_free(&self, tasks: &mut AssignedTasks, target: &TaskSet, role: TaskRole) -> bool {
        let mut is_any_held = false;
        for (id, indexes) in target {
            for index in indexes {
                if tasks.get(id).is_some_and(|indexes| indexes.contains_key(index)) {
                    continue;
                }
                if (self.is_held)(id, *index, role) {
                    is_any_held = true;
                } else {
                    tasks.entry(id.clone()).or_default().insert(*index, self.target_epoch);
                }
            }
        }
        is_any_held
    }
}

/// Splits tasks into those that are among the target, and those that are not.
fn split(assigned: &AssignedTasks, target: &TaskSet) -> (AssignedTasks, AssignedTasks) {
    let (mut kept, mut revoked) = (AssignedTasks::new(), AssignedTasks::new());
    for (id, indexes) in assigned {
        let target = target.get(id);
        let (kept_indexes, revoked_indexes): (BTreeMap<u32, i32>, BTreeMap<u32, i32>) = indexes
            .iter()
            .map(|(index, epoch)| (*index, *epoch))
            .partition(|(index, _)| target.is_some_and(|target| target.contains(index)));
        for (tasks, indexes) in [(&mut kept, kept_indexes), (&mut revoked, revoked_indexes)] {
            if !indexes.is_empty() {
                tasks.insert(id.clone(), indexes);
            }
        }
    }
    (kept, revoked)
}
