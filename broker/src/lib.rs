//! The server: configuration, listeners, wiring, shutdown, and the admin port.
//!
//! This crate knows how the parts fit together and how they begin and end. It knows nothing of what
//! is inside of them: no frame of Kafka's, no page, no stamp.
//!
//! [`Config::load`] reads what is asked for, [`Broker::start`] makes it run, and [`run`] is both ends
//! of a process: it waits for signals and for a store that stops.
mod admin;
mod api;
mod broker;
mod config;
pub mod control;
mod descriptors;
mod http_hosts;
mod http_response;
mod listen;
pub mod logging;
mod metrics;
mod process;
mod run;
mod status;
mod tree;

pub use broker::{Broker, RunningBroker};
pub use config::nearest::{distance, nearest};
pub use config::{
    Config, ConfigProblem, ConfigProblems, ConfigSources, ListenAddress, SettingOrigin,
};
pub use run::run;
