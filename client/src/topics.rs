//! Topics: listing, creating, and deleting them.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest,
    DescribeConfigsRequest, DescribeLogDirsRequest, IncrementalAlterConfigsRequest,
};
use kafka_protocol::protocol::StrBytes;

use crate::ClientError;
use crate::cluster::{Client, topic_error, topic_name};

const SERVER_WAIT: Duration = Duration::from_secs(30);
const RESOURCE_TOPIC: i8 = 2;
/// The operations on a setting (`AlterConfigOp.OpType`).
const CONFIG_SET: i8 = 0;
const CONFIG_DELETE: i8 = 1;

/// A topic of the present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDescription {
    /// Its name.
    pub name: String,
    /// Its id; nil from servers without topic ids.
    pub id: String,
    /// True if it is an internal topic of the server.
    pub is_internal: bool,
    /// Its partitions, in order.
    pub partitions: Vec<PartitionDescription>,
}

/// A partition of the present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionDescription {
    /// Its number.
    pub partition: i32,
    /// Its leader, if it has one.
    pub leader: Option<i32>,
    /// Its replicas.
    pub replicas: Vec<i32>,
    /// Its in-sync replicas.
    pub in_sync: Vec<i32>,
}

/// A topic to create. The server chooses each field that is `None`.
#[derive(Clone, Debug, Default)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// The number of partitions.
    pub partitions: Option<i32>,
    /// The number of replicas.
    pub replication_factor: Option<i16>,
    /// Settings that differ from the server's defaults.
    pub configs: BTreeMap<String, String>,
}

/// One setting of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicConfigValue {
    /// Its name.
    pub name: String,
    /// Its value, unless it is sensitive.
    pub value: Option<String>,
    /// True if it is set on the topic itself.
    pub is_own: bool,
}

impl Client {
    /// All topics, by name.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub async fn topics(&mut self) -> Result<Vec<TopicDescription>, ClientError> {
        let answer = self.metadata(None).await?;
        let mut topics = Vec::new();
        for topic in answer.topics {
            let name = topic.name.as_ref().map(|name| name.to_string()).unwrap_or_default();
            topic_error(&name, "find topic", topic.error_code, None)?;
            topics.push(read_topic(name, topic));
        }
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(topics)
    }

    /// One topic.
    ///
    /// # Errors
    /// [`ClientError::UnknownTopic`] and others.
    pub async fn topic(&mut self, name: &str) -> Result<TopicDescription, ClientError> {
        self.retry(async |client: &mut Client| {
            let answer = client.metadata(Some(&[name])).await?;
            let Some(topic) = answer.topics.into_iter().next() else {
                return Err(ClientError::UnknownTopic(name.to_owned()));
            };
            topic_error(name, "find topic", topic.error_code, None)?;
            for partition in &topic.partitions {
                topic_error(name, "find topic", partition.error_code, None)?;
            }
            Ok(read_topic(name.to_owned(), topic))
        })
        .await
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// Among others Kafka's `TopicAlreadyExists` and `InvalidTopicException`.
    pub async fn create_topic(&mut self, topic: &NewTopic) -> Result<(), ClientError> {
        let configs = topic.configs.iter().map(|(name, value)| {
            CreatableTopicConfig::default()
                .with_name(str_bytes(name))
                .with_value(Some(str_bytes(value)))
        });
        let wire = CreatableTopic::default()
            .with_name(topic_name(&topic.name))
            .with_num_partitions(topic.partitions.unwrap_or(-1))
            .with_replication_factor(topic.replication_factor.unwrap_or(-1))
            .with_configs(configs.collect());
        let request = CreateTopicsRequest::default()
            .with_topics(vec![wire])
            .with_timeout_ms(SERVER_WAIT.as_millis() as i32);
        self.retry(async |client: &mut Client| {
            let controller = client.controller().await?;
            let answer = client.call(&controller, &request, SERVER_WAIT).await?;
            answer.topics.iter().try_for_each(|result| {
                let message = result.error_message.as_deref();
                topic_error(&topic.name, "create topic", result.error_code, message)
            })
        })
        .await
    }

    /// Deletes a topic. On Freezeframe its past stays readable.
    ///
    /// # Errors
    /// [`ClientError::UnknownTopic`] and others.
    pub async fn delete_topic(&mut self, name: &str) -> Result<(), ClientError> {
        let request = DeleteTopicsRequest::default()
            .with_topic_names(vec![topic_name(name)])
            .with_timeout_ms(SERVER_WAIT.as_millis() as i32);
        let deleted = self.retry(async |client: &mut Client| {
            let controller = client.controller().await?;
            let answer = client.call(&controller, &request, SERVER_WAIT).await?;
            answer.responses.iter().try_for_each(|result| {
                let message = result.error_message.as_deref();
                topic_error(name, "delete topic", result.error_code, message)
            })
        });
        let deleted = deleted.await;
        self.invalidate_leaders(name);
        deleted
    }

    /// Changes settings of a topic: to a value, or to the server's default.
    ///
    /// # Errors
    /// Among others Kafka's `InvalidConfig`; then none is changed.
    pub async fn alter_topic_configs(
        &mut self,
        name: &str,
        changes: &[(String, Option<String>)],
    ) -> Result<(), ClientError> {
        let changes = changes.iter().map(|(key, value)| {
            let operation = if value.is_some() { CONFIG_SET } else { CONFIG_DELETE };
            AlterableConfig::default()
                .with_name(str_bytes(key))
                .with_config_operation(operation)
                .with_value(value.as_deref().map(str_bytes))
        });
        let resource = AlterConfigsResource::default()
            .with_resource_type(RESOURCE_TOPIC)
            .with_resource_name(str_bytes(name))
            .with_configs(changes.collect());
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        let answer = self.call_any(&request).await?;
        answer.responses.iter().try_for_each(|result| {
            let message = result.error_message.as_deref();
            topic_error(name, "change the settings of", result.error_code, message)
        })
    }

    /// Adds partitions to a topic, so that it has `count`.
    ///
    /// # Errors
    /// Among others Kafka's `InvalidPartitions`: there are as many already.
    pub async fn add_topic_partitions(
        &mut self,
        name: &str,
        count: i32,
    ) -> Result<(), ClientError> {
        let topic = CreatePartitionsTopic::default()
            .with_name(topic_name(name))
            .with_count(count)
            .with_assignments(None);
        let request = CreatePartitionsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(SERVER_WAIT.as_millis() as i32);
        self.retry(async |client: &mut Client| {
            let controller = client.controller().await?;
            let answer = client.call(&controller, &request, SERVER_WAIT).await?;
            answer.results.iter().try_for_each(|result| {
                let message = result.error_message.as_deref();
                topic_error(name, "add partitions to", result.error_code, message)
            })
        })
        .await?;
        self.invalidate_leaders(name);
        Ok(())
    }

    /// Removes the records of partitions before an offset each; −1 is the end. Returns the new log
    /// start offset of each.
    ///
    /// # Errors
    /// Among others Kafka's `OffsetOutOfRange`, and `PolicyViolation` where a pin holds records.
    pub async fn delete_records(
        &mut self,
        topic: &str,
        before: &[(i32, i64)],
    ) -> Result<BTreeMap<i32, i64>, ClientError> {
        let mut starts = BTreeMap::new();
        for (leader, before) in self.by_leader(topic, before.iter().copied()).await? {
            let partitions = before.into_iter().map(|(partition, offset)| {
                DeleteRecordsPartition::default()
                    .with_partition_index(partition)
                    .with_offset(offset)
            });
            let requested = DeleteRecordsTopic::default()
                .with_name(topic_name(topic))
                .with_partitions(partitions.collect());
            let request = DeleteRecordsRequest::default()
                .with_topics(vec![requested])
                .with_timeout_ms(SERVER_WAIT.as_millis() as i32);
            let answer = self.call(&leader, &request, SERVER_WAIT).await?;
            for result in answer.topics.iter().flat_map(|topic| &topic.partitions) {
                let doing = || format!("remove records of {topic}/{}", result.partition_index);
                check_error_code(doing, result.error_code, None)?;
                starts.insert(result.partition_index, result.low_watermark);
            }
        }
        Ok(starts)
    }

    /// The settings of a topic.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub async fn topic_configs(
        &mut self,
        name: &str,
    ) -> Result<Vec<TopicConfigValue>, ClientError> {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(RESOURCE_TOPIC)
            .with_resource_name(str_bytes(name))
            .with_configuration_keys(None);
        let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
        let answer = self.call_any(&request).await?;
        let mut configs = Vec::new();
        for result in answer.results {
            let message = result.error_message.as_deref();
            topic_error(name, "describe the settings of", result.error_code, message)?;
            configs.extend(result.configs.iter().map(|config| TopicConfigValue {
                name: config.name.to_string(),
                value: config.value.as_ref().map(ToString::to_string),
                is_own: config.config_source == 1,
            }));
        }
        configs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(configs)
    }

    /// The disk usage of each partition of a topic in bytes, if the servers report it. With several
    /// replicas, it is the largest.
    ///
    /// # Errors
    /// As [`ClientError`] says. A server without this API is not an error.
    pub async fn partition_bytes(
        &mut self,
        topic: &str,
        partitions: &[i32],
    ) -> Result<BTreeMap<i32, i64>, ClientError> {
        let requested = DescribableLogDirTopic::default()
            .with_topic(topic_name(topic))
            .with_partitions(partitions.to_vec());
        let request = DescribeLogDirsRequest::default().with_topics(Some(vec![requested]));
        let mut bytes = BTreeMap::new();
        for address in self.all_servers().await? {
            let answer = match self.call(&address, &request, Duration::ZERO).await {
                Err(ClientError::Unsupported { .. }) => continue,
                answer => answer?,
            };
            let dirs = answer.results.iter().filter(|dir| dir.error_code == 0);
            let topics =
                dirs.flat_map(|dir| &dir.topics).filter(|described| **described.name == *topic);
            for partition in topics.flat_map(|topic| &topic.partitions) {
                let largest = bytes.entry(partition.partition_index).or_insert(0);
                *largest = partition.partition_size.max(*largest);
            }
        }
        Ok(bytes)
    }
}

fn read_topic(name: String, topic: MetadataResponseTopic) -> TopicDescription {
    let ids = |ids: &[kafka_protocol::messages::BrokerId]| ids.iter().map(|id| id.0).collect();
    let mut partitions: Vec<_> = topic
        .partitions
        .iter()
        .map(|partition| PartitionDescription {
            partition: partition.partition_index,
            leader: Some(partition.leader_id.0).filter(|id| *id >= 0),
            replicas: ids(&partition.replica_nodes),
            in_sync: ids(&partition.isr_nodes),
        })
        .collect();
    partitions.sort_by_key(|partition| partition.partition);
    TopicDescription {
        name,
        id: topic.topic_id.to_string(),
        is_internal: topic.is_internal,
        partitions,
    }
}

pub(crate) fn str_bytes(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Converts an error code to Kafka's error, with the attempted operation.
pub(crate) fn check_error_code(
    doing: impl FnOnce() -> String,
    code: i16,
    message: Option<&str>,
) -> Result<(), ClientError> {
    match ResponseError::try_from_code(code) {
        None => Ok(()),
        Some(error) => Err(ClientError::kafka(doing(), error, message)),
    }
}
