//! The five states of a group, and the ways between them.
//!
//! ```text
//! Empty ⇄ PreparingRebalance → CompletingRebalance → Stable
//!               ↑                      ↓                ↓
//!               └──────────────────────┴────────────────┘        any → Dead
//! ```

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClassicGroupState {
    /// No members. There may be offsets, and issued member ids.
    Empty,
    /// Members must join again, and their joins wait for each other.
    PreparingRebalance,
    /// All know the new generation. The leader's assignment is awaited.
    CompletingRebalance,
    /// Every member has an assignment.
    Stable,
    /// Deleted, or closed with the service.
    Dead,
}

impl ClassicGroupState {
    /// The name that Kafka's tools show and filter by.
    pub fn name(self) -> &'static str {
        match self {
            ClassicGroupState::Empty => "Empty",
            ClassicGroupState::PreparingRebalance => "PreparingRebalance",
            ClassicGroupState::CompletingRebalance => "CompletingRebalance",
            ClassicGroupState::Stable => "Stable",
            ClassicGroupState::Dead => "Dead",
        }
    }

    /// True if a rebalance may begin in this state: not if one already waits for joins.
    pub(super) fn may_rebalance(self) -> bool {
        matches!(
            self,
            ClassicGroupState::Empty
                | ClassicGroupState::CompletingRebalance
                | ClassicGroupState::Stable
        )
    }

    pub(super) fn may_become(self, next: ClassicGroupState) -> bool {
        use ClassicGroupState::*;
        match next {
            Empty => self == PreparingRebalance,
            PreparingRebalance => self.may_rebalance(),
            CompletingRebalance => self == PreparingRebalance,
            Stable => self == CompletingRebalance,
            Dead => true,
        }
    }
}

impl fmt::Display for ClassicGroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
