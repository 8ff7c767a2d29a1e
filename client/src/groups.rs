//! Groups of the present: their listing, their members, and their committed offsets.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Buf, Bytes};
use history_documents::HistoryErrorCode;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerProtocolAssignment, DeleteGroupsRequest,
    DescribeGroupsRequest, GroupId, ListGroupsRequest, OffsetCommitRequest, OffsetFetchRequest,
};
use kafka_protocol::protocol::Decodable;

use crate::ClientError;
use crate::cluster::{Client, topic_name};
use crate::history::{CommittedOffsetAtMoment, MemberAtMoment};
use crate::topics::{check_error_code, str_bytes};

/// The generation of a commit without a member.
const NO_GENERATION: i32 = -1;

/// A group in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupListing {
    /// Its name.
    pub group: String,
    /// Its state, if the server reports it.
    pub state: String,
    /// Its type: `classic`, `consumer` and so on, if the server reports it.
    pub kind: String,
    /// The protocol type of its members, such as `consumer`.
    pub protocol: String,
}

/// A group and its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerGroupDescription {
    /// Its name.
    pub group: String,
    /// Its state.
    pub state: String,
    /// The strategy by which partitions are assigned, such as `range`.
    pub assignor: String,
    /// Its members.
    pub members: Vec<GroupMemberDescription>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMemberDescription {
    /// Its id.
    pub id: String,
    /// Its client id.
    pub client_id: String,
    /// The host that it connects from.
    pub host: String,
    /// The partitions that are assigned to it, by topic.
    pub assigned: BTreeMap<String, Vec<i32>>,
}

/// An offset that a group has committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCommittedOffset {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The next record to read.
    pub offset: i64,
    /// The metadata of the commit.
    pub metadata: String,
}

impl Client {
    /// The groups of all servers, by name.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub async fn groups(&mut self) -> Result<Vec<GroupListing>, ClientError> {
        let request = ListGroupsRequest::default();
        let mut groups = BTreeMap::new();
        for address in self.all_servers().await? {
            let answers = self.retry(async |client: &mut Client| {
                let answer = client.call(&address, &request, Duration::ZERO).await?;
                check_error_code(|| "list groups".to_owned(), answer.error_code, None)?;
                Ok(answer.groups)
            });
            for group in answers.await? {
                let name = group.group_id.to_string();
                let group = GroupListing {
                    group: name.clone(),
                    state: group.group_state.to_string(),
                    kind: group.group_type.to_string(),
                    protocol: group.protocol_type.to_string(),
                };
                groups.insert(name, group);
            }
        }
        Ok(groups.into_values().collect())
    }

    /// The members of `group`.
    ///
    /// # Errors
    /// [`ClientError::UnknownGroup`] and others.
    pub async fn describe_group(
        &mut self,
        group: &str,
    ) -> Result<ConsumerGroupDescription, ClientError> {
        let unknown = || ClientError::UnknownGroup(group.to_owned());
        let described =
            self.retry(async |client: &mut Client| client.describe_classic(group).await).await?;
        if let Some(described) = described {
            return Ok(described);
        }
        let described =
            self.retry(async |client: &mut Client| client.describe_consumer(group).await).await;
        match described {
            Err(ClientError::Unsupported { .. }) => return Err(unknown()),
            described => {
                if let Some(described) = described? {
                    return Ok(described);
                }
            }
        }
        match self.describe_by_history(group).await {
            Err(ClientError::NotFreezeframe { .. }) => Err(unknown()),
            Err(ClientError::History(refusal))
                if refusal.code == HistoryErrorCode::UnknownGroup =>
            {
                Err(unknown())
            }
            described => described?.ok_or_else(unknown),
        }
    }

    /// Describes a group of any kind as it is now; `None` if there is none.
    async fn describe_by_history(
        &mut self,
        group: &str,
    ) -> Result<Option<ConsumerGroupDescription>, ClientError> {
        let groups = self.groups_at(None, Some(group)).await?.groups.into_iter();
        let membership = groups
            .filter(|group_then| group_then.group == group)
            .find_map(|group_then| group_then.membership);
        let member = |member: MemberAtMoment| GroupMemberDescription {
            id: member.id,
            client_id: member.client_id,
            host: member.host,
            assigned: member.reads.unwrap_or_default(),
        };
        Ok(membership.map(|membership| ConsumerGroupDescription {
            group: group.to_owned(),
            state: membership.state,
            assignor: membership.protocol.unwrap_or_default(),
            members: membership.members.into_iter().map(member).collect(),
        }))
    }

    /// Describes a group of the classic protocol; `None` if the group is not of this kind.
    async fn describe_classic(
        &mut self,
        group: &str,
    ) -> Result<Option<ConsumerGroupDescription>, ClientError> {
        let coordinator = self.coordinator(group).await?;
        let request = DescribeGroupsRequest::default().with_groups(vec![GroupId(str_bytes(group))]);
        let answer = self.call(&coordinator, &request, Duration::ZERO).await?;
        let Some(described) = answer.groups.into_iter().next() else { return Ok(None) };
        if is_unknown(described.error_code) || &*described.group_state == "Dead" {
            return Ok(None);
        }
        let message = described.error_message.as_deref();
        check_error_code(|| format!("describe group {group}"), described.error_code, message)?;
        let members = described.members.into_iter().map(|member| GroupMemberDescription {
            id: member.member_id.to_string(),
            client_id: member.client_id.to_string(),
            host: member.client_host.to_string(),
            assigned: assignment(member.member_assignment),
        });
        Ok(Some(ConsumerGroupDescription {
            group: group.to_owned(),
            state: described.group_state.to_string(),
            assignor: described.protocol_data.to_string(),
            members: members.collect(),
        }))
    }

    /// Describes a group of the consumer protocol (KIP-848); `None` if the group is not of this
    /// kind.
    async fn describe_consumer(
        &mut self,
        group: &str,
    ) -> Result<Option<ConsumerGroupDescription>, ClientError> {
        let coordinator = self.coordinator(group).await?;
        let request =
            ConsumerGroupDescribeRequest::default().with_group_ids(vec![GroupId(str_bytes(group))]);
        let answer = self.call(&coordinator, &request, Duration::ZERO).await?;
        let Some(described) = answer.groups.into_iter().next() else { return Ok(None) };
        if is_unknown(described.error_code) {
            return Ok(None);
        }
        let message = described.error_message.as_deref();
        check_error_code(|| format!("describe group {group}"), described.error_code, message)?;
        let members = described.members.into_iter().map(|member| GroupMemberDescription {
            id: member.member_id.to_string(),
            client_id: member.client_id.to_string(),
            host: member.client_host.to_string(),
            assigned: member
                .assignment
                .topic_partitions
                .into_iter()
                .map(|topic| (topic.topic_name.to_string(), topic.partitions))
                .collect(),
        });
        Ok(Some(ConsumerGroupDescription {
            group: group.to_owned(),
            state: described.group_state.to_string(),
            assignor: described.assignor_name.to_string(),
            members: members.collect(),
        }))
    }

    /// The offsets of a group of any kind as they are now.
    async fn committed_by_history(
        &mut self,
        group: &str,
    ) -> Result<Vec<GroupCommittedOffset>, ClientError> {
        let groups = self.groups_at(None, Some(group)).await?.groups.into_iter();
        let offsets = groups
            .filter(|group_then| group_then.group == group)
            .flat_map(|group_then| group_then.offsets);
        let offset = |offset: CommittedOffsetAtMoment| GroupCommittedOffset {
            topic: offset.topic,
            partition: offset.partition,
            offset: offset.offset,
            metadata: offset.metadata,
        };
        Ok(offsets.map(offset).collect())
    }

    /// Deletes a group without members, and what it has committed.
    ///
    /// # Errors
    /// Among others Kafka's `NonEmptyGroup` and `GroupIdNotFound`.
    pub async fn delete_group(&mut self, group: &str) -> Result<(), ClientError> {
        let names = vec![GroupId(str_bytes(group))];
        let request = DeleteGroupsRequest::default().with_groups_names(names);
        self.retry(async |client: &mut Client| {
            let coordinator = client.coordinator(group).await?;
            let answer = client.call(&coordinator, &request, Duration::ZERO).await?;
            answer.results.iter().try_for_each(|result| {
                check_error_code(|| format!("delete group {group}"), result.error_code, None)
            })
        })
        .await
    }

    /// The committed offsets of `group`, by topic and partition. Empty if the group does not exist.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub async fn committed_offsets(
        &mut self,
        group: &str,
    ) -> Result<Vec<GroupCommittedOffset>, ClientError> {
        let request = OffsetFetchRequest::default()
            .with_group_id(GroupId(str_bytes(group)))
            .with_topics(None);
        let doing = || format!("read the offsets of group {group}");
        let topics = self.retry(async |client: &mut Client| {
            let coordinator = client.coordinator(group).await?;
            let answer = client.call(&coordinator, &request, Duration::ZERO).await?;
            check_error_code(doing, answer.error_code, None)?;
            Ok(answer.topics)
        });
        let topics = match topics.await {
            // Kafka's protocol has no offsets of share groups.
            Err(ClientError::Kafka { error: ResponseError::GroupIdNotFound, .. }) => {
                return self.committed_by_history(group).await;
            }
            topics => topics?,
        };
        let mut committed = Vec::new();
        for topic in topics {
            for partition in topic.partitions {
                check_error_code(doing, partition.error_code, None)?;
                if partition.committed_offset < 0 {
                    continue;
                }
                committed.push(GroupCommittedOffset {
                    topic: topic.name.to_string(),
                    partition: partition.partition_index,
                    offset: partition.committed_offset,
                    metadata: partition.metadata.map(|text| text.to_string()).unwrap_or_default(),
                });
            }
        }
        committed.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        Ok(committed)
    }

    /// Commits offsets of a group that has no members. Those of a topic stand together.
    ///
    /// # Errors
    /// Among others Kafka's `UnknownMemberId`: the group has members.
    pub async fn commit_offsets(
        &mut self,
        group: &str,
        offsets: &[GroupCommittedOffset],
    ) -> Result<(), ClientError> {
        let request = offset_commit(group, offsets);
        self.retry(async |client: &mut Client| {
            let coordinator = client.coordinator(group).await?;
            let answer = client.call(&coordinator, &request, Duration::ZERO).await?;
            let mut partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
            partitions.try_for_each(|partition| {
                let doing = || format!("commit the offsets of group {group}");
                check_error_code(doing, partition.error_code, None)
            })
        })
        .await
    }
}

/// Offsets to commit, by topic.
fn offset_commit(group: &str, offsets: &[GroupCommittedOffset]) -> OffsetCommitRequest {
    let topics = offsets.chunk_by(|offset, next| offset.topic == next.topic).map(|offsets| {
        let partitions = offsets.iter().map(|offset| {
            OffsetCommitRequestPartition::default()
                .with_partition_index(offset.partition)
                .with_committed_offset(offset.offset)
                .with_committed_metadata(Some(str_bytes(&offset.metadata)))
        });
        OffsetCommitRequestTopic::default()
            .with_name(topic_name(&offsets[0].topic))
            .with_partitions(partitions.collect())
    });
    OffsetCommitRequest::default()
        .with_group_id(GroupId(str_bytes(group)))
        .with_generation_id_or_member_epoch(NO_GENERATION)
        .with_topics(topics.collect())
}

fn is_unknown(code: i16) -> bool {
    code == ResponseError::GroupIdNotFound.code()
}

/// The assignment of a member of a consumer group. Other kinds of groups store other data here.
/// Data that cannot be parsed is left out.
fn assignment(mut bytes: Bytes) -> BTreeMap<String, Vec<i32>> {
    let Ok(version) = bytes.try_get_i16() else { return BTreeMap::new() };
    // Versions after 3 only append fields.
    match ConsumerProtocolAssignment::decode(&mut bytes, version.clamp(0, 3)) {
        Err(_) => BTreeMap::new(),
        Ok(assignment) => assignment
            .assigned_partitions
            .into_iter()
            .map(|topic| (topic.topic.to_string(), topic.partitions))
            .collect(),
    }
}
