//! The ports for Kafka's clients, in the open and over TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use compat_kafka::{KafkaListener, KafkaServer};
use tls::{ClientAuthentication, TlsError, TlsServer};

use crate::config::{Config, ListenerConfig, SecurityProtocol};
use crate::listen::{BoundPort, Listener, bind_port};
use crate::maintenance::MaintenanceTasks;
use crate::tls_reload::reload_tls;

/// The ports, bound.
#[derive(Debug)]
pub(crate) struct KafkaPorts {
    ports: Vec<BoundListener>,
}

/// A port, and how it speaks TLS, if it does.
#[derive(Debug)]
struct BoundListener {
    config: ListenerConfig,
    port: BoundPort,
    tls: Option<Arc<TlsServer>>,
}

/// A port, and who serves it.
#[derive(Debug)]
pub(crate) struct KafkaPort {
    pub(crate) name: String,
    pub(crate) listener: Listener,
}

impl KafkaPort {
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.address
    }
}

impl KafkaPorts {
    /// Binds what the configuration names.
    pub(crate) async fn bind(config: &Config) -> anyhow::Result<KafkaPorts> {
        let mut ports = Vec::new();
        for listener in config.kafka_listeners() {
            let tls = match listener.protocol {
                SecurityProtocol::Ssl => Some(Arc::new(open_tls(config, &listener.name)?)),
                SecurityProtocol::Plaintext => None,
            };
            let bound = bind_port(&listener.address, "Kafka's clients", "listeners or --kafka");
            if let Some(port) = bound.await? {
                ports.push(BoundListener { config: listener, port, tls });
            }
        }
        for bound in &ports {
            warn_if_open(config, bound)?;
        }
        Ok(KafkaPorts { ports })
    }

    /// Listens.
    pub(crate) fn serve(
        self,
        kafka: &Arc<KafkaServer>,
        maintenance: &mut MaintenanceTasks,
    ) -> anyhow::Result<Vec<KafkaPort>> {
        let mut served = Vec::new();
        for BoundListener { config, port, tls } in self.ports {
            let doing = || format!("listen for Kafka's clients on {}", config.address);
            let socket = port.listen().with_context(doing)?;
            if let Some(tls) = &tls {
                maintenance.spawn(reload_tls(Arc::clone(tls), "Kafka's clients"));
            }
            let ListenerConfig { name, advertised, .. } = config;
            let listener = Arc::new(KafkaListener {
                name: name.clone(),
                tls,
                advertised,
                ..KafkaListener::plain()
            });
            let kafka = Arc::clone(kafka);
            let listener = Listener::open(socket, |socket, stop| {
                compat_kafka::serve(kafka, socket, listener, stop)
            })?;
            served.push(KafkaPort { name, listener });
        }
        Ok(served)
    }
}

/// Says if others than this machine can connect without a certificate.
fn warn_if_open(config: &Config, bound: &BoundListener) -> anyhow::Result<()> {
    let (name, address) = (&bound.config.name, bound.port.address()?);
    let asked = config.kafka_tls_options_of(name).client_authentication;
    if address.ip().is_loopback() || bound.tls.is_some() && asked == ClientAuthentication::Need {
        return Ok(());
    }
    let lacks = match &bound.tls {
        Some(_) => "asks nobody for a certificate (ssl.client.auth=required)",
        None => "has neither encryption nor certificates",
    };
    tracing::warn!(
        "whoever reaches {name}://{address} may read, change and delete everything: it {lacks}; docs/SECURITY.md says how to lock it down"
    );
    Ok(())
}

fn open_tls(config: &Config, listener: &str) -> anyhow::Result<TlsServer> {
    TlsServer::new(config.kafka_tls_options_of(listener).clone()).map_err(|error| {
        let help = match &error {
            TlsError::NoKey => "; name it with ssl.keystore.location",
            TlsError::NoTrust => {
                "; name it with ssl.truststore.location, or set ssl.client.auth to none"
            }
            _ => "",
        };
        anyhow::anyhow!("serve Kafka's clients over TLS at {listener}: {error}{help}")
    })
}
