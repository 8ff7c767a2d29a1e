//! A member joins: as a new one, with an issued id, or again.

use std::time::Duration;

use uuid::Uuid;

use super::super::effects::GroupEffect;
use super::super::error::GroupError;
use super::super::member::{ClassicGroupMember, OVERHEAD_BYTES, protocols_bytes};
use super::super::member_requests::{JoinRequest, JoinResult, JoinedMember, RequestToken};
use super::super::options::Options;
use super::super::state::ClassicGroupState;
use super::ClassicGroup;

/// A UUID as text, and the dash before it.
const UUID_BYTES: usize = 37;

/// A join that is refused at once, with only this.
struct JoinRefusal {
    error: GroupError,
    member_id: String,
}

impl JoinRequest {
    /// Checks that do not need the group.
    pub(crate) fn check(&self, options: &Options) -> Result<(), GroupError> {
        let allowed = options.session_timeout_min..=options.session_timeout_max;
        if !allowed.contains(&self.session_timeout) {
            return Err(GroupError::InvalidSessionTimeout);
        }
        if self.bytes() > options.member_bytes_max {
            return Err(GroupError::TooLarge);
        }
        if self.protocol_type.is_empty() || self.protocols.is_empty() {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        Ok(())
    }

    /// A lower limit of the bytes that the member will hold, including an id that is yet to be
    /// made.
    pub(crate) fn bytes(&self) -> usize {
        let instance = self.group_instance_id.as_ref().map_or(0, String::len);
        let id = self.member_id.len().max(instance.max(self.client_id.len()) + UUID_BYTES);
        let names = id + instance + self.client_id.len() + self.client_host.len();
        OVERHEAD_BYTES + names + protocols_bytes(&self.protocols)
    }

    /// A new id for a member: a readable prefix from its names, and a random part.
    pub(crate) fn new_member_id(&self, uuid: Uuid) -> String {
        format!("{}-{uuid}", self.group_instance_id.as_ref().unwrap_or(&self.client_id))
    }
}

impl ClassicGroup {
    /// Handles a request to be part of the next generation. `ids` makes the random part of new ids.
    pub fn join(
        &mut self,
        now: Duration,
        token: RequestToken,
        request: JoinRequest,
        ids: &mut dyn FnMut() -> Uuid,
    ) -> Vec<GroupEffect> {
        if let Err(refusal) = self.try_join(now, token, request, ids) {
            self.answer_join(token, JoinResult::with_error(refusal.error, &refusal.member_id));
        }
        self.take_effects()
    }

    fn try_join(
        &mut self,
        now: Duration,
        token: RequestToken,
        request: JoinRequest,
        ids: &mut dyn FnMut() -> Uuid,
    ) -> Result<(), JoinRefusal> {
        let refuse = |error| JoinRefusal { error, member_id: request.member_id.clone() };
        if self.state == ClassicGroupState::Dead {
            return Err(refuse(GroupError::CoordinatorNotAvailable));
        }
        request.check(&self.options).map_err(refuse)?;
        if !self.has_room_for(&request) {
            return Err(self.reject_member(now, &request.member_id));
        }
        if !self.supports(&request) {
            return Err(refuse(GroupError::InconsistentGroupProtocol));
        }
        if request.member_id.is_empty() {
            self.join_without_id(now, token, request, ids())
        } else {
            self.join_with_id(now, token, request)
        }
    }

    /// During a rebalance, only members that have joined count. So a lowered limit keeps out the
    /// last ones to join again.
    fn has_room_for(&self, request: &JoinRequest) -> bool {
        let member = self.existing_member(request);
        let size_max = self.options.group_max_size;
        let counts = match self.state {
            ClassicGroupState::Empty | ClassicGroupState::Dead => true,
            ClassicGroupState::PreparingRebalance => {
                member.is_some_and(|member| member.join.is_some())
                    || self.roster.joining() < size_max
            }
            ClassicGroupState::CompletingRebalance | ClassicGroupState::Stable => {
                member.is_some() || self.roster.len() < size_max
            }
        };
        let other_bytes = self.roster.bytes() - member.map_or(0, ClassicGroupMember::bytes);
        counts && other_bytes + request.bytes() <= self.options.group_bytes_max
    }

    /// The additional bytes of the group once the request is granted.
    pub(crate) fn growth_by_join(&self, request: &JoinRequest) -> usize {
        request
            .bytes()
            .saturating_sub(self.existing_member(request).map_or(0, ClassicGroupMember::bytes))
    }

    /// The member that this request means: by its id, or by the instance id that it takes over.
    fn existing_member(&self, request: &JoinRequest) -> Option<&ClassicGroupMember> {
        let instance = request.group_instance_id.as_deref();
        let holder = || instance.and_then(|instance| self.roster.id_of_instance(instance));
        let id = Some(request.member_id.as_str()).filter(|id| !id.is_empty()).or_else(holder);
        id.and_then(|id| self.roster.get(id))
    }

    fn reject_member(&mut self, now: Duration, id: &str) -> JoinRefusal {
        self.pending.remove(id);
        if self.remove_member(id, GroupError::GroupMaxSizeReached).is_some() {
            self.member_lost(now, "a member has no room any more");
        } else {
            self.complete_join_if_due(now);
        }
        JoinRefusal { error: GroupError::GroupMaxSizeReached, member_id: String::new() }
    }

    fn supports(&self, request: &JoinRequest) -> bool {
        self.state == ClassicGroupState::Empty
            || self.protocol_type.as_ref() == Some(&request.protocol_type)
                && self.roster.supports_any(&request.protocols)
    }

    fn join_without_id(
        &mut self,
        now: Duration,
        token: RequestToken,
        request: JoinRequest,
        uuid: Uuid,
    ) -> Result<(), JoinRefusal> {
        let id = request.new_member_id(uuid);
        let Some(instance) = &request.group_instance_id else {
            if request.require_known_member_id {
                return Err(self.issue_member_id(now, id, request.session_timeout));
            }
            self.add_member(now, token, id, request);
            return Ok(());
        };
        match self.roster.id_of_instance(instance).map(str::to_owned) {
            Some(old_id) => self.replace_static(now, token, &old_id, id, request),
            None => self.add_member(now, token, id, request),
        }
        Ok(())
    }

    /// Issues an id. It counts only once the member joins with it: an id that was never received
    /// has no effect.
    fn issue_member_id(&mut self, now: Duration, id: String, timeout: Duration) -> JoinRefusal {
        if self.pending.len() >= self.options.pending_members_max {
            let error = GroupError::GroupMaxSizeReached;
            return JoinRefusal { error, member_id: String::new() };
        }
        self.sessions.set(&id, now + timeout);
        self.pending.insert(id.clone());
        JoinRefusal { error: GroupError::MemberIdRequired, member_id: id }
    }

    fn join_with_id(
        &mut self,
        now: Duration,
        token: RequestToken,
        request: JoinRequest,
    ) -> Result<(), JoinRefusal> {
        let id = request.member_id.clone();
        let instance = request.group_instance_id.as_deref();
        if instance.is_none() && self.pending.remove(&id) {
            self.add_member(now, token, id, request);
            return Ok(());
        }
        let refuse = |error| JoinRefusal { error, member_id: request.member_id.clone() };
        self.check_member(&id, instance).map_err(refuse)?;
        match self.rebalance_reason(&id, &request) {
            Some(reason) => self.rejoin(now, token, &id, request, reason),
            None => self.answer_join(token, self.generation_for(&id)),
        }
        Ok(())
    }

    /// The reason why the request starts a rebalance. `None` if the current generation can be the
    /// answer: nothing has changed, and the member may have missed the response. A leader that
    /// joins a stable group asks for a new assignment that way.
    fn rebalance_reason(&self, id: &str, request: &JoinRequest) -> Option<&'static str> {
        let is_same = self.roster.get(id).is_some_and(|m| m.has_protocols(&request.protocols));
        match self.state {
            ClassicGroupState::PreparingRebalance => Some("a member joins again"),
            ClassicGroupState::Stable if self.roster.is_leader(id) => {
                Some("the leader joins again")
            }
            _ if !is_same => Some("a member changes its metadata"),
            _ => None,
        }
    }

    fn rejoin(
        &mut self,
        now: Duration,
        token: RequestToken,
        id: &str,
        request: JoinRequest,
        reason: &'static str,
    ) {
        let displaced = self.roster.edit(id, |member| {
            member.update(&request);
            member.join.replace(token)
        });
        if let Some(earlier) = displaced.flatten() {
            self.answer_join(earlier, JoinResult::with_error(GroupError::RebalanceInProgress, id));
        }
        self.rebalance_or_complete_join(now, reason);
    }

    fn add_member(&mut self, now: Duration, token: RequestToken, id: String, request: JoinRequest) {
        if let Some(timer) = &mut self.join_timer {
            timer.note_new_member();
        }
        if self.roster.is_empty() {
            self.protocol_type = Some(request.protocol_type.clone());
        }
        self.sessions.set(&id, now + self.options.new_member_join_timeout);
        let member = ClassicGroupMember::new(id, request);
        self.roster.insert(ClassicGroupMember { is_new: true, join: Some(token), ..member });
        self.rebalance_or_complete_join(now, "a new member joins");
    }

    /// The response with the current generation.
    pub(super) fn generation_for(&self, id: &str) -> JoinResult {
        let is_leader = self.roster.is_leader(id);
        JoinResult {
            error: None,
            generation_id: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol.clone(),
            leader: self.roster.leader().unwrap_or_default().to_owned(),
            member_id: id.to_owned(),
            members: if is_leader { self.joined_members() } else { Vec::new() },
            skip_assignment: false,
        }
    }

    fn joined_members(&self) -> Vec<JoinedMember> {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let joined_member = |member: &ClassicGroupMember| JoinedMember {
            member_id: member.id.clone(),
            group_instance_id: member.group_instance_id.clone(),
            metadata: member.metadata(protocol),
        };
        self.roster.iter().map(joined_member).collect()
    }
}
