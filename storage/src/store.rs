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
use hlc::{ClockOptions, Hlc, UserTime, WallClock};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::disk::Disk;
use crate::journal::{
    FRAME_BYTES, Frame, Journal, PAYLOAD_BYTES_MAX, RecoverError, Segment, Segments, Visit,
    WriteError, padded, settle, walk,
};
use crate::log::{Entry, Log, LogId, Offset, read_checked};
use crate::tail::{Payload, Tail};
use crate::timekeeper::{BoundError, BoundFile, Keeper, TimeError, Timekeeper};

/// A group is closed once it holds this many bytes of payload.
const GROUP_BYTES: u64 = 16 << 20;

/// How a store keeps its journal.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// When an append that asks for durability is complete.
    pub durability: Durability,
    /// A segment is sealed before it grows longer than this, in bytes.
    pub segment_bytes_max: u64,
    /// How many bytes of the newest payloads stay in memory.
    pub tail_bytes_max: usize,
    /// How far clocks may be wrong.
    pub clock: ClockOptions,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            durability: Durability::Synced,
            segment_bytes_max: 256 << 20,
            tail_bytes_max: 64 << 20,
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
            Some((from, crc)) if from <= head.len() => {
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
    /// The store takes no more writes.
    #[error("the store has stopped: {0}")]
    Stopped(Arc<str>),
}

/// The results of a request, one for each of its appends.
pub type Results<R> = Vec<Result<Appended, AppendError<R>>>;

struct Request<S: Stage> {
    appends: Vec<Append<S::Note>>,
    durability: Durability,
    done: Box<dyn FnOnce(Results<S::Refusal>) + Send>,
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
    segment: &'a Arc<Segment>,
}

impl Replayed<'_> {
    /// The whole payload.
    ///
    /// # Errors
    /// The disk fails, or gives other bytes than were written.
    pub fn payload(&self) -> io::Result<Bytes> {
        read_checked(self.segment, self.entry)
    }
}

/// Told of every entry at start, in stamp order.
pub trait Replay {
    /// An entry.
    ///
    /// # Errors
    /// The entry cannot be used; the store does not open.
    fn entry(&mut self, replayed: &Replayed<'_>) -> io::Result<()>;
}

struct Queue<S: Stage> {
    state: Mutex<QueueState<S>>,
    filled: Condvar,
}

struct QueueState<S: Stage> {
    requests: VecDeque<Request<S>>,
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
}

struct Shared<S: Stage> {
    queue: Queue<S>,
    logs: RwLock<HashMap<LogId, Arc<Log>>>,
    segments: Arc<Segments>,
    stats: Stats,
}

/// Gives the log of an id.
pub type LogSource = Arc<dyn Fn(LogId) -> Arc<Log> + Send + Sync>;

/// Logs over one journal.
pub struct Store<S: Stage> {
    shared: Arc<Shared<S>>,
    timekeeper: Arc<Timekeeper>,
    threads: Mutex<Vec<JoinHandle<()>>>,
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
        let mut index = Index { replay, logs: HashMap::new() };
        let walked = walk(&*disk, newest.synced_to, &mut index)?;
        // The bound is written before the first segment is made.
        if bound.is_none() && !walked.is_empty() {
            return Err(OpenError::BoundLost);
        }
        if walked.last >= newest.bound && walked.last > Hlc::ZERO {
            return Err(OpenError::BoundStale { bound: newest.bound, stamp: walked.last });
        }
        let recovered = settle(&*disk, walked, newest.synced_to)?;
        let bound_file = BoundFile::open(&*disk, bound)?;
        if recovered.torn_bytes > 0 {
            tracing::warn!(
                bytes = recovered.torn_bytes,
                end = recovered.end,
                "cut off a torn tail: bytes behind everything that is known to have been synced"
            );
        }
        let found = index.logs;
        let journal =
            Journal::new(disk, recovered.segments, recovered.end, options.segment_bytes_max);
        let segments = Arc::clone(journal.segments());
        let logs = found
            .into_iter()
            .map(|(id, entries)| {
                let log = Log::new(id, Arc::clone(&segments));
                for entry in entries {
                    log.publish(entry, None);
                }
                (id, Arc::new(log))
            })
            .collect();
        let floor = newest.bound.previous();
        let (timekeeper, keeper) = Timekeeper::start(
            bound_file,
            floor,
            recovered.end,
            wall,
            options.clock,
            Box::new(advanced),
        )?;
        let queue = Queue {
            state: Mutex::new(QueueState {
                requests: VecDeque::new(),
                closing: false,
                stopped: None,
            }),
            filled: Condvar::new(),
        };
        let stats = Stats::default();
        stats.journal_end.store(recovered.end, Ordering::Relaxed);
        stats.synced_to.store(recovered.end, Ordering::Relaxed);
        let shared = Arc::new(Shared { queue, logs: RwLock::new(logs), segments, stats });
        let writer = Writer {
            shared: Arc::clone(&shared),
            timekeeper: Arc::clone(&timekeeper),
            journal,
            stage: stage(index.replay),
            tail: Tail::new(options.tail_bytes_max),
            durability: options.durability,
        };
        let store = Store {
            shared,
            timekeeper,
            threads: Mutex::new(Vec::new()),
            torn_bytes: recovered.torn_bytes,
        };
        store.spawn(writer, keeper)?;
        Ok(store)
    }

    fn spawn(&self, writer: Writer<S>, keeper: Keeper) -> io::Result<()> {
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let mut threads = self.threads.lock();
        threads.push(thread("journal").spawn(move || writer.run())?);
        threads.push(thread("bound").spawn(move || keeper.run())?);
        Ok(())
    }

    /// The log `id`; empty if nothing was ever appended to it.
    pub fn log(&self, id: LogId) -> Arc<Log> {
        self.shared.log(id)
    }

    /// [`Store::log`], for a thread that does not hold the store.
    pub fn log_source(&self) -> LogSource {
        let shared = Arc::clone(&self.shared);
        Arc::new(move |id| shared.log(id))
    }

    /// The clock, and the frontier.
    pub fn timekeeper(&self) -> &Arc<Timekeeper> {
        &self.timekeeper
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// How many segments the journal has.
    pub fn segment_count(&self) -> usize {
        self.shared.segments.count()
    }

    /// Why the store takes no more writes, if so.
    pub fn stopped(&self) -> Option<Arc<str>> {
        self.shared.queue.state.lock().stopped.clone()
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
        for append in &appends {
            let length = append.payload.len();
            assert!(
                length <= PAYLOAD_BYTES_MAX as usize,
                "no payload is longer than {PAYLOAD_BYTES_MAX} bytes: {length}"
            );
        }
        let mut state = self.shared.queue.state.lock();
        let why = match (&state.stopped, state.closing) {
            (Some(why), _) => Some(Arc::clone(why)),
            (None, true) => Some("it is being closed".into()),
            (None, false) => None,
        };
        if let Some(why) = why {
            drop(state);
            done(appends.iter().map(|_| Err(AppendError::Stopped(Arc::clone(&why)))).collect());
            return;
        }
        state.requests.push_back(Request { appends, durability, done: Box::new(done) });
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

impl<S: Stage> Drop for Store<S> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<S: Stage> Shared<S> {
    fn log(&self, id: LogId) -> Arc<Log> {
        if let Some(log) = self.logs.read().get(&id) {
            return Arc::clone(log);
        }
        let mut logs = self.logs.write();
        let new = || Arc::new(Log::new(id, Arc::clone(&self.segments)));
        Arc::clone(logs.entry(id).or_insert_with(new))
    }
}

struct Index<'a, R> {
    replay: &'a mut R,
    logs: HashMap<LogId, Vec<Entry>>,
}

impl<R: Replay> Visit for Index<'_, R> {
    fn frame(
        &mut self,
        segment: &Arc<Segment>,
        position: u64,
        frame: &Frame,
        start: &[u8],
    ) -> Result<(), RecoverError> {
        let entry = entry_of(frame, position + FRAME_BYTES as u64);
        let replayed = Replayed { log: frame.log, entry: &entry, start, segment };
        self.replay.entry(&replayed)?;
        self.logs.entry(frame.log).or_default().push(entry);
        Ok(())
    }
}

fn entry_of(frame: &Frame, position: u64) -> Entry {
    Entry {
        stamp: frame.stamp,
        base: frame.base,
        count: frame.count,
        length: frame.length,
        position,
        user_min: frame.user_min,
        user_max: frame.user_max,
        user_peak: frame.user_max,
        payload_crc: frame.payload_crc,
        epoch: frame.epoch,
        kind: frame.kind,
        chain: 0,
    }
}

struct Writer<S: Stage> {
    shared: Arc<Shared<S>>,
    timekeeper: Arc<Timekeeper>,
    journal: Journal,
    stage: S,
    tail: Tail,
    durability: Durability,
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
        while let Some(group) = self.gather() {
            self.serve(group);
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

    /// Waits for requests, and takes what has gathered.
    fn gather(&self) -> Option<Vec<Request<S>>> {
        let queue = &self.shared.queue;
        let mut state = queue.state.lock();
        while state.requests.is_empty() {
            if state.closing {
                return None;
            }
            queue.filled.wait(&mut state);
        }
        let (mut group, mut bytes) = (Vec::new(), 0);
        while bytes < GROUP_BYTES {
            let Some(request) = state.requests.pop_front() else { break };
            let sum = |append: &Append<S::Note>| append.payload.len() as u64;
            bytes += request.appends.iter().map(sum).sum::<u64>();
            group.push(request);
        }
        Some(group)
    }

    fn stopped(&self) -> Option<Arc<str>> {
        self.shared.queue.state.lock().stopped.clone()
    }

    fn serve(&mut self, group: Vec<Request<S>>) {
        // What was queued before the store stopped is not written after it.
        if let Some(why) = self.stopped() {
            let error = AppendError::Stopped(why);
            return complete(group.into_iter().map(|request| fail(request, &error)).collect());
        }
        let durable = self.durability == Durability::Synced
            && group.iter().any(|request| request.durability == Durability::Synced);
        let room: u64 = group
            .iter()
            .flat_map(|request| &request.appends)
            .map(|append| FRAME_BYTES as u64 + padded(append.payload.len() as u64))
            .sum();
        if let Err(error) = self.journal.make_room(room) {
            let error = self.failed(error);
            return complete(group.into_iter().map(|request| fail(request, &error)).collect());
        }
        self.timekeeper.begin();
        let mut ends: HashMap<LogId, Offset> = HashMap::new();
        let mut laid = Vec::new();
        let mut done: Vec<Done<S::Refusal>> = Vec::with_capacity(group.len());
        for request in group {
            let mut results = Vec::with_capacity(request.appends.len());
            for append in request.appends {
                results.push(self.lay_out(append, &mut ends, &mut laid));
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
        self.publish(laid, durable);
        complete(done);
    }

    fn lay_out(
        &mut self,
        mut append: Append<S::Note>,
        ends: &mut HashMap<LogId, Offset>,
        laid: &mut Vec<Laid>,
    ) -> Result<Appended, AppendError<S::Refusal>> {
        let log = self.shared.log(append.log);
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
                tracing::error!(error = %why, "the disk refused a write; it was taken back whole");
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
