//! The writer: the one thread that appends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::{
    AppendError, AppendReceipt, AppendResults, AppendStage, Durability, LogAppend, StoreContext,
    StoreRequest, StoreRequestQueueState,
};
use crate::entry::{Entry, LogId, Offset};
use crate::error::StorageError;
use crate::history::UnindexedSegment;
use crate::journal::{
    FRAME_BYTES, FrameHeader, JournalWriteError, JournalWriter, RolledSegment, padded,
};
use crate::log::Log;
use crate::log_throttle::LogThrottle;
use crate::payload::Payload;
use crate::proof::{Digest, body_digest};
use crate::tail::PayloadTail;
use crate::timekeeper::Timekeeper;

/// A group is closed once it holds this many bytes of payload.
const GROUP_BYTES: u64 = 16 << 20;

pub(super) struct StoreWriter<S: AppendStage> {
    pub(super) shared: Arc<StoreContext<S>>,
    pub(super) timekeeper: Arc<Timekeeper>,
    pub(super) journal: JournalWriter,
    pub(super) stage: S,
    pub(super) tail: PayloadTail,
    pub(super) durability: Durability,
    pub(super) refusals: LogThrottle,
}

/// An append whose frame is laid out, and that is not visible yet.
struct BufferedAppend {
    log: Arc<Log>,
    entry: Entry,
    payload: Payload,
}

pub(super) type AppendCompletion<R> = (Box<dyn FnOnce(AppendResults<R>) + Send>, AppendResults<R>);

impl<S: AppendStage> StoreWriter<S> {
    pub(super) fn run(mut self) {
        // A panic on this thread is a broken invariant: the process must not continue to answer.
        let abort = AbortOnPanic;
        while let Some(gathered) = self.wait_for_group() {
            self.process(gathered);
        }
        // After a failed sync the next one reports success, and that is false.
        if self.stop_reason().is_none()
            && let Err(error) = self.journal.sync()
        {
            tracing::error!(%error, "the journal was not synced at the end");
        }
        self.timekeeper.close(self.journal.synced_to());
        std::mem::forget(abort);
    }

    /// Handles what is queued, without waiting; returns whether there was anything.
    pub(super) fn step(&mut self) -> bool {
        let state = self.shared.queue.state.lock();
        if state.requests.is_empty() && !state.wants_roll {
            return false;
        }
        let gathered = take_group(state);
        self.process(gathered);
        true
    }

    fn process(&mut self, (group, wants_seal): AppendGroup<S>) {
        if wants_seal && self.stop_reason().is_none() {
            self.roll_segment();
        }
        if !group.is_empty() {
            self.write_group(group);
        }
    }

    /// Waits for requests, and takes those that are queued.
    fn wait_for_group(&self) -> Option<AppendGroup<S>> {
        let queue = &self.shared.queue;
        let mut state = queue.state.lock();
        while state.requests.is_empty() && !state.wants_roll {
            if state.closing {
                return None;
            }
            queue.filled.wait(&mut state);
        }
        Some(take_group(state))
    }

    fn roll_segment(&mut self) {
        let StoreWriter { journal, stage, shared, .. } = self;
        if let Err(error) =
            journal.roll_segment(&mut |sealed| queue_for_indexing(shared, stage, sealed))
        {
            self.handle_write_error(error);
        }
    }

    fn stop_reason(&self) -> Option<Arc<str>> {
        self.shared.stop_reason()
    }

    fn write_group(&mut self, group: Vec<StoreRequest<S>>) {
        // Requests queued before the store stopped are not written after it.
        if let Some(why) = self.stop_reason() {
            let error = AppendError::Storage(StorageError::Stopped { why });
            return complete(group.into_iter().map(|request| fail(request, &error)).collect());
        }
        let durable = group.iter().any(|request| {
            request.must_sync
                || (self.durability, request.durability) == (Durability::Synced, Durability::Synced)
        });
        let room: u64 = group
            .iter()
            .flat_map(|request| &request.appends)
            .map(|append| FRAME_BYTES as u64 + padded(append.payload.len() as u64))
            .sum();
        let makes_space = group.iter().any(|request| request.uses_reserve);
        if let Err(error) = self.make_room(room, makes_space) {
            let mut error = self.handle_write_error(error);
            // Requests other than appends do not depend on space for appends.
            if durable
                && self.stop_reason().is_none()
                && let Err(unsynced) = self.journal.sync()
            {
                error = self.handle_write_error(unsynced);
            }
            return complete(group.into_iter().map(|request| fail(request, &error)).collect());
        }
        self.timekeeper.begin_group();
        let mut ends: HashMap<LogId, Offset> = HashMap::new();
        let mut appends = Vec::new();
        let mut completions: Vec<AppendCompletion<S::Refusal>> = Vec::with_capacity(group.len());
        let mut torn = None;
        for request in group {
            let mut results = Vec::with_capacity(request.appends.len());
            let bodies = request.bodies.into_iter().map(Some).chain(std::iter::repeat(None));
            for ((append, log), body) in request.appends.into_iter().zip(request.logs).zip(bodies) {
                results.push(self.buffer_append(append, body, log, &mut ends, &mut appends));
            }
            torn = torn.or_else(|| time_error_of_a_part(&results));
            completions.push((request.done, results));
        }
        if let Some(error) = torn {
            self.journal.discard_group();
            self.stage.rollback();
            self.timekeeper.end_group(self.journal.synced_to());
            for result in completions.iter_mut().flat_map(|(_, results)| results) {
                *result = Err(error.clone());
            }
            return complete(completions);
        }
        let begun = self.timekeeper.steady_now();
        let written = if !appends.is_empty() {
            self.journal.write(durable)
        } else if durable {
            // Refused as a duplicate: the original may have been written without a sync.
            self.journal.sync()
        } else {
            Ok(())
        };
        if durable {
            self.record_sync(self.timekeeper.steady_now().saturating_sub(begun));
        }
        if let Err(error) = written {
            // The next start may find an interrupted group: no promise may ever close its stamps.
            // So the frontier stays below them for the rest of this incarnation.
            let is_gone = matches!(error, JournalWriteError::Refused(_));
            let error = self.handle_write_error(error);
            self.stage.rollback();
            if is_gone {
                self.timekeeper.end_group(self.journal.synced_to());
            }
            // Refusals too: they took appends into account that are gone now.
            for result in completions.iter_mut().flat_map(|(_, results)| results) {
                *result = Err(error.clone());
            }
            return complete(completions);
        }
        // A full disk may still accept a write now and then.
        if self.refusals.record_success(|| self.timekeeper.steady_now()) {
            tracing::info!("the disk takes writes again");
        }
        self.publish(appends, durable);
        complete(completions);
    }

    fn make_room(&mut self, bytes: u64, makes_space: bool) -> Result<(), JournalWriteError> {
        if bytes == 0 {
            return Ok(());
        }
        let StoreWriter { journal, stage, shared, .. } = self;
        journal
            .make_room(bytes, makes_space, &mut |sealed| queue_for_indexing(shared, stage, sealed))
    }

    fn buffer_append(
        &mut self,
        mut append: LogAppend<S::Note>,
        body: Option<Digest>,
        log: Arc<Log>,
        ends: &mut HashMap<LogId, Offset>,
        appends: &mut Vec<BufferedAppend>,
    ) -> Result<AppendReceipt, AppendError<S::Refusal>> {
        let base = *ends.entry(append.log).or_insert_with(|| log.end());
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
        let position = self.journal.buffer_frame(frame, &append.payload, body);
        let since = &self.shared.stats.open_since;
        if since.load(Ordering::Relaxed) == 0 {
            since.store(stamp.bits(), Ordering::Relaxed);
        }
        let entry = frame.entry_at(position);
        ends.insert(append.log, entry.end());
        appends.push(BufferedAppend { log, entry, payload: append.payload });
        Ok(AppendReceipt { base, stamp, journal_end: self.journal.buffered_to() })
    }

    fn record_sync(&self, elapsed: Duration) {
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let stats = &self.shared.stats;
        stats.sync_latency.record(elapsed);
        stats.sync_micros_max.fetch_max(micros, Ordering::Relaxed);
    }

    fn publish(&mut self, appends: Vec<BufferedAppend>, durable: bool) {
        let stats = &self.shared.stats;
        let mut grown: Vec<Arc<Log>> = Vec::new();
        stats.appends.fetch_add(appends.len() as u64, Ordering::Relaxed);
        for BufferedAppend { log, entry, payload } in appends {
            let bytes = payload.len();
            log.publish(entry, Some(payload));
            self.tail.admit(&log, bytes);
            if !grown.last().is_some_and(|last| Arc::ptr_eq(last, &log)) {
                grown.push(log);
            }
        }
        self.stage.commit();
        stats.groups.fetch_add(1, Ordering::Relaxed);
        stats.syncs.fetch_add(u64::from(durable), Ordering::Relaxed);
        stats.tail_bytes.store(self.tail.used_bytes() as u64, Ordering::Relaxed);
        let before = stats.journal_end.swap(self.journal.end(), Ordering::Relaxed);
        stats.bytes.fetch_add(self.journal.end() - before, Ordering::Relaxed);
        self.shared.history.foreground_bytes.store(self.journal.end(), Ordering::Relaxed);
        stats.synced_to.store(self.journal.synced_to(), Ordering::Relaxed);
        self.timekeeper.end_group(self.journal.synced_to());
        for log in grown {
            log.notify_watchers();
        }
    }

    fn handle_write_error(&mut self, error: JournalWriteError) -> AppendError<S::Refusal> {
        AppendError::Storage(match error {
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
        })
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

/// A group, and whether the segment before it is to be rolled.
type AppendGroup<S> = (Vec<StoreRequest<S>>, bool);

fn take_group<S: AppendStage>(
    mut state: MutexGuard<'_, StoreRequestQueueState<S>>,
) -> AppendGroup<S> {
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
    (group, std::mem::take(&mut state.wants_roll))
}

/// Queues a rolled segment for indexing, once there are not too many.
fn queue_for_indexing<S: AppendStage>(
    shared: &StoreContext<S>,
    stage: &S,
    RolledSegment { segment, end, leaves }: RolledSegment,
) -> Result<(), StorageError> {
    let history = &shared.history;
    history.wait_for_room()?;
    shared.stats.open_since.store(0, Ordering::Relaxed);
    if let Some(leaves) = leaves {
        history.cache_leaves(segment.start..end, leaves);
    }
    history.push_unindexed(UnindexedSegment { segment, end, stage_state: stage.state() });
    Ok(())
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
