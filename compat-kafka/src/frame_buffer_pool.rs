//! A pool of buffers for large frames.
//!
//! A large produce request stays in memory as the newest part of its log. Its buffer returns only
//! when the log's tail releases it. If buffers went to the allocator then and the next request
//! allocated again, the kernel would clear and map the same pages for ever.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use rdma::{ArenaBuffer, MemoryArena};

/// Buffers from this size on come from the pool.
pub(crate) const LARGE_BYTES_MIN: usize = 128 << 10;
/// The pool keeps no buffer that is longer.
const POOLED_BUFFER_BYTES_MAX: usize = 2 << 20;
/// The most bytes that the pool keeps, all buffers together.
const POOL_BYTES_MAX: usize = 32 << 20;

#[derive(Default)]
struct FrameBufferPoolState {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

#[derive(Clone, Default)]
pub(crate) struct FrameBufferPool {
    state: Arc<Mutex<FrameBufferPoolState>>,
    /// The first source of memory: RDMA can send bytes in it without a copy.
    arena: Option<MemoryArena>,
}

impl FrameBufferPool {
    pub(crate) fn new(arena: Option<MemoryArena>) -> FrameBufferPool {
        FrameBufferPool { state: Arc::default(), arena }
    }

    /// A copy of `bytes`, which keeps no other memory.
    pub(crate) fn copy(&self, bytes: &[u8]) -> Bytes {
        let in_arena = self.arena.as_ref().and_then(|arena| arena.copy(bytes));
        in_arena.unwrap_or_else(|| Bytes::copy_from_slice(bytes))
    }

    /// Returns a buffer of at least `length` bytes, with any content.
    pub(crate) fn take(&self, length: usize) -> FrameBuffer {
        if let Some(buffer) = self.arena.as_ref().and_then(|arena| arena.take(length)) {
            return FrameBuffer { memory: FrameMemory::Arena(buffer), pool: Weak::new() };
        }
        let mut kept = self.state.lock();
        // Mostly all buffers have one size, and the newest is the warmest. One that is far too long
        // is not used: a payload in it would keep all of it allocated.
        let fit = length..=length.max(LARGE_BYTES_MIN) / 2 * 3;
        let fits = kept.buffers.iter().rposition(|buffer| fit.contains(&buffer.len()));
        let bytes = match fits {
            Some(index) => {
                let buffer = kept.buffers.swap_remove(index);
                kept.bytes -= buffer.len();
                buffer
            }
            None => {
                drop(kept);
                // Untouched pages of a new buffer cost nothing until bytes arrive in them.
                vec![0; length.next_multiple_of(64 << 10)]
            }
        };
        FrameBuffer { memory: FrameMemory::Heap(bytes), pool: Arc::downgrade(&self.state) }
    }
}

enum FrameMemory {
    Heap(Vec<u8>),
    Arena(ArenaBuffer),
}

/// A buffer that returns to the pool when it is dropped.
pub(crate) struct FrameBuffer {
    memory: FrameMemory,
    pool: Weak<Mutex<FrameBufferPoolState>>,
}

impl FrameBuffer {
    /// The whole buffer, to be filled.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.memory {
            FrameMemory::Heap(bytes) => bytes,
            FrameMemory::Arena(buffer) => buffer.as_mut_slice(),
        }
    }

    /// The first `length` bytes, to be shared. The buffer returns to the pool when the last share
    /// is dropped.
    pub(crate) fn into_bytes(self, length: usize) -> Bytes {
        Bytes::from_owner(self).slice(..length)
    }
}

impl AsRef<[u8]> for FrameBuffer {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            FrameMemory::Heap(bytes) => bytes,
            FrameMemory::Arena(buffer) => buffer.as_ref(),
        }
    }
}

impl Drop for FrameBuffer {
    fn drop(&mut self) {
        let Some(home) = self.pool.upgrade() else { return };
        let FrameMemory::Heap(bytes) = &mut self.memory else { return };
        let mut kept = home.lock();
        let length = bytes.len();
        if length <= POOLED_BUFFER_BYTES_MAX && kept.bytes + length <= POOL_BYTES_MAX {
            kept.bytes += length;
            kept.buffers.push(std::mem::take(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_its_last_share_is_gone_and_not_before() {
        let memory = FrameBufferPool::default();
        let mut buffer = memory.take(LARGE_BYTES_MIN);
        buffer.as_mut_slice()[0] = 7;
        let bytes = buffer.into_bytes(10);
        let part = bytes.slice(..1);
        drop(bytes);
        assert_eq!(memory.state.lock().bytes, 0, "a part is still in use");
        assert_eq!(part[0], 7);
        drop(part);
        assert_eq!(memory.state.lock().bytes, LARGE_BYTES_MIN);
        assert_eq!(memory.take(LARGE_BYTES_MIN).as_ref()[0], 7, "it is the same one");
    }

    #[test]
    fn a_short_frame_does_not_take_a_long_buffer() {
        let memory = FrameBufferPool::default();
        drop(memory.take(2 << 20));
        assert_eq!(memory.take(LARGE_BYTES_MIN).as_ref().len(), LARGE_BYTES_MIN);
        assert_ne!(memory.take((1 << 20) + 1).as_ref().len(), 2 << 20, "twice as long is too long");
        drop(memory.take(2 << 20));
        assert_eq!(memory.take(1500 << 10).as_ref().len(), 2 << 20, "half as long again is not");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let memory = FrameBufferPool::default();
        let buffers: Vec<FrameBuffer> = (0..64).map(|_| memory.take(1 << 20)).collect();
        drop(buffers);
        drop(memory.take(3 << 20));
        let kept = memory.state.lock();
        assert_eq!(kept.bytes, POOL_BYTES_MAX);
        assert!(kept.buffers.iter().all(|buffer| buffer.len() <= POOLED_BUFFER_BYTES_MAX));
    }
}
