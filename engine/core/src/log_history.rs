//! Checks that a log's history reaches back to a moment, from its horizon alone.

use hlc::{Cut, Hlc, UserTime};
use storage::Offset;
use storage::manifest::LogHorizon;

/// Returns true if a log's history reaches back to `cut`: the cut admits everything that was
/// removed, and everything that superseded what compaction dropped.
pub fn is_retained(horizon: &LogHorizon, cut: Cut) -> bool {
    let given_up = horizon.start > Offset(0) && cut.bound() <= horizon.lost_to;
    !given_up && is_uncompacted(horizon, Some(cut))
}

/// Returns true if a prefix by user time that ends at `end` still reads as before.
pub fn is_retained_by_user_time(
    horizon: &LogHorizon,
    before: UserTime,
    known: Cut,
    end: Offset,
) -> bool {
    end >= horizon.start
        && is_uncompacted(horizon, Some(known))
        && is_user_time_retained(horizon, before)
}

/// Returns true if the first record at or after a user time can still be found.
///
/// A removed record with that time or a later one may have been the first such record. Then the
/// prefix ended within the removed range, and the first remaining record would be another answer
/// than before.
pub fn is_user_time_retained(horizon: &LogHorizon, time: UserTime) -> bool {
    let is_whole = horizon.start == Offset(0) && horizon.compacted_to == Hlc::ZERO;
    is_whole || time > horizon.released_user_time_max()
}

/// Returns true if compaction dropped nothing that a reader in `known` could see.
pub fn is_uncompacted(horizon: &LogHorizon, known: Option<Cut>) -> bool {
    known.is_none_or(|cut| cut.bound() >= horizon.compacted_to)
}

/// The bound of the earliest cut to which a log's history reaches back.
pub fn earliest_bound(horizon: &LogHorizon) -> Hlc {
    let given_up = match horizon.start {
        Offset(0) => Hlc::ZERO,
        _ => horizon.lost_to.next(),
    };
    given_up.max(horizon.compacted_to)
}
