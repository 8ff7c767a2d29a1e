//! Property tests: a model that has each record by itself, and members that do as they like.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::acknowledge::kind;
use super::*;

const RECORDS: i64 = 40;
/// The log has batches of so many records.
const BATCH: i64 = 4;

#[derive(Debug, Clone)]
enum Event {
    Acquire {
        /// True if it read the log before the last fetch did.
        is_late: bool,
        who: usize,
        records_max: usize,
        is_exact: bool,
        batch_size: usize,
    },
    /// A member says something of offsets that it may have.
    Acknowledge {
        who: usize,
        first: i64,
        count: i64,
        kind: i8,
    },
    /// A member says something of all that it has.
    AcknowledgeAll {
        who: usize,
        kinds: Vec<i8>,
    },
    Release {
        who: usize,
    },
    Pass {
        seconds: u64,
    },
    /// The log loses records, or a read finds that they do not exist.
    MoveStart {
        to: i64,
    },
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    let actor = || 0..3usize;
    prop_oneof![
        10 => (prop::bool::weighted(0.2), actor(), 0..12usize, any::<bool>(), 1..9usize).prop_map(
            |(is_late, who, records_max, is_exact, batch_size)| Event::Acquire { is_late, who, records_max, is_exact, batch_size }
        ),
        4 => (actor(), 0..RECORDS, 1..6i64, 0..5i8)
            .prop_map(|(who, first, count, kind)| Event::Acknowledge { who, first, count, kind }),
        8 => (actor(), prop::collection::vec(0..5i8, 1..5))
            .prop_map(|(who, kinds)| Event::AcknowledgeAll { who, kinds }),
        2 => actor().prop_map(|who| Event::Release { who }),
        4 => (0..40u64).prop_map(|seconds| Event::Pass { seconds }),
        1 => (0..RECORDS).prop_map(|to| Event::MoveStart { to }),
        2 => Just(Event::Restart),
    ]
}

/// One record, by itself.
#[derive(Clone, Debug, PartialEq)]
struct ModelRecord {
    state: RecordState,
    deliveries: u16,
}

struct Model {
    partition: SharePartition,
    records: Vec<ModelRecord>,
    start: i64,
    /// The offset at which the last fetch read the log.
    last_from: i64,
    now: Duration,
    options: ShareOptions,
}

fn member(actor: usize) -> Arc<str> {
    format!("m{actor}").into()
}

fn batches(from: i64) -> Vec<RecordBatchRange> {
    let batch_at = |first: i64| RecordBatchRange { first, last: first + BATCH - 1 };
    (0..RECORDS / BATCH)
        .map(|nth| batch_at(nth * BATCH))
        .filter(|batch| batch.last >= from)
        .collect()
}

impl Model {
    fn new() -> Model {
        let record = ModelRecord { state: RecordState::Available, deliveries: 0 };
        Model {
            partition: SharePartition::new(0),
            records: vec![record; RECORDS as usize],
            start: 0,
            last_from: 0,
            now: Duration::from_secs(100),
            options: ShareOptions { in_flight_max: 24, ..ShareOptions::default() },
        }
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Acquire { is_late, who, records_max, is_exact, batch_size } => {
                let last = std::mem::replace(&mut self.last_from, self.partition.next_offset());
                self.last_from = if *is_late { last } else { self.last_from };
                self.acquire(*who, *records_max, *is_exact, *batch_size);
            }
            Event::Acknowledge { who, first, count, kind } => {
                let last = (first + count - 1).min(RECORDS - 1);
                let batch = AcknowledgedBatch { first: *first, last, kinds: vec![*kind] };
                self.acknowledge(*who, &batch);
            }
            Event::AcknowledgeAll { who, kinds } => {
                let held: Vec<i64> =
                    (self.start..RECORDS).filter(|at| self.has(*who, *at)).collect();
                for run in held.chunk_by(|a, b| a + 1 == *b) {
                    let of_each = kinds.iter().cycle().take(run.len()).copied().collect();
                    let batch = AcknowledgedBatch {
                        first: run[0],
                        last: run[run.len() - 1],
                        kinds: of_each,
                    };
                    self.acknowledge(*who, &batch);
                }
            }
            Event::Release { who } => {
                self.release_where(|model, at| model.has(*who, at));
                self.partition.release(&member(*who), &self.options);
            }
            Event::Pass { seconds } => {
                self.now += Duration::from_secs(*seconds);
                let now = self.now;
                let is_over = |model: &Model, at: i64| matches!(model.records[at as usize].state, RecordState::Acquired { until, .. } if until <= now);
                self.release_where(is_over);
                self.partition.tick(self.now, &self.options);
            }
            Event::MoveStart { to } => {
                self.start = self.start.max(*to);
                self.partition.move_start(*to);
            }
            Event::Restart => {
                let text = self.partition.text();
                self.partition =
                    SharePartition::parse(self.partition.start(), &text).expect("a text");
                for record in &mut self.records {
                    if let RecordState::Acquired { .. } = record.state {
                        record.state = RecordState::Available;
                        record.deliveries -= 1;
                    }
                }
            }
        }
        self.advance();
        self.check();
    }

    fn has(&self, actor: usize, at: i64) -> bool {
        let state = &self.records[at as usize].state;
        matches!(state, RecordState::Acquired { member: m, .. } if **m == *member(actor))
    }

    fn release_where(&mut self, is_released: impl Fn(&Model, i64) -> bool) {
        for at in self.start..RECORDS {
            if is_released(self, at) {
                let deliveries = self.records[at as usize].deliveries;
                self.records[at as usize].state = released(deliveries, &self.options);
            }
        }
    }

    fn acquire(&mut self, actor: usize, records_max: usize, is_exact: bool, batch_size: usize) {
        let from = self.last_from;
        let member = member(actor);
        let request = AcquireRequest { member: &member, records_max, is_exact, batch_size };
        let batches_read = batches(from);
        let end = self.partition.end;
        let acquired =
            self.partition.acquire(self.now, &request, from, &batches_read, &self.options);
        let count: usize = acquired.iter().map(AcquiredRange::count).sum();
        let records_limit = records_max + if is_exact { 0 } else { BATCH as usize - 1 };
        assert!(count <= records_limit && (records_max > 0 || count == 0), "{count} {records_max}");
        let is_new = |range: &AcquiredRange| range.last >= end;
        let reach = acquired.iter().filter(|range| is_new(range)).map(|range| range.last).max();
        let limit =
            self.start + self.options.in_flight_max as i64 + if is_exact { 0 } else { BATCH - 1 };
        assert!(reach.is_none_or(|reach| reach < limit), "{reach:?} {limit}");
        for range in &acquired {
            for at in range.first..=range.last {
                let record = &mut self.records[at as usize];
                assert_eq!(record.state, RecordState::Available, "{at} {acquired:?}");
                record.deliveries += 1;
                assert_eq!(record.deliveries, range.deliveries);
                let until = self.now + self.options.record_lock;
                record.state = RecordState::Acquired { member: Arc::clone(&member), until };
            }
        }
    }

    fn acknowledge(&mut self, actor: usize, batch: &AcknowledgedBatch) {
        let first = batch.first.max(self.start);
        let expected = if batch.last < self.start {
            Ok(())
        } else if batch.last >= self.partition.end {
            Err(AcknowledgeError::InvalidRequest)
        } else if (first..=batch.last).all(|at| self.has(actor, at)) {
            Ok(())
        } else {
            Err(AcknowledgeError::InvalidRecordState)
        };
        let batches = std::slice::from_ref(batch);
        let acknowledged =
            self.partition.acknowledge(self.now, &member(actor), batches, &self.options);
        assert_eq!(acknowledged.map(drop), expected, "{batch:?}");
        if expected.is_err() {
            return;
        }
        for at in first..=batch.last {
            let nth = if batch.kinds.len() == 1 { 0 } else { (at - batch.first) as usize };
            let record = &mut self.records[at as usize];
            record.state = match batch.kinds[nth] {
                kind::ACCEPT => RecordState::Acknowledged,
                kind::RELEASE => released(record.deliveries, &self.options),
                kind::RENEW => {
                    let until = self.now + self.options.record_lock;
                    RecordState::Acquired { member: member(actor), until }
                }
                _ => RecordState::Archived,
            };
        }
    }

    fn advance(&mut self) {
        while self.start < RECORDS && self.records[self.start as usize].state.is_final() {
            self.start += 1;
        }
    }

    fn check(&self) {
        self.partition.assert_sound(&self.options);
        assert_eq!(self.partition.start(), self.start);
        for at in self.start..RECORDS {
            let record = &self.records[at as usize];
            let run =
                self.partition.runs.range(..=at).next_back().filter(|(_, run)| run.last >= at);
            match run {
                Some((_, run)) => {
                    assert_eq!(run.state, record.state, "{at}");
                    let is_final = run.state.is_final();
                    assert!(is_final || run.deliveries == record.deliveries, "{at}");
                }
                None => assert_eq!(record.state, RecordState::Available, "{at}"),
            }
        }
    }

    /// Members that process what they get: in the end, all is done.
    fn finish(&mut self) {
        for _ in 0..400 {
            self.apply(&Event::Pass { seconds: 31 });
            self.apply(&Event::Acquire {
                is_late: false,
                who: 0,
                records_max: 10,
                is_exact: true,
                batch_size: 10,
            });
            self.apply(&Event::AcknowledgeAll { who: 0, kinds: vec![kind::ACCEPT] });
        }
        assert_eq!((self.partition.start(), self.partition.runs.len()), (RECORDS, 0));
    }
}

proptest! {
    #[test]
    fn no_record_is_with_two_members_and_all_are_done_in_the_end(
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut model = Model::new();
        events.iter().for_each(|event| model.apply(event));
        model.finish();
    }
}

fn take(partition: &mut SharePartition, records_max: usize, from: i64) -> Vec<(i64, i64, u16)> {
    let (member_id, options) = (member(0), ShareOptions::default());
    let request =
        AcquireRequest { member: &member_id, records_max, is_exact: false, batch_size: 100 };
    let acquired = partition.acquire(Duration::ZERO, &request, from, &batches(from), &options);
    acquired.iter().map(|range| (range.first, range.last, range.deliveries)).collect()
}

#[test]
fn what_does_not_exist_is_given_up_and_batches_are_not_cut() {
    let mut partition = SharePartition::new(2);
    let (member_id, options) = (member(0), ShareOptions::default());
    let request =
        AcquireRequest { member: &member_id, records_max: 5, is_exact: false, batch_size: 100 };
    let acquired = partition.acquire(Duration::ZERO, &request, 2, &batches(8), &options);
    assert_eq!(acquired, [AcquiredRange { first: 8, last: 15, deliveries: 1 }]);
    assert_eq!(partition.start(), 8, "nothing is before the first batch");
    assert_eq!(take(&mut partition, 1, 16), [(16, 19, 1)]);
}

#[test]
fn records_at_which_members_fail_come_in_ever_smaller_numbers_and_alone_at_last() {
    let options = ShareOptions::default();
    let mut partition = SharePartition::new(0);
    let mut sizes = Vec::new();
    for _ in 0..4 {
        let acquired = take(&mut partition, 8, 0);
        sizes.push(acquired.iter().map(|(first, last, _)| last - first + 1).sum::<i64>());
        partition.release(&member(0), &options);
    }
    assert_eq!(sizes, [8, 8, 8, 4]);
    // Four records were delivered four times: the last time, each comes alone.
    assert_eq!(take(&mut partition, 8, 0), [(0, 0, 5)]);
    partition.release(&member(0), &options);
    assert_eq!(partition.start(), 1, "it was delivered as often as it may be");
}

#[test]
fn what_was_acquired_can_be_taken_back_or_given_up() {
    let mut partition = SharePartition::new(0);
    take(&mut partition, 8, 0);
    let range = AcquiredRange { first: 2, last: 5, deliveries: 1 };
    partition.take_back(&member(0), &[range]);
    assert_eq!(partition.next_offset(), 2);
    assert_eq!(take(&mut partition, 4, 2)[0], (2, 5, 1));
    let mut acquired = vec![AcquiredRange { first: 0, last: 7, deliveries: 1 }];
    partition.archive(&mut acquired, &[RecordBatchRange { first: 0, last: 3 }]);
    assert_eq!(acquired, [AcquiredRange { first: 4, last: 7, deliveries: 1 }]);
    assert_eq!((partition.start(), partition.is_in_use()), (4, true));
}

#[test]
fn a_read_that_is_out_of_date_gives_what_is_there_and_nothing_else() {
    let options = ShareOptions::default();
    let mut partition = SharePartition::new(0);
    take(&mut partition, 8, 0);
    partition.release(&member(0), &options);
    // It read from the middle of a batch, before all that was released became one run.
    assert_eq!(take(&mut partition, 8, 6)[0], (6, 7, 2));
    let mut partition = SharePartition::new(0);
    assert_eq!(take(&mut partition, 8, 12), [], "it knows nothing of what is before that");
    assert_eq!(take(&mut partition, 4, 0), [(0, 3, 1)]);
}

#[test]
fn a_batch_is_cut_where_it_would_pass_the_limit_twice() {
    let options = ShareOptions { in_flight_max: 10, ..ShareOptions::default() };
    let mut partition = SharePartition::new(0);
    let member_id = member(0);
    let request =
        AcquireRequest { member: &member_id, records_max: 5, is_exact: false, batch_size: 5 };
    let large = [RecordBatchRange { first: 0, last: 999 }];
    let acquired = partition.acquire(Duration::ZERO, &request, 0, &large, &options);
    assert_eq!(acquired, [AcquiredRange { first: 0, last: 19, deliveries: 1 }]);
}
