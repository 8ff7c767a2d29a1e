//! The limits of connections: how many there may be, how much memory they hold, and how slow their
//! clients may be.
//!
//! [`ConnectionTable`] decides which connection ends when all places are taken. [`MemoryBudget`]
//! bounds the requests that have arrived and the responses that wait to leave, and ends slow
//! clients when others need their room. [`TransferPace`] is the slowest pace that a client may
//! have. There are no sockets and no frames here.

#![forbid(unsafe_code)]

mod connection_table;
mod listener;
mod memory_budget;
mod transfer_pace;

pub use connection_table::{
    ConnectionPlace, ConnectionRoute, ConnectionTable, FullLimit, LoginMemory, OpenLimits,
    PlaceSource,
};
pub use listener::{AdvertisedAddress, KafkaListener};
pub use memory_budget::{
    ConnectionQuota, MemoryBudget, MemoryBudgetError, MemoryBudgetSpec, QuotaPermit, RequestQuotas,
    units,
};
pub use transfer_pace::{TransferLimits, TransferPace};
