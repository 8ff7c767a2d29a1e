//! What is sealed, and what becomes of it: indexing, filing, merging, giving up, freeing, replacing.
//!
//! What holds true of it:
//! - A sealed segment is indexed once it is on stable storage, and only then does the manifest name
//!   it. What the manifest does not name yet is read back from the journal at the next start.
//! - A reader that finds an entry can read it: files are removed, and space is given back, only of
//!   what no log looks for any more since the round before.
//! - Every step ends with one write of the manifest. A crash before it leaves files that the next start
//!   removes; a crash behind it leaves files to be removed.

mod filing;
mod forgetting;
mod giving_up;
mod indexing;
mod loading;
mod merging;
mod opening;
mod proving;
mod rebuilding;
mod replacing;
mod thinning;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::disk::Disk;
use crate::index::{BlockCache, HeadTable};
use crate::journal::{Segment, Segments};
use crate::log::{Base, Beginning, Log, LogId, Offset, Reached};
use crate::manifest::{Manifest, ManifestEdit, ManifestWriter};
use crate::part::Parts;
use crate::proof::{FrameLeaves, SigningKey};
use crate::reserve::Reserve;
use forgetting::ForgettingLook;
pub use giving_up::Freed;
pub(crate) use loading::head_tables;
pub use opening::HistoryError;
pub(crate) use opening::Opened;
pub use replacing::{Compacted, Emit, Fill, Kept};

/// How long the background work rests when there is nothing to do, or nothing can be done.
const TEND_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
/// A writer waits once so many sealed segments are not indexed: what they hold is in memory.
const WAITING_MAX: usize = 4;

/// The leaves of so many segments that have no proof are kept; the proofs of earlier ones are made from
/// their files.
const UNPROVED_MAX: usize = 8;

/// What the proof of a segment is made of.
struct UnprovedSegment {
    end: u64,
    leaves: Arc<FrameLeaves>,
}

/// A segment that was sealed and is not indexed yet.
#[derive(Debug)]
pub(crate) struct SealedSegment {
    pub(crate) segment: Arc<Segment>,
    /// The position behind its last frame.
    pub(crate) end: u64,
    /// What the stage remembered at that position.
    pub(crate) state: Vec<u8>,
}

/// Counters of what is done to what is sealed.
#[derive(Debug, Default)]
pub struct HistoryStats {
    /// Segments indexed.
    pub indexed: AtomicU64,
    /// Stretches filed.
    pub filed: AtomicU64,
    /// Parts that were merged into others.
    pub merged: AtomicU64,
    /// Bytes of data files that filing and merging wrote.
    pub filed_bytes: AtomicU64,
    /// Data files removed.
    pub removed: AtomicU64,
    /// Bytes given back inside of files that stay.
    pub punched_bytes: AtomicU64,
    /// Proofs written.
    pub proved: AtomicU64,
    /// Indexes made anew because they were lost or damaged.
    pub rebuilt: AtomicU64,
    /// Logs whose beginning was replaced by what compaction left.
    pub replaced: AtomicU64,
    /// Logs that the manifest does not name any more.
    pub forgotten: AtomicU64,
}

/// Walked in the same order in each run of a simulation: nobody but the store's user chooses ids.
type LoadedLogs = HashMap<LogId, Arc<Log>, BuildHasherDefault<DefaultHasher>>;

/// What is sealed.
pub(crate) struct History {
    pub(crate) disk: Arc<dyn Disk>,
    reserve: Arc<Reserve>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) parts: Arc<Parts>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) stats: HistoryStats,
    /// The logs that are in memory. Locked behind the manifest, where both are.
    logs: RwLock<LoadedLogs>,
    /// What stands in for the beginnings of logs that have not come into memory yet.
    unloaded_bases: Mutex<HashMap<LogId, Arc<Base>>>,
    /// How often logs were dropped from memory.
    dropped: AtomicU64,
    /// So many logs that nobody uses may be in memory.
    idle_logs_max: usize,
    /// Smaller parts than this are merged with their neighbours first.
    merge_bytes_min: u64,
    /// So many parts may have no head table.
    uncovered_parts_max: usize,
    /// Head tables, by position, without gaps from the journal's beginning.
    tables: RwLock<Arc<[Arc<HeadTable>]>>,
    manifest: Mutex<Manifest>,
    /// Locked behind the manifest.
    manifest_writer: Mutex<ManifestWriter>,
    /// Held by what removes or replaces files: one at a time.
    reclaiming: Mutex<Reclaiming>,
    /// Data files that nothing names any more.
    unnamed: Mutex<Vec<String>>,
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Held by whoever tends.
    tending: Mutex<()>,
    /// Whether proofs are written, up to where they are, and what signs them.
    pub(crate) proves: bool,
    proved_to: AtomicU64,
    /// Whether there may be something to take out of proofs.
    proofs_due: AtomicBool,
    /// The leaves of segments that are not proved yet, by position; at most [`UNPROVED_MAX`].
    unproved: Mutex<BTreeMap<u64, UnprovedSegment>>,
    pub(crate) signing_key: OnceLock<Arc<SigningKey>>,
    /// The sequence of the manifest that is on stable storage, for the bound file.
    manifest_sequence: Arc<AtomicU64>,
    /// Whether the last write of the manifest failed: which of two is on the disk is not known then.
    is_in_doubt: AtomicBool,
    /// Why what is in the journal may be lost, if a sync of it failed.
    pub(crate) lost: OnceLock<Arc<str>>,
    /// Set when the background work is to end soon.
    pub(crate) is_closing: AtomicBool,
    /// Bytes of journal that were written, for the throttle of background work.
    pub(crate) foreground: AtomicU64,
    /// How many of them the throttle has seen.
    foreground_seen: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    sealed: VecDeque<SealedSegment>,
    /// Why the last attempt to index failed.
    failed: Option<Arc<str>>,
    /// Whether somebody is there to index.
    has_tender: bool,
}

/// What was given up before the last round, and may be freed in the next.
#[derive(Default)]
struct Reclaiming {
    settled: BTreeMap<LogId, Offset>,
    /// Data files that nothing names since then.
    unnamed: Vec<String>,
    /// The last generation that a base was given in this life.
    last_generation: u64,
    /// Logs for which a base is being written.
    replacing: HashSet<LogId>,
    /// When parts were last looked into for logs to forget.
    forgetting: ForgettingLook,
}

impl History {
    /// Changes the manifest, here and on stable storage.
    ///
    /// # Errors
    /// The disk fails. Here nothing has changed; the disk may have either.
    fn commit(&self, held: &mut Manifest, edit: &ManifestEdit) -> io::Result<()> {
        // Another life of the store may have begun.
        if self.is_closing() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the store is being closed"));
        }
        // A number that failed is not given out again: files are named by it.
        held.sequence += 1;
        self.is_in_doubt.store(true, Ordering::Release);
        let mut writer = self.manifest_writer.lock();
        self.reserve.with(|| writer.write(&*self.disk, held, edit, held.sequence))?;
        self.is_in_doubt.store(false, Ordering::Release);
        held.apply(edit);
        self.manifest_sequence.store(held.sequence, Ordering::Release);
        Ok(())
    }

    /// Makes sure that the manifest on the disk is the one that is held: before anything is removed
    /// that another would name.
    fn settle_manifest(&self) -> io::Result<()> {
        let mut manifest = self.manifest.lock();
        if !self.is_in_doubt.load(Ordering::Acquire) {
            return Ok(());
        }
        self.commit(&mut manifest, &ManifestEdit::default())
    }

    fn new_log(&self, id: LogId, reached: Reached, beginning: Beginning) -> Arc<Log> {
        let (segments, parts) = (Arc::clone(&self.segments), Arc::clone(&self.parts));
        Arc::new(Log::new(id, segments, parts, reached, beginning))
    }

    /// The logs that are in memory, by id.
    fn loaded(&self) -> Vec<Arc<Log>> {
        let mut logs: Vec<Arc<Log>> = self.logs.read().values().cloned().collect();
        logs.sort_by_key(|log| log.id);
        logs
    }

    /// Takes a segment that was sealed.
    pub(crate) fn push_sealed(&self, sealed: SealedSegment) {
        self.waiting.lock().sealed.push_back(sealed);
        self.changed.notify_all();
    }

    /// Waits until another segment may be sealed.
    ///
    /// # Errors
    /// Those sealed before cannot be indexed: the disk is full, or fails.
    pub(crate) fn wait_for_room(&self) -> io::Result<()> {
        let mut waiting = self.waiting.lock();
        // Whoever closes has ended the tender: what is sealed is indexed in the next life.
        while waiting.has_tender && waiting.sealed.len() >= WAITING_MAX && !self.is_closing() {
            if let Some(why) = &waiting.failed {
                return Err(io::Error::other(format!("sealed segments cannot be indexed: {why}")));
            }
            self.changed.wait(&mut waiting);
        }
        Ok(())
    }

    /// Waits until there is something to index, for a while at most; whether there is.
    pub(crate) fn wait_for_sealed(&self, at_most: std::time::Duration) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.has_tender = true;
        if waiting.sealed.is_empty() && !self.is_closing.load(Ordering::Acquire) {
            self.changed.wait_for(&mut waiting, at_most);
        }
        !waiting.sealed.is_empty()
    }

    /// Ends the background work soon.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        let _waiting = self.waiting.lock();
        self.changed.notify_all();
    }

    /// Does what has gathered: indexing, proving, filing, merging, thinning proofs out, making indexes anew.
    ///
    /// # Errors
    /// The disk fails; what was not done is tried again.
    pub(crate) fn tend(&self) -> io::Result<()> {
        let _tending = self.tending.lock();
        self.tend_alone()
    }

    fn tend_alone(&self) -> io::Result<()> {
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
            self.drop_idle();
            if let Err(error) = self.gather_heads() {
                failed = Err(error);
            }
            if proves {
                match self.prove_next() {
                    Ok(false) => {}
                    Ok(true) => continue,
                    Err(error) => (failed, proves) = (Err(error), false),
                }
            }
            match self.file_next(&mut given_up) {
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
        if let Some(_reclaiming) = self.reclaiming.try_lock()
            && let Err(error) = self.thin_proofs()
        {
            failed = Err(error);
        }
        // Damage may have been found on the way.
        let rebuilt = self.rebuild_suspects()?;
        if rebuilt > 0 { self.tend_alone() } else { failed }
    }

    /// Tends until the store is closed: the life of a thread.
    pub(crate) fn tend_until_closed(&self) {
        let mut said = String::new();
        while !self.is_closing() {
            self.wait_for_sealed(TEND_EVERY);
            let Err(error) = self.tend() else { continue };
            if self.is_closing() {
                return;
            }
            // A disk that stays full is reported once.
            let error = error.to_string();
            if error != said {
                tracing::error!(error, "the journal is not indexed and filed; it is tried again");
                said = error;
            }
            let mut waiting = self.waiting.lock();
            self.changed.wait_for(&mut waiting, TEND_EVERY);
        }
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }
}
