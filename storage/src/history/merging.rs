//! Merging: adjacent small sealed segments become one larger segment, sorted by log. So the number
//! of segments grows with how much is kept, and not with how many segments there were. Merging also
//! gathers the remains of segments that lost most of their entries.
//!
//! Segments are merged in levels, as the runs of an LSM tree are: each time a byte is copied, the
//! segment that it belongs to becomes at least four times as large.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SealedHistory;
use crate::error::StorageError;
use crate::sealed_segment::SealedSegment;

/// No segment is merged into one that is much larger than a journal segment.
const MERGED_BYTES_MAX: u64 = 256 << 20;
/// The least factor by which merging makes a segment larger.
const GROWTH: u64 = 4;
/// A segment is no larger than this share of all: its space is reclaimed when all of its entries
/// are removed.
const SIZE_SHARE_DIVISOR: u64 = 16;
/// The largest number of segments that are merged at once.
const SOURCES_MAX: usize = 64;

impl SealedHistory {
    /// Merges the first segments that are worth it; returns whether there were any.
    ///
    /// # Errors
    /// The disk fails; then nothing has changed.
    pub(super) fn merge_next(&self) -> Result<bool, StorageError> {
        let Some(_reclaiming) = self.reclaim_state.try_lock() else { return Ok(false) };
        let segments = self.sealed_segments.all();
        let sizes = segments.iter().map(|segment| self.mergeable_bytes(segment));
        let sizes: Vec<Option<u64>> = sizes.collect::<Result<_, StorageError>>()?;
        let Some(window) = merge_window(&sizes, self.merge_bytes_min) else { return Ok(false) };
        let sources = &segments[window];
        match self.sort_segments(sources) {
            Ok(()) => {
                self.stats.merged.fetch_add(sources.len() as u64, Ordering::Relaxed);
                Ok(true)
            }
            // Its index is rebuilt first.
            Err(_) if sources.iter().any(|segment| segment.is_suspect()) => Ok(false),
            // A corrupt segment stays where it is: it may still be repaired from a copy.
            Err(error) if error.is_corruption() => {
                tracing::error!(%error, "some segments are not merged");
                sources.iter().for_each(|segment| segment.exclude_from_merge());
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// The space that a segment takes, in bytes; `None` if it cannot be merged now.
    fn mergeable_bytes(&self, segment: &SealedSegment) -> Result<Option<u64>, StorageError> {
        // It is proved and sorted by itself first, if it is to be.
        let may = segment.needs_no_sorting()
            && self.is_proved(segment)
            && !segment.is_excluded_from_merge();
        if may { segment.bytes().map(Some) } else { Ok(None) }
    }
}

/// The oldest segments of the lowest level that can be merged. `sizes` are those of all segments,
/// in order; `None` stands for one that cannot be merged.
fn merge_window(sizes: &[Option<u64>], bytes_min: u64) -> Option<Range<usize>> {
    if bytes_min == 0 {
        return None;
    }
    let total: u64 = sizes.iter().flatten().sum();
    let limit = MERGED_BYTES_MAX.min((total / SIZE_SHARE_DIVISOR).max(GROWTH * bytes_min));
    let levels = std::iter::successors(Some(bytes_min), |level| level.checked_mul(GROWTH));
    levels
        .take_while(|level| level.saturating_mul(GROWTH) <= limit)
        .find_map(|level| window_of_level(sizes, level))
}

/// The oldest neighbours of at most `level` bytes each whose sum is four times that.
fn window_of_level(sizes: &[Option<u64>], level: u64) -> Option<Range<usize>> {
    let (mut from, mut sum) = (0, 0);
    for (place, size) in sizes.iter().enumerate() {
        match size.filter(|size| *size <= level) {
            Some(size) => sum += size,
            None => (from, sum) = (place + 1, 0),
        }
        let count = place + 1 - from;
        if count > 1 && (sum >= GROWTH * level || count == SOURCES_MAX) {
            return Some(from..place + 1);
        }
    }
    None
}

/// The journal range that the segments `sources` cover.
pub(super) fn journal_range_of(sources: &[Arc<SealedSegment>]) -> Range<u64> {
    let first = sources.first().map_or(0, |segment| segment.start);
    first..sources.last().map_or(first, |segment| segment.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges until no merge is worth it; returns how many bytes were copied.
    fn merge_all(sizes: &mut Vec<Option<u64>>, bytes_min: u64) -> u64 {
        let mut copied = 0;
        while let Some(window) = merge_window(sizes, bytes_min) {
            let sum: u64 = sizes[window.clone()].iter().flatten().sum();
            copied += sum;
            drop(sizes.splice(window, [Some(sum)]));
        }
        copied
    }

    #[test]
    fn parts_are_few_and_each_byte_is_copied_a_few_times() {
        for size in [3_000_u64, 50_000, 700_000, 26 << 20] {
            let (mut sizes, mut copied) = (Vec::new(), 0);
            for _ in 0..3000 {
                sizes.push(Some(size));
                copied += merge_all(&mut sizes, 64 << 10);
            }
            let total = 3000 * size;
            let whole = total.div_ceil(MERGED_BYTES_MAX) as usize;
            assert!(sizes.len() < 2 * whole + 160, "{} segments of {size} each", sizes.len());
            assert!(copied <= 7 * total, "each byte {} times", copied as f64 / total as f64);
        }
    }

    #[test]
    fn a_large_segment_and_an_excluded_one_are_not_merged() {
        let mut sizes = vec![Some(1 << 40), Some(10), None, Some(10), Some(10), Some(10), Some(10)];
        assert_eq!(merge_window(&sizes, 10), Some(3..7));
        sizes.truncate(6);
        assert_eq!(merge_window(&sizes, 10), None);
    }

    #[test]
    fn reclaimed_segments_are_merged_again() {
        let mut sizes = vec![Some(8 << 10); 200];
        sizes[100] = Some(100 << 20);
        merge_all(&mut sizes, 64 << 10);
        assert!(sizes.len() < 80, "{sizes:?}");
    }
}
