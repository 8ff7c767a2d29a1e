//! Waiting for a descriptor of the library.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor of libibverbs, which tells when there is something to read from it.
pub(super) type WatchedDescriptor = AsyncFd<BorrowedFd<'static>>;

/// Makes reads of `descriptor` return at once, and waits for them from now on. It must be called
/// within a runtime.
///
/// # Safety
///
/// The descriptor is open, and stays open until the result is dropped.
pub(super) unsafe fn watch_descriptor(descriptor: RawFd) -> io::Result<WatchedDescriptor> {
    // SAFETY: it is open as long as the result exists, as the caller says.
    let descriptor: BorrowedFd<'static> = unsafe { BorrowedFd::borrow_raw(descriptor) };
    rustix::io::ioctl_fionbio(descriptor, true)?;
    // SAFETY: as above.
    unsafe { Ok(AsyncFd::register_with_interest(descriptor, Interest::READABLE)?) }
}
