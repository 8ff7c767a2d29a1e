//! Members leave, or an administrator removes them.

use std::time::Duration;

use super::super::effects::GroupEffect;
use super::super::error::GroupError;
use super::super::member_requests::{LeaveMemberRequest, LeaveMemberResult};
use super::super::state::ClassicGroupState;
use super::ClassicGroup;

impl ClassicGroup {
    /// Removes members from the group: one result each, in order.
    pub fn leave(
        &mut self,
        now: Duration,
        leaving: &[LeaveMemberRequest],
    ) -> (Result<Vec<LeaveMemberResult>, GroupError>, Vec<GroupEffect>) {
        if self.state == ClassicGroupState::Dead {
            return (Err(GroupError::CoordinatorNotAvailable), Vec::new());
        }
        let (members, pending) = (self.roster.len(), self.pending.len());
        let results =
            leaving.iter().map(|request| request.result(self.leave_one(request).err())).collect();
        if self.roster.len() < members {
            self.members_left(now);
        } else if self.pending.len() < pending {
            self.complete_join_if_due(now);
        }
        (Ok(results), self.take_effects())
    }

    fn leave_one(&mut self, leaving: &LeaveMemberRequest) -> Result<(), GroupError> {
        let id = self.id_of(leaving)?.to_owned();
        if self.pending.remove(&id) {
            self.sessions.cancel(&id);
            return Ok(());
        }
        self.check_member(&id, leaving.group_instance_id.as_deref())?;
        self.remove_member(&id, GroupError::UnknownMemberId);
        Ok(())
    }

    fn id_of<'a>(&'a self, leaving: &'a LeaveMemberRequest) -> Result<&'a str, GroupError> {
        if !leaving.member_id.is_empty() {
            return Ok(&leaving.member_id);
        }
        let instance = leaving.group_instance_id.as_ref().ok_or(GroupError::UnknownMemberId)?;
        self.roster.id_of_instance(instance).ok_or(GroupError::UnknownMemberId)
    }

    fn members_left(&mut self, now: Duration) {
        match self.state {
            ClassicGroupState::PreparingRebalance => self.complete_join_if_due(now),
            _ => self.member_lost(now, "members left"),
        }
    }
}
