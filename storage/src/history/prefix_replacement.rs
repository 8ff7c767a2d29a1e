//! Replacing the beginning of a log with its compacted prefix.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use hlc::{Hlc, UserTime};

use super::rebuilding::{promote, rebuilt_name};
use super::{ReclaimState, SealedHistory};
use crate::data_file::DataFile;
use crate::disk::Disk;
use crate::entry::{Entry, LogId, Offset};
use crate::error::StorageError;
use crate::index::{IndexBuilder, IndexEntry, LogTip, RunLinks};
use crate::journal::{FRAME_BYTES, FrameHeader};
use crate::log::{CompactedPrefix, Log, LogPrefix, SealedLog};
use crate::manifest::{LogHorizon, ManifestEdit};
use crate::sealed_segment::SegmentFiles;
use crate::sorted_segment::{
    SortedSegmentHeader, SortedSegmentScanner, SortedSegmentWriter, compacted_prefix_name,
    index_name,
};
use crate::storage_file::{StorageFile, sync_directory};

/// After this many bytes, other work goes first.
const THROTTLE_BYTES: usize = 1 << 20;

/// An entry that compaction keeps: the original, with another payload.
#[derive(Clone, Debug)]
pub struct CompactedEntry {
    /// The entry as it was.
    pub entry: Entry,
    pub payload: Bytes,
}

/// The properties of a log whose beginning was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionHorizon {
    /// Cuts below this bound are errors from then on.
    pub compacted_to: Hlc,
    /// Below this offset each key occurs once.
    pub clean_to: Offset,
}

/// Receives an entry that stays.
pub type EntrySink<'a> = &'a mut dyn FnMut(CompactedEntry) -> Result<(), StorageError>;

/// Emits the entries that stay of the beginning of a log. It may fail for reasons of its own.
pub type CompactionSource<'a, E> = &'a mut dyn FnMut(EntrySink<'_>) -> Result<CompactionHorizon, E>;

/// Marks that a compacted prefix of a log is being written, until it is dropped.
struct PrefixReplacementGuard<'a> {
    history: &'a SealedHistory,
    log: LogId,
}

impl PrefixReplacementGuard<'_> {
    /// Ends it here, where `reclaiming` is locked already.
    fn finish(self, reclaiming: &mut ReclaimState) {
        reclaiming.replacing.remove(&self.log);
        std::mem::forget(self);
    }
}

impl Drop for PrefixReplacementGuard<'_> {
    fn drop(&mut self) {
        self.history.reclaim_state.lock().replacing.remove(&self.log);
    }
}

impl SealedHistory {
    /// Puts the entries that `fill` emits in place of all that `log` has below `until`, where a run
    /// of it ends ([`crate::Store::replaceable_prefix`]). `confirm` is called once the replacement
    /// is on stable storage. Nothing changes if it returns false, if a compacted prefix already
    /// reaches further, if the log start has passed `until`, or if another replacement of the log
    /// is running.
    ///
    /// Meanwhile other logs are replaced, segments are sorted, and space is reclaimed. Data that
    /// `fill` finds while it reads stays readable as for any reader: it looks up each range again.
    ///
    /// # Errors
    /// The disk fails, or `fill` does; then nothing has changed.
    pub(crate) fn replace_prefix<E: From<StorageError>>(
        &self,
        id: LogId,
        until: Offset,
        fill: CompactionSource<'_, E>,
        confirm: &mut dyn FnMut(&CompactionHorizon) -> bool,
    ) -> Result<bool, E> {
        let log = self.log(id)?;
        if !log.horizon().admits_compacted_prefix(until) {
            return Ok(false);
        }
        let Some((replacing, generation)) = self.begin_prefix_replacement(id) else {
            return Ok(false);
        };
        let written = self.write_compacted_prefix(&log, until, generation, fill);
        if let Ok(Some((base, compacted))) = &written {
            // Nothing is reclaimed from here on. This lock is taken before `confirm` is called, and
            // not again: `confirm` may hold what others wait for.
            let mut reclaiming = self.reclaim_state.lock();
            replacing.finish(&mut reclaiming);
            if confirm(compacted)
                && self.install_compacted_prefix(&log, until, generation, base, compacted)?
            {
                return Ok(true);
            }
        }
        self.remove_partial_file(&compacted_prefix_name(id, generation));
        written.map(|_| false)
    }

    /// The generation of a new compacted prefix of a log; `None` if one is being written.
    fn begin_prefix_replacement(&self, id: LogId) -> Option<(PrefixReplacementGuard<'_>, u64)> {
        let mut reclaiming = self.reclaim_state.lock();
        if !reclaiming.replacing.insert(id) {
            return None;
        }
        // No name is used twice: a file that is not named any more may still have to be removed,
        // and a file whose naming failed may yet turn out to be named.
        let manifest = self.manifest.lock();
        let last = reclaiming.last_generation.max(manifest.sequence);
        let generation = last.max(manifest.horizon(id).compacted_generation) + 1;
        reclaiming.last_generation = generation;
        Some((PrefixReplacementGuard { history: self, log: id }, generation))
    }

    /// Writes the compacted prefix of a log; `None` if the log start has passed `until` meanwhile.
    fn write_compacted_prefix<E: From<StorageError>>(
        &self,
        log: &Log,
        until: Offset,
        generation: u64,
        fill: CompactionSource<'_, E>,
    ) -> Result<Option<(Arc<CompactedPrefix>, CompactionHorizon)>, E> {
        let (id, name) = (log.id, compacted_prefix_name(log.id, generation));
        let end = self.manifest.lock().indexed_to;
        let header = SortedSegmentHeader { start: 0, end, generation, log: Some(id) };
        let mut writer = SortedSegmentWriter::create(&*self.disk, &name, header)?;
        let mut builder = IndexBuilder::create(&*self.disk, &index_name(&name), 0, end)?;
        builder.begin_run(id, LogTip::NONE, RunLinks::FIRST);
        let (mut bytes, mut reached, mut unpaced) = (0, Offset(0), THROTTLE_BYTES);
        let filled = fill(&mut |retained| {
            unpaced += FRAME_BYTES + retained.payload.len();
            if unpaced >= THROTTLE_BYTES {
                self.throttle()?;
                unpaced = 0;
            }
            let mut entry = retained.entry;
            if reached == Offset(0)
                && let Some(mark) = prefix_marker(&log.current_sealed_log(), &entry, log.start())?
            {
                let header = frame_of(id, &mark).encode(mark.frame());
                builder.add_entry(writer.add(&mark, &header, &[])?)?;
            }
            assert!(entry.base >= reached && entry.end() <= until, "kept in order: {entry:?}");
            reached = entry.end();
            entry.length = retained.payload.len() as u32;
            entry.payload_crc = crc32c::crc32c(&retained.payload);
            bytes += u64::from(entry.length);
            entry.bytes = bytes;
            let header = frame_of(id, &entry).encode(entry.frame());
            builder.add_entry(writer.add(&entry, &header, &retained.payload)?)
        });
        // `fill` finds nothing any more then, and may take it for corruption.
        if log.start() >= until {
            return Ok(None);
        }
        let compacted = filled?;
        if reached != until {
            return Err(short_replacement(reached.0, until).into());
        }
        writer.finish()?;
        builder.finish(None)?;
        sync_directory(&*self.disk)?;
        Ok(Some((self.open_compacted_prefix_file(id, &name)?, compacted)))
    }

    /// Installs a compacted prefix in place of what it replaces; or not, if that was removed
    /// meanwhile. `reclaiming` is held: what is looked up here is not reclaimed before it is found.
    fn install_compacted_prefix(
        &self,
        log: &Log,
        until: Offset,
        generation: u64,
        base: &Arc<CompactedPrefix>,
        compacted: &CompactionHorizon,
    ) -> Result<bool, StorageError> {
        let horizon = log.horizon();
        if horizon.start >= until || horizon.released_tip.end > until {
            return Ok(false);
        }
        // The segment where that run ends may be gone, if the previous compacted prefix ends there
        // too; and the run may have been merged with the next.
        let freed = match horizon.released_tip {
            freed if freed.end == until => freed,
            _ => log.current_sealed_log().tip_of_whole(|run| run.tip.end <= until)?,
        };
        if freed.end != until {
            return Ok(false);
        }
        let old = log.compacted_prefix();
        let mut manifest = self.manifest.lock();
        let horizon = log.horizon();
        // A horizon never falls: entries below `until` can neither be found nor requested.
        if !horizon.admits_compacted_prefix(until) {
            return Ok(false);
        }
        let horizon = LogHorizon {
            compacted_to: horizon.compacted_to.max(compacted.compacted_to),
            clean_to: compacted.clean_to,
            released_tip: freed,
            compacted_generation: generation,
            ..horizon
        };
        // The disk may have either manifest then: the file stays until it is known which one.
        let name = base.files.data.name();
        let edit = ManifestEdit::of_logs([(&log.id, &horizon)]);
        self.commit_manifest(&mut manifest, &edit)
            .inspect_err(|_| self.remove_files_later([name.to_owned()]))?;
        log.set_prefix(LogPrefix { horizon, compacted_prefix: Some(Arc::clone(base)) });
        drop(manifest);
        self.remove_files_later(old.map(|old| old.files.data.name().to_owned()));
        self.stats.replaced_prefixes.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    pub(super) fn open_compacted_prefix_file(
        &self,
        id: LogId,
        name: &str,
    ) -> Result<Arc<CompactedPrefix>, StorageError> {
        let file = StorageFile::open(&*self.disk, name)?;
        let index = self.open_index(&index_name(name), 0)?;
        let run = index.run(id)?.ok_or_else(|| StorageError::unreadable_output(index.name()))?;
        let files = SegmentFiles { data: Arc::new(DataFile::new(file)), index };
        Ok(Arc::new(CompactedPrefix::new(files, run)))
    }
}

/// The entry that stands in a compacted prefix for all that was removed before its first entry: an
/// entry without offsets. A cut can end there, and then its end and its chain are the original
/// ones.
fn prefix_marker(
    sealed: &SealedLog,
    first: &Entry,
    start: Offset,
) -> Result<Option<Entry>, StorageError> {
    let before = sealed.tip_before_offset(first.base)?;
    // A lookup of what follows the start would find a marker after the start; and no cut that ends
    // there is complete: what lay between has been compacted away.
    if before == LogTip::NONE || before.end > start || before.stamp >= first.stamp {
        return Ok(None);
    }
    Ok(Some(Entry {
        stamp: before.stamp,
        base: before.end,
        count: 0,
        length: 0,
        user_min: UserTime(i64::MAX),
        user_max: UserTime(i64::MIN),
        user_time_max: UserTime(i64::MIN),
        bytes: 0,
        payload_crc: crc32c::crc32c(&[]),
        epoch: before.epoch,
        chain: before.chain,
        ..*first
    }))
}

fn short_replacement(reached: u64, until: Offset) -> StorageError {
    let until = until.0;
    let reason = format!(
        "what is to replace the beginning of a log ends at offset {reached}, before {until}"
    );
    io::Error::other(reason).into()
}

fn frame_of(log: LogId, entry: &Entry) -> FrameHeader {
    FrameHeader {
        length: entry.length,
        payload_crc: entry.payload_crc,
        stamp: entry.stamp,
        log,
        base: entry.base,
        count: entry.count,
        epoch: entry.epoch,
        user_min: entry.user_min,
        user_max: entry.user_max,
        synced_to: 0,
        kind: entry.kind,
    }
}

/// Rebuilds the index of a compacted prefix that ends at `end`.
pub(super) fn rebuild_compacted_prefix_index(
    disk: &dyn Disk,
    log: LogId,
    header: &SortedSegmentHeader,
    data: &DataFile,
    end: Offset,
) -> Result<(), StorageError> {
    tracing::warn!(file = data.name(), "an index is lost or corrupt, and is rebuilt");
    let name = index_name(data.name());
    let mut builder = IndexBuilder::create(disk, &rebuilt_name(&name), header.start, header.end)?;
    builder.begin_run(log, LogTip::NONE, RunLinks::FIRST);
    let mut walk = SortedSegmentScanner::new(data)?;
    let (mut bytes, mut reached) = (0, Offset(0));
    while let Some(filed) = walk.next()? {
        let mut entry = filed.frame.entry_at(filed.position + FRAME_BYTES as u64);
        bytes += u64::from(entry.length);
        (entry.chain, entry.bytes) = (filed.chain, bytes);
        reached = entry.end();
        builder.add_entry(IndexEntry { entry, at: filed.at })?;
    }
    if walk.has_gaps {
        return Err(data.corruption_error(walk.corrupt_at.unwrap_or(0), "a frame"));
    }
    if reached != end {
        return Err(data.corruption_error(data.file().length()?, "the last frame"));
    }
    builder.finish(None)?;
    promote(disk, &name)
}
