//! The node's clocks. Steady time is the simulation's own; the wall clock differs from it by the
//! steps that were made.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use hlc::{ClockDiscipline, ClockSample, SysTime, WallClock};
use tokio::time::Instant;

/// The start of wall clocks.
pub(crate) const START_MS: u64 = 1_795_252_948_000;

/// A clock that can be set, over the paused time of tokio.
#[derive(Debug)]
pub(crate) struct SimClock {
    began: Instant,
    /// The time that [`WallClock::sleep`] has let pass, in addition to tokio's time: nothing else
    /// could happen meanwhile.
    paused_ms: AtomicU64,
    /// The deviation of the wall clock from the right time.
    offset_ms: AtomicI64,
    /// The latest time that it ever showed.
    shown_ms: AtomicU64,
    /// True if its present readings do not count for `shown_ms`.
    is_doubtful: AtomicBool,
}

impl SimClock {
    pub(crate) fn new() -> SimClock {
        SimClock {
            began: Instant::now(),
            paused_ms: AtomicU64::new(0),
            offset_ms: AtomicI64::new(0),
            shown_ms: AtomicU64::new(0),
            is_doubtful: AtomicBool::new(false),
        }
    }

    /// Steps the wall clock; no time passes.
    pub(crate) fn step(&self, by_ms: i64) {
        self.offset_ms.fetch_add(by_ms, Ordering::SeqCst);
    }

    /// The deviation of the wall clock from the right time.
    pub(crate) fn offset_ms(&self) -> i64 {
        self.offset_ms.load(Ordering::SeqCst)
    }

    /// Sets whether its readings count from now on.
    pub(crate) fn set_doubtful(&self, is_doubtful: bool) {
        self.is_doubtful.store(is_doubtful, Ordering::SeqCst);
    }

    pub(crate) fn is_doubtful(&self) -> bool {
        self.is_doubtful.load(Ordering::SeqCst)
    }

    /// The latest reading that counts.
    pub(crate) fn shown_ms(&self) -> u64 {
        self.shown_ms.load(Ordering::SeqCst)
    }

    pub(crate) fn wall_ms(&self) -> u64 {
        self.read().wall.0
    }
}

impl WallClock for SimClock {
    fn read(&self) -> ClockSample {
        let paused = Duration::from_millis(self.paused_ms.load(Ordering::SeqCst));
        let steady = Duration::from_secs(1) + self.began.elapsed() + paused;
        let right_ms = START_MS + steady.as_millis() as u64;
        let wall = SysTime(right_ms.saturating_add_signed(self.offset_ms()));
        if !self.is_doubtful() {
            self.shown_ms.fetch_max(wall.0, Ordering::SeqCst);
        }
        ClockSample { wall, steady }
    }

    fn sleep(&self, for_how_long: Duration) {
        self.paused_ms.fetch_add(for_how_long.as_millis() as u64, Ordering::SeqCst);
    }

    /// As in a container: the kernel never reports that it is synchronised.
    fn discipline(&self) -> ClockDiscipline {
        ClockDiscipline::default()
    }
}
