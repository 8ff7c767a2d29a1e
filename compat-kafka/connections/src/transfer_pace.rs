//! The slowest pace of a request or a response.
//!
//! A transfer begins with a patience of [`TransferLimits::stall_max`]. Waiting for the client uses
//! it up. Each byte that moves restores the time that a byte takes at [`TransferLimits::rate_min`].
//! The patience never exceeds its initial value. So
//!
//! - a transfer of `n` bytes takes at most `stall_max + n / rate_min` of waiting for the client;
//! - a client that stops or trickles is ended about `stall_max` later, however fast it was before;
//! - a client that keeps to the rate is never ended, and neither is one whose pauses are shorter
//!   than `stall_max`.
//!
//! Time in which the server makes the client wait does not count.

use std::time::Duration;

use tokio::time::Instant;

/// The slowest pace at which a client may send a request or read a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferLimits {
    /// The longest pause.
    pub stall_max: Duration,
    /// The lowest rate in bytes per second, not counting pauses.
    pub rate_min: u32,
}

impl Default for TransferLimits {
    fn default() -> TransferLimits {
        TransferLimits { stall_max: Duration::from_secs(60), rate_min: 4 << 10 }
    }
}

impl TransferLimits {
    /// The longest time for which a transfer of `bytes` may wait for its client.
    pub fn wait_max(&self, bytes: u64) -> Duration {
        self.stall_max + Duration::from_secs(bytes / u64::from(self.rate_min.max(1)))
    }
}

/// The patience that is left for one transfer.
#[derive(Debug)]
pub struct TransferPace {
    limits: TransferLimits,
    patience: Duration,
    /// The bytes that moved since `patience` was computed.
    moved: usize,
    waiting_since: Option<Instant>,
}

impl TransferPace {
    pub fn new(limits: TransferLimits) -> TransferPace {
        TransferPace { limits, patience: limits.stall_max, moved: 0, waiting_since: None }
    }

    /// Counts bytes that moved.
    pub fn advance(&mut self, bytes: usize) {
        self.moved += bytes;
    }

    /// Waits for the client from now on, or still. Returns the deadline.
    pub fn wait(&mut self, now: Instant) -> Instant {
        self.charge(now);
        self.waiting_since = Some(now);
        now + self.patience
    }

    /// True if it waits for the client.
    pub fn is_waiting(&self) -> bool {
        self.waiting_since.is_some()
    }

    /// Does not wait for the client from now on.
    pub fn pause(&mut self, now: Instant) {
        self.charge(now);
        self.waiting_since = None;
    }

    fn charge(&mut self, now: Instant) {
        if let Some(since) = self.waiting_since {
            self.patience = self.patience.saturating_sub(now - since);
        }
        let restored = self.moved as f64 / f64::from(self.limits.rate_min.max(1));
        self.moved = 0;
        self.patience += Duration::try_from_secs_f64(restored).unwrap_or(self.limits.stall_max);
        self.patience = self.patience.min(self.limits.stall_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: TransferLimits =
        TransferLimits { stall_max: Duration::from_secs(30), rate_min: 1000 };

    /// After how many seconds a client is ended that moves `bytes` every `interval` seconds.
    fn ended_after(bytes: usize, interval: u64, seconds: u64) -> Option<u64> {
        let started = Instant::now();
        let mut pace = TransferPace::new(LIMITS);
        pace.advance(1 << 30);
        for second in (0..seconds).step_by(interval as usize) {
            let now = started + Duration::from_secs(second);
            let next = now + Duration::from_secs(interval);
            let deadline = pace.wait(now);
            if deadline < next {
                return Some((deadline - started).as_secs());
            }
            pace.advance(bytes);
        }
        None
    }

    #[test]
    fn a_client_that_trickles_is_ended_however_much_it_sent_before() {
        assert_eq!(ended_after(0, 10, 3600), Some(30));
        assert_eq!(ended_after(1, 10, 3600), Some(30));
        assert_eq!(ended_after(500, 1, 3600), Some(59), "half of the rate: twice as long");
    }

    #[test]
    fn a_client_that_keeps_to_the_rate_is_not_ended() {
        assert_eq!(ended_after(1000, 1, 3600), None);
        assert_eq!(ended_after(25_000, 25, 3600), None, "in one piece every 25 s");
    }

    #[test]
    fn a_transfer_is_over_by_the_time_that_its_length_allows() {
        let started = Instant::now();
        let mut pace = TransferPace::new(LIMITS);
        let (mut now, mut sent) = (started, 0);
        // At the lowest rate: each byte at the last possible moment.
        while sent < 100_000 {
            now = pace.wait(now);
            pace.advance(100);
            sent += 100;
        }
        assert!(now - started <= Duration::from_secs(30 + 100), "{:?}", now - started);
    }

    #[test]
    fn what_the_server_makes_a_client_wait_does_not_count() {
        let started = Instant::now();
        let mut pace = TransferPace::new(LIMITS);
        let at = |seconds| started + Duration::from_secs(seconds);
        assert_eq!(pace.wait(at(0)), at(30));
        pace.pause(at(10));
        assert_eq!(pace.wait(at(1000)), at(1020));
    }
}
