//! Counts of the resources of this process at its devices, so that a leak shows.

use std::sync::atomic::{AtomicU64, Ordering};

/// The resources that are open or registered now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmaResources {
    /// Devices that are open.
    pub devices: u64,
    pub queue_pairs: u64,
    /// Registrations of memory.
    pub registrations: u64,
    /// The bytes of these registrations. They are pinned: the kernel cannot move them or swap them
    /// out.
    pub pinned_bytes: u64,
}

pub(super) static DEVICES: AtomicU64 = AtomicU64::new(0);
pub(super) static QUEUE_PAIRS: AtomicU64 = AtomicU64::new(0);
pub(super) static REGISTRATIONS: AtomicU64 = AtomicU64::new(0);
pub(super) static PINNED_BYTES: AtomicU64 = AtomicU64::new(0);

pub(super) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

pub(super) fn subtract(counter: &AtomicU64, amount: u64) {
    counter.fetch_sub(amount, Ordering::Relaxed);
}

/// The resources of this process at its devices now.
pub fn resources() -> RdmaResources {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    RdmaResources {
        devices: load(&DEVICES),
        queue_pairs: load(&QUEUE_PAIRS),
        registrations: load(&REGISTRATIONS),
        pinned_bytes: load(&PINNED_BYTES),
    }
}
