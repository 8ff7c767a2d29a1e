//! Payloads in memory: those in flight, and the newest that were appended.
//!
//! One budget covers the whole process; the oldest payload leaves first, whichever log it belongs to.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::data_cache::DataCache;
use crate::log::{Entry, Log};

/// The longest header that a payload may have, in bytes.
pub const PAYLOAD_HEADER_BYTES_MAX: usize = 64;

/// The first bytes of a payload: the part that the service fills in, kept apart so that the rest
/// stays where the network put it.
#[derive(Clone, Copy)]
pub struct PayloadHeader {
    bytes: [u8; PAYLOAD_HEADER_BYTES_MAX],
    length: u8,
}

impl PayloadHeader {
    /// A copy of `bytes`.
    ///
    /// # Panics
    /// If there are more than [`PAYLOAD_HEADER_BYTES_MAX`].
    pub fn new(bytes: &[u8]) -> PayloadHeader {
        assert!(
            bytes.len() <= PAYLOAD_HEADER_BYTES_MAX,
            "a head has at most {PAYLOAD_HEADER_BYTES_MAX} bytes"
        );
        let mut head =
            PayloadHeader { bytes: [0; PAYLOAD_HEADER_BYTES_MAX], length: bytes.len() as u8 };
        head.bytes[..bytes.len()].copy_from_slice(bytes);
        head
    }

    /// No bytes.
    pub fn empty() -> PayloadHeader {
        PayloadHeader::new(&[])
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The bytes, to be filled in.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.length)]
    }
}

impl std::fmt::Debug for PayloadHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Head({} bytes)", self.length)
    }
}

/// The bytes of an entry: its header, then the rest.
#[derive(Clone, Debug)]
pub struct Payload {
    /// The part that the service fills in.
    pub header: PayloadHeader,
    /// The part that is never touched.
    pub rest: Bytes,
}

impl Payload {
    /// A payload without a header.
    pub fn without_header(bytes: Bytes) -> Payload {
        Payload { header: PayloadHeader::empty(), rest: bytes }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.header.as_slice().len() + self.rest.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it in one piece; copies unless there is no header.
    pub fn to_bytes(&self) -> Bytes {
        if self.header.as_slice().is_empty() {
            return self.rest.clone();
        }
        [self.header.as_slice(), &self.rest].concat().into()
    }
}

/// The memory that a payload takes besides its bytes. Without it, many small payloads would exceed the
/// budget many times over.
const PAYLOAD_OVERHEAD_BYTES: usize =
    size_of::<Payload>() + size_of::<Entry>() + size_of::<(Arc<Log>, usize)>();

/// Which payloads are in memory, oldest first, under one budget with the blocks of data files.
pub(crate) struct PayloadTail {
    order: VecDeque<(Arc<Log>, usize)>,
    used_bytes: usize,
    blocks: Arc<DataCache>,
}

impl PayloadTail {
    pub(crate) fn new(blocks: Arc<DataCache>) -> PayloadTail {
        PayloadTail { order: VecDeque::new(), used_bytes: 0, blocks }
    }

    /// Counts a payload that was just published in `log`, and evicts the oldest while the budget is
    /// exceeded.
    pub(crate) fn admit(&mut self, log: &Arc<Log>, bytes: usize) {
        let bytes = bytes + PAYLOAD_OVERHEAD_BYTES;
        self.order.push_back((Arc::clone(log), bytes));
        self.used_bytes += bytes;
        let budget_bytes = self.blocks.tail_bytes_max();
        while self.used_bytes > budget_bytes {
            let Some((oldest, bytes)) = self.order.pop_front() else { break };
            oldest.evict_oldest();
            self.used_bytes -= bytes;
        }
        self.blocks.set_tail_bytes(self.used_bytes);
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes
    }
}
