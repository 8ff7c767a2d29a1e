//! Time: stamps, the two axes, cuts, moments and the clock.
//!
//! This crate defines the hybrid logical clock stamp, how a clock issues and merges stamps, what a
//! cut of history admits, and how a person or a topic name spells a moment. It does no I/O and has
//! no threads: readings of the wall clock are arguments, and the bound that must be on disk before
//! a stamp may be issued is a number that the caller persists ([`Clock::extend_bound`]).
//!
//! `docs/TIME.md` says what each read promises; [`clock`] upholds the clock condition and the
//! closed promise.

#![warn(missing_docs)]

pub mod clock;
mod cut;
mod discipline;
mod doubt;
mod moment;
mod reference;
mod relative;
mod stamp;
mod wall;

pub use clock::{Clock, ClockError, ClockFence, ClockOptions};
pub use cut::Cut;
pub use discipline::ClockDiscipline;
pub use doubt::{ClockDoubt, WallMark};
pub use moment::{
    Moment, MomentError, MomentSelector, TOPIC_MARK, split_moment_topic, split_topic_mark,
};
pub use reference::{MomentReference, ReferenceError};
pub use relative::parse_selector;
pub use stamp::{Hlc, SysTime, UserTime};
pub use wall::{ClockSample, ManualClock, OsClock, WallClock};
