//! Members that still speak the classic protocol, in a group of the new one: they join, sync and
//! send heartbeats, and are told to join again where a member of the new protocol would be told its
//! assignment.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::TopicId;
use uuid::Uuid;

use super::super::consumer_protocol::{ConsumerSubscription, encode_assignment};
use super::super::error::GroupError;
use super::super::member::own_protocols;
use super::super::member_requests::GroupHeartbeatRequest;
use super::super::member_requests::{JoinRequest, JoinResult, SyncRequest, SyncResult};
use super::super::member_requests::{LeaveMemberRequest, LeaveMemberResult};
use super::super::options::MigrationPolicy;
use super::super::partitions::PartitionSet;
use super::super::subscriptions::CONSUMER_PROTOCOL_TYPE;
use super::super::topic_subscription::{GroupTopics, may_subscribe};
use super::member::{ClassicMembership, ConsumerGroupMember, MemberState};
use super::{ConsumerGroup, MemberTimer};

impl ConsumerGroup {
    /// Joins a member, or lets it join again. Its answer may be given once the member's changes are
    /// stored.
    pub fn classic_join(
        &mut self,
        now: Duration,
        request: &JoinRequest,
        topics: &dyn GroupTopics,
        new_id: &mut dyn FnMut() -> Uuid,
    ) -> JoinResult {
        let result = self.try_classic_join(now, request, topics, new_id);
        result.unwrap_or_else(|(error, member_id)| JoinResult::with_error(error, &member_id))
    }

    fn try_classic_join(
        &mut self,
        now: Duration,
        request: &JoinRequest,
        topics: &dyn GroupTopics,
        new_id: &mut dyn FnMut() -> Uuid,
    ) -> Result<JoinResult, (GroupError, String)> {
        let refuse = |error| (error, request.member_id.clone());
        self.check_room(&request.member_id).map_err(refuse)?;
        let subscription = self.check_classic_protocols(request).map_err(refuse)?;
        let is_unknown = request.member_id.is_empty();
        let id =
            if is_unknown { request.new_member_id(new_id()) } else { request.member_id.clone() };
        if is_unknown && request.require_known_member_id && request.group_instance_id.is_none() {
            return Err((GroupError::MemberIdRequired, id));
        }
        let before = self.find_or_join_classic(now, request, id, is_unknown).map_err(refuse)?;
        let mut member = before.clone();
        member.instance = request.group_instance_id.clone().or(member.instance);
        member.rack = subscription.rack.or(member.rack);
        member.rebalance_timeout = request.rebalance_timeout;
        (member.topics, member.regex) = (subscription.topics, String::new());
        member.client_id.clone_from(&request.client_id);
        member.client_host.clone_from(&request.client_host);
        let protocols = own_protocols(&request.protocols);
        let session_timeout = request.session_timeout;
        member.classic = Some(ClassicMembership { session_timeout, protocols });
        let is_subscription_new =
            (&before.topics, &before.regex) != (&member.topics, &member.regex);
        let owned = ids_of(&subscription.owned, topics);
        if self.base.members.get(&member.id) != Some(&member) {
            self.put(now, member.clone(), topics).map_err(refuse)?;
        }
        self.update_topics(now, is_subscription_new, topics);
        self.update_targets(now);
        let member = self
            .step(now, &member.id, is_subscription_new, Some(&owned), topics)
            .map_err(refuse)?;
        self.start_session(now, &member);
        self.deadlines.cancel(&(member.id.clone(), MemberTimer::Join));
        let sync = (member.id.clone(), MemberTimer::Sync);
        self.deadlines.set(sync, now + member.rebalance_timeout);
        Ok(JoinResult {
            error: None,
            generation_id: member.epoch,
            protocol_type: Some(CONSUMER_PROTOCOL_TYPE.to_owned()),
            protocol_name: protocol(&member).map(str::to_owned),
            leader: String::new(),
            member_id: member.id,
            members: Vec::new(),
            skip_assignment: false,
        })
    }

    /// Gives a member its assignment.
    pub fn classic_sync(
        &mut self,
        now: Duration,
        request: &SyncRequest,
        topics: &dyn GroupTopics,
    ) -> SyncResult {
        match self.try_classic_sync(now, request, topics) {
            Ok(result) => result,
            Err(error) => SyncResult::with_error(error),
        }
    }

    fn try_classic_sync(
        &mut self,
        now: Duration,
        request: &SyncRequest,
        topics: &dyn GroupTopics,
    ) -> Result<SyncResult, GroupError> {
        let instance = request.group_instance_id.as_deref();
        let member = self.classic_member(&request.member_id, instance, request.generation_id)?;
        let is_type = |kind: &String| kind == CONSUMER_PROTOCOL_TYPE;
        let is_name = |name: &String| Some(name.as_str()) == protocol(member);
        if !request.protocol_type.as_ref().is_none_or(is_type)
            || !request.protocol_name.as_ref().is_none_or(is_name)
        {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        let is_behind = self.base.epoch > member.epoch;
        let (id, rejoin_timeout) = (member.id.clone(), member.rebalance_timeout);
        if is_behind && member.state != MemberState::UnrevokedPartitions {
            self.await_rejoin(now, &id, rejoin_timeout);
            return Err(GroupError::RebalanceInProgress);
        }
        let assignment = assignment(member, topics);
        self.deadlines.cancel(&(id.clone(), MemberTimer::Sync));
        self.refresh_session(now, &id);
        Ok(SyncResult {
            error: None,
            protocol_type: request.protocol_type.clone(),
            protocol_name: request.protocol_name.clone(),
            assignment,
        })
    }

    /// Records a heartbeat of a member.
    pub fn classic_heartbeat(
        &mut self,
        now: Duration,
        request: &GroupHeartbeatRequest,
    ) -> Result<(), GroupError> {
        let instance = request.group_instance_id.as_deref();
        let member = self.classic_member(&request.member_id, instance, request.generation_id)?;
        let (id, timeout) = (member.id.clone(), member.rebalance_timeout);
        let rejoins = self.has_to_rejoin(member);
        self.refresh_session(now, &id);
        if rejoins {
            self.await_rejoin(now, &id, timeout);
            return Err(GroupError::RebalanceInProgress);
        }
        Ok(())
    }

    /// Removes members, of whichever protocol: one result each, in order.
    pub fn classic_leave(
        &mut self,
        now: Duration,
        leaving: &[LeaveMemberRequest],
    ) -> Vec<LeaveMemberResult> {
        let (mut ids, mut results) = (Vec::new(), Vec::new());
        for request in leaving {
            let member_id = self.leaving(request);
            results.push(request.result(member_id.as_ref().err().copied()));
            ids.extend(member_id);
        }
        self.fence(now, &ids);
        results
    }

    fn leaving(&self, request: &LeaveMemberRequest) -> Result<String, GroupError> {
        let Some(instance) = &request.group_instance_id else {
            let is_known = self.base.members.contains_key(&request.member_id);
            return is_known.then(|| request.member_id.clone()).ok_or(GroupError::UnknownMemberId);
        };
        let holder = self.instances.get(instance).ok_or(GroupError::UnknownMemberId)?;
        if !request.member_id.is_empty() && *holder != request.member_id {
            return Err(GroupError::FencedInstanceId);
        }
        Ok(holder.clone())
    }

    /// The member has to join again within its rebalance timeout.
    fn await_rejoin(&mut self, now: Duration, id: &str, timeout: Duration) {
        let key = (id.to_owned(), MemberTimer::Join);
        if self.deadlines.at(&key).is_none() {
            self.deadlines.set(key, now + timeout);
        }
    }

    fn classic_member(
        &self,
        id: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Result<&ConsumerGroupMember, GroupError> {
        if let Some(instance) = instance {
            let holder = self.instances.get(instance).ok_or(GroupError::UnknownMemberId)?;
            if holder != id {
                return Err(GroupError::FencedInstanceId);
            }
        }
        let member = self.base.members.get(id).filter(|member| member.classic.is_some());
        let member = member.ok_or(GroupError::UnknownMemberId)?;
        if member.epoch == generation { Ok(member) } else { Err(GroupError::IllegalGeneration) }
    }

    /// The subscription of a member, which has to share a protocol with all others.
    fn check_classic_protocols(
        &self,
        request: &JoinRequest,
    ) -> Result<ConsumerSubscription, GroupError> {
        let is_shared = |(name, _): &(String, bytes::Bytes)| {
            self.classic_protocols.get(name).copied().unwrap_or(0) == self.classic_members
        };
        let is_consumer = request.protocol_type == CONSUMER_PROTOCOL_TYPE;
        let may_join = self.base.options.consumer.migration != MigrationPolicy::Disabled;
        if !may_join || !is_consumer || !request.protocols.iter().any(is_shared) {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        let metadata = request.protocols.first().map(|(_, metadata)| metadata.clone());
        let subscription = metadata.and_then(ConsumerSubscription::parse);
        let subscription = subscription.filter(|subscription| may_subscribe(&subscription.topics));
        subscription.ok_or(GroupError::InconsistentGroupProtocol)
    }

    fn find_or_join_classic(
        &mut self,
        now: Duration,
        request: &JoinRequest,
        id: String,
        is_unknown: bool,
    ) -> Result<ConsumerGroupMember, GroupError> {
        let new = |id| ConsumerGroupMember::new(id);
        let Some(instance) = &request.group_instance_id else {
            return Ok(self.base.members.get(&id).cloned().unwrap_or_else(|| new(id)));
        };
        match self.instances.get(instance).cloned() {
            Some(holder) if is_unknown => self.take_over(now, &holder, &id, true),
            None if is_unknown => Ok(new(id)),
            None => Err(GroupError::UnknownMemberId),
            Some(holder) if holder != id => Err(GroupError::FencedInstanceId),
            Some(holder) => {
                self.base.members.get(&holder).cloned().ok_or(GroupError::UnknownMemberId)
            }
        }
    }
}

/// The protocol that a member is told to use: the one that it likes best.
pub(super) fn protocol(member: &ConsumerGroupMember) -> Option<&str> {
    member.classic.as_ref()?.protocols.first().map(|(name, _)| name.as_str())
}

/// The assignment of a member, in the bytes of its protocol.
pub(super) fn assignment(member: &ConsumerGroupMember, topics: &dyn GroupTopics) -> bytes::Bytes {
    let mut partitions = BTreeMap::<String, Vec<i32>>::new();
    for (topic, indexes) in &member.assigned {
        if let Some(topic) = topics.by_id(topic) {
            let indexes = indexes.keys().map(|index| *index as i32).collect();
            partitions.insert(topic.name.to_string(), indexes);
        }
    }
    let metadata = member.classic.as_ref().and_then(|classic| classic.protocols.first());
    let subscription = metadata.and_then(|(_, bytes)| ConsumerSubscription::parse(bytes.clone()));
    encode_assignment(subscription.map_or(0, |subscription| subscription.version), &partitions)
}

/// Partitions by topic id, without those of topics that do not exist.
pub(super) fn ids_of(
    partitions: &BTreeMap<String, std::collections::BTreeSet<u32>>,
    topics: &dyn GroupTopics,
) -> PartitionSet {
    let with_id = |(name, indexes): (&String, &std::collections::BTreeSet<u32>)| {
        let id: TopicId = topics.named(name)?.id;
        Some((id, indexes.clone()))
    };
    partitions.iter().filter_map(with_id).collect()
}
