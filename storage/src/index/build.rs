//! Writing an index: run by run, in the order of logs.

use hlc::{Hlc, UserTime};

use super::blocks::BlockWriter;
use super::record::{ENTRY_BYTES, RUN_BYTES};
use super::{IndexEntry, IndexHeader, IndexRun, LogTip, RunLinks};
use crate::disk::Disk;
use crate::entry::LogId;
use crate::error::StorageError;

/// The largest gap between the payloads of adjacent frames.
const GAP: u64 = 128;

/// Writes an index file.
pub(crate) struct IndexBuilder {
    blocks: BlockWriter,
    start: u64,
    end: u64,
    entries: u64,
    runs: Vec<IndexRun>,
    stamps: Option<(Hlc, Hlc)>,
    /// The tips of some runs, as known from elsewhere.
    known_tips: Vec<(usize, LogTip)>,
    extents: u64,
    /// The position at which the last extent ends.
    extent_end: u64,
    hidden_to: Option<LogId>,
}

impl IndexBuilder {
    /// Creates the index `name` of the segment from `start` to `end`. An existing file of that name
    /// was left by a crash.
    pub(crate) fn create(
        disk: &dyn Disk,
        name: &str,
        start: u64,
        end: u64,
    ) -> Result<IndexBuilder, StorageError> {
        Ok(IndexBuilder {
            blocks: BlockWriter::create(disk, name, start)?,
            start,
            end,
            entries: 0,
            runs: Vec::new(),
            stamps: None,
            known_tips: Vec::new(),
            extents: 0,
            extent_end: 0,
            hidden_to: None,
        })
    }

    /// Begins the run of `log`, whose tip was `before`; returns its number.
    pub(crate) fn begin_run(&mut self, log: LogId, before: LogTip, links: RunLinks) -> u64 {
        assert!(self.runs.last().is_none_or(|last| last.log < log), "runs stand by log");
        let (first, base, user_max) = (self.entries, before.end, UserTime(i64::MIN));
        self.runs.push(IndexRun { log, first, count: 0, base, tip: before, user_max, links });
        self.runs.len() as u64 - 1
    }

    /// Begins a run as it is in another index.
    pub(crate) fn begin_existing_run(&mut self, run: &IndexRun) {
        self.begin_run(run.log, LogTip { end: run.base, ..LogTip::NONE }, run.links);
        self.known_tips.push((self.runs.len() - 1, run.tip));
    }

    /// Adds the next entry of the run; its `user_time_max` is computed again.
    pub(crate) fn add_entry(&mut self, mut placed: IndexEntry) -> Result<(), StorageError> {
        let run = self.runs.last_mut().expect("a run was begun");
        let entry = &mut placed.entry;
        assert!(
            entry.base >= run.tip.end && entry.stamp > run.tip.stamp,
            "entries rise: {entry:?}"
        );
        run.count += 1;
        run.user_max = run.user_max.max(entry.user_max);
        entry.user_time_max = run.user_max;
        run.tip = LogTip::of(entry, run.tip.user_time_max.max(entry.user_max));
        let (first, last) = self.stamps.unwrap_or((entry.stamp, entry.stamp));
        self.stamps = Some((first.min(entry.stamp), last.max(entry.stamp)));
        // Adjacent frames have only a header between their payloads.
        self.extents += u64::from(placed.at < self.extent_end || placed.at > self.extent_end + GAP);
        self.extent_end = placed.at + u64::from(placed.entry.length);
        self.entries += 1;
        self.blocks.record::<ENTRY_BYTES>(&placed.encode())
    }

    /// Returns true if it has no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Sets which stamps the segment had before entries were left out; or, if that is unknown, the
    /// stamps that it had at least.
    pub(crate) fn widen_stamps(&mut self, first: Hlc, last: Hlc) {
        let (held_first, held_last) = self.stamps.unwrap_or((first, last));
        self.stamps = Some((held_first.min(first), held_last.max(last)));
    }

    /// Declares that the data file may have frames of logs up to this one that have no run.
    pub(crate) fn set_hidden_to(&mut self, log: Option<LogId>) {
        self.hidden_to = log;
    }

    /// Writes the rest, and puts the file on stable storage, but not its name.
    pub(crate) fn finish(mut self, state: Option<&[u8]>) -> Result<(), StorageError> {
        self.blocks.end_block()?;
        for (run, tip) in std::mem::take(&mut self.known_tips) {
            self.runs[run].tip = tip;
        }
        for run in &self.runs {
            self.blocks.record::<RUN_BYTES>(&run.encode())?;
        }
        self.blocks.end_block()?;
        self.blocks.bytes(state.unwrap_or_default())?;
        let (first_stamp, last_stamp) = self.stamps.unwrap_or((Hlc::ZERO, Hlc::ZERO));
        let header = IndexHeader {
            start: self.start,
            end: self.end,
            entries: self.entries,
            runs: self.runs.len() as u64,
            state_bytes: state.map(|state| state.len() as u64),
            first_stamp,
            last_stamp,
            extents: self.extents,
            hidden_to: self.hidden_to,
        };
        self.blocks.finish(&header.encode())
    }
}
