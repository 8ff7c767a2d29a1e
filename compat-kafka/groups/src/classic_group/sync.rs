//! A member asks for its assignment, and the leader sends it for all.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;

use super::super::effects::{GroupEffect, WriteResult};
use super::super::error::GroupError;
use super::super::member::ClassicGroupMember;
use super::super::member_requests::{RequestToken, SyncRequest, SyncResult};
use super::super::pending_write::PendingWrite;
use super::super::state::ClassicGroupState;
use super::ClassicGroup;

impl ClassicGroup {
    /// Handles a request for the member's assignment.
    pub fn sync(
        &mut self,
        now: Duration,
        token: RequestToken,
        request: SyncRequest,
    ) -> Vec<GroupEffect> {
        if let Err(error) = self.try_sync(now, token, request) {
            self.answer_sync(token, SyncResult::with_error(error));
        }
        self.take_effects()
    }

    fn try_sync(
        &mut self,
        now: Duration,
        token: RequestToken,
        request: SyncRequest,
    ) -> Result<(), GroupError> {
        self.check_sync(&request)?;
        match self.state {
            ClassicGroupState::Dead => Err(GroupError::CoordinatorNotAvailable),
            ClassicGroupState::Empty => Err(GroupError::UnknownMemberId),
            ClassicGroupState::PreparingRebalance => Err(GroupError::RebalanceInProgress),
            ClassicGroupState::CompletingRebalance => {
                self.await_assignment(now, token, request);
                Ok(())
            }
            ClassicGroupState::Stable => {
                self.remove_pending_sync(&request.member_id);
                self.answer_sync(token, self.assignment_for(&request.member_id));
                // Kafka 4 does not, as versions before it did: then a member that came back is
                // removed before the session ends that it has reason to count from here.
                self.refresh_session(now, &request.member_id);
                Ok(())
            }
        }
    }

    fn check_sync(&self, request: &SyncRequest) -> Result<(), GroupError> {
        if self.state == ClassicGroupState::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        self.check_member(&request.member_id, request.group_instance_id.as_deref())?;
        self.check_generation(request.generation_id)?;
        let differ = |requested: &Option<String>, current: &Option<String>| {
            requested.is_some() && current.is_some() && requested != current
        };
        if differ(&request.protocol_type, &self.protocol_type)
            || differ(&request.protocol_name, &self.protocol)
        {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        Ok(())
    }

    fn await_assignment(&mut self, now: Duration, token: RequestToken, request: SyncRequest) {
        let id = &request.member_id;
        self.remove_pending_sync(id);
        if let Some(earlier) = self.roster.edit(id, |member| member.sync.replace(token)).flatten() {
            self.answer_sync(earlier, SyncResult::with_error(GroupError::RebalanceInProgress));
        }
        if self.roster.is_leader(id) && !self.is_writing_assignment() {
            self.write_assignment(now, request.assignments);
        }
    }

    /// The additional bytes of the group once the leader's assignments are stored.
    pub(crate) fn growth_by_sync(&self, request: &SyncRequest) -> usize {
        if request.assignments.is_empty() {
            return 0;
        }
        let new_bytes: usize = request.assignments.iter().map(|(_, bytes)| bytes.len()).sum();
        let assigned =
            |member: &ClassicGroupMember| member.assignment.as_ref().map_or(0, Bytes::len);
        new_bytes.saturating_sub(self.roster.iter().map(assigned).sum())
    }

    /// If the leader syncs twice, its first assignment counts, because its write is in flight.
    fn is_writing_assignment(&self) -> bool {
        self.writes.values().any(|write| {
            matches!(write, PendingWrite::Assignment { generation, .. }
                if *generation == self.generation)
        })
    }

    /// Members that the leader left out get an empty assignment. Unknown members are ignored.
    fn write_assignment(&mut self, now: Duration, assignments: Vec<(String, Bytes)>) {
        let by_member: HashMap<String, Bytes> = assignments.into_iter().collect();
        let assignment_of =
            |id: &str| by_member.get(id).map_or_else(Bytes::new, |a| Bytes::copy_from_slice(a));
        let members = self.roster.iter();
        let assignments: BTreeMap<String, Bytes> =
            members.map(|member| (member.id.clone(), assignment_of(&member.id))).collect();
        let bytes: usize = assignments.values().map(Bytes::len).sum();
        if self.roster.bytes() + bytes > self.options.group_bytes_max {
            return self.assignment_failed(now, GroupError::TooLarge);
        }
        let snapshot = self.snapshot_with(&assignments);
        let generation = self.generation;
        self.persist(snapshot, PendingWrite::Assignment { generation, assignments });
    }

    /// Does nothing if the group has moved on: the members have been told to join again.
    pub(super) fn assignment_written(
        &mut self,
        now: Duration,
        generation: i32,
        assignments: BTreeMap<String, Bytes>,
        result: WriteResult,
    ) {
        let is_awaited = self.state == ClassicGroupState::CompletingRebalance;
        if !is_awaited || self.generation != generation {
            return;
        }
        match result {
            WriteResult::Stored => self.assign(now, assignments),
            WriteResult::Failed => {
                self.assignment_failed(now, GroupError::CoordinatorNotAvailable);
            }
        }
    }

    fn assignment_failed(&mut self, now: Duration, error: GroupError) {
        self.reset_assignments(now, error);
        self.prepare_rebalance(now, "the assignment could not be stored");
    }

    fn assign(&mut self, now: Duration, assignments: BTreeMap<String, Bytes>) {
        for (id, assignment) in assignments {
            self.roster.edit(&id, |member| member.assignment = Some(assignment));
        }
        for id in self.roster.ids() {
            if let Some(token) = self.roster.take_sync(&id) {
                self.answer_sync(token, self.assignment_for(&id));
                self.refresh_session(now, &id);
            }
        }
        let are_all_assigned = self.roster.iter().all(|member| member.assignment.is_some());
        assert!(
            are_all_assigned,
            "who comes or goes while an assignment is written begins a rebalance"
        );
        self.transition_to(ClassicGroupState::Stable);
    }

    /// Clears all assignments, and answers the waiting syncs with an error.
    pub(super) fn reset_assignments(&mut self, now: Duration, error: GroupError) {
        for id in self.roster.ids() {
            self.roster.edit(&id, |member| member.assignment = None);
            if let Some(token) = self.roster.take_sync(&id) {
                self.answer_sync(token, SyncResult::with_error(error));
                self.refresh_session(now, &id);
            }
        }
    }

    /// Drops the members that got the generation and never synced.
    pub(super) fn sync_timer_fired(&mut self, now: Duration) {
        self.sync_deadline = None;
        for id in std::mem::take(&mut self.pending_sync) {
            self.remove_member(&id, GroupError::UnknownMemberId);
        }
        self.prepare_rebalance(now, "members did not sync in time");
    }

    fn assignment_for(&self, id: &str) -> SyncResult {
        let assignment = self.roster.get(id).and_then(|member| member.assignment.clone());
        SyncResult {
            error: None,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol.clone(),
            assignment: assignment.unwrap_or_default(),
        }
    }
}
