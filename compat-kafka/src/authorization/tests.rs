//! The answers of each API to a client that may not do what it asks for, and to one that may.

use engine::security::{Operation, Resource, ResourceType};
use kafka_protocol::ResponseError;

use super::test_authorizer::{TestAuthorizer, encoded, text, topic_name};

mod configs;
mod describe;
mod read_write;
mod topics;
mod transactions;

/// Kafka's codes of refusals.
const TOPIC_DENIED: i16 = 29;
const GROUP_DENIED: i16 = 30;
const CLUSTER_DENIED: i16 = 31;
const ID_DENIED: i16 = 53;

/// The topic that tests are about.
const T: Resource<'static> = Resource { kind: ResourceType::Topic, name: "t" };
