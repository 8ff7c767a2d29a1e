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
//! another text from then on ([`LogGeneration`]).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use engine::blocking::block_in_place;
use engine::{Offset, Partition};
use hlc::UserTime;
use kafka_records::KafkaRecord;
use parking_lot::Mutex;
use tokio::sync::MutexGuard;

use super::lru_cache::{CacheWeight, WeightedLruCache};
use super::scan::{LogGeneration, UserTimeFilter, VisibleRange, for_each_record, read_step};
use super::{TreeError, TreeOptions};
use crate::{RecordRenderer, RecordSelection, ViewFormat};

/// How many bytes of batches are looked at in one go, at most.
const STEP_BYTES: u64 = 256 << 10;
/// How many places that were asked for are remembered exactly.
const RECENT_MARKS_MAX: usize = 64;
/// How many bytes of text are counted in one go, about: a few batches may unpack to very much.
const COUNT_BYTES: u64 = 4 << 20;
/// The most text that stays at hand between two reads.
const CHUNK_BYTES_MAX: usize = 1 << 20;
/// How much text is rendered beyond what was asked for, about: whoever reads on wants it.
const AHEAD_BYTES: u64 = 512 << 10;
/// The longest read; a longer one is cut short.
pub(crate) const READ_BYTES_MAX: usize = 16 << 20;

/// Which text: of a log, in a format, of some user times, and in a generation of the log.
pub(crate) type TextKey = (u64, ViewFormat, Option<Range<UserTime>>, LogGeneration);
/// The texts that are known.
pub(crate) type TextCache = Arc<WeightedLruCache<TextKey, PartitionText>>;

/// The records before `offset` take `at` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TextMark {
    offset: Offset,
    at: u64,
}

struct TextIndex {
    /// Rising. The first is where the text begins by now.
    marks: VecDeque<TextMark>,
    /// With more, every other one goes.
    marks_max: usize,
    /// How far it has been rendered.
    tail: TextMark,
    /// Between two marks lie at least so many bytes of text, or of batches four times as many: of some
    /// user time, much is read and little shown.
    spacing: u64,
    /// How many bytes of batches lie behind the last mark.
    read: u64,
    recent: VecDeque<TextMark>,
}

/// The text of one partition.
pub(crate) struct PartitionText {
    partition: Arc<Partition>,
    renderer: RecordRenderer,
    user: Option<UserTimeFilter>,
    generation: LogGeneration,
    step_bytes: usize,
    index: tokio::sync::Mutex<TextIndex>,
    /// The offset of the tail.
    reach: AtomicU64,
    weight: AtomicUsize,
}

impl CacheWeight for PartitionText {
    fn bytes(&self) -> usize {
        size_of::<PartitionText>() + self.weight.load(Ordering::Relaxed)
    }
}

/// How much text follows from one offset on.
struct TextMeasurement {
    length: u64,
    /// Where batches end, in the log and in the text, and how many bytes they have.
    ends: Vec<(Offset, u64, usize)>,
    next: Offset,
}

/// Some of the text that follows from one offset on.
struct TextSpan {
    /// How much comes before it.
    skipped: u64,
    text: Vec<u8>,
    /// What follows it; `None` where it ends within a record.
    next: Option<Offset>,
}

/// Takes of a text what is wanted, and a little ahead, and lets the rest pass.
struct TextWindow {
    wanted: Range<u64>,
    /// How much has passed or was taken.
    at: u64,
    text: Vec<u8>,
}

impl TextWindow {
    /// How far it takes something.
    fn end(&self) -> u64 {
        self.wanted.end.saturating_add(AHEAD_BYTES)
    }

    /// Takes a record. Once there is enough, it says what follows.
    fn take(&mut self, renderer: &RecordRenderer, record: &KafkaRecord) -> Option<Option<Offset>> {
        let begin = self.at;
        renderer.write_record(record, self).expect("a window takes what is written to it");
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

impl Write for TextWindow {
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

pub(crate) fn key_of(seen: &VisibleRange, format: ViewFormat) -> TextKey {
    let times = seen.user.as_ref().map(|user| user.times.clone());
    (seen.partition.log.id.0, format, times, LogGeneration::of(&seen.partition))
}

/// The text of what is seen, from what is known.
pub(crate) fn text_of(
    texts: &TextCache,
    seen: &VisibleRange,
    format: ViewFormat,
    options: &TreeOptions,
) -> Result<Arc<PartitionText>, TreeError> {
    let key = key_of(seen, format);
    let renderer =
        RecordRenderer::new(&seen.topic, seen.partition.index, format, RecordSelection::all())
            .map_err(|error| TreeError::Moment(error.to_string()))?;
    let made = || PartitionText::new(seen, renderer.clone(), key.3, options);
    let text = texts.get(&key, made);
    // All that was known of it has been given up: nothing tells where the rest would stand.
    if text.reach.load(Ordering::Relaxed) < seen.partition.start().0 {
        texts.remove(&key, &text);
        return Ok(texts.get(&key, made));
    }
    Ok(text)
}

impl PartitionText {
    fn new(
        seen: &VisibleRange,
        renderer: RecordRenderer,
        generation: LogGeneration,
        options: &TreeOptions,
    ) -> PartitionText {
        let first = TextMark { offset: seen.partition.start(), at: 0 };
        PartitionText {
            partition: Arc::clone(&seen.partition),
            renderer,
            user: seen.user.clone(),
            generation,
            step_bytes: options.index_spacing_bytes.clamp(1, STEP_BYTES) as usize,
            index: tokio::sync::Mutex::new(TextIndex {
                marks: VecDeque::from([first]),
                // One partition of many may not have it all.
                marks_max: options.index_bytes_max / 8 / size_of::<TextMark>(),
                tail: first,
                spacing: options.index_spacing_bytes,
                read: 0,
                recent: VecDeque::new(),
            }),
            reach: AtomicU64::new(first.offset.0),
            weight: AtomicUsize::new(0),
        }
    }

    /// How long the text of the records in `[from, until)` is, or of the first of these. None of it is
    /// kept.
    fn measure(&self, from: Offset, until: Offset) -> Result<TextMeasurement, TreeError> {
        let (mut length, mut ends) = (0, Vec::new());
        let next = block_in_place(|| {
            let step = read_step(&self.partition, from, until, self.step_bytes)?;
            let mut next = step.next;
            for batch in &step.batches {
                for_each_record(batch, &(from..until), self.user.as_ref(), |record| {
                    length += self.renderer.rendered_length(record);
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
        Ok(TextMeasurement { length, ends, next })
    }

    /// Of the text of the records from `from` on and before `until`, what is wanted, told from where it
    /// begins; or the first of that. However much batches unpack to, it takes little more memory than
    /// that, beside one batch.
    fn render(
        &self,
        from: Offset,
        until: Offset,
        wanted: Range<u64>,
    ) -> Result<TextSpan, TreeError> {
        let mut window = TextWindow { wanted, at: 0, text: Vec::new() };
        let next = block_in_place(|| {
            let step = read_step(&self.partition, from, until, self.step_bytes)?;
            let mut enough = None;
            for batch in &step.batches {
                for_each_record(batch, &(from..until), self.user.as_ref(), |record| {
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
        let TextWindow { wanted, at, mut text } = window;
        // Who holds on to it holds no more room than that.
        if text.capacity() > 2 * text.len().max(CHUNK_BYTES_MAX) {
            text.shrink_to_fit();
        }
        Ok(TextSpan { skipped: at.min(wanted.start), text, next })
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
    async fn locked_index(&self) -> Result<MutexGuard<'_, TextIndex>, TreeError> {
        let mut marks = self.index.lock().await;
        let floor = self.generation.floor(&self.partition);
        let gone = marks.marks.partition_point(|mark| mark.offset < floor);
        if gone == 0 {
            return Ok(marks);
        }
        let next = marks.marks.get(gone).copied().unwrap_or(marks.tail);
        if next.offset < floor {
            return Err(TreeError::Gone(format!("offset={}", next.offset.0)));
        }
        let length = self.length(floor, next.offset).await?;
        marks.marks.drain(..gone);
        marks.marks.push_front(TextMark { offset: floor, at: next.at - length });
        marks.recent.retain(|mark| mark.offset >= floor);
        Ok(marks)
    }

    /// How many bytes come before the record at `offset`.
    pub(crate) async fn position(&self, offset: Offset) -> Result<u64, TreeError> {
        loop {
            let mut marks = self.locked_index().await?;
            if marks.marks[0].offset > offset {
                return Err(TreeError::Gone(format!("offset={}", offset.0)));
            }
            if offset >= marks.tail.offset {
                if offset == marks.tail.offset {
                    return Ok(marks.tail.at);
                }
                let measured = self.measure(marks.tail.offset, offset)?;
                marks.extend(&measured);
                self.reach.store(marks.tail.offset.0, Ordering::Relaxed);
                let bytes =
                    (marks.marks.capacity() + marks.recent.capacity()) * size_of::<TextMark>();
                self.weight.store(bytes, Ordering::Relaxed);
                drop(marks);
                // Whoever waits for what is known already comes first.
                tokio::task::yield_now().await;
                continue;
            }
            if let Some(mark) = marks.recent.iter().find(|mark| mark.offset == offset) {
                return Ok(mark.at);
            }
            let before = marks.marks.partition_point(|mark| mark.offset <= offset) - 1;
            let before = marks.marks[before];
            drop(marks);
            let at = before.at + self.length(before.offset, offset).await?;
            self.index.lock().await.remember(TextMark { offset, at });
            return Ok(at);
        }
    }

    /// The last mark that is not behind `at`.
    async fn mark_before(&self, at: u64) -> Result<TextMark, TreeError> {
        let marks = self.locked_index().await?;
        if marks.tail.at <= at {
            return Ok(marks.tail);
        }
        match marks.marks.partition_point(|mark| mark.at <= at).checked_sub(1) {
            Some(index) => Ok(marks.marks[index]),
            None => Err(TreeError::Gone(format!("position={at}"))),
        }
    }
}

impl TextIndex {
    fn extend(&mut self, measured: &TextMeasurement) {
        let from = self.tail.at;
        for (offset, length, read) in &measured.ends {
            let mark = TextMark { offset: *offset, at: from + length };
            let last = self.marks.back().map_or(0, |last| last.at);
            self.read += *read as u64;
            let is_far = mark.at - last >= self.spacing || self.read >= 4 * self.spacing;
            if is_far && mark.offset > self.tail.offset {
                self.marks.push_back(mark);
                self.read = 0;
            }
            self.tail = mark;
        }
        self.tail.offset = measured.next;
        if self.marks.len() > self.marks_max.max(2) {
            self.spacing *= 2;
            let mut index = 0;
            self.marks.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
    }

    fn remember(&mut self, mark: TextMark) {
        if self.recent.len() == RECENT_MARKS_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(mark);
    }
}

/// A piece of text at hand.
#[derive(Clone)]
struct TextChunk {
    at: u64,
    text: Bytes,
    /// What follows it; `None` where that has to be looked for.
    next: Option<Offset>,
}

/// A partition's text, open.
pub(crate) struct OpenText {
    text: Arc<PartitionText>,
    texts: TextCache,
    key: TextKey,
    /// Where it begins among the text.
    from: u64,
    /// How far it goes: the offset behind its last record, and where that is.
    end: Mutex<TextMark>,
    grows: bool,
    chunk: Mutex<Option<TextChunk>>,
}

impl OpenText {
    /// Pins what is seen.
    pub(crate) async fn new(
        texts: &TextCache,
        seen: &VisibleRange,
        format: ViewFormat,
        grows: bool,
        options: &TreeOptions,
    ) -> Result<OpenText, TreeError> {
        let text = text_of(texts, seen, format, options)?;
        let from = text.position(seen.start).await?;
        let end = TextMark { offset: seen.end, at: text.position(seen.end).await? };
        let key = key_of(seen, format);
        texts.update_weight(&key);
        // Asked again: the text is that of a generation which may have come after it was seen.
        seen.check_kept()?;
        let (end, chunk) = (Mutex::new(end), Mutex::default());
        Ok(OpenText { text, texts: Arc::clone(texts), key, from, end, grows, chunk })
    }

    pub(crate) async fn size(&self) -> Result<u64, TreeError> {
        if self.grows {
            let offset = self.text.partition.end();
            let at = self.text.position(offset).await?;
            self.texts.update_weight(&self.key);
            let mut end = self.end.lock();
            if offset > end.offset {
                *end = TextMark { offset, at };
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
                    self.keep_chunk(chunk, until);
                    return Ok(all);
                }
                out.extend_from_slice(&chunk.text[part]);
                got = last;
            }
            if got >= until {
                self.keep_chunk(chunk, until);
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
            let TextSpan { skipped, text, next } = self.text.render(next, end.offset, wanted)?;
            chunk = TextChunk { at: behind + skipped, text: text.into(), next };
            tokio::task::yield_now().await;
        }
    }

    /// What is at hand, if it leads to `at`; else an empty piece at the mark before.
    async fn chunk_at(&self, at: u64) -> Result<TextChunk, TreeError> {
        let held = self.chunk.lock().clone();
        let behind = |chunk: &TextChunk| chunk.at + chunk.text.len() as u64;
        match held.filter(|held| held.at <= at && at <= behind(held)) {
            Some(held) => Ok(held),
            None => self.chunk_before(at).await,
        }
    }

    async fn chunk_before(&self, at: u64) -> Result<TextChunk, TreeError> {
        let mark = self.text.mark_before(at).await?;
        Ok(TextChunk { at: mark.at, text: Bytes::new(), next: Some(mark.offset) })
    }

    /// Keeps at hand what lies from `until` on, or all if that is not much.
    fn keep_chunk(&self, chunk: TextChunk, until: u64) {
        let kept = if chunk.text.len() <= CHUNK_BYTES_MAX {
            chunk
        } else {
            let rest = &chunk.text[(until - chunk.at) as usize..];
            let is_all = rest.len() <= CHUNK_BYTES_MAX;
            // Not with all of the chunk behind it.
            let text = Bytes::copy_from_slice(&rest[..rest.len().min(CHUNK_BYTES_MAX)]);
            TextChunk { at: until, text, next: chunk.next.filter(|_| is_all) }
        };
        *self.chunk.lock() = Some(kept);
    }
}
