//! A static member comes back under a new id (KIP-345): it takes over what the old one had, and in
//! a stable group nobody else needs to notice.

use std::time::Duration;

use super::error::GroupError;
use super::join::{JoinAnswer, JoinRequest};
use super::machine::{Group, PendingWrite, Token, WriteResult};
use super::member::Member;
use super::state::GroupState;

/// A member's new id on its way to the log, and what brings the old one back.
#[derive(Debug, Clone)]
pub(super) struct Replacement {
    token: Token,
    id: String,
    previous: Member,
    previous_leader: Option<String>,
    generation: i32,
    supports_skip_assignment: bool,
}

impl Group {
    /// Gives the place of member `known` to a new id, and fences whoever still waits as the old.
    pub(super) fn replace_static(
        &mut self,
        now: Duration,
        token: Token,
        known: &str,
        id: String,
        request: JoinRequest,
    ) {
        let supports_skip_assignment = request.supports_skip_assignment;
        let previous_leader = self.roster.leader().map(str::to_owned);
        let previous = self.swap(now, token, known, Member::new(id.clone(), request));
        match self.state {
            GroupState::Stable if self.roster.select_protocol() == self.protocol => {
                // What it reads may be other topics, and their offsets do not expire.
                self.subscriptions = self.read_subscriptions();
                let replacement = Replacement {
                    token,
                    id,
                    previous,
                    previous_leader,
                    generation: self.generation,
                    supports_skip_assignment,
                };
                let then = PendingWrite::Replacement(Box::new(replacement));
                self.persist(self.snapshot(), then);
            }
            GroupState::Stable => {
                self.prepare_rebalance(now, "a static member's return changes the protocol");
            }
            // The leader may have been told the old id: its assignment would miss the new one.
            GroupState::CompletingRebalance => {
                self.prepare_rebalance(now, "a static member returns while an assignment is due");
            }
            GroupState::PreparingRebalance => self.complete_join_if_due(now),
            GroupState::Empty | GroupState::Dead => unreachable!("there is a member"),
        }
    }

    fn swap(&mut self, now: Duration, token: Token, known: &str, next: Member) -> Member {
        let join = self.roster.take_join(known);
        let sync = self.roster.take_sync(known);
        self.fence(known, join, sync);
        self.sessions.cancel(known);
        self.forget_pending_sync(known);
        let id = next.id.clone();
        let assignment = self.roster.get(known).and_then(|member| member.assignment.clone());
        let next = Member { assignment, join: Some(token), ..next };
        let previous = self.roster.replace(known, next).expect("the caller found this member");
        self.touch(now, &id);
        previous
    }

    fn fence(&mut self, id: &str, join: Option<Token>, sync: Option<Token>) {
        if let Some(token) = join {
            self.answer_join(token, JoinAnswer::refused(GroupError::FencedInstanceId, id));
        }
        if let Some(token) = sync {
            self.answer_sync(token, super::SyncAnswer::refused(GroupError::FencedInstanceId));
        }
    }

    /// If a rebalance has begun since, the member's join is part of it and is answered by it.
    pub(super) fn replacement_written(
        &mut self,
        now: Duration,
        replacement: Replacement,
        result: WriteResult,
    ) {
        let waits = self.roster.get(&replacement.id).and_then(|member| member.join);
        let stands = self.state == GroupState::Stable && self.generation == replacement.generation;
        if !stands || waits != Some(replacement.token) {
            return;
        }
        self.roster.take_join(&replacement.id);
        match result {
            WriteResult::Stored => {
                self.touch(now, &replacement.id);
                self.answer_join(replacement.token, self.welcome(&replacement));
            }
            WriteResult::Failed => self.bring_back(now, replacement),
        }
    }

    /// A client that cannot skip the assignment must not learn that it leads: it would assign.
    fn welcome(&self, replacement: &Replacement) -> JoinAnswer {
        let answer = self.generation_for(&replacement.id);
        if replacement.supports_skip_assignment {
            return JoinAnswer {
                skip_assignment: self.roster.is_leader(&replacement.id),
                ..answer
            };
        }
        let leader = replacement.previous_leader.clone().unwrap_or_default();
        JoinAnswer { leader, members: Vec::new(), ..answer }
    }

    fn bring_back(&mut self, now: Duration, replacement: Replacement) {
        self.sessions.cancel(&replacement.id);
        let previous_id = replacement.previous.id.clone();
        self.roster.replace(&replacement.id, replacement.previous);
        self.subscriptions = self.read_subscriptions();
        self.touch(now, &previous_id);
        let answer = JoinAnswer {
            error: Some(GroupError::CoordinatorNotAvailable),
            member_id: String::new(),
            members: Vec::new(),
            ..self.generation_for(&previous_id)
        };
        self.answer_join(replacement.token, answer);
    }
}
