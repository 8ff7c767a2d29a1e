//! Checks what many clients saw: while they write, read and watch few znodes, with several requests
//! on their way each, their connections drop and the server is killed.
//!
//! The server's own history of transactions is taken as the order in which everything happened. The
//! run was linearizable if that order agrees with all that clients saw:
//! - An acknowledged request is in the history at the zxid of its reply, and did what the reply
//!   says. A refused request had to be refused in the state in front of its zxid. Otherwise only
//!   requests that were never answered are in the history.
//! - A read saw the state at the zxid of its reply.
//! - If one request was answered before another was sent, its zxid is lower; for reads, not higher.
//! - A watch fires once, for the first change after it was set, and before any reply of the same
//!   connection that could show that change.
//! - An ephemeral znode goes once, with its session.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use serde_json::Value;
use testkit::directory::TestDirectory;
use testkit::rng::SeededRng;
use zk_wire::{ConnectResponse, JuteReader, JuteWriter};

use super::client::*;
use super::command_line::zk;

const CLIENTS: u64 = 6;
const KILLS: u64 = 3;
/// The number of requests that are answered between two kills.
const ANSWERS_BETWEEN_KILLS: u64 = 1500;
const ON_THEIR_WAY_MAX: u64 = 8;
const PATHS: [&str; 4] = ["/a", "/b", "/c", "/d"];
/// The two that are only changed together.
const BOTH: [&str; 2] = ["/x", "/y"];
const DELETE: i32 = 2;
const MULTI: i32 = 14;
const BAD_VERSION: i32 = -103;
const EVENT_DELETED: i32 = 2;
const EVENT_CHANGED: i32 = 3;

/// The request of a client. Data are names that no other request writes.
#[derive(Clone, Debug)]
enum HistoryOp {
    Set { path: &'static str, data: String, version: i32 },
    Create { path: &'static str, data: String },
    CreateEphemeral { path: String },
    Delete { path: &'static str },
    SetBoth { data: String },
    Get { path: &'static str, watch: bool },
}

impl HistoryOp {
    fn is_read(&self) -> bool {
        matches!(self, HistoryOp::Get { .. })
    }

    fn opcode(&self) -> i32 {
        match self {
            HistoryOp::Set { .. } => SET_DATA,
            HistoryOp::Create { .. } | HistoryOp::CreateEphemeral { .. } => CREATE,
            HistoryOp::Delete { .. } => DELETE,
            HistoryOp::SetBoth { .. } => MULTI,
            HistoryOp::Get { .. } => GET_DATA,
        }
    }

    fn write(&self, out: &mut BytesMut) {
        let put_set = |out: &mut BytesMut, path: &str, data: &str, version: i32| {
            out.string(Some(path));
            out.buffer(Some(data.as_bytes()));
            out.int(version);
        };
        match self {
            HistoryOp::Set { path, data, version } => put_set(out, path, data, *version),
            HistoryOp::Create { path, data } => put_create(out, path, data.as_bytes(), 0),
            HistoryOp::CreateEphemeral { path } => put_create(out, path, path.as_bytes(), 1),
            HistoryOp::Delete { path } => {
                out.string(Some(path));
                out.int(-1);
            }
            HistoryOp::SetBoth { data } => {
                for path in BOTH {
                    put_multi_header(out, SET_DATA, false);
                    put_set(out, path, data, -1);
                }
                put_multi_header(out, -1, true);
            }
            HistoryOp::Get { path, watch } => {
                out.string(Some(path));
                out.bool(*watch);
            }
        }
    }

    /// The data that it writes.
    fn data(&self) -> Option<&str> {
        match self {
            HistoryOp::Set { data, .. }
            | HistoryOp::Create { data, .. }
            | HistoryOp::SetBoth { data } => Some(data),
            HistoryOp::CreateEphemeral { path } => Some(path),
            HistoryOp::Delete { .. } | HistoryOp::Get { .. } => None,
        }
    }
}

/// A request, and what came of it as far as its client knows.
#[derive(Debug)]
struct HistoryRequest {
    op: HistoryOp,
    sent: Instant,
    answer: Option<HistoryReply>,
}

#[derive(Debug)]
struct HistoryReply {
    at: Instant,
    zxid: i64,
    err: i32,
    /// The version and the data that a read found.
    found: Option<ZnodeVersion>,
}

/// The version and the data of a znode.
type ZnodeVersion = (i32, String);

/// The frames of a connection, in order.
#[derive(Debug)]
enum HistoryFrame {
    /// The reply to a request of the client, by its number.
    Reply(usize),
    Event {
        path: String,
        kind: i32,
        zxid: i64,
    },
}

/// All that one client did and saw.
#[derive(Debug, Default)]
struct ClientHistory {
    issued: Vec<HistoryRequest>,
    /// The frames of each of its connections.
    connections: Vec<Vec<HistoryFrame>>,
}

struct HistoryRun {
    address: Mutex<SocketAddr>,
    is_over: AtomicBool,
    answers: Mutex<u64>,
    answered: Condvar,
}

/// The clients end too if the test fails.
struct EndOfRun<'a>(&'a HistoryRun);

impl Drop for EndOfRun<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// A client while it runs.
struct HistoryClient<'a> {
    run: &'a HistoryRun,
    rng: SeededRng,
    number: u64,
    session: i64,
    password: Bytes,
    history: ClientHistory,
}

fn frame(stream: &mut TcpStream) -> Option<Bytes> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; i32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).ok()?;
    Some(frame.into())
}

fn put_frame(out: &mut Vec<u8>, write: impl FnOnce(&mut BytesMut)) {
    let mut body = BytesMut::new();
    write(&mut body);
    out.extend_from_slice(&(body.len() as i32).to_be_bytes());
    out.extend_from_slice(&body);
}

impl HistoryClient<'_> {
    fn run(mut self) -> ClientHistory {
        while !self.run.is_over.load(Ordering::Relaxed) {
            if let Some(mut stream) = self.connect() {
                self.history.connections.push(Vec::new());
                self.use_connection(&mut stream);
            }
        }
        // It ends its session, so that its ephemeral znodes go.
        let begun = Instant::now();
        while self.session != 0 && begun.elapsed() < TIMEOUT {
            let Some(mut stream) = self.connect() else { continue };
            let mut close = Vec::new();
            put_frame(&mut close, |out| {
                out.int(1);
                out.int(CLOSE_SESSION);
            });
            stream.write_all(&close).expect("it reads");
            if frame(&mut stream).is_some() {
                break;
            }
        }
        self.history
    }

    /// A connection with a session: the one that there was, or a new one.
    fn connect(&mut self) -> Option<TcpStream> {
        let address = *self.run.address.lock().expect("nobody panics with it");
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).expect("it can be set");
        stream.set_nodelay(true).expect("it can be set");
        let mut hello = Vec::new();
        put_frame(&mut hello, |out| connect_request(self.session, &self.password).write(out));
        stream.write_all(&hello).ok()?;
        let granted = ConnectResponse::read(frame(&mut stream)?).expect("it reads");
        let is_new = self.session == 0;
        self.session = granted.session_id;
        if self.session == 0 {
            return None;
        }
        self.password = granted.password.expect("there is one");
        if is_new {
            let path = format!("/e-{:x}", self.session);
            self.history.connections.push(Vec::new());
            self.exchange(&mut stream, vec![HistoryOp::CreateEphemeral { path }], false)?;
        }
        Some(stream)
    }

    fn use_connection(&mut self, stream: &mut TcpStream) {
        while !self.run.is_over.load(Ordering::Relaxed) {
            let ops = (0..self.rng.between(1, ON_THEIR_WAY_MAX)).map(|_| self.choose()).collect();
            // Now and then it goes away without its answers.
            let leaves = self.rng.one_in(100);
            if self.exchange(stream, ops, leaves).is_none() || self.rng.one_in(100) {
                return;
            }
        }
    }

    fn choose(&mut self) -> HistoryOp {
        let (path, both) = (*self.rng.pick(&PATHS), *self.rng.pick(&BOTH));
        let data = format!("{}-{}-{}", self.number, self.history.issued.len(), self.rng.next_u64());
        match self.rng.below(12) {
            0 | 1 => HistoryOp::Set { path, data, version: -1 },
            2 | 3 => HistoryOp::Set { path, data, version: self.rng.below(3) as i32 },
            4 => HistoryOp::Create { path, data },
            5 => HistoryOp::Delete { path },
            6 => HistoryOp::SetBoth { data },
            7 => HistoryOp::Get { path: both, watch: self.rng.one_in(2) },
            _ => HistoryOp::Get { path, watch: self.rng.one_in(2) },
        }
    }

    /// Sends all, and receives all answers; `None` once the connection is gone.
    fn exchange(
        &mut self,
        stream: &mut TcpStream,
        ops: Vec<HistoryOp>,
        leaves: bool,
    ) -> Option<()> {
        let first = self.history.issued.len();
        let mut bytes = Vec::new();
        for op in ops {
            put_frame(&mut bytes, |out| {
                out.int(self.history.issued.len() as i32 + 1);
                out.int(op.opcode());
                op.write(out);
            });
            self.history.issued.push(HistoryRequest { op, sent: Instant::now(), answer: None });
        }
        stream.write_all(&bytes).ok()?;
        if leaves {
            return None;
        }
        let mut next = first;
        while next < self.history.issued.len() {
            let mut fields = JuteReader::new(frame(stream)?);
            let xid = fields.int().expect("an xid");
            let (zxid, err) = (fields.long().expect("a zxid"), fields.int().expect("an error"));
            let frames = self.history.connections.last_mut().expect("it is connected");
            if xid == -1 {
                let kind = fields.int().expect("a kind");
                fields.int().expect("a state");
                let path = fields.required_string().expect("a path");
                frames.push(HistoryFrame::Event { path, kind, zxid });
                continue;
            }
            assert_eq!(xid as usize, next + 1, "replies come in the order of the requests");
            let issued = &mut self.history.issued[next];
            let found = (issued.op.is_read() && err == 0).then(|| found(&mut fields));
            let err = if matches!(issued.op, HistoryOp::SetBoth { .. }) {
                multi_error(&mut fields)
            } else {
                err
            };
            issued.answer = Some(HistoryReply { at: Instant::now(), zxid, err, found });
            frames.push(HistoryFrame::Reply(next));
            next += 1;
            *self.run.answers.lock().expect("nobody panics with it") += 1;
            self.run.answered.notify_one();
        }
        Some(())
    }
}

fn found(fields: &mut JuteReader) -> ZnodeVersion {
    let data = fields.buffer().expect("it reads").expect("it is there");
    for _ in 0..4 {
        fields.long().expect("zxids and times");
    }
    let version = fields.int().expect("a version");
    (version, String::from_utf8(data.to_vec()).expect("text"))
}

/// The error of the first result that has one; 0 for none.
fn multi_error(fields: &mut JuteReader) -> i32 {
    let kind = fields.int().expect("the kind of a result");
    fields.bool().expect("whether it was the last");
    let err = fields.int().expect("its error");
    if kind == -1 { err } else { 0 }
}

/// The history that the server reports.
struct ServerHistory {
    /// The states of each path, each from a zxid on.
    states: HashMap<String, Vec<(i64, Option<ZnodeVersion>)>>,
    /// The paths that each transaction changed.
    changes: BTreeMap<i64, Vec<String>>,
    /// The transaction that wrote each data.
    written: HashMap<String, i64>,
}

impl ServerHistory {
    fn read(address: SocketAddr) -> ServerHistory {
        let mut told = ServerHistory {
            states: HashMap::new(),
            changes: BTreeMap::new(),
            written: HashMap::new(),
        };
        for line in zk(address, &["log", "/", "--recursive", "--json"], "").lines() {
            let entry: Value = serde_json::from_str(line).expect("a document");
            let zxid = entry["zxid"].as_i64().expect("a zxid");
            for change in entry["changes"].as_array().expect("a list") {
                told.take(zxid, change);
            }
        }
        told
    }

    fn take(&mut self, zxid: i64, change: &Value) {
        let path = change["path"].as_str().expect("a path").to_owned();
        let state = match change["kind"].as_str().expect("a kind") {
            "deleted" => None,
            "created" | "data_changed" => {
                let data = unbase64(change["data"].as_str().expect("data"));
                let before = self.written.insert(data.clone(), zxid);
                assert!(before.is_none_or(|before| before == zxid), "{data} was written twice");
                Some((change["version"].as_i64().expect("a version") as i32, data))
            }
            other => panic!("nobody asked for this: {other}"),
        };
        self.states.entry(path.clone()).or_default().push((zxid, state));
        self.changes.entry(zxid).or_default().push(path);
    }

    fn state(&self, path: &str, zxid: i64) -> Option<&ZnodeVersion> {
        let states = self.states.get(path)?;
        let next = states.partition_point(|(from, _)| *from <= zxid);
        states[..next].last()?.1.as_ref()
    }

    /// The first change of a path after a zxid, and whether that deleted it.
    fn next_change(&self, path: &str, after: i64) -> Option<(i64, bool)> {
        let states = self.states.get(path)?;
        let next = states.partition_point(|(from, _)| *from <= after);
        states.get(next).map(|(zxid, state)| (*zxid, state.is_none()))
    }

    fn check_request(&self, issued: &HistoryRequest) {
        let HistoryRequest { op, answer, .. } = issued;
        let written = op.data().and_then(|data| self.written.get(data));
        let Some(HistoryReply { zxid, err, found, .. }) = answer else { return };
        if op.is_read() {
            let HistoryOp::Get { path, .. } = op else { unreachable!() };
            assert_eq!(self.state(path, *zxid), found.as_ref(), "{issued:?}");
            assert!([0, NO_NODE].contains(err), "{issued:?}");
            return;
        }
        if *err != 0 {
            assert!(!self.changes.contains_key(zxid), "{issued:?} is in the history");
            assert_eq!(written, None, "{issued:?}");
            self.check_refusal(issued, *zxid, *err);
            return;
        }
        let expected: Vec<&str> = match op {
            HistoryOp::SetBoth { .. } => BOTH.to_vec(),
            HistoryOp::Set { path, .. }
            | HistoryOp::Create { path, .. }
            | HistoryOp::Delete { path } => vec![path],
            HistoryOp::CreateEphemeral { path } => vec![path],
            HistoryOp::Get { .. } => unreachable!(),
        };
        let changed = self.changes.get(zxid).unwrap_or_else(|| panic!("{issued:?} is lost"));
        assert_eq!(*changed, expected, "{issued:?}");
        for path in expected {
            let is = self.state(path, *zxid);
            assert_eq!(is.map(|(_, data)| &**data), op.data(), "{issued:?}");
            if let HistoryOp::Set { version: version @ 0.., .. } = op {
                let before = self.state(path, zxid - 1);
                assert_eq!(before.map(|(version, _)| version), Some(version), "{issued:?}");
            }
        }
    }

    fn check_refusal(&self, issued: &HistoryRequest, zxid: i64, err: i32) {
        let before = |path: &str| self.state(path, zxid - 1).map(|(version, _)| *version);
        let is_right = match &issued.op {
            HistoryOp::Set { path, version, .. } => match err {
                NO_NODE => before(path).is_none(),
                BAD_VERSION => {
                    *version >= 0 && before(path).is_some_and(|before| before != *version)
                }
                _ => false,
            },
            HistoryOp::Create { path, .. } => err == NODE_EXISTS && before(path).is_some(),
            HistoryOp::Delete { path } => err == NO_NODE && before(path).is_none(),
            _ => false,
        };
        assert!(is_right, "{issued:?} is refused without a reason");
    }

    /// Replies and events of one connection, in their order.
    fn check_connection(&self, frames: &[HistoryFrame], issued: &[HistoryRequest]) {
        let mut watched: HashMap<&str, i64> = HashMap::new();
        let mut last_zxid = 0;
        for frame in frames {
            match frame {
                HistoryFrame::Reply(number) => {
                    let HistoryRequest { op, answer, .. } = &issued[*number];
                    let Some(HistoryReply { zxid, err, .. }) = answer else { unreachable!() };
                    assert!(*zxid >= last_zxid, "zxids fall: {op:?}");
                    last_zxid = *zxid;
                    for (path, set_at) in &watched {
                        let change = self.next_change(path, *set_at);
                        assert!(
                            change.is_none_or(|(change, _)| change > *zxid),
                            "{op:?} at {zxid} came before the event of {path} at {change:?}"
                        );
                    }
                    if let HistoryOp::Get { path, watch: true } = op
                        && *err == 0
                    {
                        watched.entry(path).or_insert(*zxid);
                    }
                }
                HistoryFrame::Event { path, kind, zxid } => {
                    let set_at = watched.remove(&**path);
                    let set_at = set_at.unwrap_or_else(|| panic!("nobody watches: {frame:?}"));
                    let (change, is_deleted) = self.next_change(path, set_at).expect("a change");
                    let expected = if is_deleted { EVENT_DELETED } else { EVENT_CHANGED };
                    assert_eq!((*zxid, *kind), (change, expected), "{frame:?}");
                }
            }
        }
    }

    fn check_ephemerals(&self) {
        let ephemerals = self.states.iter().filter(|(path, _)| path.starts_with("/e-"));
        for (path, states) in ephemerals {
            let [(_, Some(_)), (_, None)] = &states[..] else {
                panic!("{path} did not come and go once: {states:?}");
            };
        }
    }
}

/// If one was answered before the other was sent, it is before it.
fn check_real_time(histories: &[ClientHistory]) {
    let all = || histories.iter().flat_map(|history| &history.issued);
    let mut answers: Vec<&HistoryReply> =
        all().filter_map(|issued| issued.answer.as_ref()).collect();
    answers.sort_by_key(|answer| answer.at);
    let highest: Vec<i64> = answers
        .iter()
        .scan(0, |highest, answer| {
            *highest = answer.zxid.max(*highest);
            Some(*highest)
        })
        .collect();
    for issued in all() {
        let Some(HistoryReply { zxid, .. }) = issued.answer else { continue };
        let before = answers.partition_point(|answer| answer.at < issued.sent);
        let Some(highest) = before.checked_sub(1).map(|last| highest[last]) else { continue };
        let is_later = if issued.op.is_read() { zxid >= highest } else { zxid > highest };
        assert!(is_later, "{issued:?} is behind {highest}, which was there before it");
    }
}

/// Nothing is in the history that nobody asked for, and nothing that was refused.
fn check_origins(told: &ServerHistory, histories: &[ClientHistory]) {
    let asked: HashSet<&str> = histories
        .iter()
        .flat_map(|history| &history.issued)
        .filter_map(|issued| issued.op.data())
        .collect();
    for data in told.written.keys().filter(|data| !BOTH.contains(&data.as_str())) {
        assert!(asked.contains(&**data), "nobody wrote {data}");
    }
}

fn unbase64(text: &str) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for char in text.bytes().filter(|char| *char != b'=') {
        let digit = ALPHABET.iter().position(|known| *known == char).expect("base64");
        (bits, count) = (bits << 6 | digit as u32, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    String::from_utf8(bytes).expect("text")
}

/// Runs with the seed in `ZOOKEEPER_SEED`, or with some seeds.
fn seeds() -> Vec<u64> {
    match std::env::var("ZOOKEEPER_SEED") {
        Ok(seed) => vec![seed.parse().expect("ZOOKEEPER_SEED is a number")],
        Err(_) => vec![1, 2],
    }
}

#[test]
fn what_clients_saw_is_one_order_through_kills_and_lost_connections() {
    for seed in seeds() {
        eprintln!("ZOOKEEPER_SEED={seed}");
        run(seed);
    }
}

fn run(seed: u64) {
    let data = TestDirectory::new();
    let server = serve(&data);
    let mut first = ZkClient::begin(address(&server));
    for path in BOTH {
        assert_eq!(first.create(path, path.as_bytes(), 0), 0);
    }
    let run = HistoryRun {
        address: Mutex::new(address(&server)),
        is_over: AtomicBool::new(false),
        answers: Mutex::new(0),
        answered: Condvar::new(),
    };
    let mut rng = SeededRng::new(seed);
    let (histories, server) = std::thread::scope(|scope| {
        let mut server = server;
        let end = EndOfRun(&run);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let client = HistoryClient {
                    run: &run,
                    rng: rng.fork(),
                    number,
                    session: 0,
                    password: Bytes::from_static(&[0; 16]),
                    history: ClientHistory::default(),
                };
                scope.spawn(move || client.run())
            })
            .collect();
        for _ in 0..KILLS {
            wait_for_answers(&run);
            server.kill().expect("it runs");
            server = serve(&data);
            *run.address.lock().expect("nobody panics with it") = address(&server);
        }
        wait_for_answers(&run);
        drop(end);
        let ended = clients.into_iter().map(|client| client.join().expect("it ends"));
        let histories: Vec<ClientHistory> = ended.collect();
        (histories, server)
    });
    let told = ServerHistory::read(address(&server));
    for history in &histories {
        history.issued.iter().for_each(|issued| told.check_request(issued));
        for frames in &history.connections {
            told.check_connection(frames, &history.issued);
        }
    }
    check_real_time(&histories);
    check_origins(&told, &histories);
    told.check_ephemerals();
    let connections: usize = histories.iter().map(|history| history.connections.len()).sum();
    assert!(connections > CLIENTS as usize * KILLS as usize, "{connections} connections");
}

fn wait_for_answers(run: &HistoryRun) {
    let answers = run.answers.lock().expect("nobody panics with it");
    let wanted = *answers + ANSWERS_BETWEEN_KILLS;
    let too_few = |answers: &mut u64| *answers < wanted;
    let waited = run.answered.wait_timeout_while(answers, TIMEOUT, too_few);
    let (answers, ended) = waited.expect("nobody panics with it");
    drop(answers);
    assert!(!ended.timed_out(), "the clients stand still");
}
