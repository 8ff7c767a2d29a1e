//! Putting what compaction left in place of the beginning of a log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use hlc::{Cut, Hlc};

use super::History;
use crate::data_file::DataFile;
use crate::disk::Disk;
use crate::filed::{FiledHeader, FiledWalk, FiledWriter, base_name, index_name};
use crate::index::{IndexBuilder, Placed, Run, Tip, bisect};
use crate::journal::{FRAME_BYTES, Frame};
use crate::log::{Base, Beginning, Entry, LogId, Offset, Sealed, entry_of};
use crate::manifest::Horizon;
use crate::part::Indexed;

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

impl Sealed {
    /// How far the log had come at the end of the last run that `cut` admits as a whole.
    pub(crate) fn tip_of_runs_in(&self, cut: Cut) -> io::Result<Tip> {
        let parts = &self.parts;
        let count = bisect(0..parts.len() as u64, |nth| {
            let run = parts[nth as usize].run(self.log)?;
            Ok(run.is_none_or(|run| cut.admits(run.tip.stamp)))
        })?;
        let last = match count.checked_sub(1) {
            Some(last) => parts[last as usize].run(self.log)?,
            None => None,
        };
        Ok(last.map_or(Tip::NONE, |run| run.tip))
    }
}

impl History {
    /// Puts the entries that `fill` emits in place of all that `log` has below `until`, where a run of
    /// it ends ([`Sealed::tip_of_runs_in`]); or changes nothing, if `fill` says so in the end, or there
    /// is a base already that reaches further, or nothing is kept below `until`.
    ///
    /// # Errors
    /// The disk fails, or `fill` does; nothing has changed then.
    pub(crate) fn replace(
        &self,
        id: LogId,
        until: Offset,
        fill: &mut dyn FnMut(Emit<'_>) -> io::Result<Option<Compacted>>,
    ) -> io::Result<bool> {
        let _reclaiming = self.reclaiming.lock();
        let log = self.log(id);
        if !log.horizon().admits_base(until) {
            return Ok(false);
        }
        let freed = log.sealed_now().tip_of_runs_below(until)?;
        assert!(freed.end == until, "a log is replaced up to the end of a run");
        // No name comes twice: one that is not named any more may still have to be removed.
        let (generation, end) = {
            let manifest = self.manifest.lock();
            (manifest.sequence + 1, manifest.indexed_to)
        };
        let name = base_name(id, generation);
        let header = FiledHeader { start: 0, end, generation, log: Some(id) };
        let written = self.write_base(&name, header, until, fill);
        let Some((compacted, base)) = written.inspect_err(|_| self.discard(&name))? else {
            self.discard(&name);
            return Ok(false);
        };
        let old = log.base();
        let mut manifest = self.manifest.lock();
        let horizon = log.horizon();
        if !horizon.admits_base(until) {
            drop(manifest);
            self.discard(&name);
            return Ok(false);
        }
        let horizon = Horizon {
            compacted_to: horizon.compacted_to.max(compacted.compacted_to),
            clean_to: compacted.clean_to,
            freed,
            base: generation,
            ..horizon
        };
        let mut next = manifest.clone();
        next.logs.insert(id, horizon);
        self.commit(&mut manifest, next).inspect_err(|_| self.forget([name]))?;
        log.set_beginning(Beginning { horizon, base: Some(base) });
        drop(manifest);
        self.forget(old.map(|old| old.files.data.name.clone()));
        self.stats.replaced.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Writes the base `name`; `None` if `fill` says in the end that nothing is to change.
    fn write_base(
        &self,
        name: &str,
        header: FiledHeader,
        until: Offset,
        fill: &mut dyn FnMut(Emit<'_>) -> io::Result<Option<Compacted>>,
    ) -> io::Result<Option<(Compacted, Arc<Base>)>> {
        let id = header.log.expect("a base is a log's");
        let mut writer = FiledWriter::create(&*self.disk, name, header)?;
        let mut builder = IndexBuilder::create(&*self.disk, &index_name(name), 0, header.end)?;
        builder.begin(id, Tip::NONE);
        let (mut bytes, mut reached) = (0, Offset(0));
        let compacted = fill(&mut |kept| {
            self.give_way()?;
            let mut entry = kept.entry;
            assert!(entry.base >= reached && entry.end() <= until, "kept in order: {entry:?}");
            reached = entry.end();
            entry.length = kept.payload.len() as u32;
            entry.payload_crc = crc32c::crc32c(&kept.payload);
            bytes += u64::from(entry.length);
            entry.bytes = bytes;
            let header = frame_of(id, &entry).encode(entry.frame());
            builder.entry(writer.add(&entry, &header, &kept.payload)?)
        })?;
        let Some(compacted) = compacted else { return Ok(None) };
        assert!(reached == until, "the last entry is kept: cuts end there");
        writer.finish()?;
        builder.finish(None)?;
        self.disk.sync_names()?;
        Ok(Some((compacted, self.open_new_base(id, name)?)))
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

/// Makes the index of a base anew.
pub(super) fn rebuild_base(
    disk: &dyn Disk,
    log: LogId,
    header: &FiledHeader,
    data: &DataFile,
) -> io::Result<()> {
    tracing::warn!(file = data.name, "an index is lost or damaged, and is made anew");
    let name = index_name(&data.name);
    let mut builder = IndexBuilder::create(disk, &name, header.start, header.end)?;
    builder.begin(log, Tip::NONE);
    let mut walk = FiledWalk::new(data)?;
    let mut bytes = 0;
    while let Some(filed) = walk.next()? {
        let mut entry = entry_of(&filed.frame, filed.position + FRAME_BYTES as u64);
        bytes += u64::from(entry.length);
        (entry.chain, entry.bytes) = (filed.chain, bytes);
        builder.entry(Placed { entry, at: filed.at })?;
    }
    if walk.has_gaps {
        return Err(data.damaged(walk.damaged.unwrap_or(0), "a frame"));
    }
    builder.finish(None)?;
    disk.sync_names()
}
