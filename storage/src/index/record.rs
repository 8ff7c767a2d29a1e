//! What an index is made of: entries, and the runs of logs. `docs/FORMAT.md` has the layout.

use hlc::{Hlc, UserTime};

use crate::log::{Entry, LogId, Offset};

/// The length of a record, whether of an entry or of a run.
pub(crate) const RECORD_BYTES: usize = 104;

pub(crate) type RecordBytes = [u8; RECORD_BYTES];

struct Put<'a>(&'a mut RecordBytes, usize);

impl Put<'_> {
    fn field(&mut self, bytes: &[u8]) -> &mut Self {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
        self
    }
}

fn u32_at(bytes: &RecordBytes, at: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|nth| bytes[at + nth]))
}

fn u64_at(bytes: &RecordBytes, at: usize) -> u64 {
    u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|nth| bytes[at + nth]))
}

fn u128_at(bytes: &RecordBytes, at: usize) -> u128 {
    u128::from(u64_at(bytes, at)) | u128::from(u64_at(bytes, at + 8)) << 64
}

/// An entry, and where in its data file its payload begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The entry. Its `user_peak` is that of its run up to it.
    pub entry: Entry,
    /// Where its payload lies.
    pub at: u64,
}

impl Placed {
    pub(crate) fn encode(&self) -> RecordBytes {
        let (entry, mut bytes) = (&self.entry, [0; RECORD_BYTES]);
        Put(&mut bytes, 0)
            .field(&entry.stamp.bits().to_le_bytes())
            .field(&entry.base.0.to_le_bytes())
            .field(&entry.count.to_le_bytes())
            .field(&entry.length.to_le_bytes())
            .field(&entry.position.to_le_bytes())
            .field(&self.at.to_le_bytes())
            .field(&entry.user_min.0.to_le_bytes())
            .field(&entry.user_max.0.to_le_bytes())
            .field(&entry.user_peak.0.to_le_bytes())
            .field(&entry.bytes.to_le_bytes())
            .field(&entry.chain.to_le_bytes())
            .field(&entry.payload_crc.to_le_bytes())
            .field(&entry.epoch.to_le_bytes())
            .field(&[entry.kind]);
        bytes
    }

    pub(crate) fn decode(bytes: &RecordBytes) -> Placed {
        let entry = Entry {
            stamp: Hlc::from_bits(u64_at(bytes, 0)),
            base: Offset(u64_at(bytes, 8)),
            count: u32_at(bytes, 16),
            length: u32_at(bytes, 20),
            position: u64_at(bytes, 24),
            user_min: UserTime(u64_at(bytes, 40) as i64),
            user_max: UserTime(u64_at(bytes, 48) as i64),
            user_peak: UserTime(u64_at(bytes, 56) as i64),
            bytes: u64_at(bytes, 64),
            chain: u128_at(bytes, 72),
            payload_crc: u32_at(bytes, 88),
            epoch: u32_at(bytes, 92),
            kind: bytes[96],
        };
        Placed { entry, at: u64_at(bytes, 32) }
    }
}

/// How far a log had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tip {
    /// The offset behind its last.
    pub end: Offset,
    /// The stamp of its last entry.
    pub stamp: Hlc,
    /// The chain value of its last entry.
    pub chain: u128,
    /// Bytes of payload that were ever appended to it.
    pub bytes: u64,
    /// The largest user time that was ever in it.
    pub user_peak: UserTime,
    /// The epoch of its last entry.
    pub epoch: u32,
}

impl Tip {
    /// That of a log to which nothing was ever appended.
    pub const NONE: Tip = Tip {
        end: Offset(0),
        stamp: Hlc::ZERO,
        chain: 0,
        bytes: 0,
        user_peak: UserTime(i64::MIN),
        epoch: 0,
    };

    /// That of a log whose last entry is `entry`, and whose largest user time is `user_peak`.
    pub(crate) fn of(entry: &Entry, user_peak: UserTime) -> Tip {
        Tip {
            end: entry.end(),
            stamp: entry.stamp,
            chain: entry.chain,
            bytes: entry.bytes,
            user_peak,
            epoch: entry.epoch,
        }
    }
}

/// The run of a log in an indexed stretch: its entries there, and how far it had come behind them.
/// Every log that the store knew at the end of the stretch has one, be it empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The log.
    pub log: LogId,
    /// The number of its first entry, among those of the index.
    pub first: u64,
    /// How many entries it has.
    pub count: u64,
    /// The offset behind its last before the stretch.
    pub base: Offset,
    /// How far it had come at the end of the stretch.
    pub tip: Tip,
    /// The largest user time in the run.
    pub user_max: UserTime,
}

impl Run {
    pub(crate) fn encode(&self) -> RecordBytes {
        let mut bytes = [0; RECORD_BYTES];
        Put(&mut bytes, 0)
            .field(&self.log.0.to_le_bytes())
            .field(&self.first.to_le_bytes())
            .field(&self.count.to_le_bytes())
            .field(&self.base.0.to_le_bytes())
            .field(&self.tip.end.0.to_le_bytes())
            .field(&self.tip.bytes.to_le_bytes())
            .field(&self.tip.stamp.bits().to_le_bytes())
            .field(&self.tip.chain.to_le_bytes())
            .field(&self.tip.user_peak.0.to_le_bytes())
            .field(&self.user_max.0.to_le_bytes())
            .field(&self.tip.epoch.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &RecordBytes) -> Run {
        Run {
            log: LogId(u64_at(bytes, 0)),
            first: u64_at(bytes, 8),
            count: u64_at(bytes, 16),
            base: Offset(u64_at(bytes, 24)),
            tip: Tip {
                end: Offset(u64_at(bytes, 32)),
                bytes: u64_at(bytes, 40),
                stamp: Hlc::from_bits(u64_at(bytes, 48)),
                chain: u128_at(bytes, 56),
                user_peak: UserTime(u64_at(bytes, 72) as i64),
                epoch: u32_at(bytes, 88),
            },
            user_max: UserTime(u64_at(bytes, 80) as i64),
        }
    }

    /// The numbers of its entries.
    pub(crate) fn entries(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_as_they_were_written() {
        let entry = Entry {
            stamp: Hlc::from_bits(1),
            base: Offset(2),
            count: 3,
            length: 4,
            position: 5,
            user_min: UserTime(-6),
            user_max: UserTime(7),
            user_peak: UserTime(8),
            bytes: 9,
            payload_crc: 10,
            epoch: 11,
            kind: 12,
            chain: u128::MAX - 13,
        };
        let placed = Placed { entry, at: 14 };
        assert_eq!(Placed::decode(&placed.encode()), placed);
        let tip = Tip { bytes: 15, ..Tip::of(&entry, UserTime(16)) };
        let (log, base, user_max) = (LogId(17), Offset(1), UserTime(-18));
        let run = Run { log, first: 19, count: 20, base, tip, user_max };
        assert_eq!(Run::decode(&run.encode()), run);
    }
}
