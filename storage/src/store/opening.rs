//! Opening a store: sealed segments, then the journal after them, then the threads.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hlc::{Hlc, WallClock};
use parking_lot::Mutex;

use super::append_group::{AppendGroup, LaidOutAppend};
use super::commit::Commit;
use super::replay::{HeldFrame, WrittenSegments};
use super::{
    AbortOnPanic, AppendStage, GroupNumber, Options, ReplayCollector, ReplayHandler, Store,
    StoreContext, StoreRequestQueue, StoreStats, StoreWriter, check_continuation, replay_segments,
};
use crate::data_cache::DataCache;
use crate::disk::Disk;
use crate::entry::{Entry, LogId};
use crate::error::StorageError;
use crate::history::{HistoryBuilder, HistoryError, SealedHistory};
use crate::index::{BlockCache, LogTip};
use crate::journal::{
    FRAME_BYTES, FrameGroup, JournalSegments, JournalTail, JournalWriter, JournalWriterOptions,
    KnownSynced, RecoverError, RecoveredJournal, finish_recovery, walk,
};
use crate::log_throttle::LogThrottle;
use crate::manifest::ManifestError;
use crate::space_reserve::SpaceReserve;
use crate::tail::PayloadTail;
use crate::timekeeper::{
    BoundError, BoundFile, BoundRecord, BoundRenewer, DurableState, Timekeeper,
};

/// The reason a store does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The journal cannot be read back.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// The bound file is gone although there is a journal.
    #[error(
        "journal/bound is missing or empty although there is a journal: promises about the past are not known any more; nothing was changed. Restore the whole data directory from a backup"
    )]
    BoundLost,
    /// The bound file is not the one that was written with this journal.
    #[error(
        "journal/bound is older than the journal, which has the stamp {stamp} above its {bound}: promises about the past are not known any more; nothing was changed. Restore the whole data directory from a backup, not single files"
    )]
    BoundStale {
        /// The bound in the file.
        bound: Hlc,
        /// The last stamp in the journal, which should lie below.
        stamp: Hlc,
    },
    /// Sealed segments cannot be opened.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The bound file cannot be read.
    #[error(transparent)]
    Bound(#[from] BoundError),
    /// Something cannot be read or written.
    #[error("open store: {0}")]
    Storage(#[from] StorageError),
}

/// Opens the sealed part. It refuses a manifest or a bound file that is older than the other.
fn read_history(
    disk: &dyn Disk,
    bound: Option<BoundRecord>,
    index_bytes_max: usize,
) -> Result<HistoryBuilder, OpenError> {
    let opened = HistoryBuilder::read(disk, Arc::new(BlockCache::new(index_bytes_max)))?;
    let (found, known) = (opened.manifest.sequence, bound.unwrap_or_default().manifest_sequence);
    if bound.is_none() && found > 0 {
        return Err(OpenError::BoundLost);
    }
    if found < known {
        return Err(HistoryError::Manifest(ManifestError::Stale { found, known }).into());
    }
    Ok(opened)
}

/// Walks the journal after the indexed part, and truncates a torn tail.
fn recover_journal<R: ReplayHandler>(
    disk: &dyn Disk,
    bound: Option<BoundRecord>,
    opened: &HistoryBuilder,
    commit: &Commit,
    collector: &mut ReplayCollector<'_, R>,
) -> Result<RecoveredJournal, OpenError> {
    let newest = bound.unwrap_or_default();
    let (from, last) = (opened.manifest.indexed_to, opened.last_stamp());
    let walked = walk(disk, from, last, newest.synced_to, collector)?;
    // The bound is written before the first segment is created.
    if bound.is_none() && !walked.is_empty() {
        return Err(OpenError::BoundLost);
    }
    let is_stale = walked.last >= newest.bound && walked.last > Hlc::ZERO;
    if is_stale && !commit.bounds_promises() {
        return Err(OpenError::BoundStale { bound: newest.bound, stamp: walked.last });
    }
    // What a frame says was synced, was synced where it was laid out. So only what is known to be
    // committed counts where that may be another node.
    let known = match commit {
        Commit::Local => KnownSynced::AlsoByFrames(newest.synced_to),
        Commit::Later { committed_to, .. } => KnownSynced::To(newest.synced_to.max(*committed_to)),
    };
    let recovered = finish_recovery(disk, walked, known)?;
    if recovered.torn_bytes > 0 {
        tracing::warn!(
            bytes = recovered.torn_bytes,
            end = recovered.end,
            "cut off a torn tail: bytes behind everything that is known to have been synced"
        );
    }
    Ok(recovered)
}

/// Publishes the entries of unindexed segments in their logs.
fn publish_entries(
    history: &SealedHistory,
    entries: HashMap<LogId, Vec<Entry>>,
) -> Result<(), OpenError> {
    for (id, entries) in entries {
        let log = history.log(id)?;
        for entry in entries {
            // An assertion is for our own mistakes, and not for what a disk does to our files.
            check_continuation(&log.tip(), id, &entry)?;
            log.publish(entry, None);
        }
    }
    Ok(())
}

/// The groups in flight that were written before the start, each of one entry: where they may be cut
/// off is not known here.
fn hold_back<R>(
    history: &SealedHistory,
    held: Vec<HeldFrame>,
) -> Result<VecDeque<AppendGroup<R>>, OpenError> {
    let mut tips: HashMap<LogId, LogTip> = HashMap::new();
    let mut groups = VecDeque::new();
    for HeldFrame { segment, position, frame } in held {
        let log = history.log(frame.log)?;
        let entry = frame.entry_at(position + FRAME_BYTES as u64);
        let tip = tips.entry(log.id).or_insert_with(|| log.tip());
        check_continuation(tip, log.id, &entry)?;
        (tip.end, tip.stamp) = (entry.end(), entry.stamp);
        tip.bytes += u64::from(entry.length);
        let frames = FrameGroup::of_frame(segment, position, &frame);
        let mut group = AppendGroup::new(GroupNumber(groups.len() as u64), frames, true);
        group.is_staged = false;
        group.ends.insert(log.id, entry.end());
        group.appends.push(LaidOutAppend { log, entry, payload: None });
        groups.push_back(group);
    }
    Ok(groups)
}

impl<S: AppendStage> Store<S> {
    /// Reads the journal back, calls `replay` with every entry, and starts the writer.
    ///
    /// `advanced` is called whenever the frontier may have moved.
    ///
    /// # Errors
    /// [`OpenError`]; then nothing has changed.
    pub fn open<R: ReplayHandler>(
        disk: Arc<dyn Disk>,
        options: Options,
        wall: Arc<dyn WallClock>,
        replay: &mut R,
        stage: impl FnOnce(&mut R) -> S,
        advanced: impl Fn() + Send + Sync + 'static,
    ) -> Result<Store<S>, OpenError> {
        Store::open_with(disk, options, Commit::Local, wall, replay, stage, advanced)
    }

    /// [`Store::open`], where `commit` says when what is appended becomes visible.
    ///
    /// # Errors
    /// [`OpenError`]; then nothing has changed.
    pub fn open_with<R: ReplayHandler>(
        disk: Arc<dyn Disk>,
        options: Options,
        commit: Commit,
        wall: Arc<dyn WallClock>,
        replay: &mut R,
        stage: impl FnOnce(&mut R) -> S,
        advanced: impl Fn() + Send + Sync + 'static,
    ) -> Result<Store<S>, OpenError> {
        let bound = BoundFile::read(&*disk)?;
        let mut opened = read_history(&*disk, bound, options.index_bytes_max)?;
        let snapshot = opened.stage_snapshot(&*disk)?;
        replay_segments(&snapshot, &opened, replay)?;
        // What is indexed was committed, though that may not have been noted yet.
        let committed_to = commit.committed_to().max(opened.manifest.indexed_to);
        let mut collector = ReplayCollector::new(replay, committed_to, opened.last_stamp());
        let recovered = recover_journal(&*disk, bound, &opened, &commit, &mut collector)?;
        let manifest_bytes = opened.manifest.encode().len() as u64;
        let reserve = Arc::new(SpaceReserve::open(Arc::clone(&disk), manifest_bytes));
        opened.persist_manifest(&*disk, &reserve)?;
        opened.remove_unreferenced_files(&*disk)?;
        let bound_file = BoundFile::open(&*disk, bound)?;
        let collected = collector.finish(&recovered);
        let RecoveredJournal { segments, end, last, torn_bytes } = recovered;
        let segments = Arc::new(JournalSegments::new(segments));
        let manifest_sequence = Arc::new(AtomicU64::new(opened.manifest.sequence));
        let history = Arc::new(opened.into_history(
            Arc::clone(&disk),
            Arc::clone(&reserve),
            Arc::clone(&segments),
            &options,
            Arc::clone(&manifest_sequence),
        ));
        publish_entries(&history, collected.logs)?;
        let in_flight = hold_back(&history, collected.held)?;
        for segment in collected.unindexed {
            history.push_unindexed(segment);
        }
        let limits = JournalWriterOptions {
            salt: options.salt,
            segment_bytes_max: options.segment_bytes_max,
            segment_frames_max: options.segment_frames_max,
            proofs: options.proofs,
        };
        let published_to = end.min(committed_to);
        let WrittenSegments { rolled, frames, since } = collected.written;
        let tail = JournalTail { end, published_to, rolled, frames, since };
        let journal = JournalWriter::new(disk, reserve, segments, tail, limits)?;
        let (timekeeper, renewer) = Timekeeper::start(
            bound_file,
            commit.committed_bound(last),
            DurableState { synced_to: published_to, manifest: manifest_sequence },
            wall,
            options.clock,
            Box::new(advanced),
        )?;
        let stats = StoreStats::default();
        let published_last = if in_flight.is_empty() { last } else { collected.last };
        stats.journal_end.store(published_to, Ordering::Relaxed);
        stats.synced_to.store(published_to, Ordering::Relaxed);
        stats.open_since.store(since.bits(), Ordering::Relaxed);
        let shared = Arc::new(StoreContext { queue: StoreRequestQueue::new(), history, stats });
        for group in &in_flight {
            timekeeper.begin_held_group(group.frames.first_stamp());
        }
        let data_cache = Arc::new(DataCache::new(options.tail_bytes_max));
        let writer = StoreWriter {
            shared: Arc::clone(&shared),
            timekeeper: Arc::clone(&timekeeper),
            next_group: GroupNumber(in_flight.len() as u64),
            in_flight,
            leads: true,
            commit,
            published_to,
            published_last,
            journal,
            stage: stage(replay),
            tail: PayloadTail::new(Arc::clone(&data_cache)),
            durability: options.durability,
            refusals: LogThrottle::default(),
        };
        let store = Store {
            shared,
            data_cache,
            timekeeper,
            threads: Mutex::new(Vec::new()),
            stepped_writer: Mutex::new(None),
            torn_bytes,
        };
        store.start(writer, renewer, options)?;
        Ok(store)
    }

    /// Starts the writer and the other threads, unless they are stepped.
    fn start(
        &self,
        writer: StoreWriter<S>,
        renewer: BoundRenewer,
        options: Options,
    ) -> Result<(), StorageError> {
        if options.manual_stepping {
            self.timekeeper.set_manual_renewer(renewer);
            *self.stepped_writer.lock() = Some(writer);
            return Ok(());
        }
        self.spawn(writer, renewer, options.manual_maintenance)
    }

    fn spawn(
        &self,
        writer: StoreWriter<S>,
        keeper: BoundRenewer,
        by_hand: bool,
    ) -> Result<(), StorageError> {
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let mut threads = self.threads.lock();
        threads.push(thread("journal").spawn(move || writer.run())?);
        let timekeeper = Arc::clone(&self.timekeeper);
        let keep = move || {
            // Writers wait for it: they must not wait for ever.
            let abort = AbortOnPanic;
            keeper.run(&timekeeper);
            std::mem::forget(abort);
        };
        threads.push(thread("bound").spawn(keep)?);
        drop(threads);
        if by_hand { Ok(()) } else { self.start_maintenance(None) }
    }
}
