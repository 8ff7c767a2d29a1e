//! An answer on its way to the socket: bytes of ours, slices of payloads, and ranges of files, none
//! of them copied together.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use engine::{Piece, PieceData, Segment};

/// A run of bytes of an answer.
#[derive(Debug)]
pub(crate) enum Chunk {
    /// In memory.
    Bytes(Bytes),
    /// In a file of the journal.
    File {
        /// The file.
        segment: Arc<Segment>,
        /// The journal position of the first byte.
        position: u64,
        /// How many bytes.
        length: usize,
    },
}

/// The answer to a request, without its length.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    chunks: Vec<Chunk>,
    /// What was written since the last chunk that is not ours.
    tail: BytesMut,
    length: usize,
}

impl Answer {
    pub(crate) fn new() -> Answer {
        Answer::default()
    }

    /// Writes bytes of ours.
    pub(crate) fn write(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let before = self.tail.len();
        write(&mut self.tail);
        self.length += self.tail.len() - before;
    }

    /// Adds the payload of an entry, wherever it is.
    pub(crate) fn push(&mut self, piece: Piece) {
        self.length += piece.entry.length as usize;
        match piece.data {
            PieceData::Memory(payload) => {
                self.tail.extend_from_slice(payload.head.as_slice());
                self.cut_tail();
                self.chunks.push(Chunk::Bytes(payload.rest));
            }
            PieceData::File(segment) => {
                self.cut_tail();
                let length = piece.entry.length as usize;
                let position = piece.entry.position;
                self.chunks.push(Chunk::File { segment, position, length });
            }
        }
    }

    fn cut_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push(Chunk::Bytes(self.tail.split().freeze()));
        }
    }

    /// How many bytes it has.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Its chunks, behind a frame's length.
    pub(crate) fn into_frame(mut self) -> Vec<Chunk> {
        self.cut_tail();
        let length = Bytes::copy_from_slice(&(self.length as u32).to_be_bytes());
        let mut chunks = Vec::with_capacity(self.chunks.len() + 1);
        chunks.push(Chunk::Bytes(length));
        chunks.append(&mut self.chunks);
        chunks
    }
}
