//! The commands of ZooKeeper's AdminServer, for the path `/commands` of an HTTP port: documents
//! with the names that it gives.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine_znodes::SessionId;
use serde_json::{Map, Value, json};

use crate::connection::Connection;
use crate::four_letter::{environment, ephemerals};
use crate::monitor::MonitorValue;
use crate::server::ZkServer;
use crate::traffic::ReplySizes;

/// The name of each command, and its other names. Commands about the Java virtual machine are not
/// served.
const COMMANDS: [&[&str]; 20] = [
    &["configuration", "conf", "config"],
    &["connection_stat_reset", "crst"],
    &["connections", "cons"],
    &["dirs"],
    &["dump"],
    &["environment", "env", "envi"],
    &["is_read_only", "isro"],
    &["last_snapshot", "lsnp"],
    &["leader", "lead"],
    &["monitor", "mntr"],
    &["observers", "obsr"],
    &["ruok"],
    &["server_stats", "srvr"],
    &["stat_reset", "srst"],
    &["stats", "stat"],
    &["voting_view"],
    &["watch_summary", "wchs"],
    &["watches", "wchc"],
    &["watches_by_path", "wchp"],
    &["zabstate"],
];

impl ZkServer {
    /// The names of all commands.
    pub fn admin_commands() -> impl Iterator<Item = &'static str> {
        COMMANDS.into_iter().map(|names| names[0])
    }

    /// True if the command of that name, or alias, changes something.
    pub fn is_changing_command(name: &str) -> bool {
        let command = COMMANDS.into_iter().find(|names| names.contains(&name));
        command.is_some_and(|names| matches!(names[0], "connection_stat_reset" | "stat_reset"))
    }

    /// Runs a command, by its name or an alias. For an unknown name the document has an `error`.
    pub fn admin_command(&self, name: &str) -> Value {
        let command = COMMANDS.into_iter().find(|names| names.contains(&name));
        let (name, answer) = match command {
            Some(names) => (names[0], self.carry_out(names[0])),
            None => (name, json!({ "error": format!("Unknown command: {name}") })),
        };
        let mut document = Map::from_iter([("error".to_owned(), Value::Null)]);
        if let Value::Object(fields) = answer {
            document.extend(fields);
        }
        document.insert("command".to_owned(), name.into());
        Value::Object(document)
    }

    fn carry_out(&self, name: &str) -> Value {
        match name {
            "configuration" => {
                let options = &self.options;
                json!({
                    "client_port": options.client_port,
                    "data_dir": options.data_dir,
                    "data_log_dir": options.data_dir,
                    "tick_time": options.tick_ms,
                    "max_client_cnxns": options.connections_per_address_max,
                    "min_session_timeout": options.session_timeout_min(),
                    "max_session_timeout": options.session_timeout_max(),
                    "server_id": 0,
                    "client_port_listen_backlog": -1,
                })
            }
            "connection_stat_reset" => {
                self.reset_connections();
                json!({})
            }
            "connections" => self.connections_document(false),
            "dirs" => {
                let sizes = self.log_sizes();
                json!({
                    "datadir_size": sizes.checkpoint_bytes,
                    "logdir_size": sizes.transaction_bytes,
                })
            }
            "dump" => {
                let expiries: BTreeMap<String, Vec<i64>> = self
                    .session_expiries()
                    .into_iter()
                    .map(|(at, ids)| (at.to_string(), ids.into_iter().map(|id| id.0).collect()))
                    .collect();
                let by_session: BTreeMap<String, Vec<String>> = ephemerals(self)
                    .into_iter()
                    .map(|(session, paths)| (session.0.to_string(), paths))
                    .collect();
                json!({
                    "expiry_time_to_session_ids": expiries,
                    "session_id_to_ephemeral_paths": by_session,
                })
            }
            "environment" => environment(self)
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect::<Map<String, Value>>()
                .into(),
            "is_read_only" => json!({ "read_only": false }),
            "last_snapshot" => {
                let last = self.znodes.last_checkpoint();
                let zxid = last.map_or(-1, |last| last.zxid);
                let timestamp = last.map_or(-1, |last| last.at_ms / 1000);
                json!({ "zxid": format!("{zxid:x}"), "timestamp": timestamp })
            }
            "leader" => json!({ "error": "server is not initialized" }),
            "monitor" => self
                .monitor()
                .into_iter()
                .map(|entry| {
                    let value = match entry.value {
                        MonitorValue::Text(text) => text.into(),
                        MonitorValue::Integer(value) => value.into(),
                        MonitorValue::Decimal(value) => value.into(),
                    };
                    (entry.name.to_owned(), value)
                })
                .collect::<Map<String, Value>>()
                .into(),
            "observers" => json!({ "synced_observers": 0, "observers": [] }),
            "server_stats" => self.stats_document(),
            "stat_reset" => {
                self.reset_traffic();
                json!({})
            }
            "stats" => {
                let mut document = self.stats_document();
                if let (Some(document), Value::Object(connections)) =
                    (document.as_object_mut(), self.connections_document(true))
                {
                    document.extend(connections);
                }
                document
            }
            "voting_view" => json!({ "current_config": {} }),
            "watch_summary" => {
                let counts = self.watches().lock().counts();
                json!({
                    "num_connections": counts.connections,
                    "num_paths": counts.paths,
                    "num_total_watches": counts.watches,
                })
            }
            "watches" => {
                let watches = self.watches().lock();
                let paths = watches.by_session().into_iter();
                let by_session: BTreeMap<String, Vec<&str>> = paths
                    .map(|(session, paths)| (session.0.to_string(), Vec::from_iter(paths)))
                    .collect();
                json!({ "session_id_to_watched_paths": by_session })
            }
            "watches_by_path" => {
                let watches = self.watches().lock();
                let ids = |ids: std::collections::BTreeSet<SessionId>| {
                    ids.into_iter().map(|id| id.0).collect::<Vec<i64>>()
                };
                let sessions = watches.by_path().into_iter();
                let by_path: BTreeMap<&str, Vec<i64>> =
                    sessions.map(|(path, sessions)| (path, ids(sessions))).collect();
                json!({ "path_to_session_ids": by_path })
            }
            "zabstate" => json!({ "voting": false, "zabstate": "" }),
            _ => json!({}),
        }
    }

    fn stats_document(&self) -> Value {
        let (traffic, sizes) = (self.traffic(), self.log_sizes());
        let latency = traffic.sent.requests();
        let connections = self.connection_list();
        let outstanding: usize =
            connections.iter().map(|connection| connection.outstanding()).sum();
        let tree = self.znodes.tree();
        json!({
            "version": self.version(),
            "read_only": false,
            "server_stats": {
                "packets_sent": traffic.sent.packets,
                "packets_received": traffic.received,
                "client_response_stats": response_sizes(&traffic.sent.sizes),
                "provider_null": false,
                "data_dir_size": sizes.checkpoint_bytes,
                "log_dir_size": sizes.transaction_bytes,
                "last_processed_zxid": tree.last_zxid(),
                "outstanding_requests": outstanding,
                "server_state": "standalone",
                "avg_latency": latency.average(),
                "max_latency": latency.max,
                "min_latency": latency.min(),
                "num_alive_client_connections": connections.len(),
                "uptime": self.now_ms(),
                "auth_failed_count": self.auth_failures(),
            },
            "client_response": response_sizes(&traffic.sent.sizes),
            "node_count": tree.len_as_zookeeper_counts(),
        })
    }

    fn connections_document(&self, brief: bool) -> Value {
        let (secure, plain): (Vec<_>, Vec<_>) =
            self.connection_list().into_iter().partition(|connection| connection.is_secure());
        let documents = |connections: Vec<Arc<Connection>>| -> Vec<Value> {
            connections
                .iter()
                .map(|connection| self.connection_document(connection, brief))
                .collect()
        };
        json!({ "connections": documents(plain), "secure_connections": documents(secure) })
    }

    fn connection_document(&self, connection: &Connection, brief: bool) -> Value {
        let (replies, requests) = (connection.output.stats(), &connection.requests);
        let mut document = json!({
            "remote_socket_address": connection.peer.to_string(),
            "interest_ops": 1,
            "outstanding_requests": connection.outstanding(),
            "packets_received": requests.own(),
            "packets_sent": replies.own.packets,
        });
        if !brief && let Some(fields) = document.as_object_mut() {
            let session = connection.session().unwrap_or_default();
            let latency = replies.own.requests();
            let details = [
                ("session_id", session.0.into()),
                ("last_operation", requests.last_operation().into()),
                ("established", connection.established_ms.into()),
                ("session_timeout", self.session_timeout_ms(session).into()),
                ("last_cxid", requests.last_xid().into()),
                ("last_zxid", replies.last_zxid.into()),
                ("last_response_time", self.ms_of(replies.last_reply_at).into()),
                ("last_latency", replies.last_latency_ms.into()),
                ("min_latency", latency.min().into()),
                ("avg_latency", (latency.average() as u64).into()),
                ("max_latency", latency.max.into()),
            ];
            fields.extend(details.map(|(name, value): (&str, Value)| (name.to_owned(), value)));
        }
        document
    }
}

fn response_sizes(sizes: &ReplySizes) -> Value {
    json!({
        "last_buffer_size": sizes.last,
        "min_buffer_size": sizes.min,
        "max_buffer_size": sizes.max,
    })
}
