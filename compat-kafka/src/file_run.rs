//! Chunks of an answer that lie near each other in one data file: read together, and compared with the
//! checksums of their entries while they are at hand.
//!
//! Whoever reads much of a file reads whole blocks of it. These are shared by all readers ([`DataCache`]),
//! and the next one is on its way while one is sent. A few bytes here and there are read as such.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use engine::{
    DATA_BLOCK_BYTES, DIRECT_READ_BYTES_MIN, DataCache, DataFile, DataFileBlock, LoadBuffer,
    StorageError, block_of,
};
use parking_lot::Mutex;

use crate::corruption::{Corruption, RunningChecksum};
use crate::response::ResponseChunk;

/// How many buffers are kept for the next run.
const POOLED_BUFFERS_MAX: usize = 8;

/// Reads runs of files for answers.
pub(crate) struct FileLoader {
    blocks: Arc<DataCache>,
    /// Buffers of short runs, used again and again.
    buffers: Mutex<Vec<LoadBuffer>>,
}

impl FileLoader {
    pub(crate) fn new(blocks: Arc<DataCache>) -> FileLoader {
        FileLoader { blocks, buffers: Mutex::default() }
    }

    fn take_buffer(&self) -> LoadBuffer {
        self.buffers.lock().pop().unwrap_or_default()
    }

    /// Takes the buffer of a run that was sent.
    pub(crate) fn recycle(&self, loaded: LoadedRuns) {
        for run in loaded.0 {
            let RunBytes::Buffer(buffer) = run.bytes else { continue };
            let mut kept = self.buffers.lock();
            if kept.len() < POOLED_BUFFERS_MAX {
                kept.push(buffer);
            }
        }
    }

    /// Starts to load a block that is wanted soon, unless it is here. Nobody waits for it.
    fn read_ahead(&self, file: &Arc<DataFile>, number: u64) {
        if !self.blocks.should_read_ahead(file, number) {
            return;
        }
        let (blocks, file) = (Arc::clone(&self.blocks), Arc::clone(file));
        // Whoever needs the block tries again, and finds what is wrong with it.
        tokio::task::spawn_blocking(move || drop(blocks.load(&file, number, 0)));
    }
}

/// Why a run cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{0}")]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Corrupt(#[from] Corruption),
}

/// A run of a file that is read at once, and the parts of it that are asked for.
#[derive(Clone)]
struct FileRun {
    file: Arc<DataFile>,
    /// The block of the file that all of it lies in; `None` where blocks are not kept.
    block: Option<u64>,
    /// Where in the file ranges count from: the block's beginning, or the run's.
    base: u64,
    range: Range<usize>,
    payloads: Vec<PayloadRange>,
    /// Whether enough is asked for from here on that whole blocks are worth reading.
    is_scan: bool,
}

/// A payload within a run, or the piece of a long one that lies in it.
#[derive(Clone)]
struct PayloadRange {
    range: Range<usize>,
    /// What was read of the payload in earlier runs.
    checksum: RunningChecksum,
    is_last: bool,
}

/// Where the bytes of a run are.
#[derive(Debug)]
enum RunBytes {
    /// In a block.
    Block(Arc<DataFileBlock>),
    /// In a buffer that holds the run alone.
    Buffer(LoadBuffer),
}

/// The bytes of a run, and where in them is what was asked for.
#[derive(Debug)]
struct LoadedRun {
    ranges: Vec<Range<usize>>,
    bytes: RunBytes,
}

/// Runs in memory, of which nothing is known to be rotten.
#[derive(Debug)]
pub(crate) struct LoadedRuns(Vec<LoadedRun>);

impl LoadedRuns {
    /// What was asked for.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().flat_map(|run| {
            let bytes = match &run.bytes {
                RunBytes::Block(block) => block.bytes(),
                RunBytes::Buffer(buffer) => buffer.bytes(),
            };
            run.ranges.iter().map(|part| &bytes[part.clone()])
        })
    }
}

/// Loads the chunks that stand first and lie in one run, and takes them away. A payload that is no longer
/// than a block is loaded whole, so that nothing of it goes out before it was compared; a longer one in
/// pieces. `None` if what stands first is in memory.
pub(crate) async fn load_first(
    chunks: &mut VecDeque<ResponseChunk>,
    loader: &FileLoader,
) -> Result<Option<LoadedRuns>, LoadError> {
    let Some(run) = FileRun::take(chunks, loader.blocks.can_read_ahead()) else { return Ok(None) };
    let rest = run.take_rest(chunks);
    let ahead = rest.as_ref().unwrap_or(&run).next_block(chunks);
    let runs: Vec<FileRun> = [Some(run), rest].into_iter().flatten().collect();
    let mut loaded = load_runs(&runs, loader).await;
    if matches!(loaded, Err(LoadError::Corrupt(_))) && runs[0].block.is_some() {
        // Memory may err too: only what the disk gives again is damage.
        runs.iter().for_each(|run| run.evict_block(loader));
        loaded = load_runs(&runs, loader).await;
    }
    if let Err(LoadError::Corrupt(_)) = loaded {
        // The disk may give it back one day.
        runs.iter().for_each(|run| run.evict_block(loader));
    }
    let (loaded, carried) = loaded?;
    if let (Some(carried), Some(ResponseChunk::File { checksum: seal, .. })) =
        (carried, chunks.front_mut())
    {
        *seal = carried;
    }
    if let Some((file, number)) = ahead {
        loader.read_ahead(&file, number);
    }
    Ok(Some(loaded))
}

/// Loads runs that follow each other. Says what was read of a payload that goes on behind them.
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
    /// The run that begins with the chunk that stands first.
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

    /// The rest of the payload that goes on behind this run, if it is to be compared before any of it goes
    /// out.
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

    /// Takes what of the first chunk lies in the run; whether the next may too.
    fn take_chunk(&mut self, chunks: &mut VecDeque<ResponseChunk>) -> bool {
        let Some(ResponseChunk::File { file, at, length, checksum: seal }) = chunks.front_mut()
        else {
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
        self.payloads.push(PayloadRange { range: start..end, checksum: *seal, is_last });
        self.range.end = end;
        *at += (end - start) as u64;
        *length -= end - start;
        if is_last {
            chunks.pop_front();
        }
        is_last
    }

    /// The block that is wanted next, if the reader goes on like this: the next one of the answer, or of
    /// the file.
    fn next_block(&self, chunks: &VecDeque<ResponseChunk>) -> Option<(Arc<DataFile>, u64)> {
        let block = self.block.filter(|_| self.is_scan)?;
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

    /// Reads the run: at once if it is in memory, else on a thread that may wait for disks. `carried` is
    /// what was read of its first payload before; it says the same of one that goes on behind it.
    async fn load(
        &self,
        loader: &FileLoader,
        carried: Option<RunningChecksum>,
    ) -> Result<(LoadedRun, Option<RunningChecksum>), LoadError> {
        if let Some(block) = self.block {
            let is_here = || loader.blocks.has(&self.file, block);
            // Where the block cannot be read, the run may be.
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

    /// Reads what is asked for, and what lies between.
    async fn load_run(&self, mut buffer: LoadBuffer) -> Result<LoadBuffer, LoadError> {
        let (at, length) = (self.file_position(self.range.start), self.range.len());
        // Whatever is wrong, the blocking read finds out more.
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

    /// Reads each part by itself: what is whole is served up to the first that cannot be read, also
    /// where what lies between them cannot.
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
            part.checksum
                .unreadable(self.file.name(), self.file_position(part.range.start), &error)
                .into()
        })
    }

    /// Where in the file a byte of the run lies.
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
            let mut seal = carried.take().unwrap_or(part.checksum);
            let range = part.range.start - first..part.range.end - first;
            match &bytes {
                RunBytes::Block(block) => seal.update_from_block(block, range.clone()),
                RunBytes::Buffer(buffer) => seal.update(&buffer.bytes()[range.clone()]),
            }
            if !part.is_last {
                carried = Some(seal);
            } else if !seal.matches() {
                return Err(seal
                    .mismatch(self.file.name(), self.file_position(part.range.start))
                    .into());
            }
            parts.push(range);
        }
        Ok((LoadedRun { ranges: parts, bytes }, carried))
    }
}

/// Whether the chunks that stand first ask for enough of a file within the length of a block.
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
