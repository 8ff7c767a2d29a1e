//! Streams groups (KIP-1071).

use super::super::error::GroupError;
use super::super::group::Group;
use super::super::streams_group::{StreamsGroupSummary, StreamsHeartbeat, StreamsHeartbeatAnswer};
use super::{GroupCoordinator, MissingGroupPolicy, check_group_id, wait_until_saved};

impl GroupCoordinator {
    /// Handles a heartbeat of a member of a streams group. It returns when what the answer shows is
    /// stored.
    pub async fn streams_heartbeat(
        &self,
        group: &str,
        request: StreamsHeartbeat,
    ) -> Result<StreamsHeartbeatAnswer, GroupError> {
        check_group_id(group)?;
        request.check(&self.shared.options)?;
        let policy =
            if request.joins() { MissingGroupPolicy::Create } else { MissingGroupPolicy::Refuse };
        let (answer, saved) = self.update_group(group, policy, |_, inner, now| {
            if self.shared.refuses_growth(inner, inner.group.growth_by_streams_heartbeat(&request))
            {
                return (Err(GroupError::TooManyBytes), None, Vec::new());
            }
            let answer = inner.group.streams_heartbeat(now, &request, &*self.shared.topics);
            let waits_for = answer.as_ref().ok().map(|answer| answer.member_id.clone());
            (answer, waits_for, Vec::new())
        })?;
        let answer = answer?;
        wait_until_saved(saved).await?;
        Ok(answer)
    }

    /// A streams group and its members.
    pub fn describe_streams(&self, group: &str) -> Result<StreamsGroupSummary, GroupError> {
        self.read_group(group, Group::describe_streams)?
    }
}
