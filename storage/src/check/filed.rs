//! Filed files: frames sorted by log, some of which may have been given up since.
//!
//! A frame there says by itself what it is, so each is compared with its checksums, its entry in the
//! index, and its leaf. Space that was given back reads as zeros, in whole blocks, with rests of frames
//! around it; that is lawful only where some log was given up. What else is no frame is damage: the
//! index says whether anything is lost by it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;

use hlc::Hlc;

use super::compared::{Comparison, end_of};
use super::indexes::{Horizons, Indexes, header_of, is_freed};
use super::{FrameSource, Holding, Proofs, Report, read_frames};
use crate::disk::Disk;
use crate::filed::{
    FILED_HEADER_BYTES, FiledFound, FiledFrame, FiledFrames, FiledHeader, base_name, filed_name,
};
use crate::history::HistoryError;
use crate::journal::{Found, FoundFrame, FrameError, padded};
use crate::log::{LogId, Offset};
use crate::manifest::Manifest;
use crate::part::Layout;

/// A filed file that should be there.
pub(super) struct FiledFile {
    name: String,
    holding: Holding,
    /// The stretch of the journal from which its frames come; of a base, up to where.
    span: Range<u64>,
    /// Of a base, its log, and where it ends: parts are looked into from there on.
    ends: Option<(LogId, Offset)>,
    /// What its header should say, as far as that is known.
    is_its_own: Box<dyn Fn(&FiledHeader) -> bool>,
}

/// All filed files that the manifest names.
pub(super) fn parts(manifest: &Manifest) -> Vec<FiledFile> {
    let parts = manifest.parts.iter().filter_map(|part| match part.layout {
        Layout::Journal => None,
        Layout::Filed { generation } => {
            let (start, end, generation_64) = (part.start, part.end, u64::from(generation));
            let expected = FiledHeader { start, end, generation: generation_64, log: None };
            Some(FiledFile {
                name: filed_name(part.start, generation),
                holding: Holding::Some,
                span: part.start..part.end,
                ends: None,
                is_its_own: Box::new(move |header| *header == expected),
            })
        }
    });
    let bases = manifest.logs.iter().filter(|(_, horizon)| horizon.base > 0);
    let bases = bases.map(|(log, horizon)| {
        let (log, base) = (*log, horizon.base);
        FiledFile {
            name: base_name(log, base),
            holding: Holding::Rewritten,
            span: 0..manifest.indexed_to,
            ends: Some((log, horizon.freed.end)),
            is_its_own: Box::new(move |header| {
                header.log == Some(log) && header.generation == base
            }),
        }
    });
    parts.chain(bases).collect()
}

/// What was found in filed files.
#[derive(Default)]
pub(super) struct Filed {
    files: usize,
    frames: u64,
    payload_bytes: u64,
    logs: BTreeMap<LogId, u64>,
    stamps: Option<(Hlc, Hlc)>,
    problems: Vec<String>,
}

impl Filed {
    /// Reads a file from front to back; returns how long it is.
    pub(super) fn read(
        &mut self,
        filed: &FiledFile,
        disk: &dyn Disk,
        logs: &Horizons,
        indexes: &mut Indexes<'_>,
        proofs: Option<&mut Proofs<'_>>,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<u64> {
        let FiledFile { name, holding, span, ends, is_its_own } = filed;
        self.files += 1;
        let lost = HistoryError::Lost { file: name.clone() }.to_string();
        let file = match disk.open(name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.problems.push(lost);
                return Ok(0);
            }
            Err(error) => return Err(error),
        };
        let header = header_of(disk, name)?;
        if !header.is_some_and(|header| is_its_own(&header)) {
            self.problems.push(lost);
        }
        let none = Horizons::new();
        // Nothing is given back of a base: it goes as a whole.
        let logs = if *holding == Holding::Rewritten { &none } else { logs };
        let index = header.map(|header| indexes.of(name, header.start)).transpose()?.flatten();
        if let (Some((log, end)), Some(index)) = (ends, &index)
            && index.run(*log)?.is_none_or(|run| run.count == 0 || run.tip.end != *end)
        {
            let (log, end) = (log.0, end.0);
            self.problems.push(format!(
                "a base does not end where the manifest says. file={name}, log={log}, end={end}"
            ));
        }
        let comparison = index.map(|index| Comparison::new(index, logs)).transpose()?;
        let frames = FiledFrames::with_leaves(file, proofs.is_some())?;
        let length = frames.length();
        let mut reader = FiledReader {
            name,
            holding,
            frames,
            logs,
            comparison,
            gap: None,
            last_end: FILED_HEADER_BYTES,
            last_log: LogId(0),
            last_is_freed: false,
            has_ended: false,
            ready: VecDeque::new(),
        };
        read_frames(&mut reader, proofs, progress, &mut |found| self.found(name, span, found))?;
        let disagrees = reader.comparison.map(Comparison::finish).transpose()?;
        if let Some((index, what)) = disagrees.flatten() {
            indexes.disagrees(&index, &what);
        }
        Ok(length)
    }

    fn found(&mut self, file: &str, span: &Range<u64>, found: &Found) {
        let damage = |place: &str, at: u64, reason: FrameError| {
            format!("a filed file is damaged: {reason}. file={file}, {place}={at}")
        };
        match found {
            Found::Damaged { position, reason, .. } => {
                self.problems.push(damage("at", *position, *reason));
            }
            Found::Frame(found) if !found.payload_is_whole => {
                self.problems.push(damage("position", found.position, FrameError::Payload));
            }
            Found::Frame(found) => {
                let frame = &found.frame;
                // No proof would speak of it there.
                if !span.contains(&found.position) {
                    let position = found.position;
                    self.problems.push(format!(
                        "a frame stands in a file of another stretch. file={file}, position={position}, start={}, end={}",
                        span.start, span.end
                    ));
                }
                self.frames += 1;
                self.payload_bytes += u64::from(frame.length);
                *self.logs.entry(frame.log).or_default() += 1;
                self.stamps = widest(self.stamps, Some((frame.stamp, frame.stamp)));
            }
        }
    }

    /// The largest stamp that was found.
    pub(super) fn last_stamp(&self) -> Option<Hlc> {
        self.stamps.map(|(_, last)| last)
    }

    /// Adds what was found to what the rest of the journal is.
    pub(super) fn add_to(self, report: &mut Report) {
        report.filed = self.files;
        report.frames += self.frames;
        report.payload_bytes += self.payload_bytes;
        for (log, count) in self.logs {
            *report.logs.entry(log).or_default() += count;
        }
        report.stamps = widest(report.stamps, self.stamps);
        for problem in self.problems {
            report.problem(problem);
        }
    }
}

fn widest(one: Option<(Hlc, Hlc)>, other: Option<(Hlc, Hlc)>) -> Option<(Hlc, Hlc)> {
    match (one, other) {
        (Some((first, last)), Some((other_first, other_last))) => {
            Some((first.min(other_first), last.max(other_last)))
        }
        (one, other) => one.or(other),
    }
}

/// Reads a filed file from front to back.
struct FiledReader<'a> {
    name: &'a str,
    holding: &'a Holding,
    frames: FiledFrames,
    logs: &'a Horizons,
    /// The file's index, if it can be used.
    comparison: Option<Comparison<'a>>,
    /// What was skipped in front of the next frame.
    gap: Option<Gap>,
    /// Where the frame before ends, its log, and whether that was given up.
    last_end: u64,
    last_log: LogId,
    last_is_freed: bool,
    has_ended: bool,
    ready: VecDeque<Found>,
}

/// Bytes that are no frame.
struct Gap {
    range: Range<u64>,
    is_hole: bool,
}

impl FrameSource for FiledReader<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn holding(&self) -> Holding {
        self.holding.clone()
    }

    fn read_to(&self) -> u64 {
        self.frames.read_to()
    }

    fn next_found(&mut self) -> io::Result<Option<Found>> {
        loop {
            if let Some(found) = self.ready.pop_front() {
                return Ok(Some(found));
            }
            if self.has_ended {
                return Ok(None);
            }
            let (comparison, last_log) = (&self.comparison, self.last_log);
            let last_is_freed = self.last_is_freed;
            let mut is_one = |filed: &FiledFrame| match comparison {
                Some(comparison) => is_one(filed, comparison, last_log, last_is_freed),
                None => Ok(true),
            };
            match self.frames.next_that(&mut is_one)? {
                Some(FiledFound::Gap { range, is_hole }) => self.gap = Some(Gap { range, is_hole }),
                Some(FiledFound::Frame { found, at, chain }) => self.take(found, at, chain)?,
                None => self.end()?,
            }
        }
    }
}

/// Whether what looks like a frame is one. Bytes of a payload beside a hole may look like one; what they
/// cannot do is to have an entry.
fn is_one(
    filed: &FiledFrame,
    comparison: &Comparison<'_>,
    last_log: LogId,
    last_is_freed: bool,
) -> io::Result<bool> {
    let log = filed.frame.log;
    if comparison.entry_at(filed.at)?.is_some() {
        return Ok(true);
    }
    Ok(!last_is_freed && !comparison.has_freed(last_log.min(log)..=log, false)?)
}

impl FiledReader<'_> {
    fn take(&mut self, found: FoundFrame, at: u64, chain: u128) -> io::Result<()> {
        let log = found.frame.log;
        if let Some(gap) = self.gap.take() {
            let expected_to = gap.range.end;
            self.judge(&gap, expected_to, log)?;
        }
        if let Some(comparison) = &mut self.comparison {
            match comparison.entry_at(at)? {
                Some(number) => comparison.filed_frame(number, &found, at, chain)?,
                None if is_freed(self.logs, log, end_of(&found)) => {}
                None => comparison.unknown(&found),
            }
        }
        self.last_end = at + padded(u64::from(found.frame.length));
        (self.last_log, self.last_is_freed) = (log, is_freed(self.logs, log, end_of(&found)));
        // Of one that was given up, the header may be left over and the payload not.
        if found.payload_is_whole || !self.last_is_freed {
            self.ready.push_back(Found::Frame(found));
        }
        Ok(())
    }

    /// Nothing follows in the file, whatever should.
    fn end(&mut self) -> io::Result<()> {
        self.has_ended = true;
        let nothing = Gap { range: self.last_end..self.last_end, is_hole: false };
        let gap = self.gap.take().unwrap_or(nothing);
        self.judge(&gap, u64::MAX, LogId(u64::MAX))
    }

    /// Tells a gap from what giving up leaves. Frames may be missing up to `expected_to`; the next frame
    /// is one of `next_log`.
    fn judge(&mut self, gap: &Gap, expected_to: u64, next_log: LogId) -> io::Result<()> {
        // Logs stand in order, unless what is read here is nonsense.
        let logs = self.last_log..=next_log.max(self.last_log);
        let range = gap.range.clone();
        let lost = match &mut self.comparison {
            None => {
                let mut freed = self.logs.range(logs).map(|(_, horizon)| horizon.freed.end);
                let is_lawful =
                    self.last_is_freed || (gap.is_hole && freed.any(|end| end > Offset(0)));
                (!is_lawful && !range.is_empty()).then_some(range)
            }
            Some(comparison) => {
                let lost = comparison.lost_in(&(range.start..expected_to))?;
                if lost.is_some() {
                    comparison.damaged(range.start..expected_to);
                }
                match lost {
                    None if !range.is_empty()
                        && !self.last_is_freed
                        && !comparison.has_freed(logs, gap.is_hole)? =>
                    {
                        Some(range)
                    }
                    lost => lost,
                }
            }
        };
        self.ready.extend(lost.map(|Range { start, end }| Found::Damaged {
            position: start,
            until: end,
            reason: FrameError::Magic,
        }));
        Ok(())
    }
}
