//! Filing: a stretch of the journal, rewritten sorted by log, so that each log's share of it stands in
//! one piece. It is one part, or several that are merged.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::History;
use super::merging::stretch_of;
use crate::data_file::{DataFile, LoadBuffer};
use crate::filed::{FiledHeader, FiledWriter, filed_name, index_name};
use crate::index::{Index, IndexBuilder, Links, Placed, Run};
use crate::journal::{FRAME_BYTES, Frame};
use crate::log::LogId;
use crate::manifest::{Listed, ManifestChange, ManifestEdit};
use crate::part::{Indexed, Layout, Part};

/// Where the pieces of a stretch are longer than this on average, filing gains nothing.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// How much of a stretch is gathered at once.
const GATHER_BYTES: usize = 64 << 20;
const GATHER_STEPS: usize = 64 << 10;
/// How much is read at once.
const READ_BYTES: usize = 1 << 20;
/// How long filing pauses after each read while there is other work: it takes 64 MiB/s then.
const PAUSE: Duration = Duration::from_millis(16);

/// What is to be written next, in the order of logs.
enum Step {
    Begin(Run),
    /// An entry, and in which source it stands.
    Entry(usize, Placed),
}

/// What is written after one pass over the stretch.
#[derive(Default)]
struct Gathering {
    steps: Vec<Step>,
    bytes: usize,
}

impl Gathering {
    fn is_full(&self) -> bool {
        self.bytes >= GATHER_BYTES || self.steps.len() >= GATHER_STEPS
    }
}

/// What is filed: parts that follow one another, with their indexes as they were at first.
struct Sources<'a> {
    parts: &'a [Arc<Part>],
    indexes: Vec<Arc<Index>>,
    /// The next run of each, by log, and of one log the oldest first.
    next: BinaryHeap<Reverse<(LogId, usize, u64)>>,
}

impl<'a> Sources<'a> {
    fn new(parts: &'a [Arc<Part>]) -> io::Result<Sources<'a>> {
        let indexes = parts.iter().map(|part| part.index()).collect();
        let mut sources = Sources { parts, indexes, next: BinaryHeap::new() };
        for source in 0..parts.len() {
            sources.push(source, 0)?;
        }
        Ok(sources)
    }

    fn run(&self, source: usize, number: u64) -> io::Result<Run> {
        self.parts[source].note(self.indexes[source].run_at(number))
    }

    fn push(&mut self, source: usize, number: u64) -> io::Result<()> {
        if number < self.indexes[source].header.runs {
            let log = self.run(source, number)?.log;
            self.next.push(Reverse((log, source, number)));
        }
        Ok(())
    }

    /// All runs of the next log, oldest first, each with its source; none at the end.
    fn next_log(&mut self) -> io::Result<Vec<(usize, Run)>> {
        let mut runs: Vec<(usize, Run)> = Vec::new();
        while let Some(Reverse((log, source, number))) = self.next.peek().copied() {
            if runs.last().is_some_and(|(_, run)| run.log != log) {
                break;
            }
            self.next.pop();
            runs.push((source, self.run(source, number)?));
            self.push(source, number + 1)?;
        }
        Ok(runs)
    }

    fn entry(&self, source: usize, number: u64) -> io::Result<Placed> {
        self.parts[source].note(self.indexes[source].entry(number))
    }
}

/// The files that a stretch is filed to.
struct Filing {
    writer: FiledWriter,
    builder: IndexBuilder,
    /// The frames of one pass, in memory that is used again: new pages cost more than what is read to them.
    frames: Vec<u8>,
    window: LoadBuffer,
}

impl History {
    /// Files the first part that would gain by it, and is not `given_up`, by itself; whether there was one.
    ///
    /// # Errors
    /// The disk fails; nothing has changed then, and the part is given up.
    pub(crate) fn file_next(&self, given_up: &mut HashSet<u64>) -> io::Result<bool> {
        // Whoever gives back space may hold it for long, and indexing must not wait for that.
        let Some(_reclaiming) = self.reclaiming.try_lock() else { return Ok(false) };
        for part in self.parts.all().iter() {
            if part.is_settled() || !self.is_proved(part) || given_up.contains(&part.start) {
                continue;
            }
            match self.file_if_it_gains(part) {
                Ok(true) => return Ok(true),
                Ok(false) => part.set_settled(true),
                // Its index is made anew first.
                Err(_) if part.is_suspect() => {}
                // What is damaged is left where it stands, for whoever can mend it.
                Err(error) if is_damage(&error) => {
                    tracing::error!(%error, "a part stays as it is");
                    part.set_settled(true);
                }
                Err(error) => {
                    given_up.insert(part.start);
                    return Err(error);
                }
            }
        }
        Ok(false)
    }

    fn file_if_it_gains(&self, part: &Arc<Part>) -> io::Result<bool> {
        let gains = self.gains(part)?;
        if gains {
            self.file(std::slice::from_ref(part))?;
        }
        Ok(gains)
    }

    /// Whether filing a part brings together what stands apart, or gives back much space.
    fn gains(&self, part: &Part) -> io::Result<bool> {
        let index = part.index();
        if part.layout != Layout::Journal {
            return self.is_mostly_dead(part, &index);
        }
        let header = &index.header;
        let (mut runs, mut live, mut dead) = (0, 0, 0);
        for number in 0..header.runs {
            let run = part.note(index.run_at(number))?;
            if run.count == 0 {
                continue;
            }
            runs += 1;
            let bytes = part.note(run_bytes(&index, &run))?;
            *(if self.is_dead(&run) { &mut dead } else { &mut live }) += bytes;
        }
        let is_scattered = header.pieces > runs
            && (header.end - header.start) / header.pieces.max(1) < PIECE_BYTES_MAX;
        Ok((is_scattered && runs > 1) || (dead > 0 && dead >= live))
    }

    /// Whether at least half of the entries of a filed part were given up: the space of their payloads was
    /// given back, and that of their entries was not.
    fn is_mostly_dead(&self, part: &Part, index: &Index) -> io::Result<bool> {
        let mut dead = 0_u64;
        for number in 0..index.header.runs {
            let run = part.note(index.run_at(number))?;
            dead = dead.saturating_add(if self.is_dead(&run) { run.count } else { 0 });
        }
        Ok(dead > 0 && dead >= index.header.entries.saturating_sub(dead))
    }

    fn is_dead(&self, run: &Run) -> bool {
        run.tip.end <= self.manifest.lock().horizon(run.log).freed.end
    }

    /// Files parts that follow one another as one.
    pub(super) fn file(&self, parts: &[Arc<Part>]) -> io::Result<()> {
        // No name comes twice: if the manifest could not be written, the one on the disk may name a
        // file of an earlier attempt.
        let generation = parts[0].next_generation();
        let name = filed_name(parts[0].start, generation);
        let written = self.write_filed(parts, &name, generation);
        let written = written.inspect_err(|_| self.discard(&name))?;
        self.swap(parts, &name, Layout::Filed { generation })
            .inspect_err(|_| self.forget([name.clone()]))?;
        self.stats.filed.fetch_add(1, Ordering::Relaxed);
        self.stats.filed_bytes.fetch_add(written, Ordering::Relaxed);
        Ok(())
    }

    fn write_filed(&self, parts: &[Arc<Part>], name: &str, generation: u32) -> io::Result<u64> {
        let Range { start, end } = stretch_of(parts);
        let header = FiledHeader { start, end, generation: u64::from(generation), log: None };
        let mut filing = Filing {
            writer: FiledWriter::create(&*self.disk, name, header)?,
            builder: IndexBuilder::create(&*self.disk, &index_name(name), start, end)?,
            frames: Vec::new(),
            window: LoadBuffer::default(),
        };
        let mut sources = Sources::new(parts)?;
        let mut gathering = Gathering::default();
        loop {
            let runs = sources.next_log()?;
            let Some((_, newest)) = runs.last() else { break };
            let horizon = self.manifest.lock().horizon(newest.log);
            // No links lead to it any more, nor through it to what is to be freed.
            if newest.tip.end <= horizon.punched_to {
                continue;
            }
            let dead = runs.partition_point(|(_, run)| run.tip.end <= horizon.freed.end);
            gathering.steps.push(Step::Begin(merged_run(&runs, dead, start)));
            for (source, run) in &runs[dead..] {
                for number in run.entries() {
                    let placed = sources.entry(*source, number)?;
                    gathering.bytes += FRAME_BYTES + placed.entry.length as usize;
                    gathering.steps.push(Step::Entry(*source, placed));
                    if gathering.is_full() {
                        self.write_gathered(parts, &mut gathering, &mut filing)?;
                    }
                }
            }
        }
        self.write_gathered(parts, &mut gathering, &mut filing)?;
        let written = filing.writer.finish()?;
        // Parts are told apart by their stamps, also when nothing is left in one.
        let stamps = sources.indexes.iter().map(|index| index.header);
        let first = stamps.clone().map(|header| header.first_stamp).min();
        let last = stamps.map(|header| header.last_stamp).max();
        filing.builder.widen(first.unwrap_or_default(), last.unwrap_or_default());
        let state = match (parts.last(), sources.indexes.last()) {
            (Some(part), Some(index)) => part.note(index.state()).unwrap_or(None),
            _ => None,
        };
        filing.builder.finish(state.as_deref())?;
        self.disk.sync_names()?;
        Ok(written)
    }

    fn write_gathered(
        &self,
        parts: &[Arc<Part>],
        gathering: &mut Gathering,
        filing: &mut Filing,
    ) -> io::Result<()> {
        // What is sealed meanwhile is held in memory, and many parts take a while. If it cannot be
        // indexed, that is told by whoever tries next.
        while self.index_next().unwrap_or(false) {}
        let Gathering { steps, .. } = std::mem::take(gathering);
        self.read_frames(parts, &steps, filing)?;
        let mut rest = &filing.frames[..];
        for step in steps {
            match step {
                Step::Begin(run) => {
                    filing.builder.begin_known(&run);
                }
                Step::Entry(source, placed) => {
                    let length = FRAME_BYTES + placed.entry.length as usize;
                    let (frame, behind) = rest.split_at(length);
                    let (header, payload) = frame.split_first_chunk().expect("a frame's header");
                    check_frame(parts[source].data(), &placed, header, payload)?;
                    let placed = filing.writer.add(&placed.entry, header, payload)?;
                    filing.builder.entry(placed)?;
                    rest = behind;
                }
            }
        }
        Ok(())
    }

    /// Reads the frames of the entries among some steps, to stand one after the other; in the order in which
    /// they stand in the files.
    fn read_frames(
        &self,
        parts: &[Arc<Part>],
        steps: &[Step],
        Filing { frames, window, .. }: &mut Filing,
    ) -> io::Result<()> {
        let mut places = Vec::with_capacity(steps.len());
        let mut length = 0;
        for step in steps {
            let Step::Entry(source, placed) = step else { continue };
            let bytes = FRAME_BYTES + placed.entry.length as usize;
            places.push((*source, placed.at - FRAME_BYTES as u64, bytes, length));
            length += bytes;
        }
        places.sort_unstable();
        frames.resize(length.max(frames.len()), 0);
        let (mut held_of, mut held, mut limit) = (usize::MAX, 0..0, 0);
        for (source, at, bytes, to) in places {
            let data = parts[source].data();
            if source != held_of {
                (held_of, held, limit) = (source, 0..0, data.file().length()?);
            }
            if at < held.start || at + bytes as u64 > held.end {
                self.give_way()?;
                let count = bytes.max(READ_BYTES).min((limit - at.min(limit)) as usize).max(bytes);
                data.load_around(window, at, count)?;
                held = at..at + count as u64;
            }
            let from = (at - held.start) as usize;
            frames[to..to + bytes].copy_from_slice(&window.bytes()[from..from + bytes]);
        }
        Ok(())
    }

    /// Leaves the disk and the processor to other work, if there is any.
    pub(crate) fn give_way(&self) -> io::Result<()> {
        let written = self.foreground.load(Ordering::Relaxed);
        if self.foreground_seen.swap(written, Ordering::Relaxed) != written {
            let mut waiting = self.waiting.lock();
            if waiting.sealed.is_empty() && !self.is_closing() {
                self.changed.wait_for(&mut waiting, PAUSE);
            }
        }
        if self.is_closing() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the store is being closed"));
        }
        Ok(())
    }

    /// Puts a filed part in place of those that it was made from.
    fn swap(&self, parts: &[Arc<Part>], name: &str, layout: Layout) -> io::Result<()> {
        let Range { start, end } = stretch_of(parts);
        let file = self.disk.open(name)?;
        let index = self.open_index(&index_name(name), start)?;
        let files = Indexed { data: Arc::new(DataFile::new(name.to_owned(), file)), index };
        let filed = Arc::new(Part::new(layout, files));
        let mut manifest = self.manifest.lock();
        let merged = parts[1..].iter().map(|part| ManifestChange::PartRemoved(part.start));
        let listed = ManifestChange::Part(Listed { start, end, layout });
        let edit = ManifestEdit(merged.chain([listed]).collect());
        self.commit(&mut manifest, &edit)?;
        self.parts.change(|parts| {
            let place = |position| parts.partition_point(|part| part.start < position);
            let stretch = place(start)..place(end);
            drop(parts.splice(stretch, [filed]));
        });
        drop(manifest);
        self.proofs_are_due();
        self.forget(parts.iter().map(|part| part.data().name.clone()));
        Ok(())
    }
}

/// The runs of a log in parts that become one, which begins at `start`; the first `dead` of them are left
/// out.
fn merged_run(runs: &[(usize, Run)], dead: usize, start: u64) -> Run {
    let (oldest, newest) = (&runs[0].1, &runs[runs.len() - 1].1);
    let first = runs.get(dead).map_or(oldest, |(_, run)| run);
    // One that leads into a part between them leads to what is not there any more.
    let is_before = oldest.links.previous.is_none_or(|place| place.part < start);
    let links = if is_before { oldest.links } else { Links::FIRST };
    Run { base: first.base, tip: newest.tip, links, ..*newest }
}

/// What is damaged must not be filed, in place of what may still be mended.
fn check_frame(
    data: &DataFile,
    placed: &Placed,
    header: &[u8; FRAME_BYTES],
    payload: &[u8],
) -> io::Result<()> {
    let entry = &placed.entry;
    let is_its = |frame: Frame| frame.stamp == entry.stamp && frame.base == entry.base;
    let whole = Frame::decode(header, entry.frame()).is_ok_and(is_its);
    if !whole || crc32c::crc32c(payload) != entry.payload_crc {
        return Err(data.damaged(placed.at, "a frame"));
    }
    Ok(())
}

pub(super) fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Bytes of payload in a run.
fn run_bytes(index: &Index, run: &Run) -> io::Result<u64> {
    let first = index.entry(run.first)?.entry;
    Ok(run.tip.bytes - (first.bytes - u64::from(first.length)))
}
