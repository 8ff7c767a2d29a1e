//! The index of a sealed segment: its entries, sorted by log, and a directory of the
//! runs that they form.
//!
//! Invariants:
//! - It is soft: it can be rebuilt from its data file, the runs before those in it, and the log
//!   horizons.
//! - Its directory lists the logs that have entries in the segment, where each of them ended, and
//!   where its earlier runs are. So it costs what it holds, however many logs there are or were.
//!   The run that holds an offset is found by following links, with nothing about any log held in
//!   memory.
//! - Every block is verified when it is read.
//!
//! `docs/FORMAT.md` has the layout.

mod blocks;
mod build;
mod latest_runs;
mod record;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use hlc::Hlc;

use crate::disk::Disk;
use crate::entry::LogId;
use crate::error::StorageError;
use crate::storage_file::StorageFile;
pub use blocks::BlockCache;
use blocks::{
    BLOCK_HEADER_BYTES, CONTENT_BYTES, INDEX_BLOCK_BYTES, IndexBlockReader, verify_block_checksum,
    write_block_checksum,
};
pub(crate) use build::IndexBuilder;
pub use latest_runs::{LatestRun, LatestRunTable, latest_runs_name, latest_runs_range};
pub(crate) use latest_runs::{LatestRunSource, write_latest_runs};
use record::{ENTRY_BYTES, RUN_BYTES};
pub use record::{IndexEntry, IndexRun, LogTip, RunLinks, RunLocation};

const MAGIC: &[u8; 8] = b"FFINDEX1";
const VERSION: u32 = 2;
/// The number of entries that a block holds.
const ENTRIES_PER_BLOCK: u64 = (CONTENT_BYTES / ENTRY_BYTES) as u64;
/// The number of runs that a block holds.
const RUNS_PER_BLOCK: u64 = (CONTENT_BYTES / RUN_BYTES) as u64;
/// No store has more logs than this.
const RUNS_MAX: u64 = 1 << 40;
/// No log has more offsets, or bytes, than this.
const COUNT_MAX: u64 = 1 << 62;
/// No stage has more state than this.
const STATE_BYTES_MAX: u64 = 1 << 30;

/// The header in the first block of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexHeader {
    /// The position at which the segment begins.
    pub start: u64,
    /// The position after it.
    pub end: u64,
    /// The number of entries in the index.
    pub entries: u64,
    /// The number of runs in the index.
    pub runs: u64,
    /// The length of the stage's state in bytes; `None` if it was unknown when the index was made.
    pub state_bytes: Option<u64>,
    pub first_stamp: Hlc,
    pub last_stamp: Hlc,
    /// The number of extents in which the data file stores the runs.
    pub extents: u64,
    /// The last of the logs that have no run here, though the data file may have frames of them, or
    /// holes in their place. `Some` if the index was rebuilt after these logs were removed.
    pub hidden_to: Option<LogId>,
}

impl IndexHeader {
    fn encode(&self) -> [u8; INDEX_BLOCK_BYTES] {
        let mut bytes = [0; INDEX_BLOCK_BYTES];
        let mut at = BLOCK_HEADER_BYTES;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(MAGIC);
        put(&VERSION.to_le_bytes());
        put(&[0; 4]);
        put(&self.start.to_le_bytes());
        put(&self.end.to_le_bytes());
        put(&self.entries.to_le_bytes());
        put(&self.runs.to_le_bytes());
        put(&self.state_bytes.unwrap_or(u64::MAX).to_le_bytes());
        put(&self.first_stamp.bits().to_le_bytes());
        put(&self.last_stamp.bits().to_le_bytes());
        put(&self.extents.to_le_bytes());
        if let Some(LogId(gone_to)) = self.hidden_to {
            put(&gone_to.saturating_add(1).to_le_bytes());
        }
        let length = (at - BLOCK_HEADER_BYTES) as u32;
        write_block_checksum(&mut bytes, self.start, 0, length);
        bytes
    }

    fn decode(bytes: &[u8; INDEX_BLOCK_BYTES], start: u64) -> Option<IndexHeader> {
        let u64_at = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes of a block"))
        };
        verify_block_checksum(bytes, start, 0)?;
        let header = IndexHeader {
            start: u64_at(24),
            end: u64_at(32),
            entries: u64_at(40),
            runs: u64_at(48),
            state_bytes: Some(u64_at(56)).filter(|bytes| *bytes != u64::MAX),
            first_stamp: Hlc::from_bits(u64_at(64)),
            last_stamp: Hlc::from_bits(u64_at(72)),
            extents: u64_at(80),
            hidden_to: u64_at(88).checked_sub(1).map(LogId),
        };
        let has_format = &bytes[8..16] == MAGIC && bytes[16..20] == VERSION.to_le_bytes();
        let lawful = header.start == start
            && header.end >= start
            && header.runs <= RUNS_MAX
            && header.entries <= (header.end - start) / 8 + header.runs
            && header.state_bytes.is_none_or(|bytes| bytes <= STATE_BYTES_MAX);
        (has_format && lawful).then_some(header)
    }

    fn run_block(&self) -> u64 {
        1 + self.entries.div_ceil(ENTRIES_PER_BLOCK)
    }

    fn state_block(&self) -> u64 {
        self.run_block() + self.runs.div_ceil(RUNS_PER_BLOCK)
    }

    /// The length of the whole file.
    pub fn length(&self) -> u64 {
        let state = self.state_bytes.unwrap_or(0).div_ceil(CONTENT_BYTES as u64);
        (self.state_block() + state).saturating_mul(INDEX_BLOCK_BYTES as u64)
    }
}

/// An open index file.
pub struct SegmentIndex {
    pub header: IndexHeader,
    blocks: IndexBlockReader,
    /// The last log that has a run, once it was looked up: a new log is in no segment.
    last_log: OnceLock<LogId>,
}

impl std::fmt::Debug for SegmentIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("name", &self.blocks.name()).finish_non_exhaustive()
    }
}

impl SegmentIndex {
    /// Opens the index `name` of the segment that begins at `start`; `None` if there is none, or
    /// its beginning is corrupt or cannot be read.
    ///
    /// # Errors
    /// The disk fails.
    pub fn open(
        disk: &dyn Disk,
        name: &str,
        start: u64,
        cache: &Arc<BlockCache>,
    ) -> Result<Option<SegmentIndex>, StorageError> {
        let Some(file) = StorageFile::open_if_exists(disk, name)? else { return Ok(None) };
        let length = file.length()?;
        if length < INDEX_BLOCK_BYTES as u64 {
            return Ok(None);
        }
        let mut bytes = [0; INDEX_BLOCK_BYTES];
        match file.read_exact_at(&mut bytes, 0) {
            Err(error) if error.is_data_loss() => return Ok(None),
            read => read?,
        }
        let Some(header) = IndexHeader::decode(&bytes, start) else { return Ok(None) };
        if header.length() != length {
            return Ok(None);
        }
        let blocks = IndexBlockReader::new(file, Arc::clone(cache), start);
        Ok(Some(SegmentIndex { header, blocks, last_log: OnceLock::new() }))
    }

    /// Opens an index without expectations, for inspection: it may be longer or shorter than its
    /// header says. `None` if it does not begin as an index, or not with a whole block.
    ///
    /// # Errors
    /// The disk fails.
    pub fn open_any(file: StorageFile) -> Result<Option<SegmentIndex>, StorageError> {
        let mut bytes = [0; INDEX_BLOCK_BYTES];
        if file.read_at(&mut bytes, 0)? < bytes.len() {
            return Ok(None);
        }
        let start = u64::from_le_bytes(bytes[24..32].try_into().expect("eight bytes of a block"));
        let Some(header) = IndexHeader::decode(&bytes, start) else { return Ok(None) };
        let cache = Arc::new(BlockCache::new(0));
        let blocks = IndexBlockReader::new(file, cache, start);
        Ok(Some(SegmentIndex { header, blocks, last_log: OnceLock::new() }))
    }

    /// Its name in the journal's directory.
    pub fn name(&self) -> &str {
        self.blocks.name()
    }

    fn record<T, const BYTES: usize>(
        &self,
        from_block: u64,
        number: u64,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, StorageError> {
        let records = (CONTENT_BYTES / BYTES) as u64;
        let block = self.blocks.get(from_block + number / records)?;
        let at = BLOCK_HEADER_BYTES + (number % records) as usize * BYTES;
        Ok(read(&block[at..at + BYTES]))
    }

    /// Entry `number`.
    ///
    /// # Errors
    /// It cannot be read, or is corrupt.
    pub fn entry(&self, number: u64) -> Result<IndexEntry, StorageError> {
        assert!(number < self.header.entries, "an entry that is not there");
        self.record::<_, ENTRY_BYTES>(1, number, IndexEntry::decode)
    }

    /// The first entry in `range` for which `before` is false; it is true for all earlier entries.
    pub(crate) fn partition_point(
        &self,
        range: Range<u64>,
        before: impl Fn(&IndexEntry) -> bool,
    ) -> Result<u64, StorageError> {
        bisect(range, |number| Ok(before(&self.entry(number)?)))
    }

    /// Run `number`, in the order of logs.
    ///
    /// # Errors
    /// It cannot be read, or is corrupt.
    pub fn run_at(&self, number: u64) -> Result<IndexRun, StorageError> {
        assert!(number < self.header.runs, "a run that is not there");
        let run = self.record::<_, RUN_BYTES>(self.header.run_block(), number, IndexRun::decode)?;
        if !self.is_valid_run(&run) {
            return Err(self
                .blocks
                .corruption_error(self.header.run_block() + number / RUNS_PER_BLOCK));
        }
        Ok(run)
    }

    /// Returns true if a run is plausible: following its links ends, and counting on from it does
    /// not overflow.
    fn is_valid_run(&self, run: &IndexRun) -> bool {
        let IndexHeader { entries, start, last_stamp, .. } = self.header;
        let leads_back =
            |place: Option<RunLocation>| place.is_none_or(|place| place.segment < start);
        run.count <= entries
            && run.first <= entries - run.count
            && leads_back(run.links.previous)
            && leads_back(run.links.jump)
            && run.base <= run.tip.end
            && run.tip.end.0 <= COUNT_MAX
            && run.tip.bytes <= COUNT_MAX
            && run.tip.stamp <= last_stamp
    }

    /// The run of `log`.
    ///
    /// # Errors
    /// It cannot be read, or is corrupt.
    pub fn run(&self, log: LogId) -> Result<Option<IndexRun>, StorageError> {
        Ok(self.find_run(log)?.map(|(_, run)| run))
    }

    /// The run of `log`, and its number.
    ///
    /// # Errors
    /// It cannot be read, or is corrupt.
    pub fn find_run(&self, log: LogId) -> Result<Option<(u64, IndexRun)>, StorageError> {
        if self.last_log()?.is_none_or(|last| log > last) {
            return Ok(None);
        }
        let from = self.header.run_block();
        let number = bisect(0..self.header.runs, |number| {
            self.record::<_, RUN_BYTES>(from, number, |bytes| IndexRun::decode(bytes).log < log)
        })?;
        if number == self.header.runs {
            return Ok(None);
        }
        let run = self.run_at(number)?;
        Ok((run.log == log).then_some((number, run)))
    }

    fn last_log(&self) -> Result<Option<LogId>, StorageError> {
        let Some(last) = self.header.runs.checked_sub(1) else { return Ok(None) };
        if let Some(log) = self.last_log.get() {
            return Ok(Some(*log));
        }
        let log = self.run_at(last)?.log;
        Ok(Some(*self.last_log.get_or_init(|| log)))
    }

    /// The run of `log`, which is probably number `hint`.
    pub(crate) fn run_near(&self, log: LogId, hint: u64) -> Result<Option<IndexRun>, StorageError> {
        if hint < self.header.runs {
            let run = self.run_at(hint)?;
            if run.log == log {
                return Ok(Some(run));
            }
        }
        self.run(log)
    }

    /// The stage's state at the end of the segment, if known.
    ///
    /// # Errors
    /// It cannot be read, or is corrupt.
    pub fn state(&self) -> Result<Option<Vec<u8>>, StorageError> {
        let Some(length) = self.header.state_bytes else { return Ok(None) };
        let mut state = Vec::with_capacity(length as usize);
        let mut number = self.header.state_block();
        while (state.len() as u64) < length {
            let block = self.blocks.get(number)?;
            let count = (length as usize - state.len()).min(CONTENT_BYTES);
            state.extend_from_slice(&block[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + count]);
            number += 1;
        }
        Ok(Some(state))
    }

    /// The same; `None` also if it is lost: it is soft.
    pub(crate) fn readable_state(&self) -> Result<Option<Vec<u8>>, StorageError> {
        match self.state() {
            Err(error) if error.is_data_loss() => Ok(None),
            state => state,
        }
    }

    /// The numbers of the blocks of the open file that are corrupt or missing.
    ///
    /// # Errors
    /// The disk fails.
    pub fn corrupt_blocks(&self) -> Result<Vec<u64>, StorageError> {
        self.blocks.corrupt_among(self.header.length() / INDEX_BLOCK_BYTES as u64)
    }

    /// Reads every block again; returns the numbers of those that are corrupt, or cannot be read.
    ///
    /// # Errors
    /// The disk fails, in a way that may be gone at the next attempt.
    pub fn check(&self, disk: &dyn Disk) -> Result<Vec<u64>, StorageError> {
        let Some(file) = StorageFile::open_if_exists(disk, self.name())? else {
            return Ok(vec![0]);
        };
        let mut bytes = [0; INDEX_BLOCK_BYTES];
        let mut damaged = Vec::new();
        for number in 0..self.header.length() / INDEX_BLOCK_BYTES as u64 {
            match file.read_exact_at(&mut bytes, number * INDEX_BLOCK_BYTES as u64) {
                Ok(()) if verify_block_checksum(&bytes, self.header.start, number).is_some() => {}
                Err(error) if !error.is_data_loss() => return Err(error),
                Ok(()) | Err(_) => damaged.push(number),
            }
        }
        Ok(damaged)
    }
}

/// The first number in `range` for which `before` is false; it is true for all smaller numbers.
pub(crate) fn bisect(
    range: Range<u64>,
    before: impl Fn(u64) -> Result<bool, StorageError>,
) -> Result<u64, StorageError> {
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle)? {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}
