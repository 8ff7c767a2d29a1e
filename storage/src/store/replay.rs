//! Reading back what the previous incarnation of the store left.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use hlc::Hlc;

use super::OpenError;
use crate::data_file::DataFile;
use crate::entry::{Entry, LogId, Offset};
use crate::error::StorageError;
use crate::history::{HistoryBuilder, StageSnapshot, UnindexedSegment};
use crate::index::{IndexRun, LogTip};
use crate::journal::{
    FRAME_BYTES, FrameHeader, FrameVisitor, OpenSegment, RecoverError, RecoveredJournal,
    RolledSegment, Segment,
};
use crate::payload::{PAYLOAD_HEADER_BYTES_MAX, read_checked};
use crate::sealed_segment::SegmentFiles;

/// An entry that was read back at start.
pub struct ReplayedEntry<'a> {
    pub log: LogId,
    /// Below this offset, compaction may have removed entries of the log.
    pub clean_to: Offset,
    /// The entry; its `user_time_max` and chain are not filled in.
    pub entry: &'a Entry,
    /// The first bytes of its payload.
    pub start: &'a [u8],
    pub(super) file: &'a DataFile,
    pub(super) at: u64,
}

impl ReplayedEntry<'_> {
    /// The whole payload, as it was written.
    ///
    /// # Errors
    /// The disk fails, or returns other bytes than were written.
    pub fn payload(&self) -> Result<Bytes, StorageError> {
        let is_all = self.start.len() == self.entry.length as usize;
        if is_all && crc32c::crc32c(self.start) == self.entry.payload_crc {
            return Ok(Bytes::copy_from_slice(self.start));
        }
        read_checked(self.file, self.at, self.entry)
    }
}

/// Receives at start what the previous incarnation of the store had seen.
pub trait ReplayHandler {
    /// The saved state of an [`AppendStage`](crate::AppendStage); entries that it does not cover
    /// follow. Not called if no state is saved: then all entries follow.
    ///
    /// # Errors
    /// [`RecoverError::Unusable`], for example; the store does not open.
    fn restore(&mut self, state: &[u8]) -> Result<(), RecoverError>;

    /// Entries of a log below an offset that the restored state does not cover are removed, or some
    /// of them.
    fn skip_to(&mut self, _log: LogId, _below: Offset) {}

    /// An entry. The entries of one log come in order.
    ///
    /// # Errors
    /// [`RecoverError::Unusable`], for example; the store does not open.
    fn entry(&mut self, replayed: &ReplayedEntry<'_>) -> Result<(), RecoverError>;

    /// The state that an [`AppendStage`](crate::AppendStage) would have after the same entries.
    fn state(&self) -> Vec<u8>;
}

/// Replays the stage's state, and the entries of the sealed segments that it does not cover.
pub(super) fn replay_segments<R: ReplayHandler>(
    StageSnapshot { state, covered_to, last_stamp, unseen }: &StageSnapshot,
    opened: &HistoryBuilder,
    replay: &mut R,
) -> Result<(), OpenError> {
    let from = *covered_to;
    if let Some(state) = state {
        replay.restore(state)?;
    }
    for (log, horizon) in &opened.manifest.logs {
        if horizon.released_tip.stamp <= *last_stamp {
            continue;
        }
        match opened.compacted_prefixes.get(log) {
            Some(base) => {
                replay.skip_to(*log, horizon.clean_to);
                replay_run(&base.files, &base.run, from, horizon.clean_to, replay)?;
            }
            None => replay.skip_to(*log, horizon.released_tip.end),
        }
    }
    for segment in unseen {
        let files = segment.files();
        for number in 0..files.index.header.runs {
            let run = files.index.run_at(number)?;
            // Released entries may be gone; what is left of them is in the compacted prefix.
            let horizon = opened.manifest.horizon(run.log);
            if run.tip.end > horizon.released_tip.end {
                replay_run(&files, &run, from, horizon.clean_to, replay)?;
            }
        }
    }
    Ok(())
}

/// Replays the entries of a run that were written to the journal at `from` or after it.
fn replay_run<R: ReplayHandler>(
    files: &SegmentFiles,
    run: &IndexRun,
    from: u64,
    clean_to: Offset,
    replay: &mut R,
) -> Result<(), OpenError> {
    for number in run.entries() {
        let placed = files.index.entry(number)?;
        if placed.entry.frame() < from {
            continue;
        }
        let mut start = vec![0; (placed.entry.length as usize).min(PAYLOAD_HEADER_BYTES_MAX)];
        files.data.read_exact(&mut start, placed.at)?;
        let (log, entry, at) = (run.log, &placed.entry, placed.at);
        let file = &files.data;
        replay.entry(&ReplayedEntry { log, clean_to, entry, start: &start, file, at })?;
    }
    Ok(())
}

/// The frames that the walk over the journal finds after the indexed part.
pub(super) struct ReplayCollector<'a, R> {
    replay: &'a mut R,
    /// Entries from this position on are not visible yet.
    committed_to: u64,
    found: CollectedEntries,
    /// The segment of the last frame, how many frames it has, and the first stamp in it.
    current: Option<(Arc<Segment>, u64, Hlc)>,
}

/// A frame whose entry is not visible yet.
pub(super) struct HeldFrame {
    pub(super) segment: Arc<Segment>,
    pub(super) position: u64,
    pub(super) frame: FrameHeader,
}

/// The segments to whose entries more may come, or which may be cut off.
#[derive(Default)]
pub(super) struct WrittenSegments {
    /// The rolled ones that do not end with a visible entry.
    pub(super) rolled: VecDeque<RolledSegment>,
    /// The number of frames of the last segment.
    pub(super) frames: u64,
    /// The first stamp in it.
    pub(super) since: Hlc,
}

/// What a walk over the journal has found.
#[derive(Default)]
pub(super) struct CollectedEntries {
    /// The visible entries.
    pub(super) logs: HashMap<LogId, Vec<Entry>>,
    /// The last stamp of these.
    pub(super) last: Hlc,
    pub(super) held: Vec<HeldFrame>,
    /// The rolled segments that end with a visible entry.
    pub(super) unindexed: Vec<UnindexedSegment>,
    pub(super) written: WrittenSegments,
}

impl<'a, R: ReplayHandler> ReplayCollector<'a, R> {
    /// A collector of what follows an entry with the stamp `last`.
    pub(super) fn new(replay: &'a mut R, committed_to: u64, last: Hlc) -> ReplayCollector<'a, R> {
        let found = CollectedEntries { last, ..CollectedEntries::default() };
        ReplayCollector { replay, committed_to, found, current: None }
    }

    fn finish_segment(&mut self, end: u64) {
        let Some((segment, frames, since)) = self.current.take() else { return };
        if end <= self.committed_to {
            let stage_state = self.replay.state();
            self.found.unindexed.push(UnindexedSegment { segment, end, stage_state });
        } else {
            let open = OpenSegment { segment, frames, since, leaves: None };
            self.found.written.rolled.push_back(RolledSegment { open, end });
        }
    }

    pub(super) fn finish(mut self, recovered: &RecoveredJournal) -> CollectedEntries {
        let newest = recovered.segments.last().map_or(0, |segment| segment.start);
        let is_newest = |(segment, ..): &(Arc<Segment>, u64, Hlc)| segment.start == newest;
        if !self.current.as_ref().is_some_and(is_newest) {
            self.finish_segment(newest);
        }
        let written = &mut self.found.written;
        (written.frames, written.since) =
            self.current.map_or((0, Hlc::ZERO), |(_, count, since)| (count, since));
        self.found
    }
}

impl<R: ReplayHandler> FrameVisitor for ReplayCollector<'_, R> {
    fn frame(
        &mut self,
        segment: &Arc<Segment>,
        position: u64,
        frame: &FrameHeader,
        start: &[u8],
    ) -> Result<(), RecoverError> {
        if self.current.as_ref().is_some_and(|(current, ..)| current.start != segment.start) {
            self.finish_segment(segment.start);
        }
        self.current.get_or_insert_with(|| (Arc::clone(segment), 0, frame.stamp)).1 += 1;
        if position >= self.committed_to {
            let (segment, frame) = (Arc::clone(segment), *frame);
            self.found.held.push(HeldFrame { segment, position, frame });
            return Ok(());
        }
        let entry = frame.entry_at(position + FRAME_BYTES as u64);
        let (file, at) = (&*segment.data, segment.at(entry.position));
        // Only sealed segments are compacted.
        let (log, clean_to) = (frame.log, Offset(0));
        let replayed = ReplayedEntry { log, clean_to, entry: &entry, start, file, at };
        self.replay.entry(&replayed)?;
        self.found.last = frame.stamp;
        self.found.logs.entry(frame.log).or_default().push(entry);
        Ok(())
    }
}

/// Checks that an entry continues where its log ended.
pub(super) fn check_continuation(
    tip: &LogTip,
    log: LogId,
    entry: &Entry,
) -> Result<(), RecoverError> {
    let (position, expected, found) = (entry.frame(), tip.end, entry.base);
    if found != expected || found.0.checked_add(u64::from(entry.count)).is_none() {
        return Err(RecoverError::Offsets { position, log, expected, found });
    }
    if entry.stamp <= tip.stamp {
        let (stamp, last) = (entry.stamp, tip.stamp);
        return Err(RecoverError::Order { position, stamp, last });
    }
    if tip.bytes.checked_add(u64::from(entry.length)).is_none() {
        return Err(RecoverError::Bytes { position, log, bytes: tip.bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hlc::{SysTime, UserTime};

    use super::*;

    #[test]
    fn an_entry_follows_where_its_log_ended_and_nowhere_else() {
        let at = |ms| Hlc::at(SysTime(ms));
        let tip = LogTip { end: Offset(10), stamp: at(5), bytes: u64::MAX - 100, ..LogTip::NONE };
        let frame = |base, count, length, ms| {
            let frame = FrameHeader {
                length,
                payload_crc: 0,
                stamp: at(ms),
                log: LogId(3),
                base: Offset(base),
                count,
                epoch: 0,
                user_min: UserTime(0),
                user_max: UserTime(0),
                synced_to: 0,
                kind: 0,
            };
            frame.entry_at(800)
        };
        let follows = |tip: &LogTip, entry: Entry| check_continuation(tip, LogId(3), &entry);
        assert!(follows(&tip, frame(10, 1, 100, 6)).is_ok());
        for base in [0, 9, 11] {
            match follows(&tip, frame(base, 1, 1, 6)) {
                Err(RecoverError::Offsets { position, log, expected, found }) => {
                    assert_eq!((position, log), (800 - FRAME_BYTES as u64, LogId(3)));
                    assert_eq!((expected, found), (Offset(10), Offset(base)));
                }
                other => panic!("{other:?}"),
            }
        }
        let last = LogTip { end: Offset(u64::MAX - 1), ..tip };
        assert!(follows(&last, frame(u64::MAX - 1, 1, 1, 6)).is_ok());
        let beyond = follows(&last, frame(u64::MAX - 1, 2, 1, 6));
        assert!(matches!(beyond, Err(RecoverError::Offsets { .. })), "{beyond:?}");
        for ms in [4, 5] {
            let early = follows(&tip, frame(10, 1, 1, ms));
            assert!(matches!(early, Err(RecoverError::Order { .. })), "{early:?}");
        }
        let too_much = follows(&tip, frame(10, 1, 101, 6)).unwrap_err().to_string();
        assert!(too_much.contains("so many bytes: log 3 has"), "{too_much}");
    }
}
