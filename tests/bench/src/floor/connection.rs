//! A connection of the floor: bytes are received, checked, and written from where they were
//! received.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::ApiKey;

use super::file::{BLOCK_BYTES, FloorFile};
use super::wire::{FloorHeader, RequestCursor, walk_batches};
use super::{FloorBroker, FloorDurability};
use crate::batch::{BatchCheck, batches};

/// The receive buffer; after so many bytes it starts again at the front.
const MEMORY_BYTES: usize = 16 << 20;
const FRAME_BYTES_MAX: usize = MEMORY_BYTES / 4;
/// The bytes of one read.
const READ_BYTES: usize = 1 << 20;

pub(super) struct FloorConnection<'a> {
    floor: &'a FloorBroker,
    stream: TcpStream,
    file: Option<FloorFile>,
    number: u64,
    buffer: Vec<u8>,
    /// The start of the first aligned block of the buffer.
    aligned_start: usize,
    /// The start of the first block that is not written completely.
    unwritten: usize,
    /// The start of the first unread frame.
    unread: usize,
    filled: usize,
    /// Responses for batches that are not written yet.
    answers: Vec<u8>,
    is_write_pending: bool,
}

impl<'a> FloorConnection<'a> {
    pub(super) fn open(
        floor: &'a FloorBroker,
        stream: TcpStream,
        number: u64,
    ) -> Result<FloorConnection<'a>> {
        stream.set_nodelay(true)?;
        let memory = vec![0; MEMORY_BYTES + BLOCK_BYTES];
        let lead = memory.as_ptr().align_offset(BLOCK_BYTES);
        Ok(FloorConnection {
            floor,
            stream,
            file: None,
            number,
            buffer: memory,
            aligned_start: lead,
            unwritten: 0,
            unread: 0,
            filled: 0,
            answers: Vec::new(),
            is_write_pending: false,
        })
    }

    /// Serves until the client closes the connection.
    pub(super) fn run(mut self) -> Result<()> {
        loop {
            while let Some((from, to)) = self.whole_frame()? {
                self.unread = to;
                self.serve(from + 4, to)?;
            }
            self.answer()?;
            self.make_room();
            let until = (self.aligned_start + self.filled + READ_BYTES)
                .min(self.aligned_start + MEMORY_BYTES);
            let read =
                self.stream.read(&mut self.buffer[self.aligned_start + self.filled..until])?;
            if read == 0 {
                return Ok(());
            }
            self.filled += read;
        }
    }

    /// The range of the next frame, if all of it has arrived.
    fn whole_frame(&self) -> Result<Option<(usize, usize)>> {
        let held = &self.buffer[self.aligned_start + self.unread..self.aligned_start + self.filled];
        let Some(length) = held.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        ensure!(length <= FRAME_BYTES_MAX, "a frame is too long. bytes={length}");
        Ok((held.len() >= 4 + length).then_some((self.unread, self.unread + 4 + length)))
    }

    fn serve(&mut self, from: usize, to: usize) -> Result<()> {
        let mut frame =
            RequestCursor(&self.buffer[self.aligned_start + from..self.aligned_start + to]);
        let header = frame.header()?;
        if header.api == ApiKey::Produce as i16 {
            let answer = accept_batches(self.floor, header, frame)?;
            self.answers.extend_from_slice(&answer);
            self.is_write_pending = true;
            return Ok(());
        }
        if header.api == ApiKey::Fetch as i16 {
            let floor = self.floor;
            return floor.answer_fetch(header, frame.0, &mut self.stream);
        }
        let answer = self.floor.answer_other(header, frame.0)?;
        self.answers.extend_from_slice(&answer);
        Ok(())
    }

    /// Writes the checked batches, and sends their responses.
    fn answer(&mut self) -> Result<()> {
        let next = self.unread - self.unread % BLOCK_BYTES;
        if std::mem::take(&mut self.is_write_pending) {
            self.write(next)?;
        }
        self.unwritten = next;
        self.stream.write_all(&self.answers).context("answer")?;
        self.answers.clear();
        Ok(())
    }

    /// Writes the blocks up to what was read. The last of them is written again with what follows
    /// `next`.
    fn write(&mut self, next: usize) -> Result<()> {
        let (from, to) = (self.unwritten, self.unread.next_multiple_of(BLOCK_BYTES));
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let path = self.floor.dir.join(format!("floor-{}", self.number));
                none.insert(FloorFile::create(path)?)
            }
        };
        let sync = self.floor.durability == FloorDurability::Fsync;
        file.write(
            &self.buffer[self.aligned_start + from..self.aligned_start + to],
            to - next,
            sync,
        )
    }

    /// Moves to the front when a long frame might not fit any more.
    fn make_room(&mut self) {
        if self.filled + FRAME_BYTES_MAX <= MEMORY_BYTES || self.unwritten == 0 {
            return;
        }
        let (from, to) = (self.aligned_start + self.unwritten, self.aligned_start + self.filled);
        self.buffer.copy_within(from..to, self.aligned_start);
        self.unread -= self.unwritten;
        self.filled -= self.unwritten;
        self.unwritten = 0;
    }
}

/// Checks the batches of a produce request once, counts their records, and encodes the response.
fn accept_batches(
    floor: &FloorBroker,
    header: FloorHeader,
    body: RequestCursor<'_>,
) -> Result<Vec<u8>> {
    let mut taken = Vec::new();
    walk_batches(body, |topic, partition, bytes| {
        let received = batches(bytes, BatchCheck::FramingAndCrc).next();
        let received = received.context("a batch is short")??;
        taken.push((topic, partition, bytes, received.header.record_count as u32));
        Ok(())
    })?;
    floor.answer_produce(header, &taken)
}
