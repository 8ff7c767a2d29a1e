//! The machine stops at every write, truncate and sync of a random run, and random parts of what
//! was not synced survive (F16, F18, F19, F9, B5).
//!
//! The `CrashWitness` knows what every incarnation acknowledged. It examines the reopened store
//! after each crash:
//! - every append acknowledged as durable exists, with its stamp, offset and bytes;
//! - what survives is a prefix, in stamp order, of what was laid out;
//! - what was refused, or failed for good, does not exist;
//! - stamps and the frontier exceed every stamp and promise given before;
//! - an answer about the past stays the same, if the entries behind it were durable;
//! - what was removed stays removed, and nothing else is;
//! - what compaction replaced has its old or its new content, and no cut above its horizon changes.
//!
//! Runs are reproducible: one thread submits, and the clock moves only between groups.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hlc::{Cut, Hlc, ManualClock, SysTime, WallClock};
use storage::disk::{DiskFault, MemoryDisk};
use storage::{
    AppendError, AppendReceipt, CompactedEntry, CompactionHorizon, Durability, HistoryStats,
    LogAppend, LogId, Offset, Options, StorageError,
};
use testkit::rng::SeededRng;
use testkit::store::{
    SeedReplayHint, StageVerdict, StoreFixture, StoredEntry, append, append_with_header, seeds,
};

const LOGS: u64 = 4;

fn logs() -> impl Iterator<Item = LogId> {
    (0..LOGS).map(LogId)
}

fn options(durability: Durability, segment_bytes_max: u64) -> Options {
    Options {
        durability,
        segment_bytes_max,
        tail_bytes_max: 2048,
        uncovered_segments_max: 1,
        merge_bytes_min: 32 << 10,
        ..testkit::store::in_files_stepped()
    }
}

/// An append that may be in the journal.
#[derive(Clone, Debug)]
struct WitnessedAppend {
    log: LogId,
    /// The payload after its header.
    rest: Vec<u8>,
    has_header: bool,
    count: u32,
    acknowledged: Option<AppendReceipt>,
    /// The possible results of compaction: the entry is gone, or has other bytes.
    compacted: Vec<Option<Vec<u8>>>,
}

impl WitnessedAppend {
    fn may_be_gone(&self) -> bool {
        self.compacted.contains(&None)
    }

    fn is(&self, entry: &StoredEntry) -> bool {
        let is_compacted = self.compacted.iter().any(|to| to.as_deref() == Some(&entry.payload));
        if is_compacted {
            let receipt = self.acknowledged.expect("what is sealed was acknowledged");
            return (receipt.base, receipt.stamp) == (entry.base, entry.stamp);
        }
        let rest = if self.has_header {
            let head = [entry.base.0.to_le_bytes(), entry.stamp.bits().to_le_bytes()].concat();
            match entry.payload.strip_prefix(head.as_slice()) {
                Some(rest) => rest,
                None => return false,
            }
        } else {
            &entry.payload[..]
        };
        let same =
            |receipt: AppendReceipt| (receipt.base, receipt.stamp) == (entry.base, entry.stamp);
        self.log == entry.log && self.rest == rest && self.acknowledged.is_none_or(same)
    }
}

/// An answer that was final when it was given.
#[derive(Clone, Debug)]
struct WitnessedAnswer {
    log: LogId,
    cut: Cut,
    offset: Offset,
    chain: u128,
    /// The number of appends laid out from which it was made.
    from: usize,
}

/// The acknowledgements of all incarnations so far.
#[derive(Clone, Debug, Default)]
struct CrashWitness {
    appends: Vec<WitnessedAppend>,
    /// The number of them that a crash of the machine must leave.
    durable: usize,
    /// The number of them that the death of the process must leave.
    visible: usize,
    promised: Hlc,
    answers: Vec<WitnessedAnswer>,
    /// The log start of each log, as acknowledged, and as requested.
    starts: [(u64, u64); LOGS as usize],
    /// The compaction horizon of each log, as acknowledged, and as requested.
    compacted: [(Hlc, Hlc); LOGS as usize],
}

impl CrashWitness {
    fn note(&mut self, append: &LogAppend<StageVerdict>, acknowledged: Option<AppendReceipt>) {
        let head = !append.payload.header.as_slice().is_empty();
        let rest = append.payload.rest.to_vec();
        let count = append.count;
        let compacted = Vec::new();
        self.appends.push(WitnessedAppend {
            log: append.log,
            rest,
            has_header: head,
            count,
            acknowledged,
            compacted,
        });
        if let Some(appended) = acknowledged {
            assert!(appended.stamp > self.promised, "a stamp lies in what was promised closed");
            self.promised = appended.stamp;
            self.visible = self.appends.len();
        }
    }

    fn ask(&mut self, fixture: &StoreFixture, random: &mut SeededRng) {
        let frontier = fixture.frontier();
        assert!(frontier >= self.promised || !self.ends_whole(), "a frontier never falls");
        self.promised = self.promised.max(frontier);
        // Biased to the newest moments, which a crash can change.
        let reach = 16 + random.below(12);
        let back = random.below(1 << reach);
        let cut = Cut::below(Hlc::from_bits(frontier.next().bits() - back));
        assert!(cut.is_closed_by(frontier));
        for log in logs() {
            let index = fixture.store.log(log).unwrap();
            let tip = index.tip_at(cut).expect("an index can be read");
            let (chain, offset) = (tip.chain, tip.end);
            self.answers.push(WitnessedAnswer { log, cut, offset, chain, from: self.visible });
        }
    }

    /// Returns true if no append is unresolved: then every stamp given out is known.
    fn ends_whole(&self) -> bool {
        self.visible == self.appends.len()
    }

    /// Compares a reopened store with what was acknowledged before; at least `least` appends must
    /// exist.
    fn examine(&mut self, fixture: &StoreFixture, least: usize) {
        let entries = fixture.all(logs());
        let start = |log: LogId| fixture.store.log(log).unwrap().start().0;
        let is_kept = |log: LogId, end: u64| end > start(log);
        for (log, (acknowledged, requested)) in logs().zip(&mut self.starts) {
            let start = start(log);
            assert!((*acknowledged..=*requested).contains(&start), "{log:?} begins at {start}");
            (*acknowledged, *requested) = (start, start);
        }
        let replayed = fixture.replayed.iter();
        let mut replayed: Vec<StoredEntry> = replayed
            .filter(|entry| is_kept(entry.log, entry.base.0 + u64::from(entry.count)))
            .cloned()
            .collect();
        // If an index was lost, its entries are replayed by log.
        replayed.sort_by_key(|entry| entry.stamp);
        assert!(entries.ends_with(&replayed), "replay shows all since what the stage remembered");
        for (log, (acknowledged, requested)) in logs().zip(&mut self.compacted) {
            let to = fixture.store.log(log).unwrap().horizon().compacted_to;
            assert!((*acknowledged..=*requested).contains(&to), "{log:?} was compacted to {to}");
            (*acknowledged, *requested) = (to, to);
        }
        // The appends that were laid out and not removed, or left out by compaction.
        let stamps: std::collections::HashSet<Hlc> =
            entries.iter().map(|entry| entry.stamp).collect();
        let expected: Vec<usize> = (0..self.appends.len())
            .filter(|index| {
                let append = &self.appends[*index];
                append.acknowledged.is_none_or(|receipt| {
                    is_kept(append.log, receipt.base.0 + u64::from(append.count))
                        && (!append.may_be_gone() || stamps.contains(&receipt.stamp))
                })
            })
            .collect();
        assert!(entries.len() <= expected.len(), "found what was refused or withdrawn");
        let survived = expected.get(entries.len()).copied().unwrap_or(self.appends.len());
        assert!(survived >= least, "lost: {survived} of {least} survived");
        for (index, entry) in expected.iter().zip(&entries) {
            let append = &self.appends[*index];
            assert!(append.is(entry), "append {index} is {entry:?}, was {append:?}");
        }
        for log in logs() {
            let mut end: Option<Offset> = None;
            for entry in entries.iter().filter(|entry| entry.log == log) {
                // Entries that compaction left out lie below its horizon.
                let is_dense =
                    entry.stamp >= fixture.store.log(log).unwrap().horizon().compacted_to;
                let follows = |end| if is_dense { entry.base == end } else { entry.base >= end };
                assert!(end.is_none_or(follows), "offsets are dense: {entry:?} after {end:?}");
                end = Some(Offset(entry.base.0 + u64::from(entry.count)));
            }
        }
        for (index, entry) in expected.iter().zip(&entries) {
            let late = *index < self.visible || entry.stamp > self.promised;
            assert!(late, "{entry:?} lies in what was promised closed");
        }
        self.answers.retain(|answer| {
            let horizon = fixture.store.log(answer.log).unwrap().horizon();
            answer.from <= survived
                && answer.cut.bound() > horizon.lost_to
                && answer.cut.bound() >= horizon.compacted_to
        });
        for answer in &self.answers {
            let index = fixture.store.log(answer.log).unwrap();
            let tip = index.tip_at(answer.cut).expect("an index can be read");
            assert_eq!((tip.end, tip.chain), (answer.offset, answer.chain), "{answer:?}");
        }
        let last = entries.last().map_or(Hlc::ZERO, |entry| entry.stamp);
        let frontier = fixture.frontier();
        assert!(frontier >= self.promised.max(last), "the frontier fell: {frontier}");
        self.promised = frontier;
        // Recovery syncs what it finds, so it is durable from here on.
        for (index, entry) in expected.iter().zip(&entries) {
            let (base, stamp) = (entry.base, entry.stamp);
            let receipt = AppendReceipt { base, stamp, journal_end: 0 };
            let append = &mut self.appends[*index];
            append.acknowledged.get_or_insert(receipt);
            // Its content is final now.
            append.compacted.retain(|to| to.as_deref() == Some(&entry.payload));
        }
        self.appends.truncate(survived);
        let is_present = |append: &WitnessedAppend| {
            let Some(receipt) = append.acknowledged else { return true };
            !is_kept(append.log, receipt.base.0 + u64::from(append.count))
                || stamps.contains(&receipt.stamp)
        };
        let before = self.appends.len();
        let missing: Vec<bool> = self.appends.iter().map(|append| !is_present(append)).collect();
        let mut gone_before = vec![0];
        for is_gone in &missing {
            gone_before.push(gone_before[gone_before.len() - 1] + usize::from(*is_gone));
        }
        for answer in &mut self.answers {
            answer.from -= gone_before[answer.from];
        }
        let mut index = 0;
        self.appends.retain(|_| {
            index += 1;
            !missing[index - 1]
        });
        let survived = survived - (before - self.appends.len());
        (self.durable, self.visible) = (survived, survived);
    }
}

/// One machine, over its incarnations.
struct CrashMachine {
    disk: MemoryDisk,
    clock: Arc<ManualClock>,
    durability: Durability,
    random: SeededRng,
    witness: CrashWitness,
    /// The length of some payloads: their groups go around the page cache.
    large_bytes: u64,
    segment_bytes: u64,
    /// True if most steps are maintenance of sealed segments.
    is_maintenance_heavy: bool,
    /// True if the disk fails, but the machine is not down.
    is_faulty: bool,
    /// True if the disk fills up now and then.
    fills_up: bool,
    done: MaintenanceCounts,
}

/// The amount of maintenance that was done.
#[derive(Clone, Copy, Debug, Default)]
struct MaintenanceCounts {
    sorted: u64,
    replaced_prefixes: u64,
    removed_files: u64,
    reclaimed_bytes: u64,
}

impl MaintenanceCounts {
    fn add(&mut self, stats: &HistoryStats) {
        self.sorted += stats.sorted.load(Ordering::Relaxed);
        self.replaced_prefixes += stats.replaced_prefixes.load(Ordering::Relaxed);
        self.removed_files += stats.removed_files.load(Ordering::Relaxed);
        self.reclaimed_bytes += stats.reclaimed_bytes.load(Ordering::Relaxed);
    }
}

impl CrashMachine {
    fn new(seed: u64, durability: Durability) -> CrashMachine {
        CrashMachine {
            large_bytes: 2000,
            segment_bytes: 4096,
            is_maintenance_heavy: false,
            is_faulty: false,
            fills_up: false,
            done: MaintenanceCounts::default(),
            disk: MemoryDisk::new(),
            clock: testkit::store::manual_clock(),
            durability,
            random: SeededRng::new(seed),
            witness: CrashWitness::default(),
        }
    }

    /// The same machine, with `disk` and with its clock at `wall`.
    fn restart(&self, disk: MemoryDisk, wall: SysTime) -> CrashMachine {
        CrashMachine {
            disk,
            clock: Arc::new(ManualClock::at(wall)),
            durability: self.durability,
            random: self.random.clone(),
            witness: self.witness.clone(),
            large_bytes: self.large_bytes,
            segment_bytes: self.segment_bytes,
            is_maintenance_heavy: self.is_maintenance_heavy,
            is_faulty: false,
            fills_up: false,
            done: MaintenanceCounts::default(),
        }
    }

    fn open(&self) -> Option<StoreFixture> {
        match StoreFixture::open(
            &self.disk,
            options(self.durability, self.segment_bytes),
            &self.clock,
        ) {
            Ok(fixture) => Some(fixture),
            Err(error) => {
                assert!(self.may_fail(), "the store does not open: {error}");
                None
            }
        }
    }

    /// Some steps of work, with a clean restart among them; until the machine goes down.
    fn work(&mut self, steps: usize) {
        let Some(mut fixture) = self.open() else { return };
        for _ in 0..steps {
            if self.fills_up && self.random.one_in(6) {
                self.fill_up();
            }
            let reach = if self.is_maintenance_heavy { 40 } else { 24 };
            match self.random.below(reach) {
                0..=6 => self.append(&fixture),
                7..=8 => self.append_group(&fixture),
                9..=12 => {
                    let elapsed = Duration::from_millis(self.random.below(700));
                    self.clock.advance(elapsed);
                    fixture.frontier();
                }
                13 => {
                    let back = self.random.below(150);
                    self.clock.step_to(SysTime(self.clock.read().wall.0 - back));
                    fixture.frontier();
                }
                14 => self.witness.ask(&fixture, &mut self.random),
                15 => {
                    fixture.store.roll_segment();
                    fixture.append(Vec::new(), Durability::Written);
                }
                16..=18 => self.tolerate(fixture.store.run_maintenance().err()),
                19 => self.advance_log_start(&fixture),
                20 => self.tolerate(fixture.store.reclaim().err()),
                31..=34 => {
                    self.tolerate(fixture.store.reclaim().err());
                    self.tolerate(fixture.store.reclaim().err());
                }
                21..=22 | 35..=37 => self.replace_prefix(&fixture),
                24..=27 => self.append_group(&fixture),
                28..=30 => {
                    fixture.store.roll_segment();
                    fixture.append(Vec::new(), Durability::Written);
                    self.tolerate(fixture.store.run_maintenance().err());
                }
                38..=39 => self.advance_log_start(&fixture),
                _ => {
                    let has_stopped = fixture.store.stop_reason().is_some();
                    fixture.store.close();
                    self.done.add(fixture.store.history_stats());
                    if !self.disk.has_crashed() && !has_stopped {
                        self.witness.durable = self.witness.visible;
                    }
                    drop(fixture);
                    let Some(again) = self.open() else { return };
                    fixture = again;
                    // Some appends may exist that it took before it stopped and did not
                    // acknowledge.
                    if has_stopped {
                        let least = self.witness.visible;
                        self.witness.examine(&fixture, least);
                    }
                }
            }
            fixture.step_until_idle();
        }
        self.done.add(fixture.store.history_stats());
        // A store that is going down must not promise what its last group withdraws.
        for _ in 0..2 {
            self.clock.advance(Duration::from_millis(30));
            self.witness.ask(&fixture, &mut self.random);
        }
    }

    /// Returns true if an operation may fail: the disk is down, or fails, or is full.
    fn may_fail(&self) -> bool {
        self.disk.has_crashed() || self.is_faulty
    }

    fn tolerate(&self, error: Option<StorageError>) {
        if let Some(error) = error {
            assert!(self.may_fail(), "a healthy disk: {error}");
        }
    }

    /// The disk fills up, or has space again.
    fn fill_up(&mut self) {
        self.is_faulty = !self.is_faulty;
        if self.is_faulty {
            let room = self.random.below(4000) * self.random.below(2);
            self.disk.arm(DiskFault::FullAt(self.disk.used_bytes() + room));
        } else {
            self.disk.remove_capacity_limit();
        }
    }

    fn advance_log_start(&mut self, fixture: &StoreFixture) {
        let log = LogId(self.random.below(LOGS));
        let (stored, starts) =
            (fixture.store.log(log).unwrap(), &mut self.witness.starts[log.0 as usize]);
        let back = if self.is_maintenance_heavy { 6 } else { stored.end().0 + 1 };
        let to = stored.end().0.saturating_sub(self.random.below(back));
        starts.1 = starts.1.max(to);
        match fixture.store.advance_log_start(&[(log, Offset(to))]) {
            Ok(()) => starts.0 = starts.0.max(to),
            Err(error) => self.tolerate(Some(error)),
        }
    }

    /// Replaces the beginning of a log by some of its entries, shortened; its last one stays.
    fn replace_prefix(&mut self, fixture: &StoreFixture) {
        let log = LogId(self.random.below(LOGS));
        let stored = fixture.store.log(log).unwrap();
        let tip = stored.tip();
        let reach = 16 + self.random.below(12);
        let back = self.random.below(1 << reach);
        let cut = Cut::below(Hlc::from_bits(tip.stamp.next().bits().saturating_sub(back)));
        let (until, stamp) =
            fixture.store.replaceable_prefix(log, cut).expect("an index can be read");
        if until.0 == 0 {
            return;
        }
        let pieces = stored.read(stored.start(), until, usize::MAX).expect("an index can be read");
        let compacted = CompactionHorizon { compacted_to: stamp.next(), clean_to: until };
        let mut outcomes = Vec::new();
        let random = &mut self.random;
        let replaced = fixture.store.replace_prefix(
            log,
            until,
            &mut |emit| {
                for piece in &pieces {
                    let stays = piece.entry.end() == until || !random.one_in(2);
                    let bytes = piece.read()?;
                    let length = random.below(bytes.len() as u64 + 1) as usize;
                    let payload = stays.then(|| bytes.slice(..length));
                    outcomes.push((piece.entry.stamp, payload.clone()));
                    if let Some(payload) = payload {
                        emit(CompactedEntry { entry: piece.entry, payload })?;
                    }
                }
                Ok(compacted)
            },
            &mut |_| true,
        );
        let compacted_witness = &mut self.witness.compacted[log.0 as usize];
        compacted_witness.1 = compacted_witness.1.max(compacted.compacted_to);
        for append in self.witness.appends.iter_mut().filter(|append| append.log == log) {
            let stamp = append.acknowledged.map(|receipt| receipt.stamp);
            if let Some((_, payload)) = outcomes.iter().find(|outcome| Some(outcome.0) == stamp) {
                append.compacted.push(payload.as_ref().map(|payload| payload.to_vec()));
            }
        }
        match replaced {
            Ok(is_replaced) => {
                assert!(is_replaced, "{log:?} can be replaced up to {until:?}");
                compacted_witness.0 = compacted_witness.0.max(compacted.compacted_to);
            }
            Err(error) => self.tolerate(Some(error)),
        }
    }

    fn some_append(&mut self) -> LogAppend<StageVerdict> {
        let log = self.random.below(LOGS);
        let length = match self.random.below(12) {
            0 => 0,
            1 => self.large_bytes + self.random.below(3000),
            2 if self.large_bytes > 2000 => self.large_bytes + self.random.below(9000),
            _ if self.is_maintenance_heavy => self.random.below(3500),
            _ => self.random.below(150),
        };
        let bytes = self.random.bytes(length as usize);
        let append = if self.random.one_in(2) {
            append(log, &bytes)
        } else {
            append_with_header(log, &bytes)
        };
        let note = if self.random.one_in(8) { StageVerdict::Refuse } else { StageVerdict::Accept };
        let count = 1 + self.random.below(3) as u32;
        LogAppend { note, count, ..append }
    }

    fn some_request(&mut self) -> (Vec<LogAppend<StageVerdict>>, Durability) {
        let count = 1 + self.random.below(3);
        let appends = (0..count).map(|_| self.some_append()).collect();
        (appends, [Durability::Written, Durability::Synced][self.random.below(2) as usize])
    }

    fn append(&mut self, fixture: &StoreFixture) {
        // A bound that is due inside of an append is renewed concurrently, on another thread: then
        // no two runs would have the same operations.
        fixture.frontier();
        let (appends, durability) = self.some_request();
        let copies: Vec<AppendCopy> = appends.iter().map(AppendCopy::of).collect();
        let results = fixture.append(appends, durability);
        self.record_results(copies, durability, results);
    }

    fn append_group(&mut self, fixture: &StoreFixture) {
        fixture.frontier();
        let requests: Vec<_> = (0..2 + self.random.below(3)).map(|_| self.some_request()).collect();
        let copied: Vec<(Vec<AppendCopy>, Durability)> = requests
            .iter()
            .map(|(appends, durability)| {
                (appends.iter().map(AppendCopy::of).collect(), *durability)
            })
            .collect();
        let results = fixture.append_as_one_group(requests);
        for ((copies, durability), results) in copied.into_iter().zip(results) {
            self.record_results(copies, durability, results);
        }
    }

    fn record_results(
        &mut self,
        copies: Vec<AppendCopy>,
        durability: Durability,
        results: Vec<testkit::store::StageAppendResult>,
    ) {
        let synced = durability == Durability::Synced && self.durability == Durability::Synced;
        for (copy, result) in copies.into_iter().zip(results) {
            match result {
                Ok(appended) => {
                    assert_eq!(copy.0.note, StageVerdict::Accept);
                    self.witness.note(&copy.0, Some(appended));
                    if synced {
                        self.witness.durable = self.witness.appends.len();
                    }
                }
                Err(AppendError::Storage(StorageError::Stopped { why })) => {
                    assert!(
                        self.may_fail() && !self.fills_up,
                        "the store stopped on a healthy disk: {why}"
                    );
                    if copy.0.note == StageVerdict::Accept {
                        self.witness.note(&copy.0, None);
                    }
                }
                Err(AppendError::Refused(_)) => assert_eq!(copy.0.note, StageVerdict::Refuse),
                Err(AppendError::Time(_)) => {}
                Err(AppendError::CutOff | AppendError::Undecided) => panic!("nobody orders that"),
                // Nothing of it was written.
                Err(AppendError::Storage(error)) => {
                    assert!(self.may_fail(), "a healthy disk refused a write: {error}");
                }
            }
        }
    }
}

/// A copy of an append, to compare with what is found.
struct AppendCopy(LogAppend<StageVerdict>);

impl AppendCopy {
    fn of(append: &LogAppend<StageVerdict>) -> AppendCopy {
        AppendCopy(LogAppend {
            log: append.log,
            kind: append.kind,
            epoch: append.epoch,
            count: append.count,
            user: append.user,
            payload: append.payload.clone(),
            crc_from: append.crc_from,
            note: append.note,
        })
    }
}

/// Chooses how much a crash keeps: nothing, everything, or some.
fn choose(choice: u64, mut random: SeededRng) -> impl FnMut(usize) -> usize {
    move |count| match choice {
        0 => 0,
        1 => count - 1,
        _ => random.below(count as u64) as usize,
    }
}

/// The wall clock after a crash: right, set back (a little, and far), or set ahead.
fn wall_after(wall: SysTime, random: &mut SeededRng) -> SysTime {
    match random.below(5) {
        0 => wall,
        1 => SysTime(wall.0 + random.below(5000)),
        2 => SysTime(wall.0 - random.below(600)),
        3 => SysTime(wall.0 - random.below(3000)),
        _ => SysTime(wall.0 - 3_600_000),
    }
}

/// Reopens `machine`, with a crash at each operation of recovery first; examines it, works a
/// little, and crashes for the last time.
fn survive(machine: &CrashMachine, least: usize, random: &mut SeededRng) {
    let recovery = {
        let disk = machine.disk.after_kill();
        let second = machine.restart(disk.clone(), machine.clock.read().wall);
        drop(second.open());
        disk.operations()
    };
    for operation in 0..recovery {
        let disk = machine.disk.after_kill();
        disk.arm(DiskFault::CrashAt(operation));
        let second = machine.restart(disk.clone(), machine.clock.read().wall);
        drop(second.open());
        let choice = random.below(4);
        let disk = disk.after_crash(choose(choice, random.clone()));
        let mut third = machine.restart(disk, wall_after(machine.clock.read().wall, random));
        let fixture = third.open().expect("a second crash during recovery is survived");
        third.witness.examine(&fixture, machine.witness.durable);
    }
    let mut second = machine.restart(machine.disk.after_kill(), machine.clock.read().wall);
    let fixture = second.open().expect("a crash is survived");
    second.witness.examine(&fixture, least);
    // However far the clock was set back, time advances, and so do stamps.
    second.clock.advance(Duration::from_secs(3610));
    second.append(&fixture);
    drop(fixture);
    second.disk.arm(DiskFault::CrashAt(second.disk.operations() + 1 + random.below(30)));
    second.work(8);
    let choice = random.below(4);
    let disk = second.disk.after_crash(choose(choice, random.clone()));
    let mut third = second.restart(disk, wall_after(second.clock.read().wall, random));
    let fixture = third.open().expect("a crash of the second incarnation is survived");
    third.witness.examine(&fixture, second.witness.durable);
}

/// A run of `steps`, for each seed, with a crash at each of its operations.
struct CrashPlan {
    test: &'static str,
    durability: Durability,
    seed_count: u64,
    steps: usize,
    large_bytes: u64,
    segment_bytes: u64,
    is_maintenance_heavy: bool,
}

fn crash_everywhere(plan: CrashPlan) {
    let CrashPlan { test, durability, seed_count, steps, large_bytes, .. } = plan;
    let (segment_bytes, is_settling) = (plan.segment_bytes, plan.is_maintenance_heavy);
    let shape = |machine| CrashMachine {
        large_bytes,
        segment_bytes,
        is_maintenance_heavy: is_settling,
        ..machine
    };
    let new = |seed| shape(CrashMachine::new(seed, durability));
    let mut counts = Vec::new();
    for seed in seeds(seed_count) {
        let replays = SeedReplayHint { test, seed, place: Cell::new((0, 0)) };
        let mut whole = new(seed);
        whole.work(steps);
        counts.push(whole.done);
        for operation in 0..whole.disk.operations() {
            let mut machine = new(seed);
            machine.disk.arm(DiskFault::CrashAt(operation));
            machine.work(steps);
            assert!(
                machine.disk.has_crashed(),
                "runs replay, so operation {operation} comes again"
            );
            for choice in 0..4 {
                replays.place.set((operation, choice));
                let mut random = SeededRng::new(seed ^ (operation << 20) ^ (choice << 50));
                let disk = machine.disk.after_crash(choose(choice, random.clone()));
                let wall = wall_after(machine.clock.read().wall, &mut random);
                survive(&machine.restart(disk, wall), machine.witness.durable, &mut random);
            }
            // Only the process dies: everything visible must exist, and survive a crash of the
            // machine.
            replays.place.set((operation, 9));
            let mut random = SeededRng::new(seed ^ (operation << 20));
            let disk = machine.disk.after_kill();
            let wall = wall_after(machine.clock.read().wall, &mut random);
            survive(&machine.restart(disk, wall), machine.witness.visible, &mut random);
        }
    }
    if is_settling && std::env::var_os("STORAGE_SEED").is_none() {
        let any =
            |count: fn(&MaintenanceCounts) -> u64| counts.iter().any(|counts| count(counts) > 0);
        assert!(any(|counts| counts.sorted) && any(|counts| counts.removed_files), "{counts:?}");
        assert!(
            any(|counts| counts.replaced_prefixes) && any(|counts| counts.reclaimed_bytes),
            "{counts:?}"
        );
    }
}

/// F16, F18, F19, F9, B5.
#[test]
fn a_crash_at_any_operation_keeps_what_was_acknowledged_and_changes_no_answer() {
    crash_everywhere(CrashPlan {
        test: "a_crash_at_any_operation_keeps_what_was_acknowledged_and_changes_no_answer",
        durability: Durability::Synced,
        seed_count: 5,
        steps: 24,
        large_bytes: 2000,
        segment_bytes: 4096,
        is_maintenance_heavy: false,
    });
}

/// F18: without syncs, the prefix is shorter, and still a prefix.
#[test]
fn f18_without_syncs_a_crash_leaves_a_prefix_in_stamp_order() {
    crash_everywhere(CrashPlan {
        test: "f18_without_syncs_a_crash_leaves_a_prefix_in_stamp_order",
        durability: Durability::Written,
        seed_count: 4,
        steps: 24,
        large_bytes: 2000,
        segment_bytes: 4096,
        is_maintenance_heavy: false,
    });
}

/// F16: a group that goes around the page cache is several writes.
#[test]
fn f16_a_crash_within_a_group_written_in_blocks_keeps_the_same_promises() {
    crash_everywhere(CrashPlan {
        test: "f16_a_crash_within_a_group_written_in_blocks_keeps_the_same_promises",
        durability: Durability::Synced,
        seed_count: 1,
        steps: 7,
        large_bytes: 258 << 10,
        segment_bytes: 4096,
        is_maintenance_heavy: false,
    });
}

/// F16: most steps index, sort, advance log starts, replace and reclaim; runs are long enough that
/// blocks of them are reclaimed.
#[test]
fn f16_a_crash_while_history_is_sorted_replaced_and_reclaimed_keeps_the_same_promises() {
    crash_everywhere(CrashPlan {
        test: "f16_a_crash_while_history_is_filed_replaced_and_freed_keeps_the_same_promises",
        durability: Durability::Synced,
        seed_count: 2,
        steps: 34,
        large_bytes: 4000,
        segment_bytes: 24 << 10,
        is_maintenance_heavy: true,
    });
}

/// A machine that mostly sorts, replaces and reclaims, on a healthy disk so far.
fn maintenance_heavy(seed: u64, durability: Durability) -> CrashMachine {
    let new = CrashMachine::new(seed, durability);
    CrashMachine { large_bytes: 4000, segment_bytes: 24 << 10, is_maintenance_heavy: true, ..new }
}

/// The power fails; the disk is compared with what was acknowledged, and work goes on.
fn lose_power(machine: &CrashMachine, place: &Cell<(u64, u64)>, nth: u64) {
    for choice in 0..4 {
        place.set((nth, choice));
        let mut random = SeededRng::new(nth << 20 ^ choice << 50);
        let disk = machine.disk.after_crash(choose(choice, random.clone()));
        let wall = wall_after(machine.clock.read().wall, &mut random);
        let mut second = machine.restart(disk, wall);
        let fixture = second.open().expect("a crash is survived");
        second.witness.examine(&fixture, machine.witness.durable);
        second.clock.advance(Duration::from_secs(3610));
        drop(fixture);
        second.work(6);
        let mut third = second.restart(second.disk.after_crash(|_| 0), second.clock.read().wall);
        let fixture = third.open().expect("a healthy disk");
        third.witness.examine(&fixture, second.witness.durable);
    }
}

/// F16: each sync fails once, and work goes on unless the store stops.
#[test]
fn f16_a_sync_that_fails_once_at_any_place_costs_nothing_that_was_acknowledged() {
    let test = "f16_a_sync_that_fails_once_at_any_place_costs_nothing_that_was_acknowledged";
    for seed in seeds(3) {
        let replays = SeedReplayHint { test, seed, place: Cell::new((0, 0)) };
        let durability = [Durability::Synced, Durability::Written][(seed % 2) as usize];
        for nth in 0.. {
            let mut machine =
                CrashMachine { is_faulty: true, ..maintenance_heavy(seed, durability) };
            machine.disk.arm(DiskFault::SyncFails(nth));
            replays.place.set((nth, 9));
            machine.work(30);
            if machine.disk.has_pending_sync_failure() {
                break;
            }
            lose_power(&machine, &replays.place, nth);
        }
    }
}

/// F16: while the disk is full some operations are refused, and nothing else happens; then there is
/// space again.
#[test]
fn f16_a_disk_that_fills_up_now_and_then_loses_nothing_and_stops_nothing() {
    let test = "f16_a_disk_that_fills_up_now_and_then_loses_nothing_and_stops_nothing";
    for seed in seeds(40) {
        let replays = SeedReplayHint { test, seed, place: Cell::new((0, 0)) };
        let mut machine =
            CrashMachine { fills_up: true, ..maintenance_heavy(seed, Durability::Synced) };
        machine.work(40);
        machine.disk.remove_capacity_limit();
        machine.is_faulty = false;
        let fixture = machine.open().expect("there is room again");
        fixture.store.run_maintenance().expect("there is room again");
        machine.append(&fixture);
        drop(fixture);
        lose_power(&machine, &replays.place, seed);
    }
}

/// The test can fail: it would catch a store that acknowledges before it syncs.
#[test]
fn a_lost_acknowledged_append_would_be_noticed() {
    let mut machine = CrashMachine::new(1, Durability::Synced);
    let fixture = machine.open().expect("a new disk opens");
    machine.append(&fixture);
    machine.append(&fixture);
    drop(fixture);
    let forgetful = machine.restart(MemoryDisk::new(), machine.clock.read().wall);
    let fixture = forgetful.open().expect("an empty disk opens");
    let least = machine.witness.visible;
    assert!(least > 0);
    let examined = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut witness = machine.witness.clone();
        witness.examine(&fixture, least);
    }));
    assert!(examined.is_err());
}
