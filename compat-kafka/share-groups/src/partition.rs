//! One partition, as one share group sees it.
//!
//! The records before the start offset are done with. From there to the end offset each one is
//! available, acquired by a member, acknowledged, or archived (given up); those after the end
//! offset were never delivered. Neighbours in the same state are kept as one run, so that what is
//! done in order takes no room.
//!
//! Invariants: the runs cover the offsets from start to end without gap or overlap; a record is
//! acquired by one member at a time, and not more often than the limit on deliveries. They are
//! asserted in [`SharePartition::assert_sound`], which the tests call after each event.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafka_groups::ShareOptions;
use kafka_protocol::ResponseError;

mod acknowledge;
mod acquire;
#[cfg(test)]
mod properties;
mod text;

pub use acknowledge::AcknowledgedBatch;
pub use acquire::{AcquireRequest, AcquiredRange, RecordBatchRange};

/// The state of a record, as the group knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RecordState {
    Available,
    /// A member has it until a time.
    Acquired {
        member: Arc<str>,
        until: Duration,
    },
    /// It was processed.
    Acknowledged,
    /// It is not delivered any more: it was rejected, was delivered too often, or does not exist.
    Archived,
}

impl RecordState {
    /// True if the record is done with.
    fn is_final(&self) -> bool {
        matches!(self, RecordState::Acknowledged | RecordState::Archived)
    }
}

/// Records with neighbouring offsets in the same state.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordRun {
    last: i64,
    state: RecordState,
    /// The number of times that each was delivered.
    deliveries: u16,
}

/// One partition, as one share group sees it. Times are of a monotonic clock of the caller.
#[derive(Clone, Debug)]
pub struct SharePartition {
    /// The first offset that is not done with.
    start: i64,
    /// The offset after the last one that was ever delivered.
    end: i64,
    /// By first offset.
    runs: BTreeMap<i64, RecordRun>,
    /// No record's time is up before.
    next_deadline: Option<Duration>,
}

impl SharePartition {
    /// A partition of which nothing was delivered yet.
    pub(crate) fn new(start: i64) -> SharePartition {
        SharePartition { start, end: start, runs: BTreeMap::new(), next_deadline: None }
    }

    pub(crate) fn start(&self) -> i64 {
        self.start
    }

    /// The offset at which a fetch begins: the first record that is available, or was never
    /// delivered.
    pub(crate) fn next_offset(&self) -> i64 {
        let mut available = self.runs.iter().filter(|(_, run)| run.state == RecordState::Available);
        available.next().map_or(self.end, |(first, _)| *first)
    }

    /// True if anything could be delivered, if there are records.
    pub(crate) fn has_room(&self, options: &ShareOptions) -> bool {
        self.next_offset() < self.end || self.room(options) > 0
    }

    /// The number of records after the end that may be delivered.
    fn room(&self, options: &ShareOptions) -> i64 {
        options.in_flight_max as i64 - (self.end - self.start)
    }

    /// The number of records after the start offset that are done with.
    pub(crate) fn final_count(&self) -> i64 {
        let is_final = |(_, run): &(&i64, &RecordRun)| run.state.is_final();
        self.runs.iter().filter(is_final).map(|(first, run)| run.last - first + 1).sum()
    }

    /// True if members have records.
    pub(crate) fn is_in_use(&self) -> bool {
        self.next_deadline.is_some()
    }

    /// The time at which [`SharePartition::tick`] has to be called next.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.next_deadline
    }

    /// Releases the records whose time is up by `now`. Returns whether there were any.
    pub(crate) fn tick(&mut self, now: Duration, options: &ShareOptions) -> bool {
        if self.next_deadline.is_none_or(|at| at > now) {
            return false;
        }
        let is_over = |state: &RecordState| matches!(state, RecordState::Acquired { until, .. } if *until <= now);
        self.release_all(is_over, options)
    }

    /// Releases what a member has. Returns whether it had any.
    pub(crate) fn release(&mut self, member: &str, options: &ShareOptions) -> bool {
        let is_its = |state: &RecordState| matches!(state, RecordState::Acquired { member: m, .. } if **m == *member);
        self.release_all(is_its, options)
    }

    fn release_all(
        &mut self,
        matches: impl Fn(&RecordState) -> bool,
        options: &ShareOptions,
    ) -> bool {
        let runs = self.runs.iter().filter(|(_, run)| matches(&run.state));
        let ranges: Vec<(i64, i64)> = runs.map(|(first, run)| (*first, run.last)).collect();
        for (first, last) in &ranges {
            self.change(*first, *last, |run| run.state = released(run.deliveries, options));
        }
        self.update_deadline();
        self.advance();
        !ranges.is_empty()
    }

    /// Records before this offset do not exist any more. Returns whether that is news.
    pub fn move_start(&mut self, log_start: i64) -> bool {
        if log_start <= self.start {
            return false;
        }
        self.split_at(log_start);
        self.runs = self.runs.split_off(&log_start);
        (self.start, self.end) = (log_start, self.end.max(log_start));
        self.update_deadline();
        self.advance();
        true
    }

    /// Moves the start past records in a final state.
    fn advance(&mut self) {
        while let Some(entry) = self.runs.first_entry()
            && entry.get().state.is_final()
        {
            self.start = entry.remove().last + 1;
        }
    }

    /// Changes the runs of these offsets, all of which are between start and end.
    fn change(&mut self, first: i64, last: i64, change: impl Fn(&mut RecordRun)) {
        self.split_at(first);
        self.split_at(last + 1);
        for run in self.runs.range_mut(first..=last).map(|(_, run)| run) {
            change(run);
            if run.state.is_final() {
                // Final records need no count, and so neighbours can merge into one run.
                run.deliveries = 0;
            }
        }
        self.merge_between(first, last + 1);
    }

    /// Has a run begin at this offset, if it is in one.
    fn split_at(&mut self, at: i64) {
        if let Some((_, run)) = self.runs.range_mut(..at).next_back()
            && run.last >= at
        {
            let rest = run.clone();
            run.last = at - 1;
            self.runs.insert(at, rest);
        }
    }

    /// Joins neighbours in the same state, from the run before `from` to the one that begins at
    /// `to`.
    fn merge_between(&mut self, from: i64, to: i64) {
        let before = self.runs.range(..from).next_back().map_or(from, |(first, _)| *first);
        let mut at = before;
        while at < to {
            let Some((next, run)) = self.runs.range(at + 1..=to).next() else { return };
            let (next, run) = (*next, run.clone());
            let current = self.runs.get_mut(&at).expect("it was there");
            if current.state == run.state && current.deliveries == run.deliveries {
                current.last = run.last;
                self.runs.remove(&next);
            } else {
                at = next;
            }
        }
    }

    fn update_deadline(&mut self) {
        let until = |run: &RecordRun| match run.state {
            RecordState::Acquired { until, .. } => Some(until),
            _ => None,
        };
        self.next_deadline = self.runs.values().filter_map(until).min();
    }

    /// Asserts what must hold between any two events.
    #[cfg(test)]
    fn assert_sound(&self, options: &ShareOptions) {
        let mut at = self.start;
        let mut before: Option<&RecordRun> = None;
        for (first, run) in &self.runs {
            assert_eq!(*first, at, "{self:?}");
            assert!(run.last >= *first && run.deliveries <= options.deliveries_max, "{self:?}");
            let is_same = before.is_some_and(|before| {
                (&before.state, before.deliveries) == (&run.state, run.deliveries)
            });
            assert!(!is_same, "neighbours in the same state are one run: {self:?}");
            (at, before) = (run.last + 1, Some(run));
        }
        assert_eq!(at, self.end, "{self:?}");
        assert!(self.runs.values().next().is_none_or(|run| !run.state.is_final()), "{self:?}");
        let mut updated = self.clone();
        updated.update_deadline();
        assert_eq!(updated.next_deadline, self.next_deadline);
    }
}

/// The state of a record that a member had, and has no more.
fn released(deliveries: u16, options: &ShareOptions) -> RecordState {
    if deliveries >= options.deliveries_max {
        RecordState::Archived
    } else {
        RecordState::Available
    }
}

/// The reason why acknowledgements are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcknowledgeError {
    /// They name records that were never delivered.
    InvalidRequest,
    /// The member does not have the records any more.
    InvalidRecordState,
}

impl AcknowledgeError {
    pub fn code(self) -> ResponseError {
        match self {
            AcknowledgeError::InvalidRequest => ResponseError::InvalidRequest,
            AcknowledgeError::InvalidRecordState => ResponseError::InvalidRecordState,
        }
    }
}
