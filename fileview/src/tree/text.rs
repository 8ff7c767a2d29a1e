//! The text of a partition, values or JSON lines: where in it each record stands.
//!
//! Nothing of it is stored. What is kept are marks: at this offset, so many bytes come before. A read
//! renders from the mark before it, and a size is known from the last mark on. All moments share the
//! marks of a partition, for a moment of system time is a prefix; so do the exact sets of one user
//! time, as known at any moment. Marks are soft: made by who looks first, and made further as the
//! partition grows.
//!
//! When records are given up, what is left keeps its places: the new first mark is found from the one
//! behind it. When the log is compacted, what lies beyond keeps its places, and what was compacted is
//! another text from then on ([`Generation`]).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use engine::blocking::on_disk;
use engine::{Offset, Partition};
use hlc::UserTime;
use kafka_records::Record;
use parking_lot::Mutex;
use tokio::sync::MutexGuard;

use super::recent::{Recent, Weigh};
use super::scan::{ByUser, Generation, Seen, each_record, step};
use super::{TreeError, TreeOptions};
use crate::{Format, Renderer, Selection};

/// How many bytes of batches are looked at in one go, at most.
const STEP_BYTES: u64 = 256 << 10;
/// How many places that were asked for are remembered exactly.
const ASKED_MAX: usize = 64;
/// How many bytes of text are counted in one go, about: a few batches may unpack to very much.
const COUNT_BYTES: u64 = 4 << 20;
/// The most text that stays at hand between two reads.
const CHUNK_BYTES_MAX: usize = 1 << 20;
/// How much text is rendered beyond what was asked for, about: whoever reads on wants it.
const AHEAD_BYTES: u64 = 512 << 10;
/// The longest read; a longer one is cut short.
pub(crate) const READ_BYTES_MAX: usize = 16 << 20;

/// Which text: of a log, in a format, of some user times, and in a generation of the log.
pub(crate) type TextKey = (u64, Format, Option<Range<UserTime>>, Generation);
/// The texts that are known.
pub(crate) type Texts = Arc<Recent<TextKey, Text>>;

/// The records before `offset` take `at` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    offset: Offset,
    at: u64,
}

struct Marks {
    /// Rising. The first is where the text begins by now.
    known: VecDeque<Mark>,
    /// With more, every other one goes.
    known_max: usize,
    /// How far it has been rendered.
    tail: Mark,
    /// Between two marks lie at least so many bytes of text, or of batches four times as many: of some
    /// user time, much is read and little shown.
    spacing: u64,
    /// How many bytes of batches lie behind the last mark.
    read: u64,
    asked: VecDeque<Mark>,
}

/// The text of one partition.
pub(crate) struct Text {
    partition: Arc<Partition>,
    renderer: Renderer,
    user: Option<ByUser>,
    generation: Generation,
    step_bytes: usize,
    marks: tokio::sync::Mutex<Marks>,
    /// The offset of the tail.
    reach: AtomicU64,
    weight: AtomicUsize,
}

impl Weigh for Text {
    fn bytes(&self) -> usize {
        size_of::<Text>() + self.weight.load(Ordering::Relaxed)
    }
}

/// How much text follows from one offset on.
struct Measured {
    length: u64,
    /// Where batches end, in the log and in the text, and how many bytes they have.
    ends: Vec<(Offset, u64, usize)>,
    next: Offset,
}

/// Some of the text that follows from one offset on.
struct Stretch {
    /// How much comes before it.
    skipped: u64,
    text: Vec<u8>,
    /// What follows it; `None` where it ends within a record.
    next: Option<Offset>,
}

/// Takes of a text what is wanted, and a little ahead, and lets the rest pass.
struct Window {
    wanted: Range<u64>,
    /// How much has passed or was taken.
    at: u64,
    text: Vec<u8>,
}

impl Window {
    /// How far it takes something.
    fn end(&self) -> u64 {
        self.wanted.end.saturating_add(AHEAD_BYTES)
    }

    /// Takes a record. Once there is enough, it says what follows.
    fn take(&mut self, renderer: &Renderer, record: &Record) -> Option<Option<Offset>> {
        let begin = self.at;
        renderer.write(record, self).expect("a window takes what is written to it");
        if self.at <= self.end() {
            return None;
        }
        if begin < self.wanted.end {
            return Some(None);
        }
        // The next read begins with it.
        self.text.truncate((begin - self.wanted.start) as usize);
        Some(Some(Offset(record.offset as u64)))
    }
}

impl Write for Window {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len() as u64;
        let part = |at: u64| at.saturating_sub(self.at).min(length) as usize;
        let (from, to) = (part(self.wanted.start), part(self.end()));
        self.text.extend_from_slice(&bytes[from..to]);
        self.at += length;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn key_of(seen: &Seen, format: Format) -> TextKey {
    let times = seen.user.as_ref().map(|user| user.times.clone());
    (seen.partition.log.id.0, format, times, Generation::of(&seen.partition))
}

/// The text of what is seen, from what is known.
pub(crate) fn text_of(
    texts: &Texts,
    seen: &Seen,
    format: Format,
    options: &TreeOptions,
) -> Result<Arc<Text>, TreeError> {
    let key = key_of(seen, format);
    let renderer = Renderer::new(&seen.topic, seen.partition.index, format, Selection::all())
        .map_err(|error| TreeError::Moment(error.to_string()))?;
    let made = || Text::new(seen, renderer.clone(), key.3, options);
    let text = texts.get(&key, made);
    // All that was known of it has been given up: nothing tells where the rest would stand.
    if text.reach.load(Ordering::Relaxed) < seen.partition.start().0 {
        texts.forget(&key, &text);
        return Ok(texts.get(&key, made));
    }
    Ok(text)
}

impl Text {
    fn new(seen: &Seen, renderer: Renderer, generation: Generation, options: &TreeOptions) -> Text {
        let first = Mark { offset: seen.partition.start(), at: 0 };
        Text {
            partition: Arc::clone(&seen.partition),
            renderer,
            user: seen.user.clone(),
            generation,
            step_bytes: options.index_spacing_bytes.clamp(1, STEP_BYTES) as usize,
            marks: tokio::sync::Mutex::new(Marks {
                known: VecDeque::from([first]),
                // One partition of many may not have it all.
                known_max: options.index_bytes_max / 8 / size_of::<Mark>(),
                tail: first,
                spacing: options.index_spacing_bytes,
                read: 0,
                asked: VecDeque::new(),
            }),
            reach: AtomicU64::new(first.offset.0),
            weight: AtomicUsize::new(0),
        }
    }

    /// How long the text of the records in `[from, until)` is, or of the first of these. None of it is
    /// kept.
    fn measure(&self, from: Offset, until: Offset) -> Result<Measured, TreeError> {
        let (mut length, mut ends) = (0, Vec::new());
        let next = on_disk(|| {
            let step = step(&self.partition, from, until, self.step_bytes)?;
            let mut next = step.next;
            for batch in &step.batches {
                each_record(batch, &(from..until), self.user.as_ref(), |record| {
                    length += self.renderer.length(record);
                    Ok(())
                })?;
                let end = batch.end().min(until);
                ends.push((end, length, batch.bytes.len()));
                if length >= COUNT_BYTES {
                    next = end;
                    break;
                }
            }
            // Asked last: what was compacted meanwhile is another text.
            self.generation.check(&self.partition, from)?;
            Ok::<_, TreeError>(next)
        })?;
        Ok(Measured { length, ends, next })
    }

    /// Of the text of the records from `from` on and before `until`, what is wanted, told from where it
    /// begins; or the first of that. However much batches unpack to, it takes little more memory than
    /// that, beside one batch.
    fn render(
        &self,
        from: Offset,
        until: Offset,
        wanted: Range<u64>,
    ) -> Result<Stretch, TreeError> {
        let mut window = Window { wanted, at: 0, text: Vec::new() };
        let next = on_disk(|| {
            let step = step(&self.partition, from, until, self.step_bytes)?;
            let mut enough = None;
            for batch in &step.batches {
                each_record(batch, &(from..until), self.user.as_ref(), |record| {
                    if enough.is_none() {
                        enough = window.take(&self.renderer, record);
                    }
                    Ok(())
                })?;
                if enough.is_some() {
                    break;
                }
            }
            self.generation.check(&self.partition, from)?;
            Ok::<_, TreeError>(enough.unwrap_or(Some(step.next)))
        })?;
        let Window { wanted, at, mut text } = window;
        // Who holds on to it holds no more room than that.
        if text.capacity() > 2 * text.len().max(CHUNK_BYTES_MAX) {
            text.shrink_to_fit();
        }
        Ok(Stretch { skipped: at.min(wanted.start), text, next })
    }

    /// How many bytes the records in `[from, until)` take.
    async fn length(&self, from: Offset, until: Offset) -> Result<u64, TreeError> {
        let (mut next, mut length) = (from, 0);
        while next < until {
            let measured = self.measure(next, until)?;
            length += measured.length;
            next = measured.next;
            tokio::task::yield_now().await;
        }
        Ok(length)
    }

    /// The marks, of what is still there.
    async fn marks(&self) -> Result<MutexGuard<'_, Marks>, TreeError> {
        let mut marks = self.marks.lock().await;
        let floor = self.generation.floor(&self.partition);
        let gone = marks.known.partition_point(|mark| mark.offset < floor);
        if gone == 0 {
            return Ok(marks);
        }
        let next = marks.known.get(gone).copied().unwrap_or(marks.tail);
        if next.offset < floor {
            return Err(TreeError::Gone(format!("offset={}", next.offset.0)));
        }
        let length = self.length(floor, next.offset).await?;
        marks.known.drain(..gone);
        marks.known.push_front(Mark { offset: floor, at: next.at - length });
        marks.asked.retain(|mark| mark.offset >= floor);
        Ok(marks)
    }

    /// How many bytes come before the record at `offset`.
    pub(crate) async fn position(&self, offset: Offset) -> Result<u64, TreeError> {
        loop {
            let mut marks = self.marks().await?;
            if marks.known[0].offset > offset {
                return Err(TreeError::Gone(format!("offset={}", offset.0)));
            }
            if offset >= marks.tail.offset {
                if offset == marks.tail.offset {
                    return Ok(marks.tail.at);
                }
                let measured = self.measure(marks.tail.offset, offset)?;
                marks.extend(&measured);
                self.reach.store(marks.tail.offset.0, Ordering::Relaxed);
                let bytes = (marks.known.capacity() + marks.asked.capacity()) * size_of::<Mark>();
                self.weight.store(bytes, Ordering::Relaxed);
                drop(marks);
                // Whoever waits for what is known already comes first.
                tokio::task::yield_now().await;
                continue;
            }
            if let Some(mark) = marks.asked.iter().find(|mark| mark.offset == offset) {
                return Ok(mark.at);
            }
            let before = marks.known.partition_point(|mark| mark.offset <= offset) - 1;
            let before = marks.known[before];
            drop(marks);
            let at = before.at + self.length(before.offset, offset).await?;
            self.marks.lock().await.ask(Mark { offset, at });
            return Ok(at);
        }
    }

    /// The last mark that is not behind `at`.
    async fn mark_before(&self, at: u64) -> Result<Mark, TreeError> {
        let marks = self.marks().await?;
        if marks.tail.at <= at {
            return Ok(marks.tail);
        }
        match marks.known.partition_point(|mark| mark.at <= at).checked_sub(1) {
            Some(index) => Ok(marks.known[index]),
            None => Err(TreeError::Gone(format!("position={at}"))),
        }
    }
}

impl Marks {
    fn extend(&mut self, measured: &Measured) {
        let from = self.tail.at;
        for (offset, length, read) in &measured.ends {
            let mark = Mark { offset: *offset, at: from + length };
            let last = self.known.back().map_or(0, |last| last.at);
            self.read += *read as u64;
            let is_far = mark.at - last >= self.spacing || self.read >= 4 * self.spacing;
            if is_far && mark.offset > self.tail.offset {
                self.known.push_back(mark);
                self.read = 0;
            }
            self.tail = mark;
        }
        self.tail.offset = measured.next;
        if self.known.len() > self.known_max.max(2) {
            self.spacing *= 2;
            let mut index = 0;
            self.known.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
    }

    fn ask(&mut self, mark: Mark) {
        if self.asked.len() == ASKED_MAX {
            self.asked.pop_front();
        }
        self.asked.push_back(mark);
    }
}

/// A piece of text at hand.
#[derive(Clone)]
struct Chunk {
    at: u64,
    text: Bytes,
    /// What follows it; `None` where that has to be looked for.
    next: Option<Offset>,
}

/// A partition's text, open.
pub(crate) struct OpenText {
    text: Arc<Text>,
    texts: Texts,
    key: TextKey,
    /// Where it begins among the text.
    from: u64,
    /// How far it goes: the offset behind its last record, and where that is.
    end: Mutex<Mark>,
    grows: bool,
    chunk: Mutex<Option<Chunk>>,
}

impl OpenText {
    /// Pins what is seen.
    pub(crate) async fn new(
        texts: &Texts,
        seen: &Seen,
        format: Format,
        grows: bool,
        options: &TreeOptions,
    ) -> Result<OpenText, TreeError> {
        let text = text_of(texts, seen, format, options)?;
        let from = text.position(seen.start).await?;
        let end = Mark { offset: seen.end, at: text.position(seen.end).await? };
        let key = key_of(seen, format);
        texts.grew(&key);
        // Asked again: the text is that of a generation which may have come after it was seen.
        seen.check_kept()?;
        let (end, chunk) = (Mutex::new(end), Mutex::default());
        Ok(OpenText { text, texts: Arc::clone(texts), key, from, end, grows, chunk })
    }

    pub(crate) async fn size(&self) -> Result<u64, TreeError> {
        if self.grows {
            let offset = self.text.partition.end();
            let at = self.text.position(offset).await?;
            self.texts.grew(&self.key);
            let mut end = self.end.lock();
            if offset > end.offset {
                *end = Mark { offset, at };
            }
        }
        Ok(self.end.lock().at - self.from)
    }

    pub(crate) async fn read(&self, at: u64, length: usize) -> Result<Bytes, TreeError> {
        let length = length.min(READ_BYTES_MAX);
        let from = self.from.saturating_add(at);
        let wanted = from.saturating_add(length as u64);
        if self.grows && wanted > self.end.lock().at {
            self.size().await?;
        }
        let end = *self.end.lock();
        let until = wanted.min(end.at);
        if from >= until {
            return Ok(Bytes::new());
        }
        let mut chunk = self.chunk_at(from).await?;
        let (mut out, mut got) = (Vec::new(), from);
        loop {
            let behind = chunk.at + chunk.text.len() as u64;
            let (first, last) = (got.max(chunk.at), until.min(behind));
            if first < last {
                let part = (first - chunk.at) as usize..(last - chunk.at) as usize;
                if first == from && last == until {
                    let all = chunk.text.slice(part);
                    self.keep(chunk, until);
                    return Ok(all);
                }
                out.extend_from_slice(&chunk.text[part]);
                got = last;
            }
            if got >= until {
                self.keep(chunk, until);
                return Ok(out.into());
            }
            let Some(next) = chunk.next else {
                chunk = self.chunk_before(got).await?;
                continue;
            };
            if next >= end.offset {
                return Err(TreeError::Gone(format!("position={behind}")));
            }
            let wanted = got.saturating_sub(behind)..until.saturating_sub(behind);
            let Stretch { skipped, text, next } = self.text.render(next, end.offset, wanted)?;
            chunk = Chunk { at: behind + skipped, text: text.into(), next };
            tokio::task::yield_now().await;
        }
    }

    /// What is at hand, if it leads to `at`; else an empty piece at the mark before.
    async fn chunk_at(&self, at: u64) -> Result<Chunk, TreeError> {
        let held = self.chunk.lock().clone();
        let behind = |chunk: &Chunk| chunk.at + chunk.text.len() as u64;
        match held.filter(|held| held.at <= at && at <= behind(held)) {
            Some(held) => Ok(held),
            None => self.chunk_before(at).await,
        }
    }

    async fn chunk_before(&self, at: u64) -> Result<Chunk, TreeError> {
        let mark = self.text.mark_before(at).await?;
        Ok(Chunk { at: mark.at, text: Bytes::new(), next: Some(mark.offset) })
    }

    /// Keeps at hand what lies from `until` on, or all if that is not much.
    fn keep(&self, chunk: Chunk, until: u64) {
        let kept = if chunk.text.len() <= CHUNK_BYTES_MAX {
            chunk
        } else {
            let rest = &chunk.text[(until - chunk.at) as usize..];
            let is_all = rest.len() <= CHUNK_BYTES_MAX;
            // Not with all of the chunk behind it.
            let text = Bytes::copy_from_slice(&rest[..rest.len().min(CHUNK_BYTES_MAX)]);
            Chunk { at: until, text, next: chunk.next.filter(|_| is_all) }
        };
        *self.chunk.lock() = Some(kept);
    }
}
