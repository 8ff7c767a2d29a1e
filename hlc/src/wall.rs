//! The only way in which this code reads a clock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::{ClockDiscipline, SysTime};

/// One reading of the machine's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// The wall clock, which people set and NTP corrects.
    pub wall: SysTime,
    /// Time since some fixed moment. It is never set, and continues while the machine sleeps. A
    /// gain of `wall` beyond it is a jump.
    pub steady: Duration,
}

/// A source of readings: the machine, a test, or a simulation.
pub trait WallClock: Send + Sync + 'static {
    /// Takes one reading of the clocks.
    fn read(&self) -> ClockSample;

    /// Blocks this thread for about `for_how_long`; a simulation advances its time instead.
    fn sleep(&self, for_how_long: Duration);

    /// The kernel's view of the wall clock.
    fn discipline(&self) -> ClockDiscipline;
}

/// The machine's clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct OsClock;

impl WallClock for OsClock {
    fn read(&self) -> ClockSample {
        let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let steady = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let ms = u64::try_from(wall.tv_sec).unwrap_or(0) * 1000 + wall.tv_nsec as u64 / 1_000_000;
        let steady = Duration::new(
            u64::try_from(steady.tv_sec).unwrap_or(0),
            u32::try_from(steady.tv_nsec).unwrap_or(0),
        );
        ClockSample { wall: SysTime(ms), steady }
    }

    fn sleep(&self, for_how_long: Duration) {
        std::thread::sleep(for_how_long);
    }

    fn discipline(&self) -> ClockDiscipline {
        ClockDiscipline::from_kernel()
    }
}

/// A manual clock for tests and simulations. It is synchronised, without any error, until it is set
/// otherwise.
#[derive(Debug)]
pub struct ManualClock {
    wall: AtomicU64,
    steady: Mutex<Duration>,
    discipline: Mutex<ClockDiscipline>,
}

impl ManualClock {
    /// A clock that reads `wall`.
    pub fn at(wall: SysTime) -> ManualClock {
        let exact = ClockDiscipline { is_synchronised: true, error_max: Some(Duration::ZERO) };
        ManualClock {
            wall: AtomicU64::new(wall.0),
            steady: Mutex::new(Duration::from_secs(1)),
            discipline: Mutex::new(exact),
        }
    }

    /// Sets what the kernel reports about it from now on.
    pub fn set_discipline(&self, discipline: ClockDiscipline) {
        *self.discipline.lock().expect("no holder of this lock can panic") = discipline;
    }

    /// Advances time: both clocks move.
    pub fn advance(&self, by: Duration) {
        self.wall.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
        *self.steady.lock().expect("no holder of this lock can panic") += by;
    }

    /// Sets the wall clock; no time passes.
    pub fn step_to(&self, wall: SysTime) {
        self.wall.store(wall.0, Ordering::SeqCst);
    }
}

impl WallClock for ManualClock {
    fn read(&self) -> ClockSample {
        ClockSample {
            wall: SysTime(self.wall.load(Ordering::SeqCst)),
            steady: *self.steady.lock().expect("no holder of this lock can panic"),
        }
    }

    fn sleep(&self, for_how_long: Duration) {
        self.advance(for_how_long);
    }

    fn discipline(&self) -> ClockDiscipline {
        *self.discipline.lock().expect("no holder of this lock can panic")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the clock that is read for all others is compared with it"
    )]
    fn the_machine_s_clock_shows_the_time() {
        let std_ms = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.expect("a clock behind 1970 is no clock").as_millis() as u64
        };
        // A clock may be set between two readings: then all readings are repeated.
        let is_between = || {
            let (before, now, after) = (std_ms(), OsClock.read().wall.0, std_ms());
            (before..=after).contains(&now)
        };
        assert!((0..100).any(|_| is_between()));
    }

    #[test]
    fn the_machine_s_clock_lets_time_pass() {
        let began = OsClock.read().steady;
        OsClock.sleep(Duration::from_millis(3));
        assert!(OsClock.read().steady - began >= Duration::from_millis(3));
    }

    #[test]
    fn a_manual_clock_does_as_it_is_told() {
        let clock = ManualClock::at(SysTime(100));
        let began = clock.read();
        clock.advance(Duration::from_millis(5));
        let steady = began.steady + Duration::from_millis(5);
        assert_eq!(clock.read(), ClockSample { wall: SysTime(105), steady });
        clock.step_to(SysTime(50));
        assert_eq!(clock.read(), ClockSample { wall: SysTime(50), steady });
        clock.sleep(Duration::from_millis(2));
        assert_eq!(clock.read().wall, SysTime(52));
        assert!(clock.discipline().is_synchronised);
        clock.set_discipline(ClockDiscipline::default());
        assert_eq!(clock.discipline(), ClockDiscipline::default());
    }
}
