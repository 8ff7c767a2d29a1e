//! An allocator that counts what each thread asks of it, so that a test can bound it. It stands in
//! the binary of this crate's unit tests, and nowhere else.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED_BYTES: Cell<usize> = const { Cell::new(0) };
}

struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What `act` asks for, in all: what it gives back in between is not taken off.
pub(super) fn allocated_bytes<T>(act: impl FnOnce() -> T) -> (T, usize) {
    let before = ALLOCATED_BYTES.get();
    let done = act();
    (done, ALLOCATED_BYTES.get() - before)
}

fn count(bytes: usize) {
    // Not there any more while the thread ends, when nothing is measured.
    let _ = ALLOCATED_BYTES.try_with(|asked| asked.set(asked.get() + bytes));
}

// SAFETY: all is handed to `System` as it came, which keeps the contract; counting allocates
// nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above, and every pointer of ours is one of `System`'s.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}
