//! Chunks of an answer that lie near each other in one file of the journal: loaded together.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use engine::{LoadBuffer, Segment};
use parking_lot::Mutex;

use crate::answer::Chunk;

/// How much is loaded at once.
const RUN_BYTES_MAX: usize = 1 << 20;
/// How many buffers are kept for the next run.
const BUFFERS_KEPT: usize = 8;

/// Buffers that are used again and again.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<Vec<LoadBuffer>>);

impl Buffers {
    pub(crate) fn take(&self) -> LoadBuffer {
        self.0.lock().pop().unwrap_or_default()
    }

    pub(crate) fn put(&self, buffer: LoadBuffer) {
        let mut kept = self.0.lock();
        if kept.len() < BUFFERS_KEPT {
            kept.push(buffer);
        }
    }
}

/// A run of the journal, and the parts of it that are asked for.
pub(crate) struct FileRun {
    segment: Arc<Segment>,
    position: u64,
    length: usize,
    pub(crate) parts: Vec<Range<usize>>,
}

impl FileRun {
    /// Takes the chunks that stand first and lie in one run; a long chunk in pieces.
    pub(crate) fn take(chunks: &mut VecDeque<Chunk>) -> Option<FileRun> {
        let Some(Chunk::File { segment, position, .. }) = chunks.front() else { return None };
        let (segment, start) = (Arc::clone(segment), *position);
        let mut run = FileRun { segment, position: start, length: 0, parts: Vec::new() };
        while let Some(Chunk::File { segment, position, length }) = chunks.front_mut() {
            let Some(from) = position.checked_sub(start).map(|from| from as usize) else { break };
            if !Arc::ptr_eq(segment, &run.segment) || from >= RUN_BYTES_MAX {
                break;
            }
            let taken = (*length).min(RUN_BYTES_MAX - from);
            run.parts.push(from..from + taken);
            run.length = from + taken;
            *position += taken as u64;
            *length -= taken;
            if *length > 0 {
                break;
            }
            chunks.pop_front();
        }
        Some(run)
    }

    /// Reads the run: at once if it is in the page cache, else on a thread that may wait for disks.
    pub(crate) async fn load(self, mut buffer: LoadBuffer) -> io::Result<(FileRun, LoadBuffer)> {
        if self.segment.load_cached(&mut buffer, self.position, self.length)? {
            return Ok((self, buffer));
        }
        let loading = tokio::task::spawn_blocking(move || {
            self.segment.load(&mut buffer, self.position, self.length)?;
            Ok((self, buffer))
        });
        loading.await.map_err(io::Error::other)?
    }
}
