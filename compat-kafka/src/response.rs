//! A response on its way to the socket. It consists of encoded bytes, slices of payloads, and
//! ranges of files. They are not copied together.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use engine::{DataFile, EntryPayload, PayloadLocation};
use kafka_connections::{ConnectionQuota, MemoryBudgetError, QuotaPermit, units};

use crate::corruption::RunningChecksum;
use crate::file_run::{FileLoader, LoadError, LoadedRuns, load_leading_chunks};

/// A response up to this size needs no room in the budget if its connection has no other. So a
/// client that asks for little can always be answered.
pub(crate) const UNBUDGETED_BYTES_MAX: usize = 16 << 10;

/// A run of bytes of a response.
#[derive(Debug)]
pub(crate) enum ResponseChunk {
    /// Encoded for this response.
    Encoded(Bytes),
    /// A payload, in the memory that it arrived in.
    Payload(Bytes),
    /// In a file of the journal.
    File {
        file: Arc<DataFile>,
        /// The position of the first byte in the file.
        at: u64,
        /// The number of bytes.
        length: usize,
        /// The expected checksum of the payload that ends here.
        checksum: RunningChecksum,
    },
    /// In a file of the journal, and loaded.
    Loaded(LoadedRuns),
}

impl ResponseChunk {
    /// The length in bytes.
    fn len(&self) -> usize {
        match self {
            ResponseChunk::Encoded(bytes) | ResponseChunk::Payload(bytes) => bytes.len(),
            ResponseChunk::File { length, .. } => *length,
            ResponseChunk::Loaded(loaded) => loaded.slices().map(<[u8]>::len).sum(),
        }
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        !matches!(self, ResponseChunk::File { .. })
    }
}

/// The response to a request, without its length field.
#[derive(Debug, Default)]
pub(crate) struct KafkaResponse {
    chunks: VecDeque<ResponseChunk>,
    /// Encoded bytes since the last chunk of a payload or a file.
    tail: BytesMut,
    length: usize,
    /// The room in the budget, held until the whole response is out.
    permit: Option<QuotaPermit>,
}

impl KafkaResponse {
    pub(crate) fn new() -> KafkaResponse {
        KafkaResponse::default()
    }

    /// Encodes bytes into the response.
    pub(crate) fn write(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let before = self.tail.len();
        write(&mut self.tail);
        self.length += self.tail.len() - before;
    }

    /// Adds the payload of an entry, in memory or in a file.
    pub(crate) fn push(&mut self, piece: EntryPayload) {
        self.length += piece.entry.length as usize;
        match piece.location {
            PayloadLocation::Memory(payload) => {
                self.tail.extend_from_slice(payload.header.as_slice());
                self.flush_tail();
                self.chunks.push_back(ResponseChunk::Payload(payload.rest));
            }
            PayloadLocation::File { file, at } => {
                self.flush_tail();
                let length = piece.entry.length as usize;
                let checksum = RunningChecksum::of(&piece.entry);
                self.chunks.push_back(ResponseChunk::File { file, at, length, checksum });
            }
        }
    }

    fn flush_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(ResponseChunk::Encoded(self.tail.split().freeze()));
        }
    }

    /// Writes over bytes that were encoded, `at` bytes behind the beginning.
    ///
    /// # Panics
    /// They are of a payload or a file, or there are none.
    pub(crate) fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        self.flush_tail();
        let mut left = at;
        for chunk in &mut self.chunks {
            let length = chunk.len();
            if left < length {
                let ResponseChunk::Encoded(encoded) = chunk else { break };
                let mut changed = BytesMut::from(std::mem::take(encoded));
                changed[left..left + bytes.len()].copy_from_slice(bytes);
                *encoded = changed.freeze();
                return;
            }
            left -= length;
        }
        unreachable!("only what was encoded for a response is written over");
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Holds `room` until the whole response is out.
    pub(crate) fn set_permit(&mut self, room: Option<QuotaPermit>) {
        self.permit = room;
    }

    /// Takes room in the budget for the bytes that are in memory. A response that has room already
    /// needs none, and neither does a short one that is the only one of its connection.
    ///
    /// # Errors
    ///
    /// There is no room.
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

    /// Takes the room that the response holds.
    pub(crate) fn take_permit(&mut self) -> Option<QuotaPermit> {
        self.permit.take()
    }

    /// Loads the first run of a file in the response, so that it goes out with the bytes before it.
    /// If it is corrupt, nothing has gone out yet.
    ///
    /// # Errors
    ///
    /// The rest of the response cannot be sent.
    pub(crate) async fn load_first_file(&mut self, loader: &FileLoader) -> Result<(), LoadError> {
        let first = self.chunks.iter().position(|chunk| !chunk.is_in_memory());
        let Some(first) = first else { return Ok(()) };
        let mut rest = self.chunks.split_off(first);
        self.chunks.push_back(ResponseChunk::Loaded(load_leading_chunks(&mut rest, loader).await?));
        self.chunks.append(&mut rest);
        Ok(())
    }

    /// Adds all of another response, and its room in the budget.
    pub(crate) fn append(&mut self, mut other: KafkaResponse) {
        self.length += other.length;
        self.flush_tail();
        other.flush_tail();
        self.chunks.append(&mut other.chunks);
        self.permit = other.permit.take();
    }

    /// The chunks.
    pub(crate) fn into_chunks(mut self) -> VecDeque<ResponseChunk> {
        self.flush_tail();
        self.chunks
    }

    /// The chunks, after the length field of the frame.
    pub(crate) fn into_frame(self) -> VecDeque<ResponseChunk> {
        let length = Bytes::copy_from_slice(&(self.length as u32).to_be_bytes());
        let mut chunks = self.into_chunks();
        chunks.push_front(ResponseChunk::Encoded(length));
        chunks
    }
}
