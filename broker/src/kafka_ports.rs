//! The ports for Kafka's clients, in the open and over TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use bearer_tokens::{TokenOptions, TokenValidator};
use compat_kafka::{KafkaListener, KafkaServer, SaslMechanism};
use tls::{ClientAuthentication, TlsError, TlsServer, probe_kernel_tls};

use crate::config::{Config, ListenerConfig, ListenerSecurity};
use crate::dynamic_settings::NamedTls;
use crate::health::ListenerWarnings;
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
    security: ListenerSecurity,
}

/// A port, and the listener that serves it.
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
    pub(crate) async fn bind(
        config: &Config,
        warnings: &mut ListenerWarnings,
    ) -> anyhow::Result<KafkaPorts> {
        let mut ports = Vec::new();
        for listener in config.kafka_listeners() {
            let tls = if listener.protocol.uses_tls() {
                Some(Arc::new(open_tls(config, &listener)?))
            } else {
                None
            };
            let bound = bind_port(&listener.address, "Kafka's clients", "listeners or --kafka");
            if let Some(port) = bound.await? {
                let security = config.kafka_security_of(&listener.name).clone();
                ports.push(BoundListener { config: listener, port, tls, security });
            }
        }
        for bound in &ports {
            warn_if_open(config, bound, warnings)?;
        }
        let is_for_kernel = config.tls_in_kernel && ports.iter().any(|bound| bound.tls.is_some());
        if is_for_kernel {
            match probe_kernel_tls() {
                Ok(()) => tracing::info!("tls.kernel: the kernel encrypts for Kafka's clients"),
                Err(error) => tracing::warn!(
                    %error,
                    "tls.kernel: the kernel has no TLS, and the server encrypts itself; modprobe tls, with Linux 5.11 or later"
                ),
            }
        }
        Ok(KafkaPorts { ports })
    }

    /// The ports that speak TLS.
    pub(crate) fn tls_servers(&self) -> impl Iterator<Item = NamedTls> {
        let name_and_tls =
            |port: &BoundListener| Some((port.config.name.clone(), port.tls.clone()?));
        self.ports.iter().filter_map(name_and_tls)
    }

    /// Listens.
    pub(crate) fn serve(
        self,
        kafka: &Arc<KafkaServer>,
        maintenance: &mut MaintenanceTasks,
    ) -> anyhow::Result<Vec<KafkaPort>> {
        let mut served = Vec::new();
        for BoundListener { config, port, tls, security } in self.ports {
            let doing = || format!("listen for Kafka's clients on {}", config.address);
            let socket = port.listen().with_context(doing)?;
            if let Some(tls) = &tls {
                maintenance.spawn(reload_tls(Arc::clone(tls), "Kafka's clients"));
            }
            let key = config.key();
            let ListenerConfig { name, advertised, protocol, .. } = config;
            let ListenerSecurity { mut sasl, principal_rules, tokens, .. } = security;
            let takes_tokens =
                protocol.uses_sasl() && sasl.mechanisms.contains(&SaslMechanism::OauthBearer);
            if takes_tokens && let Some(options) = tokens.options() {
                warn_if_keys_are_open(&options, &name);
                let validator = Arc::new(TokenValidator::new(options));
                maintenance.spawn(Arc::clone(&validator).run());
                sasl.tokens = Some(validator);
            }
            let listener = Arc::new(KafkaListener {
                name: name.clone(),
                key,
                tls,
                sasl: protocol.uses_sasl().then_some(sasl),
                principal_rules,
                advertised,
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

/// Warns if other machines can connect without authentication or without authorization.
fn warn_if_open(
    config: &Config,
    bound: &BoundListener,
    warnings: &mut ListenerWarnings,
) -> anyhow::Result<()> {
    let (name, address) = (&bound.config.name, bound.port.address()?);
    if address.ip().is_loopback() {
        return Ok(());
    }
    let protocol = bound.config.protocol;
    let asks_for_certificates = bound.tls.is_some()
        && bound.security.tls.client_authentication == ClientAuthentication::Need;
    let is_authorized = config.engine.security.authorizer.is_enabled;
    let lacks = match (protocol.uses_tls(), protocol.uses_sasl() || asks_for_certificates) {
        (true, true) => return Ok(()),
        (false, true) => "passwords and data go over the network unencrypted (SASL_SSL)",
        (_, false) if is_authorized => {
            "nobody is asked who they are, so that only rules for User:ANONYMOUS and User:* count"
        }
        (true, false) => {
            "whoever reaches it may read, change and delete everything: it asks nobody who they are (ssl.client.auth=required, or SASL_SSL)"
        }
        (false, false) => {
            "whoever reaches it may read, change and delete everything: it has neither encryption nor certificates nor passwords"
        }
    };
    warnings.warn(format!("{name}://{address}: {lacks}"));
    Ok(())
}

/// Says if the keys of tokens can be changed on their way.
pub(crate) fn warn_if_keys_are_open(tokens: &TokenOptions, listener: &str) {
    if tokens.keys.is_in_the_open() {
        tracing::warn!(
            "{listener}: sasl.oauthbearer.jwks.endpoint.url is read over plain HTTP: an attacker on the network can replace the keys and sign tokens for any user. Use an https:// or file:// address"
        );
    }
}

fn open_tls(config: &Config, listener: &ListenerConfig) -> anyhow::Result<TlsServer> {
    let name = &listener.name;
    TlsServer::new(config.tls_options_of(name)).map_err(|error| {
        let help = match &error {
            TlsError::NoKey => "; name it with ssl.keystore.location",
            TlsError::NoTrust => {
                "; name it with ssl.truststore.location, or set ssl.client.auth to none"
            }
            _ => "",
        };
        anyhow::anyhow!("serve Kafka's clients over TLS at {name}: {error}{help}")
    })
}
