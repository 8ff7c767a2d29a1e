//! More clients than descriptors: the store keeps what it needs, and the clients that are connected
//! are served.

use std::net::TcpStream;

use bytes::Bytes;
use kafka_records::{BatchBuilder, BatchIterator, CompressionType};
use testkit::directory::TestDirectory;
use testkit::process::{RawKafkaConnection, TestServer, http_get};

/// A low limit: 64 are reserved for the journal and 128 for the rest.
const DESCRIPTORS_MAX: u32 = 256;
const CLIENTS: usize = 400;

fn batch(nth: i64) -> Bytes {
    let value = vec![b'x'; 100 << 10];
    BatchBuilder::new(CompressionType::None).record(nth, None, Some(&value), &[]).build()
}

/// The number of times that a message was logged.
fn count(said: &str, message: &str) -> usize {
    said.matches(message).count()
}

#[test]
fn more_clients_than_descriptors_do_not_keep_the_store_from_rolling_segments() {
    let data = TestDirectory::new();
    let arguments = ["--set", "storage.segment-bytes=1MiB"];
    let mut server =
        TestServer::start_after(&format!("ulimit -n {DESCRIPTORS_MAX}"), data.path(), &arguments)
            .expect("the server starts");
    let mut good = RawKafkaConnection::connect(server.kafka);
    good.create_topic("t", 1, &[]);
    let mut crowd: Vec<TcpStream> = Vec::new();
    let mut written = 0;
    for _ in 0..4 {
        for _ in 0..CLIENTS / 4 {
            crowd.extend(TcpStream::connect(server.kafka).ok());
        }
        // Several segments of a MiB each, while all clients are still connected.
        for _ in 0..40 {
            assert_eq!(good.produce("t", 0, &batch(written)), (0, written));
            written += 1;
        }
        let (status, said) = http_get(server.http, "/healthz").expect("the admin port answers");
        assert_eq!((status, said.as_str()), (200, "ok\n"));
    }
    let mut read = 0;
    while read < written {
        let (error, end, batches) = good.fetch("t", 0, read);
        assert_eq!((error, end), (0, written));
        let last = BatchIterator::new(&batches).last().expect("a batch").expect("a whole one");
        read = last.0.last_offset() + 1;
    }
    assert!(server.is_running());
    let said = server.stderr();
    assert!(said.contains("max.connections"), "what it lacks was said at the start: {said}");
    // Hundreds were refused.
    let warnings = count(&said, "connections are not accepted");
    assert!((1..10).contains(&warnings), "{warnings} warnings: {said}");
    drop(crowd);
    assert_eq!(server.stop().expect("it stops").code(), Some(0));
}

#[test]
fn the_admin_port_answers_while_others_sit_on_it() {
    let data = TestDirectory::new();
    let mut server = TestServer::start(data.path(), &[]).expect("the server starts");
    let mut crowd = Vec::new();
    for nth in 0..200 {
        let mut stream = TcpStream::connect(server.http).expect("it listens");
        // Nothing, half a head, or a head without its body.
        let sent = match nth % 3 {
            0 => "",
            1 => "GET /healthz HTTP/1.1\r\nHost:",
            _ => "POST /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
        };
        let _ = std::io::Write::write_all(&mut stream, sent.as_bytes());
        crowd.push(stream);
        if nth % 20 == 0 {
            let (status, _) = http_get(server.http, "/healthz").expect("it answers");
            assert_eq!(status, 200);
        }
    }
    let (status, _) = http_get(server.http, "/metrics").expect("it answers");
    assert_eq!(status, 200);
    assert!(server.is_running());
}
