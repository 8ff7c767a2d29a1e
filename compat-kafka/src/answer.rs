//! An answer on its way to the socket: bytes of ours, slices of payloads, and ranges of files, none
//! of them copied together.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use engine::{DataFile, Piece, PieceData};

use crate::file_run::{FileLoader, LoadError, Loaded, load_first};
use crate::memory_budget::{ConnectionQuota, NoRoom, QuotaPermit, units};
use crate::rot::Seal;

/// An answer that is not longer needs no room in the budget where a connection has no other: whoever asks for little can
/// always be answered.
pub(crate) const FREE_BYTES_MAX: usize = 16 << 10;

/// A run of bytes of an answer.
#[derive(Debug)]
pub(crate) enum Chunk {
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
        seal: Seal,
    },
    /// In a file of the journal, and loaded.
    Loaded(Loaded),
}

/// The answer to a request, without its length.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    chunks: VecDeque<Chunk>,
    /// What was written since the last chunk that is not ours.
    tail: BytesMut,
    length: usize,
    /// What it holds of the budget, until all of it is out.
    room: Option<QuotaPermit>,
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
                self.chunks.push_back(Chunk::Bytes(payload.rest));
            }
            PieceData::File { file, at } => {
                self.cut_tail();
                let length = piece.entry.length as usize;
                let seal = Seal::of(&piece.entry);
                self.chunks.push_back(Chunk::File { file, at, length, seal });
            }
        }
    }

    fn cut_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(Chunk::Bytes(self.tail.split().freeze()));
        }
    }

    /// How many bytes it has.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Keeps `room` until all of it is out.
    pub(crate) fn keep_room(&mut self, room: Option<QuotaPermit>) {
        self.room = room;
    }

    /// Has it hold room for what it holds in memory, unless it does, or is short and the only one of its connection.
    ///
    /// # Errors
    /// There is none.
    pub(crate) async fn find_room(
        &mut self,
        quota: &Arc<ConnectionQuota>,
        is_only: bool,
    ) -> Result<(), NoRoom> {
        if self.room.is_none() && !(is_only && self.length <= FREE_BYTES_MAX) {
            self.room = Some(quota.take_for_answer(units(self.length)).await?);
        }
        Ok(())
    }

    /// What it holds of the budget.
    pub(crate) fn take_room(&mut self) -> Option<QuotaPermit> {
        self.room.take()
    }

    /// Loads the first run of a file that is in it, so that it goes out with what stands before
    /// it; and if it is rotten, nothing has gone out yet.
    ///
    /// # Errors
    /// What is left is no answer.
    pub(crate) async fn load_first(&mut self, loader: &FileLoader) -> Result<(), LoadError> {
        let in_file = |chunk: &Chunk| matches!(chunk, Chunk::File { .. });
        let Some(first) = self.chunks.iter().position(in_file) else { return Ok(()) };
        let mut rest = self.chunks.split_off(first);
        let loaded = load_first(&mut rest, loader).await?;
        self.chunks.extend(loaded.map(Chunk::Loaded));
        self.chunks.append(&mut rest);
        Ok(())
    }

    /// Its chunks, behind a frame's length.
    pub(crate) fn into_frame(mut self) -> VecDeque<Chunk> {
        self.cut_tail();
        let length = Bytes::copy_from_slice(&(self.length as u32).to_be_bytes());
        self.chunks.push_front(Chunk::Bytes(length));
        self.chunks
    }
}
