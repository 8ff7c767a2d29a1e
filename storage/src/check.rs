//! Verifying a data directory: every frame of the journal, and the bound file.

use std::sync::Arc;

use hlc::Hlc;

use crate::disk::Disk;
use crate::journal::{Damage, FRAME_BYTES, Frame, FrameError, RecoverError, Segment, Visit, walk};
use crate::log::LogId;
use crate::timekeeper::{Bound, BoundError, BoundFile};

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// Frames whose header and payload are whole.
    pub frames: u64,
    /// Bytes of payload in them.
    pub payload_bytes: u64,
    /// Logs seen.
    pub logs: std::collections::BTreeMap<LogId, u64>,
    /// Segment files.
    pub segments: usize,
    /// The first and the last stamp.
    pub stamps: Option<(Hlc, Hlc)>,
    /// What the bound file says.
    pub bound: Option<Bound>,
    /// Bytes behind the last good frame that a crash left: lawful, and cut off at the next start.
    pub torn_bytes: u64,
    /// What is wrong. Empty for a healthy directory.
    pub problems: Vec<String>,
}

/// Reads everything; changes nothing. `progress` is told of each frame's end position.
///
/// # Errors
/// The disk fails.
pub fn check(disk: &dyn Disk, progress: &mut dyn FnMut(u64)) -> Result<Report, RecoverError> {
    let mut report = Report::default();
    match BoundFile::read(disk) {
        Ok(bound) => report.bound = bound,
        Err(BoundError::Disk(error)) => return Err(error.into()),
        Err(error) => report.problems.push(error.to_string()),
    }
    let from = match crate::manifest::Manifest::read(disk) {
        Ok(manifest) => manifest.indexed_to,
        Err(crate::manifest::ManifestError::Disk(error)) => return Err(error.into()),
        Err(error) => {
            report.problems.push(error.to_string());
            return Ok(report);
        }
    };
    let mut checker = Checker { report: &mut report, progress };
    let walked = match walk(disk, from, Hlc::ZERO, 0, &mut checker) {
        Ok(walked) => walked,
        Err(RecoverError::Disk(error)) => return Err(error.into()),
        Err(error) => {
            report.problems.push(error.to_string());
            return Ok(report);
        }
    };
    report.segments = walked.segments.len();
    let known = crate::journal::synced_behind(&walked)?
        .max(report.bound.map_or(0, |bound| bound.synced_to));
    if walked.end < known {
        let (file, reason) = match &walked.bad {
            Some((segment, reason)) => (segment.name().to_owned(), *reason),
            None => ("(the last segment)".to_owned(), FrameError::Short),
        };
        let damage = Damage { file, position: walked.end, synced_to: known, reason };
        report.problems.push(damage.to_string());
    } else {
        report.torn_bytes = walked.torn_bytes()?;
    }
    match report.bound {
        None if !walked.is_empty() && report.problems.is_empty() => {
            report.problems.push("the bound file is missing or empty".to_owned());
        }
        Some(bound) if walked.last >= bound.bound => report.problems.push(format!(
            "a stamp lies at or above the persisted bound. stamp={}, bound={}",
            walked.last, bound.bound
        )),
        _ => {}
    }
    Ok(report)
}

struct Checker<'a> {
    report: &'a mut Report,
    progress: &'a mut dyn FnMut(u64),
}

impl Visit for Checker<'_> {
    fn frame(
        &mut self,
        _segment: &Arc<Segment>,
        position: u64,
        frame: &Frame,
        _start: &[u8],
    ) -> Result<(), RecoverError> {
        let report = &mut *self.report;
        report.frames += 1;
        report.payload_bytes += u64::from(frame.length);
        *report.logs.entry(frame.log).or_default() += 1;
        let first = report.stamps.map_or(frame.stamp, |(first, _)| first);
        report.stamps = Some((first, frame.stamp));
        (self.progress)(position + FRAME_BYTES as u64 + u64::from(frame.length));
        Ok(())
    }
}
