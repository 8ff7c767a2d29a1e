//! Promises about the past, kept by a whole store: those that FFFS's released code broke (B2, B3,
//! B5, B7), and those that this one adds (F7, F9, F22).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hlc::{
    ClockDiscipline, ClockFence, Cut, Hlc, ManualClock, OsClock, SysTime, UserTime, WallClock,
};
use storage::disk::MemoryDisk;
use storage::timekeeper::{BoundFile, TimeError};
use storage::{AppendError, Durability, LogAppend, LogId, Offset, Options};
use testkit::store::{BEGIN, StoreFixture, append, manual_clock};

const LOG: LogId = LogId(1);

fn write(fixture: &StoreFixture, payload: &[u8]) -> Hlc {
    let result = fixture.append(vec![append(LOG.0, payload)], Durability::Written).remove(0);
    result.expect("a healthy store takes an append").stamp
}

/// The answer of a read at a cut: its end, and the chain value that identifies its content.
fn answer(fixture: &StoreFixture, cut: Cut) -> (Offset, u128) {
    let tip = fixture.store.log(LOG).unwrap().tip_at(cut).unwrap();
    (tip.end, tip.chain)
}

/// B2: the released FFFS changed 1823 of 2000 answers that it had given.
#[test]
fn b2_of_2000_reads_followed_by_a_write_in_the_same_millisecond_none_changes() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    let mut answers = Vec::new();
    for _ in 0..2000 {
        clock.advance(Duration::from_millis(1));
        let frontier = fixture.frontier();
        let now = clock.read().wall;
        assert!(Cut::before(now).is_closed_by(frontier), "the present millisecond is answered");
        for cut in [Cut::before(now), Cut::through(frontier)] {
            answers.push((cut, answer(&fixture, cut)));
        }
        let stamp = write(&fixture, b"x");
        assert_eq!(stamp.time(), now, "the write falls in the same millisecond");
    }
    let changed =
        answers.iter().filter(|(cut, earlier)| answer(&fixture, *cut) != *earlier).count();
    assert_eq!((answers.len(), changed), (4000, 0));
}

#[test]
fn b2_on_the_machine_s_own_clock_no_answer_changes_either() {
    let disk = Arc::new(MemoryDisk::new());
    let fixture = StoreFixture::open_on(disk, Options::default(), Arc::new(OsClock)).unwrap();
    let mut answers = Vec::new();
    for _ in 0..2000 {
        let cut = Cut::through(fixture.store.timekeeper().frontier());
        answers.push((cut, answer(&fixture, cut)));
        write(&fixture, b"x");
    }
    let changed =
        answers.iter().filter(|(cut, earlier)| answer(&fixture, *cut) != *earlier).count();
    assert_eq!(changed, 0);
}

/// F9, B2: readers ask while groups are between their first stamp and visibility.
#[test]
fn f9_answers_given_while_others_write_are_final() {
    let disk = Arc::new(MemoryDisk::new());
    let fixture =
        Arc::new(StoreFixture::open_on(disk, Options::default(), Arc::new(OsClock)).unwrap());
    let done = Arc::new(AtomicBool::new(false));
    let reads = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (fixture, done, reads) =
                (Arc::clone(&fixture), Arc::clone(&done), Arc::clone(&reads));
            std::thread::spawn(move || {
                let (mut answers, mut last) = (Vec::new(), Hlc::ZERO);
                while !done.load(Ordering::SeqCst) {
                    let frontier = fixture.store.timekeeper().frontier();
                    assert!(frontier >= last, "a frontier never falls");
                    last = frontier;
                    answers
                        .push((Cut::through(frontier), answer(&fixture, Cut::through(frontier))));
                    reads.fetch_add(1, Ordering::SeqCst);
                    std::thread::yield_now();
                }
                answers
            })
        })
        .collect();
    while reads.load(Ordering::SeqCst) < 2000 {
        let results: Vec<_> = (0..4)
            .map(|_| {
                fixture
                    .begin_append((0..5).map(|_| append(LOG.0, b"x")).collect(), Durability::Synced)
            })
            .collect();
        for receiver in results {
            receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        }
    }
    done.store(true, Ordering::SeqCst);
    let answers: Vec<_> = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
    for (cut, earlier) in answers {
        assert_eq!(answer(&fixture, cut), earlier);
    }
}

/// F9: the hash of a cut, again and again, from files, and after restarts.
#[test]
fn f9_a_cut_hashes_the_same_from_memory_from_files_and_after_restarts() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = |tail_bytes_max| Options { tail_bytes_max, ..Options::default() };
    let mut fixture = StoreFixture::open(&disk, options(1 << 20), &clock).unwrap();
    let mut cuts = Vec::new();
    for index in 0..50u8 {
        write(&fixture, &[index; 40]);
        clock.advance(Duration::from_millis(u64::from(index % 3)));
        cuts.push(Cut::through(fixture.frontier()));
    }
    let hash = |fixture: &StoreFixture| -> Vec<_> {
        let bytes = |cut: Cut| {
            let pieces = fixture
                .store
                .log(LOG)
                .unwrap()
                .read(Offset(0), answer(fixture, cut).0, usize::MAX)
                .unwrap();
            let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.read().unwrap()).collect();
            (answer(fixture, cut), bytes)
        };
        cuts.iter().map(|cut| bytes(*cut)).collect()
    };
    let first = hash(&fixture);
    for tail_bytes_max in [1 << 20, 0, 500] {
        assert_eq!(hash(&fixture), first);
        drop(fixture);
        fixture = StoreFixture::open(&disk, options(tail_bytes_max), &clock).unwrap();
        assert_eq!(hash(&fixture), first);
    }
}

/// F7: a cut is exclusive.
#[test]
fn f7_a_cut_at_t_holds_what_was_stamped_before_t_and_nothing_of_t() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    let mut ends = Vec::new();
    for _ in 0..3 {
        clock.advance(Duration::from_millis(10));
        write(&fixture, b"a");
        write(&fixture, b"b");
        ends.push((clock.read().wall.0, fixture.store.log(LOG).unwrap().end()));
    }
    for window in ends.windows(2) {
        let ((_, before), (t, with)) = (window[0], window[1]);
        let at = |ms| fixture.store.log(LOG).unwrap().offset_at(Cut::before(SysTime(ms))).unwrap();
        assert_eq!((at(t - 1), at(t), at(t + 1)), (before, before, with));
    }
}

/// B3: FFFS cached the answer for a time that had not come yet.
#[test]
fn b3_a_user_time_that_nothing_has_reached_is_found_once_something_does() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    let log = fixture.store.log(LOG).unwrap();
    let write_at = |user: i64| {
        let user = (UserTime(user), UserTime(user));
        let written = LogAppend { user, ..append(LOG.0, b"x") };
        fixture.append(vec![written], Durability::Written).remove(0).unwrap().base
    };
    let reaching = |user, from| {
        let reached = log.first_reaching(UserTime(user), from).unwrap();
        reached.map(|piece| piece.entry.base)
    };
    let bases = |user| reaching(user, Offset(0));
    let first = write_at(100);
    assert_eq!((bases(100), bases(101), bases(500)), (Some(first), None, None));
    let second = write_at(200);
    // Time that runs backwards hides nothing (for B4, the engine refuses or allows it).
    let third = write_at(50);
    let fourth = write_at(500);
    assert_eq!(bases(101), Some(second));
    assert_eq!((bases(500), bases(501)), (Some(fourth), None));
    assert_eq!(reaching(50, third), Some(third));
}

/// B5: FFFS began again at (0, 0).
#[test]
fn b5_stamps_and_frontier_rise_over_incarnations_whose_clock_is_set_back() {
    let disk = MemoryDisk::new();
    let mut promised = Hlc::ZERO;
    // Each incarnation begins with its clock at this time, and continues until the clock has caught
    // up.
    for wall in [0i64, -400, 3000, -20_000, -90_000_000, 5] {
        let clock = Arc::new(ManualClock::at(SysTime(BEGIN.0.saturating_add_signed(wall))));
        let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
        assert!(fixture.frontier() >= promised, "{wall}");
        let results = fixture.append(vec![append(LOG.0, b"x")], Durability::Written);
        match &results[0] {
            Ok(appended) => assert!(appended.stamp > promised, "{wall}"),
            Err(AppendError::Time(TimeError::Fenced(ClockFence::Behind { behind_ms }))) => {
                assert!(*behind_ms > 500, "{wall}");
                assert!(fixture.frontier() >= promised);
                clock.advance(Duration::from_millis(*behind_ms));
                assert!(write(&fixture, b"x") > promised, "{wall}");
            }
            other => panic!("{wall}: {other:?}"),
        }
        clock.advance(Duration::from_millis(300));
        promised = fixture.frontier();
    }
    let stamps: Vec<Hlc> = {
        let clock = Arc::new(ManualClock::at(BEGIN));
        let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
        fixture.replayed.iter().map(|entry| entry.stamp).collect()
    };
    assert!(stamps.len() == 6 && stamps.is_sorted_by(|a, b| a < b), "{stamps:?}");
}

/// A start after a crash waits until the wall clock has passed what may have been promised.
#[test]
fn b5_the_first_stamps_after_a_crash_do_not_run_ahead_of_the_clock() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    write(&fixture, b"a");
    let crashed = disk.after_kill();
    let fixture = StoreFixture::open(&crashed, Options::default(), &clock).unwrap();
    assert!(clock.read().wall > BEGIN, "it paused");
    let stamp = write(&fixture, b"b");
    assert!(stamp.time().0 <= clock.read().wall.0 + 1, "{stamp} at {:?}", clock.read().wall);
}

/// B7: FFFS hung for ever once a ring of 16,384 entries was full.
#[test]
fn b7_500_000_appends_to_one_log_do_not_hang() {
    const APPENDS: u32 = 500_000;
    const BATCH: u32 = 2_000;
    let disk = Arc::new(MemoryDisk::new());
    let fixture = StoreFixture::open_on(disk, Options::default(), Arc::new(OsClock)).unwrap();
    let began = OsClock.read().steady;
    let waiting: Vec<_> = (0..APPENDS / BATCH)
        .map(|batch| {
            let appends =
                (0..BATCH).map(|index| append(LOG.0, &(batch * BATCH + index).to_le_bytes()));
            fixture.begin_append(appends.collect(), Durability::Written)
        })
        .collect();
    for receiver in waiting {
        let results = receiver.recv_timeout(Duration::from_secs(60)).expect("it hangs");
        assert!(results.iter().all(Result::is_ok));
    }
    println!("{APPENDS} appends took {:?}", OsClock.read().steady - began);
    let log = fixture.store.log(LOG).unwrap();
    assert_eq!(log.end(), Offset(u64::from(APPENDS)));
    for number in [0, 16_383, 16_384, APPENDS / 2, APPENDS - 1] {
        let piece = log.read(Offset(u64::from(number)), Offset(u64::MAX), 1).unwrap().remove(0);
        assert_eq!(piece.read().unwrap()[..], number.to_le_bytes());
    }
}

/// F22: requests that are queued while the writer is busy are written and synced once.
#[test]
fn f22_requests_that_wait_together_share_one_write_and_one_sync() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    fixture.append(vec![append(LOG.0, b"first")], Durability::Synced);
    let (before, syncs) = (disk.operations(), fixture.store.stats().syncs.load(Ordering::SeqCst));
    let requests = (0..100).map(|_| (vec![append(LOG.0, b"x")], Durability::Synced)).collect();
    let results = fixture.append_as_one_group(requests);
    assert!(results.iter().flatten().all(Result::is_ok));
    assert_eq!(fixture.store.stats().syncs.load(Ordering::SeqCst) - syncs, 1);
    assert!(disk.operations() - before <= 3, "a write, a sync, and perhaps zeros ahead");
}

const DAY: u64 = 24 * 60 * 60 * 1000;

/// A clock that the kernel does not report as synchronised.
fn unsynchronised() -> Arc<ManualClock> {
    let clock = manual_clock();
    clock.set_discipline(ClockDiscipline::default());
    clock
}

fn ahead(days: u64) -> SysTime {
    SysTime(BEGIN.0 + days * DAY)
}

fn is_behind(fixture: &StoreFixture) -> bool {
    matches!(fixture.store.timekeeper().fence(), Some(ClockFence::Behind { .. }))
}

/// A bound that followed the jump would be the floor of the next incarnation's stamps.
#[test]
fn a_clock_that_jumped_since_somebody_looked_does_not_take_the_bound_with_it() {
    let (disk, clock) = (MemoryDisk::new(), unsynchronised());
    let options = Options { manual_stepping: true, ..Options::default() };
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    write(&fixture, b"a");
    clock.advance(Duration::from_secs(60));
    fixture.store.timekeeper().frontier();
    assert!(fixture.store.timekeeper().is_renewing(), "a later bound was asked for");
    clock.step_to(ahead(8));
    fixture.step_until_idle();
    let bound = BoundFile::read(&disk).unwrap().unwrap().bound;
    assert!(bound < Hlc::at(ahead(1)), "{bound}");
}

#[test]
fn by_a_clock_far_ahead_at_the_start_nothing_is_old_until_an_operator_confirms_it() {
    let (disk, clock) = (MemoryDisk::new(), unsynchronised());
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    assert_eq!(fixture.store.timekeeper().confirmed_now(), Some(BEGIN), "a new store has no past");
    let first = write(&fixture, b"a");
    fixture.store.close();
    clock.step_to(ahead(8));
    // A restart ends no doubt, however an incarnation ends.
    for closes in [true, false, true] {
        let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
        assert_eq!(fixture.store.timekeeper().confirmed_now(), None);
        assert_eq!(fixture.store.timekeeper().fence(), None, "writes go on");
        assert!(write(&fixture, b"b") > first);
        if closes {
            fixture.store.close();
        } else {
            std::mem::forget(fixture);
        }
        clock.advance(Duration::from_secs(5));
    }
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    let doubt = fixture.store.timekeeper().doubt().unwrap();
    assert!(doubt.ahead_ms > 8 * DAY - 10_000, "{doubt}");
    assert_eq!(fixture.store.timekeeper().confirm(), None);
    assert_eq!(fixture.store.timekeeper().confirmed_now(), Some(clock.read().wall));
    fixture.store.close();
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    assert!(fixture.store.timekeeper().confirmed_now().is_some(), "and the next incarnation knows");
}

#[test]
fn a_clock_that_the_kernel_says_is_synchronised_is_confirmed() {
    let (disk, clock) = (MemoryDisk::new(), unsynchronised());
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    write(&fixture, b"a");
    fixture.store.close();
    clock.step_to(ahead(8));
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    assert_eq!(fixture.store.timekeeper().confirmed_now(), None);
    let error_max = Some(Duration::from_micros(2001));
    clock.set_discipline(ClockDiscipline { is_synchronised: true, error_max });
    assert_eq!(fixture.store.timekeeper().confirmed_now(), Some(ahead(8)));
    // The same for a clock that is found so at the start.
    fixture.store.close();
    clock.step_to(ahead(16));
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    assert_eq!(fixture.store.timekeeper().doubt(), None);
}

/// The whole course of a clock that was ahead by days: no history is lost, and no day of writes.
#[test]
fn a_clock_set_right_after_days_ahead_is_confirmed_and_stamps_go_on_above() {
    let (disk, clock) = (MemoryDisk::new(), unsynchronised());
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    write(&fixture, b"a");
    fixture.store.close();
    clock.step_to(ahead(8));
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    let wrong = write(&fixture, b"b");
    let frontier = fixture.frontier();
    let earlier = answer(&fixture, Cut::through(frontier));
    fixture.store.close();
    clock.step_to(SysTime(BEGIN.0 + 60_000));
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    assert!(is_behind(&fixture), "and nothing is old by it");
    assert_eq!(fixture.store.timekeeper().confirmed_now(), None);
    assert_eq!(fixture.store.timekeeper().confirm(), None);
    assert_eq!(fixture.store.timekeeper().confirmed_now(), Some(clock.read().wall));
    let stamp = write(&fixture, b"c");
    assert!(stamp > wrong && stamp > frontier && stamp.time() == frontier.time(), "{stamp}");
    assert_eq!(answer(&fixture, Cut::through(frontier)), earlier, "the cut repeats");
    let precision = fixture.store.timekeeper().precision();
    assert!(precision.ahead_ms > 8 * DAY - 120_000, "{precision:?}");
    // A stamp that was given out is closed, or ends with a group; it is not in the future.
    assert_eq!(fixture.store.timekeeper().time_until(Cut::through(stamp)), Duration::ZERO);
    assert!(fixture.store.timekeeper().time_until(Cut::before(ahead(9))) > Duration::from_secs(60));
    fixture.step_until_idle();
    for closes in [false, true] {
        let fixture = StoreFixture::open(&disk.after_kill(), Options::default(), &clock).unwrap();
        assert_eq!(fixture.store.timekeeper().fence(), None, "what was confirmed stays so");
        assert!(fixture.store.timekeeper().confirmed_now().is_some());
        assert!(write(&fixture, b"d") > stamp);
        if closes {
            fixture.store.close();
        }
    }
}

#[test]
fn a_measured_precision_is_the_kernel_s_and_the_setting_at_most() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    let measured = |is_synchronised, error_us: Option<u64>| {
        let error_max = error_us.map(Duration::from_micros);
        clock.set_discipline(ClockDiscipline { is_synchronised, error_max });
        let precision = fixture.store.timekeeper().precision();
        assert_eq!((precision.skew_max_ms, precision.ahead_ms), (500, 0));
        (precision.is_synchronised, precision.error_ms)
    };
    assert_eq!(measured(true, Some(0)), (true, 0));
    assert_eq!(measured(true, Some(2001)), (true, 3));
    assert_eq!(measured(true, Some(900_000)), (true, 500));
    assert_eq!(measured(true, None), (true, 500));
    assert_eq!(measured(false, Some(2001)), (false, 500));
}
