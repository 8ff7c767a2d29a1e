//! What is sealed, and what becomes of it: indexing, filing, merging, giving up, freeing, replacing.
//!
//! What holds true of it:
//! - A sealed segment is indexed once it is on stable storage, and only then does the manifest name
//!   it. What the manifest does not name yet is read back from the journal at the next start.
//! - A reader that finds an entry can read it: files are removed, and space is given back, only of
//!   what no log looks for any more since the round before.
//! - Every step ends with one write of the manifest. A crash before it leaves files that the next start
//!   removes; a crash behind it leaves files to be removed.

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
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::disk::Disk;
use crate::index::{BlockCache, LatestRunTable};
use crate::journal::{JournalSegments, Segment};
use crate::log::{CompactedPrefix, IndexedTip, Log, LogId, LogPrefix, Offset};
use crate::manifest::{Manifest, ManifestEdit, ManifestWriter};
use crate::proof::{FrameLeaves, SigningKey};
use crate::sealed_segment::SealedSegments;
use crate::space_reserve::SpaceReserve;
pub(crate) use loading::open_latest_run_tables;
use log_removal::LogRemovalAttempt;
pub use log_start::ReclaimStats;
pub(crate) use opening::HistoryBuilder;
pub use opening::HistoryError;
pub use prefix_replacement::{CompactedEntry, CompactionHorizon, CompactionSource, EntrySink};

/// How long the background work rests when there is nothing to do, or nothing can be done.
const MAINTENANCE_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);
/// A writer waits once so many sealed segments are not indexed: what they hold is in memory.
const UNINDEXED_SEGMENTS_MAX: usize = 4;

/// The leaves of so many segments that have no proof are kept; the proofs of earlier ones are made from
/// their files.
const UNPROVED_SEGMENTS_MAX: usize = 8;

/// What the proof of a segment is made of.
struct UnprovedSegment {
    end: u64,
    leaves: Arc<FrameLeaves>,
}

/// A segment that was sealed and is not indexed yet.
#[derive(Debug)]
pub(crate) struct UnindexedSegment {
    pub(crate) segment: Arc<Segment>,
    /// The position behind its last frame.
    pub(crate) end: u64,
    /// What the stage remembered at that position.
    pub(crate) stage_state: Vec<u8>,
}

/// Counters of what is done to what is sealed.
#[derive(Debug, Default)]
pub struct HistoryStats {
    /// Segments indexed.
    pub indexed: AtomicU64,
    /// Stretches filed.
    pub sorted: AtomicU64,
    /// Parts that were merged into others.
    pub merged: AtomicU64,
    /// Bytes of data files that filing and merging wrote.
    pub sorted_bytes: AtomicU64,
    /// Data files removed.
    pub removed_files: AtomicU64,
    /// Bytes given back inside of files that stay.
    pub reclaimed_bytes: AtomicU64,
    /// Proofs written.
    pub proved: AtomicU64,
    /// Indexes made anew because they were lost or damaged.
    pub rebuilt: AtomicU64,
    /// Logs whose beginning was replaced by what compaction left.
    pub replaced_prefixes: AtomicU64,
    /// Logs that the manifest does not name any more.
    pub removed_logs: AtomicU64,
}

/// Walked in the same order in each run of a simulation: nobody but the store's user chooses ids.
type LoadedLogs = HashMap<LogId, Arc<Log>, BuildHasherDefault<DefaultHasher>>;

/// What is sealed.
pub(crate) struct SealedHistory {
    pub(crate) disk: Arc<dyn Disk>,
    reserve: Arc<SpaceReserve>,
    pub(crate) segments: Arc<JournalSegments>,
    pub(crate) sealed_segments: Arc<SealedSegments>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) stats: HistoryStats,
    /// The logs that are in memory. Locked behind the manifest, where both are.
    logs: RwLock<LoadedLogs>,
    /// What stands in for the beginnings of logs that have not come into memory yet.
    unloaded_prefixes: Mutex<HashMap<LogId, Arc<CompactedPrefix>>>,
    /// How often logs were dropped from memory.
    evictions: AtomicU64,
    /// So many logs that nobody uses may be in memory.
    idle_logs_max: usize,
    /// Smaller parts than this are merged with their neighbours first.
    merge_bytes_min: u64,
    /// So many parts may have no head table.
    uncovered_segments_max: usize,
    /// Head tables, by position, without gaps from the journal's beginning.
    latest_run_tables: RwLock<Arc<[Arc<LatestRunTable>]>>,
    manifest: Mutex<Manifest>,
    /// Locked behind the manifest.
    manifest_writer: Mutex<ManifestWriter>,
    /// Held by what removes or replaces files: one at a time.
    reclaim_state: Mutex<ReclaimState>,
    /// Data files that nothing names any more.
    unreferenced_files: Mutex<Vec<String>>,
    indexing_queue: Mutex<IndexingQueue>,
    changed: Condvar,
    /// Held by whoever tends.
    maintenance_lock: Mutex<()>,
    /// Whether proofs are written, up to where they are, and what signs them.
    pub(crate) proves: bool,
    proved_to: AtomicU64,
    /// Whether there may be something to take out of proofs.
    proof_pruning_due: AtomicBool,
    /// The leaves of segments that are not proved yet, by position; at most [`UNPROVED_SEGMENTS_MAX`].
    unproved: Mutex<BTreeMap<u64, UnprovedSegment>>,
    pub(crate) signing_key: OnceLock<Arc<SigningKey>>,
    /// The sequence of the manifest that is on stable storage, for the bound file.
    manifest_sequence: Arc<AtomicU64>,
    /// Whether the last write of the manifest failed: which of two is on the disk is not known then.
    is_manifest_in_doubt: AtomicBool,
    /// Why what is in the journal may be lost, if a sync of it failed.
    pub(crate) journal_loss: OnceLock<Arc<str>>,
    /// Set when the background work is to end soon.
    pub(crate) is_closing: AtomicBool,
    /// Bytes of journal that were written, for the throttle of background work.
    pub(crate) foreground_bytes: AtomicU64,
    /// How many of them the throttle has seen.
    throttled_to: AtomicU64,
}

#[derive(Default)]
struct IndexingQueue {
    segments: VecDeque<UnindexedSegment>,
    /// Why the last attempt to index failed.
    last_failure: Option<Arc<str>>,
    /// Whether somebody is there to index.
    has_maintenance_thread: bool,
}

/// What was given up before the last round, and may be freed in the next.
#[derive(Default)]
struct ReclaimState {
    reclaimable: BTreeMap<LogId, Offset>,
    /// Data files that nothing names since then.
    unreferenced_files: Vec<String>,
    /// The last generation that a base was given in this life.
    last_generation: u64,
    /// Logs for which a base is being written.
    replacing: HashSet<LogId>,
    /// When parts were last looked into for logs to forget.
    log_removal: LogRemovalAttempt,
}

impl SealedHistory {
    /// Changes the manifest, here and on stable storage.
    ///
    /// # Errors
    /// The disk fails. Here nothing has changed; the disk may have either.
    fn commit_manifest(&self, held: &mut Manifest, edit: &ManifestEdit) -> io::Result<()> {
        // Another life of the store may have begun.
        if self.is_closing() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the store is being closed"));
        }
        // A number that failed is not given out again: files are named by it.
        held.sequence += 1;
        self.is_manifest_in_doubt.store(true, Ordering::Release);
        let mut writer = self.manifest_writer.lock();
        self.reserve.retry_with_reserve(|| writer.write(&*self.disk, held, edit, held.sequence))?;
        self.is_manifest_in_doubt.store(false, Ordering::Release);
        held.apply(edit);
        self.manifest_sequence.store(held.sequence, Ordering::Release);
        Ok(())
    }

    /// Makes sure that the manifest on the disk is the one that is held: before anything is removed
    /// that another would name.
    fn ensure_manifest_committed(&self) -> io::Result<()> {
        let mut manifest = self.manifest.lock();
        if !self.is_manifest_in_doubt.load(Ordering::Acquire) {
            return Ok(());
        }
        self.commit_manifest(&mut manifest, &ManifestEdit::default())
    }

    fn new_log(&self, id: LogId, reached: IndexedTip, beginning: LogPrefix) -> Arc<Log> {
        let (segments, parts) = (Arc::clone(&self.segments), Arc::clone(&self.sealed_segments));
        Arc::new(Log::new(id, segments, parts, reached, beginning))
    }

    /// The logs that are in memory, by id.
    fn loaded_logs(&self) -> Vec<Arc<Log>> {
        let mut logs: Vec<Arc<Log>> = self.logs.read().values().cloned().collect();
        logs.sort_by_key(|log| log.id);
        logs
    }

    /// Takes a segment that was sealed.
    pub(crate) fn push_unindexed(&self, sealed: UnindexedSegment) {
        self.indexing_queue.lock().segments.push_back(sealed);
        self.changed.notify_all();
    }

    /// Waits until another segment may be sealed.
    ///
    /// # Errors
    /// Those sealed before cannot be indexed: the disk is full, or fails.
    pub(crate) fn wait_for_room(&self) -> io::Result<()> {
        let mut waiting = self.indexing_queue.lock();
        // Whoever closes has ended the tender: what is sealed is indexed in the next life.
        while waiting.has_maintenance_thread
            && waiting.segments.len() >= UNINDEXED_SEGMENTS_MAX
            && !self.is_closing()
        {
            if let Some(why) = &waiting.last_failure {
                return Err(io::Error::other(format!("sealed segments cannot be indexed: {why}")));
            }
            self.changed.wait(&mut waiting);
        }
        Ok(())
    }

    /// Waits until there is something to index, for a while at most; whether there is.
    pub(crate) fn wait_for_unindexed(&self, at_most: std::time::Duration) -> bool {
        let mut waiting = self.indexing_queue.lock();
        waiting.has_maintenance_thread = true;
        if waiting.segments.is_empty() && !self.is_closing.load(Ordering::Acquire) {
            self.changed.wait_for(&mut waiting, at_most);
        }
        !waiting.segments.is_empty()
    }

    /// Ends the background work soon.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        let _waiting = self.indexing_queue.lock();
        self.changed.notify_all();
    }

    /// Does what has gathered: indexing, proving, filing, merging, thinning proofs out, making indexes anew.
    ///
    /// # Errors
    /// The disk fails; what was not done is tried again.
    pub(crate) fn run_maintenance(&self) -> io::Result<()> {
        let _tending = self.maintenance_lock.lock();
        self.run_maintenance_locked()
    }

    fn run_maintenance_locked(&self) -> io::Result<()> {
        // One thing that cannot be done keeps no other from being done.
        let mut failed = self.rebuild_suspects().map(drop);
        let mut given_up = HashSet::new();
        let (mut indexes, mut proves, mut merges) = (true, true, true);
        loop {
            // What is sealed meanwhile is held in memory: it comes first, again and again.
            while indexes {
                match self.index_next() {
                    Ok(true) => {}
                    Ok(false) => break,
                    // Nothing is freed before it is proved: a disk too full for an index stays full else.
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
        if let Some(_reclaiming) = self.reclaim_state.try_lock()
            && let Err(error) = self.prune_proofs()
        {
            failed = Err(error);
        }
        // Damage may have been found on the way.
        let rebuilt = self.rebuild_suspects()?;
        if rebuilt > 0 { self.run_maintenance_locked() } else { failed }
    }

    /// Tends until the store is closed: the life of a thread.
    pub(crate) fn maintenance_loop(&self) {
        let mut said = String::new();
        while !self.is_closing() {
            self.wait_for_unindexed(MAINTENANCE_INTERVAL);
            let Err(error) = self.run_maintenance() else { continue };
            if self.is_closing() {
                return;
            }
            // A disk that stays full is reported once.
            let error = error.to_string();
            if error != said {
                tracing::error!(
                    error,
                    "maintenance failed: the journal is not indexed and sorted; it is retried"
                );
                said = error;
            }
            let mut waiting = self.indexing_queue.lock();
            self.changed.wait_for(&mut waiting, MAINTENANCE_INTERVAL);
        }
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }
}
