//! The store: logs over one journal, appended to by one thread.
//!
//! A group's life: requests gather in a queue; the writer stamps each append, lets the [`Stage`]
//! fill in or refuse it, lays the frames out, writes them with one call, syncs once if anyone asked
//! for that, publishes them in their logs, and only then completes them. The next group gathers
//! meanwhile: waiting for a group costs no timer.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use hlc::{ClockOptions, Cut, Hlc, UserTime, WallClock};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::data_file::DataFile;
use crate::disk::Disk;
use crate::history::{
    Compacted, Fill, Freed, History, HistoryError, HistoryStats, Opened, SealedSegment,
};
use crate::index::{BlockCache, Run, Tip};
use crate::journal::{
    FRAME_BYTES, Frame, Journal, Limits, PAYLOAD_BYTES_MAX, RecoverError, Recovered, Segment,
    Segments, Visit, WriteError, padded, settle, walk,
};
use crate::log::{Entry, Log, LogId, Offset, entry_of, read_checked};
use crate::manifest::ManifestError;
use crate::part::{Indexed, Part};
use crate::proof::SigningKey;
use crate::refusals::Refusals;
use crate::reserve::Reserve;
use crate::tail::{HEAD_BYTES_MAX, Payload, Tail};
use crate::timekeeper::{BoundError, BoundFile, Keeper, Reached, TimeError, Timekeeper};

/// A group is closed once it holds this many bytes of payload.
const GROUP_BYTES: u64 = 16 << 20;

/// To combine two checksums takes as long as to make one of about so many bytes.
const COMBINE_BYTES_MIN: usize = 128 << 10;

/// How a store keeps its journal.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// When an append that asks for durability is complete.
    pub durability: Durability,
    /// A segment is sealed before it grows longer than this, in bytes.
    pub segment_bytes_max: u64,
    /// A segment is sealed before it holds more frames than this: what is not indexed in files is held
    /// in memory.
    pub segment_frames_max: u64,
    /// How many bytes of the newest payloads stay in memory.
    pub tail_bytes_max: usize,
    /// How many bytes of index files stay in memory.
    pub index_bytes_max: usize,
    /// How many logs that nobody uses stay in memory.
    pub idle_logs_max: usize,
    /// In so many of the newest parts a log that is not in memory is looked for one by one, before head
    /// tables say where to look.
    pub uncovered_parts_max: usize,
    /// Whether indexing and filing wait for [`Store::tend`], and are not done by a thread of their own.
    /// A run of a test replays only so.
    pub tended_by_hand: bool,
    /// Whether no thread is started at all, and everything waits for [`Store::turn`], tending for
    /// [`Store::tend`]: a simulation decides what comes when.
    pub driven_by_hand: bool,
    /// Whether a proof is written for each sealed segment.
    pub proofs: bool,
    /// How far clocks may be wrong.
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
            uncovered_parts_max: 8,
            tended_by_hand: false,
            driven_by_hand: false,
            proofs: true,
            clock: ClockOptions::default(),
        }
    }
}

/// Where an append must have arrived before it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// In the page cache: it survives this process, not the machine.
    Written,
    /// On stable storage.
    Synced,
}

/// Something to append.
#[derive(Debug)]
pub struct Append<N> {
    /// To which log.
    pub log: LogId,
    /// A kind of entry, for its user.
    pub kind: u8,
    /// A leader epoch.
    pub epoch: u32,
    /// How many offsets it takes.
    pub count: u32,
    /// The smallest and the largest user time in it.
    pub user: (UserTime, UserTime),
    /// Its bytes.
    pub payload: Payload,
    /// The CRC-32C of the payload's bytes from an index on, where its user knows it: that part is
    /// then not read again.
    pub crc_from: Option<(usize, u32)>,
    /// What the stage wants to know of it.
    pub note: N,
}

impl<N> Append<N> {
    fn payload_crc(&self) -> u32 {
        let (head, rest) = (self.payload.head.as_slice(), &self.payload.rest);
        match self.crc_from {
            Some((0, crc)) => crc,
            Some((from, crc)) if from <= head.len() && rest.len() > COMBINE_BYTES_MIN => {
                let length = head.len() - from + rest.len();
                crc32c::crc32c_combine(crc32c::crc32c(&head[..from]), crc, length)
            }
            _ => crc32c::crc32c_append(crc32c::crc32c(head), rest),
        }
    }
}

/// What appends mean to the user of a store. Called on the writer's thread, in append order.
pub trait Stage: Send + 'static {
    /// What an append carries for the stage.
    type Note: Send + 'static;
    /// Why an append is refused.
    type Refusal: Clone + Send + 'static;

    /// Fills in `append`, which is about to take `base` and `stamp`; or refuses it.
    ///
    /// # Errors
    /// The append is refused and takes no offset.
    fn stage(
        &mut self,
        append: &mut Append<Self::Note>,
        base: Offset,
        stamp: Hlc,
    ) -> Result<(), Self::Refusal>;

    /// All appends staged since the last call are visible now.
    fn commit(&mut self);

    /// None of the appends staged since the last call will ever be.
    fn rollback(&mut self);

    /// What it remembers of all appends that were committed, for [`Replay::restore`]. Called when a
    /// segment is sealed.
    fn state(&self) -> Vec<u8>;
}

/// Where an append went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its first offset.
    pub base: Offset,
    /// Its stamp.
    pub stamp: Hlc,
    /// The position behind it in the journal.
    pub journal_end: u64,
}

/// Why an append failed. In every case nothing of it remains.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError<R> {
    /// The stage refused it.
    #[error("the append was refused")]
    Refused(R),
    /// No stamp can be given.
    #[error("{0}")]
    Time(TimeError),
    /// The disk did not take it; reads go on, and so will writes once there is room.
    #[error("the disk refused a write: {0}; free space on it")]
    Disk(Arc<str>),
    /// How far the log has come cannot be read.
    #[error("an index cannot be read: {0}; a damaged one is made anew: try again")]
    Index(Arc<str>),
    /// The store takes no more writes.
    #[error("the store has stopped: {0}")]
    Stopped(Arc<str>),
}

/// The results of a request, one for each of its appends.
pub type Results<R> = Vec<Result<Appended, AppendError<R>>>;

struct Request<S: Stage> {
    appends: Vec<Append<S::Note>>,
    /// The log of each.
    logs: Vec<Arc<Log>>,
    durability: Durability,
    /// Whether it asks for a sync although the store does without.
    must_sync: bool,
    /// Whether it may take the space that is kept for what makes space.
    makes_space: bool,
    done: Box<dyn FnOnce(Results<S::Refusal>) + Send>,
}

impl<S: Stage> Request<S> {
    fn new(
        appends: Vec<Append<S::Note>>,
        durability: Durability,
        done: Box<dyn FnOnce(Results<S::Refusal>) + Send>,
    ) -> Request<S> {
        Request {
            appends,
            logs: Vec::new(),
            durability,
            must_sync: false,
            makes_space: false,
            done,
        }
    }
}

fn check_lengths<N>(appends: &[Append<N>]) {
    for append in appends {
        let length = append.payload.len();
        assert!(
            length <= PAYLOAD_BYTES_MAX as usize,
            "no payload is longer than {PAYLOAD_BYTES_MAX} bytes: {length}"
        );
    }
}

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

/// An entry that was read back at start.
pub struct Replayed<'a> {
    /// Its log.
    pub log: LogId,
    /// The entry; its peak and chain are not filled in.
    pub entry: &'a Entry,
    /// The first bytes of its payload.
    pub start: &'a [u8],
    file: &'a DataFile,
    at: u64,
}

impl Replayed<'_> {
    /// The whole payload.
    ///
    /// # Errors
    /// The disk fails, or gives other bytes than were written.
    pub fn payload(&self) -> io::Result<Bytes> {
        read_checked(self.file, self.at, self.entry)
    }
}

/// Told at start of what the last life of the store had seen.
pub trait Replay {
    /// What a [`Stage`] remembered; entries that it had not seen yet follow. Not called if nothing is
    /// remembered: then all entries follow.
    ///
    /// # Errors
    /// The state cannot be used; the store does not open.
    fn restore(&mut self, state: &[u8]) -> io::Result<()>;

    /// An entry. Those of one log come in order.
    ///
    /// # Errors
    /// The entry cannot be used; the store does not open.
    fn entry(&mut self, replayed: &Replayed<'_>) -> io::Result<()>;

    /// What a [`Stage`] that has seen the same would remember.
    fn state(&self) -> Vec<u8>;
}

struct Queue<S: Stage> {
    state: Mutex<QueueState<S>>,
    filled: Condvar,
}

struct QueueState<S: Stage> {
    requests: VecDeque<Request<S>>,
    wants_seal: bool,
    closing: bool,
    stopped: Option<Arc<str>>,
}

/// Counters for metrics.
#[derive(Debug, Default)]
pub struct Stats {
    /// Groups written.
    pub groups: AtomicU64,
    /// Groups synced.
    pub syncs: AtomicU64,
    /// Appends that became visible.
    pub appends: AtomicU64,
    /// Bytes of journal written, headers included.
    pub bytes: AtomicU64,
    /// Bytes that payloads in memory take, with what it takes to hold them.
    pub tail_bytes: AtomicU64,
    /// The journal's end.
    pub journal_end: AtomicU64,
    /// Everything below is on stable storage.
    pub synced_to: AtomicU64,
    /// The first stamp in the segment that is being written; 0 if there is none yet.
    open_since: AtomicU64,
}

struct Shared<S: Stage> {
    queue: Queue<S>,
    history: Arc<History>,
    stats: Stats,
}

impl<S: Stage> Shared<S> {
    /// Why no more writes are taken, if so.
    fn stopped(&self) -> Option<Arc<str>> {
        let stopped = self.queue.state.lock().stopped.clone();
        stopped.or_else(|| self.history.lost.get().cloned())
    }
}

/// Gives the log of an id.
pub type LogSource = Arc<dyn Fn(LogId) -> io::Result<Arc<Log>> + Send + Sync>;

/// Logs over one journal.
pub struct Store<S: Stage> {
    shared: Arc<Shared<S>>,
    timekeeper: Arc<Timekeeper>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The writer, where it has no thread.
    by_hand: Mutex<Option<Writer<S>>>,
    /// How many bytes of torn tail recovery cut off.
    pub torn_bytes: u64,
}

impl<S: Stage> Store<S> {
    /// Reads the journal back, handing every entry to `replay`, and starts the writer.
    ///
    /// `advanced` is called whenever the frontier may have moved.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was changed then.
    pub fn open<R: Replay>(
        disk: Arc<dyn Disk>,
        options: Options,
        wall: Arc<dyn WallClock>,
        replay: &mut R,
        stage: impl FnOnce(&mut R) -> S,
        advanced: impl Fn() + Send + Sync + 'static,
    ) -> Result<Store<S>, OpenError> {
        let bound = BoundFile::read(&*disk)?;
        let newest = bound.unwrap_or_default();
        let mut opened = Opened::read(&*disk, Arc::new(BlockCache::new(options.index_bytes_max)))?;
        if bound.is_none() && opened.manifest.sequence > 0 {
            return Err(OpenError::BoundLost);
        }
        let (found_manifest, known) = (opened.manifest.sequence, newest.manifest);
        if found_manifest < known {
            let stale = ManifestError::Stale { found: found_manifest, known };
            return Err(HistoryError::Manifest(stale).into());
        }
        let (state, unseen) = opened.remembered(&*disk)?;
        replay_parts(state, &unseen, &opened, replay)?;
        let (from, last) = (opened.manifest.indexed_to, opened.last_stamp());
        let mut found = Found::new(replay);
        let walked = walk(&*disk, from, last, newest.synced_to, &mut found)?;
        // The bound is written before the first segment is made.
        if bound.is_none() && !walked.is_empty() {
            return Err(OpenError::BoundLost);
        }
        if walked.last >= newest.bound && walked.last > Hlc::ZERO {
            return Err(OpenError::BoundStale { bound: newest.bound, stamp: walked.last });
        }
        let recovered = settle(&*disk, walked, newest.synced_to)?;
        opened.remove_unnamed(&*disk)?;
        let bound_file = BoundFile::open(&*disk, bound)?;
        if recovered.torn_bytes > 0 {
            tracing::warn!(
                bytes = recovered.torn_bytes,
                end = recovered.end,
                "cut off a torn tail: bytes behind everything that is known to have been synced"
            );
        }
        let (entries, sealed, frames, open_since) = found.finish(&recovered);
        let segments = Arc::new(Segments::new(recovered.segments));
        let manifest_sequence = Arc::new(AtomicU64::new(opened.manifest.sequence));
        let manifest_bytes = opened.manifest.encode().len() as u64;
        let reserve = Arc::new(Reserve::open(Arc::clone(&disk), manifest_bytes));
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
                follows(&held.tip(), id, &entry)?;
                held.publish(entry, None);
            }
        }
        for sealed in sealed {
            history.push_sealed(sealed);
        }
        let limits = Limits {
            segment_bytes_max: options.segment_bytes_max,
            segment_frames_max: options.segment_frames_max,
        };
        let journal = Journal::new(disk, reserve, segments, recovered.end, limits, frames);
        let floor = newest.bound.previous();
        let (timekeeper, keeper) = Timekeeper::start(
            bound_file,
            floor,
            Reached { synced_to: recovered.end, manifest: manifest_sequence },
            wall,
            options.clock,
            Box::new(advanced),
        )?;
        let queue = Queue {
            state: Mutex::new(QueueState {
                requests: VecDeque::new(),
                wants_seal: false,
                closing: false,
                stopped: None,
            }),
            filled: Condvar::new(),
        };
        let stats = Stats::default();
        stats.journal_end.store(recovered.end, Ordering::Relaxed);
        stats.synced_to.store(recovered.end, Ordering::Relaxed);
        stats.open_since.store(open_since.bits(), Ordering::Relaxed);
        let shared = Arc::new(Shared { queue, history, stats });
        let writer = Writer {
            shared: Arc::clone(&shared),
            timekeeper: Arc::clone(&timekeeper),
            journal,
            stage: stage(replay),
            tail: Tail::new(options.tail_bytes_max),
            durability: options.durability,
            refusals: Refusals::default(),
        };
        let store = Store {
            shared,
            timekeeper,
            threads: Mutex::new(Vec::new()),
            by_hand: Mutex::new(None),
            torn_bytes: recovered.torn_bytes,
        };
        if options.driven_by_hand {
            store.timekeeper.keep_by_hand(keeper);
            *store.by_hand.lock() = Some(writer);
        } else {
            store.spawn(writer, keeper, options.tended_by_hand)?;
        }
        Ok(store)
    }

    fn spawn(&self, writer: Writer<S>, keeper: Keeper, by_hand: bool) -> io::Result<()> {
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
        if by_hand { Ok(()) } else { self.tend_in_background(None) }
    }

    /// Starts the thread that indexes, proves and files, of a store that was opened to be tended by
    /// hand. Proofs are signed with `key`.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn tend_in_background(&self, key: Option<Arc<SigningKey>>) -> io::Result<()> {
        let history = Arc::clone(&self.shared.history);
        if let Some(key) = key {
            let _ = history.signing_key.set(key);
        }
        let tender = std::thread::Builder::new().name("tender".to_owned());
        let run = move || {
            let abort = AbortOnPanic;
            history.tend_until_closed();
            std::mem::forget(abort);
        };
        self.threads.lock().push(tender.spawn(run)?);
        Ok(())
    }

    /// Does what a store that is [driven by hand](Options::driven_by_hand) has to do now: writes one
    /// group, and renews the clock's bound. Whether there was anything to do.
    pub fn turn(&self) -> bool {
        let wrote = self.by_hand.lock().as_mut().is_some_and(Writer::turn);
        self.timekeeper.renew_by_hand() || wrote
    }

    /// The log `id`; empty if nothing was ever appended to it.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn log(&self, id: LogId) -> io::Result<Arc<Log>> {
        self.shared.history.log(id)
    }

    /// [`Store::log`], for a thread that does not hold the store.
    pub fn log_source(&self) -> LogSource {
        let history = Arc::clone(&self.shared.history);
        Arc::new(move |id| history.log(id))
    }

    /// Does the work that has gathered on what is sealed: indexes it, makes damaged indexes anew, and
    /// files what would gain by it.
    ///
    /// # Errors
    /// The disk fails; what was not done is tried again.
    pub fn tend(&self) -> io::Result<()> {
        self.shared.history.tend()
    }

    /// The first stamp in the segment that is being written, if it has one.
    pub fn open_since(&self) -> Option<Hlc> {
        let since = Hlc::from_bits(self.shared.stats.open_since.load(Ordering::Relaxed));
        (since > Hlc::ZERO).then_some(since)
    }

    /// Ends the segment that is being written, so that it can be indexed and filed. It is done before
    /// anything that is appended later.
    pub fn seal(&self) {
        self.shared.queue.state.lock().wants_seal = true;
        self.shared.queue.filled.notify_one();
    }

    /// Gives up everything in front of the offsets named, for ever. The space is given back by the
    /// second call of [`Store::free`] from then.
    ///
    /// # Errors
    /// The disk fails; nothing was given up then.
    pub fn give_up(&self, starts: &[(LogId, Offset)]) -> io::Result<()> {
        // A horizon never lies behind what a crash leaves: offsets would be given out again. So it
        // ends where the log did before the sync.
        let within = |(id, start): &(LogId, Offset)| Ok((*id, (*start).min(self.log(*id)?.end())));
        let starts = starts.iter().map(within).collect::<io::Result<Vec<(LogId, Offset)>>>()?;
        self.sync()?;
        self.shared.history.give_up(&starts)
    }

    /// Puts all that is visible on stable storage, whatever its appends asked for.
    ///
    /// # Errors
    /// The store has stopped.
    pub fn sync(&self) -> io::Result<()> {
        let (sender, synced) = std::sync::mpsc::channel();
        self.when_synced(move || {
            let _ = sender.send(());
        });
        while self.turn() {}
        // The writer drops what it does not complete.
        let _ = synced.recv();
        // Also where a sync failed that indexing asked for: the writer has refused this one then.
        match (self.shared.stopped(), self.is_closing()) {
            (Some(why), _) => Err(io::Error::other(why.to_string())),
            // It may have been refused for that.
            (None, true) => Err(io::Error::new(io::ErrorKind::Interrupted, "the store is closed")),
            (None, false) => Ok(()),
        }
    }

    /// Gives back the space of what was given up or replaced before the last call.
    ///
    /// # Errors
    /// The disk fails; what was not freed is tried again.
    pub fn free(&self) -> io::Result<Freed> {
        self.shared.history.free()
    }

    /// The offset up to which a log can be replaced, so that all that is replaced lies in `cut`; and
    /// the stamp of the last entry before it. Offset 0 if there is nothing to replace.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn replaceable(&self, log: LogId, cut: Cut) -> io::Result<(Offset, Hlc)> {
        let log = self.log(log)?;
        let tip = log.sealed_now().tip_of_whole(|run| cut.admits(run.tip.stamp))?;
        let tip = if cut.admits(tip.stamp) { tip } else { Tip::NONE };
        let tip = if log.horizon().admits_base(tip.end) { tip } else { Tip::NONE };
        Ok((tip.end, tip.stamp))
    }

    /// Puts the entries that `fill` emits in place of all that `log` has below `until`, which is an
    /// offset that [`Store::replaceable`] gave. Whether that was done: not if `confirm` says so, which
    /// is asked once, just before; not if all below `until` was given up meanwhile; and not if the log is
    /// being replaced already.
    ///
    /// Entries come in order, and the last one below `until` has to be among them: cuts end there.
    ///
    /// # Errors
    /// The disk fails, or `fill` does; nothing has changed then.
    pub fn replace(
        &self,
        log: LogId,
        until: Offset,
        fill: Fill<'_>,
        confirm: &mut dyn FnMut(&Compacted) -> bool,
    ) -> io::Result<bool> {
        self.shared.history.replace(log, until, fill, confirm)
    }

    /// The parts that there are.
    pub fn parts(&self) -> Arc<Vec<Arc<Part>>> {
        self.shared.history.parts.all()
    }

    /// Counters of what is done to what is sealed.
    pub fn history_stats(&self) -> &HistoryStats {
        &self.shared.history.stats
    }

    /// The cache of index blocks.
    pub fn index_cache(&self) -> &BlockCache {
        &self.shared.history.cache
    }

    /// The clock, and the frontier.
    pub fn timekeeper(&self) -> &Arc<Timekeeper> {
        &self.timekeeper
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// How many data files there are.
    pub fn segment_count(&self) -> usize {
        self.shared.history.segments.count() + self.shared.history.parts.count()
    }

    /// Whether it is being closed.
    pub fn is_closing(&self) -> bool {
        self.shared.queue.state.lock().closing
    }

    /// Why the store takes no more writes, if so.
    pub fn stopped(&self) -> Option<Arc<str>> {
        self.shared.stopped()
    }

    /// Appends all of `appends`, in order, in one group; then calls `done` on the writer's thread,
    /// with one result each. Calls of `done` come in append order. A store that has stopped or is
    /// closing calls `done` at once, on this thread.
    ///
    /// Bounding what is on its way is the caller's business.
    ///
    /// # Panics
    /// If a payload is longer than [`PAYLOAD_BYTES_MAX`]: recovery would take it for damage.
    pub fn append(
        &self,
        appends: Vec<Append<S::Note>>,
        durability: Durability,
        done: impl FnOnce(Results<S::Refusal>) + Send + 'static,
    ) {
        check_lengths(&appends);
        self.queue(appends, durability, false, Box::new(done));
    }

    /// The same for what leads to space being given back: when the disk is full, it may take what is
    /// kept for that. Nothing else is appended then until there is room again.
    ///
    /// # Panics
    /// As [`Store::append`].
    pub fn append_to_make_space(
        &self,
        appends: Vec<Append<S::Note>>,
        durability: Durability,
        done: impl FnOnce(Results<S::Refusal>) + Send + 'static,
    ) {
        check_lengths(&appends);
        self.queue(appends, durability, true, Box::new(done));
    }

    /// The journal's thread reads no files: how far logs have come is read here.
    fn queue(
        &self,
        appends: Vec<Append<S::Note>>,
        durability: Durability,
        makes_space: bool,
        done: Box<dyn FnOnce(Results<S::Refusal>) + Send>,
    ) {
        let logs = appends.iter().map(|append| self.log(append.log)).collect::<io::Result<_>>();
        let request = Request { makes_space, ..Request::new(appends, durability, done) };
        match logs {
            Ok(logs) => self.push(Request { logs, ..request }),
            Err(error) => {
                complete(vec![fail(request, &AppendError::Index(error.to_string().into()))]);
            }
        }
    }

    /// Puts all that is visible on stable storage, whatever its appends and the options ask for, and then
    /// calls `done`; also if the store has stopped ([`Store::stopped`]).
    pub fn when_synced(&self, done: impl FnOnce() + Send + 'static) {
        let done = Box::new(move |_: Results<S::Refusal>| done());
        let (appends, durability) = (Vec::new(), Durability::Synced);
        self.push(Request { must_sync: true, ..Request::new(appends, durability, done) });
    }

    fn push(&self, request: Request<S>) {
        let mut state = self.shared.queue.state.lock();
        let why = match (&state.stopped, state.closing) {
            (Some(why), _) => Some(Arc::clone(why)),
            (None, true) => Some("it is being closed".into()),
            (None, false) => None,
        };
        if let Some(why) = why {
            drop(state);
            return complete(vec![fail(request, &AppendError::Stopped(why))]);
        }
        state.requests.push_back(request);
        // The writer sleeps only on an empty queue.
        let was_empty = state.requests.len() == 1;
        drop(state);
        if was_empty {
            self.shared.queue.filled.notify_one();
        }
    }

    /// Completes what is queued, syncs the journal, and closes the bound file. Called by a
    /// completion, on the writer's own thread, it does not wait for that.
    pub fn close(&self) {
        self.shared.queue.state.lock().closing = true;
        self.shared.queue.filled.notify_all();
        self.shared.history.close();
        let by_hand = self.by_hand.lock().take();
        if let Some(writer) = by_hand {
            writer.run();
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        let here = std::thread::current().id();
        if threads.iter().any(|thread| thread.thread().id() == here) {
            return;
        }
        for thread in threads {
            // A panic there was an invariant lost, and has aborted the process or will be reported
            // by its own message.
            let _ = thread.join();
        }
    }
}

/// Whether an entry that was found goes on where its log ended.
fn follows(tip: &Tip, log: LogId, entry: &Entry) -> Result<(), RecoverError> {
    let (position, expected, found) = (entry.frame(), tip.end, entry.base);
    if found != expected || found.0.checked_add(u64::from(entry.count)).is_none() {
        return Err(RecoverError::Offsets { position, log, expected, found });
    }
    if entry.stamp <= tip.stamp {
        let (stamp, last) = (entry.stamp, tip.stamp);
        return Err(RecoverError::Order { position, stamp, last });
    }
    if tip.bytes.checked_add(u64::from(entry.length)).is_none() {
        let (log, bytes) = (log.0, tip.bytes);
        let what = format!("a log cannot have so many bytes. log={log}, bytes={bytes}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what).into());
    }
    Ok(())
}

impl<S: Stage> Drop for Store<S> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Hands on what the stage remembered, and the entries of the parts that it had not seen.
fn replay_parts<R: Replay>(
    state: Option<Vec<u8>>,
    unseen: &[Arc<Part>],
    opened: &Opened,
    replay: &mut R,
) -> Result<(), OpenError> {
    if let Some(state) = state {
        replay.restore(&state)?;
    }
    let Some(from) = unseen.first().map(|part| part.start) else { return Ok(()) };
    for base in opened.bases.values() {
        replay_run(&base.files, &base.run, from, replay)?;
    }
    for part in unseen {
        let files = part.files();
        for number in 0..files.index.header.runs {
            let run = files.index.run_at(number)?;
            // What was freed may be gone; what is left of it is in the base.
            if run.tip.end > opened.manifest.horizon(run.log).freed.end {
                replay_run(&files, &run, from, replay)?;
            }
        }
    }
    Ok(())
}

/// Hands on the entries of a run that stood in the journal at `from` or behind it.
fn replay_run<R: Replay>(
    files: &Indexed,
    run: &Run,
    from: u64,
    replay: &mut R,
) -> Result<(), OpenError> {
    for number in run.entries() {
        let placed = files.index.entry(number)?;
        if placed.entry.frame() < from {
            continue;
        }
        let mut start = vec![0; (placed.entry.length as usize).min(HEAD_BYTES_MAX)];
        files.data.read_exact(&mut start, placed.at)?;
        let (log, entry, at) = (run.log, &placed.entry, placed.at);
        replay.entry(&Replayed { log, entry, start: &start, file: &files.data, at })?;
    }
    Ok(())
}

/// What the walk over the journal finds behind what is indexed.
struct Found<'a, R> {
    replay: &'a mut R,
    logs: HashMap<LogId, Vec<Entry>>,
    sealed: Vec<SealedSegment>,
    /// The segment of the last frame, how many frames it has, and the first stamp in it.
    current: Option<(Arc<Segment>, u64, Hlc)>,
}

impl<'a, R: Replay> Found<'a, R> {
    fn new(replay: &'a mut R) -> Found<'a, R> {
        Found { replay, logs: HashMap::new(), sealed: Vec::new(), current: None }
    }

    fn seal(&mut self, end: u64) {
        if let Some((segment, ..)) = self.current.take() {
            self.sealed.push(SealedSegment { segment, end, state: self.replay.state() });
        }
    }

    /// The entries, the segments that are sealed, and of the last segment how many frames it has and
    /// the first stamp in it.
    fn finish(
        mut self,
        recovered: &Recovered,
    ) -> (HashMap<LogId, Vec<Entry>>, Vec<SealedSegment>, u64, Hlc) {
        let newest = recovered.segments.last().map_or(0, |segment| segment.start);
        let is_newest = |(segment, ..): &(Arc<Segment>, u64, Hlc)| segment.start == newest;
        if !self.current.as_ref().is_some_and(is_newest) {
            self.seal(newest);
        }
        let (frames, since) =
            self.current.map_or((0, Hlc::ZERO), |(_, count, since)| (count, since));
        (self.logs, self.sealed, frames, since)
    }
}

impl<R: Replay> Visit for Found<'_, R> {
    fn frame(
        &mut self,
        segment: &Arc<Segment>,
        position: u64,
        frame: &Frame,
        start: &[u8],
    ) -> Result<(), RecoverError> {
        if self.current.as_ref().is_some_and(|(current, ..)| current.start != segment.start) {
            self.seal(segment.start);
        }
        self.current.get_or_insert_with(|| (Arc::clone(segment), 0, frame.stamp)).1 += 1;
        let entry = entry_of(frame, position + FRAME_BYTES as u64);
        let (file, at) = (&*segment.data, segment.at(entry.position));
        let replayed = Replayed { log: frame.log, entry: &entry, start, file, at };
        self.replay.entry(&replayed)?;
        self.logs.entry(frame.log).or_default().push(entry);
        Ok(())
    }
}

struct Writer<S: Stage> {
    shared: Arc<Shared<S>>,
    timekeeper: Arc<Timekeeper>,
    journal: Journal,
    stage: S,
    tail: Tail,
    durability: Durability,
    refusals: Refusals,
}

/// An append that has its frame, and is not visible yet.
struct Laid {
    log: Arc<Log>,
    entry: Entry,
    payload: Payload,
}

type Done<R> = (Box<dyn FnOnce(Results<R>) + Send>, Results<R>);

impl<S: Stage> Writer<S> {
    fn run(mut self) {
        // A panic on this thread is an invariant lost: the process must not go on answering.
        let abort = AbortOnPanic;
        while let Some(gathered) = self.gather() {
            self.act(gathered);
        }
        // After a failed sync the next one says that all is well, and it is not.
        if self.stopped().is_none()
            && let Err(error) = self.journal.sync()
        {
            tracing::error!(error = describe(&error), "the journal was not synced at the end");
        }
        self.timekeeper.close(self.journal.synced_to());
        std::mem::forget(abort);
    }

    /// Acts on what has gathered, and waits for nothing; whether there was anything.
    fn turn(&mut self) -> bool {
        let state = self.shared.queue.state.lock();
        if state.requests.is_empty() && !state.wants_seal {
            return false;
        }
        let gathered = take(state);
        self.act(gathered);
        true
    }

    fn act(&mut self, (group, wants_seal): Gathered<S>) {
        if wants_seal && self.stopped().is_none() {
            self.seal();
        }
        if !group.is_empty() {
            self.serve(group);
        }
    }

    /// Waits for requests, and takes what has gathered.
    fn gather(&self) -> Option<Gathered<S>> {
        let queue = &self.shared.queue;
        let mut state = queue.state.lock();
        while state.requests.is_empty() && !state.wants_seal {
            if state.closing {
                return None;
            }
            queue.filled.wait(&mut state);
        }
        Some(take(state))
    }

    fn seal(&mut self) {
        let Writer { journal, stage, shared, .. } = self;
        if let Err(error) = journal.seal(&mut |sealed| hand_over(shared, stage, sealed)) {
            self.failed(error);
        }
    }

    fn stopped(&self) -> Option<Arc<str>> {
        self.shared.stopped()
    }

    fn serve(&mut self, group: Vec<Request<S>>) {
        // What was queued before the store stopped is not written after it.
        if let Some(why) = self.stopped() {
            let error = AppendError::Stopped(why);
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
        let makes_space = group.iter().any(|request| request.makes_space);
        if let Err(error) = self.make_room(room, makes_space) {
            let mut error = self.failed(error);
            // What was asked for besides appends does not depend on room for them.
            if durable
                && self.stopped().is_none()
                && let Err(unsynced) = self.journal.sync()
            {
                error = self.failed(unsynced);
            }
            return complete(group.into_iter().map(|request| fail(request, &error)).collect());
        }
        self.timekeeper.begin();
        let mut ends: HashMap<LogId, Offset> = HashMap::new();
        let mut laid = Vec::new();
        let mut done: Vec<Done<S::Refusal>> = Vec::with_capacity(group.len());
        for request in group {
            let mut results = Vec::with_capacity(request.appends.len());
            for (append, log) in request.appends.into_iter().zip(request.logs) {
                results.push(self.lay_out(append, log, &mut ends, &mut laid));
            }
            done.push((request.done, results));
        }
        let written = if !laid.is_empty() {
            self.journal.write(durable)
        } else if durable {
            // Refused as known already: what it repeats may have been written without a sync.
            self.journal.sync()
        } else {
            Ok(())
        };
        if let Err(error) = written {
            // A group that is broken off may be found at the next start: its stamps must never be
            // closed by a promise, so the frontier stays below them for the rest of this life.
            let is_gone = matches!(error, WriteError::Refused(_));
            let error = self.failed(error);
            self.stage.rollback();
            if is_gone {
                self.timekeeper.end(self.journal.synced_to());
            }
            // Refusals too: they were made in the light of appends that are no more.
            for result in done.iter_mut().flat_map(|(_, results)| results) {
                *result = Err(error.clone());
            }
            return complete(done);
        }
        self.refusals.taken(|| self.timekeeper.steady_now());
        self.publish(laid, durable);
        complete(done);
    }

    fn make_room(&mut self, bytes: u64, makes_space: bool) -> Result<(), WriteError> {
        if bytes == 0 {
            return Ok(());
        }
        let Writer { journal, stage, shared, .. } = self;
        journal.make_room(bytes, makes_space, &mut |sealed| hand_over(shared, stage, sealed))
    }

    fn lay_out(
        &mut self,
        mut append: Append<S::Note>,
        log: Arc<Log>,
        ends: &mut HashMap<LogId, Offset>,
        laid: &mut Vec<Laid>,
    ) -> Result<Appended, AppendError<S::Refusal>> {
        let base = *ends.entry(append.log).or_insert_with(|| log.end());
        let stamp = self.timekeeper.stamp().map_err(AppendError::Time)?;
        self.stage.stage(&mut append, base, stamp).map_err(AppendError::Refused)?;
        let payload_crc = append.payload_crc();
        let frame = Frame {
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
        let position = self.journal.lay_out(frame, &append.payload);
        let since = &self.shared.stats.open_since;
        if since.load(Ordering::Relaxed) == 0 {
            since.store(stamp.bits(), Ordering::Relaxed);
        }
        let entry = entry_of(&frame, position);
        ends.insert(append.log, entry.end());
        laid.push(Laid { log, entry, payload: append.payload });
        Ok(Appended { base, stamp, journal_end: self.journal.laid_to() })
    }

    fn publish(&mut self, laid: Vec<Laid>, durable: bool) {
        let stats = &self.shared.stats;
        let mut grown: Vec<Arc<Log>> = Vec::new();
        stats.appends.fetch_add(laid.len() as u64, Ordering::Relaxed);
        for Laid { log, entry, payload } in laid {
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
        stats.tail_bytes.store(self.tail.held_bytes() as u64, Ordering::Relaxed);
        let before = stats.journal_end.swap(self.journal.end(), Ordering::Relaxed);
        stats.bytes.fetch_add(self.journal.end() - before, Ordering::Relaxed);
        self.shared.history.foreground.store(self.journal.end(), Ordering::Relaxed);
        stats.synced_to.store(self.journal.synced_to(), Ordering::Relaxed);
        self.timekeeper.end(self.journal.synced_to());
        for log in grown {
            log.wake();
        }
    }

    fn failed(&mut self, error: WriteError) -> AppendError<S::Refusal> {
        let why: Arc<str> = describe(&error).into();
        match error {
            WriteError::Refused(_) => {
                self.refusals.refused(&why, self.timekeeper.steady_now());
                AppendError::Disk(why)
            }
            WriteError::Broken { .. } => {
                tracing::error!(error = %why, "the store stops: what is on the disk is not known");
                self.shared.queue.state.lock().stopped = Some(Arc::clone(&why));
                AppendError::Stopped(why)
            }
        }
    }
}

/// A group, and whether the segment in front of it is to be sealed.
type Gathered<S> = (Vec<Request<S>>, bool);

fn take<S: Stage>(mut state: MutexGuard<'_, QueueState<S>>) -> Gathered<S> {
    let (mut group, mut bytes) = (Vec::new(), 0);
    // What may take the space that is kept comes alone.
    let ends = |group: &[Request<S>], next: &Request<S>| {
        next.makes_space || group.last().is_some_and(|last| last.makes_space)
    };
    while bytes < GROUP_BYTES {
        let Some(request) = state.requests.pop_front() else { break };
        if !group.is_empty() && ends(&group, &request) {
            state.requests.push_front(request);
            break;
        }
        let sum = |append: &Append<S::Note>| append.payload.len() as u64;
        bytes += request.appends.iter().map(sum).sum::<u64>();
        group.push(request);
    }
    (group, std::mem::take(&mut state.wants_seal))
}

/// Gives a sealed segment to those who index it, once there are not too many.
fn hand_over<S: Stage>(
    shared: &Shared<S>,
    stage: &S,
    (segment, end): (Arc<Segment>, u64),
) -> io::Result<()> {
    let history = &shared.history;
    history.wait_for_room()?;
    shared.stats.open_since.store(0, Ordering::Relaxed);
    history.push_sealed(SealedSegment { segment, end, state: stage.state() });
    Ok(())
}

fn describe(error: &WriteError) -> String {
    match error {
        WriteError::Refused(source) => source.to_string(),
        WriteError::Broken { doing, source } => format!("{doing}: {source}"),
    }
}

fn fail<S: Stage>(request: Request<S>, error: &AppendError<S::Refusal>) -> Done<S::Refusal> {
    let results = request.appends.iter().map(|_| Err(error.clone())).collect();
    (request.done, results)
}

fn complete<R>(done: Vec<Done<R>>) {
    for (done, results) in done {
        done(results);
    }
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("freezeframe: an invariant of the journal was lost; stopping");
            std::process::abort();
        }
    }
}
