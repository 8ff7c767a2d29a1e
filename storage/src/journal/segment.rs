//! Segment files, and their sequence.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::data_file::DataFile;
use crate::disk::Disk;
use crate::error::StorageError;
use crate::storage_file::StorageFile;

/// The length of a segment's header; positions begin after it.
pub const SEGMENT_HEADER_BYTES: u64 = 64;
const MAGIC: &[u8; 8] = b"FFSEGMNT";
const VERSION: u32 = 2;
const SUFFIX: &str = ".journal";

/// The name of the segment that begins at `start`.
pub fn segment_name(start: u64) -> String {
    format!("{start:020}{SUFFIX}")
}

/// The start position that a file's name claims, if it is a segment's.
pub fn segment_start(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let is_number = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The position of its first frame.
    pub start: u64,
    /// The salt of its frames' checksums. Writers of payloads do not know it.
    pub salt: u64,
}

impl SegmentHeader {
    /// The header of a segment that begins at `start`, in an incarnation of the store with this
    /// secret.
    pub(crate) fn salted(start: u64, secret: u64) -> SegmentHeader {
        let bytes = [secret.to_le_bytes(), start.to_le_bytes()].concat();
        let derived = blake3::derive_key("freezeframe journal segment salt", &bytes);
        let salt = u64::from_le_bytes(derived[..8].try_into().expect("eight bytes of 32"));
        SegmentHeader { start, salt }
    }

    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.start.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES as usize]) -> Option<SegmentHeader> {
        let crc = u32::from_le_bytes(bytes[60..].try_into().ok()?);
        let version = u32::from_le_bytes(bytes[8..12].try_into().ok()?);
        if &bytes[..8] != MAGIC || version != VERSION || crc != crc32c::crc32c(&bytes[..60]) {
            return None;
        }
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        Some(SegmentHeader { start: u64_at(16)?, salt: u64_at(24)? })
    }
}

/// One file of the journal.
#[derive(Debug)]
pub struct Segment {
    /// The position of its first frame.
    pub start: u64,
    pub data: Arc<DataFile>,
    salt: u64,
    /// The error of its sync, if that failed: it is never synced again.
    sync_failed: Mutex<Option<StorageError>>,
    /// True if it was rolled and is on stable storage.
    is_sealed_synced: AtomicBool,
}

impl Segment {
    fn new(SegmentHeader { start, salt }: SegmentHeader, data: Arc<DataFile>) -> Segment {
        let is_settled = AtomicBool::new(false);
        Segment { start, data, salt, sync_failed: Mutex::default(), is_sealed_synced: is_settled }
    }

    /// Puts it on stable storage. Nothing retries a failed sync: the kernel forgets what it could
    /// not write, and says so only once. Running out of descriptors to open the file is no failure,
    /// because the kernel was not asked to sync.
    pub(crate) fn sync(&self) -> Result<(), StorageError> {
        let mut failed = self.sync_failed.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        self.file().sync().inspect_err(|error| {
            if !error.is_out_of_descriptors() {
                *failed = Some(error.clone());
            }
        })
    }

    /// The same for a rolled segment, to which nothing more is written. Until then its file is held
    /// open, so that it never waits for a descriptor.
    pub(crate) fn sync_sealed(&self) -> Result<(), StorageError> {
        if !self.is_sealed_synced() {
            self.sync()?;
            self.is_sealed_synced.store(true, Ordering::Release);
            self.file().hold_open(false)?;
        }
        Ok(())
    }

    /// Makes a rolled segment one that is written to again.
    pub(crate) fn reopen(&self) -> Result<(), StorageError> {
        self.file().hold_open(true)?;
        self.is_sealed_synced.store(false, Ordering::Release);
        Ok(())
    }

    /// Returns true if it was rolled and is on stable storage.
    pub(crate) fn is_sealed_synced(&self) -> bool {
        self.is_sealed_synced.load(Ordering::Acquire)
    }

    /// Creates a segment; its header and name are on stable storage.
    pub(crate) fn create(disk: &dyn Disk, header: SegmentHeader) -> Result<Segment, StorageError> {
        let name = segment_name(header.start);
        let file = StorageFile::create(disk, &name)?;
        file.write_at(&header.encode(), 0)?;
        file.sync()?;
        disk.sync_directory()?;
        let data = DataFile::new(file);
        data.set_final(SEGMENT_HEADER_BYTES);
        Ok(Segment::new(header, Arc::new(data)))
    }

    /// Opens a segment; `None` if its header is not intact.
    pub(crate) fn open(
        disk: &dyn Disk,
        name: &str,
        start: u64,
    ) -> Result<Option<Segment>, StorageError> {
        let data = Arc::new(DataFile::new(StorageFile::open(disk, name)?));
        Segment::read(data, start)
    }

    /// The segment that begins at `start`, in an open file; `None` if its header is not intact.
    pub(crate) fn read(data: Arc<DataFile>, start: u64) -> Result<Option<Segment>, StorageError> {
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        if data.file().read_at(&mut bytes, 0)? < bytes.len() {
            return Ok(None);
        }
        let header = SegmentHeader::decode(&bytes).filter(|header| header.start == start);
        Ok(header.map(|header| Segment::new(header, data)))
    }

    /// Its header.
    pub(crate) fn header(&self) -> SegmentHeader {
        SegmentHeader { start: self.start, salt: self.salt }
    }

    /// The salt of its frames' checksums.
    pub(crate) fn salt(&self) -> u64 {
        self.salt
    }

    /// Its name in the journal's directory.
    pub fn name(&self) -> &str {
        self.data.name()
    }

    /// The byte in the file at which `position` lies.
    pub fn at(&self, position: u64) -> u64 {
        position - self.start + SEGMENT_HEADER_BYTES
    }

    pub(crate) fn file(&self) -> &StorageFile {
        self.data.file()
    }

    /// The position after the file's last byte.
    pub(crate) fn limit(&self) -> Result<u64, StorageError> {
        Ok(self.start + self.file().length()?.saturating_sub(SEGMENT_HEADER_BYTES))
    }

    pub(crate) fn read_exact(&self, buffer: &mut [u8], position: u64) -> Result<(), StorageError> {
        self.data.read_exact(buffer, self.at(position))
    }
}

/// The segments whose entries are indexed in memory alone, by position. Readers clone the `Arc` of
/// the one that they need.
#[derive(Debug, Default)]
pub struct JournalSegments(RwLock<Vec<Arc<Segment>>>);

impl JournalSegments {
    pub(crate) fn new(segments: Vec<Arc<Segment>>) -> JournalSegments {
        assert!(segments.is_sorted_by(|a, b| a.start < b.start), "segments stand by position");
        JournalSegments(RwLock::new(segments))
    }

    pub(crate) fn push(&self, segment: Arc<Segment>) {
        self.0.write().push(segment);
    }

    /// Drops the last segment.
    pub(crate) fn remove_last(&self, last: &Segment) {
        let removed = self.0.write().pop();
        assert!(removed.is_some_and(|removed| removed.start == last.start), "it is the last one");
    }

    /// Drops the segments that begin below `position`: their entries are found in index files now.
    pub(crate) fn remove_below(&self, position: u64) {
        self.0.write().retain(|segment| segment.start >= position);
    }

    /// The segment that holds `position`.
    ///
    /// # Panics
    /// If there is none: positions come from the index, and the index from the journal.
    pub fn segment_at(&self, position: u64) -> Arc<Segment> {
        let segments = self.0.read();
        let after = segments.partition_point(|segment| segment.start <= position);
        assert!(after > 0, "position {position} lies before the journal's first segment");
        Arc::clone(&segments[after - 1])
    }

    pub(crate) fn last(&self) -> Option<Arc<Segment>> {
        self.0.read().last().cloned()
    }

    /// The number of segments.
    pub fn count(&self) -> usize {
        self.0.read().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{DiskFault, MemoryDisk};

    fn header(start: u64) -> SegmentHeader {
        SegmentHeader { start, salt: 0x1234_5678_9abc_def0 }
    }

    #[test]
    fn a_segment_s_name_says_where_it_begins() {
        for start in [0, 7, u64::MAX] {
            assert_eq!(segment_start(&segment_name(start)), Some(start));
        }
        assert_eq!(segment_name(7), "00000000000000000007.journal");
        let foreign = [
            "7.journal",
            "00000000000000000007",
            "00000000000000000007.index",
            "000000000000000000007.journal",
            "0000000000000000000x.journal",
            "+0000000000000000007.journal",
            "99999999999999999999.journal",
        ];
        for name in foreign {
            assert_eq!(segment_start(name), None, "{name}");
        }
    }

    #[test]
    fn a_header_reads_as_it_was_written_and_not_once_a_bit_has_flipped() {
        let good = header(u64::MAX - 1).encode();
        assert_eq!(SegmentHeader::decode(&good), Some(header(u64::MAX - 1)));
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&bad), None, "bit {bit}");
        }
    }

    /// Such a header could be that of another version, or of another file.
    #[test]
    fn a_header_of_another_kind_is_none_though_its_checksum_is_right() {
        for at in [0, 8] {
            let mut bytes = header(5).encode();
            bytes[at] += 1;
            let crc = crc32c::crc32c(&bytes[..60]);
            bytes[60..].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(SegmentHeader::decode(&bytes), None, "{at}");
        }
    }

    #[test]
    fn salts_differ_by_segment_and_by_secret() {
        let salt = |start, secret| SegmentHeader::salted(start, secret).salt;
        assert_eq!(salt(1, 2), salt(1, 2));
        assert!(salt(1, 2) != salt(1, 3) && salt(1, 2) != salt(2, 2) && salt(1, 2) != salt(2, 1));
        assert_eq!(SegmentHeader::salted(9, 2).start, 9);
    }

    #[test]
    fn a_segment_that_was_created_is_there_after_a_loss_of_power() {
        let disk = MemoryDisk::new();
        let created = Segment::create(&disk, header(100)).unwrap();
        assert_eq!((created.salt(), created.name()), (header(100).salt, &*segment_name(100)));
        let disk = disk.after_crash(|_| 0);
        let segment = Segment::open(&disk, &segment_name(100), 100).unwrap().unwrap();
        assert_eq!((segment.start, segment.salt()), (100, header(100).salt));
        assert_eq!(
            (segment.at(100), segment.at(107)),
            (SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 7)
        );
        assert_eq!(segment.limit().unwrap(), 100);
        segment.file().write_at(b"abc", segment.at(100)).unwrap();
        assert_eq!(segment.limit().unwrap(), 103);
        let mut read = [0; 2];
        segment.read_exact(&mut read, 101).unwrap();
        assert_eq!(&read, b"bc");
        assert!(
            Segment::open(&disk, &segment_name(100), 101).unwrap().is_none(),
            "of another place"
        );
        disk.truncate_file(&segment_name(100), 63);
        assert!(Segment::open(&disk, &segment_name(100), 100).unwrap().is_none(), "torn");
    }

    #[test]
    fn a_sync_that_failed_is_never_tried_again() {
        let disk = MemoryDisk::new();
        let segment = Segment::create(&disk, header(0)).unwrap();
        segment.sync().unwrap();
        assert!(!segment.is_sealed_synced());
        disk.arm(DiskFault::SyncFails(0));
        let first = segment.sync_sealed().unwrap_err().to_string();
        assert!(!segment.is_sealed_synced());
        let before = disk.operations();
        assert_eq!(segment.sync().unwrap_err().to_string(), first);
        assert_eq!(segment.sync_sealed().unwrap_err().to_string(), first);
        assert_eq!(disk.operations(), before);
    }

    #[test]
    fn a_sealed_segment_is_synced_once() {
        let disk = MemoryDisk::new();
        let segment = Segment::create(&disk, header(0)).unwrap();
        segment.sync_sealed().unwrap();
        assert!(segment.is_sealed_synced());
        let before = disk.operations();
        segment.sync_sealed().unwrap();
        assert_eq!(disk.operations(), before);
    }

    #[test]
    fn a_position_is_held_by_the_segment_that_begins_last_before_it() {
        let disk = MemoryDisk::new();
        let create = |start| Arc::new(Segment::create(&disk, header(start)).unwrap());
        let segments = JournalSegments::new(vec![create(0), create(80)]);
        segments.push(create(200));
        assert_eq!(segments.count(), 3);
        for (position, start) in [(0, 0), (79, 0), (80, 80), (199, 80), (200, 200), (u64::MAX, 200)]
        {
            assert_eq!(segments.segment_at(position).start, start, "{position}");
        }
        assert_eq!(segments.last().unwrap().start, 200);
        segments.remove_below(80);
        assert_eq!((segments.count(), segments.segment_at(80).start), (2, 80));
        segments.remove_below(81);
        assert_eq!((segments.count(), segments.segment_at(200).start), (1, 200));
        segments.remove_below(201);
        assert!(segments.last().is_none());
    }

    #[test]
    #[should_panic(expected = "lies before the journal's first segment")]
    fn a_position_before_all_segments_is_held_by_none() {
        let disk = MemoryDisk::new();
        let segment = Segment::create(&disk, header(80)).unwrap();
        JournalSegments::new(vec![Arc::new(segment)]).segment_at(79);
    }

    #[test]
    #[should_panic(expected = "segments stand by position")]
    fn segments_that_do_not_stand_by_position_are_refused() {
        let disk = MemoryDisk::new();
        let create = |start| Arc::new(Segment::create(&disk, header(start)).unwrap());
        JournalSegments::new(vec![create(80), create(0)]);
    }
}
