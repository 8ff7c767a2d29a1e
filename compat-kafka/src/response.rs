//! An answer on its way to the socket: bytes of ours, slices of payloads, and ranges of files, none
//! of them copied together.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use engine::{DataFile, EntryPayload, PayloadLocation};

use crate::corruption::RunningChecksum;
use crate::file_run::{FileLoader, LoadError, LoadedRuns, load_first};
use crate::memory_budget::{ConnectionQuota, MemoryBudgetError, QuotaPermit, units};

/// An answer that is not longer needs no room in the budget where a connection has no other: whoever asks for little can
/// always be answered.
pub(crate) const UNBUDGETED_BYTES_MAX: usize = 16 << 10;

/// A run of bytes of an answer.
#[derive(Debug)]
pub(crate) enum ResponseChunk {
    /// In memory.
    Bytes(Bytes),
    /// In a file of the journal.
    File {
        /// The file.
        file: Arc<DataFile>,
        /// Where in it the first byte lies.
        at: u64,
        /// How many bytes.
        length: usize,
        /// What the payload must be that ends here.
        checksum: RunningChecksum,
    },
    /// In a file of the journal, and loaded.
    Loaded(LoadedRuns),
}

/// The answer to a request, without its length.
#[derive(Debug, Default)]
pub(crate) struct KafkaResponse {
    chunks: VecDeque<ResponseChunk>,
    /// What was written since the last chunk that is not ours.
    tail: BytesMut,
    length: usize,
    /// What it holds of the budget, until all of it is out.
    permit: Option<QuotaPermit>,
}

impl KafkaResponse {
    pub(crate) fn new() -> KafkaResponse {
        KafkaResponse::default()
    }

    /// Writes bytes of ours.
    pub(crate) fn write(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let before = self.tail.len();
        write(&mut self.tail);
        self.length += self.tail.len() - before;
    }

    /// Adds the payload of an entry, wherever it is.
    pub(crate) fn push(&mut self, piece: EntryPayload) {
        self.length += piece.entry.length as usize;
        match piece.location {
            PayloadLocation::Memory(payload) => {
                self.tail.extend_from_slice(payload.header.as_slice());
                self.flush_tail();
                self.chunks.push_back(ResponseChunk::Bytes(payload.rest));
            }
            PayloadLocation::File { file, at } => {
                self.flush_tail();
                let length = piece.entry.length as usize;
                let seal = RunningChecksum::of(&piece.entry);
                self.chunks.push_back(ResponseChunk::File { file, at, length, checksum: seal });
            }
        }
    }

    fn flush_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(ResponseChunk::Bytes(self.tail.split().freeze()));
        }
    }

    /// How many bytes it has.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Keeps `room` until all of it is out.
    pub(crate) fn set_permit(&mut self, room: Option<QuotaPermit>) {
        self.permit = room;
    }

    /// Has it hold room for what it holds in memory, unless it does, or is short and the only one of its connection.
    ///
    /// # Errors
    /// There is none.
    pub(crate) async fn acquire_permit(
        &mut self,
        quota: &Arc<ConnectionQuota>,
        is_only: bool,
    ) -> Result<(), MemoryBudgetError> {
        if self.permit.is_none() && !(is_only && self.length <= UNBUDGETED_BYTES_MAX) {
            self.permit = Some(quota.take_for_response(units(self.length)).await?);
        }
        Ok(())
    }

    /// What it holds of the budget.
    pub(crate) fn take_permit(&mut self) -> Option<QuotaPermit> {
        self.permit.take()
    }

    /// Loads the first run of a file that is in it, so that it goes out with what stands before
    /// it; and if it is rotten, nothing has gone out yet.
    ///
    /// # Errors
    /// What is left is no answer.
    pub(crate) async fn load_first(&mut self, loader: &FileLoader) -> Result<(), LoadError> {
        let in_file = |chunk: &ResponseChunk| matches!(chunk, ResponseChunk::File { .. });
        let Some(first) = self.chunks.iter().position(in_file) else { return Ok(()) };
        let mut rest = self.chunks.split_off(first);
        let loaded = load_first(&mut rest, loader).await?;
        self.chunks.extend(loaded.map(ResponseChunk::Loaded));
        self.chunks.append(&mut rest);
        Ok(())
    }

    /// Its chunks, behind a frame's length.
    pub(crate) fn into_frame(mut self) -> VecDeque<ResponseChunk> {
        self.flush_tail();
        let length = Bytes::copy_from_slice(&(self.length as u32).to_be_bytes());
        self.chunks.push_front(ResponseChunk::Bytes(length));
        self.chunks
    }
}
