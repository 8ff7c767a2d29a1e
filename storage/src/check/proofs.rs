//! Comparing history with its proofs: file by file, and within each frame by frame.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use hlc::Hlc;

use super::ExpectedFrames;
use crate::disk::Disk;
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::journal::ScannedFrame;
use crate::proof::{
    Digest, Proof, ProofError, ProofHeader, ProofLocation, ProofMismatch, VerifyingKey,
    is_superseded, proof_name, proof_start,
};
use crate::storage_file::{StorageFile, list_files};

/// The largest number of proofs that stay in memory after reading: each takes 8 bytes for 102
/// frames.
const CACHED_PROOFS_MAX: usize = 256;

/// A difference between a frame and its proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameChange {
    /// Its header or payload differs.
    #[error("the frame is not the one that was proved")]
    Altered,
    /// There was no such frame.
    #[error("no frame began here when the proof was made")]
    Added,
    /// It is gone, or cannot be read.
    #[error("the frame that was proved is not here")]
    Missing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedFrame {
    /// The file that holds it, or should.
    pub file: String,
    pub position: u64,
    pub change: FrameChange,
    /// The current header: log, first offset, stamp.
    pub current_header: Option<(LogId, Offset, Hlc)>,
}

impl fmt::Display for ChangedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, in {} at position {}", self.change, self.file, self.position)?;
        match self.current_header {
            Some((log, offset, stamp)) => {
                write!(f, ", log {}, offset {}, accepted at {stamp}", log.0, offset.0)
            }
            None => Ok(()),
        }
    }
}

/// The result of verifying one proof.
#[derive(Clone, Debug)]
pub struct ProofVerdict {
    /// The file that holds it.
    pub file: String,
    /// The position at which its segment begins; by the file's name, if it is not an intact proof.
    pub start: u64,
    /// Its header; `None` if it is not an intact proof.
    pub header: Option<ProofHeader>,
    /// The number of frames that match their leaves.
    pub verified: u64,
    /// The number of frames that do not match their leaves.
    pub changed: u64,
    /// The first that does not, by position.
    pub first_changed: Option<ChangedFrame>,
    /// True if it was being written when the machine stopped.
    pub is_unfinished: bool,
    /// True if its leaves were pruned, because none of their frames is kept.
    pub is_pruned: bool,
    /// The faults of the proof itself.
    pub faults: Vec<String>,
}

/// The results of verifying all proofs.
#[derive(Clone, Debug, Default)]
pub struct VerificationReport {
    /// Every proof, by position.
    pub proofs: Vec<ProofVerdict>,
    /// Frames that compaction put in place of others: no proof covers them.
    pub rewritten: u64,
    /// Sealed segments after the last proof: nothing vouches for them yet.
    pub unproved: Vec<String>,
    /// The faults of the sequence of proofs as a whole.
    pub faults: Vec<String>,
}

impl VerificationReport {
    /// The number of frames that match their leaves.
    pub fn verified(&self) -> u64 {
        self.proofs.iter().map(|proof| proof.verified).sum()
    }

    /// The first frame that was changed.
    pub fn first_changed(&self) -> Option<&ChangedFrame> {
        self.proofs.iter().find_map(|proof| proof.first_changed.as_ref())
    }

    /// The position at which the chain ends, and its value there. A user who records it elsewhere
    /// can later verify that nothing before it was changed.
    pub fn chain_head(&self) -> Option<(u64, Digest)> {
        let header = self.proofs.iter().rev().find_map(|proof| proof.header)?;
        Some((header.end, header.after))
    }

    /// All problems, as sentences.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for ProofVerdict { file, changed, first_changed, faults, .. } in &self.proofs {
            problems.extend(faults.iter().map(|fault| format!("{file}: {fault}")));
            if let Some(first) = first_changed {
                let suffix = match changed - 1 {
                    0 => String::new(),
                    count => format!("; {count} more of the same segment"),
                };
                problems.push(format!("history was changed: {first}{suffix}"));
            }
        }
        problems.extend(self.faults.iter().cloned());
        problems
    }
}

struct ProofListing {
    start: u64,
    /// The file that holds it, and where; `None` if the file is not a file of proofs.
    location: Option<(String, ProofLocation)>,
    /// `Some` once its leaves were read.
    verdict: Option<ProofVerdict>,
    /// The number of the leaf that the next frame of a complete segment has to match.
    next_index: u64,
    /// True if a frame was found whose leaf was pruned.
    has_orphans: bool,
}

/// The proofs of a directory, opened one at a time as frames need them.
pub struct ProofSet<'a> {
    disk: &'a dyn Disk,
    keys: &'a [VerifyingKey],
    listings: Vec<ProofListing>,
    open: Option<(usize, Proof)>,
    /// Other proofs that were read: the frames of a merged file belong to several proofs, in turn.
    cached: BTreeMap<usize, Proof>,
    rewritten: u64,
}

impl fmt::Debug for ProofSet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proofs").field("listed", &self.listings.len()).finish_non_exhaustive()
    }
}

impl<'a> ProofSet<'a> {
    /// Lists all proofs of a directory. They have to be signed by one of `keys`, if there are any.
    ///
    /// # Errors
    /// The disk fails.
    pub fn list(
        disk: &'a dyn Disk,
        keys: &'a [VerifyingKey],
    ) -> Result<ProofSet<'a>, StorageError> {
        let mut starts: Vec<u64> =
            list_files(disk)?.into_iter().filter_map(|name| proof_start(&name)).collect();
        starts.sort_unstable();
        let (mut listed, mut before) = (Vec::new(), Vec::new());
        for start in starts {
            let file = proof_name(start);
            match ProofLocation::read_all(&StorageFile::open(disk, &file)?) {
                Err(ProofError::Storage(error)) => return Err(error),
                Err(error) => listed.push(ProofListing {
                    start,
                    location: None,
                    verdict: Some(ProofVerdict::unreadable(file, start, &error)),
                    next_index: 0,
                    has_orphans: false,
                }),
                // A crash came between: the next start removes the file.
                Ok(proofs) if is_superseded(&proofs, &before) => {}
                Ok(proofs) => {
                    listed.extend(proofs.iter().enumerate().map(|(nth, placed)| ProofListing {
                        // The file is named by the first one.
                        start: if nth == 0 { start } else { placed.header.start },
                        location: Some((file.clone(), *placed)),
                        verdict: None,
                        next_index: 0,
                        has_orphans: false,
                    }));
                    before = proofs;
                }
            }
        }
        let (open, aside) = (None, BTreeMap::new());
        Ok(ProofSet { disk, keys, listings: listed, open, cached: aside, rewritten: 0 })
    }

    /// Compares a frame of the file `part` with its leaf.
    ///
    /// # Errors
    /// The disk fails.
    pub fn compare(
        &mut self,
        part: &str,
        found: &ScannedFrame,
        holding: &ExpectedFrames,
    ) -> Result<(), StorageError> {
        let Some(index) = self.covering(found.position)? else {
            // The absence of all proofs is reported at the end.
            self.rewritten += u64::from(*holding == ExpectedFrames::Compacted);
            return Ok(());
        };
        let Some((_, proof)) = &mut self.open else { return Ok(()) };
        if proof.is_pruned() {
            self.record_uncompared(index, holding);
            return Ok(());
        }
        let leaf = proof.leaf(found.position).map_err(|error| contents_error(proof, error))?;
        let change = match leaf {
            None => Some(FrameChange::Added),
            Some(leaf) if Some(leaf.digest) != found.leaf => Some(FrameChange::Altered),
            Some(_) => None,
        };
        if let Some(leaf) = leaf
            && matches!(holding, ExpectedFrames::All(_))
        {
            self.record_missing(index, leaf.index, part)?;
            self.listings[index].next_index = leaf.index + 1;
        }
        let Some(verdict) = &mut self.listings[index].verdict else { return Ok(()) };
        match change {
            None => verdict.verified += 1,
            Some(_) if *holding == ExpectedFrames::Compacted => self.rewritten += 1,
            Some(change) => {
                let frame = &found.frame;
                verdict.record_change(ChangedFrame {
                    file: part.to_owned(),
                    position: found.position,
                    change,
                    current_header: Some((frame.log, frame.base, frame.stamp)),
                });
            }
        }
        Ok(())
    }

    /// Leaves are pruned only where nothing is kept: a frame without a leaf was put here on
    /// purpose, unless compaction put it here.
    fn record_uncompared(&mut self, index: usize, holding: &ExpectedFrames) {
        if *holding == ExpectedFrames::Compacted {
            self.rewritten += 1;
            return;
        }
        let ProofListing { verdict, has_orphans, .. } = &mut self.listings[index];
        if let Some(verdict) = verdict
            && !std::mem::replace(has_orphans, true)
        {
            verdict
                .faults
                .push("its leaves were cut off, and frames of it are still here".to_owned());
        }
    }

    /// Ends a segment that holds every frame of `span`.
    ///
    /// # Errors
    /// The disk fails.
    pub fn finish_segment(&mut self, part: &str, span: Range<u64>) -> Result<(), StorageError> {
        let Some(index) = self.covering(span.start)? else { return Ok(()) };
        let Some((_, proof)) = &self.open else { return Ok(()) };
        let (header, is_cut) = (*proof.header(), proof.is_pruned());
        if header.start == span.start && header.end != span.end {
            let fault = format!("it does not end at {}, where the segment does", span.end);
            if let Some(verdict) = &mut self.listings[index].verdict {
                verdict.faults.push(fault);
            }
        }
        if is_cut {
            self.record_uncompared(index, &ExpectedFrames::All(span));
            return Ok(());
        }
        if u64::from(header.entries) < header.count
            && let Some(verdict) = &mut self.listings[index].verdict
        {
            verdict.faults.push("leaves were taken out of it, and its segment is whole".to_owned());
        }
        self.record_missing(index, u64::from(header.entries), part)
    }

    /// Reports the leaves from the next one up to `until` as missing.
    fn record_missing(&mut self, index: usize, until: u64, file: &str) -> Result<(), StorageError> {
        let from = self.listings[index].next_index;
        let Some((_, proof)) = &mut self.open else { return Ok(()) };
        if from >= until {
            return Ok(());
        }
        let leaf = proof.leaf_at(from).map_err(|error| contents_error(proof, error))?;
        let (Some(leaf), Some(verdict)) = (leaf, &mut self.listings[index].verdict) else {
            return Ok(());
        };
        let (file, position) = (file.to_owned(), leaf.position);
        verdict.record_change(ChangedFrame {
            file,
            position,
            change: FrameChange::Missing,
            current_header: None,
        });
        verdict.changed += until - from - 1;
        Ok(())
    }

    /// Opens the proof that covers `position`; `None` if there is no usable one.
    fn covering(&mut self, position: u64) -> Result<Option<usize>, StorageError> {
        let after = self.listings.partition_point(|proof| proof.start <= position);
        let Some(index) = after.checked_sub(1) else { return Ok(None) };
        if self.open.as_ref().is_none_or(|(open, _)| *open != index) {
            self.open(index)?;
        }
        let covers = self.open.as_ref().is_some_and(|(_, proof)| position < proof.header().end);
        Ok(covers.then_some(index))
    }

    /// Opens a proof, and verifies it if that was not done yet.
    fn open(&mut self, index: usize) -> Result<(), StorageError> {
        if let Some((index, proof)) = self.open.take() {
            if self.cached.len() == CACHED_PROOFS_MAX {
                self.cached.clear();
            }
            self.cached.insert(index, proof);
        }
        if let Some(proof) = self.cached.remove(&index) {
            self.open = Some((index, proof));
            return Ok(());
        }
        let listed = &mut self.listings[index];
        let Some((file, placed)) = &listed.location else { return Ok(()) };
        if listed.verdict.as_ref().is_some_and(|verdict| verdict.header.is_none()) {
            return Ok(());
        }
        let file = file.clone();
        let (verdict, proof) = match Proof::open_at(StorageFile::open(self.disk, &file)?, *placed) {
            Ok(proof) => (verify_proof(file, listed.start, &proof, self.keys), Some(proof)),
            Err(ProofError::Storage(error)) => return Err(error),
            Err(error) => (ProofVerdict::unreadable(file, listed.start, &error), None),
        };
        listed.verdict.get_or_insert(verdict);
        self.open = proof.map(|proof| (index, proof));
        Ok(())
    }

    /// The final report. `sealed` are the files that should be proved, and `history_end` is where
    /// the last of them ends.
    ///
    /// # Errors
    /// The disk fails.
    pub fn finish(
        mut self,
        sealed: &[ProvableFile],
        history_end: u64,
    ) -> Result<VerificationReport, StorageError> {
        for index in 0..self.listings.len() {
            if self.listings[index].verdict.is_none() {
                self.open(index)?;
            }
        }
        let verdicts = self.listings.into_iter().filter_map(|proof| proof.verdict);
        let (proofs, rewritten) = (verdicts.collect(), self.rewritten);
        let mut verification =
            VerificationReport { proofs, rewritten, ..VerificationReport::default() };
        verification.follow_chain();
        verification.check_history_end(history_end);
        verification.find_unproved(sealed, !self.keys.is_empty());
        Ok(verification)
    }
}

/// A file that should be proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvableFile {
    pub file: String,
    /// The range of the journal that it holds, or held.
    pub span: Range<u64>,
    /// True if it was sorted: only proved segments are sorted.
    pub is_sorted: bool,
}

impl VerificationReport {
    /// Checks that each proof begins where the previous one ends.
    fn follow_chain(&mut self) {
        let count = self.proofs.len();
        let first =
            self.proofs.first_mut().and_then(|proof| proof.header.map(|header| (proof, header)));
        if let Some((proof, ProofHeader { start, before, .. })) = first
            && start > 0
            && before != Digest::BIRTH
        {
            proof.faults.push(format!("the proofs before it are missing: it begins at {start}"));
        }
        let mut before: Option<ProofHeader> = None;
        for (index, proof) in self.proofs.iter_mut().enumerate() {
            if proof.is_unfinished && index + 1 < count {
                proof.faults.push(format!("{}, and later ones are", ProofError::Unfinished));
            }
            if let (Some(before), Some(header)) = (before, proof.header) {
                let (expected, found) = (before.after, header.before);
                if before.end != header.start {
                    let (end, start) = (before.end, header.start);
                    proof.faults.push(format!(
                        "a proof is missing before it, or it stands in another's place: the one before ends at {end}, and it begins at {start}"
                    ));
                } else if expected != found {
                    proof.faults.push(ProofMismatch::Before { expected, found }.to_string());
                }
            }
            before = proof.header;
        }
    }

    /// Checks that no proof reaches beyond the end of the history.
    fn check_history_end(&mut self, history_end: u64) {
        for proof in &mut self.proofs {
            if let Some(header) = proof.header.filter(|header| header.end > history_end) {
                let end = header.end;
                proof
                    .faults
                    .push(format!("it proves history up to {end}, but history ends at {history_end}: what lies between is not here"));
            }
        }
    }

    /// Proofs are written in order: only the newest segments may lack one.
    fn find_unproved(&mut self, sealed: &[ProvableFile], must_be_signed: bool) {
        let last = self.proofs.iter().rev().find_map(|proof| proof.header);
        for ProvableFile { file, span, is_sorted: is_filed } in sealed {
            let after = self.proofs.partition_point(|proof| proof.start <= span.start);
            let is_proved = after.checked_sub(1).is_some_and(|index| {
                let proof = &self.proofs[index];
                let is_its_own = proof.start == span.start && !proof.is_unfinished;
                is_its_own || proof.header.is_some_and(|header| span.start < header.end)
            });
            if is_proved {
                continue;
            }
            if last.is_some_and(|last| span.start < last.start) {
                self.faults.push(format!("{file} has no proof, and later files have one"));
            } else if *is_filed {
                let reason = "a segment is sorted only once it has one";
                self.faults.push(format!("{file} has no proof: {reason}"));
            } else {
                self.unproved.push(file.clone());
            }
        }
        if must_be_signed && last.is_none() && !sealed.is_empty() {
            self.faults.push("there is no proof, and so no signature".to_owned());
        }
    }
}

fn verify_proof(file: String, start: u64, proof: &Proof, keys: &[VerifyingKey]) -> ProofVerdict {
    let header = *proof.header();
    let mut faults = Vec::new();
    if header.start != start {
        faults
            .push(format!("it is the proof of another segment, which begins at {}", header.start));
    }
    let checks = [proof.verify_chain(None), proof.verify_signature(keys)];
    faults.extend(checks.into_iter().filter_map(Result::err).map(|fault| fault.to_string()));
    let is_cut = proof.is_pruned();
    ProofVerdict {
        header: Some(header),
        is_pruned: is_cut,
        faults,
        ..ProofVerdict::of(file, start)
    }
}

impl ProofVerdict {
    fn of(file: String, start: u64) -> ProofVerdict {
        ProofVerdict {
            file,
            start,
            header: None,
            verified: 0,
            changed: 0,
            first_changed: None,
            is_unfinished: false,
            is_pruned: false,
            faults: Vec::new(),
        }
    }

    fn unreadable(file: String, start: u64, error: &ProofError) -> ProofVerdict {
        let is_unfinished = matches!(error, ProofError::Unfinished);
        let faults = if is_unfinished { Vec::new() } else { vec![error.to_string()] };
        ProofVerdict { is_unfinished, faults, ..ProofVerdict::of(file, start) }
    }

    fn record_change(&mut self, changed: ChangedFrame) {
        self.changed += 1;
        if self.first_changed.as_ref().is_none_or(|first| changed.position < first.position) {
            self.first_changed = Some(changed);
        }
    }
}

/// If a proof was intact a moment ago and is not any more, the disk is failing.
fn contents_error(proof: &Proof, error: ProofError) -> StorageError {
    match error {
        ProofError::Storage(error) => error,
        error => StorageError::corrupt(proof.file_name(), None, error.to_string()),
    }
}
