//! The connections of clients: the ports that they come to, how many there may be, how much memory
//! they hold, and how slow they may be.

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
