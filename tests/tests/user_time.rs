//! User time from inside records, as a new user of the command line meets it [F26]; also after a
//! kill.

use std::path::{Path, PathBuf};

use testkit::directory::TestDirectory;
use testkit::process::{CommandOutput, TestServer, run};

/// The example plug-in, as it is shipped.
fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/plugins/filetime.wasm")
}

struct UserTimeShell {
    bootstrap: String,
    data: TestDirectory,
    server: TestServer,
}

impl UserTimeShell {
    fn new() -> UserTimeShell {
        let data = TestDirectory::new();
        let server = TestServer::start(data.path(), &[]).expect("it starts");
        UserTimeShell { bootstrap: server.kafka.to_string(), data, server }
    }

    /// Kills the server without a chance to clean up, and starts it again.
    fn kill_and_restart(self) -> UserTimeShell {
        let UserTimeShell { data, server, .. } = self;
        server.kill().expect("it ends");
        let server = TestServer::start(data.path(), &[]).expect("it starts again");
        UserTimeShell { bootstrap: server.kafka.to_string(), data, server }
    }

    fn run(&self, arguments: &[&str], input: &str) -> CommandOutput {
        run(&[&["--bootstrap", &self.bootstrap], arguments].concat(), input)
    }

    fn stdout_of(&self, arguments: &[&str], input: &str) -> String {
        let ended = self.run(arguments, input);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
        ended.stdout().to_owned()
    }

    fn assert_fails(&self, arguments: &[&str], input: &str, words: &[&str]) {
        let ended = self.run(arguments, input);
        assert_eq!((ended.code, ended.stdout()), (Some(1), ""), "{}", ended.stderr);
        for word in words {
            assert!(ended.stderr.contains(word), "it does not say {word:?}: {}", ended.stderr);
        }
    }
}

fn filetime(ms: i64) -> [u8; 8] {
    ((ms + 11_644_473_600_000) * 10_000).to_le_bytes()
}

#[test]
fn a_topic_is_read_by_the_time_in_its_records_and_stays_so() {
    let shell = UserTimeShell::new();
    let create = |name, config| ["topics", "create", name, "--config", config];
    shell.stdout_of(&create("t", "freezeframe.user.time=csv:2"), "");
    shell.stdout_of(&["produce", "t"], "a,300\nb,100\nc,400\nd,200\n");
    assert_eq!(shell.stdout_of(&["cat", "t@u300"], ""), "b,100\nd,200\n");
    assert_eq!(shell.stdout_of(&["cat", "t@u200..u400"], ""), "a,300\nd,200\n");
    shell.assert_fails(
        &["produce", "t"],
        "e\n",
        &["no user time can be read from the record", "column"],
    );
    let shell = shell.kill_and_restart();
    assert_eq!(shell.stdout_of(&["cat", "t@u300"], ""), "b,100\nd,200\n");
    let told = ["freezeframe.user.time", "wants a JSON pointer", "json:/event/time"];
    shell.assert_fails(&create("bad", "freezeframe.user.time=json:a"), "", &told);
    let told = ["one of lenient, strict"];
    shell.assert_fails(&create("bad", "freezeframe.user.time.order=loose"), "", &told);
    let told = ["there is no plug-in nobody", "freezeframe plugins add nobody FILE"];
    shell.assert_fails(&create("bad", "freezeframe.user.time=wasm:nobody"), "", &told);
}

#[test]
fn a_plug_in_is_added_tried_used_and_removed() {
    let shell = UserTimeShell::new();
    let module = example();
    let module = module.to_str().expect("a path that reads");
    assert_eq!(shell.stdout_of(&["plugins"], ""), "");
    shell.stdout_of(&["plugins", "add", "filetime", module], "");
    assert!(shell.stdout_of(&["plugins", "list", "--json"], "").contains("\"name\":\"filetime\""));
    let record = shell.data.path().with_extension("record");
    std::fs::write(&record, filetime(1_700_000_000_123)).expect("a file is written");
    let file = record.to_str().expect("a path that reads");
    let tried = shell.stdout_of(&["plugins", "test", "filetime", "--value-file", file], "");
    assert_eq!(tried, "1700000000123\t2023-11-14T22:13:20.123Z\n");
    std::fs::remove_file(&record).expect("the file is removed");
    let none = ["the plug-in filetime finds no time"];
    shell.assert_fails(&["plugins", "test", "filetime", "--value", "x"], "", &none);
    let tried = ["plugins", "test", "json:/t;unit=s", "--value", "{\"t\":1700000000.5}"];
    assert_eq!(shell.stdout_of(&tried, ""), "1700000000500\t2023-11-14T22:13:20.500Z\n");
    shell.stdout_of(
        &["topics", "create", "t", "--config", "freezeframe.user.time=wasm:filetime"],
        "",
    );
    // An eighth byte of zero keeps the value text: a time of long ago, but after 1601.
    shell.stdout_of(&["produce", "t"], "1234567\u{1}\n");
    shell.assert_fails(&["produce", "t"], "short\n", &["the plug-in filetime finds no time in it"]);
    shell.stdout_of(&["plugins", "remove", "filetime"], "");
    shell.assert_fails(&["plugins", "remove", "filetime"], "", &["no plug-in of that name"]);
    let shell = shell.kill_and_restart();
    shell.stdout_of(&["produce", "t"], "1234567\u{1}\n");
    shell.assert_fails(&["produce", "t"], "short\n", &["the plug-in filetime finds no time in it"]);
    shell.assert_fails(&["plugins", "add", "x", "/dev/null"], "", &["no WebAssembly module"]);
    shell.assert_fails(&["plugins", "add", "../x", module], "", &["a plug-in's name has"]);
}
