//! What is left of a wall clock's trust when a process ends, and the doubt in which the next one begins.
//!
//! A wall clock that shows much later than it did when the last process ended may be right, after a long
//! downtime; or it is wrong, and whatever goes by age would be gone. Nobody can tell from inside.

use std::fmt;

use crate::{Hlc, SysTime};

/// How far the wall clock was known to be right: kept on disk beside the bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WallMark {
    /// The latest reading of the wall clock that was confirmed.
    pub wall: SysTime,
    /// Whether the clock was still confirmed when this was written. If not, later readings were in doubt.
    pub is_confirmed: bool,
}

impl WallMark {
    /// The mark of a process whose wall clock stood at its bound.
    pub fn at(bound: Hlc) -> WallMark {
        WallMark { wall: bound.time(), is_confirmed: true }
    }
}

/// The wall clock may be wrong: nobody has confirmed it since the process started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockDoubt {
    /// By how many milliseconds it was ahead of the last time that was confirmed.
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
