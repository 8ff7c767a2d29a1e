//! A store whose commits come from elsewhere: groups are in flight, become visible, or are cut off
//! (F16, F18, F39), and the machine stops anywhere.
//!
//! The model is a list of groups, of which the first so many are committed. After each step:
//! - readers, ends, indexes and the state stored with a segment have what is committed, and nothing
//!   else;
//! - no entry becomes visible with a stamp at or below a frontier that was given before;
//! - requests of groups that were cut off fail, and their offsets are given again.
//!
//! After a crash, what was committed is there, and what was cut off is not.

use std::sync::{Arc, mpsc};

use hlc::{Hlc, ManualClock, WallClock};
use parking_lot::Mutex;
use storage::disk::{Disk, DiskFault, MemoryDisk};
use storage::journal::{FRAME_BYTES, RecoverError, SegmentHeader, padded};
use storage::{
    AppendError, AppendResults, AppendStage, Commit, CommitAuthority, Durability, Entry,
    ForeignGroup, GroupNumber, LogAppend, LogId, Offset, OpenError, Options, Payload, PromiseBound,
    ReplayHandler, ReplayedEntry, StorageError, Store, TakeOverError, TruncateError, UndoLog,
    WrittenGroup,
};
use testkit::rng::SeededRng;
use testkit::store::{BEGIN, SeedReplayHint, files, seeds};

const LOGS: u64 = 3;

/// Counts entries, and says how many are visible as its state.
#[derive(Default)]
struct CountingStage {
    published: u64,
    staged: UndoLog<()>,
}

impl AppendStage for CountingStage {
    type Note = ();
    type Refusal = ();

    fn begin(&mut self, group: GroupNumber) {
        self.staged.begin(group);
    }

    fn stage(&mut self, _: &mut LogAppend<()>, _: Offset, _: Hlc) -> Result<(), ()> {
        self.staged.push(());
        Ok(())
    }

    fn check_kind(&self, entry: &Entry) -> Result<(), RecoverError> {
        if entry.kind == 0 { Ok(()) } else { Err(RecoverError::Unusable("of a later kind".into())) }
    }

    fn commit(&mut self, group: GroupNumber) {
        self.published += self.staged.commit(group).count() as u64;
    }

    fn replay(&mut self, _: &ReplayedEntry<'_>) {
        self.published += 1;
    }

    fn rollback(&mut self, from: GroupNumber) {
        while self.staged.pop(from).is_some() {}
    }

    fn state(&self) -> Vec<u8> {
        self.published.to_le_bytes().to_vec()
    }
}

/// Counts what it is given back.
#[derive(Default)]
struct CountingReplay(u64);

impl ReplayHandler for CountingReplay {
    fn restore(&mut self, state: &[u8]) -> Result<(), RecoverError> {
        self.0 = u64::from_le_bytes(state.try_into().expect("eight bytes"));
        Ok(())
    }

    fn entry(&mut self, _: &ReplayedEntry<'_>) -> Result<(), RecoverError> {
        self.0 += 1;
        Ok(())
    }

    fn state(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }
}

/// Notes how far the journal is written.
#[derive(Default)]
struct NotingAuthority(Mutex<Vec<(ForeignGroup, u64)>>);

impl CommitAuthority for NotingAuthority {
    fn on_written(&self, group: &WrittenGroup<'_>) {
        self.0.lock().push((group.to_foreign(), group.synced_to));
    }
}

/// An entry of the model: its log and its payload.
type ModelEntry = (LogId, Vec<u8>);

struct ModelGroup {
    start: u64,
    end: u64,
    entries: Vec<ModelEntry>,
    /// The results of its requests; none after a restart.
    results: Vec<mpsc::Receiver<AppendResults<()>>>,
}

fn end_of(group: &ForeignGroup) -> u64 {
    group.start + group.bytes.len() as u64
}

struct LaterStore {
    store: Store<CountingStage>,
    authority: Arc<NotingAuthority>,
    /// The number of entries that the start has counted.
    replayed: u64,
}

impl LaterStore {
    fn open(
        disk: Arc<dyn Disk>,
        clock: &Arc<ManualClock>,
        committed_to: u64,
        bound: PromiseBound,
    ) -> Result<LaterStore, OpenError> {
        let authority = Arc::new(NotingAuthority::default());
        let commit = Commit::Later {
            authority: Arc::clone(&authority) as Arc<dyn CommitAuthority>,
            committed_to,
            bound,
        };
        let options = Options {
            segment_bytes_max: 700,
            merge_bytes_min: 2000,
            ..testkit::store::in_files_stepped()
        };
        let mut replay = CountingReplay::default();
        let wall = Arc::clone(clock) as Arc<dyn WallClock>;
        let stage = |replay: &mut CountingReplay| CountingStage {
            published: replay.0,
            staged: UndoLog::default(),
        };
        let store = Store::open_with(disk, options, commit, wall, &mut replay, stage, || {})?;
        Ok(LaterStore { store, authority, replayed: replay.0 })
    }

    fn step(&self) {
        while self.store.step() {}
    }

    /// The position up to which the journal was written since the last call, if anything was.
    fn take_written_to(&self) -> Option<u64> {
        self.take_written().last().map(end_of)
    }

    /// The groups that were written since the last call.
    fn take_written(&self) -> Vec<ForeignGroup> {
        let written = std::mem::take(&mut *self.authority.0.lock());
        let is_synced = |(group, synced_to): &(ForeignGroup, u64)| end_of(group) == *synced_to;
        assert!(written.iter().all(is_synced), "what is counted survives");
        written.into_iter().map(|(group, _)| group).collect()
    }

    fn take_over(&self, group: ForeignGroup) -> Result<(), TakeOverError> {
        let (sender, result) = mpsc::channel();
        self.store.take_over(group, move |taken| {
            let _ = sender.send(taken);
        });
        self.step();
        result.try_recv().expect("it was carried out")
    }

    fn publish_to(&self, position: u64, bound: Hlc) {
        self.store.publish_to(position, Some(bound));
        self.step();
    }

    fn begin_append(&self, entries: &[ModelEntry]) -> mpsc::Receiver<AppendResults<()>> {
        self.begin_append_of_kind(0, entries)
    }

    fn begin_append_of_kind(
        &self,
        kind: u8,
        entries: &[ModelEntry],
    ) -> mpsc::Receiver<AppendResults<()>> {
        let append = |(log, payload): &ModelEntry| LogAppend {
            log: *log,
            kind,
            epoch: 0,
            count: 1,
            user: (hlc::UserTime(0), hlc::UserTime(0)),
            payload: Payload::without_header(payload.clone().into()),
            crc_from: None,
            note: (),
        };
        let (sender, results) = mpsc::channel();
        let appends = entries.iter().map(append).collect();
        self.store.append(appends, Durability::Written, move |result| {
            let _ = sender.send(result);
        });
        results
    }

    fn truncate(&self, position: u64) -> Result<(), TruncateError> {
        let (sender, result) = mpsc::channel();
        self.store.truncate(position, move |cut| {
            let _ = sender.send(cut);
        });
        self.step();
        result.try_recv().expect("it was carried out")
    }

    /// All visible entries, by stamp.
    fn visible(&self) -> Result<Vec<(Hlc, ModelEntry)>, StorageError> {
        let mut found = Vec::new();
        for id in (0..LOGS).map(LogId) {
            let log = self.store.log(id)?;
            let pieces = log.read(Offset(0), Offset(u64::MAX), usize::MAX)?;
            assert_eq!(log.end().0, pieces.len() as u64, "{id:?} ends behind its last entry");
            for piece in pieces {
                found.push((piece.entry.stamp, (id, piece.read()?.to_vec())));
            }
        }
        found.sort_by_key(|(stamp, _)| *stamp);
        Ok(found)
    }
}

/// A random run, and what has to be true after each of its steps.
struct LaterRun {
    random: SeededRng,
    clock: Arc<ManualClock>,
    disk: MemoryDisk,
    running: LaterStore,
    groups: Vec<ModelGroup>,
    /// The number of groups that are committed.
    committed: usize,
    in_flight: usize,
    bound: PromiseBound,
    promised: Hlc,
    /// The position that a truncation in progress leaves.
    truncating: Option<u64>,
}

impl LaterRun {
    fn new(seed: u64, fault: Option<DiskFault>) -> LaterRun {
        let mut random = SeededRng::new(seed);
        let clock = Arc::new(ManualClock::at(BEGIN));
        let disk = MemoryDisk::new();
        let bound = match random.below(2) {
            0 => PromiseBound::File,
            _ => PromiseBound::Commits { in_force: Hlc::at(BEGIN), last: Hlc::at(BEGIN) },
        };
        let open = || LaterStore::open(Arc::new(disk.clone()), &clock, 0, bound);
        let running = open().expect("a new store opens");
        if let Some(fault) = fault {
            disk.arm(fault);
        }
        let (groups, truncating) = (Vec::new(), None);
        LaterRun {
            random,
            clock,
            disk,
            running,
            groups,
            committed: 0,
            in_flight: 0,
            bound,
            promised: Hlc::ZERO,
            truncating,
        }
    }

    fn committed_to(&self) -> u64 {
        self.committed.checked_sub(1).map_or(0, |last| self.groups[last].end)
    }

    fn has_stopped(&self) -> bool {
        self.disk.has_crashed() || self.running.store.stop_reason().is_some()
    }

    fn entries(&self, groups: usize) -> Vec<ModelEntry> {
        self.groups[..groups].iter().flat_map(|group| group.entries.clone()).collect()
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            // A bound that is due is renewed now, so that runs can be repeated.
            self.note_frontier();
            match self.random.below(12) {
                0..5 => self.append(),
                5..8 => self.publish(),
                8 => self.truncate(),
                9 => drop(self.running.store.run_maintenance()),
                10 => {
                    self.running.store.roll_segment();
                    self.running.step();
                }
                _ => self.clock.advance(std::time::Duration::from_millis(self.random.below(400))),
            }
            if self.has_stopped() {
                return;
            }
            self.examine();
        }
    }

    fn note_frontier(&mut self) {
        self.running.store.timekeeper().frontier();
        self.running.step();
        self.promised = self.promised.max(self.running.store.timekeeper().frontier());
    }

    fn append(&mut self) {
        if self.in_flight >= 4 {
            return self.append_beyond_the_limit();
        }
        let mut entries = Vec::new();
        let mut results = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let request: Vec<ModelEntry> = (0..1 + self.random.below(3))
                .map(|_| {
                    let log = LogId(self.random.below(LOGS));
                    let length = self.random.below(150) as usize;
                    (log, self.random.bytes(length))
                })
                .collect();
            results.push(self.running.begin_append(&request));
            entries.extend(request);
        }
        let start = self.groups.last().map_or(0, |group| group.end);
        self.running.step();
        let end = self.running.take_written_to().unwrap_or(start);
        self.in_flight += 1;
        self.groups.push(ModelGroup { start, end, entries, results });
    }

    /// One more group waits, and is written once there is room.
    fn append_beyond_the_limit(&mut self) {
        let entry = (LogId(0), vec![7; 20]);
        let results = self.running.begin_append(std::slice::from_ref(&entry));
        self.running.step();
        assert_eq!(self.running.take_written_to(), None, "too many groups are in flight");
        self.publish_groups(self.groups.len());
        let start = self.groups.last().map_or(0, |group| group.end);
        let end = self.running.take_written_to().unwrap_or(start);
        if !self.has_stopped() {
            assert!(end > start, "there is room again");
        }
        self.in_flight = 1;
        self.groups.push(ModelGroup { start, end, entries: vec![entry], results: vec![results] });
    }

    fn publish(&mut self) {
        let in_flight = (self.groups.len() - self.committed) as u64;
        let count = self.committed + self.random.below(in_flight + 1) as usize;
        self.publish_groups(count);
    }

    fn publish_groups(&mut self, count: usize) {
        if count == self.committed {
            return;
        }
        let before = self.committed;
        self.committed = count;
        let bound = self.clock.read().wall.0 + 250;
        let bound = Hlc::at(hlc::SysTime(bound));
        if let PromiseBound::Commits { in_force, last } = &mut self.bound {
            (*in_force, *last) = (bound.max(*in_force), bound.max(*last));
        }
        self.running.store.publish_to(self.committed_to(), Some(bound));
        self.running.step();
        if self.has_stopped() {
            return;
        }
        for group in &mut self.groups[before..self.committed] {
            for results in group.results.drain(..) {
                for result in results.try_recv().expect("a visible append is complete") {
                    let stamp = result.expect("it was written").stamp;
                    assert!(stamp > self.promised, "{stamp} was closed up to {}", self.promised);
                }
            }
        }
        self.in_flight = self.groups.len() - self.committed;
    }

    fn truncate(&mut self) {
        // Not only where that is possible.
        if self.committed_to() > 0 && self.random.one_in(4) {
            let position = self.committed_to() - 1;
            let refused = self.running.truncate(position).unwrap_err();
            assert!(matches!(refused, TruncateError::Committed { .. }), "{refused}");
            return;
        }
        let in_flight = (self.groups.len() - self.committed) as u64;
        if in_flight == 0 {
            return;
        }
        let first = self.committed + self.random.below(in_flight) as usize;
        let position = self.groups[first].start;
        if self.groups[first].end > position + 8 {
            let refused = self.running.truncate(position + 8).unwrap_err();
            assert!(matches!(refused, TruncateError::NoGroup { .. }), "{refused}");
        }
        self.truncating = Some(position);
        let cut = self.running.truncate(position);
        if self.has_stopped() {
            return;
        }
        self.truncating = None;
        cut.expect("nothing there is committed");
        for group in self.groups.drain(first..) {
            for results in group.results {
                let results = results.try_recv().expect("what was cut off is complete");
                for result in results {
                    assert!(matches!(result, Err(AppendError::CutOff)), "{result:?}");
                }
            }
        }
        self.in_flight = self.groups.len() - self.committed;
    }

    /// Compares the store with the model.
    fn examine(&self) {
        let expected = self.entries(self.committed);
        let visible = self.running.visible().expect("it can be read");
        let entries: Vec<ModelEntry> = visible.iter().map(|(_, entry)| entry.clone()).collect();
        assert_eq!(entries, expected, "what is committed is visible, in the order of stamps");
        let store = &self.running.store;
        let stats = store.stats();
        let end = stats.journal_end.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(end, self.committed_to(), "metrics end with what is committed");
        let sealed = store.sealed_segments();
        let indexed_to = sealed.last().map_or(0, |segment| segment.end);
        assert!(indexed_to <= end, "only what is committed is indexed");
    }

    /// Starts again after a loss of power or of the process, and compares what is left.
    fn restart(&mut self, disk: MemoryDisk) {
        let committed_to = self.committed_to();
        self.disk = disk;
        let disk = Arc::new(self.disk.clone());
        let opened = LaterStore::open(disk, &self.clock, committed_to, self.bound);
        self.running = opened.expect("what a crash leaves opens");
        let committed = self.entries(self.committed);
        let replayed = self.running.replayed;
        assert_eq!(replayed, committed.len() as u64, "the state is that of what is visible");
        self.examine();
        self.note_frontier();

        // Groups that were not confirmed may be there in part; confirmed ones that were being cut off
        // may not be there.
        let is_whole = |group: &&ModelGroup| {
            group.end > group.start && self.truncating.is_none_or(|position| group.end <= position)
        };
        let whole = self.groups.iter().take_while(is_whole).count();
        assert!(whole >= self.committed, "nothing committed is cut off");
        let kept = self.committed + self.random.below((whole - self.committed) as u64 + 1) as usize;
        let written = self.entries(self.groups.len());
        self.groups.truncate(whole);
        self.groups.iter_mut().for_each(|group| group.results.clear());
        self.truncating = None;
        self.publish_groups(kept);
        self.examine();
        if self.random.one_in(2) {
            self.running.truncate(self.committed_to()).expect("nothing there is committed");
            self.groups.truncate(self.committed);
        } else {
            // All that is left is a prefix of what was written.
            self.running.store.publish_to(u64::MAX, None);
            self.running.step();
            let visible = self.running.visible().expect("it can be read");
            let visible: Vec<ModelEntry> = visible.into_iter().map(|(_, entry)| entry).collect();
            assert!(visible.len() >= self.entries(whole).len(), "what was confirmed is there");
            assert_eq!(
                visible,
                written[..visible.len()],
                "what is there was written in this order"
            );
            let stats = self.running.store.stats();
            let end = stats.journal_end.load(std::sync::atomic::Ordering::Relaxed);
            self.groups = vec![ModelGroup { start: 0, end, entries: visible, results: Vec::new() }];
            self.committed = 1;
        }
        self.in_flight = 0;
        self.examine();
    }
}

#[test]
fn f16_nothing_is_seen_before_it_is_committed_and_nothing_after_it_was_cut_off() {
    for seed in seeds(40) {
        let hint = SeedReplayHint { test: "later", seed, place: Default::default() };
        let mut run = LaterRun::new(seed, None);
        for round in 0..4 {
            hint.place.set((round, 0));
            run.run(40);
            assert!(run.running.store.stop_reason().is_none());
            let disk = run.disk.after_kill();
            run.restart(disk);
        }
    }
}

#[test]
fn f18_what_is_committed_survives_a_crash_at_each_operation() {
    for seed in seeds(1) {
        let hint = SeedReplayHint { test: "later", seed, place: Default::default() };
        let operations = {
            let mut run = LaterRun::new(seed, None);
            let before = run.disk.operations();
            run.run(60);
            before..run.disk.operations()
        };
        for operation in operations {
            for choice in 0..3 {
                hint.place.set((operation, choice));
                let mut run = LaterRun::new(seed, Some(DiskFault::CrashAt(operation)));
                run.run(60);
                let mut random = SeededRng::new(seed ^ (operation << 8) ^ choice);
                let disk = run.disk.after_crash(|count| match choice {
                    0 => 0,
                    1 => count - 1,
                    _ => random.below(count as u64) as usize,
                });
                run.restart(disk);
                run.run(10);
            }
        }
    }
}

/// Two stores, of which the second takes the groups of the first over, some later, and cuts off what
/// the first one cuts off.
struct FollowedStore {
    random: SeededRng,
    clock: Arc<ManualClock>,
    disks: [MemoryDisk; 2],
    first: LaterStore,
    second: LaterStore,
    /// The groups of the first.
    groups: Vec<ForeignGroup>,
    /// The number of them that the second has, and that are committed.
    taken: usize,
    committed: usize,
}

impl FollowedStore {
    fn new(seed: u64) -> FollowedStore {
        let clock = Arc::new(ManualClock::at(BEGIN));
        let disks = [MemoryDisk::new(), MemoryDisk::new()];
        let begin = Hlc::at(BEGIN);
        let bound = PromiseBound::Commits { in_force: begin, last: begin };
        let open = |disk: &MemoryDisk| LaterStore::open(Arc::new(disk.clone()), &clock, 0, bound);
        let [first, second] = [&disks[0], &disks[1]].map(|disk| open(disk).expect("it is new"));
        second.store.follow();
        second.step();
        let (random, groups) = (SeededRng::new(seed), Vec::new());
        FollowedStore { random, clock, disks, first, second, groups, taken: 0, committed: 0 }
    }

    fn end(&self, count: usize) -> u64 {
        count.checked_sub(1).map_or(0, |last| end_of(&self.groups[last]))
    }

    fn append(&mut self) {
        if self.groups.len() - self.committed >= 4 {
            return;
        }
        let length = self.random.below(3) + 1;
        let entries: Vec<ModelEntry> = (0..length)
            .map(|_| {
                let length = self.random.below(200) as usize;
                (LogId(self.random.below(LOGS)), self.random.bytes(length))
            })
            .collect();
        drop(self.first.begin_append(&entries));
        self.first.step();
        self.groups.extend(self.first.take_written());
    }

    fn take_over(&mut self) {
        if let Some(group) = self.groups.get(self.taken) {
            self.second.take_over(group.clone()).expect("it follows");
            self.taken += 1;
        }
    }

    /// Both publish what both have.
    fn publish(&mut self) {
        let count =
            self.committed + self.random.below((self.taken - self.committed) as u64 + 1) as usize;
        self.committed = count;
        let end = self.end(count);
        self.first.publish_to(end, Hlc::at(self.clock.read().wall).next());
        // The second promises no more than the first has committed.
        let visible = self.first.visible().expect("it can be read");
        let last = visible.last().map_or(Hlc::ZERO, |(stamp, _)| *stamp);
        self.second.publish_to(end, last.next());
        assert!(self.second.store.timekeeper().frontier() <= last.max(Hlc::at(BEGIN)));
        assert_eq!(self.second.visible().expect("it can be read"), visible);
    }

    fn truncate(&mut self) {
        let in_flight = (self.groups.len() - self.committed) as u64;
        if in_flight == 0 {
            return;
        }
        let kept = self.committed + self.random.below(in_flight) as usize;
        let end = self.end(kept);
        self.first.truncate(end).expect("nothing there is committed");
        self.groups.truncate(kept);
        if self.taken > kept {
            self.second.truncate(end).expect("nothing there is committed");
            self.taken = kept;
        }
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            match self.random.below(12) {
                0..4 => self.append(),
                4..8 => self.take_over(),
                8..10 => self.publish(),
                10 if self.random.one_in(3) => self.truncate(),
                10 => {
                    self.first.store.roll_segment();
                    self.first.step();
                }
                _ => self.clock.advance(std::time::Duration::from_millis(self.random.below(50))),
            }
        }
        while self.taken < self.groups.len() {
            self.take_over();
        }
        while self.committed < self.groups.len() {
            self.publish();
        }
    }
}

#[test]
fn f39_a_store_that_takes_groups_over_has_the_same_files_and_roots() {
    for seed in seeds(100) {
        let hint = SeedReplayHint { test: "later", seed, place: Default::default() };
        let mut pair = FollowedStore::new(seed);
        pair.run(150);
        // What is taken over survives a loss of power.
        let begin = Hlc::at(BEGIN);
        let bound = PromiseBound::Commits { in_force: begin, last: begin };
        let disk = Arc::new(pair.disks[1].after_crash(|_| 0));
        let after_crash = LaterStore::open(disk, &pair.clock, pair.end(pair.committed), bound);
        let visible = pair.second.visible().expect("it can be read");
        assert_eq!(after_crash.expect("it opens").visible().expect("it can be read"), visible);
        // The second goes on as the leader would.
        pair.second.store.lead(Hlc::ZERO);
        for store in [&pair.first, &pair.second] {
            store.store.roll_segment();
            store.step();
            store.store.run_maintenance().expect("a healthy disk");
        }
        let tips = |store: &LaterStore| {
            (0..LOGS).map(|log| store.store.log(LogId(log)).unwrap().tip()).collect::<Vec<_>>()
        };
        assert_eq!(tips(&pair.first), tips(&pair.second), "chains");
        let [first, second] = pair.disks.each_ref().map(files);
        let is_local = |name: &str| name == "bound" || name.starts_with("manifest");
        for (name, bytes) in first.iter().filter(|(name, _)| !is_local(name)) {
            assert!(second.get(name) == Some(bytes), "{name} differs");
        }
        assert_eq!(first.keys().collect::<Vec<_>>(), second.keys().collect::<Vec<_>>());
        drop(hint);
    }
}

#[test]
fn a_group_that_is_not_whole_or_does_not_follow_is_refused_and_changes_nothing() {
    let mut pair = FollowedStore::new(1);
    while pair.groups.len() < 3 {
        pair.append();
    }
    pair.take_over();
    let good = pair.groups[1].clone();
    let before = files(&pair.disks[1]);
    let refuse = |group: ForeignGroup| {
        let refused = pair.second.take_over(group).expect_err("it is not what follows");
        assert!(files(&pair.disks[1]) == before, "{refused}");
        refused
    };
    for at in 0..good.bytes.len() {
        let mut bytes = good.bytes.to_vec();
        bytes[at] ^= 1;
        refuse(ForeignGroup { bytes: bytes.into(), ..good.clone() });
    }
    let mut frame_ends = vec![0];
    while frame_ends.last() < Some(&good.bytes.len()) {
        let at = frame_ends[frame_ends.len() - 1];
        let length = u32::from_le_bytes(good.bytes[at + 8..at + 12].try_into().unwrap());
        frame_ends.push(at + FRAME_BYTES + padded(u64::from(length)) as usize);
    }
    assert!(matches!(
        refuse(ForeignGroup { bytes: Default::default(), ..good.clone() }),
        TakeOverError::Empty { .. }
    ));
    // Where a frame ends, what is before it is a group.
    for length in (0..good.bytes.len()).filter(|length| !frame_ends.contains(length)) {
        refuse(ForeignGroup { bytes: good.bytes.slice(..length), ..good.clone() });
    }
    let longer = [&good.bytes[..], &[0; 8]].concat().into();
    assert!(matches!(
        refuse(ForeignGroup { bytes: longer, ..good.clone() }),
        TakeOverError::Frame { .. }
    ));
    for group in [&pair.groups[0], &pair.groups[2]] {
        assert!(matches!(refuse(group.clone()), TakeOverError::Position { .. }));
    }
    let elsewhere = ForeignGroup { start: good.start, ..pair.groups[2].clone() };
    assert!(matches!(
        refuse(elsewhere),
        TakeOverError::Frame { .. } | TakeOverError::Segment { .. }
    ));
    pair.take_over();
    pair.take_over();
    assert_eq!((pair.taken, pair.second.store.stop_reason()), (3, None));
    // A kind that the other store does not know. The bytes are whole.
    let later = FollowedStore::new(1);
    drop(later.first.begin_append_of_kind(9, &[(LogId(0), vec![1; 8])]));
    later.first.step();
    let unknown = later.first.take_written().remove(0);
    let refused = later.second.take_over(unknown).unwrap_err();
    assert!(matches!(refused, TakeOverError::Entry(RecoverError::Unusable(_))), "{refused}");
    // A header of another place, and none where there is no segment yet.
    let mut fresh = FollowedStore::new(1);
    fresh.append();
    let first = fresh.groups[0].clone();
    let header = first.segment.expect("the first group begins a segment");
    let elsewhere = SegmentHeader { start: header.start + 8, ..header };
    for segment in [Some(elsewhere), None] {
        let refused = fresh.second.take_over(ForeignGroup { segment, ..first.clone() });
        assert!(matches!(refused, Err(TakeOverError::Segment { .. })), "{refused:?}");
    }
    fresh.take_over();
}

/// A store with three groups in flight, one entry each, behind a committed one.
struct ThreeInFlight {
    disk: MemoryDisk,
    clock: Arc<ManualClock>,
    running: LaterStore,
    /// The ends of the four groups.
    ends: Vec<u64>,
    results: Vec<mpsc::Receiver<AppendResults<()>>>,
}

impl ThreeInFlight {
    fn new() -> ThreeInFlight {
        let (disk, clock) = (MemoryDisk::new(), Arc::new(ManualClock::at(BEGIN)));
        let open = LaterStore::open(Arc::new(disk.clone()), &clock, 0, PromiseBound::File);
        let running = open.expect("a new store opens");
        let (mut ends, mut results) = (Vec::new(), Vec::new());
        for number in 0..4 {
            results.push(running.begin_append(&[Self::entry(number)]));
            running.step();
            ends.push(running.take_written_to().expect("it was written"));
            if number == 0 {
                running.publish_to(ends[0], Hlc::ZERO);
            }
        }
        ThreeInFlight { disk, clock, running, ends, results }
    }

    fn entry(number: u64) -> ModelEntry {
        (LogId(number % 2), vec![number as u8; 30])
    }

    fn visible(&self) -> Vec<ModelEntry> {
        let visible = self.running.visible().expect("it can be read");
        visible.into_iter().map(|(_, entry)| entry).collect()
    }

    /// The result of the group's only append, if it is complete.
    fn result(&self, number: usize) -> Option<Result<Hlc, AppendError<()>>> {
        let result = self.results[number].try_recv().ok()?.remove(0);
        Some(result.map(|receipt| receipt.stamp))
    }
}

#[test]
fn a_failed_sync_with_groups_in_flight_fails_all_of_them_and_holds_the_frontier_below() {
    let mut flight = ThreeInFlight::new();
    let committed = flight.result(0).expect("it is visible").expect("it was written");
    flight.disk.arm(DiskFault::SyncFails(0));
    flight.results.push(flight.running.begin_append(&[ThreeInFlight::entry(4)]));
    flight.running.step();
    assert!(flight.running.store.stop_reason().is_some());
    for number in 1..5 {
        let failed = flight.result(number).expect("it is complete").unwrap_err();
        assert!(matches!(failed, AppendError::Storage(StorageError::Stopped { .. })), "{failed:?}");
    }
    // An order after that changes nothing: what is on the disk is not known.
    flight.running.publish_to(flight.ends[3], Hlc::ZERO);
    let refused = flight.running.truncate(flight.ends[0]).unwrap_err();
    assert!(matches!(refused, TruncateError::Storage(StorageError::Stopped { .. })), "{refused}");
    assert_eq!(flight.visible(), [ThreeInFlight::entry(0)]);
    flight.clock.advance(std::time::Duration::from_millis(100));
    let frontier = flight.running.store.timekeeper().frontier();
    assert!(frontier >= committed && frontier.time() <= BEGIN, "{frontier}");
}

#[test]
fn a_full_disk_refuses_one_group_and_leaves_those_in_flight() {
    let mut flight = ThreeInFlight::new();
    flight.disk.arm(DiskFault::FullAt(flight.disk.used_bytes() + 64));
    flight.running.publish_to(flight.ends[1], Hlc::ZERO);
    let refused = flight.running.begin_append(&[(LogId(0), vec![9; 4000])]);
    flight.running.step();
    let refused = refused.try_recv().expect("it is complete").remove(0).unwrap_err();
    assert!(matches!(&refused, AppendError::Storage(error) if error.is_full()), "{refused:?}");
    assert!(flight.result(2).is_none(), "it is still in flight");
    flight.disk.remove_capacity_limit();
    flight.results.push(flight.running.begin_append(&[ThreeInFlight::entry(4)]));
    flight.running.step();
    let end = flight.running.take_written_to().expect("there is room again");
    flight.running.publish_to(end, Hlc::ZERO);
    assert_eq!(flight.visible(), (0..5).map(ThreeInFlight::entry).collect::<Vec<_>>());
    assert!((2..5).all(|number| flight.result(number).is_some_and(|result| result.is_ok())));
}

#[test]
fn groups_are_cut_off_from_each_place_and_others_take_their_offsets() {
    for kept in 1..4 {
        let flight = ThreeInFlight::new();
        flight.running.truncate(flight.ends[kept - 1]).expect("nothing there is committed");
        for number in 1..4 {
            match flight.result(number) {
                None => assert!(number < kept),
                Some(result) => {
                    assert!(number >= kept && matches!(result, Err(AppendError::CutOff)));
                }
            }
        }
        // Twice is once.
        flight.running.truncate(flight.ends[kept - 1]).expect("there is nothing behind");
        let other = (LogId(1), vec![77; 10]);
        drop(flight.running.begin_append(std::slice::from_ref(&other)));
        flight.running.step();
        let end = flight.running.take_written_to().expect("it was written");
        flight.running.publish_to(end, Hlc::ZERO);
        let mut expected: Vec<ModelEntry> = (0..kept as u64).map(ThreeInFlight::entry).collect();
        expected.push(other);
        assert_eq!(flight.visible(), expected, "{kept}");
        let disk = flight.disk.after_crash(|count| count - 1);
        let again = LaterStore::open(Arc::new(disk), &flight.clock, end, PromiseBound::File);
        assert_eq!(again.expect("it opens").replayed, expected.len() as u64);
    }
}

#[test]
fn a_store_that_is_closed_fails_what_is_in_flight_and_finds_it_again() {
    let flight = ThreeInFlight::new();
    flight.running.store.close();
    assert!(flight.result(0).is_some_and(|result| result.is_ok()));
    for number in 1..4 {
        let failed = flight.result(number).expect("it is complete").unwrap_err();
        assert!(matches!(failed, AppendError::Storage(StorageError::Interrupted)), "{failed:?}");
    }
    let disk = Arc::new(flight.disk.clone());
    let again = LaterStore::open(disk, &flight.clock, flight.ends[0], PromiseBound::File);
    let again = again.expect("it opens");
    assert_eq!(again.visible().expect("it can be read").len(), 1);
    again.publish_to(flight.ends[2], Hlc::ZERO);
    assert_eq!(again.visible().expect("it can be read").len(), 3);
    again.truncate(flight.ends[2]).expect("nothing there is committed");
    assert_eq!(again.visible().expect("it can be read").len(), 3);
}

/// A loss of power behind a truncation finds what was written before it.
#[test]
fn what_was_held_back_and_cut_off_is_not_missed_at_the_next_start() {
    let begin = Hlc::at(BEGIN);
    for bound in [PromiseBound::File, PromiseBound::Commits { in_force: begin, last: begin }] {
        let flight = ThreeInFlight::new();
        let disk = flight.disk.after_kill();
        let open = |disk: &MemoryDisk| {
            let disk = Arc::new(disk.clone());
            LaterStore::open(disk, &flight.clock, flight.ends[0], bound).expect("it opens")
        };
        let again = open(&disk);
        flight.clock.advance(std::time::Duration::from_secs(2));
        again.store.run_maintenance().expect("a healthy disk");
        again.step();
        again.truncate(flight.ends[0]).expect("nothing there is committed");
        let third = open(&disk.after_crash(|_| 0));
        assert_eq!(third.visible().expect("it can be read").len(), 1);
    }
}

#[test]
fn a_leader_that_follows_keeps_what_is_in_flight_and_takes_over_what_comes_behind() {
    let begin = Hlc::at(BEGIN);
    let mut pair = FollowedStore::new(3);
    while pair.groups.len() < 2 {
        pair.append();
    }
    while pair.taken < 2 {
        pair.take_over();
    }
    let (sender, asked) = mpsc::channel();
    pair.first.store.when_synced(move || sender.send(()).expect("it is asked for"));
    pair.first.step();
    assert!(asked.try_recv().is_ok(), "a sync waits for no commit");
    // The second leads now. Its first group begins a segment.
    pair.second.store.lead(begin);
    pair.first.store.follow();
    pair.first.step();
    let waiting = pair.first.begin_append(&[(LogId(0), vec![1; 8])]);
    pair.first.step();
    assert!(waiting.try_recv().is_err(), "it waits until this one leads");
    let end = pair.end(2);
    pair.second.publish_to(end, begin);
    drop(pair.second.begin_append(&[(LogId(1), vec![2; 8])]));
    pair.second.step();
    let group = pair.second.take_written().remove(0);
    assert_eq!(group.segment.map(|header| header.start), Some(end));
    pair.first.take_over(group.clone()).expect("it follows");
    pair.first.publish_to(end_of(&group), begin);
    pair.second.publish_to(end_of(&group), begin);
    let [first, second] = [&pair.first, &pair.second].map(|store| store.visible().unwrap());
    assert_eq!(first, second);
    let refused = pair.second.take_over(group).unwrap_err();
    assert!(matches!(refused, TakeOverError::Leading), "{refused}");
}
