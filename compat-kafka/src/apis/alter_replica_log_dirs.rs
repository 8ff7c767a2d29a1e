//! AlterReplicaLogDirs (34): there is one directory, so a partition may only be where it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult,
};
use kafka_protocol::messages::{
    AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, TopicName,
};
use kafka_protocol::protocol::VersionRange;

use super::describe_log_dirs::log_dir;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for AlterReplicaLogDirsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 2 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> AlterReplicaLogDirsResponse {
        let allowed = kafka.authorize(context, Operation::Alter, Resource::CLUSTER);
        let mut results: BTreeMap<TopicName, BTreeMap<i32, i16>> = BTreeMap::new();
        for directory in self.dirs {
            for topic in directory.topics {
                for partition in topic.partitions {
                    let moved = allowed
                        .and_then(|()| check_place(kafka, &directory.path, &topic.name, partition));
                    let code = moved.err().map_or(0, |error| error.code());
                    results.entry(topic.name.clone()).or_default().insert(partition, code);
                }
            }
        }
        let topic_result = |(name, partitions): (TopicName, BTreeMap<i32, i16>)| {
            let partitions = partitions.into_iter().map(|(partition, code)| {
                AlterReplicaLogDirPartitionResult::default()
                    .with_partition_index(partition)
                    .with_error_code(code)
            });
            AlterReplicaLogDirTopicResult::default()
                .with_topic_name(name)
                .with_partitions(partitions.collect())
        };
        AlterReplicaLogDirsResponse::default()
            .with_results(results.into_iter().map(topic_result).collect())
    }
}

fn check_place(
    kafka: &KafkaServer,
    path: &str,
    topic: &str,
    partition: i32,
) -> Result<(), ResponseError> {
    if path != log_dir(kafka) {
        return Err(ResponseError::LogDirNotFound);
    }
    let topic = kafka.engine.topics().named(topic);
    if topic.is_some_and(|topic| topic.partition(partition).is_ok()) {
        Ok(())
    } else {
        Err(ResponseError::ReplicaNotAvailable)
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::alter_replica_log_dirs_request::{
        AlterReplicaLogDir, AlterReplicaLogDirTopic,
    };
    use kafka_protocol::protocol::StrBytes;

    use super::*;
    use crate::apis::test_server::{ask, kafka, name, topic};

    #[tokio::test]
    async fn a_partition_stays_in_its_directory() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let directory = log_dir(&kafka);
        for (path, topic, partition, error) in [
            (&*directory, "a", 0, None),
            (&*directory, "a", 1, Some(ResponseError::ReplicaNotAvailable)),
            (&*directory, "b", 0, Some(ResponseError::ReplicaNotAvailable)),
            ("/elsewhere", "a", 0, Some(ResponseError::LogDirNotFound)),
        ] {
            let topic = AlterReplicaLogDirTopic::default()
                .with_name(name(topic))
                .with_partitions(vec![partition]);
            let directory = AlterReplicaLogDir::default()
                .with_path(StrBytes::from_string(path.to_owned()))
                .with_topics(vec![topic]);
            let request = AlterReplicaLogDirsRequest::default().with_dirs(vec![directory]);
            for version in 1..=2 {
                let answer = ask(&kafka, version, request.clone()).await;
                let code = error.map_or(0, |error: ResponseError| error.code());
                assert_eq!(answer.results[0].partitions[0].error_code, code, "{path} {partition}");
            }
        }
    }
}
