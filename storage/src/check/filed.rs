//! Filed files: frames sorted by log, some of which may have been given up since.
//!
//! A frame there says by itself what it is, so each is compared with its checksums, its entry in the
//! index, and its leaf. Space that was given back reads as zeros, in whole blocks, with rests of frames
//! around it; that is lawful only where some log was given up. What else is no frame is damage: the
//! index says whether anything is lost by it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::{ControlFlow, Range};

use hlc::Hlc;

use super::compared::{Comparison, end_of};
use super::indexes::{Horizons, Indexes, header_of, is_freed};
use super::{FrameSource, Holding, Proofs, Report, read_frames};
use crate::disk::Disk;
use crate::filed::{
    FILED_HEADER_BYTES, FILED_PREFIX_BYTES, FRONT_BYTES, FiledFrame, FiledHeader, Gap, base_name,
    decode_front, filed_name,
};
use crate::history::HistoryError;
use crate::journal::{
    FRAME_BYTES, Found, FoundFrame, FrameChunks, FrameError, PAYLOAD_ALIGN, padded,
};
use crate::log::{LogId, Offset};
use crate::manifest::Manifest;
use crate::part::Layout;

/// A filed file that should be there.
pub(super) struct FiledFile {
    name: String,
    holding: Holding,
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
        let FiledFile { name, holding, is_its_own } = filed;
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
        let comparison = index.map(|index| Comparison::new(index, logs)).transpose()?;
        let length = file.length()?;
        let mut reader = FiledReader {
            name,
            holding,
            chunks: FrameChunks::new(file, proofs.is_some()),
            length,
            at: FILED_HEADER_BYTES,
            logs,
            comparison,
            gap: None,
            last_log: LogId(0),
            has_ended: false,
            ready: VecDeque::new(),
        };
        read_frames(&mut reader, proofs, progress, &mut |found| self.found(name, found))?;
        let disagrees = reader.comparison.map(Comparison::finish).transpose()?;
        if let Some((index, what)) = disagrees.flatten() {
            indexes.disagrees(&index, &what);
        }
        Ok(length)
    }

    fn found(&mut self, file: &str, found: &Found) {
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
                self.frames += 1;
                self.payload_bytes += u64::from(frame.length);
                *self.logs.entry(frame.log).or_default() += 1;
                self.stamps = widest(self.stamps, Some((frame.stamp, frame.stamp)));
            }
        }
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
    chunks: FrameChunks,
    length: u64,
    at: u64,
    logs: &'a Horizons,
    /// The file's index, if it can be used.
    comparison: Option<Comparison<'a>>,
    /// What was skipped in front of the next frame.
    gap: Option<Gap>,
    /// The log of the frame before.
    last_log: LogId,
    has_ended: bool,
    ready: VecDeque<Found>,
}

/// A frame of the file: where its payload begins, and what the chain is.
struct Standing {
    found: FoundFrame,
    at: u64,
    chain: u128,
    /// Which entry of the index is that of its place, if the index can be used.
    number: Option<u64>,
}

impl FrameSource for FiledReader<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn holding(&self) -> Holding {
        self.holding.clone()
    }

    fn read_to(&self) -> u64 {
        self.at
    }

    fn next_found(&mut self) -> io::Result<Option<Found>> {
        loop {
            if let Some(found) = self.ready.pop_front() {
                return Ok(Some(found));
            }
            if self.has_ended {
                return Ok(None);
            }
            match self.next_standing()? {
                Some(standing) => self.take(standing)?,
                None => self.end()?,
            }
        }
    }
}

impl FiledReader<'_> {
    /// The next frame; what lies before it is noted as a gap.
    fn next_standing(&mut self) -> io::Result<Option<Standing>> {
        let go_on = &mut |_| ControlFlow::Continue(());
        while self.at + FRONT_BYTES as u64 <= self.length {
            let at = self.at;
            let bytes = self.chunks.get(at, FRONT_BYTES, go_on)?;
            let Some(front) = bytes.first_chunk::<FRONT_BYTES>().copied() else { break };
            let filed = decode_front(&front, at)
                .filter(|filed| filed.at + u64::from(filed.frame.length) <= self.length);
            let filed = match filed {
                Some(filed) if self.is_one(&filed)? => Some(filed),
                _ => None,
            };
            let Some(filed) = filed else {
                let is_zero = front[..PAYLOAD_ALIGN as usize] == [0; PAYLOAD_ALIGN as usize];
                self.gap.get_or_insert_with(|| Gap::at(at)).take(at, is_zero);
                self.at += PAYLOAD_ALIGN;
                continue;
            };
            let header: [u8; FRAME_BYTES] =
                front[FILED_PREFIX_BYTES..].try_into().expect("a front ends with a header");
            let (position, frame, chain) = (filed.position, filed.frame, filed.chain);
            let read = self.chunks.payload(filed.at, position, header, frame, go_on)?;
            let Ok(found) = read else { break };
            self.at = filed.at + padded(u64::from(frame.length));
            let number = match &self.comparison {
                Some(comparison) => comparison.entry_at(filed.at)?,
                None => None,
            };
            return Ok(Some(Standing { found, at: filed.at, chain, number }));
        }
        Ok(None)
    }

    /// Whether what looks like a frame is one. Bytes of a payload beside a hole may look like one; what
    /// they cannot do is to have an entry.
    fn is_one(&self, filed: &FiledFrame) -> io::Result<bool> {
        let Some(comparison) = &self.comparison else { return Ok(true) };
        if comparison.entry_at(filed.at)?.is_some() {
            return Ok(true);
        }
        let log = filed.frame.log;
        Ok(!comparison.has_freed(self.last_log.min(log)..=log)?)
    }

    fn take(&mut self, standing: Standing) -> io::Result<()> {
        let Standing { found, at, chain, number } = standing;
        let (log, end) = (found.frame.log, end_of(&found));
        let front = at - FRONT_BYTES as u64;
        if let Some(gap) = self.gap.take() {
            self.judge(&gap, front, front, log)?;
        }
        self.last_log = log;
        if let Some(comparison) = &mut self.comparison {
            match number {
                Some(number) => comparison.filed_frame(number, &found, at, chain)?,
                None => comparison.unknown(&found),
            }
        }
        // Of one that was given up, the header may be left over and the payload not.
        if found.payload_is_whole || !is_freed(self.logs, log, end) {
            self.ready.push_back(Found::Frame(found));
        }
        Ok(())
    }

    /// Nothing follows in the file, whatever should.
    fn end(&mut self) -> io::Result<()> {
        let gap = self.gap.take().unwrap_or(Gap::at(self.at));
        (self.at, self.has_ended) = (self.length, true);
        self.judge(&gap, self.length, u64::MAX, LogId(u64::MAX))
    }

    /// Tells a gap that reaches up to `until` from what giving up leaves. Frames may be missing up to
    /// `expected_to`; the next frame is one of `next_log`.
    fn judge(
        &mut self,
        gap: &Gap,
        until: u64,
        expected_to: u64,
        next_log: LogId,
    ) -> io::Result<()> {
        // Logs stand in order, unless what is read here is nonsense.
        let logs = self.last_log..=next_log.max(self.last_log);
        let range = gap.from..until.max(gap.from);
        let lost = match &mut self.comparison {
            None => {
                let is_lawful =
                    gap.is_hole && self.logs.range(logs).any(|(_, h)| h.freed.end > Offset(0));
                (!is_lawful && !range.is_empty()).then_some(range)
            }
            Some(comparison) => {
                let lost = comparison.lost_in(&(gap.from..expected_to))?;
                if lost.is_some() {
                    comparison.damaged(gap.from..expected_to);
                }
                match lost {
                    None if !range.is_empty() && !comparison.has_freed(logs)? => Some(range),
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
