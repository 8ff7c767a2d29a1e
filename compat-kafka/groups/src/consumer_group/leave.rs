//! Members that leave, or are removed.

use std::time::Duration;

use super::super::error::GroupError;
use super::heartbeat::{ConsumerHeartbeat, ConsumerHeartbeatAnswer};
use super::member::{LEFT_EPOCH, MemberState};
use super::{ConsumerGroup, MemberTimer};

impl ConsumerGroup {
    /// Handles a heartbeat that leaves. Its answer may be given once all changes are stored.
    pub fn leave(
        &mut self,
        now: Duration,
        request: &ConsumerHeartbeat,
    ) -> Result<ConsumerHeartbeatAnswer, GroupError> {
        let id = self.leaving_member(request)?;
        if request.member_epoch == LEFT_EPOCH {
            self.leave_for_a_while(&id);
        } else {
            self.fence(now, std::slice::from_ref(&id));
        }
        Ok(ConsumerHeartbeatAnswer {
            member_id: request.member_id.clone(),
            member_epoch: request.member_epoch,
            interval: Duration::ZERO,
            assignment: None,
        })
    }

    fn leaving_member(&self, request: &ConsumerHeartbeat) -> Result<String, GroupError> {
        let Some(instance) = &request.instance_id else {
            return if self.base.members.contains_key(&request.member_id) {
                Ok(request.member_id.clone())
            } else {
                Err(GroupError::UnknownMemberId)
            };
        };
        match self.instances.get(instance) {
            None => Err(GroupError::UnknownMemberId),
            Some(holder) if *holder != request.member_id => Err(GroupError::FencedInstanceId),
            Some(holder) => Ok(holder.clone()),
        }
    }

    /// A static member keeps what it has until its session ends: one with its instance id may come
    /// back for it.
    fn leave_for_a_while(&mut self, id: &str) {
        let Some(mut member) = self.base.take(id) else { return };
        self.uncount(&member);
        (member.epoch, member.state) = (LEFT_EPOCH, MemberState::Stable);
        member.revoking.clear();
        for epoch in member.assigned.values_mut().flat_map(|indexes| indexes.values_mut()) {
            *epoch = 0;
        }
        self.count(&member);
        self.base.put(id, member);
        self.deadlines.cancel(&(id.to_owned(), MemberTimer::Revocation));
    }

    /// Removes members. Unless all others speak the classic protocol (then the group becomes a
    /// classic one), a new assignment is due.
    pub(super) fn fence(&mut self, now: Duration, ids: &[String]) {
        let mut is_any_gone = false;
        for id in ids {
            is_any_gone |= self.remove(now, id).is_some();
        }
        if is_any_gone {
            self.base.raise_epoch();
        }
    }
}
