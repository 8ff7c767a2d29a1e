//! What of a log is sealed: found by bisecting over indexes, nothing of which is held.
//!
//! First comes the base, if the log was compacted: one file with what is left of its beginning. Then
//! come the parts. What lies below `freed` is not looked for in parts: the base has it, or it was
//! given up.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hlc::Cut;

use super::{LogId, Offset};
use crate::index::{Placed, Run, Tip, bisect};
use crate::part::{Indexed, Part};

/// What is left of the beginning of a log that was compacted.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) files: Indexed,
    pub(crate) run: Run,
    /// Whether a block of its index was found damaged.
    is_suspect: AtomicBool,
}

impl Base {
    pub(crate) fn new(files: Indexed, run: Run) -> Base {
        Base { files, run, is_suspect: AtomicBool::new(false) }
    }

    /// Whether its index has to be made anew.
    pub(crate) fn is_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::Acquire)
    }

    /// Remembers it if `result` says that the index is damaged.
    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() == io::ErrorKind::InvalidData
            && !self.is_suspect.swap(true, Ordering::AcqRel)
        {
            tracing::error!(%error, "found damage");
        }
        result
    }
}

/// What of a log is sealed, at one moment.
pub(crate) struct Sealed {
    pub(crate) log: LogId,
    pub(super) base: Option<Arc<Base>>,
    pub(crate) parts: Arc<Vec<Arc<Part>>>,
    pub(super) freed: Tip,
    /// How far the log had come where what is sealed ends.
    pub(super) tip: Tip,
}

/// The file in which something was found.
#[derive(Clone)]
enum Source {
    Base(Arc<Base>),
    /// The part, and its place among the parts.
    Part(Arc<Part>, usize),
}

/// An entry that was found.
pub(crate) struct Spot {
    source: Source,
    files: Indexed,
    pub(super) run: Run,
    /// The number of the entry in its index.
    pub(super) number: u64,
}

impl Spot {
    pub(super) fn entry(&self, number: u64) -> io::Result<Placed> {
        let found = self.files.index.entry(number);
        match &self.source {
            Source::Part(part, _) => part.note(found),
            Source::Base(base) => base.note(found),
        }
    }

    /// The entry that was found.
    pub(super) fn here(&self) -> io::Result<Placed> {
        self.entry(self.number)
    }

    pub(super) fn files(&self) -> &Indexed {
        &self.files
    }
}

impl Sealed {
    /// The run of the log in a part; `None` if the part has nothing that is looked for there.
    fn run(&self, part: &Part) -> io::Result<Option<Run>> {
        let run = part.run(self.log)?;
        Ok(run.filter(|run| run.tip.end > self.freed.end))
    }

    /// The first entry that is not `before`. Entries of which that is true stand first, and `whole`
    /// says whether it is true of all in a run.
    pub(super) fn find(
        &self,
        whole: impl Fn(&Run) -> bool,
        before: impl Fn(&Placed) -> bool,
    ) -> io::Result<Option<Spot>> {
        if let Some(base) = &self.base
            && !whole(&base.run)
        {
            let entries = base.run.entries();
            let number = base.note(base.files.index.partition_point(entries.clone(), &before))?;
            if number < entries.end {
                let (source, files) = (Source::Base(Arc::clone(base)), base.files.clone());
                return Ok(Some(Spot { source, files, run: base.run, number }));
            }
        }
        let first = bisect(0..self.parts.len() as u64, |nth| {
            Ok(self.run(&self.parts[nth as usize])?.is_none_or(|run| whole(&run)))
        })?;
        self.find_from(first as usize, &before)
    }

    /// The first entry that is not `before`, in the part `first` or behind it.
    fn find_from(
        &self,
        first: usize,
        before: &impl Fn(&Placed) -> bool,
    ) -> io::Result<Option<Spot>> {
        for (place, part) in self.parts.iter().enumerate().skip(first) {
            let Some(run) = self.run(part)?.filter(|run| run.count > 0) else { continue };
            let files = part.files();
            let entries = run.entries();
            let number = part.note(files.index.partition_point(entries.clone(), before))?;
            if number < entries.end {
                let source = Source::Part(Arc::clone(part), place);
                return Ok(Some(Spot { source, files, run, number }));
            }
        }
        Ok(None)
    }

    /// The entry that holds `offset`, or the first behind it.
    pub(super) fn at_offset(&self, offset: Offset) -> io::Result<Option<Spot>> {
        self.find(|run| run.tip.end <= offset, |placed| placed.entry.end() <= offset)
    }

    /// How far the log had come before the entry that holds `offset`, or the first behind it.
    pub(crate) fn tip_before_offset(&self, offset: Offset) -> io::Result<Tip> {
        self.at_offset(offset)?.map_or(Ok(self.tip), |spot| self.tip_before(&spot))
    }

    /// How far the log had come before a spot.
    fn tip_before(&self, spot: &Spot) -> io::Result<Tip> {
        if spot.number > spot.run.first {
            let entry = spot.entry(spot.number - 1)?.entry;
            return Ok(Tip::of(&entry, entry.user_peak));
        }
        match &spot.source {
            Source::Base(_) => Ok(Tip::NONE),
            Source::Part(_, place) => self.tip_before_part(*place),
        }
    }

    /// How far the log had come in `cut`. Stamps rise over all logs, so the part in which it ends is
    /// known without a look at any.
    pub(super) fn tip_at(&self, cut: Cut) -> io::Result<Tip> {
        let is_in = |placed: &Placed| cut.admits(placed.entry.stamp);
        if let Some(base) = &self.base
            && !cut.admits(base.run.tip.stamp)
        {
            let index = &base.files.index;
            let number = base.note(index.partition_point(base.run.entries(), is_in))?;
            if number == base.run.first {
                return Ok(Tip::NONE);
            }
            let entry = base.note(index.entry(number - 1))?.entry;
            return Ok(Tip::of(&entry, entry.user_peak));
        }
        let place = self.parts.partition_point(|part| cut.admits(part.last_stamp));
        let tip = match self.parts.get(place) {
            Some(part) => match self.last_in(part, is_in)? {
                Some(tip) => return Ok(tip),
                None => self.tip_before_part(place)?,
            },
            None => self.tip,
        };
        // Of a moment that everything before was given up of, nothing is known.
        Ok(if cut.admits(tip.stamp) { tip } else { Tip::NONE })
    }

    /// How far the log had come at the last entry of it in a part that is `before`.
    fn last_in(&self, part: &Part, before: impl Fn(&Placed) -> bool) -> io::Result<Option<Tip>> {
        let Some(run) = self.run(part)?.filter(|run| run.count > 0) else { return Ok(None) };
        let index = part.index();
        let number = part.note(index.partition_point(run.entries(), before))?;
        if number == run.first {
            return Ok(None);
        }
        let entry = part.note(index.entry(number - 1))?.entry;
        Ok(Some(Tip::of(&entry, entry.user_peak)))
    }

    /// How far the log had come in front of the part at a place.
    fn tip_before_part(&self, place: usize) -> io::Result<Tip> {
        let before = match place.checked_sub(1) {
            Some(before) => self.parts[before].run(self.log)?,
            None => None,
        };
        let tip = before.map_or(Tip::NONE, |run| run.tip);
        Ok(if tip.end > self.freed.end { tip } else { self.freed })
    }

    /// How far the log had come where the last epoch that is not above `epoch` ended.
    pub(super) fn tip_of_epoch(&self, epoch: u32) -> io::Result<Tip> {
        let spot = self.find(|run| run.tip.epoch <= epoch, |placed| placed.entry.epoch <= epoch)?;
        spot.map_or(Ok(self.tip), |spot| self.tip_before(&spot))
    }

    /// The first entry in which some user time is `time` or later, among those that end behind
    /// `from`.
    pub(super) fn first_reaching(
        &self,
        time: hlc::UserTime,
        from: Offset,
    ) -> io::Result<Option<Spot>> {
        let reached = self.find(|run| run.tip.user_peak < time, |_| false)?;
        let Some(reached) = reached else { return Ok(None) };
        // In the run that first reaches `time`, or in the one that holds `from`, and then in any.
        let mut spot = match reached.run.base >= from {
            true => reached,
            false => match self.at_offset(from)? {
                Some(spot) => spot,
                None => return Ok(None),
            },
        };
        loop {
            if spot.run.user_max >= time
                && let Some(number) = self.reaching_in(&spot, time)?
            {
                return Ok(Some(Spot { number, ..spot }));
            }
            spot = match self.next_run(&spot)? {
                Some(spot) => spot,
                None => return Ok(None),
            };
        }
    }

    /// The first entry of a run, from a spot on, in which some user time is `time` or later.
    fn reaching_in(&self, spot: &Spot, time: hlc::UserTime) -> io::Result<Option<u64>> {
        let end = spot.run.entries().end;
        let peak = |placed: &Placed| placed.entry.user_peak < time;
        let mut number = spot.files.index.partition_point(spot.number..end, peak)?;
        // Where the run had reached it before the spot, its maximum says nothing: look at each.
        while number < end {
            if spot.entry(number)?.entry.user_max >= time {
                return Ok(Some(number));
            }
            number += 1;
        }
        Ok(None)
    }

    /// The first entry of the next run that has one.
    pub(super) fn next_run(&self, spot: &Spot) -> io::Result<Option<Spot>> {
        let next = match &spot.source {
            Source::Base(_) => 0,
            Source::Part(_, place) => place + 1,
        };
        self.find_from(next, &|_| false)
    }

    /// The entry with the largest user time among those that lie wholly in `[from, until)`; the first
    /// of equals.
    pub(super) fn latest_by_user_time(
        &self,
        from: Offset,
        until: Offset,
    ) -> io::Result<Option<(Spot, Placed)>> {
        let mut best: Option<(Spot, Placed)> = None;
        // The mark in front of a base holds nothing, and so lies wholly in any range that it touches.
        let before = |placed: &Placed| placed.entry.base < from || placed.entry.end() <= from;
        let mut next = self.find(|run| run.tip.end <= from, before)?;
        while let Some(spot) = next {
            next = self.next_run(&spot)?;
            let entries = spot.run.entries();
            let files = spot.files.index.clone();
            let behind = |placed: &Placed| placed.entry.end() <= until;
            let end = files.partition_point(spot.number..entries.end, behind)?;
            let beats = |time| best.as_ref().is_none_or(|(_, placed)| time > placed.entry.user_max);
            if end > spot.number && beats(spot.run.user_max) {
                let found = latest_in(&spot, spot.number..end)?;
                if beats(found.1.entry.user_max) {
                    best = Some((Spot { number: found.0, ..spot }, found.1));
                }
            }
            if end < entries.end {
                break;
            }
        }
        Ok(best)
    }
}

/// The entry with the largest user time among some of a run; the first of equals.
fn latest_in(spot: &Spot, entries: std::ops::Range<u64>) -> io::Result<(u64, Placed)> {
    let last = spot.entry(entries.end - 1)?;
    if entries.start == spot.run.first {
        // The running maximum of the run says where it was reached.
        let peak = last.entry.user_peak;
        let below = |placed: &Placed| placed.entry.user_peak < peak;
        let number = spot.files.index.partition_point(entries, below)?;
        return Ok((number, spot.entry(number)?));
    }
    let mut best = (entries.start, spot.entry(entries.start)?);
    for number in entries.start + 1..entries.end {
        let placed = spot.entry(number)?;
        if placed.entry.user_max > best.1.entry.user_max {
            best = (number, placed);
        }
    }
    Ok(best)
}
