//! One group's slot in the coordinator: the group, its waiting requests, and its next deadline.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::super::effects::WriteResult;
use super::super::group::Group;
use super::super::member_requests::{JoinResult, RequestToken, SyncResult};
use super::budgets::GroupGrants;
use super::share::OffsetsLease;
use super::timer_queue::TimerKey;
use super::writes::QueuedWrite;

/// One group's slot in the coordinator.
pub(super) struct GroupSlot {
    pub(super) id: String,
    pub(super) inner: Mutex<GroupSlotState>,
    /// Held by the one write to the log that is in flight.
    pub(super) writing: tokio::sync::Mutex<()>,
}

pub(super) struct GroupSlotState {
    pub(super) group: Group,
    /// Rises when the group becomes one of another kind: writes of an earlier one say nothing of
    /// it.
    pub(super) incarnation: u64,
    kind: Discriminant<Group>,
    pub(super) joins: HashMap<RequestToken, oneshot::Sender<JoinResult>>,
    pub(super) syncs: HashMap<RequestToken, oneshot::Sender<SyncResult>>,
    /// The write that waits for its turn.
    pub(super) queued: Option<QueuedWrite>,
    /// Answers of a consumer group that wait until a change is stored.
    pub(super) save_waits: Vec<(u64, oneshot::Sender<WriteResult>)>,
    /// The log has, or may have, a snapshot of the group, or offsets.
    pub(super) is_stored: bool,
    /// From the decision to delete until the log has answered, no request may act on the group.
    pub(super) is_being_deleted: bool,
    /// A `HeldGroup` keeps all requests away from the group.
    pub(super) is_held: bool,
    /// Held by those that keep the group's offsets in memory.
    pub(super) lease: OffsetsLease,
    /// The time at which the group is deleted, if it stays idle.
    pub(super) idle_until: Option<Duration>,
    pub(super) timer: Option<TimerKey>,
    /// The grants of the group.
    pub(super) grants: GroupGrants,
    logged: (&'static str, i32),
}

impl GroupSlot {
    pub(super) fn new(id: &str, group: Group, grants: GroupGrants) -> Arc<GroupSlot> {
        let inner = GroupSlotState {
            logged: group.progress(),
            incarnation: 0,
            kind: discriminant(&group),
            group,
            joins: HashMap::new(),
            syncs: HashMap::new(),
            queued: None,
            save_waits: Vec::new(),
            is_stored: false,
            is_being_deleted: false,
            is_held: false,
            lease: OffsetsLease::default(),
            idle_until: None,
            timer: None,
            grants,
        };
        let writing = tokio::sync::Mutex::new(());
        Arc::new(GroupSlot { id: id.to_owned(), inner: Mutex::new(inner), writing })
    }
}

impl GroupSlotState {
    /// A request whose future was dropped has no sender any more, and gets no response.
    pub(super) fn answer_join(&mut self, token: RequestToken, answer: JoinResult) {
        if let Some(sender) = self.joins.remove(&token) {
            let _ = sender.send(answer);
        }
    }

    pub(super) fn answer_sync(&mut self, token: RequestToken, answer: SyncResult) {
        if let Some(sender) = self.syncs.remove(&token) {
            let _ = sender.send(answer);
        }
    }

    /// Waits until what a consumer group says of a member is stored; `None` if it is.
    pub(super) fn wait_until_saved(
        &mut self,
        member: &str,
    ) -> Option<oneshot::Receiver<WriteResult>> {
        let change = match self.group.modern() {
            Some(group) => group.unsaved_change_of(member)?,
            // It was a consumer group until now: the snapshot of what it has become is on its way.
            None if matches!(self.group, Group::Classic(_)) && self.queued.is_some() => 0,
            None => return None,
        };
        let (sender, receiver) = oneshot::channel();
        self.save_waits.push((change, sender));
        Some(receiver)
    }

    /// Notes that the group may have become one of another kind. Requests that waited for a write
    /// of the old kind wait for the first write of the new one.
    pub(super) fn note_kind(&mut self) {
        if self.kind != discriminant(&self.group) {
            self.kind = discriminant(&self.group);
            self.incarnation += 1;
            self.save_waits.iter_mut().for_each(|(change, _)| *change = 0);
        }
    }

    /// Answers the waiters for changes up to this one.
    pub(super) fn end_save_waits(&mut self, saved: u64, result: WriteResult) {
        let (due, waiting) =
            std::mem::take(&mut self.save_waits).into_iter().partition(|(at, _)| *at <= saved);
        self.save_waits = waiting;
        let due: Vec<(u64, oneshot::Sender<WriteResult>)> = due;
        for (_, sender) in due {
            let _ = sender.send(result);
        }
    }

    pub(super) fn log_transition(&mut self, id: &str) {
        let stands = self.group.progress();
        if self.logged != stands {
            self.logged = stands;
            let (state, generation) = stands;
            let members = self.group.member_count();
            let reason = self.group.reason();
            tracing::debug!(group = id, state, generation, members, reason, "group changed state");
        }
    }

    /// Sets the deadline of a group that becomes idle, and clears it if the group is not idle.
    pub(super) fn update_idle_deadline(&mut self, now: Duration, retention: Duration) {
        let until = self.idle_until.unwrap_or(now + retention);
        self.idle_until = self.group.is_idle().then_some(until);
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        [self.group.next_deadline(), self.idle_until].into_iter().flatten().min()
    }
}
