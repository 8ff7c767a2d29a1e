//! The largest of any number of rows, and the sum of the others: a page stays short, however much
//! the server has.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The most rows of a metric that has one for each topic or group.
pub(crate) const ROWS_MAX: usize = 20;

/// The rows with the largest values, up to [`ROWS_MAX`].
#[derive(Clone, Debug)]
pub(crate) struct LargestRows<K> {
    /// The least first.
    rows: BinaryHeap<Reverse<(u64, K)>>,
    /// The sum of all other rows; `None` if there are none.
    others: Option<u64>,
}

impl<K: Ord> LargestRows<K> {
    pub(crate) fn push(&mut self, value: u64, key: K) {
        self.rows.push(Reverse((value, key)));
        if self.rows.len() > ROWS_MAX
            && let Some(Reverse((least, _))) = self.rows.pop()
        {
            self.others = Some(self.others.unwrap_or(0).saturating_add(least));
        }
    }

    /// The rows, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, u64)> {
        self.rows.iter().map(|Reverse((value, key))| (key, *value))
    }

    /// The sum of the rows that are left out, if there are any.
    pub(crate) fn others(&self) -> Option<u64> {
        self.others
    }
}

impl<K: Ord> Default for LargestRows<K> {
    fn default() -> LargestRows<K> {
        LargestRows { rows: BinaryHeap::new(), others: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_rows_stay_and_the_others_are_one() {
        let mut rows = LargestRows::default();
        // In an order that is neither rising nor falling.
        (0..100).map(|nth| nth * 37 % 100).for_each(|value| rows.push(value, format!("k{value}")));
        let mut kept: Vec<u64> = rows.iter().map(|(_, value)| value).collect();
        kept.sort_unstable();
        assert_eq!(kept, (80..100).collect::<Vec<_>>());
        assert_eq!(rows.others(), Some((0..80).sum()));
    }

    #[test]
    fn there_are_no_others_while_all_rows_have_room() {
        let mut rows = LargestRows::default();
        (0..ROWS_MAX).for_each(|nth| rows.push(0, nth));
        assert_eq!((rows.iter().count(), rows.others()), (ROWS_MAX, None));
        rows.push(0, ROWS_MAX);
        assert_eq!((rows.iter().count(), rows.others()), (ROWS_MAX, Some(0)));
    }
}
