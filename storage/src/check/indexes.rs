//! Indexes: each compared with the manifest and with itself, and with the one before it.
//!
//! An index is soft, so what is wrong with one loses nothing. It is a problem all the same: a disk that
//! gives other bytes than were written does not do so to indexes only.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use hlc::{Hlc, UserTime};

use crate::disk::Disk;
use crate::filed::{
    FILED_HEADER_BYTES, FRONT_BYTES, FiledHeader, base_name, filed_name, index_name,
};
use crate::index::{BlockCache, Index, Placed, Run, Tip};
use crate::journal::{SEGMENT_HEADER_BYTES, padded, segment_name};
use crate::log::{Entry, LogId, Offset};
use crate::manifest::{Horizon, Manifest};
use crate::part::Layout;

/// How much of indexes is held in memory: more than one of them takes.
const CACHE_BYTES: usize = 32 << 20;
/// How many damaged blocks are named.
const BLOCKS_NAMED: usize = 8;

/// What of each log was given up, or compacted.
pub(super) type Horizons = BTreeMap<LogId, Horizon>;

/// Whether what ends at `end` in `log` was given up, or lies in a base: its space may have been given
/// back.
pub(super) fn is_freed(logs: &Horizons, log: LogId, end: Offset) -> bool {
    logs.get(&log).is_some_and(|horizon| end <= horizon.freed.end)
}

/// All indexes that there should be.
pub(super) struct Indexes<'a> {
    disk: &'a dyn Disk,
    cache: Arc<BlockCache>,
    /// Those that can be compared with the frames that they speak of, by name.
    usable: BTreeSet<String>,
    pub(super) count: usize,
    pub(super) problems: Vec<String>,
}

/// An index that should be there.
struct Expected {
    name: String,
    start: u64,
    end: u64,
    of: Of,
}

/// What an index belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Frames by position, from there on.
    Segment(u64),
    Filed,
    /// Filed too, and entries were taken out.
    Base,
}

impl<'a> Indexes<'a> {
    /// Reads all that belong to files that the manifest names. `progress` is told how much was read.
    pub(super) fn read(
        disk: &'a dyn Disk,
        manifest: &Manifest,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<Indexes<'a>> {
        let cache = Arc::new(BlockCache::new(CACHE_BYTES));
        let (usable, problems) = (BTreeSet::new(), Vec::new());
        let mut indexes = Indexes { disk, cache, usable, count: 0, problems };
        // The first has none before it, and logs begin there.
        let mut before = Some(None);
        for part in &manifest.parts {
            let (data, of) = match part.layout {
                Layout::Journal => (segment_name(part.start), Of::Segment(part.start)),
                Layout::Filed { generation } => (filed_name(part.start, generation), Of::Filed),
            };
            let (name, start, end) = (index_name(&data), part.start, part.end);
            let expected = Expected { name, start, end, of };
            let index = indexes.take(&expected, &manifest.logs, progress)?;
            if let (Some(before), Some(index)) = (&before, &index)
                && let Some(what) = differs_from(before.as_ref(), index, &manifest.logs)?
            {
                indexes.disagrees(&expected.name, &what);
            }
            before = index.map(Some);
        }
        let none = Horizons::new();
        for (log, horizon) in manifest.logs.iter().filter(|(_, horizon)| horizon.base > 0) {
            let data = base_name(*log, horizon.base);
            // Where the stretch ends stands in the data file only; one that is not there is told of.
            let Some(FiledHeader { start, end, .. }) = header_of(disk, &data)? else { continue };
            let expected = Expected { name: index_name(&data), start, end, of: Of::Base };
            indexes.take(&expected, &none, progress)?;
        }
        Ok(indexes)
    }

    /// The index of a data file, if it can be compared with what is in it.
    pub(super) fn of(&self, data: &str, start: u64) -> io::Result<Option<Index>> {
        let name = index_name(data);
        match self.usable.contains(&name) {
            true => Index::open(self.disk, &name, start, &self.cache),
            false => Ok(None),
        }
    }

    /// Says that an index is whole and wrong.
    pub(super) fn disagrees(&mut self, name: &str, what: &str) {
        self.problems.push(format!(
            "an index disagrees: {what}; it is soft: remove it, and the next start makes it anew. file={name}"
        ));
    }

    fn take(
        &mut self,
        expected: &Expected,
        logs: &Horizons,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<Option<Index>> {
        let Expected { name, start, end, .. } = expected;
        let soft = "it is soft, and the next start makes it anew";
        let length = match self.disk.open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.problems.push(format!("an index is missing; {soft}. file={name}"));
                return Ok(None);
            }
            file => file?.length()?,
        };
        self.count += 1;
        progress(length);
        let index = Index::open(self.disk, name, *start, &self.cache)?;
        let Some(index) = index.filter(|index| index.header.end == *end) else {
            self.problems.push(format!(
                "an index is damaged where it begins, or belongs to another file; {soft}. file={name}"
            ));
            return Ok(None);
        };
        let damaged = index.check(self.disk)?;
        if !damaged.is_empty() {
            let named: Vec<String> =
                damaged.iter().take(BLOCKS_NAMED).map(u64::to_string).collect();
            let more = if damaged.len() > BLOCKS_NAMED { ", …" } else { "" };
            self.problems.push(format!(
                "an index is damaged; it is soft, and is made anew once that is noticed, or removed. file={name}, blocks={}{more}",
                named.join(", ")
            ));
            return Ok(None);
        }
        let contradiction = match contradiction(&index, logs, expected.of) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Some("a run has entries that are not there".to_owned())
            }
            contradiction => contradiction?,
        };
        if let Some(what) = contradiction {
            self.disagrees(name, &what);
            return Ok(None);
        }
        self.usable.insert(name.clone());
        Ok(Some(index))
    }
}

/// What the first bytes of a filed data file say; `None` if they are none, or there is no file.
pub(super) fn header_of(disk: &dyn Disk, name: &str) -> io::Result<Option<FiledHeader>> {
    let file = match disk.open(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = [0; FILED_HEADER_BYTES as usize];
    let read = file.read_at(&mut bytes, 0)?;
    Ok(if read < bytes.len() { None } else { FiledHeader::decode(&bytes) })
}

/// What an index that is whole says against itself.
fn contradiction(index: &Index, logs: &Horizons, of: Of) -> io::Result<Option<String>> {
    let header = index.header;
    let (mut entries, mut last_log) = (0, None);
    let mut walked = Walked { of, logs, stamps: None, log: LogId(0), end: FILED_HEADER_BYTES };
    for number in 0..header.runs {
        let run = index.run_at(number)?;
        if last_log >= Some(run.log) {
            return Ok(Some(format!("its runs do not stand by log, at log {}", run.log.0)));
        }
        if run.first != entries {
            return Ok(Some(format!("entries lie between its runs, at log {}", run.log.0)));
        }
        if let Some(what) = walked.run(index, &run)? {
            return Ok(Some(format!("{what}, of log {}", run.log.0)));
        }
        (entries, last_log) = (run.entries().end, Some(run.log));
    }
    if entries != header.entries {
        return Ok(Some("it has entries of no log".to_owned()));
    }
    // What the first and the last were stays, whatever is given up.
    let are_in = |(first, last)| header.first_stamp <= first && last <= header.last_stamp;
    Ok((!walked.stamps.is_none_or(are_in))
        .then(|| "its stamps are not those of its entries".to_owned()))
}

/// An index, entry by entry.
struct Walked<'a> {
    of: Of,
    logs: &'a Horizons,
    stamps: Option<(Hlc, Hlc)>,
    /// The log of the entry before, and where its payload ends in a filed file.
    log: LogId,
    end: u64,
}

impl Walked<'_> {
    fn run(&mut self, index: &Index, run: &Run) -> io::Result<Option<String>> {
        let mut before: Option<Entry> = None;
        let mut peak = UserTime(i64::MIN);
        for number in run.entries() {
            let placed = index.entry(number)?;
            let entry = placed.entry;
            peak = peak.max(entry.user_max);
            let wrong = match before {
                _ if entry.user_peak != peak => Some("the largest user time is wrong"),
                _ if !self.may_stand(run.log, &placed) => Some("the payload is elsewhere"),
                Some(before) => self.follows(&before, &entry),
                None if entry.base != run.base && self.of != Of::Base => Some("a run begins late"),
                None => None,
            };
            if let Some(what) = wrong {
                return Ok(Some(format!("{what} at offset {}", entry.base.0)));
            }
            let (first, last) = self.stamps.unwrap_or((entry.stamp, entry.stamp));
            self.stamps = Some((first.min(entry.stamp), last.max(entry.stamp)));
            before = Some(entry);
        }
        let Some(last) = before else {
            // Filing leaves out what was given up.
            let is_lawful = run.tip.end == run.base
                || (run.tip.end > run.base && is_freed(self.logs, run.log, run.tip.end));
            return Ok(
                (!is_lawful).then(|| format!("entries are left out at offset {}", run.base.0))
            );
        };
        let is_last =
            run.tip == Tip::of(&last, run.tip.user_peak.max(peak)) && run.user_max == peak;
        Ok((!is_last).then(|| "a run does not end with its last entry".to_owned()))
    }

    /// Whether the payload may be where an entry says that it is.
    fn may_stand(&mut self, log: LogId, placed: &Placed) -> bool {
        let Placed { entry, at } = placed;
        if let Of::Segment(start) = self.of {
            return entry.position.checked_sub(start) == at.checked_sub(SEGMENT_HEADER_BYTES);
        }
        // Frames follow one another, but where space was given back.
        let next = self.end.saturating_add(FRONT_BYTES as u64);
        let has_freed = || self.logs.range(self.log..=log).any(|(_, h)| h.freed.end > Offset(0));
        let may_stand = *at == next || (*at > next && has_freed());
        self.log = log;
        self.end = at.saturating_add(padded(u64::from(entry.length)));
        may_stand
    }

    /// How an entry does not follow the one before it.
    fn follows(&self, before: &Entry, entry: &Entry) -> Option<&'static str> {
        let is_base = self.of == Of::Base;
        if entry.base < before.end() || (entry.base > before.end() && !is_base) {
            return Some("entries do not follow one another");
        }
        if entry.stamp <= before.stamp {
            return Some("stamps do not rise");
        }
        if entry.bytes != before.bytes + u64::from(entry.length) {
            return Some("the count of bytes is wrong");
        }
        let is_linked = is_base || entry.chain == Entry::link(before.chain, entry);
        (!is_linked).then_some("the chain is broken")
    }
}

/// What an index says of how far logs had come before it, against the index before it.
fn differs_from(
    before: Option<&Index>,
    index: &Index,
    logs: &Horizons,
) -> io::Result<Option<String>> {
    let first = index.header.first_stamp;
    let last = index.header.last_stamp;
    if before.is_some_and(|before| before.header.last_stamp > last) {
        return Ok(Some("its stamps end before those of the index before it".to_owned()));
    }
    if before.is_some_and(|before| index.header.entries > 0 && before.header.last_stamp > first) {
        return Ok(Some("its stamps begin before those of the index before it end".to_owned()));
    }
    let mut earlier = Runs { index: before, next: 0 };
    for number in 0..index.header.runs {
        let run = index.run_at(number)?;
        let mut tip = Tip::NONE;
        while let Some(found) = earlier.peek()?.filter(|found| found.log <= run.log) {
            if found.log < run.log {
                return Ok(Some(format!("log {} is not in it", found.log.0)));
            }
            tip = found.tip;
            earlier.next += 1;
        }
        if let Some(what) = goes_on_wrong(index, &run, tip, logs)? {
            return Ok(Some(format!("{what}, of log {}", run.log.0)));
        }
    }
    Ok(earlier.peek()?.map(|found| format!("log {} is not in it", found.log.0)))
}

/// The runs of the index before, if there is one.
struct Runs<'a> {
    index: Option<&'a Index>,
    next: u64,
}

impl Runs<'_> {
    fn peek(&self) -> io::Result<Option<Run>> {
        match self.index {
            Some(index) if self.next < index.header.runs => index.run_at(self.next).map(Some),
            _ => Ok(None),
        }
    }
}

/// How a run does not go on where its log had come to.
fn goes_on_wrong(
    index: &Index,
    run: &Run,
    before: Tip,
    logs: &Horizons,
) -> io::Result<Option<String>> {
    if run.base != before.end {
        // What lies between stood in a part of which nothing is kept, or its entries were left out.
        let is_lawful = run.base > before.end && is_freed(logs, run.log, run.base);
        let what = || format!("it begins at offset {}, and not at {}", run.base.0, before.end.0);
        return Ok((!is_lawful).then(what));
    }
    if run.count == 0 {
        let is_same = run.tip.end > run.base || run.tip == before;
        return Ok((!is_same).then(|| "it ends otherwise than it began".to_owned()));
    }
    let first = index.entry(run.first)?.entry;
    let goes_on = first.stamp > before.stamp
        && first.bytes == before.bytes + u64::from(first.length)
        && first.chain == Entry::link(before.chain, &first)
        && run.tip.user_peak == before.user_peak.max(run.user_max);
    Ok((!goes_on).then(|| "its first entry does not follow the last one before".to_owned()))
}
