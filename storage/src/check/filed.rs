//! Filed files: frames sorted by log, some of which may have been given up since.
//!
//! A frame there says by itself what it is, so each is compared with its checksums and its leaf. Space
//! that was given back reads as zeros, in whole blocks, with rests of frames around it. What is neither
//! a frame nor beside such a hole is damage.

use std::collections::BTreeMap;
use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use hlc::Hlc;

use super::{FrameSource, Holding, Proofs, Report, read_frames};
use crate::disk::{Disk, DiskFile};
use crate::filed::{
    FILED_HEADER_BYTES, FILED_PREFIX_BYTES, FRONT_BYTES, FiledHeader, Gap, base_name, decode_front,
    filed_name,
};
use crate::history::HistoryError;
use crate::journal::{FRAME_BYTES, Found, FrameChunks, FrameError, PAYLOAD_ALIGN, padded};
use crate::log::LogId;
use crate::manifest::Manifest;
use crate::part::Layout;

/// A filed file that should be there.
pub(super) struct FiledFile {
    name: String,
    holding: Holding,
    opened: io::Result<Arc<dyn DiskFile>>,
    with_leaves: bool,
}

/// All filed files that the manifest names.
pub(super) fn parts(disk: &dyn Disk, manifest: &Manifest, with_leaves: bool) -> Vec<FiledFile> {
    let parts = manifest.parts.iter().filter_map(|part| match part.layout {
        Layout::Journal => None,
        Layout::Filed { generation } => Some((filed_name(part.start, generation), Holding::Some)),
    });
    let bases = manifest.logs.iter().filter(|(_, horizon)| horizon.base > 0);
    let bases = bases.map(|(log, horizon)| (base_name(*log, horizon.base), Holding::Rewritten));
    parts
        .chain(bases)
        .map(|(name, holding)| FiledFile { opened: disk.open(&name), name, holding, with_leaves })
        .collect()
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
    /// Reads a file from front to back.
    pub(super) fn read(
        &mut self,
        filed: FiledFile,
        proofs: Option<&mut Proofs<'_>>,
    ) -> io::Result<()> {
        let FiledFile { name, holding, opened, with_leaves } = filed;
        self.files += 1;
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.problems.push(HistoryError::Lost { file: name }.to_string());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut header = [0; FILED_HEADER_BYTES as usize];
        let read = file.read_at(&mut header, 0)?;
        if read < header.len() || FiledHeader::decode(&header).is_none() {
            self.problems.push(HistoryError::Lost { file: name.clone() }.to_string());
        }
        let length = file.length()?;
        let chunks = FrameChunks::new(file, with_leaves);
        let mut reader = FiledReader { name, holding, chunks, length, at: FILED_HEADER_BYTES };
        let name = reader.name.clone();
        read_frames(&mut reader, proofs, &mut |found| self.found(&name, found))
    }

    fn found(&mut self, file: &str, found: &Found) {
        let damage = |at: u64, reason: FrameError| {
            format!("a filed file is damaged: {reason}. file={file}, at={at}")
        };
        match found {
            Found::Damaged { position, reason, .. } => {
                self.problems.push(damage(*position, *reason));
            }
            Found::Frame(found) if !found.payload_is_whole => {
                let reason = FrameError::Payload;
                let position = found.position;
                self.problems.push(format!(
                    "a filed file is damaged: {reason}. file={file}, position={position}"
                ));
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
struct FiledReader {
    name: String,
    holding: Holding,
    chunks: FrameChunks,
    length: u64,
    at: u64,
}

impl FrameSource for FiledReader {
    fn name(&self) -> &str {
        &self.name
    }

    fn holding(&self) -> Holding {
        self.holding.clone()
    }

    fn next_found(&mut self) -> io::Result<Option<Found>> {
        let go_on = &mut |_| ControlFlow::Continue(());
        let mut gap = Gap::at(self.at);
        while self.at + FRONT_BYTES as u64 <= self.length {
            let at = self.at;
            let bytes = self.chunks.get(at, FRONT_BYTES, go_on)?;
            let Some(front) = bytes.first_chunk::<FRONT_BYTES>().copied() else { break };
            let found = decode_front(&front, at)
                .filter(|found| found.at + u64::from(found.frame.length) <= self.length);
            let Some(found) = found else {
                gap.take(at, front[..PAYLOAD_ALIGN as usize] == [0; PAYLOAD_ALIGN as usize]);
                self.at += PAYLOAD_ALIGN;
                continue;
            };
            if let Some(damaged) = gap.range(at) {
                return Ok(Some(damage(damaged)));
            }
            let header: [u8; FRAME_BYTES] =
                front[FILED_PREFIX_BYTES..].try_into().expect("a front ends with a header");
            let (position, frame) = (found.position, found.frame);
            self.at = found.at + padded(u64::from(frame.length));
            return match self.chunks.payload(found.at, position, header, frame, go_on)? {
                Ok(found) => Ok(Some(Found::Frame(found))),
                Err(reason) => Ok(Some(Found::Damaged { position: at, until: self.at, reason })),
            };
        }
        self.at = self.length;
        Ok(gap.range(self.length).map(damage))
    }
}

fn damage(range: Range<u64>) -> Found {
    Found::Damaged { position: range.start, until: range.end, reason: FrameError::Magic }
}
