//! Sealed segments, and their maintenance: indexing, sorting, merging, retention, reclaiming,
//! replacing.
//!
//! Invariants:
//! - A sealed segment is indexed once it is on stable storage, and only then does the manifest name
//!   it. Whatever the manifest does not name yet is read back from the journal at the next start.
//! - A reader that finds an entry can read it: files are removed, and space is reclaimed, only for
//!   entries that no log has looked up since the previous round.
//! - Every step ends with one write of the manifest. A crash before it leaves files that the
//!   manifest does not name; a crash after it leaves the files that the step replaced. The next
//!   start removes both.

mod indexing;
mod loading;
mod log_removal;
mod log_start;
mod merging;
mod opening;
mod prefix_replacement;
mod proof_pruning;
mod proving;
mod rebuilding;
mod sorting;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use hlc::SysTime;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::disk::Disk;
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::index::{BlockCache, LatestRunTable};
use crate::journal::{JournalSegments, Segment};
use crate::log::{CompactedPrefix, IndexedTip, Log, LogPrefix};
use crate::log_throttle::LogThrottle;
use crate::manifest::{Manifest, ManifestEdit, ManifestWriter};
use crate::proof::{FrameLeaves, SigningKey};
use crate::sealed_segment::SealedSegments;
use crate::space_reserve::SpaceReserve;
use crate::storage_file::StorageFile;
use crate::timekeeper::Timekeeper;
pub(crate) use loading::open_latest_run_tables;
use log_removal::LogRemovalAttempt;
pub use log_start::ReclaimStats;
pub use opening::HistoryError;
pub(crate) use opening::{HistoryBuilder, StageSnapshot};
pub use prefix_replacement::{CompactedEntry, CompactionHorizon, CompactionSource, EntrySink};

/// The pause of maintenance when there is nothing to do, or nothing can be done.
const MAINTENANCE_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);
/// The writer waits once this many sealed segments are not indexed: their entries are held in
/// memory.
const UNINDEXED_SEGMENTS_MAX: usize = 4;

/// The leaves of this many segments without a proof are kept in memory. The proofs of earlier
/// segments are made from their files.
const UNPROVED_SEGMENTS_MAX: usize = 8;

/// The leaves of a segment that has no proof yet.
struct UnprovedSegment {
    end: u64,
    leaves: Arc<FrameLeaves>,
}

/// A segment that is rolled and has no index yet.
#[derive(Debug)]
pub(crate) struct UnindexedSegment {
    pub(crate) segment: Arc<Segment>,
    /// The position after its last frame.
    pub(crate) end: u64,
    /// The stage's state at that position.
    pub(crate) stage_state: Vec<u8>,
}

/// Counters of the maintenance of sealed segments.
#[derive(Debug, Default)]
pub struct HistoryStats {
    pub indexed: AtomicU64,
    pub sorted: AtomicU64,
    /// Sealed segments that were merged into others.
    pub merged: AtomicU64,
    /// Bytes of data files that sorting and merging wrote.
    pub sorted_bytes: AtomicU64,
    pub removed_files: AtomicU64,
    /// Bytes reclaimed inside files that stay.
    pub reclaimed_bytes: AtomicU64,
    /// Proofs written.
    pub proved: AtomicU64,
    /// Indexes rebuilt because they were lost or corrupt.
    pub rebuilt: AtomicU64,
    /// Logs whose beginning was replaced by a compacted prefix.
    pub replaced_prefixes: AtomicU64,
    /// Logs that were removed from the manifest.
    pub removed_logs: AtomicU64,
}

/// The iteration order is the same in each run of a simulation. Only the store's user chooses ids,
/// so no random hash is needed.
type LoadedLogs = HashMap<LogId, Arc<Log>, BuildHasherDefault<DefaultHasher>>;

/// The sealed part of the store.
pub(crate) struct SealedHistory {
    pub(crate) disk: Arc<dyn Disk>,
    reserve: Arc<SpaceReserve>,
    pub(crate) segments: Arc<JournalSegments>,
    pub(crate) sealed_segments: Arc<SealedSegments>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) stats: HistoryStats,
    /// The logs that are in memory. Lock order: the manifest first.
    logs: RwLock<LoadedLogs>,
    /// The compacted prefixes of logs that are not loaded yet.
    unloaded_prefixes: Mutex<HashMap<LogId, Arc<CompactedPrefix>>>,
    /// The number of times that logs were dropped from memory.
    evictions: AtomicU64,
    /// The largest number of unused logs in memory.
    idle_logs_max: usize,
    /// Sealed segments up to this size are merged with their neighbours first.
    merge_bytes_min: u64,
    /// The largest number of the newest sealed segments that may lack a latest-run table.
    uncovered_segments_max: usize,
    /// Latest-run tables, by position, without gaps from the journal's beginning.
    latest_run_tables: RwLock<Arc<[Arc<LatestRunTable>]>>,
    manifest: Mutex<Manifest>,
    /// Lock order: the manifest first.
    manifest_writer: Mutex<ManifestWriter>,
    /// Held by any step that removes or replaces files: one at a time.
    reclaim_state: Mutex<ReclaimState>,
    /// Data files that nothing names any more.
    unreferenced_files: Mutex<Vec<String>>,
    indexing_queue: Mutex<IndexingQueue>,
    changed: Condvar,
    /// The starts of the backups in progress. They need the files as they are.
    holds: Mutex<Vec<SysTime>>,
    /// Held while maintenance runs.
    maintenance_lock: Mutex<()>,
    /// True if proofs are written: up to `proved_to`, and signed by `signing_key`.
    pub(crate) proves: bool,
    proved_to: AtomicU64,
    /// True if there may be something to prune from proofs.
    proof_pruning_due: AtomicBool,
    /// The leaves of segments that are not proved yet, by position; at most
    /// [`UNPROVED_SEGMENTS_MAX`].
    unproved: Mutex<BTreeMap<u64, UnprovedSegment>>,
    pub(crate) signing_key: OnceLock<Arc<SigningKey>>,
    /// The sequence of the manifest that is on stable storage, for the bound file.
    manifest_sequence: Arc<AtomicU64>,
    /// True if the last write of the manifest failed: then it is unknown which of two versions the
    /// disk has.
    is_manifest_in_doubt: AtomicBool,
    /// The reason entries of the journal may be lost, if a sync of it failed.
    pub(crate) journal_loss: OnceLock<Arc<str>>,
    /// Called when the store stops.
    pub(crate) on_stop: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Set when maintenance is to end soon.
    pub(crate) is_closing: AtomicBool,
    /// Bytes of journal that were written, for the throttle of maintenance.
    pub(crate) foreground_bytes: AtomicU64,
    /// The number of them that the throttle has seen.
    throttled_to: AtomicU64,
}

#[derive(Default)]
struct IndexingQueue {
    segments: VecDeque<UnindexedSegment>,
    /// The error of the last attempt to index, if it failed.
    last_failure: Option<StorageError>,
    /// True if a maintenance thread is running.
    has_maintenance_thread: bool,
}

/// The data that was removed before the last round, and may be reclaimed in the next.
#[derive(Default)]
struct ReclaimState {
    reclaimable: BTreeMap<LogId, Offset>,
    /// Data files that nothing has named since then.
    unreferenced_files: Vec<String>,
    /// The last generation of a compacted prefix in this incarnation.
    last_generation: u64,
    /// Logs for which a compacted prefix is being written.
    replacing: HashSet<LogId>,
    /// The last search of sealed segments for logs to remove.
    log_removal: LogRemovalAttempt,
}

/// Keeps data files, and the space in them, while it exists.
pub(crate) struct FilesHold {
    history: Arc<SealedHistory>,
    begun: SysTime,
}

impl std::fmt::Debug for FilesHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilesHold").field("begun", &self.begun).finish_non_exhaustive()
    }
}

impl Drop for FilesHold {
    fn drop(&mut self) {
        let mut holds = self.history.holds.lock();
        let position = holds.iter().position(|begun| *begun == self.begun);
        holds.swap_remove(position.expect("it was added, and ends once"));
    }
}

impl SealedHistory {
    /// Keeps the files that the manifest names `now` or later, until the result is dropped.
    pub(crate) fn hold_files(self: &Arc<SealedHistory>, now: SysTime) -> FilesHold {
        self.holds.lock().push(now);
        let hold = FilesHold { history: Arc::clone(self), begun: now };
        // A round that began before has ended then.
        drop(self.reclaim_state.lock());
        hold
    }

    /// Returns true if a backup needs the files as they are.
    fn is_held(&self) -> bool {
        !self.holds.lock().is_empty()
    }

    /// The start of the oldest backup in progress.
    pub(crate) fn oldest_hold(&self) -> Option<SysTime> {
        self.holds.lock().iter().min().copied()
    }

    /// The bytes of files that nothing names any more, and that are there for a backup alone.
    pub(crate) fn held_bytes(&self) -> u64 {
        if !self.is_held() {
            return 0;
        }
        let names = self.unreferenced_files.lock().clone();
        let length = |name: &String| StorageFile::open(&*self.disk, name)?.length();
        names.iter().filter_map(|name| length(name).ok()).sum()
    }

    /// The manifest as it is now.
    pub(crate) fn manifest(&self) -> Manifest {
        self.manifest.lock().clone()
    }

    /// Changes the manifest, in memory and on stable storage.
    ///
    /// # Errors
    /// The disk fails. In memory nothing has changed; the disk may have either version.
    fn commit_manifest(
        &self,
        current: &mut Manifest,
        edit: &ManifestEdit,
    ) -> Result<(), StorageError> {
        // Another incarnation of the store may have begun.
        if self.is_closing() {
            return Err(StorageError::Interrupted);
        }
        // The sequence number of a failed write is not used again: files are named by it.
        current.sequence += 1;
        self.is_manifest_in_doubt.store(true, Ordering::Release);
        let mut writer = self.manifest_writer.lock();
        self.reserve
            .retry_with_reserve(|| writer.write(&*self.disk, current, edit, current.sequence))?;
        self.is_manifest_in_doubt.store(false, Ordering::Release);
        current.apply(edit);
        self.manifest_sequence.store(current.sequence, Ordering::Release);
        Ok(())
    }

    /// Makes sure that the manifest on the disk is the one in memory, before a file is removed that
    /// another version would name.
    fn ensure_manifest_committed(&self) -> Result<(), StorageError> {
        let mut manifest = self.manifest.lock();
        if !self.is_manifest_in_doubt.load(Ordering::Acquire) {
            return Ok(());
        }
        self.commit_manifest(&mut manifest, &ManifestEdit::default())
    }

    fn new_log(&self, id: LogId, reached: IndexedTip, beginning: LogPrefix) -> Arc<Log> {
        let (segments, sealed) = (Arc::clone(&self.segments), Arc::clone(&self.sealed_segments));
        Arc::new(Log::new(id, segments, sealed, reached, beginning))
    }

    /// The logs that are in memory, by id.
    fn loaded_logs(&self) -> Vec<Arc<Log>> {
        let mut logs: Vec<Arc<Log>> = self.logs.read().values().cloned().collect();
        logs.sort_by_key(|log| log.id);
        logs
    }

    /// Queues a segment that was rolled.
    pub(crate) fn push_unindexed(&self, sealed: UnindexedSegment) {
        self.indexing_queue.lock().segments.push_back(sealed);
        self.changed.notify_all();
    }

    /// Waits until another segment may be rolled.
    ///
    /// # Errors
    /// The segments rolled before cannot be indexed: the disk is full, or fails.
    pub(crate) fn wait_for_room(&self) -> Result<(), StorageError> {
        let mut waiting = self.indexing_queue.lock();
        // Closing ends the maintenance thread: the next incarnation indexes what is sealed.
        while waiting.has_maintenance_thread
            && waiting.segments.len() >= UNINDEXED_SEGMENTS_MAX
            && !self.is_closing()
        {
            if let Some(error) = &waiting.last_failure {
                return Err(error.clone().during("sealed segments cannot be indexed"));
            }
            self.changed.wait(&mut waiting);
        }
        Ok(())
    }

    /// Waits until there is something to index, at most for `at_most`. Returns whether there is.
    pub(crate) fn wait_for_unindexed(&self, at_most: std::time::Duration) -> bool {
        let mut waiting = self.indexing_queue.lock();
        waiting.has_maintenance_thread = true;
        if waiting.segments.is_empty() && !self.is_closing.load(Ordering::Acquire) {
            self.changed.wait_for(&mut waiting, at_most);
        }
        !waiting.segments.is_empty()
    }

    /// Tells maintenance to end soon.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        let _waiting = self.indexing_queue.lock();
        self.changed.notify_all();
    }

    /// Runs the maintenance that is due: indexing, proving, sorting, merging, pruning proofs,
    /// rebuilding indexes.
    ///
    /// # Errors
    /// The disk fails; unfinished work is retried.
    pub(crate) fn run_maintenance(&self) -> Result<(), StorageError> {
        let _tending = self.maintenance_lock.lock();
        self.run_maintenance_locked()
    }

    fn run_maintenance_locked(&self) -> Result<(), StorageError> {
        // A task that fails does not keep the others from running.
        let mut failed = self.rebuild_suspects().map(drop);
        let mut given_up = HashSet::new();
        let (mut indexes, mut proves, mut merges) = (true, true, true);
        loop {
            // Segments sealed meanwhile are held in memory: they come first, each time round.
            while indexes {
                match self.index_next() {
                    Ok(true) => {}
                    Ok(false) => break,
                    // Nothing is reclaimed before it is proved: otherwise a disk too full for an
                    // index would stay full.
                    Err(error) => (failed, indexes) = (Err(error), false),
                }
            }
            self.evict_idle_logs();
            if let Err(error) = self.merge_latest_run_tables() {
                failed = Err(error);
            }
            if proves {
                match self.prove_next() {
                    Ok(false) => {}
                    Ok(true) => continue,
                    Err(error) => (failed, proves) = (Err(error), false),
                }
            }
            match self.sort_next(&mut given_up) {
                Ok(true) => continue,
                Ok(false) if merges => {}
                Ok(false) => break,
                Err(error) => {
                    failed = Err(error);
                    continue;
                }
            }
            match self.merge_next() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => (failed, merges) = (Err(error), false),
            }
        }
        // A backup may have frames whose leaves would go.
        if let Some(_reclaiming) = self.reclaim_state.try_lock()
            && !self.is_held()
            && let Err(error) = self.prune_proofs()
        {
            failed = Err(error);
        }
        // Corruption may have been found on the way.
        let rebuilt = self.rebuild_suspects()?;
        if rebuilt > 0 { self.run_maintenance_locked() } else { failed }
    }

    /// Runs maintenance until the store is closed: the body of the maintenance thread.
    pub(crate) fn maintenance_loop(&self, timekeeper: &Timekeeper) {
        let (mut failures, steady_now) = (LogThrottle::default(), || timekeeper.steady_now());
        while !self.is_closing() {
            self.wait_for_unindexed(MAINTENANCE_INTERVAL);
            timekeeper.record_synced();
            let Err(error) = self.run_maintenance() else {
                failures.record_success(steady_now);
                continue;
            };
            if self.is_closing() {
                return;
            }
            if let Some(failed) = failures.record_failure(steady_now()) {
                tracing::error!(
                    %error,
                    failed,
                    "maintenance failed: the journal is not indexed and sorted; it is retried"
                );
            }
            let mut waiting = self.indexing_queue.lock();
            self.changed.wait_for(&mut waiting, MAINTENANCE_INTERVAL);
        }
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }
}
