//! The batches of a source, as they are written to the target: the same records, compressed as they are.
//!
//! Only headers are rewritten. A batch keeps the distance of its offset from those of its neighbours, so
//! what compaction left out, aborted transactions and markers leave gaps. A gap is covered by the batch
//! before it, as if compaction had dropped records at its end, or by a batch without records where none
//! is before it. Consumers skip both.

use anyhow::{Context, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use client::FetchedPartition;
use kafka_records::{
    BatchHeader, BatchIterator, BatchRewriteResult, CommittedBatches, DecompressionLimit,
    HEADER_BYTES, check_sparse, offset_gap, rewrite, set_crc,
};

const TRANSACTIONAL: i16 = 1 << 4;
const UNPACKED_LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 256 << 20 };

/// The relation of a partition of the target to that of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OffsetShift {
    /// The offset of a record in the target, minus that in the source.
    pub(super) delta: i64,
    /// The mark of batches of this source, in the field of the producer's sequence number, which batches
    /// without a producer do not use. A partition whose last batch has it ends with this source's records.
    pub(super) mark: i32,
}

/// The batches of a partition on their way to the target.
#[derive(Debug, Default)]
pub(super) struct CopiedBatches {
    /// Runs of whole batches, for one request each.
    runs: Vec<BatchRun>,
}

/// Batches in a row.
#[derive(Debug)]
pub(super) struct BatchRun {
    /// The offset of the first, in the target.
    pub(super) base_offset: i64,
    /// The offset behind the last, in the target.
    pub(super) end_offset: i64,
    pub(super) bytes: BytesMut,
    /// The position of the last batch in `bytes`.
    last_at: usize,
    batches: usize,
    /// The records in them.
    pub(super) records: u64,
}

/// No partition has so many records. What claims to is garbage, and would be covered by too many batches.
pub(super) const OFFSET_MAX: i64 = 1 << 50;

/// The most batches and bytes of a run.
const RUN_BATCHES_MAX: usize = 5_000;
const RUN_BYTES_MAX: usize = 8 << 20;

impl CopiedBatches {
    /// Copies what a response has of a partition. `filled` is the source's offset up to which the target
    /// has a batch, and `next` that of the first record to copy. Returns the offset behind the response.
    ///
    /// No checksum covers the offset of a batch, so its place among the others is checked.
    pub(super) fn copy(
        &mut self,
        fetched: &FetchedPartition,
        shift: OffsetShift,
        filled: i64,
        next: i64,
    ) -> anyhow::Result<i64> {
        let mut committed = CommittedBatches::new(fetched.aborted.iter().copied());
        let (mut filled, mut seen) = (filled, next);
        ensure!(fetched.end <= OFFSET_MAX, "the source says that it ends at {}", fetched.end);
        // The first batch may begin before the offset that was asked for, or even end there.
        let mut above = 0;
        for batch in BatchIterator::new(&fetched.batches) {
            let (_, bytes) = batch.with_context(|| format!("read the batch at {seen}"))?;
            let bytes = fetched.batches.slice_ref(bytes);
            let header =
                check_sparse(&bytes).with_context(|| format!("check the batch at {seen}"))?;
            let (base, delta) = (header.base_offset, i64::from(header.last_offset_delta));
            ensure!(
                base >= above && base.checked_add(delta).is_some_and(|last| last < fetched.end),
                "the batch that says that it has {} offsets from {base} on does not lie between {above} and {}",
                delta + 1,
                fetched.end
            );
            above = seen.max(header.last_offset() + 1);
            let is_admitted = committed.admits(&header, &bytes);
            if header.last_offset() < seen {
                continue;
            }
            if is_admitted && header.record_count > 0 {
                ensure!(
                    header.base_offset >= filled,
                    "the batch at {} begins before {filled}, where the last one ended",
                    header.base_offset
                );
                let bytes =
                    if header.base_offset < seen { without_head(&bytes, seen)? } else { bytes };
                self.cover_gap(shift, filled, header.base_offset);
                let header = BatchHeader::parse(&bytes)?;
                self.append(shift, header, &bytes[HEADER_BYTES..]);
                filled = header.last_offset() + 1;
            }
            seen = header.last_offset() + 1;
        }
        if seen > next {
            self.cover_gap(shift, filled, seen);
        }
        Ok(seen)
    }

    /// Covers offsets of the source that have no records.
    pub(super) fn cover_gap(&mut self, shift: OffsetShift, from: i64, to: i64) {
        let mut next = from;
        if next < to && self.runs.last_mut().is_some_and(|run| run.stretch(to + shift.delta)) {
            next = to;
        }
        while next < to {
            let gap = offset_gap(next, to);
            let header = BatchHeader::parse(&gap).expect("a batch that was just built");
            next = header.last_offset() + 1;
            self.append(shift, header, &[]);
        }
    }

    /// Appends a batch of the source with a header for the target.
    fn append(&mut self, shift: OffsetShift, header: BatchHeader, rest: &[u8]) {
        let header = BatchHeader {
            base_offset: header.base_offset + shift.delta,
            leader_epoch: -1,
            attributes: header.attributes & !TRANSACTIONAL,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: shift.mark,
            ..header
        };
        let has_room = |run: &&mut BatchRun| {
            run.batches < RUN_BATCHES_MAX && run.bytes.len() + rest.len() < RUN_BYTES_MAX
        };
        match self.runs.last_mut().filter(has_room) {
            Some(run) => run.append(header, rest),
            None => {
                let mut run = BatchRun {
                    base_offset: header.base_offset,
                    end_offset: header.base_offset,
                    bytes: BytesMut::new(),
                    last_at: 0,
                    batches: 0,
                    records: 0,
                };
                run.append(header, rest);
                self.runs.push(run);
            }
        }
    }

    /// The runs, in order.
    pub(super) fn into_runs(self) -> Vec<BatchRun> {
        self.runs
    }
}

impl BatchRun {
    fn append(&mut self, header: BatchHeader, rest: &[u8]) {
        let mut bytes = header.to_bytes();
        set_crc(&mut bytes, rest);
        self.last_at = self.bytes.len();
        self.bytes.reserve(HEADER_BYTES + rest.len());
        self.bytes.put_slice(&bytes);
        self.bytes.put_slice(rest);
        self.end_offset = header.last_offset() + 1;
        self.batches += 1;
        self.records += u64::from(header.record_count.unsigned_abs());
    }

    /// Makes the last batch reach up to `end`. Returns false if it cannot.
    fn stretch(&mut self, end: i64) -> bool {
        let batch = &mut self.bytes[self.last_at..];
        let mut header = BatchHeader::parse(batch).expect("a batch that was just built");
        let Ok(delta) = i32::try_from(end - 1 - header.base_offset) else { return false };
        header.last_offset_delta = delta;
        let mut bytes = header.to_bytes();
        set_crc(&mut bytes, &batch[HEADER_BYTES..]);
        batch[..HEADER_BYTES].copy_from_slice(&bytes);
        self.end_offset = end;
        true
    }
}

/// The batch without the records before `first`: they are below the source's log start.
fn without_head(batch: &Bytes, first: i64) -> anyhow::Result<Bytes> {
    let kept = rewrite(batch, UNPACKED_LIMIT, None, |record| record.offset >= first);
    match kept.with_context(|| format!("read the batch before {first}"))? {
        BatchRewriteResult::Unchanged => Ok(batch.clone()),
        BatchRewriteResult::Changed(bytes) | BatchRewriteResult::Empty(bytes) => Ok(bytes),
    }
}

/// The mark of batches of a source, from what identifies it. It is negative, and never -1.
pub(super) fn source_mark(cluster: &str, topic: &str, keeps_offsets: bool) -> i32 {
    // FNV-1a: it stays the same in all builds.
    let mut hash = 0x811c_9dc5_u32;
    for byte in cluster.bytes().chain([0]).chain(topic.bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    // The sign, and a lowest bit that says whether offsets were kept. The second bit is never set.
    let mark = (hash & !0b11) | 1 << 31 | u32::from(keeps_offsets);
    mark.cast_signed()
}

#[cfg(test)]
mod tests {
    use kafka_records::{BatchBuilder, CompressionType, records};

    use super::*;

    const SHIFT: OffsetShift = OffsetShift { delta: 100, mark: -8 };

    fn with_header(batch: &[u8], change: impl FnOnce(&mut BatchHeader)) -> Vec<u8> {
        let mut header = BatchHeader::parse(batch).unwrap();
        change(&mut header);
        let mut bytes = header.to_bytes();
        set_crc(&mut bytes, &batch[HEADER_BYTES..]);
        [&bytes, &batch[HEADER_BYTES..]].concat()
    }

    fn batch(base: i64, count: usize, codec: CompressionType, producer: Option<i64>) -> Vec<u8> {
        let mut builder = BatchBuilder::new(codec);
        if let Some(producer) = producer {
            builder.producer(producer, 0, 0).transactional();
        }
        for time in 0..count as i64 {
            builder.record(time, Some(b"k"), Some(b"value"), &[("h", None)]);
        }
        with_header(&builder.build(), |header| header.base_offset = base)
    }

    fn marker(base: i64, producer: i64, commits: bool) -> Vec<u8> {
        let mut builder = BatchBuilder::new(CompressionType::None);
        builder.producer(producer, 0, -1).transactional().control();
        builder.record(0, Some(&[0, 0, 0, u8::from(commits)]), Some(&[0; 6]), &[]);
        with_header(&builder.build(), |header| header.base_offset = base)
    }

    fn fetched(batches: &[Vec<u8>], aborted: &[(i64, i64)]) -> FetchedPartition {
        FetchedPartition {
            partition: 0,
            start: 0,
            end: OFFSET_MAX,
            aborted: aborted.to_vec(),
            batches: batches.concat().into(),
            stamps: None,
        }
    }

    /// The offsets of the records, and those of all batches.
    fn offsets(copied: CopiedBatches) -> (Vec<i64>, Vec<(i64, i64)>) {
        let (mut found, mut spans) = (Vec::new(), Vec::new());
        for run in copied.into_runs() {
            let bytes = run.bytes.freeze();
            for batch in BatchIterator::new(&bytes) {
                let (_, batch) = batch.unwrap();
                let header = check_sparse(batch).unwrap();
                assert_eq!((header.producer_id, header.base_sequence), (-1, SHIFT.mark));
                assert!(!header.is_transactional() && !header.is_control());
                spans.push((header.base_offset, header.last_offset()));
                let batch = bytes.slice_ref(batch);
                let records = records(&batch, UNPACKED_LIMIT).unwrap();
                found.extend(records.map(|record| record.unwrap().offset));
            }
            assert_eq!(spans.last().unwrap().1 + 1, run.end_offset);
        }
        (found, spans)
    }

    #[test]
    fn committed_records_keep_their_distances_and_markers_become_gaps() {
        let batches = [
            batch(0, 2, CompressionType::Zstd, Some(1)),
            marker(2, 1, true),
            batch(3, 2, CompressionType::None, Some(2)),
            marker(5, 2, false),
            batch(9, 1, CompressionType::Lz4, None),
            marker(10, 1, true),
        ];
        let mut copied = CopiedBatches::default();
        let end = copied.copy(&fetched(&batches, &[(3, 2)]), SHIFT, 0, 0).unwrap();
        let records: u64 = copied.runs.iter().map(|run| run.records).sum();
        assert_eq!((end, records), (11, 3));
        assert_eq!(offsets(copied), (vec![100, 101, 109], vec![(100, 108), (109, 110)]));
    }

    #[test]
    fn a_gap_with_no_batch_before_it_is_a_batch_without_records() {
        let mut copied = CopiedBatches::default();
        let end =
            copied.copy(&fetched(&[batch(5, 2, CompressionType::None, None)], &[]), SHIFT, 0, 0);
        assert_eq!(end.unwrap(), 7);
        assert_eq!(offsets(copied), (vec![105, 106], vec![(100, 104), (105, 106)]));
        let mut copied = CopiedBatches::default();
        copied.cover_gap(SHIFT, 3, 3);
        assert!(copied.into_runs().is_empty());
    }

    #[test]
    fn a_gap_of_more_than_a_batch_can_cover_takes_several() {
        let mut copied = CopiedBatches::default();
        copied.cover_gap(OffsetShift { delta: 0, ..SHIFT }, 0, 5_000_000_000);
        let (found, spans) = offsets(copied);
        assert_eq!((found, spans.last().unwrap().1), (vec![], 4_999_999_999));
        assert!(spans.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{spans:?}");
    }

    #[test]
    fn the_head_of_a_batch_below_the_log_start_is_left_out() {
        let mut copied = CopiedBatches::default();
        let fetched = fetched(&[batch(4, 4, CompressionType::Gzip, None)], &[]);
        assert_eq!(copied.copy(&fetched, SHIFT, 0, 6).unwrap(), 8);
        assert_eq!(offsets(copied), (vec![106, 107], vec![(100, 103), (104, 107)]));
    }

    #[test]
    fn batches_that_were_copied_already_are_not_copied_again() {
        let two =
            [batch(0, 2, CompressionType::None, None), batch(2, 2, CompressionType::None, None)];
        let mut copied = CopiedBatches::default();
        assert_eq!(copied.copy(&fetched(&two, &[]), SHIFT, 2, 2).unwrap(), 4);
        assert_eq!(offsets(copied).0, [102, 103]);
        let refused = CopiedBatches::default().copy(&fetched(&two, &[]), SHIFT, 3, 3);
        assert!(refused.unwrap_err().to_string().contains("does not lie between 3 and"));
    }

    #[test]
    fn garbage_is_an_error_that_names_its_place() {
        let mut broken = batch(7, 2, CompressionType::None, None);
        broken[70] ^= 1;
        let refused = CopiedBatches::default().copy(&fetched(&[broken], &[]), SHIFT, 7, 7);
        assert!(format!("{:#}", refused.unwrap_err()).contains("check the batch at 7"));
        let mut old = batch(0, 1, CompressionType::None, None);
        old[16] = 1;
        let refused = CopiedBatches::default().copy(&fetched(&[old], &[]), SHIFT, 0, 0);
        assert!(format!("{:#}", refused.unwrap_err()).contains("too old"));
    }

    #[test]
    fn a_batch_at_another_place_than_it_can_have_is_refused() {
        let at = |base| batch(base, 2, CompressionType::None, None);
        let copy = |batches: &[Vec<u8>], end| {
            let fetched = FetchedPartition { end, ..fetched(batches, &[]) };
            let copied = CopiedBatches::default().copy(&fetched, SHIFT, 4, 4);
            copied.map_err(|error| error.to_string())
        };
        assert_eq!(copy(&[at(4), at(6)], 8), Ok(8));
        // The second falls back: what it covers would never be read again.
        for base in [0, 2, 4, 5] {
            let refused = copy(&[at(4), at(base), at(8)], 10).unwrap_err();
            assert!(refused.contains("does not lie between 6 and 10"), "{refused}");
        }
        // The last batch jumps ahead, and the offsets before it would be covered for good.
        for base in [7, 1 << 40, i64::MAX - 2] {
            let refused = copy(&[at(4), at(base)], 8).unwrap_err();
            assert!(refused.contains("does not lie between 6 and 8"), "{refused}");
        }
        for base in [-1, i64::MIN, i64::MAX] {
            assert!(copy(&[at(4), at(base)], 8).is_err(), "{base}");
        }
        assert!(copy(&[at(4)], i64::MAX).unwrap_err().contains("says that it ends at"));
    }

    #[test]
    fn runs_have_a_limit_of_batches_and_bytes() {
        let many: Vec<_> =
            (0..12_000).map(|base| batch(base, 1, CompressionType::None, None)).collect();
        let mut copied = CopiedBatches::default();
        assert_eq!(copied.copy(&fetched(&many, &[]), SHIFT, 0, 0).unwrap(), 12_000);
        let runs = copied.into_runs();
        let spans: Vec<_> = runs.iter().map(|run| (run.base_offset, run.end_offset)).collect();
        assert_eq!(spans, [(100, 5_100), (5_100, 10_100), (10_100, 12_100)]);
    }

    #[test]
    fn the_mark_of_a_source_is_negative_and_tells_sources_apart() {
        let marks = [
            source_mark("a", "t", true),
            source_mark("a", "t", false),
            source_mark("b", "t", true),
            source_mark("a", "u", true),
        ];
        assert!(marks.iter().all(|mark| *mark < -1), "{marks:?}");
        for (index, mark) in marks.iter().enumerate() {
            assert!(!marks[..index].contains(mark), "{marks:?}");
        }
    }
}
