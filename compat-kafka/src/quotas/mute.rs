//! The time for which a connection is not read from, because its client has used more than it may
//! (KIP-219).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct Mute {
    begun: Instant,
    /// The end, in milliseconds since the beginning.
    end_ms: AtomicU64,
}

impl Mute {
    pub(crate) fn new() -> Mute {
        Mute { begun: Instant::now(), end_ms: AtomicU64::new(0) }
    }

    /// Nothing is read for so many milliseconds from now on, or longer if that was so before.
    pub(crate) fn extend(&self, ms: u64) {
        // A millisecond that has begun counts: it ends not before it should.
        let now = self.begun.elapsed().as_millis() as u64 + 1;
        self.end_ms.fetch_max(now.saturating_add(ms), Ordering::Relaxed);
    }

    /// The end of the time, unless it is over.
    pub(crate) fn end(&self) -> Option<Instant> {
        let end_ms = self.end_ms.load(Ordering::Relaxed);
        if end_ms == 0 {
            return None;
        }
        let end = self.begun.checked_add(Duration::from_millis(end_ms))?;
        (end > Instant::now()).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_longest_counts_and_it_ends() {
        let mute = Mute::new();
        let begun = Instant::now();
        assert_eq!(mute.end(), None);
        mute.extend(500);
        mute.extend(100);
        assert_eq!(mute.end(), Some(begun + Duration::from_millis(501)));
        tokio::time::sleep(Duration::from_millis(300)).await;
        mute.extend(100);
        assert_eq!(mute.end(), Some(begun + Duration::from_millis(501)));
        mute.extend(1000);
        assert_eq!(mute.end(), Some(begun + Duration::from_millis(1301)));
        tokio::time::sleep(Duration::from_millis(1001)).await;
        assert_eq!(mute.end(), None);
        mute.extend(u64::MAX);
        assert!(mute.end().is_none_or(|end| end > Instant::now()));
    }
}
