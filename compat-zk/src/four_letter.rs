//! Four-letter words: the questions of an operator, as in `echo srvr | nc HOST PORT`. The answers
//! have the form that ZooKeeper's have, which scripts read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use engine_znodes::SessionId;

use crate::connection::Connection;
use crate::monitor::MonitorValue;
use crate::server::ZkServer;

/// The length of a word.
pub(crate) const BYTES: usize = 4;

/// The words that a server knows, of which the operator enables some.
const WORDS: [&str; 15] = [
    "ruok", "srvr", "stat", "mntr", "conf", "cons", "wchs", "wchp", "wchc", "dump", "envi", "isro",
    "dirs", "srst", "crst",
];

/// The answer to what a connection sent first; `None` if that is no word.
pub(crate) fn answer(server: &ZkServer, received: &[u8]) -> Option<String> {
    let word = std::str::from_utf8(received.get(..BYTES)?).ok()?;
    let word = WORDS.into_iter().find(|name| *name == word)?;
    let enabled = &server.options.four_letter_words;
    if !enabled.contains(word) && !enabled.contains("*") {
        return Some(format!("{word} is not executed because it is not in the whitelist.\n"));
    }
    let mut text = String::new();
    write(server, word, &mut text).expect("a string takes all that is written");
    Some(text)
}

fn write(server: &ZkServer, word: &str, out: &mut String) -> std::fmt::Result {
    match word {
        "ruok" => write!(out, "imok"),
        "isro" => write!(out, "rw"),
        "srvr" | "stat" => write_server(server, word == "stat", out),
        "mntr" => {
            for entry in server.monitor() {
                match entry.value {
                    MonitorValue::Text(text) => writeln!(out, "zk_{}\t{text}", entry.name)?,
                    MonitorValue::Integer(value) => writeln!(out, "zk_{}\t{value}", entry.name)?,
                    MonitorValue::Decimal(value) => writeln!(out, "zk_{}\t{value:?}", entry.name)?,
                }
            }
            Ok(())
        }
        "conf" => write_configuration(server, out),
        "cons" => {
            for connection in server.connection_list() {
                write_connection(server, &connection, false, out)?;
                writeln!(out)?;
            }
            writeln!(out)
        }
        "wchs" => {
            let watches = server.watches().lock().counts();
            let (connections, paths) = (watches.connections, watches.paths);
            writeln!(out, "{connections} connections watching {paths} paths")?;
            writeln!(out, "Total watches:{}", watches.watches)
        }
        "wchp" => {
            for (path, sessions) in server.watches().lock().by_path() {
                writeln!(out, "{path}")?;
                for session in sessions {
                    writeln!(out, "\t{session}")?;
                }
            }
            writeln!(out)
        }
        "wchc" => {
            for (session, paths) in server.watches().lock().by_session() {
                writeln!(out, "{session}")?;
                for path in paths {
                    writeln!(out, "\t{path}")?;
                }
            }
            writeln!(out)
        }
        "dump" => write_sessions(server, out),
        "dirs" => {
            let sizes = server.log_sizes();
            writeln!(out, "datadir_size: {}", sizes.checkpoint_bytes)?;
            writeln!(out, "logdir_size: {}", sizes.transaction_bytes)
        }
        "srst" => {
            server.reset_traffic();
            writeln!(out, "Server stats reset.")
        }
        "crst" => {
            server.reset_connections();
            writeln!(out, "Connection stats reset.")
        }
        _ => {
            writeln!(out, "Environment:")?;
            for (name, value) in environment(server) {
                writeln!(out, "{name}={value}")?;
            }
            Ok(())
        }
    }
}

fn write_server(server: &ZkServer, with_clients: bool, out: &mut String) -> std::fmt::Result {
    writeln!(out, "Zookeeper version: {}", server.version())?;
    let connections = server.connection_list();
    if with_clients {
        writeln!(out, "Clients:")?;
        for connection in &connections {
            write_connection(server, connection, true, out)?;
            writeln!(out)?;
        }
        writeln!(out)?;
    }
    let traffic = server.traffic();
    let latency = traffic.sent.requests();
    let (min, average, max) = (latency.min(), latency.average(), latency.max);
    writeln!(out, "Latency min/avg/max: {min}/{average:?}/{max}")?;
    writeln!(out, "Received: {}", traffic.received)?;
    writeln!(out, "Sent: {}", traffic.sent.packets)?;
    writeln!(out, "Connections: {}", connections.len())?;
    let outstanding: usize = connections.iter().map(|connection| connection.outstanding()).sum();
    writeln!(out, "Outstanding: {outstanding}")?;
    let tree = server.znodes.tree();
    writeln!(out, "Zxid: {:#x}", tree.last_zxid())?;
    writeln!(out, "Mode: standalone")?;
    writeln!(out, "Node count: {}", tree.len_as_zookeeper_counts())
}

fn write_configuration(server: &ZkServer, out: &mut String) -> std::fmt::Result {
    let (options, sizes) = (&server.options, server.log_sizes());
    let data_dir = options.data_dir.display();
    writeln!(out, "clientPort={}", options.client_port)?;
    let secure_port = options.secure_client_port.map_or(-1, i32::from);
    writeln!(out, "secureClientPort={secure_port}")?;
    writeln!(out, "dataDir={data_dir}")?;
    writeln!(out, "dataDirSize={}", sizes.checkpoint_bytes)?;
    writeln!(out, "dataLogDir={data_dir}")?;
    writeln!(out, "dataLogSize={}", sizes.transaction_bytes)?;
    writeln!(out, "tickTime={}", options.tick_ms)?;
    writeln!(out, "maxClientCnxns={}", options.connections_per_address_max)?;
    writeln!(out, "minSessionTimeout={}", options.session_timeout_min())?;
    writeln!(out, "maxSessionTimeout={}", options.session_timeout_max())?;
    writeln!(out, "clientPortListenBacklog=-1")?;
    writeln!(out, "serverId=0")
}

fn write_connection(
    server: &ZkServer,
    connection: &Connection,
    brief: bool,
    out: &mut String,
) -> std::fmt::Result {
    let (replies, requests) = (connection.output.stats(), &connection.requests);
    write!(
        out,
        " /{}[1](queued={},recved={},sent={}",
        connection.peer,
        connection.outstanding(),
        requests.own(),
        replies.own.packets
    )?;
    if !brief && let Some(session) = connection.session() {
        let latency = replies.own.requests();
        write!(out, ",sid={session},lop={}", requests.last_operation())?;
        write!(out, ",est={}", connection.established_ms)?;
        write!(out, ",to={}", server.session_timeout_ms(session))?;
        if requests.last_xid() >= 0 {
            write!(out, ",lcxid={:#x}", requests.last_xid())?;
        }
        write!(out, ",lzxid={:#x}", replies.last_zxid)?;
        write!(
            out,
            ",lresp={},llat={}",
            server.ms_of(replies.last_reply_at),
            replies.last_latency_ms
        )?;
        let (min, average, max) = (latency.min(), latency.average() as u64, latency.max);
        write!(out, ",minlat={min},avglat={average},maxlat={max}")?;
    }
    write!(out, ")")
}

fn write_sessions(server: &ZkServer, out: &mut String) -> std::fmt::Result {
    let expiries = server.session_expiries();
    let total: usize = expiries.values().map(Vec::len).sum();
    writeln!(out, "SessionTracker dump:\nSession Sets ({})/({total}):", expiries.len())?;
    for (at_ms, sessions) in &expiries {
        writeln!(out, "{} expire at {}:", sessions.len(), java_date(*at_ms))?;
        for session in sessions {
            writeln!(out, "\t{session}")?;
        }
    }
    let by_session = ephemerals(server);
    writeln!(out, "ephemeral nodes dump:\nSessions with Ephemerals ({}):", by_session.len())?;
    for (session, paths) in by_session {
        writeln!(out, "{session}:")?;
        for path in paths {
            writeln!(out, "\t{path}")?;
        }
    }
    let connections = server.connection_list();
    let due_of: BTreeMap<SessionId, u64> = expiries
        .iter()
        .flat_map(|(at_ms, sessions)| sessions.iter().map(|session| (*session, *at_ms)))
        .collect();
    let mut sets: BTreeMap<u64, Vec<(SessionId, &Connection)>> = BTreeMap::new();
    for connection in &connections {
        let session = connection.session();
        if let Some((id, due)) = session.and_then(|id| Some((id, due_of.get(&id)?))) {
            sets.entry(*due).or_default().push((id, connection));
        }
    }
    let total: usize = sets.values().map(Vec::len).sum();
    writeln!(out, "Connections dump:\nConnections Sets ({})/({total}):", sets.len())?;
    for (at_ms, expiring) in sets {
        writeln!(out, "{} expire at {}:", expiring.len(), java_date(at_ms))?;
        for (session, connection) in expiring {
            writeln!(out, "\tip: /{} sessionId: {session}", connection.peer)?;
        }
    }
    Ok(())
}

/// The ephemeral znodes of each session that has any.
pub(crate) fn ephemerals(server: &ZkServer) -> BTreeMap<SessionId, Vec<String>> {
    let tree = server.znodes.tree();
    let by_session = tree.sessions().map(|(id, session)| {
        (id, session.ephemerals().map(str::to_owned).collect::<Vec<String>>())
    });
    by_session.filter(|(_, paths)| !paths.is_empty()).collect()
}

/// The environment of the server.
pub(crate) fn environment(server: &ZkServer) -> [(&'static str, String); 7] {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let directory = std::env::current_dir().unwrap_or_default();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    [
        ("zookeeper.version", server.version()),
        ("host.name", host.trim().to_owned()),
        ("os.name", std::env::consts::OS.to_owned()),
        ("os.arch", std::env::consts::ARCH.to_owned()),
        ("user.name", variable("USER")),
        ("user.home", variable("HOME")),
        ("user.dir", directory.display().to_string()),
    ]
}

/// As Java prints a date.
fn java_date(ms: u64) -> String {
    let at = jiff::Timestamp::from_millisecond(ms as i64).unwrap_or_default();
    at.strftime("%a %b %d %H:%M:%S UTC %Y").to_string()
}
