//! Segment files, and the row that they form.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::disk::{Disk, DiskFile, read_exact_at};

/// The length of a segment's header; positions begin behind it.
pub const SEGMENT_HEADER_BYTES: u64 = 64;
const MAGIC: &[u8; 8] = b"FFSEGMNT";
const VERSION: u32 = 1;
const SUFFIX: &str = ".journal";

/// The name of the segment that begins at `start`.
pub fn segment_name(start: u64) -> String {
    format!("{start:020}{SUFFIX}")
}

/// The start position that a file's name claims, if it is a segment's.
pub(crate) fn start_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    (digits.len() == 20).then(|| digits.parse().ok()).flatten()
}

/// What the first bytes of a segment say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The position of its first frame.
    pub start: u64,
}

impl SegmentHeader {
    /// The bytes.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.start.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header; `None` if the bytes are none.
    pub fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES as usize]) -> Option<SegmentHeader> {
        let crc = u32::from_le_bytes(bytes[60..].try_into().ok()?);
        let version = u32::from_le_bytes(bytes[8..12].try_into().ok()?);
        if &bytes[..8] != MAGIC || version != VERSION || crc != crc32c::crc32c(&bytes[..60]) {
            return None;
        }
        Some(SegmentHeader { start: u64::from_le_bytes(bytes[16..24].try_into().ok()?) })
    }
}

/// One file of the journal.
pub struct Segment {
    /// The position of its first frame.
    pub start: u64,
    /// Its name in the journal's directory.
    pub name: String,
    file: Arc<dyn DiskFile>,
    /// The positions whose bytes the page cache is likely to hold: what this life wrote through it.
    /// Ranges rise; the gaps between them were written around it.
    cached: Mutex<Vec<Range<u64>>>,
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment").field("start", &self.start).finish_non_exhaustive()
    }
}

impl Segment {
    /// Creates the segment that begins at `start`, its header and name on stable storage.
    pub(crate) fn create(disk: &dyn Disk, start: u64) -> io::Result<Segment> {
        let name = segment_name(start);
        let file = disk.create(&name)?;
        let header = SegmentHeader { start }.encode();
        file.write_at(&mut [io::IoSlice::new(&header)], 0)?;
        file.sync()?;
        disk.sync_names()?;
        Ok(Segment { start, name, file, cached: Mutex::default() })
    }

    /// Opens a segment; `None` if its header is not whole.
    pub(crate) fn open(disk: &dyn Disk, name: &str, start: u64) -> io::Result<Option<Segment>> {
        let file = disk.open(name)?;
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        if file.read_at(&mut bytes, 0)? < bytes.len() {
            return Ok(None);
        }
        let whole = SegmentHeader::decode(&bytes).is_some_and(|header| header.start == start);
        Ok(whole.then(|| Segment { start, name: name.to_owned(), file, cached: Mutex::default() }))
    }

    /// The file, and where in it `position` lies.
    pub fn place(&self, position: u64) -> (&Arc<dyn DiskFile>, u64) {
        (&self.file, position - self.start + SEGMENT_HEADER_BYTES)
    }

    /// Says that `range`, which lies behind all earlier ones, was written through the page cache.
    pub(crate) fn note_cached(&self, range: Range<u64>) {
        let mut cached = self.cached.lock();
        match cached.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => cached.push(range),
        }
    }

    /// Whether the page cache is likely to hold what lies at `position`.
    pub(crate) fn is_cached(&self, position: u64) -> bool {
        let cached = self.cached.lock();
        let after = cached.partition_point(|range| range.end <= position);
        cached.get(after).is_some_and(|range| range.start <= position)
    }

    pub(crate) fn file(&self) -> &dyn DiskFile {
        &*self.file
    }

    /// The position behind the file's last byte.
    pub(crate) fn limit(&self) -> io::Result<u64> {
        Ok(self.start + self.file.length()?.saturating_sub(SEGMENT_HEADER_BYTES))
    }

    pub(crate) fn read_exact(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        let (file, at) = self.place(position);
        read_exact_at(&**file, buffer, at)
    }
}

/// All segments, by position. Readers clone the `Arc` of the one that they need.
#[derive(Debug, Default)]
pub struct Segments(RwLock<Vec<Arc<Segment>>>);

impl Segments {
    pub(crate) fn new(segments: Vec<Arc<Segment>>) -> Segments {
        assert!(segments.is_sorted_by(|a, b| a.start < b.start), "segments stand by position");
        Segments(RwLock::new(segments))
    }

    pub(crate) fn push(&self, segment: Arc<Segment>) {
        self.0.write().push(segment);
    }

    /// The segment that holds `position`.
    ///
    /// # Panics
    /// If none does: positions come from the index, and the index from the journal.
    pub fn holding(&self, position: u64) -> Arc<Segment> {
        let segments = self.0.read();
        let after = segments.partition_point(|segment| segment.start <= position);
        assert!(after > 0, "position {position} lies before the journal's first segment");
        Arc::clone(&segments[after - 1])
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.read().len()
    }
}
