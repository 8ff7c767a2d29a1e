//! The fixture of the tests of the group APIs: the real engine over a disk in memory. Requests take
//! the path of those from a socket: they are encoded and decoded in the version under test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use engine::security::{NameKey, Principal, SecurityOptions};
use engine::{CoreOptions, Engine, EngineOptions};
use hlc::{ManualClock, WallClock};
use kafka_format::KafkaFormat;
use kafka_groups::Options as GroupOptions;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ApiKey, GroupId, JoinGroupRequest, JoinGroupResponse, ResponseHeader, SyncGroupRequest,
    TopicName,
};
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request, StrBytes};
use storage::disk::MemoryDisk;

use crate::kafka_server::KafkaServer;
use crate::options::KafkaOptions;
use crate::request::RequestContext;
use crate::response::ResponseChunk;
use crate::routes::route;

const CORRELATION_ID: i32 = 9;
/// The name of a consumer's only protocol.
pub(crate) const PROTOCOL: &str = "range";

pub(crate) struct TestKafkaApi {
    pub(crate) kafka: Arc<KafkaServer>,
    pub(crate) disk: MemoryDisk,
}

/// The identity of a member that has joined.
pub(crate) struct TestGroupMember {
    pub(crate) id: StrBytes,
    pub(crate) generation: i32,
}

impl TestKafkaApi {
    pub(crate) fn new() -> TestKafkaApi {
        TestKafkaApi::with_disk(MemoryDisk::new(), Arc::new(hlc::OsClock), GroupOptions::default())
    }

    /// A fixture with a manual clock, which forgets empty groups soon.
    pub(crate) fn with_clock() -> (TestKafkaApi, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(hlc::SysTime(1_700_000_000_000)));
        let groups =
            GroupOptions { empty_group_retention: Duration::from_millis(5), ..Default::default() };
        let wall = Arc::clone(&clock) as Arc<dyn WallClock>;
        (TestKafkaApi::with_disk(MemoryDisk::new(), wall, groups), clock)
    }

    /// A fixture whose engine does nothing until it is stepped: the test decides what is written
    /// and applied when.
    pub(crate) fn manually_stepped() -> TestKafkaApi {
        let storage = storage::Options { manual_stepping: true, ..storage::Options::default() };
        let options = EngineOptions {
            core: CoreOptions { storage, ..CoreOptions::default() },
            ..EngineOptions::default()
        };
        TestKafkaApi::open(MemoryDisk::new(), Arc::new(hlc::OsClock), options, test_options())
    }

    /// Steps the engine until a request is answered.
    pub(crate) async fn stepped<T>(&self, request: impl Future<Output = T>) -> T {
        let mut request = std::pin::pin!(request);
        for _ in 0..10_000 {
            if let Ok(answer) = tokio::time::timeout(Duration::ZERO, &mut request).await {
                return answer;
            }
            self.kafka.engine.step();
            tokio::task::yield_now().await;
        }
        panic!("the request is not answered");
    }

    fn with_disk(
        disk: MemoryDisk,
        clock: Arc<dyn WallClock>,
        groups: GroupOptions,
    ) -> TestKafkaApi {
        let groups = GroupOptions { initial_rebalance_delay: Duration::ZERO, ..groups };
        let options = KafkaOptions { groups, ..test_options() };
        TestKafkaApi::open(disk, clock, EngineOptions::default(), options)
    }

    /// A fixture with these limits.
    pub(crate) fn with_limits(
        disk: MemoryDisk,
        core: CoreOptions,
        options: KafkaOptions,
    ) -> TestKafkaApi {
        let engine = EngineOptions { core, ..EngineOptions::default() };
        TestKafkaApi::open(disk, Arc::new(hlc::OsClock), engine, options)
    }

    fn open(
        disk: MemoryDisk,
        clock: Arc<dyn WallClock>,
        engine: EngineOptions,
        options: KafkaOptions,
    ) -> TestKafkaApi {
        let format = Arc::new(KafkaFormat { decompressed_bytes_max: 1 << 20 });
        // A data directory keeps its key.
        let name_key = Some(NameKey::new([7; 32]));
        let security = SecurityOptions { name_key, ..engine.security };
        let engine = EngineOptions { security, ..engine };
        let engine = Engine::open(Arc::new(disk.clone()), engine, clock, format).unwrap();
        TestKafkaApi { kafka: KafkaServer::new(Arc::new(engine), options).unwrap(), disk }
    }

    /// Ends the server; returns its disk.
    pub(crate) fn stop(self) -> MemoryDisk {
        self.kafka.close();
        self.kafka.engine.close();
        self.disk.after_kill()
    }

    /// Restarts the server on the same disk.
    pub(crate) fn restart(self) -> TestKafkaApi {
        self.kafka.close();
        self.kafka.engine.close();
        TestKafkaApi::with_disk(
            self.disk.after_kill(),
            Arc::new(hlc::OsClock),
            GroupOptions::default(),
        )
    }

    /// The same, with a clock that continues.
    pub(crate) fn restart_with_clock(self, clock: &Arc<ManualClock>) -> TestKafkaApi {
        self.kafka.close();
        self.kafka.engine.close();
        let wall = Arc::clone(clock) as Arc<dyn WallClock>;
        TestKafkaApi::with_disk(self.disk.after_kill(), wall, GroupOptions::default())
    }

    pub(crate) async fn topic(&self, name: &str, partitions: u32) {
        let id = *uuid::Uuid::new_v4().as_bytes();
        let created =
            self.kafka.engine.topics().create(name, partitions, BTreeMap::new(), id, false);
        created.await.unwrap();
    }

    /// Sends a request in a version, and decodes the response.
    pub(crate) async fn ask<R: Request>(&self, version: i16, request: R) -> R::Response {
        self.ask_as(Principal::anonymous(), version, request).await
    }

    /// [`TestKafkaApi::ask`], from a client that is logged in.
    pub(crate) async fn ask_as<R: Request>(
        &self,
        principal: Principal,
        version: i16,
        request: R,
    ) -> R::Response {
        let mut body = BytesMut::new();
        request.encode(&mut body, version).unwrap();
        let route = route(R::KEY).unwrap();
        assert!(route.versions.min <= version && version <= route.versions.max, "{version}");
        let served =
            route.call(Arc::clone(&self.kafka), context::<R>(version, principal), body.freeze());
        let mut answer = BytesMut::new();
        for chunk in served.await.unwrap().unwrap().into_frame().into_iter().skip(1) {
            let ResponseChunk::Encoded(bytes) = chunk else { panic!("no files here") };
            answer.extend_from_slice(&bytes);
        }
        let mut answer = answer.freeze();
        let header = R::Response::header_version(version);
        let header = ResponseHeader::decode(&mut answer, header).unwrap();
        assert_eq!(header.correlation_id, CORRELATION_ID);
        let response = R::Response::decode(&mut answer, version).unwrap();
        assert!(answer.is_empty(), "{} bytes too many", answer.len());
        response
    }

    /// Joins a new member, with all the requests that the version needs.
    pub(crate) async fn join(&self, version: i16, group: &str) -> JoinGroupResponse {
        let request = join_request(group, version);
        let answer = self.ask(version, request.clone()).await;
        if version < super::KNOWN_MEMBER_ID {
            return answer;
        }
        assert_eq!(answer.error_code, MEMBER_ID_REQUIRED);
        assert!(!answer.member_id.is_empty());
        self.ask(version, request.with_member_id(answer.member_id)).await
    }

    /// A group of one member, which has its assignment.
    pub(crate) async fn stable_group(&self, group: &str) -> TestGroupMember {
        let joined = self.join(9, group).await;
        assert_eq!(joined.error_code, 0);
        let assignment = SyncGroupRequestAssignment::default()
            .with_member_id(joined.member_id.clone())
            .with_assignment(Bytes::from_static(b"yours"));
        let request = SyncGroupRequest::default()
            .with_group_id(group_id(group))
            .with_generation_id(joined.generation_id)
            .with_member_id(joined.member_id.clone())
            .with_protocol_type(Some(StrBytes::from_static_str("consumer")))
            .with_protocol_name(Some(StrBytes::from_static_str(PROTOCOL)))
            .with_assignments(vec![assignment]);
        let synced = self.ask(5, request).await;
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"yours"[..]));
        TestGroupMember { id: joined.member_id, generation: joined.generation_id }
    }
}

fn test_options() -> KafkaOptions {
    KafkaOptions {
        node_id: 7,
        offset_metadata_bytes_max: 8,
        groups: GroupOptions { initial_rebalance_delay: Duration::ZERO, ..GroupOptions::default() },
        ..KafkaOptions::default()
    }
}

pub(crate) const MEMBER_ID_REQUIRED: i16 = 79;

fn context<R: Request>(version: i16, principal: Principal) -> RequestContext {
    assert!(ApiKey::try_from(R::KEY).is_ok());
    RequestContext {
        api_key: R::KEY,
        version,
        correlation_id: CORRELATION_ID,
        client_id: "test".to_owned(),
        peer: "10.1.2.3:4".parse().unwrap(),
        local: "127.0.0.1:9092".parse().unwrap(),
        connection: crate::request::ConnectionState::for_test_as(principal),
        received_at: tokio::time::Instant::now(),
        quota: None,
    }
}

/// A consumer that reads the topic `read`.
pub(crate) fn join_request(group: &str, version: i16) -> JoinGroupRequest {
    let mut metadata = vec![0, 0, 0, 0, 0, 1, 0, 4];
    metadata.extend(b"read");
    metadata.extend([0xff; 4]);
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(StrBytes::from_static_str(PROTOCOL))
        .with_metadata(metadata.into());
    let rebalance_timeout = if version >= super::REBALANCE_TIMEOUT { 20_000 } else { -1 };
    JoinGroupRequest::default()
        .with_group_id(group_id(group))
        .with_session_timeout_ms(10_000)
        .with_rebalance_timeout_ms(rebalance_timeout)
        .with_protocol_type(StrBytes::from_static_str("consumer"))
        .with_protocols(vec![protocol])
}

pub(crate) fn group_id(id: &str) -> GroupId {
    GroupId(StrBytes::from_string(id.to_owned()))
}

pub(crate) fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}
