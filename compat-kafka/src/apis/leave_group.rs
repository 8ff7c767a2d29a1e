//! LeaveGroup (13): members leave, of their own will or by an administrator's.

use std::sync::Arc;

use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use crate::core::Kafka;
use crate::error_code::group_error;
use crate::groups::{GroupError, LeavingMember, LeftMember};
use crate::routes::{Context, Serve};

/// From here on, several may leave at once, and each gets an answer of its own.
const BATCHED: i16 = 3;

impl Serve for LeaveGroupRequest {
    const SERVED: VersionRange = VersionRange { min: 0, max: 5 };

    async fn serve(self, kafka: &Arc<Kafka>, context: &Context) -> LeaveGroupResponse {
        let is_batched = context.version >= BATCHED;
        let group = self.group_id.to_string();
        let leaving = if is_batched { many(self) } else { vec![one(self)] };
        match kafka.groups.leave(&group, &leaving) {
            Err(error) => LeaveGroupResponse::default().with_error_code(group_error(error).code()),
            Ok(left) if is_batched => {
                LeaveGroupResponse::default().with_members(left.into_iter().map(answered).collect())
            }
            Ok(left) => {
                let error = left.first().and_then(|one| one.error);
                LeaveGroupResponse::default().with_error_code(code(error))
            }
        }
    }
}

fn one(request: LeaveGroupRequest) -> LeavingMember {
    let member_id = request.member_id.to_string();
    LeavingMember { member_id, group_instance_id: None, reason: None }
}

fn many(request: LeaveGroupRequest) -> Vec<LeavingMember> {
    let leaving =
        |one: kafka_protocol::messages::leave_group_request::MemberIdentity| LeavingMember {
            member_id: one.member_id.to_string(),
            group_instance_id: one.group_instance_id.map(|id| id.to_string()),
            reason: one.reason.map(|reason| reason.to_string()),
        };
    request.members.into_iter().map(leaving).collect()
}

fn answered(left: LeftMember) -> MemberResponse {
    MemberResponse::default()
        .with_member_id(StrBytes::from_string(left.member_id))
        .with_group_instance_id(left.group_instance_id.map(StrBytes::from_string))
        .with_error_code(code(left.error))
}

fn code(error: Option<GroupError>) -> i16 {
    error.map_or(0, |error| group_error(error).code())
}
