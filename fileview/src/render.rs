//! Rendering of batches as a reader sees them.

use std::io::{self, Write};
use std::sync::Arc;

use bytes::Bytes;
use hlc::{Hlc, UserTime};
use kafka_records::{
    BatchError, BatchHeader, BatchIterator, CommittedBatches, DecompressionLimit, HEADER_BYTES,
    KafkaRecord, records, set_crc,
};

use crate::{RecordSelection, RecordTemplate, jsonl};

/// The limit on the decompressed size of one batch.
pub(crate) const UNPACKED_LIMIT: DecompressionLimit =
    DecompressionLimit { decompressed_bytes_max: 256 << 20 };

/// The format of rendered contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ViewFormat {
    /// The batches, byte for byte.
    Raw,
    /// Each value, and a newline. A null value is an empty line.
    Values,
    /// One JSON object a record and line.
    Jsonl,
}

/// The layout in which records are written.
#[derive(Clone, Debug)]
pub enum RecordLayout {
    View(ViewFormat),
    Template(Arc<RecordTemplate>),
}

impl From<ViewFormat> for RecordLayout {
    fn from(format: ViewFormat) -> RecordLayout {
        RecordLayout::View(format)
    }
}

/// Renders one partition.
#[derive(Clone, Debug)]
pub struct RecordRenderer {
    topic: String,
    partition: u32,
    layout: RecordLayout,
    selection: RecordSelection,
}

/// The facts about batches that are not in their bytes.
pub struct BatchFacts<'a> {
    /// The user time of a record.
    pub time_of: &'a dyn Fn(&KafkaRecord) -> Option<UserTime>,
    /// Says which batches are shown, if not all are.
    pub committed: Option<CommittedBatches>,
    /// The stamp at which each batch was accepted, as far as it is known.
    pub stamps: &'a [Hlc],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenderProgress {
    /// The number of records that were rendered.
    pub records: u64,
    /// The offset to continue at, after the last one visited; `None` if none was visited.
    pub next_offset: Option<i64>,
}

/// The reasons why nothing can be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// Raw output has whole batches, but a user time selects single records.
    #[error(
        "raw gives whole batches, and a moment of user time picks single records: ask for values or jsonl, or for a moment of system time"
    )]
    RawOfUserTime,
    /// The batch is corrupt.
    #[error("cannot show {topic}/{partition} from offset {offset} on")]
    Batch {
        topic: String,
        partition: u32,
        /// The base offset of the batch, as far as it is known.
        offset: i64,
        /// The defect of the batch.
        source: BatchError,
    },
}

/// A part of what was selected.
enum SelectedPiece<'a> {
    /// A whole batch, for raw output.
    Batch(&'a Bytes),
    Record(&'a KafkaRecord),
}

impl RecordRenderer {
    /// Creates a renderer of `selection`, in `layout`.
    ///
    /// # Errors
    /// [`RenderError::RawOfUserTime`].
    pub fn new(
        topic: &str,
        partition: u32,
        layout: impl Into<RecordLayout>,
        selection: RecordSelection,
    ) -> Result<RecordRenderer, RenderError> {
        let renderer =
            RecordRenderer { topic: topic.to_owned(), partition, layout: layout.into(), selection };
        if renderer.is_raw() && renderer.selection.user.is_some() {
            return Err(RenderError::RawOfUserTime);
        }
        Ok(renderer)
    }

    fn is_raw(&self) -> bool {
        matches!(self.layout, RecordLayout::View(ViewFormat::Raw))
    }

    /// Appends to `out` the selected records of `batches`, and stops after `records_max` records.
    ///
    /// An incomplete batch at the end is left for the next fetch.
    ///
    /// # Errors
    /// A batch is corrupt. The records before it have been appended.
    pub fn render(
        &self,
        batches: &Bytes,
        records_max: u64,
        out: &mut Vec<u8>,
    ) -> Result<RenderProgress, RenderError> {
        let time_of = |record: &KafkaRecord| Some(UserTime(record.timestamp));
        let facts = BatchFacts { time_of: &time_of, committed: None, stamps: &[] };
        self.render_with(batches, facts, records_max, out)
    }

    /// Like [`RecordRenderer::render`], with what is known of the batches.
    ///
    /// # Errors
    /// As [`RecordRenderer::render`].
    pub fn render_with(
        &self,
        batches: &Bytes,
        known: BatchFacts<'_>,
        records_max: u64,
        out: &mut Vec<u8>,
    ) -> Result<RenderProgress, RenderError> {
        self.walk(batches, known, records_max, &mut |piece, stamp| match piece {
            SelectedPiece::Batch(batch) => out.extend_from_slice(batch),
            SelectedPiece::Record(record) => self.append_record(record, stamp, out),
        })
    }

    /// Visits the selected records of `batches`, each with the stamp of its batch if that is known, and
    /// stops after `records_max` records. The layout does not matter, unless it is raw: then no record is
    /// visited.
    ///
    /// # Errors
    /// As [`RecordRenderer::render`].
    pub fn visit_with(
        &self,
        batches: &Bytes,
        known: BatchFacts<'_>,
        records_max: u64,
        visit: &mut dyn FnMut(&KafkaRecord, Option<Hlc>),
    ) -> Result<RenderProgress, RenderError> {
        self.walk(batches, known, records_max, &mut |piece, stamp| {
            if let SelectedPiece::Record(record) = piece {
                visit(record, stamp);
            }
        })
    }

    fn walk(
        &self,
        batches: &Bytes,
        known: BatchFacts<'_>,
        records_max: u64,
        visit: &mut dyn FnMut(SelectedPiece<'_>, Option<Hlc>),
    ) -> Result<RenderProgress, RenderError> {
        let BatchFacts { time_of, mut committed, stamps } = known;
        let mut stamps = stamps.iter().copied();
        let mut rendered = RenderProgress::default();
        for batch in BatchIterator::new(batches) {
            if rendered.records >= records_max {
                break;
            }
            let from = rendered.next_offset.unwrap_or(self.selection.offsets.start);
            let (header, batch) = batch.map_err(|source| self.corrupt_batch(from, source))?;
            let mut next_offset = header.last_offset().saturating_add(1);
            let (batch, stamp) = (batches.slice_ref(batch), stamps.next());
            let is_admitted =
                committed.as_mut().is_none_or(|committed| committed.admits(&header, &batch));
            if is_admitted && self.selection.overlaps(header.base_offset, header.last_offset()) {
                let records_left = records_max - rendered.records;
                let (shown, stopped_at) = self
                    .walk_batch(&header, &batch, records_left, time_of, &mut |piece| {
                        visit(piece, stamp);
                    })
                    .map_err(|source| self.corrupt_batch(header.base_offset, source))?;
                rendered.records += shown;
                next_offset = stopped_at.unwrap_or(next_offset);
            }
            rendered.next_offset = Some(next_offset);
        }
        Ok(rendered)
    }

    /// Returns how many records were visited, and the offset at which it stopped if that is inside
    /// the batch.
    fn walk_batch(
        &self,
        header: &BatchHeader,
        batch: &Bytes,
        records_max: u64,
        time_of: &dyn Fn(&KafkaRecord) -> Option<UserTime>,
        visit: &mut dyn FnMut(SelectedPiece<'_>),
    ) -> Result<(u64, Option<i64>), BatchError> {
        check_crc(header, &batch[HEADER_BYTES..])?;
        if self.is_raw() {
            visit(SelectedPiece::Batch(batch));
            return Ok((u64::try_from(header.record_count).unwrap_or(0), None));
        }
        // Control batches (transaction markers) are written by the server, not by a producer.
        if header.is_control() {
            return Ok((0, None));
        }
        let mut shown = 0;
        for record in records(batch, UNPACKED_LIMIT)? {
            let record = record?;
            if !self.selection.admits_optional(record.offset, time_of(&record)) {
                continue;
            }
            visit(SelectedPiece::Record(&record));
            shown += 1;
            if shown == records_max {
                return Ok((shown, Some(record.offset.saturating_add(1))));
            }
        }
        Ok((shown, None))
    }

    /// Appends one record, whether it is in the selection or not.
    pub fn append_record(&self, record: &KafkaRecord, stamp: Option<Hlc>, out: &mut Vec<u8>) {
        self.write_record(record, stamp, out).expect("a Vec takes what is written to it");
    }

    /// The rendered length of one record, without rendering it to memory.
    pub fn rendered_length(&self, record: &KafkaRecord, stamp: Option<Hlc>) -> u64 {
        let mut count = ByteCounter(0);
        self.write_record(record, stamp, &mut count).expect("counting cannot fail");
        count.0
    }

    /// Writes one record, whether it is in the selection or not.
    ///
    /// # Errors
    /// `out` refuses it.
    pub fn write_record(
        &self,
        record: &KafkaRecord,
        stamp: Option<Hlc>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        match &self.layout {
            RecordLayout::Template(template) => {
                template.write(&self.topic, self.partition, record, stamp, out)
            }
            RecordLayout::View(ViewFormat::Jsonl) => {
                jsonl::write(&self.topic, self.partition, record, stamp, out)
            }
            RecordLayout::View(ViewFormat::Values | ViewFormat::Raw) => {
                out.write_all(record.value.as_deref().unwrap_or_default())?;
                out.write_all(b"\n")
            }
        }
    }

    fn corrupt_batch(&self, offset: i64, source: BatchError) -> RenderError {
        RenderError::Batch { topic: self.topic.clone(), partition: self.partition, offset, source }
    }
}

/// Counts the bytes that are written to it.
struct ByteCounter(u64);

impl Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Checks that the bytes are those that the producer wrote. It checks no more, because compaction
/// leaves gaps in a batch that no producer could have made.
fn check_crc(header: &BatchHeader, rest: &[u8]) -> Result<(), BatchError> {
    let mut bytes = header.to_bytes();
    set_crc(&mut bytes, rest);
    let computed = BatchHeader::parse(&bytes)?.crc;
    if computed == header.crc { Ok(()) } else { Err(BatchError::Crc { crc: header.crc, computed }) }
}

#[cfg(test)]
mod tests {
    use hlc::MomentSelector;
    use kafka_records::{BatchBuilder, CompressionType};

    use super::*;

    /// A batch at `base_offset` whose records have these times, and their offsets as values.
    fn batch(base_offset: i64, times: &[i64], codec: CompressionType) -> Vec<u8> {
        let mut builder = BatchBuilder::new(codec);
        for (offset, time) in (base_offset..).zip(times) {
            builder.record(*time, None, Some(offset.to_string().as_bytes()), &[]);
        }
        let mut batch = builder.build().to_vec();
        batch[..8].copy_from_slice(&base_offset.to_be_bytes());
        batch
    }

    fn log() -> Bytes {
        [batch(10, &[5, 9], CompressionType::None), batch(12, &[3, 7, 5], CompressionType::Zstd)]
            .concat()
            .into()
    }

    fn shown(
        batches: &Bytes,
        selection: RecordSelection,
        records_max: u64,
    ) -> (String, RenderProgress) {
        let mut out = Vec::new();
        let renderer = RecordRenderer::new("a", 0, ViewFormat::Values, selection).unwrap();
        let rendered = renderer.render(batches, records_max, &mut out).unwrap();
        (String::from_utf8(out).unwrap().replace('\n', " "), rendered)
    }

    fn user(selector: &str) -> RecordSelection {
        RecordSelection::all()
            .and_user(RecordSelection::user_times(&selector.parse::<MomentSelector>().unwrap()))
    }

    #[test]
    fn raw_is_the_batches_byte_for_byte_without_an_incomplete_one() {
        let log = log();
        let mut out = Vec::new();
        let renderer =
            RecordRenderer::new("a", 0, ViewFormat::Raw, RecordSelection::all()).unwrap();
        let cut_off = Bytes::from([&log[..], &log[..40]].concat());
        let rendered = renderer.render(&cut_off, u64::MAX, &mut out).unwrap();
        assert_eq!(out, log);
        assert_eq!(rendered, RenderProgress { records: 5, next_offset: Some(15) });
    }

    #[test]
    fn records_outside_of_the_offsets_are_left_out_even_inside_a_batch() {
        let (text, rendered) = shown(&log(), RecordSelection::between(11, 14), u64::MAX);
        assert_eq!(text, "11 12 13 ");
        assert_eq!(rendered, RenderProgress { records: 3, next_offset: Some(15) });
    }

    #[test]
    fn raw_keeps_every_batch_that_holds_an_offset_asked_for_and_no_other() {
        let mut out = Vec::new();
        let renderer =
            RecordRenderer::new("a", 0, ViewFormat::Raw, RecordSelection::between(10, 12)).unwrap();
        renderer.render(&log(), u64::MAX, &mut out).unwrap();
        assert_eq!(out, batch(10, &[5, 9], CompressionType::None));
    }

    #[test]
    fn a_moment_of_user_time_gives_the_exact_set_and_no_prefix() {
        assert_eq!(shown(&log(), user("u6"), u64::MAX).0, "10 12 14 ");
        assert_eq!(shown(&log(), user("u5..u9"), u64::MAX).0, "10 13 14 ");
    }

    #[test]
    fn raw_of_user_time_is_refused() {
        let refused = RecordRenderer::new("a", 0, ViewFormat::Raw, user("u6"));
        assert!(matches!(refused, Err(RenderError::RawOfUserTime)));
    }

    #[test]
    fn after_a_count_is_reached_the_next_offset_is_where_to_go_on() {
        let (text, rendered) = shown(&log(), RecordSelection::all(), 3);
        assert_eq!(text, "10 11 12 ");
        assert_eq!(rendered.next_offset, Some(13));
        let (text, rendered) = shown(&log(), RecordSelection::between(13, i64::MAX), 3);
        assert_eq!(text, "13 14 ");
        assert_eq!(rendered.next_offset, Some(15));
    }

    #[test]
    fn a_null_value_is_an_empty_line() {
        let mut builder = BatchBuilder::new(CompressionType::None);
        builder.record(0, None, None, &[]).record(0, None, Some(b""), &[]);
        builder.record(0, None, Some(b"v"), &[]);
        assert_eq!(shown(&builder.build(), RecordSelection::all(), u64::MAX).0, "  v ");
    }

    #[test]
    fn markers_of_transactions_are_no_records() {
        let mut builder = BatchBuilder::new(CompressionType::None);
        builder.producer(1, 0, -1).transactional().control();
        builder.record(0, Some(&[0, 0, 0, 1]), Some(&[0; 6]), &[]);
        let (text, rendered) = shown(&builder.build(), RecordSelection::all(), u64::MAX);
        assert_eq!(text, "");
        assert_eq!(rendered, RenderProgress { records: 0, next_offset: Some(1) });
    }

    #[test]
    fn a_damaged_batch_is_named_and_what_came_before_it_is_shown() {
        let mut log = log().to_vec();
        *log.last_mut().unwrap() ^= 1;
        let mut out = Vec::new();
        let renderer =
            RecordRenderer::new("a", 7, ViewFormat::Values, RecordSelection::all()).unwrap();
        let error = renderer.render(&log.into(), u64::MAX, &mut out).unwrap_err();
        assert_eq!(error.to_string(), "cannot show a/7 from offset 12 on");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.starts_with("the record batch is corrupt"), "{source}");
        assert_eq!(out, b"10\n11\n");
    }

    #[test]
    fn bytes_that_are_no_batch_are_refused() {
        let renderer =
            RecordRenderer::new("a", 0, ViewFormat::Values, RecordSelection::all()).unwrap();
        let noise = Bytes::from(vec![0xff; 200]);
        assert!(renderer.render(&noise, u64::MAX, &mut Vec::new()).is_err());
        assert_eq!(
            renderer.render(&Bytes::new(), u64::MAX, &mut Vec::new()),
            Ok(RenderProgress::default())
        );
    }
}
