//! Latest-run tables: the newest run of each log, over many sealed segments. So a log of which
//! nothing is in memory is found without searching every segment.
//!
//! A table is soft: it holds nothing that the indexes of the segments do not hold. `docs/FORMAT.md`
//! has the layout.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;

use super::blocks::{
    BLOCK_HEADER_BYTES, BlockCache, BlockWriter, CONTENT_BYTES, INDEX_BLOCK_BYTES,
    IndexBlockReader, verify_block_checksum, write_block_checksum,
};
use super::{RunLocation, SegmentIndex, bisect};
use crate::disk::Disk;
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::sealed_segment::SealedSegment;
use crate::storage_file::StorageFile;

const MAGIC: &[u8; 8] = b"FFLATEST";
const VERSION: u32 = 1;
const LATEST_RUN_BYTES: usize = 32;
/// The number of latest runs that a block holds.
const LATEST_RUNS_PER_BLOCK: u64 = (CONTENT_BYTES / LATEST_RUN_BYTES) as u64;
const SUFFIX: &str = ".latest";

/// The location of a log's newest run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LatestRun {
    pub log: LogId,
    /// The position at which the segment begins.
    pub segment: u64,
    /// The number of the run in the segment, when the table was written.
    pub number: u64,
    /// The offset after the run's last.
    pub end: Offset,
}

impl LatestRun {
    pub fn location(&self) -> RunLocation {
        RunLocation { segment: self.segment, number: self.number }
    }

    fn encode(&self) -> [u8; LATEST_RUN_BYTES] {
        let mut bytes = [0; LATEST_RUN_BYTES];
        bytes[..8].copy_from_slice(&self.log.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.segment.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..].copy_from_slice(&self.end.0.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> LatestRun {
        let u64_at = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes are eight bytes"))
        };
        let (log, end) = (LogId(u64_at(0)), Offset(u64_at(24)));
        LatestRun { log, segment: u64_at(8), number: u64_at(16), end }
    }
}

/// The name of the table of a range.
pub fn latest_runs_name(stretch: &Range<u64>) -> String {
    format!("{:020}-{:020}{SUFFIX}", stretch.start, stretch.end)
}

/// The range of a table with this name, if it is one.
pub fn latest_runs_range(name: &str) -> Option<Range<u64>> {
    let (start, end) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    let stretch = start.parse().ok()?..end.parse().ok()?;
    (latest_runs_name(&stretch) == name).then_some(stretch)
}

pub struct LatestRunTable {
    /// The range of positions that its segments cover.
    pub range: Range<u64>,
    /// The number of logs that it has.
    pub count: u64,
    blocks: IndexBlockReader,
}

impl std::fmt::Debug for LatestRunTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeadTable").field("name", &self.blocks.name()).finish_non_exhaustive()
    }
}

impl LatestRunTable {
    /// Opens the table of a range; `None` if there is none, or its beginning is corrupt.
    ///
    /// # Errors
    /// The disk fails.
    pub fn open(
        disk: &dyn Disk,
        stretch: Range<u64>,
        cache: &Arc<BlockCache>,
    ) -> Result<Option<LatestRunTable>, StorageError> {
        let name = latest_runs_name(&stretch);
        let Some(file) = StorageFile::open_if_exists(disk, &name)? else { return Ok(None) };
        let length = file.length()?;
        let table = LatestRunTable::open_any(file, Arc::clone(cache))?;
        let is_whole = |table: &LatestRunTable| table.range == stretch && table.length() == length;
        Ok(table.filter(is_whole))
    }

    /// Opens a table without expectations, for inspection: it may be longer or shorter than its
    /// header says. `None` if it does not begin as one, or its beginning cannot be read.
    ///
    /// # Errors
    /// The disk fails.
    pub fn open_any(
        file: StorageFile,
        cache: Arc<BlockCache>,
    ) -> Result<Option<LatestRunTable>, StorageError> {
        if file.length()? < INDEX_BLOCK_BYTES as u64 {
            return Ok(None);
        }
        let mut bytes = [0; INDEX_BLOCK_BYTES];
        match file.read_exact_at(&mut bytes, 0) {
            Err(error) if error.is_data_loss() => return Ok(None),
            read => read?,
        }
        let Some((stretch, count)) = decode_header(&bytes) else { return Ok(None) };
        let start = stretch.start;
        Ok(Some(LatestRunTable {
            range: stretch,
            count,
            blocks: IndexBlockReader::new(file, cache, start),
        }))
    }

    /// Its name in the journal's directory.
    pub fn name(&self) -> &str {
        self.blocks.name()
    }

    /// The length of the whole file.
    pub fn length(&self) -> u64 {
        (1 + self.count.div_ceil(LATEST_RUNS_PER_BLOCK)).saturating_mul(INDEX_BLOCK_BYTES as u64)
    }

    /// The numbers of the blocks that are corrupt.
    ///
    /// # Errors
    /// The disk fails.
    pub fn corrupt_blocks(&self) -> Result<Vec<u64>, StorageError> {
        self.blocks.corrupt_among(self.length() / INDEX_BLOCK_BYTES as u64)
    }

    /// Latest run `number`, in the order of logs.
    ///
    /// # Errors
    /// It cannot be read, or is corrupt.
    pub fn latest_run_at(&self, number: u64) -> Result<LatestRun, StorageError> {
        assert!(number < self.count, "a head that is not there");
        let block = self.blocks.get(1 + number / LATEST_RUNS_PER_BLOCK)?;
        let at = BLOCK_HEADER_BYTES + (number % LATEST_RUNS_PER_BLOCK) as usize * LATEST_RUN_BYTES;
        Ok(LatestRun::decode(&block[at..at + LATEST_RUN_BYTES]))
    }

    /// The latest run of `log`.
    ///
    /// # Errors
    /// It cannot be read, or is corrupt.
    pub fn latest_run(&self, log: LogId) -> Result<Option<LatestRun>, StorageError> {
        let Some(last) = self.count.checked_sub(1) else { return Ok(None) };
        if log > self.latest_run_at(last)?.log {
            return Ok(None);
        }
        let number = bisect(0..self.count, |number| Ok(self.latest_run_at(number)?.log < log))?;
        if number == self.count {
            return Ok(None);
        }
        Ok(Some(self.latest_run_at(number)?).filter(|head| head.log == log))
    }
}

fn decode_header(bytes: &[u8; INDEX_BLOCK_BYTES]) -> Option<(Range<u64>, u64)> {
    let u64_at = |at: usize| {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes of a block"))
    };
    let (start, end, count) = (u64_at(24), u64_at(32), u64_at(40));
    verify_block_checksum(bytes, start, 0)?;
    let is_known = &bytes[8..16] == MAGIC && bytes[16..20] == VERSION.to_le_bytes();
    (is_known && start < end && count < 1 << 40).then_some((start..end, count))
}

fn encode_header(stretch: &Range<u64>, count: u64) -> [u8; INDEX_BLOCK_BYTES] {
    let mut bytes = [0; INDEX_BLOCK_BYTES];
    bytes[8..16].copy_from_slice(MAGIC);
    bytes[16..20].copy_from_slice(&VERSION.to_le_bytes());
    bytes[24..32].copy_from_slice(&stretch.start.to_le_bytes());
    bytes[32..40].copy_from_slice(&stretch.end.to_le_bytes());
    bytes[40..48].copy_from_slice(&count.to_le_bytes());
    write_block_checksum(&mut bytes, stretch.start, 0, 40);
    bytes
}

/// The input of a table.
pub(crate) enum LatestRunSource {
    /// A segment, and its index as it was at first: a rebuilt one has other numbers.
    Segment(Arc<SealedSegment>, Arc<SegmentIndex>),
    Table(Arc<LatestRunTable>),
}

impl LatestRunSource {
    /// The source for a segment.
    pub(crate) fn of(segment: &Arc<SealedSegment>) -> LatestRunSource {
        LatestRunSource::Segment(Arc::clone(segment), segment.index())
    }

    fn count(&self) -> u64 {
        match self {
            LatestRunSource::Segment(_, index) => index.header.runs,
            LatestRunSource::Table(table) => table.count,
        }
    }

    fn latest_run_at(&self, number: u64) -> Result<LatestRun, StorageError> {
        match self {
            LatestRunSource::Segment(segment, index) => {
                let run = segment.note_corruption(index.run_at(number))?;
                Ok(LatestRun { log: run.log, segment: segment.start, number, end: run.tip.end })
            }
            LatestRunSource::Table(table) => table.latest_run_at(number),
        }
    }
}

/// Writes the table of a range from its sources, oldest first. Runs for which `is_kept` is false
/// are left out.
pub(crate) fn write_latest_runs(
    disk: &dyn Disk,
    stretch: Range<u64>,
    sources: &[LatestRunSource],
    is_kept: impl Fn(&LatestRun) -> bool,
) -> Result<(), StorageError> {
    let mut blocks = BlockWriter::create(disk, &latest_runs_name(&stretch), stretch.start)?;
    // By log, and of one log the newest first.
    let mut next = BinaryHeap::new();
    let push = |next: &mut BinaryHeap<_>, place: usize, number: u64| -> Result<(), StorageError> {
        if number < sources[place].count() {
            let head = sources[place].latest_run_at(number)?;
            next.push(Reverse((head.log, Reverse(place), number, head)));
        }
        Ok(())
    };
    for place in 0..sources.len() {
        push(&mut next, place, 0)?;
    }
    let (mut count, mut last) = (0, None);
    while let Some(Reverse((log, Reverse(place), number, head))) = next.pop() {
        if last != Some(log) && is_kept(&head) {
            blocks.record::<LATEST_RUN_BYTES>(&head.encode())?;
            count += 1;
        }
        last = Some(log);
        push(&mut next, place, number + 1)?;
    }
    blocks.finish(&encode_header(&stretch, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_file::DataFile;
    use crate::disk::MemoryDisk;
    use crate::index::{IndexBuilder, LogTip, RunLinks};
    use crate::sealed_segment::{SegmentFiles, SegmentLayout};

    fn index(disk: &MemoryDisk, name: &str, logs: &[u64]) -> Arc<SegmentIndex> {
        let mut builder = IndexBuilder::create(disk, name, 0, 4096).unwrap();
        for log in logs {
            builder.begin_run(
                LogId(*log),
                LogTip { end: Offset(7), ..LogTip::NONE },
                RunLinks::FIRST,
            );
        }
        builder.finish(None).unwrap();
        let cache = Arc::new(BlockCache::new(1 << 20));
        Arc::new(SegmentIndex::open(disk, name, 0, &cache).unwrap().unwrap())
    }

    /// A caller's thread rebuilds an index while the maintenance thread gathers latest runs from
    /// it: `SealedHistory::log` does so, under `reclaim_state` alone. A removed log (log 1) is not
    /// in the new index, so runs have other numbers. No log that still exists may be missing in the
    /// table.
    #[test]
    fn a_table_lacks_no_log_because_an_index_was_rebuilt_meanwhile() {
        let disk = MemoryDisk::new();
        let data = Arc::new(DataFile::new(StorageFile::create(&disk, "data").unwrap()));
        let old = index(&disk, "old", &[1, 2, 3, 4]);
        let rebuilt = index(&disk, "new", &[2, 3, 4]);
        let segment =
            Arc::new(SealedSegment::new(SegmentLayout::Journal, SegmentFiles { data, index: old }));
        let is_kept = |head: &LatestRun| {
            segment.set_index(Arc::clone(&rebuilt));
            head.log != LogId(1)
        };
        write_latest_runs(&disk, 0..4096, &[LatestRunSource::of(&segment)], is_kept).unwrap();
        let cache = Arc::new(BlockCache::new(1 << 20));
        let table = LatestRunTable::open(&disk, 0..4096, &cache).unwrap().unwrap();
        let missing: Vec<u64> =
            (2..5).filter(|log| table.latest_run(LogId(*log)).unwrap().is_none()).collect();
        assert_eq!(missing, [0; 0], "logs that are alive and have no head");
    }
}
