//! The RDMA devices of this machine, and their state.
//!
//! This crate knows how Linux lists such devices ([`devices`]), and no more. It moves no bytes: it
//! opens no device, registers no memory and uses no verbs. Data between two processes goes over
//! TCP, whatever is found here.
//!
//! The list is read from `/sys/class/infiniband`, where the kernel shows InfiniBand, RoCE and iWARP
//! devices alike. It needs neither a library nor a privilege.
mod device;
mod discover;

pub use device::{LinkLayer, PortState, RdmaDevice, RdmaPort};
pub use discover::{DiscoverError, devices};
