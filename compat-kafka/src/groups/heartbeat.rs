//! A member's heartbeat, whose response says whether to join again.

use std::time::Duration;

use super::classic_group::ClassicGroup;
use super::error::GroupError;
use super::state::ClassicGroupState;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupHeartbeatRequest {
    pub member_id: String,
    pub group_instance_id: Option<String>,
    /// The generation that the member is part of.
    pub generation_id: i32,
}

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
