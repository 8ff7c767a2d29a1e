//! The fixture of tests of authorization: a server that authorizes requests, and a user without any
//! right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use engine::security::{
    AclRule, Actor, AuthorizerOptions, Operation, PatternType, Permission, Principal, Resource,
    SecurityChange, SecurityOptions,
};
use engine::{Engine, EngineOptions};
use kafka_format::KafkaFormat;
use kafka_protocol::messages::{ResponseHeader, TopicName};
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request, StrBytes};
use storage::disk::MemoryDisk;
use uuid::Uuid;

use crate::kafka_server::KafkaServer;
use crate::options::KafkaOptions;
use crate::request::{ConnectionState, RequestContext, ResponseResult};
use crate::response::{KafkaResponse, ResponseChunk};
use crate::serve::serve_api;

const USER: &str = "alice";

/// A server that authorizes requests, and the connection of a user without any right.
pub(crate) struct TestAuthorizer {
    pub(crate) kafka: Arc<KafkaServer>,
    connection: Arc<ConnectionState>,
}

impl TestAuthorizer {
    pub(crate) fn new() -> TestAuthorizer {
        let authorizer = AuthorizerOptions { is_enabled: true, ..AuthorizerOptions::default() };
        let security = SecurityOptions { authorizer, ..SecurityOptions::default() };
        let engine = Engine::open(
            Arc::new(MemoryDisk::new()),
            EngineOptions { security, ..EngineOptions::default() },
            Arc::new(hlc::OsClock),
            Arc::new(KafkaFormat { decompressed_bytes_max: 1 << 20 }),
        );
        let kafka = KafkaServer::new(Arc::new(engine.unwrap()), KafkaOptions::default()).unwrap();
        TestAuthorizer { kafka, connection: ConnectionState::for_test_as(Principal::user(USER)) }
    }

    /// [`TestAuthorizer::new`], with a topic.
    pub(crate) async fn with_topic(name: &str, partitions: u32) -> TestAuthorizer {
        let test = TestAuthorizer::new();
        test.topic(name, partitions).await;
        test
    }

    pub(crate) async fn topic(&self, name: &str, partitions: u32) {
        let (topics, id) = (self.kafka.engine.topics(), (self.kafka.options.new_id)());
        topics.create(name, partitions, BTreeMap::new(), id, false).await.unwrap();
    }

    /// The id of a topic, or of a moment that was read by name.
    pub(crate) fn id(&self, name: &str) -> Uuid {
        Uuid::from_bytes(self.kafka.topics.id_of(name).unwrap())
    }

    /// The name of a moment of a topic, which was looked up: it has an id too.
    pub(crate) async fn moment(&self, topic: &str) -> String {
        let created = self.kafka.engine.topics().named(topic).unwrap().created.time().0;
        let moment = format!("{topic}@s{}", created + 1);
        assert!(self.kafka.topics.resolve(&moment).await.unwrap().is_some());
        moment
    }

    pub(crate) async fn allow(&self, operation: Operation, resource: Resource<'_>) {
        let rule = rule(Permission::Allow, operation, resource);
        self.change(SecurityChange::AclAdded(rule)).await;
    }

    /// Takes back what was allowed.
    pub(crate) async fn revoke(&self, operation: Operation, resource: Resource<'_>) {
        let rule = rule(Permission::Allow, operation, resource);
        self.change(SecurityChange::AclRemoved(rule)).await;
    }

    async fn change(&self, change: SecurityChange) {
        let by = Actor { principal: "User:admin".to_owned(), from: "test".to_owned() };
        let security = self.kafka.engine.security();
        security.change(by, |_| (vec![change], ())).await.unwrap();
    }

    pub(crate) fn context(&self, api_key: i16, version: i16) -> RequestContext {
        RequestContext {
            api_key,
            version,
            correlation_id: 1,
            client_id: "test".to_owned(),
            peer: ([127, 0, 0, 1], 50_000).into(),
            local: ([127, 0, 0, 1], 9092).into(),
            connection: Arc::clone(&self.connection),
            received_at: tokio::time::Instant::now(),
            quota: None,
        }
    }

    /// Serves a request of the user.
    pub(crate) async fn serve(&self, api_key: i16, version: i16, body: Bytes) -> ResponseResult {
        let context = self.context(api_key, version);
        serve_api(Arc::clone(&self.kafka), context, body, 0)?.await
    }

    /// Serves a request as if it came from a socket, and decodes the answer.
    pub(crate) async fn ask<R: Request>(&self, version: i16, request: R) -> R::Response {
        let answer = self.serve(R::KEY, version, encoded(&request, version)).await;
        let mut frame = bytes_of(answer.unwrap().unwrap());
        ResponseHeader::decode(&mut frame, R::Response::header_version(version)).unwrap();
        let response = R::Response::decode(&mut frame, version).unwrap();
        assert!(frame.is_empty());
        response
    }

    /// The number of times that requests were authorized so far.
    pub(crate) fn authorizations(&self) -> usize {
        self.connection.authorizations.load(Ordering::Relaxed)
    }
}

fn rule(permission: Permission, operation: Operation, resource: Resource<'_>) -> AclRule {
    AclRule {
        resource_type: resource.kind,
        pattern: PatternType::Literal,
        name: resource.name.to_owned(),
        principal: format!("User:{USER}"),
        host: "*".to_owned(),
        operation,
        permission,
    }
}

pub(crate) fn encoded<R: Request>(request: &R, version: i16) -> Bytes {
    let mut body = BytesMut::new();
    request.encode(&mut body, version).unwrap();
    body.freeze()
}

/// A response without its length field.
pub(crate) fn bytes_of(answer: KafkaResponse) -> Bytes {
    let mut bytes = BytesMut::new();
    for chunk in answer.into_chunks() {
        let (ResponseChunk::Encoded(chunk) | ResponseChunk::Payload(chunk)) = chunk else {
            panic!("no file is in the answer")
        };
        bytes.extend_from_slice(&chunk);
    }
    bytes.freeze()
}

pub(crate) fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

pub(crate) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
