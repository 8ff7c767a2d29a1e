//! Head tables: where the newest run of each log stands, among the parts of a long stretch. So a log of
//! which nothing is in memory is found without looking into every part.
//!
//! A table is soft: it says nothing that the indexes of the parts do not say. `docs/FORMAT.md` has the
//! layout.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::blocks::{
    BlockCache, BlockWriter, Blocks, CONTENT_BYTES, INDEX_BLOCK_BYTES, LEAD_BYTES, open_block,
    seal_block,
};
use super::{Index, RunPlace, bisect};
use crate::disk::{Disk, DiskFile, read_exact_at};
use crate::log::{LogId, Offset};
use crate::part::Part;

const MAGIC: &[u8; 8] = b"FFHEADS1";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 32;
/// How many heads a block holds.
const HEADS: u64 = (CONTENT_BYTES / HEAD_BYTES) as u64;
const SUFFIX: &str = ".heads";

/// Where the newest run of a log stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Head {
    /// The log.
    pub log: LogId,
    /// The position at which the part begins.
    pub part: u64,
    /// Which of its runs it is, or was when the table was written.
    pub number: u64,
    /// The offset behind the run's last.
    pub end: Offset,
}

impl Head {
    /// The place of the run.
    pub fn place(&self) -> RunPlace {
        RunPlace { part: self.part, number: self.number }
    }

    fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.log.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.part.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..].copy_from_slice(&self.end.0.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Head {
        let u64_at = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes are eight bytes"))
        };
        let (log, end) = (LogId(u64_at(0)), Offset(u64_at(24)));
        Head { log, part: u64_at(8), number: u64_at(16), end }
    }
}

/// The name of the table of a stretch.
pub fn heads_name(stretch: &Range<u64>) -> String {
    format!("{:020}-{:020}{SUFFIX}", stretch.start, stretch.end)
}

/// The stretch of a table of this name, if it is one.
pub fn heads_stretch(name: &str) -> Option<Range<u64>> {
    let (start, end) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    let stretch = start.parse().ok()?..end.parse().ok()?;
    (heads_name(&stretch) == name).then_some(stretch)
}

/// A table that is open.
pub struct HeadTable {
    /// The positions between which its parts lie.
    pub stretch: Range<u64>,
    /// How many logs it has.
    pub count: u64,
    blocks: Blocks,
}

impl std::fmt::Debug for HeadTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeadTable").field("name", &self.blocks.name).finish_non_exhaustive()
    }
}

impl HeadTable {
    /// Opens the table of a stretch; `None` if there is none, or it is damaged where it begins.
    ///
    /// # Errors
    /// The disk fails.
    pub fn open(
        disk: &dyn Disk,
        stretch: Range<u64>,
        cache: &Arc<BlockCache>,
    ) -> io::Result<Option<HeadTable>> {
        let name = heads_name(&stretch);
        let file = match disk.open(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let length = file.length()?;
        let table = HeadTable::open_any(&name, file, Arc::clone(cache))?;
        let is_whole = |table: &HeadTable| table.stretch == stretch && table.length() == length;
        Ok(table.filter(is_whole))
    }

    /// Opens a table of which nothing is known, to look at it: it may be longer or shorter than it says.
    /// `None` if it does not begin as one.
    ///
    /// # Errors
    /// The disk fails.
    pub fn open_any(
        name: &str,
        file: Arc<dyn DiskFile>,
        cache: Arc<BlockCache>,
    ) -> io::Result<Option<HeadTable>> {
        if file.length()? < INDEX_BLOCK_BYTES as u64 {
            return Ok(None);
        }
        let mut bytes = [0; INDEX_BLOCK_BYTES];
        read_exact_at(&*file, &mut bytes, 0)?;
        let Some((stretch, count)) = decode_header(&bytes) else { return Ok(None) };
        let start = stretch.start;
        Ok(Some(HeadTable {
            stretch,
            count,
            blocks: Blocks::new(name.to_owned(), file, cache, start),
        }))
    }

    /// Its name in the journal's directory.
    pub fn name(&self) -> &str {
        &self.blocks.name
    }

    /// The length of the whole file.
    pub fn length(&self) -> u64 {
        (1 + self.count.div_ceil(HEADS)).saturating_mul(INDEX_BLOCK_BYTES as u64)
    }

    /// The numbers of the blocks that are damaged.
    ///
    /// # Errors
    /// The disk fails.
    pub fn damaged_blocks(&self) -> io::Result<Vec<u64>> {
        self.blocks.damaged_among(self.length() / INDEX_BLOCK_BYTES as u64)
    }

    /// Head `number`, in the order of logs.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn head_at(&self, number: u64) -> io::Result<Head> {
        assert!(number < self.count, "a head that is not there");
        let block = self.blocks.get(1 + number / HEADS)?;
        let at = LEAD_BYTES + (number % HEADS) as usize * HEAD_BYTES;
        Ok(Head::decode(&block[at..at + HEAD_BYTES]))
    }

    /// The head of `log`.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn head(&self, log: LogId) -> io::Result<Option<Head>> {
        let Some(last) = self.count.checked_sub(1) else { return Ok(None) };
        if log > self.head_at(last)?.log {
            return Ok(None);
        }
        let number = bisect(0..self.count, |number| Ok(self.head_at(number)?.log < log))?;
        if number == self.count {
            return Ok(None);
        }
        Ok(Some(self.head_at(number)?).filter(|head| head.log == log))
    }
}

fn decode_header(bytes: &[u8; INDEX_BLOCK_BYTES]) -> Option<(Range<u64>, u64)> {
    let u64_at = |at: usize| {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes of a block"))
    };
    let (start, end, count) = (u64_at(24), u64_at(32), u64_at(40));
    open_block(bytes, start, 0)?;
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
    seal_block(&mut bytes, stretch.start, 0, 40);
    bytes
}

/// What heads are gathered from.
pub(crate) enum HeadSource {
    /// The part, and its index as it was at first: one that is made anew meanwhile has other numbers.
    Part(Arc<Part>, Arc<Index>),
    Table(Arc<HeadTable>),
}

impl HeadSource {
    /// What there is of a part.
    pub(crate) fn of(part: &Arc<Part>) -> HeadSource {
        HeadSource::Part(Arc::clone(part), part.index())
    }

    fn count(&self) -> u64 {
        match self {
            HeadSource::Part(_, index) => index.header.runs,
            HeadSource::Table(table) => table.count,
        }
    }

    fn head_at(&self, number: u64) -> io::Result<Head> {
        match self {
            HeadSource::Part(part, index) => {
                let run = part.note(index.run_at(number))?;
                Ok(Head { log: run.log, part: part.start, number, end: run.tip.end })
            }
            HeadSource::Table(table) => table.head_at(number),
        }
    }
}

/// Writes the table of a stretch from all that there is of it, oldest first; without what `is_kept`
/// says is not looked for any more.
pub(crate) fn write_heads(
    disk: &dyn Disk,
    stretch: Range<u64>,
    sources: &[HeadSource],
    is_kept: impl Fn(&Head) -> bool,
) -> io::Result<()> {
    let mut blocks = BlockWriter::create(disk, &heads_name(&stretch), stretch.start)?;
    // By log, and of one log the newest first.
    let mut next = BinaryHeap::new();
    let push = |next: &mut BinaryHeap<_>, place: usize, number: u64| -> io::Result<()> {
        if number < sources[place].count() {
            let head = sources[place].head_at(number)?;
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
            blocks.record::<HEAD_BYTES>(&head.encode())?;
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
    use crate::index::{IndexBuilder, Links, Tip};
    use crate::part::{Indexed, Layout};

    fn index(disk: &MemoryDisk, name: &str, logs: &[u64]) -> Arc<Index> {
        let mut builder = IndexBuilder::create(disk, name, 0, 4096).unwrap();
        for log in logs {
            builder.begin(LogId(*log), Tip { end: Offset(7), ..Tip::NONE }, Links::FIRST);
        }
        builder.finish(None).unwrap();
        let cache = Arc::new(BlockCache::new(1 << 20));
        Arc::new(Index::open(disk, name, 0, &cache).unwrap().unwrap())
    }

    /// A caller's thread makes an index anew while the tender gathers heads from it: `History::log` does so,
    /// under `reclaiming` alone. What was given up (log 1) is not in the new one, so runs have other
    /// numbers; no log that is alive may be missing in the table.
    #[test]
    fn a_table_lacks_no_log_because_an_index_was_made_anew_meanwhile() {
        let disk = MemoryDisk::new();
        let data = Arc::new(DataFile::new("data".to_owned(), disk.create("data").unwrap()));
        let old = index(&disk, "old", &[1, 2, 3, 4]);
        let anew = index(&disk, "new", &[2, 3, 4]);
        let part = Arc::new(Part::new(Layout::Journal, Indexed { data, index: old }));
        let is_kept = |head: &Head| {
            part.set_index(Arc::clone(&anew));
            head.log != LogId(1)
        };
        write_heads(&disk, 0..4096, &[HeadSource::of(&part)], is_kept).unwrap();
        let cache = Arc::new(BlockCache::new(1 << 20));
        let table = HeadTable::open(&disk, 0..4096, &cache).unwrap().unwrap();
        let missing: Vec<u64> =
            (2..5).filter(|log| table.head(LogId(*log)).unwrap().is_none()).collect();
        assert_eq!(missing, [0; 0], "logs that are alive and have no head");
    }
}
