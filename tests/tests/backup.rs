//! Backups of a server that goes on, and directories made of them as of a moment.

use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use testkit::directory::TestDirectory;
use testkit::process::{CommandOutput, TIMEOUT, TestServer, freezeframe, http_get, run};

/// Small segments, which are sorted, merged and compacted soon.
const SETTINGS: &[&str] = &[
    "--set=storage.segment-bytes=1MiB",
    "--set=log.retention.check.interval.ms=50",
    "--set=log.segment.delete.delay.ms=50",
    "--set=storage.deleted-topic-retention=1ms",
];

fn path(of: &Path) -> &str {
    of.to_str().expect("a path of letters")
}

fn succeed(arguments: &[&str]) -> CommandOutput {
    let ended = run(arguments, "");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended
}

fn assert_whole(directory: &Path) {
    let ended = run(&["check", path(directory), "--verify"], "");
    assert!(ended.stdout().contains("problems\t0"), "{}", ended.stdout());
}

fn round(number: u32) -> String {
    (0..400).fold(String::new(), |mut lines, nth| {
        let _ = writeln!(lines, "{nth}:{number}-{nth}-{}", "x".repeat(1000));
        lines
    })
}

/// The records of both topics, sorted.
fn shown(server: &TestServer, at: &str) -> Vec<String> {
    let mut shown: Vec<String> = ["plain", "compacted"]
        .map(|topic| server.stdout_of(&["cat", &format!("{topic}{at}"), "-f", "%p %o %k:%v"]))
        .to_vec();
    for lines in &mut shown {
        let mut sorted: Vec<&str> = lines.lines().collect();
        sorted.sort_unstable();
        *lines = sorted.join("\n");
    }
    shown
}

/// Ends the other threads, also of a test that fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn counter(server: &TestServer, name: &str) -> u64 {
    let (_, page) = http_get(server.http, "/metrics").expect("an answer");
    let value = page.lines().find_map(|line| line.strip_prefix(name)).expect("a counter");
    value.parse().expect("a number")
}

#[test]
fn a_backup_of_a_server_that_goes_on_is_every_moment_before_it() {
    let directory = TestDirectory::new();
    let at = |name: &str| directory.path().join(name);
    let data = at("data");
    let server = TestServer::start(&data, SETTINGS).expect("a server");
    server.stdout_of(&["topics", "create", "plain", "--partitions", "3"]);
    let compacted = "cleanup.policy=compact";
    server.stdout_of(&["topics", "create", "compacted", "--config", compacted]);
    let mut moments = Vec::new();
    for number in 0..4 {
        for topic in ["plain", "compacted"] {
            server.run_with_input(&["produce", topic, "-K:"], &round(number));
        }
        let now = server.stdout_of(&["moment"]).trim().to_owned();
        moments.push((shown(&server, &format!("@{now}")), now));
    }
    // While it is copied, more is written, and acknowledged.
    let (backup, later) = (at("backup"), at("later"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _ended = SetOnDrop(&is_over);
        threads.spawn(|| {
            let mut number = 100;
            // A slow machine writes no more than a fast one.
            while number < 120 && !is_over.load(Ordering::Relaxed) {
                server.run_with_input(&["produce", "plain", "-K:"], &round(number));
                number += 1;
            }
        });
        let made = succeed(&["backup", path(&backup), "--data-dir", path(&data), "--verify"]);
        assert!(made.stdout().contains("has everything up to"), "{made:?}");
        let since = ["--since", path(&backup), "--copy", "--json", "--verify"];
        let made =
            run(&[&["backup", path(&later), "--data-dir", path(&data)], &since[..]].concat(), "");
        let summary: serde_json::Value = serde_json::from_str(made.stdout()).expect("JSON");
        assert_eq!(summary["linked_bytes"].as_u64(), Some(0), "they are the server's: {made:?}");
    });
    // The server removes its files, and the linked ones of the backup stay.
    server.stdout_of(&["topics", "delete", "plain", "compacted"]);
    let begun = Instant::now();
    while counter(&server, "freezeframe_files_removed_total ") < 3 {
        assert!(begun.elapsed() < TIMEOUT, "the server reclaims space again");
        std::thread::yield_now();
    }
    server.stop().expect("it stops in order");
    for whole in [&backup, &later, &data] {
        assert_whole(whole);
    }
    let mut restored_count = 0;
    for (nth, (expected, moment)) in moments.iter().enumerate() {
        let restored = at(&format!("restored-{nth}"));
        let ended = run(&["restore", path(&backup), path(&restored), "--at", moment], "");
        // A moment before the last compaction is not complete, and a reader of it is told so too.
        if ended.code == Some(1) {
            ended.assert_failed(1, &["removed or compacted", "try s"]);
            assert!(!restored.exists(), "nothing is left");
            assert!(nth < 3, "{ended:?}");
            continue;
        }
        assert_eq!(ended.code, Some(0), "{ended:?}");
        restored_count += 1;
        assert_whole(&restored);
        // It compacts nothing before it is read.
        let settings = ["--set=log.cleaner.min.compaction.lag.ms=86400000"];
        let server = TestServer::start(&restored, &settings).expect("a server");
        assert!(&shown(&server, "") == expected, "as of {moment}");
        server.run_with_input(&["produce", "plain", "-K:"], &round(7));
        server.stop().expect("it stops in order");
        assert_whole(&restored);
    }
    assert!(restored_count > 0);
}

#[test]
fn a_backup_that_ends_early_holds_nothing_and_is_not_used() {
    let directory = TestDirectory::new();
    let at = |name: &str| directory.path().join(name);
    let data = at("data");
    let server = TestServer::start(&data, &[]).expect("a server");
    server.stdout_of(&["topics", "create", "orders"]);
    let lines: String = (0..20).map(round).collect();
    server.run_with_input(&["produce", "orders", "-K:"], &lines);
    // The pipe takes less than the archive, so it waits for its reader.
    let mut archive = Command::new(freezeframe())
        .args(["backup", "--to", "-", "--data-dir", path(&data)])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut header = [0; 512];
    let mut output = archive.stdout.take().expect("it is piped");
    output.read_exact(&mut header).expect("an archive");
    assert!(header.starts_with(b"journal/"), "{:?}", String::from_utf8_lossy(&header));
    let wait_for_log = |words: &str| {
        let begun = Instant::now();
        while !server.stderr().contains(words) {
            assert!(begun.elapsed() < TIMEOUT, "{words}: {}", server.stderr());
            std::thread::yield_now();
        }
    };
    wait_for_log("a backup has begun");
    assert!(!server.stderr().contains("a backup has ended"));
    let (code, _) = http_get(server.http, "/readyz").expect("an answer");
    assert_eq!(code, 200);
    archive.kill().expect("it runs");
    archive.wait().expect("it was killed");
    wait_for_log("a backup has ended");
    // A server that ends keeps nothing: the archive is not completed.
    let mut archive = Command::new(freezeframe())
        .args(["backup", "--to", "-", "--data-dir", path(&data)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut output = archive.stdout.take().expect("it is piped");
    output.read_exact(&mut header).expect("an archive");
    server.stop().expect("it stops in order");
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).expect("the rest of it");
    let ended = archive.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && said.contains("make the backup again"), "{said}");
    let has_identity = rest.windows(11).any(|bytes| bytes == b"FREEZEFRAME");
    assert!(!has_identity, "the archive is incomplete");
    // A directory in which the last file is missing.
    let backup = at("backup");
    succeed(&["backup", path(&backup), "--data-dir", path(&data)]);
    std::fs::remove_file(backup.join("FREEZEFRAME")).expect("it is there");
    let restore = |arguments: &[&str]| run(&[&["restore"], arguments].concat(), "");
    restore(&[path(&backup), path(&at("r"))]).assert_failed(1, &["interrupted"]);
    let refused = TestServer::start(&backup, &[]).err().expect("no data directory");
    assert!(refused.to_string().contains("no freezeframe data directory"), "{refused}");
}

#[test]
fn a_backup_of_a_stopped_server_stays_as_it_is_when_the_server_goes_on() {
    let directory = TestDirectory::new();
    let at = |name: &str| directory.path().join(name);
    let (data, backup) = (at("data"), at("backup"));
    let server = TestServer::start(&data, SETTINGS).expect("a server");
    server.stdout_of(&["topics", "create", "orders"]);
    server.stop().expect("it stops in order");
    let serve = |lines: &str| {
        let server = TestServer::start(&data, SETTINGS).expect("a server");
        server.run_with_input(&["produce", "orders", "-K:"], lines);
        let shown = server.stdout_of(&["cat", "orders"]);
        server.stop().expect("it stops in order");
        shown
    };
    let expected = serve(&round(1));
    succeed(&["backup", path(&backup), "--data-dir", path(&data), "--verify"]);
    serve(&round(2));
    assert_whole(&backup);
    succeed(&["restore", path(&backup), path(&at("restored"))]);
    let server = TestServer::start(&at("restored"), &[]).expect("a server");
    assert!(server.stdout_of(&["cat", "orders"]) == expected);
}

#[test]
fn a_backup_that_cannot_be_made_or_used_says_what_to_do() {
    let directory = TestDirectory::new();
    let at = |name: &str| directory.path().join(name);
    let (data, backup) = (at("data"), at("backup"));
    let server = TestServer::start(&data, &[]).expect("a server");
    server.stdout_of(&["topics", "create", "orders"]);
    server.run_with_input(&["produce", "orders", "-K:"], &round(1));
    let back_up = |arguments: &[&str]| {
        run(&[&["backup"], arguments, &["--data-dir", path(&data)]].concat(), "")
    };
    back_up(&[path(&data)]).assert_failed(1, &["is not empty"]);
    back_up(&[path(&backup), "--since", path(&at("none"))]).assert_failed(1, &["earlier backup"]);
    run(&["backup", path(&backup), "--data-dir", path(&at("none"))], "")
        .assert_failed(1, &["no data directory", "--data-dir"]);
    assert!(!backup.exists(), "nothing was made");
    assert_eq!(back_up(&[path(&backup)]).code, Some(0));
    let restore =
        |moment: &str| run(&["restore", path(&backup), path(&at("r")), "--at", moment], "");
    restore("1970-01-02").assert_failed(1, &["begins after"]);
    restore(&server.now()).assert_failed(1, &["ends before that moment", "later backup"]);
    restore("u1700000000000").assert_failed(2, &["system time"]);
    restore("pin:release").assert_failed(2, &["running server"]);
    let other = at("other");
    drop(TestServer::start(&other, &[]).expect("a server"));
    back_up(&[path(&at("b")), "--since", path(&other)]).assert_failed(1, &["another cluster"]);
    // A file that is cut short is named, and nothing is left.
    let journal = backup.join("journal/00000000000000000000.journal");
    let length = std::fs::metadata(&journal).expect("it is there").len();
    let file = std::fs::OpenOptions::new().write(true).open(&journal).expect("it opens");
    file.set_len(length - 100).expect("it is cut");
    let ended = run(&["restore", path(&backup), path(&at("r"))], "");
    ended.assert_failed(1, &["00000000000000000000.journal"]);
    assert!(!at("r").exists());
}

#[test]
fn a_copy_of_a_running_server_that_is_refused_names_the_command() {
    let directory = TestDirectory::new();
    let (data, copy) = (directory.path().join("data"), directory.path().join("copy"));
    let server = TestServer::start(&data, &[]).expect("a server");
    server.stdout_of(&["topics", "create", "orders"]);
    // As `cp -r` may leave it: the bound was read before what was written later.
    std::fs::create_dir_all(copy.join("journal")).expect("a directory");
    std::fs::copy(data.join("FREEZEFRAME"), copy.join("FREEZEFRAME")).expect("it is there");
    std::fs::copy(data.join("journal/bound"), copy.join("journal/bound")).expect("it is there");
    // The bound that was copied lies ahead: wait until there are stamps above it.
    let bound = std::fs::read(copy.join("journal/bound")).expect("it is there");
    let slots = [0, 4096].map(|at| bound[at + 16..at + 24].try_into().expect("eight bytes"));
    let copied = slots.map(u64::from_le_bytes).into_iter().max().expect("two slots");
    let begun = Instant::now();
    loop {
        let now = server.now();
        let stamp = u64::from_str_radix(now.trim_start_matches("sh"), 16);
        if stamp.expect("a stamp") > copied {
            break;
        }
        assert!(begun.elapsed() < TIMEOUT, "time goes on");
    }
    server.run_with_input(&["produce", "orders", "-K:"], &round(1));
    for entry in std::fs::read_dir(data.join("journal")).expect("it is there") {
        let name = entry.expect("an entry").file_name();
        if name != "bound" {
            std::fs::copy(data.join("journal").join(&name), copy.join("journal").join(&name))
                .expect("it is there");
        }
    }
    let refused = TestServer::start(&copy, &[]).err().expect("a copy of several moments");
    assert!(refused.to_string().contains("freezeframe backup"), "{refused}");
}
