//! Data directories of released formats, which every later program has to read, and of formats to
//! come, which this one has to leave as they are.
//!
//! `golden/format-N.tar.zst` is a backup of a small directory of format N, and `golden/format-N.txt`
//! its past at some moments, as the program of that format answered. Both are never changed. A change
//! of the format adds those of its own: see [`make_a_golden_directory`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use client::tree::{TreeName, TreeNodeKind};
use client::{Client, Isolation, Options};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    EndTxnRequest, InitProducerIdRequest, ProduceRequest, ProducerId, TransactionalId,
};
use kafka_records::{BatchBuilder, CompressionType};
use testkit::directory::TestDirectory;
use testkit::process::mount::{self, TestMount};
use testkit::process::{CommandOutput, RawKafkaConnection, TIMEOUT, TestServer, http_get, run};
use testkit::requests::{str_bytes, topic_name};

/// The format of this program.
const FORMAT: u32 = 7;

/// Nothing of the past is removed for its age, or compacted, while a test reads it.
const SETTINGS: &[&str] = &[
    "--zookeeper=127.0.0.1:0",
    "--set=authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "--set=super.users=User:ANONYMOUS",
    "--set=log.retention.ms=-1",
    "--set=log.cleaner.backoff.ms=604800000",
    "--set=offsets.retention.minutes=2147483647",
    "--set=storage.deleted-topic-retention=36500d",
    "--set=storage.offsets-retention=36500d",
    "--set=zookeeper.history-retention=36500d",
];

/// The open segment is rolled soon, and its topics are compacted.
const ROLLING: &[&str] = &[
    "--set=log.roll.ms=1",
    "--set=storage.segment-age-min=1ms",
    "--set=log.retention.check.interval.ms=50",
    "--set=log.cleaner.backoff.ms=50",
];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Unpacks the golden directory of a format.
fn unpack(format: u32) -> TestDirectory {
    let directory = TestDirectory::new();
    let packed = fs::read(golden(&format!("format-{format}.tar.zst"))).expect("it is there");
    let bytes = zstd::decode_all(&packed[..]).expect("it is whole");
    tar::Archive::new(&bytes[..]).unpack(directory.path()).expect("it is an archive");
    directory
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of letters")
}

/// All files below a directory, with their bytes.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("it can be listed") {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).expect("it can be read"));
        }
    }
    files
}

/// The tree of files below a directory: each path, with the digest of its content.
async fn describe_tree(client: &mut Client, directory: &str, lines: &mut String) {
    let mut after = 0;
    loop {
        let page = client.tree_list(directory, after, true).await.expect("it is listed");
        let Some(last) = page.last() else { return };
        after = last.cookie;
        for entry in page {
            let TreeName::Text(name) = entry.name else { panic!("a name of letters") };
            // The same records as in `.log`, as people read them.
            if name.ends_with(".values") || name.ends_with(".jsonl") {
                continue;
            }
            let path = format!("{directory}/{name}");
            match entry.kind {
                TreeNodeKind::Directory => Box::pin(describe_tree(client, &path, lines)).await,
                TreeNodeKind::Symlink => {
                    let target = entry.stat.and_then(|stat| stat.target);
                    let _ = writeln!(lines, "{path} -> {target:?}");
                }
                TreeNodeKind::File | TreeNodeKind::Other => {
                    let bytes = read_file(client, &path).await;
                    let digest = blake3::hash(&bytes).to_hex();
                    let _ = writeln!(lines, "{path} {} {}", bytes.len(), &digest[..16]);
                }
            }
        }
    }
}

async fn read_file(client: &mut Client, path: &str) -> Vec<u8> {
    let file = client.tree_open(path, Isolation::Committed).await.expect("it is opened");
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < file.size {
        let piece = client.tree_read(&file, bytes.len() as u64, 1 << 16).await.expect("it is read");
        assert!(!piece.is_empty(), "{path} ends before its size");
        bytes.extend(piece);
    }
    client.tree_close(file).await.expect("it is closed");
    bytes
}

/// The past at some moments: topics, committed offsets, files, znodes, rules and quotas. Each start
/// of a server lists names in another order, so the lines of a moment are sorted.
fn past(server: &TestServer, moments: &[&str]) -> String {
    let mut lines = String::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    for moment in moments {
        let _ = writeln!(lines, "moment {moment}");
        let begin = lines.len();
        for command in ["acls", "quotas"] {
            let listed = server.stdout_of(&[command, "--at", moment, "--json"]);
            listed.lines().for_each(|line| {
                let _ = writeln!(lines, "{command} {line}");
            });
        }
        runtime.block_on(async {
            let client = Client::connect(&server.bootstrap(), Options::default()).await;
            let mut client = client.expect("it answers");
            describe_tree(&mut client, &format!("/.at/{moment}"), &mut lines).await;
        });
        let of_moment = lines.split_off(begin);
        let mut of_moment: Vec<&str> = of_moment.split_inclusive('\n').collect();
        of_moment.sort_unstable();
        lines.push_str(&of_moment.concat());
    }
    lines
}

fn assert_whole(directory: &Path) {
    let ended = run(&["check", text(directory), "--verify"], "");
    assert!(ended.stdout().contains("problems\t0"), "{ended:?}");
}

#[test]
fn a_golden_directory_of_each_format_has_the_past_that_was_written_down() {
    let mut formats = 0;
    for format in 7..=FORMAT {
        let expected = fs::read_to_string(golden(&format!("format-{format}.txt")));
        let expected = expected.expect("each released format has a golden directory");
        let moments: Vec<&str> =
            expected.lines().filter_map(|line| line.strip_prefix("moment ")).collect();
        assert!(moments.len() >= 3);
        let directory = unpack(format);
        assert_whole(directory.path());
        // Killed in between: whatever an upgrade has written is enough to go on.
        for _ in 0..2 {
            let server = TestServer::start(directory.path(), SETTINGS).expect("it starts");
            let (_, version) = http_get(server.http, "/version").expect("an answer");
            assert!(version.contains(&format!(r#""format":{FORMAT}"#)), "{version}");
            let shown = past(&server, &moments);
            assert!(shown == expected, "format {format} reads as\n{shown}\nand was\n{expected}");
            server.kill().expect("it ends");
        }
        assert_whole(directory.path());
        formats += 1;
    }
    assert_eq!(formats, FORMAT - 6);
}

/// The first programs of format 7 wrote no checksum.
#[test]
fn an_identity_without_a_checksum_is_upgraded_by_the_first_start() {
    let directory = unpack(7);
    let identity = directory.path().join("FREEZEFRAME");
    let whole = fs::read_to_string(&identity).expect("it can be read");
    let bare: Vec<&str> = whole.lines().take(2).collect();
    fs::write(&identity, bare.join("\n") + "\n").expect("it can be written");
    let before = contents(directory.path());
    assert_whole(directory.path());
    assert!(contents(directory.path()) == before, "check changes nothing");
    TestServer::start(directory.path(), SETTINGS).expect("it starts").kill().expect("it ends");
    let upgraded = fs::read_to_string(&identity).expect("it can be read");
    assert!(upgraded.starts_with(&bare.join("\n")), "{upgraded}");
    assert!(upgraded.lines().last().expect("lines").starts_with("checksum "), "{upgraded}");
}

fn assert_refused(ended: &CommandOutput, words: &[&str]) {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for word in words {
        let is_said = ended.stderr.contains(word) || ended.stdout().contains(word);
        assert!(is_said, "it does not say {word:?}: {ended:?}");
    }
}

#[test]
fn a_later_format_is_refused_by_each_command_and_left_as_it_is() {
    let directory = unpack(FORMAT);
    let later = FORMAT + 1;
    let identity = format!("format {later}\nname other\nprogram 99.1.0\n");
    fs::write(directory.path().join("FREEZEFRAME"), identity).expect("it can be written");
    let before = contents(directory.path());
    let data = text(directory.path());
    let target = TestDirectory::new();
    let fresh = target.path().join("fresh");
    let commands: &[&[&str]] = &[
        &["serve", "--data-dir", data, "--kafka", "127.0.0.1:0"],
        &["serve", "--data-dir", data, "--check"],
        &["check", data],
        &["check", data, "--verify"],
        &["backup", text(&fresh), "--data-dir", data],
        &["restore", data, text(&fresh)],
        &["doctor", "--data-dir", data],
    ];
    let (found, own) = (format!("format {later}"), format!("format {FORMAT}"));
    for command in commands {
        let ended = run(command, "");
        let words = [&found, &own, "nothing was changed", "freezeframe 99.1.0 or later", "backup"];
        assert_refused(&ended, &words);
        assert!(contents(directory.path()) == before, "{command:?}");
        assert!(!fresh.exists(), "{command:?}");
    }
    // For a person, it prints what is there.
    let path = directory.path().join("FREEZEFRAME");
    let inspected = run(&["inspect", text(&path)], "");
    assert!(inspected.stdout().contains("99.1.0"), "{inspected:?}");
    assert!(contents(directory.path()) == before);
}

/// Files that have other versions than `FREEZEFRAME` says are refused too, and stay as they are.
#[test]
fn a_later_version_of_a_hard_file_is_refused_and_left_as_it_is() {
    let journal = |directory: &TestDirectory, suffix: &str| {
        let mut names: Vec<PathBuf> =
            contents(&directory.path().join("journal")).into_keys().collect();
        names.retain(|name| text(name).ends_with(suffix));
        assert!(!names.is_empty(), "{suffix}");
        names.remove(0)
    };
    for (suffix, version_at, sealed_at) in [
        (".journal", 8, Some(60)),
        (".sorted", 8, Some(60)),
        ("manifest", 8, None),
        ("bound", 7, Some(60)),
    ] {
        let directory = unpack(FORMAT);
        let path = journal(&directory, suffix);
        let mut bytes = fs::read(&path).expect("it can be read");
        let slots = if suffix == "bound" { vec![0, 4096] } else { vec![0] };
        let length = bytes.len();
        for slot in slots.into_iter().filter(|slot| *slot < length) {
            bytes[slot + version_at] += 1;
            if let Some(sealed_at) = sealed_at {
                let checksum = crc32c::crc32c(&bytes[slot..slot + sealed_at]);
                bytes[slot + sealed_at..][..4].copy_from_slice(&checksum.to_le_bytes());
            }
        }
        fs::write(&path, bytes).expect("it can be written");
        let before = contents(&directory.path().join("journal"));
        let data = text(directory.path());
        for command in
            [&["serve", "--data-dir", data, "--kafka", "127.0.0.1:0"][..], &["check", data]]
        {
            let ended = run(command, "");
            assert_eq!(ended.code, Some(1), "{suffix}: {ended:?}");
            assert!(contents(&directory.path().join("journal")) == before, "{suffix}: {command:?}");
        }
    }
}

fn metric(server: &TestServer, name: &str) -> u64 {
    let (_, page) = http_get(server.http, "/metrics").expect("an answer");
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.expect("a metric").parse().expect("a number")
}

fn wait_for(server: &TestServer, name: &str, count: u64) {
    let begun = Instant::now();
    while metric(server, name) < count {
        assert!(begun.elapsed() < TIMEOUT, "{name} does not reach {count}");
        std::thread::yield_now();
    }
}

/// Writes two records in a transaction, and ends it unless `commits` is `None`.
fn transact(server: &TestServer, id: &str, commits: Option<bool>) {
    let mut wire = RawKafkaConnection::connect(server.kafka);
    let id = TransactionalId(str_bytes(id));
    let begin = InitProducerIdRequest::default()
        .with_transactional_id(Some(id.clone()))
        .with_transaction_timeout_ms(900_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    let begun = wire.call(4, &begin).expect("it answers");
    let (producer, epoch) = (begun.producer_id, begun.producer_epoch);
    let mut batch = BatchBuilder::new(CompressionType::None);
    batch.producer(producer.0, epoch, 0).transactional();
    for value in ["in a", "transaction"] {
        batch.record(1_700_000_000_000, Some(b"t"), Some(value.as_bytes()), &[]);
    }
    let records = PartitionProduceData::default().with_records(Some(batch.build()));
    let topic = TopicProduceData::default()
        .with_name(topic_name("plain"))
        .with_partition_data(vec![records]);
    let produce = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(10_000)
        .with_transactional_id(Some(id.clone()))
        .with_topic_data(vec![topic]);
    let produced = wire.call(12, &produce).expect("it answers");
    assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
    if let Some(commits) = commits {
        let end = EndTxnRequest::default()
            .with_transactional_id(id)
            .with_producer_id(producer)
            .with_producer_epoch(epoch)
            .with_committed(commits);
        assert_eq!(wire.call(4, &end).expect("it answers").error_code, 0);
    }
}

/// Sealed, sorted and compacted history with proofs, of every kind of data.
fn write_sealed(mounted: &TestMount) -> String {
    let server = mounted.server();
    let zookeeper = server.zookeeper.expect("it is served").to_string();
    let zk = |words: &[&str]| {
        server.stdout_of(&[&["zk", "--zookeeper", &zookeeper][..], words].concat());
    };
    server.stdout_of(&["topics", "create", "plain", "gone", "--partitions", "2"]);
    let compact = ["--config=cleanup.policy=compact", "--config=min.cleanable.dirty.ratio=0"];
    server.stdout_of(&[&["topics", "create", "compacted"][..], &compact].concat());
    for round in 0..4 {
        let lines: String = (0..3).map(|key| format!("{key}:{round}-{key}\n")).collect();
        for topic in ["compacted", "plain", "gone"] {
            server.run_with_input(&["produce", topic, "-K:"], &lines);
        }
    }
    wait_for(server, "freezeframe_logs_compacted_total", 1);
    let later = "--set=min.compaction.lag.ms=9223372036854775807";
    server.stdout_of(&["topics", "alter", "compacted", later]);
    transact(server, "committed", Some(true));
    transact(server, "aborted", Some(false));
    zk(&["create", "/app/config", "size=3", "--parents"]);
    zk(&["set", "/app/config", "size=4"]);
    for (name, content) in [("files/first", "one"), ("files/second", "two")] {
        fs::write(mounted.path(name), content).expect("it can be written");
    }
    fs::create_dir(mounted.path("files/directory")).expect("it can be made");
    std::os::unix::fs::symlink("first", mounted.path("files/link")).expect("it can be made");
    let rule = ["--allow", "User:alice", "--operation", "read", "--topic", "plain"];
    server.stdout_of(&[&["acls", "add"][..], &rule].concat());
    server.stdout_of(&["quotas", "set", "--user", "alice", "producer_byte_rate=10MiB"]);
    let moment = server.now();
    server.stdout_of(&["groups", "seek", "billing", "--at", &moment, "--topic", "plain"]);
    // The pin is written into a segment of its own, behind one that is sealed.
    let proved = metric(server, "freezeframe_segments_proved_total");
    server.stdout_of(&["pins", "set", "audit", "--at", &moment, "--for", "3650d"]);
    wait_for(server, "freezeframe_segments_proved_total", proved + 1);
    server.now()
}

/// History behind what is sealed, with one transaction left open.
fn write_open(mounted: &TestMount) -> [String; 2] {
    let server = mounted.server();
    let zookeeper = server.zookeeper.expect("it is served").to_string();
    server.run_with_input(&["produce", "compacted", "-K:"], "1:newest\n");
    server.stdout_of(&["topics", "delete", "gone"]);
    server.stdout_of(&["zk", "--zookeeper", &zookeeper, "delete", "/app/config"]);
    fs::write(mounted.path("files/first"), "overwritten").expect("it can be written");
    fs::rename(mounted.path("files/second"), mounted.path("files/directory/moved"))
        .expect("it can be renamed");
    let between = server.now();
    fs::remove_file(mounted.path("files/link")).expect("it can be removed");
    let rule = ["--allow", "User:alice", "--operation", "read", "--topic", "plain"];
    server.stdout_of(&[&["acls", "remove"][..], &rule].concat());
    server.stdout_of(&["groups", "seek", "billing", "--at", &between, "--topic", "plain"]);
    transact(server, "open", None);
    [between, server.now()]
}

#[test]
#[ignore = "writes the golden directory of this format: once, when the format is new"]
fn make_a_golden_directory() {
    let name = format!("format-{FORMAT}");
    let packed = golden(&format!("{name}.tar.zst"));
    assert!(!packed.exists(), "it stays as it is: {}", packed.display());
    let rolling = [SETTINGS, ROLLING].concat();
    let mut mounted = mount::start("make_a_golden_directory", &rolling).expect("it takes a mount");
    let sealed = write_sealed(&mounted);
    mounted.stop();
    mounted.set_arguments(SETTINGS);
    mounted.start_server().expect("it starts again");
    let [between, last] = write_open(&mounted);
    let shown = past(mounted.server(), &[&sealed, &between, &last]);
    mounted.stop();
    let archive = mounted.outside_path("golden.tar");
    let ended = mounted.run_command(&["backup", "--to", text(&archive)]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let bytes = fs::read(&archive).expect("it can be read");
    fs::write(&packed, zstd::encode_all(&bytes[..], 19).expect("memory takes it"))
        .expect("it can be written");
    fs::write(golden(&format!("{name}.txt")), shown).expect("it can be written");
}
