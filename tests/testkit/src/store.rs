//! A store under test: a stage that fills in headers and refuses on demand, a replay that records
//! its entries, and appends that wait for their results.

#![allow(missing_docs, reason = "a fixture's names say what it is")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use hlc::{Hlc, ManualClock, SysTime, UserTime, WallClock};
use storage::disk::{Disk, MemoryDisk};
use storage::journal::RecoverError;
use storage::{
    AppendError, AppendReceipt, AppendStage, Durability, GroupNumber, LogAppend, LogId, Offset,
    OpenError, Options, Payload, PayloadHeader, ReplayHandler, ReplayedEntry, Store,
};

/// The time at which simulated clocks begin.
pub const BEGIN: SysTime = SysTime(1_795_251_600_000);

/// A store that a test steps manually, and that has to find everything in files.
pub fn in_files_stepped() -> Options {
    Options {
        tail_bytes_max: 0,
        idle_logs_max: 0,
        manual_maintenance: true,
        manual_stepping: true,
        ..Options::default()
    }
}

/// The verdict that an append requests of the [`TestStage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageVerdict {
    Accept,
    Refuse,
}

/// The number of calls of the stage.
#[derive(Debug, Default)]
pub struct StageCalls {
    pub commits: AtomicU64,
    pub rollbacks: AtomicU64,
}

/// Writes offset and stamp into the first 16 bytes of a header of that length; refuses on request.
pub struct TestStage(Arc<StageCalls>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageRefusal;

impl AppendStage for TestStage {
    type Note = StageVerdict;
    type Refusal = StageRefusal;

    fn stage(
        &mut self,
        append: &mut LogAppend<StageVerdict>,
        base: Offset,
        stamp: Hlc,
    ) -> Result<(), StageRefusal> {
        if append.note == StageVerdict::Refuse {
            return Err(StageRefusal);
        }
        if let Some(head) = append.payload.header.as_mut_slice().get_mut(..16) {
            head[..8].copy_from_slice(&base.0.to_le_bytes());
            head[8..].copy_from_slice(&stamp.bits().to_le_bytes());
        }
        Ok(())
    }

    fn begin(&mut self, _: GroupNumber) {}

    fn commit(&mut self, _: GroupNumber) {
        self.0.commits.fetch_add(1, Ordering::SeqCst);
    }

    fn replay(&mut self, _: &ReplayedEntry<'_>) {}

    fn rollback(&mut self, _: GroupNumber) {
        self.0.rollbacks.fetch_add(1, Ordering::SeqCst);
    }

    fn state(&self) -> Vec<u8> {
        STATE.to_vec()
    }
}

/// The state that the stage saves.
const STATE: &[u8] = b"what the stage remembered";

/// An entry that replay or a reader has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    pub log: LogId,
    pub stamp: Hlc,
    pub base: Offset,
    pub count: u32,
    pub payload: Bytes,
}

/// Records every replayed entry.
#[derive(Debug, Default)]
pub struct ReplayRecorder(pub Vec<StoredEntry>);

impl ReplayHandler for ReplayRecorder {
    fn restore(&mut self, state: &[u8]) -> Result<(), RecoverError> {
        assert_eq!(state, STATE, "a stage gets back what it remembered");
        Ok(())
    }

    fn state(&self) -> Vec<u8> {
        STATE.to_vec()
    }

    fn entry(&mut self, replayed: &ReplayedEntry<'_>) -> Result<(), RecoverError> {
        let payload = replayed.payload()?;
        let shown = replayed.start.len();
        assert_eq!(
            shown,
            payload.len().min(storage::PAYLOAD_HEADER_BYTES_MAX),
            "the start of a payload"
        );
        assert_eq!(replayed.start, &payload[..shown], "the start of a payload");
        let entry = replayed.entry;
        self.0.push(StoredEntry {
            log: replayed.log,
            stamp: entry.stamp,
            base: entry.base,
            count: entry.count,
            payload,
        });
        Ok(())
    }
}

pub type StageAppendResult = Result<AppendReceipt, AppendError<StageRefusal>>;

/// A store, and the entries that its opening replayed.
pub struct StoreFixture {
    pub store: Store<TestStage>,
    pub calls: Arc<StageCalls>,
    pub replayed: Vec<StoredEntry>,
    is_manually_stepped: bool,
}

impl std::fmt::Debug for StoreFixture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreFixture").finish_non_exhaustive()
    }
}

impl StoreFixture {
    pub fn open(
        disk: &MemoryDisk,
        options: Options,
        clock: &Arc<ManualClock>,
    ) -> Result<StoreFixture, OpenError> {
        StoreFixture::open_on(
            Arc::new(disk.clone()),
            options,
            Arc::clone(clock) as Arc<dyn WallClock>,
        )
    }

    pub fn open_on(
        disk: Arc<dyn Disk>,
        options: Options,
        wall: Arc<dyn WallClock>,
    ) -> Result<StoreFixture, OpenError> {
        let calls = Arc::new(StageCalls::default());
        let mut replay = ReplayRecorder::default();
        let staged = Arc::clone(&calls);
        let store = Store::open(disk, options, wall, &mut replay, |_| TestStage(staged), || {})?;
        let is_manually_stepped = options.manual_stepping;
        Ok(StoreFixture { store, calls, replayed: replay.0, is_manually_stepped })
    }

    /// Appends, and waits for the results.
    pub fn append(
        &self,
        appends: Vec<LogAppend<StageVerdict>>,
        durability: Durability,
    ) -> Vec<StageAppendResult> {
        let results = self.begin_append(appends, durability);
        self.step_until_idle();
        results
            .recv_timeout(Duration::from_secs(60))
            .expect("an append that never completes is a bug")
    }

    /// Appends, and returns the receiver of the results.
    pub fn begin_append(
        &self,
        appends: Vec<LogAppend<StageVerdict>>,
        durability: Durability,
    ) -> mpsc::Receiver<Vec<StageAppendResult>> {
        let (sender, receiver) = mpsc::channel();
        self.store.append(appends, durability, move |results| {
            let _ = sender.send(results);
        });
        receiver
    }

    /// Appends requests that the writer takes as one group: it is blocked until all are queued.
    pub fn append_as_one_group(
        &self,
        requests: Vec<(Vec<LogAppend<StageVerdict>>, Durability)>,
    ) -> Vec<Vec<StageAppendResult>> {
        let hold = (!self.is_manually_stepped).then(|| self.hold_writer());
        let waiting: Vec<_> =
            requests.into_iter().map(|(appends, how)| self.begin_append(appends, how)).collect();
        drop(hold);
        self.step_until_idle();
        let patience = Duration::from_secs(60);
        let done = |receiver: mpsc::Receiver<_>| receiver.recv_timeout(patience).expect("results");
        waiting.into_iter().map(done).collect()
    }

    /// Blocks the writer's thread until the returned sender is dropped.
    fn hold_writer(&self) -> mpsc::Sender<()> {
        let (hold, held) = mpsc::channel::<()>();
        let (tell, reached) = mpsc::channel();
        let here = std::thread::current().id();
        self.store.append(Vec::new(), Durability::Written, move |_| {
            let _ = tell.send(());
            // A store that has stopped calls back on the caller's thread.
            if std::thread::current().id() != here {
                let _ = held.recv();
            }
        });
        // The next requests must not form one group with this one.
        reached.recv_timeout(Duration::from_secs(60)).expect("the writer is there");
        hold
    }

    /// Closes the clock, and waits for the bound that this requested, so that runs are
    /// reproducible.
    pub fn frontier(&self) -> Hlc {
        let timekeeper = self.store.timekeeper();
        timekeeper.frontier();
        self.step_until_idle();
        timekeeper.frontier()
    }

    /// Steps a manually stepped store until it is idle, and waits for a requested bound.
    pub fn step_until_idle(&self) {
        while self.store.step() {}
        while self.store.timekeeper().is_renewing() {
            std::thread::yield_now();
        }
    }

    /// Every entry of `logs`, in stamp order, with its bytes.
    pub fn all(&self, logs: impl IntoIterator<Item = LogId>) -> Vec<StoredEntry> {
        let mut seen: Vec<StoredEntry> = logs.into_iter().flat_map(|log| self.read(log)).collect();
        seen.sort_by_key(|entry| entry.stamp);
        seen
    }

    /// Every entry of `log` that is kept, with its bytes.
    pub fn read(&self, log: LogId) -> Vec<StoredEntry> {
        let index = self.store.log(log).expect("an index");
        let pieces = index.read(index.start(), Offset(u64::MAX), usize::MAX);
        let pieces = pieces.expect("an index can be read");
        let seen = |piece: storage::EntryPayload| StoredEntry {
            log,
            stamp: piece.entry.stamp,
            base: piece.entry.base,
            count: piece.entry.count,
            payload: piece.read().expect("a visible entry can be read"),
        };
        pieces.into_iter().map(seen).collect()
    }
}

/// An append of `payload` to `log` that takes one offset.
pub fn append(log: u64, payload: &[u8]) -> LogAppend<StageVerdict> {
    LogAppend {
        log: LogId(log),
        kind: 0,
        epoch: 0,
        count: 1,
        user: (UserTime(0), UserTime(0)),
        payload: Payload::without_header(Bytes::copy_from_slice(payload)),
        crc_from: None,
        note: StageVerdict::Accept,
    }
}

/// An append with a header that the stage fills in, and a known checksum of the rest.
pub fn append_with_header(log: u64, rest: &[u8]) -> LogAppend<StageVerdict> {
    let rest = Bytes::copy_from_slice(rest);
    let crc_from = Some((16, crc32c::crc32c(&rest)));
    let payload = Payload { header: PayloadHeader::new(&[0; 16]), rest };
    LogAppend { payload, crc_from, ..append(log, &[]) }
}

pub fn manual_clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(BEGIN))
}

/// The seeds to run: the one in `STORAGE_SEED`, or `count` fixed ones.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("STORAGE_SEED") {
        Ok(seed) => vec![seed.parse().expect("STORAGE_SEED is a number")],
        Err(_) => (1..=count).collect(),
    }
}

/// Prints how to reproduce the run, if the test fails while this exists.
pub struct SeedReplayHint {
    pub test: &'static str,
    pub seed: u64,
    pub place: std::cell::Cell<(u64, u64)>,
}

impl Drop for SeedReplayHint {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let SeedReplayHint { test, seed, .. } = self;
            let (operation, choice) = self.place.get();
            eprintln!("failed with seed {seed}, crash at operation {operation}, choice {choice}");
            eprintln!(
                "replay: STORAGE_SEED={seed} cargo test -p storage --test integration {test}"
            );
        }
    }
}

pub fn one(fixture: &StoreFixture, log: u64, payload: &[u8], how: Durability) -> StageAppendResult {
    fixture.append(vec![append(log, payload)], how).remove(0)
}

pub fn durably(fixture: &StoreFixture, log: u64, payload: &[u8]) {
    one(fixture, log, payload, Durability::Synced).expect("a healthy disk takes an append");
}

/// Names and bytes of all files.
pub fn files(disk: &MemoryDisk) -> BTreeMap<String, Vec<u8>> {
    let names = disk.list().expect("a disk in memory lists its files");
    names.into_iter().map(|name| (name.clone(), disk.bytes(&name))).collect()
}

pub fn segments(disk: &MemoryDisk) -> Vec<String> {
    let mut names = disk.list().expect("a disk in memory lists its files");
    names.retain(|name| name.ends_with(".journal"));
    names.sort();
    names
}

pub fn problems(disk: &MemoryDisk) -> Vec<String> {
    let before = files(disk);
    let report = storage::check::check(disk, &mut |_| {}).expect("a disk in memory can be read");
    assert!(files(disk) == before, "a check changes nothing");
    report.problems
}
