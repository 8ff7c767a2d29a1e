//! The life cycle of a server as its operator sees it: what it logs, when it refuses to start, how
//! it stops, and which client state survives a restart.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    ApiVersionsRequest, DescribeConfigsRequest, GetTelemetrySubscriptionsRequest, GroupId,
    IncrementalAlterConfigsRequest, InitProducerIdRequest, JoinGroupRequest, MetadataRequest,
    OffsetCommitRequest, OffsetFetchRequest, PushTelemetryRequest, SyncGroupRequest,
    incremental_alter_configs_request,
};
use kafka_protocol::protocol::StrBytes;
use kafka_records::{BatchBuilder, BatchIterator, CompressionType};
use testkit::directory::TestDirectory;
use testkit::process::{CommandOutput, RawKafkaConnection, TIMEOUT, TestServer, http_get, run};
use testkit::requests::{encode_frame, fetch_request, topic_name};

const TIME_MS: i64 = 1_700_000_000_000;
const CORRUPT_MESSAGE: i16 = 2;
/// For so long a server that stops waits for answers that are on their way.
const DRAIN_MAX: Duration = Duration::from_secs(5);
const MEMBER_ID_REQUIRED: i16 = 79;
const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;

fn batch(value: &str) -> Bytes {
    BatchBuilder::new(CompressionType::None)
        .record(TIME_MS, None, Some(value.as_bytes()), &[])
        .build()
}

/// Runs a server that is expected not to start.
fn serve(data: &Path, arguments: &[&str]) -> CommandOutput {
    let data = data.to_str().expect("a path that is text");
    let given = ["serve", "--data-dir", data, "--kafka", "127.0.0.1:0", "--zookeeper", "off"];
    run(&[&given[..], arguments].concat(), "")
}

/// Checks that it did not start, and that its error has all of `words`.
fn assert_start_refused(ended: &CommandOutput, words: &[&str]) {
    assert_refused(ended, 1, words);
}

fn assert_refused(ended: &CommandOutput, code: i32, words: &[&str]) {
    assert_eq!((ended.code, ended.stdout()), (Some(code), ""), "{}", ended.stderr);
    for word in words {
        assert!(ended.stderr.contains(word), "it does not say {word:?}: {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

/// The paths below a directory whose modes let others in, and the directory itself if its mode
/// does.
fn open_to_others(directory: &Path) -> Vec<PathBuf> {
    let is_open = |path: &Path| {
        let mode = fs::symlink_metadata(path).expect("it is there").permissions().mode();
        mode & 0o077 != 0
    };
    let mut open: Vec<PathBuf> = contents(directory).into_keys().collect();
    open.extend(["", "journal", "catalog"].map(|name| directory.join(name)));
    open.retain(|path| is_open(path));
    open
}

/// The log of a server up to its last line about its start, which may come after the line on
/// standard output.
fn log_until_ready(server: &TestServer) -> String {
    let begun = Instant::now();
    loop {
        let log = server.stderr();
        if log.contains("ready kafka=") {
            return log;
        }
        assert!(begun.elapsed() < TIMEOUT, "{log}");
        std::thread::yield_now();
    }
}

#[test]
fn the_data_directory_is_closed_to_others_whatever_the_umask() {
    let home = TestDirectory::new();
    let data = home.path().join("data");
    let server = TestServer::start_after("umask 0", &data, &[]).expect("it starts");
    server.stdout_of(&["topics", "create", "t"]);
    server.run_with_input(&["produce", "t"], "a\nb\n");
    let log = log_until_ready(&server);
    assert!(!log.contains("open to other users"), "{log}");
    server.stop().expect("it stops");
    assert_eq!(open_to_others(&data), Vec::<PathBuf>::new());
    // One that is open stays so, and the server says it.
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let server = TestServer::start(&data, &[]).expect("it starts");
    let log = log_until_ready(&server);
    assert!(log.contains("open to other users"), "{log}");
    server.stop().expect("it stops");
    assert_eq!(open_to_others(&data), [data.join("")]);
}

#[test]
fn a_data_directory_of_another_user_is_refused() {
    let home = TestDirectory::new();
    let data = home.path().join("data");
    fs::create_dir(&data).expect("it is made");
    // Root may give it away. Anybody else takes one of root.
    let foreign = match std::os::unix::fs::chown(&data, Some(65_534), None) {
        Ok(()) => data.as_path(),
        Err(_) => Path::new("/"),
    };
    assert_start_refused(&serve(foreign, &[]), &["belongs to user", "run the command as"]);
    let directory = foreign.to_str().expect("a path that is text");
    let refused = run(&["users", "add", "a", "--data-dir", directory], "secret\n");
    assert!(refused.stderr.contains("belongs to user"), "{}", refused.stderr);
    if foreign == data {
        assert_eq!(contents(&data), BTreeMap::new(), "nothing is written");
    }
}

/// Every file below a directory, with its contents.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).expect("it can be listed") {
            let path = entry.expect("it can be listed").path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.insert(path.clone(), fs::read(&path).expect("it can be read"));
            }
        }
    }
    found
}

#[test]
fn the_ready_line_is_all_that_standard_output_ever_holds() {
    let data = TestDirectory::new();
    let mut process = Command::new(testkit::process::freezeframe())
        .args(["serve", "--kafka", "127.0.0.1:0", "--zookeeper", "off", "--http", "127.0.0.1:0"])
        .arg("--data-dir")
        .arg(data.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut stdout = BufReader::new(process.stdout.take().expect("it is piped"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("a line");
    let words: Vec<&str> = line.trim_end_matches('\n').split(' ').collect();
    let ["ready", kafka, "zookeeper=off", http] = words[..] else { panic!("{line:?}") };
    let address = |text: &str, name: &str| -> SocketAddr {
        let address = text.strip_prefix(name).expect("its name").parse().expect("HOST:PORT");
        assert_eq!(format!("{name}{address}"), text);
        address
    };
    let (kafka, http) = (address(kafka, "kafka="), address(http, "http="));
    let mut wire = RawKafkaConnection::connect(kafka);
    wire.create_topic("t", 1, &[]);
    assert_eq!(wire.produce("t", 0, &batch("a")), (0, 0));
    assert_eq!(http_get(http, "/readyz").expect("an answer").0, 200);
    let pid = rustix::process::Pid::from_child(&process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert_eq!(
        testkit::process::wait_for_exit(&mut process, TIMEOUT).expect("it ends").code(),
        Some(0)
    );
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("its end");
    assert_eq!(rest, "");
}

/// Joins a group as its only member.
fn join(wire: &mut RawKafkaConnection, group: &str) -> (String, i32) {
    let group_id = GroupId(StrBytes::from_string(group.to_owned()));
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(StrBytes::from_static_str("range"))
        .with_metadata(Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    let request = JoinGroupRequest::default()
        .with_group_id(group_id.clone())
        .with_session_timeout_ms(30_000)
        .with_rebalance_timeout_ms(60_000)
        .with_protocol_type(StrBytes::from_static_str("consumer"))
        .with_protocols(vec![protocol]);
    let told = wire.call(5, &request).expect("an answer");
    assert_eq!(told.error_code, MEMBER_ID_REQUIRED);
    let joined = wire.call(5, &request.with_member_id(told.member_id)).expect("an answer");
    assert_eq!(joined.error_code, 0);
    let request = SyncGroupRequest::default()
        .with_group_id(group_id)
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone());
    assert_eq!(wire.call(3, &request).expect("an answer").error_code, 0);
    (joined.member_id.to_string(), joined.generation_id)
}

/// Waits until the server has counted `count` requests of an API.
fn wait_for_requests(http: SocketAddr, api: &str, count: u64) {
    let begun = Instant::now();
    loop {
        let (_, metrics) = http_get(http, "/metrics").expect("an answer");
        let name = format!("freezeframe_requests_total{{api=\"{api}\"}} ");
        let told = metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok());
        if told.is_some_and(|told| told >= count) {
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "no {count} requests of {api} in:\n{metrics}");
    }
}

#[test]
fn sigterm_ends_it_at_once_if_nobody_waits_for_an_answer() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut idle: Vec<RawKafkaConnection> =
        (0..50).map(|_| RawKafkaConnection::connect(server.kafka)).collect();
    idle[0].create_topic("t", 1, &[]);
    join(&mut idle[1], "g");
    for wire in &mut idle[2..] {
        assert_eq!(wire.produce("t", 0, &batch("a")).0, 0);
    }
    let begun = Instant::now();
    assert_eq!(server.stop().expect("it stops").code(), Some(0));
    assert!(begun.elapsed() < DRAIN_MAX, "it took {:?}", begun.elapsed());
    for wire in &mut idle {
        assert!(wire.read_until_closed().is_empty());
    }
}

#[test]
fn sigterm_ends_it_with_0_and_soon_although_clients_wait_and_are_in_groups() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut idle = RawKafkaConnection::connect(server.kafka);
    idle.create_topic("t", 1, &[]);
    let mut member = RawKafkaConnection::connect(server.kafka);
    join(&mut member, "g");
    let mut polls = RawKafkaConnection::connect(server.kafka);
    let poll = encode_frame(12, &fetch_request("t", 0, 0, Duration::from_secs(30)));
    polls.send(&poll).expect("it can be sent");
    wait_for_requests(server.http, "Fetch", 1);
    // Waits for the member above to join again.
    let mut joins = RawKafkaConnection::connect(server.kafka);
    let http = server.http;
    let joining = std::thread::spawn(move || {
        let group_id = GroupId(StrBytes::from_static_str("g"));
        let protocol =
            JoinGroupRequestProtocol::default().with_name(StrBytes::from_static_str("range"));
        let request = JoinGroupRequest::default()
            .with_group_id(group_id)
            .with_session_timeout_ms(30_000)
            .with_rebalance_timeout_ms(60_000)
            .with_protocol_type(StrBytes::from_static_str("consumer"))
            .with_protocols(vec![protocol]);
        // Before version 4 a member need not call twice.
        let _ = joins.call(3, &request);
    });
    wait_for_requests(http, "JoinGroup", 3);
    let begun = Instant::now();
    let status = server.stop().expect("it stops");
    let took = begun.elapsed();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(20), "the waits are longer: {took:?}");
    assert!(idle.read_until_closed().is_empty());
    joining.join().expect("it was answered, or its connection ended");
    let server = TestServer::start(data.path(), &[]).expect("it starts again");
    assert_eq!(RawKafkaConnection::connect(server.kafka).produce("t", 0, &batch("a")), (0, 0));
}

#[test]
fn a_data_directory_that_is_in_use_names_who_uses_it() {
    let data = TestDirectory::new();
    let mut server = TestServer::start(data.path(), &[]).expect("it starts");
    let ended = serve(data.path(), &[]);
    assert_start_refused(
        &ended,
        &["in use", &format!("process {}", server.pid()), "use another directory"],
    );
    let check = run(&["check", data.path().to_str().expect("text")], "");
    assert_start_refused(&check, &["in use", &format!("process {}", server.pid())]);
    assert!(server.is_running());
    assert_eq!(http_get(server.http, "/readyz").expect("an answer").0, 200);
}

#[test]
fn directories_of_another_version_or_of_somebody_else_are_left_as_they_are() {
    let other = TestDirectory::new();
    drop(TestServer::start(other.path(), &[]).expect("it starts"));
    let identity = other.path().join("FREEZEFRAME");
    fs::write(&identity, "format 8\ncluster c1\n").expect("it can be written");
    let before = contents(&other.path().join("journal"));
    assert_start_refused(&serve(other.path(), &[]), &["format 8", "format 7"]);
    assert_eq!(contents(&other.path().join("journal")), before);

    let foreign = TestDirectory::new();
    fs::write(foreign.path().join("thesis.txt"), "three years of work").expect("it can be written");
    let before = contents(foreign.path());
    assert_start_refused(
        &serve(foreign.path(), &[]),
        &["not empty", "no freezeframe data directory"],
    );
    assert_eq!(contents(foreign.path()), before);

    let file = foreign.path().join("thesis.txt");
    assert_start_refused(&serve(&file, &[]), &["thesis.txt"]);
    assert_eq!(contents(foreign.path()), before);
}

#[test]
fn a_port_that_is_taken_says_which_and_how_to_choose_another() {
    let data = TestDirectory::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    for option in ["--kafka", "--http"] {
        let given = ["serve", "--data-dir", data.path().to_str().expect("text")];
        let other = if option == "--kafka" { "--http" } else { "--kafka" };
        let ended = run(&[&given[..], &[option, &address, other, "127.0.0.1:0"]].concat(), "");
        assert_start_refused(&ended, &["stop the process that has the port", &address, option]);
    }
}

#[test]
fn all_that_is_wrong_with_a_configuration_is_said_at_once() {
    let data = TestDirectory::new();
    let file = data.path().join("freezeframe.toml");
    fs::write(&file, "[storage]\ntail-bites = \"64MiB\"\n[kafka]\n\"num.partitions\" = \"many\"\n")
        .expect("it can be written");
    let file = file.to_str().expect("text");
    let home = data.path().join("data");
    let ended = serve(
        &home,
        &["--config", file, "--set", "log.retention.hours=-7", "--set", "num.partitons=3"],
    );
    let words = [
        "4 problems",
        "freezeframe.toml:2",
        "tail-bytes",
        "freezeframe.toml:4",
        "many",
        "--set log.retention.hours",
        "num.partitions",
    ];
    assert_refused(&ended, 2, &words);
    let ended = serve(&home, &["--set", "no.such.setting=1"]);
    assert_refused(&ended, 2, &["no.such.setting"]);
    let ended = serve(&home, &["--set", "authorizer.class.name=org.example.Acls"]);
    assert_refused(&ended, 2, &["give org.apache.kafka.metadata.authorizer.StandardAuthorizer"]);
    assert!(!home.exists(), "nothing was made");
}

/// A data directory whose journal holds a topic and ten records, closed cleanly.
fn with_records() -> TestDirectory {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    wire.create_topic("t", 1, &[]);
    for index in 0..10 {
        assert_eq!(wire.produce("t", 0, &batch(&format!("value {index}"))), (0, index));
    }
    assert_eq!(server.stop().expect("it stops").code(), Some(0));
    data
}

/// The first file of a journal, and its bytes.
fn journal_file(data: &TestDirectory) -> (PathBuf, Vec<u8>) {
    contents(&data.path().join("journal")).into_iter().next().expect("a journal has a file")
}

fn position_of(haystack: &[u8], needle: &[u8]) -> usize {
    haystack.windows(needle.len()).position(|window| window == needle).expect("it is there")
}

/// Checks that a server refuses to start and leaves the journal unchanged. (The catalog is derived
/// from it, and its library cleans up whenever it is opened.)
fn assert_corruption_refused(data: &TestDirectory, file: &Path) {
    let before = contents(&data.path().join("journal"));
    let file = file.file_name().and_then(|name| name.to_str()).expect("text");
    let words = ["corrupt", file, "at position ", "nothing was changed", "backup"];
    assert_start_refused(&serve(data.path(), &[]), &words);
    assert_eq!(contents(&data.path().join("journal")), before, "nothing was changed");
    let check = run(&["check", data.path().to_str().expect("text")], "");
    assert_eq!(check.code, Some(1), "{}", check.stderr);
    assert!(check.stdout().contains("position"), "{}", check.stdout());
    assert_eq!(contents(&data.path().join("journal")), before, "check changes nothing");
}

#[test]
fn corruption_of_what_was_acknowledged_is_reported_and_nothing_is_changed() {
    let data = with_records();
    let (file, good) = journal_file(&data);
    // The header of the frame that holds the fifth record, and that of the whole file.
    let payload = position_of(&good, b"value 4");
    let header = good[..payload].windows(4).rposition(|word| word == b"FFJ1").expect("a frame");
    for at in [header, header + 5, header + 30, 0, 20] {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        fs::write(&file, &bad).expect("it can be written");
        assert_corruption_refused(&data, &file);
    }
    fs::write(&file, &good[..header + 10]).expect("it can be written");
    assert_corruption_refused(&data, &file);
    fs::write(&file, &good).expect("it can be written");
    let server = TestServer::start(data.path(), &[]).expect("whole again, it starts");
    assert_eq!(RawKafkaConnection::connect(server.kafka).fetch("t", 0, 0).1, 10);
}

#[test]
fn a_flipped_byte_of_a_record_is_found_by_check() {
    let data = with_records();
    let directory = data.path().to_str().expect("text");
    let check = run(&["check", directory], "");
    assert_eq!(check.code, Some(0), "{}", check.stderr);
    let check = run(&["check", directory, "--json"], "");
    let report: serde_json::Value = serde_json::from_str(check.stdout()).expect("JSON");
    assert_eq!(
        (check.code, &report["healthy"], &report["clean"]),
        (Some(0), &true.into(), &true.into())
    );
    let (file, mut bytes) = journal_file(&data);
    let at = position_of(&bytes, b"value 4");
    bytes[at] ^= 1;
    fs::write(&file, &bytes).expect("it can be written");
    let check = run(&["check", directory], "");
    assert_eq!(check.code, Some(1), "{}", check.stdout());
    assert!(check.stdout().contains("problem: "), "{}", check.stdout());
    let check = run(&["check", directory, "--json"], "");
    let report: serde_json::Value = serde_json::from_str(check.stdout()).expect("JSON");
    assert_eq!((check.code, &report["healthy"]), (Some(1), &false.into()), "{report}");
}

#[test]
fn a_flipped_byte_of_a_record_is_not_served_and_is_counted() {
    let data = with_records();
    let (file, mut bytes) = journal_file(&data);
    let at = position_of(&bytes, b"value 4");
    bytes[at] ^= 1;
    fs::write(&file, &bytes).expect("it can be written");
    let server = TestServer::start(data.path(), &[]).expect("a start does not read records");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    let mut fetch = |offset| {
        let (error, _, batches) = wire.fetch("t", 0, offset);
        (error, BatchIterator::new(&batches).count())
    };
    assert_eq!(fetch(0), (0, 4), "what stands before it");
    assert_eq!(fetch(4), (CORRUPT_MESSAGE, 0));
    assert_eq!(fetch(5), (0, 5), "what stands behind it");
    let (_, metrics) = http_get(server.http, "/metrics").expect("an answer");
    assert!(metrics.contains("\nfreezeframe_corrupt_reads_total 2\n"), "{metrics}");
    let cat = server.run(&["cat", "t/0"], "");
    assert_ne!(cat.code, Some(0), "it is not printed as complete: {}", cat.stdout());
    assert!(cat.stderr.contains("CorruptMessage (2)"), "{}", cat.stderr);
}

#[test]
fn check_of_what_is_no_data_directory_says_so() {
    let empty = TestDirectory::new();
    let check = run(&["check", empty.path().to_str().expect("text")], "");
    assert_start_refused(&check, &["no freezeframe data directory"]);
    assert!(contents(empty.path()).is_empty(), "nothing was made");
    let check = run(&["check", "/no/such/directory"], "");
    assert_start_refused(&check, &["/no/such/directory"]);
}

fn commit(wire: &mut RawKafkaConnection, group: &str, offset: i64) {
    let partition = OffsetCommitRequestPartition::default()
        .with_committed_offset(offset)
        .with_committed_metadata(Some(StrBytes::from_static_str("noted")));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(StrBytes::from_string(group.to_owned())))
        .with_topics(vec![topic]);
    let answer = wire.call(8, &request).expect("an answer");
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
}

fn committed(wire: &mut RawKafkaConnection, group: &str) -> Vec<(i32, i64, Option<String>)> {
    let request = OffsetFetchRequest::default()
        .with_group_id(GroupId(StrBytes::from_string(group.to_owned())))
        .with_topics(None);
    let answer = wire.call(7, &request).expect("an answer");
    let partitions = answer.topics.into_iter().flat_map(|topic| topic.partitions);
    partitions
        .map(|held| {
            let metadata = held.metadata.map(|text| text.to_string());
            (held.partition_index, held.committed_offset, metadata)
        })
        .collect()
}

fn retention(wire: &mut RawKafkaConnection) -> Option<String> {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(StrBytes::from_static_str("t"))
        .with_configuration_keys(Some(vec![StrBytes::from_static_str("retention.ms")]));
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let answer = wire.call(4, &request).expect("an answer");
    answer.results[0].configs[0].value.as_ref().map(|value| value.to_string())
}

fn numbered(producer: (i64, i16), first: i32, count: i32) -> Bytes {
    let mut builder = BatchBuilder::new(CompressionType::None);
    builder.producer(producer.0, producer.1, first);
    for index in first..first + count {
        builder.record(TIME_MS, None, Some(format!("numbered {index}").as_bytes()), &[]);
    }
    builder.build()
}

#[test]
fn topics_records_offsets_and_the_numbers_of_producers_outlive_stops_and_kills() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    wire.create_topic("t", 3, &[("retention.ms", "123456789")]);
    let ask_id = InitProducerIdRequest::default().with_transactional_id(None);
    let id = wire.call(4, &ask_id).expect("an answer");
    assert_eq!(id.error_code, 0);
    let producer = (id.producer_id.0, id.producer_epoch);
    assert_eq!(wire.produce("t", 0, &numbered(producer, 0, 3)), (0, 0));
    assert_eq!(wire.produce("t", 0, &numbered(producer, 3, 2)), (0, 3));
    commit(&mut wire, "g", 4);
    let (_, _, before) = wire.fetch("t", 0, 0);
    assert_eq!(server.stop().expect("it stops").code(), Some(0));

    for life in 0..2 {
        let server = TestServer::start(data.path(), &[]).expect("it starts again");
        let mut wire = RawKafkaConnection::connect(server.kafka);
        let metadata =
            wire.call(12, &MetadataRequest::default().with_topics(None)).expect("topics");
        assert_eq!((metadata.topics.len(), metadata.topics[0].partitions.len()), (1, 3));
        assert_eq!(retention(&mut wire).as_deref(), Some("123456789"));
        assert_eq!(
            wire.fetch("t", 0, 0),
            (0, 5, before.clone()),
            "byte for byte, in incarnation {life}"
        );
        assert_eq!(committed(&mut wire, "g"), [(0, 4, Some("noted".to_owned()))]);
        // The client missed the responses for its last batches. It sends them again, and they are
        // there once.
        assert_eq!(
            wire.produce("t", 0, &numbered(producer, 3, 2)),
            (0, 3),
            "in incarnation {life}"
        );
        assert_eq!(
            wire.produce("t", 0, &numbered(producer, 0, 3)),
            (0, 0),
            "in incarnation {life}"
        );
        let gap = wire.produce("t", 0, &numbered(producer, 9, 1));
        assert_eq!(gap, (OUT_OF_ORDER_SEQUENCE_NUMBER, -1), "in incarnation {life}");
        assert_eq!(wire.fetch("t", 0, 5).1, 5, "nothing was appended");
        let other = wire.call(4, &ask_id).expect("an answer");
        assert_ne!(other.producer_id.0, producer.0, "no id is given twice");
        server.kill().expect("it can be killed");
    }
    let server = TestServer::start(data.path(), &[]).expect("it starts after a kill");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    assert_eq!(wire.produce("t", 0, &numbered(producer, 5, 1)), (0, 5), "the numbering goes on");
    commit(&mut wire, "g", 6);
    server.kill().expect("it can be killed");
    let server = TestServer::start(data.path(), &[]).expect("it starts after a kill");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    assert_eq!(committed(&mut wire, "g"), [(0, 6, Some("noted".to_owned()))]);
    assert_eq!(wire.fetch("t", 0, 0).1, 6);
}

/// As systemd waits for a unit of `Type=notify` with `WatchdogSec=`.
#[test]
fn a_supervisor_is_told_when_clients_are_served_while_all_is_well_and_at_the_end() {
    let directory = TestDirectory::new();
    let socket = directory.path().join("notify");
    let supervisor = UnixDatagram::bind(&socket).expect("it binds");
    supervisor.set_read_timeout(Some(TIMEOUT)).expect("a bound on waiting");
    let preparation =
        format!("export NOTIFY_SOCKET={} WATCHDOG_USEC=200000", socket.to_str().expect("letters"));
    let data = directory.path().join("data");
    let server = TestServer::start_after(&preparation, &data, &[]).expect("it starts");
    let next = || {
        let mut bytes = [0; 4096];
        let length = supervisor.recv(&mut bytes).expect("a message");
        String::from_utf8(bytes[..length].to_vec()).expect("text")
    };
    let first = next();
    assert!(first.starts_with("READY=1\nSTATUS=ready kafka=127.0.0.1:"), "{first}");
    for _ in 0..3 {
        assert_eq!(next().trim(), "WATCHDOG=1");
    }
    server.stop().expect("it stops in order");
    let last = loop {
        let message = next();
        if message.trim() != "WATCHDOG=1" {
            break message;
        }
    };
    assert_eq!(last.trim(), "STOPPING=1");
}

#[test]
fn the_admin_port_shows_health_readiness_and_what_was_counted() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    assert_eq!(http_get(server.http, "/healthz").expect("an answer"), (200, "ok\n".to_owned()));
    assert_eq!(http_get(server.http, "/livez").expect("an answer"), (200, "ok\n".to_owned()));
    assert_eq!(http_get(server.http, "/readyz").expect("an answer"), (200, "ok\n".to_owned()));
    let (status, version) = http_get(server.http, "/version").expect("an answer");
    assert_eq!(status, 200);
    assert!(version.contains(r#""format":7"#) && version.contains("linux"), "{version}");
    assert!(server.stdout_of(&["doctor", "--ready"]).contains("answers Kafka clients"));
    assert_eq!(http_get(server.http, "/nothing").expect("an answer").0, 404);
    let mut wire = RawKafkaConnection::connect(server.kafka);
    wire.create_topic("t", 3, &[]);
    assert_eq!(wire.produce("t", 0, &batch("a")), (0, 0));
    let (status, metrics) = http_get(server.http, "/metrics").expect("an answer");
    assert_eq!(status, 200);
    for line in [
        "freezeframe_ready 1",
        "freezeframe_connections 1",
        "freezeframe_topics 1",
        "freezeframe_partitions 3",
        "freezeframe_produced_records_total 1",
        "freezeframe_fenced 0",
        "freezeframe_requests_total{api=\"Produce\"} 1",
    ] {
        assert!(metrics.lines().any(|told| told == line), "no {line:?} in:\n{metrics}");
    }
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
}

/// A gauge `org.x` of 1.5 with no attributes, in OpenTelemetry's encoding, by hand.
fn pushed_metrics() -> Vec<u8> {
    let field = |tag: u8, bytes: &[u8]| [&[tag, bytes.len() as u8], bytes].concat();
    let point = [&[0x21][..], &1.5f64.to_le_bytes()].concat();
    let gauge = field(0x0a, &point);
    let metric = [field(0x0a, b"org.x"), field(0x2a, &gauge)].concat();
    field(0x0a, &field(0x12, &field(0x12, &metric)))
}

#[test]
fn clients_push_what_subscriptions_say_and_prometheus_reads_it() {
    use incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    let lists_telemetry = |wire: &mut RawKafkaConnection| {
        let versions = wire.call(0, &ApiVersionsRequest::default()).expect("an answer");
        let listed = versions.api_keys.iter().filter(|listed| [71, 72].contains(&listed.api_key));
        listed.count()
    };
    assert_eq!(lists_telemetry(&mut wire), 0, "nobody wants metrics");
    let text = |text: &str| StrBytes::from_string(text.to_owned());
    let configs = [("metrics", "org."), ("interval.ms", "1000")].map(|(name, value)| {
        AlterableConfig::default().with_name(text(name)).with_value(Some(text(value)))
    });
    let resource = AlterConfigsResource::default()
        .with_resource_type(16)
        .with_resource_name(text("sub"))
        .with_configs(configs.to_vec());
    let alter = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let altered = wire.call(1, &alter).expect("an answer");
    assert_eq!(altered.responses[0].error_code, 0, "{altered:?}");
    server.kill().expect("it can be killed");
    let server = TestServer::start(data.path(), &[]).expect("it starts after a kill");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    assert_eq!(lists_telemetry(&mut wire), 2);
    let asked = wire.call(0, &GetTelemetrySubscriptionsRequest::default()).expect("an answer");
    assert_eq!((asked.error_code, asked.push_interval_ms), (0, 1000));
    assert_eq!(asked.requested_metrics, [text("org.")]);
    let push = PushTelemetryRequest::default()
        .with_client_instance_id(asked.client_instance_id)
        .with_subscription_id(asked.subscription_id)
        .with_metrics(pushed_metrics().into());
    assert_eq!(wire.call(0, &push).expect("an answer").error_code, 0);
    let (status, page) = http_get(server.http, "/metrics/clients").expect("an answer");
    assert_eq!(status, 200);
    let told = page.lines().find(|line| line.starts_with("org_x{"));
    assert!(told.is_some_and(|line| line.ends_with("} 1.5")), "{page}");
    drop(wire);
    let begun = Instant::now();
    loop {
        let (_, page) = http_get(server.http, "/metrics/clients").expect("an answer");
        if !page.contains("org_x") {
            break;
        }
        assert!(begun.elapsed() < TIMEOUT, "a client that is gone is still there: {page}");
    }
}
