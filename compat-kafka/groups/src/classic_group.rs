//! One group as a state machine: its inputs are requests and time, its outputs are
//! [`GroupEffect`]s.
//!
//! The operations are in files beside this one: `join`, `sync`, `heartbeat`, `leave`, `replace` (a
//! static member returns under a new id), `rebalance` (from one generation to the next), `commit`
//! and `describe`. This file has what they share.
//!
//! Every wait has something that ends it: while a join waits there is a join timer or a write, and
//! while a sync waits there is a timer or a write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::deadlines::DeadlineQueue;
use super::effects::{GroupEffect, WriteId, WriteResult};
use super::error::GroupError;
use super::member::ClassicGroupMember;
use super::member_requests::{JoinResult, RequestToken, SyncResult};
use super::options::Options;
use super::pending_write::PendingWrite;
use super::snapshot::GroupSnapshot;
use super::state::ClassicGroupState;
use super::subscriptions::GroupSubscriptions;
use join_timer::JoinTimer;
use pending::PendingMembers;
use roster::MemberRoster;

mod commit;
mod heartbeat;
mod join;
mod join_timer;
mod leave;
mod pending;
#[cfg(test)]
mod properties;
mod rebalance;
mod replace;
mod restore;
mod roster;
mod sync;
#[cfg(test)]
mod test_classic_group;
#[cfg(test)]
mod tests;

/// The purpose of a deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
enum GroupTimer {
    Join,
    Sync,
    Session(String),
}

/// One group. Times are of a monotonic clock of the caller.
#[derive(Debug, Clone)]
pub struct ClassicGroup {
    pub(super) options: Arc<Options>,
    pub(super) state: ClassicGroupState,
    pub(super) generation: i32,
    pub(super) protocol_type: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) roster: MemberRoster,
    /// Issued ids that have not joined yet (KIP-394). None is in `roster`.
    pending: PendingMembers,
    /// Members of this generation that have not synced yet.
    pub(super) pending_sync: BTreeSet<String>,
    /// The sessions of members, and of the ids in `pending`.
    pub(super) sessions: DeadlineQueue<String>,
    /// It is `Some` exactly in `PreparingRebalance`.
    join_timer: Option<JoinTimer>,
    pub(super) sync_deadline: Option<Duration>,
    pub(super) subscriptions: GroupSubscriptions,
    pub(super) writes: BTreeMap<WriteId, PendingWrite>,
    pub(super) reason: &'static str,
    /// The time at which its last member left, if that was in this incarnation.
    pub(super) empty_since: Option<Duration>,
    next_write: u64,
    effects: Vec<GroupEffect>,
}

impl ClassicGroup {
    /// A group that nobody has joined.
    pub fn new(options: Arc<Options>) -> ClassicGroup {
        ClassicGroup {
            options,
            state: ClassicGroupState::Empty,
            generation: 0,
            protocol_type: None,
            protocol: None,
            roster: MemberRoster::default(),
            pending: PendingMembers::default(),
            pending_sync: BTreeSet::new(),
            sessions: DeadlineQueue::default(),
            join_timer: None,
            sync_deadline: None,
            subscriptions: GroupSubscriptions::NotConsumers,
            writes: BTreeMap::new(),
            reason: "created",
            empty_since: None,
            next_write: 0,
            effects: Vec::new(),
        }
    }

    /// A group that nobody has joined, in place of one of another kind, which the log still has.
    pub(super) fn in_place_of_another(options: Arc<Options>) -> ClassicGroup {
        let mut group = ClassicGroup::new(options);
        group.persist(group.snapshot(), PendingWrite::Migration);
        group
    }

    pub fn state(&self) -> ClassicGroupState {
        self.state
    }

    /// The generation. It rises by one with every rebalance.
    pub fn generation(&self) -> i32 {
        self.generation
    }

    /// The number of members.
    pub fn member_count(&self) -> usize {
        self.roster.len()
    }

    /// The bytes that its members and the issued ids take.
    pub fn bytes(&self) -> usize {
        self.roster.bytes() + self.pending.bytes()
    }

    /// The reason why the group last began to rebalance; for logs.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// True if only the generation would be lost if this group were removed.
    pub fn is_idle(&self) -> bool {
        self.state == ClassicGroupState::Empty && self.pending.is_empty() && self.writes.is_empty()
    }

    /// The time at which [`ClassicGroup::tick`] has to be called next.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.first_timer().map(|(at, _)| at)
    }

    /// Runs all that is due by `now`.
    pub fn tick(&mut self, now: Duration) -> Vec<GroupEffect> {
        while let Some((at, timer)) = self.first_timer()
            && at <= now
        {
            self.on_timer(now, timer);
        }
        self.take_effects()
    }

    /// Handles the end of the write of a [`GroupEffect::Persist`].
    pub fn persisted(
        &mut self,
        now: Duration,
        write: WriteId,
        result: WriteResult,
    ) -> Vec<GroupEffect> {
        match self.writes.remove(&write) {
            Some(PendingWrite::Assignment { generation, assignments }) => {
                self.assignment_written(now, generation, assignments, result);
            }
            Some(PendingWrite::Replacement(replacement)) => {
                self.replacement_written(now, *replacement, result);
            }
            Some(PendingWrite::EmptyGroup | PendingWrite::Migration) | None => {}
        }
        self.take_effects()
    }

    /// Ends the group. All waiting requests are told to find the coordinator again.
    pub fn close(&mut self) -> Vec<GroupEffect> {
        for id in self.roster.ids() {
            self.fail_pending_requests(&id, GroupError::CoordinatorNotAvailable);
        }
        self.transition_to(ClassicGroupState::Dead);
        self.sessions.clear();
        self.join_timer = None;
        self.pending.clear();
        self.pending_sync.clear();
        self.sync_deadline = None;
        self.take_effects()
    }

    /// Answers all waiting requests: the group goes on as one of another kind.
    pub(super) fn abandon(&mut self, error: GroupError) -> Vec<GroupEffect> {
        for id in self.roster.ids() {
            self.fail_pending_requests(&id, error);
        }
        self.take_effects()
    }

    fn first_timer(&self) -> Option<(Duration, GroupTimer)> {
        let join = self.join_timer.as_ref().map(|timer| (timer.at, GroupTimer::Join));
        let sync = self.sync_deadline.map(|at| (at, GroupTimer::Sync));
        let session = self.sessions.first().map(|(at, id)| (at, GroupTimer::Session(id.clone())));
        [join, sync, session].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    fn on_timer(&mut self, now: Duration, timer: GroupTimer) {
        match timer {
            GroupTimer::Join => self.join_timer_fired(now),
            GroupTimer::Sync => self.sync_timer_fired(now),
            GroupTimer::Session(id) => self.session_expired(now, &id),
        }
    }

    fn session_expired(&mut self, now: Duration, id: &str) {
        self.sessions.cancel(id);
        if self.pending.remove(id) {
            self.complete_join_if_all_joined(now);
        } else if self.roster.get(id).is_some_and(|member| !member.is_session_exempt()) {
            self.remove_member(id, GroupError::UnknownMemberId);
            self.member_lost(now, "a member's session expired");
        }
    }

    /// Fails unless the member is in the group, and its instance id still maps to it.
    pub(super) fn check_member(&self, id: &str, instance: Option<&str>) -> Result<(), GroupError> {
        if let Some(instance) = instance {
            let holder = self.roster.id_of_instance(instance);
            if holder.ok_or(GroupError::UnknownMemberId)? != id {
                return Err(GroupError::FencedInstanceId);
            }
        }
        if self.roster.contains(id) { Ok(()) } else { Err(GroupError::UnknownMemberId) }
    }

    pub(super) fn check_generation(&self, generation: i32) -> Result<(), GroupError> {
        if generation == self.generation { Ok(()) } else { Err(GroupError::IllegalGeneration) }
    }

    /// Restarts the member's session timeout.
    pub(super) fn refresh_session(&mut self, now: Duration, id: &str) {
        if let Some(member) = self.roster.get(id) {
            self.sessions.set(id, now + member.session_timeout);
        }
    }

    /// Removes a member, and answers its waiting requests.
    pub(super) fn remove_member(
        &mut self,
        id: &str,
        error: GroupError,
    ) -> Option<ClassicGroupMember> {
        self.fail_pending_requests(id, error);
        self.sessions.cancel(id);
        self.remove_pending_sync(id);
        self.roster.remove(id)
    }

    /// The member does not have to sync any more.
    pub(super) fn remove_pending_sync(&mut self, id: &str) {
        self.pending_sync.remove(id);
        if self.pending_sync.is_empty() {
            self.sync_deadline = None;
        }
    }

    fn fail_pending_requests(&mut self, id: &str, error: GroupError) {
        if let Some(token) = self.roster.take_join(id) {
            let known_id = if error == GroupError::UnknownMemberId { "" } else { id };
            self.answer_join(token, JoinResult::with_error(error, known_id));
        }
        if let Some(token) = self.roster.take_sync(id) {
            self.answer_sync(token, SyncResult::with_error(error));
        }
    }

    pub(super) fn transition_to(&mut self, next: ClassicGroupState) {
        assert!(self.state.may_become(next), "a {} group cannot become {next}", self.state);
        self.state = next;
    }

    pub(super) fn answer_join(&mut self, token: RequestToken, answer: JoinResult) {
        self.effects.push(GroupEffect::Join { token, answer });
    }

    pub(super) fn answer_sync(&mut self, token: RequestToken, answer: SyncResult) {
        self.effects.push(GroupEffect::Sync { token, answer });
    }

    pub(super) fn persist(&mut self, snapshot: GroupSnapshot, pending_write: PendingWrite) {
        let write = WriteId(self.next_write);
        self.next_write += 1;
        self.writes.insert(write, pending_write);
        self.effects.push(GroupEffect::Persist { write, snapshot });
    }

    pub(super) fn take_effects(&mut self) -> Vec<GroupEffect> {
        std::mem::take(&mut self.effects)
    }

    /// Asserts what must hold between any two events.
    #[cfg(test)]
    pub(super) fn assert_sound(&self) {
        self.roster.assert_sound();
        assert_eq!(self.join_timer.is_some(), self.state == ClassicGroupState::PreparingRebalance);
        assert!(self.pending.iter().all(|id| !self.roster.contains(id)), "pending or member");
        assert!(self.pending.iter().all(|id| self.sessions.at(id).is_some()), "pending ids expire");
        assert!(self.pending_sync.iter().all(|id| self.roster.contains(id)));
        assert_eq!(self.sync_deadline.is_some(), !self.pending_sync.is_empty());
        assert!(self.effects.is_empty(), "all effects are taken");
        self.assert_state_fits();
        self.roster.iter().for_each(|member| self.assert_member_sound(member));
    }

    #[cfg(test)]
    fn assert_state_fits(&self) {
        match self.state {
            ClassicGroupState::Empty => assert!(self.roster.is_empty() && self.protocol.is_none()),
            ClassicGroupState::PreparingRebalance | ClassicGroupState::Dead => {}
            ClassicGroupState::CompletingRebalance | ClassicGroupState::Stable => {
                let protocol = self.protocol.as_deref().expect("a generation has a protocol");
                assert!(!self.roster.is_empty());
                let supports =
                    |m: &ClassicGroupMember| m.protocols.iter().any(|(name, _)| name == protocol);
                assert!(self.roster.iter().all(supports), "all members support the protocol");
            }
        }
    }

    #[cfg(test)]
    fn assert_member_sound(&self, member: &ClassicGroupMember) {
        let is_stable = self.state == ClassicGroupState::Stable;
        let is_writing = !self.writes.is_empty();
        assert!(!is_stable || member.assignment.is_some(), "in Stable all have an assignment");
        let watched = self.sessions.at(&member.id).is_some();
        assert!(
            watched || member.is_session_exempt() || self.state == ClassicGroupState::Dead,
            "{member:?}"
        );
        assert!(member.join.is_none() || self.join_timer.is_some() || is_stable && is_writing);
        let awaits = self.state == ClassicGroupState::CompletingRebalance;
        assert!(member.sync.is_none() || awaits, "only an assignment is synced for");
        let ends = is_writing || self.sync_deadline.is_some() || self.sessions.first().is_some();
        assert!(member.sync.is_none() || ends, "a waiting sync is waited for");
    }
}
