//! The topic of one run: created for it, led by the one broker measured, and deleted after it.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use kafka_protocol::{
    messages::{
        BrokerId, CreateTopicsRequest, DeleteTopicsRequest, ListOffsetsRequest, MetadataRequest,
        TopicName,
        create_topics_request::{CreatableTopic, CreatableTopicConfig},
        delete_topics_request::DeleteTopicState,
        list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic},
        metadata_request::MetadataRequestTopic,
    },
    protocol::StrBytes,
};

use crate::connection::{BenchConnection, TIMEOUT, check_error_code};

/// Kafka's default `message.max.bytes`; a topic for larger batches sets it.
const MESSAGE_BYTES_DEFAULT: usize = 1_048_588;
const TIMEOUT_MS: i32 = 30_000;

pub(crate) struct BenchTopic {
    pub(crate) name: TopicName,
    pub(crate) partition_count: u32,
    address: SocketAddr,
}

impl BenchTopic {
    /// Creates a topic that accepts batches of `batch_bytes`, and waits until all partitions have a
    /// leader.
    pub(crate) fn create(
        address: SocketAddr,
        partition_count: u32,
        batch_bytes: usize,
    ) -> Result<BenchTopic> {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        BenchTopic::make(
            address,
            &format!("freezeframe-bench-{nanos}"),
            partition_count,
            batch_bytes,
        )
    }

    /// Creates a topic of this name, which must be new, and waits until all partitions have a
    /// leader.
    pub(crate) fn named(
        address: SocketAddr,
        name: &str,
        partition_count: u32,
    ) -> Result<BenchTopic> {
        BenchTopic::make(address, name, partition_count, 0)
    }

    fn make(
        address: SocketAddr,
        name: &str,
        partition_count: u32,
        batch_bytes: usize,
    ) -> Result<BenchTopic> {
        let mut connection = BenchConnection::open(address)?;
        let name = TopicName(StrBytes::from_string(name.to_owned()));
        create_topic(&mut connection, &name, partition_count, batch_bytes)
            .with_context(|| format!("create the topic {}", name.0))?;
        // From here on the topic exists, and is deleted when this is dropped.
        let topic = BenchTopic { name, partition_count, address };
        topic.wait_until_led(&mut connection)?;
        Ok(topic)
    }

    fn wait_until_led(&self, connection: &mut BenchConnection) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !(self.has_leaders(connection)? && self.leaders_are_ready(connection)?) {
            ensure!(Instant::now() < deadline, "partitions of the new topic have no leader");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn has_leaders(&self, connection: &mut BenchConnection) -> Result<bool> {
        let asked = MetadataRequestTopic::default().with_name(Some(self.name.clone()));
        let request = MetadataRequest::default().with_topics(Some(vec![asked]));
        let version = connection.version::<MetadataRequest>(4..=12)?;
        let response = connection.call(&request, version)?;
        let partitions = response.topics.first().map_or(&[][..], |topic| &topic.partitions);
        let led: Vec<i32> = partitions
            .iter()
            .filter(|partition| partition.error_code == 0 && partition.leader_id.0 >= 0)
            .map(|partition| partition.leader_id.0)
            .collect();
        let leaders: BTreeSet<i32> = led.iter().copied().collect();
        ensure!(
            leaders.len() <= 1,
            "the topic is led by several brokers, and one is measured. leaders={leaders:?}"
        );
        Ok(led.len() == self.partition_count as usize)
    }

    /// Kafka names a leader in its metadata a little before that one knows of it.
    fn leaders_are_ready(&self, connection: &mut BenchConnection) -> Result<bool> {
        let version = connection.version::<ListOffsetsRequest>(1..=6)?;
        let request = offsets_request(&self.name, self.partition_count, LATEST);
        let response = connection.call(&request, version)?;
        let mut partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
        Ok(partitions.all(|partition| partition.error_code == 0))
    }

    fn delete(&self) -> Result<()> {
        let mut connection = BenchConnection::open(self.address)?;
        let version = connection.version::<DeleteTopicsRequest>(1..=6)?;
        let request = DeleteTopicsRequest::default().with_timeout_ms(TIMEOUT_MS);
        let request = if version >= 6 {
            let topic = DeleteTopicState::default().with_name(Some(self.name.clone()));
            request.with_topics(vec![topic])
        } else {
            request.with_topic_names(vec![self.name.clone()])
        };
        let response = connection.call(&request, version)?;
        response.responses.iter().try_for_each(|topic| check_error_code(topic.error_code))
    }
}

/// The time that stands for the end of a partition.
pub(crate) const LATEST: i64 = -1;

/// The offset of each partition's first record at or after `time`, or its end; −1 if there is none.
pub(crate) fn offsets(
    connection: &mut BenchConnection,
    name: &TopicName,
    partition_count: u32,
    time: i64,
) -> Result<Vec<i64>> {
    let version = connection.version::<ListOffsetsRequest>(1..=6)?;
    let response = connection.call(&offsets_request(name, partition_count, time), version)?;
    let mut offsets = vec![-1; partition_count as usize];
    for found in response.topics.iter().flat_map(|topic| &topic.partitions) {
        check_error_code(found.error_code).context("list offsets")?;
        let partition = usize::try_from(found.partition_index)?;
        let offset = offsets.get_mut(partition);
        *offset.context("a partition that was not asked for")? = found.offset;
    }
    Ok(offsets)
}

fn offsets_request(name: &TopicName, partition_count: u32, time: i64) -> ListOffsetsRequest {
    let partitions = (0..partition_count as i32).map(|index| {
        ListOffsetsPartition::default().with_partition_index(index).with_timestamp(time)
    });
    let topic =
        ListOffsetsTopic::default().with_name(name.clone()).with_partitions(partitions.collect());
    ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(vec![topic])
}

fn create_topic(
    connection: &mut BenchConnection,
    name: &TopicName,
    partition_count: u32,
    batch_bytes: usize,
) -> Result<()> {
    let configs = (batch_bytes > MESSAGE_BYTES_DEFAULT).then(|| {
        CreatableTopicConfig::default()
            .with_name(StrBytes::from_static_str("max.message.bytes"))
            .with_value(Some(StrBytes::from_string((2 * batch_bytes).to_string())))
    });
    let topic = CreatableTopic::default()
        .with_name(name.clone())
        .with_num_partitions(partition_count as i32)
        .with_replication_factor(1)
        .with_configs(configs.into_iter().collect());
    let request =
        CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(TIMEOUT_MS);
    let version = connection.version::<CreateTopicsRequest>(2..=7)?;
    let response = connection.call(&request, version)?;
    response.topics.iter().try_for_each(|topic| check_error_code(topic.error_code))
}

impl Drop for BenchTopic {
    fn drop(&mut self) {
        if let Err(error) = self.delete() {
            eprintln!("warning: the topic {} is still there: {error:#}", self.name.0);
        }
    }
}
