//! The configuration: one typed [`Config`], from many sources.
//!
//! The sources are defaults, a file, the environment, options, and `--set`. Later sources win.
//! Every value takes the same path: it is text with an origin, and a row of one table parses it
//! ([`setting`]). The table has our own settings by section and name (`storage.tail-bytes`), and the
//! broker's settings by their Kafka names (`num.partitions`), which stand under `[kafka]` in a
//! file. The environment variable of a setting is `FREEZEFRAME_` and its name in capitals, with `_`
//! for other characters and without `server`: `FREEZEFRAME_DATA_DIR`,
//! `FREEZEFRAME_STORAGE_TAIL_BYTES`, `FREEZEFRAME_KAFKA_NUM_PARTITIONS`.
//!
//! All problems are reported together. An unknown name is refused, and the message suggests the
//! nearest known one. The environment is an exception, because other programs use it too: there
//! only near misses are refused, and other unknown names cause warnings. The table does this instead
//! of serde, which would stop at the first problem.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use compat_kafka::{ConnectionLimits, KafkaOptions, SaslMechanism};
use compat_zk::ZkOptions;
use engine::EngineOptions;
use tls::{ClientAuthentication, TlsOptions};

pub(crate) mod dynamic;
mod kafka;
mod kafka_names;
mod listeners;
mod lookup;
mod memory;
pub(crate) mod nearest;
mod own;
mod problem;
pub(crate) mod reference;
mod security_settings;
mod setting;
mod sources;
mod tls_settings;
mod value;
mod zoo_cfg;

pub use listeners::{ListenerConfig, ListenerSettings, SecurityProtocol};
pub use problem::{ConfigProblem, ConfigProblems, SettingOrigin};
pub(crate) use security_settings::ListenerSecurity;
pub use sources::ConfigSources;
pub use value::ListenAddress;

use lookup::{SettingLookup, UnknownSetting, find_setting, kafka_spelling};
use setting::{ServerSetting, SettingForm};
use sources::SourceValue;
use value::SettingValue;

use crate::links::LinkOptions;
use crate::mount_users::MountUsers;

/// By this name, listeners' settings of TLS and tokens are those of HTTP too.
pub(crate) const HTTP_LISTENER: &str = "HTTP";

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    pub data_dir: PathBuf,
    /// The address for Kafka clients, unless `listeners` names others.
    pub kafka: ListenAddress,
    pub listeners: ListenerSettings,
    /// The authentication of Kafka's clients, where a listener does not say otherwise.
    pub(crate) kafka_security: ListenerSecurity,
    /// The address for operators.
    pub http: ListenAddress,
    /// The address for operators over TLS.
    pub http_tls: ListenAddress,
    /// The host names that requests of operators may use, besides `localhost` and the one in
    /// `http`.
    pub http_hosts: Vec<String>,
    /// The mount points of the tree.
    pub mounts: Vec<PathBuf>,
    /// The principals of the machine's users in mounts.
    pub(crate) mount_users: MountUsers,
    /// The address for ZooKeeper clients.
    pub zookeeper: ListenAddress,
    /// The address for ZooKeeper clients over TLS.
    pub zookeeper_tls: ListenAddress,
    pub zookeeper_tls_options: TlsOptions,
    /// True if the kernel is to encrypt for Kafka's clients, where it can.
    pub tls_in_kernel: bool,
    /// `client.portUnification`: true if `zookeeper` also accepts TLS from clients that begin it.
    pub zookeeper_unified: bool,
    pub zookeeper_server: ZkOptions,
    /// The options of the engine. The catalog's directory follows from `data_dir`.
    pub engine: EngineOptions,
    /// The options of the Kafka protocol server. The cluster id comes from the data directory.
    pub kafka_server: KafkaOptions,
    /// The RDMA devices.
    pub links: LinkOptions,
    /// Settings that were accepted but may not do what the user expects.
    pub warnings: Vec<String>,
    /// Every setting, with its value and where that is said.
    pub settings: Vec<EffectiveSetting>,
}

/// A setting with the value in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveSetting {
    /// As `--set` takes it.
    pub name: String,
    /// As it was given, or the default; `None` if it has neither, or is a secret.
    pub value: Option<String>,
    pub is_secret: bool,
    /// `None` for a default.
    pub origin: Option<SettingOrigin>,
}

impl Default for Config {
    fn default() -> Config {
        Config::load(&ConfigSources::default()).expect("a default is a value, as a test sees to")
    }
}

impl Config {
    /// Loads the configuration from `sources`.
    ///
    /// # Errors
    /// All problems of the sources.
    pub fn load(sources: &ConfigSources) -> Result<Config, ConfigProblems> {
        let mut problems = Vec::new();
        let mut values: Vec<(SourceValue, &ServerSetting)> = Vec::new();
        let mut of_listeners: Vec<(SourceValue, &ServerSetting, String)> = Vec::new();
        let mut load = ConfigLoader::new(empty_config());
        load.defaults();
        for value in sources.values(&mut problems) {
            match find_setting(&value) {
                Ok(SettingLookup::Setting(setting)) => values.push((value, setting)),
                Ok(SettingLookup::OfListener(listener, setting)) => {
                    of_listeners.push((value, setting, listener));
                }
                Ok(SettingLookup::NoEffect(reason)) => {
                    let SourceValue { key, origin, value: text, .. } = value;
                    load.config.warnings.push(format!("{origin}: {key} has no effect: {reason}"));
                    load.ineffective.insert(kafka_spelling(&key), text);
                }
                Ok(SettingLookup::Refused(reason)) => {
                    let what = value.origin.with_setting_name(&value.key, reason);
                    problems.push(ConfigProblem { origin: value.origin, what });
                }
                Err(UnknownSetting::Refused(what)) => {
                    problems.push(ConfigProblem { origin: value.origin, what });
                }
                Err(UnknownSetting::Ignored(what)) => {
                    load.config.warnings.push(format!("{}: {what}", value.origin));
                }
            }
        }
        values.sort_by_key(|(value, setting)| (value.layer, setting.rank()));
        for (value, setting) in &values {
            load.apply(value, setting, true);
        }
        // A listener inherits from all listeners what it does not set itself.
        of_listeners.sort_by_key(|(value, setting, _)| (value.layer, setting.rank()));
        for (value, setting, listener) in &of_listeners {
            load.apply_to_listener(value, setting, listener);
        }
        load.check_combinations();
        load.check_listeners();
        problems.append(&mut load.problems);
        if problems.is_empty() { Ok(load.finish()) } else { Err(ConfigProblems(problems)) }
    }
}

impl Config {
    /// The ports for Kafka's clients.
    pub fn kafka_listeners(&self) -> Vec<ListenerConfig> {
        self.listeners.resolve(&self.kafka).expect("they were checked when they were loaded")
    }

    /// The TLS options of a listener.
    pub(crate) fn tls_options_of(&self, listener: &str) -> TlsOptions {
        let security = self.kafka_security_of(listener);
        let mut options = security.tls.clone();
        options.in_kernel = self.tls_in_kernel;
        let mut ports = self.kafka_listeners().into_iter();
        let port = ports.find(|port| listeners::fold(&port.name) == listeners::fold(listener));
        // HTTP and ports with SASL ask for a certificate only by a setting of their own.
        let has_names = port.is_none_or(|port| port.protocol.uses_sasl());
        if has_names && !security.has_own_client_auth {
            options.client_authentication = ClientAuthentication::None;
        }
        options
    }

    /// The authentication of a listener's clients.
    pub(crate) fn kafka_security_of(&self, listener: &str) -> &ListenerSecurity {
        let listener_security = self.listeners.security.get(&listeners::fold(listener));
        listener_security.unwrap_or(&self.kafka_security)
    }
}

/// A configuration before its defaults are applied.
fn empty_config() -> Config {
    Config {
        data_dir: PathBuf::new(),
        kafka: ListenAddress::Off,
        listeners: ListenerSettings::default(),
        kafka_security: ListenerSecurity::default(),
        http: ListenAddress::Off,
        http_tls: ListenAddress::Off,
        http_hosts: Vec::new(),
        zookeeper: ListenAddress::Off,
        zookeeper_tls: ListenAddress::Off,
        zookeeper_tls_options: TlsOptions::default(),
        tls_in_kernel: false,
        zookeeper_unified: false,
        zookeeper_server: ZkOptions::default(),
        mounts: Vec::new(),
        mount_users: MountUsers::new(),
        engine: EngineOptions::default(),
        kafka_server: KafkaOptions::default(),
        links: LinkOptions::default(),
        warnings: Vec::new(),
        settings: Vec::new(),
    }
}

struct ConfigLoader {
    config: Config,
    /// The values of all settings, without secrets: ours as they are given, Kafka's as it spells them.
    values: BTreeMap<&'static str, String>,
    /// The values of settings that have no effect.
    ineffective: BTreeMap<String, String>,
    /// The origin of the value of each setting.
    origins: HashMap<&'static str, SettingOrigin>,
    /// The origins of each listener's own settings, by its folded name and theirs.
    listener_origins: BTreeMap<(String, &'static str), SettingOrigin>,
    /// The values of these, without secrets.
    listener_values: BTreeMap<(String, &'static str), String>,
    problems: Vec<ConfigProblem>,
}

impl ConfigLoader {
    fn new(config: Config) -> ConfigLoader {
        ConfigLoader {
            config,
            values: BTreeMap::new(),
            ineffective: BTreeMap::new(),
            origins: HashMap::new(),
            listener_origins: BTreeMap::new(),
            listener_values: BTreeMap::new(),
            problems: Vec::new(),
        }
    }

    fn defaults(&mut self) {
        for setting in ServerSetting::all() {
            let Some(default) = setting.default else { continue };
            // Topics have these defaults by themselves.
            if !matches!(setting.form, SettingForm::TopicDefault { .. }) {
                let mut value = SettingValue::new(default, setting.is_kafka());
                let applied = setting.apply(&mut self.config, &mut value);
                let name = setting.name;
                applied.unwrap_or_else(|expected| panic!("the default of {name}: {expected}"));
            }
            self.values.insert(setting.name, default.to_owned());
        }
    }

    /// Applies a setting of one listener: one of those that say how its clients are known, or how
    /// many there may be.
    fn apply_to_listener(
        &mut self,
        value: &SourceValue,
        setting: &'static ServerSetting,
        listener: &str,
    ) {
        self.in_listener(setting, listener, |load| load.apply(value, setting, false));
        let key = (listener.to_owned(), setting.name);
        self.listener_origins.insert(key.clone(), value.origin.clone());
        if !setting.is_secret() {
            self.listener_values.insert(key, value.value.clone());
        }
    }

    /// Does `put` to the settings of one listener.
    fn in_listener<T>(
        &mut self,
        setting: &'static ServerSetting,
        listener: &str,
        put: impl FnOnce(&mut ConfigLoader) -> T,
    ) -> T {
        let of_all = self.config.kafka_security.clone();
        if let Some(listener_security) = self.config.listeners.security.remove(listener) {
            self.config.kafka_security = listener_security;
        }
        let dynamic = &mut self.config.kafka_server.dynamic;
        let listener_limits =
            dynamic.listener_limits.remove(listener).unwrap_or(ConnectionLimits::NONE);
        let limits_of_all = std::mem::replace(&mut dynamic.limits, listener_limits);
        let result = put(self);
        let dynamic = &mut self.config.kafka_server.dynamic;
        let listener_limits = std::mem::replace(&mut dynamic.limits, limits_of_all);
        if listener_limits != ConnectionLimits::NONE {
            dynamic.listener_limits.insert(listener.to_owned(), listener_limits);
        }
        let mut listener_security = std::mem::replace(&mut self.config.kafka_security, of_all);
        listener_security.has_own_client_auth |= setting.name == "ssl.client.auth";
        self.config.listeners.security.insert(listener.to_owned(), listener_security);
        result
    }

    /// Applies a setting. `is_of_all` if it is not one listener's: then it is listed under its
    /// name.
    fn apply(&mut self, source: &SourceValue, setting: &'static ServerSetting, is_of_all: bool) {
        let mut value = SettingValue::new(&source.value, setting.is_kafka());
        if setting.is_secret() && matches!(source.origin, SettingOrigin::Set(_)) {
            let what = format!(
                "everybody on this machine can read a command line: say it in the file, or in {}",
                setting.variable()
            );
            self.problems.push(ConfigProblem { origin: source.origin.clone(), what });
            return;
        }
        let name = setting.name;
        match setting.apply(&mut self.config, &mut value) {
            Ok(()) if !is_of_all => {}
            Ok(()) => {
                self.origins.insert(name, source.origin.clone());
                if setting.is_secret() {
                    return;
                }
                let shown = if setting.is_kafka() { value.text() } else { &source.value };
                self.values.insert(name, shown.to_owned());
            }
            Err(expected) => {
                let what = format!("{:?} is no value for it; {expected}", source.value);
                let name = if is_of_all { name } else { source.key.as_str() };
                let what = source.origin.with_setting_name(name, &what);
                self.problems.push(ConfigProblem { origin: source.origin.clone(), what });
            }
        }
    }

    /// Reports problems of two settings in combination.
    fn check_combinations(&mut self) {
        let groups = &self.config.kafka_server.groups;
        let (consumer, share) = (&groups.consumer, &groups.share);
        let pairs = [
            (
                ("group.min.session.timeout.ms", groups.session_timeout_min),
                ("group.max.session.timeout.ms", groups.session_timeout_max),
            ),
            (
                ("group.consumer.heartbeat.interval.ms", consumer.heartbeat_interval),
                ("group.consumer.session.timeout.ms", consumer.session_timeout),
            ),
            (
                ("group.share.heartbeat.interval.ms", share.heartbeat_interval),
                ("group.share.session.timeout.ms", share.session_timeout),
            ),
            (
                ("group.streams.heartbeat.interval.ms", groups.streams.heartbeat_interval),
                ("group.streams.session.timeout.ms", groups.streams.session_timeout),
            ),
        ];
        for ((lower, min), (upper, max)) in pairs {
            if min <= max {
                continue;
            }
            let origin = [lower, upper].iter().find_map(|name| self.origins.get(name)).cloned();
            let what = format!(
                "{lower} ({min:?}) is above {upper} ({max:?}); raise the latter, or lower the former"
            );
            // At least one of the two was given, because the defaults agree.
            self.problems.extend(origin.map(|origin| ConfigProblem { origin, what }));
        }
    }

    /// Reports problems of the ports for Kafka's clients.
    fn check_listeners(&mut self) {
        let origins = ["listeners", "server.kafka"].map(|name| self.origins.get(name));
        if let [Some(origin), Some(_)] = origins {
            let origin = origin.clone();
            let what =
                "listeners and server.kafka (--kafka) both say where to listen: leave one out"
                    .to_owned();
            self.problems.push(ConfigProblem { origin, what });
        }
        let ports = match self.config.listeners.resolve(&self.config.kafka) {
            Ok(ports) => ports,
            Err(problem) => {
                // It was given, because the defaults agree.
                let origin = self.origins.get(problem.setting).cloned();
                let what = problem.to_string();
                self.problems.extend(origin.map(|origin| ConfigProblem { origin, what }));
                return;
            }
        };
        let names_of = |is_meant: fn(SecurityProtocol) -> bool| -> Vec<String> {
            let ports = ports.iter().filter(|port| is_meant(port.protocol));
            ports.map(|port| listeners::fold(&port.name)).collect()
        };
        let mut secured = names_of(SecurityProtocol::uses_tls);
        if matches!(self.config.http_tls, ListenAddress::At(_)) {
            secured.push(listeners::fold(HTTP_LISTENER));
        }
        let mut with_sasl = names_of(SecurityProtocol::uses_sasl);
        if self.has_http() {
            with_sasl.push(listeners::fold(HTTP_LISTENER));
        }
        for ((name, setting), origin) in &self.listener_origins {
            let (is_meant, what) = if listeners::LIMITS.contains(setting) {
                (names_of(|_| true).contains(name), "serves Kafka's clients")
            } else if setting.starts_with("ssl.") {
                (secured.contains(name), "speaks TLS")
            } else {
                (with_sasl.contains(name), "has SASL")
            };
            if !is_meant {
                let what = format!(
                    "listener.name.{name}.{setting}: no listener of that name {what}; say so with listeners and listener.security.protocol.map"
                );
                self.problems.push(ConfigProblem { origin: origin.clone(), what });
            }
        }
        self.check_authorizer(&ports);
        self.check_tokens(&ports);
        let [keystore, truststore] = [
            ("ssl.keystore.location", &["ssl.keystore.key", "ssl.keystore.certificate.chain"][..]),
            ("ssl.truststore.location", &["ssl.truststore.certificates"]),
        ];
        for (file, inline) in [keystore, truststore] {
            let given_inline = inline.iter().find(|name| self.origins.contains_key(**name));
            if let (Some(inline), Some(origin)) = (given_inline, self.origins.get(file)) {
                let what = format!("{file} and {inline} both say the same: leave one out");
                self.problems.push(ConfigProblem { origin: origin.clone(), what });
            }
        }
        let is_required =
            self.config.kafka_security.tls.client_authentication == ClientAuthentication::Need;
        if secured.is_empty()
            && is_required
            && let Some(origin) = self.origins.get("ssl.client.auth")
        {
            let what = "ssl.client.auth: no port speaks TLS, so nobody would be asked for a certificate; name one with listeners=SSL://HOST:PORT".to_owned();
            self.problems.push(ConfigProblem { origin: origin.clone(), what });
        }
        let of_all = self.origins.keys().find(|name| name.starts_with("ssl."));
        let warnings = &mut self.config.warnings;
        if secured.is_empty()
            && let Some(name) = of_all
        {
            warnings.push(format!(
                "{name} has no effect: no port speaks TLS; name one with listeners=SSL://HOST:PORT"
            ));
        }
    }

    /// Reports settings of authorization that would protect nothing, or shut everybody out.
    fn check_authorizer(&mut self, ports: &[ListenerConfig]) {
        let is_enabled = self.config.engine.security.authorizer.is_enabled;
        for name in ["super.users", "allow.everyone.if.no.acl.found"] {
            if !is_enabled && let Some(origin) = self.origins.get(name) {
                let what = format!(
                    "{name}: nobody is asked what they may do; say so with authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
                );
                self.problems.push(ConfigProblem { origin: origin.clone(), what });
            }
        }
        if self.origins.contains_key("server.mount-users") && !is_enabled {
            let warning = "server.mount-users has no effect: nobody is asked what they may do (authorizer.class.name)";
            self.config.warnings.push(warning.to_owned());
        }
        let of_sasl = self.origins.keys().find(|name| name.starts_with("sasl."));
        let is_of_tokens = of_sasl.is_some_and(|name| name.starts_with("sasl.oauthbearer."));
        let has_sasl =
            ports.iter().any(|port| port.protocol.uses_sasl()) || (is_of_tokens && self.has_http());
        if !has_sasl && let Some(name) = of_sasl {
            self.config.warnings.push(format!(
                "{name} has no effect: no port has SASL; name one with listeners=SASL_SSL://HOST:PORT"
            ));
        }
    }

    fn has_http(&self) -> bool {
        [&self.config.http, &self.config.http_tls]
            .into_iter()
            .any(|address| matches!(address, ListenAddress::At(_)))
    }

    /// Reports ports that take tokens without keys to check them.
    fn check_tokens(&mut self, ports: &[ListenerConfig]) {
        for port in ports.iter().filter(|port| port.protocol.uses_sasl()) {
            let security = self.config.kafka_security_of(&port.name);
            let is_offered = security.sasl.mechanisms.contains(&SaslMechanism::OauthBearer);
            if !is_offered || security.tokens.keys.is_some() {
                continue;
            }
            const OFFERS: &str = "sasl.enabled.mechanisms";
            let origin = self.listener_origins.get(&(port.key(), OFFERS));
            let origin = origin.or(self.origins.get(OFFERS)).cloned();
            let what = format!(
                "{}: OAUTHBEARER needs the keys that sign tokens: name them with sasl.oauthbearer.jwks.endpoint.url",
                port.name
            );
            self.problems.extend(origin.map(|origin| ConfigProblem { origin, what }));
        }
    }

    /// All settings in the order of the table, ours first, and then those of single listeners.
    fn effective_settings(&self) -> Vec<EffectiveSetting> {
        let of_all = ServerSetting::all().map(|setting| {
            let is_secret = setting.is_secret();
            EffectiveSetting {
                name: setting.name.to_owned(),
                value: if is_secret { None } else { self.values.get(setting.name).cloned() },
                is_secret,
                origin: self.origins.get(setting.name).cloned(),
            }
        });
        let of_listeners = self.listener_origins.iter().map(|(key, origin)| {
            let (listener, name) = key;
            let value = self.listener_values.get(key).cloned();
            EffectiveSetting {
                name: format!("listener.name.{listener}.{name}"),
                is_secret: value.is_none(),
                value,
                origin: Some(origin.clone()),
            }
        });
        of_all.chain(of_listeners).collect()
    }

    fn finish(mut self) -> Config {
        // Two names for one value, whichever was given.
        for name in ["node.id", "broker.id"] {
            self.values.insert(name, self.config.kafka_server.node_id.to_string());
        }
        // Without any, there is the one that --kafka is short for.
        if let ListenAddress::At(_) = &self.config.kafka {
            let listener = format!("PLAINTEXT://{}", self.config.kafka);
            self.values.entry("listeners").or_insert(listener);
        }
        let id_is_given = ["node.id", "broker.id"].iter().any(|id| self.origins.contains_key(id));
        let is_given = |name: &str| match name {
            "node.id" | "broker.id" => id_is_given,
            name => self.origins.contains_key(name),
        };
        self.config.settings = self.effective_settings();
        let data_dir = self.config.data_dir.display().to_string();
        self.config.kafka_server.dynamic.broker_settings =
            kafka_names::describe(&self.values, &self.ineffective, is_given, &data_dir);
        self.config
    }
}

#[cfg(test)]
mod tests;
