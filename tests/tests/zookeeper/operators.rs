//! The output for operators and their tools.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

use testkit::directory::TestDirectory;
use testkit::process::{TestServer, http_get};
use zk_wire::JuteWriter;

use super::client::*;

/// The answer to a four-letter word.
fn ask_word(address: SocketAddr, word: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(word.as_bytes()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it is text");
    text
}

fn command(server: &TestServer, name: &str) -> serde_json::Value {
    let (status, body) = http_get(server.http, &format!("/commands/{name}")).expect("an answer");
    assert_eq!(status, 200);
    serde_json::from_str(&body).expect("a document")
}

/// The value behind `name` and a separator in some line.
fn value<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim()
}

#[test]
fn words_commands_and_metrics_agree() {
    let data = TestDirectory::new();
    let server = serve_with(&data, &["zookeeper.4lw.commands.whitelist=*"]);
    let at = address(&server);
    let mut client = ZkClient::begin(at);
    assert_eq!(client.create("/a", b"abc", 0), 0);
    assert_eq!(client.create("/e", b"", 1), 0);
    assert_eq!(client.create("/a", b"", 0), NODE_EXISTS);
    client.ask(GET_DATA, |out| {
        out.string(Some("/a"));
        out.bool(true);
    });
    assert_eq!(client.reply().1, 0);

    let srvr = ask_word(at, "srvr");
    let version = value(&srvr, "Zookeeper version:");
    assert!(version.starts_with("3.9."), "{srvr}");
    // The format that go-zookeeper reads: 2026-02-11 20:18 UTC.
    let (_, built) = version.split_once(", built on ").expect("the date of the build");
    let digits = built.replace(|letter: char| letter.is_ascii_digit(), "0");
    assert_eq!(digits, "0000-00-00 00:00 UTC");
    // The handshake, four requests, and the word itself.
    assert_eq!(value(&srvr, "Received:"), "6");
    assert_eq!(value(&srvr, "Sent:"), "5");
    assert_eq!(value(&srvr, "Connections:"), "2");
    assert_eq!(value(&srvr, "Zxid:"), "0x4");
    assert_eq!(value(&srvr, "Mode:"), "standalone");
    // As ZooKeeper counts: its root twice, three of its own, and two of ours.
    assert_eq!(value(&srvr, "Node count:"), "7");

    let session = format!("{:#x}", client.session_id);
    // A request counts as queued until its reply is in the output, and for a moment longer, as in
    // ZooKeeper.
    let begun = Instant::now();
    let line = loop {
        let cons = ask_word(at, "cons");
        let line = cons.lines().find(|line| line.contains(&session)).expect("it is connected");
        if line.contains("queued=0,") {
            break line.to_owned();
        }
        assert!(begun.elapsed() < TIMEOUT, "{line}");
    };
    for part in
        ["queued=0,", "recved=5,", "sent=5,", "lop=GETD,", "to=30000,", "lcxid=0x4,", "lzxid=0x4,"]
    {
        assert!(line.contains(part), "{part} in {line}");
    }
    let dump = ask_word(at, "dump");
    assert!(dump.contains(&format!("Sessions with Ephemerals (1):\n{session}:\n\t/e\n")), "{dump}");
    assert_eq!(ask_word(at, "wchs"), "1 connections watching 1 paths\nTotal watches:1\n");
    assert_eq!(ask_word(at, "wchp"), format!("/a\n\t{session}\n\n"));
    let dirs = ask_word(at, "dirs");
    assert!(value(&dirs, "logdir_size:").parse::<u64>().expect("a number") > 0);
    let mntr = ask_word(at, "mntr");
    assert_eq!(value(&mntr, "zk_ephemerals_count"), "1");
    // Three bytes of data, and the paths.
    assert_eq!(value(&mntr, "zk_approximate_data_size"), "51");
    assert_eq!(value(&mntr, "zk_cnt_updatelatency"), "3");
    assert_eq!(value(&mntr, "zk_cnt_readlatency"), "1");
    assert!(value(&mntr, "zk_version").ends_with(" UTC"), "{mntr}");
    // The reply to the read: a header, three bytes with their length, and a stat.
    assert_eq!(value(&mntr, "zk_max_client_response_size"), (16 + 4 + 3 + 68).to_string());
    assert_eq!(value(&mntr, "zk_stale_sessions_expired"), "0");
    for name in ["zk_connection_request_count", "zk_bytes_received_count", "zk_response_bytes"] {
        assert!(value(&mntr, name).parse::<u64>().expect("a number") > 0, "{name} in {mntr}");
    }

    assert_eq!(command(&server, "monitor")["watch_count"], 1);
    assert_eq!(command(&server, "stat")["server_stats"]["last_processed_zxid"], 4);
    let watches = &command(&server, "wchc")["session_id_to_watched_paths"];
    assert_eq!(watches[client.session_id.to_string()], serde_json::json!(["/a"]));
    assert_eq!(command(&server, "nothing")["error"], "Unknown command: nothing");
    let (_, metrics) = http_get(server.http, "/metrics/zookeeper").expect("an answer");
    assert_eq!(value(&metrics, "znode_count "), "7");
    let (_, page) = http_get(server.http, "/metrics").expect("an answer");
    assert!(!page.contains("znode_count"), "{page}");
    let count = |kind| {
        value(&page, &format!("freezeframe_zookeeper_request_seconds_count{{kind=\"{kind}\"}} "))
    };
    assert_eq!((count("read"), count("write")), ("1", "3"));
    let (_, list) = http_get(server.http, "/commands").expect("an answer");
    assert!(list.contains("href=\"/commands/monitor\""), "{list}");

    // A connection's own figures, and the server's, are reset apart.
    assert_eq!(ask_word(at, "srst"), "Server stats reset.\n");
    assert_eq!(value(&ask_word(at, "srvr"), "Sent:"), "0");
    assert!(ask_word(at, "cons").contains("recved=5,sent=5,"));
    assert_eq!(ask_word(at, "crst"), "Connection stats reset.\n");
    assert!(ask_word(at, "cons").contains("recved=0,sent=0,"));
}

#[test]
fn a_zoo_cfg_is_read() {
    let data = TestDirectory::new();
    let file = data.path().join("zoo.cfg");
    let text = "# from another server\ntickTime=100\ndataDir=/var/lib/zookeeper\nclientPort=0\n\
        clientPortAddress=127.0.0.1\nserver.1=zk1:2888:3888\n4lw.commands.whitelist=conf, srvr\n";
    std::fs::write(&file, text).expect("it can be written");
    let at = data.path().join("data");
    let arguments = ["--zoo-cfg", file.to_str().expect("it is text")];
    let server = TestServer::start(&at, &arguments).expect("it starts");
    let conf = ask_word(address(&server), "conf");
    assert_eq!(value(&conf, "tickTime="), "100");
    assert_eq!(value(&conf, "clientPort="), address(&server).port().to_string());
    for warned in ["zoo.cfg:3: dataDir has no effect", "zoo.cfg:6: server.1 has no effect"] {
        // Its log is read beside the test.
        let begun = Instant::now();
        while !server.stderr().contains(warned) {
            assert!(begun.elapsed() < TIMEOUT, "{warned} in {}", server.stderr());
        }
    }
}

/// A setting without which the server would be more open than before is not ignored.
#[test]
fn a_zoo_cfg_that_demands_authentication_needs_users() {
    let data = TestDirectory::new();
    let file = data.path().join("zoo.cfg");
    std::fs::write(&file, "clientPort=0\nsessionRequireClientSASLAuth=true\n").expect("it can");
    let at = data.path().join("data");
    let (at, file) = (at.to_str().expect("text"), file.to_str().expect("text"));
    let ended = testkit::process::run(&["serve", "--data-dir", at, "--zoo-cfg", file], "");
    assert_ne!(ended.code, Some(0));
    let why = "zoo.cfg:2: zookeeper.enforce.auth.schemes:";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
    assert!(ended.stderr.contains("zookeeper.sasl.login-config"), "{}", ended.stderr);
}
