//! Saying that the disk refuses writes: not once for each of them, for there may be thousands in a
//! second, and what says so may stand on the same disk.

use std::time::Duration;

/// How long nothing more is said.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// What was refused since the disk last took a write.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    count: u64,
    said: Option<Duration>,
}

impl Refusals {
    /// Takes note of a write that was refused, for `why`, at the steady time `now`.
    pub(crate) fn refused(&mut self, why: &str, now: Duration) {
        self.count += 1;
        if self.said.is_none_or(|said| now.saturating_sub(said) >= SAY_EVERY) {
            self.said = Some(now);
            tracing::error!(
                error = why,
                refused = self.count,
                "the disk refused a write; it was taken back whole"
            );
        }
    }

    /// Takes note of a write that was not. A full disk may still take one now and then.
    pub(crate) fn taken(&mut self, now: impl FnOnce() -> Duration) {
        if self.said.is_some_and(|said| now().saturating_sub(said) >= SAY_EVERY) {
            tracing::info!(refused = self.count, "the disk takes writes again");
            *self = Refusals::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_refusals_are_said_once_a_minute_and_counted() {
        let mut refusals = Refusals::default();
        let at = Duration::from_secs;
        for _ in 0..1000 {
            refusals.refused("full", at(5));
        }
        assert_eq!((refusals.count, refusals.said), (1000, Some(at(5))));
        refusals.taken(|| at(64));
        refusals.refused("full", at(65));
        assert_eq!((refusals.count, refusals.said), (1001, Some(at(65))));
        refusals.taken(|| at(125));
        assert_eq!((refusals.count, refusals.said), (0, None));
    }
}
