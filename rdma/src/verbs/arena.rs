//! The server's memory for payloads, which its devices may use: an arena at a fixed address.
//!
//! It is one range of addresses, reserved at the start and touched as needed. Buffers are runs of
//! chunks of 64 KiB, and small buffers share a chunk. Segments of 2 MiB are registered with every
//! device when their first chunk is taken, and stay registered until they were free for a while:
//! touching and pinning memory takes longer than moving bytes through it. No peer may access any of
//! it: the devices of this process move the bytes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use super::device::{VerbsDevice, VerbsError};
use super::ffi::{ACCESS_LOCAL_WRITE, IbvSge};
use super::memory::{AnonymousMapping, MemoryRegistration};

/// The unit in which memory is taken.
const CHUNK_BYTES: usize = 64 << 10;
/// The unit in which memory is registered.
const SEGMENT_BYTES: usize = 2 << 20;
const SEGMENT_CHUNKS: usize = SEGMENT_BYTES / CHUNK_BYTES;
/// Buffers up to this size share a chunk.
const SHARED_BYTES_MAX: usize = CHUNK_BYTES / 2;
/// The memory that only transfers take: when payloads fill the rest, links still have room to copy
/// payloads that are on the heap.
const RESERVE_BYTES: usize = 16 << 20;
const RESERVE_CHUNKS: usize = RESERVE_BYTES / CHUNK_BYTES;
/// Buffers in a shared chunk begin at multiples of this.
const SHARED_ALIGNMENT: usize = 64;
/// The time for which no memory is registered after a registration failed.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// A segment that was free for so long is returned to the system.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// The interval at which idle segments are looked for.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The arena. Clones are the same one.
#[derive(Clone)]
pub struct MemoryArena(Arc<ArenaHandle>);

/// The handle that the last clone of an arena drops. Buffers go on with the memory.
struct ArenaHandle {
    memory: Arc<ArenaMemory>,
    /// The chunk that small buffers share now, and how much of it is used.
    shared: Mutex<Option<(Arc<ChunkRun>, usize)>>,
    /// A byte that links read into, and nobody looks at. Once there is one, it stays.
    read_back: Mutex<Option<ArenaBuffer>>,
}

struct ArenaMemory {
    state: Mutex<ArenaState>,
    /// The keys of each segment, by device. They are valid while a chunk of the segment is taken.
    keys: Box<[AtomicU32]>,
    /// The number of devices at the start.
    device_count: usize,
    /// Behind `state`, because registrations end before the mapping does.
    mapping: AnonymousMapping,
}

struct ArenaState {
    chunks: ChunkMap,
    segments: Vec<ArenaSegment>,
    /// Devices that are gone are `None`.
    devices: Vec<Option<VerbsDevice>>,
    /// The time at which memory could not be registered: until some time after, none is.
    failed: Option<Instant>,
}

#[derive(Default)]
struct ArenaSegment {
    chunks_taken: usize,
    /// The time at which its last chunk was freed; `None` if none ever was, or it was returned
    /// since.
    free_since: Option<Instant>,
    /// One for each device that is not gone, if it is registered.
    registrations: Option<Vec<Option<MemoryRegistration>>>,
}

/// The chunks, and which of them are taken.
struct ChunkMap {
    is_taken: Vec<bool>,
    free_count: usize,
    /// The chunk at which the search for free ones begins.
    next: usize,
}

impl ChunkMap {
    fn new(chunks: usize) -> ChunkMap {
        ChunkMap { is_taken: vec![false; chunks], free_count: chunks, next: 0 }
    }

    /// Takes `count` chunks in a row, and leaves at least `reserve` free.
    fn take(&mut self, count: usize, reserve: usize) -> Option<Range<usize>> {
        if self.free_count < count + reserve {
            return None;
        }
        let (next, end) = (self.next, self.is_taken.len());
        let run =
            self.find(next..end, count).or_else(|| self.find(0..end.min(next + count), count))?;
        self.is_taken[run.clone()].fill(true);
        self.next = run.end;
        self.free_count -= count;
        Some(run)
    }

    fn find(&self, range: Range<usize>, count: usize) -> Option<Range<usize>> {
        let mut start = range.start;
        while start + count <= range.end {
            match self.is_taken[start..start + count].iter().rposition(|is_taken| *is_taken) {
                Some(last_taken) => start += last_taken + 1,
                None => return Some(start..start + count),
            }
        }
        None
    }

    fn free(&mut self, run: Range<usize>) {
        // Mostly the oldest is freed first: the search stays near the chunks that were used last.
        self.next = self.next.min(run.start);
        self.free_count += run.len();
        self.is_taken[run].fill(false);
    }
}

impl MemoryArena {
    /// Reserves the addresses of an arena of at most `bytes_max` for payloads, and registers one
    /// segment of it, so that a limit that is too low shows at once.
    ///
    /// # Errors
    ///
    /// [`VerbsError`].
    pub fn new(devices: Vec<VerbsDevice>, bytes_max: usize) -> Result<MemoryArena, VerbsError> {
        let segments = (bytes_max + RESERVE_BYTES).div_ceil(SEGMENT_BYTES).max(1);
        let mapping = AnonymousMapping::new(segments * SEGMENT_BYTES)
            .map_err(|source| VerbsError::Call { call: "mmap", source })?;
        let state = ArenaState {
            chunks: ChunkMap::new(segments * SEGMENT_CHUNKS),
            segments: (0..segments).map(|_| ArenaSegment::default()).collect(),
            devices: devices.into_iter().map(Some).collect(),
            failed: None,
        };
        let device_count = state.devices.len();
        let keys = (0..segments * device_count).map(|_| AtomicU32::new(0)).collect();
        let arena = ArenaMemory { state: Mutex::new(state), keys, device_count, mapping };
        arena.register(&mut arena.state.lock(), 0)?;
        let (memory, shared, read_back) = (Arc::new(arena), Mutex::default(), Mutex::default());
        Ok(MemoryArena(Arc::new(ArenaHandle { memory, shared, read_back })))
    }

    /// A buffer of `length` bytes, with any content. `None` if there is no room, or no more memory
    /// may be locked.
    pub fn take(&self, length: usize) -> Option<ArenaBuffer> {
        self.take_leaving(length, RESERVE_CHUNKS)
    }

    /// [`MemoryArena::take`] for a transfer, which may use what is left for those.
    pub(super) fn take_reserve(&self, length: usize) -> Option<ArenaBuffer> {
        self.take_leaving(length, 0)
    }

    fn take_leaving(&self, length: usize, reserve: usize) -> Option<ArenaBuffer> {
        if length > SHARED_BYTES_MAX {
            let run = self.0.memory.take_run(length.div_ceil(CHUNK_BYTES), reserve)?;
            return Some(ArenaBuffer { at: run.start(), length, run: Arc::new(run) });
        }
        let mut shared = self.0.shared.lock();
        if shared.as_ref().is_none_or(|(_, used)| used + length > CHUNK_BYTES) {
            *shared = Some((Arc::new(self.0.memory.take_run(1, reserve)?), 0));
        }
        let (run, used) = shared.as_mut()?;
        let at = run.start() + *used;
        *used += length.next_multiple_of(SHARED_ALIGNMENT);
        Some(ArenaBuffer { run: Arc::clone(run), at, length })
    }

    /// A copy of `bytes`; `None` as for [`MemoryArena::take`].
    pub fn copy(&self, bytes: &[u8]) -> Option<Bytes> {
        let mut buffer = self.take(bytes.len())?;
        buffer.as_mut_slice().copy_from_slice(bytes);
        Some(buffer.into_bytes())
    }

    /// A copy of `bytes` for a transfer, which may use what is left for those.
    pub(super) fn copy_to_reserve(&self, bytes: &[u8]) -> Option<Bytes> {
        let mut buffer = self.take_reserve(bytes.len())?;
        buffer.as_mut_slice().copy_from_slice(bytes);
        Some(buffer.into_bytes())
    }

    /// True if all of `bytes` is in the arena.
    pub fn has(&self, bytes: &[u8]) -> bool {
        self.0.memory.mapping.position(bytes).is_some()
    }

    /// Adds the pieces of `bytes` for a work request of the `nth` device to `pieces`: one for each
    /// segment. Returns false, and adds nothing, if `bytes` is elsewhere.
    ///
    /// The caller keeps `bytes` until the device is done.
    pub(super) fn pieces_of(&self, device: usize, bytes: &[u8], pieces: &mut Vec<IbvSge>) -> bool {
        let Some(mut at) = self.0.memory.mapping.position(bytes) else { return false };
        let (start, end) = (self.0.memory.mapping.as_ptr() as u64, at + bytes.len());
        while at < end {
            let segment = at / SEGMENT_BYTES;
            let next = end.min((segment + 1) * SEGMENT_BYTES);
            let key = &self.0.memory.keys[segment * self.0.memory.device_count + device];
            let lkey = key.load(Ordering::Acquire);
            pieces.push(IbvSge { addr: start + at as u64, length: (next - at) as u32, lkey });
            at = next;
        }
        true
    }

    /// A byte that the `nth` device may write as long as the arena exists, and that nobody looks
    /// at; `None` as for [`MemoryArena::take`].
    pub(super) fn read_back_target(&self, device: usize) -> Option<IbvSge> {
        let mut target = self.0.read_back.lock();
        if target.is_none() {
            *target = Some(self.take(1)?);
        }
        let mut pieces = Vec::new();
        self.pieces_of(device, target.as_ref()?.as_ref(), &mut pieces);
        pieces.pop()
    }

    /// The devices that may use it and are not gone.
    pub fn devices(&self) -> Vec<VerbsDevice> {
        let state = self.0.memory.state.lock();
        state.devices.iter().flatten().filter(|device| !device.is_lost()).cloned().collect()
    }

    /// The place of a device among those of the arena.
    pub(super) fn position_of(&self, device: &VerbsDevice) -> Option<usize> {
        let state = self.0.memory.state.lock();
        state.devices.iter().position(|slot| slot.as_ref().is_some_and(|known| known == device))
    }

    /// Returns memory that is free for a while to the system, and drops the resources of a device
    /// once it is gone, because the kernel waits for them. It does so until the arena is dropped.
    /// It must be called within a runtime.
    pub fn maintain(&self) {
        let memory = Arc::downgrade(&self.0.memory);
        let maintained = async move {
            loop {
                tokio::time::sleep(IDLE_CHECK_INTERVAL).await;
                let Some(memory) = memory.upgrade() else { return };
                memory.reclaim_idle(IDLE_MAX);
            }
        };
        tokio::spawn(maintained);
        for device in self.devices() {
            let memory = Arc::downgrade(&self.0.memory);
            let watched = async move {
                if let Err(error) = device.watch().await {
                    tracing::warn!(%error, "an RDMA device cannot be watched, and is not used");
                }
                if let Some(memory) = memory.upgrade() {
                    memory.forget_lost_devices();
                }
            };
            tokio::spawn(watched);
        }
    }

    /// The number of registrations of its memory.
    pub fn registrations(&self) -> u64 {
        let state = self.0.memory.state.lock();
        let segments = state.segments.iter().filter_map(|segment| segment.registrations.as_ref());
        segments.flatten().flatten().count() as u64
    }
}

fn segments_of(chunks: &Range<usize>) -> Range<usize> {
    chunks.start / SEGMENT_CHUNKS..chunks.end.div_ceil(SEGMENT_CHUNKS)
}

/// The number of `chunks` that are in `segment`.
fn chunks_in(segment: usize, chunks: &Range<usize>) -> usize {
    let first = chunks.start.max(segment * SEGMENT_CHUNKS);
    chunks.end.min((segment + 1) * SEGMENT_CHUNKS) - first
}

impl ArenaMemory {
    fn forget_lost_devices(&self) {
        let mut state = self.state.lock();
        for nth in 0..state.devices.len() {
            if state.devices[nth].as_ref().is_none_or(|device| !device.is_lost()) {
                continue;
            }
            for segment in &mut state.segments {
                if let Some(registrations) = &mut segment.registrations {
                    registrations[nth] = None;
                }
            }
            state.devices[nth] = None;
        }
    }

    /// Takes `count` chunks in a row; `None` as for [`MemoryArena::take`].
    fn take_run(self: &Arc<ArenaMemory>, count: usize, reserve: usize) -> Option<ChunkRun> {
        let mut state = self.state.lock();
        let chunks = state.chunks.take(count, reserve)?;
        let segments = segments_of(&chunks);
        for segment in segments.clone() {
            if let Err(error) = self.take_segment(&mut state, segment, &chunks) {
                if let Some(error) = error {
                    tracing::warn!(%error, "memory for RDMA cannot be registered; payloads are copied");
                    state.failed = Some(Instant::now());
                }
                for index in segments.start..segment {
                    state.free_segment(index, &chunks);
                }
                state.chunks.free(chunks);
                return None;
            }
        }
        Some(ChunkRun { memory: Arc::clone(self), chunks })
    }

    fn register(&self, state: &mut ArenaState, segment: usize) -> Result<(), VerbsError> {
        let at = segment * SEGMENT_BYTES;
        let mut registrations = Vec::with_capacity(self.device_count);
        for device in &state.devices {
            let Some(device) = device.as_ref().filter(|device| !device.is_lost()) else {
                registrations.push(None);
                continue;
            };
            // SAFETY: registrations are dropped with `state`, before the mapping is.
            let registration = unsafe {
                MemoryRegistration::new(
                    device,
                    &self.mapping,
                    at,
                    SEGMENT_BYTES,
                    ACCESS_LOCAL_WRITE,
                )?
            };
            registrations.push(Some(registration));
        }
        for (nth, registration) in registrations.iter().enumerate() {
            let key = &self.keys[segment * self.device_count + nth];
            key.store(
                registration.as_ref().map_or(0, |region| region.local_key()),
                Ordering::Release,
            );
        }
        state.segments[segment].registrations = Some(registrations);
        Ok(())
    }

    /// Counts `chunks` in `segment` as taken, and registers it if it is not. An error without a
    /// cause is one that was reported a short while ago.
    fn take_segment(
        &self,
        state: &mut ArenaState,
        segment: usize,
        chunks: &Range<usize>,
    ) -> Result<(), Option<VerbsError>> {
        if state.segments[segment].chunks_taken == 0 {
            match state.segments[segment].registrations {
                None if state.failed.is_some_and(|at| at.elapsed() < RETRY_AFTER) => {
                    return Err(None);
                }
                None => self.register(state, segment).map_err(Some)?,
                Some(_) => {}
            }
        }
        state.segments[segment].chunks_taken += chunks_in(segment, chunks);
        Ok(())
    }

    /// Returns segments to the system that were free for `idle` or longer.
    fn reclaim_idle(&self, idle: Duration) {
        let mut state = self.state.lock();
        for (nth, segment) in state.segments.iter_mut().enumerate() {
            let is_idle = segment.free_since.is_some_and(|since| since.elapsed() >= idle);
            if segment.chunks_taken > 0 || !is_idle {
                continue;
            }
            (segment.registrations, segment.free_since) = (None, None);
            // SAFETY: no buffer of the segment exists, and its registrations have just ended.
            unsafe { self.mapping.reclaim(nth * SEGMENT_BYTES, SEGMENT_BYTES) };
        }
    }
}

impl ArenaState {
    /// Counts `chunks` in `segment` as free.
    fn free_segment(&mut self, segment: usize, chunks: &Range<usize>) {
        let freed = &mut self.segments[segment];
        freed.chunks_taken -= chunks_in(segment, chunks);
        freed.free_since = Some(Instant::now());
    }
}

impl std::fmt::Debug for MemoryArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryArena").field("devices", &self.devices()).finish_non_exhaustive()
    }
}

/// Chunks that are taken, until this is dropped.
struct ChunkRun {
    memory: Arc<ArenaMemory>,
    chunks: Range<usize>,
}

impl ChunkRun {
    /// The position of its first byte in the mapping.
    fn start(&self) -> usize {
        self.chunks.start * CHUNK_BYTES
    }
}

impl Drop for ChunkRun {
    fn drop(&mut self) {
        let mut state = self.memory.state.lock();
        for segment in segments_of(&self.chunks) {
            state.free_segment(segment, &self.chunks);
        }
        state.chunks.free(self.chunks.clone());
    }
}

/// A buffer in an arena. Nobody else has its bytes.
pub struct ArenaBuffer {
    run: Arc<ChunkRun>,
    /// The position in the mapping at which it begins.
    at: usize,
    length: usize,
}

impl ArenaBuffer {
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let start = self.run.memory.mapping.as_ptr();
        // SAFETY: the range is inside of the run, which is taken as long as `self` is, and was
        // handed out to `self` alone. Mapped memory is initialised.
        unsafe { std::slice::from_raw_parts_mut(start.add(self.at), self.length) }
    }

    /// Its bytes, to be shared. The memory is free again once the last share is dropped.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for ArenaBuffer {
    fn as_ref(&self) -> &[u8] {
        let start = self.run.memory.mapping.as_ptr();
        // SAFETY: as for `as_mut_slice`.
        unsafe { std::slice::from_raw_parts(start.add(self.at), self.length) }
    }
}

impl AsMut<[u8]> for ArenaBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl std::fmt::Debug for ArenaBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ArenaBuffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An arena for no device, which needs no library.
    fn arena(bytes: usize) -> MemoryArena {
        MemoryArena::new(Vec::new(), bytes).unwrap()
    }

    #[test]
    fn chunks_in_a_row_are_found_wherever_they_are() {
        let mut map = ChunkMap::new(8);
        assert_eq!(map.take(3, 0), Some(0..3));
        assert_eq!(map.take(3, 0), Some(3..6));
        assert_eq!(map.take(3, 0), None);
        map.free(0..3);
        assert_eq!(map.take(2, 0), Some(0..2));
        assert_eq!(map.take(2, 0), Some(6..8));
        assert_eq!(map.take(2, 0), None, "one is free, and not two in a row");
        assert_eq!(map.take(1, 0), Some(2..3));
        map.free(2..3);
        map.free(3..6);
        assert_eq!(map.take(4, 1), None, "one is to be left");
        assert_eq!(map.take(4, 0), Some(2..6), "runs that were freed apart are one");
    }

    #[test]
    fn buffers_do_not_overlap_and_come_back() {
        let arena = arena(4 << 20);
        let mut buffers = Vec::new();
        for (nth, length) in
            [100, 64 << 10, 16 << 10, 1, 3 << 20, 5000, 0, 16 << 10].into_iter().enumerate()
        {
            let mut buffer = arena.take(length).unwrap();
            buffer.as_mut_slice().fill(nth as u8);
            buffers.push(buffer.into_bytes());
        }
        for (nth, buffer) in buffers.iter().enumerate() {
            assert!(buffer.iter().all(|byte| *byte == nth as u8), "{nth}");
            assert!(arena.has(buffer));
        }
        assert!(arena.take(2 << 20).is_none(), "it is full");
        assert!(arena.take_reserve(2 << 20).is_some(), "but for transfers");
        let slice = buffers[4].slice(10..20);
        buffers.remove(4);
        assert!(arena.take(2 << 20).is_none(), "a share of the long buffer is in use");
        drop(slice);
        assert!(arena.take(2 << 20).is_some());
        buffers.clear();
        // The chunk that small buffers share stays.
        assert!(arena.take((4 << 20) - CHUNK_BYTES).is_some());
    }

    #[test]
    fn segments_are_returned_once_they_were_free_for_a_while() {
        let arena = arena(64 << 20);
        let reclaim = |idle| {
            arena.0.memory.reclaim_idle(idle);
            let state = arena.0.memory.state.lock();
            state.segments.iter().filter(|segment| segment.registrations.is_some()).count()
        };
        let last = (64 << 20) - 1;
        assert_eq!(reclaim(Duration::ZERO), 1, "the first was never used");
        let mut buffer = arena.take(64 << 20).unwrap();
        buffer.as_mut_slice()[last] = 7;
        assert_eq!(reclaim(Duration::ZERO), 32, "they are in use");
        drop(buffer);
        assert_eq!(reclaim(Duration::from_secs(3600)), 32, "they were in use a while ago");
        let buffer = arena.take(64 << 20).unwrap();
        assert_eq!(buffer.as_ref()[last], 7, "it is the same memory");
        drop(buffer);
        let first = arena.take(1 << 20).unwrap();
        assert_eq!(reclaim(Duration::ZERO), 1, "one is in use");
        drop(first);
        let buffer = arena.take(64 << 20).unwrap();
        assert_eq!(buffer.as_ref()[last], 0, "the system had it meanwhile");
    }

    #[test]
    fn what_is_elsewhere_has_no_pieces() {
        let arena = arena(1);
        let mut pieces = Vec::new();
        assert!(!arena.pieces_of(0, &[1, 2, 3], &mut pieces));
        assert!(!arena.has(&[0; 10]));
        assert!(pieces.is_empty());
    }

    proptest::proptest! {
        /// A buffer is whole and alone, whatever the order of takes and drops.
        #[test]
        fn takes_and_drops_in_any_order(steps in proptest::collection::vec((0_usize..200_000, 0_usize..8), 1..200)) {
            let arena = arena(2 << 20);
            let mut held: Vec<(u8, ArenaBuffer)> = Vec::new();
            for (nth, (length, dropped)) in steps.into_iter().enumerate() {
                if let Some(mut buffer) = arena.take(length) {
                    buffer.as_mut_slice().fill(nth as u8);
                    held.push((nth as u8, buffer));
                }
                if dropped < held.len() {
                    let (value, buffer) = held.swap_remove(dropped);
                    proptest::prop_assert!(buffer.as_ref().iter().all(|byte| *byte == value));
                }
            }
            for (value, buffer) in &held {
                proptest::prop_assert!(buffer.as_ref().iter().all(|byte| byte == value));
            }
            held.clear();
            let shared = usize::from(arena.0.shared.lock().is_some());
            let state = arena.0.memory.state.lock();
            let taken = state.chunks.is_taken.iter().filter(|is_taken| **is_taken).count();
            proptest::prop_assert_eq!(taken, shared);
        }
    }
}
