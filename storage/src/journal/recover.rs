//! Reading the journal back: at start, and when it is checked.
//!
//! A journal ends at its first bad frame. Later frames (and the bound file) say what was on stable
//! storage. That decides whether the bad frame is the legal result of a crash, or corruption of
//! acknowledged entries.

use std::sync::Arc;

use hlc::Hlc;

use super::frame::{FRAME_BYTES, FrameError, FrameHeader, PAYLOAD_ALIGN};
use super::segment::{SEGMENT_HEADER_BYTES, Segment, segment_start};
use crate::disk::Disk;
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::payload::PAYLOAD_HEADER_BYTES_MAX;
use crate::space_reserve::RESERVE_FILE;
use crate::storage_file::{StorageFile, list_files, remove_file, sync_directory};

/// The number of bytes that are read at once while frames are small.
const WINDOW_BYTES: usize = 256 << 10;
/// The number of bytes that are read at once after a frame too long for the window.
const PEEK_BYTES: usize = 4 << 10;

/// A place of the journal that was on stable storage and cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalCorruption {
    pub file: String,
    /// The journal position of the first bad frame.
    pub position: u64,
    /// Everything below this position is known to have been synced.
    pub synced_to: u64,
    /// The fault of that frame.
    pub reason: FrameError,
}

impl std::fmt::Display for JournalCorruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let JournalCorruption { file, position, synced_to, reason } = self;
        write!(f, "the journal is corrupt in {file} at position {position}: {reason}")?;
        if synced_to > position {
            write!(f, " (it was synced up to {synced_to})")?;
        }
        Ok(())
    }
}

/// The reason a journal cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// Acknowledged entries cannot be read.
    #[error("{0}; nothing was changed. Restore the file from a backup or a replica")]
    Corrupt(JournalCorruption),
    /// A segment is missing, or there is one too many.
    #[error(
        "segment files do not follow one another: expected one that begins at {expected}, found {found}; nothing was changed. Put the missing file back"
    )]
    Gap {
        /// The position at which the next segment should begin.
        expected: u64,
        /// The position at which it begins.
        found: u64,
    },
    /// Stamps do not rise.
    #[error("stamps do not rise in the journal at position {position}: {stamp} follows {last}")]
    Order {
        position: u64,
        stamp: Hlc,
        /// The stamp before it.
        last: Hlc,
    },
    /// A log does not continue where it ended.
    #[error(
        "offsets of a log do not follow one another: at position {position}, log {} goes on at offset {} instead of {}, and what lies between is lost. Restore the whole data directory from a backup",
        log.0, found.0, expected.0
    )]
    Offsets {
        /// The position of the entry that does not follow.
        position: u64,
        log: LogId,
        /// The offset after the last one before it.
        expected: Offset,
        /// Its first offset.
        found: Offset,
    },
    /// A log would have more bytes than can be counted.
    #[error("a log cannot have so many bytes: log {} has {bytes} before position {position}", log.0)]
    Bytes {
        /// The position of the entry that is too much.
        position: u64,
        log: LogId,
        /// The number of bytes that the log has before it.
        bytes: u64,
    },
    /// Something is intact, and is of no use to this version of the service.
    #[error("read journal: {0}")]
    Unusable(String),
    /// Something cannot be read or written.
    #[error("read journal: {0}")]
    Storage(#[from] StorageError),
}

/// Receives the frames that recovery finds, in stamp order.
pub trait FrameVisitor {
    /// A frame at `position`. `start` holds the first bytes of its payload, up to
    /// [`PAYLOAD_HEADER_BYTES_MAX`]; the whole is in `segment`.
    ///
    /// # Errors
    /// The frame is unusable; the walk ends.
    fn frame(
        &mut self,
        segment: &Arc<Segment>,
        position: u64,
        frame: &FrameHeader,
        start: &[u8],
    ) -> Result<(), RecoverError>;
}

/// The result of recovery.
#[derive(Debug)]
pub struct RecoveredJournal {
    /// The segments that stay.
    pub segments: Vec<Arc<Segment>>,
    /// The position after the last good frame.
    pub end: u64,
    pub last: Hlc,
    /// The number of bytes of torn tail that were truncated.
    pub torn_bytes: u64,
}

/// The place at which a walk over the journal ended.
#[derive(Debug)]
pub struct JournalWalk {
    /// All segments whose header is intact, by position.
    pub segments: Vec<Arc<Segment>>,
    /// Names of files that are segments by name, but have no intact header.
    pub headerless: Vec<String>,
    /// The position after the last good frame.
    pub end: u64,
    pub last: Hlc,
    /// The bad frame that ended the walk before the last file's end, if one did.
    pub bad_frame: Option<(Arc<Segment>, FrameError)>,
    /// The position after the last file's last byte.
    pub limit: u64,
}

impl JournalWalk {
    /// Returns true if not even the beginning of a journal exists.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.headerless.is_empty()
    }

    /// The number of bytes that a crash left after the last good frame, up to the last that is not
    /// zero: zeros are written ahead of frames.
    ///
    /// # Errors
    /// The disk fails.
    pub fn torn_bytes(&self) -> Result<u64, StorageError> {
        for segment in self.segments.iter().rev() {
            let from = segment.start.max(self.end);
            if let Some(last) = last_written(segment, from)? {
                return Ok(last + 1 - self.end);
            }
        }
        Ok(0)
    }
}

/// The position of the last byte of `segment` at or after `from` that is not zero.
fn last_written(segment: &Segment, from: u64) -> Result<Option<u64>, StorageError> {
    let mut until = segment.limit()?;
    let mut bytes = vec![0; WINDOW_BYTES];
    while from < until {
        let start = from.max(until.saturating_sub(WINDOW_BYTES as u64));
        let bytes = &mut bytes[..(until - start) as usize];
        segment.read_exact(bytes, start)?;
        if let Some(index) = bytes.iter().rposition(|byte| *byte != 0) {
            return Ok(Some(start + index as u64));
        }
        until = start;
    }
    Ok(None)
}

/// Walks over all frames from position `from` on, where a segment begins and stamps lie above
/// `last`, up to the first bad one. Of payloads that begin below `trusted_to` only the headers are
/// read; later ones are verified whole.
///
/// # Errors
/// [`RecoverError`], and what `visit` returns.
pub fn walk(
    disk: &dyn Disk,
    from: u64,
    last: Hlc,
    trusted_to: u64,
    visit: &mut dyn FrameVisitor,
) -> Result<JournalWalk, RecoverError> {
    let mut starts: Vec<(u64, String)> = list_files(disk)?
        .into_iter()
        .filter_map(|name| segment_start(&name).map(|start| (start, name)))
        .filter(|(start, _)| *start >= from)
        .collect();
    starts.sort();
    let (mut segments, mut headless) = (Vec::new(), Vec::new());
    for (start, name) in starts {
        match Segment::open(disk, &name, start)? {
            Some(segment) => segments.push(Arc::new(segment)),
            // A header is on stable storage before the first frame is written.
            None if StorageFile::open(disk, &name)?.length()? > SEGMENT_HEADER_BYTES => {
                let (position, synced_to) = (start, trusted_to.max(start));
                let reason = FrameError::Segment;
                let damage = JournalCorruption { file: name, position, synced_to, reason };
                return Err(RecoverError::Corrupt(damage));
            }
            None => headless.push(name),
        }
    }
    let mut walked = JournalWalk {
        end: from,
        limit: segments.last().map_or(Ok(from), |segment: &Arc<Segment>| segment.limit())?,
        segments,
        headerless: headless,
        last,
        bad_frame: None,
    };
    for index in 0..walked.segments.len() {
        let segment = Arc::clone(&walked.segments[index]);
        if segment.start != walked.end {
            return Err(RecoverError::Gap { expected: walked.end, found: segment.start });
        }
        let next = walked.segments.get(index + 1).map(|next| next.start);
        let limit = match next {
            Some(next) => next.min(segment.limit()?),
            None => segment.limit()?,
        };
        let bad = scan(&segment, limit, trusted_to, &mut walked, visit)?;
        match (bad, next) {
            // A rolled segment reaches up to the next one.
            (None, Some(next)) if walked.end != next => {
                walked.bad_frame = Some((segment, FrameError::Short));
            }
            (bad, _) => walked.bad_frame = bad.map(|reason| (segment, reason)),
        }
        if walked.bad_frame.is_some() {
            break;
        }
    }
    Ok(walked)
}

/// Visits the frames of a segment that was rolled at `end`. It verifies their headers, but not
/// their payloads.
pub(crate) fn scan_sealed(
    segment: &Arc<Segment>,
    end: u64,
    visit: &mut dyn FrameVisitor,
) -> Result<(), RecoverError> {
    let mut walked = JournalWalk {
        segments: Vec::new(),
        headerless: Vec::new(),
        end: segment.start,
        last: Hlc::ZERO,
        bad_frame: None,
        limit: end,
    };
    let bad = scan(segment, end, end, &mut walked, visit)?;
    match bad.or((walked.end != end).then_some(FrameError::Short)) {
        None => Ok(()),
        Some(reason) => {
            let (file, position) = (segment.name().to_owned(), walked.end);
            Err(RecoverError::Corrupt(JournalCorruption { file, position, synced_to: end, reason }))
        }
    }
}

/// Visits the good frames of one segment; returns why the next one is bad, unless the segment ends
/// there.
fn scan(
    segment: &Arc<Segment>,
    limit: u64,
    trusted_to: u64,
    walked: &mut JournalWalk,
    visit: &mut dyn FrameVisitor,
) -> Result<Option<FrameError>, RecoverError> {
    let mut window = ReadAheadWindow::new(segment, limit);
    let mut payload = Vec::new();
    while walked.end < limit {
        let position = walked.end;
        let Some(bytes) = window.get(position, FRAME_BYTES)? else {
            return Ok(Some(FrameError::Short));
        };
        let header = bytes.try_into().expect("a window gives what it was asked for");
        let frame = match FrameHeader::decode_salted(header, position, segment.salt()) {
            Ok(frame) => frame,
            Err(reason) => return Ok(Some(reason)),
        };
        let length = frame.length as usize;
        let from = position + FRAME_BYTES as u64;
        if from + u64::from(frame.length) > limit {
            return Ok(Some(FrameError::Short));
        }
        if position >= trusted_to {
            payload.resize(length, 0);
            segment.read_exact(&mut payload, from)?;
            if crc32c::crc32c(&payload) != frame.payload_crc {
                return Ok(Some(FrameError::Payload));
            }
        }
        if frame.stamp <= walked.last {
            return Err(RecoverError::Order { position, stamp: frame.stamp, last: walked.last });
        }
        let start = window.get(from, length.min(PAYLOAD_HEADER_BYTES_MAX))?.unwrap_or_default();
        visit.frame(segment, position, &frame, start)?;
        walked.last = frame.stamp;
        walked.end = frame.end(position);
        window.follow(u64::from(frame.length));
    }
    Ok(None)
}

/// A moving read-ahead over one segment: large while frames are small, small after large ones.
struct ReadAheadWindow<'a> {
    segment: &'a Segment,
    limit: u64,
    bytes: Vec<u8>,
    from: u64,
    ahead: usize,
}

impl<'a> ReadAheadWindow<'a> {
    fn new(segment: &'a Segment, limit: u64) -> ReadAheadWindow<'a> {
        ReadAheadWindow {
            segment,
            limit,
            bytes: Vec::new(),
            from: segment.start,
            ahead: WINDOW_BYTES,
        }
    }

    fn follow(&mut self, length: u64) {
        self.ahead = if length as usize > WINDOW_BYTES / 4 { PEEK_BYTES } else { WINDOW_BYTES };
    }

    fn get(&mut self, position: u64, count: usize) -> Result<Option<&[u8]>, StorageError> {
        if position + count as u64 > self.limit {
            return Ok(None);
        }
        // Positions only rise.
        if position + count as u64 > self.from + self.bytes.len() as u64 {
            let ahead = (self.limit - position).min(self.ahead.max(count) as u64) as usize;
            self.bytes.resize(ahead, 0);
            self.segment.read_exact(&mut self.bytes, position)?;
            self.from = position;
        }
        let at = (position - self.from) as usize;
        Ok(Some(&self.bytes[at..at + count]))
    }
}

/// Returns the largest `synced_to` of the frames that can still be read after a bad frame:
/// everything below it was on stable storage.
fn synced_behind(walked: &JournalWalk) -> Result<u64, StorageError> {
    let mut synced_to = 0;
    for segment in walked.segments.iter().filter(|segment| segment.start >= walked.end) {
        // A later segment exists only once its predecessor was rolled.
        synced_to = synced_to.max(scan_for_synced(segment, segment.start)?);
    }
    if let Some((segment, _)) = &walked.bad_frame {
        synced_to = synced_to.max(scan_for_synced(segment, walked.end)?);
    }
    Ok(synced_to)
}

fn scan_for_synced(segment: &Segment, from: u64) -> Result<u64, StorageError> {
    let limit = segment.limit()?;
    let mut window = ReadAheadWindow::new(segment, limit);
    let (mut position, mut synced_to) = (from, 0);
    while let Some(bytes) = window.get(position, FRAME_BYTES)? {
        let header = bytes.try_into().expect("a window gives what it was asked for");
        match FrameHeader::decode_salted(header, position, segment.salt()) {
            // No frame claims to be synced beyond its own position: payload bytes may.
            Ok(frame) if frame.synced_to <= position => {
                synced_to = synced_to.max(frame.synced_to);
                position = frame.end(position);
            }
            _ => position += PAYLOAD_ALIGN,
        }
    }
    Ok(synced_to)
}

/// Writes a range again. If the previous incarnation ended with a failed sync, the kernel serves
/// the range's bytes to readers, takes them for clean, and would sync nothing. Only bytes that are
/// written again reach the disk.
fn rewrite_range(segment: &Segment, range: std::ops::Range<u64>) -> Result<(), StorageError> {
    let mut bytes = vec![0; WINDOW_BYTES];
    let mut position = range.start;
    while position < range.end {
        let count = (range.end - position).min(WINDOW_BYTES as u64) as usize;
        segment.read_exact(&mut bytes[..count], position)?;
        let at = segment.at(position);
        segment.file().write_at(&bytes[..count], at)?;
        position += count as u64;
    }
    Ok(())
}

/// Calls `act`. If there is no space for it, releases the space that the previous incarnation
/// reserved, and calls it once more: some file systems overwrite nothing in place.
fn with_reserve(
    disk: &dyn Disk,
    mut act: impl FnMut() -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    match act() {
        Err(error) if error.is_full() && remove_file(disk, RESERVE_FILE).is_ok() => {
            disk.sync_directory()?;
            act()
        }
        result => result,
    }
}

/// Truncates what a crash left unfinished after the last good frame of a journal that was walked,
/// and puts the rest on stable storage.
///
/// # Errors
/// [`RecoverError`]; then nothing has changed, unless the disk failed.
pub fn finish_recovery(
    disk: &dyn Disk,
    walked: JournalWalk,
    known: KnownSynced,
) -> Result<RecoveredJournal, RecoverError> {
    check_synced(&walked, known)?;
    let (KnownSynced::To(synced_to) | KnownSynced::AlsoByFrames(synced_to)) = known;
    truncate_torn_tail(disk, walked, synced_to)
}

/// The part of the journal that is known to be on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownSynced {
    /// Everything below this position.
    To(u64),
    /// Everything below this position, and what frames say: they were laid out here.
    AlsoByFrames(u64),
}

/// Checks that a walk reached everything that was on stable storage.
///
/// # Errors
/// [`RecoverError::Corrupt`], or the disk fails.
pub(crate) fn check_synced(walked: &JournalWalk, known: KnownSynced) -> Result<(), RecoverError> {
    let known = match known {
        KnownSynced::To(position) => position,
        KnownSynced::AlsoByFrames(position) => synced_behind(walked)?.max(position),
    };
    if walked.end < known {
        let last = walked.segments.last().map(|segment| segment.name().to_owned());
        let (file, reason) = match &walked.bad_frame {
            Some((segment, reason)) => (segment.name().to_owned(), *reason),
            None => (last.unwrap_or_else(|| "(no segment)".to_owned()), FrameError::Short),
        };
        let damage = JournalCorruption { file, position: walked.end, synced_to: known, reason };
        return Err(RecoverError::Corrupt(damage));
    }
    Ok(())
}

fn truncate_torn_tail(
    disk: &dyn Disk,
    walked: JournalWalk,
    synced_to: u64,
) -> Result<RecoveredJournal, RecoverError> {
    let torn_bytes = walked.torn_bytes()?;
    let JournalWalk { mut segments, headerless: headless, end, last, .. } = walked;
    // A segment with a torn header was being created when the machine stopped: nothing is in it.
    for name in headless {
        remove_file(disk, &name)?;
    }
    while segments.last().is_some_and(|segment| segment.start > end) {
        if let Some(segment) = segments.pop() {
            remove_file(disk, segment.name())?;
        }
    }
    // Always: the previous incarnation may have ended between creating a file and syncing its name.
    sync_directory(disk)?;
    if let Some(segment) = segments.last() {
        // Zeros written ahead are truncated too.
        with_reserve(disk, || segment.file().truncate(segment.at(end)))?;
    }
    // Readable data may still be only in the page cache of the previous incarnation, in rolled
    // segments as well as in the last. From here on it counts as synced.
    for (index, segment) in segments.iter().enumerate() {
        let next = segments.get(index + 1).map_or(u64::MAX, |next| next.start);
        if next > synced_to {
            let range = segment.start.max(synced_to)..next.min(end);
            with_reserve(disk, || rewrite_range(segment, range.clone()))?;
            segment.sync()?;
        }
    }
    Ok(RecoveredJournal { segments, end, last, torn_bytes })
}

#[cfg(test)]
mod tests;
