//! Tests of the group APIs with clients that may not do everything. This file has their shared
//! fixture: a server that authorizes, with a user who may do all, and with `User:alice`, who may do
//! what a test allows.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use engine::security::{
    AclRule, Actor, AuthorizerOptions, Operation, PatternType, Permission, Principal, Resource,
    SecurityChange, SecurityOptions,
};
use engine::{Engine, EngineOptions, TopicId};
use kafka_format::KafkaFormat;
use kafka_groups::Options as GroupOptions;
use kafka_protocol::messages::ResponseHeader;
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request, StrBytes};
use storage::disk::MemoryDisk;

use super::join_group::test_kafka_api::TestKafkaApi;
use crate::kafka_server::KafkaServer;
use crate::options::KafkaOptions;
use crate::request::{ConnectionState, RequestContext};
use crate::response::ResponseChunk;
use crate::routes::route;
use crate::wire::WireReader;

mod administration;
mod members;
mod offsets;
mod share;
mod streams;

const GROUP_REFUSED: i16 = 30;
const TOPIC_REFUSED: i16 = 29;

struct GuardedKafkaApi {
    /// Its requests are those of somebody who may do all.
    api: TestKafkaApi,
    alice: Arc<ConnectionState>,
}

impl GuardedKafkaApi {
    fn new() -> GuardedKafkaApi {
        GuardedKafkaApi::on(MemoryDisk::new())
    }

    fn on(disk: MemoryDisk) -> GuardedKafkaApi {
        let format = Arc::new(KafkaFormat { decompressed_bytes_max: 1 << 20 });
        let authorizer = AuthorizerOptions {
            is_enabled: true,
            super_users: [Principal::anonymous().as_str().to_owned()].into(),
            allow_everyone_if_no_acl_found: false,
        };
        let security = SecurityOptions { authorizer, ..SecurityOptions::default() };
        let options = EngineOptions { security, ..EngineOptions::default() };
        let clock = Arc::new(hlc::OsClock);
        let engine = Engine::open(Arc::new(disk.clone()), options, clock, format).unwrap();
        let mut groups =
            GroupOptions { initial_rebalance_delay: Duration::ZERO, ..GroupOptions::default() };
        groups.streams.initial_rebalance_delay = Duration::ZERO;
        let options = KafkaOptions { groups, ..KafkaOptions::default() };
        let kafka = KafkaServer::new(Arc::new(engine), options).unwrap();
        let alice = ConnectionState::for_test_as(Principal::user("alice"));
        GuardedKafkaApi { api: TestKafkaApi { kafka, disk }, alice }
    }

    fn restart(self) -> GuardedKafkaApi {
        self.api.kafka.close();
        self.api.kafka.engine.close();
        GuardedKafkaApi::on(self.api.disk.after_kill())
    }

    async fn change(&self, make: fn(AclRule) -> SecurityChange, rules: &[AclRule]) {
        let changes = rules.iter().cloned().map(make).collect();
        let actor = Actor { principal: "User:ANONYMOUS".to_owned(), from: "a test".to_owned() };
        let changed = self.api.kafka.engine.security().change(actor, move |_| (changes, ()));
        changed.await.unwrap();
    }

    /// Lets alice do something.
    async fn allow(&self, operation: Operation, resource: Resource<'_>) {
        self.change(SecurityChange::AclAdded, &[rule(operation, resource)]).await;
    }

    async fn revoke(&self, operation: Operation, resource: Resource<'_>) {
        self.change(SecurityChange::AclRemoved, &[rule(operation, resource)]).await;
    }

    /// Sends a request of alice in a version, and decodes the response.
    async fn ask<R: Request>(&self, version: i16, request: R) -> R::Response {
        let mut body = BytesMut::new();
        request.encode(&mut body, version).unwrap();
        let header = R::Response::header_version(version);
        let mut answer = self.call(R::KEY, version, header, body.freeze()).await;
        let response = R::Response::decode(&mut answer, version).unwrap();
        assert!(answer.is_empty(), "{} bytes too many", answer.len());
        response
    }

    /// Sends a request of alice that the codec does not have; its answer begins with a throttle
    /// time.
    async fn ask_raw(&self, key: i16, version: i16, body: impl Into<Bytes>) -> WireReader {
        let mut answer = WireReader::new(self.call(key, version, 1, body.into()).await);
        assert_eq!(answer.i32(), Some(0));
        answer
    }

    async fn call(&self, key: i16, version: i16, header: i16, body: Bytes) -> Bytes {
        let context = RequestContext {
            api_key: key,
            version,
            correlation_id: 9,
            client_id: "test".to_owned(),
            peer: "127.0.0.1:4".parse().unwrap(),
            local: "127.0.0.1:9092".parse().unwrap(),
            connection: Arc::clone(&self.alice),
            received_at: tokio::time::Instant::now(),
            quota: None,
        };
        let served = route(key).unwrap().call(Arc::clone(&self.api.kafka), context, body);
        let mut answer = BytesMut::new();
        for chunk in served.await.unwrap().unwrap().into_frame().into_iter().skip(1) {
            let ResponseChunk::Encoded(bytes) = chunk else { panic!("no files here") };
            answer.extend_from_slice(&bytes);
        }
        let mut answer = answer.freeze();
        ResponseHeader::decode(&mut answer, header).unwrap();
        answer
    }

    /// The number of times that requests of alice were authorized so far.
    fn authorizations(&self) -> usize {
        self.alice.authorizations.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// A moment of a topic that is over, and has an id.
    async fn moment_of(&self, topic: &str) -> String {
        let now = self.api.kafka.engine.frontier().bits();
        let moment = format!("{topic}.__at.sh{:016x}", now + 1);
        assert!(self.api.kafka.topics.resolve(&moment).await.unwrap().is_some());
        moment
    }

    fn id_of(&self, topic: &str) -> TopicId {
        self.api.kafka.topics.id_of(topic).unwrap()
    }
}

fn rule(operation: Operation, resource: Resource<'_>) -> AclRule {
    AclRule {
        resource_type: resource.kind,
        pattern: PatternType::Literal,
        name: resource.name.to_owned(),
        principal: "User:alice".to_owned(),
        host: "*".to_owned(),
        operation,
        permission: Permission::Allow,
    }
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
