//! JoinGroup (11): a member joins its group's next generation, and waits for it to begin.

use std::sync::Arc;
use std::time::Duration;

use engine::security::{Operation, Resource};
use kafka_errors::group_error;
use kafka_groups::{
    CONSUMER_PROTOCOL_TYPE, ConsumerSubscription, JoinRequest, JoinResult, JoinedMember,
};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{JoinGroupRequest, JoinGroupResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use crate::apis::topic_permissions::TopicPermissions;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

#[cfg(test)]
pub(crate) mod test_kafka_api;
#[cfg(test)]
mod tests;

/// From here on, a rebalance has its own timeout.
const REBALANCE_TIMEOUT: i16 = 1;
/// From here on, a member gets its id before it may join (KIP-394).
const KNOWN_MEMBER_ID: i16 = 4;
/// From here on, the protocol in a response may be null.
const NULL_PROTOCOL: i16 = 7;
/// From here on, a leader may be told to skip the assignment (KIP-814).
const SKIP_ASSIGNMENT: i16 = 9;

impl ApiHandler for JoinGroupRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 9 };

    async fn handle(self, kafka: &Arc<KafkaServer>, context: &RequestContext) -> JoinGroupResponse {
        let group = Resource::group(&self.group_id);
        if let Err(error) = kafka.authorize(context, Operation::Read, group) {
            return JoinGroupResponse::default()
                .with_error_code(error.code())
                .with_generation_id(-1)
                .with_protocol_name(protocol_name(None, context.version));
        }
        let group = self.group_id.to_string();
        if names_hidden_moment(kafka, context, &self) {
            let refused = ResponseError::TopicAuthorizationFailed.code();
            let protocol = protocol_name(None, context.version);
            return JoinGroupResponse::default()
                .with_error_code(refused)
                .with_generation_id(-1)
                .with_protocol_name(protocol);
        }
        let answer = kafka.groups_for(context).join(&group, to_join_request(self, context)).await;
        to_response(answer, context.version)
    }
}

/// True if a consumer subscribes to a moment of a topic of which it may not know. A group that also
/// has members of the new protocol tells its members whether there was such a topic. (Kafka does so
/// for topics of the present.)
fn names_hidden_moment(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: &JoinGroupRequest,
) -> bool {
    if !kafka.is_authorizing() || &*request.protocol_type != CONSUMER_PROTOCOL_TYPE {
        return false;
    }
    let subscriptions = request.protocols.iter();
    let subscriptions =
        subscriptions.filter_map(|protocol| ConsumerSubscription::parse(protocol.metadata.clone()));
    let mut permissions = TopicPermissions::new(kafka, context, Operation::Describe);
    subscriptions.flat_map(|subscription| subscription.topics).any(|name| {
        let moment = hlc::split_moment_topic(&name);
        moment.is_some_and(|(topic, _)| !permissions.allows(topic))
    })
}

fn to_join_request(request: JoinGroupRequest, context: &RequestContext) -> JoinRequest {
    let session_timeout = millis(request.session_timeout_ms);
    let rebalance_timeout = match context.version {
        REBALANCE_TIMEOUT.. => millis(request.rebalance_timeout_ms),
        _ => session_timeout,
    };
    let protocols = request.protocols.into_iter();
    JoinRequest {
        member_id: request.member_id.to_string(),
        group_instance_id: request.group_instance_id.map(|id| id.to_string()),
        client_id: context.client_id.clone(),
        client_host: context.client_host(),
        session_timeout,
        rebalance_timeout,
        protocol_type: request.protocol_type.to_string(),
        protocols: protocols
            .map(|protocol| (protocol.name.to_string(), protocol.metadata))
            .collect(),
        require_known_member_id: context.version >= KNOWN_MEMBER_ID,
        supports_skip_assignment: context.version >= SKIP_ASSIGNMENT,
        reason: request.reason.map(|reason| reason.to_string()),
    }
}

fn millis(ms: i32) -> Duration {
    Duration::from_millis(ms.try_into().unwrap_or(0))
}

fn to_response(answer: JoinResult, version: i16) -> JoinGroupResponse {
    JoinGroupResponse::default()
        .with_error_code(answer.error.map_or(0, |error| group_error(error).code()))
        .with_generation_id(answer.generation_id)
        .with_protocol_type(answer.protocol_type.map(StrBytes::from_string))
        .with_protocol_name(protocol_name(answer.protocol_name, version))
        .with_leader(StrBytes::from_string(answer.leader))
        .with_skip_assignment(answer.skip_assignment)
        .with_member_id(StrBytes::from_string(answer.member_id))
        .with_members(answer.members.into_iter().map(member).collect())
}

fn protocol_name(name: Option<String>, version: i16) -> Option<StrBytes> {
    let name = name.map(StrBytes::from_string);
    if version < NULL_PROTOCOL { name.or(Some(StrBytes::new())) } else { name }
}

fn member(member: JoinedMember) -> JoinGroupResponseMember {
    JoinGroupResponseMember::default()
        .with_member_id(StrBytes::from_string(member.member_id))
        .with_group_instance_id(member.group_instance_id.map(StrBytes::from_string))
        .with_metadata(member.metadata)
}
