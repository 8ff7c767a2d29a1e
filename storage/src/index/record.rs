//! The records of an index: entries, and the runs of logs. `docs/FORMAT.md` has the layout.

use hlc::{Hlc, UserTime};

use crate::entry::{Entry, LogId, Offset};

/// The length of an entry's record.
pub(crate) const ENTRY_BYTES: usize = 104;
/// The length of a run's record.
pub(crate) const RUN_BYTES: usize = 136;

struct FieldWriter<'a>(&'a mut [u8], usize);

impl FieldWriter<'_> {
    fn field(&mut self, bytes: &[u8]) -> &mut Self {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
        self
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes are four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes are eight bytes"))
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from(u64_at(bytes, at)) | u128::from(u64_at(bytes, at + 8)) << 64
}

/// An entry, and where in its data file its payload begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The entry. Its `user_time_max` is that of its run up to it.
    pub entry: Entry,
    /// The position of its payload in the data file.
    pub at: u64,
}

impl IndexEntry {
    pub(crate) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let (entry, mut bytes) = (&self.entry, [0; ENTRY_BYTES]);
        FieldWriter(&mut bytes, 0)
            .field(&entry.stamp.bits().to_le_bytes())
            .field(&entry.base.0.to_le_bytes())
            .field(&entry.count.to_le_bytes())
            .field(&entry.length.to_le_bytes())
            .field(&entry.position.to_le_bytes())
            .field(&self.at.to_le_bytes())
            .field(&entry.user_min.0.to_le_bytes())
            .field(&entry.user_max.0.to_le_bytes())
            .field(&entry.user_time_max.0.to_le_bytes())
            .field(&entry.bytes.to_le_bytes())
            .field(&entry.chain.to_le_bytes())
            .field(&entry.payload_crc.to_le_bytes())
            .field(&entry.epoch.to_le_bytes())
            .field(&[entry.kind]);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> IndexEntry {
        let entry = Entry {
            stamp: Hlc::from_bits(u64_at(bytes, 0)),
            base: Offset(u64_at(bytes, 8)),
            count: u32_at(bytes, 16),
            length: u32_at(bytes, 20),
            position: u64_at(bytes, 24),
            user_min: UserTime(u64_at(bytes, 40) as i64),
            user_max: UserTime(u64_at(bytes, 48) as i64),
            user_time_max: UserTime(u64_at(bytes, 56) as i64),
            bytes: u64_at(bytes, 64),
            chain: u128_at(bytes, 72),
            payload_crc: u32_at(bytes, 88),
            epoch: u32_at(bytes, 92),
            kind: bytes[96],
        };
        IndexEntry { entry, at: u64_at(bytes, 32) }
    }
}

/// The tip of a log: where it ends, and its totals up to there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTip {
    /// The offset after its last one.
    pub end: Offset,
    /// The stamp of its last entry.
    pub stamp: Hlc,
    /// The chain value of its last entry.
    pub chain: u128,
    /// Bytes of payload that were ever appended to it.
    pub bytes: u64,
    /// The largest user time that was ever in it.
    pub user_time_max: UserTime,
    /// The epoch of its last entry.
    pub epoch: u32,
}

impl LogTip {
    /// The tip of a log to which nothing was ever appended.
    pub const NONE: LogTip = LogTip {
        end: Offset(0),
        stamp: Hlc::ZERO,
        chain: 0,
        bytes: 0,
        user_time_max: UserTime(i64::MIN),
        epoch: 0,
    };

    /// The tip of a log whose last entry is `entry`, and whose largest user time is `user_peak`.
    pub(crate) fn of(entry: &Entry, user_peak: UserTime) -> LogTip {
        LogTip {
            end: entry.end(),
            stamp: entry.stamp,
            chain: entry.chain,
            bytes: entry.bytes,
            user_time_max: user_peak,
            epoch: entry.epoch,
        }
    }
}

/// The location of a run: its segment, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLocation {
    /// The position at which the segment begins.
    pub segment: u64,
    /// Its number there, or what it was before the segment was sorted: where to look first.
    pub number: u64,
}

impl RunLocation {
    /// Stands for no run.
    const NONE: RunLocation = RunLocation { segment: u64::MAX, number: 0 };

    pub(crate) fn get(self) -> Option<RunLocation> {
        (self.segment != u64::MAX).then_some(self)
    }
}

/// The links from a run to earlier ones of its log: to the previous one, and to one far before. So
/// any run is reached in a number of steps that grows as the logarithm of how many there are
/// (Myers, *An applicative random-access stack*, 1983).
///
/// A link may lead to a run that was removed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLinks {
    pub previous: Option<RunLocation>,
    /// A run far before.
    pub jump: Option<RunLocation>,
    /// The number of earlier runs of the log.
    pub depth: u32,
    /// The number of runs of the log before the run that `jump` leads to.
    pub jump_depth: u32,
}

impl RunLinks {
    /// The links of a log's first run.
    pub const FIRST: RunLinks = RunLinks { previous: None, jump: None, depth: 0, jump_depth: 0 };

    /// The links of the run that follows one at `place` with the links `previous`; `jumped` are the
    /// links of the run to which that one jumps.
    pub(crate) fn after(
        place: RunLocation,
        previous: &RunLinks,
        jumped: Option<&RunLinks>,
    ) -> RunLinks {
        let depth = previous.depth.saturating_add(1);
        let previous_jump = previous.depth.saturating_sub(previous.jump_depth);
        // Two jumps of the same length become one of both.
        let both = jumped.filter(|jumped| {
            jumped.jump.is_some()
                && previous.jump_depth.saturating_sub(jumped.jump_depth) == previous_jump
        });
        let (jump, jump_depth) = match both {
            Some(jumped) => (jumped.jump, jumped.jump_depth),
            None => (Some(place), previous.depth),
        };
        RunLinks { previous: Some(place), jump, depth, jump_depth }
    }
}

/// The run of a log in an indexed segment: its entries there, and the log's tip after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexRun {
    pub log: LogId,
    /// The number of its first entry, among those of the index.
    pub first: u64,
    /// The number of entries that it has.
    pub count: u64,
    /// The offset after its last one before the segment.
    pub base: Offset,
    /// The tip of the log at the end of the segment.
    pub tip: LogTip,
    /// The largest user time in the run.
    pub user_max: UserTime,
    /// The locations of earlier runs of the log.
    pub links: RunLinks,
}

impl IndexRun {
    pub(crate) fn encode(&self) -> [u8; RUN_BYTES] {
        let mut bytes = [0; RUN_BYTES];
        let RunLinks { previous, jump, depth, jump_depth } = self.links;
        let (previous, jump) =
            (previous.unwrap_or(RunLocation::NONE), jump.unwrap_or(RunLocation::NONE));
        FieldWriter(&mut bytes, 0)
            .field(&self.log.0.to_le_bytes())
            .field(&self.first.to_le_bytes())
            .field(&self.count.to_le_bytes())
            .field(&self.base.0.to_le_bytes())
            .field(&self.tip.end.0.to_le_bytes())
            .field(&self.tip.bytes.to_le_bytes())
            .field(&self.tip.stamp.bits().to_le_bytes())
            .field(&self.tip.chain.to_le_bytes())
            .field(&self.tip.user_time_max.0.to_le_bytes())
            .field(&self.user_max.0.to_le_bytes())
            .field(&self.tip.epoch.to_le_bytes())
            .field(&[0; 4])
            .field(&previous.segment.to_le_bytes())
            .field(&previous.number.to_le_bytes())
            .field(&jump.segment.to_le_bytes())
            .field(&jump.number.to_le_bytes())
            .field(&depth.to_le_bytes())
            .field(&jump_depth.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> IndexRun {
        let place =
            |at| RunLocation { segment: u64_at(bytes, at), number: u64_at(bytes, at + 8) }.get();
        IndexRun {
            log: LogId(u64_at(bytes, 0)),
            first: u64_at(bytes, 8),
            count: u64_at(bytes, 16),
            base: Offset(u64_at(bytes, 24)),
            tip: LogTip {
                end: Offset(u64_at(bytes, 32)),
                bytes: u64_at(bytes, 40),
                stamp: Hlc::from_bits(u64_at(bytes, 48)),
                chain: u128_at(bytes, 56),
                user_time_max: UserTime(u64_at(bytes, 72) as i64),
                epoch: u32_at(bytes, 88),
            },
            user_max: UserTime(u64_at(bytes, 80) as i64),
            links: RunLinks {
                previous: place(96),
                jump: place(112),
                depth: u32_at(bytes, 128),
                jump_depth: u32_at(bytes, 132),
            },
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
            user_time_max: UserTime(8),
            bytes: 9,
            payload_crc: 10,
            epoch: 11,
            kind: 12,
            chain: u128::MAX - 13,
        };
        let placed = IndexEntry { entry, at: 14 };
        assert_eq!(IndexEntry::decode(&placed.encode()), placed);
        let tip = LogTip { bytes: 15, ..LogTip::of(&entry, UserTime(16)) };
        let (log, base, user_max) = (LogId(17), Offset(1), UserTime(-18));
        let place = |segment| Some(RunLocation { segment, number: segment + 1 });
        let links = RunLinks { previous: place(21), jump: place(23), depth: 25, jump_depth: 26 };
        let run = IndexRun { log, first: 19, count: 20, base, tip, user_max, links };
        assert_eq!(IndexRun::decode(&run.encode()), run);
        let run = IndexRun { links: RunLinks::FIRST, ..run };
        assert_eq!(IndexRun::decode(&run.encode()), run);
    }

    /// From each of many runs, each earlier one is reached in few steps.
    #[test]
    fn f14_any_run_is_reached_in_a_logarithm_of_steps() {
        let place = |depth: usize| RunLocation { segment: depth as u64, number: 0 };
        let mut runs = vec![RunLinks::FIRST];
        for depth in 1..2000 {
            let previous = runs[depth - 1];
            let jumped = previous.jump.map(|jump| runs[jump.segment as usize]);
            runs.push(RunLinks::after(place(depth - 1), &previous, jumped.as_ref()));
        }
        let mut steps_max = 0;
        for from in (0..2000).step_by(7) {
            for to in (0..=from).step_by(3) {
                let (mut at, mut steps) = (from, 0);
                while at > to {
                    let links = runs[at];
                    assert_eq!(links.depth as usize, at);
                    let jump = links.jump.map_or(0, |jump| jump.segment as usize);
                    assert_eq!(links.jump_depth as usize, jump);
                    at = if jump >= to { jump } else { at - 1 };
                    steps += 1;
                }
                steps_max = steps_max.max(steps);
            }
        }
        assert!(steps_max <= 3 * 2000_u32.ilog2(), "{steps_max} steps among 2000 runs");
    }
}
