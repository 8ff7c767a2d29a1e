//! LeaveGroup (13): members leave, or an administrator removes them.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::group_error;
use kafka_groups::{GroupError, LeaveMemberRequest, LeaveMemberResult};
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// From here on, several members may leave at once, and each gets its own result.
const BATCHED: i16 = 3;

impl ApiHandler for LeaveGroupRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 5 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> LeaveGroupResponse {
        let group = Resource::group(&self.group_id);
        if let Err(error) = kafka.authorize(context, Operation::Read, group) {
            return LeaveGroupResponse::default().with_error_code(error.code());
        }
        let is_batched = context.version >= BATCHED;
        let group = self.group_id.to_string();
        let leaving = if is_batched { batched_members(self) } else { vec![single_member(self)] };
        match kafka.coordinators.groups.leave(&group, &leaving).await {
            Err(error) => LeaveGroupResponse::default().with_error_code(group_error(error).code()),
            Ok(results) if is_batched => LeaveGroupResponse::default()
                .with_members(results.into_iter().map(to_response).collect()),
            Ok(results) => {
                let error = results.first().and_then(|result| result.error);
                LeaveGroupResponse::default().with_error_code(error_code(error))
            }
        }
    }
}

fn single_member(request: LeaveGroupRequest) -> LeaveMemberRequest {
    let member_id = request.member_id.to_string();
    LeaveMemberRequest { member_id, group_instance_id: None, reason: None }
}

fn batched_members(request: LeaveGroupRequest) -> Vec<LeaveMemberRequest> {
    let leaving = |member: kafka_protocol::messages::leave_group_request::MemberIdentity| {
        LeaveMemberRequest {
            member_id: member.member_id.to_string(),
            group_instance_id: member.group_instance_id.map(|id| id.to_string()),
            reason: member.reason.map(|reason| reason.to_string()),
        }
    };
    request.members.into_iter().map(leaving).collect()
}

fn to_response(result: LeaveMemberResult) -> MemberResponse {
    MemberResponse::default()
        .with_member_id(StrBytes::from_string(result.member_id))
        .with_group_instance_id(result.group_instance_id.map(StrBytes::from_string))
        .with_error_code(error_code(result.error))
}

fn error_code(error: Option<GroupError>) -> i16 {
    error.map_or(0, |error| group_error(error).code())
}
