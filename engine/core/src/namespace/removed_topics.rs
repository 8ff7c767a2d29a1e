//! The time spans in which there were topics that are now removed.
//!
//! The span from its creation to its deletion is kept of a removed topic. A cut within the span may
//! have held the topic, so the cut's list of topics is unknown. Overlapping spans are joined.
//! Beyond [`SPANS_MAX`] spans, the nearest ones are joined too, including the gap between them. So
//! memory is bounded, and an error is always on the side of "unknown".

use hlc::{Cut, Hlc};

/// The most separate spans that are kept.
const SPANS_MAX: usize = 64;

/// The stamp of the earliest creation and of the latest deletion. A cut that admits the first and
/// not the last may have held a removed topic.
type StampSpan = (Hlc, Hlc);

/// By time; they do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RemovedTopicSpans(Vec<StampSpan>);

impl RemovedTopicSpans {
    /// Adds the spans of more topics.
    pub(super) fn extend(&mut self, spans: impl IntoIterator<Item = StampSpan>) {
        self.0.extend(spans);
        self.0.sort_unstable();
        self.0.dedup_by(|later, earlier| {
            let overlaps = later.0 <= earlier.1;
            if overlaps {
                earlier.1 = earlier.1.max(later.1);
            }
            overlaps
        });
        self.join_nearest(SPANS_MAX);
    }

    fn join_nearest(&mut self, spans_max: usize) {
        let surplus = self.0.len().saturating_sub(spans_max);
        if surplus == 0 {
            return;
        }
        let between = |pair: &[StampSpan]| pair[1].0.time().0 - pair[0].1.time().0;
        let gaps = self.0.windows(2).map(between);
        let mut gaps: Vec<(u64, usize)> = gaps.zip(1..).collect();
        gaps.sort_unstable();
        let mut joined: Vec<usize> = gaps[..surplus].iter().map(|(_, later)| *later).collect();
        joined.sort_unstable();
        for later in joined.into_iter().rev() {
            let (_, end) = self.0.remove(later);
            self.0[later - 1].1 = end;
        }
    }

    /// If `cut` may have held a removed topic: the bound of the first later cut that did not.
    pub(super) fn first_readable_after(&self, cut: Cut) -> Option<Hlc> {
        let place = self.0.partition_point(|(first, _)| cut.admits(*first)).checked_sub(1)?;
        let (_, last) = self.0[place];
        (!cut.admits(last)).then(|| last.next())
    }

    /// If a removed topic may have existed at some time between two cuts: the bound of the first
    /// cut from which on none of those did.
    pub(super) fn first_readable_after_range(&self, from: Cut, until: Cut) -> Option<Hlc> {
        let last = self.0.iter().rev().find(|(first, _)| until.admits(*first))?.1;
        (!from.admits(last)).then(|| last.next())
    }

    /// All spans, by time.
    pub(super) fn spans(&self) -> impl Iterator<Item = StampSpan> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use hlc::SysTime;

    use super::*;

    fn at(ms: u64) -> Hlc {
        Hlc::at(SysTime(ms))
    }

    fn spans(spans: &[(u64, u64)]) -> RemovedTopicSpans {
        let mut spans_held = RemovedTopicSpans::default();
        spans_held.extend(spans.iter().map(|(first, last)| (at(*first), at(*last))));
        spans_held
    }

    fn milliseconds(removed: &RemovedTopicSpans) -> Vec<(u64, u64)> {
        removed.spans().map(|(first, last)| (first.time().0, last.time().0)).collect()
    }

    #[test]
    fn a_cut_may_have_held_what_was_created_before_it_and_not_deleted() {
        let removed = spans(&[(10, 20), (30, 40), (35, 50)]);
        assert_eq!(milliseconds(&removed), [(10, 20), (30, 50)]);
        let in_cut = |bound: Hlc| removed.first_readable_after(Cut::below(bound));
        for bound in [Hlc::ZERO, at(10), at(20).next(), at(25), at(30), at(50).next(), Hlc::MAX] {
            assert_eq!(in_cut(bound), None, "{bound}");
        }
        for bound in [at(10).next(), at(20)] {
            assert_eq!(in_cut(bound), Some(at(20).next()), "{bound}");
        }
        for bound in [at(30).next(), at(37), at(40).next(), at(50)] {
            assert_eq!(in_cut(bound), Some(at(50).next()), "{bound}");
        }
        let between = |from, until| {
            removed
                .first_readable_after_range(Cut::before(SysTime(from)), Cut::before(SysTime(until)))
        };
        assert_eq!(between(1, 10), None);
        assert_eq!(between(1, 11), Some(at(20).next()));
        assert_eq!(between(1, 99), Some(at(50).next()));
        assert_eq!(between(21, 30), None);
        assert_eq!(between(50, 99), Some(at(50).next()));
        assert_eq!(between(51, 99), None);
    }

    #[test]
    fn of_many_the_nearest_become_one_and_none_is_lost() {
        let many: Vec<(u64, u64)> = (0..1000).map(|nth| (nth * nth, nth * nth + 1)).collect();
        let removed = spans(&many);
        let joined = milliseconds(&removed);
        assert_eq!(joined.len(), SPANS_MAX);
        for (first, last) in many {
            assert!(joined.iter().any(|(from, to)| *from <= first && last <= *to), "{first}");
        }
        // The gaps grow, so the first spans are joined into one.
        assert_eq!(joined[0], (0, 936 * 936 + 1));
        assert_eq!(joined[1], (937 * 937, 937 * 937 + 1));
        let mut one_by_one = RemovedTopicSpans::default();
        (0..5000).for_each(|nth| one_by_one.extend([(at(2 * nth), at(2 * nth + 1))]));
        assert!(one_by_one.spans().count() <= SPANS_MAX);
        assert_eq!(
            one_by_one.first_readable_after(Cut::before(SysTime(1))),
            Some(one_by_one.0[0].1.next())
        );
    }
}
