//! A classic group becomes one of the consumer protocol, and the other way round, while its members
//! live (KIP-848).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::super::classic_group::ClassicGroup;
use super::super::consumer_protocol::{
    ConsumerSubscription, encode_assignment, parse_plain_assignment,
};
use super::super::effects::GroupEffect;
use super::super::error::GroupError;
use super::super::member::ClassicGroupMember;
use super::super::options::MigrationPolicy;
use super::super::partitions::{PartitionSet, each, with_epoch};
use super::super::pending_write::PendingWrite;
use super::super::state::ClassicGroupState;
use super::super::subscriptions::CONSUMER_PROTOCOL_TYPE;
use super::super::topic_subscription::GroupTopics;
use super::ConsumerGroup;
use super::classic_members::ids_of;
use super::member::{ClassicMembership, ConsumerGroupMember};

impl ConsumerGroup {
    /// The group that a classic one becomes. Its members go on with what they have.
    ///
    /// # Errors
    /// The migration policy does not allow it, or its members use an assignor of their own.
    pub fn from_classic(
        classic: &ClassicGroup,
        now: Duration,
        topics: &dyn GroupTopics,
    ) -> Result<ConsumerGroup, GroupError> {
        let options = Arc::clone(&classic.options);
        let mut group = ConsumerGroup::new(Arc::clone(&options));
        if classic.state() == ClassicGroupState::Empty {
            return Ok(group);
        }
        let is_consumers = classic.protocol_type.as_deref() == Some(CONSUMER_PROTOCOL_TYPE);
        let is_too_large = classic.member_count() > options.consumer.group_max_size;
        if !options.consumer.migration.upgrades() || !is_consumers || is_too_large {
            return Err(GroupError::GroupIdNotFound);
        }
        (group.base.epoch, group.base.assignment_epoch) =
            (classic.generation(), classic.generation());
        // Members that have not joined the generation have no protocol in common yet.
        let protocol = classic.protocol.clone().or_else(|| classic.roster.select_protocol());
        for member in classic.roster.iter() {
            let protocol = protocol.as_deref().unwrap_or_default();
            let member = from_classic_member(member, protocol, classic.generation(), topics)?;
            // An assignor of the clients may give a partition to several members.
            let is_held =
                each(&member.assigned).any(|partition| group.holders.contains_key(&partition));
            if is_held || group.put(now, member, topics).is_err() {
                return Err(GroupError::GroupIdNotFound);
            }
        }
        group.subscription.refresh(now, topics);
        group.base.topics_hash = group.subscription.hash();
        Ok(group)
    }

    /// Returns true if only members of the classic protocol are left, and they may have a classic
    /// group.
    pub fn may_become_classic(&self) -> bool {
        let count = self.base.members.len();
        count > 0
            && self.classic_members == count
            && self.base.options.consumer.migration.downgrades()
            && count <= self.base.options.group_max_size
    }

    /// The classic group that this one becomes. Its members keep their target assignments, and join
    /// again.
    pub fn to_classic(
        &self,
        now: Duration,
        topics: &dyn GroupTopics,
    ) -> (ClassicGroup, Vec<GroupEffect>) {
        let mut classic = ClassicGroup::new(Arc::clone(&self.base.options));
        classic.generation = self.base.epoch;
        classic.protocol_type = Some(CONSUMER_PROTOCOL_TYPE.to_owned());
        classic.state = ClassicGroupState::Stable;
        for member in self.base.members.values() {
            let member = to_classic_member(member, topics);
            classic.sessions.set(&member.id, now + member.session_timeout);
            classic.roster.insert(member);
        }
        classic.protocol = classic.roster.select_protocol();
        classic.subscriptions = classic.read_subscriptions();
        classic.persist(classic.snapshot(), PendingWrite::Migration);
        classic.prepare_rebalance(now, "only members of the classic protocol are left");
        let effects = classic.take_effects();
        (classic, effects)
    }
}

fn from_classic_member(
    member: &ClassicGroupMember,
    protocol: &str,
    generation: i32,
    topics: &dyn GroupTopics,
) -> Result<ConsumerGroupMember, GroupError> {
    let subscription = ConsumerSubscription::parse(member.metadata(protocol));
    let subscription = subscription.ok_or(GroupError::GroupIdNotFound)?;
    let assignment = member.assignment.clone().unwrap_or_default();
    let assigned = parse_plain_assignment(assignment).ok_or(GroupError::GroupIdNotFound)?;
    let target: PartitionSet = ids_of(&assigned, topics);
    Ok(ConsumerGroupMember {
        instance: member.group_instance_id.clone(),
        rack: subscription.rack,
        client_id: member.client_id.clone(),
        client_host: member.client_host.clone(),
        rebalance_timeout: member.rebalance_timeout,
        topics: subscription.topics,
        classic: Some(ClassicMembership {
            session_timeout: member.session_timeout,
            protocols: member.protocols.clone(),
        }),
        epoch: generation,
        previous_epoch: generation,
        assigned: with_epoch(&target, generation),
        target,
        ..ConsumerGroupMember::new(member.id.clone())
    })
}

fn to_classic_member(member: &ConsumerGroupMember, topics: &dyn GroupTopics) -> ClassicGroupMember {
    let classic = member.classic.clone();
    let classic = classic
        .unwrap_or(ClassicMembership { session_timeout: Duration::ZERO, protocols: Vec::new() });
    let metadata = classic.protocols.first().map(|(_, metadata)| metadata.clone());
    let version = metadata.and_then(ConsumerSubscription::parse).map_or(0, |parsed| parsed.version);
    ClassicGroupMember {
        id: member.id.clone(),
        group_instance_id: member.instance.clone(),
        client_id: member.client_id.clone(),
        client_host: member.client_host.clone(),
        session_timeout: classic.session_timeout,
        rebalance_timeout: member.rebalance_timeout,
        protocols: classic.protocols,
        assignment: Some(target(member, version, topics)),
        is_new: false,
        join: None,
        sync: None,
    }
}

fn target(member: &ConsumerGroupMember, version: i16, topics: &dyn GroupTopics) -> Bytes {
    let mut partitions = BTreeMap::<String, Vec<i32>>::new();
    for (topic, indexes) in &member.target {
        if let Some(topic) = topics.by_id(topic) {
            let indexes = indexes.iter().map(|index| *index as i32).collect();
            partitions.insert(topic.name.to_string(), indexes);
        }
    }
    encode_assignment(version, &partitions)
}

impl MigrationPolicy {
    /// True if classic groups become groups of the consumer protocol.
    fn upgrades(self) -> bool {
        matches!(self, MigrationPolicy::Bidirectional | MigrationPolicy::Upgrade)
    }

    /// True if groups of the consumer protocol become classic ones.
    fn downgrades(self) -> bool {
        matches!(self, MigrationPolicy::Bidirectional | MigrationPolicy::Downgrade)
    }
}
