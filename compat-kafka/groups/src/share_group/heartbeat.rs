//! The heartbeat of a member: it joins, names its topics, learns its partitions, or leaves.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::error::GroupError;
use super::super::modern_group::ModernMember;
use super::super::options::Options;
use super::super::partitions::PartitionSet;
use super::super::topic_subscription::{GroupTopics, may_subscribe};
use super::{NO_REGEX, ShareGroup, ShareGroupMember};

/// The epoch of a member that joins.
const JOINING: i32 = 0;
/// The epoch of a member that leaves.
const LEAVING: i32 = -1;

/// A heartbeat. A field that is `None` has not changed since the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShareHeartbeat {
    /// The client makes it.
    pub member_id: String,
    /// The member's epoch; 0 to join, -1 to leave.
    pub member_epoch: i32,
    pub rack: Option<String>,
    pub topics: Option<BTreeSet<String>>,
    pub client_id: String,
    pub client_host: String,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareHeartbeatAnswer {
    pub member_id: String,
    pub member_epoch: i32,
    /// The time until the member is to send the next one.
    pub interval: Duration,
    /// `None` if it is what the member knows.
    pub assignment: Option<PartitionSet>,
}

impl ShareHeartbeat {
    /// Checks what depends on no group.
    pub(in super::super) fn check(&self, options: &Options) -> Result<(), GroupError> {
        let is_rack_empty = self.rack.as_ref().is_some_and(String::is_empty);
        let subscribes = self.topics.as_ref().is_some_and(|topics| !topics.is_empty());
        let is_epoch_valid = self.member_epoch >= LEAVING && (!self.joins() || subscribes);
        if self.member_id.is_empty() || is_rack_empty || !is_epoch_valid {
            return Err(GroupError::InvalidShareRequest);
        }
        let is_bounded = self.topics.as_ref().is_none_or(may_subscribe);
        if is_bounded && self.bytes() <= options.member_bytes_max {
            Ok(())
        } else {
            Err(GroupError::TooLarge)
        }
    }

    pub fn joins(&self) -> bool {
        self.member_epoch == JOINING
    }

    /// The bytes of what the group keeps of it.
    pub(in super::super) fn bytes(&self) -> usize {
        let texts = [&self.member_id, &self.client_id, &self.client_host];
        texts.iter().map(|text| text.len()).sum::<usize>()
            + self.rack.as_ref().map_or(0, String::len)
            + self.topics.iter().flatten().map(String::len).sum::<usize>()
    }

    fn apply(&self, member: &mut ShareGroupMember) {
        member.rack = self.rack.clone().or(member.rack.take());
        if let Some(topics) = &self.topics {
            member.topics.clone_from(topics);
        }
        member.client_id.clone_from(&self.client_id);
        member.client_host.clone_from(&self.client_host);
    }
}

impl ShareGroup {
    /// Handles a heartbeat. Its answer may be given once the member's changes are stored.
    pub fn heartbeat(
        &mut self,
        now: Duration,
        request: &ShareHeartbeat,
        topics: &dyn GroupTopics,
    ) -> Result<ShareHeartbeatAnswer, GroupError> {
        let id = &request.member_id;
        if request.member_epoch == LEAVING {
            return self.leave(now, request);
        }
        let before = self.find_or_join(request)?;
        let mut member = before.clone();
        request.apply(&mut member);
        let is_subscription_new = before.topics != member.topics;
        if member != before || !self.base.members.contains_key(id) {
            self.put(id, member.clone(), topics);
        }
        self.sessions.set(id.as_str(), now + self.base.options.share.session_timeout);
        self.update_topics(now, is_subscription_new, topics);
        self.update_targets(now);
        let member = self.step(id, is_subscription_new, topics)?;
        let is_shown =
            request.joins() || request.topics.is_some() || before.assigned != member.assigned;
        Ok(ShareHeartbeatAnswer {
            member_id: id.clone(),
            member_epoch: member.epoch,
            interval: self.base.options.share.heartbeat_interval,
            assignment: is_shown.then_some(member.assigned),
        })
    }

    /// The additional bytes of the group once a heartbeat is granted: none for a member as it is.
    pub fn growth_by_heartbeat(&self, request: &ShareHeartbeat) -> usize {
        let member = self.base.members.get(&request.member_id);
        let old_bytes = member.map_or(0, |member| member.bytes(&request.member_id));
        let grows = request.member_epoch != LEAVING;
        if grows { request.bytes().saturating_sub(old_bytes) } else { 0 }
    }

    fn leave(
        &mut self,
        now: Duration,
        request: &ShareHeartbeat,
    ) -> Result<ShareHeartbeatAnswer, GroupError> {
        if !self.base.members.contains_key(&request.member_id) {
            return Err(GroupError::UnknownMemberId);
        }
        self.remove(now, &request.member_id);
        Ok(ShareHeartbeatAnswer {
            member_id: request.member_id.clone(),
            member_epoch: LEAVING,
            interval: Duration::ZERO,
            assignment: None,
        })
    }

    /// The member that sends a heartbeat, as it was; a new one if it joins.
    fn find_or_join(&self, request: &ShareHeartbeat) -> Result<ShareGroupMember, GroupError> {
        if let Some(member) = self.base.members.get(&request.member_id) {
            let epoch = request.member_epoch;
            let is_known = epoch == member.epoch || epoch == member.previous_epoch;
            return if request.joins() || is_known {
                Ok(member.clone())
            } else {
                Err(GroupError::FencedMemberEpoch)
            };
        }
        if !request.joins() {
            return Err(GroupError::UnknownMemberId);
        }
        let is_full = self.base.members.len() >= self.base.options.share.group_max_size
            || self.bytes() > self.base.options.group_bytes_max;
        if is_full {
            return Err(GroupError::GroupMaxSizeReached);
        }
        Ok(ShareGroupMember {
            rack: None,
            client_id: String::new(),
            client_host: String::new(),
            topics: BTreeSet::new(),
            epoch: 0,
            previous_epoch: 0,
            assigned: PartitionSet::new(),
            target: PartitionSet::new(),
        })
    }

    /// Gives a member its current target.
    fn step(
        &mut self,
        id: &str,
        is_subscription_new: bool,
        topics: &dyn GroupTopics,
    ) -> Result<ShareGroupMember, GroupError> {
        let before = self.base.members.get(id).ok_or(GroupError::UnknownMemberId)?;
        if before.epoch == self.base.assignment_epoch && !is_subscription_new {
            return Ok(before.clone());
        }
        let mut member = before.clone();
        let subscribed = self.subscription.topics_of(&member.topics, NO_REGEX);
        let target = member.target.iter().filter(|(topic, _)| subscribed.contains(*topic));
        member.assigned = target.map(|(topic, indexes)| (*topic, indexes.clone())).collect();
        if member.epoch != self.base.assignment_epoch {
            (member.previous_epoch, member.epoch) = (member.epoch, self.base.assignment_epoch);
        }
        if *before != member {
            self.put(id, member.clone(), topics);
        }
        Ok(member)
    }
}
