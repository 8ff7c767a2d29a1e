//! Fetch: returns batches as bytes, unchanged.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};

use crate::ClientError;
use crate::cluster::{Client, topic_name};
use crate::topics::check_error_code;

/// What a response has besides the batches that were asked for, or a first batch that is longer.
const ENVELOPE_BYTES_MAX: usize = 1 << 20;

/// How much to fetch, and how long the server may wait for data.
#[derive(Clone, Copy, Debug)]
pub struct FetchOptions {
    /// How long the server may wait if there is nothing new.
    pub wait_max: Duration,
    /// About how many bytes to fetch from a partition. A longer first batch is complete
    /// nevertheless.
    pub partition_bytes_max: i32,
    /// About how many bytes to fetch in all.
    pub bytes_max: i32,
}

impl Default for FetchOptions {
    fn default() -> FetchOptions {
        FetchOptions {
            wait_max: Duration::from_millis(500),
            partition_bytes_max: 4 << 20,
            bytes_max: 32 << 20,
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
    /// Batches, byte for byte. The first one may begin before the requested offset. The last one
    /// may be incomplete: fetch it again.
    pub batches: Bytes,
}

impl Client {
    /// Fetches from several partitions of one topic, each from its own offset.
    ///
    /// # Errors
    /// Among others Kafka's `OffsetOutOfRange`.
    pub async fn fetch(
        &mut self,
        topic: &str,
        from: &[(i32, i64)],
        options: &FetchOptions,
    ) -> Result<Vec<FetchedPartition>, ClientError> {
        self.retry(async |client: &mut Client| client.fetch_once(topic, from, options).await).await
    }

    async fn fetch_once(
        &mut self,
        topic: &str,
        from: &[(i32, i64)],
        options: &FetchOptions,
    ) -> Result<Vec<FetchedPartition>, ClientError> {
        let mut fetched = Vec::with_capacity(from.len());
        for (leader, from) in self.by_leader(topic, from.iter().copied()).await? {
            let request = request(topic, &from, options);
            let room = usize::try_from(options.bytes_max).unwrap_or(0) + ENVELOPE_BYTES_MAX;
            let answer = self.call_for_records(&leader, &request, room, options.wait_max).await?;
            check_error_code(|| format!("fetch from {topic}"), answer.error_code, None)?;
            for partition in answer.responses.into_iter().flat_map(|topic| topic.partitions) {
                let doing = || format!("fetch from {topic}/{}", partition.partition_index);
                check_error_code(doing, partition.error_code, None)?;
                fetched.push(FetchedPartition {
                    partition: partition.partition_index,
                    start: partition.log_start_offset,
                    end: partition.high_watermark,
                    batches: partition.records.unwrap_or_default(),
                });
            }
        }
        Ok(fetched)
    }
}

fn request(topic: &str, from: &[(i32, i64)], options: &FetchOptions) -> FetchRequest {
    let partitions = from.iter().map(|(partition, offset)| {
        FetchPartition::default()
            .with_partition(*partition)
            .with_fetch_offset(*offset)
            .with_partition_max_bytes(options.partition_bytes_max)
    });
    let topic =
        FetchTopic::default().with_topic(topic_name(topic)).with_partitions(partitions.collect());
    FetchRequest::default()
        .with_max_wait_ms(i32::try_from(options.wait_max.as_millis()).unwrap_or(i32::MAX))
        .with_min_bytes(1)
        .with_max_bytes(options.bytes_max)
        .with_topics(vec![topic])
}
