//! Heartbeat (12): a member is alive, and learns whether it must join again.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::group_error;
use kafka_protocol::messages::{HeartbeatRequest, HeartbeatResponse};
use kafka_protocol::protocol::VersionRange;

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for HeartbeatRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 4 };

    async fn handle(self, kafka: &Arc<KafkaServer>, context: &RequestContext) -> HeartbeatResponse {
        let group = Resource::group(&self.group_id);
        if let Err(error) = kafka.authorize(context, Operation::Read, group) {
            return HeartbeatResponse::default().with_error_code(error.code());
        }
        let request = kafka_groups::GroupHeartbeatRequest {
            member_id: self.member_id.to_string(),
            group_instance_id: self.group_instance_id.map(|id| id.to_string()),
            generation_id: self.generation_id,
        };
        let result = kafka.coordinators.groups.heartbeat(&self.group_id, &request);
        HeartbeatResponse::default()
            .with_error_code(result.err().map_or(0, |error| group_error(error).code()))
    }
}
