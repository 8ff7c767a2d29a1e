//! The records of a partition that a reader selected.
//!
//! Batch boundaries differ from the boundaries of a request. The log start may lie inside a batch
//! (DeleteRecords), a fetch begins with the batch that holds its offset, and user times come in any
//! order. So the selection decides record by record.

use std::ops::Range;

use hlc::{Moment, MomentSelector, UserTime};

/// The records of one partition that belong to a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSelection {
    pub offsets: Range<i64>,
    /// The range of user times: the exact set, wherever in the log its records stand.
    pub user: Option<Range<UserTime>>,
}

impl RecordSelection {
    /// Every record of a partition.
    pub fn all() -> RecordSelection {
        RecordSelection { offsets: 0..i64::MAX, user: None }
    }

    /// The records from `start` up to `end`, exclusive.
    pub fn between(start: i64, end: i64) -> RecordSelection {
        RecordSelection { offsets: start..end, user: None }
    }

    /// Restricts the selection to records whose user time is in `user`.
    #[must_use]
    pub fn and_user(self, user: Option<Range<UserTime>>) -> RecordSelection {
        RecordSelection { user, ..self }
    }

    /// The range of user times that a moment selects; `None` if it is of system time.
    pub fn user_times(ask: &MomentSelector) -> Option<Range<UserTime>> {
        let before = |moment: &Moment| match moment {
            Moment::User { before, .. } => Some(*before),
            Moment::Sys(_) => None,
        };
        match ask {
            MomentSelector::At(moment) => Some(UserTime(i64::MIN)..before(moment)?),
            MomentSelector::Window(first, second) => Some(before(first)?..before(second)?),
        }
    }

    /// True if a record is selected.
    pub fn admits(&self, offset: i64, user_time: UserTime) -> bool {
        self.admits_optional(offset, Some(user_time))
    }

    /// True if a record is selected that may have no user time. A record without one belongs to no
    /// exact set.
    pub fn admits_optional(&self, offset: i64, user_time: Option<UserTime>) -> bool {
        let is_in = |user: &Range<UserTime>| user_time.is_some_and(|time| user.contains(&time));
        self.offsets.contains(&offset) && self.user.as_ref().is_none_or(is_in)
    }

    /// True if a batch with these offsets can hold a selected record.
    pub fn overlaps(&self, first_offset: i64, last_offset: i64) -> bool {
        first_offset < self.offsets.end && last_offset >= self.offsets.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_where_the_ask_puts_them() {
        let selection = RecordSelection::between(5, 7);
        let shown: Vec<_> = (3..9).filter(|o| selection.admits(*o, UserTime(0))).collect();
        assert_eq!(shown, [5, 6]);
        assert!(selection.overlaps(0, 5) && selection.overlaps(6, 9));
        assert!(!selection.overlaps(0, 4) && !selection.overlaps(7, 9));
    }

    #[test]
    fn user_times_are_bounded_by_the_ask_and_system_times_do_not_matter() {
        let times = |text: &str| RecordSelection::user_times(&text.parse().unwrap());
        assert_eq!(times("u5"), Some(UserTime(i64::MIN)..UserTime(5)));
        assert_eq!(times("u5@s9"), times("u5"));
        assert_eq!(times("u5..u7"), Some(UserTime(5)..UserTime(7)));
        assert_eq!(times("s5"), None);
        assert_eq!(times("s5..s7"), None);
    }

    #[test]
    fn a_record_without_a_time_is_before_every_moment_and_in_no_window() {
        let none = UserTime(-1);
        let select = |text: &str| {
            RecordSelection::all().and_user(RecordSelection::user_times(&text.parse().unwrap()))
        };
        assert!(select("u0").admits(0, none));
        assert!(!select("u0..u5").admits(0, none));
    }
}
