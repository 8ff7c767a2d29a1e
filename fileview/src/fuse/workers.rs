//! The threads that serve requests: a few take them from the kernel, and one is always free for the
//! next.
//!
//! A request is served on the thread that took it, which costs least. But a request that waits for
//! the disk must not block others that need no disk. So a thread that finds all other threads busy
//! passes its request to a pool, and takes the next one. The pool is bounded, so the number of
//! requests in progress is bounded too. When the pool is full, the last thread serves as well, and
//! the kernel queues further requests.
//!
//! Requests that may read a whole topic are served separately, a few at a time. While the others of
//! this kind wait, they hold no thread, and they delay only each other.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

const POOL_MAX: usize = 64;
/// The number of slow requests that are served at a time.
const SLOW_MAX: usize = 16;

pub(super) struct FuseWorkers {
    runtime: Handle,
    /// The number of threads that take requests.
    threads: usize,
    busy: AtomicUsize,
    pool: Arc<Semaphore>,
    slow: Arc<Semaphore>,
}

impl FuseWorkers {
    pub(super) fn new(runtime: Handle, threads: usize) -> FuseWorkers {
        let pool = Arc::new(Semaphore::new(POOL_MAX));
        let long = Arc::new(Semaphore::new(SLOW_MAX));
        FuseWorkers { runtime, threads, busy: AtomicUsize::new(0), pool, slow: long }
    }

    /// Serves a request, on this thread or in the pool.
    pub(super) fn serve(&self, request: impl FnOnce() + Send + 'static) {
        let _busy = BusyGuard::begin(&self.busy);
        if self.busy.load(Ordering::Relaxed) >= self.threads
            && let Ok(room) = Arc::clone(&self.pool).try_acquire_owned()
        {
            self.runtime.spawn_blocking(move || {
                run_catching_panics(request);
                drop(room);
            });
        } else {
            run_catching_panics(request);
        }
    }

    /// Serves a slow request, when a permit is free.
    pub(super) fn serve_slow(&self, request: impl FnOnce() + Send + 'static) {
        let turns = Arc::clone(&self.slow);
        self.runtime.spawn(async move {
            let turn = turns.acquire_owned().await.expect("never closed");
            tokio::task::spawn_blocking(move || {
                run_catching_panics(request);
                drop(turn);
            });
        });
    }

    /// Serves a request that only waits for an event, without a thread of its own.
    pub(super) fn wait(&self, request: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(request);
    }
}

/// Runs a request and catches a panic. The drop of its reply then answers with an error. The panic
/// must not end the thread, because it may be the one that takes the next requests.
fn run_catching_panics(request: impl FnOnce()) {
    if std::panic::catch_unwind(AssertUnwindSafe(request)).is_err() {
        tracing::error!("serving a request of the kernel has panicked; it is answered with EIO");
    }
}

/// Counts a thread as busy while it exists.
struct BusyGuard<'a>(&'a AtomicUsize);

impl BusyGuard<'_> {
    fn begin(busy: &AtomicUsize) -> BusyGuard<'_> {
        busy.fetch_add(1, Ordering::Relaxed);
        BusyGuard(busy)
    }
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_last_free_thread_waits_for_nobody() {
        let workers = Arc::new(FuseWorkers::new(Handle::current(), 2));
        let (release, released) = channel::<()>();
        let (began, begun) = channel();
        let slow = Arc::clone(&workers);
        let first = std::thread::spawn(move || {
            slow.serve(move || {
                began.send(()).unwrap();
                released.recv().unwrap();
            });
        });
        begun.recv().unwrap();
        // The second of two threads. Its request waits for the first one to end, but the thread
        // does not.
        let (answer, answered) = channel();
        let (go, started) = channel::<()>();
        workers.serve(move || {
            started.recv().unwrap();
            answer.send(()).unwrap();
        });
        go.send(()).unwrap();
        answered.recv().unwrap();
        release.send(()).unwrap();
        first.join().unwrap();
        assert_eq!(workers.busy.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_takes_long_takes_no_thread_from_others() {
        let workers = FuseWorkers::new(Handle::current(), 2);
        let gate = Arc::new(parking_lot::RwLock::new(()));
        let guard = gate.write();
        let (began, begun) = channel();
        const COUNT: usize = 3 * (POOL_MAX + SLOW_MAX);
        for _ in 0..COUNT {
            let (gate, began) = (Arc::clone(&gate), began.clone());
            workers.serve_slow(move || {
                began.send(()).unwrap();
                drop(gate.read());
            });
        }
        for _ in 0..SLOW_MAX {
            begun.recv().unwrap();
        }
        let (answer, answered) = channel();
        workers.serve(move || answer.send(std::thread::current().id()).unwrap());
        assert_eq!(answered.recv().unwrap(), std::thread::current().id());
        assert!(begun.try_recv().is_err(), "no more than that at a time");
        drop(guard);
        assert_eq!(begun.iter().take(COUNT - SLOW_MAX).count(), COUNT - SLOW_MAX);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_request_that_panics_ends_alone() {
        let workers = FuseWorkers::new(Handle::current(), 2);
        workers.serve(|| panic!("on purpose"));
        assert_eq!(workers.busy.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_free_thread_serves_by_itself() {
        let workers = FuseWorkers::new(Handle::current(), 2);
        let (answer, answered) = channel();
        workers.serve(move || answer.send(std::thread::current().id()).unwrap());
        assert_eq!(answered.recv().unwrap(), std::thread::current().id());
    }
}
