//! Payloads in memory: what is being appended, and the newest of what was.
//!
//! One budget for the whole process; the oldest payload leaves first, whichever log it belongs to.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::data_cache::DataCache;
use crate::log::{Entry, Log};

/// The longest head that a payload may have, in bytes.
pub const HEAD_BYTES_MAX: usize = 64;

/// The first bytes of a payload: the part that the service fills in, kept apart so that the rest
/// stays where the network put it.
#[derive(Clone, Copy)]
pub struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    length: u8,
}

impl Head {
    /// A copy of `bytes`.
    ///
    /// # Panics
    /// If there are more than [`HEAD_BYTES_MAX`].
    pub fn new(bytes: &[u8]) -> Head {
        assert!(bytes.len() <= HEAD_BYTES_MAX, "a head has at most {HEAD_BYTES_MAX} bytes");
        let mut head = Head { bytes: [0; HEAD_BYTES_MAX], length: bytes.len() as u8 };
        head.bytes[..bytes.len()].copy_from_slice(bytes);
        head
    }

    /// No bytes.
    pub fn empty() -> Head {
        Head::new(&[])
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

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Head({} bytes)", self.length)
    }
}

/// The bytes of an entry: its head, then the rest.
#[derive(Clone, Debug)]
pub struct Payload {
    /// The part that the service fills in.
    pub head: Head,
    /// The part that is never touched.
    pub rest: Bytes,
}

impl Payload {
    /// A payload without a head.
    pub fn plain(bytes: Bytes) -> Payload {
        Payload { head: Head::empty(), rest: bytes }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.head.as_slice().len() + self.rest.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it in one piece; copies unless there is no head.
    pub fn to_bytes(&self) -> Bytes {
        if self.head.as_slice().is_empty() {
            return self.rest.clone();
        }
        [self.head.as_slice(), &self.rest].concat().into()
    }
}

/// What a payload in memory takes besides its bytes: many small ones would else exceed the budget
/// many times over.
const PAYLOAD_OVERHEAD_BYTES: usize =
    size_of::<Payload>() + size_of::<Entry>() + size_of::<(Arc<Log>, usize)>();

/// Which payloads are in memory, oldest first, under one budget with the blocks of data files.
pub(crate) struct Tail {
    order: VecDeque<(Arc<Log>, usize)>,
    held_bytes: usize,
    blocks: Arc<DataCache>,
}

impl Tail {
    pub(crate) fn new(blocks: Arc<DataCache>) -> Tail {
        Tail { order: VecDeque::new(), held_bytes: 0, blocks }
    }

    /// Counts a payload that was just published in `log`, and lets the oldest go while the budget
    /// is exceeded.
    pub(crate) fn admit(&mut self, log: &Arc<Log>, bytes: usize) {
        let bytes = bytes + PAYLOAD_OVERHEAD_BYTES;
        self.order.push_back((Arc::clone(log), bytes));
        self.held_bytes += bytes;
        let budget_bytes = self.blocks.tail_bytes_max();
        while self.held_bytes > budget_bytes {
            let Some((oldest, bytes)) = self.order.pop_front() else { break };
            oldest.evict_oldest();
            self.held_bytes -= bytes;
        }
        self.blocks.set_tail_bytes(self.held_bytes);
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }
}
