//! A sealed segment of the journal: one data file, with its index.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use hlc::Hlc;
use parking_lot::RwLock;

use crate::data_file::DataFile;
use crate::entry::LogId;
use crate::error::StorageError;
use crate::index::{IndexRun, SegmentIndex};

/// The order of the frames of a segment in its data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentLayout {
    /// In the order of the journal: a rolled segment.
    Journal,
    /// Sorted by log.
    Sorted {
        /// The number of times that the segment was sorted.
        generation: u32,
    },
}

/// A data file, and its index.
#[derive(Clone, Debug)]
pub(crate) struct SegmentFiles {
    pub(crate) data: Arc<DataFile>,
    pub(crate) index: Arc<SegmentIndex>,
}

/// A run, and the index that it was read from: in an index that is rebuilt meanwhile, its entries
/// have other numbers.
pub(crate) struct IndexedRun {
    pub(crate) run: IndexRun,
    pub(crate) index: Arc<SegmentIndex>,
}

#[derive(Debug)]
pub struct SealedSegment {
    /// The position at which it begins.
    pub start: u64,
    /// The position after it.
    pub end: u64,
    /// The order of its frames in the file.
    pub layout: SegmentLayout,
    pub last_stamp: Hlc,
    data: Arc<DataFile>,
    index: RwLock<Arc<SegmentIndex>>,
    /// True if a block of the index was found corrupt.
    is_suspect: AtomicBool,
    /// True if sorting it was found to gain nothing at present.
    needs_no_sorting: AtomicBool,
    /// True if it is left out of merges, because one of them met a corrupt segment.
    is_excluded_from_merge: AtomicBool,
    /// True if its proofs are one file, with few leaves of frames that it does not hold.
    has_pruned_proofs: AtomicBool,
    /// The last generation in which it was sorted, or an attempt was made.
    last_generation: AtomicU32,
    /// The length of its files, once it was computed.
    bytes: OnceLock<u64>,
}

impl SealedSegment {
    pub(crate) fn new(layout: SegmentLayout, files: SegmentFiles) -> SealedSegment {
        let header = files.index.header;
        let (is_settled, generation) = match layout {
            SegmentLayout::Journal => (false, 0),
            SegmentLayout::Sorted { generation } => (true, generation),
        };
        SealedSegment {
            start: header.start,
            end: header.end,
            layout,
            last_stamp: header.last_stamp,
            data: files.data,
            index: RwLock::new(files.index),
            is_suspect: AtomicBool::new(false),
            needs_no_sorting: AtomicBool::new(is_settled),
            is_excluded_from_merge: AtomicBool::new(false),
            has_pruned_proofs: AtomicBool::new(false),
            last_generation: AtomicU32::new(generation),
            bytes: OnceLock::new(),
        }
    }

    pub fn data(&self) -> &Arc<DataFile> {
        &self.data
    }

    pub fn index(&self) -> Arc<SegmentIndex> {
        Arc::clone(&self.index.read())
    }

    pub(crate) fn files(&self) -> SegmentFiles {
        SegmentFiles { data: Arc::clone(&self.data), index: self.index() }
    }

    /// Replaces a corrupt index with a rebuilt one.
    pub(crate) fn set_index(&self, index: Arc<SegmentIndex>) {
        *self.index.write() = index;
        self.is_suspect.store(false, Ordering::Release);
        self.set_needs_no_sorting(self.layout != SegmentLayout::Journal);
        self.is_excluded_from_merge.store(false, Ordering::Release);
    }

    /// Returns true if sorting it was found to gain nothing at present.
    pub(crate) fn needs_no_sorting(&self) -> bool {
        self.needs_no_sorting.load(Ordering::Acquire)
    }

    pub(crate) fn next_generation(&self) -> u32 {
        1 + self.last_generation.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn set_needs_no_sorting(&self, is_settled: bool) {
        self.needs_no_sorting.store(is_settled, Ordering::Release);
    }

    /// Returns true if it is not merged.
    pub(crate) fn is_excluded_from_merge(&self) -> bool {
        self.is_excluded_from_merge.load(Ordering::Acquire)
    }

    pub(crate) fn exclude_from_merge(&self) {
        self.is_excluded_from_merge.store(true, Ordering::Release);
    }

    /// Returns true if there is nothing to prune from its proofs.
    pub(crate) fn has_pruned_proofs(&self) -> bool {
        self.has_pruned_proofs.load(Ordering::Acquire)
    }

    pub(crate) fn set_has_pruned_proofs(&self) {
        self.has_pruned_proofs.store(true, Ordering::Release);
    }

    /// The length of its files, which never changes.
    pub(crate) fn bytes(&self) -> Result<u64, StorageError> {
        if let Some(bytes) = self.bytes.get() {
            return Ok(*bytes);
        }
        let bytes = self.data.file().length()? + self.index().header.length();
        Ok(*self.bytes.get_or_init(|| bytes))
    }

    /// Returns true if a position lies in it, or in a segment that was merged into it.
    pub(crate) fn covers(&self, position: u64) -> bool {
        (self.start..self.end).contains(&position)
    }

    /// Returns true if its index has to be rebuilt.
    pub(crate) fn is_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::Acquire)
    }

    /// Remembers it if `result` says that the index is lost, as a whole or in part: a rebuilt index
    /// is not in the sector that cannot be read.
    pub(crate) fn note_corruption<T>(
        &self,
        result: Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        if let Err(error) = &result
            && error.is_data_loss()
            && !self.is_suspect.swap(true, Ordering::AcqRel)
        {
            tracing::error!(%error, "found corruption");
        }
        result
    }

    /// The run of `log` in it, and its number.
    pub(crate) fn find_run(&self, log: LogId) -> Result<Option<(u64, IndexRun)>, StorageError> {
        self.note_corruption(self.index().find_run(log))
    }

    /// The run of `log` in it, which is probably number `hint`.
    pub(crate) fn run_near(
        &self,
        log: LogId,
        hint: u64,
    ) -> Result<Option<IndexedRun>, StorageError> {
        let index = self.index();
        let run = self.note_corruption(index.run_near(log, hint))?;
        Ok(run.map(|run| IndexedRun { run, index }))
    }
}

/// All sealed segments, by position. Segments of which nothing is kept are not among them.
#[derive(Debug, Default)]
pub struct SealedSegments(RwLock<Arc<Vec<Arc<SealedSegment>>>>);

/// The segment that holds the frames of the one that began at `start`, which may have been merged
/// since.
pub(crate) fn segment_at(
    segments: &[Arc<SealedSegment>],
    start: u64,
) -> Option<&Arc<SealedSegment>> {
    let place = segments.partition_point(|segment| segment.start <= start).checked_sub(1)?;
    Some(&segments[place]).filter(|segment| segment.covers(start))
}

/// The invariants of the list, on which binary searches rely.
fn assert_order(segments: &[Arc<SealedSegment>]) {
    assert!(segments.is_sorted_by(|a, b| a.end <= b.start), "parts stand by position");
    assert!(
        segments.is_sorted_by(|a, b| a.last_stamp <= b.last_stamp),
        "stamps rise over sealed segments"
    );
}

impl SealedSegments {
    pub(crate) fn new(segments: Vec<Arc<SealedSegment>>) -> SealedSegments {
        assert_order(&segments);
        SealedSegments(RwLock::new(Arc::new(segments)))
    }

    /// The segments that exist now.
    pub fn all(&self) -> Arc<Vec<Arc<SealedSegment>>> {
        Arc::clone(&self.0.read())
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Vec<Arc<SealedSegment>>)) {
        let mut current = self.0.write();
        let mut segments = (**current).clone();
        change(&mut segments);
        assert_order(&segments);
        *current = Arc::new(segments);
    }

    /// The number of segments.
    pub fn count(&self) -> usize {
        self.0.read().len()
    }
}
