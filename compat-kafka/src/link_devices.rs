//! The RDMA devices that links use.

use std::net::IpAddr;

use engine::{LoadMemory, LoadMemorySource};
use rdma::{CompletionMode, MemoryArena, VerbsDevice};

/// The devices of a server, and how links use them.
#[derive(Clone, Debug)]
pub struct LinkDevices {
    /// The memory for payloads, which the devices may use.
    pub arena: MemoryArena,
    /// The way in which links wait for their device.
    pub completion_mode: CompletionMode,
}

impl LinkDevices {
    /// The device for a client that came to the address `local`: the one with that address, or else
    /// the first. `None` if all are gone.
    pub(crate) fn device_at(&self, local: IpAddr) -> Option<VerbsDevice> {
        let (mut devices, local) = (self.arena.devices(), local.to_canonical());
        let is_local = |device: &VerbsDevice| device.choice().gid.address.ip() == local;
        let nth = devices.iter().position(is_local).unwrap_or(0);
        (nth < devices.len()).then(|| devices.swap_remove(nth))
    }
}

/// Memory for what is read from files: it can be sent by RDMA without a copy.
pub(crate) struct ArenaSource(pub(crate) MemoryArena);

impl LoadMemorySource for ArenaSource {
    fn take(&self, length: usize) -> Option<Box<dyn LoadMemory>> {
        Some(Box::new(self.0.take(length)?))
    }
}
