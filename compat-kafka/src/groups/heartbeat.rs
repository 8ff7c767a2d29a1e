//! A member says that it lives, and hears whether to join again.

use std::time::Duration;

use super::error::GroupError;
use super::machine::Group;
use super::state::GroupState;

/// A member says that it lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatRequest {
    /// The member's id.
    pub member_id: String,
    /// The member's instance id.
    pub group_instance_id: Option<String>,
    /// The generation that the member is part of.
    pub generation_id: i32,
}

impl Group {
    /// A member says that it lives. [`GroupError::RebalanceInProgress`] counts as a sign of life.
    pub fn heartbeat(
        &mut self,
        now: Duration,
        request: &HeartbeatRequest,
    ) -> Result<(), GroupError> {
        if self.state == GroupState::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        self.check_member(&request.member_id, request.group_instance_id.as_deref())?;
        self.check_generation(request.generation_id)?;
        self.touch(now, &request.member_id);
        match self.state {
            GroupState::PreparingRebalance => Err(GroupError::RebalanceInProgress),
            _ => Ok(()),
        }
    }
}
