//! A static member returns under a new id (KIP-345). It takes over the old one's state, and in a
//! stable group no other member is affected.

use std::time::Duration;

use super::super::effects::WriteResult;
use super::super::error::GroupError;
use super::super::member::ClassicGroupMember;
use super::super::member_requests::{JoinRequest, JoinResult, RequestToken};
use super::super::pending_write::{PendingWrite, StaticMemberReplacement};
use super::super::state::ClassicGroupState;
use super::ClassicGroup;

impl ClassicGroup {
    /// Replaces the id of member `old_id`, and fences requests that still wait under the old one.
    pub(super) fn replace_static(
        &mut self,
        now: Duration,
        token: RequestToken,
        old_id: &str,
        id: String,
        request: JoinRequest,
    ) {
        let supports_skip_assignment = request.supports_skip_assignment;
        let previous_leader = self.roster.leader().map(str::to_owned);
        let previous = self.swap(now, token, old_id, ClassicGroupMember::new(id.clone(), request));
        match self.state {
            ClassicGroupState::Stable if self.roster.select_protocol() == self.protocol => {
                // It may read other topics, whose offsets do not expire.
                self.subscriptions = self.read_subscriptions();
                let replacement = StaticMemberReplacement {
                    token,
                    id,
                    previous,
                    previous_leader,
                    generation: self.generation,
                    supports_skip_assignment,
                };
                let write = PendingWrite::Replacement(Box::new(replacement));
                self.persist(self.snapshot(), write);
            }
            ClassicGroupState::Stable => {
                self.prepare_rebalance(now, "a static member's return changes the protocol");
            }
            // The leader may have the old id: its assignment would miss the new one.
            ClassicGroupState::CompletingRebalance => {
                self.prepare_rebalance(now, "a static member returns while an assignment is due");
            }
            ClassicGroupState::PreparingRebalance => self.complete_join_if_due(now),
            ClassicGroupState::Empty | ClassicGroupState::Dead => unreachable!("there is a member"),
        }
    }

    fn swap(
        &mut self,
        now: Duration,
        token: RequestToken,
        old_id: &str,
        next: ClassicGroupMember,
    ) -> ClassicGroupMember {
        let join = self.roster.take_join(old_id);
        let sync = self.roster.take_sync(old_id);
        self.fence_previous(old_id, join, sync);
        self.sessions.cancel(old_id);
        self.remove_pending_sync(old_id);
        let id = next.id.clone();
        let assignment = self.roster.get(old_id).and_then(|member| member.assignment.clone());
        let next = ClassicGroupMember { assignment, join: Some(token), ..next };
        let previous = self.roster.replace(old_id, next).expect("the caller found this member");
        self.refresh_session(now, &id);
        previous
    }

    fn fence_previous(&mut self, id: &str, join: Option<RequestToken>, sync: Option<RequestToken>) {
        if let Some(token) = join {
            self.answer_join(token, JoinResult::with_error(GroupError::FencedInstanceId, id));
        }
        if let Some(token) = sync {
            self.answer_sync(
                token,
                super::super::SyncResult::with_error(GroupError::FencedInstanceId),
            );
        }
    }

    /// If a rebalance has begun since, the member's join is part of it and gets its response from
    /// it.
    pub(super) fn replacement_written(
        &mut self,
        now: Duration,
        replacement: StaticMemberReplacement,
        result: WriteResult,
    ) {
        let waits = self.roster.get(&replacement.id).and_then(|member| member.join);
        let stands =
            self.state == ClassicGroupState::Stable && self.generation == replacement.generation;
        if !stands || waits != Some(replacement.token) {
            return;
        }
        self.roster.take_join(&replacement.id);
        match result {
            WriteResult::Stored => {
                self.refresh_session(now, &replacement.id);
                self.answer_join(replacement.token, self.replacement_result(&replacement));
            }
            WriteResult::Failed => self.roll_back_replacement(now, replacement),
        }
    }

    /// A client that cannot skip the assignment must not learn that it leads: it would assign.
    fn replacement_result(&self, replacement: &StaticMemberReplacement) -> JoinResult {
        let answer = self.generation_for(&replacement.id);
        if replacement.supports_skip_assignment {
            return JoinResult {
                skip_assignment: self.roster.is_leader(&replacement.id),
                ..answer
            };
        }
        let leader = replacement.previous_leader.clone().unwrap_or_default();
        JoinResult { leader, members: Vec::new(), ..answer }
    }

    fn roll_back_replacement(&mut self, now: Duration, replacement: StaticMemberReplacement) {
        self.sessions.cancel(&replacement.id);
        let previous_id = replacement.previous.id.clone();
        self.roster.replace(&replacement.id, replacement.previous);
        self.subscriptions = self.read_subscriptions();
        self.refresh_session(now, &previous_id);
        let answer = JoinResult {
            error: Some(GroupError::CoordinatorNotAvailable),
            member_id: String::new(),
            members: Vec::new(),
            ..self.generation_for(&previous_id)
        };
        self.answer_join(replacement.token, answer);
    }
}
