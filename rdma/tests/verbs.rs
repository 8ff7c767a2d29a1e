//! Links over real devices (F25). The suite needs two active RDMA ports of this machine that reach
//! each other; `rdma/vm/test` runs it where there are none, in a small virtual machine. Without
//! ports each test says that it is skipped, unless FREEZEFRAME_NEEDS_RDMA is set.
//!
//! Run it in one thread: the tests count what the process has of its devices.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use bytes::Bytes;
use rdma::{
    CompletionMode, ExposedMemory, LinkError, MemoryArena, PeerEnd, RdmaResources, RemoteRegion,
    VerbsDevice, VerbsLink, devices, resources, usable_ports,
};
use tokio::time::timeout;

/// Longer than a device tries to reach a peer that is gone.
const LIMIT: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// A server and a client, on a port each.
struct Pair {
    link: VerbsLink,
    arena: MemoryArena,
    peer: PeerEnd,
    client: VerbsDevice,
}

impl Pair {
    /// Connects the two; `None` if this machine has no devices.
    fn connect() -> Option<Pair> {
        Pair::connect_with(CompletionMode::Sleep)
    }

    fn connect_with(mode: CompletionMode) -> Option<Pair> {
        let ports = usable_ports(&devices().expect("list the devices"), None);
        let [of_server, of_client] = match &ports[..] {
            [] => {
                assert!(std::env::var_os("FREEZEFRAME_NEEDS_RDMA").is_none(), "no RDMA device");
                eprintln!("skipped: this machine has no active RDMA port");
                return None;
            }
            [only] => [only.clone(), only.clone()],
            [first, second, ..] => [second.clone(), first.clone()],
        };
        let server = VerbsDevice::open(of_server).unwrap();
        let client = VerbsDevice::open(of_client).unwrap();
        let arena = MemoryArena::new(vec![server], 64 * MIB).unwrap();
        let mut link = VerbsLink::new(&arena, &arena.devices()[0], mode).unwrap();
        let mut peer = PeerEnd::new(&client).unwrap();
        link.connect(&peer.address()).unwrap();
        peer.connect(&link.address()).unwrap();
        Some(Pair { link, arena, peer, client })
    }

    fn expose(&self, length: usize) -> ExposedMemory {
        ExposedMemory::new(&self.client, length).unwrap()
    }

    /// A piece in the server's arena, with bytes that differ from those of other pieces.
    fn piece(&self, length: usize, seed: u32) -> Bytes {
        let mut buffer = self.arena.take(length).unwrap();
        for (byte, value) in buffer.as_mut_slice().iter_mut().zip(pattern(seed)) {
            *byte = value;
        }
        buffer.into_bytes()
    }
}

fn pattern(seed: u32) -> impl Iterator<Item = u8> {
    (0_u32..).map(move |nth| (nth.wrapping_mul(2_654_435_761).rotate_left(seed % 31) ^ seed) as u8)
}

/// Runs a test with a deadline.
fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(LIMIT, test).await }).expect("the test takes too long");
}

#[test]
fn scattered_pieces_arrive_in_order_and_nothing_else_is_touched() {
    run(async {
        let Some(mut pair) = Pair::connect() else { return };
        let memory = pair.expose(8 * MIB);
        // Lengths around pages, the number of pieces of a request, its bytes, and segments.
        let lengths = [1, 4096, 4095, 0, 100, MIB, MIB + 1, 3 * MIB, 17];
        let lengths = lengths.into_iter().chain(std::iter::repeat_n(4096, 100));
        let pieces: Vec<Bytes> =
            lengths.enumerate().map(|(nth, length)| pair.piece(length, nth as u32)).collect();
        let total: usize = pieces.iter().map(Bytes::len).sum();
        pair.link.write(&memory.region(), 1000, &pieces).await.unwrap();
        pair.link.flush().await.unwrap();
        let exposed = memory.slice(0..8 * MIB);
        assert_eq!(exposed[1000..1000 + total], pieces.concat());
        assert!(exposed[..1000].iter().chain(&exposed[1000 + total..]).all(|byte| *byte == 0));
        let traffic = pair.link.traffic();
        assert_eq!((traffic.written_bytes, traffic.copied_bytes), (total as u64, 0));
    });
}

#[test]
fn a_region_is_read_whatever_its_length() {
    run(async {
        let Some(mut pair) = Pair::connect() else { return };
        let mut memory = pair.expose(5 * MIB);
        for (byte, value) in memory.as_mut_slice().unwrap().iter_mut().zip(pattern(3)) {
            *byte = value;
        }
        let source = memory.slice(0..5 * MIB);
        for (at, length) in [(0, 1), (1, 4096), (4095, 0), (77, MIB), (5, 5 * MIB - 5)] {
            let read = pair.link.read(&memory.region(), at as u64, length).await.unwrap();
            assert_eq!(read, source.slice(at..at + length), "{at} {length}");
            assert!(length == 0 || pair.arena.has(&read));
        }
    });
}

#[test]
fn pieces_outside_of_the_arena_are_copied_and_counted() {
    run(async {
        let Some(mut pair) = Pair::connect() else { return };
        let memory = pair.expose(1000);
        let pieces = [Bytes::from_static(b"elsewhere"), pair.piece(10, 1)];
        pair.link.write(&memory.region(), 0, &pieces).await.unwrap();
        pair.link.flush().await.unwrap();
        assert_eq!(memory.slice(0..19), pieces.concat());
        assert_eq!(pair.link.traffic().copied_bytes, 9);
    });
}

#[test]
fn a_link_that_spins_moves_the_same_bytes() {
    run(async {
        let Some(mut pair) = Pair::connect_with(CompletionMode::Spin) else { return };
        let memory = pair.expose(MIB);
        let piece = pair.piece(MIB, 5);
        pair.link.write(&memory.region(), 0, std::slice::from_ref(&piece)).await.unwrap();
        pair.link.flush().await.unwrap();
        assert_eq!(pair.link.read(&memory.region(), 0, MIB).await.unwrap(), piece);
    });
}

#[test]
fn what_does_not_fit_is_refused_and_the_link_goes_on() {
    run(async {
        let Some(mut pair) = Pair::connect() else { return };
        let memory = pair.expose(4096);
        let (region, piece) = (memory.region(), pair.piece(4096, 1));
        let refused = pair.link.write(&region, 1, std::slice::from_ref(&piece)).await.unwrap_err();
        assert_eq!(refused, LinkError::OutOfRegion { at: 1, length: 4096, region: 4096 });
        let refused = pair.link.read(&region, u64::MAX, 2).await.unwrap_err();
        assert!(matches!(refused, LinkError::OutOfRegion { .. }), "{refused}");
        let refused = pair.link.read(&RemoteRegion { length: 1 << 40, ..region }, 0, 1 << 30).await;
        assert_eq!(refused.unwrap_err(), LinkError::NoMemory(1 << 30));
        pair.link.write(&region, 0, std::slice::from_ref(&piece)).await.unwrap();
        pair.link.flush().await.unwrap();
        assert_eq!(memory.slice(0..4096), piece);
    });
}

/// The peer's device refuses the access, and the link is broken from then on.
async fn assert_refused(pair: &mut Pair, region: RemoteRegion, length: usize) {
    let piece = pair.piece(length, 9);
    let _ = pair.link.write(&region, 0, &[piece]).await;
    let refused = pair.link.flush().await.unwrap_err();
    assert!(refused.to_string().contains("remote access error"), "{refused}");
    assert_eq!(pair.link.read(&region, 0, 1).await.unwrap_err(), refused, "it stays broken");
}

#[test]
fn a_wrong_key_moves_nothing() {
    run(async {
        let Some(mut pair) = Pair::connect() else { return };
        let memory = pair.expose(4096);
        let region = RemoteRegion { key: memory.region().key ^ 0x5a, ..memory.region() };
        assert_refused(&mut pair, region, 4096).await;
        assert!(memory.slice(0..4096).iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_forged_address_moves_nothing() {
    run(async {
        let Some(mut pair) = Pair::connect() else { return };
        let memory = pair.expose(4096);
        let second = pair.expose(4096);
        // The key of one registration is good for no other memory of the client.
        let region = RemoteRegion { address: second.region().address, ..memory.region() };
        assert_refused(&mut pair, region, 4096).await;
        for memory in [memory, second] {
            assert!(memory.slice(0..4096).iter().all(|byte| *byte == 0));
        }
    });
}

#[test]
fn a_region_that_says_it_is_longer_than_it_is_moves_nothing_beyond() {
    run(async {
        let Some(mut pair) = Pair::connect() else { return };
        let memory = pair.expose(4096);
        let region = RemoteRegion { length: MIB as u64, ..memory.region() };
        assert_refused(&mut pair, region, MIB).await;
    });
}

#[test]
fn memory_that_was_taken_back_cannot_be_reached() {
    run(async {
        let Some(mut pair) = Pair::connect() else { return };
        let memory = pair.expose(4096);
        let region = memory.region();
        let share = memory.slice(0..1);
        drop(memory);
        pair.link.write(&region, 0, &[pair.piece(1, 1)]).await.unwrap();
        pair.link.flush().await.unwrap();
        assert_eq!(share[0], pair.piece(1, 1)[0], "a share keeps the memory");
        drop(share);
        assert_refused(&mut pair, region, 1).await;
    });
}

#[test]
fn memory_of_one_connection_s_device_is_not_reached_after_the_connection_has_ended() {
    run(async {
        let Some(mut pair) = Pair::connect() else { return };
        let memory = pair.expose(4 * MIB);
        let piece = pair.piece(4 * MIB, 1);
        pair.link.write(&memory.region(), 0, std::slice::from_ref(&piece)).await.unwrap();
        drop(pair.peer);
        let before = memory.slice(0..4 * MIB).to_vec();
        let error = loop {
            match pair.link.flush().await {
                // The transfer may have been done already.
                Ok(()) => {
                    let piece = pair.arena.copy(&[1; 4096]).unwrap();
                    let _ = pair.link.write(&memory.region(), 0, &[piece]).await;
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LinkError::Broken(_)), "{error}");
        assert_eq!(memory.slice(0..4 * MIB), before, "nothing came after the end");
    });
}

#[test]
fn a_call_that_is_dropped_leaves_the_link_usable() {
    run(async {
        let Some(mut pair) = Pair::connect() else { return };
        let mut memory = pair.expose(32 * MIB);
        memory.as_mut_slice().unwrap().fill(7);
        let region = memory.region();
        for _ in 0..20 {
            // It is polled once, which starts the transfer, and dropped. On a busy machine it may
            // be done by then; the write below lies in front of it.
            let mut read = Box::pin(pair.link.read(&region, MIB as u64, 16 * MIB));
            let polled = futures_poll_once(read.as_mut()).await;
            drop(read);
            assert!(polled.is_none_or(|read| read.unwrap().iter().all(|byte| *byte == 7)));
            let piece = pair.piece(MIB, 3);
            {
                let mut write = Box::pin(pair.link.write(&region, 0, std::slice::from_ref(&piece)));
                let _ = futures_poll_once(write.as_mut()).await;
            }
        }
        pair.link.flush().await.unwrap();
        let read = pair.link.read(&region, 16 * MIB as u64, MIB).await.unwrap();
        assert!(read.iter().all(|byte| *byte == 7));
        drop(read);
        assert!(pair.arena.take(60 * MIB).is_some(), "nothing is held any more");
    });
}

/// Polls a future once; `None` if it is not ready.
async fn futures_poll_once<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut future).poll(context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[test]
fn nothing_is_left_of_a_link() {
    run(async {
        assert_eq!(resources(), RdmaResources::default());
        for _ in 0..50 {
            let Some(mut pair) = Pair::connect() else { return };
            let memory = pair.expose(MIB);
            let piece = pair.piece(MIB, 1);
            pair.link.write(&memory.region(), 0, &[piece]).await.unwrap();
            let open = resources();
            assert_eq!((open.devices, open.queue_pairs), (2, 2));
            assert_eq!(open.pinned_bytes, (2 * MIB + MIB) as u64);
            // In the middle of a transfer, and in any order.
            drop(memory);
        }
        assert_eq!(resources(), RdmaResources::default());
    });
}

#[test]
fn an_address_that_nobody_has_breaks_the_link_in_bounded_time() {
    run(async {
        let Some(mut pair) = Pair::connect() else { return };
        let memory = pair.expose(4096);
        let mut link =
            VerbsLink::new(&pair.arena, &pair.arena.devices()[0], CompletionMode::Sleep).unwrap();
        let mut nobody = pair.peer.address();
        nobody.queue_pair ^= 0x00_5000;
        link.connect(&nobody).unwrap();
        let piece = pair.piece(4096, 1);
        link.write(&memory.region(), 0, std::slice::from_ref(&piece)).await.unwrap();
        assert!(matches!(link.flush().await, Err(LinkError::Broken(_))));
        // The other link does not notice.
        pair.link.write(&memory.region(), 0, std::slice::from_ref(&piece)).await.unwrap();
        pair.link.flush().await.unwrap();
    });
}
