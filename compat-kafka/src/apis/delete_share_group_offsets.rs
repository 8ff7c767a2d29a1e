//! DeleteShareGroupOffsets (92): a share group without members forgets topics (KIP-932).

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::{engine_error, error_message, group_error};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::delete_share_group_offsets_response::DeleteShareGroupOffsetsResponseTopic;
use kafka_protocol::messages::{DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse};
use kafka_protocol::protocol::VersionRange;
use uuid::Uuid;

use super::offset_commit::coordinator_error;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for DeleteShareGroupOffsetsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DeleteShareGroupOffsetsResponse {
        match delete(kafka, context, self).await {
            Ok(topics) => DeleteShareGroupOffsetsResponse::default().with_responses(topics),
            Err(error) => DeleteShareGroupOffsetsResponse::default()
                .with_error_code(error.code())
                .with_error_message(Some(error_message(error))),
        }
    }
}

async fn delete(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: DeleteShareGroupOffsetsRequest,
) -> Result<Vec<DeleteShareGroupOffsetsResponseTopic>, ResponseError> {
    let group = request.group_id.as_str();
    kafka.authorize(context, Operation::Delete, Resource::group(group))?;
    kafka.coordinators.groups.describe_share(group).map_err(group_error)?;
    let hold = kafka.groups_for(context).hold(group).map_err(group_error)?;
    let stored = kafka.engine.groups().committed_offsets(Some(group));
    let stored = stored.map_err(|error| engine_error(&error))?;
    let mut deleted = Vec::new();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let name = topic.topic_name;
        let allowed = kafka.authorize(context, Operation::Read, Resource::topic(&name));
        let topic = allowed.and_then(|()| {
            let topic = kafka.engine.topics().named(&name);
            topic.ok_or(ResponseError::UnknownTopicOrPartition)
        });
        let error = topic.as_ref().err().copied();
        let topic_offsets =
            stored.iter().filter(|offset| *offset.topic == **name && error.is_none());
        deleted.extend(topic_offsets.map(|offset| (offset.topic.clone(), offset.partition)));
        let id = topic.as_ref().map_or(Uuid::nil(), |topic| Uuid::from_bytes(topic.id));
        topics.push(
            DeleteShareGroupOffsetsResponseTopic::default()
                .with_topic_name(name)
                .with_topic_id(id)
                .with_error_code(error.map_or(0, |error| error.code()))
                .with_error_message(error.map(error_message)),
        );
    }
    if !deleted.is_empty() {
        let (engine, group) = (Arc::clone(&kafka.engine), group.to_owned());
        let result = hold
            .while_held(async move { engine.groups().delete_offsets(&group, deleted).await })
            .await;
        result.map_err(|error| coordinator_error(&error))?;
    }
    Ok(topics)
}
