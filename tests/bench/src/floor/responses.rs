//! The floor's responses.

use std::io::{IoSlice, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsResponse, BrokerId, CreateTopicsRequest, CreateTopicsResponse,
    DeleteTopicsRequest, DeleteTopicsResponse, FetchRequest, ListOffsetsRequest,
    ListOffsetsResponse, MetadataRequest, MetadataResponse,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};

use super::wire::FloorHeader;
use super::{FloorBroker, FloorTopic};

/// The supported APIs and versions: one version each, except ApiVersions.
const SERVED: [(ApiKey, i16, i16); 7] = [
    (ApiKey::Produce, 3, 7),
    (ApiKey::Fetch, 4, 4),
    (ApiKey::ListOffsets, 1, 1),
    (ApiKey::Metadata, 4, 4),
    (ApiKey::ApiVersions, 0, 3),
    (ApiKey::CreateTopics, 2, 2),
    (ApiKey::DeleteTopics, 1, 1),
];
/// Batches are sent from this much memory, in turn, which exceeds a processor's caches.
const POOL_BYTES: usize = 64 << 20;
const BASE_OFFSET_BYTES: usize = 8;

/// Equal batches, each in its own memory.
pub(super) struct SampleBatches {
    pool: Bytes,
    batch_bytes: usize,
    record_count: i64,
    next: usize,
}

impl SampleBatches {
    fn of(batch: &[u8], record_count: u32) -> SampleBatches {
        let pool = batch.repeat((POOL_BYTES / batch.len()).max(1));
        let (batch_bytes, record_count) = (batch.len(), record_count.into());
        SampleBatches { pool: pool.into(), batch_bytes, record_count, next: 0 }
    }

    fn take(&mut self) -> Bytes {
        let from = self.next * self.batch_bytes;
        self.next = (self.next + 1) % (self.pool.len() / self.batch_bytes);
        self.pool.slice(from + BASE_OFFSET_BYTES..from + self.batch_bytes)
    }
}

fn framed(correlation_id: i32, body: &[u8]) -> Vec<u8> {
    let length = (4 + body.len()) as u32;
    [&length.to_be_bytes()[..], &correlation_id.to_be_bytes(), body].concat()
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

struct FloorFetchResponse {
    pieces: Vec<Bytes>,
    /// The bytes after the last piece.
    framing: Vec<u8>,
}

impl FloorFetchResponse {
    /// Appends a partition's batches from `offset` on: as many as fit `limit` bytes, but `at_least`
    /// so many if they exist. Returns the bytes of the batches.
    fn put(
        &mut self,
        topic: &mut FloorTopic,
        partition: i32,
        mut offset: i64,
        limit: usize,
        at_least: usize,
    ) -> Result<usize> {
        let end = topic.ends.get(usize::try_from(partition)?);
        let end = *end.context("there is no such partition")?;
        self.framing.extend_from_slice(&partition.to_be_bytes());
        self.framing.extend_from_slice(&0_i16.to_be_bytes());
        self.framing.extend_from_slice(&[end.to_be_bytes(), end.to_be_bytes()].concat());
        self.framing.extend_from_slice(&(-1_i32).to_be_bytes());
        let Some(sample) = &mut topic.sample else {
            self.framing.extend_from_slice(&0_i32.to_be_bytes());
            return Ok(0);
        };
        let there = usize::try_from((end - offset) / sample.record_count).unwrap_or(0);
        let count = (limit / sample.batch_bytes).max(at_least).min(there);
        let bytes = count * sample.batch_bytes;
        self.framing.extend_from_slice(&(bytes as u32).to_be_bytes());
        for _ in 0..count {
            self.framing.extend_from_slice(&offset.to_be_bytes());
            self.pieces.push(std::mem::take(&mut self.framing).into());
            self.pieces.push(sample.take());
            offset += sample.record_count;
        }
        Ok(bytes)
    }

    fn finish(mut self, correlation_id: i32) -> Vec<Bytes> {
        self.pieces.push(self.framing.into());
        let length = 4 + self.pieces.iter().map(Bytes::len).sum::<usize>() as u32;
        self.pieces[0] = [length.to_be_bytes(), correlation_id.to_be_bytes()].concat().into();
        self.pieces
    }
}

impl FloorBroker {
    /// Counts the accepted batches, and responds: topic, partition, batch and records of each.
    pub(super) fn answer_produce(
        &self,
        header: FloorHeader,
        taken: &[(&str, i32, &[u8], u32)],
    ) -> Result<Vec<u8>> {
        let mut topics = self.topics.lock().expect("no holder of the lock panics");
        let mut body = (taken.len() as u32).to_be_bytes().to_vec();
        for (name, partition, batch, record_count) in taken {
            let topic = topics.get_mut(*name).context("there is no such topic")?;
            topic.sample.get_or_insert_with(|| SampleBatches::of(batch, *record_count));
            let end = topic.ends.get_mut(usize::try_from(*partition)?);
            let end = end.context("there is no such partition")?;
            put_string(&mut body, name);
            body.extend_from_slice(&1_i32.to_be_bytes());
            body.extend_from_slice(&partition.to_be_bytes());
            body.extend_from_slice(&0_i16.to_be_bytes());
            body.extend_from_slice(&end.to_be_bytes());
            body.extend_from_slice(&(-1_i64).to_be_bytes());
            if header.version >= 5 {
                body.extend_from_slice(&0_i64.to_be_bytes());
            }
            *end += i64::from(*record_count);
        }
        body.extend_from_slice(&0_i32.to_be_bytes());
        Ok(framed(header.correlation_id, &body))
    }

    /// Sends batches out of memory.
    pub(super) fn answer_fetch(
        &self,
        header: FloorHeader,
        body: &[u8],
        stream: &mut TcpStream,
    ) -> Result<()> {
        let request = FetchRequest::decode(&mut Bytes::copy_from_slice(body), header.version)?;
        let pieces = self.fetch_response(header, &request)?;
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            let count = left.len().min(1024);
            let written = stream.write_vectored(&left[..count]).context("send batches")?;
            ensure!(written > 0, "the client takes no more bytes");
            IoSlice::advance_slices(&mut left, written);
        }
        Ok(())
    }

    /// The response in pieces: the bytes between batches, and batches without their first offset.
    fn fetch_response(&self, header: FloorHeader, request: &FetchRequest) -> Result<Vec<Bytes>> {
        let mut topics = self.topics.lock().expect("no holder of the lock panics");
        let mut answer = FloorFetchResponse { pieces: vec![Bytes::new()], framing: vec![0; 4] };
        let mut room = usize::try_from(request.max_bytes)?;
        answer.framing.extend_from_slice(&(request.topics.len() as u32).to_be_bytes());
        for asked in &request.topics {
            let topic = topics.get_mut(&*asked.topic.0).context("there is no such topic")?;
            put_string(&mut answer.framing, &asked.topic.0);
            answer.framing.extend_from_slice(&(asked.partitions.len() as u32).to_be_bytes());
            for partition in &asked.partitions {
                let limit = room.min(usize::try_from(partition.partition_max_bytes)?);
                let at_least = usize::from(room > 0);
                let (index, offset) = (partition.partition, partition.fetch_offset);
                room = room.saturating_sub(answer.put(topic, index, offset, limit, at_least)?);
            }
        }
        Ok(answer.finish(header.correlation_id))
    }

    /// Responds to requests that occur once a run.
    pub(super) fn answer_other(&self, header: FloorHeader, body: &[u8]) -> Result<Vec<u8>> {
        let (mut body, version) = (Bytes::copy_from_slice(body), header.version);
        let mut out = BytesMut::new();
        match ApiKey::try_from(header.api) {
            Ok(ApiKey::ApiVersions) => versions().encode(&mut out, version)?,
            Ok(ApiKey::CreateTopics) => {
                let request = CreateTopicsRequest::decode(&mut body, version)?;
                self.create(&request).encode(&mut out, version)?;
            }
            Ok(ApiKey::DeleteTopics) => {
                let request = DeleteTopicsRequest::decode(&mut body, version)?;
                self.delete(&request).encode(&mut out, version)?;
            }
            Ok(ApiKey::Metadata) => {
                let request = MetadataRequest::decode(&mut body, version)?;
                self.metadata(&request).encode(&mut out, version)?;
            }
            Ok(ApiKey::ListOffsets) => {
                let request = ListOffsetsRequest::decode(&mut body, version)?;
                list_offsets(&request).encode(&mut out, version)?;
            }
            _ => bail!("the floor does not serve this API. key={}", header.api),
        }
        Ok(framed(header.correlation_id, &out))
    }

    fn create(&self, request: &CreateTopicsRequest) -> CreateTopicsResponse {
        let mut topics = self.topics.lock().expect("no holder of the lock panics");
        let made = request.topics.iter().map(|topic| {
            let ends = vec![0; usize::try_from(topic.num_partitions).unwrap_or(1)];
            topics.insert(topic.name.0.to_string(), FloorTopic { ends, sample: None });
            CreatableTopicResult::default().with_name(topic.name.clone())
        });
        CreateTopicsResponse::default().with_topics(made.collect())
    }

    fn delete(&self, request: &DeleteTopicsRequest) -> DeleteTopicsResponse {
        let mut topics = self.topics.lock().expect("no holder of the lock panics");
        let gone = request.topic_names.iter().map(|name| {
            topics.remove(&*name.0);
            DeletableTopicResult::default().with_name(Some(name.clone()))
        });
        DeleteTopicsResponse::default().with_responses(gone.collect())
    }

    fn metadata(&self, request: &MetadataRequest) -> MetadataResponse {
        let topics = self.topics.lock().expect("no holder of the lock panics");
        let named = request.topics.iter().flatten().filter_map(|topic| topic.name.clone());
        let found = named.map(|name| {
            let count = topics.get(&*name.0).map_or(0, |topic| topic.ends.len() as i32);
            let partition = |index| {
                let partition = MetadataResponsePartition::default().with_partition_index(index);
                partition.with_leader_id(BrokerId(0))
            };
            let partitions = (0..count).map(partition).collect();
            MetadataResponseTopic::default().with_name(Some(name)).with_partitions(partitions)
        });
        let host = StrBytes::from_string(self.address.ip().to_string());
        let broker = MetadataResponseBroker::default().with_node_id(BrokerId(0)).with_host(host);
        let broker = broker.with_port(self.address.port().into());
        MetadataResponse::default().with_topics(found.collect()).with_brokers(vec![broker])
    }
}

fn versions() -> ApiVersionsResponse {
    let keys = SERVED.iter().map(|(key, min, max)| {
        let version = ApiVersion::default().with_api_key(*key as i16);
        version.with_min_version(*min).with_max_version(*max)
    });
    ApiVersionsResponse::default().with_api_keys(keys.collect())
}

fn list_offsets(request: &ListOffsetsRequest) -> ListOffsetsResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            ListOffsetsPartitionResponse::default().with_partition_index(partition.partition_index)
        });
        ListOffsetsTopicResponse::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    ListOffsetsResponse::default().with_topics(topics.collect())
}
