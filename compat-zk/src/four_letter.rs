//! Four-letter words: what an operator asks with `echo srvr | nc HOST PORT`.

use std::fmt::Write as _;

use crate::server::ZkServer;

/// The length of a word.
pub(crate) const BYTES: usize = 4;

/// The words that a server knows, of which the operator enables some.
const WORDS: [&str; 12] = [
    "ruok", "srvr", "stat", "mntr", "conf", "cons", "wchs", "wchp", "wchc", "dump", "envi", "isro",
];

/// The answer to what a connection sent first; `None` if that is no word.
pub(crate) fn answer(server: &ZkServer, received: &[u8]) -> Option<String> {
    let word = std::str::from_utf8(received.get(..BYTES)?).ok()?;
    let word = WORDS.into_iter().find(|known| *known == word)?;
    let enabled = &server.options.four_letter_words;
    if !enabled.contains(word) && !enabled.contains("*") {
        return Some(format!("{word} is not executed because it is not in the whitelist.\n"));
    }
    let mut text = String::new();
    write(server, word, &mut text).expect("a string takes all that is written");
    Some(text)
}

fn write(server: &ZkServer, word: &str, out: &mut String) -> std::fmt::Result {
    let version = env!("CARGO_PKG_VERSION");
    let tree = server.znodes.tree();
    let connections = server.connection_list();
    let outstanding: usize = connections.iter().map(|connection| connection.outstanding()).sum();
    match word {
        "ruok" => write!(out, "imok"),
        "isro" => write!(out, "rw"),
        "srvr" | "stat" => {
            writeln!(out, "Zookeeper version: freezeframe-{version}")?;
            if word == "stat" {
                writeln!(out, "Clients:")?;
                for connection in &connections {
                    let (peer, waits) = (connection.peer, connection.outstanding());
                    writeln!(out, " /{peer}[1](queued={waits})")?;
                }
                writeln!(out)?;
            }
            writeln!(out, "Connections: {}", connections.len())?;
            writeln!(out, "Outstanding: {outstanding}")?;
            writeln!(out, "Zxid: {:#x}", tree.last_zxid())?;
            writeln!(out, "Mode: standalone")?;
            writeln!(out, "Node count: {}", tree.len())
        }
        "mntr" => {
            let watches = server.watches().lock().counts();
            let ephemerals: usize =
                tree.sessions().map(|(_, session)| session.ephemerals().len()).sum();
            writeln!(out, "zk_version\tfreezeframe-{version}")?;
            writeln!(out, "zk_server_state\tstandalone")?;
            writeln!(out, "zk_num_alive_connections\t{}", connections.len())?;
            writeln!(out, "zk_outstanding_requests\t{outstanding}")?;
            writeln!(out, "zk_znode_count\t{}", tree.len())?;
            writeln!(out, "zk_watch_count\t{}", watches.watches)?;
            writeln!(out, "zk_ephemerals_count\t{ephemerals}")?;
            writeln!(out, "zk_approximate_data_size\t{}", tree.data_bytes())?;
            writeln!(out, "zk_global_sessions\t{}", server.session_count())?;
            writeln!(out, "zk_uptime\t{}", server.now_ms())
        }
        "conf" => {
            let options = &server.options;
            writeln!(out, "tickTime={}", options.tick_ms)?;
            writeln!(out, "maxClientCnxns={}", options.connections_per_address_max)?;
            writeln!(out, "minSessionTimeout={}", options.session_timeout_min())?;
            writeln!(out, "maxSessionTimeout={}", options.session_timeout_max())?;
            writeln!(out, "serverId=0")
        }
        "cons" => {
            for connection in &connections {
                let session = connection.session().unwrap_or_default();
                let (peer, waits) = (connection.peer, connection.outstanding());
                writeln!(out, " /{peer}[1](queued={waits},sid={session})")?;
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
            Ok(())
        }
        "wchc" => {
            for (session, paths) in server.watches().lock().by_session() {
                writeln!(out, "{session}")?;
                for path in paths {
                    writeln!(out, "\t{path}")?;
                }
            }
            Ok(())
        }
        "dump" => {
            writeln!(out, "Session Sets ({}):", tree.sessions().count())?;
            let mut sessions: Vec<_> = tree.sessions().collect();
            sessions.sort_by_key(|(id, _)| *id);
            for (id, session) in &sessions {
                writeln!(out, "{id}\ttimeout={}", session.timeout_ms)?;
            }
            let holders = sessions.iter().filter(|(_, session)| session.ephemerals().len() > 0);
            writeln!(
                out,
                "ephemeral nodes dump:\nSessions with Ephemerals ({}):",
                holders.clone().count()
            )?;
            for (id, session) in holders {
                writeln!(out, "{id}:")?;
                for path in session.ephemerals() {
                    writeln!(out, "\t{path}")?;
                }
            }
            Ok(())
        }
        _ => {
            writeln!(out, "Environment:")?;
            writeln!(out, "zookeeper.version=freezeframe-{version}")?;
            writeln!(out, "server.start.ms={}", server.started_ms())?;
            writeln!(out, "os.name={}", std::env::consts::OS)?;
            writeln!(out, "os.arch={}", std::env::consts::ARCH)
        }
    }
}
