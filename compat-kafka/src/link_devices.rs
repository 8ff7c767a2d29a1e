//! The RDMA devices that links use.

use std::net::IpAddr;

use rdma::{CompletionMode, MemoryArena, VerbsDevice};

/// The devices of a server, and how links use them.
#[derive(Clone, Debug)]
pub struct LinkDevices {
    /// The memory for payloads, which the devices may use.
    pub arena: MemoryArena,
    /// How links wait for their device.
    pub completion_mode: CompletionMode,
}

impl LinkDevices {
    /// The device for a client that came to the address `local`: the one with that address, or else
    /// the first. `None` if all are gone.
    pub(crate) fn nth_device(&self, local: IpAddr) -> Option<usize> {
        let usable = || self.arena.devices().iter().enumerate().filter(|(_, of)| !of.is_lost());
        let is_local = |of: &VerbsDevice| of.choice().gid.address.ip() == local;
        let found = usable().find(|(_, of)| is_local(of)).or_else(|| usable().next());
        found.map(|(nth, _)| nth)
    }
}
