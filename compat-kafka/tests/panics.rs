//! A panic in a request ends its connection, or fails the request, and nothing else. The threads
//! that end the process are tested in `engine/core/tests/panics.rs`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use compat_kafka::KafkaOptions;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::ApiVersionsRequest;
use storage::disk::MemoryDisk;
use testkit::disks::{DiskHook, HookedDisk};
use testkit::kafka::{START, TestKafkaServer, one_record_batch};
use testkit::requests::list_offsets_request;

/// Threads that own the store's state: a panic in one of them would abort.
const OWNERS: [&str; 5] = ["journal", "bound", "namespace", "catalog", "maintenance"];

/// Panics in reads of requests.
#[derive(Default)]
struct PanicHook(AtomicBool);

impl DiskHook for PanicHook {
    fn before_read(&self, _name: &str, _position: u64) -> io::Result<()> {
        let thread = std::thread::current();
        let is_owner = thread.name().is_some_and(|name| OWNERS.contains(&name));
        assert!(is_owner || !self.0.load(Ordering::SeqCst), "this read was to panic");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_request_ends_its_connection_and_others_go_on() {
    let hook = Arc::new(PanicHook::default());
    let disk = HookedDisk::new(MemoryDisk::new(), Arc::clone(&hook));
    // Nothing stays in memory, so a fetch reads the disk.
    let server = TestKafkaServer::start(Arc::new(disk), KafkaOptions::default(), 0).await;
    server.topic("t", &[]).await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    assert_eq!(first.produce("t", one_record_batch(&[7; 20_000])).await, (0, 0));
    let (code, batch) = first.fetch("t", 0).await.expect("it is answered");
    assert_eq!(code, 0);
    hook.0.store(true, Ordering::SeqCst);
    // A thread of the blocking pool reads for it: the request fails, and can be retried.
    let (code, nothing) = first.fetch("t", 0).await.expect("it is answered");
    assert_eq!((code, nothing.len()), (ResponseError::KafkaStorageError.code(), 0));
    // The connection's own task reads.
    let ended = tokio::time::timeout(
        Duration::from_secs(30),
        first.ask(4, &list_offsets_request("t", 0, START as i64)),
    )
    .await;
    assert!(ended.expect("the connection ends").is_err(), "the panic ends its connection");
    second.ask(0, &ApiVersionsRequest::default()).await.expect("others are answered meanwhile");
    hook.0.store(false, Ordering::SeqCst);
    assert_eq!(second.fetch("t", 0).await.expect("it is answered"), (0, batch));
    assert_eq!(second.produce("t", one_record_batch(b"x")).await, (0, 1), "writes go on");
}
