//! Servers that are broken, one for each alert.

use std::any::Any;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{GroupId, OffsetCommitRequest};
use kafka_protocol::protocol::StrBytes;
use kafka_records::{BatchBuilder, CompressionType};
use testkit::certificates::CertificateDirectory;
use testkit::directory::TestDirectory;
use testkit::process::{RawKafkaConnection, TestServer, freezeframe};
use testkit::requests::topic_name;

use super::prometheus::free_address;
use crate::full_disk::SmallDisk;
use crate::zookeeper::client::{NODE_EXISTS, ZkClient};

/// A server that is broken in one way, until this is dropped.
pub(super) struct Breakage {
    pub(super) alert: &'static str,
    pub(super) http: SocketAddr,
    _held: Box<dyn Any>,
}

impl Breakage {
    fn new(alert: &'static str, http: SocketAddr, held: impl Any) -> Breakage {
        Breakage { alert, http, _held: Box::new(held) }
    }
}

/// One server for each alert; `None`, with a notice, if no disk can be mounted.
pub(super) fn break_everything(test: &str) -> Option<Vec<Breakage>> {
    Some(vec![
        fill_disk(test)?,
        kill_server(),
        fence_clock(),
        hold_start(),
        slow_disk(),
        fill_budget(),
        let_group_lag(),
        end_certificate(),
        corrupt_record(),
    ])
}

/// A batch of so many records.
pub(super) fn values(count: usize) -> Bytes {
    let mut batch = BatchBuilder::new(CompressionType::None);
    for nth in 0..count {
        batch.record(1_700_000_000_000, None, Some(format!("value {nth}").as_bytes()), &[]);
    }
    batch.build()
}

pub(super) fn commit(wire: &mut RawKafkaConnection, group: &str, topic: &str, offset: i64) {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(offset);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(StrBytes::from_string(group.to_owned())))
        .with_topics(vec![topic]);
    let answer = wire.call(8, &request).expect("an answer");
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
}

/// A session of ZooKeeper that writes and reads.
pub(super) fn use_zookeeper(server: &TestServer) {
    let address = server.zookeeper.expect("it serves ZooKeeper's clients");
    let mut client = ZkClient::begin(address);
    let code = client.create("/a", b"abc", 0);
    assert!(code == 0 || code == NODE_EXISTS, "{code}");
    assert_eq!(client.get("/a").expect("it is there"), &b"abc"[..]);
}

fn start(data: &TestDirectory, arguments: &[&str]) -> TestServer {
    TestServer::start(data.path(), arguments).expect("it starts")
}

fn fill_disk(test: &str) -> Option<Breakage> {
    let disk = SmallDisk::mount(test, c"size=24m")?;
    let server = TestServer::start(&disk.path.join("data"), &["--set=storage.segment-bytes=1MiB"]);
    let server = server.expect("there is room");
    disk.fill();
    Some(Breakage::new("FreezeframeDiskFull", server.http, (server, disk)))
}

fn kill_server() -> Breakage {
    let data = TestDirectory::new();
    let server = start(&data, &[]);
    let http = server.http;
    server.kill().expect("it can be killed");
    Breakage::new("FreezeframeDown", http, data)
}

/// A server whose last stamps are half an hour ahead of the wall clock, which was so far ahead.
fn fence_clock() -> Breakage {
    let data = TestDirectory::new();
    assert_eq!(start(&data, &[]).stop().expect("it stops").code(), Some(0));
    set_last_clock_ahead(&data.path().join("journal/bound"), Duration::from_secs(1800));
    let server = start(&data, &[]);
    Breakage::new("FreezeframeFenced", server.http, (server, data))
}

/// Makes a file with the clock's bound as a server would have left it whose wall clock was so far
/// ahead. `docs/FORMAT.md` has the layout.
fn set_last_clock_ahead(file: &Path, ahead: Duration) {
    const SLOT_BYTES: usize = 64;
    const SLOTS: [usize; 2] = [0, 4096];
    let ahead_ms = ahead.as_millis() as u64;
    let mut bytes = std::fs::read(file).expect("a closed store has a bound");
    for at in SLOTS {
        let Some(slot) = bytes.get_mut(at..at + SLOT_BYTES) else { continue };
        let mut advance = |at: usize, by: u64| {
            let field = &mut slot[at..at + 8];
            let value = u64::from_le_bytes(field.try_into().expect("eight bytes"));
            field.copy_from_slice(&(value + by).to_le_bytes());
        };
        advance(16, ahead_ms << 16);
        advance(42, ahead_ms);
        let checksum = crc32c::crc32c(&slot[..60]);
        slot[60..].copy_from_slice(&checksum.to_le_bytes());
    }
    std::fs::write(file, bytes).expect("it can be written");
}

/// A process that ends with this.
struct OwnedProcess(Child);

impl Drop for OwnedProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `strace` that lets each sync begin later.
fn delayed_syncs(delay: Duration) -> Command {
    let mut command = Command::new("strace");
    let delay = delay.as_micros();
    command
        .args(["-f", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e"])
        .arg(format!("inject=fsync,fdatasync:delay_enter={delay}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// A server that has been starting since the test began: its first sync does not end.
fn hold_start() -> Breakage {
    let (data, http) = (TestDirectory::new(), free_address());
    let mut command = delayed_syncs(Duration::from_secs(600));
    command
        .arg(freezeframe())
        .arg("serve")
        .arg("--data-dir")
        .arg(data.path())
        .args(["--kafka=127.0.0.1:0", "--end-with-input"])
        .arg(format!("--http={http}"))
        .stdin(Stdio::piped());
    let process = OwnedProcess(command.spawn().expect("it is installed"));
    Breakage::new("FreezeframeNotReady", http, (process, data))
}

/// Work that goes on in a thread until this is dropped.
struct Activity {
    is_over: Arc<AtomicBool>,
}

impl Activity {
    /// Repeats `step`, with a pause in between.
    fn repeat(pause: Duration, mut step: impl FnMut() + Send + 'static) -> Activity {
        let is_over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&is_over);
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                step();
                std::thread::park_timeout(pause);
            }
        });
        Activity { is_over }
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// A server whose disk takes a second and a half for each sync.
fn slow_disk() -> Breakage {
    let data = TestDirectory::new();
    // Otherwise writes would also wait for syncs of the clock's bound, for longer than the rule,
    // which is in a hurry here, looks back.
    let server = start(&data, &["--set=clock.bound-ahead=1h"]);
    let mut wire = RawKafkaConnection::connect(server.kafka);
    wire.create_topic("t", 1, &[]);
    let mut strace = delayed_syncs(Duration::from_millis(1500));
    strace.args(["-p", &server.pid().to_string()]);
    let strace = OwnedProcess(strace.spawn().expect("it is installed"));
    let producing = Activity::repeat(Duration::ZERO, move || {
        // The server ends with the test.
        let _ = wire.try_produce("t", 0, &values(1));
    });
    Breakage::new("FreezeframeProduceSlow", server.http, (producing, strace, server, data))
}

/// A server with nearly as many clients as it takes.
fn fill_budget() -> Breakage {
    const API_VERSIONS: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
    let data = TestDirectory::new();
    let server = start(&data, &["--set=max.connections=20"]);
    let connect = |_| {
        let mut client = TcpStream::connect(server.kafka).expect("there is room");
        client.write_all(&API_VERSIONS).expect("it is read");
        client
    };
    let clients: Vec<TcpStream> = (0..19).map(connect).collect();
    Breakage::new("FreezeframeBudgetFull", server.http, (clients, server, data))
}

/// A server with a group that does not read what is produced.
fn let_group_lag() -> Breakage {
    let data = TestDirectory::new();
    let server = start(&data, &[]);
    let mut wire = RawKafkaConnection::connect(server.kafka);
    wire.create_topic("t", 1, &[]);
    commit(&mut wire, "stuck", "t", 0);
    let batch = values(1000);
    for _ in 0..20 {
        assert_eq!(wire.produce("t", 0, &batch).0, 0);
    }
    let producing = Activity::repeat(Duration::from_millis(200), move || {
        let _ = wire.try_produce("t", 0, &batch);
    });
    Breakage::new("FreezeframeGroupLag", server.http, (producing, server, data))
}

/// A server with a certificate that ends tomorrow.
fn end_certificate() -> Breakage {
    let (data, certificates) = (TestDirectory::new(), CertificateDirectory::new());
    let day = Duration::from_secs(86_400);
    certificates.write("server.pem", &certificates.authority.sign_for("server", day).pem());
    let server = super::full_server(&data, &certificates);
    Breakage::new("FreezeframeCertificateEnds", server.http, (server, certificates, data))
}

/// A server that has read a record that is not as it was written.
fn corrupt_record() -> Breakage {
    let data = TestDirectory::new();
    let server = start(&data, &[]);
    let mut wire = RawKafkaConnection::connect(server.kafka);
    wire.create_topic("t", 1, &[]);
    assert_eq!(wire.produce("t", 0, &values(10)), (0, 0));
    assert_eq!(server.stop().expect("it stops").code(), Some(0));
    let file = data.path().join("journal/00000000000000000000.journal");
    let mut bytes = std::fs::read(&file).expect("the journal has a file");
    let value = b"value 4";
    let at = bytes.windows(value.len()).position(|window| window == value);
    bytes[at.expect("it is there")] ^= 1;
    std::fs::write(&file, &bytes).expect("it can be written");
    let server = start(&data, &[]);
    let (error, ..) = RawKafkaConnection::connect(server.kafka).fetch("t", 0, 0);
    assert_ne!(error, 0, "it is not served");
    Breakage::new("FreezeframeCorruption", server.http, (server, data))
}
