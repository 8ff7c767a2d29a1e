//! The two kinds of time, and the stamp.
//!
//! *User time* is what the record says about itself; a client chose it, and it may be wrong.
//! *System time* is when this service accepted the record. They are never compared with each other,
//! so they are different types.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The time at which the record says it happened: milliseconds since the Unix epoch, chosen by the
/// client.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
pub struct UserTime(pub i64);

/// A reading of this service's wall clock: milliseconds since the Unix epoch.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
pub struct SysTime(pub u64);

impl SysTime {
    /// The last millisecond that a stamp can hold: 48 bits, in the year 10889.
    pub const MAX: SysTime = SysTime((1 << 48) - 1);

    /// The time `by` later, limited to [`SysTime::MAX`].
    pub fn saturating_add(self, by: Duration) -> SysTime {
        SysTime(self.0.saturating_add(millis(by)))
    }

    /// The time `by` earlier, or 1970.
    pub fn saturating_sub(self, by: Duration) -> SysTime {
        SysTime(self.0.saturating_sub(millis(by)))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A hybrid logical clock stamp (Kulkarni et al. 2014): 48 bits of milliseconds since 1970, then 16
/// bits of logical counter, compared as one unsigned integer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
pub struct Hlc(u64);

impl Hlc {
    /// Below every stamp that a clock issues.
    pub const ZERO: Hlc = Hlc(0);
    /// Not below any stamp.
    pub const MAX: Hlc = Hlc(u64::MAX);

    /// The first stamp of the millisecond `t`. Times above [`SysTime::MAX`] are limited to it.
    pub fn at(t: SysTime) -> Hlc {
        Hlc(t.0.min(SysTime::MAX.0) << 16)
    }

    /// The stamp `(ms, logical)`.
    pub fn new(t: SysTime, logical: u16) -> Hlc {
        Hlc(Hlc::at(t).0 | u64::from(logical))
    }

    /// A stamp from its 64 bits, as on disk and on the wire.
    pub const fn from_bits(bits: u64) -> Hlc {
        Hlc(bits)
    }

    /// Its 64 bits, as on disk and on the wire.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The physical part.
    pub fn time(self) -> SysTime {
        SysTime(self.0 >> 16)
    }

    /// The counter that orders events within one millisecond.
    pub fn logical(self) -> u16 {
        self.0 as u16
    }

    /// The next stamp in order: a full counter carries into the milliseconds.
    #[must_use]
    pub fn next(self) -> Hlc {
        Hlc(self.0.saturating_add(1))
    }

    /// The stamp before this one.
    #[must_use]
    pub fn previous(self) -> Hlc {
        Hlc(self.0.saturating_sub(1))
    }
}

/// As a moment is spelled: what was accepted before the stamp.
impl fmt::Display for Hlc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sh{:016x}", self.0)
    }
}

/// As its time and its counter, which a person can compare.
impl fmt::Debug for Hlc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.time().0, self.logical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_any_length_lead_to_a_time() {
        let (second, noon) = (Duration::from_secs(1), SysTime(43_200_000));
        assert_eq!(noon.saturating_add(second), SysTime(43_201_000));
        assert_eq!(noon.saturating_sub(second), SysTime(43_199_000));
        assert_eq!(noon.saturating_add(Duration::MAX), SysTime(u64::MAX));
        assert_eq!(noon.saturating_sub(Duration::MAX), SysTime(0));
    }

    #[test]
    fn a_full_counter_carries_into_the_milliseconds() {
        assert_eq!(Hlc::new(SysTime(7), u16::MAX).next(), Hlc::at(SysTime(8)));
    }

    #[test]
    fn a_kafka_time_embeds_as_itself_shifted_by_sixteen_bits() {
        assert_eq!(Hlc::at(SysTime(1_795_252_948_259)).bits(), 1_795_252_948_259 << 16);
    }

    #[test]
    fn a_stamp_is_shown_as_the_moment_before_it() {
        let stamp = Hlc::new(SysTime(7), 3);
        assert_eq!(stamp.to_string(), "sh0000000000070003");
        assert_eq!(stamp.to_string().parse(), Ok(crate::Moment::Sys(crate::Cut::below(stamp))));
        assert_eq!(format!("{stamp:?}"), "7.3");
    }

    #[test]
    fn the_last_time_fills_its_bits() {
        assert_eq!(Hlc::new(SysTime::MAX, u16::MAX), Hlc::MAX);
        assert_eq!(SysTime::MAX.0.count_ones(), 48);
    }

    #[test]
    fn order_is_by_time_and_then_by_counter() {
        let sorted =
            [(1, 0), (1, 1), (1, u16::MAX), (2, 0)].map(|(ms, l)| Hlc::new(SysTime(ms), l));
        assert!(sorted.is_sorted_by(|a, b| a < b));
    }
}
