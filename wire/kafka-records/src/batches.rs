//! Several batches in a row, as in a Fetch response.

use crate::{BatchError, BatchHeader};

/// Iterates over the batches of a byte slice, header by header. It reads neither CRC nor records.
///
/// A broker cuts a response at a byte count, so the last batch may be incomplete. The iteration
/// ends before it, and [`BatchIterator::rest`] returns what is left. It ends after an error as
/// well: without a length, the start of the next batch is unknown.
#[derive(Clone, Debug)]
pub struct BatchIterator<'a> {
    rest: &'a [u8],
    is_over: bool,
}

impl<'a> BatchIterator<'a> {
    /// Starts at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> BatchIterator<'a> {
        BatchIterator { rest: bytes, is_over: false }
    }

    /// The bytes that were not iterated over. After the end, that is the incomplete batch or
    /// nothing.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for BatchIterator<'a> {
    /// A header, and the whole batch that it belongs to.
    type Item = Result<(BatchHeader, &'a [u8]), BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let header = match BatchHeader::parse(self.rest) {
            Ok(header) if header.total_bytes() <= self.rest.len() => header,
            Ok(_) | Err(BatchError::TooShort { .. }) => {
                self.is_over = true;
                return None;
            }
            Err(error) => {
                self.is_over = true;
                return Some(Err(error));
            }
        };
        let (batch, rest) = self.rest.split_at(header.total_bytes());
        self.rest = rest;
        Some(Ok((header, batch)))
    }
}

impl std::iter::FusedIterator for BatchIterator<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, CompressionType};

    fn batch(records: usize) -> Vec<u8> {
        let mut builder = BatchBuilder::new(CompressionType::None);
        for time in 0..records as i64 {
            builder.record(time, None, Some(b"value"), &[]);
        }
        builder.build().to_vec()
    }

    #[test]
    fn wherever_a_response_is_cut_the_whole_batches_before_are_read() {
        let batches = [batch(1), batch(3), batch(2)];
        let all = batches.concat();
        let ends = [batches[0].len(), batches[0].len() + batches[1].len(), all.len()];
        for cut in 0..=all.len() {
            let mut batches = BatchIterator::new(&all[..cut]);
            let counts: Vec<_> =
                batches.by_ref().map(|item| item.unwrap().0.record_count).collect();
            let whole = ends.iter().filter(|end| **end <= cut).count();
            assert_eq!(counts, [1, 3, 2][..whole], "cut at {cut}");
            let read_end = ends[..whole].last().copied().unwrap_or(0);
            assert_eq!(batches.rest(), &all[read_end..cut]);
        }
    }

    #[test]
    fn the_walk_ends_at_the_first_batch_it_cannot_frame() {
        let mut second = batch(1);
        second[16] = 1;
        let all = [batch(1), second, batch(1)].concat();
        let items: Vec<_> =
            BatchIterator::new(&all).map(|item| item.map(|(_, batch)| batch)).collect();
        assert_eq!(items, [Ok(&batch(1)[..]), Err(BatchError::OldMagic { magic: 1 })]);
    }

    #[test]
    fn a_batch_of_no_length_cannot_make_the_walk_stand_still() {
        let mut empty = batch(1);
        empty[8..12].copy_from_slice(&(-12i32).to_be_bytes());
        assert_eq!(BatchIterator::new(&empty).count(), 1);
    }
}
