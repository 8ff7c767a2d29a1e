//! Moves payloads between the memory of a server and that of its client: one-sided, started by the
//! server (F25 of the papers).
//!
//! - [`devices`] lists the RDMA devices of the machine, from `/sys/class/infiniband`, where the
//!   kernel shows InfiniBand, RoCE and iWARP devices alike. It needs no privilege, and
//!   without the feature `ibverbs` no library.
//! - [`VerbsLink`] is the server's end of a link: it writes into its client's memory, and reads
//!   from it. The client exposes memory ([`ExposedMemory`]) through its end ([`PeerEnd`]), and its
//!   program takes no part in a transfer.
//! - [`MemoryArena`] is the server's memory for payloads, which its devices may use.
//!
//! - [`protocol`] has the messages by which both sides learn each other's [`LinkAddress`] and
//!   [`RemoteRegion`]. This crate does not send them.
//!
//! Without the feature `ibverbs`, libibverbs is opened when it is first needed, so a program with
//! this crate starts on a machine without it. With the feature the program is linked with it.

mod address;
mod choice;
mod device;
mod discover;
mod gid;
mod link;
pub mod protocol;
mod verbs;

pub use address::{LINK_ADDRESS_BYTES, LinkAddress};
pub use choice::{DeviceChoice, usable_ports};
pub use device::{LinkLayer, PortState, RdmaDevice, RdmaPort};
pub use discover::{DiscoverError, devices};
pub use gid::{GidAddress, GidKind, PortGid};
pub use link::{LinkError, RemoteRegion};
pub use verbs::{
    ArenaBuffer, CompletionMode, ExposedMemory, LinkTraffic, MemoryArena, PIECES_MAX, PeerEnd,
    RdmaResources, VerbsDevice, VerbsError, VerbsLink, WeakDevice, find_library, resources,
};
