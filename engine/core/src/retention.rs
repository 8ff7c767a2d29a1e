//! Retention: the records of a partition that are removed by age, by size, or because its topic was
//! deleted.
//!
//! This module only decides; it changes nothing. Invariants:
//! - Records are removed oldest first and in whole batches, so the result is one offset: the new
//!   log start.
//! - Age is counted from the stamp, the time of acceptance. Kafka counts from the largest timestamp
//!   that the records of a segment claim; here a record that claims an old time is kept as long as
//!   any.
//! - The log start of a partition that a pin holds does not advance ([`crate::Pins`]). The oldest
//!   records come first, so the pin would hold the first ones to be removed.
//! - The newest batch is removed too when it is old enough, as Kafka's active segment is.

use std::time::Duration;

use hlc::{Cut, Hlc, SysTime};
use storage::{Offset, StorageError};

use crate::config::{TopicConfig, TopicDefaults};

/// The facts about a partition's log that retention needs.
pub trait RetentionLog {
    fn start(&self) -> Offset;

    /// The offset after the last visible record.
    fn end(&self) -> Offset;

    /// The first offset that is not in `cut`.
    ///
    /// # Errors
    /// The index cannot be read.
    fn offset_at(&self, cut: Cut) -> Result<Offset, StorageError>;

    /// Payload bytes of all entries that end at or before `offset`, including removed ones.
    ///
    /// # Errors
    /// The index cannot be read.
    fn bytes_to(&self, offset: Offset) -> Result<u64, StorageError>;

    /// The first offset of the entry that holds `offset`; `offset` itself if none does.
    ///
    /// # Errors
    /// The index cannot be read.
    fn base_of(&self, offset: Offset) -> Result<Offset, StorageError>;
}

/// The reason that records are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionReason {
    /// They are older than `retention.ms`.
    Age,
    /// At least `retention.bytes` remain without them.
    Size,
    /// Their topic was deleted long enough ago.
    Deleted,
}

/// The decision to remove records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionDecision {
    /// The new log start.
    pub start: Offset,
    /// The rule that removes them.
    pub reason: RetentionReason,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionRules {
    /// The age from which records are removed.
    pub age: Option<Duration>,
    /// The bytes of the newest whole batches that are kept at least.
    pub bytes: Option<u64>,
    /// The time of the topic's deletion, and the time that its records are kept after that.
    pub deleted: Option<(SysTime, Duration)>,
}

impl RetentionRules {
    /// The rules of a topic by its settings; for a deleted topic, its last settings.
    pub fn new(
        config: &TopicConfig,
        defaults: &TopicDefaults,
        deleted: Option<Hlc>,
        deleted_topic_retention: Duration,
    ) -> RetentionRules {
        let deletes = config.has_delete_policy(defaults);
        // A negative number means no limit.
        let limit = |key| {
            if deletes { u64::try_from(config.number(key, defaults)).ok() } else { None }
        };
        RetentionRules {
            age: limit("retention.ms").map(Duration::from_millis),
            bytes: limit("retention.bytes"),
            deleted: deleted.map(|stamp| (stamp.time(), deleted_topic_retention)),
        }
    }

    /// The decision to remove records of a partition that no pin holds, at `now`, if any are due.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn decide(
        &self,
        history: &impl RetentionLog,
        now: SysTime,
    ) -> Result<Option<RetentionDecision>, StorageError> {
        let (start, end) = (history.start(), history.end());
        if start >= end {
            return Ok(None);
        }
        if let Some((deleted, retention)) = self.deleted
            && has_elapsed(deleted, retention, now)
        {
            return Ok(Some(RetentionDecision { start: end, reason: RetentionReason::Deleted }));
        }
        let by_age = match self.age {
            Some(age) => history.offset_at(older_than(age, now))?,
            None => start,
        };
        let by_size = match self.bytes {
            Some(bytes) => start_retaining_bytes(history, bytes)?,
            None => start,
        };
        let (new_start, why) = if by_age >= by_size {
            (by_age, RetentionReason::Age)
        } else {
            (by_size, RetentionReason::Size)
        };
        let new_start = new_start.min(end);
        Ok((new_start > start).then_some(RetentionDecision { start: new_start, reason: why }))
    }
}

/// Returns true if the time `retention` from `since` on has elapsed.
pub(crate) fn has_elapsed(since: SysTime, retention: Duration, now: SysTime) -> bool {
    now > since.saturating_add(retention)
}

/// The cut of everything older than `age`. A record that is exactly that old stays, as in Kafka.
fn older_than(age: Duration, now: SysTime) -> Cut {
    Cut::before(now.saturating_sub(age))
}

/// The largest offset between two batches after which `bytes` or more remain; the log start, if not
/// even the first batch can be removed.
fn start_retaining_bytes(history: &impl RetentionLog, bytes: u64) -> Result<Offset, StorageError> {
    let (start, end) = (history.start(), history.end());
    let Some(may_go) = history.bytes_to(end)?.checked_sub(bytes) else { return Ok(start) };
    // The largest offset with no more than that before it: it is between two batches, or within the
    // first batch that must stay.
    let (mut low, mut high) = (start.0, end.0);
    if history.bytes_to(start)? > may_go {
        return Ok(start);
    }
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if history.bytes_to(Offset(middle))? <= may_go {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    if low == end.0 { Ok(end) } else { Ok(history.base_of(Offset(low))?.max(start)) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A batch: when it was accepted, its number of offsets, and its bytes.
    #[derive(Clone, Copy, Debug)]
    struct RetentionTestBatch {
        stamp: Hlc,
        count: u64,
        bytes: u64,
    }

    #[derive(Clone, Debug)]
    struct RetentionTestLog {
        batches: Vec<RetentionTestBatch>,
        start: u64,
    }

    impl RetentionTestLog {
        /// Each batch with its first offset and the one after its last.
        fn placed(&self) -> impl Iterator<Item = (u64, u64, RetentionTestBatch)> {
            self.batches.iter().scan(0, |next, batch| {
                let base = *next;
                *next += batch.count;
                Some((base, *next, *batch))
            })
        }

        /// A naive model: removes the oldest batch while it may be removed.
        fn expected(&self, rules: RetentionRules, now: u64) -> u64 {
            let mut start = self.start;
            let mut remaining: u64 =
                self.placed().filter(|(_, end, _)| *end > start).map(|(.., b)| b.bytes).sum();
            let is_deleted = rules
                .deleted
                .is_some_and(|(at, retention)| u128::from(now - at.0) > retention.as_millis());
            for (_, end, batch) in self.placed().filter(|(_, end, _)| *end > self.start) {
                let old = rules.age.is_some_and(|age| {
                    u128::from(batch.stamp.time().0) + age.as_millis() < u128::from(now)
                });
                let spare = rules.bytes.is_some_and(|bytes| remaining - batch.bytes >= bytes);
                if !(is_deleted || old || spare) {
                    break;
                }
                remaining -= batch.bytes;
                start = end;
            }
            start
        }
    }

    impl RetentionLog for RetentionTestLog {
        fn start(&self) -> Offset {
            Offset(self.start)
        }

        fn end(&self) -> Offset {
            Offset(self.batches.iter().map(|batch| batch.count).sum())
        }

        fn offset_at(&self, cut: Cut) -> Result<Offset, StorageError> {
            let inside = self.placed().filter(|(.., batch)| cut.admits(batch.stamp));
            Ok(Offset(inside.map(|(_, end, _)| end).max().unwrap_or(0)))
        }

        fn bytes_to(&self, offset: Offset) -> Result<u64, StorageError> {
            let before = self.placed().filter(|(_, end, _)| *end <= offset.0);
            Ok(before.map(|(.., batch)| batch.bytes).sum())
        }

        fn base_of(&self, offset: Offset) -> Result<Offset, StorageError> {
            let holding = self.placed().find(|(_, end, _)| *end > offset.0);
            Ok(Offset(holding.map_or(offset.0, |(base, ..)| base)))
        }
    }

    const NOW: u64 = 1000;

    fn models() -> impl Strategy<Value = RetentionTestLog> {
        let batch = (1..60u64, 1..5u64, 0..40u64);
        (prop::collection::vec(batch, 0..30), any::<prop::sample::Index>()).prop_map(
            |(batches, start)| {
                let mut at = NOW - 900;
                let batches: Vec<RetentionTestBatch> = batches
                    .into_iter()
                    .map(|(after, count, bytes)| {
                        at += after;
                        RetentionTestBatch { stamp: Hlc::at(SysTime(at)), count, bytes }
                    })
                    .collect();
                let end: u64 = batches.iter().map(|batch| batch.count).sum();
                // Also in the middle of a batch: DeleteRecords can put it anywhere.
                RetentionTestLog { start: start.index(end as usize + 1) as u64, batches }
            },
        )
    }

    fn rules() -> impl Strategy<Value = RetentionRules> {
        let age = prop::option::of((0..1100u64).prop_map(Duration::from_millis));
        let bytes = prop::option::of(0..700u64);
        let deleted = prop::option::weighted(
            0.2,
            (900..=NOW, 0..120u64)
                .prop_map(|(at, retention)| (SysTime(at), Duration::from_millis(retention))),
        );
        (age, bytes, deleted).prop_map(|(age, bytes, deleted)| RetentionRules {
            age,
            bytes,
            deleted,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn what_goes_is_what_goes_one_batch_after_the_other(
            model in models(),
            rules in rules(),
        ) {
            let given_up = rules.decide(&model, SysTime(NOW)).unwrap();
            let start = given_up.map_or(model.start, |given_up| given_up.start.0);
            prop_assert_eq!(start, model.expected(rules, NOW));
            prop_assert!(given_up.is_none_or(|given_up| given_up.start.0 > model.start));
        }
    }

    fn topic(set: &[(&str, &str)]) -> TopicConfig {
        let set = set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        TopicConfig::new(set.collect::<BTreeMap<_, _>>()).unwrap()
    }

    #[test]
    fn only_a_topic_that_deletes_has_limits_and_minus_one_is_none() {
        let week = Duration::from_secs(7 * 24 * 60 * 60);
        let rules =
            |set: &[(&str, &str)]| RetentionRules::new(&topic(set), &BTreeMap::new(), None, week);
        assert_eq!(rules(&[]), RetentionRules { age: Some(week), bytes: None, deleted: None });
        assert_eq!(rules(&[("retention.ms", "-1")]), RetentionRules::default());
        assert_eq!(rules(&[("retention.bytes", "-5")]).bytes, None);
        assert_eq!(
            rules(&[("cleanup.policy", ""), ("retention.bytes", "5")]),
            RetentionRules::default()
        );
        assert_eq!(rules(&[("cleanup.policy", "compact"), ("retention.bytes", "5")]).bytes, None);
        let both = rules(&[("cleanup.policy", "compact, delete"), ("retention.bytes", "5")]);
        assert_eq!((both.age, both.bytes), (Some(week), Some(5)));
    }

    #[test]
    fn a_topic_that_was_deleted_ends_also_if_it_kept_its_records_for_ever() {
        let deleted = Hlc::at(SysTime(100));
        let config = topic(&[("cleanup.policy", "compact")]);
        let retention = Duration::from_millis(50);
        let rules = RetentionRules::new(&config, &BTreeMap::new(), Some(deleted), retention);
        let batch = RetentionTestBatch { stamp: Hlc::at(SysTime(90)), count: 3, bytes: 10 };
        let model = RetentionTestLog { batches: vec![batch], start: 0 };
        assert_eq!(rules.decide(&model, SysTime(150)).unwrap(), None);
        let all = RetentionDecision { start: Offset(3), reason: RetentionReason::Deleted };
        assert_eq!(rules.decide(&model, SysTime(151)).unwrap(), Some(all));
    }

    #[test]
    fn where_less_is_kept_than_may_be_not_even_a_batch_of_no_bytes_goes() {
        let batch = RetentionTestBatch { stamp: Hlc::at(SysTime(90)), count: 1, bytes: 0 };
        let model = RetentionTestLog { batches: vec![batch; 2], start: 0 };
        let rules = |bytes| RetentionRules { bytes: Some(bytes), ..RetentionRules::default() };
        assert_eq!(rules(1).decide(&model, SysTime(NOW)).unwrap(), None);
        let all = RetentionDecision { start: Offset(2), reason: RetentionReason::Size };
        assert_eq!(rules(0).decide(&model, SysTime(NOW)).unwrap(), Some(all));
    }

    #[test]
    fn a_clock_that_went_back_below_a_stamp_and_the_longest_retention_give_nothing_up() {
        let batch = RetentionTestBatch { stamp: Hlc::at(SysTime(5000)), count: 1, bytes: 1 };
        let model = RetentionTestLog { batches: vec![batch], start: 0 };
        for age in [Duration::ZERO, Duration::from_millis(u64::MAX), Duration::MAX] {
            let rules =
                RetentionRules { age: Some(age), deleted: Some((SysTime(5000), age)), bytes: None };
            assert_eq!(rules.decide(&model, SysTime(NOW)).unwrap(), None, "{age:?}");
        }
    }
}
