//! The ports for ZooKeeper's clients, in the open and over TLS.

use std::sync::Arc;

use anyhow::Context;
use compat_zk::{ListenerSecurity, ZkOptions, ZkServer};
use engine::znodes::Znodes;
use tls::{ClientAuthentication, TlsError, TlsServer};

use crate::config::Config;
use crate::health::ListenerWarnings;
use crate::listen::{BoundPort, Listener, bind_port};
use crate::maintenance::MaintenanceTasks;
use crate::tls_reload::reload_tls;

/// The ports, bound.
#[derive(Debug)]
pub(crate) struct ZookeeperPorts {
    plain: Option<BoundPort>,
    secure: Option<BoundPort>,
    tls: Option<Arc<TlsServer>>,
    /// True if the plain port also accepts TLS from clients that begin it.
    is_unified: bool,
}

/// A server for ZooKeeper's clients, and where it listens.
#[derive(Debug)]
pub(crate) struct ZookeeperService {
    pub(crate) server: Arc<ZkServer>,
    pub(crate) tls: Option<Arc<TlsServer>>,
    pub(crate) plain: Option<Listener>,
    pub(crate) secure: Option<Listener>,
}

impl ZookeeperPorts {
    /// Binds what the configuration names; `None` if that is no port.
    pub(crate) async fn bind(
        config: &Config,
        warnings: &mut ListenerWarnings,
    ) -> anyhow::Result<Option<ZookeeperPorts>> {
        let clients = "ZooKeeper's clients";
        let plain = bind_port(&config.zookeeper, clients, "--zookeeper").await?;
        let secure = bind_port(&config.zookeeper_tls, clients, "--zookeeper-tls").await?;
        let is_unified = config.zookeeper_unified && plain.is_some();
        let tls =
            if secure.is_some() || is_unified { Some(Arc::new(open_tls(config)?)) } else { None };
        for (port, is_tls) in [(&plain, false), (&secure, true)] {
            if let Some(port) = port {
                warn_if_open(config, port, is_tls, warnings)?;
            }
        }
        let is_any = plain.is_some() || secure.is_some();
        Ok(is_any.then_some(ZookeeperPorts { plain, secure, tls, is_unified }))
    }

    /// Listens, and begins the server's maintenance.
    pub(crate) fn serve(
        self,
        znodes: &Arc<Znodes>,
        mut options: ZkOptions,
        maintenance: &mut MaintenanceTasks,
    ) -> anyhow::Result<ZookeeperService> {
        let port = |port: &Option<BoundPort>| {
            port.as_ref().map(|port| anyhow::Ok(port.address()?.port())).transpose()
        };
        options.client_port = port(&self.plain)?.unwrap_or(0);
        options.secure_client_port = port(&self.secure)?;
        options.has_x509 = self.tls.is_some();
        let server = ZkServer::new(Arc::clone(znodes), options);
        let open = |port: Option<BoundPort>, security: ListenerSecurity| {
            let Some(port) = port else { return anyhow::Ok(None) };
            let address = port.address()?;
            let listener = port
                .listen()
                .with_context(|| format!("listen for ZooKeeper's clients on {address}"))?;
            let server = Arc::clone(&server);
            Listener::open(listener, |listener, stop| {
                compat_zk::serve(server, listener, security, stop)
            })
            .map(Some)
        };
        let of_plain = match &self.tls {
            Some(tls) if self.is_unified => ListenerSecurity::Either(Arc::clone(tls)),
            Some(_) | None => ListenerSecurity::Plain,
        };
        let plain = open(self.plain, of_plain)?;
        let secure = match &self.tls {
            Some(tls) => open(self.secure, ListenerSecurity::Tls(Arc::clone(tls)))?,
            None => None,
        };
        maintenance.spawn(Arc::clone(&server).run_maintenance());
        if let Some(tls) = &self.tls {
            maintenance.spawn(reload_tls(Arc::clone(tls), "ZooKeeper's clients"));
        }
        Ok(ZookeeperService { server, tls: self.tls, plain, secure })
    }
}

/// Says if strangers can write where an authorizer is asked about everything else.
fn warn_if_open(
    config: &Config,
    port: &BoundPort,
    is_tls: bool,
    warnings: &mut ListenerWarnings,
) -> anyhow::Result<()> {
    let is_authorized = config.engine.security.authorizer.is_enabled;
    let asks_for_certificates =
        is_tls && config.zookeeper_tls_options.client_authentication == ClientAuthentication::Need;
    if is_authorized && !asks_for_certificates && !config.zookeeper_server.proves_identities() {
        let address = port.address()?;
        warnings.warn(format!(
            "ZooKeeper at {address} is open to anybody who can reach it: authorizer.class.name does not apply to znodes, and new znodes are world:anyone (server.zookeeper-tls with client certificates, or zookeeper.enforce.auth.schemes=sasl)"
        ));
    }
    Ok(())
}

fn open_tls(config: &Config) -> anyhow::Result<TlsServer> {
    TlsServer::new(config.zookeeper_tls_options.clone()).map_err(|error| {
        let help = match &error {
            TlsError::NoKey => "; name it with zookeeper.ssl.keyStore.location",
            TlsError::NoTrust => {
                "; name it with zookeeper.ssl.trustStore.location, or set zookeeper.ssl.clientAuth to none"
            }
            _ => "",
        };
        anyhow::anyhow!("serve ZooKeeper's clients over TLS: {error}{help}")
    })
}
