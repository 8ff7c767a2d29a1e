//! The ports for operators, over HTTP in the open and over TLS.

use std::sync::Arc;

use anyhow::Context;
use bearer_tokens::TokenValidator;
use engine::security::PrincipalRules;
use tls::{TlsError, TlsServer};

use crate::admin::{self, HttpTls};
use crate::config::{Config, HTTP_LISTENER, ListenAddress};
use crate::dynamic_settings::NamedTls;
use crate::health::ListenerWarnings;
use crate::http_access::HttpAccess;
use crate::http_hosts::HttpHosts;
use crate::kafka_ports::warn_if_keys_are_open;
use crate::listen::{BoundPort, Listener, bind_port};
use crate::maintenance::MaintenanceTasks;
use crate::status::ServerStatus;
use crate::tls_reload::reload_tls;

/// The ports, bound.
#[derive(Debug)]
pub(crate) struct HttpPorts {
    plain: Option<BoundPort>,
    secure: Option<(BoundPort, Arc<TlsServer>)>,
    /// The names of clients with certificates.
    principal_rules: PrincipalRules,
    /// Checks the tokens of clients, if any are taken.
    tokens: Option<Arc<TokenValidator>>,
    hosts: HttpHosts,
    is_authorized: bool,
}

/// The listeners of HTTP.
#[derive(Debug)]
pub(crate) struct HttpService {
    pub(crate) plain: Option<Listener>,
    pub(crate) secure: Option<Listener>,
    tls: Option<Arc<TlsServer>>,
    tokens: Option<Arc<TokenValidator>>,
}

impl HttpPorts {
    /// Binds what the configuration names.
    pub(crate) async fn bind(
        config: &Config,
        warnings: &mut ListenerWarnings,
    ) -> anyhow::Result<HttpPorts> {
        let plain = bind_port(&config.http, "operators", "--http").await?;
        let secure = match bind_port(&config.http_tls, "operators", "server.http-tls").await? {
            Some(port) => Some((port, Arc::new(open_tls(config)?))),
            None => None,
        };
        let is_authorized = config.engine.security.authorizer.is_enabled;
        if let Some(port) = &plain {
            warn_if_open(port, false, is_authorized, warnings)?;
        }
        if let Some((port, _)) = &secure {
            warn_if_open(port, true, is_authorized, warnings)?;
        }
        let security = config.kafka_security_of(HTTP_LISTENER);
        let is_open = plain.is_some() || secure.is_some();
        if is_authorized
            && is_open
            && let Some(tokens) = security.tokens.options()
        {
            warn_if_keys_are_open(&tokens, HTTP_LISTENER);
        }
        let addresses: Vec<&ListenAddress> = vec![&config.http, &config.http_tls];
        Ok(HttpPorts {
            plain,
            secure,
            principal_rules: security.principal_rules.clone(),
            tokens: security.tokens.options().map(|options| Arc::new(TokenValidator::new(options))),
            hosts: HttpHosts::new(&addresses, &config.http_hosts),
            is_authorized,
        })
    }

    /// Listens.
    pub(crate) fn serve(self, status: &Arc<ServerStatus>) -> anyhow::Result<HttpService> {
        let HttpPorts { plain, secure, principal_rules, tokens, hosts, is_authorized } = self;
        let access = HttpAccess {
            is_enabled: is_authorized,
            status: Arc::clone(status),
            tokens: tokens.clone(),
            sessions: Arc::clone(status.http_sessions()),
        };
        let open = |port: BoundPort, tls: Option<HttpTls>| {
            let address = port.address()?;
            let socket =
                port.listen().with_context(|| format!("listen for operators on {address}"))?;
            let (access, hosts) = (access.clone(), hosts.clone());
            Listener::open(socket, |socket, stop| admin::serve(access, hosts, socket, tls, stop))
        };
        let plain = plain.map(|port| open(port, None)).transpose()?;
        let (secure, tls) = match secure {
            Some((port, server)) => {
                let tls = HttpTls { server: Arc::clone(&server), principal_rules };
                (Some(open(port, Some(tls))?), Some(server))
            }
            None => (None, None),
        };
        Ok(HttpService { plain, secure, tls, tokens })
    }
}

impl HttpService {
    /// The port that speaks TLS.
    pub(crate) fn tls_server(&self) -> Option<NamedTls> {
        Some((HTTP_LISTENER.to_owned(), self.tls.clone()?))
    }

    /// Starts the reload of TLS keys and of keys that verify tokens.
    pub(crate) fn run_maintenance(&self, maintenance: &mut MaintenanceTasks) {
        if let Some(tls) = &self.tls {
            maintenance.spawn(reload_tls(Arc::clone(tls), "operators"));
        }
        let is_any = self.plain.is_some() || self.secure.is_some();
        if is_any && let Some(tokens) = &self.tokens {
            maintenance.spawn(Arc::clone(tokens).run());
        }
    }
}

/// Says if others than this machine can read everything, or passwords on their way.
fn warn_if_open(
    port: &BoundPort,
    is_secure: bool,
    is_authorized: bool,
    warnings: &mut ListenerWarnings,
) -> anyhow::Result<()> {
    let address = port.address()?;
    let lacks = match (is_secure, is_authorized) {
        _ if address.ip().is_loopback() => return Ok(()),
        (true, true) => return Ok(()),
        (false, true) => "passwords and tokens go over the network unencrypted (server.http-tls)",
        (_, false) => {
            "whoever reaches it may read everything: nobody is asked who they are (authorizer.class.name)"
        }
    };
    warnings.warn(format!("HTTP at {address}: {lacks}"));
    Ok(())
}

fn open_tls(config: &Config) -> anyhow::Result<TlsServer> {
    TlsServer::new(config.tls_options_of(HTTP_LISTENER)).map_err(|error| {
        let help = match &error {
            TlsError::NoKey => "; name it with ssl.keystore.location",
            TlsError::NoTrust => "; name it with ssl.truststore.location",
            _ => "",
        };
        anyhow::anyhow!("serve HTTP over TLS: {error}{help}")
    })
}
