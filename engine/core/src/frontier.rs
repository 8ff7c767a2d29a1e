//! The frontier, and waiting until it has closed a moment.

use std::time::Duration;

use hlc::{ClockError, Cut, Hlc};

use crate::engine_core::EngineCore;
use crate::seek_error::SeekError;

/// The action if the requested moment is not past yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Wait for it, if it is not further ahead than this.
    Wait(Duration),
    /// Refuse, and return the frontier.
    Refuse,
    /// Answer at the frontier instead, and say so in the answer.
    AtFrontier,
}

/// The longest wait of an answer until a later bound of the clock is on the disk.
const BOUND_RENEWAL_WAIT_MAX: Duration = Duration::from_secs(1);
/// The longest wait of an answer for appends and events in flight.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(30);

impl EngineCore {
    /// The frontier: every event that will ever appear has a stamp above it. It alone decides what
    /// is closed to readers.
    pub fn frontier(&self) -> Hlc {
        self.store.timekeeper().frontier()
    }

    /// The frontier as of now. If nobody has read it for a while, it is at the clock's bound until
    /// a later bound is on the disk; this call waits for that.
    pub async fn present_frontier(&self) -> Hlc {
        let timekeeper = self.store.timekeeper();
        timekeeper.frontier();
        if !timekeeper.is_held_by_bound() {
            // Read again, because a later bound may have been written in between.
            return timekeeper.frontier();
        }
        let deadline = tokio::time::Instant::now() + BOUND_RENEWAL_WAIT_MAX;
        loop {
            let advanced = self.shared.frontier_advanced.notified();
            if !timekeeper.is_renewing()
                || tokio::time::timeout_at(deadline, advanced).await.is_err()
            {
                return timekeeper.frontier();
            }
        }
    }

    /// A stamp at or above that of all that is visible. A message to a client carries it.
    pub fn last_stamp(&self) -> Hlc {
        self.store.timekeeper().last()
    }

    /// Merges a stamp that came with a message: all that happens here from now on has a later one.
    ///
    /// # Errors
    /// The stamp is too far ahead, or the clock cannot be trusted.
    pub async fn receive_stamp(&self, peer: Hlc) -> Result<(), ClockError> {
        let timekeeper = self.store.timekeeper();
        let deadline = tokio::time::Instant::now() + BOUND_RENEWAL_WAIT_MAX;
        loop {
            let advanced = self.shared.frontier_advanced.notified();
            match timekeeper.receive(peer) {
                Err(error @ ClockError::BoundReached { .. }) => {
                    if tokio::time::timeout_at(deadline, advanced).await.is_err() {
                        return Err(error);
                    }
                }
                received => return received,
            }
        }
    }

    /// Waits until nothing can enter `cut` any more. Returns the closed cut, which differs from
    /// `cut` only for [`WaitPolicy::AtFrontier`], and the frontier.
    ///
    /// # Errors
    /// [`SeekError::NotYet`], [`SeekError::FarFuture`].
    pub async fn wait_until_closed(
        &self,
        cut: Cut,
        when: WaitPolicy,
    ) -> Result<(Cut, Hlc), SeekError> {
        let timekeeper = self.store.timekeeper();
        if !cut.is_closed_by(self.frontier()) {
            self.present_frontier().await;
        }
        let deadline = match when {
            WaitPolicy::Wait(patience) => {
                // A wall clock that was set back does not make a past moment a future one.
                let frontier = timekeeper.frontier();
                if !cut.is_closed_by(frontier) && timekeeper.time_until(cut) > patience {
                    return Err(SeekError::FarFuture { cut, frontier });
                }
                patience.max(Duration::from_secs(1))
            }
            // Only to let appends in flight complete.
            _ => CLOSE_WAIT_MAX,
        };
        let deadline = tokio::time::Instant::now() + deadline;
        loop {
            let advanced = self.shared.frontier_advanced.notified();
            let frontier = self.frontier();
            let (cut, closed) = match when {
                WaitPolicy::AtFrontier if !cut.is_closed_by(frontier) => {
                    (Cut::through(frontier), true)
                }
                _ => (cut, cut.is_closed_by(frontier)),
            };
            if closed && self.has_applied(cut)? {
                return Ok((cut, frontier));
            }
            let ahead = timekeeper.time_until(cut);
            let not_yet =
                || SeekError::NotYet { cut, frontier, retry_ms: (ahead.as_millis() as u64).max(1) };
            if when == WaitPolicy::Refuse && !closed {
                return Err(not_yet());
            }
            // The wall clock closes the cut, an append in flight ends, or the clock's bound is
            // renewed. The last two notify.
            let pause = ahead.clamp(Duration::from_millis(1), Duration::from_millis(500));
            if tokio::time::Instant::now() >= deadline {
                return Err(not_yet());
            }
            let _ = tokio::time::timeout(pause, advanced).await;
        }
    }
}
