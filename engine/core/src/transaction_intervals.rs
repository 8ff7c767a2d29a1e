//! The offsets that belong to some transactions of a partition.

use std::collections::HashMap;

use storage::Offset;

/// Transactions of a partition, each from its first offset up to its end, by producer.
///
/// A producer has one transaction at a time, so its transactional batch belongs to the transaction
/// that began last.
#[derive(Debug, Default)]
pub(crate) struct TransactionIntervals {
    /// The first offset and the end of each, rising.
    by_producer: HashMap<i64, Vec<(Offset, Offset)>>,
}

impl TransactionIntervals {
    /// From the producer, the first offset and the offset of the end of each transaction.
    pub(crate) fn new(transactions: impl IntoIterator<Item = (i64, Offset, Offset)>) -> Self {
        let mut by_producer: HashMap<i64, Vec<(Offset, Offset)>> = HashMap::new();
        for (producer, first, end) in transactions {
            by_producer.entry(producer).or_default().push((first, end));
        }
        by_producer.values_mut().for_each(|of_producer| of_producer.sort_unstable());
        TransactionIntervals { by_producer }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_producer.is_empty()
    }

    /// Returns true if a transactional batch at `base` belongs to one of them.
    pub(crate) fn contains(&self, producer: i64, base: Offset) -> bool {
        let of_producer = self.by_producer.get(&producer).map_or(&[][..], Vec::as_slice);
        let begun = of_producer.partition_point(|(first, _)| *first <= base);
        begun.checked_sub(1).is_some_and(|last| of_producer[last].1 > base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_belongs_to_the_transaction_that_began_last() {
        let interval = |first, end| (7, Offset(first), Offset(end));
        let intervals =
            TransactionIntervals::new([interval(20, 30), interval(3, 9), interval(20, u64::MAX)]);
        let contained = (0..40).filter(|base| intervals.contains(7, Offset(*base)));
        assert_eq!(contained.collect::<Vec<_>>(), (3..9).chain(20..40).collect::<Vec<_>>());
        assert!(!intervals.contains(8, Offset(5)));
    }
}
