//! The parts that several APIs share: errors with a message, and the checks of topics and brokers
//! that requests name.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use engine::security::{Operation, Resource};
use engine::{EngineError, Topic, TopicId};
use hlc::split_moment_topic;
use kafka_errors::{engine_error, error_message};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::BrokerId;
use kafka_protocol::protocol::StrBytes;

use crate::kafka_server::KafkaServer;
use crate::quotas::TooManyMutations;
use crate::request::RequestContext;

/// The name of an internal topic of Kafka, which nobody may create.
pub(super) const CLUSTER_METADATA_TOPIC: &str = "__cluster_metadata";

/// The reason why an operation failed: Kafka's error, and a message for people.
#[derive(Clone, Debug)]
pub(super) struct KafkaApiError {
    pub(super) error: ResponseError,
    message: String,
}

impl fmt::Display for KafkaApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl KafkaApiError {
    pub(super) fn new(error: ResponseError, message: impl Into<String>) -> KafkaApiError {
        KafkaApiError { error, message: message.into() }
    }
}

impl From<ResponseError> for KafkaApiError {
    fn from(error: ResponseError) -> KafkaApiError {
        KafkaApiError::new(error, error_message(error).to_string())
    }
}

impl From<TooManyMutations> for KafkaApiError {
    fn from(_: TooManyMutations) -> KafkaApiError {
        ResponseError::ThrottlingQuotaExceeded.into()
    }
}

impl From<EngineError> for KafkaApiError {
    fn from(error: EngineError) -> KafkaApiError {
        // Kafka's messages are sentences, and some tools match them.
        let mut message = error.to_string();
        if let Some(first) = message.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        KafkaApiError::new(engine_error(&error), message)
    }
}

/// [`KafkaServer::authorize`], with a message for people.
pub(super) fn authorize(
    kafka: &KafkaServer,
    context: &RequestContext,
    operation: Operation,
    resource: Resource<'_>,
) -> Result<(), KafkaApiError> {
    let allowed = kafka.authorize(context, operation, resource);
    allowed.map_err(|error| KafkaApiError::new(error, error_message(error).to_string()))
}

/// The error code and message, as in a response.
pub(super) fn error_fields(result: &Result<(), KafkaApiError>) -> (i16, Option<StrBytes>) {
    match result {
        Ok(()) => (0, None),
        Err(KafkaApiError { error, message }) => {
            (error.code(), Some(StrBytes::from_string(message.clone())))
        }
    }
}

/// Refuses to change a topic whose name contains a moment: the past is read-only.
pub(super) fn refuse_moment(name: &str) -> Result<(), KafkaApiError> {
    match split_moment_topic(name) {
        Some((topic, _)) => Err(KafkaApiError::new(
            ResponseError::InvalidTopicException,
            format!("'{name}' is a moment of the topic '{topic}', and the past is read-only."),
        )),
        None => Ok(()),
    }
}

/// Looks up a topic that is to be changed.
pub(super) fn find_changeable_topic(
    kafka: &KafkaServer,
    name: &str,
) -> Result<Arc<Topic>, KafkaApiError> {
    refuse_moment(name)?;
    kafka.engine.topics().named(name).ok_or_else(|| {
        KafkaApiError::new(
            ResponseError::UnknownTopicOrPartition,
            format!("The topic '{name}' does not exist."),
        )
    })
}

/// The values that occur more than once.
pub(super) fn duplicates<T: Clone + Eq + Hash + Ord>(
    values: impl Iterator<Item = T>,
) -> BTreeSet<T> {
    let mut distinct = HashSet::new();
    values.filter(|value| !distinct.insert(value.clone())).collect()
}

/// Checks that a partition's replicas can be `brokers`: there is only this broker.
pub(super) fn check_replicas(
    kafka: &KafkaServer,
    brokers: &[BrokerId],
) -> Result<(), KafkaApiError> {
    let refuse = |fault: String| {
        let message = format!("The manual partition assignment includes {fault}");
        Err(KafkaApiError::new(ResponseError::InvalidReplicaAssignment, message))
    };
    let unknown = brokers.iter().filter(|broker| !kafka.cluster.contains(**broker)).min();
    if let Some(broker) = unknown {
        return refuse(format!("broker {}, but no such broker is registered.", broker.0));
    }
    match brokers.len() {
        0 => refuse("an empty replica list.".to_owned()),
        1 => Ok(()),
        _ => refuse(format!("the broker {} more than once.", brokers[0].0)),
    }
}

/// An id for a new topic. As in Kafka, none whose text begins with a dash, which tools would take
/// for an option.
pub(super) fn new_topic_id(kafka: &KafkaServer) -> TopicId {
    /// A dash in Kafka's base 64, whose first digit is the first six bits.
    const DASH: u8 = 62;
    loop {
        let id = (kafka.options.new_id)();
        if id[0] >> 2 != DASH {
            return id;
        }
    }
}
