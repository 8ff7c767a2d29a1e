//! The heartbeat of a member: it joins, says what it subscribes to and what it owns, and learns its
//! assignment.

use std::collections::BTreeSet;
use std::time::Duration;

use uuid::Uuid;

use super::super::assignor::Assignor;
use super::super::error::GroupError;
use super::super::modern_group::ModernMember;
use super::super::options::Options;
use super::super::partitions::{AssignedPartitions, PartitionSet, are_same, has_all};
use super::super::topic_subscription::{GroupTopics, compile, may_subscribe};
use super::member::{ConsumerGroupMember, MemberState};
use super::{ConsumerGroup, MemberTimer};

/// A heartbeat. A field that is `None` has not changed since the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsumerHeartbeat {
    /// Empty if the server is to make one.
    pub member_id: String,
    /// The member's epoch; 0 to join, -1 to leave, -2 to leave for a while.
    pub member_epoch: i32,
    pub instance_id: Option<String>,
    pub rack: Option<String>,
    pub rebalance_timeout: Option<Duration>,
    pub topics: Option<BTreeSet<String>>,
    pub regex: Option<String>,
    pub assignor: Option<String>,
    /// The partitions that the member owns.
    pub owned: Option<PartitionSet>,
    pub client_id: String,
    pub client_host: String,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerHeartbeatAnswer {
    pub member_id: String,
    pub member_epoch: i32,
    /// The time until the member is to send the next one.
    pub interval: Duration,
    /// `None` if it is what the member knows.
    pub assignment: Option<AssignedPartitions>,
}

impl ConsumerHeartbeat {
    /// Checks what depends on no group.
    pub(in super::super) fn check(&self, options: &Options) -> Result<(), GroupError> {
        let is_any_empty = [&self.instance_id, &self.rack]
            .into_iter()
            .any(|text| text.as_ref().is_some_and(String::is_empty));
        let joins = self.member_epoch == 0;
        let is_complete = self.rebalance_timeout.is_some()
            && self.owned.as_ref().is_some_and(PartitionSet::is_empty)
            && (self.topics.is_some() || self.regex.is_some());
        let names_member = joins || !self.member_id.is_empty();
        let names_instance = self.member_epoch != -2 || self.instance_id.is_some();
        let is_valid = !is_any_empty && names_member && names_instance && self.member_epoch >= -2;
        if !is_valid || joins && !is_complete {
            return Err(GroupError::InvalidRequest);
        }
        let is_offered = |name: &String| {
            Assignor::named(name)
                .is_some_and(|assignor| options.consumer.assignors.contains(&assignor))
        };
        if !self.assignor.as_ref().is_none_or(is_offered) {
            return Err(GroupError::UnsupportedAssignor);
        }
        let is_bounded = self.topics.as_ref().is_none_or(may_subscribe);
        if !is_bounded || self.bytes() > options.member_bytes_max {
            return Err(GroupError::TooLarge);
        }
        Ok(())
    }

    /// Returns true if the member wants to leave.
    pub fn leaves(&self) -> bool {
        self.member_epoch < 0
    }

    /// The bytes of what the group keeps of it.
    pub(in super::super) fn bytes(&self) -> usize {
        let texts = [&self.member_id, &self.client_id, &self.client_host];
        let optional = [&self.instance_id, &self.rack, &self.regex, &self.assignor];
        texts.iter().map(|text| text.len()).sum::<usize>()
            + optional.iter().map(|text| text.as_ref().map_or(0, String::len)).sum::<usize>()
            + self.topics.iter().flatten().map(String::len).sum::<usize>()
    }

    /// True if it says all that a member may say: after an error it does.
    fn is_full(&self) -> bool {
        let subscribes = self.topics.is_some() || self.regex.is_some();
        self.rebalance_timeout.is_some() && subscribes && self.owned.is_some()
    }

    /// True if it only says that the member is alive.
    fn is_bare(&self) -> bool {
        let texts = [&self.rack, &self.regex, &self.assignor];
        let is_any_given = self.topics.is_some()
            || self.owned.is_some()
            || self.rebalance_timeout.is_some()
            || texts.iter().any(|text| text.is_some());
        !is_any_given && self.member_epoch > 0
    }

    fn apply(&self, member: &mut ConsumerGroupMember) {
        member.instance = self.instance_id.clone().or(member.instance.take());
        member.rack = self.rack.clone().or(member.rack.take());
        member.rebalance_timeout = self.rebalance_timeout.unwrap_or(member.rebalance_timeout);
        member.assignor = self.assignor.clone().or(member.assignor.take());
        if let Some(topics) = &self.topics {
            member.topics.clone_from(topics);
        }
        if let Some(regex) = &self.regex {
            member.regex.clone_from(regex);
        }
        member.client_id.clone_from(&self.client_id);
        member.client_host.clone_from(&self.client_host);
        member.classic = None;
    }
}

impl ConsumerGroup {
    /// The usual heartbeat, of a member that says nothing new and has all it is to have:
    /// [`ConsumerGroup::heartbeat`] with nothing but the session to change. `None` for any other.
    ///
    /// Most of what a group costs is in it: it looks the member up once.
    pub fn bare_heartbeat(
        &mut self,
        now: Duration,
        request: &ConsumerHeartbeat,
        topics: &dyn GroupTopics,
    ) -> Option<ConsumerHeartbeatAnswer> {
        if !request.is_bare() {
            return None;
        }
        let member = self.base.members.get(&request.member_id)?;
        let is_known = member.epoch == request.member_epoch
            && member.instance == request.instance_id
            && member.client_id == request.client_id
            && member.client_host == request.client_host
            && member.classic.is_none();
        let is_settled = member.is_reconciled_to(self.base.epoch)
            && self.base.assignment_epoch == self.base.epoch;
        if !is_known || !is_settled {
            return None;
        }
        let session = now + self.session_timeout(member);
        self.update_topics(now, false, topics);
        if self.base.assignment_epoch != self.base.epoch {
            return None;
        }
        if let Some(timeout) = self.sessions.get_mut(&request.member_id) {
            *timeout = session;
        }
        Some(ConsumerHeartbeatAnswer {
            member_id: request.member_id.clone(),
            member_epoch: request.member_epoch,
            interval: self.base.options.consumer.heartbeat_interval,
            assignment: None,
        })
    }

    /// Handles a heartbeat that does not leave. Its answer may be given once the member's changes
    /// are stored.
    pub fn heartbeat(
        &mut self,
        now: Duration,
        request: &ConsumerHeartbeat,
        topics: &dyn GroupTopics,
        new_id: &mut dyn FnMut() -> Uuid,
    ) -> Result<ConsumerHeartbeatAnswer, GroupError> {
        self.check_room(&request.member_id)?;
        if let Some(regex) = request.regex.as_deref().filter(|regex| !regex.is_empty()) {
            compile(regex)?;
        }
        let before = self.find_or_join(now, request, new_id)?;
        let mut member = before.clone();
        request.apply(&mut member);
        let is_subscription_new =
            (&before.topics, &before.regex) != (&member.topics, &member.regex);
        let is_new = !self.base.members.contains_key(&member.id);
        if member != before || is_new {
            self.put(now, member.clone(), topics)?;
        }
        self.update_topics(now, is_subscription_new, topics);
        self.update_targets(now);
        let member =
            self.step(now, &member.id, is_subscription_new, request.owned.as_ref(), topics)?;
        self.start_session(now, &member);
        self.end_classic_waits(&member.id);
        let is_shown = request.member_epoch == 0
            || request.is_full()
            || !are_same(&before.assigned, &member.assigned);
        Ok(ConsumerHeartbeatAnswer {
            member_id: member.id,
            member_epoch: member.epoch,
            interval: self.base.options.consumer.heartbeat_interval,
            assignment: is_shown.then_some(member.assigned),
        })
    }

    /// The bytes of the member with this id, or of the one whose place it takes.
    pub fn bytes_of(&self, id: &str, instance: Option<&str>) -> usize {
        let holder = || self.base.members.get(self.instances.get(instance?)?);
        self.base.members.get(id).or_else(holder).map_or(0, |member| member.bytes(&member.id))
    }

    /// The additional bytes of the group once a heartbeat is granted: none for a member as it is.
    pub fn growth_by_heartbeat(&self, request: &ConsumerHeartbeat) -> usize {
        let old_bytes = self.bytes_of(&request.member_id, request.instance_id.as_deref());
        if request.leaves() { 0 } else { request.bytes().saturating_sub(old_bytes) }
    }

    /// A member one step on.
    pub(super) fn step(
        &mut self,
        now: Duration,
        id: &str,
        is_subscription_new: bool,
        owned: Option<&PartitionSet>,
        topics: &dyn GroupTopics,
    ) -> Result<ConsumerGroupMember, GroupError> {
        let before = self.base.members.get(id).ok_or(GroupError::UnknownMemberId)?;
        let mut member = before.clone();
        self.reconcile(now, &mut member, is_subscription_new, owned);
        if self.base.members.get(id) != Some(&member) {
            self.put(now, member.clone(), topics)?;
        }
        Ok(member)
    }

    /// Checks that the group may have that member.
    pub(super) fn check_room(&self, member: &str) -> Result<(), GroupError> {
        let options = &self.base.options;
        let is_full = self.base.members.len() >= options.consumer.group_max_size
            || self.bytes() > options.group_bytes_max;
        if is_full && !self.base.members.contains_key(member) {
            Err(GroupError::GroupMaxSizeReached)
        } else {
            Ok(())
        }
    }

    /// The member that sends a heartbeat, as it was; a new one if it joins.
    fn find_or_join(
        &mut self,
        now: Duration,
        request: &ConsumerHeartbeat,
        new_id: &mut dyn FnMut() -> Uuid,
    ) -> Result<ConsumerGroupMember, GroupError> {
        let joins = request.member_epoch == 0;
        let id = match request.member_id.as_str() {
            "" => new_id().to_string(),
            id => id.to_owned(),
        };
        let holder = request.instance_id.as_ref().and_then(|instance| self.instances.get(instance));
        match (&request.instance_id, holder.cloned()) {
            (Some(_), Some(holder)) if joins => self.take_over(now, &holder, &id, false),
            (Some(_), None) if !joins => Err(GroupError::UnknownMemberId),
            (Some(_), Some(holder)) if holder != id => Err(GroupError::FencedInstanceId),
            _ => match self.base.members.get(&id) {
                Some(member) => {
                    check_epoch(member, request.member_epoch, request.owned.as_ref())?;
                    Ok(member.clone())
                }
                None if joins => Ok(ConsumerGroupMember::new(id)),
                None => Err(GroupError::UnknownMemberId),
            },
        }
    }

    /// Gives what a static member has to the one that comes in its place.
    pub(super) fn take_over(
        &mut self,
        now: Duration,
        holder: &str,
        id: &str,
        is_classic: bool,
    ) -> Result<ConsumerGroupMember, GroupError> {
        let before = self.base.members.get(holder).ok_or(GroupError::UnknownMemberId)?;
        if !is_classic && before.classic.is_none() && !before.has_left() {
            return Err(GroupError::UnreleasedInstanceId);
        }
        if holder != id && self.base.members.contains_key(id) {
            return Err(GroupError::UnknownMemberId);
        }
        let mut member = self.remove(now, holder).expect("it was there");
        (member.id, member.epoch, member.previous_epoch) = (id.to_owned(), 0, 0);
        Ok(member)
    }

    /// The member has joined by the consumer protocol: nothing of the classic one is waited for.
    fn end_classic_waits(&mut self, id: &str) {
        for timer in [MemberTimer::Join, MemberTimer::Sync] {
            self.deadlines.cancel(&(id.to_owned(), timer));
        }
    }
}

/// Fails if the member does not know its epoch. It may name the one before: then the response with
/// the new one was lost, and it owns no more than it was assigned.
fn check_epoch(
    member: &ConsumerGroupMember,
    epoch: i32,
    owned: Option<&PartitionSet>,
) -> Result<(), GroupError> {
    let is_lost = epoch == member.previous_epoch
        && epoch < member.epoch
        && owned.is_some_and(|owned| has_all(&member.assigned, owned));
    if epoch == 0 || epoch == member.epoch || is_lost {
        Ok(())
    } else {
        Err(GroupError::FencedMemberEpoch)
    }
}

impl ConsumerGroup {
    /// True if a member of the classic protocol has to join again.
    pub(super) fn has_to_rejoin(&self, member: &ConsumerGroupMember) -> bool {
        let is_free = || {
            let topics = self.subscription.topics_of(&member.topics, &member.regex);
            let target = member.target.iter().filter(|(topic, _)| topics.contains(*topic));
            target.flat_map(|(topic, indexes)| indexes.iter().map(|index| (*topic, *index))).all(
                |partition| self.holders.get(&partition).is_none_or(|holder| *holder == member.id),
            )
        };
        member.epoch < self.base.epoch
            || member.state == MemberState::UnrevokedPartitions
            || member.state == MemberState::UnreleasedPartitions && is_free()
    }
}
