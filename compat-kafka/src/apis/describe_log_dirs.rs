//! DescribeLogDirs (35): the size of partitions. All of them share one journal, which is shown as
//! one directory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use engine::blocking::block_in_place;
use engine::security::{Operation, Resource};
use engine::{Partition, Topic};
use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse, TopicName};
use kafka_protocol::protocol::{Encodable, StrBytes, VersionRange};

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestBody, RequestContext, ResponseResult, decode, encode};
use crate::wire::{put_no_tags, write_flexible};

/// The setting that names the directory, and the name if it is not set.
const DIRECTORY_SETTING: &str = "log.dirs";
const DIRECTORY: &str = "journal";
/// The size of a volume that is not known.
const UNKNOWN_BYTES: i64 = -1;

/// The version whose answer says whether a directory takes new partitions (KIP-1066).
const CORDONED: i16 = 5;
/// The newest version that the codec has.
const KNOWN: i16 = 4;

pub(crate) const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: CORDONED };

/// Answers a request of any version. The newest one asks as the one before it does.
pub(crate) async fn handle(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: RequestBody,
) -> ResponseResult {
    let known_context = RequestContext { version: context.version.min(KNOWN), ..context.clone() };
    let request = decode::<DescribeLogDirsRequest>(&known_context, body)?;
    let response = request.handle(&kafka, &known_context).await;
    if context.version < CORDONED {
        return encode::<DescribeLogDirsRequest>(&known_context, &response).map(Some);
    }
    write_flexible(&context, &[encode_with_cordon(&response)]).map(Some)
}

/// Encodes the newest version, which adds one field at the end of a directory.
fn encode_with_cordon(response: &DescribeLogDirsResponse) -> Bytes {
    let mut body = BytesMut::new();
    response.encode(&mut body, KNOWN).expect("memory takes it");
    if !response.results.is_empty() {
        assert_eq!(response.results.len(), 1, "there is one directory");
        // The directory and the answer both end with no tagged fields.
        body.truncate(body.len() - 2);
        body.put_u8(u8::from(false));
        put_no_tags(&mut body);
        put_no_tags(&mut body);
    }
    body.freeze()
}

impl ApiHandler for DescribeLogDirsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: KNOWN };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DescribeLogDirsResponse {
        if let Err(error) = kafka.authorize(context, Operation::Describe, Resource::CLUSTER) {
            return DescribeLogDirsResponse::default().with_error_code(error.code());
        }
        // Sizes are looked up in index files.
        let (topics, (total, usable)) = block_in_place(|| {
            let topics = match self.topics {
                None => {
                    let topics = kafka.engine.topics().all();
                    topics.iter().map(|topic| describe_topic(topic, |_| true)).collect()
                }
                Some(requested) => describe_topics(kafka, requested),
            };
            (topics, volume_bytes(kafka))
        });
        let directory = DescribeLogDirsResult::default()
            .with_log_dir(StrBytes::from_string(log_dir(kafka)))
            .with_topics(topics)
            .with_total_bytes(total)
            .with_usable_bytes(usable);
        DescribeLogDirsResponse::default().with_results(vec![directory])
    }
}

pub(super) fn log_dir(kafka: &KafkaServer) -> String {
    let options = kafka.settings.options.load();
    let directory = options.setting(DIRECTORY_SETTING);
    directory.and_then(|setting| setting.value.clone()).unwrap_or_else(|| DIRECTORY.to_owned())
}

/// The bytes of the volume, and how many of them can be written.
fn volume_bytes(kafka: &KafkaServer) -> (i64, i64) {
    let volume = kafka.options.data_dir.as_deref().map(engine::volume_bytes);
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    match volume {
        Some(Ok(volume)) => (bytes(volume.total), bytes(volume.usable)),
        Some(Err(error)) => {
            tracing::warn!(%error, "the size of the volume with the data is not known");
            (UNKNOWN_BYTES, UNKNOWN_BYTES)
        }
        None => (UNKNOWN_BYTES, UNKNOWN_BYTES),
    }
}

/// Describes the requested partitions that exist. The response has no place for the others.
fn describe_topics(
    kafka: &KafkaServer,
    requested: Vec<DescribableLogDirTopic>,
) -> Vec<DescribeLogDirsTopic> {
    let mut indexes: HashMap<TopicName, HashSet<i32>> = HashMap::new();
    for topic in requested {
        indexes.entry(topic.topic).or_default().extend(topic.partitions);
    }
    let describe = |(name, indexes): (TopicName, HashSet<i32>)| {
        let topic = kafka.engine.topics().named(&name)?;
        Some(describe_topic(&topic, |partition| indexes.contains(&(partition.index as i32))))
    };
    let topics = indexes.into_iter().filter_map(describe);
    topics.filter(|topic| !topic.partitions.is_empty()).collect()
}

fn describe_topic(topic: &Topic, is_wanted: impl Fn(&Partition) -> bool) -> DescribeLogDirsTopic {
    let partitions =
        topic.partitions.iter().filter(|partition| is_wanted(partition)).map(|partition| {
            DescribeLogDirsPartition::default()
                .with_partition_index(partition.index as i32)
                .with_partition_size(size(partition))
        });
    DescribeLogDirsTopic::default()
        .with_name(TopicName(StrBytes::from_string(topic.name.to_string())))
        .with_partitions(partitions.collect())
}

/// The bytes of payload in the partition; 0 if an index cannot be read.
fn size(partition: &Partition) -> i64 {
    let bytes = partition.log.bytes().unwrap_or_else(|error| {
        tracing::error!(%error, "the size of a partition is not known");
        0
    });
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apis::test_server::{ask, kafka, kafka_with, name, topic, topic_with_records};
    use crate::broker_settings::{BrokerSetting, DynamicOptions};
    use crate::options::KafkaOptions;

    /// Topic, partition, size.
    fn sizes(response: &DescribeLogDirsResponse) -> Vec<(String, i32, i64)> {
        let [directory] = &response.results[..] else { panic!("{response:?}") };
        let mut sizes: Vec<_> = directory
            .topics
            .iter()
            .flat_map(|topic| {
                let name = topic.name.to_string();
                let size = |p: &DescribeLogDirsPartition| (p.partition_index, p.partition_size);
                topic.partitions.iter().map(size).map(move |(i, size)| (name.clone(), i, size))
            })
            .collect();
        sizes.sort();
        sizes
    }

    #[tokio::test]
    async fn every_partition_is_as_large_as_what_was_appended() {
        let kafka = kafka();
        topic_with_records(&kafka, "a", 5).await;
        topic(&kafka, "b", 2).await;
        for version in 1..=4 {
            let answer =
                ask(&kafka, version, DescribeLogDirsRequest::default().with_topics(None)).await;
            assert_eq!(answer.error_code, 0);
            let expected = [("a", 0, 161), ("b", 0, 0), ("b", 1, 0)];
            assert_eq!(sizes(&answer), expected.map(|(name, i, size)| (name.to_owned(), i, size)));
        }
    }

    #[tokio::test]
    async fn only_what_was_asked_for_and_is_there_is_answered() {
        let kafka = kafka();
        topic(&kafka, "b", 3).await;
        let topic_request = |topic: &str, partitions: &[i32]| {
            DescribableLogDirTopic::default()
                .with_topic(name(topic))
                .with_partitions(partitions.to_vec())
        };
        let request = DescribeLogDirsRequest::default().with_topics(Some(vec![
            topic_request("b", &[2, 9, -1, 2]),
            topic_request("c", &[0]),
            topic_request("b", &[0]),
        ]));
        let answer = ask(&kafka, 4, request).await;
        assert_eq!(sizes(&answer), [("b".to_owned(), 0, 0), ("b".to_owned(), 2, 0)]);
        let nothing = DescribeLogDirsRequest::default().with_topics(Some(Vec::new()));
        assert!(sizes(&ask(&kafka, 4, nothing).await).is_empty());
    }

    #[tokio::test]
    async fn the_directory_is_called_as_the_operator_has_set_it() {
        let setting = BrokerSetting {
            name: DIRECTORY_SETTING.to_owned(),
            type_name: "LIST",
            value: Some("/var/frozen".to_owned()),
            given: Vec::new(),
            default: None,
            is_dynamic: false,
            documentation: String::new(),
        };
        let broker_settings = vec![setting];
        let dynamic = DynamicOptions { broker_settings, ..DynamicOptions::default() };
        let kafka = kafka_with(KafkaOptions { dynamic, ..KafkaOptions::default() });
        let answer = ask(&kafka, 4, DescribeLogDirsRequest::default().with_topics(None)).await;
        let directory = &answer.results[0];
        assert_eq!(&*directory.log_dir, "/var/frozen");
        assert_eq!((directory.total_bytes, directory.usable_bytes), (-1, -1));
    }

    #[tokio::test]
    async fn the_newest_version_says_that_the_directory_takes_partitions() {
        let data_dir = Some(std::env::temp_dir());
        let kafka = kafka_with(KafkaOptions { data_dir, ..KafkaOptions::default() });
        topic_with_records(&kafka, "b", 1).await;
        let mut answer = ask(&kafka, 4, DescribeLogDirsRequest::default().with_topics(None)).await;
        let directory = &answer.results[0];
        assert!(0 < directory.usable_bytes && directory.usable_bytes <= directory.total_bytes);
        let mut known_part = BytesMut::new();
        answer.encode(&mut known_part, KNOWN).unwrap();
        let mut expected = known_part[..known_part.len() - 2].to_vec();
        expected.extend([0, 0, 0]);
        assert_eq!(encode_with_cordon(&answer), expected);
        answer.results.clear();
        known_part.clear();
        answer.encode(&mut known_part, KNOWN).unwrap();
        assert_eq!(encode_with_cordon(&answer), known_part);
    }
}
