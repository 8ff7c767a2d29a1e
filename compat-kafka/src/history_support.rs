//! The part of this crate that the history API needs: groups that are held, their members in
//! snapshots, and topics whose name has a moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use admission::Holder;
use engine::TopicId;
use engine::groups::StoredGroup;
use history_api::{HistoryApiError, HistoryGroups, MomentTopics, MomentViewFuture};
use history_documents::{GroupMembership, HistoryErrorCode, MemberAtMoment};
use kafka_groups::{
    CONSUMER_PROTOCOL_TYPE, GroupCoordinator, GroupError, GroupSnapshot, GroupType, MemberSnapshot,
    SHARE_PROTOCOL_TYPE, STREAMS_PROTOCOL_TYPE, StoredConsumerGroup, StoredConsumerMember,
    StoredShareGroup, StoredShareMember, StoredStreamsGroup, assigned,
};
use kafka_topics::{MomentTopicError, ReadableTopics};

use uuid::Uuid;

/// The groups, for the history API.
pub(crate) struct HistoryGroupCoordinator(pub(crate) Arc<GroupCoordinator>);

impl HistoryGroups for HistoryGroupCoordinator {
    fn hold(&self, group: &str, holder: &Holder) -> Result<Box<dyn Send>, HistoryApiError> {
        let held = self.0.on_behalf_of(holder.clone()).hold(group).map_err(group_error)?;
        Ok(Box::new(held))
    }

    fn membership(&self, stored: &StoredGroup) -> Option<GroupMembership> {
        let decoded = if StoredConsumerGroup::is_one(stored) {
            StoredConsumerGroup::decode(stored).map(|group| consumer_membership(&self.0, group))
        } else if StoredShareGroup::is_one(stored) {
            StoredShareGroup::decode(stored).map(|group| share_membership(&self.0, group))
        } else if StoredStreamsGroup::is_one(stored) {
            StoredStreamsGroup::decode(stored).map(streams_membership)
        } else {
            GroupSnapshot::decode(&stored.snapshot).map(membership)
        };
        match decoded {
            Ok(membership) => Some(membership),
            Err(error) => {
                tracing::warn!(%error, "the snapshot of a group cannot be read");
                None
            }
        }
    }
}

/// The topics whose name has a moment, as consumers read them.
pub(crate) struct HistoryTopics(pub(crate) Arc<ReadableTopics>);

impl MomentTopics for HistoryTopics {
    fn view<'a>(&'a self, name: &'a str) -> MomentViewFuture<'a> {
        Box::pin(async move { self.0.moment(name).await.map_err(moment_error) })
    }
}

/// A group of the consumer protocol has no leader; its assignor is what most members prefer.
fn consumer_membership(groups: &GroupCoordinator, stored: StoredConsumerGroup) -> GroupMembership {
    let state = stored.state().name().to_owned();
    let member = |(id, member): (String, StoredConsumerMember)| {
        let assigned = member.assigned.iter();
        let assigned = assigned.map(|(topic, indexes)| (topic, indexes.keys().copied().collect()));
        MemberAtMoment {
            id,
            instance: member.instance,
            client_id: member.client_id,
            host: member.client_host,
            reads: Some(reads(groups, assigned)),
        }
    };
    GroupMembership {
        generation: stored.header.epoch,
        state,
        group_type: GroupType::Consumer.name().to_owned(),
        kind: Some(CONSUMER_PROTOCOL_TYPE.to_owned()),
        protocol: None,
        leader: None,
        members: stored.members.into_iter().map(member).collect(),
    }
}

/// A share group has no leader either, and one assignor.
fn share_membership(groups: &GroupCoordinator, stored: StoredShareGroup) -> GroupMembership {
    let state = stored.state().name().to_owned();
    let member = |(id, member): (String, StoredShareMember)| {
        let assigned = member.assigned.iter();
        let assigned = assigned.map(|(topic, indexes)| (topic, indexes.iter().copied().collect()));
        MemberAtMoment {
            id,
            instance: None,
            client_id: member.client_id,
            host: member.client_host,
            reads: Some(reads(groups, assigned)),
        }
    };
    GroupMembership {
        generation: stored.header.epoch,
        state,
        group_type: GroupType::Share.name().to_owned(),
        kind: Some(SHARE_PROTOCOL_TYPE.to_owned()),
        protocol: None,
        leader: None,
        members: stored.members.into_iter().map(member).collect(),
    }
}

/// A member of a streams group reads what its active tasks read.
fn streams_membership(stored: StoredStreamsGroup) -> GroupMembership {
    let members = stored.members.iter().map(|(id, member)| MemberAtMoment {
        id: id.clone(),
        instance: None,
        client_id: member.client_id.clone(),
        host: member.client_host.clone(),
        reads: Some(stored.reads(member)),
    });
    GroupMembership {
        generation: stored.header.group.epoch,
        state: stored.state().name().to_owned(),
        group_type: GroupType::Streams.name().to_owned(),
        kind: Some(STREAMS_PROTOCOL_TYPE.to_owned()),
        protocol: None,
        leader: None,
        members: members.collect(),
    }
}

/// The partitions that a member reads, by the names of topics.
fn reads<'a>(
    groups: &GroupCoordinator,
    assigned: impl Iterator<Item = (&'a TopicId, Vec<u32>)>,
) -> BTreeMap<String, Vec<i32>> {
    let mut reads = BTreeMap::<String, Vec<i32>>::new();
    for (topic, indexes) in assigned {
        // A topic that is removed has no name any more.
        let name = groups.topic_name(topic);
        let name =
            name.map_or_else(|| Uuid::from_bytes(*topic).to_string(), |name| name.to_string());
        reads.entry(name).or_default().extend(indexes.into_iter().map(|index| index as i32));
    }
    reads
}

fn membership(snapshot: GroupSnapshot) -> GroupMembership {
    let kind = snapshot.protocol_type.as_deref();
    let members: Vec<MemberAtMoment> =
        snapshot.members.iter().map(|one| member(one, kind)).collect();
    GroupMembership {
        generation: snapshot.generation,
        state: if members.is_empty() { "Empty" } else { "Stable" }.to_owned(),
        group_type: GroupType::Classic.name().to_owned(),
        kind: snapshot.protocol_type,
        protocol: snapshot.protocol,
        leader: snapshot.leader,
        members,
    }
}

fn member(member: &MemberSnapshot, kind: Option<&str>) -> MemberAtMoment {
    MemberAtMoment {
        id: member.member_id.clone(),
        instance: member.group_instance_id.clone(),
        client_id: member.client_id.clone(),
        host: member.client_host.clone(),
        // Other kinds of groups use another format.
        reads: assigned(kind, &member.assignment),
    }
}

fn moment_error(error: MomentTopicError) -> HistoryApiError {
    match error {
        MomentTopicError::Grammar(error) => error.into(),
        MomentTopicError::Seek(error) => error.into(),
        MomentTopicError::TooMany => {
            HistoryApiError::new(HistoryErrorCode::TooLarge, error.to_string())
        }
    }
}

fn group_error(error: GroupError) -> HistoryApiError {
    match error {
        GroupError::NonEmptyGroup => HistoryApiError::new(
            HistoryErrorCode::GroupActive,
            "the group has members, which would go on from where they are, and commit that: stop \
             them, and wait until they have left or their session has ended",
        ),
        GroupError::InvalidGroupId => {
            HistoryApiError::new(HistoryErrorCode::BadRequest, "a group has a name")
        }
        GroupError::CoordinatorNotAvailable => HistoryApiError::new(
            HistoryErrorCode::GroupBusy,
            "the group is being changed by somebody else; try again",
        ),
        GroupError::TooManyGroups | GroupError::TooManyBytes => {
            HistoryApiError::new(HistoryErrorCode::TooManyGroups, error.to_string())
        }
        GroupError::GroupIdNotFound => {
            HistoryApiError::new(HistoryErrorCode::UnknownGroup, error.to_string())
        }
        // Only group members get these, and no operation here is a member's.
        GroupError::UnknownMemberId
        | GroupError::IllegalGeneration
        | GroupError::RebalanceInProgress
        | GroupError::InconsistentGroupProtocol
        | GroupError::MemberIdRequired
        | GroupError::FencedInstanceId
        | GroupError::InvalidSessionTimeout
        | GroupError::GroupMaxSizeReached
        | GroupError::GroupSubscribedToTopic
        | GroupError::FencedMemberEpoch
        | GroupError::StaleMemberEpoch
        | GroupError::UnreleasedInstanceId
        | GroupError::UnsupportedAssignor
        | GroupError::InvalidRegularExpression
        | GroupError::InvalidRequest
        | GroupError::InvalidShareRequest
        | GroupError::InvalidStreamsRequest
        | GroupError::InvalidTopology
        | GroupError::OtherTopology
        | GroupError::UnsupportedVersion
        | GroupError::OtherGroupType
        | GroupError::TooLarge => {
            HistoryApiError::new(HistoryErrorCode::Internal, error.to_string())
        }
    }
}
