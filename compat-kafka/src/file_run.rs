//! Chunks of a response that lie near each other in one data file. They are read together, and
//! compared with the checksums of their entries while they are in memory.
//!
//! A reader of large ranges reads whole blocks. All readers share the blocks ([`DataCache`]), and
//! the next block is read ahead while one is sent. A few bytes here and there are read directly.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use engine::{
    DATA_BLOCK_BYTES, DIRECT_READ_BYTES_MIN, DataCache, DataFile, DataFileBlock, LoadBuffer,
    StorageError, block_of,
};
use parking_lot::Mutex;

use crate::corruption::{Corruption, RunningChecksum};
use crate::response::ResponseChunk;

/// The most buffers that are kept for the next run.
const POOLED_BUFFERS_MAX: usize = 8;

/// Reads runs of files for responses.
pub(crate) struct FileLoader {
    blocks: Arc<DataCache>,
    /// Buffers of short runs, for reuse.
    buffers: Mutex<Vec<LoadBuffer>>,
}

impl FileLoader {
    pub(crate) fn new(blocks: Arc<DataCache>) -> FileLoader {
        FileLoader { blocks, buffers: Mutex::default() }
    }

    fn take_buffer(&self) -> LoadBuffer {
        self.buffers.lock().pop().unwrap_or_else(|| self.blocks.new_buffer())
    }

    /// Takes back the buffer of a run that was sent.
    pub(crate) fn recycle(&self, loaded: LoadedRuns) {
        for run in loaded.0 {
            let RunBytes::Buffer(buffer) = run.bytes else { continue };
            let mut kept = self.buffers.lock();
            if kept.len() < POOLED_BUFFERS_MAX {
                kept.push(buffer);
            }
        }
    }

    /// Starts to load a block that is needed soon, unless it is in memory. Nothing waits for it.
    fn read_ahead(&self, file: &Arc<DataFile>, number: u64) {
        if !self.blocks.should_read_ahead(file, number) {
            return;
        }
        let (blocks, file) = (Arc::clone(&self.blocks), Arc::clone(file));
        // The reader that needs the block loads it again, and gets the error then.
        tokio::task::spawn_blocking(move || drop(blocks.load(&file, number, 0)));
    }
}

/// The reason that a run cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{0}")]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// Retention, DeleteRecords or compaction removed it after the response began, and its space is
    /// given back.
    #[error("the records were removed while the client was reading them")]
    Removed,
}

/// A range of a file that is read at once, and the payloads wanted from it.
#[derive(Clone)]
struct FileRun {
    file: Arc<DataFile>,
    /// The block of the file that contains the whole run; `None` if blocks are not cached.
    block: Option<u64>,
    /// The position in the file that ranges are relative to: the start of the block or of the run.
    base: u64,
    range: Range<usize>,
    payloads: Vec<PayloadRange>,
    /// True if the response needs enough from here on to make whole blocks worth reading.
    is_scan: bool,
}

/// A payload within a run, or the piece of a long payload that lies in the run.
#[derive(Clone)]
struct PayloadRange {
    range: Range<usize>,
    /// The checksum over the bytes that earlier runs had of the payload.
    checksum: RunningChecksum,
    is_last: bool,
}

/// The memory that has the bytes of a run.
#[derive(Debug)]
enum RunBytes {
    Block(Arc<DataFileBlock>),
    /// In a buffer that holds only the run.
    Buffer(LoadBuffer),
}

impl AsRef<[u8]> for RunBytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            RunBytes::Block(block) => block.bytes(),
            RunBytes::Buffer(buffer) => buffer.bytes(),
        }
    }
}

/// The bytes of a run, and the ranges in them that are wanted.
#[derive(Debug)]
struct LoadedRun {
    ranges: Vec<Range<usize>>,
    bytes: RunBytes,
}

/// Runs in memory, with nothing in them that is known to be corrupt.
#[derive(Debug)]
pub(crate) struct LoadedRuns(Vec<LoadedRun>);

impl LoadedRuns {
    /// The wanted ranges, each of which keeps the memory of its run.
    pub(crate) fn into_pieces(self) -> impl Iterator<Item = Bytes> {
        self.0.into_iter().flat_map(|run| {
            let bytes = Bytes::from_owner(run.bytes);
            run.ranges.into_iter().map(move |part| bytes.slice(part))
        })
    }

    /// The wanted ranges.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().flat_map(|run| {
            let bytes = run.bytes.as_ref();
            run.ranges.iter().map(|part| &bytes[part.clone()])
        })
    }
}

/// Loads the leading chunks that lie in one run, and removes them from the queue. A payload no
/// longer than a block is loaded whole, so that it is compared before any of it goes out. A longer
/// one is loaded in pieces.
///
/// # Panics
/// The first chunk is in memory.
pub(crate) async fn load_leading_chunks(
    chunks: &mut VecDeque<ResponseChunk>,
    loader: &FileLoader,
) -> Result<LoadedRuns, LoadError> {
    let run = FileRun::take(chunks, loader.blocks.can_read_ahead());
    let run = run.expect("the first chunk is in a file");
    let rest = run.take_rest(chunks);
    let ahead = rest.as_ref().unwrap_or(&run).next_block(chunks);
    let runs: Vec<FileRun> = [Some(run), rest].into_iter().flatten().collect();
    let mut loaded = load_runs(&runs, loader).await;
    if matches!(loaded, Err(LoadError::Corrupt(_))) && runs[0].block.is_some() {
        // Memory can fail too: only if the disk returns the same bytes again, it is corruption.
        runs.iter().for_each(|run| run.evict_block(loader));
        loaded = load_runs(&runs, loader).await;
    }
    if let Err(LoadError::Corrupt(_)) = loaded {
        // The disk may return the right bytes later.
        runs.iter().for_each(|run| run.evict_block(loader));
    }
    let (loaded, carried) = loaded?;
    if let (Some(carried), Some(ResponseChunk::File { checksum, .. })) =
        (carried, chunks.front_mut())
    {
        *checksum = carried;
    }
    if let Some((file, number)) = ahead {
        loader.read_ahead(&file, number);
    }
    Ok(loaded)
}

/// Loads consecutive runs. Returns the checksum so far of a payload that continues after them.
async fn load_runs(
    runs: &[FileRun],
    loader: &FileLoader,
) -> Result<(LoadedRuns, Option<RunningChecksum>), LoadError> {
    let (mut loaded, mut carried) = (Vec::with_capacity(runs.len()), None);
    for run in runs {
        let (bytes, behind) = run.load(loader, carried).await?;
        loaded.push(bytes);
        carried = behind;
    }
    Ok((LoadedRuns(loaded), carried))
}

impl FileRun {
    /// The run that begins with the first chunk.
    fn begin(chunks: &VecDeque<ResponseChunk>, in_blocks: bool) -> Option<FileRun> {
        let Some(ResponseChunk::File { file, at, .. }) = chunks.front() else { return None };
        let (number, from) = block_of(*at);
        let (block, from) = if in_blocks { (Some(number), from) } else { (None, 0) };
        Some(FileRun {
            file: Arc::clone(file),
            block,
            base: at - from as u64,
            range: from..from,
            payloads: Vec::new(),
            is_scan: in_blocks && is_scan(chunks),
        })
    }

    fn take(chunks: &mut VecDeque<ResponseChunk>, in_blocks: bool) -> Option<FileRun> {
        let mut run = FileRun::begin(chunks, in_blocks)?;
        while run.take_chunk(chunks) {}
        Some(run)
    }

    /// The rest of the payload that continues after this run, if it must be compared before any of
    /// it goes out.
    fn take_rest(&self, chunks: &mut VecDeque<ResponseChunk>) -> Option<FileRun> {
        let begun = self.payloads.last().filter(|part| !part.is_last && part.checksum.is_new())?;
        let Some(ResponseChunk::File { length, .. }) = chunks.front() else { return None };
        if begun.range.len() + length > DATA_BLOCK_BYTES {
            return None;
        }
        let mut rest = FileRun::begin(chunks, self.block.is_some())?;
        rest.is_scan |= self.is_scan;
        rest.take_chunk(chunks);
        Some(rest)
    }

    /// Takes the part of the first chunk that lies in the run. Returns whether the next chunk may
    /// lie in it too.
    fn take_chunk(&mut self, chunks: &mut VecDeque<ResponseChunk>) -> bool {
        let Some(ResponseChunk::File { file, at, length, checksum }) = chunks.front_mut() else {
            return false;
        };
        let start = at.checked_sub(self.base).unwrap_or(u64::MAX);
        if !Arc::ptr_eq(file, &self.file)
            || start >= DATA_BLOCK_BYTES as u64
            || (start as usize) < self.range.end
        {
            return false;
        }
        let start = start as usize;
        let end = DATA_BLOCK_BYTES.min(start + *length);
        let is_last = end == start + *length;
        self.payloads.push(PayloadRange { range: start..end, checksum: *checksum, is_last });
        self.range.end = end;
        *at += (end - start) as u64;
        *length -= end - start;
        if is_last {
            chunks.pop_front();
        }
        is_last
    }

    /// The block to read ahead: the next one of the response, or else of the file.
    fn next_block(&self, chunks: &VecDeque<ResponseChunk>) -> Option<(Arc<DataFile>, u64)> {
        if !self.is_scan {
            return None;
        }
        let block = self.block?;
        let in_file = chunks.iter().find_map(|chunk| match chunk {
            ResponseChunk::File { file, at, .. } => Some((Arc::clone(file), block_of(*at).0)),
            _ => None,
        });
        let is_elsewhere = |(file, number): &(Arc<DataFile>, u64)| {
            !Arc::ptr_eq(file, &self.file) || *number != block
        };
        let behind = || (Arc::clone(&self.file), block + 1);
        Some(in_file.filter(is_elsewhere).unwrap_or_else(behind))
    }

    fn evict_block(&self, loader: &FileLoader) {
        if let Some(block) = self.block {
            loader.blocks.evict_block(&self.file, block);
        }
    }

    /// Reads the run: at once if it is in memory, else on a thread that may block. `carried` is the
    /// checksum so far of its first payload. The result has the same for a payload that continues
    /// after the run.
    async fn load(
        &self,
        loader: &FileLoader,
        carried: Option<RunningChecksum>,
    ) -> Result<(LoadedRun, Option<RunningChecksum>), LoadError> {
        if let Some(block) = self.block {
            let is_here = || loader.blocks.has(&self.file, block);
            // If the block cannot be read, the run alone may still be readable.
            if (self.is_scan || is_here())
                && let Ok(block) = self.load_block(loader, block).await
            {
                return self.verify(RunBytes::Block(block), carried);
            }
        }
        let buffer = self.load_run(loader.take_buffer()).await?;
        self.verify(RunBytes::Buffer(buffer), carried)
    }

    async fn load_block(
        &self,
        loader: &FileLoader,
        number: u64,
    ) -> Result<Arc<DataFileBlock>, StorageError> {
        let end = self.range.end;
        if let Some(block) = loader.blocks.try_load(&self.file, number, end)? {
            return Ok(block);
        }
        let (blocks, file) = (Arc::clone(&loader.blocks), Arc::clone(&self.file));
        let loading = tokio::task::spawn_blocking(move || blocks.load(&file, number, end));
        loading.await.map_err(std::io::Error::other).map_err(StorageError::from)?
    }

    /// Reads the wanted ranges, and what lies between them.
    async fn load_run(&self, mut buffer: LoadBuffer) -> Result<LoadBuffer, LoadError> {
        let (at, length) = (self.file_position(self.range.start), self.range.len());
        // Any error shows again in the blocking read, with more detail.
        if self.file.load_cached(&mut buffer, at, length).unwrap_or(false) {
            return Ok(buffer);
        }
        let run = self.clone();
        let loading = tokio::task::spawn_blocking(move || {
            if run.file.load(&mut buffer, at, length).is_err() {
                run.load_payloads(&mut buffer)?;
            }
            Ok(buffer)
        });
        loading.await.map_err(std::io::Error::other).map_err(StorageError::from)?
    }

    /// Reads each payload separately. Payloads before the first unreadable one are served, even if
    /// the bytes between them cannot be read.
    fn load_payloads(&self, buffer: &mut LoadBuffer) -> Result<(), LoadError> {
        let first = self.range.start;
        let ranges =
            self.payloads.iter().map(|part| part.range.start - first..part.range.end - first);
        let loaded =
            self.file.load_ranges(buffer, (self.file_position(first), self.range.len()), ranges);
        loaded.map_err(|(nth, error)| {
            if !error.is_data_loss() {
                return error.into();
            }
            let part = &self.payloads[nth];
            let position = self.file_position(part.range.start);
            self.lost(part, part.checksum.unreadable(self.file.name(), position, &error))
        })
    }

    /// The error for a payload that is not what was written.
    fn lost(&self, part: &PayloadRange, corruption: Corruption) -> LoadError {
        let Range { start, end } = part.range;
        if self.file.is_punched(&(self.file_position(start)..self.file_position(end))) {
            LoadError::Removed
        } else {
            corruption.into()
        }
    }

    /// The position in the file of a byte of the run.
    fn file_position(&self, in_run: usize) -> u64 {
        self.base + in_run as u64
    }

    fn verify(
        &self,
        bytes: RunBytes,
        mut carried: Option<RunningChecksum>,
    ) -> Result<(LoadedRun, Option<RunningChecksum>), LoadError> {
        let first = match bytes {
            RunBytes::Block(_) => 0,
            RunBytes::Buffer(_) => self.range.start,
        };
        let mut parts = Vec::with_capacity(self.payloads.len());
        for part in &self.payloads {
            let mut checksum = carried.take().unwrap_or(part.checksum);
            let range = part.range.start - first..part.range.end - first;
            match &bytes {
                RunBytes::Block(block) => checksum.update_from_block(block, range.clone()),
                RunBytes::Buffer(buffer) => checksum.update(&buffer.bytes()[range.clone()]),
            }
            if !part.is_last {
                carried = Some(checksum);
            } else if !checksum.matches() {
                let position = self.file_position(part.range.start);
                return Err(self.lost(part, checksum.mismatch(self.file.name(), position)));
            }
            parts.push(range);
        }
        Ok((LoadedRun { ranges: parts, bytes }, carried))
    }
}

/// True if the leading chunks need enough of a file within the length of a block.
fn is_scan(chunks: &VecDeque<ResponseChunk>) -> bool {
    let Some(ResponseChunk::File { file: first, at: start, .. }) = chunks.front() else {
        return false;
    };
    let mut end = *start;
    for chunk in chunks {
        let ResponseChunk::File { file, at, length, .. } = chunk else { break };
        if !Arc::ptr_eq(file, first) || *at < end || *at >= start + DATA_BLOCK_BYTES as u64 {
            break;
        }
        end = at + *length as u64;
        if end - start >= DIRECT_READ_BYTES_MIN as u64 {
            return true;
        }
    }
    false
}
