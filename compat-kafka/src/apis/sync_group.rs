//! SyncGroup (14): a member asks for its assignment. The leader sends it for all.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::group_error;
use kafka_groups::{SyncRequest, SyncResult};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{SyncGroupRequest, SyncGroupResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// From here on, a member must name the protocol that it knows.
const PROTOCOL_REQUIRED: i16 = 5;

impl ApiHandler for SyncGroupRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 5 };

    async fn handle(self, kafka: &Arc<KafkaServer>, context: &RequestContext) -> SyncGroupResponse {
        let names_protocol = self.protocol_type.is_some() && self.protocol_name.is_some();
        if context.version >= PROTOCOL_REQUIRED && !names_protocol {
            let error = ResponseError::InconsistentGroupProtocol;
            return SyncGroupResponse::default().with_error_code(error.code());
        }
        let group = Resource::group(&self.group_id);
        if let Err(error) = kafka.authorize(context, Operation::Read, group) {
            return SyncGroupResponse::default().with_error_code(error.code());
        }
        let group = self.group_id.to_string();
        to_response(kafka.coordinators.groups.sync(&group, to_sync_request(self)).await)
    }
}

fn to_sync_request(request: SyncGroupRequest) -> SyncRequest {
    let assignments = request.assignments.into_iter();
    SyncRequest {
        member_id: request.member_id.to_string(),
        group_instance_id: request.group_instance_id.map(|id| id.to_string()),
        generation_id: request.generation_id,
        protocol_type: request.protocol_type.map(|name| name.to_string()),
        protocol_name: request.protocol_name.map(|name| name.to_string()),
        assignments: assignments
            .map(|assignment| (assignment.member_id.to_string(), assignment.assignment))
            .collect(),
    }
}

fn to_response(answer: SyncResult) -> SyncGroupResponse {
    SyncGroupResponse::default()
        .with_error_code(answer.error.map_or(0, |error| group_error(error).code()))
        .with_protocol_type(answer.protocol_type.map(StrBytes::from_string))
        .with_protocol_name(answer.protocol_name.map(StrBytes::from_string))
        .with_assignment(answer.assignment)
}
