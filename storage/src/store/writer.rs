//! The writer: the one thread that appends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hlc::Hlc;

use super::append_group::{AppendGroup, LaidOutAppend};
use super::commit::{
    BYTES_IN_FLIGHT_MAX, Commit, CommitOrder, GROUPS_IN_FLIGHT_MAX, TruncateError,
};
use super::{
    AppendError, AppendReceipt, AppendResults, AppendStage, Durability, GroupNumber, LogAppend,
    ReplayedEntry, StoreContext, StoreRequest, StoreRequestQueueState,
};
use crate::entry::Offset;
use crate::error::StorageError;
use crate::history::UnindexedSegment;
use crate::journal::{
    FRAME_BYTES, FrameHeader, JournalWriteError, JournalWriter, OpenSegment, RolledSegment, padded,
};
use crate::log::Log;
use crate::log_throttle::LogThrottle;
use crate::payload::{PAYLOAD_HEADER_BYTES_MAX, Payload};
use crate::proof::{Digest, body_digest};
use crate::tail::PayloadTail;
use crate::timekeeper::Timekeeper;

/// A group is closed once it holds this many bytes of payload.
const GROUP_BYTES: u64 = 16 << 20;

pub(super) struct StoreWriter<S: AppendStage> {
    pub(super) shared: Arc<StoreContext<S>>,
    pub(super) timekeeper: Arc<Timekeeper>,
    pub(super) journal: JournalWriter,
    /// The groups that are written and not published, oldest first.
    pub(super) in_flight: VecDeque<AppendGroup<S::Refusal>>,
    pub(super) next_group: GroupNumber,
    pub(super) commit: Commit,
    /// True if appends are staged here.
    pub(super) leads: bool,
    /// Everything below this position is visible.
    pub(super) published_to: u64,
    /// The last stamp below it.
    pub(super) published_last: Hlc,
    pub(super) stage: S,
    pub(super) tail: PayloadTail,
    pub(super) durability: Durability,
    pub(super) refusals: LogThrottle,
}

pub(super) type AppendCompletion<R> = (Box<dyn FnOnce(AppendResults<R>) + Send>, AppendResults<R>);

/// The next thing that the writer does.
enum WriterTask<S: AppendStage> {
    Order(CommitOrder),
    /// Syncs for a request without appends.
    Sync(StoreRequest<S>),
    /// Rolls the segment.
    Roll,
    /// Writes these requests as a group.
    Write(Vec<StoreRequest<S>>),
}

impl<S: AppendStage> StoreWriter<S> {
    pub(super) fn run(mut self) {
        // A panic on this thread is a broken invariant: the process must not continue to answer.
        let abort = AbortOnPanic;
        while let Some(task) = self.wait_for_task() {
            self.process(task);
        }
        self.end();
        std::mem::forget(abort);
    }

    /// Handles what is queued, without waiting; returns whether there was anything.
    pub(super) fn step(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let Some(task) = self.next_task(&mut shared.queue.state.lock()) else { return false };
        self.process(task);
        true
    }

    fn process(&mut self, task: WriterTask<S>) {
        match task {
            WriterTask::Order(order) => self.carry_out(order),
            WriterTask::Sync(request) => self.sync_for(request),
            WriterTask::Roll if self.stop_reason().is_none() => self.roll_segment(),
            WriterTask::Roll => {}
            WriterTask::Write(requests) => self.write_group(requests),
        }
        // After a stop nothing is published any more.
        if !self.in_flight.is_empty()
            && let Some(why) = self.stop_reason()
        {
            self.fail_in_flight(&AppendError::Storage(StorageError::Stopped { why }));
        }
    }

    /// Waits until there is something to do; `None` at the end.
    fn wait_for_task(&self) -> Option<WriterTask<S>> {
        let queue = &self.shared.queue;
        let mut state = queue.state.lock();
        loop {
            if let Some(task) = self.next_task(&mut state) {
                return Some(task);
            }
            if state.closing {
                return None;
            }
            queue.filled.wait(&mut state);
        }
    }

    fn next_task(&self, state: &mut StoreRequestQueueState<S>) -> Option<WriterTask<S>> {
        if let Some(order) = state.orders.pop_front() {
            return Some(WriterTask::Order(order));
        }
        if self.commit.is_later() {
            // What is visible is written. So such a request waits for no commit.
            let is_sync = |request: &StoreRequest<S>| request.appends.is_empty();
            if let Some(nth) = state.requests.iter().position(is_sync) {
                return state.requests.remove(nth).map(WriterTask::Sync);
            }
        }
        if !self.leads {
            // Segments end where those of the leader do.
            state.wants_roll = false;
            return None;
        }
        if std::mem::take(&mut state.wants_roll) {
            return Some(WriterTask::Roll);
        }
        let bytes = self.journal.end() - self.published_to;
        if state.requests.is_empty()
            || self.in_flight.len() >= GROUPS_IN_FLIGHT_MAX
            || bytes >= BYTES_IN_FLIGHT_MAX
            // What is staged starts from what is visible.
            || self.in_flight.iter().any(|group| !group.is_staged)
        {
            return None;
        }
        Some(WriterTask::Write(take_group(state)))
    }

    /// Fails what will not be published any more, and closes the bound file.
    fn end(mut self) {
        let requests = std::mem::take(&mut self.shared.queue.state.lock().requests);
        self.fail_in_flight(&AppendError::Storage(StorageError::Interrupted));
        let error = AppendError::Storage(StorageError::Interrupted);
        complete(requests.into_iter().map(|request| fail(request, &error)).collect());
        // After a failed sync the next one reports success, and that is false.
        if self.stop_reason().is_none()
            && let Err(error) = self.journal.sync()
        {
            tracing::error!(%error, "the journal was not synced at the end");
        }
        self.timekeeper.close(self.journal.synced_to().min(self.published_to));
    }

    /// Fails the requests of the groups in flight, though they may be in the journal and become
    /// visible after the next start.
    fn fail_in_flight(&mut self, error: &AppendError<S::Refusal>) {
        if let Some(first) = self.in_flight.front() {
            self.stage.rollback(first.number);
        }
        for mut group in std::mem::take(&mut self.in_flight) {
            group.fail(error);
            self.journal.recycle(group.frames);
        }
    }

    fn roll_segment(&mut self) {
        let history = &self.shared.history;
        if let Err(error) = self.journal.roll_segment(&|| history.wait_for_room()) {
            self.handle_write_error(error);
        }
        self.queue_rolled();
    }

    pub(super) fn stop_reason(&self) -> Option<Arc<str>> {
        self.shared.stop_reason()
    }

    fn write_group(&mut self, requests: Vec<StoreRequest<S>>) {
        // Requests queued before the store stopped are not written after it.
        if let Some(why) = self.stop_reason() {
            let error = AppendError::Storage(StorageError::Stopped { why });
            return complete(requests.into_iter().map(|request| fail(request, &error)).collect());
        }
        let Some(mut group) = self.sequence(requests) else { return };
        if let Err(error) = self.write(&mut group) {
            return self.drop_unwritten(group, &error);
        }
        self.in_flight.push_back(group);
        match &self.commit {
            Commit::Local => self.publish_to(self.journal.end()),
            Commit::Later { authority, .. } => {
                let group = self.in_flight.back().expect("it was just written");
                if group.appends.is_empty() {
                    // All of its appends were refused. It waits for those before it alone.
                    self.publish_to(self.published_to);
                } else {
                    authority.on_written(&group.frames.written(self.journal.synced_to()));
                }
            }
        }
    }

    /// Carries out an order of the commit authority.
    fn carry_out(&mut self, order: CommitOrder) {
        if let Some(why) = self.stop_reason() {
            return order.refuse(&StorageError::Stopped { why });
        }
        match order {
            CommitOrder::Publish { position, bound } => {
                if let Some(bound) = bound {
                    self.timekeeper.extend_promises(bound);
                }
                self.publish_to(position);
            }
            CommitOrder::Truncate { position, done } => done(self.truncate(position)),
            CommitOrder::TakeOver { group, done } => done(self.take_over(group)),
            CommitOrder::Lead { above } => {
                self.timekeeper.raise(above);
                self.journal.end_segment();
                self.leads = true;
            }
            CommitOrder::Follow => self.follow(),
        }
    }

    /// Keeps the groups in flight as if they had been taken over.
    fn follow(&mut self) {
        self.leads = false;
        let first = self.in_flight.iter().find(|group| group.is_staged).map(|group| group.number);
        let Some(first) = first else { return };
        self.stage.rollback(first);
        for group in self.in_flight.iter_mut().filter(|group| group.is_staged) {
            group.is_staged = false;
            group.fail(&AppendError::Undecided);
        }
    }

    /// Syncs for a request without appends.
    fn sync_for(&mut self, request: StoreRequest<S>) {
        if let Some(why) = self.stop_reason() {
            let error = AppendError::Storage(StorageError::Stopped { why });
            return complete(vec![fail(request, &error)]);
        }
        let begun = self.timekeeper.steady_now();
        if let Err(error) = self.journal.sync() {
            let error = self.handle_write_error(error);
            return complete(vec![fail(request, &error)]);
        }
        self.record_sync(self.timekeeper.steady_now().saturating_sub(begun));
        let synced_to = self.journal.synced_to().min(self.published_to);
        self.shared.stats.synced_to.store(synced_to, Ordering::Relaxed);
        complete(vec![(request.done, Vec::new())]);
    }

    /// Cuts off the groups in flight from `position` on.
    fn truncate(&mut self, position: u64) -> Result<(), TruncateError> {
        let committed_to = self.published_to;
        if position < committed_to {
            return Err(TruncateError::Committed { position, committed_to });
        }
        if position == self.journal.end() {
            return Ok(());
        }
        let begins_there = |group: &AppendGroup<_>| {
            group.frames.start() == position && group.frames.end() > position
        };
        let nth = self.in_flight.iter().position(begins_there);
        let nth = nth.ok_or(TruncateError::NoGroup { position })?;
        let dropped = self.in_flight.split_off(nth);
        let cut = self.journal.truncate(dropped.iter().rev().map(|group| &group.frames));
        if let Some(first) = dropped.front() {
            self.next_group = first.number;
            self.stage.rollback(first.number);
        }
        let cut = cut.map_err(|error| self.note_write_error(error));
        let error = match &cut {
            Ok(()) => {
                self.timekeeper.drop_groups(dropped.len());
                AppendError::CutOff
            }
            // What is left of them is not known.
            Err(error) => AppendError::Storage(error.clone()),
        };
        for mut group in dropped {
            group.fail(&error);
            self.journal.recycle(group.frames);
        }
        cut.map_err(TruncateError::Storage)
    }

    /// Stamps the appends of requests, lets the stage decide about them, and lays them out. `None`
    /// if none of them can be written; then the requests are complete.
    fn sequence(&mut self, requests: Vec<StoreRequest<S>>) -> Option<AppendGroup<S::Refusal>> {
        let is_durable = requests.iter().any(|request| {
            // Whoever counts copies counts those that a loss of power leaves.
            let syncs = self.commit.is_later() || request.durability == Durability::Synced;
            request.must_sync || (syncs && self.durability == Durability::Synced)
        });
        let room: u64 = requests
            .iter()
            .flat_map(|request| &request.appends)
            .map(|append| FRAME_BYTES as u64 + padded(append.payload.len() as u64))
            .sum();
        let makes_space = requests.iter().any(|request| request.uses_reserve);
        if let Err(error) = self.make_room(room, makes_space) {
            let mut error = self.handle_write_error(error);
            // Requests other than appends do not depend on space for appends.
            if is_durable
                && self.stop_reason().is_none()
                && let Err(unsynced) = self.journal.sync()
            {
                error = self.handle_write_error(unsynced);
            }
            complete(requests.into_iter().map(|request| fail(request, &error)).collect());
            return None;
        }
        let number = self.next_group;
        self.next_group = number.next();
        self.timekeeper.begin_group();
        self.stage.begin(number);
        let mut group = AppendGroup::new(number, self.journal.begin_group(), is_durable);
        let mut torn = None;
        for request in requests {
            let mut results = Vec::with_capacity(request.appends.len());
            let bodies = request.bodies.into_iter().map(Some).chain(std::iter::repeat(None));
            for ((append, log), body) in request.appends.into_iter().zip(request.logs).zip(bodies) {
                results.push(self.lay_out(append, body, log, &mut group));
            }
            torn = torn.or_else(|| time_error_of_a_part(&results));
            group.completions.push((request.done, results));
        }
        if let Some(error) = torn {
            self.drop_unwritten(group, &error);
            return None;
        }
        Some(group)
    }

    /// Writes a group that was laid out, and syncs it if it asks for that.
    fn write(
        &mut self,
        group: &mut AppendGroup<S::Refusal>,
    ) -> Result<(), AppendError<S::Refusal>> {
        let begun = self.timekeeper.steady_now();
        let written = if !group.appends.is_empty() {
            self.journal.write(&mut group.frames, group.is_durable)
        } else if group.is_durable {
            // Refused as a duplicate: the original may have been written without a sync.
            self.journal.sync()
        } else {
            Ok(())
        };
        if group.is_durable {
            self.record_sync(self.timekeeper.steady_now().saturating_sub(begun));
        }
        written.map_err(|error| self.handle_write_error(error))?;
        // A full disk may still accept a write now and then.
        if self.refusals.record_success(|| self.timekeeper.steady_now()) {
            tracing::info!("the disk takes writes again");
        }
        Ok(())
    }

    /// Drops the newest group, which is not in the journal, or about which that is unknown.
    fn drop_unwritten(
        &mut self,
        mut group: AppendGroup<S::Refusal>,
        error: &AppendError<S::Refusal>,
    ) {
        self.next_group = group.number;
        self.stage.rollback(group.number);
        // The next start may find an interrupted group: no promise may ever close its stamps. So the
        // frontier stays below them for the rest of this incarnation.
        if self.stop_reason().is_none() {
            self.timekeeper.drop_groups(1);
        }
        group.fail(error);
        self.journal.recycle(group.frames);
    }

    fn make_room(&mut self, bytes: u64, makes_space: bool) -> Result<(), JournalWriteError> {
        if bytes == 0 {
            return Ok(());
        }
        let history = &self.shared.history;
        let made = self.journal.make_room(bytes, makes_space, &|| history.wait_for_room());
        self.queue_rolled();
        made
    }

    /// The end of a log behind all groups in flight, of which `group` is the newest.
    fn end_of(&self, group: &AppendGroup<S::Refusal>, log: &Log) -> Offset {
        let groups = std::iter::once(group).chain(self.in_flight.iter().rev());
        let ends = groups.filter_map(|group| group.ends.get(&log.id));
        ends.copied().next().unwrap_or_else(|| log.end())
    }

    fn lay_out(
        &mut self,
        mut append: LogAppend<S::Note>,
        body: Option<Digest>,
        log: Arc<Log>,
        group: &mut AppendGroup<S::Refusal>,
    ) -> Result<AppendReceipt, AppendError<S::Refusal>> {
        let base = self.end_of(group, &log);
        let stamp = self.timekeeper.stamp().map_err(AppendError::Time)?;
        let rest = append.payload.rest.len();
        self.stage.stage(&mut append, base, stamp).map_err(AppendError::Refused)?;
        // Bytes that the stage dropped are not hashed. The stage may not add any: the group's room
        // is taken.
        assert!(append.payload.rest.len() <= rest, "a stage only drops bytes");
        let body = match append.payload.rest.len() {
            now if now == rest => body,
            _ => body.map(|_| body_digest(&append.payload)),
        };
        let payload_crc = append.payload.crc(append.crc_from);
        let frame = FrameHeader {
            length: append.payload.len() as u32,
            payload_crc,
            stamp,
            log: append.log,
            base,
            count: append.count,
            epoch: append.epoch,
            user_min: append.user.0,
            user_max: append.user.1,
            synced_to: 0,
            kind: append.kind,
        };
        let position = self.journal.lay_out(&mut group.frames, frame, &append.payload, body);
        let entry = frame.entry_at(position);
        group.ends.insert(append.log, entry.end());
        group.appends.push(LaidOutAppend { log, entry, payload: Some(append.payload) });
        Ok(AppendReceipt { base, stamp, journal_end: group.frames.end() })
    }

    fn record_sync(&self, elapsed: Duration) {
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let stats = &self.shared.stats;
        stats.sync_latency.record(elapsed);
        stats.sync_micros_max.fetch_max(micros, Ordering::Relaxed);
    }

    /// Publishes the groups in flight that end at or below `position`, and completes their requests.
    pub(super) fn publish_to(&mut self, position: u64) {
        let is_reached = |group: &mut AppendGroup<_>| group.frames.end() <= position;
        while let Some(group) = self.in_flight.pop_front_if(is_reached) {
            if let Err(source) = self.replay(&group) {
                let doing = "read back an entry";
                self.note_write_error(JournalWriteError::Broken { doing, source });
                return self.in_flight.push_front(group);
            }
            self.publish(group);
        }
    }

    fn publish(&mut self, group: AppendGroup<S::Refusal>) {
        let AppendGroup { number, frames, appends, completions, is_durable, is_staged, .. } = group;
        let stats = &self.shared.stats;
        let mut grown: Vec<Arc<Log>> = Vec::new();
        stats.appends.fetch_add(appends.len() as u64, Ordering::Relaxed);
        frames.set_final();
        for LaidOutAppend { log, entry, payload } in appends {
            self.published_last = entry.stamp;
            if is_staged && let Some(payload) = &payload {
                self.stage.publish(log.id, &entry, payload);
            }
            let bytes = payload.as_ref().map(Payload::len);
            log.publish(entry, payload);
            bytes.into_iter().for_each(|bytes| self.tail.admit(&log, bytes));
            if !grown.last().is_some_and(|last| Arc::ptr_eq(last, &log)) {
                grown.push(log);
            }
        }
        self.stage.commit(number);
        self.published_to = frames.end();
        let synced_to = self.journal.synced_to().min(self.published_to);
        stats.groups.fetch_add(1, Ordering::Relaxed);
        stats.syncs.fetch_add(u64::from(is_durable), Ordering::Relaxed);
        stats.tail_bytes.store(self.tail.used_bytes() as u64, Ordering::Relaxed);
        stats.journal_end.store(self.published_to, Ordering::Relaxed);
        stats.bytes.fetch_add(frames.end() - frames.start(), Ordering::Relaxed);
        self.shared.history.foreground_bytes.store(self.published_to, Ordering::Relaxed);
        stats.synced_to.store(synced_to, Ordering::Relaxed);
        self.timekeeper.end_group(synced_to);
        for log in grown {
            log.notify_watchers();
        }
        self.journal.recycle(frames);
        self.queue_rolled();
        complete(completions);
    }

    /// Lets the stage take the entries of a group into account that it has not staged.
    fn replay(&mut self, group: &AppendGroup<S::Refusal>) -> Result<(), StorageError> {
        if group.is_staged {
            return Ok(());
        }
        for LaidOutAppend { log, entry, .. } in &group.appends {
            let segment = group.frames.segment().expect("an entry is in a segment");
            let mut start = vec![0; (entry.length as usize).min(PAYLOAD_HEADER_BYTES_MAX)];
            segment.read_exact(&mut start, entry.position)?;
            let (log, clean_to) = (log.id, Offset(0));
            let (file, at) = (&*segment.data, segment.at(entry.position));
            self.stage.replay(&ReplayedEntry { log, clean_to, entry, start: &start, file, at });
        }
        Ok(())
    }

    /// Queues for indexing the rolled segments whose last entry is published.
    pub(super) fn queue_rolled(&mut self) {
        self.shared.stats.open_since.store(self.journal.open_since().bits(), Ordering::Relaxed);
        while let Some(RolledSegment { open, end }) = self.journal.take_rolled(self.published_to) {
            let (history, OpenSegment { segment, leaves, .. }) = (&self.shared.history, open);
            if let Some(leaves) = leaves {
                history.cache_leaves(segment.start..end, leaves);
            }
            let stage_state = self.stage.state();
            history.push_unindexed(UnindexedSegment { segment, end, stage_state });
        }
    }

    fn handle_write_error(&mut self, error: JournalWriteError) -> AppendError<S::Refusal> {
        AppendError::Storage(self.note_write_error(error))
    }

    /// Stops the store if the content of the disk is unknown.
    pub(super) fn note_write_error(&mut self, error: JournalWriteError) -> StorageError {
        match error {
            JournalWriteError::Refused(error) => {
                if let Some(refused) = self.refusals.record_failure(self.timekeeper.steady_now()) {
                    tracing::error!(
                        %error,
                        refused,
                        "the disk refused a write; it was taken back whole"
                    );
                }
                error
            }
            JournalWriteError::Broken { doing, source } => {
                let why: Arc<str> = source.during(doing).to_string().into();
                tracing::error!(error = %why, "the store stops: what is on the disk is not known");
                self.shared.queue.state.lock().stopped = Some(Arc::clone(&why));
                self.shared.history.report_stop();
                StorageError::Stopped { why }
            }
        }
    }
}

/// The reason a part of a request got no stamp, if another part did. The appends of a request may
/// rely on each other, and the clock is all that can come between them.
fn time_error_of_a_part<R: Clone>(
    results: &[Result<AppendReceipt, AppendError<R>>],
) -> Option<AppendError<R>> {
    if !results.iter().any(Result::is_ok) {
        return None;
    }
    results.iter().find_map(|result| match result {
        Err(AppendError::Time(error)) => Some(AppendError::Time(error.clone())),
        _ => None,
    })
}

/// Takes the requests of the next group.
fn take_group<S: AppendStage>(state: &mut StoreRequestQueueState<S>) -> Vec<StoreRequest<S>> {
    let (mut group, mut bytes) = (Vec::new(), 0);
    // A request that may use the reserve forms a group of its own.
    let ends = |group: &[StoreRequest<S>], next: &StoreRequest<S>| {
        next.uses_reserve || group.last().is_some_and(|last| last.uses_reserve)
    };
    while bytes < GROUP_BYTES {
        let Some(request) = state.requests.pop_front() else { break };
        if !group.is_empty() && ends(&group, &request) {
            state.requests.push_front(request);
            break;
        }
        let sum = |append: &LogAppend<S::Note>| append.payload.len() as u64;
        bytes += request.appends.iter().map(sum).sum::<u64>();
        group.push(request);
    }
    group
}

pub(super) fn fail<S: AppendStage>(
    request: StoreRequest<S>,
    error: &AppendError<S::Refusal>,
) -> AppendCompletion<S::Refusal> {
    let results = request.appends.iter().map(|_| Err(error.clone())).collect();
    (request.done, results)
}

pub(super) fn complete<R>(completions: Vec<AppendCompletion<R>>) {
    for (done, results) in completions {
        done(results);
    }
}

/// Held by a thread that others depend on: a panic there ends the process.
pub struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("freezeframe: an invariant was lost; stopping");
            std::process::abort();
        }
    }
}
