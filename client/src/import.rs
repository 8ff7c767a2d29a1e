//! Batches of another log, which keep the offsets that they have there. Only Freezeframe takes them.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};

use crate::ClientError;
use crate::cluster::{Client, topic_name};

const SERVER_WAIT: Duration = Duration::from_secs(30);
/// A tagged field of ours in a partition: the offset of its first batch.
const IMPORT_TAG: i32 = 10_001;

/// Batches for a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedBatches {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset of the first batch, at which the partition must end.
    pub base_offset: i64,
    /// Whole batches, each at the offset behind the one before it. They may leave out records, also
    /// all of them, and have no producer.
    pub batches: Bytes,
}

impl Client {
    /// Appends batches to partitions, each at the offset that it has, and waits until they are on
    /// stable storage. A request that is repeated appends nothing twice.
    ///
    /// The caller has seen that the server is Freezeframe: a stock Kafka appends them anywhere.
    ///
    /// # Errors
    /// Kafka's `OffsetOutOfRange` if a partition ends elsewhere. Other batches may have been appended
    /// nevertheless.
    pub async fn import(&mut self, batches: &[ImportedBatches]) -> Result<(), ClientError> {
        let mut by_leader: BTreeMap<String, BTreeMap<&str, Vec<&ImportedBatches>>> =
            BTreeMap::new();
        for batches in batches {
            let partition = [(batches.partition, ())];
            let leaders = self.by_leader(&batches.topic, partition).await?;
            let leader = leaders.into_keys().next().unwrap_or_default();
            by_leader.entry(leader).or_default().entry(&batches.topic).or_default().push(batches);
        }
        for (leader, topics) in by_leader {
            let request = request(&topics);
            let answer = self.call_for_records(&leader, &request, 0, SERVER_WAIT).await?;
            let mut expected: BTreeMap<(&str, i32), i64> = topics
                .into_values()
                .flatten()
                .map(|batches| ((&*batches.topic, batches.partition), batches.base_offset))
                .collect();
            for topic in &answer.responses {
                for partition in &topic.partition_responses {
                    let doing = format!("import {}/{}", *topic.name, partition.index);
                    if let Some(error) = ResponseError::try_from_code(partition.error_code) {
                        let message = partition.error_message.as_deref();
                        return Err(ClientError::kafka(doing, error, message));
                    }
                    let key = (&**topic.name, partition.index);
                    if expected.remove(&key) != Some(partition.base_offset) {
                        let what = format!("{doing}: it appended at {}", partition.base_offset);
                        return Err(ClientError::Malformed { address: leader, what });
                    }
                }
            }
            if let Some((topic, partition)) = expected.into_keys().next() {
                let what = format!("the response to an import leaves out {topic}/{partition}");
                return Err(ClientError::Malformed { address: leader, what });
            }
        }
        Ok(())
    }
}

fn request(topics: &BTreeMap<&str, Vec<&ImportedBatches>>) -> ProduceRequest {
    let topics = topics.iter().map(|(topic, partitions)| {
        let partitions = partitions.iter().map(|batches| {
            let mut data = PartitionProduceData::default()
                .with_index(batches.partition)
                .with_records(Some(batches.batches.clone()));
            let base = Bytes::copy_from_slice(&batches.base_offset.to_be_bytes());
            data.unknown_tagged_fields.insert(IMPORT_TAG, base);
            data
        });
        TopicProduceData::default()
            .with_name(topic_name(topic))
            .with_partition_data(partitions.collect())
    });
    ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(SERVER_WAIT.as_millis() as i32)
        .with_topic_data(topics.collect())
}
