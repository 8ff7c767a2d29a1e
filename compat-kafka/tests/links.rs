//! Records that move by a link (F25, F30), beside clients that have none. Each test runs over TCP
//! everywhere, and by RDMA where the machine has a device; `rdma/vm/test` runs them where it has
//! none. With FREEZEFRAME_NEEDS_RDMA set, a machine without a device is a failure.
//!
//! Run it in one thread: some tests count what the process has of its devices.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use client::history::PendingMomentPolicy;
use client::{Client, ClientError, FetchOptions, LinkChoice, Options, RequiredAcks};
use compat_kafka::{KafkaOptions, LinkDevices};
use hlc::{Cut, Hlc, Moment, MomentSelector};
use kafka_protocol::messages::{ApiKey, FetchRequest, ProduceRequest, RequestHeader};
use kafka_protocol::protocol::{Encodable, StrBytes};
use kafka_records::{BatchBuilder, BatchIterator, CompressionType, DecompressionLimit, records};
use rdma::protocol::{
    CallBody, LINK_API_KEY, LinkAnswer, LinkCall, LinkRequest, RefusalCode, RegionToken,
    ResponsePlace,
};
use rdma::{
    CompletionMode, ExposedMemory, MemoryArena, PeerEnd, RemoteRegion, VerbsDevice, devices,
    resources, usable_ports,
};
use storage::disk::MemoryDisk;
use testkit::kafka::{START, TestKafkaConnection, TestKafkaServer};
use testkit::requests::{fetch_request, produce_request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;
const UNPACKED: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 64 * MIB };

/// A server, with the machine's first RDMA device if it has one.
struct LinkServer {
    server: TestKafkaServer,
    has_device: bool,
    /// The device's name.
    device: String,
    arena: Option<MemoryArena>,
}

impl LinkServer {
    async fn start() -> LinkServer {
        LinkServer::start_with_tail(64 * MIB).await
    }

    /// With so much memory for the newest payloads, and for what is read from files.
    async fn start_with_tail(bytes_max: usize) -> LinkServer {
        LinkServer::start_with_arena(bytes_max, 256 * MIB).await
    }

    /// The same, with so much memory that devices may use.
    async fn start_with_arena(bytes_max: usize, arena_bytes_max: usize) -> LinkServer {
        let ports = usable_ports(&devices().unwrap(), None);
        let Some(port) = ports.into_iter().next() else {
            assert!(std::env::var_os("FREEZEFRAME_NEEDS_RDMA").is_none(), "no RDMA device");
            eprintln!("only over TCP: this machine has no active RDMA port");
            let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
            let options = KafkaOptions::default();
            return LinkServer::start_with(local, options, (false, bytes_max)).await;
        };
        let (address, device) = (port.gid.address.ip(), port.device.clone());
        let device_of_server = vec![VerbsDevice::open(port).unwrap()];
        let arena = MemoryArena::new(device_of_server, arena_bytes_max).unwrap();
        arena.maintain();
        let links =
            Some(LinkDevices { arena: arena.clone(), completion_mode: CompletionMode::Sleep });
        let options = KafkaOptions { links, ..KafkaOptions::default() };
        let started = LinkServer::start_with(address, options, (true, bytes_max)).await;
        LinkServer { device, arena: Some(arena), ..started }
    }

    async fn start_with(
        address: IpAddr,
        options: KafkaOptions,
        (has_device, tail_bytes_max): (bool, usize),
    ) -> LinkServer {
        let disk = std::sync::Arc::new(MemoryDisk::new());
        let server = TestKafkaServer::start_at(address, disk, options, tail_bytes_max).await;
        LinkServer { server, has_device, device: String::new(), arena: None }
    }

    /// The links that can be had here.
    fn choices(&self) -> Vec<LinkChoice> {
        match self.has_device {
            true => vec![LinkChoice::Tcp, LinkChoice::Rdma],
            false => vec![LinkChoice::Tcp, LinkChoice::Auto],
        }
    }

    async fn client(&self, link: LinkChoice) -> Client {
        let options = Options { link, ..Options::default() };
        Client::connect(&self.server.address.to_string(), options).await.unwrap()
    }

    async fn topic(&self, name: &str, partitions: u32) {
        let configs = BTreeMap::from([("max.message.bytes".to_owned(), (64 * MIB).to_string())]);
        let mut id = [7; 16];
        id[..name.len()].copy_from_slice(name.as_bytes());
        self.server.engine.topics().create(name, partitions, configs, id, false).await.unwrap();
    }

    /// What links wrote, read, and had to copy, in bytes.
    fn moved(&self) -> (u64, u64, u64) {
        let metrics = self.server.kafka.metrics();
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        (
            load(&metrics.link_bytes_written),
            load(&metrics.link_bytes_read),
            load(&metrics.link_bytes_copied),
        )
    }

    /// What links have of devices: queue pairs, regions and open devices.
    fn held_by_links(&self) -> (u64, u64, u64) {
        let (all, arena) = (resources(), self.arena.as_ref().map_or(0, MemoryArena::registrations));
        (all.queue_pairs, all.registrations - arena, all.devices)
    }

    fn open_links(&self) -> u64 {
        self.server.kafka.metrics().links.load(Ordering::Relaxed)
    }

    /// Waits until no link is open.
    async fn links_closed(&self) {
        while self.open_links() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A batch of `count` records of `length` bytes, which differ from those of other seeds.
fn batch(seed: u64, count: usize, length: usize) -> Bytes {
    let mut builder = BatchBuilder::new(CompressionType::None);
    for nth in 0..count as u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ nth;
        let mut value = Vec::with_capacity(length + 8);
        while value.len() < length {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(nth | 1);
            value.extend_from_slice(&state.to_le_bytes());
        }
        value.truncate(length);
        builder.record(START as i64, None, Some(&value), &[]);
    }
    builder.build()
}

async fn produce(client: &mut Client, topic: &str, partition: i32, batch: &Bytes) -> i64 {
    let batches = BTreeMap::from([(partition, batch.clone())]);
    let placed = client.produce(topic, RequiredAcks::All, batches).await.unwrap();
    placed[0].base_offset
}

/// Every value of a partition, in order.
async fn values(client: &mut Client, topic: &str, partition: i32, end: i64) -> Vec<Bytes> {
    let options = FetchOptions { wait_max: Duration::ZERO, ..FetchOptions::default() };
    let (mut values, mut next) = (Vec::new(), 0);
    while next < end {
        let fetched = client.fetch(topic, &[(partition, next)], &options).await.unwrap();
        let before = next;
        for batch in BatchIterator::new(&fetched[0].batches) {
            let Ok((header, bytes)) = batch else { break };
            let bytes = Bytes::copy_from_slice(bytes);
            let found = records(&bytes, UNPACKED).unwrap().map(Result::unwrap);
            let fresh = found.filter(|record| record.offset >= next);
            values.extend(fresh.map(|record| record.value.unwrap()));
            next = header.last_offset() + 1;
        }
        assert!(next > before, "a fetch brings something");
    }
    values
}

fn run<F: Future<Output = ()>>(test: F) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { timeout(LIMIT, test).await }).expect("the test takes too long");
}

#[test]
fn what_was_written_by_one_link_is_read_by_every_other() {
    run(async {
        let server = LinkServer::start().await;
        for link in server.choices() {
            let topic = format!("{link:?}");
            server.topic(&topic, 1).await;
            let mut client = server.client(link).await;
            // Shorter than what is sent without a link, around the lengths of buffers, and longer.
            let lengths = [(1, 10), (100, 40), (1, 100_000), (3, 300_000), (1, 5_000_000)];
            let (mut expected, mut end) = (Vec::new(), 0);
            for (seed, (count, length)) in lengths.into_iter().enumerate() {
                let batch = batch(seed as u64, count, length);
                assert_eq!(produce(&mut client, &topic, 0, &batch).await, end);
                end += count as i64;
                expected.extend(record_values(&batch));
            }
            for reader in server.choices() {
                let mut client = server.client(reader).await;
                assert!(
                    values(&mut client, &topic, 0, end).await == expected,
                    "{link:?} {reader:?}"
                );
            }
        }
    });
}

fn record_values(batch: &Bytes) -> Vec<Bytes> {
    records(batch, UNPACKED).unwrap().map(|record| record.unwrap().value.unwrap()).collect()
}

/// Zero copies of payloads on the server, whichever way they came (F25).
#[test]
fn payloads_in_memory_are_not_copied_for_a_link() {
    run(async {
        let server = LinkServer::start().await;
        if !server.has_device {
            return;
        }
        server.topic("t", 2).await;
        let (small, large) = (batch(1, 10, 100), batch(2, 1, 2_000_000));
        for (partition, link) in [(0, LinkChoice::Tcp), (1, LinkChoice::Rdma)] {
            let mut writer = server.client(link).await;
            for batch in [&small, &large, &small] {
                produce(&mut writer, "t", partition, batch).await;
            }
        }
        let (_, read, _) = server.moved();
        assert!(
            read as usize > large.len(),
            "the server read what the second client wrote: {read}"
        );
        let mut reader = server.client(LinkChoice::Rdma).await;
        for partition in [0, 1] {
            let expected = [&small, &large, &small].map(record_values).concat();
            assert!(values(&mut reader, "t", partition, 21).await == expected);
        }
        let (written, _, copied) = server.moved();
        assert!(written as usize > 2 * large.len(), "{written}");
        assert_eq!(copied, 0);
    });
}

/// Where payloads do not fit into the memory that devices may use, links go on with copies.
#[test]
fn a_link_copies_what_did_not_fit_and_a_response_finds_the_room_that_it_needs() {
    run(async {
        let server = LinkServer::start_with_arena(64 * MIB, 4 * MIB).await;
        if !server.has_device {
            return;
        }
        server.topic("t", 1).await;
        let mut writer = server.client(LinkChoice::Rdma).await;
        let mut written = Vec::new();
        for seed in 0..6 {
            let batch = batch(seed, 1, 3_000_000);
            produce(&mut writer, "t", 0, &batch).await;
            written.extend(record_values(&batch));
        }
        let mut reader = server.client(LinkChoice::Rdma).await;
        // Far less than the first batch.
        let options =
            FetchOptions { wait_max: Duration::ZERO, partition_bytes_max: 1000, bytes_max: 1000 };
        for (offset, value) in written.iter().enumerate() {
            let fetched = reader.fetch("t", &[(0, offset as i64)], &options).await.unwrap();
            assert!(record_values(&fetched[0].batches) == [value.clone()], "{offset}");
        }
        assert!(server.moved().2 > 0, "some were copied");
    });
}

/// Zero copies of what is read from files either: it is read to where the device sends from.
#[test]
fn payloads_in_files_are_not_copied_for_a_link() {
    run(async {
        // With room for blocks of files, and without.
        for tail_bytes_max in [16 * MIB, MIB] {
            let server = LinkServer::start_with_tail(tail_bytes_max).await;
            server.topic("t", 1).await;
            let lengths = [1_000_000, 5000, 40_000, 1_000_000, 2_500_000];
            let mut writer = server.client(LinkChoice::Tcp).await;
            let mut written = Vec::new();
            for (seed, length) in lengths.into_iter().cycle().take(40).enumerate() {
                let batch = batch(seed as u64, 1, length);
                produce(&mut writer, "t", 0, &batch).await;
                written.extend(record_values(&batch));
            }
            for link in server.choices() {
                let mut reader = server.client(link).await;
                assert!(values(&mut reader, "t", 0, 40).await == written, "{link:?}");
            }
            let (sent, _, copied) = server.moved();
            assert_eq!(sent > 30_000_000, server.has_device, "{sent}");
            assert_eq!(copied, 0);
        }
    });
}

#[test]
fn a_million_records_are_the_same_byte_by_byte() {
    run(async {
        const BATCHES: u64 = 1000;
        const RECORDS: usize = 1000;
        let server = LinkServer::start().await;
        for link in server.choices() {
            let topic = format!("{link:?}");
            server.topic(&topic, 1).await;
            let mut client = server.client(link).await;
            for seed in 0..BATCHES {
                produce(&mut client, &topic, 0, &batch(seed, RECORDS, 20)).await;
            }
            let options = FetchOptions { wait_max: Duration::ZERO, ..FetchOptions::default() };
            let (mut next, mut seed) = (0, 0);
            while seed < BATCHES {
                let fetched = client.fetch(&topic, &[(0, next)], &options).await.unwrap();
                for found in BatchIterator::new(&fetched[0].batches) {
                    let Ok((header, bytes)) = found else { break };
                    assert_eq!(header.base_offset, seed as i64 * RECORDS as i64);
                    let written = batch(seed, RECORDS, 20);
                    // The server fills the offset and the epoch in; the rest is the client's.
                    assert!(bytes[17..] == written[17..], "batch {seed}");
                    (next, seed) = (header.last_offset() + 1, seed + 1);
                }
            }
        }
    });
}

#[test]
fn responses_that_are_in_use_are_not_written_over() {
    run(async {
        let server = LinkServer::start().await;
        for link in server.choices() {
            let topic = format!("{link:?}");
            server.topic(&topic, 1).await;
            let mut client = server.client(link).await;
            for seed in 0..40 {
                produce(&mut client, &topic, 0, &batch(seed, 1, 100_000)).await;
            }
            // More than a client has regions for. A client that must have a link is refused then,
            // and any other one goes over TCP.
            let options = FetchOptions { bytes_max: 1, ..FetchOptions::default() };
            let mut kept = Vec::new();
            for offset in 0..40 {
                match client.fetch(&topic, &[(0, offset)], &options).await {
                    Ok(fetched) => kept.push((offset, fetched[0].batches.clone())),
                    Err(error) => {
                        assert!(matches!(error, ClientError::NoLink { .. }), "{error}");
                        assert_eq!(kept.len(), 32);
                        break;
                    }
                }
            }
            for (offset, batches) in &kept {
                assert!(batches[61..] == batch(*offset as u64, 1, 100_000)[61..], "{offset}");
            }
            kept.clear();
            client.fetch(&topic, &[(0, 39)], &options).await.unwrap();
        }
    });
}

#[test]
fn a_client_without_a_device_is_told_so_if_it_must_have_one() {
    run(async {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let server = LinkServer::start_with(local, KafkaOptions::default(), (false, MIB)).await;
        server.topic("t", 1).await;
        let mut client = server.client(LinkChoice::Rdma).await;
        let batches = BTreeMap::from([(0, batch(1, 1, 10))]);
        let error = client.produce("t", RequiredAcks::All, batches.clone()).await.unwrap_err();
        assert!(matches!(&error, ClientError::NoLink { .. }), "{error}");
        assert!(error.to_string().contains("RDMA device"), "{error}");
        let mut client = server.client(LinkChoice::Auto).await;
        client.produce("t", RequiredAcks::All, batches).await.unwrap();
    });
}

#[test]
fn nothing_is_left_of_the_links_of_clients_that_go_or_die() {
    run(async {
        let server = LinkServer::start().await;
        if !server.has_device {
            return;
        }
        server.topic("t", 1).await;
        let batch = batch(1, 1, 4_000_000);
        let mut client = server.client(LinkChoice::Rdma).await;
        for _ in 0..5 {
            produce(&mut client, "t", 0, &batch).await;
        }
        drop(client);
        server.links_closed().await;
        devices_open(1).await;
        let before = server.held_by_links();
        assert_eq!(before, (0, 0, 1));
        for nth in 0..20 {
            let mut client = server.client(LinkChoice::Rdma).await;
            let options = FetchOptions::default();
            // Dropped somewhere in a transfer.
            let fetch = client.fetch("t", &[(0, 0)], &options);
            let _ = timeout(Duration::from_millis(nth * 3), fetch).await;
        }
        // The server may open a link after its client has gone, and close it then.
        while server.held_by_links() != before || server.open_links() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // A stock client finds everything as it was.
        let mut stock = server.server.connect().await;
        let (error, batches) = stock.fetch("t", 4).await.unwrap();
        assert_eq!(error, 0);
        assert!(batches[61..] == batch[61..]);
    });
}

async fn rdma(arguments: String) {
    let run = move || Command::new("rdma").args(arguments.split(' ')).status().unwrap();
    assert!(tokio::task::spawn_blocking(run).await.unwrap().success());
}

/// Waits until the process has so many devices open.
async fn devices_open(count: u64) {
    while resources().devices != count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Each side gives back all that it has of a device that is removed, even if it does nothing at the
/// time, and goes on over TCP.
#[test]
fn a_device_that_is_removed_takes_nothing_with_it() {
    // Only where the test owns the machine.
    if std::env::var_os("FREEZEFRAME_RDMA_OWNED").is_none() {
        eprintln!("not run: it removes devices, which only the virtual machine of rdma/vm lends");
        return;
    }
    run(async {
        let server = LinkServer::start().await;
        server.topic("t", 1).await;
        let large = batch(1, 1, 500_000);
        let mut client = server.client(LinkChoice::Auto).await;
        let mut idle = server.client(LinkChoice::Rdma).await;
        for client in [&mut client, &mut idle] {
            produce(client, "t", 0, &large).await;
        }
        let kept = client.fetch("t", &[(0, 0)], &FetchOptions::default()).await.unwrap();
        assert_eq!((server.open_links(), resources().devices), (2, 3));
        // The clients come from the other end of the wire.
        let of_clients = if server.device == "rxe0" { "rxe1" } else { "rxe0" };
        rdma(format!("link delete {of_clients}")).await;
        devices_open(1).await;
        let written = [&large, &large, &large].map(record_values).concat();
        produce(&mut client, "t", 0, &large).await;
        assert!(values(&mut client, "t", 0, 3).await == written);
        let batches = BTreeMap::from([(0, large.clone())]);
        let error = idle.produce("t", RequiredAcks::All, batches.clone()).await.unwrap_err();
        assert!(matches!(error, ClientError::NoLink { .. }), "{error}");
        assert!(kept[0].batches[61..].starts_with(&large[61..]));
        drop((client, idle));
        server.links_closed().await;

        rdma(format!("link add {of_clients} type rxe netdev wire{}", &of_clients[3..])).await;
        let mut client = server.client(LinkChoice::Auto).await;
        let mut idle = server.client(LinkChoice::Rdma).await;
        for client in [&mut client, &mut idle] {
            assert!(values(client, "t", 0, 3).await == written);
        }
        assert_eq!((server.open_links(), resources().devices), (2, 3));
        rdma(format!("link delete {}", server.device)).await;
        server.links_closed().await;
        devices_open(2).await;
        assert!(values(&mut client, "t", 0, 3).await == written);
        let error = idle.produce("t", RequiredAcks::All, batches).await.unwrap_err();
        assert!(matches!(error, ClientError::NoLink { .. }), "{error}");
        drop((client, idle));
        // Those who come later are told, and what the server had of the device is given back.
        let mut late = server.client(LinkChoice::Rdma).await;
        let why = late.link().await.unwrap().unwrap_err();
        assert!(why.contains("gone"), "{why}");
        drop(late);
        devices_open(0).await;
        assert_eq!((resources().registrations, resources().pinned_bytes), (0, 0));
        rdma(format!("link add {} type rxe netdev wire{}", server.device, &server.device[3..]))
            .await;
    });
}

/// A connection whose client breaks the rules of links.
struct RawLink {
    connection: TestKafkaConnection,
    device: VerbsDevice,
    _end: PeerEnd,
}

impl RawLink {
    async fn open(server: &LinkServer) -> RawLink {
        RawLink::open_and(server, true).await
    }

    /// Opens a link, and connects the client's end or leaves it.
    async fn open_and(server: &LinkServer, connects: bool) -> RawLink {
        let mut connection = server.server.connect().await;
        let local = connection.0.local_addr().unwrap().ip();
        let port = usable_ports(&devices().unwrap(), Some(local)).remove(0);
        let device = VerbsDevice::open(port).unwrap();
        let mut end = PeerEnd::new(&device).unwrap();
        let answer = ask(&mut connection, &LinkRequest::Open { client: end.address() }).await;
        let LinkAnswer::Opened { server } = answer.unwrap() else { panic!("it opens") };
        if connects {
            end.connect(&server).unwrap();
        }
        RawLink { connection, device, _end: end }
    }

    async fn ask(&mut self, request: &LinkRequest) -> LinkAnswer {
        ask(&mut self.connection, request).await.unwrap()
    }

    async fn expose(&mut self, region: RemoteRegion) -> RegionToken {
        match self.ask(&LinkRequest::Expose { region }).await {
            LinkAnswer::Exposed { token, .. } => token,
            answer => panic!("{answer:?}"),
        }
    }

    fn memory(&self, length: usize) -> ExposedMemory {
        ExposedMemory::new(&self.device, length).unwrap()
    }

    /// Fetches into a region.
    async fn fetch_into(&mut self, token: RegionToken, at: u64, room: u64) -> LinkAnswer {
        let response = ResponsePlace::Region { token, at, room };
        let request =
            CallBody::Inline(body::<FetchRequest>(&fetch_request("t", 0, 0, Duration::ZERO), 12));
        let call = LinkCall { api_key: ApiKey::Fetch as i16, version: 12, request, response };
        self.ask(&LinkRequest::Call(call)).await
    }
}

async fn ask(
    connection: &mut TestKafkaConnection,
    request: &LinkRequest,
) -> std::io::Result<LinkAnswer> {
    let mut frame = BytesMut::zeroed(4);
    RequestHeader::default()
        .with_request_api_key(LINK_API_KEY)
        .with_client_id(Some(StrBytes::from_static_str("raw")))
        .encode(&mut frame, 1)
        .unwrap();
    request.encode(0, &mut frame);
    let length = (frame.len() - 4) as u32;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    connection.0.write_all(&frame).await?;
    let length = connection.0.read_u32().await?;
    let mut answer = vec![0; length as usize];
    connection.0.read_exact(&mut answer).await?;
    Ok(LinkAnswer::decode(Bytes::from(answer).slice(4..)).unwrap().1)
}

fn body<M: Encodable>(message: &M, version: i16) -> Bytes {
    let mut body = BytesMut::new();
    message.encode(&mut body, version).unwrap();
    body.freeze()
}

fn refusal(answer: LinkAnswer) -> RefusalCode {
    match answer {
        LinkAnswer::Refused(refusal) => refusal.code,
        answer => panic!("it is refused: {answer:?}"),
    }
}

#[test]
fn rules_that_a_client_breaks_hurt_nobody_but_it() {
    run(async {
        let server = LinkServer::start().await;
        if !server.has_device {
            return;
        }
        server.topic("t", 1).await;
        let large = batch(1, 1, 500_000);
        let mut good = server.client(LinkChoice::Rdma).await;
        produce(&mut good, "t", 0, &large).await;

        let mut raw = RawLink::open(&server).await;
        let memory = raw.memory(MIB);
        let region = memory.region();
        let token = raw.expose(region).await;
        let is_untouched =
            |memory: &ExposedMemory| memory.slice(0..MIB).iter().all(|byte| *byte == 0);
        // A token of nobody, and one of another connection.
        let mut other = RawLink::open(&server).await;
        let foreign = other.expose(region).await;
        assert_eq!(foreign, token, "tokens count for each connection");
        assert_eq!(
            refusal(raw.fetch_into(token + 1, 0, MIB as u64).await),
            RefusalCode::UnknownToken
        );
        // Too small, by the client's word or by the region's length.
        assert_eq!(refusal(raw.fetch_into(token, 0, 499_999).await), RefusalCode::TooSmall);
        assert_eq!(
            refusal(raw.fetch_into(token, 600_000, MIB as u64).await),
            RefusalCode::TooSmall
        );
        assert_eq!(
            refusal(raw.fetch_into(token, u64::MAX, MIB as u64).await),
            RefusalCode::TooSmall
        );
        assert!(is_untouched(&memory));
        // The link still works.
        assert!(matches!(
            raw.fetch_into(token, 100, MIB as u64 - 100).await,
            LinkAnswer::Placed(_)
        ));
        assert!(!is_untouched(&memory));
        // A token that was withdrawn.
        assert_eq!(raw.ask(&LinkRequest::Withdraw { token }).await, LinkAnswer::Withdrawn);
        assert_eq!(refusal(raw.fetch_into(token, 0, MIB as u64).await), RefusalCode::UnknownToken);
        // A request that is far too long.
        let call = |api: ApiKey, request| {
            let response = ResponsePlace::Inline;
            LinkRequest::Call(LinkCall { api_key: api as i16, version: 12, request, response })
        };
        let huge = CallBody::Region { token, at: 0, length: u32::MAX };
        assert_eq!(refusal(raw.ask(&call(ApiKey::Fetch, huge)).await), RefusalCode::NotNow);
        // A response that may not be lost.
        let token = raw.expose(region).await;
        let request = CallBody::Inline(body::<ProduceRequest>(&produce_request("t", 0, &large), 9));
        let response = ResponsePlace::Region { token, at: 0, room: MIB as u64 };
        let produces = LinkCall { api_key: ApiKey::Produce as i16, version: 9, request, response };
        assert_eq!(refusal(raw.ask(&LinkRequest::Call(produces)).await), RefusalCode::NotNow);
        let options = FetchOptions { wait_max: Duration::ZERO, ..FetchOptions::default() };
        let fetched = good.fetch("t", &[(0, 1)], &options).await.unwrap();
        assert_eq!(fetched[0].end, 1, "nothing was written");
        // Memory that was taken back breaks the link. Nothing comes of the request.
        let revoked = raw.memory(MIB);
        let token = raw.expose(revoked.region()).await;
        drop(revoked);
        let request = CallBody::Region { token, at: 0, length: 500_000 };
        assert_eq!(refusal(raw.ask(&call(ApiKey::Produce, request)).await), RefusalCode::NoLink);
        assert_eq!(refusal(raw.fetch_into(token, 0, MIB as u64).await), RefusalCode::NoLink);
        // A forged address, by a client whose key is right.
        let forged = RemoteRegion { address: 4096, ..other.memory(MIB).region() };
        let token = other.expose(forged).await;
        assert_eq!(refusal(other.fetch_into(token, 0, MIB as u64).await), RefusalCode::NoLink);
        // The connection of both still serves, and the other client noticed nothing.
        assert_eq!(raw.connection.fetch("t", 0).await.unwrap().0, 0);
        assert!(values(&mut good, "t", 0, 1).await == record_values(&large));
        assert_eq!(server.open_links(), 1);
    });
}

/// A client whose device answers nothing: its link ends, and others are served meanwhile.
#[test]
fn a_client_that_takes_nothing_holds_up_nobody() {
    run(async {
        let server = LinkServer::start().await;
        if !server.has_device {
            return;
        }
        server.topic("t", 1).await;
        let large = batch(1, 1, 4_000_000);
        let mut good = server.client(LinkChoice::Rdma).await;
        produce(&mut good, "t", 0, &large).await;
        let mut silent = RawLink::open_and(&server, false).await;
        let token = silent.expose(silent.memory(8 * MIB).region()).await;
        let mut refused = Box::pin(silent.fetch_into(token, 0, 8 * MIB as u64));
        let mut served = 0;
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut refused => break answer,
                read = values(&mut good, "t", 0, 1) => {
                    assert!(read == record_values(&large));
                    served += 1;
                }
            }
        };
        assert_eq!(refusal(answer), RefusalCode::NoLink);
        assert!(served > 0);
        drop(refused);
        assert_eq!(silent.connection.fetch("t", 0).await.unwrap().0, 0);
        // The other client may have been interrupted, and connect again.
        assert!(values(&mut good, "t", 0, 1).await == record_values(&large));
    });
}

#[test]
fn a_request_that_the_server_reads_is_checked_like_any_other() {
    run(async {
        let server = LinkServer::start().await;
        if !server.has_device {
            return;
        }
        server.topic("t", 1).await;
        let mut raw = RawLink::open(&server).await;
        let mut memory = raw.memory(MIB);
        let mut batch = batch(1, 1, 100_000).to_vec();
        batch[5000] ^= 1;
        let request = body::<ProduceRequest>(&produce_request("t", 0, &batch.into()), 9);
        memory.as_mut_slice().unwrap()[..request.len()].copy_from_slice(&request);
        let token = raw.expose(memory.region()).await;
        let place = CallBody::Region { token, at: 0, length: request.len() as u32 };
        let call = |request| {
            let response = ResponsePlace::Inline;
            let api_key = ApiKey::Produce as i16;
            LinkRequest::Call(LinkCall { api_key, version: 9, request, response })
        };
        let LinkAnswer::Inline(response) = raw.ask(&call(place)).await else { panic!() };
        let corrupt = kafka_protocol::ResponseError::CorruptMessage.code().to_be_bytes();
        assert!(response.windows(2).any(|bytes| bytes == corrupt), "{response:?}");
        // Bytes that are no request end the connection, as on any other.
        memory.as_mut_slice().unwrap().fill(0xff);
        let place = CallBody::Region { token, at: 0, length: 1000 };
        assert!(ask(&mut raw.connection, &call(place)).await.is_err());
        server.links_closed().await;
        assert_eq!(server.server.connect().await.fetch("t", 0).await.unwrap(), (0, Bytes::new()));
    });
}

/// A cut of many partitions, complete or not at all, by either link.
#[test]
fn a_cut_of_100_partitions_is_what_they_were() {
    run(async {
        let server = LinkServer::start().await;
        let topics = ["a", "b", "c", "d"];
        for topic in topics {
            server.topic(topic, 25).await;
        }
        let mut writer = server.client(LinkChoice::Tcp).await;
        // Three rounds, with a moment after the first two. One partition is long, one has nothing.
        let (mut rounds, mut moments) = (Vec::new(), Vec::new());
        for round in 0..3_u64 {
            let mut written = BTreeMap::new();
            for (topic, seed) in topics.iter().zip(0..) {
                for partition in 0..25 {
                    let place = (seed, partition);
                    let length = match place {
                        (1, 7) => 3_000_000,
                        (2, 3) => continue,
                        _ => 5000,
                    };
                    let seed = (round * 100 + seed) * 100 + partition as u64;
                    let batch = batch(seed, 3, length);
                    produce(&mut writer, topic, partition, &batch).await;
                    written.insert((topic.to_string(), partition), record_values(&batch));
                }
            }
            rounds.push(written);
            server.server.clock.advance(Duration::from_secs(1));
            moments.push(Moment::Sys(Cut::before(server.server.engine.wall_now())));
            server.server.clock.advance(Duration::from_secs(1));
        }
        let window = MomentSelector::window(moments[0], moments[1]).unwrap();
        let asks = [
            (MomentSelector::At(moments[0]), &rounds[..1]),
            (MomentSelector::At(moments[1]), &rounds[..2]),
            (window, &rounds[1..2]),
        ];
        for link in server.choices() {
            let mut client = server.client(link).await;
            for (selector, expected) in &asks {
                let read = async |client: &mut Client| {
                    client.read_cut(selector, None, Duration::from_secs(5)).await.unwrap()
                };
                let found = read(&mut client).await;
                assert_eq!(found.partitions.len(), 100);
                for partition in &found.partitions {
                    let key = (partition.topic.clone(), partition.partition);
                    let expected: Vec<Bytes> = expected
                        .iter()
                        .flat_map(|round| round.get(&key))
                        .flatten()
                        .cloned()
                        .collect();
                    assert_eq!(partition.end - partition.start, expected.len() as i64, "{key:?}");
                    let batches: Bytes = partition.batches.concat().into();
                    let found: Vec<Bytes> = BatchIterator::new(&batches)
                        .flat_map(|batch| record_values(&Bytes::copy_from_slice(batch.unwrap().1)))
                        .collect();
                    assert!(found == expected, "{link:?} {selector} {key:?}");
                }
                let again = read(&mut client).await;
                assert_eq!(again.cut.hash, found.cut.hash);
            }
        }
        let (written, _, copied) = server.moved();
        assert_eq!(written > 0, server.has_device);
        assert_eq!(copied, 0);
        // What is not there any more is an error, and so is a topic that never was.
        let mut client = server.client(server.choices()[1]).await;
        let topic = server.server.engine.topics().named("b").unwrap();
        server.server.engine.topics().delete_records(&topic, 7, 5).await.unwrap();
        let patience = Duration::from_secs(5);
        let missing = client.read_cut(&asks[0].0, None, patience).await.map(drop).unwrap_err();
        assert!(missing.to_string().contains("b/7"), "{missing}");
        let only = |topic: &str| vec![topic.to_owned()];
        client.read_cut(&asks[0].0, Some(&only("c")), patience).await.unwrap();
        assert!(client.read_cut(&asks[0].0, Some(&only("x")), patience).await.is_err());
    });
}

/// TIME.md 2: what a client does after it learned something has a later stamp than that.
#[test]
fn stamps_travel_both_ways() {
    run(async {
        let server = LinkServer::start().await;
        server.topic("t", 1).await;
        for link in server.choices() {
            let mut client = server.client(link).await;
            let placed = produce(&mut client, "t", 0, &batch(1, 1, 100)).await;
            let written = client.stamp();
            // The answer's stamp is at or above that of the batch, so a cut after it has the batch.
            let end_at = async |client: &mut Client, stamp: Hlc| {
                let moment = Moment::Sys(Cut::below(stamp));
                let wait = PendingMomentPolicy::Wait;
                client.cut(&moment, None, wait, LIMIT).await.unwrap().partitions[0].end
            };
            server.server.clock.advance(Duration::from_secs(2));
            assert_eq!(end_at(&mut client, written.next()).await, placed + 1);
            // Another server's clock is ahead of this one's. What is written now is after that.
            let ahead = Hlc::new(
                server.server.engine.wall_now().saturating_add(Duration::from_millis(400)),
                7,
            );
            client.observe_stamp(ahead);
            let placed = produce(&mut client, "t", 0, &batch(2, 1, 100)).await;
            assert!(client.stamp() > ahead, "{} {ahead}", client.stamp());
            let mut reader = server.client(link).await;
            server.server.clock.advance(Duration::from_secs(2));
            assert_eq!(end_at(&mut reader, ahead.next()).await, placed, "the batch is later");
            // And so is what a reader of it writes, who has no other news.
            assert!(reader.stamp() > ahead);
            // A clock that is wrong by far is not followed: nothing is written, and it is counted.
            let (_, refused) = server.server.engine.timekeeper().counts();
            let wrong =
                Hlc::at(server.server.engine.wall_now().saturating_add(Duration::from_secs(60)));
            client.observe_stamp(wrong);
            let batches = BTreeMap::from([(0, batch(3, 1, 100))]);
            let refused_one = client.produce("t", RequiredAcks::All, batches.clone()).await;
            let error = refused_one.unwrap_err();
            assert!(matches!(&error, ClientError::Refused { .. }), "{error}");
            assert!(error.to_string().contains("peer clock is ahead"), "{error}");
            // Of a request that has no answer, the end of the connection says so.
            let sent = client.produce("t", RequiredAcks::None, batches.clone()).await;
            assert!(sent.is_ok(), "nobody waits for it");
            let error = client.produce("t", RequiredAcks::All, batches).await.unwrap_err();
            assert!(
                matches!(&error, ClientError::Closed { .. } | ClientError::Io { .. }),
                "{error}"
            );
            assert!(server.server.engine.timekeeper().counts().1 > refused);
            assert!(server.server.engine.last_stamp() < wrong);
            let fetched = reader.fetch("t", &[(0, placed + 1)], &FetchOptions::default()).await;
            assert_eq!(fetched.unwrap()[0].end, placed + 1);
        }
    });
}
