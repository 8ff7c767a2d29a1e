//! A listener: its name, how its connections are secured, and its advertised address.

use std::net::SocketAddr;
use std::sync::Arc;

use engine::security::PrincipalRules;
use kafka_sasl::SaslOptions;
use tls::TlsServer;

/// A host and a port, as Metadata returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvertisedAddress {
    /// A host name or an IP address.
    pub host: String,
    pub port: u16,
}

/// A port for clients, as in Kafka's `listeners`.
#[derive(Debug)]
pub struct KafkaListener {
    pub name: String,
    /// Its name as it stands in settings of it alone, in one spelling.
    pub key: String,
    /// TLS, if that is spoken there.
    pub tls: Option<Arc<TlsServer>>,
    /// The SASL options for clients; `None` if clients do not authenticate, or only by
    /// certificates.
    pub sasl: Option<SaslOptions>,
    /// The names of clients with certificates (`ssl.principal.mapping.rules`).
    pub principal_rules: PrincipalRules,
    /// The advertised address (`advertised.listeners`); its port 0 stands for the one that was
    /// bound. `None` for the address that a client connected to.
    pub advertised: Option<AdvertisedAddress>,
}

impl KafkaListener {
    /// A port in the open, where clients stay.
    pub fn plain() -> KafkaListener {
        KafkaListener {
            name: "PLAINTEXT".to_owned(),
            key: "plaintext".to_owned(),
            tls: None,
            sasl: None,
            principal_rules: PrincipalRules::default(),
            advertised: None,
        }
    }

    /// The address for a client that connected to `local`.
    pub fn advertised_address(&self, local: SocketAddr) -> AdvertisedAddress {
        match &self.advertised {
            Some(address) if address.port == 0 => {
                AdvertisedAddress { port: local.port(), ..address.clone() }
            }
            Some(address) => address.clone(),
            None => AdvertisedAddress { host: local.ip().to_string(), port: local.port() },
        }
    }
}
