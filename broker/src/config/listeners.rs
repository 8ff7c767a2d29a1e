//! The ports for Kafka's clients, as Kafka's settings spell them: names, addresses, and how each is
//! secured.

use std::collections::BTreeMap;
use std::fmt;

use compat_kafka::AdvertisedAddress;

use super::security_settings::ListenerSecurity;
use super::value::{ExpectedForm, ListenAddress, address, list};

/// The security of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityProtocol {
    Plaintext,
    Ssl,
    SaslPlaintext,
    SaslSsl,
}

impl SecurityProtocol {
    /// True if connections are encrypted.
    pub fn uses_tls(self) -> bool {
        matches!(self, SecurityProtocol::Ssl | SecurityProtocol::SaslSsl)
    }

    /// True if clients authenticate by SASL.
    pub fn uses_sasl(self) -> bool {
        matches!(self, SecurityProtocol::SaslPlaintext | SecurityProtocol::SaslSsl)
    }

    fn named(name: &str) -> Option<SecurityProtocol> {
        PROTOCOLS
            .iter()
            .find(|(protocol_name, _)| *protocol_name == name)
            .map(|(_, protocol)| *protocol)
    }
}

/// The protocols by Kafka's names.
const PROTOCOLS: [(&str, SecurityProtocol); 4] = [
    ("PLAINTEXT", SecurityProtocol::Plaintext),
    ("SSL", SecurityProtocol::Ssl),
    ("SASL_PLAINTEXT", SecurityProtocol::SaslPlaintext),
    ("SASL_SSL", SecurityProtocol::SaslSsl),
];

/// A port for Kafka's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerConfig {
    pub name: String,
    pub address: ListenAddress,
    pub protocol: SecurityProtocol,
    /// The advertised address; `None` for the one that a client connected to.
    pub advertised: Option<AdvertisedAddress>,
}

impl ListenerConfig {
    /// Its name as settings of it alone are kept by.
    pub(crate) fn key(&self) -> String {
        fold(&self.name)
    }
}

/// The settings that say where Kafka's clients are served, as they are given.
#[derive(Clone, Debug, Default)]
pub struct ListenerSettings {
    /// `listeners`: names and addresses.
    pub(super) listeners: Vec<(String, AdvertisedAddress)>,
    /// `advertised.listeners`: names, and addresses. One alone needs no name.
    pub(super) advertised: Vec<(Option<String>, AdvertisedAddress)>,
    /// `listener.security.protocol.map`
    pub(super) protocols: BTreeMap<String, SecurityProtocol>,
    /// `listener.name.NAME.…`, by [`fold`]ed names: how those listeners are secured that differ
    /// from the others.
    pub(super) security: BTreeMap<String, ListenerSecurity>,
}

/// The limits on connections that a listener may have beside those of all.
pub(super) const LIMITS: [&str; 2] = ["max.connections", "max.connection.creation.rate"];

/// Settings that do not fit together: the name of the one to look at, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListenerProblem {
    pub(super) setting: &'static str,
    pub(super) what: String,
}

impl fmt::Display for ListenerProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.what)
    }
}

impl ListenerSettings {
    /// The ports. If `listeners` names none, there is one in the open, at `simple`.
    pub(super) fn resolve(
        &self,
        simple: &ListenAddress,
    ) -> Result<Vec<ListenerConfig>, ListenerProblem> {
        let mut ports: Vec<ListenerConfig> = Vec::new();
        for (name, address) in &self.listeners {
            ports.push(self.port(name, ListenAddress::At(address.clone()))?);
        }
        if ports.is_empty() && *simple != ListenAddress::Off {
            // Its name in `advertised.listeners` has no effect.
            let name = match self.advertised.as_slice() {
                [(Some(name), _)] => name.as_str(),
                _ => "PLAINTEXT",
            };
            let protocol = SecurityProtocol::Plaintext;
            let (name, address) = (name.to_owned(), simple.clone());
            ports.push(ListenerConfig { name, address, protocol, advertised: None });
        }
        if ports.is_empty() {
            return Ok(ports);
        }
        let is_one = ports.len() == 1;
        for (name, address) in &self.advertised {
            let is_meant = |port: &ListenerConfig| match name {
                Some(name) => port.name == *name,
                None => is_one,
            };
            let Some(nth) = ports.iter().position(is_meant) else {
                let names: Vec<&str> = ports.iter().map(|port| &*port.name).collect();
                let names = names.join(", ");
                return Err(ListenerProblem {
                    setting: "advertised.listeners",
                    what: format!("give NAME://HOST:PORT with a name of listeners: {names}"),
                });
            };
            ports[nth].advertised = Some(address.clone());
        }
        Ok(ports)
    }

    fn port(&self, name: &str, address: ListenAddress) -> Result<ListenerConfig, ListenerProblem> {
        let refused = |what| ListenerProblem { setting: "listeners", what };
        let protocol = self.protocols.get(name).copied();
        let protocol = protocol.or_else(|| SecurityProtocol::named(name)).ok_or_else(|| {
            refused(format!(
                "say how {name} is secured, with listener.security.protocol.map={name}:SSL, {name}:SASL_SSL, or {name}:PLAINTEXT"
            ))
        })?;
        Ok(ListenerConfig { name: name.to_owned(), address, protocol, advertised: None })
    }
}

/// `NAME://HOST:PORT`, separated by commas. No host stands for all addresses of this machine.
pub(super) fn listeners(text: &str) -> Result<Vec<(String, AdvertisedAddress)>, ExpectedForm> {
    let mut listeners: Vec<(String, AdvertisedAddress)> = Vec::new();
    for entry in list(text) {
        let expected = || {
            "give NAME://HOST:PORT, with commas between, such as PLAINTEXT://127.0.0.1:9092,SSL://:9093".to_owned()
        };
        let (name, host_port) = entry.split_once("://").ok_or_else(expected)?;
        let host_port = match host_port.strip_prefix(':') {
            Some(port) => format!("0.0.0.0:{port}"),
            None => host_port.to_owned(),
        };
        if !is_name(name) {
            return Err(expected());
        }
        let address = address(&host_port).ok_or_else(expected)?;
        if listeners.iter().any(|(known_name, _)| fold(known_name) == fold(name)) {
            return Err(format!(
                "give each name once, whatever its case and signs; {name} is there twice"
            ));
        }
        if address.port != 0 && listeners.iter().any(|(_, known_address)| *known_address == address)
        {
            return Err(format!("give each address once; that of {name} is there twice"));
        }
        listeners.push((name.to_owned(), address));
    }
    if listeners.is_empty() {
        return Err("give NAME://HOST:PORT, such as PLAINTEXT://127.0.0.1:9092".to_owned());
    }
    Ok(listeners)
}

/// `NAME://HOST:PORT`, separated by commas, or `HOST:PORT`.
pub(super) fn advertised(
    text: &str,
) -> Result<Vec<(Option<String>, AdvertisedAddress)>, ExpectedForm> {
    let mut addresses: Vec<(Option<String>, AdvertisedAddress)> = Vec::new();
    for entry in list(text) {
        let (name, host_port) = match entry.split_once("://") {
            Some((name, host_port)) => (Some(name), host_port),
            None => (None, entry),
        };
        let address = if name.is_none_or(is_name) { address(host_port) } else { None };
        let address = address.ok_or_else(|| {
            "give NAME://HOST:PORT, such as PLAINTEXT://kafka.example:9092, with commas between"
                .to_owned()
        })?;
        if address.host == "0.0.0.0" || address.host == "::" {
            return Err(format!(
                "no client can connect to {}: give the name or address that they reach this machine by",
                address.host
            ));
        }
        if name.is_some() && addresses.iter().any(|(known_name, _)| known_name.as_deref() == name) {
            return Err(format!(
                "give each name once; {} is there twice",
                name.unwrap_or_default()
            ));
        }
        addresses.push((name.map(str::to_owned), address));
    }
    let is_unnamed = addresses.iter().any(|(name, _)| name.is_none());
    match addresses.len() {
        0 => Err("give NAME://HOST:PORT, such as PLAINTEXT://kafka.example:9092".to_owned()),
        2.. if is_unnamed => Err("give each its name, as NAME://HOST:PORT".to_owned()),
        _ => Ok(addresses),
    }
}

/// `NAME:PROTOCOL`, separated by commas.
pub(super) fn protocols(text: &str) -> Result<BTreeMap<String, SecurityProtocol>, ExpectedForm> {
    let mut protocols = BTreeMap::new();
    for entry in list(text) {
        let expected = || {
            let names = PROTOCOLS.map(|(name, _)| name).join(", ");
            format!("give NAME:PROTOCOL, with commas between; the protocols are {names}")
        };
        let (name, protocol) =
            entry.split_once(':').filter(|(name, _)| is_name(name)).ok_or_else(expected)?;
        let protocol = SecurityProtocol::named(protocol).ok_or_else(expected)?;
        protocols.insert(name.to_owned(), protocol);
    }
    Ok(protocols)
}

/// A name of a listener without what a variable cannot spell: its case, and which of `.`, `-` and
/// `_` it has.
pub(super) fn fold(name: &str) -> String {
    name.to_ascii_lowercase().replace(['-', '_'], ".")
}

/// The listener and the setting of `listener.name.NAME.SETTING`, of the settings that a listener
/// may have for itself.
pub(super) fn split_name(
    name: &str,
    settings: impl Iterator<Item = &'static str>,
) -> Option<(&str, &'static str)> {
    let rest = name.strip_prefix("listener.name.")?;
    let mut own_settings = settings.filter(|setting| {
        setting.starts_with("ssl.")
            || setting.starts_with("sasl.")
            || *setting == "connections.max.reauth.ms"
            || LIMITS.contains(setting)
    });
    own_settings.find_map(|setting| {
        let listener = rest.strip_suffix(setting)?.strip_suffix('.')?;
        (!listener.is_empty()).then_some((listener, setting))
    })
}

fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !name.is_empty() && name.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> AdvertisedAddress {
        AdvertisedAddress { host: host.to_owned(), port }
    }

    fn simple() -> ListenAddress {
        ListenAddress::At(at("127.0.0.1", 9092))
    }

    fn settings(listeners_text: &str, advertised_text: &str, map: &str) -> ListenerSettings {
        ListenerSettings {
            listeners: if listeners_text.is_empty() {
                Vec::new()
            } else {
                listeners(listeners_text).unwrap()
            },
            advertised: if advertised_text.is_empty() {
                Vec::new()
            } else {
                advertised(advertised_text).unwrap()
            },
            protocols: protocols(map).unwrap(),
            ..ListenerSettings::default()
        }
    }

    #[test]
    fn listeners_have_names_addresses_and_protocols() {
        let given_settings = settings(
            "INTERNAL://127.0.0.1:9092, EXTERNAL://:9093",
            "EXTERNAL://kafka.example:9093",
            "INTERNAL:PLAINTEXT,EXTERNAL:SSL",
        );
        let resolved = given_settings.resolve(&simple()).unwrap();
        let expected = [
            ("INTERNAL", at("127.0.0.1", 9092), SecurityProtocol::Plaintext, None),
            (
                "EXTERNAL",
                at("0.0.0.0", 9093),
                SecurityProtocol::Ssl,
                Some(at("kafka.example", 9093)),
            ),
        ];
        let expected = expected.map(|(name, address, protocol, advertised)| ListenerConfig {
            name: name.to_owned(),
            address: ListenAddress::At(address),
            protocol,
            advertised,
        });
        assert_eq!(resolved, expected);
        let resolved = settings("SSL://:0", "kafka:1", "").resolve(&simple()).unwrap();
        assert_eq!(resolved[0].protocol, SecurityProtocol::Ssl);
        assert_eq!(resolved[0].advertised, Some(at("kafka", 1)));
    }

    #[test]
    fn without_listeners_there_is_one_in_the_open() {
        for advertised in ["PLAINTEXT://kafka:9092", "kafka:9092", "INTERNAL://kafka:9092"] {
            let resolved = settings("", advertised, "").resolve(&simple()).unwrap();
            assert_eq!((resolved.len(), resolved[0].protocol), (1, SecurityProtocol::Plaintext));
            assert_eq!(
                (&resolved[0].address, &resolved[0].advertised),
                (&simple(), &Some(at("kafka", 9092)))
            );
        }
        assert_eq!(settings("", "", "").resolve(&ListenAddress::Off), Ok(Vec::new()));
    }

    #[test]
    fn what_does_not_fit_says_what_to_do() {
        let refusal = |listeners, advertised, map| {
            settings(listeners, advertised, map).resolve(&simple()).unwrap_err().to_string()
        };
        assert!(refusal("FRONT://:1", "", "").contains("map=FRONT:SSL"));
        assert!(
            refusal("SSL://:1", "PLAINTEXT://kafka:1", "").contains("a name of listeners: SSL")
        );
        assert!(refusal("A://:1,B://:2", "kafka:1", "A:SSL,B:SSL").contains("A, B"));
    }

    #[test]
    fn what_is_no_listener_is_refused() {
        for text in [
            "",
            "127.0.0.1:9092",
            "SSL://",
            "SSL://:x",
            "://:1",
            "SSL://:1,SSL://:2",
            "A://h:1,B://h:1",
        ] {
            assert!(listeners(text).is_err(), "{text}");
        }
        for text in ["", "PLAINTEXT://:9092", "0.0.0.0:9092", "://a:1", "a:1,b:2"] {
            assert!(advertised(text).is_err(), "{text}");
        }
        for text in ["A", "A:TLS", "A:SASL", ":SSL"] {
            assert!(protocols(text).is_err(), "{text}");
        }
        let protocols = protocols("SASL_SSL:SASL_SSL,A:SASL_PLAINTEXT").unwrap();
        assert_eq!(protocols["SASL_SSL"], SecurityProtocol::SaslSsl);
        assert_eq!(protocols["A"], SecurityProtocol::SaslPlaintext);
    }
}
