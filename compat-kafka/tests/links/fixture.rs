//! A server with the machine's RDMA device, clients of it, and what they write.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, FetchOptions, LinkChoice, Options, RequiredAcks};
use compat_kafka::{KafkaOptions, LinkDevices};
use kafka_records::{BatchBuilder, BatchIterator, CompressionType, DecompressionLimit, records};
use rdma::{CompletionMode, MemoryArena, VerbsDevice, devices, resources, usable_ports};
use storage::disk::MemoryDisk;
use testkit::kafka::{START, TestKafkaServer};
use tokio::time::timeout;

pub(crate) const LIMIT: Duration = Duration::from_secs(120);
pub(crate) const MIB: usize = 1 << 20;
pub(crate) const UNPACKED: DecompressionLimit =
    DecompressionLimit { decompressed_bytes_max: 64 * MIB };

/// A server, with the machine's first RDMA device if it has one.
pub(crate) struct LinkServer {
    pub(crate) server: TestKafkaServer,
    pub(crate) has_device: bool,
    /// The device's name.
    pub(crate) device: String,
    pub(crate) arena: Option<MemoryArena>,
}

impl LinkServer {
    pub(crate) async fn start() -> LinkServer {
        LinkServer::start_with_tail(64 * MIB).await
    }

    /// With so much memory for the newest payloads, and for what is read from files.
    pub(crate) async fn start_with_tail(bytes_max: usize) -> LinkServer {
        LinkServer::start_with_arena(bytes_max, 256 * MIB).await
    }

    /// The same, with so much memory that devices may use.
    pub(crate) async fn start_with_arena(bytes_max: usize, arena_bytes_max: usize) -> LinkServer {
        let ports = usable_ports(&devices().unwrap(), None);
        let Some(port) = ports.into_iter().next() else {
            assert!(std::env::var_os("FREEZEFRAME_NEEDS_RDMA").is_none(), "no RDMA device");
            eprintln!("only over TCP: this machine has no active RDMA port");
            let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
            let options = KafkaOptions::default();
            return LinkServer::start_with(local, options, bytes_max).await;
        };
        let (address, device) = (port.gid.address.ip(), port.device.clone());
        let device_of_server = vec![VerbsDevice::open(port).unwrap()];
        let arena = MemoryArena::new(device_of_server, arena_bytes_max).unwrap();
        arena.maintain();
        let links =
            Some(LinkDevices { arena: arena.clone(), completion_mode: CompletionMode::Sleep });
        let options = KafkaOptions { links, ..KafkaOptions::default() };
        let started = LinkServer::start_with(address, options, bytes_max).await;
        LinkServer { has_device: true, device, arena: Some(arena), ..started }
    }

    /// Without a device.
    pub(crate) async fn start_with(
        address: IpAddr,
        options: KafkaOptions,
        tail_bytes_max: usize,
    ) -> LinkServer {
        let disk = std::sync::Arc::new(MemoryDisk::new());
        let server = TestKafkaServer::start_at(address, disk, options, tail_bytes_max).await;
        LinkServer { server, has_device: false, device: String::new(), arena: None }
    }

    /// The links that can be had here.
    pub(crate) fn choices(&self) -> Vec<LinkChoice> {
        if self.has_device {
            vec![LinkChoice::Tcp, LinkChoice::Rdma]
        } else {
            vec![LinkChoice::Tcp, LinkChoice::Auto]
        }
    }

    pub(crate) async fn client(&self, link: LinkChoice) -> Client {
        let options = Options { link, ..Options::default() };
        Client::connect(&self.server.address.to_string(), options).await.unwrap()
    }

    pub(crate) async fn topic(&self, name: &str, partitions: u32) {
        let configs = BTreeMap::from([("max.message.bytes".to_owned(), (64 * MIB).to_string())]);
        let mut id = [7; 16];
        id[..name.len()].copy_from_slice(name.as_bytes());
        self.server.engine.topics().create(name, partitions, configs, id, false).await.unwrap();
    }

    /// The bytes that links wrote, read, and had to copy.
    pub(crate) fn moved(&self) -> (u64, u64, u64) {
        let metrics = self.server.kafka.metrics();
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        (
            load(&metrics.link_bytes_written),
            load(&metrics.link_bytes_read),
            load(&metrics.link_bytes_copied),
        )
    }

    /// The resources of devices that links hold: queue pairs, regions and open devices.
    pub(crate) fn held_by_links(&self) -> (u64, u64, u64) {
        let (all, arena) = (resources(), self.arena.as_ref().map_or(0, MemoryArena::registrations));
        (all.queue_pairs, all.registrations - arena, all.devices)
    }

    pub(crate) fn open_links(&self) -> u64 {
        self.server.kafka.metrics().links.load(Ordering::Relaxed)
    }

    /// Waits until no link is open.
    pub(crate) async fn links_closed(&self) {
        while self.open_links() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A batch of `count` records of `length` bytes, which differ from those of other seeds.
pub(crate) fn batch(seed: u64, count: usize, length: usize) -> Bytes {
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

pub(crate) async fn produce(
    client: &mut Client,
    topic: &str,
    partition: i32,
    batch: &Bytes,
) -> i64 {
    let batches = BTreeMap::from([(partition, batch.clone())]);
    let placed = client.produce(topic, RequiredAcks::All, batches).await.unwrap();
    placed[0].base_offset
}

/// Every value of a partition, in order.
pub(crate) async fn values(
    client: &mut Client,
    topic: &str,
    partition: i32,
    end: i64,
) -> Vec<Bytes> {
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

pub(crate) fn run<F: Future<Output = ()>>(test: F) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { timeout(LIMIT, test).await }).expect("the test takes too long");
}

pub(crate) fn record_values(batch: &Bytes) -> Vec<Bytes> {
    records(batch, UNPACKED).unwrap().map(|record| record.unwrap().value.unwrap()).collect()
}
