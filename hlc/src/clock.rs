//! The clock that issues stamps.
//!
//! What holds true of it, asserted here:
//! - each stamp issued exceeds every stamp issued, received or promised before;
//! - no stamp and no promise reaches the bound that was last persisted.
//!
//! What surprises: a *read* moves the clock. [`Clock::close`] promises that every later stamp is
//! strictly greater, which is what makes an answer about the past final (TIME.md 2). And a clock that
//! cannot be trusted is *fenced*: it issues nothing, and says why.

use std::fmt;
use std::time::Duration;

use crate::{Hlc, Reading, SysTime};

/// How far clocks may be wrong.
#[derive(Clone, Copy, Debug)]
pub struct ClockOptions {
    /// The largest difference accepted between our stamps and a wall clock, ours or a peer's.
    pub skew_max: Duration,
    /// How far ahead of the wall clock the persisted bound is put.
    pub bound_ahead: Duration,
}

impl Default for ClockOptions {
    fn default() -> ClockOptions {
        ClockOptions { skew_max: Duration::from_millis(500), bound_ahead: Duration::from_secs(1) }
    }
}

/// Why a clock issues no stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The wall clock stands too far behind stamps already given out. Lifts by itself once it has
    /// caught up to within half of the largest skew.
    Behind {
        /// By how many milliseconds.
        behind_ms: u64,
    },
    /// The wall clock gained more than the time that passed. Holds until an operator confirms the
    /// new time, or the clock comes back.
    Jumped {
        /// By how many milliseconds.
        ahead_ms: u64,
    },
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fence::Behind { behind_ms } => write!(
                f,
                "the wall clock is {behind_ms} ms behind stamps already given out; set it right, or wait until it has caught up"
            ),
            Fence::Jumped { ahead_ms } => write!(
                f,
                "the wall clock jumped ahead by {ahead_ms} ms; set it back, or confirm the new time with POST /clock/confirm on the admin port"
            ),
        }
    }
}

/// Why no stamp was given, or none merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClockError {
    /// The clock cannot be trusted.
    #[error("writes are fenced: {0}")]
    Fenced(Fence),
    /// The stamp would reach the persisted bound: persist a later one, and ask again.
    #[error("the persisted bound is used up. bound={bound}")]
    BoundReached {
        /// The bound in force.
        bound: Hlc,
    },
    /// A peer's stamp is further ahead of our wall clock than we accept.
    #[error("peer clock is ahead. peer={peer}, ahead_ms={ahead_ms}, ahead_max_ms={ahead_max_ms}")]
    PeerAhead {
        /// The stamp that we refused.
        peer: Hlc,
        /// How far ahead it was.
        ahead_ms: u64,
        /// The limit that it broke.
        ahead_max_ms: u64,
    },
}

/// Issues stamps.
#[derive(Debug)]
pub struct Clock {
    last: Hlc,
    bound: Hlc,
    skew_max_ms: u64,
    bound_ahead_ms: u64,
    trusted: Option<Reading>,
    fence: Option<Fence>,
    carries: u64,
    peers_refused: u64,
}

impl Clock {
    /// A clock whose stamps all lie above `floor`: the bound that an earlier life persisted, or
    /// [`Hlc::ZERO`]. It issues nothing until [`Clock::extend_bound`] was called.
    pub fn new(floor: Hlc, options: ClockOptions) -> Clock {
        Clock {
            last: floor,
            bound: floor,
            skew_max_ms: options.skew_max.as_millis() as u64,
            bound_ahead_ms: options.bound_ahead.as_millis() as u64,
            trusted: None,
            fence: None,
            carries: 0,
            peers_refused: 0,
        }
    }

    /// The stamp of a local event, or of a message sent.
    ///
    /// # Errors
    /// [`ClockError::Fenced`], [`ClockError::BoundReached`]. Neither consumes a stamp.
    pub fn now(&mut self, reading: Reading) -> Result<Hlc, ClockError> {
        self.look(reading);
        if let Some(fence) = self.fence {
            return Err(ClockError::Fenced(fence));
        }
        let stamp = Hlc::at(reading.wall).max(self.last.next());
        self.issue(stamp)
    }

    /// Folds in a stamp that arrived with a message, and returns that of the event of receiving it.
    ///
    /// # Errors
    /// A stamp too far ahead is refused, and leaves no trace but a count: folding it in would drag
    /// every node's clock with it. Else as [`Clock::now`].
    pub fn receive(&mut self, peer: Hlc, reading: Reading) -> Result<Hlc, ClockError> {
        let ahead_ms = peer.time().0.saturating_sub(reading.wall.0);
        if ahead_ms > self.skew_max_ms {
            self.peers_refused += 1;
            return Err(ClockError::PeerAhead { peer, ahead_ms, ahead_max_ms: self.skew_max_ms });
        }
        self.look(reading);
        if let Some(fence) = self.fence {
            return Err(ClockError::Fenced(fence));
        }
        // (r', l') of TIME.md 2 in one line: the larger of the two stamps plus one, unless the wall
        // clock has passed both.
        let stamp = Hlc::at(reading.wall).max(self.last.max(peer).next());
        self.issue(stamp)
    }

    /// Promises that every later stamp is strictly greater than the answer, and consumes nothing:
    /// asked again in the same millisecond it answers the same, if no stamp was issued meanwhile.
    ///
    /// Where the wall clock has passed the persisted bound, the promise stops short of the bound. A
    /// fenced clock promises what it has already given out.
    pub fn close(&mut self, reading: Reading) -> Hlc {
        self.look(reading);
        if self.fence.is_none() {
            let promise = Hlc::at(reading.wall).min(self.bound.previous());
            self.last = self.last.max(promise);
        }
        self.last
    }

    fn issue(&mut self, stamp: Hlc) -> Result<Hlc, ClockError> {
        if stamp >= self.bound {
            return Err(ClockError::BoundReached { bound: self.bound });
        }
        assert!(stamp > self.last, "a stamp must exceed the last: {stamp} <= {}", self.last);
        if stamp.logical() == 0 && stamp == self.last.next() && self.last.logical() == u16::MAX {
            self.carries += 1;
        }
        self.last = stamp;
        Ok(stamp)
    }

    /// Compares a reading with what went before, and fences or lifts a fence.
    fn look(&mut self, reading: Reading) {
        if let Some(trusted) = self.trusted {
            let passed = reading.steady.saturating_sub(trusted.steady).as_millis() as u64;
            let expected = trusted.wall.0 + passed;
            let ahead_ms = reading.wall.0.saturating_sub(expected);
            if ahead_ms > self.skew_max_ms {
                // Not trusted: neither this reading nor the time it shows is kept.
                self.fence = Some(Fence::Jumped { ahead_ms });
                return;
            }
        }
        let behind_ms = self.last.time().0.saturating_sub(reading.wall.0);
        let limit = match self.fence {
            Some(Fence::Behind { .. }) => self.skew_max_ms / 2,
            _ => self.skew_max_ms,
        };
        self.fence = (behind_ms > limit).then_some(Fence::Behind { behind_ms });
        match self.fence {
            None => self.trusted = Some(reading),
            // A life that begins behind has seen no reading to trust, but the last stamp was given out
            // by one: the wall clock may come back to where that would be by now, and no further.
            Some(_) => {
                let came_back = Reading { wall: self.last.time(), ..reading };
                self.trusted.get_or_insert(came_back);
            }
        }
    }

    /// An operator says that the wall clock's present reading is right, however it came about.
    pub fn confirm(&mut self, reading: Reading) {
        self.trusted = Some(reading);
        self.fence = None;
        self.look(reading);
    }

    /// The bound that ought to be persisted now, if the one in force is nearly used up: less than
    /// half of the span that it was given remains.
    pub fn bound_due(&self, reading: Reading) -> Option<Hlc> {
        let base = self.last.max(Hlc::at(reading.wall));
        let target = Hlc::at(SysTime(base.time().0 + self.bound_ahead_ms));
        let left = self.bound.time().0.saturating_sub(base.time().0);
        (self.fence.is_none() && left <= self.bound_ahead_ms / 2 && target > self.bound)
            .then_some(target)
    }

    /// Says that `bound` is on stable storage: stamps and promises below it may be given out.
    pub fn extend_bound(&mut self, bound: Hlc) {
        self.bound = self.bound.max(bound);
    }

    /// The bound in force.
    pub fn bound(&self) -> Hlc {
        self.bound
    }

    /// The largest stamp issued, received or promised.
    pub fn last(&self) -> Hlc {
        self.last
    }

    /// Why it issues nothing, if so.
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// How far stamps run ahead of the wall clock: 0 on a healthy node.
    pub fn ahead_of(&self, wall: SysTime) -> Duration {
        Duration::from_millis(self.last.time().0.saturating_sub(wall.0))
    }

    /// How often the counter overflowed into the milliseconds.
    pub fn carries(&self) -> u64 {
        self.carries
    }

    /// How many stamps of peers were refused.
    pub fn peers_refused(&self) -> u64 {
        self.peers_refused
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Reading {
        // Steady time that follows the wall: no jump, whatever the reading.
        Reading { wall: SysTime(ms), steady: Duration::from_millis(ms) }
    }

    fn stamp(ms: u64, logical: u16) -> Hlc {
        Hlc::new(SysTime(ms), logical)
    }

    fn clock() -> Clock {
        let mut clock = Clock::new(Hlc::ZERO, ClockOptions::default());
        clock.extend_bound(Hlc::MAX);
        clock
    }

    /// F4: Figure 4 of the paper. The name node's clock reads 101 and the data node's 100; the data
    /// node's event d2 comes after it heard from the name node, so it must not be stamped below n2.
    #[test]
    fn f4_figure_4_number_by_number() {
        let (mut name_node, mut data_node) = (clock(), clock());
        let n1 = name_node.now(at(101)).unwrap();
        let n2 = name_node.now(at(101)).unwrap();
        assert_eq!((n1, n2), (stamp(101, 0), stamp(101, 1)));
        let d1 = data_node.now(at(100)).unwrap();
        assert_eq!(d1, stamp(100, 0));
        let d2 = data_node.receive(n2, at(100)).unwrap();
        assert_eq!(d2, stamp(101, 2));
        assert!(d2 > n2, "its own clock alone would have said (100, 1)");
    }

    #[test]
    fn stamps_rise_while_the_wall_clock_stands_still_or_steps_back() {
        let mut clock = clock();
        let stamps = [100, 100, 90, 100, 101].map(|ms| clock.now(at(ms)).unwrap());
        assert!(stamps.is_sorted_by(|a, b| a < b), "{stamps:?}");
    }

    /// B2: FFFS served a read at t in the millisecond before t and did not tick; 1823 of 2000 probes
    /// of its released code saw a later write fall into the cut.
    #[test]
    fn b2_no_write_falls_into_a_cut_that_was_promised() {
        let mut clock = clock();
        for ms in 1000..3000 {
            let promise = clock.close(at(ms));
            let write = clock.now(at(ms)).unwrap();
            assert!(write > promise);
        }
    }

    #[test]
    fn closing_twice_in_one_millisecond_consumes_nothing() {
        let mut clock = clock();
        assert_eq!(clock.close(at(5)), clock.close(at(5)));
        assert_eq!(clock.now(at(5)).unwrap(), stamp(5, 1));
    }

    /// F11.
    #[test]
    fn f11_a_peer_too_far_ahead_is_refused_and_leaves_no_trace() {
        let mut clock = clock();
        let peer = stamp(601, 0);
        assert!(matches!(
            clock.receive(peer, at(100)),
            Err(ClockError::PeerAhead { ahead_ms: 501, .. })
        ));
        assert_eq!(clock.now(at(100)).unwrap(), stamp(100, 0));
        assert_eq!(clock.peers_refused(), 1);
    }

    /// F5.
    #[test]
    fn f5_a_stamp_that_a_client_carries_is_exceeded_by_what_follows_it() {
        let mut clock = clock();
        let carried = stamp(105, 7);
        assert!(clock.receive(carried, at(100)).unwrap() > carried);
        assert!(clock.now(at(100)).unwrap() > carried);
    }

    #[test]
    fn no_stamp_and_no_promise_reaches_the_persisted_bound() {
        let mut clock = Clock::new(Hlc::ZERO, ClockOptions::default());
        assert!(matches!(clock.now(at(100)), Err(ClockError::BoundReached { .. })));
        clock.extend_bound(stamp(101, 0));
        assert_eq!(clock.now(at(100)).unwrap(), stamp(100, 0));
        assert!(clock.close(at(200)) < stamp(101, 0));
        assert!(matches!(clock.now(at(200)), Err(ClockError::BoundReached { .. })));
        assert_eq!(clock.bound_due(at(200)), Some(stamp(1200, 0)));
    }

    /// B5: after a restart FFFS began at (0, 0).
    #[test]
    fn b5_after_a_restart_stamps_lie_above_the_bound_even_if_the_clock_was_set_back() {
        let bound = stamp(1000, 0);
        let mut clock = Clock::new(bound, ClockOptions::default());
        clock.extend_bound(Hlc::MAX);
        assert!(clock.now(at(900)).unwrap() > bound);
    }

    #[test]
    fn a_clock_set_far_back_fences_and_lifts_by_itself_once_it_has_caught_up() {
        let mut clock = clock();
        clock.now(at(10_000)).unwrap();
        let set_back = |ms| Reading { wall: SysTime(ms), steady: Duration::from_secs(10) };
        assert!(clock.now(set_back(9_600)).is_ok());
        assert!(matches!(
            clock.now(set_back(9_000)),
            Err(ClockError::Fenced(Fence::Behind { behind_ms: 1000 }))
        ));
        assert!(clock.now(set_back(9_700)).is_err(), "not yet within half of the skew");
        assert!(clock.now(set_back(9_750)).is_ok());
    }

    #[test]
    fn a_clock_set_back_and_then_right_again_has_not_jumped() {
        let mut clock = clock();
        clock.now(at(10_000)).unwrap();
        assert!(clock.now(Reading { wall: SysTime(1), ..at(10_001) }).is_err());
        assert_eq!(clock.now(at(10_002)).unwrap(), stamp(10_002, 0));
    }

    #[test]
    fn f11_a_clock_that_begins_behind_may_come_back_and_not_jump_past_that() {
        let begun_behind = || {
            let mut clock = Clock::new(stamp(60_000, 0), ClockOptions::default());
            clock.extend_bound(Hlc::at(SysTime(1_000_000)));
            let behind = clock.now(at(10_000));
            assert!(matches!(behind, Err(ClockError::Fenced(Fence::Behind { behind_ms: 50_000 }))));
            clock
        };
        let later = |wall| Reading { wall: SysTime(wall), steady: Duration::from_millis(11_000) };
        assert!(begun_behind().now(later(61_500)).is_ok(), "set right");
        let mut jumped = begun_behind();
        let refused = jumped.now(later(61_501));
        assert!(matches!(refused, Err(ClockError::Fenced(Fence::Jumped { ahead_ms: 501 }))));
        assert_eq!(jumped.close(later(61_501)), stamp(60_000, 0), "and promises nothing new");
        jumped.confirm(later(61_501));
        assert!(jumped.now(later(61_501)).is_ok());
    }

    #[test]
    fn a_forward_jump_fences_until_it_is_confirmed() {
        let mut clock = clock();
        let last = clock.now(at(1000)).unwrap();
        let jumped = Reading { wall: SysTime(60_000), steady: Duration::from_millis(1001) };
        assert!(matches!(clock.now(jumped), Err(ClockError::Fenced(Fence::Jumped { .. }))));
        assert_eq!(clock.close(jumped), last, "a jumped clock promises nothing new");
        clock.confirm(jumped);
        assert_eq!(clock.now(jumped).unwrap(), stamp(60_000, 0));
    }

    #[test]
    fn a_forward_jump_that_is_taken_back_lifts_its_fence() {
        let mut clock = clock();
        clock.now(at(1000)).unwrap();
        let jumped = Reading { wall: SysTime(60_000), steady: Duration::from_millis(1001) };
        assert!(clock.now(jumped).is_err());
        assert_eq!(clock.now(at(1002)).unwrap(), stamp(1002, 0));
    }

    #[test]
    fn a_carry_of_the_counter_is_counted() {
        let mut clock = clock();
        for _ in 0..=u16::MAX {
            clock.now(at(100)).unwrap();
        }
        assert_eq!((clock.now(at(100)).unwrap(), clock.carries()), (stamp(101, 0), 1));
    }

    proptest! {
        /// F8: happened-before implies a smaller stamp, whatever the clocks of three nodes read.
        #[test]
        fn f8_happened_before_implies_a_smaller_stamp(
            steps in prop::collection::vec((0usize..3, 0usize..3, 1000u64..1400), 1..200),
        ) {
            let mut clocks = [clock(), clock(), clock()];
            let mut last = [Hlc::ZERO; 3];
            for (from, to, ms) in steps {
                let reading = Reading { wall: SysTime(ms), steady: Duration::from_secs(1) };
                let sent = clocks[from].now(reading).unwrap();
                prop_assert!(sent > last[from]);
                last[from] = sent;
                let received = clocks[to].receive(sent, reading).unwrap();
                prop_assert!(received > sent && received > last[to]);
                last[to] = received;
            }
        }

        /// The promise of a read against every later write, under steps of the clock and restarts.
        #[test]
        fn a_promise_holds_under_clock_steps_and_restarts(
            steps in prop::collection::vec((0u8..4, 0u64..3000), 1..200),
        ) {
            let options = ClockOptions::default();
            let mut clock = Clock::new(Hlc::ZERO, options);
            let mut promised = Hlc::ZERO;
            for (step, ms) in steps {
                let reading = Reading { wall: SysTime(ms), steady: Duration::from_secs(1) };
                match step {
                    0 => promised = promised.max(clock.close(reading)),
                    1 => if let Ok(stamp) = clock.now(reading) {
                        prop_assert!(stamp > promised);
                        promised = stamp;
                    },
                    2 => if let Some(bound) = clock.bound_due(reading) { clock.extend_bound(bound) },
                    _ => {
                        let bound = clock.bound();
                        clock = Clock::new(bound, options);
                    }
                }
            }
        }
    }
}
