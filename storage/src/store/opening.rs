//! Opening a store: what is sealed, then the journal behind it, then the threads.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hlc::{Hlc, WallClock};
use parking_lot::{Condvar, Mutex};

use super::{
    AbortOnPanic, AppendStage, Options, ReplayCollector, ReplayHandler, Store, StoreContext,
    StoreRequestQueue, StoreRequestQueueState, StoreStats, StoreWriter, check_continuation,
    replay_segments,
};
use crate::data_cache::DataCache;
use crate::disk::Disk;
use crate::history::{HistoryBuilder, HistoryError};
use crate::index::BlockCache;
use crate::journal::{
    JournalSegments, JournalWriter, JournalWriterOptions, RecoverError, finish_recovery, walk,
};
use crate::manifest::ManifestError;
use crate::refusal_reporter::RefusalReporter;
use crate::space_reserve::SpaceReserve;
use crate::tail::PayloadTail;
use crate::timekeeper::{BoundError, BoundFile, BoundRenewer, DurableState, Timekeeper};

/// Why a store does not open.
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
    /// The bound file is not the one that was written beside this journal.
    #[error(
        "journal/bound is older than the journal: promises about the past are not known any more. bound={bound}, stamp={stamp}; nothing was changed. Restore the whole data directory from a backup, not single files"
    )]
    BoundStale {
        /// What it says.
        bound: Hlc,
        /// The last stamp in the journal, which should lie below.
        stamp: Hlc,
    },
    /// What is sealed cannot be opened.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The bound file cannot be read.
    #[error(transparent)]
    Bound(#[from] BoundError),
    /// The disk failed.
    #[error("open store: {0}")]
    Disk(#[from] io::Error),
}

impl<S: AppendStage> Store<S> {
    /// Reads the journal back, handing every entry to `replay`, and starts the writer.
    ///
    /// `advanced` is called whenever the frontier may have moved.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was changed then.
    pub fn open<R: ReplayHandler>(
        disk: Arc<dyn Disk>,
        options: Options,
        wall: Arc<dyn WallClock>,
        replay: &mut R,
        stage: impl FnOnce(&mut R) -> S,
        advanced: impl Fn() + Send + Sync + 'static,
    ) -> Result<Store<S>, OpenError> {
        let bound = BoundFile::read(&*disk)?;
        let newest = bound.unwrap_or_default();
        let mut opened =
            HistoryBuilder::read(&*disk, Arc::new(BlockCache::new(options.index_bytes_max)))?;
        if bound.is_none() && opened.manifest.sequence > 0 {
            return Err(OpenError::BoundLost);
        }
        let (found_manifest, known) = (opened.manifest.sequence, newest.manifest_sequence);
        if found_manifest < known {
            let stale = ManifestError::Stale { found: found_manifest, known };
            return Err(HistoryError::Manifest(stale).into());
        }
        let (state, unseen) = opened.stage_snapshot(&*disk)?;
        replay_segments(state, &unseen, &opened, replay)?;
        let (from, last) = (opened.manifest.indexed_to, opened.last_stamp());
        let mut found = ReplayCollector::new(replay);
        let walked = walk(&*disk, from, last, newest.synced_to, &mut found)?;
        // The bound is written before the first segment is made.
        if bound.is_none() && !walked.is_empty() {
            return Err(OpenError::BoundLost);
        }
        if walked.last >= newest.bound && walked.last > Hlc::ZERO {
            return Err(OpenError::BoundStale { bound: newest.bound, stamp: walked.last });
        }
        let recovered = finish_recovery(&*disk, walked, newest.synced_to)?;
        let manifest_bytes = opened.manifest.encode().len() as u64;
        let reserve = Arc::new(SpaceReserve::open(Arc::clone(&disk), manifest_bytes));
        opened.persist_manifest(&*disk, &reserve)?;
        opened.remove_unreferenced_files(&*disk)?;
        let bound_file = BoundFile::open(&*disk, bound)?;
        if recovered.torn_bytes > 0 {
            tracing::warn!(
                bytes = recovered.torn_bytes,
                end = recovered.end,
                "cut off a torn tail: bytes behind everything that is known to have been synced"
            );
        }
        let (entries, sealed, frames, open_since) = found.finish(&recovered);
        let segments = Arc::new(JournalSegments::new(recovered.segments));
        let manifest_sequence = Arc::new(AtomicU64::new(opened.manifest.sequence));
        let history = Arc::new(opened.into_history(
            Arc::clone(&disk),
            Arc::clone(&reserve),
            Arc::clone(&segments),
            &options,
            Arc::clone(&manifest_sequence),
        ));
        for (id, entries) in entries {
            let held = history.log(id)?;
            for entry in entries {
                // An assertion is for our own mistakes, and not for what a disk makes of our files.
                check_continuation(&held.tip(), id, &entry)?;
                held.publish(entry, None);
            }
        }
        for sealed in sealed {
            history.push_unindexed(sealed);
        }
        let limits = JournalWriterOptions {
            salt: options.salt,
            segment_bytes_max: options.segment_bytes_max,
            segment_frames_max: options.segment_frames_max,
            proofs: options.proofs,
        };
        let journal = JournalWriter::new(disk, reserve, segments, recovered.end, limits, frames);
        let (timekeeper, keeper) = Timekeeper::start(
            bound_file,
            DurableState { synced_to: recovered.end, manifest: manifest_sequence },
            wall,
            options.clock,
            Box::new(advanced),
        )?;
        let queue = StoreRequestQueue {
            state: Mutex::new(StoreRequestQueueState {
                requests: VecDeque::new(),
                wants_roll: false,
                closing: false,
                stopped: None,
            }),
            filled: Condvar::new(),
        };
        let stats = StoreStats::default();
        stats.journal_end.store(recovered.end, Ordering::Relaxed);
        stats.synced_to.store(recovered.end, Ordering::Relaxed);
        stats.open_since.store(open_since.bits(), Ordering::Relaxed);
        let shared = Arc::new(StoreContext { queue, history, stats });
        let data_cache = Arc::new(DataCache::new(options.tail_bytes_max));
        let writer = StoreWriter {
            shared: Arc::clone(&shared),
            timekeeper: Arc::clone(&timekeeper),
            journal,
            stage: stage(replay),
            tail: PayloadTail::new(Arc::clone(&data_cache)),
            durability: options.durability,
            refusals: RefusalReporter::default(),
        };
        let store = Store {
            shared,
            data_cache,
            timekeeper,
            threads: Mutex::new(Vec::new()),
            stepped_writer: Mutex::new(None),
            torn_bytes: recovered.torn_bytes,
        };
        if options.manual_stepping {
            store.timekeeper.set_manual_renewer(keeper);
            *store.stepped_writer.lock() = Some(writer);
        } else {
            store.spawn(writer, keeper, options.manual_maintenance)?;
        }
        Ok(store)
    }

    fn spawn(&self, writer: StoreWriter<S>, keeper: BoundRenewer, by_hand: bool) -> io::Result<()> {
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
