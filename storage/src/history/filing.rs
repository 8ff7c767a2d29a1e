//! Filing: a stretch of the journal, rewritten sorted by log, so that each log's share of it stands in
//! one piece.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::History;
use crate::data_file::{DataFile, LoadBuffer};
use crate::filed::{FiledHeader, FiledWriter, filed_name, index_name};
use crate::index::{Index, IndexBuilder, Placed, Run};
use crate::journal::{FRAME_BYTES, Frame};
use crate::manifest::{Listed, ManifestChange, ManifestEdit};
use crate::part::{Indexed, Layout, Part};

/// Where the pieces of a stretch are longer than this on average, filing gains nothing.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// How much of a stretch is gathered at once.
const GATHER_BYTES: usize = 32 << 20;
const GATHER_STEPS: usize = 64 << 10;
/// How much is read at once.
const READ_BYTES: usize = 1 << 20;
/// How long filing pauses after each read while there is other work: it takes 64 MiB/s then.
const PAUSE: Duration = Duration::from_millis(16);

/// What is to be written next, in the order of logs.
enum Step {
    Begin(Run),
    Entry(Placed),
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

/// The files that a stretch is filed to.
struct Filing {
    writer: FiledWriter,
    builder: IndexBuilder,
}

impl History {
    /// Files the first part that would gain by it, and is not `given_up`; whether there was one.
    ///
    /// # Errors
    /// The disk fails; nothing has changed then, and the part is given up.
    pub(crate) fn file_next(&self, given_up: &mut HashSet<u64>) -> io::Result<bool> {
        // Whoever gives back space may hold it for long, and indexing must not wait for that.
        let Some(_reclaiming) = self.reclaiming.try_lock() else { return Ok(false) };
        for part in self.parts.all().iter() {
            let is_settled = part.layout != Layout::Journal || part.is_settled();
            if is_settled || !self.is_proved(part) || given_up.contains(&part.start) {
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
            self.file(part)?;
        }
        Ok(gains)
    }

    /// Whether filing a part brings together what stands apart, or gives back much space.
    fn gains(&self, part: &Part) -> io::Result<bool> {
        let index = part.index();
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

    fn is_dead(&self, run: &Run) -> bool {
        run.tip.end <= self.manifest.lock().horizon(run.log).freed.end
    }

    fn file(&self, part: &Arc<Part>) -> io::Result<()> {
        // No name comes twice: if the manifest could not be written, the one on the disk may name a
        // file of an earlier attempt.
        let generation = part.next_generation();
        let name = filed_name(part.start, generation);
        let written = self.write_filed(part, &name, generation);
        let written = written.inspect_err(|_| self.discard(&name))?;
        self.swap(part, &name, Layout::Filed { generation })
            .inspect_err(|_| self.forget([name.clone()]))?;
        self.stats.filed.fetch_add(1, Ordering::Relaxed);
        self.stats.filed_bytes.fetch_add(written, Ordering::Relaxed);
        Ok(())
    }

    fn write_filed(&self, part: &Part, name: &str, generation: u32) -> io::Result<u64> {
        let (start, end) = (part.start, part.end);
        let header = FiledHeader { start, end, generation: u64::from(generation), log: None };
        let mut filing = Filing {
            writer: FiledWriter::create(&*self.disk, name, header)?,
            builder: IndexBuilder::create(&*self.disk, &index_name(name), start, end)?,
        };
        let index = part.index();
        let mut gathering = Gathering::default();
        for number in 0..index.header.runs {
            let run = part.note(index.run_at(number))?;
            let horizon = self.manifest.lock().horizon(run.log);
            // No links lead to it any more, nor through it to what is to be freed.
            if run.tip.end <= horizon.punched_to {
                continue;
            }
            gathering.steps.push(Step::Begin(run));
            let entries = if self.is_dead(&run) { 0..0 } else { run.entries() };
            for number in entries {
                let placed = part.note(index.entry(number))?;
                gathering.bytes += FRAME_BYTES + placed.entry.length as usize;
                gathering.steps.push(Step::Entry(placed));
                if gathering.is_full() {
                    self.write_gathered(part.data(), &mut gathering, &mut filing)?;
                }
            }
        }
        self.write_gathered(part.data(), &mut gathering, &mut filing)?;
        let written = filing.writer.finish()?;
        // Parts are told apart by their stamps, also when nothing is left in one.
        filing.builder.widen(index.header.first_stamp, index.header.last_stamp);
        filing.builder.finish(part.note(index.state()).unwrap_or(None).as_deref())?;
        self.disk.sync_names()?;
        Ok(written)
    }

    fn write_gathered(
        &self,
        data: &DataFile,
        gathering: &mut Gathering,
        filing: &mut Filing,
    ) -> io::Result<()> {
        let Gathering { steps, .. } = std::mem::take(gathering);
        let entries = steps.iter().filter_map(|step| match step {
            Step::Entry(placed) => Some(*placed),
            Step::Begin(_) => None,
        });
        let frames = self.read_frames(data, &entries.collect::<Vec<_>>())?;
        let mut rest = &frames[..];
        for step in steps {
            match step {
                Step::Begin(run) => {
                    filing.builder.begin_known(&run);
                }
                Step::Entry(placed) => {
                    let length = FRAME_BYTES + placed.entry.length as usize;
                    let (frame, behind) = rest.split_at(length);
                    let (header, payload) = frame.split_first_chunk().expect("a frame's header");
                    check_frame(data, &placed, header, payload)?;
                    let placed = filing.writer.add(&placed.entry, header, payload)?;
                    filing.builder.entry(placed)?;
                    rest = behind;
                }
            }
        }
        Ok(())
    }

    /// The frames of some entries, one after the other in the order given; read in the order in which
    /// they stand in the file.
    fn read_frames(&self, data: &DataFile, entries: &[Placed]) -> io::Result<Vec<u8>> {
        let mut places = Vec::with_capacity(entries.len());
        let mut length = 0;
        for placed in entries {
            let bytes = FRAME_BYTES + placed.entry.length as usize;
            places.push((placed.at - FRAME_BYTES as u64, bytes, length));
            length += bytes;
        }
        places.sort_unstable();
        let mut frames = vec![0; length];
        let mut window = LoadBuffer::default();
        let (mut held, limit) = (0..0, data.file().length()?);
        for (at, bytes, to) in places {
            if at < held.start || at + bytes as u64 > held.end {
                self.give_way()?;
                let count = bytes.max(READ_BYTES).min((limit - at.min(limit)) as usize).max(bytes);
                data.load_around(&mut window, at, count)?;
                held = at..at + count as u64;
            }
            let from = (at - held.start) as usize;
            frames[to..to + bytes].copy_from_slice(&window.bytes()[from..from + bytes]);
        }
        Ok(frames)
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

    /// Puts a filed part in place of what it was made from.
    fn swap(&self, part: &Arc<Part>, name: &str, layout: Layout) -> io::Result<()> {
        let file = self.disk.open(name)?;
        let index = self.open_index(&index_name(name), part.start)?;
        let files = Indexed { data: Arc::new(DataFile::new(name.to_owned(), file)), index };
        let filed = Arc::new(Part::new(layout, files));
        let mut manifest = self.manifest.lock();
        let listed = Listed { start: part.start, end: part.end, layout };
        self.commit(&mut manifest, &ManifestEdit(vec![ManifestChange::Part(listed)]))?;
        self.parts.change(|parts| {
            for held in parts.iter_mut().filter(|held| held.start == part.start) {
                *held = Arc::clone(&filed);
            }
        });
        drop(manifest);
        self.forget([part.data().name.clone()]);
        Ok(())
    }
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

fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Bytes of payload in a run.
fn run_bytes(index: &Index, run: &Run) -> io::Result<u64> {
    let first = index.entry(run.first)?.entry;
    Ok(run.tip.bytes - (first.bytes - u64::from(first.length)))
}
