//! Settings that clients give while the server runs, put into force.

use std::fmt;
use std::sync::Arc;

use compat_kafka::{
    AssignmentIntervals, DynamicConfigs, DynamicSettings, InvalidSettings, PreparedSettings,
};
use tls::{PreparedTls, TlsServer};

use crate::config::Config;
use crate::config::dynamic::is_tls_of_listener;
use crate::descriptors::limit_connections;

/// The listener of a port that speaks TLS, and what speaks it.
pub(crate) type NamedTls = (String, Arc<TlsServer>);

/// Parts of the names of TLS settings that authenticate clients, or map them to principals.
const GUARDS: [&str; 3] = [".ssl.client.auth", ".ssl.truststore.", ".ssl.principal.mapping.rules"];

/// The configuration that the server was started with, and the TLS servers that can change.
pub(crate) struct RunningSettings {
    pub(crate) config: Config,
    pub(crate) tls: Vec<NamedTls>,
}

impl fmt::Debug for RunningSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningSettings").field("tls", &self.tls).finish_non_exhaustive()
    }
}

impl DynamicSettings for RunningSettings {
    fn prepare(&self, dynamic: &DynamicConfigs) -> Result<PreparedSettings, InvalidSettings> {
        let mut config = self.config.with_dynamic(dynamic)?;
        let limit = |config: &Config| config.kafka_server.dynamic.limits.max;
        if limit(&config) != limit(&self.config) {
            limit_connections(&mut config);
        }
        let mut changes: Vec<(Arc<TlsServer>, PreparedTls)> = Vec::new();
        for (listener, server) in &self.tls {
            let options = config.tls_options_of(listener);
            if server.has_options(&options) {
                continue;
            }
            let refuse = |message: String| {
                let own_names =
                    dynamic.own.keys().filter(|name| is_tls_of_listener(name, listener));
                let names: Vec<String> = own_names.cloned().collect();
                let is_guard = |name: &String| GUARDS.iter().any(|guard| name.contains(guard));
                let are_guards = names.iter().any(is_guard);
                InvalidSettings {
                    message: format!("{}: {message}", names.join(", ")),
                    names,
                    are_guards,
                }
            };
            // A client names the files, and opening a pipe would block forever.
            for path in [&options.key_store.path, &options.trust_store.path] {
                if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
                    let path = path.display();
                    return Err(refuse(format!("{path} is not a regular file; name one")));
                }
            }
            let prepared = PreparedTls::new(options).map_err(|error| refuse(error.to_string()))?;
            changes.push((Arc::clone(server), prepared));
        }
        let groups = &config.kafka_server.groups;
        let assignment_intervals = AssignmentIntervals {
            consumer: groups.consumer.assignment_interval,
            share: groups.share.assignment_interval,
            streams: groups.streams.assignment_interval,
        };
        Ok(PreparedSettings {
            options: config.kafka_server.dynamic,
            topic_defaults: config.engine.core.topic_defaults,
            maintenance: config.engine.core.maintenance.dynamic,
            assignment_intervals,
            finish: Box::new(move || {
                for (server, prepared) in changes {
                    server.replace(prepared);
                }
            }),
        })
    }
}
