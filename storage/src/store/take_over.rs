//! Groups of another store's journal, taken over byte for byte.
//!
//! What is taken over is checked whole before anything is written: checksums, positions, the order of
//! stamps, and that each log goes on where it ended. The journal begins a segment where the other did,
//! with the same header, so files are equal, and so are the chains and roots over them.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use hlc::Hlc;

use super::append_group::{AppendGroup, LaidOutAppend};
use super::replay::check_continuation;
use super::writer::StoreWriter;
use super::{AppendStage, Durability, Store};
use crate::entry::LogId;
use crate::error::StorageError;
use crate::index::LogTip;
use crate::journal::{
    FRAME_BYTES, FrameError, FrameHeader, JournalWriteError, PAYLOAD_BYTES_MAX, RecoverError,
    SegmentHeader, padded,
};
use crate::payload::Payload;

/// The most bytes of a group: one is closed once it has 16 MiB, and the last append may be long.
pub(super) const GROUP_BYTES_MAX: usize = (16 << 20) + PAYLOAD_BYTES_MAX as usize + (1 << 20);

/// A group as another store has it in its journal.
#[derive(Clone, Debug)]
pub struct ForeignGroup {
    /// The position of its first frame.
    pub start: u64,
    /// The header of the segment that begins with it, if one does.
    pub segment: Option<SegmentHeader>,
    /// Its frames.
    pub bytes: Bytes,
}

/// The reason a group was not taken over. Nothing has changed, unless the disk failed.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// It begins elsewhere than the journal ends.
    #[error("the group begins at position {start}, and the journal ends at {end}")]
    Position { start: u64, end: u64 },
    /// Its bytes are not frames of this place.
    #[error("the frame at position {position} is not whole: {reason}")]
    Frame { position: u64, reason: FrameError },
    /// The bytes between two frames are not zero.
    #[error("the padding before position {position} is not zero")]
    Padding { position: u64 },
    /// It begins no segment, and there is none; or the header is that of another place.
    #[error("no segment begins at position {start} with this header")]
    Segment { start: u64 },
    /// It is longer than any group.
    #[error("the group has {bytes} bytes, more than {GROUP_BYTES_MAX}")]
    Length { bytes: usize },
    /// It has no frame.
    #[error("the group at position {start} is empty")]
    Empty { start: u64 },
    /// Stamps do not rise, a log does not go on where it ended, or an entry is of an unknown kind.
    #[error("{0}")]
    Entry(RecoverError),
    /// A moment was declared final here, and the group has an entry before it.
    #[error(
        "the entry at position {position} has the stamp {stamp}, and moments up to {promised} are final here"
    )]
    Promised { position: u64, stamp: Hlc, promised: Hlc },
    /// The store stages what is appended ([`Store::follow`] ends that), or its promises are not bounded
    /// by commits.
    #[error("the store does not follow another one")]
    Leading,
    /// The disk did not take it, or the store has stopped.
    #[error("{0}")]
    Storage(StorageError),
}

pub(super) type TakeOverResult = Result<(), TakeOverError>;

impl<S: AppendStage> Store<S> {
    /// Takes over a group at the end of the journal. It is in flight then. `done` is called once it is
    /// written, and synced if the store syncs.
    pub fn take_over(
        &self,
        group: ForeignGroup,
        done: impl FnOnce(TakeOverResult) + Send + 'static,
    ) {
        self.order(super::commit::CommitOrder::TakeOver { group, done: Box::new(done) });
    }
}

impl<S: AppendStage> StoreWriter<S> {
    pub(super) fn take_over(&mut self, group: ForeignGroup) -> TakeOverResult {
        if self.leads || !self.commit.bounds_promises() {
            return Err(TakeOverError::Leading);
        }
        let ForeignGroup { start, segment, bytes } = group;
        let entries = self.check(start, segment, &bytes)?;
        let stamp = |entry: Option<&(LaidOutAppend, FrameHeader)>| {
            entry.map_or(Hlc::ZERO, |(append, _)| append.entry.stamp)
        };
        let (first, last) = (stamp(entries.first()), stamp(entries.last()));
        // Before it is written: from here on no frontier passes it.
        self.timekeeper.begin_stamped_group(first, last).map_err(|promised| {
            TakeOverError::Promised { position: start, stamp: first, promised }
        })?;
        self.write_foreign(segment, &bytes, entries).map_err(|error| {
            let error = self.note_write_error(error);
            if self.stop_reason().is_none() {
                self.timekeeper.drop_groups(1);
            }
            TakeOverError::Storage(error)
        })
    }

    fn write_foreign(
        &mut self,
        segment: Option<SegmentHeader>,
        bytes: &Bytes,
        entries: Vec<(LaidOutAppend, FrameHeader)>,
    ) -> Result<(), JournalWriteError> {
        let shared = Arc::clone(&self.shared);
        let begun =
            self.journal.begin_foreign_group(segment, bytes, &|| shared.history.wait_for_room());
        self.queue_rolled();
        let mut frames = begun?;
        for (append, frame) in &entries {
            let payload = append.payload.as_ref().expect("it was just taken");
            self.journal.note_leaf(&mut frames, append.entry.frame(), frame, payload);
        }
        self.journal.write(&mut frames, self.durability == Durability::Synced)?;
        let mut group = AppendGroup::new(self.next_group, frames, true);
        group.is_staged = false;
        self.next_group = self.next_group.next();
        for (append, _) in entries {
            group.ends.insert(append.log.id, append.entry.end());
            group.appends.push(append);
        }
        self.in_flight.push_back(group);
        Ok(())
    }

    /// Checks a group; returns its entries.
    fn check(
        &self,
        start: u64,
        segment: Option<SegmentHeader>,
        bytes: &Bytes,
    ) -> Result<Vec<(LaidOutAppend, FrameHeader)>, TakeOverError> {
        let end = self.journal.end();
        if start != end {
            return Err(TakeOverError::Position { start, end });
        }
        if bytes.len() > GROUP_BYTES_MAX {
            return Err(TakeOverError::Length { bytes: bytes.len() });
        }
        let salt = match (segment, self.journal.current_salt()) {
            (Some(header), _) if header.start == start => header.salt,
            (None, Some(salt)) => salt,
            _ => return Err(TakeOverError::Segment { start }),
        };
        let mut last = self.journal_last();
        let mut tips: HashMap<LogId, LogTip> = HashMap::new();
        let (mut entries, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let position = start + at as u64;
            let bad = |reason| TakeOverError::Frame { position, reason };
            let header = bytes.get(at..at + FRAME_BYTES).and_then(|header| header.try_into().ok());
            let header: &[u8; FRAME_BYTES] = header.ok_or(bad(FrameError::Short))?;
            let frame = FrameHeader::decode_salted(header, position, salt).map_err(bad)?;
            let (from, length) = (at + FRAME_BYTES, frame.length as usize);
            let next = from + padded(u64::from(frame.length)) as usize;
            if next > bytes.len() {
                return Err(bad(FrameError::Short));
            }
            let payload = bytes.slice(from..from + length);
            if crc32c::crc32c(&payload) != frame.payload_crc {
                return Err(bad(FrameError::Payload));
            }
            if bytes[from + length..next].iter().any(|byte| *byte != 0) {
                return Err(TakeOverError::Padding { position: start + next as u64 });
            }
            if frame.stamp <= last {
                let stamp = frame.stamp;
                return Err(TakeOverError::Entry(RecoverError::Order { position, stamp, last }));
            }
            last = frame.stamp;
            let entry = frame.entry_at(position + FRAME_BYTES as u64);
            let log = self.shared.history.log(frame.log).map_err(TakeOverError::Storage)?;
            let tip = tips.entry(frame.log).or_insert_with(|| self.tip_in_flight(&log));
            check_continuation(tip, frame.log, &entry).map_err(TakeOverError::Entry)?;
            (tip.end, tip.stamp) = (entry.end(), entry.stamp);
            tip.bytes += u64::from(entry.length);
            self.stage.check_kind(&entry).map_err(TakeOverError::Entry)?;
            let payload = Some(Payload::without_header(payload));
            entries.push((LaidOutAppend { log, entry, payload }, frame));
            at = next;
        }
        if entries.is_empty() {
            return Err(TakeOverError::Empty { start });
        }
        Ok(entries)
    }

    /// The tip of a log behind all groups in flight; only its end, its stamp and its length.
    fn tip_in_flight(&self, log: &crate::log::Log) -> LogTip {
        let mut tip = log.tip();
        let appends = self.in_flight.iter().flat_map(|group| &group.appends);
        for append in appends.filter(|append| append.log.id == log.id) {
            (tip.end, tip.stamp) = (append.entry.end(), append.entry.stamp);
            tip.bytes += u64::from(append.entry.length);
        }
        tip
    }

    /// The last stamp in the journal.
    fn journal_last(&self) -> Hlc {
        let appends = self.in_flight.iter().rev().flat_map(|group| group.appends.last());
        appends.map(|append| append.entry.stamp).next().unwrap_or(self.published_last)
    }
}
