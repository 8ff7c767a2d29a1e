//! `freezeframe import` from another server: what is copied, what is not, and what happens when
//! somebody goes away half way.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use client::{Client, Options};
use kafka_records::{BatchBuilder, CompressionType};
use rustix::process::{Pid, Signal, kill_process};
use testkit::certificates::CertificateDirectory;
use testkit::directory::TestDirectory;
use testkit::process::{
    CommandOutput, OwnServer, TIMEOUT, TestServer, freezeframe, run, wait_for_exit, wait_until,
};

/// Everything of a committed record that an import keeps.
const LAYOUT: &str = "%p %o %T %k=%v %h";

fn source_of(server: &TestServer) -> String {
    format!("kafka://{}", server.kafka)
}

fn records_of(server: &TestServer, topic: &str) -> String {
    server.stdout_of(&["cat", topic, "-f", &format!("{LAYOUT}\\n")])
}

/// The start and the end of each partition.
fn bounds_of(server: &TestServer, topic: &str) -> String {
    server.stdout_of(&["cut", "--topic", topic])
}

fn import(target: &TestServer, source: &TestServer, options: &[&str]) -> CommandOutput {
    target.run(&[&["import", &source_of(source)], options].concat(), "")
}

fn import_all(target: &TestServer, source: &TestServer) {
    let ended = import(target, source, &["--topics", "all", "--groups", "all"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

/// An import that runs beside the test.
struct RunningImport(Child);

impl RunningImport {
    fn start(target: &TestServer, source: &TestServer, options: &[&str]) -> RunningImport {
        let child = Command::new(freezeframe())
            .args(["--bootstrap", &target.bootstrap(), "import", &source_of(source)])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        RunningImport(child)
    }

    /// Waits for its end. Returns its exit code and its standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let status = wait_for_exit(&mut self.0, TIMEOUT).expect("it ends");
        let mut stderr = String::new();
        self.0.stderr.take().expect("it is piped").read_to_string(&mut stderr).expect("text");
        (status.code(), stderr)
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.0), Signal::INT).expect("it runs");
    }
}

impl Drop for RunningImport {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The end of partition 0 of a topic; 0 without one.
fn end_of(server: &TestServer, topic: &str) -> i64 {
    let cut = server.run(&["cut", "--topic", topic, "--json"], "");
    let document: serde_json::Value = serde_json::from_slice(&cut.bytes).unwrap_or_default();
    document["partitions"][0]["end"].as_i64().unwrap_or(0)
}

/// Writes two records of a transaction to both partitions, and ends it.
fn write_transaction(server: &TestServer, topic: &str, value: &str, commits: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let write = async {
        let mut client = Client::connect(&server.bootstrap(), Options::default()).await?;
        let timeout = Duration::from_secs(60);
        let mut transaction = client.begin_transaction("writer", timeout).await?;
        let (producer, epoch) = transaction.producer;
        let batch = || {
            let mut batch = BatchBuilder::new(CompressionType::Zstd);
            batch.producer(producer, epoch, 0).transactional();
            for index in 0..2 {
                let header = [("source", Some(&b"transaction"[..])), ("empty", None)];
                batch.record(1_000_000 + index, Some(b"key"), Some(value.as_bytes()), &header);
            }
            batch.build()
        };
        let batches = BTreeMap::from([(0, batch()), (1, batch())]);
        client.produce_in(&mut transaction, topic, batches).await?;
        if commits {
            client.commit_transaction(transaction).await
        } else {
            client.abort_transaction(transaction).await
        }
    };
    runtime.block_on(write).expect("the transaction ends");
}

/// A topic with all that makes offsets miss records: a log start, aborted records, and markers.
fn fill(server: &TestServer) {
    server.stdout_of(&[
        "topics",
        "create",
        "orders",
        "--partitions",
        "2",
        "--config",
        "retention.ms=-1",
    ]);
    for (partition, lines) in [("0", "a:1\nb:2\nc:3\nd:4\n"), ("1", "e:5\n")] {
        server.run_with_input(&["produce", "orders", "-K:", "-p", partition], lines);
    }
    server.stdout_of(&["topics", "trim", "orders/0", "--before", "2"]);
    write_transaction(server, "orders", "committed", true);
    write_transaction(server, "orders", "aborted", false);
    server.run_with_input(
        &["produce", "orders", "-K:", "-p", "0", "--timestamp", "2020-01-01T00:00:00Z"],
        "f:6\n",
    );
    write_transaction(server, "orders", "last", true);
}

#[test]
fn an_import_keeps_offsets_times_and_groups_and_goes_on_without_duplicates() {
    let (source, target) = (OwnServer::start(&[]), OwnServer::start(&[]));
    fill(&source);
    source.stdout_of(&["groups", "seek", "billing", "--at", "now", "--topic", "orders"]);
    import_all(&target, &source);
    let records = records_of(&source, "orders");
    assert!(
        records.contains("0 10 1577836800000 f=6") && !records.contains("aborted"),
        "{records}"
    );
    assert_eq!(records_of(&target, "orders"), records);
    assert_eq!(bounds_of(&target, "orders"), bounds_of(&source, "orders"));
    let offsets = |server: &TestServer| server.stdout_of(&["groups", "describe", "billing"]);
    assert_eq!(offsets(&target), offsets(&source));
    let settings = target.run(&["topics", "describe", "orders"], "").stderr;
    assert!(settings.contains("retention.ms=-1"), "{settings}");
    // Nothing is copied twice, and what is new goes on where the rest ended.
    import_all(&target, &source);
    assert_eq!(records_of(&target, "orders"), records);
    write_transaction(&source, "orders", "later", true);
    source.stdout_of(&["groups", "seek", "billing", "--at", "now", "--topic", "orders"]);
    import_all(&target, &source);
    assert_eq!(records_of(&target, "orders"), records_of(&source, "orders"));
    assert_eq!(offsets(&target), offsets(&source));
    // A crash of the target loses nothing of it, and its files are intact.
    let target = target.kill_and_restart();
    import_all(&target, &source);
    assert_eq!(records_of(&target, "orders"), records_of(&source, "orders"));
}

#[test]
fn offsets_are_translated_where_the_target_has_records_already() {
    let (source, target) = (OwnServer::start(&[]), OwnServer::start(&[]));
    fill(&source);
    source.stdout_of(&["groups", "seek", "billing", "--at", "now", "--topic", "orders"]);
    target.stdout_of(&["topics", "create", "orders", "--partitions", "2"]);
    target.run_with_input(&["produce", "orders", "-p", "0"], "own\nown\nown\n");
    import_all(&target, &source);
    let values = |server: &TestServer, path: &str| {
        server.stdout_of(&["cat", path, "-f", "%k=%v\\n"]).replace("=own\n", "")
    };
    for path in ["orders/0", "orders/1"] {
        assert_eq!(values(&target, path), values(&source, path));
    }
    // Both groups are at the end of all that is there.
    let group = target.stdout_of(&["groups", "describe", "billing", "--json"]);
    let group: serde_json::Value = serde_json::from_str(&group).unwrap();
    let cut = target.stdout_of(&["cut", "--topic", "orders", "--json"]);
    let cut: serde_json::Value = serde_json::from_str(&cut).unwrap();
    for partition in 0..2 {
        assert_eq!(
            group["partitions"][partition]["committed"],
            cut["partitions"][partition]["end"]
        );
    }
    import_all(&target, &source);
    assert_eq!(values(&target, "orders/0"), values(&source, "orders/0"));
}

#[test]
fn an_import_does_not_go_on_behind_records_of_others() {
    let (source, target) = (OwnServer::start(&[]), OwnServer::start(&[]));
    fill(&source);
    import_all(&target, &source);
    target.run_with_input(&["produce", "orders", "-p", "1"], "own\n");
    write_transaction(&source, "orders", "later", true);
    let before = records_of(&target, "orders");
    let ended = import(&target, &source, &["--topics", "orders"]);
    ended.assert_failed(1, &["orders/1", "others have written"]);
    assert_eq!(records_of(&target, "orders"), before);
}

#[test]
fn a_topic_that_was_created_again_is_not_taken_for_the_old_one() {
    let (source, target) = (OwnServer::start(&[]), OwnServer::start(&[]));
    source.stdout_of(&["topics", "create", "orders", "--partitions", "1"]);
    source.run_with_input(&["produce", "orders"], "one\ntwo\n");
    import_all(&target, &source);
    source.stdout_of(&["topics", "delete", "orders"]);
    source.stdout_of(&["topics", "create", "orders", "--partitions", "1"]);
    source.run_with_input(&["produce", "orders"], "three\nfour\nfive\n");
    let ended = import(&target, &source, &["--topics", "orders"]);
    ended.assert_failed(1, &["created again"]);
    assert_eq!(target.stdout_of(&["cat", "orders"]), "one\ntwo\n");
}

/// A topic of several megabytes.
fn fill_large(server: &TestServer) {
    server.stdout_of(&["topics", "create", "large", "--partitions", "1"]);
    let filler = "x".repeat(500);
    let lines = (0..20_000).fold(String::new(), |mut lines, key| {
        let _ = writeln!(lines, "{key}:{filler}");
        lines
    });
    server.run_with_input(&["produce", "large", "-K:"], &lines);
}

#[test]
fn an_import_that_is_killed_half_way_goes_on_where_it_ended() {
    let (source, target) = (OwnServer::start(&[]), OwnServer::start(&[]));
    fill_large(&source);
    let slow = ["--topics", "large", "--rate-limit", "500kB"];
    let mut killed = RunningImport::start(&target, &source, &slow);
    wait_until("some records arrive", || end_of(&target, "large") > 0);
    killed.0.kill().expect("it runs");
    killed.0.wait().expect("it was killed");
    let half = end_of(&target, "large");
    assert!(half < 20_000, "{half} records were copied before it was killed");
    import_all(&target, &source);
    assert_eq!(records_of(&target, "large"), records_of(&source, "large"));
}

#[test]
fn a_source_that_goes_away_is_waited_for_and_then_reported_with_a_code_of_its_own() {
    let (source, target) = (OwnServer::start(&[]), OwnServer::start(&[]));
    fill_large(&source);
    let options = ["--topics", "large", "--rate-limit", "500kB", "--retry", "1s"];
    let running = RunningImport::start(&target, &source, &options);
    wait_until("some records arrive", || end_of(&target, "large") > 0);
    let source = {
        let OwnServer { server, data } = source;
        server.kill().expect("it ends");
        let (code, stderr) = running.end();
        assert_eq!(code, Some(75), "{stderr}");
        assert!(stderr.contains("goes on where this one ended"), "{stderr}");
        let server = TestServer::start(data.path(), &[]).expect("it starts again");
        OwnServer { server, data }
    };
    // The same source at another address.
    import_all(&target, &source);
    assert_eq!(records_of(&target, "large"), records_of(&source, "large"));
}

/// A port where each connection gets these bytes as the answer to whatever it sends.
fn answering(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(answer);
        }
    });
    address
}

#[test]
fn a_source_that_answers_garbage_or_nothing_is_an_error() {
    let target = OwnServer::start(&[]);
    let fails = |address: SocketAddr, code: i32, words: &[&str]| {
        let source = format!("kafka://{address}");
        let line = ["import", &source, "--topics", "all", "--retry", "1s"];
        target.assert_fails(&line, code, words);
    };
    fails(
        answering(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        1,
        &["does not answer as a Kafka server"],
    );
    fails(answering(b"\x00\x00\x00\x05garbage"), 1, &["does not answer as a Kafka server"]);
    fails(answering(b""), 75, &["closed the connection"]);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    fails(nobody, 75, &["cannot reach"]);
    let itself = source_of(&target);
    target.assert_fails(&["import", &itself, "--topics", "all"], 1, &["are the same cluster"]);
    target.assert_fails(&["import", "127.0.0.1:1", "--topics", "a"], 2, &["kafka://HOST:PORT"]);
}

#[test]
fn an_import_that_follows_takes_new_records_and_topics_until_it_is_interrupted() {
    let (source, target) = (OwnServer::start(&[]), OwnServer::start(&[]));
    fill(&source);
    source.stdout_of(&["topics", "create", "gone", "--partitions", "1"]);
    let options = ["--topics", "orders,gone", "--groups", "all", "--follow"];
    let running = RunningImport::start(&target, &source, &options);
    wait_until("it is as far as the source", || {
        target.run(&["cut", "--topic", "orders"], "").stdout() == bounds_of(&source, "orders")
    });
    write_transaction(&source, "orders", "new", true);
    source.stdout_of(&["groups", "seek", "billing", "--at", "now", "--topic", "orders"]);
    wait_until("the new records and their markers arrive", || {
        records_of(&target, "orders") == records_of(&source, "orders")
            && bounds_of(&target, "orders") == bounds_of(&source, "orders")
    });
    running.interrupt();
    let (code, stderr) = running.end();
    assert_eq!(code, Some(0), "{stderr}");
    let offsets = |server: &TestServer| server.stdout_of(&["groups", "describe", "billing"]);
    assert_eq!(offsets(&target), offsets(&source));
}

#[test]
fn an_import_that_follows_and_is_behind_when_it_is_interrupted_says_what_is_left() {
    let (source, target) = (OwnServer::start(&[]), OwnServer::start(&[]));
    fill_large(&source);
    let options = ["--topics", "large", "--follow", "--rate-limit", "500kB"];
    let running = RunningImport::start(&target, &source, &options);
    wait_until("some records arrive", || end_of(&target, "large") > 0);
    running.interrupt();
    let (code, stderr) = running.end();
    let copied = end_of(&target, "large");
    let left = format!("large/0: {} offsets from {copied} on are not copied", 20_000 - copied);
    assert!(code == Some(1) && stderr.contains(&left), "{code:?} {stderr}");
    assert!(stderr.contains("without --follow"), "{stderr}");
    import_all(&target, &source);
    assert_eq!(bounds_of(&target, "large"), bounds_of(&source, "large"));
}

#[test]
fn what_lies_behind_an_open_transaction_is_named_and_copied_later() {
    let (source, target) = (OwnServer::start(&[]), OwnServer::start(&[]));
    source.stdout_of(&["topics", "create", "orders", "--partitions", "1"]);
    source.run_with_input(&["produce", "orders"], "one\n");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let begin = async {
        let mut client = Client::connect(&source.bootstrap(), Options::default()).await?;
        let timeout = Duration::from_secs(60);
        let mut transaction = client.begin_transaction("writer", timeout).await?;
        let (producer, epoch) = transaction.producer;
        let mut batch = BatchBuilder::new(CompressionType::None);
        batch.producer(producer, epoch, 0).transactional().record(0, None, Some(b"two"), &[]);
        let batches = BTreeMap::from([(0, batch.build())]);
        client.produce_in(&mut transaction, "orders", batches).await?;
        Ok::<_, client::ClientError>((client, transaction))
    };
    let (mut client, transaction) = runtime.block_on(begin).expect("it begins");
    source.run_with_input(&["produce", "orders"], "three\n");
    let copied = import(&target, &source, &["--topics", "orders"]);
    assert_eq!(copied.code, Some(0), "{}", copied.stderr);
    let open = "orders/0: a transaction is open at the source from 1 on";
    assert!(copied.stderr.contains(open), "{}", copied.stderr);
    assert_eq!(target.stdout_of(&["cat", "orders"]), "one\n");
    runtime.block_on(client.commit_transaction(transaction)).expect("it ends");
    let copied = import(&target, &source, &["--topics", "orders"]);
    assert!(copied.code == Some(0) && !copied.stderr.contains("open"), "{}", copied.stderr);
    assert_eq!(target.stdout_of(&["cat", "orders"]), "one\ntwo\nthree\n");
}

#[test]
fn a_topic_that_is_deleted_at_the_source_on_the_way_is_named_and_the_others_go_on() {
    let (source, target) = (OwnServer::start(&[]), OwnServer::start(&[]));
    fill_large(&source);
    source.stdout_of(&["topics", "create", "small", "--partitions", "1"]);
    source.run_with_input(&["produce", "small"], "one\n");
    let options = ["--topics", "large,small", "--rate-limit", "500kB"];
    let running = RunningImport::start(&target, &source, &options);
    wait_until("some records arrive", || end_of(&target, "large") > 0);
    source.stdout_of(&["topics", "delete", "large"]);
    let (code, stderr) = running.end();
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("deleted at the source") && stderr.contains("large"), "{stderr}");
    assert_eq!(target.stdout_of(&["cat", "small"]), "one\n");
}

#[test]
fn an_import_logs_in_at_its_source_over_tls() {
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let directory = data.path().to_str().expect("a path in UTF-8");
    let added = run(&["users", "add", "mover", "--data-dir", directory], "right\n");
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    let settings = [
        "listeners=SASL_SSL://127.0.0.1:0",
        "advertised.listeners=SASL_SSL://localhost:0",
        "sasl.enabled.mechanisms=SCRAM-SHA-512",
        &certificates.setting("ssl.keystore.location", "server.pem"),
    ];
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", *setting]).collect();
    let source = TestServer::start(data.path(), &settings).expect("it starts");
    let target = OwnServer::start(&[]);

    let profiles = TestDirectory::new();
    let command = |arguments: &[&str]| {
        let ended = Command::new(freezeframe())
            .env("XDG_CONFIG_HOME", profiles.path())
            .args(arguments)
            .output()
            .expect("it runs");
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    let file = |name: &str| certificates.file(name).display().to_string();
    let address = format!("localhost:{}", source.kafka.port());
    let (trust, right, wrong) = (file("trust.pem"), file("right"), file("wrong"));
    let login = |password_file| {
        let (address, trust) = (address.as_str(), trust.as_str());
        let login = ["--sasl-user", "mover", "--sasl-password-file", password_file];
        [&["--bootstrap", address, "--tls-trust", trust], &login[..]].concat()
    };
    for (name, password_file) in [("right", right.as_str()), ("wrong", &wrong)] {
        certificates.write(name, name);
        let (code, error) =
            command(&[&["profile", "set", name], &login(password_file)[..]].concat());
        assert_eq!(code, Some(0), "{error}");
    }
    for (command, input) in
        [(&["topics", "create", "orders"][..], ""), (&["produce", "orders", "-K:"], "a:1\nb:2\n")]
    {
        let ended = run(&[&login(&right)[..], command].concat(), input);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }

    let bootstrap = target.bootstrap();
    let import = |profile| {
        let options = ["import", "--source-profile", profile, "--topics", "orders"];
        command(&[&["--bootstrap", bootstrap.as_str()], &options[..]].concat())
    };
    let (code, error) = import("wrong");
    assert!(code == Some(1) && error.contains("mover"), "{code:?} {error}");
    assert!(target.run(&["topics"], "").stdout().is_empty(), "nothing was created");
    let (code, error) = import("right");
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(target.stdout_of(&["cat", "orders", "-f", "%k=%v\n"]), "a=1\nb=2\n");
}
