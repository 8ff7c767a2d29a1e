//! An allocator that counts the allocations of each thread, so that a test can limit them.
//!
//! A test program that measures has it as its allocator:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: testkit::allocations::CountingAllocator =
//!     testkit::allocations::CountingAllocator;
//! ```

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED_BYTES: Cell<usize> = const { Cell::new(0) };
}

#[derive(Debug)]
pub struct CountingAllocator;

/// The total that `act` allocates, in bytes. Memory that it frees in between is not subtracted.
pub fn allocated_bytes<T>(act: impl FnOnce() -> T) -> (T, usize) {
    let before = ALLOCATED_BYTES.get();
    let done = act();
    (done, ALLOCATED_BYTES.get() - before)
}

fn count(bytes: usize) {
    // It does not exist any more while the thread ends, when nothing is measured.
    let _ = ALLOCATED_BYTES.try_with(|asked| asked.set(asked.get() + bytes));
}

// SAFETY: every call is passed to `System` unchanged, which keeps the contract; counting allocates
// nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are those that `System` requires.
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
