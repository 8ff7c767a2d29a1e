//! SyncGroup (14): a member asks for its assignment; the leader brings it for all.

use std::sync::Arc;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::{SyncGroupRequest, SyncGroupResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use crate::core::Kafka;
use crate::error_code::group_error;
use crate::groups::{SyncAnswer, SyncRequest};
use crate::routes::{Context, Serve};

/// From here on, a member must say which protocol it knows of.
const NAMES_PROTOCOL: i16 = 5;

impl Serve for SyncGroupRequest {
    const SERVED: VersionRange = VersionRange { min: 0, max: 5 };

    async fn serve(self, kafka: &Arc<Kafka>, context: &Context) -> SyncGroupResponse {
        let names_protocol = self.protocol_type.is_some() && self.protocol_name.is_some();
        if context.version >= NAMES_PROTOCOL && !names_protocol {
            let error = ResponseError::InconsistentGroupProtocol;
            return SyncGroupResponse::default().with_error_code(error.code());
        }
        let group = self.group_id.to_string();
        answered(kafka.groups.sync(&group, asked(self)).await)
    }
}

fn asked(request: SyncGroupRequest) -> SyncRequest {
    let assignments = request.assignments.into_iter();
    SyncRequest {
        member_id: request.member_id.to_string(),
        group_instance_id: request.group_instance_id.map(|id| id.to_string()),
        generation_id: request.generation_id,
        protocol_type: request.protocol_type.map(|name| name.to_string()),
        protocol_name: request.protocol_name.map(|name| name.to_string()),
        assignments: assignments.map(|one| (one.member_id.to_string(), one.assignment)).collect(),
    }
}

fn answered(answer: SyncAnswer) -> SyncGroupResponse {
    SyncGroupResponse::default()
        .with_error_code(answer.error.map_or(0, |error| group_error(error).code()))
        .with_protocol_type(answer.protocol_type.map(StrBytes::from_string))
        .with_protocol_name(answer.protocol_name.map(StrBytes::from_string))
        .with_assignment(answer.assignment)
}
