//! From one generation to the next: members join, a protocol and a leader are chosen, and every
//! join is answered.

use std::time::Duration;

use super::super::error::GroupError;
use super::super::member::ClassicGroupMember;
use super::super::pending_write::PendingWrite;
use super::super::state::ClassicGroupState;
use super::super::subscriptions::GroupSubscriptions;
use super::ClassicGroup;
use super::join_timer::{InitialDelay, JoinTimer};

/// The pause before the retry of a rebalance in which nobody joins, if the members' timeouts are
/// shorter.
const RETRY_MIN: Duration = Duration::from_millis(100);

impl ClassicGroup {
    /// Begins a rebalance, or ends the join phase if this was all it waited for.
    pub(super) fn rebalance_or_complete_join(&mut self, now: Duration, reason: &'static str) {
        if self.state.may_rebalance() {
            self.prepare_rebalance(now, reason);
        } else {
            self.complete_join_if_due(now);
        }
    }

    /// Starts a rebalance: all members must join again.
    pub(crate) fn prepare_rebalance(&mut self, now: Duration, reason: &'static str) {
        self.reason = reason;
        if self.state == ClassicGroupState::CompletingRebalance {
            self.reset_assignments(now, GroupError::RebalanceInProgress);
        }
        self.pending_sync.clear();
        self.sync_deadline = None;
        let is_initial = self.state == ClassicGroupState::Empty;
        self.transition_to(ClassicGroupState::PreparingRebalance);
        self.join_timer = Some(self.new_join_timer(now, is_initial));
        if !is_initial {
            self.complete_join_if_all_joined(now);
        }
    }

    fn new_join_timer(&self, now: Duration, is_initial: bool) -> JoinTimer {
        let timeout = self.roster.rebalance_timeout();
        if !is_initial {
            return JoinTimer { at: now + timeout, initial: None };
        }
        let step = self.options.initial_rebalance_delay;
        let remaining = timeout.saturating_sub(step);
        let initial = Some(InitialDelay { step, remaining, has_new_member: false });
        JoinTimer { at: now + step, initial }
    }

    /// Ends the join phase if all have joined. For the first members of a group, the timer ends it.
    pub(super) fn complete_join_if_due(&mut self, now: Duration) {
        if self.join_timer.as_ref().is_some_and(|timer| timer.initial.is_none()) {
            self.complete_join_if_all_joined(now);
        }
    }

    pub(super) fn complete_join_if_all_joined(&mut self, now: Duration) {
        let have_all_joined = self.roster.joining() == self.roster.len() && self.pending.is_empty();
        if have_all_joined && self.state == ClassicGroupState::PreparingRebalance {
            self.complete_join(now);
        }
    }

    /// A member is gone that others may have waited for, or that had partitions.
    pub(super) fn member_lost(&mut self, now: Duration, reason: &'static str) {
        match self.state {
            ClassicGroupState::CompletingRebalance | ClassicGroupState::Stable => {
                self.prepare_rebalance(now, reason);
            }
            _ => self.complete_join_if_all_joined(now),
        }
    }

    pub(super) fn join_timer_fired(&mut self, now: Duration) {
        let step_max = self.options.initial_rebalance_delay;
        let initial = self.join_timer.take().and_then(|timer| timer.initial);
        match initial.and_then(|initial| initial.extended(step_max)) {
            Some(next) => {
                self.join_timer = Some(JoinTimer { at: now + next.step, initial: Some(next) });
            }
            None => self.complete_join(now),
        }
    }

    /// Ends the join phase. Dynamic members that have not joined are dropped; static ones stay
    /// until their session ends.
    fn complete_join(&mut self, now: Duration) {
        for id in self.roster.ids_where(|member| member.join.is_none() && !member.is_static()) {
            self.remove_member(&id, GroupError::UnknownMemberId);
        }
        if self.roster.is_empty() {
            self.become_empty(now);
        } else if self.roster.elect_joined_leader() {
            self.begin_generation(now);
        } else {
            let deadline = now + self.roster.rebalance_timeout().max(RETRY_MIN);
            self.join_timer = Some(JoinTimer { at: deadline, initial: None });
        }
    }

    fn become_empty(&mut self, now: Duration) {
        self.join_timer = None;
        self.empty_since = Some(now);
        self.generation += 1;
        self.protocol = None;
        self.subscriptions = self.read_subscriptions();
        self.transition_to(ClassicGroupState::Empty);
        self.persist(self.snapshot(), PendingWrite::EmptyGroup);
    }

    fn begin_generation(&mut self, now: Duration) {
        self.join_timer = None;
        self.generation += 1;
        self.protocol = self.roster.select_protocol();
        self.subscriptions = self.read_subscriptions();
        self.transition_to(ClassicGroupState::CompletingRebalance);
        self.pending_sync = self.roster.ids().into_iter().collect();
        self.sync_deadline = Some(now + self.roster.rebalance_timeout());
        for id in self.roster.ids() {
            self.complete_member_join(now, &id);
        }
    }

    fn complete_member_join(&mut self, now: Duration, id: &str) {
        if let Some(token) = self.roster.take_join(id) {
            self.answer_join(token, self.generation_for(id));
        }
        self.roster.edit(id, |member| member.is_new = false);
        self.refresh_session(now, id);
    }

    pub(crate) fn read_subscriptions(&self) -> GroupSubscriptions {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let metadata =
            self.roster.iter().map(|member: &ClassicGroupMember| member.metadata(protocol));
        GroupSubscriptions::of(self.protocol_type.as_deref(), metadata)
    }
}
