//! A disk that hangs: the requests that wait for it are bounded, for all connections together, and
//! are answered when the disk continues.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use compat_kafka::KafkaOptions;
use kafka_protocol::messages::{ApiVersionsRequest, ProduceRequest};
use storage::disk::Disk;
use testkit::disks::HangingDisk;
use testkit::kafka::{PATIENCE, TestKafkaConnection, TestKafkaServer, one_record_batch};
use testkit::requests::{encode_frame, produce_request};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;

const MIB: usize = 1 << 20;

async fn on(disk: &HangingDisk, options: KafkaOptions) -> TestKafkaServer {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let server = TestKafkaServer::start(disk, options, 64 * MIB).await;
    server.topic("t", &[]).await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn small_requests_that_wait_for_the_disk_are_bounded_for_all_connections_together() {
    const REQUESTS: usize = 100;
    const CONNECTIONS: usize = 4;
    let disk = HangingDisk::at_syncs(".journal");
    let options = KafkaOptions { requests_bytes_max: 8 * MIB, ..KafkaOptions::default() };
    let server = on(&disk, options).await;
    let request =
        encode_frame(9, &produce_request("t", 0, &one_record_batch(&vec![b'x'; 100 << 10])));
    let closed = disk.hook.close();
    let mut clients = Vec::new();
    for nth in 0..CONNECTIONS {
        // From an address of its own: one address has no more than three quarters of the room.
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, 2 + nth as u8], 0).into()).expect("an address of this machine");
        let stream = socket.connect(server.address).await.expect("somebody listens");
        let (read, mut write) = stream.into_split();
        let request = request.clone();
        let sending = tokio::spawn(async move {
            for _ in 0..REQUESTS {
                write.write_all(&request).await.expect("it is taken, sooner or later");
            }
            write
        });
        clients.push((read, sending));
    }
    // A quarter of the setting, and one request of each connection that needs no room.
    let bound = 2 * MIB + CONNECTIONS * request.len();
    let mut other = server.connect().await;
    let ask = encode_frame(0, &ApiVersionsRequest::default());
    let (mut asked, mut asked_when_full) = (0, None);
    let begun = std::time::Instant::now();
    loop {
        // Others are served meanwhile.
        other.send(&ask).await.expect("it is taken");
        other.response::<ApiVersionsRequest>(0).await.expect("an answer");
        asked += 1;
        let read = server.kafka.metrics().bytes_in.load(Ordering::Relaxed) as usize;
        let waiting = read - asked * ask.len();
        assert!(waiting <= bound, "{waiting} bytes wait, and {bound} may");
        if asked_when_full.is_none() && waiting + request.len() > bound - (8 << 10) {
            asked_when_full = Some(asked);
        }
        if asked_when_full.is_some_and(|full| asked > full + 500) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{waiting} bytes of {bound} wait");
    }
    assert!(clients.iter().all(|(_, sending)| !sending.is_finished()), "nobody is read from");
    drop(closed);
    for (read, sending) in clients {
        let answering = tokio::spawn(async move {
            let write = tokio::time::timeout(PATIENCE, sending).await.expect("all is read");
            write.expect("it was sent")
        });
        let mut answers = testkit::kafka::TestKafkaResponses(read);
        for _ in 0..REQUESTS {
            let answer = answers.next::<ProduceRequest>(9).await.expect("an answer");
            assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
        }
        answering.await.expect("it ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_waits_for_its_answer_is_not_idle() {
    let disk = HangingDisk::at_syncs(".journal");
    let idle_max = Duration::from_secs(1);
    let server = on(&disk, KafkaOptions { idle_max, ..KafkaOptions::default() }).await;
    let mut wire = TestKafkaConnection::connect(server.address).await;
    let closed = disk.hook.close();
    wire.send(&encode_frame(9, &produce_request("t", 0, &one_record_batch(b"x"))))
        .await
        .expect("it is taken");
    // One that is idle, from later on, is closed meanwhile.
    let mut idle = TestKafkaConnection::connect(server.address).await;
    let end = idle.response::<ProduceRequest>(9).await.expect_err("it was idle");
    assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof);
    drop(closed);
    let answer = wire.response::<ProduceRequest>(9).await.expect("an answer");
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
    let end = wire.response::<ProduceRequest>(9).await.expect_err("now it is idle");
    assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof);
}

/// The batch has no producer id.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_on_its_way_to_the_disk_is_charged_to_its_client() {
    let disk = HangingDisk::at_syncs(".journal");
    let server = on(&disk, KafkaOptions::default()).await;
    let usage = || {
        let usages = server.engine.core().budgets().usages();
        usages.into_iter().find(|usage| usage.name == "flight-bytes").expect("it is listed")
    };
    let closed = disk.hook.close();
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 2], 0).into()).expect("an address of this machine");
    let mut stream = socket.connect(server.address).await.expect("somebody listens");
    let request = produce_request("t", 0, &one_record_batch(&[b'x'; 5000]));
    stream.write_all(&encode_frame(9, &request)).await.expect("it is taken");
    let begun = std::time::Instant::now();
    while usage().used == 0 {
        assert!(begun.elapsed() < PATIENCE, "nothing is on its way");
        tokio::task::yield_now().await;
    }
    let largest = usage().largest.expect("somebody writes");
    assert_eq!(largest.name, "127.0.0.2");
    assert!(largest.used >= 5000, "{largest:?}");
    drop(closed);
    let (read, _write) = stream.into_split();
    let mut answers = testkit::kafka::TestKafkaResponses(read);
    answers.next::<ProduceRequest>(9).await.expect("an answer");
    // The answer leaves before the journal gives the room back, or after.
    while usage().used > 0 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", usage());
        tokio::task::yield_now().await;
    }
}
