//! The record that one process leaves about its wall clock, and the doubt in which the next one may
//! begin.
//!
//! A wall clock that is much later than at the end of the last process may be right, after a long
//! downtime. Or it is wrong, and then retention by age would remove everything. The process cannot
//! tell which.

use std::fmt;

use crate::{Hlc, SysTime};

/// The time up to which the wall clock was known to be right: persisted with the bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WallMark {
    /// The latest confirmed reading of the wall clock.
    pub wall: SysTime,
    /// True if the clock was still confirmed when this was written. If not, later readings were in
    /// doubt.
    pub is_confirmed: bool,
}

impl WallMark {
    /// The mark of a process whose wall clock was at its bound.
    pub fn at(bound: Hlc) -> WallMark {
        WallMark { wall: bound.time(), is_confirmed: true }
    }
}

/// The wall clock may be wrong: it has not been confirmed since the process started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockDoubt {
    /// The lead of the wall clock over the last confirmed time, in milliseconds.
    pub ahead_ms: u64,
}

impl fmt::Display for ClockDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the time is not confirmed: at the start the wall clock was {} ms ahead of the last time that was; retention by age is suspended until it is. If the clock is right, confirm it with freezeframe clock confirm, or POST /clock/confirm on the admin port; else set it right",
            self.ahead_ms
        )
    }
}
