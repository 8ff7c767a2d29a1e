//! Transactions on the wire (KIP-98, KIP-360, KIP-447, KIP-664, KIP-890), and what moments show of
//! them.

mod compaction;
mod fixture;
mod isolation;
mod model;
mod offsets;
mod producers;
mod restart;
