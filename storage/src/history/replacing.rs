//! Putting what compaction left in place of the beginning of a log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use hlc::{Hlc, UserTime};

use super::rebuilding::{anew, promote};
use super::{History, Reclaiming};
use crate::data_file::DataFile;
use crate::disk::Disk;
use crate::filed::{FiledHeader, FiledWalk, FiledWriter, base_name, index_name};
use crate::index::{IndexBuilder, Links, Placed, Run, Tip};
use crate::journal::{FRAME_BYTES, Frame};
use crate::log::{Base, Beginning, Entry, Log, LogId, Offset, Sealed, entry_of};
use crate::manifest::{Horizon, ManifestEdit};
use crate::part::Indexed;

/// After how many bytes other work goes first.
const PACE_BYTES: usize = 1 << 20;

/// An entry that compaction leaves: as it was, with another payload.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The entry as it was.
    pub entry: Entry,
    /// Its payload now.
    pub payload: Bytes,
}

/// What is true of a log whose beginning was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Cuts below this bound are errors from then on.
    pub compacted_to: Hlc,
    /// Below this offset each key occurs once.
    pub clean_to: Offset,
}

/// Takes an entry that stays.
pub type Emit<'a> = &'a mut dyn FnMut(Kept) -> io::Result<()>;

/// Emits what stays of the beginning of a log.
pub type Fill<'a> = &'a mut dyn FnMut(Emit<'_>) -> io::Result<Compacted>;

/// Says that a base of a log is being written, until it is dropped.
struct Replacing<'a> {
    history: &'a History,
    log: LogId,
}

impl Replacing<'_> {
    /// It ends here, and not when somebody has left `reclaiming`.
    fn end(self, reclaiming: &mut Reclaiming) {
        reclaiming.replacing.remove(&self.log);
        std::mem::forget(self);
    }
}

impl Drop for Replacing<'_> {
    fn drop(&mut self) {
        self.history.reclaiming.lock().replacing.remove(&self.log);
    }
}

impl History {
    /// Puts the entries that `fill` emits in place of all that `log` has below `until`, where a run of
    /// it ends ([`crate::Store::replaceable`]). Changes nothing if `confirm` says so, which is asked once
    /// all of it is on stable storage; if there is a base already that reaches further, or all below
    /// `until` was given up meanwhile; or if the log is being replaced already.
    ///
    /// Other logs are replaced, parts are filed, and space is given back meanwhile. What `fill` finds
    /// while it reads stays readable as for any reader: it looks for each stretch anew.
    ///
    /// # Errors
    /// The disk fails, or `fill` does; nothing has changed then.
    pub(crate) fn replace(
        &self,
        id: LogId,
        until: Offset,
        fill: Fill<'_>,
        confirm: &mut dyn FnMut(&Compacted) -> bool,
    ) -> io::Result<bool> {
        let log = self.log(id)?;
        if !log.horizon().admits_base(until) {
            return Ok(false);
        }
        let Some((replacing, generation)) = self.begin_replacing(id) else { return Ok(false) };
        let written = self.write_base(&log, until, generation, fill);
        if let Ok(Some((base, compacted))) = &written {
            // Nothing is freed from here on. This is waited for before `confirm` is asked, and not again:
            // that may hold what others wait for.
            let mut reclaiming = self.reclaiming.lock();
            replacing.end(&mut reclaiming);
            if confirm(compacted) && self.put_base(&log, until, generation, base, compacted)? {
                return Ok(true);
            }
        }
        self.discard(&base_name(id, generation));
        written.map(|_| false)
    }

    /// The generation of a new base of a log; `None` if one is being written.
    fn begin_replacing(&self, id: LogId) -> Option<(Replacing<'_>, u64)> {
        let mut reclaiming = self.reclaiming.lock();
        if !reclaiming.replacing.insert(id) {
            return None;
        }
        // No name comes twice: one that is not named any more may still have to be removed, and one
        // that could not be named may yet turn out to be.
        let manifest = self.manifest.lock();
        let last = reclaiming.last_generation.max(manifest.sequence);
        let generation = last.max(manifest.horizon(id).base) + 1;
        reclaiming.last_generation = generation;
        Some((Replacing { history: self, log: id }, generation))
    }

    /// Writes what is to stand in for the beginning of a log; `None` if that was given up meanwhile.
    fn write_base(
        &self,
        log: &Log,
        until: Offset,
        generation: u64,
        fill: Fill<'_>,
    ) -> io::Result<Option<(Arc<Base>, Compacted)>> {
        let (id, name) = (log.id, base_name(log.id, generation));
        let end = self.manifest.lock().indexed_to;
        let header = FiledHeader { start: 0, end, generation, log: Some(id) };
        let mut writer = FiledWriter::create(&*self.disk, &name, header)?;
        let mut builder = IndexBuilder::create(&*self.disk, &index_name(&name), 0, end)?;
        builder.begin(id, Tip::NONE, Links::FIRST);
        let (mut bytes, mut reached, mut unpaced) = (0, Offset(0), PACE_BYTES);
        let filled = fill(&mut |kept| {
            unpaced += FRAME_BYTES + kept.payload.len();
            if unpaced >= PACE_BYTES {
                self.give_way()?;
                unpaced = 0;
            }
            let mut entry = kept.entry;
            if reached == Offset(0)
                && let Some(mark) = mark_before(&log.sealed_now(), &entry, log.start())?
            {
                let header = frame_of(id, &mark).encode(mark.frame());
                builder.entry(writer.add(&mark, &header, &[])?)?;
            }
            assert!(entry.base >= reached && entry.end() <= until, "kept in order: {entry:?}");
            reached = entry.end();
            entry.length = kept.payload.len() as u32;
            entry.payload_crc = crc32c::crc32c(&kept.payload);
            bytes += u64::from(entry.length);
            entry.bytes = bytes;
            let header = frame_of(id, &entry).encode(entry.frame());
            builder.entry(writer.add(&entry, &header, &kept.payload)?)
        });
        // Who fills it finds nothing any more then, and may take it for damage.
        if log.start() >= until {
            return Ok(None);
        }
        let compacted = filled?;
        if reached != until {
            return Err(ends_early(reached.0, until));
        }
        writer.finish()?;
        builder.finish(None)?;
        self.disk.sync_names()?;
        Ok(Some((self.open_new_base(id, &name)?, compacted)))
    }

    /// Puts a base in the place of what it stands in for; or not, if that was given up meanwhile.
    /// `reclaiming` is held: what is looked for here is not freed before it is found.
    fn put_base(
        &self,
        log: &Log,
        until: Offset,
        generation: u64,
        base: &Arc<Base>,
        compacted: &Compacted,
    ) -> io::Result<bool> {
        let horizon = log.horizon();
        if horizon.start >= until || horizon.freed.end > until {
            return Ok(false);
        }
        // The part where that run ends may be gone, if the base before ends there too; and the run may
        // have been merged with the next.
        let freed = match horizon.freed {
            freed if freed.end == until => freed,
            _ => log.sealed_now().tip_of_whole(|run| run.tip.end <= until)?,
        };
        if freed.end != until {
            return Ok(false);
        }
        let old = log.base();
        let mut manifest = self.manifest.lock();
        let horizon = log.horizon();
        // A horizon never falls: what lies below `until` is neither to be found nor asked for.
        if !horizon.admits_base(until) {
            return Ok(false);
        }
        let horizon = Horizon {
            compacted_to: horizon.compacted_to.max(compacted.compacted_to),
            clean_to: compacted.clean_to,
            freed,
            base: generation,
            ..horizon
        };
        // The disk may have either manifest then: the file stays until one of them is settled.
        let name = &base.files.data.name;
        let edit = ManifestEdit::of_logs([(&log.id, &horizon)]);
        self.commit(&mut manifest, &edit).inspect_err(|_| self.forget([name.clone()]))?;
        log.set_beginning(Beginning { horizon, base: Some(Arc::clone(base)) });
        drop(manifest);
        self.forget(old.map(|old| old.files.data.name.clone()));
        self.stats.replaced.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    pub(super) fn open_new_base(&self, id: LogId, name: &str) -> io::Result<Arc<Base>> {
        let file = self.disk.open(name)?;
        let index = self.open_index(&index_name(name), 0)?;
        let run: Run =
            index.run(id)?.ok_or_else(|| io::Error::other("a base has its log's run"))?;
        let files = Indexed { data: Arc::new(DataFile::new(name.to_owned(), file)), index };
        Ok(Arc::new(Base::new(files, run)))
    }
}

/// What stands in a base for all that was given up before its first entry: an entry of no offsets. A
/// cut can end there, and then its end and its chain are those that it always had.
fn mark_before(sealed: &Sealed, first: &Entry, start: Offset) -> io::Result<Option<Entry>> {
    let before = sealed.tip_before_offset(first.base)?;
    // One behind the start would be found by who looks for what follows the start; and no cut that
    // ends there is whole: what lay between has been compacted away.
    if before == Tip::NONE || before.end > start || before.stamp >= first.stamp {
        return Ok(None);
    }
    Ok(Some(Entry {
        stamp: before.stamp,
        base: before.end,
        count: 0,
        length: 0,
        user_min: UserTime(i64::MAX),
        user_max: UserTime(i64::MIN),
        user_peak: UserTime(i64::MIN),
        bytes: 0,
        payload_crc: crc32c::crc32c(&[]),
        epoch: before.epoch,
        chain: before.chain,
        ..*first
    }))
}

fn ends_early(reached: u64, until: Offset) -> io::Error {
    let until = until.0;
    io::Error::other(format!(
        "what is to replace the beginning of a log ends before it does. reached={reached}, until={until}"
    ))
}

fn frame_of(log: LogId, entry: &Entry) -> Frame {
    Frame {
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

/// Makes the index of a base anew, which ends at `end`.
pub(super) fn rebuild_base(
    disk: &dyn Disk,
    log: LogId,
    header: &FiledHeader,
    data: &DataFile,
    end: Offset,
) -> io::Result<()> {
    tracing::warn!(file = data.name, "an index is lost or damaged, and is made anew");
    let name = index_name(&data.name);
    let mut builder = IndexBuilder::create(disk, &anew(&name), header.start, header.end)?;
    builder.begin(log, Tip::NONE, Links::FIRST);
    let mut walk = FiledWalk::new(data)?;
    let (mut bytes, mut reached) = (0, Offset(0));
    while let Some(filed) = walk.next()? {
        let mut entry = entry_of(&filed.frame, filed.position + FRAME_BYTES as u64);
        bytes += u64::from(entry.length);
        (entry.chain, entry.bytes) = (filed.chain, bytes);
        reached = entry.end();
        builder.entry(Placed { entry, at: filed.at })?;
    }
    if walk.has_gaps {
        return Err(data.damaged(walk.damaged.unwrap_or(0), "a frame"));
    }
    if reached != end {
        return Err(data.damaged(data.file().length()?, "the last frame"));
    }
    builder.finish(None)?;
    promote(disk, &name)
}
