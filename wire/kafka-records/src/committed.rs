//! The batches of a Fetch response that belong to no aborted transaction.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;

use crate::{BatchHeader, DecompressionLimit, records};

/// The key of a marker that aborts: version 0, kind 0.
const ABORT_KEY: [u8; 4] = [0; 4];
/// A marker is never compressed.
const MARKER_LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 1 << 10 };

/// Tells the batches that a reader of committed records shows from the others (KIP-98).
#[derive(Clone, Debug, Default)]
pub struct CommittedBatches {
    /// First offsets and producers of aborted transactions that come later, by first offset.
    next: VecDeque<(i64, i64)>,
    /// The producers whose batches are left out up to their marker.
    aborted: HashSet<i64>,
}

impl CommittedBatches {
    /// For a response with these aborted transactions: the first offset and the producer of each.
    pub fn new(aborted: impl IntoIterator<Item = (i64, i64)>) -> CommittedBatches {
        let mut next: Vec<(i64, i64)> = aborted.into_iter().collect();
        next.sort_unstable();
        CommittedBatches { next: next.into(), aborted: HashSet::new() }
    }

    /// Returns true if the next batch of the response is shown. It is no control batch then.
    pub fn admits(&mut self, header: &BatchHeader, batch: &Bytes) -> bool {
        while let Some((first, producer)) = self.next.front().copied() {
            if first > header.last_offset() {
                break;
            }
            self.next.pop_front();
            self.aborted.insert(producer);
        }
        if header.is_control() {
            if is_abort(batch) {
                self.aborted.remove(&header.producer_id);
            }
            return false;
        }
        !(header.is_transactional() && self.aborted.contains(&header.producer_id))
    }
}

fn is_abort(batch: &Bytes) -> bool {
    let first = records(batch, MARKER_LIMIT).ok().and_then(|mut records| records.next()?.ok());
    first.and_then(|record| record.key).is_some_and(|key| key[..] == ABORT_KEY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, BatchIterator, CompressionType};

    fn batch(base: i64, producer: Option<i64>, marker: Option<bool>) -> Vec<u8> {
        let mut builder = BatchBuilder::new(CompressionType::None);
        if let Some(producer) = producer {
            builder.producer(producer, 0, 0).transactional();
        }
        match marker {
            Some(commits) => {
                builder.control().record(0, Some(&[0, 0, 0, u8::from(commits)]), Some(&[0; 6]), &[])
            }
            None => builder.record(0, None, Some(b"v"), &[]),
        };
        let mut batch = builder.build().to_vec();
        batch[..8].copy_from_slice(&base.to_be_bytes());
        batch
    }

    #[test]
    fn batches_of_an_aborted_transaction_are_left_out_from_its_first_offset_up_to_its_marker() {
        let (p, q) = (Some(1), Some(2));
        let log: Bytes = [
            batch(0, p, None),
            batch(1, p, Some(true)),
            batch(2, p, None),
            batch(3, q, None),
            batch(4, None, None),
            batch(5, p, Some(false)),
            batch(6, p, None),
            batch(7, q, Some(true)),
        ]
        .concat()
        .into();
        let mut committed = CommittedBatches::new([(2, 1)]);
        let shown = BatchIterator::new(&log).filter_map(|batch| {
            let (header, batch) = batch.unwrap();
            committed.admits(&header, &log.slice_ref(batch)).then_some(header.base_offset)
        });
        assert_eq!(shown.collect::<Vec<_>>(), [0, 3, 4, 6]);
    }
}
