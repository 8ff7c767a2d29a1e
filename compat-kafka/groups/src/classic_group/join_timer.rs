//! The time that a group waits for its members to join.

use std::time::Duration;

/// The end of the group's wait for joins.
#[derive(Debug, Clone)]
pub(super) struct JoinTimer {
    pub(super) at: Duration,
    pub(super) initial: Option<InitialDelay>,
}

/// An empty group waits for its first members in steps, while more keep joining.
#[derive(Debug, Clone)]
pub(super) struct InitialDelay {
    pub(super) step: Duration,
    pub(super) remaining: Duration,
    pub(super) has_new_member: bool,
}

impl JoinTimer {
    pub(super) fn note_new_member(&mut self) {
        if let Some(initial) = &mut self.initial {
            initial.has_new_member = true;
        }
    }
}

impl InitialDelay {
    /// The next step, if another is due.
    pub(super) fn extended(self, step_max: Duration) -> Option<InitialDelay> {
        let goes_on = self.has_new_member && !self.remaining.is_zero();
        goes_on.then(|| InitialDelay {
            step: step_max.min(self.remaining),
            remaining: self.remaining.saturating_sub(self.step),
            has_new_member: false,
        })
    }
}
