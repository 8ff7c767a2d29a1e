//! A Kafka server on a real engine, and a connection to it that sends any bytes.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use compat_kafka::{KafkaFormat, KafkaOptions, KafkaServer};
use engine::{CoreOptions, Engine, EngineOptions};
use hlc::{ManualClock, SysTime};
use kafka_protocol::messages::ResponseHeader;
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request};
use kafka_records::{BatchBuilder, CompressionType};
use storage::disk::Disk;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::START;
use crate::requests::{encode_frame, fetch_request, produce_request};
use crate::streams::{TestStreamsAnswer, TestStreamsHeartbeat};

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
        TestKafkaServer::start_at(IpAddr::V4(Ipv4Addr::LOCALHOST), disk, options, tail_bytes_max)
            .await
    }

    /// [`TestKafkaServer::start`], on another address of this machine.
    pub async fn start_at(
        address: IpAddr,
        disk: Arc<dyn Disk>,
        options: KafkaOptions,
        tail_bytes_max: usize,
    ) -> TestKafkaServer {
        let storage = storage::Options { tail_bytes_max, ..storage::Options::default() };
        let core = CoreOptions { storage, ..CoreOptions::default() };
        TestKafkaServer::start_with(address, disk, options, core).await
    }

    /// [`TestKafkaServer::start_at`], with other options of the engine.
    pub async fn start_with(
        address: IpAddr,
        disk: Arc<dyn Disk>,
        options: KafkaOptions,
        core: CoreOptions,
    ) -> TestKafkaServer {
        let engine = EngineOptions { core, ..EngineOptions::default() };
        TestKafkaServer::start_engine(address, disk, options, engine).await
    }

    /// [`TestKafkaServer::start_with`], with other options of the engine's wings too.
    pub async fn start_engine(
        address: IpAddr,
        disk: Arc<dyn Disk>,
        options: KafkaOptions,
        engine: EngineOptions,
    ) -> TestKafkaServer {
        let clock = Arc::new(ManualClock::at(SysTime(START)));
        let format = KafkaFormat { decompressed_bytes_max: options.decompressed_bytes_max };
        let engine = Engine::open(
            disk,
            engine,
            Arc::clone(&clock) as Arc<dyn hlc::WallClock>,
            Arc::new(format),
        );
        let engine = Arc::new(engine.unwrap());
        let kafka = KafkaServer::new(Arc::clone(&engine), options).unwrap();
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(compat_kafka::serve(
            Arc::clone(&kafka),
            listener,
            Arc::new(compat_kafka::KafkaListener::plain()),
            stopped,
        ));
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

/// The responses on a connection, or on a half of one.
pub struct TestKafkaResponses<S>(pub S);

impl<S: AsyncRead + Unpin> TestKafkaResponses<S> {
    /// The next response, behind its length.
    pub async fn next_bytes(&mut self) -> io::Result<Bytes> {
        let read = async {
            let length = self.0.read_u32().await?;
            let mut bytes = vec![0; length as usize];
            self.0.read_exact(&mut bytes).await?;
            io::Result::Ok(Bytes::from(bytes))
        };
        tokio::time::timeout(PATIENCE, read).await.expect("an answer comes, or the end")
    }

    pub async fn next<R: Request>(&mut self, version: i16) -> io::Result<R::Response> {
        let mut bytes = self.next_bytes().await?;
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
        self.send(&encode_frame(version, request)).await?;
        self.response::<R>(version).await
    }

    pub async fn response_bytes(&mut self) -> io::Result<Bytes> {
        TestKafkaResponses(&mut self.0).next_bytes().await
    }

    /// Sends a heartbeat of a streams group.
    pub async fn streams_heartbeat(
        &mut self,
        heartbeat: &TestStreamsHeartbeat,
    ) -> io::Result<TestStreamsAnswer> {
        self.send(&heartbeat.frame()).await?;
        Ok(TestStreamsAnswer::parse(self.response_bytes().await?))
    }

    /// The error code, and the offset.
    pub async fn produce(&mut self, topic: &str, batch: Bytes) -> (i16, i64) {
        let answer = self.ask(9, &produce_request(topic, 0, &batch)).await.unwrap();
        let answer = &answer.responses[0].partition_responses[0];
        (answer.error_code, answer.base_offset)
    }

    /// The error code, and the batches.
    pub async fn fetch(&mut self, topic: &str, offset: i64) -> io::Result<(i16, Bytes)> {
        let answer = self.ask(12, &fetch_request(topic, 0, offset, Duration::ZERO)).await?;
        let answer = answer.responses[0].partitions[0].clone();
        Ok((answer.error_code, answer.records.unwrap_or_default()))
    }
}

pub fn one_record_batch(value: &[u8]) -> Bytes {
    BatchBuilder::new(CompressionType::None).record(START as i64, None, Some(value), &[]).build()
}
