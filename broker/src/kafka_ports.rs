//! The ports for Kafka's clients, in the open and over TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use compat_kafka::{KafkaListener, KafkaServer};
use tls::{TlsError, TlsServer};

use crate::config::{Config, ListenerConfig, SecurityProtocol};
use crate::listen::{BoundPort, Listener, bind_port};
use crate::maintenance::MaintenanceTasks;
use crate::tls_reload::reload_tls;

/// The ports, bound.
#[derive(Debug)]
pub(crate) struct KafkaPorts {
    ports: Vec<(ListenerConfig, BoundPort)>,
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
        let listeners = config.kafka_listeners();
        let speaks_tls = listeners.iter().any(|port| port.protocol == SecurityProtocol::Ssl);
        let tls = if speaks_tls { Some(Arc::new(open_tls(config)?)) } else { None };
        let mut ports = Vec::new();
        for listener in listeners {
            let bound = bind_port(&listener.address, "Kafka's clients", "listeners or --kafka");
            if let Some(bound) = bound.await? {
                ports.push((listener, bound));
            }
        }
        warn_of_open_ports(&ports)?;
        Ok(KafkaPorts { ports, tls })
    }

    /// Listens.
    pub(crate) fn serve(
        self,
        kafka: &Arc<KafkaServer>,
        maintenance: &mut MaintenanceTasks,
    ) -> anyhow::Result<Vec<KafkaPort>> {
        let KafkaPorts { ports, tls } = self;
        let open = |(config, port): (ListenerConfig, BoundPort)| {
            let doing = || format!("listen for Kafka's clients on {}", config.address);
            let socket = port.listen().with_context(doing)?;
            let ListenerConfig { name, protocol, advertised, .. } = config;
            let tls = tls.clone().filter(|_| protocol == SecurityProtocol::Ssl);
            let listener = Arc::new(KafkaListener { name: name.clone(), tls, advertised });
            let kafka = Arc::clone(kafka);
            let listener = Listener::open(socket, |socket, stop| {
                compat_kafka::serve(kafka, socket, listener, stop)
            })?;
            Ok(KafkaPort { name, listener })
        };
        let served = ports.into_iter().map(open).collect::<anyhow::Result<_>>()?;
        if let Some(tls) = &tls {
            maintenance.spawn(reload_tls(Arc::clone(tls), "Kafka's clients"));
        }
        Ok(served)
    }
}

/// Says once if others than this machine can connect without encryption.
fn warn_of_open_ports(ports: &[(ListenerConfig, BoundPort)]) -> anyhow::Result<()> {
    for (listener, port) in ports {
        let address = port.address()?;
        if listener.protocol == SecurityProtocol::Plaintext && !address.ip().is_loopback() {
            tracing::warn!(
                "whoever reaches {address} may read, change and delete everything: it has neither encryption nor certificates; docs/SECURITY.md says how to lock it down"
            );
            return Ok(());
        }
    }
    Ok(())
}

fn open_tls(config: &Config) -> anyhow::Result<TlsServer> {
    TlsServer::new(config.kafka_tls_options.clone()).map_err(|error| {
        let help = match &error {
            TlsError::NoKey => "; name it with ssl.keystore.location",
            TlsError::NoTrust => {
                "; name it with ssl.truststore.location, or set ssl.client.auth to none"
            }
            _ => "",
        };
        anyhow::anyhow!("serve Kafka's clients over TLS: {error}{help}")
    })
}
