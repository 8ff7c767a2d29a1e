//! The server: configuration, listeners, wiring, shutdown, and the admin port.
//!
//! This crate knows how the parts fit together, and how they start and stop. It does not know their
//! internals, such as Kafka's frames or stamps.
//!
//! [`Config::load`] reads the configuration, and [`Broker::start`] starts the server. [`run`] runs
//! a whole process: it also waits for signals and for a store that stops.

#![forbid(unsafe_code)]

mod admin;
mod api;
pub mod backup;
mod broker;
mod config;
pub mod control;
mod descriptors;
mod dynamic_settings;
pub mod health;
mod home_page;
mod http_access;
mod http_connections;
mod http_contents;
mod http_hosts;
mod http_ports;
mod http_response;
mod http_sessions;
mod kafka_ports;
mod links;
mod listen;
mod local_users;
pub mod logging;
mod maintenance;
mod metrics;
mod mount_users;
mod openapi;
mod process;
mod run;
mod status;
mod supervisor;
mod tls_reload;
mod traces;
mod zookeeper;

pub use broker::{Broker, RunningBroker};
pub use config::nearest::nearest;
pub use config::reference::{example as example_config, page as settings_page};
pub use config::{
    Config, ConfigProblem, ConfigProblems, ConfigSources, EffectiveSetting, ListenAddress,
    ListenerConfig, ListenerSettings, SecurityProtocol, SettingOrigin,
};
pub use local_users::request_users;
pub use metrics::IMPORT_GROUP_PREFIX;
pub use process::build_target;
pub use run::run;
