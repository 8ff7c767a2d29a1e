//! DeleteTopics (20), by name or by id. A topic's past stays readable, at earlier moments.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use engine::Topic;
use engine::security::{Operation, Resource};
use kafka_errors::error_message;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse, TopicName};
use kafka_protocol::protocol::VersionRange;
use kafka_topics::ReadableTopic;
use uuid::Uuid;

use super::support::{
    KafkaApiError, duplicates, error_fields, find_changeable_topic, refuse_moment,
};
use crate::kafka_server::KafkaServer;
use crate::quotas::MutationQuota;
use crate::request::{ApiHandler, RequestContext};

/// From here on clients know that they may delete too much (KIP-599).
const STRICT_SINCE: i16 = 5;

impl ApiHandler for DeleteTopicsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 6 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DeleteTopicsResponse {
        let TopicDeletions { names, ids, mut results } = TopicDeletions::from(self);
        if !kafka.options.delete_topics {
            let refuse = |name, id| to_result(name, id, Err(disabled(context.version)));
            results.extend(names.into_iter().map(|name| refuse(Some(name), Uuid::nil())));
            results.extend(ids.into_iter().map(|id| refuse(None, id)));
            return DeleteTopicsResponse::default().with_responses(results);
        }
        let deletes_any = kafka.is_authorized(context, Operation::Delete, Resource::CLUSTER);
        let right = |name: &str| {
            if deletes_any {
                TopicDeletionRight::Delete
            } else {
                TopicDeletionRight::of(kafka, context, name)
            }
        };
        let quota = context.mutation_quota(STRICT_SINCE);
        let mut distinct = HashSet::new();
        for name in names {
            let topic = match right(&name) {
                TopicDeletionRight::Delete => find_changeable_topic(kafka, &name),
                TopicDeletionRight::Describe => {
                    find_changeable_topic(kafka, &name).and_then(|_| Err(denied()))
                }
                TopicDeletionRight::None => Err(denied()),
            };
            let id = topic.as_ref().map_or(Uuid::nil(), |topic| Uuid::from_bytes(topic.id));
            distinct.insert(id);
            let deleted = match topic {
                Ok(_) if ids.contains(&id) => Err(bad_request(
                    "The provided topic name maps to an ID that was already supplied.",
                )),
                Ok(topic) => delete(kafka, &topic, &quota).await,
                Err(refusal) => Err(refusal),
            };
            results.push(to_result(Some(name), id, deleted));
        }
        for id in ids.into_iter().filter(|id| !distinct.contains(id)) {
            results.push(delete_by_id(kafka, id, right, &quota).await);
        }
        DeleteTopicsResponse::default().with_responses(results)
    }
}

/// The right of a client on a topic that it wants to delete.
enum TopicDeletionRight {
    Delete,
    /// It may only know that there is one.
    Describe,
    None,
}

impl TopicDeletionRight {
    fn of(kafka: &KafkaServer, context: &RequestContext, name: &str) -> TopicDeletionRight {
        let topic = Resource::topic(name);
        let may_delete = kafka.authorize(context, Operation::Delete, topic).is_ok();
        match (may_delete, kafka.is_authorized(context, Operation::Describe, topic)) {
            (true, true) => TopicDeletionRight::Delete,
            (false, true) => TopicDeletionRight::Describe,
            // A rule can deny Describe alone: a topic that cannot be named is not deleted.
            (_, false) => TopicDeletionRight::None,
        }
    }
}

/// The topics of a request, each once, and the responses for names that are no topic.
#[derive(Default)]
struct TopicDeletions {
    names: BTreeSet<TopicName>,
    ids: BTreeSet<Uuid>,
    results: Vec<DeletableTopicResult>,
}

impl From<DeleteTopicsRequest> for TopicDeletions {
    fn from(request: DeleteTopicsRequest) -> TopicDeletions {
        let (mut names, mut ids, mut results) = (request.topic_names, Vec::new(), Vec::new());
        for topic in request.topics {
            match (topic.name, topic.topic_id) {
                (Some(name), id) if id.is_nil() => names.push(name),
                (None, id) if !id.is_nil() => ids.push(id),
                (name, id) => {
                    let message = match name {
                        Some(_) => "You may not specify both topic name and topic id.",
                        None => "Neither topic name nor id were specified.",
                    };
                    results.push(to_result(name, id, Err(bad_request(message))));
                }
            }
        }
        let twice_named = duplicates(names.iter().cloned());
        let twice_asked = duplicates(ids.iter().copied());
        let names = names.into_iter().filter(|name| !twice_named.contains(name)).collect();
        let ids = ids.into_iter().filter(|id| !twice_asked.contains(id)).collect();
        let duplicate = |name, id, message| to_result(name, id, Err(bad_request(message)));
        results.extend(
            twice_named
                .into_iter()
                .map(|name| duplicate(Some(name), Uuid::nil(), "Duplicate topic name.")),
        );
        results
            .extend(twice_asked.into_iter().map(|id| duplicate(None, id, "Duplicate topic id.")));
        TopicDeletions { names, ids, results }
    }
}

async fn delete(
    kafka: &KafkaServer,
    topic: &Topic,
    quota: &MutationQuota<'_>,
) -> Result<(), KafkaApiError> {
    let deleting = kafka.engine.topics().delete(topic.id);
    quota.charge(topic.partitions.len(), deleting).await??;
    let resource = format_args!("TOPIC {}", topic.name);
    kafka.record_change_by(&quota.requester, "DeleteTopics", resource);
    Ok(())
}

async fn delete_by_id(
    kafka: &Arc<KafkaServer>,
    id: Uuid,
    right: impl Fn(&str) -> TopicDeletionRight,
    quota: &MutationQuota<'_>,
) -> DeletableTopicResult {
    let topic = kafka.topics.by_id(id.as_bytes());
    if let Some(topic) = &topic {
        let name = &topic.topic().name;
        match right(name) {
            TopicDeletionRight::Delete => {}
            TopicDeletionRight::Describe => {
                let name = TopicName(name.to_string().into());
                return to_result(Some(name), id, Err(denied()));
            }
            // Its name stays a secret.
            TopicDeletionRight::None => return to_result(None, id, Err(denied())),
        }
    }
    match topic {
        Some(ReadableTopic::Present(topic)) => {
            let name = TopicName(topic.name.to_string().into());
            to_result(Some(name), id, delete(kafka, &topic, quota).await)
        }
        Some(ReadableTopic::Past(view)) => {
            let name = format!("{}@{}", view.topic.name, view.selector);
            to_result(None, id, refuse_moment(&name))
        }
        None => {
            let message = "This server does not host this topic ID.";
            to_result(None, id, Err(KafkaApiError::new(ResponseError::UnknownTopicId, message)))
        }
    }
}

fn to_result(
    name: Option<TopicName>,
    id: Uuid,
    result: Result<(), KafkaApiError>,
) -> DeletableTopicResult {
    let (code, message) = error_fields(&result);
    DeletableTopicResult::default()
        .with_name(name)
        .with_topic_id(id)
        .with_error_code(code)
        .with_error_message(message)
}

fn denied() -> KafkaApiError {
    let error = ResponseError::TopicAuthorizationFailed;
    KafkaApiError::new(error, error_message(error).to_string())
}

fn bad_request(message: &str) -> KafkaApiError {
    KafkaApiError::new(ResponseError::InvalidRequest, message)
}

/// Clients before version 3 do not know the error TOPIC_DELETION_DISABLED.
fn disabled(version: i16) -> KafkaApiError {
    let error = if version < 3 {
        ResponseError::InvalidRequest
    } else {
        ResponseError::TopicDeletionDisabled
    };
    KafkaApiError::new(error, "Topic deletion is disabled.")
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::delete_topics_request::DeleteTopicState;

    use super::*;
    use crate::apis::test_server::{ask, kafka, kafka_with, name, topic};
    use crate::options::KafkaOptions;

    fn by_name(names: &[&str]) -> DeleteTopicsRequest {
        DeleteTopicsRequest::default().with_topic_names(names.iter().map(|n| name(n)).collect())
    }

    fn states(states: &[(Option<&str>, Uuid)]) -> DeleteTopicsRequest {
        let states = states.iter().map(|(topic_name, id)| {
            DeleteTopicState::default().with_name(topic_name.map(name)).with_topic_id(*id)
        });
        DeleteTopicsRequest::default().with_topics(states.collect())
    }

    fn id(kafka: &KafkaServer, name: &str) -> Uuid {
        Uuid::from_bytes(kafka.engine.topics().named(name).unwrap().id)
    }

    fn codes(response: &DeleteTopicsResponse) -> Vec<i16> {
        response.responses.iter().map(|response| response.error_code).collect()
    }

    #[tokio::test]
    async fn topics_go_by_name_in_every_version() {
        let kafka = kafka();
        for version in 1..=5 {
            topic(&kafka, "a", 1).await;
            let response = ask(&kafka, version, by_name(&["a", "gone"])).await;
            assert_eq!(codes(&response), [0, ResponseError::UnknownTopicOrPartition.code()]);
            assert!(kafka.engine.topics().named("a").is_none());
        }
    }

    #[tokio::test]
    async fn a_topic_goes_by_id_and_its_name_comes_back() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let id = id(&kafka, "a");
        let response = ask(&kafka, 6, states(&[(None, id)])).await;
        assert_eq!(codes(&response), [0]);
        assert_eq!(response.responses[0].name, Some(name("a")));
        assert!(kafka.engine.topics().named("a").is_none());
        let repeated = ask(&kafka, 6, states(&[(None, id)])).await;
        assert_eq!(codes(&repeated), [ResponseError::UnknownTopicId.code()]);
        assert_eq!(repeated.responses[0].topic_id, id);
    }

    #[tokio::test]
    async fn a_topic_that_is_named_in_two_ways_stays() {
        let kafka = kafka();
        for topic_name in ["a", "b"] {
            topic(&kafka, topic_name, 1).await;
        }
        let (a, no_id) = (id(&kafka, "a"), Uuid::nil());
        for requested in [
            vec![(Some("a"), no_id), (Some("a"), no_id)],
            vec![(None, a), (None, a)],
            vec![(Some("a"), no_id), (None, a)],
            vec![(Some("a"), a)],
            vec![(None, no_id)],
        ] {
            let response = ask(&kafka, 6, states(&requested)).await;
            assert_eq!(codes(&response), [ResponseError::InvalidRequest.code()], "{requested:?}");
        }
        assert_eq!(kafka.engine.topics().all().len(), 2);
    }

    #[tokio::test]
    async fn where_deletion_is_off_nothing_goes_and_every_topic_is_answered() {
        let kafka = kafka_with(KafkaOptions { delete_topics: false, ..KafkaOptions::default() });
        topic(&kafka, "a", 1).await;
        let old = ask(&kafka, 2, by_name(&["a"])).await;
        assert_eq!(codes(&old), [ResponseError::InvalidRequest.code()]);
        let id = id(&kafka, "a");
        let new = ask(&kafka, 6, states(&[(Some("a"), Uuid::nil()), (None, id)])).await;
        assert_eq!(codes(&new), [ResponseError::TopicDeletionDisabled.code(); 2]);
        assert!(kafka.engine.topics().named("a").is_some());
    }

    #[tokio::test]
    async fn the_past_cannot_be_deleted() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let now = kafka.engine.topics().named("a").unwrap().created.time().0 + 1;
        let moment = format!("a@s{now}");
        let view = kafka.topics.resolve(&moment).await.unwrap();
        assert!(matches!(view, Some(ReadableTopic::Past(_))));
        let by_id = Uuid::from_bytes(kafka.topics.moment_id(&moment));
        for requested in [states(&[(Some(&moment), Uuid::nil())]), states(&[(None, by_id)])] {
            let response = ask(&kafka, 6, requested).await;
            assert_eq!(codes(&response), [ResponseError::InvalidTopicException.code()]);
        }
        assert!(kafka.engine.topics().named("a").is_some());
    }
}
