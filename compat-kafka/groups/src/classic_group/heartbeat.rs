//! A member's heartbeat, whose response says whether to join again.

use std::time::Duration;

use super::super::error::GroupError;
use super::super::member_requests::GroupHeartbeatRequest;
use super::super::state::ClassicGroupState;
use super::ClassicGroup;

impl ClassicGroup {
    /// Records a heartbeat of a member. It counts even if the response is
    /// [`GroupError::RebalanceInProgress`].
    pub fn heartbeat(
        &mut self,
        now: Duration,
        request: &GroupHeartbeatRequest,
    ) -> Result<(), GroupError> {
        if self.state == ClassicGroupState::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        self.check_member(&request.member_id, request.group_instance_id.as_deref())?;
        self.check_generation(request.generation_id)?;
        self.refresh_session(now, &request.member_id);
        match self.state {
            ClassicGroupState::PreparingRebalance => Err(GroupError::RebalanceInProgress),
            _ => Ok(()),
        }
    }
}
