//! Clients that take sessions, connections and znodes without end, beside others that need a few.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use compat_zk::{ZkOptions, ZkServer, serve_stream};
use engine::EngineOptions;
use engine::znodes::ZnodeOptions;
use hlc::{ManualClock, SysTime};
use storage::disk::MemoryDisk;
use testkit::engine::{EngineFixture, START};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;
use zk_wire::{ConnectRequest, ConnectResponse, JuteReader, JuteWriter};

const SYSTEM_ERROR: i32 = -1;
const A: u8 = 1;
const B: u8 = 2;

struct Door {
    fixture: EngineFixture,
    server: Arc<ZkServer>,
}

struct Client {
    stream: DuplexStream,
    served: JoinHandle<()>,
}

impl Door {
    fn new(options: ZkOptions, znodes_max: u64) -> Door {
        let znodes = ZnodeOptions { znodes_max, ..ZnodeOptions::default() };
        let engine = EngineOptions { znodes, ..EngineOptions::default() };
        let clock = Arc::new(ManualClock::at(SysTime(START)));
        let fixture = EngineFixture::with(MemoryDisk::new(), clock, engine);
        let server = ZkServer::new(Arc::clone(fixture.engine.znodes()), options);
        Door { fixture, server }
    }

    fn connect(&self, host: u8) -> Client {
        let peer = SocketAddr::from((Ipv4Addr::new(10, 0, 0, host), 50_000));
        let (client, stream) = tokio::io::duplex(1 << 16);
        let server = Arc::clone(&self.server);
        let served = tokio::spawn(async move { serve_stream(&server, client, peer).await });
        Client { stream, served }
    }

    async fn begin(&self, host: u8) -> Option<Client> {
        let mut client = self.connect(host);
        client.begin().await.then_some(client)
    }

    fn used(&self, budget: &str) -> u64 {
        let usages = self.fixture.engine.core().budgets().usages();
        usages.iter().find(|usage| usage.name == budget).unwrap().used
    }
}

impl Client {
    /// Asks for a session. Returns true if there is one.
    async fn begin(&mut self) -> bool {
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms: 30_000,
            session_id: 0,
            password: Some(Bytes::from_static(&[0; 16])),
            read_only: Some(false),
        };
        self.send(|out| request.write(out)).await;
        let Some(frame) = self.receive().await else { return false };
        ConnectResponse::read(frame).unwrap().session_id != 0
    }

    async fn send(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let mut body = BytesMut::new();
        write(&mut body);
        let frame = [&(body.len() as i32).to_be_bytes()[..], &body].concat();
        // A connection that was refused is closed.
        let _ = self.stream.write_all(&frame).await;
    }

    /// `None` once the connection is closed.
    async fn receive(&mut self) -> Option<Bytes> {
        let length = self.stream.read_i32().await.ok()?;
        let mut frame = vec![0; length as usize];
        self.stream.read_exact(&mut frame).await.ok()?;
        Some(frame.into())
    }

    async fn ask(&mut self, opcode: i32, write: impl FnOnce(&mut BytesMut)) -> i32 {
        self.send(|out| {
            out.int(1);
            out.int(opcode);
            write(out);
        })
        .await;
        let mut fields = JuteReader::new(self.receive().await.expect("a reply"));
        fields.int().unwrap();
        fields.long().unwrap();
        fields.int().unwrap()
    }

    async fn create(&mut self, path: &str, flags: i32) -> i32 {
        self.ask(1, |out| {
            out.string(Some(path));
            out.buffer(Some(b"x"));
            out.int(1);
            out.int(31);
            out.string(Some("world"));
            out.string(Some("anyone"));
            out.int(flags);
        })
        .await
    }

    async fn delete(&mut self, path: &str) -> i32 {
        self.ask(2, |out| {
            out.string(Some(path));
            out.int(-1);
        })
        .await
    }

    async fn exists(&mut self, path: &str) -> i32 {
        self.ask(3, |out| {
            out.string(Some(path));
            out.bool(false);
        })
        .await
    }

    /// Goes away without ending its session, and waits until the server knows.
    async fn go_away(self) {
        drop(self.stream);
        self.served.await.unwrap();
    }
}

/// Takes sessions and leaves them.
async fn flood_sessions(door: &Door) {
    for _ in 0..200 {
        if let Some(client) = door.begin(B).await {
            client.go_away().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_sessions_makes_room_for_others() {
    let door = Door::new(ZkOptions { sessions_max: 64, ..ZkOptions::default() }, 1000);
    let mut connected = door.begin(A).await.expect("a session");
    let mut away = door.begin(A).await.expect("a session");
    assert_eq!(away.create("/e", 1).await, 0);
    away.go_away().await;
    flood_sessions(&door).await;
    assert!(door.used("zookeeper-sessions") <= 64);
    assert_eq!(connected.create("/a", 0).await, 0);
    assert_eq!(connected.exists("/e").await, 0, "a session with ephemerals stays");
    for _ in 0..10 {
        door.begin(A).await.expect("another session").go_away().await;
    }
    assert_eq!(connected.exists("/e").await, 0);
}

/// Even where all of a holder's sessions have ephemeral znodes.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_in_use_yield_to_those_that_have_fewer() {
    let door = Door::new(ZkOptions { sessions_max: 32, ..ZkOptions::default() }, 1000);
    for nth in 0..40 {
        let Some(mut client) = door.begin(B).await else { break };
        assert_eq!(client.create(&format!("/b{nth}"), 1).await, 0);
        client.go_away().await;
    }
    assert!(door.begin(B).await.is_none(), "it has the most, and none is idle");
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(door.begin(A).await.expect("a session"));
    }
    assert_eq!(clients[0].create("/a", 0).await, 0, "no session of the smaller holder ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_make_room_first() {
    let options =
        ZkOptions { connections_max: 20, connections_per_address_max: 0, ..ZkOptions::default() };
    let door = Door::new(options, 1000);
    let mut silent: Vec<Client> = (0..30).map(|_| door.connect(B)).collect();
    let mut client = door.begin(A).await.expect("a session");
    assert_eq!(client.create("/a", 0).await, 0);
    assert!(silent[0].receive().await.is_none(), "the oldest is cut");
    assert!(door.used("zookeeper-connections") <= 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_of_an_address_do_not_fill_it() {
    let door =
        Door::new(ZkOptions { connections_per_address_max: 3, ..ZkOptions::default() }, 1000);
    let mut in_use = door.begin(A).await.expect("a session");
    let _silent = [door.connect(A), door.connect(A)];
    let mut sessions = vec![door.begin(A).await.expect("a silent one is cut")];
    sessions.push(door.begin(A).await.expect("and another one"));
    assert!(door.begin(A).await.is_none(), "all are in use");
    assert_eq!(in_use.create("/a", 0).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_znodes_leaves_room_for_others() {
    let door = Door::new(ZkOptions::default(), 1000);
    let mut flood = door.begin(B).await.expect("a session");
    let mut created = 0;
    let refusal = loop {
        match flood.create(&format!("/b{created}"), 0).await {
            0 => created += 1,
            code => break code,
        }
    };
    assert_eq!(refusal, SYSTEM_ERROR);
    assert!((500..=750).contains(&created), "{created}");
    assert_eq!(flood.delete("/b0").await, 0);
    assert_eq!(flood.create("/b0", 0).await, 0, "what is deleted makes room");
    let mut second = door.begin(A).await.expect("a session");
    for nth in 0..50 {
        assert_eq!(second.create(&format!("/a{nth}"), 0).await, 0, "{nth}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_in_flight_once_all_is_answered() {
    let door = Door::new(ZkOptions::default(), 1000);
    let mut client = door.begin(A).await.expect("a session");
    assert_eq!(client.create("/a", 0).await, 0);
    assert_eq!(client.create("/a", 0).await, -110, "also where it fails");
    client.go_away().await;
    assert_eq!(door.used("flight-bytes"), 0);
}
