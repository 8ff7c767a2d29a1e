//! A member gets records.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use kafka_groups::ShareOptions;

use super::{RecordRun, RecordState, SharePartition};

/// The offsets of a batch of the log: records may be missing in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordBatchRange {
    pub first: i64,
    pub last: i64,
}

/// A member's request for records.
#[derive(Clone, Copy, Debug)]
pub struct AcquireRequest<'a> {
    pub member: &'a Arc<str>,
    pub records_max: usize,
    /// True if `records_max` cuts batches of the log.
    pub is_exact: bool,
    /// The number of records that the member wants to acknowledge together.
    pub batch_size: usize,
}

/// Records that a member has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquiredRange {
    pub first: i64,
    pub last: i64,
    /// The number of this delivery of the records, from 1 on.
    pub deliveries: u16,
}

impl AcquiredRange {
    pub fn count(&self) -> usize {
        (self.last - self.first + 1) as usize
    }
}

/// Records that were delivered so often are delivered in ever smaller numbers: one of them may be
/// what their members fail at (Kafka 4.3).
fn throttled_deliveries(options: &ShareOptions) -> u16 {
    options.deliveries_max.div_ceil(2).max(2)
}

impl SharePartition {
    /// Gives records to a member: of those that were read from the log at `from`, the ones that are
    /// available or were never delivered. `batches` are what was read, in order.
    pub fn acquire(
        &mut self,
        now: Duration,
        request: &AcquireRequest<'_>,
        from: i64,
        batches: &[RecordBatchRange],
        options: &ShareOptions,
    ) -> Vec<AcquiredRange> {
        let (Some(first), Some(last)) = (batches.first(), batches.last()) else {
            return Vec::new();
        };
        let (first_read, last_read) = (first.first, last.last);
        if from > self.end {
            // It was read for what the group knew before it forgot something.
            return Vec::new();
        }
        self.archive_missing(from, first_read);
        let until = now + options.record_lock;
        let state = RecordState::Acquired { member: Arc::clone(request.member), until };
        let mut acquired = Vec::new();
        let is_over =
            self.acquire_again(&state, request, from..=last_read, batches, options, &mut acquired);
        if !is_over {
            self.acquire_new(
                &state,
                request,
                first_read..=last_read,
                batches,
                options,
                &mut acquired,
            );
        }
        if !acquired.is_empty() {
            self.next_deadline = Some(self.next_deadline.map_or(until, |at| at.min(until)));
        }
        self.advance();
        acquired
    }

    /// A read that began at `from` found nothing before `first_read`.
    fn archive_missing(&mut self, from: i64, first_read: i64) {
        for (first, last) in self.available_between(from, first_read - 1) {
            self.change(first, last, |run| run.state = RecordState::Archived);
        }
    }

    /// The runs that are available, as far as they are between two offsets.
    fn available_between(&self, from: i64, to: i64) -> Vec<(i64, i64)> {
        if from > to {
            return Vec::new();
        }
        let runs = self.runs.range(..=to).filter(|(_, run)| run.last >= from);
        runs.filter(|(_, run)| run.state == RecordState::Available)
            .map(|(first, run)| ((*first).max(from), run.last.min(to)))
            .collect()
    }

    /// Gives records that were delivered before. Returns whether the member is to get no others.
    fn acquire_again(
        &mut self,
        state: &RecordState,
        request: &AcquireRequest<'_>,
        offsets: RangeInclusive<i64>,
        batches: &[RecordBatchRange],
        options: &ShareOptions,
        acquired: &mut Vec<AcquiredRange>,
    ) -> bool {
        let mut room = request.records_max;
        for (first, last) in self.available_between(*offsets.start(), *offsets.end()) {
            if room == 0 {
                return true;
            }
            let deliveries =
                self.runs.range(..=first).next_back().map_or(0, |(_, run)| run.deliveries);
            let available = (last - first + 1) as usize;
            let mut count = available.min(wanted(first, room, request, batches));
            let throttled = throttled_deliveries(options);
            let is_throttled = deliveries >= throttled;
            if is_throttled {
                if !acquired.is_empty() {
                    return true;
                }
                let is_last_attempt =
                    deliveries + 1 == options.deliveries_max && options.deliveries_max > 2;
                let share = available >> u32::from(deliveries - throttled + 1).min(usize::BITS - 1);
                count = count.min(if is_last_attempt { 1 } else { share.max(1) });
            }
            let last = first + count as i64 - 1;
            self.change(first, last, |run| {
                run.state = state.clone();
                run.deliveries += 1;
            });
            acquired.push(AcquiredRange { first, last, deliveries: deliveries + 1 });
            room = room.saturating_sub(count);
            if is_throttled || count < available {
                return true;
            }
        }
        room == 0
    }

    /// Gives records that were never delivered.
    fn acquire_new(
        &mut self,
        state: &RecordState,
        request: &AcquireRequest<'_>,
        offsets: RangeInclusive<i64>,
        batches: &[RecordBatchRange],
        options: &ShareOptions,
        acquired: &mut Vec<AcquiredRange>,
    ) {
        let (first_read, last_read) = offsets.into_inner();
        let before: usize = acquired.iter().map(AcquiredRange::count).sum();
        let room = usize::try_from(self.room(options)).unwrap_or(0);
        let room = room.min(request.records_max.saturating_sub(before));
        let first = self.end.max(first_read);
        if room == 0 || last_read < first {
            return;
        }
        // To the end of a batch, but not without bounds.
        let end_max = usize::try_from(self.room(options)).unwrap_or(0) + options.in_flight_max;
        let count = wanted(first, room, request, batches).min(end_max) as i64;
        let last = last_read.min(first + count - 1);
        if first > self.end {
            // The gap holds no records: archive it.
            self.append(first - 1, RecordState::Archived, 0);
        }
        let mut from = first;
        if !request.is_exact {
            let step = request.batch_size.max(1) as i64;
            for batch in batches.iter().filter(|batch| batch.first > first && batch.first <= last) {
                if batch.first - from >= step {
                    acquired.push(AcquiredRange {
                        first: from,
                        last: batch.first - 1,
                        deliveries: 1,
                    });
                    from = batch.first;
                }
            }
        }
        acquired.push(AcquiredRange { first: from, last, deliveries: 1 });
        self.append(last, state.clone(), 1);
    }

    /// Adds a run at the end.
    pub(super) fn append(&mut self, last: i64, state: RecordState, deliveries: u16) {
        let first = self.end;
        self.runs.insert(first, RecordRun { last, state, deliveries });
        self.end = last + 1;
        self.merge_between(first, first);
    }

    /// Takes back records just acquired: the member did not get them.
    pub fn take_back(&mut self, member: &str, ranges: &[AcquiredRange]) {
        for range in ranges {
            let runs = self.runs.range(..=range.last).filter(|(_, run)| run.last >= range.first);
            let is_its = |state: &RecordState| matches!(state, RecordState::Acquired { member: m, .. } if **m == *member);
            let runs: Vec<(i64, i64)> = runs
                .filter(|(_, run)| is_its(&run.state))
                .map(|(first, run)| ((*first).max(range.first), run.last.min(range.last)))
                .collect();
            for (first, last) in runs {
                self.change(first, last, |run| {
                    run.state = RecordState::Available;
                    run.deliveries = run.deliveries.saturating_sub(1);
                });
            }
        }
        self.update_deadline();
    }

    /// Gives up records that a member has just got: they belong to an aborted transaction. Removes
    /// them from `acquired`.
    pub fn archive(&mut self, acquired: &mut Vec<AcquiredRange>, aborted: &[RecordBatchRange]) {
        for batch in aborted {
            let mut rest = Vec::with_capacity(acquired.len());
            for range in acquired.drain(..) {
                let (first, last) = (range.first.max(batch.first), range.last.min(batch.last));
                if first > last {
                    rest.push(range);
                    continue;
                }
                self.change(first, last, |run| run.state = RecordState::Archived);
                if range.first < first {
                    rest.push(AcquiredRange { last: first - 1, ..range });
                }
                if last < range.last {
                    rest.push(AcquiredRange { first: last + 1, ..range });
                }
            }
            *acquired = rest;
        }
        self.update_deadline();
        self.advance();
    }
}

/// The number of records from `first` on that a member gets if there is `room` for so many: to the
/// end of a batch of the log, unless it wants no more.
fn wanted(
    first: i64,
    room: usize,
    request: &AcquireRequest<'_>,
    batches: &[RecordBatchRange],
) -> usize {
    let last = first.saturating_add(room as i64 - 1);
    if request.is_exact {
        return room;
    }
    let at = batches.partition_point(|batch| batch.last < last);
    let last = batches.get(at).filter(|batch| batch.first <= last).map_or(last, |batch| batch.last);
    (last - first + 1) as usize
}
