//! Messages of clients with a link over RDMA, and the memory that payloads are in.

use bytes::{Bytes, BytesMut};
use rdma::protocol::{LinkAnswer, LinkRequest};
use rdma::{ArenaBuffer, MemoryArena};

/// The size of the arena, without its reserve: a few buffers fill it.
const ARENA_BYTES: usize = 1 << 20;
/// A message begins with a stamp of eight bytes and its kind.
const STAMP: [u8; 8] = [0; 8];

/// The bytes as a request, and as an answer: what is read of either is written the same again.
pub(crate) fn run_message(input: &[u8]) {
    let input = Bytes::copy_from_slice(input);
    if let Ok(request) = LinkRequest::decode(input.clone()) {
        let mut again = BytesMut::new();
        request.1.encode(request.0, &mut again);
        assert_eq!(LinkRequest::decode(again.freeze()), Ok(request));
    }
    if let Ok(answer) = LinkAnswer::decode(input) {
        let mut again = BytesMut::new();
        answer.1.encode(answer.0, &mut again);
        assert_eq!(LinkAnswer::decode(again.freeze()), Ok(answer));
    }
}

/// Three bytes are a step: a buffer is taken, shared in part, or dropped. Each keeps what was
/// written into it.
pub(crate) fn run_arena(input: &[u8]) {
    let arena = MemoryArena::new(Vec::new(), ARENA_BYTES).unwrap();
    let mut taken: Vec<(u8, ArenaBuffer)> = Vec::new();
    let mut shared: Vec<(u8, Bytes)> = Vec::new();
    for (nth, step) in input.chunks_exact(3).enumerate() {
        let (value, number) = (nth as u8, usize::from(u16::from_be_bytes([step[1], step[2]])));
        match step[0] % 4 {
            0 | 1 => {
                // Up to 4 MiB, of which most fit into a chunk.
                let length = number << if step[0] < 224 { 0 } else { 6 };
                if let Some(mut buffer) = arena.take(length) {
                    buffer.as_mut_slice().fill(value);
                    taken.push((value, buffer));
                }
            }
            2 if !taken.is_empty() => {
                let (value, buffer) = taken.swap_remove(number % taken.len());
                let bytes = buffer.into_bytes();
                shared.push((value, bytes.slice(number.min(bytes.len())..)));
            }
            _ if !shared.is_empty() => drop(shared.swap_remove(number % shared.len())),
            _ => drop(taken.pop()),
        }
    }
    let taken = taken.iter().map(|(value, buffer)| (*value, buffer.as_ref()));
    let shared = shared.iter().map(|(value, bytes)| (*value, &bytes[..]));
    for (value, bytes) in taken.chain(shared) {
        assert!(bytes.iter().all(|byte| *byte == value), "a buffer is written by another");
        assert!(bytes.is_empty() || arena.has(bytes));
    }
}

pub(crate) fn message_seeds() -> Vec<Vec<u8>> {
    let lengths = [(1, 64), (2, 20), (3, 8), (3, 0), (4, 6), (4, 40), (5, 8), (6, 3)];
    let plain = lengths.map(|(kind, length)| [&STAMP[..], &[kind], &vec![0; length]].concat());
    let call = [&STAMP[..], &[4, 0, 1, 0, 12, 1], &[7; 24], &[1], &[8; 20]].concat();
    plain.into_iter().chain([call]).collect()
}

pub(crate) fn arena_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0, 0, 100, 0, 255, 255, 0, 64, 0, 2, 0, 1, 3, 0, 0],
        vec![224, 128, 0, 0, 0, 1, 2, 0, 0, 224, 0, 9, 3, 0, 0, 0, 1, 0],
    ]
}
