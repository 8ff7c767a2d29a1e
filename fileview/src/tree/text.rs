//! The text of a partition, as values or JSON lines: the position of each record in it.
//!
//! The text is not stored. The index keeps marks: a mark says how many bytes come before an offset.
//! A read renders from the mark before it, and a size is computed from the last mark on. All
//! moments of a partition share its marks, because a moment of system time is a prefix, unless a
//! transaction was not decided at the moment. So do the exact sets of one range of user times,
//! whatever the moment as of which they are known. Marks are soft state. The first reader creates
//! them, and they are extended as the partition grows.
//!
//! When retention removes records, the rest keeps its positions. The new first mark is computed
//! from the next mark after it. When compaction rewrites a prefix of the log, the records after it
//! keep their positions, and the compacted part becomes another text ([`LogGeneration`]).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use engine::blocking::block_in_place;
use engine::{CacheWeight, Isolation, LruCache, Offset, Partition};
use hlc::{Cut, Hlc, UserTime};
use kafka_records::KafkaRecord;
use parking_lot::Mutex;
use tokio::sync::MutexGuard;

use super::scan::{
    LogGeneration, TransactionFilter, UserTimeFilter, VisibleRange, for_each_record, read_step,
};
use super::{TreeError, TreeOptions};
use crate::{RecordRenderer, RecordSelection, ViewFormat};

/// The number of bytes of batches that are scanned in one step, at most.
const STEP_BYTES: u64 = 256 << 10;
/// The most exact positions of earlier requests that are remembered.
const RECENT_MARKS_MAX: usize = 64;
/// The number of bytes of text that are measured in one step, approximately: a few batches may
/// decompress to very much.
const COUNT_BYTES: u64 = 4 << 20;
/// The most text that is cached between two reads.
const CHUNK_BYTES_MAX: usize = 1 << 20;
/// About how much text is rendered beyond the request, for a sequential reader.
const AHEAD_BYTES: u64 = 512 << 10;
/// The longest read. A longer one is shortened.
pub(crate) const READ_BYTES_MAX: usize = 16 << 20;

/// Identifies a text: a log, a format, a range of user times, the generation of the log, which
/// transactions are in it, and the moment at which one was not decided, if one was not.
pub(crate) type TextKey =
    (u64, ViewFormat, Option<Range<UserTime>>, LogGeneration, Isolation, Option<Cut>);
pub(crate) type TextCache = Arc<LruCache<TextKey, PartitionText>>;

/// The records before `offset` take `at` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TextMark {
    offset: Offset,
    at: u64,
}

struct TextIndex {
    /// Rising. The first one is the current start of the text.
    marks: VecDeque<TextMark>,
    /// The number of marks above which every second one is removed.
    marks_max: usize,
    /// The end of what has been measured.
    tail: TextMark,
    /// The least distance of two marks in bytes of text. Four times as many bytes of batches
    /// suffice too: with a filter by user time, much is read and little rendered.
    spacing: u64,
    /// The number of bytes of batches that were read after the last mark.
    read: u64,
    recent: VecDeque<TextMark>,
}

pub(crate) struct PartitionText {
    partition: Arc<Partition>,
    renderer: RecordRenderer,
    transactions: TransactionFilter,
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

/// The length of the text from an offset on.
struct TextMeasurement {
    length: u64,
    /// For each batch: its end in the log, its end in the text, and its size in bytes.
    ends: Vec<(Offset, u64, usize)>,
    next: Offset,
}

/// A piece of the text after an offset.
struct TextSpan {
    /// The number of bytes that were skipped before the piece.
    skipped: u64,
    text: Vec<u8>,
    /// The offset after the piece; `None` if the piece ends within a record.
    next: Option<Offset>,
}

/// A writer that keeps the wanted range of a text and a little more, and discards the rest.
struct TextWindow {
    wanted: Range<u64>,
    /// The number of bytes that were written to it.
    at: u64,
    text: Vec<u8>,
}

impl TextWindow {
    /// The end of what it keeps.
    fn end(&self) -> u64 {
        self.wanted.end.saturating_add(AHEAD_BYTES)
    }

    /// Writes a record. Once the window is full, it returns what follows.
    fn take(
        &mut self,
        renderer: &RecordRenderer,
        record: &KafkaRecord,
        stamp: Hlc,
    ) -> Option<Option<Offset>> {
        let begin = self.at;
        renderer
            .write_record(record, Some(stamp), self)
            .expect("a window takes what is written to it");
        if self.at <= self.end() {
            return None;
        }
        if begin < self.wanted.end {
            return Some(None);
        }
        // The next read begins with this record.
        self.text.truncate((begin - self.wanted.start) as usize);
        Some(Some(Offset(record.offset as u64)))
    }
}

impl Write for TextWindow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len() as u64;
        let within = |at: u64| at.saturating_sub(self.at).min(length) as usize;
        let (from, to) = (within(self.wanted.start), within(self.end()));
        self.text.extend_from_slice(&bytes[from..to]);
        self.at += length;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn key_of(range: &VisibleRange, format: ViewFormat) -> TextKey {
    let times = range.user.as_ref().map(|user| user.times.clone());
    let generation = LogGeneration::of(&range.partition);
    let (isolation, undecided_at) =
        (range.transactions.isolation(), range.transactions.undecided_at());
    (range.partition.log.id.0, format, times, generation, isolation, undecided_at)
}

/// The text of a visible range, from the cache.
pub(crate) fn text_of(
    texts: &TextCache,
    range: &VisibleRange,
    format: ViewFormat,
    options: &TreeOptions,
) -> Result<Arc<PartitionText>, TreeError> {
    let key = key_of(range, format);
    let renderer =
        RecordRenderer::new(&range.topic, range.partition.index, format, RecordSelection::all())
            .map_err(|error| TreeError::Moment(error.to_string()))?;
    let new_text = || PartitionText::new(range, renderer.clone(), key.3, options);
    let text = texts.get_or_insert_with(&key, new_text);
    // Everything that was measured has been removed, so the positions of the rest are unknown.
    if text.reach.load(Ordering::Relaxed) < range.partition.start().0 {
        texts.remove(&key, &text);
        return Ok(texts.get_or_insert_with(&key, new_text));
    }
    Ok(text)
}

impl PartitionText {
    fn new(
        range: &VisibleRange,
        renderer: RecordRenderer,
        generation: LogGeneration,
        options: &TreeOptions,
    ) -> PartitionText {
        let first = TextMark { offset: range.partition.start(), at: 0 };
        PartitionText {
            partition: Arc::clone(&range.partition),
            renderer,
            transactions: range.transactions.clone(),
            user: range.user.clone(),
            generation,
            step_bytes: options.index_spacing_bytes.clamp(1, STEP_BYTES) as usize,
            index: tokio::sync::Mutex::new(TextIndex {
                marks: VecDeque::from([first]),
                // No single partition may use the whole limit.
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

    /// Measures the text of the records in `[from, until)`, or of the first of them, and discards
    /// it.
    fn measure(&self, from: Offset, until: Offset) -> Result<TextMeasurement, TreeError> {
        let (mut length, mut ends) = (0, Vec::new());
        let next = block_in_place(|| {
            let step =
                read_step(&self.partition, &self.transactions, from, until, self.step_bytes)?;
            let mut next = step.next;
            for batch in &step.batches {
                for_each_record(batch, &(from..until), self.user.as_ref(), |record| {
                    length += self.renderer.rendered_length(record, Some(batch.stamp()));
                    Ok(())
                })?;
                let end = batch.end().min(until);
                ends.push((end, length, batch.bytes.len()));
                if length >= COUNT_BYTES {
                    next = end;
                    break;
                }
            }
            // Checked last: records that were compacted in the meantime belong to another text.
            self.generation.check(&self.partition, from)?;
            Ok::<_, TreeError>(next)
        })?;
        Ok(TextMeasurement { length, ends, next })
    }

    /// Renders the `wanted` range of the text that starts at `from`, from records before `until`;
    /// or the first part of that range.
    ///
    /// It uses little more memory than that range and one batch, however far the batches
    /// decompress.
    fn render(
        &self,
        from: Offset,
        until: Offset,
        wanted: Range<u64>,
    ) -> Result<TextSpan, TreeError> {
        let mut window = TextWindow { wanted, at: 0, text: Vec::new() };
        let next = block_in_place(|| {
            let step =
                read_step(&self.partition, &self.transactions, from, until, self.step_bytes)?;
            let mut enough = None;
            for batch in &step.batches {
                for_each_record(batch, &(from..until), self.user.as_ref(), |record| {
                    if enough.is_none() {
                        enough = window.take(&self.renderer, record, batch.stamp());
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
        // The caller keeps the buffer, so its capacity must be small too.
        if text.capacity() > 2 * text.len().max(CHUNK_BYTES_MAX) {
            text.shrink_to_fit();
        }
        Ok(TextSpan { skipped: at.min(wanted.start), text, next })
    }

    /// The length of the text of the records in `[from, until)`.
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

    /// The marks, after those of removed records are dropped.
    async fn locked_index(&self) -> Result<MutexGuard<'_, TextIndex>, TreeError> {
        let mut marks = self.index.lock().await;
        let floor = self.generation.floor(&self.partition);
        let dropped = marks.marks.partition_point(|mark| mark.offset < floor);
        if dropped == 0 {
            return Ok(marks);
        }
        let next = marks.marks.get(dropped).copied().unwrap_or(marks.tail);
        if next.offset < floor {
            return Err(TreeError::Gone(format!(
                "the record at offset {} is not kept any more",
                next.offset.0
            )));
        }
        let length = self.length(floor, next.offset).await?;
        marks.marks.drain(..dropped);
        marks.marks.push_front(TextMark { offset: floor, at: next.at - length });
        marks.recent.retain(|mark| mark.offset >= floor);
        Ok(marks)
    }

    /// The position of the record at `offset`, in bytes.
    pub(crate) async fn position(&self, offset: Offset) -> Result<u64, TreeError> {
        loop {
            let mut marks = self.locked_index().await?;
            if marks.marks[0].offset > offset {
                return Err(TreeError::Gone(format!(
                    "the record at offset {} is not kept any more",
                    offset.0
                )));
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
                // Callers that need only known marks go first.
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

    /// The last mark at or before `at`.
    async fn mark_before(&self, at: u64) -> Result<TextMark, TreeError> {
        let marks = self.locked_index().await?;
        if marks.tail.at <= at {
            return Ok(marks.tail);
        }
        match marks.marks.partition_point(|mark| mark.at <= at).checked_sub(1) {
            Some(index) => Ok(marks.marks[index]),
            None => Err(TreeError::Gone(format!("the text at byte {at} is not kept any more"))),
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

/// A cached piece of text.
#[derive(Clone)]
struct TextChunk {
    at: u64,
    text: Bytes,
    /// The offset after the piece; `None` if it must be searched.
    next: Option<Offset>,
}

pub(crate) struct OpenText {
    text: Arc<PartitionText>,
    texts: TextCache,
    key: TextKey,
    /// The position in the text where the visible range begins.
    from: u64,
    /// The end: the offset after the last record, and its position.
    end: Mutex<TextMark>,
    grows: bool,
    chunk: Mutex<Option<TextChunk>>,
}

impl OpenText {
    /// Pins the visible range.
    pub(crate) async fn new(
        texts: &TextCache,
        range: &VisibleRange,
        format: ViewFormat,
        grows: bool,
        options: &TreeOptions,
    ) -> Result<OpenText, TreeError> {
        let text = text_of(texts, range, format, options)?;
        let from = text.position(range.start).await?;
        let end = TextMark { offset: range.end, at: text.position(range.end).await? };
        let key = key_of(range, format);
        texts.update_weight(&key);
        // Checked again: the text may be of a generation that began after the range was read.
        range.check_kept()?;
        let (end, chunk) = (Mutex::new(end), Mutex::default());
        Ok(OpenText { text, texts: Arc::clone(texts), key, from, end, grows, chunk })
    }

    pub(crate) async fn size(&self) -> Result<u64, TreeError> {
        if self.grows {
            let offset = self.text.transactions.end_of(&self.text.partition);
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
        let requested_end = from.saturating_add(length as u64);
        if self.grows && requested_end > self.end.lock().at {
            self.size().await?;
        }
        let end = *self.end.lock();
        let until = requested_end.min(end.at);
        if from >= until {
            return Ok(Bytes::new());
        }
        let mut chunk = self.chunk_at(from).await?;
        let (mut out, mut reached) = (Vec::new(), from);
        loop {
            let behind = chunk.at + chunk.text.len() as u64;
            let (first, last) = (reached.max(chunk.at), until.min(behind));
            if first < last {
                let within = (first - chunk.at) as usize..(last - chunk.at) as usize;
                if first == from && last == until {
                    let all = chunk.text.slice(within);
                    self.keep_chunk(chunk, until);
                    return Ok(all);
                }
                out.extend_from_slice(&chunk.text[within]);
                reached = last;
            }
            if reached >= until {
                self.keep_chunk(chunk, until);
                return Ok(out.into());
            }
            let Some(next) = chunk.next else {
                chunk = self.chunk_before(reached).await?;
                continue;
            };
            if next >= end.offset {
                return Err(TreeError::Gone(format!(
                    "the text at byte {behind} is not kept any more"
                )));
            }
            let wanted = reached.saturating_sub(behind)..until.saturating_sub(behind);
            let TextSpan { skipped, text, next } = self.text.render(next, end.offset, wanted)?;
            chunk = TextChunk { at: behind + skipped, text: text.into(), next };
            tokio::task::yield_now().await;
        }
    }

    /// The cached piece, if it covers or ends at `at`. Otherwise an empty piece at the mark before.
    async fn chunk_at(&self, at: u64) -> Result<TextChunk, TreeError> {
        let chunk = self.chunk.lock().clone();
        let behind = |chunk: &TextChunk| chunk.at + chunk.text.len() as u64;
        match chunk.filter(|chunk| chunk.at <= at && at <= behind(chunk)) {
            Some(chunk) => Ok(chunk),
            None => self.chunk_before(at).await,
        }
    }

    async fn chunk_before(&self, at: u64) -> Result<TextChunk, TreeError> {
        let mark = self.text.mark_before(at).await?;
        Ok(TextChunk { at: mark.at, text: Bytes::new(), next: Some(mark.offset) })
    }

    /// Caches the piece from `until` on, or all of it if it is short.
    fn keep_chunk(&self, chunk: TextChunk, until: u64) {
        let cached = if chunk.text.len() <= CHUNK_BYTES_MAX {
            chunk
        } else {
            let rest = &chunk.text[(until - chunk.at) as usize..];
            let is_all = rest.len() <= CHUNK_BYTES_MAX;
            // A copy, so that it does not keep the whole chunk in memory.
            let text = Bytes::copy_from_slice(&rest[..rest.len().min(CHUNK_BYTES_MAX)]);
            let next = if is_all { chunk.next } else { None };
            TextChunk { at: until, text, next }
        };
        *self.chunk.lock() = Some(cached);
    }
}
