//! The ground types of logs: a log's id, an offset in it, and an entry.

use hlc::{Hlc, UserTime};
use serde::{Deserialize, Serialize};

/// Names a log within its store.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
pub struct LogId(pub u64);

/// A record's place in its log.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
pub struct Offset(pub u64);

/// One entry of a log, as its index has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The time at which the service accepted it.
    pub stamp: Hlc,
    /// The first offset that it takes.
    pub base: Offset,
    /// The number of offsets that it takes.
    pub count: u32,
    /// Length of its payload in bytes.
    pub length: u32,
    /// The position of its payload in the journal.
    pub position: u64,
    /// The smallest user time in it.
    pub user_min: UserTime,
    /// The largest user time in it.
    pub user_max: UserTime,
    /// The largest user time in the log up to and with this entry. For an entry that was found in
    /// an index, the largest in its run.
    pub user_time_max: UserTime,
    /// Bytes of payload in the log up to and with it.
    pub bytes: u64,
    /// CRC-32C of its payload.
    pub payload_crc: u32,
    /// A leader epoch.
    pub epoch: u32,
    /// Its kind; the store's user defines what it means.
    pub kind: u8,
    /// Identifies the log's whole content up to and with this entry.
    pub chain: u128,
}

impl Entry {
    /// The offset after its last one.
    pub fn end(&self) -> Offset {
        Offset(self.base.0 + u64::from(self.count))
    }

    /// The chain value that follows `previous`.
    pub(crate) fn link(previous: u128, entry: &Entry) -> u128 {
        let mut bytes = [0; 48];
        bytes[..16].copy_from_slice(&previous.to_le_bytes());
        bytes[16..24].copy_from_slice(&entry.stamp.bits().to_le_bytes());
        bytes[24..32].copy_from_slice(&entry.base.0.to_le_bytes());
        bytes[32..36].copy_from_slice(&entry.count.to_le_bytes());
        bytes[36..40].copy_from_slice(&entry.length.to_le_bytes());
        bytes[40..44].copy_from_slice(&entry.payload_crc.to_le_bytes());
        xxhash_rust::xxh3::xxh3_128(&bytes)
    }
}
