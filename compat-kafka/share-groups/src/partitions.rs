//! All partitions of all share groups, with what one of them lacks: time, fetches that wait, and
//! what is stored.
//!
//! A group's partitions are behind one lock, which is not held over an await. The state that
//! survives a restart is stored as offsets of the group: its start offset, with a text for the
//! records after that ([`SharePartition::text`]). An acknowledgement is answered once it is stored.
//! Writes of a group take turns, and each takes all that has changed by then. One that failed is a
//! lost answer: its changes go with the next.
//!
//! The state in memory is right as long as nobody else sets the offsets of the group: that ends its
//! lease ([`OffsetsLease`]), and then it is loaded again.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::groups::OffsetCommit;
use engine::{Engine, EngineError, TopicId};
use hlc::UserTime;
use kafka_errors::{engine_error, group_error};
use kafka_groups::{GroupCoordinator, OffsetsLease, ShareOptions, ShareStart};
use kafka_protocol::ResponseError;
use kafka_topics::ReadableTopic;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::SharePartition;
use crate::sessions::{SessionKey, ShareSessions};

/// A partition of a topic.
type PartitionKey = (TopicId, u32);

/// A group's timer looks at least this often, because its settings may change meanwhile.
const TIMER_MAX: Duration = Duration::from_secs(1);
/// The pause before a write that failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The leader epoch of committed offsets.
const LEADER_EPOCH: i32 = 0;

/// The progress of share groups in their partitions.
pub struct SharePartitions {
    engine: Arc<Engine>,
    groups: Arc<GroupCoordinator>,
    pub sessions: ShareSessions,
    started: Instant,
    by_group: Mutex<HashMap<String, Arc<ShareGroupProgress>>>,
}

/// The progress of one share group in its partitions.
pub struct ShareGroupProgress {
    group: String,
    lease: OffsetsLease,
    state: Mutex<ProgressState>,
    /// Wakes fetches: there may be records for them.
    changed: Notify,
}

#[derive(Default)]
struct ProgressState {
    partitions: HashMap<PartitionKey, LoadedPartition>,
    /// The partitions that have changed since they were stored.
    unsaved: BTreeSet<PartitionKey>,
    /// The number of changes so far.
    changes: u64,
    saves: Vec<(u64, oneshot::Sender<Result<(), ResponseError>>)>,
    is_writing: bool,
    is_timed: bool,
    /// It was unloaded: its holders have to look the group up again.
    is_unloaded: bool,
}

struct LoadedPartition {
    /// The name under which its offset is stored.
    topic: Arc<str>,
    /// A moment of a topic, which nobody deletes.
    is_past: bool,
    partition: SharePartition,
}

impl SharePartitions {
    pub fn new(
        engine: Arc<Engine>,
        groups: Arc<GroupCoordinator>,
        sessions_max: usize,
    ) -> Arc<SharePartitions> {
        let sessions = ShareSessions::new(sessions_max, engine.budgets());
        Arc::new(SharePartitions {
            engine,
            groups,
            sessions,
            started: Instant::now(),
            by_group: Mutex::default(),
        })
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The options of a share group.
    pub fn options_of(&self, group: &str) -> ShareOptions {
        self.groups.options_of(group).share.clone()
    }

    /// The progress of a share group.
    ///
    /// # Errors
    /// There is no such share group, or it is being changed by others.
    pub fn progress(&self, group: &str) -> Result<Arc<ShareGroupProgress>, ResponseError> {
        let lease = self.groups.lease_offsets(group).map_err(group_error)?;
        let mut by_group = self.by_group.lock();
        if let Some(progress) = by_group.get(group).filter(|progress| !progress.lease.is_over()) {
            return Ok(Arc::clone(progress));
        }
        let progress = Arc::new(ShareGroupProgress {
            group: group.to_owned(),
            lease,
            state: Mutex::default(),
            changed: Notify::new(),
        });
        by_group.insert(group.to_owned(), Arc::clone(&progress));
        Ok(progress)
    }

    /// The progress of a share group, if anything of it is in memory.
    fn loaded(&self, group: &str) -> Option<Arc<ShareGroupProgress>> {
        self.by_group.lock().get(group).cloned()
    }

    /// Loads a partition of a topic, unless it is there. A group that has never read it begins
    /// where its settings say; then a change is to be waited for.
    pub fn load(
        self: &Arc<Self>,
        progress: &Arc<ShareGroupProgress>,
        key: PartitionKey,
        topic: &str,
        readable: &ReadableTopic,
    ) -> Result<(), ResponseError> {
        let (_, index) = key;
        if progress.state.lock().partitions.contains_key(&key) {
            return Ok(());
        }
        let failed = |error: EngineError| {
            tracing::error!(group = progress.group, topic, index, %error, "a share group's partition cannot be loaded");
            engine_error(&error)
        };
        let stored = self.engine.groups().committed_offset(&progress.group, topic, index);
        let (partition, is_new) = match stored.map_err(failed)? {
            Some(stored) => {
                let start = stored.offset.max(0);
                let parsed = SharePartition::parse(start, &stored.metadata);
                (parsed.unwrap_or_else(|| SharePartition::new(start)), false)
            }
            None => (SharePartition::new(self.begin(&progress.group, index, readable)?), true),
        };
        let is_past = matches!(readable, ReadableTopic::Past(_));
        let mut state = progress.current()?;
        if state.partitions.contains_key(&key) {
            return Ok(());
        }
        let loaded = LoadedPartition { topic: topic.into(), is_past, partition };
        state.partitions.insert(key, loaded);
        if is_new {
            self.mark(progress, &mut state, key);
        }
        Ok(())
    }

    /// The offset at which a group begins in a partition.
    fn begin(
        &self,
        group: &str,
        index: u32,
        readable: &ReadableTopic,
    ) -> Result<i64, ResponseError> {
        let view = readable.view(index as i32).ok_or(ResponseError::UnknownTopicOrPartition)?;
        let offset = match self.options_of(group).begin_at {
            ShareStart::Earliest => view.start(),
            ShareStart::Latest => view.end(),
            ShareStart::Ago(age) => {
                let now = i64::try_from(self.engine.wall_now().0).unwrap_or(i64::MAX);
                let since = now.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
                let first = self.engine.seek().first_at_or_after(&view, UserTime(since));
                let first = first.map_err(|error| engine_error(&error))?;
                first.map_or_else(|| view.end(), |record| record.offset)
            }
        };
        Ok(offset.0 as i64)
    }

    /// Acts on a partition that is loaded. If `act` returns true, the state that survives a restart
    /// has changed.
    pub fn update<T>(
        self: &Arc<Self>,
        progress: &Arc<ShareGroupProgress>,
        key: PartitionKey,
        act: impl FnOnce(&mut SharePartition, Duration, &ShareOptions) -> (T, bool),
    ) -> Result<T, ResponseError> {
        let options = self.options_of(&progress.group);
        let now = self.now();
        let mut state = progress.current()?;
        let loaded =
            state.partitions.get_mut(&key).ok_or(ResponseError::UnknownTopicOrPartition)?;
        let what_is_open =
            |partition: &SharePartition| (partition.next_offset(), partition.has_room(&options));
        let before = what_is_open(&loaded.partition);
        let (result, is_changed) = act(&mut loaded.partition, now, &options);
        let after = what_is_open(&loaded.partition);
        // Waiting fetches are woken by a change only: a fetch changes nothing when it finds
        // nothing.
        let is_open = after.1 && after != before;
        if is_changed {
            self.mark(progress, &mut state, key);
        }
        self.start_timer(progress, &mut state);
        drop(state);
        if is_open {
            progress.changed.notify_waiters();
        }
        Ok(result)
    }

    /// Waits until all changes that there are by now are stored.
    pub async fn wait_until_saved(progress: &ShareGroupProgress) -> Result<(), ResponseError> {
        let receiver = {
            let mut state = progress.current()?;
            if !state.is_writing && state.unsaved.is_empty() {
                return Ok(());
            }
            let (sender, receiver) = oneshot::channel();
            let changes = state.changes;
            state.saves.push((changes, sender));
            receiver
        };
        receiver.await.unwrap_or(Err(ResponseError::CoordinatorNotAvailable))
    }

    /// Closes a member's session, and releases its records.
    pub fn end_session(self: &Arc<Self>, key: &SessionKey, id: Option<u64>) -> bool {
        let (group, member) = key;
        let Some(progress) = self.loaded(group) else { return self.sessions.close(key, id) };
        let options = self.options_of(group);
        // Under the lock of the partitions: a session that the member opens now acquires nothing
        // before.
        let mut state = progress.state.lock();
        let is_closed = self.sessions.close(key, id);
        if is_closed {
            self.update_all(&progress, &mut state, |partition| partition.release(member, &options));
        }
        drop(state);
        self.unload(&progress);
        is_closed
    }

    /// Acts on all partitions of a group. Partitions for which `act` returns true have changed.
    fn update_all(
        self: &Arc<Self>,
        progress: &Arc<ShareGroupProgress>,
        state: &mut ProgressState,
        mut act: impl FnMut(&mut SharePartition) -> bool,
    ) {
        let loaded = state.partitions.iter_mut();
        let changed = loaded.filter_map(|(key, loaded)| act(&mut loaded.partition).then_some(*key));
        let changed: Vec<PartitionKey> = changed.collect();
        changed.iter().for_each(|key| self.mark(progress, state, *key));
        if !changed.is_empty() {
            progress.changed.notify_waiters();
        }
    }

    /// Forgets the partitions of a topic that does not exist any more.
    pub fn forget_topic(&self, progress: &ShareGroupProgress, id: &TopicId) {
        let mut state = progress.state.lock();
        // A moment is not gone if it is not at hand.
        state.partitions.retain(|(topic_id, _), loaded| topic_id != id || loaded.is_past);
    }

    /// Frees the memory of an unused group.
    fn unload(&self, progress: &Arc<ShareGroupProgress>) {
        let mut by_group = self.by_group.lock();
        let mut state = progress.state.lock();
        let is_idle = state.unsaved.is_empty()
            && state.saves.is_empty()
            && !state.is_writing
            && !state.partitions.values().any(|loaded| loaded.partition.is_in_use());
        let is_current =
            by_group.get(&progress.group).is_some_and(|current| Arc::ptr_eq(current, progress));
        if is_idle && is_current && !self.sessions.has_any_of(&progress.group) {
            by_group.remove(&progress.group);
            state.is_unloaded = true;
            progress.changed.notify_waiters();
        }
    }

    /// Notes that a partition has changed, and has that stored.
    fn mark(
        self: &Arc<Self>,
        progress: &Arc<ShareGroupProgress>,
        state: &mut ProgressState,
        key: PartitionKey,
    ) {
        state.changes += 1;
        state.unsaved.insert(key);
        self.start_write(progress, state);
    }

    fn start_write(
        self: &Arc<Self>,
        progress: &Arc<ShareGroupProgress>,
        state: &mut ProgressState,
    ) {
        // Without a runtime the service is ending: changes that are not stored were not answered.
        if let (false, Ok(runtime)) = (state.is_writing, Handle::try_current()) {
            state.is_writing = true;
            runtime.spawn(write(Arc::clone(self), Arc::clone(progress)));
        }
    }

    fn start_timer(
        self: &Arc<Self>,
        progress: &Arc<ShareGroupProgress>,
        state: &mut ProgressState,
    ) {
        if !state.is_timed && state.next_deadline().is_some() {
            state.is_timed = true;
            tokio::spawn(run_timer(Arc::downgrade(self), Arc::clone(progress)));
        }
    }

    /// The time at which the timer of a group looks next; `None` if there is nothing to look for,
    /// and it ends.
    fn next_tick(&self, progress: &ShareGroupProgress) -> Option<Instant> {
        let mut state = progress.state.lock();
        let next = if progress.lease.is_over() { None } else { state.next_deadline() };
        state.is_timed = next.is_some();
        next.map(|next| self.started + next.min(self.now() + TIMER_MAX))
    }

    /// Begins to store what has changed. Requests that wait for it are answered after
    /// [`SharePartitions::store`].
    fn take_unsaved(&self, progress: &ShareGroupProgress) -> Option<TakenProgress> {
        let mut state = progress.state.lock();
        let keys = std::mem::take(&mut state.unsaved);
        if keys.is_empty() {
            state.is_writing = false;
            // Requests that have begun to wait since the last write wait for nothing.
            state.end_saves(u64::MAX, Ok(()));
            return None;
        }
        let commit = |key: &PartitionKey| {
            let loaded = state.partitions.get(key)?;
            let commit = OffsetCommit {
                topic: loaded.topic.to_string(),
                partition: key.1,
                offset: loaded.partition.start(),
                leader_epoch: LEADER_EPOCH,
                metadata: loaded.partition.text(),
                retention_ms: None,
            };
            Some((key.0, loaded.is_past, commit))
        };
        let offsets = keys.iter().filter_map(commit).collect();
        Some(TakenProgress { changes: state.changes, keys, offsets })
    }

    async fn store(
        &self,
        progress: &ShareGroupProgress,
        offsets: Vec<ProgressCommit>,
    ) -> Result<(), ResponseError> {
        // No topic is deleted while this is held: the progress in one must not be stored for
        // another that gets its name.
        let changing = self.engine.lock_changes().await;
        let is_there = |id: &TopicId| self.engine.topics().by_id(id).is_some();
        let offsets = offsets.into_iter().filter(|(id, is_past, _)| *is_past || is_there(id));
        let offsets: Vec<OffsetCommit> = offsets.map(|(_, _, commit)| commit).collect();
        if offsets.is_empty() {
            return Ok(());
        }
        let group = &progress.group;
        let queue = || self.engine.groups().begin_commit(group, offsets);
        let queued =
            self.groups.store_leased(group, &progress.lease, queue).map_err(group_error)?;
        drop(changing);
        let stored = match queued {
            Ok(pending) => pending.wait().await.map(drop),
            Err(error) => Err(error),
        };
        stored.map_err(|error| {
            tracing::error!(group, %error, "what a share group has done cannot be stored");
            ResponseError::CoordinatorNotAvailable
        })
    }
}

/// An offset, with the id of its topic, and whether that is a moment of one.
type ProgressCommit = (TopicId, bool, OffsetCommit);

/// The changes that are being stored.
struct TakenProgress {
    changes: u64,
    keys: BTreeSet<PartitionKey>,
    offsets: Vec<ProgressCommit>,
}

/// Stores what changes, until nothing does.
async fn write(shares: Arc<SharePartitions>, progress: Arc<ShareGroupProgress>) {
    while let Some(unsaved) = shares.take_unsaved(&progress) {
        let result = shares.store(&progress, unsaved.offsets).await;
        let is_over = progress.lease.is_over();
        {
            let mut state = progress.state.lock();
            if result.is_err() && !is_over {
                state.unsaved.extend(unsaved.keys);
            }
            state.end_saves(unsaved.changes, result);
            if is_over {
                // Later changes can not be stored any more.
                state.end_saves(u64::MAX, Err(ResponseError::CoordinatorNotAvailable));
            }
            if result.is_err() {
                state.is_writing = false;
            }
        }
        if result.is_err() {
            if !is_over {
                sleep(RETRY_PAUSE).await;
                let mut state = progress.state.lock();
                if progress.lease.is_over() {
                    state.end_saves(u64::MAX, result);
                } else if !state.unsaved.is_empty() {
                    shares.start_write(&progress, &mut state);
                }
            }
            return;
        }
    }
    shares.unload(&progress);
}

/// Releases records whose time is up, as long as any are with members.
async fn run_timer(shares: Weak<SharePartitions>, progress: Arc<ShareGroupProgress>) {
    let next = || shares.upgrade()?.next_tick(&progress);
    while let Some(deadline) = next() {
        sleep_until(deadline).await;
        let Some(shares) = shares.upgrade() else { return };
        let (now, options) = (shares.now(), shares.options_of(&progress.group));
        let mut state = progress.state.lock();
        shares.update_all(&progress, &mut state, |partition| partition.tick(now, &options));
    }
    if let Some(shares) = shares.upgrade() {
        shares.unload(&progress);
    }
}

impl ProgressState {
    fn next_deadline(&self) -> Option<Duration> {
        self.partitions.values().filter_map(|loaded| loaded.partition.next_deadline()).min()
    }

    /// Answers the waiters for changes up to this one.
    fn end_saves(&mut self, changes: u64, result: Result<(), ResponseError>) {
        let (due, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.saves).into_iter().partition(|(at, _)| *at <= changes);
        self.saves = waiting;
        for (_, sender) in due {
            let _ = sender.send(result);
        }
    }
}

impl ShareGroupProgress {
    /// True if this progress is out of date, so that the group has to be looked up again.
    pub fn is_over(&self) -> bool {
        self.lease.is_over() || self.state.lock().is_unloaded
    }

    /// Its state, unless that is out of date. Clients retry then.
    fn current(&self) -> Result<MutexGuard<'_, ProgressState>, ResponseError> {
        let state = self.state.lock();
        if state.is_unloaded || self.lease.is_over() {
            Err(ResponseError::NotLeaderOrFollower)
        } else {
            Ok(state)
        }
    }

    /// Completes when there may be records for a fetch that found none. It has to be enabled before
    /// looking.
    pub fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// The offset at which a fetch of a partition begins; `None` if nothing may be delivered.
    pub fn next_offset(&self, key: PartitionKey, options: &ShareOptions) -> Option<i64> {
        let state = self.state.lock();
        let partition = &state.partitions.get(&key)?.partition;
        partition.has_room(options).then(|| partition.next_offset())
    }
}

/// Closes a session when the connection ends to which it belongs.
#[derive(Debug)]
pub struct ShareSessionGuard {
    pub shares: Weak<SharePartitions>,
    pub key: SessionKey,
    pub id: u64,
}

impl Drop for ShareSessionGuard {
    fn drop(&mut self) {
        if let Some(shares) = self.shares.upgrade() {
            shares.end_session(&self.key, Some(self.id));
        }
    }
}

impl std::fmt::Debug for SharePartitions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharePartitions").finish_non_exhaustive()
    }
}
