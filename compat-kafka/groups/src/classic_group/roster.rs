//! The members of a group, and what depends on all of them: the leader, the instance ids, the
//! protocols that all of them support, and the number of waiting joins.
//!
//! Invariants, asserted by the tests: `totals` is the sum over `members`; `instances` maps each
//! instance id to the one member that has it; there is a leader exactly if there is a member, and
//! it is one of them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;

use super::super::member::ClassicGroupMember;
use super::super::member_requests::RequestToken;

/// The members of a group. They are ordered by id, so that runs are reproducible.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemberRoster {
    members: BTreeMap<String, ClassicGroupMember>,
    instances: HashMap<String, String>,
    leader: Option<String>,
    totals: RosterTotals,
}

/// Sums over all members, maintained so that no request has to iterate over them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RosterTotals {
    /// The number of members that support each protocol. No count is zero.
    support: BTreeMap<String, usize>,
    joining: usize,
    bytes: usize,
}

impl MemberRoster {
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.members.contains_key(id)
    }

    pub(super) fn get(&self, id: &str) -> Option<&ClassicGroupMember> {
        self.members.get(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ClassicGroupMember> {
        self.members.values()
    }

    pub(super) fn ids(&self) -> Vec<String> {
        self.members.keys().cloned().collect()
    }

    /// The ids of the members for which `claim` holds.
    pub(super) fn ids_where(&self, claim: impl Fn(&ClassicGroupMember) -> bool) -> Vec<String> {
        self.iter().filter(|member| claim(member)).map(|member| member.id.clone()).collect()
    }

    pub(super) fn leader(&self) -> Option<&str> {
        self.leader.as_deref()
    }

    pub(super) fn is_leader(&self, id: &str) -> bool {
        self.leader() == Some(id)
    }

    pub(super) fn id_of_instance(&self, instance: &str) -> Option<&str> {
        self.instances.get(instance).map(String::as_str)
    }

    /// The number of members that have a waiting join request.
    pub(super) fn joining(&self) -> usize {
        self.totals.joining
    }

    pub(super) fn bytes(&self) -> usize {
        self.totals.bytes
    }

    /// The longest rebalance timeout of any member: the time for all to join.
    pub(super) fn rebalance_timeout(&self) -> Duration {
        self.iter().map(|member| member.rebalance_timeout).max().unwrap_or_default()
    }

    pub(crate) fn insert(&mut self, member: ClassicGroupMember) {
        if let Some(instance) = &member.group_instance_id {
            let old_id = self.instances.insert(instance.clone(), member.id.clone());
            assert!(old_id.is_none(), "an instance id has one member: {instance}");
        }
        self.leader.get_or_insert_with(|| member.id.clone());
        self.totals.count(&member);
        let old_member = self.members.insert(member.id.clone(), member);
        assert!(old_member.is_none(), "a member is added once");
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<ClassicGroupMember> {
        let member = self.members.remove(id)?;
        self.totals.uncount(&member);
        if let Some(instance) = &member.group_instance_id {
            self.instances.remove(instance);
        }
        if self.is_leader(id) {
            self.leader = self.members.keys().next().cloned();
        }
        Some(member)
    }

    /// Replaces member `id` by `next`, also as the leader if `id` led. Returns the old member.
    pub(super) fn replace(
        &mut self,
        id: &str,
        next: ClassicGroupMember,
    ) -> Option<ClassicGroupMember> {
        let led = self.is_leader(id);
        let previous = self.remove(id)?;
        if led {
            self.leader = Some(next.id.clone());
        }
        self.insert(next);
        Some(previous)
    }

    /// Changes a member in place, except for its ids.
    pub(super) fn edit<T>(
        &mut self,
        id: &str,
        change: impl FnOnce(&mut ClassicGroupMember) -> T,
    ) -> Option<T> {
        let member = self.members.get_mut(id)?;
        self.totals.uncount(member);
        let changed = change(member);
        self.totals.count(member);
        Some(changed)
    }

    /// Takes the member's waiting join request, to answer it.
    pub(super) fn take_join(&mut self, id: &str) -> Option<RequestToken> {
        let token = self.members.get_mut(id)?.join.take()?;
        self.totals.joining -= 1;
        Some(token)
    }

    /// Takes the member's waiting sync request, to answer it.
    pub(super) fn take_sync(&mut self, id: &str) -> Option<RequestToken> {
        self.members.get_mut(id)?.sync.take()
    }

    pub(super) fn set_leader(&mut self, id: Option<String>) {
        self.leader = id;
    }

    /// Makes a joining member the leader, unless the leader joins. False if no member joins.
    pub(super) fn elect_joined_leader(&mut self) -> bool {
        let joins = |member: &&ClassicGroupMember| member.join.is_some();
        if self.leader().and_then(|id| self.get(id)).filter(joins).is_some() {
            return true;
        }
        let elected = self.iter().find(joins).map(|member| member.id.clone());
        let is_elected = elected.is_some();
        self.leader = elected.or(self.leader.take());
        is_elected
    }

    /// True if at least one of these protocols is supported by every member.
    pub(super) fn supports_any(&self, protocols: &[(String, Bytes)]) -> bool {
        protocols.iter().any(|(name, _)| self.totals.supporters(name) == self.len())
    }

    /// The protocol with the most votes; each member votes for the first in its list that all
    /// members support. A tie goes to the first by name. `None` only if there are no members.
    pub(crate) fn select_protocol(&self) -> Option<String> {
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.iter() {
            let all_support = |name: &str| self.totals.supporters(name) == self.len();
            let vote = member.protocols.iter().find(|(name, _)| all_support(name));
            let (name, _) = vote.expect("whoever joins shares a protocol with all members");
            *votes.entry(name).or_default() += 1;
        }
        let winner = votes.into_iter().rev().max_by_key(|(_, count)| *count);
        winner.map(|(name, _)| name.to_owned())
    }

    #[cfg(test)]
    pub(super) fn assert_sound(&self) {
        let mut tally = RosterTotals::default();
        self.iter().for_each(|member| tally.count(member));
        assert_eq!(tally, self.totals, "the tally is the sum over the members");
        let statics = self.iter().filter(|member| member.is_static()).count();
        assert_eq!(statics, self.instances.len(), "each instance id is one member's");
        for (instance, id) in &self.instances {
            let holder = self.get(id).expect("an instance id is a member's");
            assert_eq!(holder.group_instance_id.as_ref(), Some(instance));
        }
        assert_eq!(self.leader.is_some(), !self.is_empty(), "members have a leader");
        assert!(self.leader().is_none_or(|id| self.contains(id)), "the leader is a member");
    }
}

impl RosterTotals {
    fn supporters(&self, protocol: &str) -> usize {
        self.support.get(protocol).copied().unwrap_or(0)
    }

    fn count(&mut self, member: &ClassicGroupMember) {
        self.bytes += member.bytes();
        self.joining += usize::from(member.join.is_some());
        for (name, _) in &member.protocols {
            *self.support.entry(name.clone()).or_default() += 1;
        }
    }

    fn uncount(&mut self, member: &ClassicGroupMember) {
        self.bytes -= member.bytes();
        self.joining -= usize::from(member.join.is_some());
        for (name, _) in &member.protocols {
            let supporters = self.support.get_mut(name).expect("a member's protocols are counted");
            *supporters -= 1;
            if *supporters == 0 {
                self.support.remove(name);
            }
        }
    }
}
