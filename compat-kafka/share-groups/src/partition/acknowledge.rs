//! A member is done with records.

use std::sync::Arc;
use std::time::Duration;

use kafka_groups::ShareOptions;

use super::{AcknowledgeError, RecordState, SharePartition, released};

/// Kafka's numbers of what a member says of a record.
pub(super) mod kind {
    /// There is no record at this offset.
    pub(crate) const GAP: i8 = 0;
    /// It was processed.
    pub(crate) const ACCEPT: i8 = 1;
    /// It is to be delivered again.
    pub(crate) const RELEASE: i8 = 2;
    /// It is not to be delivered again.
    pub(crate) const REJECT: i8 = 3;
    /// The member needs more time (KIP-1222).
    pub(crate) const RENEW: i8 = 4;
}

/// The acknowledgements of a range of records by a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcknowledgedBatch {
    pub first: i64,
    pub last: i64,
    /// One for all, or one for each.
    pub kinds: Vec<i8>,
}

impl AcknowledgedBatch {
    /// True if a client may send these batches together. `may_renew` says that they come with a
    /// request that may renew.
    pub fn are_valid(batches: &[AcknowledgedBatch], may_renew: bool) -> bool {
        let last_kind = if may_renew { kind::RENEW } else { kind::REJECT };
        let is_valid = |batch: &AcknowledgedBatch| {
            let count = batch.last.checked_sub(batch.first).and_then(|count| count.checked_add(1));
            let is_counted = batch.kinds.len() == 1 || count == Some(batch.kinds.len() as i64);
            let are_known = batch.kinds.iter().all(|kind| (kind::GAP..=last_kind).contains(kind));
            batch.first >= 0 && batch.first <= batch.last && is_counted && are_known
        };
        let is_ordered = |pair: &[AcknowledgedBatch]| pair[0].last < pair[1].first;
        batches.iter().all(is_valid) && batches.windows(2).all(is_ordered)
    }

    fn is_renewing(&self) -> bool {
        self.kinds.contains(&kind::RENEW)
    }

    /// The acknowledgements of the offsets from `from` on, as ranges of one kind each.
    fn ranges(&self, from: i64) -> Vec<(i64, i64, i8)> {
        let first = self.first.max(from);
        if self.kinds.len() == 1 {
            return vec![(first, self.last, self.kinds[0])];
        }
        let skipped = (first - self.first) as usize;
        let mut at = first;
        let runs = self.kinds[skipped..].chunk_by(|a, b| a == b);
        runs.map(|kinds| {
            let range = (at, at + kinds.len() as i64 - 1, kinds[0]);
            at = range.1 + 1;
            range
        })
        .collect()
    }
}

impl SharePartition {
    /// Takes what a member says of records, all of it or nothing. Returns whether anything is to be
    /// stored. The batches are [valid](AcknowledgedBatch::are_valid).
    pub fn acknowledge(
        &mut self,
        now: Duration,
        member: &Arc<str>,
        batches: &[AcknowledgedBatch],
        options: &ShareOptions,
    ) -> Result<bool, AcknowledgeError> {
        for batch in batches {
            self.check_acknowledged(member, batch, options)?;
        }
        let mut is_changed = false;
        let start = self.start;
        for batch in batches.iter().filter(|batch| batch.last >= start) {
            for (first, last, kind) in batch.ranges(start) {
                let renewed = RecordState::Acquired {
                    member: Arc::clone(member),
                    until: now + options.record_lock,
                };
                self.change(first, last, |run| {
                    run.state = match kind {
                        kind::ACCEPT => RecordState::Acknowledged,
                        kind::RELEASE => released(run.deliveries, options),
                        kind::RENEW => renewed.clone(),
                        _ => RecordState::Archived,
                    };
                });
                is_changed |= kind != kind::RENEW;
            }
        }
        self.update_deadline();
        self.advance();
        Ok(is_changed)
    }

    /// Checks that the member has the records. Records before the start are not checked.
    fn check_acknowledged(
        &self,
        member: &str,
        batch: &AcknowledgedBatch,
        options: &ShareOptions,
    ) -> Result<(), AcknowledgeError> {
        if batch.last < self.start {
            return Ok(());
        }
        if batch.last >= self.end {
            return Err(AcknowledgeError::InvalidRequest);
        }
        let first = batch.first.max(self.start);
        let runs = self.runs.range(..=batch.last).rev().take_while(|(_, run)| run.last >= first);
        let mut states = runs.map(|(_, run)| &run.state);
        let is_its = |state: &RecordState| matches!(state, RecordState::Acquired { member: m, .. } if **m == *member);
        if states.all(is_its) && (options.may_renew || !batch.is_renewing()) {
            Ok(())
        } else {
            Err(AcknowledgeError::InvalidRecordState)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(first: i64, last: i64, kinds: &[i8]) -> AcknowledgedBatch {
        AcknowledgedBatch { first, last, kinds: kinds.to_vec() }
    }

    #[test]
    fn batches_are_ordered_and_say_one_thing_of_all_or_one_of_each() {
        let valid = |batches: &[AcknowledgedBatch]| AcknowledgedBatch::are_valid(batches, false);
        assert!(valid(&[]) && valid(&[batch(0, 9, &[1]), batch(10, 12, &[0, 2, 3])]));
        for (first, last, kinds) in [
            (1, 0, &[1][..]),
            (-1, 0, &[1]),
            (0, 1, &[]),
            (0, 2, &[1, 1]),
            (0, 0, &[4]),
            (0, 0, &[5]),
            (0, 0, &[-1]),
            (i64::MIN, i64::MAX, &[1]),
            (0, i64::MAX, &[1, 1]),
        ] {
            assert!(!valid(&[batch(first, last, kinds)]), "{first} {last} {kinds:?}");
        }
        assert!(!valid(&[batch(0, 9, &[1]), batch(9, 12, &[1])]));
        assert!(AcknowledgedBatch::are_valid(&[batch(0, 0, &[4])], true));
    }
}
