//! Dropping records from batches: the records that stay are unchanged.

use bytes::Bytes;
use kafka_records::{
    BatchBuilder, BatchError, BatchHeader, BatchRewriteResult, CompressionType, DecompressionLimit,
    HEADER_BYTES, KafkaRecord, records, rewrite, set_crc, times,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 64 << 10 };

#[derive(Clone, Debug)]
struct RecordFixture {
    time: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
    is_kept: bool,
}

fn fields() -> impl Strategy<Value = RecordFixture> {
    let time = prop_oneof![4 => 0..2_000_000_000_000i64, 1 => -1..=i64::MAX / 2];
    let bytes = || option::of(vec(any::<u8>(), 0..40));
    let headers = vec(("[a-c]{0,2}", option::of(vec(any::<u8>(), 0..10))), 0..3);
    (time, bytes(), bytes(), headers, any::<bool>()).prop_map(
        |(time, key, value, headers, is_kept)| RecordFixture { time, key, value, headers, is_kept },
    )
}

/// The fields that a log sets before a batch is cleaned.
#[derive(Clone, Debug)]
struct BatchPlacement {
    base_offset: i64,
    append_time: Option<i64>,
    producer: Option<(i64, i16, i32)>,
    is_transactional: bool,
}

fn placement() -> impl Strategy<Value = BatchPlacement> {
    let producer = option::of((0..9i64, 0..9i16, 0..i32::MAX));
    (0..1i64 << 60, option::of(0..1i64 << 41), producer, any::<bool>()).prop_map(
        |(base_offset, append_time, producer, is_transactional)| {
            let is_transactional = is_transactional && producer.is_some();
            BatchPlacement { base_offset, append_time, producer, is_transactional }
        },
    )
}

fn build(codec: CompressionType, fields: &[RecordFixture], placement: &BatchPlacement) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    if let Some((id, epoch, sequence)) = placement.producer {
        builder.producer(id, epoch, sequence);
    }
    if placement.is_transactional {
        builder.transactional();
    }
    for record in fields {
        let headers: Vec<_> =
            record.headers.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
        builder.record(record.time, record.key.as_deref(), record.value.as_deref(), &headers);
    }
    with_header(&builder.build(), |header| {
        header.base_offset = placement.base_offset;
        header.leader_epoch = 3;
        if let Some(time) = placement.append_time {
            header.attributes |= 1 << 3;
            header.max_timestamp = time;
        }
    })
}

fn with_header(batch: &Bytes, change: impl FnOnce(&mut BatchHeader)) -> Bytes {
    let mut header = BatchHeader::parse(batch).unwrap();
    change(&mut header);
    let mut bytes = header.to_bytes();
    set_crc(&mut bytes, &batch[HEADER_BYTES..]);
    [&bytes, &batch[HEADER_BYTES..]].concat().into()
}

fn read(batch: &Bytes) -> Vec<KafkaRecord> {
    records(batch, LIMIT).unwrap().collect::<Result<_, _>>().unwrap()
}

/// Checks that the length is the batch's, and the checksum its bytes'.
fn intact(batch: &Bytes) -> BatchHeader {
    let header = BatchHeader::parse(batch).unwrap();
    assert_eq!(header.total_bytes(), batch.len());
    assert_eq!(header.crc, crc32c::crc32c(&batch[21..]));
    header
}

/// The fields of a header that compaction preserves, whatever it drops.
fn identity(header: &BatchHeader) -> impl PartialEq + std::fmt::Debug + use<> {
    let producer = (header.producer_id, header.producer_epoch, header.base_sequence);
    let kind = header.attributes & 0b11_1000;
    (header.base_offset, header.last_offset(), header.leader_epoch, producer, kind)
}

proptest! {
    #[test]
    fn what_is_kept_is_as_it_was_and_the_rest_is_gone(
        codec in proptest::sample::select(CompressionType::ALL.to_vec()),
        fields in vec(fields(), 1..20),
        placed in placement(),
        horizon in option::of(0..1i64 << 42),
    ) {
        let batch = build(codec, &fields, &placed);
        let (before, header) = (read(&batch), intact(&batch));
        let (mut at, mut asked) = (0, Vec::new());
        let rewritten = rewrite(&batch, LIMIT, horizon, |record| {
            let key = record.key.map(Bytes::copy_from_slice);
            asked.push((record.offset, key, record.is_tombstone));
            at += 1;
            fields[at - 1].is_kept
        });
        let expected_asked: Vec<_> = before.iter()
            .map(|record| (record.offset, record.key.clone(), record.value.is_none()))
            .collect();
        prop_assert_eq!(asked, expected_asked);

        let expected: Vec<_> = before.iter().zip(&fields)
            .filter_map(|(record, fields)| fields.is_kept.then_some(record.clone()))
            .collect();
        let has_tombstone = expected.iter().any(|record| record.value.is_none());
        match rewritten.unwrap() {
            BatchRewriteResult::Unchanged => {
                prop_assert!(expected.len() == before.len() && !(horizon.is_some() && has_tombstone));
            }
            BatchRewriteResult::Empty(bytes) => {
                prop_assert!(expected.is_empty() && bytes.len() == HEADER_BYTES);
                let after = intact(&bytes);
                prop_assert_eq!(identity(&after), identity(&header));
                prop_assert_eq!((after.record_count, after.base_timestamp), (0, -1));
                prop_assert_eq!(after.max_timestamp, header.max_timestamp);
                prop_assert_eq!((read(&bytes), after.delete_horizon_ms()), (vec![], None));
                prop_assert_eq!(times(&bytes, LIMIT), Ok(vec![]));
                // Cleaning it again changes nothing.
                let again = rewrite(&bytes, LIMIT, horizon, |_| true);
                prop_assert_eq!(again, Ok(BatchRewriteResult::Empty(bytes)));
            }
            BatchRewriteResult::Changed(bytes) => {
                let after = intact(&bytes);
                prop_assert_eq!(&read(&bytes), &expected);
                prop_assert_eq!(identity(&after), identity(&header));
                prop_assert_eq!(after.compression(), Ok(codec));
                prop_assert_eq!(after.record_count as usize, expected.len());
                prop_assert_eq!(after.delete_horizon_ms(), horizon.filter(|_| has_tombstone));
                let newest = expected.iter().map(|record| record.timestamp).max().unwrap();
                prop_assert_eq!(after.max_timestamp, newest);
                let again = rewrite(&bytes, LIMIT, Some(7), |_| true).unwrap();
                let gets_horizon = has_tombstone && horizon.is_none();
                prop_assert_eq!(again == BatchRewriteResult::Unchanged, !gets_horizon);
            }
        }
    }

    #[test]
    fn a_delete_horizon_once_given_stays_and_changes_no_time(
        codec in proptest::sample::select(CompressionType::ALL.to_vec()),
        fields in vec(fields(), 2..20),
        placed in placement(),
        horizon in 0..1i64 << 42,
    ) {
        let mut fields = fields;
        (fields[0].value, fields[1].value) = (None, Some(vec![]));
        let batch = build(codec, &fields, &placed);
        let before = read(&batch);
        let Ok(BatchRewriteResult::Changed(bytes)) = rewrite(&batch, LIMIT, Some(horizon), |_| true) else {
            panic!("a tombstone brings a horizon");
        };
        prop_assert_eq!(&read(&bytes), &before);
        prop_assert_eq!(times(&bytes, LIMIT), times(&batch, LIMIT));
        prop_assert_eq!(intact(&bytes).delete_horizon_ms(), Some(horizon));
        // Also without the tombstone, and whatever a later cleaning would set.
        let second = before[0].offset;
        let later = rewrite(&bytes, LIMIT, Some(horizon + 5), |record| record.offset != second);
        let Ok(BatchRewriteResult::Changed(bytes)) = later else { panic!("a record is gone: {later:?}") };
        prop_assert_eq!(&read(&bytes)[..], &before[1..]);
        prop_assert_eq!(intact(&bytes).delete_horizon_ms(), Some(horizon));
    }

    #[test]
    fn batches_of_any_bytes_are_refused_or_rewritten_but_never_panic(
        codec in proptest::sample::select(CompressionType::ALL.to_vec()),
        fields in vec(fields(), 1..6),
        placed in placement(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut batch = build(codec, &fields, &placed).to_vec();
        for (at, byte) in changes {
            let at = at.index(batch.len());
            batch[at] = byte;
        }
        let batch = Bytes::from(batch);
        let readable = records(&batch, LIMIT).and_then(|records| records.collect::<Result<Vec<_>, _>>());
        let mut asked = 0;
        let rewritten = rewrite(&batch, LIMIT, Some(1 << 40), |record| {
            asked += 1;
            record.offset % 2 == 0
        });
        match (readable, rewritten) {
            (_, Ok(BatchRewriteResult::Unchanged)) if BatchHeader::parse(&batch).unwrap().is_control() => {}
            (Err(_), rewritten) => prop_assert!(rewritten.is_err() && asked == 0),
            (Ok(before), Ok(BatchRewriteResult::Changed(bytes))) => {
                let expected: Vec<_> =
                    before.into_iter().filter(|record| record.offset % 2 == 0).collect();
                prop_assert_eq!(read(&bytes), expected);
            }
            (Ok(_), Ok(_)) => {}
            (Ok(_), Err(error)) => prop_assert!(false, "{error}"),
        }
    }
}

#[test]
fn a_batch_that_breaks_off_is_refused_before_anything_is_asked() {
    let mut builder = BatchBuilder::new(CompressionType::Zstd);
    builder.record(0, Some(b"some key"), None, &[]).record(0, Some(b"b"), None, &[]);
    let batch = with_header(&builder.build(), |header| header.record_count = 3);
    let refused = rewrite(&batch, LIMIT, Some(1), |_| panic!("of a broken batch nothing is asked"));
    assert!(matches!(refused, Err(BatchError::BadRecord { index: 2, .. })), "{refused:?}");
}

#[test]
fn a_batch_beyond_the_limit_is_refused() {
    for codec in [
        CompressionType::Gzip,
        CompressionType::Snappy,
        CompressionType::Lz4,
        CompressionType::Zstd,
    ] {
        let mut builder = BatchBuilder::new(codec);
        builder.record(0, Some(b"key"), Some(&vec![0; 100_000]), &[]);
        let refused = rewrite(&builder.build(), LIMIT, None, |_| false);
        assert_eq!(refused, Err(BatchError::TooLarge { max: 64 << 10 }), "{codec:?}");
    }
}

/// The distance from the horizon to such a time is no `i64`.
#[test]
fn times_out_of_reach_of_a_horizon_stay_and_the_batch_gets_none() {
    let mut builder = BatchBuilder::new(CompressionType::None);
    builder.record(i64::MIN, Some(b"a"), None, &[]).record(i64::MIN + 1, Some(b"b"), None, &[]);
    let batch = builder.build();
    assert_eq!(rewrite(&batch, LIMIT, Some(1 << 40), |_| true), Ok(BatchRewriteResult::Unchanged));
    let rewritten = rewrite(&batch, LIMIT, Some(1 << 40), |record| record.offset == 1);
    let Ok(BatchRewriteResult::Changed(bytes)) = rewritten else {
        panic!("a record is gone: {rewritten:?}")
    };
    assert_eq!(intact(&bytes).delete_horizon_ms(), None);
    assert_eq!(times(&bytes, LIMIT), Ok(vec![(1, i64::MIN + 1)]));
    // Nor if only some of them are.
    let mut builder = BatchBuilder::new(CompressionType::None);
    builder.record(1, Some(b"a"), None, &[]).record(5, Some(b"b"), None, &[]);
    builder.record(i64::MIN + 2, Some(b"c"), None, &[]);
    let rewritten = rewrite(&builder.build(), LIMIT, Some(1 << 40), |record| record.offset > 0);
    let Ok(BatchRewriteResult::Changed(bytes)) = rewritten else {
        panic!("a record is gone: {rewritten:?}")
    };
    assert_eq!(intact(&bytes).delete_horizon_ms(), None);
    assert_eq!(times(&bytes, LIMIT), Ok(vec![(1, 5), (2, i64::MIN + 2)]));
}
