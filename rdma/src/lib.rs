//! RDMA devices of this machine: which there are, and in what state.
//!
//! This crate knows how Linux lists such devices ([`devices`]), and no more. It moves no bytes: it
//! opens no device, registers no memory and speaks no verbs. What moves between two processes moves
//! over TCP, whatever is found here.
//!
//! The list is read from `/sys/class/infiniband`, which is how the kernel shows InfiniBand, RoCE and
//! iWARP devices alike; it needs neither a library nor a privilege.
mod device;
mod discover;

pub use device::{LinkLayer, PortState, RdmaDevice, RdmaPort};
pub use discover::{DiscoverError, devices};
