//! Fetch: returns batches as bytes, unchanged.

use std::time::Duration;

use bytes::Bytes;
use history_documents::Isolation;
use hlc::Hlc;
use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};

use crate::ClientError;
use crate::cluster::{Client, topic_name};
use crate::topics::check_error_code;

/// The most bytes of a response besides the requested batches, or a first batch that is longer.
const ENVELOPE_BYTES_MAX: usize = 1 << 20;

/// A tagged field of ours: an empty one in a request asks for stamps, and one in each partition of
/// the answer has them.
const STAMPS_TAG: i32 = 10_000;

/// The limits of a fetch: bytes, the time that the server may wait for data, and the records to
/// read.
#[derive(Clone, Copy, Debug)]
pub struct FetchOptions {
    /// The longest time that the server may wait if there is nothing new.
    pub wait_max: Duration,
    /// The number of bytes to fetch from a partition, approximately. A longer first batch is
    /// complete nevertheless.
    pub partition_bytes_max: i32,
    /// The number of bytes to fetch in all, approximately.
    pub bytes_max: i32,
    /// The records of transactions to read.
    pub isolation: Isolation,
    /// True to ask for the stamps at which batches were accepted. A stock Kafka does not send them.
    pub wants_stamps: bool,
}

/// The number of an isolation on the wire.
pub(crate) fn isolation_level(isolation: Isolation) -> i8 {
    match isolation {
        Isolation::Uncommitted => 0,
        Isolation::Committed => 1,
    }
}

impl Default for FetchOptions {
    fn default() -> FetchOptions {
        FetchOptions {
            wait_max: Duration::from_millis(500),
            partition_bytes_max: 4 << 20,
            bytes_max: 32 << 20,
            isolation: Isolation::Uncommitted,
            wants_stamps: false,
        }
    }
}

/// The result for one partition.
#[derive(Clone, Debug)]
pub struct FetchedPartition {
    /// The partition.
    pub partition: i32,
    /// The log start offset.
    pub start: i64,
    /// The high watermark.
    pub end: i64,
    /// The aborted transactions whose batches a reader of committed records leaves out
    /// ([`CommittedBatches`](kafka_records::CommittedBatches)): the first offset and the producer
    /// of each.
    pub aborted: Vec<(i64, i64)>,
    /// Batches, byte for byte. The first one may begin before the requested offset. The last one
    /// may be incomplete: fetch it again.
    pub batches: Bytes,
    /// If they were asked for, and the server is Freezeframe.
    pub stamps: Option<BatchStamps>,
}

/// The stamps at which batches were accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchStamps {
    /// Records of the partition behind these batches have a later stamp, if the reader reads on
    /// with the same isolation. [`Hlc::MAX`] if there will be nothing: at the end of a moment.
    pub closed: Hlc,
    /// The stamp of each batch, in order.
    pub batches: Vec<Hlc>,
}

impl BatchStamps {
    fn parse(field: &[u8]) -> Option<BatchStamps> {
        let (words, []) = field.as_chunks::<8>() else { return None };
        let mut stamps = words.iter().map(|word| Hlc::from_bits(u64::from_be_bytes(*word)));
        Some(BatchStamps { closed: stamps.next()?, batches: stamps.collect() })
    }
}

/// A partition to fetch from, and the offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchPosition {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset of the first record to fetch.
    pub offset: i64,
}

impl Client {
    /// Fetches from several partitions of one topic, each from its own offset.
    ///
    /// # Errors
    /// Among others Kafka's `OffsetOutOfRange`.
    pub async fn fetch(
        &mut self,
        topic: &str,
        positions: &[(i32, i64)],
        options: &FetchOptions,
    ) -> Result<Vec<FetchedPartition>, ClientError> {
        self.retry(async |client: &mut Client| client.fetch_once(topic, positions, options).await)
            .await
    }

    async fn fetch_once(
        &mut self,
        topic: &str,
        positions: &[(i32, i64)],
        options: &FetchOptions,
    ) -> Result<Vec<FetchedPartition>, ClientError> {
        let mut fetched = Vec::with_capacity(positions.len());
        for (leader, starts) in self.by_leader(topic, positions.iter().copied()).await? {
            let position = |(partition, offset)| {
                let topic = topic.to_owned();
                FetchPosition { topic, partition, offset }
            };
            let positions: Vec<FetchPosition> = starts.into_iter().map(position).collect();
            let from_leader = self.fetch_from(&leader, &positions, options).await?;
            fetched.extend(from_leader.into_iter().map(|(_, partition)| partition));
        }
        Ok(fetched)
    }

    /// Fetches from partitions of several topics, those of one topic together. A server fills its
    /// response in the order of the request.
    ///
    /// # Errors
    /// As [`Client::fetch`].
    pub async fn fetch_topics(
        &mut self,
        positions: &[FetchPosition],
        options: &FetchOptions,
    ) -> Result<Vec<(String, FetchedPartition)>, ClientError> {
        self.retry(async |client: &mut Client| client.fetch_topics_once(positions, options).await)
            .await
    }

    async fn fetch_topics_once(
        &mut self,
        positions: &[FetchPosition],
        options: &FetchOptions,
    ) -> Result<Vec<(String, FetchedPartition)>, ClientError> {
        let mut by_leader: Vec<(String, Vec<FetchPosition>)> = Vec::new();
        for topic_positions in positions.chunk_by(|position, next| position.topic == next.topic) {
            let topic = &topic_positions[0].topic;
            let offsets =
                topic_positions.iter().map(|position| (position.partition, position.offset));
            for (leader, offsets) in self.by_leader(topic, offsets).await? {
                let position = |(partition, offset)| {
                    let topic = topic.clone();
                    FetchPosition { topic, partition, offset }
                };
                let positions = offsets.into_iter().map(position);
                match by_leader.iter_mut().find(|(known_leader, _)| *known_leader == leader) {
                    Some((_, pending)) => pending.extend(positions),
                    None => by_leader.push((leader, positions.collect())),
                }
            }
        }
        let mut fetched = Vec::with_capacity(positions.len());
        for (leader, positions) in by_leader {
            fetched.extend(self.fetch_from(&leader, &positions, options).await?);
        }
        Ok(fetched)
    }

    /// Fetches from partitions of several topics that one server leads. The partitions of one topic
    /// stand together.
    pub(crate) async fn fetch_from(
        &mut self,
        leader: &str,
        positions: &[FetchPosition],
        options: &FetchOptions,
    ) -> Result<Vec<(String, FetchedPartition)>, ClientError> {
        let request = request(positions, options);
        let room = usize::try_from(options.bytes_max).unwrap_or(0) + ENVELOPE_BYTES_MAX;
        let answer = self.call_for_records(leader, &request, room, options.wait_max).await?;
        let doing = || {
            let topic = positions.first().map_or("nothing", |position| &position.topic);
            format!("fetch from {topic}")
        };
        check_error_code(doing, answer.error_code, None)?;
        let mut fetched = Vec::with_capacity(positions.len());
        for topic in answer.responses {
            for partition in topic.partitions {
                let doing = || format!("fetch from {}/{}", *topic.topic, partition.partition_index);
                check_error_code(doing, partition.error_code, None)?;
                let aborted = partition.aborted_transactions.unwrap_or_default().into_iter();
                let aborted = aborted
                    .map(|transaction| (transaction.first_offset, transaction.producer_id.0));
                let stamps = partition.unknown_tagged_fields.get(&STAMPS_TAG);
                fetched.push((
                    topic.topic.to_string(),
                    FetchedPartition {
                        partition: partition.partition_index,
                        start: partition.log_start_offset,
                        end: partition.high_watermark,
                        aborted: aborted.collect(),
                        stamps: stamps.and_then(|field| BatchStamps::parse(field)),
                        batches: partition.records.unwrap_or_default(),
                    },
                ));
            }
        }
        Ok(fetched)
    }
}

fn request(positions: &[FetchPosition], options: &FetchOptions) -> FetchRequest {
    let topics =
        positions.chunk_by(|position, next| position.topic == next.topic).map(|topic_positions| {
            let partitions = topic_positions.iter().map(|position| {
                FetchPartition::default()
                    .with_partition(position.partition)
                    .with_fetch_offset(position.offset)
                    .with_partition_max_bytes(options.partition_bytes_max)
            });
            let name = topic_name(&topic_positions[0].topic);
            FetchTopic::default().with_topic(name).with_partitions(partitions.collect())
        });
    let mut request = FetchRequest::default()
        .with_max_wait_ms(i32::try_from(options.wait_max.as_millis()).unwrap_or(i32::MAX))
        .with_min_bytes(1)
        .with_max_bytes(options.bytes_max)
        .with_isolation_level(isolation_level(options.isolation))
        .with_topics(topics.collect());
    if options.wants_stamps {
        request.unknown_tagged_fields.insert(STAMPS_TAG, Bytes::new());
    }
    request
}
