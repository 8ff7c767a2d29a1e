use std::cell::RefCell;
use std::sync::atomic::AtomicUsize;

use hlc::{ClockDiscipline, ManualClock};
use proptest::prelude::*;
use tracing::field::{Field, Visit};
use tracing::{Event, Id, Metadata, Subscriber, span};

use super::*;
use crate::disk::{DiskFault, MemoryDisk};

const BEGIN: SysTime = SysTime(1_700_000_000_000);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const SYNCED_TO: u64 = 77;
const MANIFEST: u64 = 5;

/// A timekeeper that is stepped manually, on a disk in memory.
struct TimekeeperFixture {
    disk: MemoryDisk,
    clock: Arc<ManualClock>,
    timekeeper: Arc<Timekeeper>,
    /// The number of calls of the frontier callback.
    advanced: Arc<AtomicUsize>,
}

fn clock() -> Arc<ManualClock> {
    let clock = Arc::new(ManualClock::at(BEGIN));
    clock.set_discipline(ClockDiscipline::default());
    clock
}

impl TimekeeperFixture {
    fn new() -> TimekeeperFixture {
        TimekeeperFixture::start(&MemoryDisk::new(), &clock(), ClockOptions::default())
    }

    fn start(
        disk: &MemoryDisk,
        clock: &Arc<ManualClock>,
        options: ClockOptions,
    ) -> TimekeeperFixture {
        let newest = BoundFile::read(disk).unwrap();
        let file = BoundFile::open(disk, newest).unwrap();
        let reached = DurableState { synced_to: SYNCED_TO, manifest: Arc::new(MANIFEST.into()) };
        let wall = Arc::clone(clock) as Arc<dyn WallClock>;
        let advanced = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&advanced);
        let callback: FrontierCallback =
            Box::new(move || _ = count.fetch_add(1, Ordering::Relaxed));
        let (timekeeper, keeper) =
            Timekeeper::start(file, None, reached, wall, options, callback).unwrap();
        timekeeper.set_manual_renewer(keeper);
        TimekeeperFixture { disk: disk.clone(), clock: Arc::clone(clock), timekeeper, advanced }
    }

    /// The bound on the disk, also after a loss of power.
    fn bound(&self) -> BoundRecord {
        let newest = BoundFile::read(&self.disk.after_crash(|_| 0)).unwrap();
        newest.expect("a start writes a bound")
    }

    fn write(&self) -> Result<Hlc, TimeError> {
        self.timekeeper.begin_group();
        let stamp = self.timekeeper.stamp();
        self.timekeeper.end_group(SYNCED_TO);
        stamp
    }
}

#[test]
fn a_start_puts_a_bound_ahead_of_the_clock_on_the_disk_with_all_that_is_known() {
    let fixture = TimekeeperFixture::new();
    let (bound, ahead) = (fixture.bound(), ClockOptions::default().bound_ahead);
    assert_eq!(bound.bound, Hlc::at(BEGIN.saturating_add(ahead)));
    assert_eq!(
        (bound.synced_to, bound.manifest_sequence, bound.clean),
        (SYNCED_TO, MANIFEST, false)
    );
    assert_eq!(bound.mark, WallMark { wall: BEGIN, is_confirmed: true });
    assert_eq!(fixture.timekeeper.frontier(), Hlc::at(BEGIN));
    assert!(!fixture.timekeeper.is_renewing());
}

#[derive(Clone, Copy, Debug)]
enum TimekeeperOperation {
    Pass(u64),
    Frontier,
    Begin,
    Stamp,
    End,
    Renew,
    FailSync,
}

fn op() -> impl Strategy<Value = TimekeeperOperation> {
    prop_oneof![
        4 => prop_oneof![0_u64..3, 0_u64..2000].prop_map(TimekeeperOperation::Pass),
        3 => Just(TimekeeperOperation::Frontier),
        2 => Just(TimekeeperOperation::Begin),
        6 => Just(TimekeeperOperation::Stamp),
        3 => Just(TimekeeperOperation::End),
        1 => Just(TimekeeperOperation::Renew),
        1 => Just(TimekeeperOperation::FailSync),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// The two promises of this module, for any operations in any order.
    #[test]
    fn nothing_is_given_out_that_is_not_below_the_bound_on_the_disk_and_no_stamp_at_or_below_a_frontier(
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let fixture = TimekeeperFixture::new();
        let (mut last, mut promised, mut first) = (Hlc::ZERO, Hlc::ZERO, None);
        let mut is_open = false;
        for op in ops {
            match op {
                TimekeeperOperation::Pass(ms) => fixture.clock.advance(Duration::from_millis(ms)),
                TimekeeperOperation::Renew => _ = fixture.timekeeper.renew_manually(),
                TimekeeperOperation::FailSync => fixture.disk.arm(DiskFault::SyncFails(0)),
                TimekeeperOperation::Begin if !is_open => {
                    fixture.timekeeper.begin_group();
                    is_open = true;
                }
                TimekeeperOperation::Stamp if is_open => {
                    let Ok(stamp) = fixture.timekeeper.stamp() else { continue };
                    prop_assert!(stamp > last && stamp > promised);
                    prop_assert!(stamp < fixture.bound().bound, "{stamp}");
                    last = stamp;
                    first.get_or_insert(stamp);
                }
                TimekeeperOperation::End if is_open => {
                    fixture.timekeeper.end_group(SYNCED_TO);
                    (is_open, first) = (false, None);
                }
                TimekeeperOperation::Frontier => {
                    let frontier = fixture.timekeeper.frontier();
                    prop_assert!(frontier >= promised, "a frontier never falls");
                    prop_assert!(frontier < fixture.bound().bound, "{frontier}");
                    prop_assert!(first.is_none_or(|first| frontier < first), "{frontier}");
                    if !is_open {
                        prop_assert!(frontier >= last);
                    }
                    promised = frontier;
                }
                TimekeeperOperation::Begin | TimekeeperOperation::Stamp | TimekeeperOperation::End => {}
            }
        }
    }
}

/// No later bound is needed, but how far the clock was right must be known after a crash.
#[test]
fn how_far_the_clock_was_confirmed_is_written_again_each_half_of_the_start_gap() {
    let options = ClockOptions {
        bound_ahead: Duration::from_secs(3600),
        start_gap: Duration::from_secs(20),
        ..ClockOptions::default()
    };
    let fixture = TimekeeperFixture::start(&MemoryDisk::new(), &clock(), options);
    let bound = fixture.bound();
    fixture.clock.advance(Duration::from_millis(9_999));
    fixture.timekeeper.frontier();
    assert!(!fixture.timekeeper.renew_manually());
    fixture.clock.advance(Duration::from_millis(1));
    fixture.timekeeper.frontier();
    assert!(fixture.timekeeper.renew_manually() && !fixture.timekeeper.is_renewing());
    let mark = WallMark { wall: BEGIN.saturating_add(Duration::from_secs(10)), is_confirmed: true };
    assert_eq!(fixture.bound(), BoundRecord { sequence: bound.sequence + 1, mark, ..bound });
    // A stamp checks for it too.
    fixture.clock.advance(Duration::from_secs(10));
    fixture.write().unwrap();
    assert!(fixture.timekeeper.renew_manually());
    // A clock that jumped is not written.
    fixture.clock.step_to(BEGIN.saturating_add(DAY));
    fixture.timekeeper.frontier();
    assert!(!fixture.timekeeper.renew_manually());
    // An operator confirms it, and then confirms an earlier time.
    for confirmed in [BEGIN.saturating_add(DAY), BEGIN.saturating_add(DAY / 2)] {
        fixture.clock.step_to(confirmed);
        assert_eq!(fixture.timekeeper.confirm(), None);
        assert!(fixture.timekeeper.renew_manually());
        assert_eq!(fixture.bound().mark, WallMark { wall: confirmed, is_confirmed: true });
    }
}

#[test]
fn a_confirmation_is_written_though_nothing_else_is_news() {
    let (disk, clock) = (MemoryDisk::new(), clock());
    TimekeeperFixture::start(&disk, &clock, ClockOptions::default()).timekeeper.close(SYNCED_TO);
    let ahead = BEGIN.saturating_add(DAY);
    clock.step_to(ahead);
    let fixture = TimekeeperFixture::start(&disk, &clock, ClockOptions::default());
    assert_eq!(fixture.bound().mark, WallMark { wall: BEGIN, is_confirmed: false });
    clock.step_to(BEGIN.saturating_add(Duration::from_secs(2)));
    let fixture = TimekeeperFixture::start(&disk.after_kill(), &clock, ClockOptions::default());
    assert_eq!(fixture.timekeeper.confirm(), None);
    assert!(fixture.timekeeper.renew_manually());
    assert!(fixture.bound().mark.is_confirmed);
}

/// A crashed store may have promised what its bound allowed: a start waits this long, and no
/// longer.
#[test]
fn a_start_waits_until_the_clock_has_passed_what_may_have_been_promised() {
    let options = ClockOptions::default();
    let patience = options.bound_ahead + options.skew_max;
    for (ahead, waits) in [
        (Duration::ZERO, Duration::ZERO),
        (Duration::from_millis(1), Duration::from_millis(1)),
        (patience, patience),
        (patience + Duration::from_millis(1), Duration::ZERO),
    ] {
        let (disk, clock) = (MemoryDisk::new(), clock());
        let mut file = BoundFile::open(&disk, None).unwrap();
        // The last stamp that may have been given out lies just below the bound.
        let bound = Hlc::at(BEGIN.saturating_add(ahead)).next();
        let mark = WallMark { wall: BEGIN.saturating_add(ahead), is_confirmed: true };
        file.write(BoundRecord { bound, mark, ..BoundRecord::default() }).unwrap();
        let fixture = TimekeeperFixture::start(&disk, &clock, options);
        assert_eq!(clock.read().wall, BEGIN.saturating_add(waits), "{ahead:?}");
        assert_eq!(fixture.timekeeper.fence().is_some(), ahead > patience, "{ahead:?}");
    }
}

#[test]
fn a_bound_that_cannot_be_written_is_asked_for_again() {
    let fixture = TimekeeperFixture::new();
    let before = fixture.bound();
    fixture.clock.advance(Duration::from_secs(60));
    fixture.disk.arm(DiskFault::SyncFails(0));
    fixture.timekeeper.begin_group();
    match fixture.timekeeper.stamp() {
        Err(TimeError::Bound(error)) => {
            assert!(error.to_string().starts_with("write the bound: "), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.bound(), before);
    let stamp = fixture.timekeeper.stamp().unwrap();
    assert_eq!(stamp.time(), fixture.clock.read().wall);
    assert!(fixture.bound().bound > stamp);
}

#[test]
fn waiters_for_the_frontier_are_notified_when_a_group_ends_and_when_a_bound_is_there() {
    let fixture = TimekeeperFixture::new();
    let notifications = || fixture.advanced.swap(0, Ordering::Relaxed);
    fixture.write().unwrap();
    assert_eq!(notifications(), 1);
    fixture.clock.advance(Duration::from_secs(60));
    let frontier = fixture.timekeeper.frontier();
    assert_eq!(frontier, fixture.bound().bound.previous());
    assert!(fixture.timekeeper.is_renewing() && fixture.timekeeper.is_held_by_bound());
    assert!(fixture.timekeeper.renew_manually());
    assert_eq!(notifications(), 1);
    assert!(!fixture.timekeeper.is_renewing() && !fixture.timekeeper.is_held_by_bound());
    assert_eq!(fixture.timekeeper.frontier(), Hlc::at(fixture.clock.read().wall));
    // A renewal is wanted again, but it does not hold the present back.
    fixture.clock.advance(Duration::from_millis(900));
    let present = fixture.timekeeper.frontier();
    assert_eq!(present, Hlc::at(fixture.clock.read().wall));
    assert!(fixture.timekeeper.is_renewing() && !fixture.timekeeper.is_held_by_bound());
}

#[test]
fn until_says_how_long_the_clock_takes_to_close_a_cut() {
    let fixture = TimekeeperFixture::new();
    let at = |ms| BEGIN.saturating_add(Duration::from_millis(ms));
    let until = |cut| fixture.timekeeper.time_until(cut);
    assert_eq!(until(Cut::before(at(0))), Duration::ZERO);
    assert_eq!(until(Cut::before(at(250))), Duration::from_millis(250));
    // The last stamp of a millisecond is closed by the next millisecond.
    assert_eq!(until(Cut::through(Hlc::new(at(250), u16::MAX))), Duration::from_millis(251));
    // A cut that stamps have passed is closed, whatever the clock shows.
    fixture.clock.advance(Duration::from_millis(400));
    let stamp = fixture.write().unwrap();
    fixture.clock.step_to(at(100));
    assert_eq!(until(Cut::through(stamp)), Duration::ZERO);
    assert_eq!(until(Cut::below(stamp.next().next())), Duration::from_millis(300));
}

#[test]
fn a_clean_end_takes_the_bound_back_and_gives_out_nothing_any_more() {
    let fixture = TimekeeperFixture::new();
    let stamp = fixture.write().unwrap();
    fixture.clock.advance(Duration::from_millis(300));
    let promised = fixture.timekeeper.frontier();
    fixture.clock.advance(Duration::from_millis(100));
    fixture.timekeeper.close(SYNCED_TO + 1);
    let bound = fixture.bound();
    assert!(stamp < promised && bound.bound == promised.next(), "{bound:?}");
    assert_eq!(
        (bound.synced_to, bound.manifest_sequence, bound.clean),
        (SYNCED_TO + 1, MANIFEST, true)
    );
    assert_eq!(bound.mark.wall, fixture.clock.read().wall);
    fixture.clock.advance(Duration::from_secs(10));
    assert_eq!(fixture.timekeeper.frontier(), promised);
    assert!(!fixture.timekeeper.is_renewing());
    assert_eq!(fixture.timekeeper.confirm(), None);
    assert!(!fixture.timekeeper.is_renewing());
    assert_eq!(fixture.bound(), bound);
}

#[test]
fn a_frontier_stays_below_a_group_from_its_begin_to_its_end() {
    let fixture = TimekeeperFixture::new();
    let before = fixture.timekeeper.frontier();
    fixture.timekeeper.begin_group();
    fixture.clock.advance(Duration::from_millis(10));
    let stamp = fixture.timekeeper.stamp().unwrap();
    assert_eq!(fixture.timekeeper.frontier(), before);
    fixture.timekeeper.end_group(SYNCED_TO);
    assert!(fixture.timekeeper.frontier() >= stamp);
}

/// The kernel's confirmation ends a doubt, and lifts no fence: while there is a fence, it does
/// neither.
#[test]
fn the_kernel_s_word_counts_only_while_there_is_no_fence() {
    let (disk, clock) = (MemoryDisk::new(), clock());
    TimekeeperFixture::start(&disk, &clock, ClockOptions::default()).timekeeper.close(SYNCED_TO);
    clock.step_to(BEGIN.saturating_add(DAY));
    let fixture = TimekeeperFixture::start(&disk, &clock, ClockOptions::default());
    assert_eq!(fixture.timekeeper.confirmed_now(), None);
    clock.step_to(BEGIN.saturating_add(DAY * 2));
    clock.set_discipline(ClockDiscipline { is_synchronised: true, error_max: None });
    assert_eq!(fixture.timekeeper.confirmed_now(), None);
    assert!(fixture.timekeeper.fence().is_some() && fixture.timekeeper.doubt().is_some());
    clock.set_discipline(ClockDiscipline::default());
    clock.step_to(BEGIN.saturating_add(DAY));
    assert!(fixture.timekeeper.fence().is_none() && fixture.timekeeper.doubt().is_some());
    clock.set_discipline(ClockDiscipline { is_synchronised: true, error_max: None });
    assert_eq!(fixture.timekeeper.confirmed_now(), Some(BEGIN.saturating_add(DAY)));
    assert!(fixture.timekeeper.is_renewing(), "the next incarnation is to know");
}

#[test]
fn a_counter_that_is_full_carries_into_the_next_millisecond_and_is_counted() {
    let fixture = TimekeeperFixture::new();
    fixture.timekeeper.begin_group();
    let stamps = 1 << 16;
    let mut last = Hlc::ZERO;
    for _ in 0..stamps {
        last = fixture.timekeeper.stamp().unwrap();
    }
    fixture.timekeeper.end_group(SYNCED_TO);
    assert_eq!(fixture.timekeeper.counts(), (1, 0));
    let reading = fixture.clock.read();
    assert_eq!(last, Hlc::at(BEGIN.saturating_add(Duration::from_millis(1))));
    let now = (fixture.timekeeper.wall_now(), fixture.timekeeper.steady_now());
    assert_eq!(now, (reading.wall, reading.steady));
    assert_eq!(fixture.timekeeper.precision().ahead_ms, 1);
}

thread_local! {
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Captures what this thread logs.
struct LogCapture;

impl Subscriber for LogCapture {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct MessageVisitor(String);
        impl Visit for MessageVisitor {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = MessageVisitor(String::new());
        event.record(&mut message);
        let level = event.metadata().level();
        SAID.with_borrow_mut(|lines| lines.push(format!("{level} {}", message.0)));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Each is logged once, however often the clock is read.
#[test]
fn a_fence_and_a_doubt_are_logged_when_they_begin_and_when_they_end() {
    let assert_logged = |expected: &[&str]| {
        let lines = SAID.take();
        assert_eq!(lines.len(), expected.len(), "{lines:?}");
        assert!(
            lines.iter().zip(expected).all(|(line, begins)| line.starts_with(begins)),
            "{lines:?}"
        );
    };
    tracing::subscriber::with_default(LogCapture, || {
        let fixture = TimekeeperFixture::new();
        let look = |times| (0..times).for_each(|_| _ = fixture.timekeeper.frontier());
        look(2);
        assert_logged(&[]);
        fixture.clock.step_to(BEGIN.saturating_add(DAY));
        look(2);
        assert_logged(&["WARN writes are fenced: "]);
        assert!(fixture.write().is_err());
        assert_logged(&[]);
        fixture.clock.step_to(BEGIN);
        look(2);
        assert_logged(&["INFO the clock's fence is lifted"]);
        fixture.clock.step_to(BEGIN.saturating_add(DAY));
        look(1);
        assert_logged(&["WARN writes are fenced: "]);
        fixture.timekeeper.confirm();
        look(1);
        assert_logged(&["INFO the clock's fence is lifted"]);
        fixture.timekeeper.close(SYNCED_TO);

        fixture.clock.step_to(BEGIN.saturating_add(DAY * 9));
        let fixture =
            TimekeeperFixture::start(&fixture.disk, &fixture.clock, ClockOptions::default());
        let doubt = fixture.timekeeper.doubt().unwrap().to_string();
        assert_logged(&[&format!("WARN {doubt}")]);
        // A fence that comes and goes leaves the doubt.
        fixture.clock.step_to(BEGIN.saturating_add(DAY * 19));
        fixture.timekeeper.frontier();
        fixture.clock.step_to(BEGIN.saturating_add(DAY * 9));
        fixture.timekeeper.frontier();
        assert_logged(&["WARN writes are fenced: ", "INFO the clock's fence is lifted"]);
        fixture.timekeeper.confirm();
        fixture.timekeeper.frontier();
        assert_logged(&["INFO the time is confirmed"]);
    });
}
