//! The settings of the server: as clients see them, and the ones that change while it runs
//! (KIP-226).

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use engine::groups::ResourceConfig;
use engine::{DynamicMaintenance, EngineError, TopicDefaults};
use kafka_groups::AssignmentIntervals;

/// The name under which settings of all servers are kept.
pub(crate) const ALL_BROKERS: &str = "";

/// A setting of a broker, by Kafka's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerSetting {
    /// Its name; of one listener's alone, with `listener.name.NAME.` before it.
    pub name: String,
    /// Kafka's name of its type, such as `INT`. A `PASSWORD` has no value here.
    pub type_name: &'static str,
    /// The value in force; `None` if it has none.
    pub value: Option<String>,
    /// The places where it was given, with its value there, the one in force first.
    pub given: Vec<(SettingSource, Option<String>)>,
    pub default: Option<&'static str>,
    /// True if it may change while the server runs.
    pub is_dynamic: bool,
    /// The meaning of the setting in this server.
    pub documentation: String,
}

/// The place where a setting of a broker is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingSource {
    /// By a client, for this server.
    Broker,
    /// By a client, for all servers.
    AllBrokers,
    /// At the start of the server: in its file, its environment, or its command line.
    Static,
}

/// The settings that clients have given, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DynamicConfigs {
    /// For all servers.
    pub of_all: ResourceConfig,
    /// For this server. They win.
    pub own: ResourceConfig,
}

/// The limits on open and on new connections (KIP-402, KIP-612).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The most connections (`max.connections`).
    pub max: usize,
    /// The most new ones a second (`max.connection.creation.rate`); `None` for no limit.
    pub rate_max: Option<u32>,
}

impl ConnectionLimits {
    /// There is no limit.
    pub const NONE: ConnectionLimits = ConnectionLimits { max: usize::MAX, rate_max: None };
}

/// The options of the Kafka protocol server that may change while it runs. Names in parentheses are
/// Kafka's settings.
#[derive(Clone, Debug)]
pub struct DynamicOptions {
    /// The limits of all listeners together.
    pub limits: ConnectionLimits,
    /// The limits of single listeners, by [`KafkaListener::key`](crate::KafkaListener::key).
    pub listener_limits: BTreeMap<String, ConnectionLimits>,
    /// The most connections from one address (`max.connections.per.ip`).
    pub connections_per_ip_max: usize,
    /// The same for addresses that have a limit of their own (`max.connections.per.ip.overrides`).
    pub connections_per_ip_overrides: BTreeMap<IpAddr, usize>,
    /// The broker's settings by name, as DescribeConfigs lists them.
    pub broker_settings: Vec<BrokerSetting>,
}

impl DynamicOptions {
    /// A setting of the broker.
    pub(crate) fn setting(&self, name: &str) -> Option<&BrokerSetting> {
        let at = self.broker_settings.binary_search_by(|setting| (*setting.name).cmp(name));
        at.ok().map(|at| &self.broker_settings[at])
    }
}

impl Default for DynamicOptions {
    fn default() -> DynamicOptions {
        DynamicOptions {
            limits: ConnectionLimits { max: 4096, rate_max: None },
            listener_limits: BTreeMap::new(),
            connections_per_ip_max: usize::MAX,
            connections_per_ip_overrides: BTreeMap::new(),
            broker_settings: Vec::new(),
        }
    }
}

/// The effects of settings that were found to be valid.
pub struct PreparedSettings {
    pub options: DynamicOptions,
    pub topic_defaults: TopicDefaults,
    pub maintenance: DynamicMaintenance,
    pub assignment_intervals: AssignmentIntervals,
    /// Puts into force what the protocol server does not know.
    pub finish: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for PreparedSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedSettings").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Settings that cannot be given, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidSettings {
    pub names: Vec<String>,
    pub message: String,
    /// True if the settings keep somebody out who might get in without them.
    pub are_guards: bool,
}

/// The failure to put the settings that clients have given into force again.
#[derive(Debug, thiserror::Error)]
pub enum RestoreSettingsError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(
        "{0}. Put right the files that they name: without them, the listener would take clients that they keep out"
    )]
    Guards(InvalidSettings),
}

/// The meaning of the server's settings, which its configuration knows.
pub trait DynamicSettings: Send + Sync + fmt::Debug {
    /// Prepares the settings that were given at the start, and `given` since. It may read files.
    ///
    /// # Errors
    /// Some of them cannot be given.
    fn prepare(&self, given: &DynamicConfigs) -> Result<PreparedSettings, InvalidSettings>;
}

/// The settings that clients change while the server runs, as they are in force.
pub(crate) struct DynamicState {
    /// The options that follow from them.
    pub(crate) options: ArcSwap<DynamicOptions>,
    /// Prepares the settings that clients give; none can be given without.
    pub(crate) source: OnceLock<Arc<dyn DynamicSettings>>,
    /// Held while settings of anything but topics are changed.
    pub(crate) changes: Arc<tokio::sync::Mutex<()>>,
}

impl DynamicState {
    pub(crate) fn new(options: DynamicOptions) -> DynamicState {
        let (source, changes) = Default::default();
        DynamicState { options: ArcSwap::from_pointee(options), source, changes }
    }
}
