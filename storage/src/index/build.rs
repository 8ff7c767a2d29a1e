//! Writing an index: run by run, in the order of logs.

use std::io;
use std::sync::Arc;

use hlc::{Hlc, UserTime};

use super::blocks::{CONTENT_BYTES, INDEX_BLOCK_BYTES, LEAD_BYTES, seal_block};
use super::record::RECORD_BYTES;
use super::{IndexHeader, Placed, RECORDS, Run, Tip};
use crate::disk::{Disk, DiskFile};
use crate::log::{LogId, Offset};

/// What may stand between the payloads of frames that follow one another.
const GAP: u64 = 128;
/// How much is handed to the disk at once.
const WRITE_BYTES: usize = 1 << 20;

/// Writes an index file.
pub(crate) struct IndexBuilder {
    file: Arc<dyn DiskFile>,
    start: u64,
    end: u64,
    pending: Vec<u8>,
    /// How many blocks were handed to the disk.
    written: u64,
    /// The block being filled, and how many records are in it.
    block: Box<[u8; INDEX_BLOCK_BYTES]>,
    filled: u64,
    entries: u64,
    runs: Vec<Run>,
    stamps: Option<(Hlc, Hlc)>,
    /// How far the logs of some runs come, where that is known from elsewhere.
    known: Vec<(usize, Tip)>,
    pieces: u64,
    /// Where the last piece ends.
    piece_end: u64,
}

impl IndexBuilder {
    /// Begins the index `name` of the stretch from `start` to `end`. A file of that name is one that
    /// a crash left behind.
    pub(crate) fn create(
        disk: &dyn Disk,
        name: &str,
        start: u64,
        end: u64,
    ) -> io::Result<IndexBuilder> {
        Ok(IndexBuilder {
            file: crate::disk::create_anew(disk, name)?,
            start,
            end,
            pending: Vec::new(),
            written: 1,
            block: Box::new([0; INDEX_BLOCK_BYTES]),
            filled: 0,
            entries: 0,
            runs: Vec::new(),
            stamps: None,
            known: Vec::new(),
            pieces: 0,
            piece_end: 0,
        })
    }

    /// Begins the run of `log`, which had come as far as `before`.
    pub(crate) fn begin(&mut self, log: LogId, before: Tip) {
        assert!(self.runs.last().is_none_or(|last| last.log < log), "runs stand by log");
        let (first, base, user_max) = (self.entries, before.end, UserTime(i64::MIN));
        self.runs.push(Run { log, first, count: 0, base, tip: before, user_max });
    }

    /// Begins the run of `log`, of which is known how far it comes. Some of its entries may be left
    /// out.
    pub(crate) fn begin_known(&mut self, log: LogId, base: Offset, tip: Tip) {
        self.begin(log, Tip { end: base, ..Tip::NONE });
        self.known.push((self.runs.len() - 1, tip));
    }

    /// Adds the next entry of the run; its `user_peak` is made anew.
    pub(crate) fn entry(&mut self, mut placed: Placed) -> io::Result<()> {
        let run = self.runs.last_mut().expect("a run was begun");
        let entry = &mut placed.entry;
        assert!(
            entry.base >= run.tip.end && entry.stamp > run.tip.stamp,
            "entries rise: {entry:?}"
        );
        run.count += 1;
        run.user_max = run.user_max.max(entry.user_max);
        entry.user_peak = run.user_max;
        run.tip = Tip::of(entry, run.tip.user_peak.max(entry.user_max));
        let (first, last) = self.stamps.unwrap_or((entry.stamp, entry.stamp));
        self.stamps = Some((first.min(entry.stamp), last.max(entry.stamp)));
        // Frames that follow one another have only a header between their payloads.
        self.pieces += u64::from(placed.at < self.piece_end || placed.at > self.piece_end + GAP);
        self.piece_end = placed.at + u64::from(placed.entry.length);
        self.entries += 1;
        let record = placed.encode();
        self.record(&record)
    }

    fn record(&mut self, record: &[u8; RECORD_BYTES]) -> io::Result<()> {
        let at = LEAD_BYTES + self.filled as usize * RECORD_BYTES;
        self.block[at..at + RECORD_BYTES].copy_from_slice(record);
        self.filled += 1;
        if self.filled == RECORDS { self.end_block(self.filled as u32) } else { Ok(()) }
    }

    fn end_block(&mut self, count: u32) -> io::Result<()> {
        if count == 0 {
            return Ok(());
        }
        let number = self.written + (self.pending.len() / INDEX_BLOCK_BYTES) as u64;
        seal_block(&mut self.block[..], self.start, number, count);
        self.pending.extend_from_slice(&self.block[..]);
        self.block.fill(0);
        self.filled = 0;
        if self.pending.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        let at = self.written * INDEX_BLOCK_BYTES as u64;
        self.file.write_at(&mut [io::IoSlice::new(&self.pending)], at)?;
        self.written += (self.pending.len() / INDEX_BLOCK_BYTES) as u64;
        self.pending.clear();
        Ok(())
    }

    /// Whether it has no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Says which stamps the stretch had before entries were left out; or, with what it may have
    /// had at the least, where that is not known.
    pub(crate) fn widen(&mut self, first: Hlc, last: Hlc) {
        let (held_first, held_last) = self.stamps.unwrap_or((first, last));
        self.stamps = Some((held_first.min(first), held_last.max(last)));
    }

    /// Writes the rest, and puts the file on stable storage; its name is not, yet.
    pub(crate) fn finish(mut self, state: Option<&[u8]>) -> io::Result<()> {
        self.end_block(self.filled as u32)?;
        for (run, tip) in std::mem::take(&mut self.known) {
            self.runs[run].tip = tip;
        }
        for run in std::mem::take(&mut self.runs) {
            let record = run.encode();
            self.record(&record)?;
            self.runs.push(run);
        }
        self.end_block(self.filled as u32)?;
        for chunk in state.unwrap_or_default().chunks(CONTENT_BYTES) {
            self.block[LEAD_BYTES..LEAD_BYTES + chunk.len()].copy_from_slice(chunk);
            self.end_block(chunk.len() as u32)?;
        }
        self.flush()?;
        let (first_stamp, last_stamp) = self.stamps.unwrap_or((Hlc::ZERO, Hlc::ZERO));
        let header = IndexHeader {
            start: self.start,
            end: self.end,
            entries: self.entries,
            runs: self.runs.len() as u64,
            state_bytes: state.map(|state| state.len() as u64),
            first_stamp,
            last_stamp,
            pieces: self.pieces,
        };
        self.file.write_at(&mut [io::IoSlice::new(&header.encode())], 0)?;
        self.file.sync()
    }
}
