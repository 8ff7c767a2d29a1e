//! Streams groups (KIP-1071).

use super::super::error::GroupError;
use super::super::group::Group;
use super::super::streams_group::{StreamsGroupSummary, StreamsHeartbeat, StreamsHeartbeatAnswer};
use super::{GroupCoordinator, check_group_id};

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
        let member_id = |answer: &StreamsHeartbeatAnswer| answer.member_id.clone();
        self.modern_heartbeat(group, request.joins(), member_id, |inner, now| {
            let growth = inner.group.growth_by_streams_heartbeat(&request);
            let answer = self
                .shared
                .check_growth(inner, growth)
                .and_then(|()| inner.group.streams_heartbeat(now, &request, &*self.shared.topics));
            (answer, Vec::new())
        })
        .await
    }

    /// A streams group and its members.
    pub fn describe_streams(&self, group: &str) -> Result<StreamsGroupSummary, GroupError> {
        self.read_group(group, Group::describe_streams)?
    }
}
