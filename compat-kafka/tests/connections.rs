//! Clients that take all connections: others find a place.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use compat_kafka::{
    ConnectionLimits, DynamicOptions, KafkaListener, KafkaOptions, SaslMechanism, SaslOptions,
};
use kafka_protocol::messages::{
    ApiVersionsRequest, SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest,
};
use storage::disk::MemoryDisk;
use testkit::kafka::{TestKafkaConnection, TestKafkaServer};
use testkit::requests::str_bytes;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

const CONNECTIONS_MAX: usize = 32;
const MIB: usize = 1 << 20;

async fn serve() -> TestKafkaServer {
    let limits = ConnectionLimits { max: CONNECTIONS_MAX, ..ConnectionLimits::NONE };
    let dynamic = DynamicOptions { limits, ..DynamicOptions::default() };
    let options = KafkaOptions { dynamic, ..KafkaOptions::default() };
    TestKafkaServer::start(Arc::new(MemoryDisk::new()), options, 64 * MIB).await
}

/// A connection from another address of this machine.
async fn connect_from(server: &TestKafkaServer, last: u8) -> TestKafkaConnection {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, last], 0).into()).expect("an address of this machine");
    TestKafkaConnection(socket.connect(server.address).await.expect("somebody listens"))
}

async fn is_served(wire: &mut TestKafkaConnection) -> bool {
    wire.ask(0, &ApiVersionsRequest::default()).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_to_an_open_port_make_room() {
    let server = serve().await;
    let mut before = connect_from(&server, 2).await;
    assert!(is_served(&mut before).await);
    let mut silent = Vec::new();
    for _ in 0..2 * CONNECTIONS_MAX {
        silent.push(connect_from(&server, 3).await);
    }
    for last in [3, 4, 4] {
        let mut wire = connect_from(&server, last).await;
        assert!(is_served(&mut wire).await, "127.0.0.{last}");
    }
    assert!(is_served(&mut before).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_of_an_address_make_room_for_others() {
    let server = serve().await;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut wire = connect_from(&server, 3).await;
        assert!(is_served(&mut wire).await);
        idle.push(wire);
    }
    let mut others = Vec::new();
    for _ in 0..4 {
        let mut wire = connect_from(&server, 4).await;
        assert!(is_served(&mut wire).await);
        others.push(wire);
    }
    for wire in &mut others {
        assert!(is_served(wire).await);
    }
    let usages = server.engine.budgets().usages();
    let usage = usages.iter().find(|usage| usage.name == "connections").expect("it is listed");
    assert_eq!(usage.limit, CONNECTIONS_MAX as u64);
    assert_eq!(usage.largest.as_ref().expect("it has holders").name, "127.0.0.3");
}

/// Sends a message of so many bytes by this mechanism.
async fn authenticate(
    wire: &mut TestKafkaConnection,
    mechanism: SaslMechanism,
    length: usize,
) -> io::Result<SaslAuthenticateResponse> {
    let handshake = SaslHandshakeRequest::default().with_mechanism(str_bytes(mechanism.as_str()));
    assert_eq!(wire.ask(1, &handshake).await.expect("an answer").error_code, 0);
    let message = Bytes::from(vec![b'x'; length]);
    wire.ask(2, &SaslAuthenticateRequest::default().with_auth_bytes(message)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_tokens_are_long_before_a_login() {
    let server = serve().await;
    let (plain, token) = (SaslMechanism::Plain, SaslMechanism::OauthBearer);
    let mechanisms = BTreeSet::from([plain, token]);
    let sasl = Some(SaslOptions { mechanisms, ..SaslOptions::default() });
    let listener = KafkaListener { sasl, ..KafkaListener::plain() };
    let socket = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = socket.local_addr().expect("its address");
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(compat_kafka::serve(
        Arc::clone(&server.kafka),
        socket,
        Arc::new(listener),
        stopped,
    ));
    for (mechanism, length, is_answered) in [
        (plain, 60 << 10, true),
        (plain, 70 << 10, false),
        (token, 70 << 10, true),
        (token, 500 << 10, true),
        (token, 600 << 10, false),
    ] {
        let mut wire = TestKafkaConnection::connect(address).await;
        let answer = authenticate(&mut wire, mechanism, length).await;
        assert_eq!(answer.is_ok(), is_answered, "{mechanism} {length}");
    }
}
