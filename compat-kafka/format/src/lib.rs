//! Kafka's record batches as the engine's [`BatchFormat`]: offsets and times in headers, markers of
//! transactions, compaction, and user times. Only compaction rewrites a stored batch.

#![forbid(unsafe_code)]

use std::ops::ControlFlow;

use bytes::Bytes;
use engine::{
    BatchFormat, KeyedRecord, Offset, Payload, PayloadHeader, ProducerSequence, RewriteOutcome,
    TransactionEnd,
};
use hlc::{SysTime, UserTime};
use kafka_records::{
    BatchBuilder, BatchError, BatchHeader, CompressionType, DecompressionLimit, HEADER_BYTES,
    RecordRef, for_each_record, rewrite, set_crc, times,
};
use user_time::{ExtractError, RecordParts, UserTimeExtractor};

/// The CRC of a batch covers its bytes from here on.
const CRC_FROM: usize = 21;
const LOG_APPEND_TIME: i16 = 1 << 3;
const NO_TIMESTAMP: i64 = -1;
/// The sequence number of a batch that has none.
const NO_SEQUENCE: i32 = -1;

/// Kafka's record batches, as a [`BatchFormat`]. The head of a payload is the batch's header.
#[derive(Clone, Copy, Debug)]
pub struct KafkaFormat {
    /// The most bytes that a batch may decompress to when its records are read.
    pub decompressed_bytes_max: usize,
}

impl KafkaFormat {
    pub fn decompression_limit(self) -> DecompressionLimit {
        DecompressionLimit { decompressed_bytes_max: self.decompressed_bytes_max }
    }
}

impl BatchFormat for KafkaFormat {
    fn finalize_header(
        &self,
        payload: &mut Payload,
        base: Offset,
        epoch: u32,
        append_time: Option<SysTime>,
    ) -> Option<(usize, u32)> {
        let mut head: [u8; HEADER_BYTES] = payload.header.as_slice().try_into().ok()?;
        head[..8].copy_from_slice(&(base.0 as i64).to_be_bytes());
        head[12..16].copy_from_slice(&epoch.to_be_bytes());
        if let Some(time) = append_time {
            let attributes = i16::from_be_bytes([head[21], head[22]]) | LOG_APPEND_TIME;
            head[21..23].copy_from_slice(&attributes.to_be_bytes());
            head[35..43].copy_from_slice(&(time.0 as i64).to_be_bytes());
            set_crc(&mut head, &payload.rest);
        }
        payload.header.as_mut_slice().copy_from_slice(&head);
        let crc = u32::from_be_bytes([head[17], head[18], head[19], head[20]]);
        Some((CRC_FROM, crc))
    }

    fn producer(&self, start: &[u8]) -> Option<ProducerSequence> {
        producer_sequence(&BatchHeader::parse(start).ok()?)
    }

    fn marker(&self, end: &TransactionEnd, time: SysTime) -> Payload {
        let batch = marker_batch(end, time);
        let (header, rest) = (&batch[..HEADER_BYTES], batch.slice(HEADER_BYTES..));
        Payload { header: PayloadHeader::new(header), rest }
    }

    fn marker_producer(&self, start: &[u8]) -> Option<(i64, i16)> {
        let header = BatchHeader::parse(start).ok()?;
        header.is_control().then_some((header.producer_id, header.producer_epoch))
    }

    fn times(&self, batch: &Bytes) -> Result<Vec<(Offset, UserTime)>, String> {
        if is_control(batch)? {
            return Ok(Vec::new());
        }
        let times = times(batch, self.decompression_limit()).map_err(|error| error.to_string())?;
        Ok(times
            .into_iter()
            .map(|(offset, time)| (Offset(offset as u64), UserTime(time)))
            .collect())
    }

    fn user_times(
        &self,
        batch: &Bytes,
        extractor: &UserTimeExtractor,
    ) -> Result<Vec<(Offset, Option<UserTime>)>, String> {
        let mut times = Vec::new();
        let header = BatchHeader::parse(batch).map_err(|error| error.to_string())?;
        if header.is_control() {
            return Ok(Vec::new());
        }
        let timestamps = if header.is_log_append_time() {
            BatchTimestampType::LogAppendTime
        } else {
            BatchTimestampType::CreateTime
        };
        extract(batch, self.decompression_limit(), extractor, timestamps, |found| {
            times.push((Offset(found.offset as u64), found.time.ok()));
            ControlFlow::Continue(())
        })
        .map_err(|error| error.to_string())?;
        Ok(times)
    }

    fn rewrite(
        &self,
        batch: &Bytes,
        delete_horizon: Option<SysTime>,
        keep: &mut dyn FnMut(&KeyedRecord<'_>) -> bool,
    ) -> Result<RewriteOutcome, String> {
        let header = BatchHeader::parse(batch).map_err(|error| error.to_string())?;
        // A negative value is long past.
        let known = header.delete_horizon_ms().map(|ms| SysTime(ms.max(0) as u64));
        let given = delete_horizon.map(|time| i64::try_from(time.0).unwrap_or(i64::MAX));
        let rewritten = rewrite(batch, self.decompression_limit(), given, |record| {
            keep(&KeyedRecord {
                offset: Offset(record.offset as u64),
                key: record.key,
                is_tombstone: record.is_tombstone,
                delete_horizon: known,
            })
        });
        Ok(match rewritten.map_err(|error| error.to_string())? {
            kafka_records::BatchRewriteResult::Unchanged => RewriteOutcome::Unchanged,
            kafka_records::BatchRewriteResult::Changed(bytes) => RewriteOutcome::Changed(bytes),
            kafka_records::BatchRewriteResult::Empty(bytes) => RewriteOutcome::Empty(bytes),
        })
    }
}

/// The result of an extractor for one record.
pub struct RecordUserTime {
    pub(crate) offset: i64,
    pub timestamp: i64,
    pub time: Result<UserTime, ExtractError>,
    /// The error of a plug-in that has exceeded its work limit for the batch. An append refuses the
    /// batch then. A read of a stored batch must ignore this: a record keeps the time that it had.
    pub overworked: Option<ExtractError>,
}

/// The source of the timestamps in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchTimestampType {
    /// Each record has its own.
    CreateTime,
    /// The time of the append. It is not known before, so nothing may depend on it: no extractor
    /// sees it.
    LogAppendTime,
}

/// Passes what `extractor` finds in each record of a batch to the visitor, in order.
pub fn extract(
    batch: &Bytes,
    limit: DecompressionLimit,
    extractor: &UserTimeExtractor,
    timestamps: BatchTimestampType,
    mut visit: impl FnMut(RecordUserTime) -> ControlFlow<()>,
) -> Result<(), BatchError> {
    let mut session = extractor.session();
    for_each_record(batch, limit, |record| {
        let RecordRef { offset, timestamp, key, value, headers } = record;
        let shown =
            if timestamps == BatchTimestampType::CreateTime { timestamp } else { NO_TIMESTAMP };
        let time = session.extract(RecordParts { timestamp: shown, key, value, headers });
        let overworked = session.fuel_error();
        visit(RecordUserTime { offset, timestamp, time, overworked })
    })
}

/// The producer of a batch, if it has an id.
pub fn producer_sequence(header: &BatchHeader) -> Option<ProducerSequence> {
    if header.producer_id < 0 || header.base_sequence < 0 {
        return None;
    }
    // Sequence numbers wrap from the largest to 0.
    let last = i64::from(header.base_sequence) + i64::from(header.last_offset_delta);
    Some(ProducerSequence {
        id: header.producer_id,
        epoch: header.producer_epoch,
        first_sequence: header.base_sequence,
        last_sequence: (last % (i64::from(i32::MAX) + 1)) as i32,
        is_transactional: header.is_transactional(),
    })
}

/// A control batch as Kafka writes it: one record, whose key says whether the transaction is
/// committed.
fn marker_batch(end: &TransactionEnd, time: SysTime) -> Bytes {
    const VERSION: [u8; 2] = [0, 0];
    /// The coordinator never moves.
    const COORDINATOR_EPOCH: [u8; 4] = [0; 4];
    let kind = [0, u8::from(end.is_committed)];
    let (key, value) = ([VERSION, kind].concat(), [&VERSION[..], &COORDINATOR_EPOCH].concat());
    let mut batch = BatchBuilder::new(CompressionType::None);
    batch.producer(end.producer, end.epoch, NO_SEQUENCE).transactional().control();
    batch.record(time.0 as i64, Some(&key), Some(&value), &[]);
    batch.build()
}

fn is_control(batch: &Bytes) -> Result<bool, String> {
    Ok(BatchHeader::parse(batch).map_err(|error| error.to_string())?.is_control())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::StorageError;
    use engine::compaction::{BatchSource, CompactionOptions, SourceBatch, compact};
    use hlc::Hlc;
    use kafka_records::{check, records};

    use super::*;

    const FORMAT: KafkaFormat = KafkaFormat { decompressed_bytes_max: 1 << 20 };

    #[derive(Default)]
    struct CompactionTestLog(Vec<SourceBatch<()>>);

    impl BatchSource for CompactionTestLog {
        type Entry = SourceBatch<()>;

        fn batches(
            &self,
            from: Offset,
        ) -> impl Iterator<Item = Result<SourceBatch<Self::Entry>, StorageError>> {
            self.0.iter().filter(move |stored| stored.end > from).map(|stored| {
                let SourceBatch { base, end, stamp, batch, .. } = stored.clone();
                Ok(SourceBatch { base, end, stamp, batch, entry: stored.clone() })
            })
        }
    }

    impl CompactionTestLog {
        fn append(&mut self, codec: CompressionType, records: &[(&str, Option<&str>)]) {
            let base = self.0.last().map_or(Offset(0), |last| last.end);
            let mut builder = BatchBuilder::new(codec);
            builder.producer(9, 0, base.0 as i32);
            for (time, (key, value)) in (base.0 as i64..).zip(records) {
                builder.record(time, Some(key.as_bytes()), value.map(str::as_bytes), &[]);
            }
            let mut batch = builder.build().to_vec();
            batch[..8].copy_from_slice(&base.0.to_be_bytes());
            let (end, stamp) = (Offset(base.0 + records.len() as u64), Hlc::from_bits(base.0));
            self.0.push(SourceBatch { base, end, stamp, batch: batch.into(), entry: () });
        }

        fn compact(&mut self, now: u64) {
            let options = CompactionOptions {
                horizon: Hlc::MAX,
                start: Offset(0),
                first_dirty: Offset(0),
                undecided_from: Offset(u64::MAX),
                now: SysTime(now),
                delete_retention: Duration::from_millis(100),
                memory_bytes: 1 << 10,
                seed: 0,
            };
            let mut kept = Vec::new();
            let outcome = compact(self, &options, &FORMAT, &mut |batch| {
                kept.push(SourceBatch { batch: batch.batch, ..batch.entry });
                Ok(())
            });
            assert_eq!(outcome.unwrap().unreadable, 0);
            self.0 = kept;
        }

        /// Offset, time, key, and whether there is a value.
        fn read(&self) -> Vec<(i64, i64, String, bool)> {
            let read = self
                .0
                .iter()
                .flat_map(|stored| records(&stored.batch, FORMAT.decompression_limit()).unwrap());
            read.map(|record| {
                let record = record.unwrap();
                let key = String::from_utf8(record.key.unwrap().to_vec()).unwrap();
                (record.offset, record.timestamp, key, record.value.is_some())
            })
            .collect()
        }
    }

    #[test]
    fn a_log_of_kafka_s_batches_is_compacted() {
        for codec in CompressionType::ALL {
            let mut log = CompactionTestLog::default();
            log.append(codec, &[("a", Some("1")), ("b", Some("1")), ("c", Some("1"))]);
            log.append(codec, &[("a", Some("2")), ("a", Some("3"))]);
            log.append(codec, &[("b", None), ("d", Some("1")), ("a", Some("4"))]);
            log.append(codec, &[("c", None)]);
            let notes: Vec<_> = log.0.iter().map(|stored| FORMAT.producer(&stored.batch)).collect();
            log.compact(1000);
            let record = |offset, key: &str, has_value| (offset, offset, key.to_owned(), has_value);
            let live = [record(6, "d", true), record(7, "a", true)];
            let [d, a] = live.clone();
            assert_eq!(log.read(), [record(5, "b", false), d, a, record(8, "c", false)]);
            assert_eq!(log.0.len(), 2, "{codec:?}");
            for stored in &log.0 {
                let header = BatchHeader::parse(&stored.batch).unwrap();
                assert_eq!(header.delete_horizon_ms(), Some(1100));
                assert_eq!(header.last_offset(), stored.end.0 as i64 - 1);
            }
            log.compact(1099);
            assert_eq!(log.read().len(), 4);
            log.compact(1100);
            assert_eq!(log.read(), live, "{codec:?}");
            // The last batch is empty, and still has its producer and its last sequence number.
            let left: Vec<_> = log.0.iter().map(|stored| FORMAT.producer(&stored.batch)).collect();
            assert_eq!(left, notes[2..]);
            assert_eq!(FORMAT.times(&log.0[1].batch), Ok(vec![]));
            assert!(check(&log.0[1].batch).is_err(), "nobody may produce an empty batch");
        }
    }

    #[test]
    fn a_batch_that_cannot_be_unpacked_is_an_error() {
        let mut builder = BatchBuilder::new(CompressionType::Zstd);
        builder.record(0, Some(b"key"), Some(&vec![0; 2 << 20]), &[]);
        let refused = FORMAT.rewrite(&builder.build(), None, &mut |_| panic!("nothing is asked"));
        assert!(refused.unwrap_err().contains("bytes when decompressed"));
    }
}
