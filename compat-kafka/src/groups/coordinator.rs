//! All groups, with what one of them lacks: time, requests that wait, and a log.
//!
//! Each group is a [`Slot`] behind a lock of its own; no lock is held over an await. The map's lock
//! is taken before a slot's, never after. Writes of one group take turns, so the log hears of its
//! generations in order. One task rings for all deadlines (`alarms`).
//!
//! A request whose future is dropped takes its place among the waiters with it. Its member stays
//! what it is, as in Kafka, until the group's timers say otherwise: the client may have only lost
//! its connection.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use alarms::{AlarmKey, Alarms};
use slot::{Inner, Slot};

use super::commit::{CommitFence, OffsetUse};
use super::describe::{GroupDescription, ListedGroup};
use super::error::GroupError;
use super::heartbeat::HeartbeatRequest;
use super::join::{JoinAnswer, JoinRequest};
use super::leave::{LeavingMember, LeftMember};
use super::machine::{Effect, Group, Token};
use super::options::Options;
use super::snapshot::{BadSnapshot, GroupSnapshot};
use super::state::GroupState;
use super::subscriptions::Subscriptions;
use super::sync::{SyncAnswer, SyncRequest};

mod alarms;
mod hold;
mod slot;
#[cfg(test)]
mod tests;
mod writes;

pub use hold::HeldGroup;

/// What a [`GroupLog`] answers with, later.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// Where groups are kept over a restart. For one group there is one call at a time. A future that
/// is dropped before it ends, for it took too long, counts as a failure.
pub trait GroupLog: Send + Sync + 'static {
    /// Stores a snapshot in the place of the last one. Done when it survives a crash.
    fn put(&self, group: &str, snapshot: Vec<u8>) -> BoxFuture<Result<(), String>>;

    /// Forgets the group's snapshot and offsets, if there are any.
    fn delete(&self, group: &str) -> BoxFuture<Result<(), String>>;

    /// Whether offsets are committed for the group: then it is remembered without members too.
    fn has_offsets(&self, group: &str) -> BoxFuture<bool>;
}

/// What a group costs beside its id and its members.
const SLOT_BYTES: usize = 1024;

/// Where the chance part of member ids comes from: a seeded one makes runs replay.
type MemberIds = Mutex<Box<dyn FnMut() -> Uuid + Send>>;

/// All groups. Clones share them; the timer task ends with the last clone.
#[derive(Clone)]
pub struct Coordinator {
    shared: Arc<Shared>,
}

struct Shared {
    options: Arc<Options>,
    log: Arc<dyn GroupLog>,
    member_ids: MemberIds,
    started: Instant,
    groups: Mutex<Groups>,
    alarms: Arc<Alarms>,
    next_token: AtomicU64,
    /// What the members of all groups hold.
    bytes: AtomicUsize,
}

#[derive(Default)]
struct Groups {
    by_id: HashMap<String, Arc<Slot>>,
    is_closed: bool,
}

/// What to do about a group that is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absent {
    Refuse,
    Create,
}

impl Coordinator {
    /// Spawns the timer task, so it has to be called within a tokio runtime.
    pub fn new(
        options: Options,
        log: Arc<dyn GroupLog>,
        member_ids: impl FnMut() -> Uuid + Send + 'static,
    ) -> Coordinator {
        let shared = Arc::new(Shared {
            options: Arc::new(options),
            log,
            member_ids: Mutex::new(Box::new(member_ids)),
            started: Instant::now(),
            groups: Mutex::default(),
            alarms: Arc::new(Alarms::new()),
            next_token: AtomicU64::new(0),
            bytes: AtomicUsize::new(0),
        });
        tokio::spawn(ring_when_due(Arc::downgrade(&shared), shared.alarms.clone()));
        Coordinator { shared }
    }

    /// Brings a group back as it was stored, before it is asked for. Not bounded by `groups_max`:
    /// what was accepted before the restart is not lost by it.
    pub fn restore(&self, group: &str, snapshot: &[u8]) -> Result<(), BadSnapshot> {
        let snapshot = GroupSnapshot::decode(snapshot)?;
        let now = self.shared.now();
        let (machine, effects) = Group::restore(self.shared.options.clone(), snapshot, now)?;
        let slot = Slot::new(group, machine);
        self.shared.groups.lock().by_id.insert(group.to_owned(), slot.clone());
        let mut inner = slot.inner.lock();
        inner.is_stored = true;
        self.shared.settle(&slot, &mut inner, now, effects);
        Ok(())
    }

    /// Brings a group back of which there are only offsets: nobody has ever joined it.
    pub fn restore_without_members(&self, group: &str) {
        self.restore_empty(group, Group::new(self.shared.options.clone()));
    }

    /// Brings a group back of which it is not known who was in it: its members have time to join anew.
    pub fn restore_unknown(&self, group: &str) {
        let mut machine = Group::new(self.shared.options.clone());
        machine.empty_since = Some(self.shared.now());
        self.restore_empty(group, machine);
    }

    fn restore_empty(&self, group: &str, machine: Group) {
        let mut groups = self.shared.groups.lock();
        if let Entry::Vacant(vacant) = groups.by_id.entry(group.to_owned()) {
            let slot = vacant.insert(Slot::new(group, machine)).clone();
            drop(groups);
            let mut inner = slot.inner.lock();
            inner.is_stored = true;
            self.shared.settle(&slot, &mut inner, self.shared.now(), Vec::new());
        }
    }

    /// A member joins; answered when the group's next generation begins.
    pub async fn join(&self, group: &str, request: JoinRequest) -> JoinAnswer {
        let member_id = request.member_id.clone();
        let refuse = |error| JoinAnswer::refused(error, &member_id);
        let waiting = match self.begin_join(group, request) {
            Ok(waiting) => waiting,
            Err(error) => return refuse(error),
        };
        waiting.answer().await.unwrap_or_else(|| refuse(GroupError::CoordinatorNotAvailable))
    }

    fn begin_join(
        &self,
        group: &str,
        request: JoinRequest,
    ) -> Result<Waiting<JoinAnswer>, GroupError> {
        check_id(group)?;
        request.check(&self.shared.options)?;
        tracing::debug!(group, member = request.member_id, reason = request.reason, "join");
        let is_newcomer = request.member_id.is_empty();
        let absent = if is_newcomer { Absent::Create } else { Absent::Refuse };
        let token = self.shared.next_token();
        let (sender, receiver) = oneshot::channel();
        let slot = self
            .act(group, absent, |slot, inner, now| {
                inner.joins.insert(token, sender);
                if self.shared.lacks_room(inner.group.growth_by_join(&request)) {
                    let answer = JoinAnswer::refused(GroupError::NoRoom, &request.member_id);
                    return (slot.clone(), vec![Effect::Join { token, answer }]);
                }
                let ids = &mut || self.shared.member_ids.lock()();
                (slot.clone(), inner.group.join(now, token, request, ids))
            })
            .map_err(as_unknown_member)?;
        Ok(Waiting {
            slot,
            token,
            receiver,
            forget: |inner, token| drop(inner.joins.remove(&token)),
        })
    }

    /// A member asks for its assignment; answered when the leader's is stored.
    pub async fn sync(&self, group: &str, request: SyncRequest) -> SyncAnswer {
        match self.begin_sync(group, request) {
            Ok(waiting) => waiting
                .answer()
                .await
                .unwrap_or_else(|| SyncAnswer::refused(GroupError::CoordinatorNotAvailable)),
            Err(error) => SyncAnswer::refused(error),
        }
    }

    fn begin_sync(
        &self,
        group: &str,
        request: SyncRequest,
    ) -> Result<Waiting<SyncAnswer>, GroupError> {
        check_id(group)?;
        let token = self.shared.next_token();
        let (sender, receiver) = oneshot::channel();
        let slot = self
            .act(group, Absent::Refuse, |slot, inner, now| {
                inner.syncs.insert(token, sender);
                if self.shared.lacks_room(inner.group.growth_by_sync(&request)) {
                    let answer = SyncAnswer::refused(GroupError::NoRoom);
                    return (slot.clone(), vec![Effect::Sync { token, answer }]);
                }
                (slot.clone(), inner.group.sync(now, token, request))
            })
            .map_err(as_unknown_member)?;
        Ok(Waiting {
            slot,
            token,
            receiver,
            forget: |inner, token| drop(inner.syncs.remove(&token)),
        })
    }

    /// A member says that it lives.
    pub fn heartbeat(&self, group: &str, request: &HeartbeatRequest) -> Result<(), GroupError> {
        check_id(group)?;
        self.act(group, Absent::Refuse, |_, inner, now| {
            (inner.group.heartbeat(now, request), Vec::new())
        })
        .map_err(as_unknown_member)?
    }

    /// Takes members out of a group: one answer each, in order.
    pub fn leave(
        &self,
        group: &str,
        leaving: &[LeavingMember],
    ) -> Result<Vec<LeftMember>, GroupError> {
        check_id(group)?;
        let left = self.act(group, Absent::Refuse, |_, inner, now| inner.group.leave(now, leaving));
        match left.map_err(as_unknown_member) {
            Err(error @ GroupError::UnknownMemberId) => {
                Ok(leaving.iter().map(|one| one.answered(Some(error))).collect())
            }
            other => other?,
        }
    }

    /// May this client commit offsets? A client without group management makes the group, if there
    /// is none; any other is told [`GroupError::GroupIdNotFound`], which is `GROUP_ID_NOT_FOUND`
    /// from version 9 of `OffsetCommit` and `ILLEGAL_GENERATION` everywhere else.
    ///
    /// What `queue` puts into the log comes before all that is decided about the group later: before
    /// its end, and before it is set to a moment.
    pub fn commit<T>(
        &self,
        group: &str,
        fence: &CommitFence,
        queue: impl FnOnce() -> T,
    ) -> Result<T, GroupError> {
        let is_simple = fence.generation_id < 0;
        let absent = if is_simple { Absent::Create } else { Absent::Refuse };
        self.act(group, absent, |_, inner, now| {
            let queued = inner.group.check_commit(now, fence).map(|()| {
                inner.is_stored = true;
                queue()
            });
            (queued, Vec::new())
        })?
    }

    /// May offsets of the group be deleted, and which topics' may not?
    pub fn check_offset_delete(&self, group: &str) -> Result<Subscriptions, GroupError> {
        self.look(group, Group::check_offset_delete)?
    }

    /// Lets offsets of the group expire, if any may: `queue` is told which. What it puts into the log comes
    /// before all that is decided about the group later, so whoever joins afterwards has not been told of them.
    /// `None` for a group that is not there, or that somebody else acts on.
    pub fn expire<T>(&self, group: &str, queue: impl FnOnce(&OffsetUse) -> T) -> Option<T> {
        let slot = self.shared.find(group, Absent::Refuse).ok()?;
        let inner = slot.inner.lock();
        if inner.is_being_deleted || inner.is_held {
            return None;
        }
        match inner.group.offset_use(self.shared.now()) {
            OffsetUse::InUse => None,
            offset_use => Some(queue(&offset_use)),
        }
    }

    /// The group and its members.
    pub fn describe(&self, group: &str) -> Result<GroupDescription, GroupError> {
        self.look(group, Group::describe)
    }

    /// Whether there is such a group.
    pub fn has(&self, group: &str) -> bool {
        self.look(group, |_| ()).is_ok()
    }

    /// Whether the group has no members, and nothing of it is on its way to the log.
    #[cfg(test)]
    pub(crate) fn is_idle(&self, group: &str) -> bool {
        self.look(group, Group::is_idle).unwrap_or(false)
    }

    /// All groups, by id.
    pub fn list(&self) -> Vec<ListedGroup> {
        let slots: Vec<Arc<Slot>> = self.shared.groups.lock().by_id.values().cloned().collect();
        let listed = slots.iter().map(|slot| slot.inner.lock().group.listed(&slot.id));
        let mut listed: Vec<_> = listed.filter(|one| one.state != GroupState::Dead).collect();
        listed.sort_unstable_by(|a, b| a.group_id.cmp(&b.group_id));
        listed
    }

    /// Deletes a group that has no members, with its offsets.
    pub async fn delete(&self, group: &str) -> Result<(), GroupError> {
        let slot = self.shared.find(group, Absent::Refuse)?;
        let done = self.shared.begin_delete(&slot, &mut slot.inner.lock())?;
        done.await.unwrap_or(Err(GroupError::CoordinatorNotAvailable))
    }

    /// Refuses all requests from now on, those that wait included. Writes under way go on.
    pub fn close(&self) {
        let slots: Vec<Arc<Slot>> = {
            let mut groups = self.shared.groups.lock();
            groups.is_closed = true;
            groups.by_id.drain().map(|(_, slot)| slot).collect()
        };
        for slot in slots {
            let mut inner = slot.inner.lock();
            let effects = inner.group.close();
            self.shared.settle(&slot, &mut inner, self.shared.now(), effects);
        }
    }

    /// Lets the group act, and sees to the effects. A group that died between being found and being
    /// locked has left the map by then, so the search begins anew.
    fn act<T>(
        &self,
        group: &str,
        absent: Absent,
        act: impl FnOnce(&Arc<Slot>, &mut Inner, Duration) -> (T, Vec<Effect>),
    ) -> Result<T, GroupError> {
        loop {
            let slot = self.shared.find(group, absent)?;
            let mut inner = slot.inner.lock();
            if inner.group.state() == GroupState::Dead {
                continue;
            }
            if inner.is_being_deleted || inner.is_held {
                return Err(GroupError::CoordinatorNotAvailable);
            }
            let now = self.shared.now();
            inner.idle_until = None;
            let (answer, effects) = act(&slot, &mut inner, now);
            self.shared.settle(&slot, &mut inner, now, effects);
            return Ok(answer);
        }
    }

    fn look<T>(&self, group: &str, look: impl FnOnce(&Group) -> T) -> Result<T, GroupError> {
        let slot = self.shared.find(group, Absent::Refuse)?;
        let inner = slot.inner.lock();
        match inner.group.state() {
            GroupState::Dead => Err(GroupError::GroupIdNotFound),
            _ => Ok(look(&inner.group)),
        }
    }
}

impl Shared {
    /// Time since the start: what all groups reckon in.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn next_token(&self) -> Token {
        Token(self.next_token.fetch_add(1, Ordering::Relaxed))
    }

    fn find(&self, id: &str, absent: Absent) -> Result<Arc<Slot>, GroupError> {
        let mut groups = self.groups.lock();
        if groups.is_closed {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        if let Some(slot) = groups.by_id.get(id) {
            return Ok(slot.clone());
        }
        if absent == Absent::Refuse {
            return Err(GroupError::GroupIdNotFound);
        }
        if groups.by_id.len() >= self.options.groups_max {
            return Err(GroupError::TooManyGroups);
        }
        if self.lacks_room(slot_bytes(id)) {
            return Err(GroupError::NoRoom);
        }
        let slot = Slot::new(id, Group::new(self.options.clone()));
        groups.by_id.insert(id.to_owned(), slot.clone());
        Ok(slot)
    }

    /// Whether all groups together would hold more than they may. What each of a few requests at a time brings
    /// may come on top.
    fn lacks_room(&self, growth: usize) -> bool {
        growth > 0 && self.bytes.load(Ordering::Relaxed) + growth > self.options.groups_bytes_max
    }

    /// Counts the group anew in the sum over all: one that is gone, no more.
    fn count(&self, slot: &Slot, inner: &mut Inner) {
        let is_gone = inner.group.state() == GroupState::Dead;
        let now = if is_gone { 0 } else { slot_bytes(&slot.id) + inner.group.bytes() };
        let before = std::mem::replace(&mut inner.counted, now);
        self.bytes.fetch_add(now, Ordering::Relaxed);
        self.bytes.fetch_sub(before, Ordering::Relaxed);
    }

    /// Sees to what the group wants done, and to being woken for its next deadline.
    fn settle(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        inner: &mut Inner,
        now: Duration,
        effects: Vec<Effect>,
    ) {
        for effect in effects {
            match effect {
                Effect::Join { token, answer } => inner.answer_join(token, answer),
                Effect::Sync { token, answer } => inner.answer_sync(token, answer),
                Effect::Persist { write, snapshot } => self.queue(slot, inner, write, snapshot),
            }
        }
        self.count(slot, inner);
        inner.note_change(&slot.id);
        inner.note_idleness(now, self.options.empty_group_retention);
        self.alarms.arm(slot, inner);
    }

    fn ring(self: &Arc<Self>, key: AlarmKey, slot: Arc<Slot>) {
        let mut inner = slot.inner.lock();
        inner.alarm.take_if(|armed| *armed == key);
        if inner.group.state() == GroupState::Dead || inner.is_being_deleted {
            return;
        }
        let now = self.now();
        let is_forgotten = inner.idle_until.is_some_and(|until| until <= now);
        let effects = inner.group.tick(now);
        if is_forgotten {
            inner.idle_until = None;
        }
        self.settle(&slot, &mut inner, now, effects);
        if is_forgotten {
            tokio::spawn(self.clone().retire(slot.clone(), inner.idle_until));
        }
    }
}

/// A request that waits. Dropped, it leaves no trace among the waiters.
struct Waiting<T> {
    slot: Arc<Slot>,
    token: Token,
    receiver: oneshot::Receiver<T>,
    forget: fn(&mut Inner, Token),
}

impl<T> Waiting<T> {
    /// `None` only if the group is gone without a word.
    async fn answer(mut self) -> Option<T> {
        (&mut self.receiver).await.ok()
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        (self.forget)(&mut self.slot.inner.lock(), self.token);
    }
}

async fn ring_when_due(shared: Weak<Shared>, alarms: Arc<Alarms>) {
    while let Some(started) = shared.upgrade().map(|shared| shared.started) {
        for (key, slot) in alarms.due(started).await {
            match shared.upgrade() {
                Some(shared) => shared.ring(key, slot),
                None => return,
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.alarms.close();
    }
}

/// What a group costs without members. Its id is a key, too.
fn slot_bytes(id: &str) -> usize {
    SLOT_BYTES + 2 * id.len()
}

fn check_id(group: &str) -> Result<(), GroupError> {
    if group.is_empty() { Err(GroupError::InvalidGroupId) } else { Ok(()) }
}

/// A member of a group that is not there is not known either, and is to join anew.
fn as_unknown_member(error: GroupError) -> GroupError {
    match error {
        GroupError::GroupIdNotFound => GroupError::UnknownMemberId,
        other => other,
    }
}
