//! The history API: operations that Kafka's protocol does not have. Cuts, differences, the past of
//! topics and groups, pins, plug-ins, and the tree of files.
//!
//! [`HistoryApi::answer`] takes a request and returns the text of its response. The servers above
//! it carry the two over a wire: `compat-kafka` in Kafka's frames, `broker` over HTTP. This crate
//! knows neither. It gets Kafka's groups and topic names through [`HistoryGroups`] and
//! [`MomentTopics`]. The documents are the types of `history-documents`; `docs/HISTORY-API.md`
//! describes them.
//!
//! Each file is about one subject, and has its operations. One of them, `access`, decides who may
//! do what.

#![forbid(unsafe_code)]

mod access;
mod api;
mod budgets;
mod context;
mod cuts;
mod diffs;
mod document;
mod error;
mod groups;
mod health;
mod moment;
mod pins;
mod plugins;
mod records;
mod security;
mod seeks;
mod topics;
mod tree;
mod tree_files;
mod turns;

pub use access::HistoryAccess;
pub use api::HistoryApi;
pub use context::{HistoryContext, HistoryGroups, MomentTopics, MomentViewFuture};
pub use error::HistoryApiError;
pub use health::ServerHealth;
pub use records::RecordsAnswer;
pub use tree_files::{OpenTreeContents, TreeContents};
