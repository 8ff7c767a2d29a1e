//! A pool of buffers for large frames.
//!
//! A large produce request stays in memory as the newest part of its log. Its buffer returns only
//! when the log's tail releases it. If buffers went to the allocator then and the next request
//! allocated again, the kernel would clear and map the same pages for ever.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

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
pub(crate) struct FrameBufferPool(Arc<Mutex<FrameBufferPoolState>>);

impl FrameBufferPool {
    /// Returns a buffer of at least `length` bytes, with any content.
    pub(crate) fn take(&self, length: usize) -> FrameBuffer {
        let mut kept = self.0.lock();
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
        FrameBuffer { bytes, pool: Arc::downgrade(&self.0) }
    }
}

/// A buffer that returns to the pool when it is dropped.
pub(crate) struct FrameBuffer {
    bytes: Vec<u8>,
    pool: Weak<Mutex<FrameBufferPoolState>>,
}

impl FrameBuffer {
    /// The whole buffer, to be filled.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The first `length` bytes, to be shared. The buffer returns to the pool when the last share
    /// is dropped.
    pub(crate) fn into_bytes(self, length: usize) -> Bytes {
        Bytes::from_owner(self).slice(..length)
    }
}

impl AsRef<[u8]> for FrameBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for FrameBuffer {
    fn drop(&mut self) {
        let Some(home) = self.pool.upgrade() else { return };
        let mut kept = home.lock();
        let length = self.bytes.len();
        if length <= POOLED_BUFFER_BYTES_MAX && kept.bytes + length <= POOL_BYTES_MAX {
            kept.bytes += length;
            kept.buffers.push(std::mem::take(&mut self.bytes));
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
        assert_eq!(memory.0.lock().bytes, 0, "a part is still in use");
        assert_eq!(part[0], 7);
        drop(part);
        assert_eq!(memory.0.lock().bytes, LARGE_BYTES_MIN);
        assert_eq!(memory.take(LARGE_BYTES_MIN).bytes[0], 7, "it is the same one");
    }

    #[test]
    fn a_short_frame_does_not_take_a_long_buffer() {
        let memory = FrameBufferPool::default();
        drop(memory.take(2 << 20));
        assert_eq!(memory.take(LARGE_BYTES_MIN).bytes.len(), LARGE_BYTES_MIN);
        assert_ne!(memory.take((1 << 20) + 1).bytes.len(), 2 << 20, "twice as long is too long");
        drop(memory.take(2 << 20));
        assert_eq!(memory.take(1500 << 10).bytes.len(), 2 << 20, "half as long again is not");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let memory = FrameBufferPool::default();
        let buffers: Vec<FrameBuffer> = (0..64).map(|_| memory.take(1 << 20)).collect();
        drop(buffers);
        drop(memory.take(3 << 20));
        let kept = memory.0.lock();
        assert_eq!(kept.bytes, POOL_BYTES_MAX);
        assert!(kept.buffers.iter().all(|buffer| buffer.len() <= POOLED_BUFFER_BYTES_MAX));
    }
}
