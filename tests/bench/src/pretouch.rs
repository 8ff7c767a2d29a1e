//! Memory held ready for the kernel's page cache, so that a broker is not charged for the
//! hypervisor.
//!
//! A virtual machine with free page reporting returns memory that has been free for two seconds to
//! its host. The first access to each such page afterwards costs a fault in the host, which the
//! guest counts as system time of the writing process. Here that was 2 s of CPU for each GB written
//! to new files, against 0.2 s once the pages were there: ten times what is to be measured. So the
//! memory that a run will fill is touched before it, and released piece by piece just ahead of the
//! writes.

use std::sync::{Mutex, PoisonError};

use procfs::{Current, Meminfo};

/// Larger than what the allocator ever caches: dropping one returns it to the kernel.
const PIECE_BYTES: usize = 64 << 20;
const PAGE_BYTES: usize = 4096;
/// Released before the first byte is sent.
const AHEAD_PIECES: u64 = 2;

pub(crate) struct PretouchedMemory(Mutex<PretouchState>);

struct PretouchState {
    pieces: Vec<Vec<u8>>,
    moved_bytes: u64,
    released: u64,
}

impl PretouchedMemory {
    /// Touches memory for `bytes`, but at most half of what is available.
    pub(crate) fn touch(bytes: u64) -> PretouchedMemory {
        let available = Meminfo::current().ok().and_then(|memory| memory.mem_available);
        let bytes = bytes.min(available.unwrap_or(0) / 2);
        let count = bytes.div_ceil(PIECE_BYTES as u64);
        let pieces = (0..count).map(|_| touch_piece()).collect();
        let ballast =
            PretouchedMemory(Mutex::new(PretouchState { pieces, moved_bytes: 0, released: 0 }));
        ballast.release_for(0);
        ballast
    }

    /// Touches nothing: for runs that write nothing, and to measure the cost of memory here.
    pub(crate) fn empty() -> PretouchedMemory {
        PretouchedMemory(Mutex::new(PretouchState {
            pieces: Vec::new(),
            moved_bytes: 0,
            released: 0,
        }))
    }

    /// Releases as much as `bytes` more will need.
    pub(crate) fn release_for(&self, bytes: u64) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.moved_bytes += bytes;
        while held.released < held.moved_bytes / PIECE_BYTES as u64 + AHEAD_PIECES {
            held.released += 1;
            drop(held.pieces.pop());
        }
    }
}

fn touch_piece() -> Vec<u8> {
    let mut piece = vec![0; PIECE_BYTES];
    piece.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
    std::hint::black_box(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_go_as_bytes_are_moved() {
        let piece = PIECE_BYTES as u64;
        let pieces = (0..5).map(|_| Vec::new()).collect();
        let ballast =
            PretouchedMemory(Mutex::new(PretouchState { pieces, moved_bytes: 0, released: 0 }));
        let held = |moved| {
            ballast.release_for(moved);
            ballast.0.lock().unwrap().pieces.len()
        };
        assert_eq!([0, piece - 1, 1, piece, 9 * piece].map(held), [3, 3, 2, 1, 0]);
    }
}
