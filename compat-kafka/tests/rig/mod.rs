//! The Kafka protocol server on a real engine, over a disk in memory, with a client that can break
//! the rules of the protocol.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    reason = "each test file uses its part"
)]

pub mod hanging_disk;
pub mod test_kafka_engine;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use compat_kafka::{KafkaFormat, KafkaOptions, KafkaServer};
use engine::{CoreOptions, Engine, EngineOptions};
use hlc::{ManualClock, SysTime};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    FetchRequest, ProduceRequest, RequestHeader, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use kafka_records::{BatchBuilder, CompressionType};
use storage::disk::Disk;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub const START: u64 = 1_795_252_948_000;
/// The longest wait before a test fails as stuck.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct TestKafkaServer {
    pub clock: Arc<ManualClock>,
    pub engine: Arc<Engine>,
    pub kafka: Arc<KafkaServer>,
    pub address: SocketAddr,
    _stop: watch::Sender<bool>,
}

impl TestKafkaServer {
    /// Serves on `disk`, with up to `tail_bytes_max` of the newest payloads in memory.
    pub async fn start(
        disk: Arc<dyn Disk>,
        options: KafkaOptions,
        tail_bytes_max: usize,
    ) -> TestKafkaServer {
        let clock = Arc::new(ManualClock::at(SysTime(START)));
        let storage = storage::Options { tail_bytes_max, ..storage::Options::default() };
        let format = KafkaFormat { decompressed_bytes_max: options.decompressed_bytes_max };
        let engine = Engine::open(
            disk,
            EngineOptions {
                core: CoreOptions { storage, ..CoreOptions::default() },
                ..EngineOptions::default()
            },
            Arc::clone(&clock) as Arc<dyn hlc::WallClock>,
            Arc::new(format),
        );
        let engine = Arc::new(engine.unwrap());
        let kafka = KafkaServer::new(Arc::clone(&engine), options).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(compat_kafka::serve(Arc::clone(&kafka), listener, stopped));
        TestKafkaServer { clock, engine, kafka, address, _stop: stop }
    }

    pub async fn topic(&self, name: &str, configs: &[(&str, &str)]) {
        let configs: BTreeMap<String, String> =
            configs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut id = [7; 16];
        id[..name.len()].copy_from_slice(name.as_bytes());
        self.engine.topics().create(name, 1, configs, id, false).await.unwrap();
    }

    pub async fn connect(&self) -> TestKafkaConnection {
        TestKafkaConnection::connect(self.address).await
    }
}

/// A connection to the fixture's server.
pub struct TestKafkaConnection(pub TcpStream);

pub fn frame<R: Request>(version: i16, request: &R) -> Vec<u8> {
    let mut body = BytesMut::new();
    RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(7)
        .encode(&mut body, R::header_version(version))
        .unwrap();
    request.encode(&mut body, version).unwrap();
    [&(body.len() as i32).to_be_bytes(), &body[..]].concat()
}

/// The responses on a connection, or on a half of one.
pub struct TestKafkaResponses<S>(pub S);

impl<S: AsyncRead + Unpin> TestKafkaResponses<S> {
    pub async fn next<R: Request>(&mut self, version: i16) -> io::Result<R::Response> {
        let mut bytes = tokio::time::timeout(PATIENCE, async {
            let length = self.0.read_u32().await?;
            let mut bytes = vec![0; length as usize];
            self.0.read_exact(&mut bytes).await?;
            io::Result::Ok(Bytes::from(bytes))
        })
        .await
        .expect("an answer comes, or the end")?;
        ResponseHeader::decode(&mut bytes, R::Response::header_version(version)).unwrap();
        Ok(R::Response::decode(&mut bytes, version).unwrap())
    }
}

impl TestKafkaConnection {
    pub async fn connect(address: SocketAddr) -> TestKafkaConnection {
        TestKafkaConnection(TcpStream::connect(address).await.unwrap())
    }

    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await
    }

    pub async fn response<R: Request>(&mut self, version: i16) -> io::Result<R::Response> {
        TestKafkaResponses(&mut self.0).next::<R>(version).await
    }

    pub async fn ask<R: Request>(&mut self, version: i16, request: &R) -> io::Result<R::Response> {
        self.send(&frame(version, request)).await?;
        self.response::<R>(version).await
    }

    /// The error code, and the offset.
    pub async fn produce(&mut self, topic: &str, batch: Bytes) -> (i16, i64) {
        let answer = self.ask(9, &produce(topic, batch)).await.unwrap();
        let answer = &answer.responses[0].partition_responses[0];
        (answer.error_code, answer.base_offset)
    }

    /// The error code, and the batches.
    pub async fn fetch(&mut self, topic: &str, offset: i64) -> io::Result<(i16, Bytes)> {
        let answer = self.ask(12, &fetch(topic, offset, Duration::ZERO)).await?;
        let answer = answer.responses[0].partitions[0].clone();
        Ok((answer.error_code, answer.records.unwrap_or_default()))
    }
}

pub fn name(text: &str) -> TopicName {
    TopicName(StrBytes::from_string(text.to_owned()))
}

/// A produce request, acknowledged once it is on disk.
pub fn produce(topic: &str, batch: Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default().with_records(Some(batch));
    let topic = TopicProduceData::default().with_name(name(topic)).with_partition_data(vec![data]);
    ProduceRequest::default().with_acks(-1).with_timeout_ms(10_000).with_topic_data(vec![topic])
}

/// A fetch request that waits for one byte.
pub fn fetch(topic: &str, offset: i64, wait: Duration) -> FetchRequest {
    let partition =
        FetchPartition::default().with_fetch_offset(offset).with_partition_max_bytes(16 << 20);
    let topic = FetchTopic::default().with_topic(name(topic)).with_partitions(vec![partition]);
    FetchRequest::default()
        .with_max_wait_ms(wait.as_millis() as i32)
        .with_min_bytes(1)
        .with_max_bytes(32 << 20)
        .with_topics(vec![topic])
}

/// A batch of one record.
pub fn batch(value: &[u8]) -> Bytes {
    BatchBuilder::new(CompressionType::None).record(START as i64, None, Some(value), &[]).build()
}
