//! The store: logs over one journal, which one thread writes.
//!
//! A group is written as follows. Requests gather in a queue. The writer stamps each append, lets
//! the [`AppendStage`] fill in or refuse it, lays out the frames and writes them with one call. It
//! syncs once if a request wants that, publishes the entries in their logs once they are committed,
//! and only then completes the requests. The next group gathers meanwhile, so waiting for a group
//! needs no timer. Who commits is a [`Commit`].

mod append_group;
mod commit;
mod opening;
mod replay;
mod request;
mod take_over;
mod undo_log;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use hlc::{ClockOptions, Cut, Hlc, SysTime};
use parking_lot::Mutex;

use crate::backup::{BackupPoint, JournalPoint};
use crate::data_cache::DataCache;
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::history::{
    CompactionHorizon, CompactionSource, HistoryStats, ReclaimStats, SealedHistory,
};
use crate::index::{BlockCache, LogTip};
use crate::latency::LatencyHistogram;
use crate::log::Log;
use crate::proof::SigningKey;
use crate::sealed_segment::SealedSegment;
use crate::timekeeper::Timekeeper;
pub use commit::{Commit, CommitAuthority, PromiseBound, TruncateError, WrittenGroup};
pub use opening::OpenError;
use replay::{ReplayCollector, check_continuation, replay_segments};
pub use replay::{ReplayHandler, ReplayedEntry};
pub use request::{AppendError, AppendReceipt, AppendResults, AppendStage, Durability, LogAppend};
use request::{StoreRequest, StoreRequestQueue, StoreRequestQueueState};
pub use take_over::{ForeignGroup, TakeOverError};
pub use undo_log::{GroupNumber, UndoLog};
pub use writer::AbortOnPanic;
use writer::StoreWriter;

/// The options with which a store keeps its journal.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The point at which an append that asks for durability is complete.
    pub durability: Durability,
    /// A segment is rolled before it grows longer than this, in bytes.
    pub segment_bytes_max: u64,
    /// A segment is rolled before it holds more frames than this: entries without an index file are
    /// held in memory.
    pub segment_frames_max: u64,
    /// The number of bytes of the newest payloads that stay in memory. Cached blocks of old data
    /// may use the rest of this budget.
    pub tail_bytes_max: usize,
    /// The number of bytes of index files that stay in memory.
    pub index_bytes_max: usize,
    /// The number of unused logs that stay in memory.
    pub idle_logs_max: usize,
    /// In at most this many of the newest sealed segments, a log that is not in memory is looked up
    /// segment by segment. For older segments, latest-run tables say where to look.
    pub uncovered_segments_max: usize,
    /// Sealed segments of at most this many bytes are merged with their neighbours first; larger
    /// ones are merged later, in levels. If it is 0, none are merged.
    pub merge_bytes_min: u64,
    /// A secret of this incarnation of the store. A payload made without knowledge of it cannot
    /// pass for frames. A service draws it at random.
    pub salt: u64,
    /// True if indexing and sorting wait for [`Store::run_maintenance`] instead of running on their
    /// own thread. A test run is reproducible only with this.
    pub manual_maintenance: bool,
    /// True if no thread is started at all: writing waits for [`Store::step`], maintenance for
    /// [`Store::run_maintenance`]. A simulation uses it to decide what happens when.
    pub manual_stepping: bool,
    /// True if a proof is written for each sealed segment.
    pub proofs: bool,
    /// The limits within which clocks may be wrong.
    pub clock: ClockOptions,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            durability: Durability::Synced,
            segment_bytes_max: 256 << 20,
            segment_frames_max: 100_000,
            tail_bytes_max: 64 << 20,
            index_bytes_max: 32 << 20,
            idle_logs_max: 4096,
            uncovered_segments_max: 8,
            merge_bytes_min: 64 << 10,
            salt: 0,
            manual_maintenance: false,
            manual_stepping: false,
            proofs: true,
            clock: ClockOptions::default(),
        }
    }
}

/// Counters for metrics.
#[derive(Debug, Default)]
pub struct StoreStats {
    /// Groups written.
    pub groups: AtomicU64,
    /// Groups synced.
    pub syncs: AtomicU64,
    /// The time that the groups that were synced took to be written and synced.
    pub sync_latency: LatencyHistogram,
    /// The time that the slowest of them took, in microseconds.
    pub sync_micros_max: AtomicU64,
    /// Appends that became visible.
    pub appends: AtomicU64,
    /// Bytes of journal written, headers included.
    pub bytes: AtomicU64,
    /// Bytes that payloads in memory take, with the overhead of each.
    pub tail_bytes: AtomicU64,
    pub journal_end: AtomicU64,
    /// Everything below this position is on stable storage.
    pub synced_to: AtomicU64,
    /// The first stamp in the segment that is being written; 0 if it has no entry yet.
    open_since: AtomicU64,
}

struct StoreContext<S: AppendStage> {
    queue: StoreRequestQueue<S>,
    history: Arc<SealedHistory>,
    stats: StoreStats,
}

impl<S: AppendStage> StoreContext<S> {
    /// The reason the store takes no more writes, if it has stopped.
    fn stop_reason(&self) -> Option<Arc<str>> {
        let stopped = self.queue.state.lock().stopped.clone();
        stopped.or_else(|| self.history.journal_loss.get().cloned())
    }
}

/// Returns the log with a given id.
pub type LogSource = Arc<dyn Fn(LogId) -> Result<Arc<Log>, StorageError> + Send + Sync>;

/// Logs over one journal.
pub struct Store<S: AppendStage> {
    shared: Arc<StoreContext<S>>,
    data_cache: Arc<DataCache>,
    timekeeper: Arc<Timekeeper>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The writer, if it has no thread of its own.
    stepped_writer: Mutex<Option<StoreWriter<S>>>,
    /// The number of bytes of torn tail that recovery truncated.
    pub torn_bytes: u64,
}

impl<S: AppendStage> Store<S> {
    /// Starts the thread that indexes, proves and sorts, for a store that was opened with manual
    /// maintenance. Proofs are signed with `key`.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub fn start_maintenance(&self, key: Option<Arc<SigningKey>>) -> Result<(), StorageError> {
        let history = Arc::clone(&self.shared.history);
        if let Some(key) = key {
            let _ = history.signing_key.set(key);
        }
        let timekeeper = Arc::clone(&self.timekeeper);
        let thread = std::thread::Builder::new().name("maintenance".to_owned());
        let run = move || {
            let abort = AbortOnPanic;
            history.maintenance_loop(&timekeeper);
            std::mem::forget(abort);
        };
        self.threads.lock().push(thread.spawn(run)?);
        Ok(())
    }

    /// Does one step of a [manually stepped](Options::manual_stepping) store: writes one group, and
    /// renews the clock's bound. Returns whether there was anything to do.
    pub fn step(&self) -> bool {
        let wrote = self.stepped_writer.lock().as_mut().is_some_and(StoreWriter::step);
        self.timekeeper.renew_manually() || wrote
    }

    /// The log `id`; empty if nothing was ever appended to it.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn log(&self, id: LogId) -> Result<Arc<Log>, StorageError> {
        self.shared.history.log(id)
    }

    /// [`Store::log`], for a thread that does not hold the store.
    pub fn log_source(&self) -> LogSource {
        let history = Arc::clone(&self.shared.history);
        Arc::new(move |id| history.log(id))
    }

    /// Runs the maintenance that is due on sealed segments: indexes them, rebuilds corrupt indexes,
    /// and sorts those that are worth it.
    ///
    /// # Errors
    /// The disk fails; unfinished work is retried.
    pub fn run_maintenance(&self) -> Result<(), StorageError> {
        self.timekeeper.record_synced();
        self.shared.history.run_maintenance()
    }

    /// The first stamp in the segment that is being written, if it has an entry.
    pub fn open_since(&self) -> Option<Hlc> {
        let since = Hlc::from_bits(self.shared.stats.open_since.load(Ordering::Relaxed));
        (since > Hlc::ZERO).then_some(since)
    }

    /// Rolls the segment that is being written, so that it can be indexed and sorted. It is rolled
    /// before anything that is appended later.
    pub fn roll_segment(&self) {
        self.shared.queue.state.lock().wants_roll = true;
        self.shared.queue.filled.notify_one();
    }

    /// Advances the log start of each named log. Everything in front of it is gone for ever; the
    /// second call of [`Store::reclaim`] after this one reclaims its space.
    ///
    /// # Errors
    /// The disk fails; then no log start has advanced.
    pub fn advance_log_start(&self, starts: &[(LogId, Offset)]) -> Result<(), StorageError> {
        // A log start never lies beyond what survives a crash: otherwise offsets would be assigned
        // twice. So it is limited to where the log ended before the sync.
        let within = |(id, start): &(LogId, Offset)| Ok((*id, (*start).min(self.log(*id)?.end())));
        let starts =
            starts.iter().map(within).collect::<Result<Vec<(LogId, Offset)>, StorageError>>()?;
        self.sync()?;
        self.shared.history.advance_log_start(&starts)
    }

    /// Puts everything visible on stable storage, whatever durability its appends had.
    ///
    /// # Errors
    /// The store has stopped.
    pub fn sync(&self) -> Result<(), StorageError> {
        let (sender, synced) = std::sync::mpsc::channel();
        self.when_synced(move || {
            let _ = sender.send(());
        });
        while self.step() {}
        // The writer drops the sender of a request that it does not complete.
        let _ = synced.recv();
        // A sync for indexing may also have failed: then the writer has refused this one.
        match (self.shared.stop_reason(), self.is_closing()) {
            (Some(why), _) => Err(StorageError::Stopped { why }),
            // The request may have been refused because of that.
            (None, true) => Err(StorageError::Interrupted),
            (None, false) => Ok(()),
        }
    }

    /// Begins a backup: syncs the journal, and keeps the files that it consists of until the result
    /// is dropped. Space that retention or compaction frees meanwhile is reclaimed afterwards.
    /// Appends go on.
    ///
    /// # Errors
    /// The store has stopped, or is closing.
    pub fn begin_backup(&self) -> Result<BackupPoint, StorageError> {
        let history = &self.shared.history;
        let hold = history.hold_files(self.timekeeper.wall_now());
        // First, so that it names nothing behind the end.
        let manifest = history.manifest();
        let frontier = self.timekeeper.frontier();
        self.sync()?;
        let end = self.shared.stats.synced_to.load(Ordering::Acquire);
        assert!(manifest.indexed_to <= end, "what is indexed is on stable storage");
        let point = JournalPoint { manifest, end, frontier, mark: self.timekeeper.durable_mark() };
        Ok(BackupPoint { point, hold })
    }

    /// The start of the oldest backup in progress.
    pub fn oldest_backup(&self) -> Option<SysTime> {
        self.shared.history.oldest_hold()
    }

    /// The bytes of files that are kept for backups alone. It looks at the disk.
    pub fn backup_held_bytes(&self) -> u64 {
        self.shared.history.held_bytes()
    }

    /// Reclaims the space of what was removed or replaced before the last call.
    ///
    /// # Errors
    /// The disk fails; what was not reclaimed is retried.
    pub fn reclaim(&self) -> Result<ReclaimStats, StorageError> {
        self.shared.history.reclaim()
    }

    /// Removes unknown logs from the manifest, if no file refers to them; returns how many.
    /// `is_known` says which logs may still be used, at any time. The other logs are empty, and
    /// nobody appends to them again.
    ///
    /// # Errors
    /// The disk fails; then no log is removed.
    pub fn remove_logs(&self, is_known: &dyn Fn(LogId) -> bool) -> Result<usize, StorageError> {
        self.shared.history.remove_logs(is_known)
    }

    /// The offset up to which a log can be replaced such that all that is replaced lies in `cut`,
    /// and the stamp of the last entry before it. Offset 0 if there is nothing to replace.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn replaceable_prefix(&self, log: LogId, cut: Cut) -> Result<(Offset, Hlc), StorageError> {
        let log = self.log(log)?;
        let tip = log.current_sealed_log().tip_of_whole(|run| cut.admits(run.tip.stamp))?;
        let tip = if cut.admits(tip.stamp) { tip } else { LogTip::NONE };
        let tip = if log.horizon().admits_compacted_prefix(tip.end) { tip } else { LogTip::NONE };
        Ok((tip.end, tip.stamp))
    }

    /// Puts the entries that `fill` emits in place of all that `log` has below `until`, an offset
    /// that [`Store::replaceable_prefix`] returned. Returns whether that was done. It is not done
    /// if `confirm` returns false (it is called once, just before), if the log start has passed
    /// `until` meanwhile, or if another replacement of the log is running.
    ///
    /// Entries come in order. The last entry below `until` has to be among them, because cuts end
    /// there.
    ///
    /// # Errors
    /// The disk fails, or `fill` does; then nothing has changed.
    pub fn replace_prefix<E: From<StorageError>>(
        &self,
        log: LogId,
        until: Offset,
        fill: CompactionSource<'_, E>,
        confirm: &mut dyn FnMut(&CompactionHorizon) -> bool,
    ) -> Result<bool, E> {
        self.shared.history.replace_prefix(log, until, fill, confirm)
    }

    pub fn sealed_segments(&self) -> Arc<Vec<Arc<SealedSegment>>> {
        self.shared.history.sealed_segments.all()
    }

    /// Counters of the maintenance of sealed segments.
    pub fn history_stats(&self) -> &HistoryStats {
        &self.shared.history.stats
    }

    pub fn index_cache(&self) -> &BlockCache {
        &self.shared.history.cache
    }

    /// The cache of data file blocks.
    pub fn data_cache(&self) -> &Arc<DataCache> {
        &self.data_cache
    }

    /// The clock, and the frontier.
    pub fn timekeeper(&self) -> &Arc<Timekeeper> {
        &self.timekeeper
    }

    pub fn stats(&self) -> &StoreStats {
        &self.shared.stats
    }

    /// The number of data files.
    pub fn segment_count(&self) -> usize {
        self.shared.history.segments.count() + self.shared.history.sealed_segments.count()
    }

    pub fn is_closing(&self) -> bool {
        self.shared.queue.state.lock().closing
    }

    /// The reason the store takes no more writes, if so.
    pub fn stop_reason(&self) -> Option<Arc<str>> {
        self.shared.stop_reason()
    }

    /// Has `notify` called when the store stops ([`Store::stop_reason`]), from now on. It may be
    /// called more than once, on any thread, and must not block.
    ///
    /// # Panics
    /// It was called before.
    pub fn on_stop(&self, notify: impl Fn() + Send + Sync + 'static) {
        let is_first = self.shared.history.on_stop.set(Box::new(notify)).is_ok();
        assert!(is_first, "one listener waits for the store to stop");
    }

    /// Completes what is queued, syncs the journal, and closes the bound file. If a completion
    /// calls it, on the writer's own thread, it does not wait for that.
    pub fn close(&self) {
        self.shared.queue.state.lock().closing = true;
        self.shared.queue.filled.notify_all();
        self.shared.history.close();
        let by_hand = self.stepped_writer.lock().take();
        if let Some(writer) = by_hand {
            writer.run();
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        let current = std::thread::current().id();
        if threads.iter().any(|thread| thread.thread().id() == current) {
            return;
        }
        for thread in threads {
            // A panic there is a broken invariant. It has aborted the process, or its own message
            // reports it.
            let _ = thread.join();
        }
    }
}

impl<S: AppendStage> Drop for Store<S> {
    fn drop(&mut self) {
        self.close();
    }
}
