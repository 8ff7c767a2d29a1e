//! A transactional producer, and a reader of committed records, as clients are.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use compat_kafka::KafkaOptions;
use engine::CoreOptions;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, EndTxnRequest, EndTxnResponse, FetchRequest, InitProducerIdRequest,
    InitProducerIdResponse, ProduceRequest, ProducerId, TransactionalId,
};
use kafka_records::{BatchBuilder, BatchIterator, CompressionType, DecompressionLimit, records};
use storage::disk::MemoryDisk;
use testkit::kafka::{TestKafkaConnection, TestKafkaServer};
use testkit::requests::{fetch_request, produce_request, str_bytes, topic_name};

pub(crate) const COMMITTED: i8 = 1;
pub(crate) const UNCOMMITTED: i8 = 0;

pub(crate) async fn server_on(disk: &MemoryDisk) -> TestKafkaServer {
    server_with(disk, CoreOptions::default()).await
}

pub(crate) async fn server_with(disk: &MemoryDisk, core: CoreOptions) -> TestKafkaServer {
    let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let disk = Arc::new(disk.clone());
    TestKafkaServer::start_with(localhost, disk, KafkaOptions::default(), core).await
}

pub(crate) async fn create(server: &TestKafkaServer, name: &str, partitions: u32) {
    let mut id = [7; 16];
    id[..name.len()].copy_from_slice(name.as_bytes());
    let created = server.engine.topics().create(name, partitions, BTreeMap::new(), id, false);
    created.await.unwrap();
}

/// The protocol of transactions that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Partitions are added before they are written, and the epoch stays.
    V1,
    /// Partitions are added with their first batch, and each end raises the epoch (KIP-890).
    V2,
}

pub(crate) fn transactional_id(id: &str) -> TransactionalId {
    TransactionalId(str_bytes(id))
}

/// A producer as stock clients have it.
pub(crate) struct TransactionalProducer {
    pub(crate) connection: TestKafkaConnection,
    pub(crate) protocol: Protocol,
    pub(crate) id: String,
    pub(crate) producer: (i64, i16),
    sequences: HashMap<(String, i32), i32>,
    added: HashSet<(String, i32)>,
}

impl TransactionalProducer {
    /// Connects, and initializes the producer.
    pub(crate) async fn start(
        server: &TestKafkaServer,
        protocol: Protocol,
        id: &str,
    ) -> TransactionalProducer {
        let mut producer = TransactionalProducer {
            connection: server.connect().await,
            protocol,
            id: id.to_owned(),
            producer: (-1, -1),
            sequences: HashMap::new(),
            added: HashSet::new(),
        };
        let initialized = producer.init(60_000).await;
        assert_eq!(initialized.error_code, 0);
        producer
    }

    /// Connects again, as after the loss of the connection.
    pub(crate) async fn reconnect(&mut self, server: &TestKafkaServer) {
        self.connection = server.connect().await;
    }

    pub(crate) async fn init(&mut self, timeout_ms: i32) -> InitProducerIdResponse {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(transactional_id(&self.id)))
            .with_transaction_timeout_ms(timeout_ms)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let answer = self.connection.ask(5, &request).await.unwrap();
        if answer.error_code == 0 {
            self.set_producer(answer.producer_id.0, answer.producer_epoch);
        }
        answer
    }

    fn set_producer(&mut self, id: i64, epoch: i16) {
        if (id, epoch) != self.producer {
            self.sequences.clear();
        }
        self.producer = (id, epoch);
        self.added.clear();
    }

    pub(crate) async fn add_partition(&mut self, topic: &str, partition: i32) -> i16 {
        let named = AddPartitionsToTxnTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(vec![partition]);
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(transactional_id(&self.id))
            .with_v3_and_below_producer_id(ProducerId(self.producer.0))
            .with_v3_and_below_producer_epoch(self.producer.1)
            .with_v3_and_below_topics(vec![named]);
        let answer = self.connection.ask(3, &request).await.unwrap();
        answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    }

    /// Sends one record; returns the error code and the offset.
    pub(crate) async fn send(&mut self, topic: &str, partition: i32, value: &str) -> (i16, i64) {
        self.send_all(topic, partition, &[value]).await
    }

    /// Sends some records in one batch; returns the error code and the offset of the first.
    pub(crate) async fn send_all(
        &mut self,
        topic: &str,
        partition: i32,
        values: &[&str],
    ) -> (i16, i64) {
        let place = (topic.to_owned(), partition);
        if self.protocol == Protocol::V1 && self.added.insert(place.clone()) {
            let error = self.add_partition(topic, partition).await;
            if error != 0 {
                self.added.remove(&place);
                return (error, -1);
            }
        }
        let sequence = self.sequences.get(&place).copied().unwrap_or(0);
        let batch = self.batch(sequence, values);
        let (error, offset) = self.send_batch(topic, partition, &batch).await;
        if error == 0 {
            self.sequences.insert(place, sequence + values.len() as i32);
        }
        (error, offset)
    }

    /// A batch of some records. The key of each is the part of its value before `=`, if it has one.
    pub(crate) fn batch(&self, sequence: i32, values: &[&str]) -> Bytes {
        let (id, epoch) = self.producer;
        let mut batch = BatchBuilder::new(CompressionType::None);
        batch.producer(id, epoch, sequence).transactional();
        for value in values {
            let key = value.split_once('=').map(|(key, _)| key.as_bytes());
            batch.record(testkit::kafka::START as i64, key, Some(value.as_bytes()), &[]);
        }
        batch.build()
    }

    pub(crate) async fn send_batch(
        &mut self,
        topic: &str,
        partition: i32,
        batch: &Bytes,
    ) -> (i16, i64) {
        let request = self.request(topic, partition, batch);
        let version = if self.protocol == Protocol::V1 { 11 } else { 12 };
        let answer = self.connection.ask(version, &request).await.unwrap();
        let answer = &answer.responses[0].partition_responses[0];
        (answer.error_code, answer.base_offset)
    }

    pub(crate) fn request(&self, topic: &str, partition: i32, batch: &Bytes) -> ProduceRequest {
        produce_request(topic, partition, batch)
            .with_transactional_id(Some(transactional_id(&self.id)))
    }

    /// Sends one record that must be taken.
    pub(crate) async fn must_send(&mut self, topic: &str, partition: i32, value: &str) -> i64 {
        let (error, offset) = self.send(topic, partition, value).await;
        assert_eq!(ResponseError::try_from_code(error), None, "send {value}");
        offset
    }

    pub(crate) async fn end(&mut self, commits: bool) -> EndTxnResponse {
        let request = self.end_request(commits);
        let version = if self.protocol == Protocol::V1 { 4 } else { 5 };
        let answer = self.connection.ask(version, &request).await.unwrap();
        if answer.error_code == 0 {
            let (id, epoch) = match self.protocol {
                Protocol::V1 => self.producer,
                Protocol::V2 => (answer.producer_id.0, answer.producer_epoch),
            };
            self.set_producer(id, epoch);
        }
        answer
    }

    pub(crate) fn end_request(&self, commits: bool) -> EndTxnRequest {
        EndTxnRequest::default()
            .with_transactional_id(transactional_id(&self.id))
            .with_producer_id(ProducerId(self.producer.0))
            .with_producer_epoch(self.producer.1)
            .with_committed(commits)
    }

    pub(crate) async fn must_end(&mut self, commits: bool) {
        assert_eq!(ResponseError::try_from_code(self.end(commits).await.error_code), None);
    }
}

/// The contents of a partition for a reader, and its last stable offset.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PartitionContents {
    pub(crate) values: Vec<String>,
    pub(crate) last_stable: i64,
    pub(crate) high_watermark: i64,
}

/// Reads a partition to its end as Java's consumer does: it leaves out the batches of a producer
/// from the first offset of an aborted transaction on, up to its marker.
pub(crate) async fn read(
    connection: &mut TestKafkaConnection,
    topic: &str,
    partition: i32,
    isolation: i8,
) -> PartitionContents {
    let (mut offset, mut contents) =
        (0, PartitionContents { values: Vec::new(), last_stable: 0, high_watermark: 0 });
    loop {
        let request: FetchRequest =
            fetch_request(topic, partition, offset, Duration::ZERO).with_isolation_level(isolation);
        let answer = connection.ask(12, &request).await.unwrap();
        let data = answer.responses.into_iter().next().unwrap().partitions.remove(0);
        assert_eq!(ResponseError::try_from_code(data.error_code), None, "fetch {topic}");
        contents.last_stable = data.last_stable_offset;
        contents.high_watermark = data.high_watermark;
        match collect(&data, &mut contents.values) {
            Some(next) => offset = next,
            None => return contents,
        }
    }
}

/// Adds the values of a response that a client shows; returns the offset after them.
fn collect(data: &PartitionData, values: &mut Vec<String>) -> Option<i64> {
    let bytes = data.records.clone().unwrap_or_default();
    let mut aborted: Vec<(i64, i64)> = data
        .aborted_transactions
        .iter()
        .flatten()
        .map(|one| (one.first_offset, one.producer_id.0))
        .collect();
    aborted.sort_unstable();
    let mut aborted = aborted.into_iter().peekable();
    let (mut left_out, mut next) = (HashSet::new(), None);
    for batch in BatchIterator::new(&bytes) {
        let (header, batch) = batch.unwrap();
        let batch = Bytes::copy_from_slice(batch);
        next = Some(header.last_offset() + 1);
        while let Some((_, producer)) = aborted.next_if(|(first, _)| *first <= header.last_offset())
        {
            left_out.insert(producer);
        }
        let limit = DecompressionLimit { decompressed_bytes_max: 1 << 20 };
        let mut found = records(&batch, limit).unwrap();
        if header.is_control() {
            let key = found.next().unwrap().unwrap().key.unwrap();
            if key[..] == [0, 0, 0, 0] {
                left_out.remove(&header.producer_id);
            }
            continue;
        }
        if header.is_transactional() && left_out.contains(&header.producer_id) {
            continue;
        }
        let text = |value: Option<Bytes>| String::from_utf8(value.unwrap().to_vec()).unwrap();
        values.extend(found.map(|record| text(record.unwrap().value)));
    }
    next
}
