//! A client on ZooKeeper's wire that can misbehave.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use testkit::directory::TestDirectory;
use testkit::process::TestServer;
use zk_wire::{ConnectRequest, ConnectResponse, JuteReader, JuteWriter};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const CREATE: i32 = 1;
pub(crate) const EXISTS: i32 = 3;
pub(crate) const GET_DATA: i32 = 4;
pub(crate) const SET_DATA: i32 = 5;
pub(crate) const GET_CHILDREN: i32 = 8;
pub(crate) const PING: i32 = 11;
pub(crate) const MULTI_READ: i32 = 22;
pub(crate) const CLOSE_SESSION: i32 = -11;
pub(crate) const BAD_ARGUMENTS: i32 = -8;
pub(crate) const NO_NODE: i32 = -101;
pub(crate) const NODE_EXISTS: i32 = -110;

/// A connection with a session.
pub(crate) struct ZkClient<S = TcpStream> {
    pub(crate) stream: S,
    pub(crate) session_id: i64,
    pub(crate) password: Bytes,
    pub(crate) xid: i32,
}

pub(crate) fn serve(data: &TestDirectory) -> TestServer {
    serve_with(data, &[])
}

/// The same, with more settings.
pub(crate) fn serve_with(data: &TestDirectory, settings: &[&str]) -> TestServer {
    let own = [
        "server.zookeeper=127.0.0.1:0",
        "zookeeper.tickTime=100",
        "zookeeper.maxSessionTimeout=30000",
    ];
    let settings = own.iter().chain(settings).flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> = settings.collect();
    TestServer::start(data.path(), &arguments).expect("it starts")
}

pub(crate) fn address(server: &TestServer) -> SocketAddr {
    server.zookeeper.expect("it is asked for")
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("it can be set");
    stream
}

pub(crate) fn send(stream: &mut impl Write, write: impl FnOnce(&mut BytesMut)) {
    let mut body = BytesMut::new();
    write(&mut body);
    let frame = [&(body.len() as i32).to_be_bytes()[..], &body].concat();
    stream.write_all(&frame).expect("it reads");
}

/// The next frame; `None` once the server has closed the connection.
pub(crate) fn receive(stream: &mut impl Read) -> Option<JuteReader> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; i32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).ok()?;
    Some(JuteReader::new(frame.into()))
}

pub(crate) fn connect_request(session_id: i64, password: &Bytes) -> ConnectRequest {
    ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0,
        timeout_ms: 30_000,
        session_id,
        password: Some(password.clone()),
        read_only: Some(false),
    }
}

pub(crate) fn shake_hands(
    stream: &mut (impl Read + Write),
    session_id: i64,
    password: &Bytes,
) -> ConnectResponse {
    try_shake_hands(stream, session_id, password).expect("an answer")
}

/// The server's answer; `None` if it closes the connection without one: then the client is to come
/// again.
fn try_shake_hands(
    stream: &mut (impl Read + Write),
    session_id: i64,
    password: &Bytes,
) -> Option<ConnectResponse> {
    send(stream, |out| connect_request(session_id, password).write(out));
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; i32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).ok()?;
    Some(ConnectResponse::read(frame.into()).expect("it reads"))
}

impl ZkClient {
    pub(crate) fn begin(address: SocketAddr) -> ZkClient {
        ZkClient::begin_on(connect(address))
    }

    /// Another connection for the session; `None` if it is over. It comes again as long as the
    /// session's end is on its way to the disk.
    pub(crate) fn resume(&self, address: SocketAddr) -> Option<ZkClient> {
        let begun = Instant::now();
        let (stream, granted) = loop {
            let mut stream = connect(address);
            if let Some(granted) = try_shake_hands(&mut stream, self.session_id, &self.password) {
                break (stream, granted);
            }
            assert!(begun.elapsed() < TIMEOUT, "the session neither ends nor goes on");
        };
        let (session_id, password) = (granted.session_id, self.password.clone());
        (session_id == self.session_id).then_some(ZkClient { stream, session_id, password, xid: 0 })
    }
}

impl<S: Read + Write> ZkClient<S> {
    pub(crate) fn begin_on(mut stream: S) -> ZkClient<S> {
        let granted = shake_hands(&mut stream, 0, &Bytes::from_static(&[0; 16]));
        assert_ne!(granted.session_id, 0);
        let password = granted.password.expect("there is one");
        ZkClient { stream, session_id: granted.session_id, password, xid: 0 }
    }

    pub(crate) fn ask(&mut self, opcode: i32, write: impl FnOnce(&mut BytesMut)) {
        self.xid += 1;
        let xid = if opcode == PING { -2 } else { self.xid };
        send(&mut self.stream, |out| {
            out.int(xid);
            out.int(opcode);
            write(out);
        });
    }

    /// The next reply: its zxid, its error, and its body.
    pub(crate) fn reply(&mut self) -> (i64, i32, JuteReader) {
        let mut fields = receive(&mut self.stream).expect("a reply");
        fields.int().expect("an xid");
        let (zxid, err) = (fields.long().expect("a zxid"), fields.int().expect("an error"));
        (zxid, err, fields)
    }

    pub(crate) fn create(&mut self, path: &str, data: &[u8], flags: i32) -> i32 {
        self.ask(CREATE, |out| put_create(out, path, data, flags));
        self.reply().1
    }

    pub(crate) fn set(&mut self, path: &str, data: &[u8]) -> i32 {
        self.ask(SET_DATA, |out| put_set(out, path, data));
        self.reply().1
    }

    pub(crate) fn get(&mut self, path: &str) -> Result<Bytes, i32> {
        self.ask(GET_DATA, |out| put_path(out, path));
        match self.reply() {
            (_, 0, mut body) => Ok(body.buffer().expect("it reads").expect("it is not null")),
            (_, err, _) => Err(err),
        }
    }

    pub(crate) fn children(&mut self, path: &str) -> Vec<String> {
        self.ask(GET_CHILDREN, |out| put_path(out, path));
        let (_, err, mut body) = self.reply();
        assert_eq!(err, 0);
        let mut names =
            body.vector(4, JuteReader::required_string).expect("it reads").expect("a list");
        names.sort();
        names
    }
}

pub(crate) fn put_path(out: &mut BytesMut, path: &str) {
    out.string(Some(path));
    out.bool(false);
}

pub(crate) fn put_set(out: &mut BytesMut, path: &str, data: &[u8]) {
    out.string(Some(path));
    out.buffer(Some(data));
    out.int(-1);
}

pub(crate) fn put_multi_header(out: &mut BytesMut, opcode: i32, done: bool) {
    out.int(opcode);
    out.bool(done);
    out.int(-1);
}

pub(crate) fn put_create(out: &mut BytesMut, path: &str, data: &[u8], flags: i32) {
    out.string(Some(path));
    out.buffer(Some(data));
    out.int(1);
    out.int(31);
    out.string(Some("world"));
    out.string(Some("anyone"));
    out.int(flags);
}

/// The number of connections that the server reports, besides the one that asks.
pub(crate) fn connections(address: SocketAddr) -> usize {
    let mut stream = connect(address);
    stream.write_all(b"srvr").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it is text");
    let line = text.lines().find_map(|line| line.strip_prefix("Connections: "));
    line.and_then(|count| count.parse::<usize>().ok()).expect("it is in the answer") - 1
}

pub(crate) fn wall_ms() -> u128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("it is later").as_millis()
}

/// Waits until the wall clock shows a later millisecond.
pub(crate) fn next_millisecond() -> u128 {
    let begun = wall_ms();
    while wall_ms() == begun {
        std::hint::spin_loop();
    }
    wall_ms()
}
