//! Chunks of an answer that lie near each other in one data file: loaded together, and
//! compared with the checksums of their entries while they are at hand.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use engine::{DataFile, LoadBuffer, is_data_loss};
use parking_lot::Mutex;

use crate::answer::Chunk;
use crate::rot::{Rotten, Seal};

/// How much is loaded at once.
const RUN_BYTES_MAX: usize = 1 << 20;
/// How many buffers are kept for the next run.
const BUFFERS_KEPT: usize = 8;

/// Buffers that are used again and again.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<Vec<LoadBuffer>>);

impl Buffers {
    fn take(&self) -> LoadBuffer {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Takes the buffer of a run that was sent.
    pub(crate) fn put(&self, loaded: Loaded) {
        let mut kept = self.0.lock();
        if kept.len() < BUFFERS_KEPT {
            kept.push(loaded.buffer);
        }
    }
}

/// Why a run cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Rotten(#[from] Rotten),
}

/// A run of the journal, and the parts of it that are asked for.
struct FileRun {
    file: Arc<DataFile>,
    at: u64,
    length: usize,
    parts: Vec<Part>,
}

/// A payload within a run, or the piece of a long one that lies in it.
struct Part {
    range: Range<usize>,
    /// What was read of the payload in earlier runs.
    seal: Seal,
    is_last: bool,
}

/// A run in memory, of which nothing is known to be rotten.
#[derive(Debug)]
pub(crate) struct Loaded {
    parts: Vec<Range<usize>>,
    buffer: LoadBuffer,
}

impl Loaded {
    /// What was asked for.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|part| &self.buffer.bytes()[part.clone()])
    }
}

/// Loads the chunks that stand first and lie in one run, and takes them away; a long one in pieces.
/// `None` if what stands first is in memory.
pub(crate) async fn load_first(
    chunks: &mut VecDeque<Chunk>,
    buffers: &Buffers,
) -> Result<Option<Loaded>, LoadError> {
    let Some(run) = FileRun::take(chunks) else { return Ok(None) };
    let (loaded, carried) = run.load(buffers.take()).await?;
    if let (Some(carried), Some(Chunk::File { seal, .. })) = (carried, chunks.front_mut()) {
        *seal = carried;
    }
    Ok(Some(loaded))
}

impl FileRun {
    fn take(chunks: &mut VecDeque<Chunk>) -> Option<FileRun> {
        let Some(Chunk::File { file, at, .. }) = chunks.front() else { return None };
        let (file, start) = (Arc::clone(file), *at);
        let mut run = FileRun { file, at: start, length: 0, parts: Vec::new() };
        while let Some(Chunk::File { file, at, length, seal }) = chunks.front_mut() {
            let Some(from) = at.checked_sub(start).map(|from| from as usize) else { break };
            if !Arc::ptr_eq(file, &run.file) || from >= RUN_BYTES_MAX {
                break;
            }
            let taken = (*length).min(RUN_BYTES_MAX - from);
            let (range, is_last) = (from..from + taken, taken == *length);
            run.parts.push(Part { range, seal: *seal, is_last });
            run.length = from + taken;
            *at += taken as u64;
            *length -= taken;
            if *length > 0 {
                break;
            }
            chunks.pop_front();
        }
        Some(run)
    }

    /// Reads the run: at once if it is in the page cache, else on a thread that may wait for disks.
    /// Says what was read of a payload that goes on behind it.
    async fn load(self, mut buffer: LoadBuffer) -> Result<(Loaded, Option<Seal>), LoadError> {
        // Whatever is wrong, the blocking read finds out more.
        if self.file.load_cached(&mut buffer, self.at, self.length).unwrap_or(false) {
            return self.checked(buffer);
        }
        let loading = tokio::task::spawn_blocking(move || {
            if self.file.load(&mut buffer, self.at, self.length).is_err() {
                self.load_parts(&mut buffer)?;
            }
            self.checked(buffer)
        });
        loading.await.map_err(io::Error::other)?
    }

    /// Reads each part by itself: what is whole is served up to the first that cannot be read, also
    /// where what lies between them cannot.
    fn load_parts(&self, buffer: &mut LoadBuffer) -> Result<(), LoadError> {
        let ranges = self.parts.iter().map(|part| part.range.clone());
        let loaded = self.file.load_ranges(buffer, (self.at, self.length), ranges);
        loaded.map_err(|(nth, error)| {
            if !is_data_loss(&error) {
                return error.into();
            }
            let part = &self.parts[nth];
            let at = self.at + part.range.start as u64;
            part.seal.unreadable(&self.file.name, at, &error).into()
        })
    }

    fn checked(self, buffer: LoadBuffer) -> Result<(Loaded, Option<Seal>), LoadError> {
        let mut carried = None;
        for part in &self.parts {
            let mut seal = part.seal;
            seal.read(&buffer.bytes()[part.range.clone()]);
            if !part.is_last {
                carried = Some(seal);
            } else if !seal.holds() {
                let at = self.at + part.range.start as u64;
                return Err(seal.broken(&self.file.name, at).into());
            }
        }
        let parts = self.parts.into_iter().map(|part| part.range).collect();
        Ok((Loaded { parts, buffer }, carried))
    }
}
