//! The server's end of a link over RDMA.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::arena::{ArenaBuffer, MemoryArena};
use super::device::{VerbsDevice, VerbsError};
use super::ffi::{IbvSge, WR_RDMA_READ, WR_RDMA_WRITE};
use super::queue_pair::{PeerAccess, QueuePair, WorkRequest, status_text};
use crate::address::LinkAddress;
use crate::link::{LinkError, RemoteRegion};

/// The most pieces of memory that one work request gathers, as in the papers (F25).
pub const PIECES_MAX: usize = 16;
/// The most bytes that one work request moves.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// The most work requests that are under way.
const REQUESTS_MAX: usize = 128;
/// The number of work requests that the device gets at once. The completion of the last one is
/// reported.
const CHAIN_REQUESTS_MAX: usize = 16;
/// The time in latency mode to look for completions before waiting for a message.
const SPIN_MAX: Duration = Duration::from_micros(50);

/// The way in which a link waits for its device (F23).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionMode {
    /// It sleeps until the device reports a completion. Costs a wake-up, and no processor.
    #[default]
    Sleep,
    /// It looks again and again for a while first. Saves the wake-up, and keeps a processor busy.
    Spin,
}

/// The amounts that a link has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Bytes written to the peer.
    pub written_bytes: u64,
    /// Bytes read from the peer.
    pub read_bytes: u64,
    /// Bytes that had to be copied into the arena to be written, or out of it because it was full.
    pub copied_bytes: u64,
    /// Work requests.
    pub requests: u64,
}

/// The server's end of a link: the transport of the Freeze-Frame File System (F25), where the
/// server starts every transfer. A client names a region of its memory, and its program takes no
/// part; it can write into no memory of the server.
///
/// A call that is dropped before it ends leaves the link usable, and the memory of its transfer is
/// kept until the device is done with it.
#[derive(Debug)]
pub struct VerbsLink {
    /// Dropped before the memory that its work requests use.
    pair: QueuePair,
    /// The target of a read that is under way.
    reading: Option<ArenaBuffer>,
    /// The target of the read that follows writes, which nobody looks at. `arena` keeps it.
    read_back: IbvSge,
    /// The address of the last byte that was written since the last such read, and its key.
    unflushed: Option<(u64, u32)>,
    /// The bytes that writes use, each with the number of the last work request of its write.
    held: VecDeque<(u64, Bytes)>,
    arena: MemoryArena,
    /// The place of the device among those of the arena.
    nth_device: usize,
    device: VerbsDevice,
    /// The number of work requests that the device has got.
    posted: u64,
    /// The number of work requests that are done.
    completed: u64,
    requests_max: usize,
    pieces_max: usize,
    request_bytes_max: usize,
    mode: CompletionMode,
    traffic: LinkTraffic,
    broken: Option<LinkError>,
}

impl VerbsLink {
    /// Creates the server's end on a device of the arena. It must be called within a runtime.
    ///
    /// # Errors
    ///
    /// [`VerbsError`].
    pub fn new(
        arena: &MemoryArena,
        device: &VerbsDevice,
        mode: CompletionMode,
    ) -> Result<VerbsLink, VerbsError> {
        let device_gone = || VerbsError::Gone(device.choice().device.clone());
        let nth_device = arena.position_of(device).ok_or_else(device_gone)?;
        let limits = device.limits();
        let requests_max = limits.requests_max.min(REQUESTS_MAX);
        let pieces_max = limits.pieces_max.min(PIECES_MAX);
        let no_memory = || VerbsError::Call {
            call: "take memory that the device may use",
            source: io::ErrorKind::OutOfMemory.into(),
        };
        let read_back = arena.read_back_target(nth_device).ok_or_else(no_memory)?;
        let pair = QueuePair::new(device, requests_max, pieces_max, PeerAccess::None)?;
        Ok(VerbsLink {
            pair,
            reading: None,
            read_back,
            unflushed: None,
            held: VecDeque::new(),
            arena: arena.clone(),
            nth_device,
            device: device.clone(),
            posted: 0,
            completed: 0,
            requests_max,
            pieces_max,
            request_bytes_max: limits.bytes_max.min(REQUEST_BYTES_MAX),
            mode,
            traffic: LinkTraffic::default(),
            broken: None,
        })
    }

    /// The address that the client needs to connect with it.
    pub fn address(&self) -> LinkAddress {
        self.pair.address()
    }

    /// Connects it with the client's end.
    ///
    /// # Errors
    ///
    /// [`VerbsError`].
    pub fn connect(&mut self, client: &LinkAddress) -> Result<(), VerbsError> {
        self.pair.connect(client)
    }

    /// The amounts that it has moved.
    pub fn traffic(&self) -> LinkTraffic {
        self.traffic
    }

    /// Gathers at most this many pieces in a work request. For measurements.
    pub fn set_pieces_max(&mut self, pieces: usize) {
        self.pieces_max = pieces.clamp(1, self.pieces_max);
    }

    /// Prepares for a transfer: after a call that was dropped, its memory must not be used again
    /// before the device is done with it.
    async fn begin(&mut self) -> Result<(), LinkError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if self.device.is_lost() {
            return Err(self.fail("the device is gone".to_owned()));
        }
        if self.reading.is_some() {
            self.drain().await?;
            self.reading = None;
        }
        if self.completed == self.posted {
            self.held.clear();
        }
        Ok(())
    }

    fn fail(&mut self, reason: String) -> LinkError {
        let error = LinkError::Broken(reason);
        self.broken = Some(error.clone());
        error
    }

    /// Waits until nothing is under way.
    async fn drain(&mut self) -> Result<(), LinkError> {
        while self.completed < self.posted {
            self.progress().await?;
        }
        Ok(())
    }

    /// Gives work requests to the device, as it has room for them.
    ///
    /// # Safety
    ///
    /// `self.held`, `self.reading` or the arena keeps the memory of all pieces, from before this is
    /// called until they are done.
    async unsafe fn post(&mut self, mut requests: Vec<WorkRequest>) -> Result<(), LinkError> {
        self.traffic.requests += requests.len() as u64;
        let chain_max = CHAIN_REQUESTS_MAX.min(self.requests_max);
        for chain in requests.chunks_mut(chain_max) {
            while (self.posted - self.completed) as usize + chain.len() > self.requests_max {
                self.progress().await?;
            }
            if let Some(last) = chain.last_mut() {
                last.is_signalled = true;
            }
            // SAFETY: the caller says so, and the queue pair is dropped before that memory.
            let posted = unsafe { self.pair.post(chain, self.posted) };
            // If only some were taken, waiting for the others ends when the link is dropped.
            self.posted += chain.len() as u64;
            posted.map_err(|error| self.fail(error.to_string()))?;
        }
        Ok(())
    }

    /// Waits until at least one more work request is done.
    async fn progress(&mut self) -> Result<(), LinkError> {
        if self.mode == CompletionMode::Spin {
            let started = Instant::now();
            while started.elapsed() < SPIN_MAX {
                if self.take_completions()? {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        loop {
            if self.take_completions()? {
                return Ok(());
            }
            self.pair.arm().map_err(|error| self.fail(error.to_string()))?;
            // No message announces a completion that came before the request for one.
            if self.take_completions()? {
                return Ok(());
            }
            let device = self.device.clone();
            let waited = tokio::select! {
                waited = self.pair.wait() => waited.map_err(|error| error.to_string()),
                () = device.lost() => Err("the device is gone".to_owned()),
            };
            waited.map_err(|reason| self.fail(reason))?;
        }
    }

    /// Takes the completions that have come. Returns true if there were any.
    fn take_completions(&mut self) -> Result<bool, LinkError> {
        let completions = self.pair.poll().map_err(|error| self.fail(error.to_string()))?;
        let before = self.completed;
        for completion in completions {
            if let Some(status) = completion.failure {
                let reason = status_text(&self.device, status);
                return Err(self.fail(reason));
            }
            self.completed = self.completed.max(completion.number + 1);
        }
        while self.held.front().is_some_and(|(last, _)| *last < self.completed) {
            self.held.pop_front();
        }
        Ok(self.completed > before)
    }

    /// Work requests that write `pieces` from `address` on.
    fn write_requests(&self, pieces: &[IbvSge], address: u64, key: u32) -> Vec<WorkRequest> {
        let mut requests: Vec<WorkRequest> = Vec::new();
        let (mut room, mut at) = (0, address);
        for piece in pieces {
            let mut piece = *piece;
            while piece.length > 0 {
                let is_full = |request: &WorkRequest| request.pieces.len() >= self.pieces_max;
                if room == 0 || requests.last().is_none_or(is_full) {
                    requests.push(request(WR_RDMA_WRITE, at, key));
                    room = self.request_bytes_max;
                }
                let length = piece.length.min(room as u32);
                if let Some(request) = requests.last_mut() {
                    request.pieces.push(IbvSge { length, ..piece });
                }
                piece.addr += u64::from(length);
                piece.length -= length;
                room -= length as usize;
                at += u64::from(length);
            }
        }
        requests
    }

    /// Writes `pieces`, one after the other, into the region from `at` on. Returns when all are
    /// under way; [`VerbsLink::flush`] says when they have arrived.
    ///
    /// # Errors
    ///
    /// [`LinkError`], which may be that of an earlier write.
    pub async fn write(
        &mut self,
        region: &RemoteRegion,
        at: u64,
        pieces: &[Bytes],
    ) -> Result<(), LinkError> {
        let length = pieces.iter().map(Bytes::len).sum::<usize>();
        region.check(at, length as u64)?;
        self.begin().await?;
        let (mut ranges, mut held_pieces) = (Vec::with_capacity(pieces.len()), Vec::new());
        for piece in pieces {
            let mut piece = piece.clone();
            if !self.arena.has(&piece) {
                self.traffic.copied_bytes += piece.len() as u64;
                piece =
                    self.arena.copy_to_reserve(&piece).ok_or(LinkError::NoMemory(piece.len()))?;
            }
            self.arena.pieces_of(self.nth_device, &piece, &mut ranges);
            held_pieces.push(piece);
        }
        let requests = self.write_requests(&ranges, region.address + at, region.key);
        let last = self.posted + requests.len() as u64;
        if requests.is_empty() {
            return Ok(());
        }
        self.held.extend(held_pieces.into_iter().map(|piece| (last - 1, piece)));
        self.traffic.written_bytes += length as u64;
        self.unflushed = Some((region.address + at + length as u64 - 1, region.key));
        // SAFETY: all pieces are in `held`, under the number of the last request.
        unsafe { self.post(requests).await }
    }

    /// Waits until everything that was written is in the peer's memory, where its program sees it.
    ///
    /// The acknowledgement of a write alone says that the bytes have reached the peer's device. So
    /// the last byte is read back: the device does requests in order, and fetches it from memory.
    ///
    /// # Errors
    ///
    /// [`LinkError::Broken`]: some of it may not be there.
    pub async fn flush(&mut self) -> Result<(), LinkError> {
        self.begin().await?;
        if let Some((address, key)) = self.unflushed {
            let mut read = request(WR_RDMA_READ, address, key);
            read.pieces.push(self.read_back);
            // SAFETY: the arena keeps the target for as long as it exists, and nobody looks at it.
            unsafe { self.post(vec![read]).await? };
        }
        self.drain().await?;
        self.unflushed = None;
        Ok(())
    }

    /// Reads `length` bytes of the region from `at` on.
    ///
    /// # Errors
    ///
    /// [`LinkError`].
    pub async fn read(
        &mut self,
        region: &RemoteRegion,
        at: u64,
        length: usize,
    ) -> Result<Bytes, LinkError> {
        region.check(at, length as u64)?;
        self.begin().await?;
        if length == 0 {
            return Ok(Bytes::new());
        }
        let (buffer, is_reserve) = match self.arena.take(length) {
            Some(buffer) => (buffer, false),
            None => (self.arena.take_reserve(length).ok_or(LinkError::NoMemory(length))?, true),
        };
        let mut ranges = Vec::new();
        self.arena.pieces_of(self.nth_device, buffer.as_ref(), &mut ranges);
        let (mut requests, mut from) = (Vec::new(), region.address + at);
        for range in ranges {
            let mut range = range;
            while range.length > 0 {
                let length = range.length.min(self.request_bytes_max as u32);
                let mut read = request(WR_RDMA_READ, from, region.key);
                read.pieces.push(IbvSge { length, ..range });
                requests.push(read);
                range.addr += u64::from(length);
                range.length -= length;
                from += u64::from(length);
            }
        }
        self.reading = Some(buffer);
        self.traffic.read_bytes += length as u64;
        // SAFETY: the target is in `reading`, and nobody else has it.
        unsafe { self.post(requests).await? };
        self.drain().await?;
        let Some(buffer) = self.reading.take() else { return Ok(Bytes::new()) };
        if is_reserve {
            // It may stay for long, and the reserve is for transfers.
            self.traffic.copied_bytes += length as u64;
            return Ok(Bytes::copy_from_slice(buffer.as_ref()));
        }
        Ok(buffer.into_bytes())
    }
}

fn request(opcode: u32, remote_address: u64, remote_key: u32) -> WorkRequest {
    WorkRequest { opcode, pieces: Vec::new(), remote_address, remote_key, is_signalled: false }
}
