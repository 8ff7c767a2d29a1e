//! Clients that send or read slowly: each is ended, and others are served meanwhile.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use compat_kafka::{KafkaOptions, TransferLimits};
use storage::disk::MemoryDisk;
use testkit::kafka::{PATIENCE, TestKafkaConnection, TestKafkaServer, one_record_batch};
use testkit::requests::{encode_frame, fetch_request, produce_request};
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;

const MIB: usize = 1 << 20;
const OFFSET_OUT_OF_RANGE: i16 = 1;
/// Slower than any client here is allowed to be.
const TRICKLE: Duration = Duration::from_millis(20);

/// The longest pause of a client: short, for the test.
const STALL_MAX: Duration = Duration::from_secs(2);

fn options() -> KafkaOptions {
    let transfers = TransferLimits { stall_max: STALL_MAX, rate_min: 1 << 20 };
    KafkaOptions { transfer_limits: transfers, ..KafkaOptions::default() }
}

async fn serve(options: KafkaOptions) -> TestKafkaServer {
    let server = TestKafkaServer::start(Arc::new(MemoryDisk::new()), options, 64 * MIB).await;
    server.topic("t", &[]).await;
    server
}

fn large() -> Bytes {
    one_record_batch(&vec![b'x'; 900 << 10])
}

/// A connection with small socket buffers.
async fn narrow(address: SocketAddr) -> TestKafkaConnection {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(16 << 10).expect("a small window");
    TestKafkaConnection(socket.connect(address).await.expect("somebody listens"))
}

fn slow(server: &TestKafkaServer) -> u64 {
    server.kafka.metrics().connections_slow.load(Ordering::Relaxed)
}

fn evicted(server: &TestKafkaServer, budget: &str) -> u64 {
    let found = server.kafka.budgets().into_iter().find(|(name, ..)| *name == budget);
    found.expect("a budget of this name").2
}

/// Trickles with `act` until `is_over`. Another client is served meanwhile, with small requests and
/// with large ones.
async fn trickle<F: Future<Output = ()>>(
    server: &TestKafkaServer,
    mut act: impl FnMut() -> F,
    is_over: impl Fn() -> bool,
) {
    let mut other = server.connect().await;
    let begun = Instant::now();
    let mut served = 0;
    while !is_over() || served == 0 {
        assert!(begun.elapsed() < PATIENCE, "the slow client is never ended");
        act().await;
        assert_eq!(other.produce("t", one_record_batch(b"small")).await.0, 0);
        assert_eq!(other.produce("t", large()).await.0, 0);
        served += 1;
        tokio::time::sleep(TRICKLE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_trickles_its_request_is_ended() {
    let server = serve(options()).await;
    let request = encode_frame(9, &produce_request("t", 0, &large()));
    let mut wire = server.connect().await;
    wire.send(&request[..800 << 10]).await.expect("it is taken");
    let wire = Arc::new(tokio::sync::Mutex::new(wire));
    let one = || async { drop(wire.lock().await.send(&[0]).await) };
    trickle(&server, one, || slow(&server) == 1).await;
    // Within a length, after it, and within a small frame too.
    let mut wires = Vec::new();
    for bytes in [&request[..1], &request[..4], &[0, 0, 0, 200, 0]] {
        let mut wire = server.connect().await;
        wire.send(bytes).await.expect("it is taken");
        wires.push(wire);
    }
    for mut wire in wires {
        let end = tokio::time::timeout(PATIENCE, wire.0.read(&mut [0])).await;
        assert!(matches!(end, Ok(Ok(0) | Err(_))), "{end:?}");
    }
    // It is counted once it is closed.
    let begun = Instant::now();
    while slow(&server) < 4 {
        assert!(begun.elapsed() < PATIENCE, "{} were counted", slow(&server));
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_nothing_at_all_is_ended_sooner_than_an_idle_one() {
    let server = serve(options()).await;
    let (mut silent, mut idle) = (server.connect().await, server.connect().await);
    assert_eq!(idle.produce("t", one_record_batch(b"x")).await.0, 0);
    let end = tokio::time::timeout(PATIENCE, silent.0.read(&mut [0])).await;
    assert_eq!(end.expect("an end").expect("an orderly one"), 0);
    assert_eq!(
        idle.produce("t", one_record_batch(b"x")).await.0,
        0,
        "that one may be idle for minutes"
    );
}

/// The second request is not served before the first, which waits for records, so the server does
/// not read.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_while_its_requests_wait_leaves_its_slot_and_what_it_sent_counts() {
    let server = serve(options()).await;
    let connections = || server.kafka.metrics().connections.load(Ordering::Relaxed);
    assert_eq!(connections(), 0);
    let mut client = server.connect().await;
    let fetch = encode_frame(12, &fetch_request("t", 0, 0, 100 * PATIENCE));
    let produce = encode_frame(9, &produce_request("t", 0, &one_record_batch(b"last words")));
    client.send(&[fetch, produce].concat()).await.expect("it is taken");
    let is_read = || server.kafka.metrics().requests().any(|(api, _)| api == "Produce");
    let begun = Instant::now();
    while !is_read() {
        assert!(begun.elapsed() < PATIENCE, "both are read");
        tokio::task::yield_now().await;
    }
    assert_eq!(connections(), 1);
    drop(client);
    while connections() > 0 {
        assert!(begun.elapsed() < PATIENCE, "the client has gone");
        tokio::time::sleep(TRICKLE).await;
    }
    let mut other = server.connect().await;
    assert_eq!(other.produce("t", one_record_batch(b"x")).await, (0, 1), "it is the second");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_trickles_through_its_answer_is_ended() {
    let server = serve(options()).await;
    let mut other = server.connect().await;
    for _ in 0..16 {
        assert_eq!(other.produce("t", large()).await.0, 0);
    }
    let wire = Arc::new(tokio::sync::Mutex::new(narrow(server.address).await));
    wire.lock()
        .await
        .send(&encode_frame(12, &fetch_request("t", 0, 0, Duration::ZERO)))
        .await
        .expect("it is taken");
    let one = || async { drop(wire.lock().await.0.read_u8().await) };
    trickle(&server, one, || slow(&server) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_keeps_to_the_rate_is_served_however_long_it_takes() {
    let transfers = TransferLimits { stall_max: STALL_MAX, rate_min: 100 << 10 };
    let server =
        serve(KafkaOptions { transfer_limits: transfers, ..KafkaOptions::default() }).await;
    let mut wire = server.connect().await;
    let request = encode_frame(9, &produce_request("t", 0, &large()));
    // About twice the rate, for several times as long as it may pause.
    for piece in request.chunks(20 << 10) {
        wire.send(piece).await.expect("it is taken");
        tokio::time::sleep(Duration::from_millis(80)).await;
    }
    let answer = wire.response::<kafka_protocol::messages::ProduceRequest>(9).await;
    let answer = answer.expect("it was not ended");
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_stand_still_make_room_for_others() {
    // They may pause for long, and there is no room for others.
    let transfers = TransferLimits { stall_max: Duration::from_secs(6), rate_min: 4 << 10 };
    let options = KafkaOptions {
        transfer_limits: transfers,
        requests_bytes_max: 8 * MIB,
        ..KafkaOptions::default()
    };
    let server = serve(options).await;
    let request =
        encode_frame(9, &produce_request("t", 0, &one_record_batch(&vec![b'x'; 3 * MIB])));
    let mut standing = Vec::new();
    for _ in 0..6 {
        let mut wire = server.connect().await;
        wire.send(&request[..MIB + (400 << 10)]).await.expect("it is taken");
        standing.push(wire);
    }
    let begun = Instant::now();
    while server.kafka.budgets()[0].1 < 7 * MIB as u64 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", server.kafka.budgets());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut other = server.connect().await;
    assert_eq!(other.produce("t", large()).await.0, 0);
    assert!(evicted(&server, "large_requests") >= 1, "somebody made room");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_takes_are_bounded_and_make_room_for_others() {
    let transfers = TransferLimits { stall_max: Duration::from_secs(6), rate_min: 4 << 10 };
    let options = KafkaOptions {
        transfer_limits: transfers,
        responses_bytes_max: 8 * MIB,
        ..KafkaOptions::default()
    };
    let server = serve(options).await;
    let mut other = server.connect().await;
    for _ in 0..8 {
        assert_eq!(other.produce("t", large()).await.0, 0);
    }
    let ask = encode_frame(12, &fetch_request("t", 0, 0, Duration::ZERO));
    let mut deaf = Vec::new();
    for _ in 0..12 {
        let mut wire = narrow(server.address).await;
        for _ in 0..20 {
            wire.send(&ask).await.expect("small requests fit into the socket's buffers");
        }
        deaf.push(wire);
    }
    let begun = Instant::now();
    while evicted(&server, "responses") == 0 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", server.kafka.budgets());
        let (_, held, _) = server.kafka.budgets()[2];
        assert!(held <= 8 * MIB as u64, "{held} bytes of answers");
        let (error, batches) = other.fetch("t", 0).await.expect("others are served meanwhile");
        assert_eq!(error, 0);
        assert!(!batches.is_empty());
    }
}

/// Nothing is corrupt then: the space of what a client was still to get was given back.
#[tokio::test(flavor = "multi_thread")]
async fn who_reads_so_slowly_that_records_go_is_disconnected_and_nothing_counts_as_corrupt() {
    const BATCHES: u64 = 24;
    let options = KafkaOptions::default();
    let server = TestKafkaServer::start(Arc::new(MemoryDisk::new()), options, 0).await;
    for topic in ["t", "other"] {
        server.topic(topic, &[]).await;
    }
    let mut other = server.connect().await;
    for _ in 0..BATCHES {
        assert_eq!(other.produce("t", large()).await.0, 0);
        assert_eq!(other.produce("other", large()).await.0, 0);
    }
    let maintenance = server.engine.maintenance();
    maintenance.roll_segment().await.expect("the disk is whole");
    maintenance.index_and_sort().await.expect("the disk is whole");
    let mut slow = narrow(server.address).await;
    let mut ask = fetch_request("t", 0, 0, Duration::ZERO);
    ask.max_bytes = i32::MAX;
    ask.topics[0].partitions[0].partition_max_bytes = i32::MAX;
    slow.send(&encode_frame(12, &ask)).await.expect("it is taken");
    let announced = slow.0.read_u32().await.expect("an answer") as usize;
    assert!(announced > BATCHES as usize * (900 << 10), "{announced} bytes");
    let topic = server.engine.topics().named("t").expect("it is there");
    let deleted = server.engine.topics().delete_records(&topic, 0, BATCHES as i64).await;
    assert_eq!(deleted.expect("it is done").0, BATCHES);
    for _ in 0..2 {
        maintenance.reclaim().await.expect("the disk is whole");
    }
    let mut read = Vec::new();
    let end = tokio::time::timeout(PATIENCE, slow.0.read_to_end(&mut read)).await;
    assert!(end.is_ok() && read.len() < announced, "{} of {announced}", read.len());
    assert_eq!(server.kafka.metrics().corrupt_reads.load(Ordering::Relaxed), 0);
    assert_eq!(other.fetch("t", 0).await.expect("an answer").0, OFFSET_OUT_OF_RANGE);
    assert_eq!(other.fetch("other", 0).await.expect("an answer").0, 0);
}
