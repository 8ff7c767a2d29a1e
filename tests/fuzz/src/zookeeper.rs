//! The port for ZooKeeper's clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::FrameCounter;
use crate::world::{PATIENCE, with_world};

/// The time that a client stays for its answers.
const STAY: Duration = Duration::from_millis(2);
/// Parts of an input are separated by it.
const SEPARATOR: u8 = 0xff;
const BUFFER_BYTES: usize = 1 << 20;

/// The beginning of a session that is new: a version, the last transaction seen, a timeout, an id,
/// and a password.
const CONNECT: &[u8] = &[
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0f, 0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// If the first byte is even, a session begins, and each part is a request; else the bytes are sent
/// as they are.
pub(crate) fn run(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let mut sent = Vec::new();
    let mut asked = 0;
    let mut put = |frame: &[u8]| {
        asked += 1;
        sent.extend((frame.len() as u32).to_be_bytes());
        sent.extend(frame);
    };
    if first % 2 == 0 {
        put(CONNECT);
        for (nth, part) in rest.split(|byte| *byte == SEPARATOR).enumerate() {
            let Some((kind, body)) = part.split_first() else { continue };
            // The number of the request, and its type: those that say no number are below zero.
            let kind = i32::from(*kind as i8);
            put(&[&(nth as i32 + 1).to_be_bytes()[..], &kind.to_be_bytes(), body].concat());
        }
    } else {
        asked = usize::MAX;
        sent.extend(rest);
    }
    with_world(|world| {
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 50_000));
        let (server, mut client) = tokio::io::duplex(BUFFER_BYTES);
        let served = async {
            let serving = compat_zk::serve_stream(&world.zookeeper, server, peer);
            let asking = async {
                let _ = client.write_all(&sent).await;
                let answered = async {
                    let (mut counter, mut answers) = (FrameCounter::default(), [0; 4096]);
                    while counter.frames < asked {
                        match client.read(&mut answers).await {
                            Ok(0) | Err(_) => return,
                            Ok(count) => counter.take(&answers[..count]),
                        }
                    }
                };
                let _ = tokio::time::timeout(STAY, answered).await;
                drop(client);
            };
            tokio::join!(serving, asking);
        };
        let served = world.runtime.block_on(async { tokio::time::timeout(PATIENCE, served).await });
        assert!(served.is_ok(), "a connection hangs");
    });
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    // Of each type, one that says little, and one that names a path.
    let types = (0..=107u8).chain(246..255);
    let requests = types.flat_map(|kind| {
        [[&[0, kind][..], &[0; 16]].concat(), [&[0, kind][..], b"\0\0\0\x02/a\0\0\0\0"].concat()]
    });
    let mut seeds: Vec<Vec<u8>> = requests.collect();
    // Create, read, and delete a node; words of four letters; no frame.
    seeds.push(b"\0\x01\0\0\0\x02/a\0\0\0\x01x\0\0\0\x01\0\0\0\x1f\0\0\0\x05world\0\0\0\x06anyone\0\0\0\0\xff\x04\0\0\0\x02/a\0\xff\x02\0\0\0\x02/a\xff\xff\xff\xff".to_vec());
    // A multiRead that sets a watch.
    seeds.push(b"\0\x16\0\0\0\x04\0\0\0\0\0\0\0\0\x01/\x01\0\0\0\0\x01\0\0\0\0".to_vec());
    seeds.extend([b"\x01ruok".to_vec(), b"\x01mntr".to_vec(), vec![1, 0xff, 0xff, 0xff, 0xff]]);
    seeds
}
