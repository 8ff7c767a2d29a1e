//! The machine stops at every write, truncate and sync of a random run, and what was not synced
//! survives in random parts (F16, F18, F19, F9, B5).
//!
//! The `Witness` knows what any life was told. After each crash it holds the reopened store to it:
//! - every append acknowledged as durable is there, with its stamp, offset and bytes;
//! - what survives is a prefix, in stamp order, of what was laid out;
//! - what was refused, or failed for good, is not there;
//! - stamps and the frontier exceed every stamp and promise given before;
//! - an answer about the past reads the same, when what it was made of was durable;
//! - what was given up stays given up, and nothing else is;
//! - what compaction replaced reads as it was or as it was to be, and no cut above its horizon changes.
//!
//! Runs replay: one thread submits, and the clock moves only between groups.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod harness;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use harness::{Random, Replays, Rig, Seen, Verdict, append, append_with_head, seeds};
use hlc::{Cut, Hlc, ManualClock, SysTime, WallClock};
use storage::disk::{Fault, MemoryDisk};
use storage::{
    Append, AppendError, Appended, Compacted, Durability, HistoryStats, Kept, LogId, Offset,
    Options,
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
        uncovered_parts_max: 1,
        merge_bytes_min: 32 << 10,
        ..harness::in_files_by_hand()
    }
}

/// An append that may be in the journal.
#[derive(Clone, Debug)]
struct Laid {
    log: LogId,
    /// The payload behind its head.
    rest: Vec<u8>,
    head: bool,
    count: u32,
    acknowledged: Option<Appended>,
    /// What compaction may have made of it: nothing, or other bytes.
    compacted: Vec<Option<Vec<u8>>>,
}

impl Laid {
    /// Whether it may be gone.
    fn may_be_gone(&self) -> bool {
        self.compacted.contains(&None)
    }

    fn is(&self, seen: &Seen) -> bool {
        let is_compacted = self.compacted.iter().any(|to| to.as_deref() == Some(&seen.payload));
        if is_compacted {
            let told = self.acknowledged.expect("what is sealed was acknowledged");
            return (told.base, told.stamp) == (seen.base, seen.stamp);
        }
        let rest = if self.head {
            let head = [seen.base.0.to_le_bytes(), seen.stamp.bits().to_le_bytes()].concat();
            match seen.payload.strip_prefix(head.as_slice()) {
                Some(rest) => rest,
                None => return false,
            }
        } else {
            &seen.payload[..]
        };
        let same = |told: Appended| (told.base, told.stamp) == (seen.base, seen.stamp);
        self.log == seen.log && self.rest == rest && self.acknowledged.is_none_or(same)
    }
}

/// An answer that was final when it was given.
#[derive(Clone, Debug)]
struct Answer {
    log: LogId,
    cut: Cut,
    offset: Offset,
    chain: u128,
    /// How many of the appends laid out it was made from.
    from: usize,
}

/// What all lives so far were told.
#[derive(Clone, Debug, Default)]
struct Witness {
    laid: Vec<Laid>,
    /// How many of them a crash of the machine must leave.
    durable: usize,
    /// How many of them the death of the process must leave.
    visible: usize,
    promised: Hlc,
    answers: Vec<Answer>,
    /// The first offset of each log that is kept, as was acknowledged, and as was asked for.
    starts: [(u64, u64); LOGS as usize],
    /// The compaction horizon of each log, as was acknowledged, and as was asked for.
    compacted: [(Hlc, Hlc); LOGS as usize],
}

impl Witness {
    fn note(&mut self, append: &Append<Verdict>, acknowledged: Option<Appended>) {
        let head = !append.payload.head.as_slice().is_empty();
        let rest = append.payload.rest.to_vec();
        let count = append.count;
        let compacted = Vec::new();
        self.laid.push(Laid { log: append.log, rest, head, count, acknowledged, compacted });
        if let Some(appended) = acknowledged {
            assert!(appended.stamp > self.promised, "a stamp lies in what was promised closed");
            self.promised = appended.stamp;
            self.visible = self.laid.len();
        }
    }

    fn ask(&mut self, rig: &Rig, random: &mut Random) {
        let frontier = rig.frontier();
        assert!(frontier >= self.promised || !self.ends_whole(), "a frontier never falls");
        self.promised = self.promised.max(frontier);
        // Biased to the newest moments: those are the ones that a crash can change.
        let reach = 16 + random.below(12);
        let back = random.below(1 << reach);
        let cut = Cut::below(Hlc::from_bits(frontier.next().bits() - back));
        assert!(cut.is_closed_by(frontier));
        for log in logs() {
            let index = rig.store.log(log).unwrap();
            let tip = index.tip_at(cut).expect("an index can be read");
            let (chain, offset) = (tip.chain, tip.end);
            self.answers.push(Answer { log, cut, offset, chain, from: self.visible });
        }
    }

    /// Whether no append is left hanging: then every stamp given out is known.
    fn ends_whole(&self) -> bool {
        self.visible == self.laid.len()
    }

    /// Holds a reopened store to what was told before, of which `least` appends must be there.
    fn examine(&mut self, rig: &Rig, least: usize) {
        let found = rig.all(logs());
        let start = |log: LogId| rig.store.log(log).unwrap().start().0;
        let is_kept = |log: LogId, end: u64| end > start(log);
        for (log, (acknowledged, asked)) in logs().zip(&mut self.starts) {
            let start = start(log);
            assert!((*acknowledged..=*asked).contains(&start), "{log:?} begins at {start}");
            (*acknowledged, *asked) = (start, start);
        }
        let replayed = rig.replayed.iter();
        let mut replayed: Vec<Seen> = replayed
            .filter(|seen| is_kept(seen.log, seen.base.0 + u64::from(seen.count)))
            .cloned()
            .collect();
        // Where an index was lost, its entries are shown by log.
        replayed.sort_by_key(|seen| seen.stamp);
        assert!(found.ends_with(&replayed), "replay shows all since what the stage remembered");
        for (log, (acknowledged, asked)) in logs().zip(&mut self.compacted) {
            let to = rig.store.log(log).unwrap().horizon().compacted_to;
            assert!((*acknowledged..=*asked).contains(&to), "{log:?} was compacted to {to}");
            (*acknowledged, *asked) = (to, to);
        }
        // What was laid out and has not been given up, or left out by compaction.
        let stamps: std::collections::HashSet<Hlc> = found.iter().map(|seen| seen.stamp).collect();
        let expected: Vec<usize> = (0..self.laid.len())
            .filter(|index| {
                let laid = &self.laid[*index];
                laid.acknowledged.is_none_or(|told| {
                    is_kept(laid.log, told.base.0 + u64::from(laid.count))
                        && (!laid.may_be_gone() || stamps.contains(&told.stamp))
                })
            })
            .collect();
        assert!(found.len() <= expected.len(), "found what was refused or withdrawn");
        let survived = expected.get(found.len()).copied().unwrap_or(self.laid.len());
        assert!(survived >= least, "lost: {survived} of {least} survived");
        for (index, seen) in expected.iter().zip(&found) {
            let laid = &self.laid[*index];
            assert!(laid.is(seen), "append {index} is {seen:?}, was {laid:?}");
        }
        for log in logs() {
            let mut end: Option<Offset> = None;
            for seen in found.iter().filter(|seen| seen.log == log) {
                // What compaction left out lies below where it went.
                let is_dense = seen.stamp >= rig.store.log(log).unwrap().horizon().compacted_to;
                let follows = |end| if is_dense { seen.base == end } else { seen.base >= end };
                assert!(end.is_none_or(follows), "offsets are dense: {seen:?} after {end:?}");
                end = Some(Offset(seen.base.0 + u64::from(seen.count)));
            }
        }
        for (index, seen) in expected.iter().zip(&found) {
            let late = *index < self.visible || seen.stamp > self.promised;
            assert!(late, "{seen:?} lies in what was promised closed");
        }
        self.answers.retain(|answer| {
            let horizon = rig.store.log(answer.log).unwrap().horizon();
            answer.from <= survived
                && answer.cut.bound() > horizon.lost_to
                && answer.cut.bound() >= horizon.compacted_to
        });
        for answer in &self.answers {
            let index = rig.store.log(answer.log).unwrap();
            let tip = index.tip_at(answer.cut).expect("an index can be read");
            assert_eq!((tip.end, tip.chain), (answer.offset, answer.chain), "{answer:?}");
        }
        let last = found.last().map_or(Hlc::ZERO, |seen| seen.stamp);
        let frontier = rig.frontier();
        assert!(frontier >= self.promised.max(last), "the frontier fell: {frontier}");
        self.promised = frontier;
        // What was found is synced by recovery, and so durable from here on.
        for (index, seen) in expected.iter().zip(&found) {
            let (base, stamp) = (seen.base, seen.stamp);
            let told = Appended { base, stamp, journal_end: 0 };
            let laid = &mut self.laid[*index];
            laid.acknowledged.get_or_insert(told);
            // It is what it is now, for good.
            laid.compacted.retain(|to| to.as_deref() == Some(&seen.payload));
        }
        self.laid.truncate(survived);
        let there = |laid: &Laid| {
            let Some(told) = laid.acknowledged else { return true };
            !is_kept(laid.log, told.base.0 + u64::from(laid.count)) || stamps.contains(&told.stamp)
        };
        let before = self.laid.len();
        let gone: Vec<bool> = self.laid.iter().map(|laid| !there(laid)).collect();
        let mut gone_before = vec![0];
        for is_gone in &gone {
            gone_before.push(gone_before[gone_before.len() - 1] + usize::from(*is_gone));
        }
        for answer in &mut self.answers {
            answer.from -= gone_before[answer.from];
        }
        let mut index = 0;
        self.laid.retain(|_| {
            index += 1;
            !gone[index - 1]
        });
        let survived = survived - (before - self.laid.len());
        (self.durable, self.visible) = (survived, survived);
    }
}

/// One machine, over its lives.
struct Machine {
    disk: MemoryDisk,
    clock: Arc<ManualClock>,
    durability: Durability,
    random: Random,
    witness: Witness,
    /// The length of some payloads: groups that go around the page cache.
    large_bytes: u64,
    segment_bytes: u64,
    /// Whether most of the work is on what is sealed.
    is_settling: bool,
    /// Whether the disk fails, but is not down.
    is_faulty: bool,
    /// Whether it fills up now and then.
    fills_up: bool,
    done: Done,
}

/// How much was done to what is sealed.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    filed: u64,
    replaced: u64,
    removed: u64,
    punched_bytes: u64,
}

impl Done {
    fn add(&mut self, stats: &HistoryStats) {
        self.filed += stats.filed.load(Ordering::Relaxed);
        self.replaced += stats.replaced.load(Ordering::Relaxed);
        self.removed += stats.removed.load(Ordering::Relaxed);
        self.punched_bytes += stats.punched_bytes.load(Ordering::Relaxed);
    }
}

impl Machine {
    fn new(seed: u64, durability: Durability) -> Machine {
        Machine {
            large_bytes: 2000,
            segment_bytes: 4096,
            is_settling: false,
            is_faulty: false,
            fills_up: false,
            done: Done::default(),
            disk: MemoryDisk::new(),
            clock: harness::manual_clock(),
            durability,
            random: Random::new(seed),
            witness: Witness::default(),
        }
    }

    /// The same machine, found on `disk` with its clock at `wall`.
    fn reborn(&self, disk: MemoryDisk, wall: SysTime) -> Machine {
        Machine {
            disk,
            clock: Arc::new(ManualClock::at(wall)),
            durability: self.durability,
            random: self.random.clone(),
            witness: self.witness.clone(),
            large_bytes: self.large_bytes,
            segment_bytes: self.segment_bytes,
            is_settling: self.is_settling,
            is_faulty: false,
            fills_up: false,
            done: Done::default(),
        }
    }

    fn open(&self) -> Option<Rig> {
        match Rig::open(&self.disk, options(self.durability, self.segment_bytes), &self.clock) {
            Ok(rig) => Some(rig),
            Err(error) => {
                assert!(self.may_fail(), "the store does not open: {error}");
                None
            }
        }
    }

    /// Some steps of work, with a clean restart among them; until the machine goes down.
    fn work(&mut self, steps: usize) {
        let Some(mut rig) = self.open() else { return };
        for _ in 0..steps {
            if self.fills_up && self.random.one_in(6) {
                self.fill_up();
            }
            let reach = if self.is_settling { 40 } else { 24 };
            match self.random.below(reach) {
                0..=6 => self.append(&rig),
                7..=8 => self.append_group(&rig),
                9..=12 => {
                    let by = Duration::from_millis(self.random.below(700));
                    self.clock.advance(by);
                    rig.frontier();
                }
                13 => {
                    let back = self.random.below(150);
                    self.clock.step_to(SysTime(self.clock.read().wall.0 - back));
                    rig.frontier();
                }
                14 => self.witness.ask(&rig, &mut self.random),
                15 => {
                    rig.store.seal();
                    rig.append(Vec::new(), Durability::Written);
                }
                16..=18 => self.tolerate(rig.store.tend().err()),
                19 => self.give_up(&rig),
                20 => self.tolerate(rig.store.free().err()),
                31..=34 => {
                    self.tolerate(rig.store.free().err());
                    self.tolerate(rig.store.free().err());
                }
                21..=22 | 35..=37 => self.replace(&rig),
                24..=27 => self.append_group(&rig),
                28..=30 => {
                    rig.store.seal();
                    rig.append(Vec::new(), Durability::Written);
                    self.tolerate(rig.store.tend().err());
                }
                38..=39 => self.give_up(&rig),
                _ => {
                    let has_stopped = rig.store.stopped().is_some();
                    rig.store.close();
                    self.done.add(rig.store.history_stats());
                    if !self.disk.is_down() && !has_stopped {
                        self.witness.durable = self.witness.visible;
                    }
                    drop(rig);
                    let Some(again) = self.open() else { return };
                    rig = again;
                    // Of what it took before it stopped, some may be there that nobody was told of.
                    if has_stopped {
                        let least = self.witness.visible;
                        self.witness.examine(&rig, least);
                    }
                }
            }
            rig.settle();
        }
        self.done.add(rig.store.history_stats());
        // A store that is going down must not promise what its last group takes back.
        for _ in 0..2 {
            self.clock.advance(Duration::from_millis(30));
            self.witness.ask(&rig, &mut self.random);
        }
    }

    /// Whether what is done may fail: the disk is down, or fails, or is full.
    fn may_fail(&self) -> bool {
        self.disk.is_down() || self.is_faulty
    }

    fn tolerate(&self, error: Option<std::io::Error>) {
        if let Some(error) = error {
            assert!(self.may_fail(), "a healthy disk: {error}");
        }
    }

    /// The disk fills up, or has room again.
    fn fill_up(&mut self) {
        self.is_faulty = !self.is_faulty;
        if self.is_faulty {
            let room = self.random.below(4000) * self.random.below(2);
            self.disk.arm(Fault::FullAt(self.disk.held_bytes() + room));
        } else {
            self.disk.make_room();
        }
    }

    fn give_up(&mut self, rig: &Rig) {
        let log = LogId(self.random.below(LOGS));
        let (held, told) = (rig.store.log(log).unwrap(), &mut self.witness.starts[log.0 as usize]);
        let back = if self.is_settling { 6 } else { held.end().0 + 1 };
        let to = held.end().0.saturating_sub(self.random.below(back));
        told.1 = told.1.max(to);
        match rig.store.give_up(&[(log, Offset(to))]) {
            Ok(()) => told.0 = told.0.max(to),
            Err(error) => self.tolerate(Some(error)),
        }
    }

    /// Replaces the beginning of a log by some of its entries, shortened; its last stays.
    fn replace(&mut self, rig: &Rig) {
        let log = LogId(self.random.below(LOGS));
        let held = rig.store.log(log).unwrap();
        let tip = held.tip();
        let reach = 16 + self.random.below(12);
        let back = self.random.below(1 << reach);
        let cut = Cut::below(Hlc::from_bits(tip.stamp.next().bits().saturating_sub(back)));
        let (until, stamp) = rig.store.replaceable(log, cut).expect("an index can be read");
        if until.0 == 0 {
            return;
        }
        let pieces = held.read(held.start(), until, usize::MAX).expect("an index can be read");
        let compacted = Compacted { compacted_to: stamp.next(), clean_to: until };
        let mut outcomes = Vec::new();
        let random = &mut self.random;
        let replaced = rig.store.replace(
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
                        emit(Kept { entry: piece.entry, payload })?;
                    }
                }
                Ok(compacted)
            },
            &mut |_| true,
        );
        let told = &mut self.witness.compacted[log.0 as usize];
        told.1 = told.1.max(compacted.compacted_to);
        for laid in self.witness.laid.iter_mut().filter(|laid| laid.log == log) {
            let stamp = laid.acknowledged.map(|told| told.stamp);
            if let Some((_, payload)) = outcomes.iter().find(|outcome| Some(outcome.0) == stamp) {
                laid.compacted.push(payload.as_ref().map(|payload| payload.to_vec()));
            }
        }
        match replaced {
            Ok(is_replaced) => {
                assert!(is_replaced, "{log:?} can be replaced up to {until:?}");
                told.0 = told.0.max(compacted.compacted_to);
            }
            Err(error) => self.tolerate(Some(error)),
        }
    }

    fn some_append(&mut self) -> Append<Verdict> {
        let log = self.random.below(LOGS);
        let length = match self.random.below(12) {
            0 => 0,
            1 => self.large_bytes + self.random.below(3000),
            2 if self.large_bytes > 2000 => self.large_bytes + self.random.below(9000),
            _ if self.is_settling => self.random.below(3500),
            _ => self.random.below(150),
        };
        let bytes = self.random.bytes(length as usize);
        let append =
            if self.random.one_in(2) { append(log, &bytes) } else { append_with_head(log, &bytes) };
        let note = if self.random.one_in(8) { Verdict::Refuse } else { Verdict::Accept };
        let count = 1 + self.random.below(3) as u32;
        Append { note, count, ..append }
    }

    fn some_request(&mut self) -> (Vec<Append<Verdict>>, Durability) {
        let count = 1 + self.random.below(3);
        let appends = (0..count).map(|_| self.some_append()).collect();
        (appends, [Durability::Written, Durability::Synced][self.random.below(2) as usize])
    }

    fn append(&mut self, rig: &Rig) {
        // A bound that falls due inside of an append is renewed beside it, on another thread: then no
        // two runs would have the same operations.
        rig.frontier();
        let (appends, how) = self.some_request();
        let told: Vec<Told> = appends.iter().map(Told::of).collect();
        let results = rig.append(appends, how);
        self.hear(told, how, results);
    }

    fn append_group(&mut self, rig: &Rig) {
        rig.frontier();
        let requests: Vec<_> = (0..2 + self.random.below(3)).map(|_| self.some_request()).collect();
        let told: Vec<(Vec<Told>, Durability)> = requests
            .iter()
            .map(|(appends, how)| (appends.iter().map(Told::of).collect(), *how))
            .collect();
        let results = rig.append_as_one_group(requests);
        for ((told, how), results) in told.into_iter().zip(results) {
            self.hear(told, how, results);
        }
    }

    fn hear(&mut self, told: Vec<Told>, how: Durability, results: Vec<harness::TestResult>) {
        let synced = how == Durability::Synced && self.durability == Durability::Synced;
        for (told, result) in told.into_iter().zip(results) {
            match result {
                Ok(appended) => {
                    assert_eq!(told.0.note, Verdict::Accept);
                    self.witness.note(&told.0, Some(appended));
                    if synced {
                        self.witness.durable = self.witness.laid.len();
                    }
                }
                Err(AppendError::Stopped(why)) => {
                    assert!(
                        self.may_fail() && !self.fills_up,
                        "the store stopped on a healthy disk: {why}"
                    );
                    if told.0.note == Verdict::Accept {
                        self.witness.note(&told.0, None);
                    }
                }
                Err(AppendError::Refused(_)) => assert_eq!(told.0.note, Verdict::Refuse),
                Err(AppendError::Time(_)) => {}
                // Nothing of it was written.
                Err(AppendError::Index(why)) => assert!(self.may_fail(), "{why}"),
                Err(AppendError::Disk(why)) => {
                    assert!(self.may_fail(), "a healthy disk refused a write: {why}");
                }
            }
        }
    }
}

/// A copy of an append, to compare with what is found.
struct Told(Append<Verdict>);

impl Told {
    fn of(append: &Append<Verdict>) -> Told {
        Told(Append {
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

/// What a crash keeps: nothing, everything, or some.
fn choose(choice: u64, mut random: Random) -> impl FnMut(usize) -> usize {
    move |count| match choice {
        0 => 0,
        1 => count - 1,
        _ => random.below(count as u64) as usize,
    }
}

/// Where the wall clock may stand after a crash: right, set back (a little, and far), set ahead.
fn wall_after(wall: SysTime, random: &mut Random) -> SysTime {
    match random.below(5) {
        0 => wall,
        1 => SysTime(wall.0 + random.below(5000)),
        2 => SysTime(wall.0 - random.below(600)),
        3 => SysTime(wall.0 - random.below(3000)),
        _ => SysTime(wall.0 - 3_600_000),
    }
}

/// Reopens `machine`, crashing at each operation of recovery first; examines what is there, works a
/// little, and crashes for the last time.
fn survive(machine: &Machine, least: usize, random: &mut Random) {
    let recovery = {
        let disk = machine.disk.after_kill();
        let second = machine.reborn(disk.clone(), machine.clock.read().wall);
        drop(second.open());
        disk.operations()
    };
    for operation in 0..recovery {
        let disk = machine.disk.after_kill();
        disk.arm(Fault::CrashAt(operation));
        let second = machine.reborn(disk.clone(), machine.clock.read().wall);
        drop(second.open());
        let choice = random.below(4);
        let disk = disk.after_crash(choose(choice, random.clone()));
        let mut third = machine.reborn(disk, wall_after(machine.clock.read().wall, random));
        let rig = third.open().expect("a second crash during recovery is survived");
        third.witness.examine(&rig, machine.witness.durable);
    }
    let mut second = machine.reborn(machine.disk.after_kill(), machine.clock.read().wall);
    let rig = second.open().expect("a crash is survived");
    second.witness.examine(&rig, least);
    // However far the clock was set back, time goes on, and so do stamps.
    second.clock.advance(Duration::from_secs(3610));
    second.append(&rig);
    drop(rig);
    second.disk.arm(Fault::CrashAt(second.disk.operations() + 1 + random.below(30)));
    second.work(8);
    let choice = random.below(4);
    let disk = second.disk.after_crash(choose(choice, random.clone()));
    let mut third = second.reborn(disk, wall_after(second.clock.read().wall, random));
    let rig = third.open().expect("a crash of the second life is survived");
    third.witness.examine(&rig, second.witness.durable);
}

/// A run of `steps`, for each seed, with a crash at each of its operations.
struct Plan {
    test: &'static str,
    durability: Durability,
    seed_count: u64,
    steps: usize,
    large_bytes: u64,
    segment_bytes: u64,
    is_settling: bool,
}

fn crash_everywhere(plan: Plan) {
    let Plan { test, durability, seed_count, steps, large_bytes, .. } = plan;
    let (segment_bytes, is_settling) = (plan.segment_bytes, plan.is_settling);
    let shape = |machine| Machine { large_bytes, segment_bytes, is_settling, ..machine };
    let new = |seed| shape(Machine::new(seed, durability));
    let mut done = Vec::new();
    for seed in seeds(seed_count) {
        let replays = Replays { test, seed, place: Cell::new((0, 0)) };
        let mut whole = new(seed);
        whole.work(steps);
        done.push(whole.done);
        for operation in 0..whole.disk.operations() {
            let mut machine = new(seed);
            machine.disk.arm(Fault::CrashAt(operation));
            machine.work(steps);
            assert!(machine.disk.is_down(), "runs replay, so operation {operation} comes again");
            for choice in 0..4 {
                replays.place.set((operation, choice));
                let mut random = Random::new(seed ^ (operation << 20) ^ (choice << 50));
                let disk = machine.disk.after_crash(choose(choice, random.clone()));
                let wall = wall_after(machine.clock.read().wall, &mut random);
                survive(&machine.reborn(disk, wall), machine.witness.durable, &mut random);
            }
            // Only the process dies: everything visible must be there, and outlive the machine.
            replays.place.set((operation, 9));
            let mut random = Random::new(seed ^ (operation << 20));
            let disk = machine.disk.after_kill();
            let wall = wall_after(machine.clock.read().wall, &mut random);
            survive(&machine.reborn(disk, wall), machine.witness.visible, &mut random);
        }
    }
    if is_settling && std::env::var_os("STORAGE_SEED").is_none() {
        let any = |count: fn(&Done) -> u64| done.iter().any(|done| count(done) > 0);
        assert!(any(|done| done.filed) && any(|done| done.removed), "{done:?}");
        assert!(any(|done| done.replaced) && any(|done| done.punched_bytes), "{done:?}");
    }
}

/// F16, F18, F19, F9, B5.
#[test]
fn a_crash_at_any_operation_keeps_what_was_acknowledged_and_changes_no_answer() {
    crash_everywhere(Plan {
        test: "a_crash_at_any_operation_keeps_what_was_acknowledged_and_changes_no_answer",
        durability: Durability::Synced,
        seed_count: 5,
        steps: 24,
        large_bytes: 2000,
        segment_bytes: 4096,
        is_settling: false,
    });
}

/// F18: where nothing is synced, the prefix is shorter, and still a prefix.
#[test]
fn f18_without_syncs_a_crash_leaves_a_prefix_in_stamp_order() {
    crash_everywhere(Plan {
        test: "f18_without_syncs_a_crash_leaves_a_prefix_in_stamp_order",
        durability: Durability::Written,
        seed_count: 4,
        steps: 24,
        large_bytes: 2000,
        segment_bytes: 4096,
        is_settling: false,
    });
}

/// F16: a group that goes around the page cache is several writes.
#[test]
fn f16_a_crash_within_a_group_written_in_blocks_keeps_the_same_promises() {
    crash_everywhere(Plan {
        test: "f16_a_crash_within_a_group_written_in_blocks_keeps_the_same_promises",
        durability: Durability::Synced,
        seed_count: 1,
        steps: 7,
        large_bytes: 258 << 10,
        segment_bytes: 4096,
        is_settling: false,
    });
}

/// F16: most steps index, file, give up, replace and free; runs are long enough that blocks of them are
/// given back.
#[test]
fn f16_a_crash_while_history_is_filed_replaced_and_freed_keeps_the_same_promises() {
    crash_everywhere(Plan {
        test: "f16_a_crash_while_history_is_filed_replaced_and_freed_keeps_the_same_promises",
        durability: Durability::Synced,
        seed_count: 2,
        steps: 34,
        large_bytes: 4000,
        segment_bytes: 24 << 10,
        is_settling: true,
    });
}

/// A machine like those that file, replace and free, on a healthy disk so far.
fn settling(seed: u64, durability: Durability) -> Machine {
    let new = Machine::new(seed, durability);
    Machine { large_bytes: 4000, segment_bytes: 24 << 10, is_settling: true, ..new }
}

/// The power goes; what is found is held to what was told, and then works.
fn lose_power(machine: &Machine, place: &Cell<(u64, u64)>, nth: u64) {
    for choice in 0..4 {
        place.set((nth, choice));
        let mut random = Random::new(nth << 20 ^ choice << 50);
        let disk = machine.disk.after_crash(choose(choice, random.clone()));
        let wall = wall_after(machine.clock.read().wall, &mut random);
        let mut second = machine.reborn(disk, wall);
        let rig = second.open().expect("a crash is survived");
        second.witness.examine(&rig, machine.witness.durable);
        second.clock.advance(Duration::from_secs(3610));
        drop(rig);
        second.work(6);
        let mut third = second.reborn(second.disk.after_crash(|_| 0), second.clock.read().wall);
        let rig = third.open().expect("a healthy disk");
        third.witness.examine(&rig, second.witness.durable);
    }
}

/// F16: the failure of each sync there is, once, and life goes on unless the store stops.
#[test]
fn f16_a_sync_that_fails_once_at_any_place_costs_nothing_that_was_acknowledged() {
    let test = "f16_a_sync_that_fails_once_at_any_place_costs_nothing_that_was_acknowledged";
    for seed in seeds(3) {
        let replays = Replays { test, seed, place: Cell::new((0, 0)) };
        let durability = [Durability::Synced, Durability::Written][(seed % 2) as usize];
        for nth in 0.. {
            let mut machine = Machine { is_faulty: true, ..settling(seed, durability) };
            machine.disk.arm(Fault::SyncFails(nth));
            replays.place.set((nth, 9));
            machine.work(30);
            if machine.disk.has_sync_to_fail() {
                break;
            }
            lose_power(&machine, &replays.place, nth);
        }
    }
}

/// F16: while the disk is full some things are refused, and nothing else happens; there is room again.
#[test]
fn f16_a_disk_that_fills_up_now_and_then_loses_nothing_and_stops_nothing() {
    let test = "f16_a_disk_that_fills_up_now_and_then_loses_nothing_and_stops_nothing";
    for seed in seeds(40) {
        let replays = Replays { test, seed, place: Cell::new((0, 0)) };
        let mut machine = Machine { fills_up: true, ..settling(seed, Durability::Synced) };
        machine.work(40);
        machine.disk.make_room();
        machine.is_faulty = false;
        let rig = machine.open().expect("there is room again");
        rig.store.tend().expect("there is room again");
        machine.append(&rig);
        drop(rig);
        lose_power(&machine, &replays.place, seed);
    }
}

/// The harness can fail: a store that acknowledges before it syncs would be caught.
#[test]
fn a_lost_acknowledged_append_would_be_noticed() {
    let mut machine = Machine::new(1, Durability::Synced);
    let rig = machine.open().expect("a new disk opens");
    machine.append(&rig);
    machine.append(&rig);
    drop(rig);
    let forgetful = machine.reborn(MemoryDisk::new(), machine.clock.read().wall);
    let rig = forgetful.open().expect("an empty disk opens");
    let least = machine.witness.visible;
    assert!(least > 0);
    let examined = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut witness = machine.witness.clone();
        witness.examine(&rig, least);
    }));
    assert!(examined.is_err());
}
