//! ListOffsets: the start and the end of a partition, and the offset of a user time.

use std::collections::BTreeMap;

use history_documents::Isolation;
use hlc::UserTime;
use kafka_protocol::messages::ListOffsetsRequest;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};

use crate::ClientError;
use crate::cluster::{Client, topic_name};
use crate::fetch::isolation_level;
use crate::topics::check_error_code;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;

/// The offset to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetSpec {
    /// The offset of the oldest retained record.
    Earliest,
    /// The offset of the next record.
    Latest,
    /// The last stable offset: below it, every transaction has ended.
    LatestStable,
    /// The offset of the first record with this user time or a later one.
    FirstAtOrAfter(UserTime),
}

impl Client {
    /// Looks up one offset in each of the partitions; `None` if no record is that late.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub async fn offsets(
        &mut self,
        topic: &str,
        partitions: &[i32],
        at: OffsetSpec,
    ) -> Result<BTreeMap<i32, Option<i64>>, ClientError> {
        self.retry(async |client: &mut Client| client.offsets_once(topic, partitions, at).await)
            .await
    }

    async fn offsets_once(
        &mut self,
        topic: &str,
        partitions: &[i32],
        at: OffsetSpec,
    ) -> Result<BTreeMap<i32, Option<i64>>, ClientError> {
        let timestamp = match at {
            OffsetSpec::Earliest => EARLIEST,
            OffsetSpec::Latest | OffsetSpec::LatestStable => LATEST,
            OffsetSpec::FirstAtOrAfter(time) => time.0.max(0),
        };
        let isolation = match at {
            OffsetSpec::LatestStable => Isolation::Committed,
            _ => Isolation::Uncommitted,
        };
        let mut offsets = BTreeMap::new();
        let requested = partitions.iter().map(|partition| (*partition, ()));
        for (leader, partitions) in self.by_leader(topic, requested).await? {
            let partitions = partitions.iter().map(|(partition, ())| {
                ListOffsetsPartition::default()
                    .with_partition_index(*partition)
                    .with_timestamp(timestamp)
            });
            let wire = ListOffsetsTopic::default()
                .with_name(topic_name(topic))
                .with_partitions(partitions.collect());
            let request = ListOffsetsRequest::default()
                .with_replica_id((-1).into())
                .with_isolation_level(isolation_level(isolation))
                .with_topics(vec![wire]);
            let answer = self.call(&leader, &request, std::time::Duration::ZERO).await?;
            for partition in answer.topics.iter().flat_map(|topic| &topic.partitions) {
                let doing = || format!("find an offset in {topic}/{}", partition.partition_index);
                check_error_code(doing, partition.error_code, None)?;
                let offset = Some(partition.offset).filter(|offset| *offset >= 0);
                offsets.insert(partition.partition_index, offset);
            }
        }
        Ok(offsets)
    }
}
