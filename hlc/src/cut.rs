//! An exclusive bound on history.

use serde::{Deserialize, Serialize};

use crate::{Hlc, SysTime};

/// An exclusive upper bound on history: the cut admits exactly the events stamped below it.
///
/// It is the bound of Kafka's `ListOffsets(t)`: the first offset *not* in the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cut(Hlc);

impl Cut {
    /// Admits every event that has a stamp below `Hlc::MAX`.
    pub const ALL: Cut = Cut(Hlc::MAX);

    /// Admits the events of every instant before `t`, and none of `t` itself.
    pub fn before(t: SysTime) -> Cut {
        Cut(Hlc::at(t))
    }

    /// Admits `last` and all that came before it.
    pub fn through(last: Hlc) -> Cut {
        Cut(last.next())
    }

    /// Admits exactly the events stamped below `bound`.
    pub fn below(bound: Hlc) -> Cut {
        Cut(bound)
    }

    /// Returns true if a reader at this cut sees an event stamped `at`.
    pub fn admits(self, at: Hlc) -> bool {
        at < self.0
    }

    /// The least stamp that this cut does not admit.
    pub fn bound(self) -> Hlc {
        self.0
    }

    /// Returns true if nothing can enter this cut any more, given the frontier: every event that
    /// will ever appear has a stamp above it.
    pub fn is_closed_by(self, frontier: Hlc) -> bool {
        self.0 <= frontier.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_before_t_leaves_out_everything_stamped_at_t() {
        let cut = Cut::before(SysTime(100));
        assert!(cut.admits(Hlc::new(SysTime(99), u16::MAX)));
        assert!(!cut.admits(Hlc::at(SysTime(100))));
    }

    #[test]
    fn a_cut_through_an_event_admits_it_and_nothing_later() {
        let last = Hlc::new(SysTime(100), u16::MAX);
        assert!(Cut::through(last).admits(last));
        assert!(!Cut::through(last).admits(last.next()));
    }

    #[test]
    fn a_cut_is_closed_once_the_next_possible_stamp_lies_outside_it() {
        let cut = Cut::before(SysTime(100));
        assert!(cut.is_closed_by(Hlc::at(SysTime(100)).previous()));
        assert!(!cut.is_closed_by(Hlc::at(SysTime(100)).previous().previous()));
    }
}
