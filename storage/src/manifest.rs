//! The manifest: which sealed segments there are, and the horizon of each log.
//!
//! Invariants:
//! - It is hard state: nothing else records the log starts, and which files have to exist.
//! - It is written before its effects: before space is reclaimed, and before a file that it no
//!   longer names is removed.
//! - A write costs what it changes: it is an edit, appended and synced. Once the edits outgrow the
//!   snapshot before them, a new snapshot replaces the file in one step, by renaming.
//! - A horizon never falls.
//!
//! `docs/FORMAT.md` has the layout.

mod edit;
mod writer;

use std::collections::BTreeMap;

use hlc::{Hlc, UserTime};

use crate::disk::Disk;
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::index::LogTip;
use crate::journal::segment_name;
use crate::sealed_segment::SegmentLayout;
use crate::sorted_segment::{compacted_prefix_name, sorted_segment_name};
use crate::storage_file::StorageFile;
pub(crate) use edit::{ManifestChange, ManifestEdit};
use edit::{PAGE_BYTES, apply_edits, apply_readable};
pub(crate) use writer::ManifestWriter;

/// The name of the manifest, in the journal's directory.
pub const MANIFEST_FILE: &str = "manifest";
const MAGIC: &[u8; 8] = b"FFMANIF1";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 32;
const LOG_BYTES: usize = 112;
/// No manifest is longer: a longer file is corrupt, and no reason to allocate.
pub const MANIFEST_BYTES_MAX: u64 = 1 << 32;

/// The extent to which a log has been removed or compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHorizon {
    /// The log start: the first offset that is kept.
    pub start: Offset,
    /// The stamp of the entry that holds the last removed offset: a cut whose bound lies at or
    /// below it misses records.
    pub lost_to: Hlc,
    /// Records whose successor by key lies below this bound may be gone: a cut below it is no
    /// longer complete.
    pub compacted_to: Hlc,
    /// Below this offset each key occurs once.
    pub clean_to: Offset,
    /// The tip of the log at the point where lookups in sealed segments begin. Everything before it
    /// is in the compacted prefix, or gone.
    pub(crate) released_tip: LogTip,
    /// The space of everything below this offset was reclaimed.
    pub(crate) reclaimed_to: Offset,
    /// The generation of its compacted prefix; 0 if it has none.
    pub(crate) compacted_generation: u64,
}

impl LogHorizon {
    /// The tip of the log at the point where lookups in sealed segments begin. Everything before it
    /// is in the compacted prefix, or gone.
    pub fn released_tip(&self) -> LogTip {
        self.released_tip
    }

    /// The space of everything below this offset was reclaimed.
    pub fn reclaimed_to(&self) -> Offset {
        self.reclaimed_to
    }

    /// The generation of its compacted prefix; 0 if it has none.
    pub fn compacted_generation(&self) -> u64 {
        self.compacted_generation
    }

    /// The largest user time in what was released from where it was written: some of it, or all of
    /// it, is gone.
    pub fn released_user_time_max(&self) -> UserTime {
        self.released_tip.user_time_max
    }

    /// Returns true if a compacted prefix may reach up to `until`. It must not end before an
    /// earlier one did, whose entries are nowhere else, and removed entries need none.
    pub(crate) fn admits_compacted_prefix(&self, until: Offset) -> bool {
        until > self.start && until >= self.released_tip.end
    }
}

impl Default for LogHorizon {
    fn default() -> LogHorizon {
        LogHorizon {
            start: Offset(0),
            lost_to: Hlc::ZERO,
            compacted_to: Hlc::ZERO,
            clean_to: Offset(0),
            released_tip: LogTip::NONE,
            reclaimed_to: Offset(0),
            compacted_generation: 0,
        }
    }
}

/// A sealed segment, as the manifest lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestSegment {
    /// The position at which it begins.
    pub start: u64,
    /// The position after it.
    pub end: u64,
    /// The order of frames in its file.
    pub layout: SegmentLayout,
}

impl ManifestSegment {
    /// The name of its data file.
    pub fn data_name(&self) -> String {
        match self.layout {
            SegmentLayout::Journal => segment_name(self.start),
            SegmentLayout::Sorted { generation } => sorted_segment_name(self.start, generation),
        }
    }
}

/// The content of the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The sequence number of the write.
    pub sequence: u64,
    /// Everything below this position is indexed in files; the rest is read back at each start.
    pub indexed_to: u64,
    /// The sealed segments, by position. Segments of which nothing is kept are not listed.
    pub segments: Vec<ManifestSegment>,
    /// Logs of which something was removed or compacted.
    pub logs: BTreeMap<LogId, LogHorizon>,
}

/// The reason the manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It is not what was written.
    #[error(
        "journal/manifest is corrupt: log starts are not known any more; nothing was changed. Restore the file from a backup or a replica"
    )]
    Corrupt,
    /// It is missing, or not the newest version.
    #[error(
        "journal/manifest is missing, or older than journal/bound says (version {found} instead of {known}): log starts are not known any more; nothing was changed. Restore the whole data directory from a backup, not single files"
    )]
    Stale {
        /// The sequence number that was found; 0 if the file is missing.
        found: u64,
        /// The sequence number that the bound file knows.
        known: u64,
    },
    /// It cannot be read.
    #[error("read journal/manifest: {0}")]
    Storage(#[from] StorageError),
}

impl Manifest {
    pub fn horizon(&self, log: LogId) -> LogHorizon {
        self.logs.get(&log).copied().unwrap_or_default()
    }

    /// The names of all data files.
    pub fn data_files(&self) -> impl Iterator<Item = String> + '_ {
        let prefixes = self.logs.iter().filter(|(_, horizon)| horizon.compacted_generation > 0);
        let prefix_names = prefixes
            .map(|(log, horizon)| compacted_prefix_name(*log, horizon.compacted_generation));
        self.segments.iter().map(ManifestSegment::data_name).chain(prefix_names)
    }

    /// The place of the sealed segment that begins at `start`, or where it would be inserted.
    fn segment_position(&self, start: u64) -> Result<usize, usize> {
        self.segments.binary_search_by_key(&start, |segment| segment.start)
    }

    pub(crate) fn apply(&mut self, edit: &ManifestEdit) {
        for change in &edit.0 {
            match change {
                ManifestChange::IndexedTo(position) => self.indexed_to = *position,
                ManifestChange::Segment(segment) => match self.segment_position(segment.start) {
                    Ok(place) => self.segments[place] = *segment,
                    Err(place) => self.segments.insert(place, *segment),
                },
                ManifestChange::SegmentRemoved(start) => {
                    if let Ok(place) = self.segment_position(*start) {
                        self.segments.remove(place);
                    }
                }
                ManifestChange::Log(log, horizon) => {
                    self.logs.insert(*log, *horizon);
                }
                ManifestChange::LogRemoved(log) => {
                    self.logs.remove(log);
                }
            }
        }
    }

    /// The bytes of a file with this content, without edits.
    pub fn encode(&self) -> Vec<u8> {
        let length = snapshot_bytes(self.segments.len(), self.logs.len()).expect("it is in memory");
        let mut bytes = Vec::with_capacity(length.next_multiple_of(PAGE_BYTES));
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for field in [
            self.sequence,
            self.indexed_to,
            self.segments.len() as u64,
            self.logs.len() as u64,
            0,
            0,
        ] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        self.segments.iter().for_each(|segment| encode_segment(segment, &mut bytes));
        for (log, horizon) in &self.logs {
            encode_log(*log, horizon, &mut bytes);
        }
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.resize(length.next_multiple_of(PAGE_BYTES), 0);
        bytes
    }

    /// Decodes the bytes of the file; `None` if they are not a manifest.
    pub fn decode(bytes: &[u8]) -> Option<Manifest> {
        let (mut manifest, pages) = Manifest::decode_snapshot(bytes)?;
        apply_edits(&mut manifest, pages)?;
        manifest.is_valid().then_some(manifest)
    }

    /// Decodes the snapshot; returns also the pages of edits after it.
    fn decode_snapshot(bytes: &[u8]) -> Option<(Manifest, &[u8])> {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        if &header[..8] != MAGIC || header[8..12] != VERSION.to_le_bytes() {
            return None;
        }
        let count = |at| usize::try_from(u64_at(header, at)).ok();
        let (part_count, log_count) = (count(32)?, count(40)?);
        let length = snapshot_bytes(part_count, log_count)?;
        let padded = length.checked_next_multiple_of(PAGE_BYTES)?;
        let (snapshot, pages) = bytes.split_at_checked(padded)?;
        let (body, end) = snapshot[..length].split_at(length - 8);
        let crc = u32::from_le_bytes(end[..4].try_into().ok()?);
        let are_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        if crc != crc32c::crc32c(body) || !are_zero(&end[4..]) || !are_zero(&snapshot[length..]) {
            return None;
        }
        let (segments, logs) =
            rest[..length - HEADER_BYTES - 8].split_at(part_count * SEGMENT_BYTES);
        let segments =
            segments.chunks(SEGMENT_BYTES).map(decode_segment).collect::<Option<Vec<_>>>()?;
        let logs = logs.chunks(LOG_BYTES).map(decode_log).collect();
        let (sequence, indexed_to) = (u64_at(header, 16), u64_at(header, 24));
        Some((Manifest { sequence, indexed_to, segments, logs }, pages))
    }

    /// Returns true if the sealed segments are in order of position, and below what is indexed. If
    /// the checksum is right and this is false, someone changed the file on purpose, and everything
    /// else relies on it.
    fn is_valid(&self) -> bool {
        let is_in_order = |segment: &ManifestSegment| {
            segment.start <= segment.end && segment.end <= self.indexed_to
        };
        self.segments.iter().all(is_in_order)
            && self.segments.is_sorted_by(|a, b| a.end <= b.start && a.start < b.start)
    }

    /// Decodes as much as possible of a corrupt manifest, whatever its checksum says: for a person
    /// to read, and for nothing else. `None` if it does not begin as one.
    pub fn decode_corrupt(bytes: &[u8]) -> Option<Manifest> {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        if &header[..8] != MAGIC {
            return None;
        }
        let (part_count, log_count) = (u64_at(header, 32), u64_at(header, 40));
        let records = rest.chunks_exact(SEGMENT_BYTES).take(usize::try_from(part_count).ok()?);
        let logs_at = records.len() * SEGMENT_BYTES;
        let segments = records.map_while(decode_segment).collect();
        let logs = rest[logs_at..].chunks_exact(LOG_BYTES).take(usize::try_from(log_count).ok()?);
        let logs = logs.map(decode_log).collect();
        let (sequence, indexed_to) = (u64_at(header, 16), u64_at(header, 24));
        let mut manifest = Manifest { sequence, indexed_to, segments, logs };
        let count = |at| usize::try_from(u64_at(header, at)).ok();
        let length = snapshot_bytes(count(32)?, count(40)?);
        let pages_at = length.and_then(|length| length.checked_next_multiple_of(PAGE_BYTES));
        if let Some(pages) = pages_at.and_then(|at| bytes.get(at..)) {
            apply_readable(&mut manifest, pages);
        }
        Some(manifest)
    }

    /// Reads the manifest; an empty one if there is none yet.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn read(disk: &dyn Disk) -> Result<Manifest, ManifestError> {
        let Some(file) = StorageFile::open_if_exists(disk, MANIFEST_FILE)? else {
            return Ok(Manifest::default());
        };
        let length = file.length()?;
        if length > MANIFEST_BYTES_MAX {
            return Err(ManifestError::Corrupt);
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Manifest::decode(&bytes).ok_or(ManifestError::Corrupt)
    }
}

/// The length of a snapshot, without the padding of its last page.
fn snapshot_bytes(segments: usize, logs: usize) -> Option<usize> {
    let records = segments.checked_mul(SEGMENT_BYTES)?.checked_add(logs.checked_mul(LOG_BYTES)?)?;
    records.checked_add(HEADER_BYTES + 8)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|nth| bytes[at + nth]))
}

fn decode_segment(bytes: &[u8]) -> Option<ManifestSegment> {
    let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|nth| bytes[at + nth]));
    let layout = match number(16) {
        0 => SegmentLayout::Journal,
        1 => SegmentLayout::Sorted { generation: number(20) },
        _ => return None,
    };
    Some(ManifestSegment { start: u64_at(bytes, 0), end: u64_at(bytes, 8), layout })
}

fn encode_segment(segment: &ManifestSegment, bytes: &mut Vec<u8>) {
    let (kind, generation) = match segment.layout {
        SegmentLayout::Journal => (0_u32, 0),
        SegmentLayout::Sorted { generation } => (1, generation),
    };
    bytes.extend_from_slice(&segment.start.to_le_bytes());
    bytes.extend_from_slice(&segment.end.to_le_bytes());
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&generation.to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
}

fn encode_log(log: LogId, horizon: &LogHorizon, bytes: &mut Vec<u8>) {
    let freed = &horizon.released_tip;
    for field in [
        log.0,
        horizon.start.0,
        horizon.lost_to.bits(),
        horizon.compacted_to.bits(),
        horizon.reclaimed_to.0,
        horizon.compacted_generation,
        freed.end.0,
        freed.stamp.bits(),
        freed.chain as u64,
        (freed.chain >> 64) as u64,
        freed.bytes,
        freed.user_time_max.0 as u64,
        u64::from(freed.epoch),
        horizon.clean_to.0,
    ] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
}

fn decode_log(bytes: &[u8]) -> (LogId, LogHorizon) {
    let field = |nth: usize| u64_at(bytes, nth * 8);
    let freed = LogTip {
        end: Offset(field(6)),
        stamp: Hlc::from_bits(field(7)),
        chain: u128::from(field(8)) | u128::from(field(9)) << 64,
        bytes: field(10),
        user_time_max: UserTime(field(11) as i64),
        epoch: field(12) as u32,
    };
    let horizon = LogHorizon {
        start: Offset(field(1)),
        lost_to: Hlc::from_bits(field(2)),
        compacted_to: Hlc::from_bits(field(3)),
        reclaimed_to: Offset(field(4)),
        compacted_generation: field(5),
        clean_to: Offset(field(13)),
        released_tip: freed,
    };
    (LogId(field(0)), horizon)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{DiskFault, MemoryDisk};

    pub(super) fn manifest() -> Manifest {
        let freed = LogTip {
            end: Offset(1),
            stamp: Hlc::from_bits(2),
            chain: u128::MAX - 3,
            bytes: 4,
            user_time_max: UserTime(-5),
            epoch: 6,
        };
        let horizon = LogHorizon {
            start: Offset(7),
            lost_to: Hlc::from_bits(8),
            compacted_to: Hlc::from_bits(9),
            released_tip: freed,
            reclaimed_to: Offset(10),
            clean_to: Offset(15),
            compacted_generation: 11,
        };
        Manifest {
            sequence: 12,
            indexed_to: 40,
            segments: vec![
                ManifestSegment { start: 0, end: 16, layout: SegmentLayout::Journal },
                ManifestSegment {
                    start: 24,
                    end: 40,
                    layout: SegmentLayout::Sorted { generation: 2 },
                },
            ],
            logs: BTreeMap::from([(LogId(13), horizon), (LogId(14), LogHorizon::default())]),
        }
    }

    #[test]
    fn a_manifest_reads_as_it_was_written() {
        assert_eq!(Manifest::decode(&manifest().encode()), Some(manifest()));
        let layout = SegmentLayout::Sorted { generation: u32::MAX - 1 };
        let segment = |start, layout| ManifestSegment { start, end: start + 8, layout };
        let segments =
            vec![segment(u64::MAX - 30, layout), segment(u64::MAX - 9, SegmentLayout::Journal)];
        let large = Manifest { indexed_to: u64::MAX, segments, ..manifest() };
        assert_eq!(Manifest::decode(&large.encode()), Some(large));
    }

    #[test]
    fn a_horizon_says_what_it_was_given() {
        let horizon = manifest().logs[&LogId(13)];
        assert_eq!((horizon.reclaimed_to(), horizon.compacted_generation()), (Offset(10), 11));
        assert_eq!(
            (horizon.released_tip().end, horizon.released_user_time_max()),
            (Offset(1), UserTime(-5))
        );
        assert_eq!(manifest().horizon(LogId(13)), horizon);
        assert_eq!(
            manifest().horizon(LogId(15)),
            LogHorizon::default(),
            "no log start was advanced"
        );
    }

    /// Removed entries need no compacted prefix, and the entries of an earlier one are nowhere
    /// else.
    #[test]
    fn a_compacted_prefix_reaches_beyond_the_start_and_as_far_as_the_one_before() {
        let freed = |end| LogTip { end: Offset(end), ..LogTip::NONE };
        let admits = |start, end, until| {
            let start = Offset(start);
            let horizon = LogHorizon { start, released_tip: freed(end), ..LogHorizon::default() };
            horizon.admits_compacted_prefix(Offset(until))
        };
        assert!(!admits(5, 0, 4) && !admits(5, 0, 5) && admits(5, 0, 6));
        assert!(!admits(5, 9, 8) && admits(5, 9, 9));
    }

    /// With a right checksum, someone did that on purpose.
    #[test]
    fn parts_that_do_not_stand_by_position_below_what_is_indexed_are_refused() {
        let is_lawful = |spans: &[(u64, u64)]| {
            let layout = SegmentLayout::Journal;
            let listed =
                |(start, end): &(u64, u64)| ManifestSegment { start: *start, end: *end, layout };
            let segments = spans.iter().map(listed).collect();
            Manifest::decode(&Manifest { segments, ..manifest() }.encode()).is_some()
        };
        for lawful in [&[][..], &[(0, 40)], &[(8, 8), (9, 10)], &[(0, 16), (16, 32), (33, 40)]] {
            assert!(is_lawful(lawful), "{lawful:?}");
        }
        for unlawful in [
            &[(9, 8)][..],
            &[(0, 41)],
            &[(0, 16), (15, 32)],
            &[(16, 32), (0, 16)],
            &[(8, 8), (8, 9)],
            &[(0, 16), (20, 19), (21, 22)],
        ] {
            assert!(!is_lawful(unlawful), "{unlawful:?}");
        }
    }

    #[test]
    fn another_file_or_version_is_no_manifest_though_its_checksum_is_right() {
        let manifest = manifest();
        let good = manifest.encode();
        let body = snapshot_bytes(manifest.segments.len(), manifest.logs.len()).unwrap() - 8;
        for at in [0, 8] {
            let mut changed = good.clone();
            changed[at] += 1;
            let crc = crc32c::crc32c(&changed[..body]);
            changed[body..body + 4].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Manifest::decode(&changed), None);
            // For a person, a file of another version is decoded as well as possible.
            assert_eq!(Manifest::decode_corrupt(&changed), (at > 0).then(|| manifest.clone()));
        }
    }

    #[test]
    fn a_disk_that_fails_is_no_manifest_that_is_missing() {
        let disk = MemoryDisk::new();
        assert_eq!(Manifest::read(&disk).unwrap(), Manifest::default());
        disk.arm(DiskFault::CrashAt(0));
        assert!(disk.sync_directory().is_err());
        assert!(matches!(Manifest::read(&disk), Err(ManifestError::Storage(_))));
    }

    #[test]
    fn every_flipped_byte_and_every_lost_end_is_noticed() {
        let good = manifest().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(Manifest::decode(&bad), None, "byte {at}");
            assert_eq!(Manifest::decode(&good[..at]), None, "cut at {at}");
            // For a person, a part is decoded, and nothing that was not there.
            if let Some(read) = Manifest::decode_corrupt(&good[..at]) {
                assert!(manifest().segments.starts_with(&read.segments), "cut at {at}");
                assert!(read.logs.len() <= manifest().logs.len(), "cut at {at}");
            }
            let _ = Manifest::decode_corrupt(&bad);
        }
    }
}
