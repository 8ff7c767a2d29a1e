//! The clock that issues stamps.
//!
//! Invariants, asserted here:
//! - each stamp issued exceeds every stamp issued, received or promised before;
//! - no stamp and no promise reaches the bound that was last persisted.
//!
//! Note that a *read* moves the clock. [`Clock::close`] promises that every later stamp is strictly
//! greater, which is what makes an answer about the past final (TIME.md 2). A clock that cannot be
//! trusted is *fenced*: it issues nothing, and says why. A clock that starts much later than the
//! last confirmed time is in *doubt*: it issues stamps, but nothing may be removed by its time.
//!
//! Confirming the wall clock lifts both. If stamps ran ahead of it, they continue above the last
//! stamp, by counting, until the wall clock has caught up.

use std::fmt;
use std::time::Duration;

use crate::{ClockDoubt, ClockSample, Hlc, SysTime, WallMark};

/// The limits within which clocks may be wrong.
#[derive(Clone, Copy, Debug)]
pub struct ClockOptions {
    /// The largest accepted difference between our stamps and a wall clock, ours or a peer's.
    pub skew_max: Duration,
    /// The lead of the persisted bound over the wall clock.
    pub bound_ahead: Duration,
    /// A process starts in doubt if its wall clock leads the last confirmed time by more than this.
    pub start_gap: Duration,
    /// After this long without a step, a clock in doubt is trusted.
    pub trust_after: Duration,
}

impl Default for ClockOptions {
    fn default() -> ClockOptions {
        ClockOptions {
            skew_max: Duration::from_millis(500),
            bound_ahead: Duration::from_secs(1),
            start_gap: Duration::from_secs(60 * 60),
            trust_after: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// The reason a clock issues no stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockFence {
    /// The wall clock is too far behind issued stamps; or, after a confirmation behind them, too
    /// far behind its own largest reading.
    ///
    /// The fence lifts by itself once the clock has caught up to within half of the largest skew,
    /// or when an operator confirms the time.
    Behind {
        /// The lag of the wall clock, in milliseconds.
        behind_ms: u64,
    },
    /// The wall clock gained more than the time that passed. The fence holds until an operator
    /// confirms the new time, or the clock steps back.
    Jumped {
        /// The excess of the wall clock, in milliseconds.
        ahead_ms: u64,
    },
}

impl fmt::Display for ClockFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClockFence::Behind { behind_ms } => write!(
                f,
                "the wall clock is {behind_ms} ms behind stamps already issued; set it right, or, if it is right, confirm it with freezeframe clock confirm, or POST /clock/confirm on the admin port"
            ),
            ClockFence::Jumped { ahead_ms } => write!(
                f,
                "the wall clock jumped ahead by {ahead_ms} ms; set it back, or, if it is right, confirm it with freezeframe clock confirm, or POST /clock/confirm on the admin port"
            ),
        }
    }
}

/// The reason a stamp was not issued or not merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClockError {
    /// The clock cannot be trusted.
    #[error("writes are fenced: {0}")]
    Fenced(ClockFence),
    /// The stamp would reach the persisted bound: persist a later one, and retry.
    #[error("the persisted bound {bound} is used up")]
    BoundReached {
        /// The bound in force.
        bound: Hlc,
    },
    /// A peer's stamp is further ahead of our wall clock than we accept.
    #[error(
        "peer clock is ahead: its stamp {peer} leads by {ahead_ms} ms, and {ahead_max_ms} ms are accepted"
    )]
    PeerAhead {
        /// The refused stamp.
        peer: Hlc,
        /// The lead of the refused stamp over our wall clock, in milliseconds.
        ahead_ms: u64,
        /// The limit that it exceeds.
        ahead_max_ms: u64,
    },
}

/// A hybrid logical clock, which issues stamps.
#[derive(Debug)]
pub struct Clock {
    last: Hlc,
    bound: Hlc,
    skew_max_ms: u64,
    bound_ahead_ms: u64,
    start_gap_ms: u64,
    trust_after: Duration,
    last_reading: Option<ClockSample>,
    fence: Option<ClockFence>,
    /// The latest reading of the wall clock that was confirmed.
    confirmed_wall: SysTime,
    /// The largest reading: a wall clock that is catching up must not fall behind it.
    wall_max: SysTime,
    /// True if stamps run ahead of a wall clock that was confirmed.
    is_catching_up: bool,
    /// The steady time of the first reading.
    first_steady: Option<Duration>,
    /// True if the clock of the previous incarnation was confirmed at its end.
    was_confirmed: bool,
    /// True once it is decided if this incarnation begins in doubt: at the first reading that is
    /// not fenced.
    is_start_checked: bool,
    doubt: Option<ClockDoubt>,
    /// The steady time of the last step.
    stable_since: Duration,
    carries: u64,
    peers_refused: u64,
}

impl Clock {
    /// A clock whose stamps are all above `floor`: the bound that an earlier incarnation persisted,
    /// or [`Hlc::ZERO`]. It issues nothing before the first call of [`Clock::extend_bound`].
    pub fn new(floor: Hlc, options: ClockOptions) -> Clock {
        Clock::resume(floor, WallMark::at(floor), options)
    }

    /// [`Clock::new`] for an incarnation that knows how far the wall clock was confirmed in earlier
    /// ones.
    pub fn resume(floor: Hlc, mark: WallMark, options: ClockOptions) -> Clock {
        let ms = |duration: Duration| duration.as_millis() as u64;
        let (skew_max_ms, bound_ahead_ms) = (ms(options.skew_max), ms(options.bound_ahead));
        let ran_ahead = floor.time().0 > mark.wall.0.saturating_add(bound_ahead_ms + skew_max_ms);
        Clock {
            last: floor,
            bound: floor,
            skew_max_ms,
            bound_ahead_ms,
            start_gap_ms: ms(options.start_gap),
            trust_after: options.trust_after,
            last_reading: None,
            fence: None,
            confirmed_wall: mark.wall,
            wall_max: mark.wall,
            is_catching_up: mark.is_confirmed && ran_ahead,
            first_steady: None,
            was_confirmed: mark.is_confirmed,
            is_start_checked: false,
            doubt: None,
            stable_since: Duration::ZERO,
            carries: 0,
            peers_refused: 0,
        }
    }

    /// The stamp of a local event, or of a message sent.
    ///
    /// # Errors
    /// [`ClockError::Fenced`], [`ClockError::BoundReached`]. Neither consumes a stamp.
    pub fn now(&mut self, reading: ClockSample) -> Result<Hlc, ClockError> {
        self.observe(reading);
        if let Some(fence) = self.fence {
            return Err(ClockError::Fenced(fence));
        }
        let stamp = Hlc::at(reading.wall).max(self.last.next());
        self.issue(stamp)
    }

    /// Merges a stamp that arrived with a message, and returns the stamp of the receive event.
    ///
    /// # Errors
    /// A stamp too far ahead is refused, and changes only a counter: merging it would drag every
    /// node's clock with it. Otherwise as [`Clock::now`].
    pub fn receive(&mut self, peer: Hlc, reading: ClockSample) -> Result<Hlc, ClockError> {
        let ahead_ms = peer.time().0.saturating_sub(reading.wall.0);
        // A stamp at or below our last one changes nothing, however far ahead our own stamps are.
        if ahead_ms > self.skew_max_ms && peer > self.last {
            self.peers_refused += 1;
            return Err(ClockError::PeerAhead { peer, ahead_ms, ahead_max_ms: self.skew_max_ms });
        }
        self.observe(reading);
        if let Some(fence) = self.fence {
            return Err(ClockError::Fenced(fence));
        }
        // (r', l') of TIME.md 2 in one line: the larger of the two stamps plus one, unless the wall
        // clock has passed both.
        let stamp = Hlc::at(reading.wall).max(self.last.max(peer).next());
        self.issue(stamp)
    }

    /// Lets later stamps lie above `floor`, which is in the journal: another node gave it, and a bound
    /// that both share covers it. So it is merged however far ahead it is.
    pub fn raise(&mut self, floor: Hlc) {
        self.last = self.last.max(floor);
    }

    /// Promises that every later stamp is strictly greater than the result.
    ///
    /// It consumes no stamp: a second call in the same millisecond returns the same, if no stamp
    /// was issued in between. If the wall clock has passed the persisted bound, the promise stays
    /// below the bound. A fenced clock promises the last stamp that it issued, received or
    /// promised.
    pub fn close(&mut self, reading: ClockSample) -> Hlc {
        self.observe(reading);
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

    /// Compares a reading with the earlier ones, and sets or lifts a fence. Promises nothing.
    pub fn observe(&mut self, reading: ClockSample) {
        self.first_steady.get_or_insert(reading.steady);
        self.fence = self.detect_fence(reading);
        match self.fence {
            None => self.accept_reading(reading),
            Some(ClockFence::Jumped { .. }) => self.stable_since = reading.steady,
            // An incarnation that begins behind has no trusted reading yet, but its last stamp came
            // from one: the wall clock may return to where that reading would be by now, and no
            // further.
            Some(ClockFence::Behind { .. }) => {
                self.stable_since = reading.steady;
                let came_back = ClockSample { wall: self.expected_wall(), ..reading };
                self.last_reading.get_or_insert(came_back);
            }
        }
    }

    fn detect_fence(&self, reading: ClockSample) -> Option<ClockFence> {
        if let Some(trusted) = self.last_reading {
            let passed = reading.steady.saturating_sub(trusted.steady).as_millis() as u64;
            let ahead_ms = reading.wall.0.saturating_sub(trusted.wall.0 + passed);
            if ahead_ms > self.skew_max_ms {
                return Some(ClockFence::Jumped { ahead_ms });
            }
        }
        let behind_ms = self.expected_wall().0.saturating_sub(reading.wall.0);
        let limit = match self.fence {
            Some(ClockFence::Behind { .. }) => self.skew_max_ms / 2,
            _ => self.skew_max_ms,
        };
        (behind_ms > limit).then_some(ClockFence::Behind { behind_ms })
    }

    /// The time that the wall clock must not be far behind.
    fn expected_wall(&self) -> SysTime {
        if self.is_catching_up { self.wall_max } else { self.last.time() }
    }

    /// Accepts a reading that is not fenced.
    fn accept_reading(&mut self, reading: ClockSample) {
        self.last_reading = Some(reading);
        self.wall_max = self.wall_max.max(reading.wall);
        self.is_catching_up &= reading.wall < self.last.time();
        if !self.is_start_checked {
            self.check_start(reading);
        }
        if reading.steady.saturating_sub(self.stable_since) >= self.trust_after {
            self.doubt = None;
        }
        if self.doubt.is_none() {
            self.confirmed_wall = self.confirmed_wall.max(reading.wall);
        }
    }

    /// Decides whether this incarnation begins in doubt. One without a past has nothing to remove.
    fn check_start(&mut self, reading: ClockSample) {
        let began = self.first_steady.unwrap_or(reading.steady);
        let passed = reading.steady.saturating_sub(began).as_millis() as u64;
        let ahead_ms = reading.wall.0.saturating_sub(self.confirmed_wall.0.saturating_add(passed));
        let has_past = self.confirmed_wall > SysTime(0);
        self.is_start_checked = true;
        self.stable_since = reading.steady;
        self.doubt = (has_past && ahead_ms > self.start_gap_ms).then_some(ClockDoubt { ahead_ms });
    }

    /// Confirms the wall clock's present reading on behalf of an operator, whatever it is. Ends
    /// every fence and every doubt. Stamps that run ahead of it continue above the last stamp until
    /// it has caught up.
    pub fn confirm(&mut self, reading: ClockSample) {
        self.last_reading = Some(reading);
        (self.fence, self.doubt, self.is_start_checked) = (None, None, true);
        (self.confirmed_wall, self.wall_max) = (reading.wall, reading.wall);
        self.is_catching_up = true;
        self.observe(reading);
    }

    /// Confirms the wall clock's last reading on behalf of the kernel, which watches it. Ends a
    /// doubt, and lifts no fence. Returns whether there was a doubt.
    pub fn trust(&mut self) -> bool {
        let doubted = self.doubt.take().is_some();
        if doubted {
            self.confirmed_wall = self.confirmed_wall.max(self.wall_max);
        }
        doubted
    }

    /// The bound that should be persisted now, by the last trusted reading, if the current bound is
    /// nearly used up: less than half of its span remains.
    pub fn bound_due(&self) -> Option<Hlc> {
        let wall = self.last_reading.map_or(SysTime(0), |trusted| trusted.wall);
        let base = self.last.max(Hlc::at(wall));
        let target = Hlc::at(SysTime(base.time().0 + self.bound_ahead_ms));
        let ahead_ms = self.bound.time().0.saturating_sub(base.time().0);
        (self.fence.is_none() && ahead_ms <= self.bound_ahead_ms / 2 && target > self.bound)
            .then_some(target)
    }

    /// The time up to which the wall clock is known to be right, to be persisted with the bound.
    pub fn mark(&self) -> WallMark {
        let is_confirmed =
            if self.is_start_checked { self.doubt.is_none() } else { self.was_confirmed };
        WallMark { wall: self.confirmed_wall, is_confirmed }
    }

    /// Records that `bound` is on stable storage: stamps and promises below it may be issued.
    pub fn extend_bound(&mut self, bound: Hlc) {
        self.bound = self.bound.max(bound);
    }

    /// The current bound.
    pub fn bound(&self) -> Hlc {
        self.bound
    }

    /// The largest stamp issued, received or promised.
    pub fn last(&self) -> Hlc {
        self.last
    }

    /// The reason it issues nothing, if it is fenced.
    pub fn fence(&self) -> Option<ClockFence> {
        self.fence
    }

    /// The reason nothing may be removed by this clock's time, if it is in doubt. A fence has the
    /// same effect.
    pub fn doubt(&self) -> Option<ClockDoubt> {
        self.doubt
    }

    /// The lead of stamps over the wall clock: 0 on a healthy node.
    pub fn ahead_of(&self, wall: SysTime) -> Duration {
        Duration::from_millis(self.last.time().0.saturating_sub(wall.0))
    }

    /// The number of overflows of the counter into the milliseconds.
    pub fn carries(&self) -> u64 {
        self.carries
    }

    /// The number of refused stamps of peers.
    pub fn peers_refused(&self) -> u64 {
        self.peers_refused
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> ClockSample {
        // Steady time follows the wall clock, so no reading is a jump.
        ClockSample { wall: SysTime(ms), steady: Duration::from_millis(ms) }
    }

    fn stamp(ms: u64, logical: u16) -> Hlc {
        Hlc::new(SysTime(ms), logical)
    }

    fn clock() -> Clock {
        let mut clock = Clock::new(Hlc::ZERO, ClockOptions::default());
        clock.extend_bound(Hlc::MAX);
        clock
    }

    /// F4: Figure 4 of the paper. The name node's clock reads 101 and the data node's 100. The data
    /// node's event d2 follows a message from the name node, so it must not be stamped below n2.
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

    /// B2: FFFS served a read at t in the millisecond before t and did not tick; 1823 of 2000
    /// probes of its released code saw a later write fall into the cut.
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
        assert_eq!(clock.peers_refused(), 0);
        let peer = stamp(601, 0);
        assert!(matches!(
            clock.receive(peer, at(100)),
            Err(ClockError::PeerAhead { ahead_ms: 501, .. })
        ));
        assert_eq!(clock.now(at(100)).unwrap(), stamp(100, 0));
        assert_eq!(clock.peers_refused(), 1);
        assert_eq!(clock.last(), stamp(100, 0));
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
        assert_eq!(clock.bound_due(), Some(stamp(1200, 0)));
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
        let set_back = |ms| ClockSample { wall: SysTime(ms), steady: Duration::from_secs(10) };
        assert!(clock.now(set_back(9_600)).is_ok());
        assert!(matches!(
            clock.now(set_back(9_000)),
            Err(ClockError::Fenced(ClockFence::Behind { behind_ms: 1000 }))
        ));
        assert!(clock.now(set_back(9_700)).is_err(), "not yet within half of the skew");
        assert!(clock.now(set_back(9_750)).is_ok());
    }

    #[test]
    fn a_clock_set_back_and_then_right_again_has_not_jumped() {
        let mut clock = clock();
        clock.now(at(10_000)).unwrap();
        assert!(clock.now(ClockSample { wall: SysTime(1), ..at(10_001) }).is_err());
        assert_eq!(clock.now(at(10_002)).unwrap(), stamp(10_002, 0));
    }

    #[test]
    fn f11_a_clock_that_begins_behind_may_come_back_and_not_jump_past_that() {
        let begun_behind = || {
            let mut clock = Clock::new(stamp(60_000, 0), ClockOptions::default());
            clock.extend_bound(Hlc::at(SysTime(1_000_000)));
            let behind = clock.now(at(10_000));
            assert!(matches!(
                behind,
                Err(ClockError::Fenced(ClockFence::Behind { behind_ms: 50_000 }))
            ));
            clock
        };
        let later =
            |wall| ClockSample { wall: SysTime(wall), steady: Duration::from_millis(11_000) };
        assert!(begun_behind().now(later(61_500)).is_ok(), "set right");
        let mut jumped = begun_behind();
        let refused = jumped.now(later(61_501));
        assert!(matches!(refused, Err(ClockError::Fenced(ClockFence::Jumped { ahead_ms: 501 }))));
        assert_eq!(jumped.close(later(61_501)), stamp(60_000, 0), "and promises nothing new");
        jumped.confirm(later(61_501));
        assert!(jumped.now(later(61_501)).is_ok());
    }

    #[test]
    fn a_forward_jump_fences_until_it_is_confirmed() {
        let mut clock = clock();
        let last = clock.now(at(1000)).unwrap();
        let jumped = ClockSample { wall: SysTime(60_000), steady: Duration::from_millis(1001) };
        assert!(matches!(clock.now(jumped), Err(ClockError::Fenced(ClockFence::Jumped { .. }))));
        assert_eq!(clock.close(jumped), last, "a jumped clock promises nothing new");
        clock.confirm(jumped);
        assert_eq!(clock.now(jumped).unwrap(), stamp(60_000, 0));
    }

    #[test]
    fn a_forward_jump_that_is_taken_back_lifts_its_fence() {
        let mut clock = clock();
        clock.now(at(1000)).unwrap();
        let jumped = ClockSample { wall: SysTime(60_000), steady: Duration::from_millis(1001) };
        assert!(clock.now(jumped).is_err());
        assert_eq!(clock.now(at(1002)).unwrap(), stamp(1002, 0));
    }

    #[test]
    fn a_carry_of_the_counter_is_counted_and_nothing_else_is() {
        let mut clock = clock();
        for _ in 0..=u16::MAX {
            clock.now(at(100)).unwrap();
        }
        assert_eq!(clock.carries(), 0);
        assert_eq!((clock.now(at(100)).unwrap(), clock.carries()), (stamp(101, 0), 1));
        clock.now(at(102)).unwrap();
        assert_eq!(clock.carries(), 1, "the wall clock moved");
        let last = clock.receive(stamp(102, u16::MAX), at(102)).unwrap();
        assert_eq!((last, clock.carries()), (stamp(103, 0), 1), "the peer's counter was full");
        // The wall clock arrives where a full counter would have carried to.
        let mut full = Clock::new(stamp(100, u16::MAX - 1), ClockOptions::default());
        full.extend_bound(Hlc::MAX);
        assert_eq!(full.now(at(100)).unwrap(), stamp(100, u16::MAX));
        assert_eq!((full.now(at(102)).unwrap(), full.carries()), (stamp(102, 0), 0));
    }

    #[test]
    fn a_peer_may_be_ahead_by_the_largest_skew_and_no_more() {
        assert_eq!(clock().receive(stamp(600, 0), at(100)).unwrap(), stamp(600, 1));
        assert!(clock().receive(stamp(601, 0), at(100)).is_err());
    }

    /// Our own stamps that run ahead of a confirmed clock come back with messages: they change
    /// nothing.
    #[test]
    fn a_peer_that_repeats_our_own_stamps_is_not_ahead() {
        let mut clock = clock();
        let issued = clock.now(at(10_000)).unwrap();
        clock.confirm(at(1000));
        assert!(clock.receive(issued, at(1000)).unwrap() > issued);
        assert!(clock.receive(stamp(10_001, 0), at(1000)).is_err());
        assert_eq!(clock.peers_refused(), 1);
    }

    #[test]
    fn a_fenced_clock_merges_no_peer() {
        let mut clock = clock();
        clock.now(at(10_000)).unwrap();
        let behind = ClockSample { wall: SysTime(1000), steady: Duration::from_secs(10) };
        let received = clock.receive(stamp(1, 0), behind);
        assert!(matches!(
            received,
            Err(ClockError::Fenced(ClockFence::Behind { behind_ms: 9000 }))
        ));
        assert_eq!(clock.bound_due(), None, "and no bound is due for it");
    }

    #[test]
    fn a_bound_is_due_when_half_of_its_span_is_used_and_not_before() {
        let mut clock = Clock::new(Hlc::ZERO, ClockOptions::default());
        clock.close(at(1000));
        assert_eq!(clock.bound_due(), Some(stamp(2000, 0)));
        clock.extend_bound(stamp(2000, 0));
        clock.close(at(1499));
        assert_eq!(clock.bound_due(), None);
        clock.close(at(1500));
        assert_eq!(clock.bound_due(), Some(stamp(2500, 0)));
        clock.extend_bound(stamp(1800, 0));
        assert_eq!(clock.bound(), stamp(2000, 0), "it never falls");
    }

    /// A bound by a reading that jumped would raise the next incarnation's floor with it.
    #[test]
    fn a_reading_that_is_not_believed_makes_no_bound_due() {
        let mut clock = Clock::new(Hlc::ZERO, ClockOptions::default());
        clock.close(at(1000));
        clock.extend_bound(stamp(2000, 0));
        clock.observe(ClockSample { wall: SysTime(900_000), steady: Duration::from_millis(1001) });
        assert_eq!(clock.bound_due(), None);
    }

    const HOUR: u64 = 3_600_000;
    const LONG_AGO: u64 = 1000 * HOUR;

    /// The next incarnation of a store that ended at [`LONG_AGO`].
    fn later_incarnation() -> Clock {
        let mark = WallMark { wall: SysTime(LONG_AGO), is_confirmed: true };
        let mut clock = Clock::resume(stamp(LONG_AGO + 1000, 0), mark, ClockOptions::default());
        clock.extend_bound(Hlc::MAX);
        clock
    }

    #[test]
    fn a_clock_that_starts_far_ahead_issues_stamps_and_is_in_doubt_until_it_is_confirmed() {
        let mut clock = later_incarnation();
        clock.close(at(LONG_AGO + HOUR));
        assert_eq!(clock.doubt(), None, "within the gap");
        let mut clock = later_incarnation();
        let now = LONG_AGO + HOUR + 1;
        assert_eq!(clock.now(at(now)).unwrap(), stamp(now, 0));
        assert_eq!(clock.doubt(), Some(ClockDoubt { ahead_ms: HOUR + 1 }));
        let mark = WallMark { wall: SysTime(LONG_AGO), is_confirmed: false };
        assert_eq!(clock.mark(), mark, "the next incarnation is in doubt too");
        clock.confirm(at(now + 5));
        assert_eq!(clock.doubt(), None);
        assert_eq!(clock.mark(), WallMark { wall: SysTime(now + 5), is_confirmed: true });
    }

    #[test]
    fn the_kernel_ends_a_doubt_and_lifts_no_fence() {
        let mut clock = later_incarnation();
        clock.close(at(LONG_AGO + 2 * HOUR));
        assert!(clock.trust());
        assert_eq!(clock.doubt(), None);
        assert_eq!(clock.mark().wall, SysTime(LONG_AGO + 2 * HOUR));
        assert!(!clock.trust(), "there is none any more");
        let jumped = ClockSample { wall: SysTime(LONG_AGO + 9 * HOUR), ..at(LONG_AGO + 2 * HOUR) };
        clock.observe(jumped);
        clock.trust();
        assert!(clock.fence().is_some());
        assert_eq!(clock.mark().wall, SysTime(LONG_AGO + 2 * HOUR));
    }

    #[test]
    fn a_store_without_a_past_is_in_no_doubt() {
        let mut clock = clock();
        clock.now(at(LONG_AGO)).unwrap();
        assert_eq!(clock.doubt(), None);
    }

    #[test]
    fn a_doubt_ends_after_a_day_without_a_step() {
        let begin = LONG_AGO + 200 * HOUR;
        let mut clock = later_incarnation();
        for hour in [0, 10, 23] {
            clock.close(at(begin + hour * HOUR));
            assert!(clock.doubt().is_some());
        }
        // A step, and back: the day begins again.
        let reading = at(begin + 23 * HOUR);
        clock.observe(ClockSample { wall: SysTime(begin + 99 * HOUR), ..reading });
        clock.observe(reading);
        clock.close(at(begin + 47 * HOUR - 1));
        assert!(clock.doubt().is_some());
        assert_eq!(clock.mark().wall, SysTime(LONG_AGO));
        clock.close(at(begin + 47 * HOUR));
        assert_eq!(clock.doubt(), None);
        assert_eq!(clock.mark().wall, SysTime(begin + 47 * HOUR));
    }

    /// An incarnation that begins behind is checked when its clock comes back.
    #[test]
    fn a_clock_that_comes_back_to_where_it_was_wrong_is_in_doubt() {
        let mark = WallMark { wall: SysTime(LONG_AGO), is_confirmed: false };
        let wrong = LONG_AGO + 200 * HOUR;
        let mut clock = Clock::resume(stamp(wrong, 0), mark, ClockOptions::default());
        let steady = Duration::from_secs(1);
        clock.observe(ClockSample { wall: SysTime(LONG_AGO + 5), steady });
        assert!(matches!(clock.fence(), Some(ClockFence::Behind { .. })));
        assert_eq!(clock.mark(), mark, "nothing is known better");
        clock.observe(ClockSample { wall: SysTime(wrong), steady });
        assert_eq!((clock.fence(), clock.doubt().is_some()), (None, true));
    }

    #[test]
    fn stamps_of_a_clock_that_is_confirmed_behind_them_go_on_above_themselves() {
        let mut clock = clock();
        let last = clock.now(at(10 * HOUR)).unwrap();
        let right = |ms: u64| ClockSample {
            wall: SysTime(2 * HOUR + ms),
            steady: Duration::from_millis(10 * HOUR + ms),
        };
        assert!(matches!(clock.now(right(0)), Err(ClockError::Fenced(ClockFence::Behind { .. }))));
        clock.confirm(right(1));
        assert_eq!(clock.close(right(1)), last, "a promise is the last stamp issued");
        assert_eq!(clock.now(right(2)).unwrap(), last.next());
        assert_eq!(clock.ahead_of(right(2).wall), Duration::from_millis(8 * HOUR - 2));
        assert_eq!(clock.mark(), WallMark { wall: right(2).wall, is_confirmed: true });
        // A step back from there is fenced as usual.
        let back = ClockSample { wall: SysTime(2 * HOUR + 2 - 501), ..right(3) };
        assert!(matches!(
            clock.now(back),
            Err(ClockError::Fenced(ClockFence::Behind { behind_ms: 501 }))
        ));
        assert!(clock.now(right(4)).is_ok());
        // Once the wall clock has caught up, everything is as before.
        assert_eq!(clock.now(right(8 * HOUR + 5)).unwrap(), stamp(10 * HOUR + 5, 0));
        let behind = ClockSample { wall: SysTime(9 * HOUR), ..right(8 * HOUR + 6) };
        assert!(matches!(clock.now(behind), Err(ClockError::Fenced(ClockFence::Behind { .. }))));
    }

    #[test]
    fn the_next_incarnation_knows_that_its_stamps_run_ahead_of_a_clock_that_was_confirmed() {
        let floor = stamp(LONG_AGO + 200 * HOUR, 7);
        let mark = WallMark { wall: SysTime(LONG_AGO), is_confirmed: true };
        let life = || {
            let mut clock = Clock::resume(floor, mark, ClockOptions::default());
            clock.extend_bound(Hlc::MAX);
            clock
        };
        let mut clock = life();
        assert_eq!(clock.now(at(LONG_AGO + 10)).unwrap(), floor.next());
        assert_eq!(clock.doubt(), None);
        let mut clock = life();
        assert_eq!(clock.now(at(LONG_AGO + 2 * HOUR)).unwrap(), floor.next());
        assert!(clock.doubt().is_some(), "ahead of the mark, although behind the stamps");
        let mut clock = life();
        assert!(clock.now(at(LONG_AGO - 501)).is_err(), "behind the mark");
        // A clock that was never confirmed in the last incarnation is fenced.
        let mark = WallMark { is_confirmed: false, ..mark };
        let mut clock = Clock::resume(floor, mark, ClockOptions::default());
        clock.observe(at(LONG_AGO + 10));
        assert!(matches!(clock.fence(), Some(ClockFence::Behind { .. })));
    }

    /// A healthy clock sets the bound no further ahead than the span and the largest skew.
    #[test]
    fn only_a_bound_that_no_healthy_clock_puts_there_says_that_stamps_ran_ahead() {
        let mark = WallMark { wall: SysTime(LONG_AGO), is_confirmed: true };
        let fence = |floor| {
            let mut clock = Clock::resume(stamp(floor, 0), mark, ClockOptions::default());
            clock.observe(at(LONG_AGO));
            clock.fence()
        };
        assert_eq!(fence(LONG_AGO + 1500), Some(ClockFence::Behind { behind_ms: 1500 }));
        assert_eq!(fence(LONG_AGO + 1501), None);
    }

    /// Stamps that a peer dragged ahead are no reason to trust the wall clock alone.
    #[test]
    fn a_clock_that_nobody_confirmed_is_held_against_its_stamps() {
        let mut clock = clock();
        clock.receive(stamp(1400, 0), at(1000)).unwrap();
        clock.now(at(1001)).unwrap();
        let behind = ClockSample { wall: SysTime(850), ..at(1002) };
        assert!(matches!(
            clock.now(behind),
            Err(ClockError::Fenced(ClockFence::Behind { behind_ms: 550 }))
        ));
    }

    #[test]
    fn an_incarnation_that_knows_only_its_bound_is_in_doubt_far_ahead_of_that() {
        let doubt = |ms| {
            let mut clock = Clock::new(stamp(LONG_AGO, 0), ClockOptions::default());
            clock.observe(at(ms));
            clock.doubt()
        };
        assert_eq!(doubt(LONG_AGO + HOUR), None);
        assert_eq!(doubt(LONG_AGO + 2 * HOUR), Some(ClockDoubt { ahead_ms: 2 * HOUR }));
    }

    #[test]
    fn what_is_wrong_with_a_clock_says_what_to_do() {
        let words = [
            ClockFence::Behind { behind_ms: 7 }.to_string(),
            ClockFence::Jumped { ahead_ms: 7 }.to_string(),
            ClockDoubt { ahead_ms: 7 }.to_string(),
        ];
        for text in words {
            assert!(text.contains("7 ms") && text.contains("freezeframe clock confirm"), "{text}");
        }
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
                let reading = ClockSample { wall: SysTime(ms), steady: Duration::from_secs(1) };
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
                let reading = ClockSample { wall: SysTime(ms), steady: Duration::from_secs(1) };
                match step {
                    0 => promised = promised.max(clock.close(reading)),
                    1 => if let Ok(stamp) = clock.now(reading) {
                        prop_assert!(stamp > promised);
                        promised = stamp;
                    },
                    2 => if let Some(bound) = clock.bound_due() { clock.extend_bound(bound) },
                    _ => {
                        let bound = clock.bound();
                        clock = Clock::new(bound, options);
                    }
                }
            }
        }
    }
}
