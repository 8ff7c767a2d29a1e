//! Topics at a moment.

use std::collections::BTreeMap;

use engine::Topic;
use engine::security::{Operation, Resource, ResourceType};
use history_documents::{TopicAtMoment, TopicsRequest, TopicsResponse};
use hlc::Hlc;

use crate::access::{AnswerFilter, HistoryAccess};
use crate::context::HistoryContext;
use crate::error::HistoryApiError;
use crate::moment::{moment_text, parse_or_frontier, partition_count, topic_id, when};

pub(crate) async fn topics(
    context: &HistoryContext,
    access: &HistoryAccess,
    request: TopicsRequest,
) -> Result<TopicsResponse, HistoryApiError> {
    access.require_any(Operation::Describe, ResourceType::Topic)?;
    let TopicsRequest { at, when: policy, patience_ms } = request;
    let (cut, when) =
        parse_or_frontier(context, access, at.as_deref(), when(context, policy, patience_ms))?;
    let (at, frontier, topics) = context.engine.topics().at(cut, when).await?;
    let filter = access.filter();
    let visible = topics.iter().filter(|(topic, _)| filter.shows_topic(&topic.name));
    let topics =
        visible.map(|(topic, deleted)| topic_at_moment(&filter, topic, *deleted)).collect();
    Ok(TopicsResponse {
        at: Some(moment_text(at)),
        frontier: frontier.into(),
        frontier_ms: frontier.time().0,
        topics,
        complete: filter.is_complete(),
    })
}

fn topic_at_moment(filter: &AnswerFilter, topic: &Topic, deleted: Option<Hlc>) -> TopicAtMoment {
    TopicAtMoment {
        name: topic.name.to_string(),
        id: topic_id(topic),
        partitions: partition_count(topic),
        created: topic.created.into(),
        created_ms: topic.created.time().0,
        deleted: deleted.map(Into::into),
        deleted_ms: deleted.map(|deleted| deleted.time().0),
        configs: shown_settings(filter, topic),
    }
}

/// The settings of a topic, for those who may know them.
pub(crate) fn shown_settings(filter: &AnswerFilter, topic: &Topic) -> BTreeMap<String, String> {
    let settings = topic.config.overrides();
    if settings.is_empty() || filter.shows_settings(Resource::topic(&topic.name)) {
        settings.clone()
    } else {
        BTreeMap::new()
    }
}
