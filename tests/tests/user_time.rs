//! User time from inside records, as a new user of the command line meets it [F26]; also after a
//! kill.

use std::path::{Path, PathBuf};

use testkit::process::OwnServer;

/// The example plug-in, as it is shipped.
fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/plugins/filetime.wasm")
}

fn filetime(ms: i64) -> [u8; 8] {
    ((ms + 11_644_473_600_000) * 10_000).to_le_bytes()
}

#[test]
fn a_topic_is_read_by_the_time_in_its_records_and_stays_so() {
    let shell = OwnServer::start(&[]);
    let create = |name, config| ["topics", "create", name, "--config", config];
    shell.stdout_of(&create("t", "freezeframe.user.time=csv:2"));
    shell.run_with_input(&["produce", "t"], "a,300\nb,100\nc,400\nd,200\n");
    assert_eq!(shell.stdout_of(&["cat", "t@u300"]), "b,100\nd,200\n");
    assert_eq!(shell.stdout_of(&["cat", "t@u200..u400"]), "a,300\nd,200\n");
    let words = ["no user time can be read from the record", "column"];
    shell.run(&["produce", "t"], "e\n").assert_failed(1, &words);
    let shell = shell.kill_and_restart();
    assert_eq!(shell.stdout_of(&["cat", "t@u300"]), "b,100\nd,200\n");
    let told = ["freezeframe.user.time", "wants a JSON pointer", "json:/event/time"];
    shell.run(&create("bad", "freezeframe.user.time=json:a"), "").assert_failed(1, &told);
    let told = ["one of lenient, strict"];
    shell.run(&create("bad", "freezeframe.user.time.order=loose"), "").assert_failed(1, &told);
    let told = ["there is no plug-in nobody", "freezeframe plugins add nobody FILE"];
    shell.run(&create("bad", "freezeframe.user.time=wasm:nobody"), "").assert_failed(1, &told);
}

#[test]
fn a_plug_in_is_added_tried_used_and_removed() {
    let shell = OwnServer::start(&[]);
    let module = example();
    let module = module.to_str().expect("a path that reads");
    assert_eq!(shell.stdout_of(&["plugins"]), "");
    shell.stdout_of(&["plugins", "add", "filetime", module]);
    assert!(shell.stdout_of(&["plugins", "list", "--json"]).contains("\"name\":\"filetime\""));
    let record = shell.data.path().with_extension("record");
    std::fs::write(&record, filetime(1_700_000_000_123)).expect("a file is written");
    let file = record.to_str().expect("a path that reads");
    let tried = shell.stdout_of(&["plugins", "test", "filetime", "--value-file", file]);
    assert_eq!(tried, "1700000000123\t2023-11-14T22:13:20.123Z\n");
    std::fs::remove_file(&record).expect("the file is removed");
    let none = ["the plug-in filetime finds no time"];
    shell.run(&["plugins", "test", "filetime", "--value", "x"], "").assert_failed(1, &none);
    let tried = ["plugins", "test", "json:/t;unit=s", "--value", "{\"t\":1700000000.5}"];
    assert_eq!(shell.stdout_of(&tried), "1700000000500\t2023-11-14T22:13:20.500Z\n");
    shell.run_with_input(
        &["topics", "create", "t", "--config", "freezeframe.user.time=wasm:filetime"],
        "",
    );
    // An eighth byte of zero keeps the value text: a time of long ago, but after 1601.
    shell.run_with_input(&["produce", "t"], "1234567\u{1}\n");
    shell
        .run(&["produce", "t"], "short\n")
        .assert_failed(1, &["the plug-in filetime finds no time in it"]);
    shell.stdout_of(&["plugins", "remove", "filetime"]);
    shell
        .run(&["plugins", "remove", "filetime"], "")
        .assert_failed(1, &["there is no plug-in filetime"]);
    let shell = shell.kill_and_restart();
    shell.run_with_input(&["produce", "t"], "1234567\u{1}\n");
    shell
        .run(&["produce", "t"], "short\n")
        .assert_failed(1, &["the plug-in filetime finds no time in it"]);
    shell
        .run(&["plugins", "add", "x", "/dev/null"], "")
        .assert_failed(1, &["no WebAssembly module"]);
    shell
        .run(&["plugins", "add", "../x", module], "")
        .assert_failed(1, &["is not a plug-in's name"]);
}
