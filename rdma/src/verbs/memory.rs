//! Memory that devices use: mappings, and their registrations.

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::device::{VerbsDevice, VerbsError};
use super::ffi::IbvMr;
use super::resources::{PINNED_BYTES, REGISTRATIONS, add, subtract};

/// Anonymous memory at a fixed address. Its pages come into being when they are touched.
pub(super) struct AnonymousMapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it is plain memory. Code that hands out parts of it makes sure that they do not overlap.
unsafe impl Send for AnonymousMapping {}
// SAFETY: as above.
unsafe impl Sync for AnonymousMapping {}

impl AnonymousMapping {
    /// Maps `length` bytes, which is no multiple of the page size only if the caller wants less of
    /// the last page.
    pub(super) fn new(length: usize) -> std::io::Result<AnonymousMapping> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                length.max(1),
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )?
        };
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| std::io::Error::other("the kernel mapped memory at address zero"))?;
        let mapping = AnonymousMapping { start, length };
        // A child between fork and exec must not make the kernel copy pages that a device writes.
        // SAFETY: the range is the mapping, and children do not use it.
        unsafe { madvise(mapping.as_ptr().cast(), mapping.length.max(1), Advice::LinuxDontFork)? };
        Ok(mapping)
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// The position of `slice` in the mapping, if all of it is there.
    pub(super) fn position(&self, slice: &[u8]) -> Option<usize> {
        let at = (slice.as_ptr() as usize).checked_sub(self.start.as_ptr() as usize)?;
        (at.checked_add(slice.len())? <= self.length).then_some(at)
    }

    /// Returns the memory of a range to the kernel. It reads as zeros afterwards.
    ///
    /// # Safety
    ///
    /// Neither the process nor a device uses the range.
    pub(super) unsafe fn reclaim(&self, at: usize, length: usize) {
        debug_assert!(at + length <= self.length);
        // SAFETY: the range is inside, and the caller says that nobody uses it.
        let advised =
            unsafe { madvise(self.as_ptr().add(at).cast(), length, Advice::LinuxDontNeed) };
        if let Err(error) = advised {
            tracing::debug!(%error, "memory stays with the process");
        }
    }
}

impl Drop for AnonymousMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and its owner drops it only once nobody uses it any more.
        if let Err(error) = unsafe { munmap(self.as_ptr().cast(), self.length.max(1)) } {
            tracing::error!(%error, "memory cannot be unmapped");
        }
    }
}

/// A range of memory that a device may use, until this is dropped.
pub(super) struct MemoryRegistration {
    device: VerbsDevice,
    region: NonNull<IbvMr>,
    length: usize,
}

// SAFETY: libibverbs allows its functions on a region from any thread.
unsafe impl Send for MemoryRegistration {}
// SAFETY: as above; the fields that are read do not change.
unsafe impl Sync for MemoryRegistration {}

impl MemoryRegistration {
    /// Registers `length` bytes from `at` on in `mapping`.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Call`], mostly because no more memory may be locked.
    ///
    /// # Safety
    ///
    /// The mapping outlives the registration.
    pub(super) unsafe fn new(
        device: &VerbsDevice,
        mapping: &AnonymousMapping,
        at: usize,
        length: usize,
        access: i32,
    ) -> Result<MemoryRegistration, VerbsError> {
        assert!(at + length <= mapping.length(), "what is registered is mapped");
        // SAFETY: the range is mapped, and the domain is open as long as `device` is held.
        let region = unsafe {
            let start = mapping.as_ptr().add(at).cast();
            (device.verbs().reg_mr)(device.domain(), start, length, access)
        };
        let region = NonNull::new(region).ok_or_else(|| VerbsError::last("ibv_reg_mr"))?;
        add(&REGISTRATIONS, 1);
        add(&PINNED_BYTES, length as u64);
        Ok(MemoryRegistration { device: device.clone(), region, length })
    }

    /// The key for work requests of this process.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the region is registered, and its keys do not change.
        unsafe { self.region.as_ref() }.lkey
    }

    /// The key for the peer.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.region.as_ref() }.rkey
    }
}

impl Drop for MemoryRegistration {
    fn drop(&mut self) {
        // SAFETY: the region is registered, and is not used again.
        let code = unsafe { (self.device.verbs().dereg_mr)(self.region.as_ptr()) };
        if code != 0 {
            // It is possible only after the device is gone, when the kernel has done it.
            tracing::debug!(code, "ibv_dereg_mr failed");
        }
        subtract(&REGISTRATIONS, 1);
        subtract(&PINNED_BYTES, self.length as u64);
    }
}
