//! Links over RDMA: verbs on real devices. All of the crate's `unsafe` is in here.

mod arena;
mod descriptor;
mod device;
mod exposed;
mod ffi;
mod link;
mod memory;
mod queue_pair;
mod resources;

pub use arena::{ArenaBuffer, MemoryArena};
pub use device::{VerbsDevice, VerbsError, WeakDevice, find_library};
pub use exposed::{ExposedMemory, PeerEnd};
pub use link::{CompletionMode, LinkTraffic, PIECES_MAX, VerbsLink};
pub use resources::{RdmaResources, resources};
