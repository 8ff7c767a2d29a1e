//! Settings that clients give while the server runs (KIP-226): which may be, and what follows from
//! them.

use std::collections::BTreeMap;

use compat_kafka::{BrokerSetting, DynamicConfigs, InvalidSettings, SettingSource};

use super::kafka::SETTINGS;
use super::kafka_names::{self, ListedName, REFUSED, reason_for};
use super::setting::{SECRET_TYPE, ServerSetting, UpdateMode};
use super::value::SettingValue;
use super::{Config, ConfigLoader, HTTP_LISTENER, ListenAddress, listeners, nearest};

/// Kafka's tools set these, and no server lists them before.
const UNLISTED: &[&str] = &[
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
];

/// A name that a client gives a value.
struct DynamicName {
    /// The listener whose alone it is, folded.
    listener: Option<String>,
    type_name: &'static str,
    /// Its effect here, if it has one.
    setting: Option<&'static ServerSetting>,
}

/// The reason why a setting cannot be given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NameRefusal {
    Unknown,
    NotDynamic,
    OfListenersOnly,
    OfOneServerOnly,
    Secret,
    OfNoListener,
    OfNoTls,
    Refused(&'static str),
}

impl NameRefusal {
    fn message(self, names: &[String]) -> String {
        let list = names.join(", ");
        match self {
            NameRefusal::Unknown => {
                let known_names = SETTINGS.iter().map(|setting| setting.name);
                let suggestion = names.first().and_then(|name| nearest::nearest(name, known_names));
                let hint = suggestion
                    .map(|suggestion| format!("; did you mean {suggestion}?"))
                    .unwrap_or_default();
                format!("Unknown broker config names: [{list}]{hint}")
            }
            NameRefusal::NotDynamic => format!(
                "Cannot update these configs dynamically: [{list}]; set them in the configuration file, or with --set, and restart"
            ),
            NameRefusal::OfListenersOnly => format!(
                "These security configs can be dynamically updated only per-listener using the listener prefix: [{list}]; for example listener.name.external.ssl.keystore.location"
            ),
            NameRefusal::OfOneServerOnly => format!(
                "Cannot update these configs at default cluster level, broker id must be specified: [{list}]"
            ),
            NameRefusal::Secret => format!(
                "[{list}]: secrets are not taken while the server runs, because what is in the journal stays there; set them in the configuration file"
            ),
            NameRefusal::OfNoListener => format!(
                "[{list}]: no listener of that name serves Kafka's clients; say so with listeners, and restart"
            ),
            NameRefusal::OfNoTls => format!(
                "[{list}]: no listener of that name speaks TLS; say so with listeners and listener.security.protocol.map, and restart"
            ),
            NameRefusal::Refused(reason) => format!("[{list}]: {reason}"),
        }
    }
}

impl Config {
    /// This configuration, with what clients have given since.
    ///
    /// # Errors
    /// Some of it cannot be given.
    pub(crate) fn with_dynamic(
        &self,
        dynamic_configs: &DynamicConfigs,
    ) -> Result<Config, InvalidSettings> {
        let layers = [
            (SettingSource::AllBrokers, &dynamic_configs.of_all),
            (SettingSource::Broker, &dynamic_configs.own),
        ];
        let mut refused: BTreeMap<NameRefusal, Vec<String>> = BTreeMap::new();
        let mut loader = ConfigLoader::new(self.clone());
        for (source, configs) in layers {
            let mut accepted: Vec<(DynamicName, &str, &str)> = Vec::new();
            for (name, value) in configs {
                match self.dynamic_name(source, name) {
                    Ok(dynamic_name) => accepted.push((dynamic_name, name, value)),
                    Err(refusal) => refused.entry(refusal).or_default().push(name.clone()),
                }
            }
            accepted.sort_by_key(|(name, ..)| name.setting.map(ServerSetting::rank));
            for (dynamic, name, value) in accepted {
                let put = loader.put_dynamic(&dynamic, value);
                let text = put.map_err(|expected| InvalidSettings {
                    are_guards: false,
                    names: vec![name.to_owned()],
                    message: format!("Invalid value {value} for configuration {name}: {expected}"),
                })?;
                let settings = &mut loader.config.kafka_server.dynamic.broker_settings;
                list(settings, name, dynamic.type_name, source, text);
            }
        }
        match refused.into_iter().next() {
            None => Ok(loader.config),
            Some((refusal, names)) => {
                let message = refusal.message(&names);
                Err(InvalidSettings { message, names, are_guards: false })
            }
        }
    }

    fn dynamic_name(&self, source: SettingSource, name: &str) -> Result<DynamicName, NameRefusal> {
        if UNLISTED.contains(&name) {
            return Ok(DynamicName { listener: None, type_name: "LONG", setting: None });
        }
        let (listener, of_all) = match listeners::split_name(name, kafka_names::names()) {
            Some((listener, of_all)) => (Some(listeners::fold(listener)), of_all),
            None => (None, name),
        };
        let Some(listed_name) = kafka_names::find(of_all) else { return Err(NameRefusal::Unknown) };
        if let Some(reason) = reason_for(REFUSED, of_all) {
            return Err(NameRefusal::Refused(reason));
        }
        if listed_name.type_name == SECRET_TYPE {
            return Err(NameRefusal::Secret);
        }
        let (is_of_tls, is_limit) =
            (of_all.starts_with("ssl."), listeners::LIMITS.contains(&of_all));
        let is_dynamic = listed_name.update != UpdateMode::ReadOnly;
        if !is_dynamic || (listener.is_some() && !is_of_tls && !is_limit) {
            return Err(NameRefusal::NotDynamic);
        }
        let is_of_one_server = listed_name.update == UpdateMode::PerBroker;
        match &listener {
            None if is_of_tls => return Err(NameRefusal::OfListenersOnly),
            Some(listener) if is_limit && !self.has_kafka_listener(listener) => {
                return Err(NameRefusal::OfNoListener);
            }
            _ if is_of_one_server && source == SettingSource::AllBrokers => {
                return Err(NameRefusal::OfOneServerOnly);
            }
            Some(listener) if is_of_tls && !self.speaks_tls(listener) => {
                return Err(NameRefusal::OfNoTls);
            }
            _ => {}
        }
        let ListedName { type_name, setting, .. } = listed_name;
        Ok(DynamicName { listener, type_name, setting })
    }

    fn has_kafka_listener(&self, key: &str) -> bool {
        self.kafka_listeners().iter().any(|port| port.key() == key)
    }

    fn speaks_tls(&self, listener: &str) -> bool {
        let mut ports = self.kafka_listeners().into_iter();
        let has_http = matches!(self.http_tls, ListenAddress::At(_));
        ports.any(|port| port.protocol.uses_tls() && port.key() == listener)
            || has_http && listeners::fold(HTTP_LISTENER) == listener
    }
}

impl ConfigLoader {
    /// Applies a value, and returns it as it is shown.
    fn put_dynamic(&mut self, name: &DynamicName, value: &str) -> Result<String, String> {
        let mut value = SettingValue::new(value, true);
        match (name.setting, &name.listener) {
            (None, _) => value.of_type(name.type_name)?,
            (Some(setting), None) => setting.apply(&mut self.config, &mut value)?,
            (Some(setting), Some(listener)) => {
                let apply =
                    |loader: &mut ConfigLoader| setting.apply(&mut loader.config, &mut value);
                self.in_listener(setting, listener, apply)?;
            }
        }
        Ok(value.text().to_owned())
    }
}

/// True if the setting is about the TLS of this listener alone.
pub(crate) fn is_tls_of_listener(name: &str, listener: &str) -> bool {
    let split = listeners::split_name(name, kafka_names::names());
    split.is_some_and(|(listener_name, setting)| {
        setting.starts_with("ssl.") && listeners::fold(listener_name) == listeners::fold(listener)
    })
}

/// Lists a value that a client has given.
fn list(
    settings: &mut Vec<BrokerSetting>,
    name: &str,
    type_name: &'static str,
    source: SettingSource,
    value: String,
) {
    let position = settings.binary_search_by(|setting| (*setting.name).cmp(name));
    let position = position.unwrap_or_else(|position| {
        let setting = BrokerSetting {
            name: name.to_owned(),
            type_name,
            value: None,
            given: Vec::new(),
            default: None,
            is_dynamic: true,
            documentation: kafka_names::documentation_of(name),
        };
        settings.insert(position, setting);
        position
    });
    settings[position].given.insert(0, (source, Some(value.clone())));
    settings[position].value = Some(value);
}

#[cfg(test)]
mod tests {
    use compat_kafka::ConnectionLimits;

    use super::super::ConfigSources;
    use super::*;

    const KEY: &str = "listener.name.outside.ssl.keystore.location";

    fn config(settings: &[(&str, &str)]) -> Config {
        let listeners = [
            ("listeners", "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0"),
            ("listener.security.protocol.map", "INSIDE:PLAINTEXT,OUTSIDE:SSL"),
        ];
        let settings = listeners.iter().chain(settings);
        let settings =
            settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Config::load(&ConfigSources { set: settings, ..ConfigSources::default() })
            .expect("it is valid")
    }

    fn given(of_all: &[(&str, &str)], own: &[(&str, &str)]) -> DynamicConfigs {
        let configs = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        DynamicConfigs { of_all: configs(of_all), own: configs(own) }
    }

    /// The parts of it that are put into force.
    fn in_force(config: &Config) -> impl PartialEq + std::fmt::Debug {
        let (core, kafka) = (&config.engine.core, &config.kafka_server);
        let (dynamic, groups) = (&kafka.dynamic, &kafka.groups);
        (
            (core.topic_defaults.clone(), core.maintenance.dynamic),
            (dynamic.limits, dynamic.listener_limits.clone()),
            (dynamic.connections_per_ip_max, dynamic.connections_per_ip_overrides.clone()),
            groups.consumer.assignment_interval,
            (groups.share.assignment_interval, groups.streams.assignment_interval),
            config.tls_options_of("OUTSIDE"),
        )
    }

    #[test]
    fn whatever_may_change_here_changes_something_that_is_put_into_force() {
        let config = config(&[]);
        let values = [
            "1",
            "2",
            "0",
            "true",
            "false",
            "1048577",
            "4194305",
            "LogAppendTime",
            "compact",
            "gzip",
            "PEM",
            "127.0.0.1:4",
            "/other.pem",
            "required",
            "TLSv1.3",
            "TLS_AES_128_GCM_SHA256",
        ];
        let mut tried = 0;
        let is_tried = |setting: &&ServerSetting| {
            let listed = kafka_names::find(setting.name);
            listed.is_some_and(|listed| listed.update != UpdateMode::ReadOnly)
        };
        for setting in SETTINGS.iter().filter(is_tried) {
            let name = if setting.name.starts_with("ssl.") {
                format!("listener.name.outside.{}", setting.name)
            } else {
                setting.name.to_owned()
            };
            let changes = |value: &&&str| {
                let changed = config.with_dynamic(&given(&[], &[(&name, value)]));
                changed.is_ok_and(|changed| in_force(&changed) != in_force(&config))
            };
            // These two are taken, and have no effect at the start either.
            let has_effect = !setting.name.ends_with("store.type");
            assert_eq!(values.iter().find(changes).is_some(), has_effect, "{name}");
            tried += 1;
        }
        assert!(tried > 40, "{tried}");
    }

    #[test]
    fn one_s_own_wins_over_that_of_all_which_wins_over_what_it_was_started_with() {
        let config = config(&[("log.retention.ms", "1"), ("max.connections", "11")]);
        let retention = |config: &Config| config.engine.core.topic_defaults["retention.ms"].clone();
        let of_all = ("log.retention.ms", "2");
        let changed = config.with_dynamic(&given(&[of_all], &[])).unwrap();
        assert_eq!(retention(&changed), "2");
        let changed = config.with_dynamic(&given(&[of_all], &[("log.retention.ms", "3")])).unwrap();
        assert_eq!(retention(&changed), "3");
        assert_eq!(changed.kafka_server.dynamic.limits.max, 11);
        let settings = &changed.kafka_server.dynamic.broker_settings;
        let setting = settings.iter().find(|setting| setting.name == "log.retention.ms").unwrap();
        let value = |text: &str| Some(text.to_owned());
        use SettingSource::{AllBrokers, Broker, Static};
        assert_eq!(
            setting.given,
            [(Broker, value("3")), (AllBrokers, value("2")), (Static, value("1"))]
        );
        assert_eq!(retention(&config.with_dynamic(&DynamicConfigs::default()).unwrap()), "1");
    }

    #[test]
    fn a_listener_has_limits_beside_those_of_all() {
        let config = config(&[
            ("listener.name.inside.max.connections", "7"),
            ("max.connections", "11"),
            ("max.connection.creation.rate", "12"),
        ]);
        let of_all = [
            ("listener.name.outside.max.connection.creation.rate", "5"),
            ("listener.name.outside.max.connections", "6"),
        ];
        let own = [("listener.name.Outside.max.connections", "8")];
        let dynamic = config.with_dynamic(&given(&of_all, &own)).unwrap().kafka_server.dynamic;
        let limits = |max, rate_max| ConnectionLimits { max, rate_max };
        assert_eq!(dynamic.limits, limits(11, Some(12)));
        let of_listeners = [("inside", limits(7, None)), ("outside", limits(8, Some(5)))];
        let of_listeners = of_listeners.map(|(listener, own)| (listener.to_owned(), own));
        assert_eq!(dynamic.listener_limits, BTreeMap::from(of_listeners));
    }

    #[test]
    fn what_cannot_be_given_says_why_and_names_all_of_it() {
        let config = config(&[]);
        for (of_all, own, names, words) in [
            (
                &[][..],
                &[("log.retention.hours", "3"), ("node.id", "7")][..],
                2,
                "[log.retention.hours, node.id]",
            ),
            (&[], &[("listeners", "PLAINTEXT://:1")], 1, "and restart"),
            (&[], &[("listener.name.outside.sasl.enabled.mechanisms", "PLAIN")], 1, "and restart"),
            (&[], &[("super.users", "User:a")], 1, "and restart"),
            (&[], &[("no.such", "3")], 1, "Unknown"),
            (&[], &[("max.conections", "3")], 1, "did you mean max.connections?"),
            (&[], &[("ssl.keystore.location", "/x")], 1, "only per-listener"),
            (&[(KEY, "/x")], &[], 1, "broker id must be specified"),
            (&[], &[("listener.name.inside.ssl.keystore.location", "/x")], 1, "speaks TLS"),
            (&[], &[("listener.name.none.max.connections", "1")], 1, "serves Kafka's clients"),
            (&[], &[("listener.name.outside.ssl.keystore.password", "x")], 1, "secrets"),
            (&[], &[("sasl.jaas.config", "x")], 1, "freezeframe users add"),
            (
                &[],
                &[("max.connections", "x")],
                1,
                "Invalid value x for configuration max.connections",
            ),
            (&[("max.connections", "0")], &[("max.connections", "5")], 1, "whole number"),
            (&[], &[("num.io.threads", "many")], 1, "whole number"),
            (&[], &[("log.cleanup.policy", "shred")], 1, "shred"),
            (&[], &[("leader.replication.throttled.rate", "x")], 1, "whole number"),
        ] {
            let invalid = config.with_dynamic(&given(of_all, own)).unwrap_err();
            assert_eq!(invalid.names.len(), names, "{invalid}");
            assert!(invalid.message.contains(words), "{invalid}");
        }
    }

    #[test]
    fn what_has_no_effect_is_taken_and_listed() {
        let config = config(&[]);
        let effective =
            [("num.io.threads", "9"), ("leader.replication.throttled.rate", "100"), (KEY, "/x")];
        let changed = config.with_dynamic(&given(&[], &effective)).unwrap();
        let settings = &changed.kafka_server.dynamic.broker_settings;
        assert!(settings.is_sorted_by(|a, b| a.name < b.name));
        for (name, value) in effective {
            let setting = settings.iter().find(|setting| setting.name == name).unwrap();
            assert_eq!(setting.value.as_deref(), Some(value));
            assert!(setting.is_dynamic && !setting.documentation.is_empty(), "{name}");
        }
    }
}
