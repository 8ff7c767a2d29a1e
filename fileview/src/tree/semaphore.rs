//! A limit on concurrent work that uses much memory for a short time.

use parking_lot::{Condvar, Mutex};

/// A counting semaphore that blocks threads.
pub(crate) struct BlockingSemaphore {
    permits: Mutex<usize>,
    released: Condvar,
}

/// A permit, held until it is dropped.
pub(crate) struct BlockingPermit<'a>(&'a BlockingSemaphore);

impl BlockingSemaphore {
    pub(crate) const fn with_permits(count: usize) -> BlockingSemaphore {
        BlockingSemaphore { permits: Mutex::new(count), released: Condvar::new() }
    }

    pub(crate) fn acquire(&self) -> BlockingPermit<'_> {
        let mut free = self.permits.lock();
        self.released.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        BlockingPermit(self)
    }
}

impl Drop for BlockingPermit<'_> {
    fn drop(&mut self) {
        *self.0.permits.lock() += 1;
        self.0.released.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn so_many_are_inside_at_a_time_and_all_get_in() {
        let (gate, two) = (BlockingSemaphore::with_permits(2), Barrier::new(2));
        let (inside, peak, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    let _inside = gate.acquire();
                    peak.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    // Two permits are given out at a time, or both threads would wait forever.
                    two.wait();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!((peak.into_inner(), done.into_inner()), (2, 16));
    }
}
