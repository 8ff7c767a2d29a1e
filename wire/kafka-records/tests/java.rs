//! Batches that the stock Java client wrote: `testdata/README.md` says how.

use std::path::Path;

use bytes::Bytes;
use kafka_records::{
    BatchBuilder, BatchHeader, BatchRewriteResult, CompressionType, DecompressionLimit,
    HEADER_BYTES, KafkaRecord, check, records, rewrite, time_range, times,
};

const LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 1 << 20 };

fn golden(name: &str) -> Bytes {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(format!("{name}.bin"));
    std::fs::read(path).unwrap().into()
}

fn name(codec: CompressionType) -> &'static str {
    match codec {
        CompressionType::None => "none",
        CompressionType::Gzip => "gzip",
        CompressionType::Snappy => "snappy",
        CompressionType::Lz4 => "lz4",
        CompressionType::Zstd => "zstd",
    }
}

fn bytes(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from_static(text.as_bytes()))
}

/// The records that `Golden.small` appends.
fn small(base_offset: i64) -> Vec<KafkaRecord> {
    let header = |key: &'static str, value| (Bytes::from_static(key.as_bytes()), value);
    let headers = vec![
        header("h", bytes("1")),
        header("g", None),
        header("h", bytes("2")),
        header("ключ", bytes("")),
    ];
    let record = |delta, timestamp, key, value| KafkaRecord {
        offset: base_offset + delta,
        timestamp,
        key,
        value,
        headers: Vec::new(),
    };
    vec![
        KafkaRecord { headers, ..record(0, 1_700_000_000_000, bytes("key"), bytes("value")) },
        record(1, 1_699_999_999_000, None, bytes("")),
        record(2, 1_700_000_005_000, bytes(""), None),
    ]
}

fn read(batch: &Bytes) -> Vec<KafkaRecord> {
    records(batch, LIMIT).unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn small_batches_of_every_codec_read_as_java_wrote_them() {
    for codec in CompressionType::ALL {
        let batch = golden(&format!("small-{}", name(codec)));
        assert_eq!(check(&batch).unwrap().compression(), Ok(codec));
        assert_eq!(read(&batch), small(0), "{codec:?}");
        assert_eq!(time_range(&batch, LIMIT), Ok((1_699_999_999_000, 1_700_000_005_000)));
    }
}

#[test]
fn batches_of_many_compressed_blocks_read_as_java_wrote_them() {
    for codec in [
        CompressionType::Gzip,
        CompressionType::Snappy,
        CompressionType::Lz4,
        CompressionType::Zstd,
    ] {
        let batch = golden(&format!("large-{}", name(codec)));
        check(&batch).unwrap();
        let records = read(&batch);
        assert_eq!(records.len(), 200, "{codec:?}");
        let line = "all work and no play makes jack a dull boy. ".repeat(23);
        for (index, record) in records.iter().enumerate() {
            assert_eq!(record.key.as_deref(), Some(format!("k{index}").as_bytes()));
            assert_eq!(record.value.as_deref(), Some(&line.as_bytes()[..1000]));
        }
        let expected: Vec<_> = (0..200).map(|index| (index, 1_700_000_000_000 + index)).collect();
        assert_eq!(times(&batch, LIMIT), Ok(expected));
    }
}

#[test]
fn a_transactional_batch_of_a_log_keeps_its_producer_and_its_offsets() {
    let batch = golden("transactional");
    let header = check(&batch).unwrap();
    assert!(header.is_transactional() && !header.is_control());
    assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (77, 5, 40));
    assert_eq!((header.base_offset, header.last_offset(), header.leader_epoch), (1000, 1002, 7));
    assert_eq!(read(&batch), small(1000));
}

#[test]
fn in_a_log_append_time_batch_every_record_has_the_brokers_time() {
    let batch = golden("log-append-time");
    assert!(check(&batch).unwrap().is_log_append_time());
    let at = 1_700_000_009_999;
    assert_eq!(times(&batch, LIMIT), Ok(vec![(1000, at), (1001, at), (1002, at)]));
    assert_eq!(time_range(&batch, LIMIT), Ok((at, at)));
    assert!(read(&batch).iter().all(|record| record.timestamp == at));
}

#[test]
fn a_commit_marker_is_a_control_batch_of_one_record() {
    let batch = golden("commit-marker");
    let header = check(&batch).unwrap();
    assert!(header.is_control() && header.is_transactional());
    assert_eq!(header.base_sequence, -1);
    let records = read(&batch);
    assert_eq!(records.len(), 1);
    // Version 0, type 1: commit.
    assert_eq!(records[0].key.as_deref(), Some(&[0, 0, 0, 1][..]));
}

#[test]
fn uncompressed_batches_are_byte_for_byte_what_java_writes() {
    let mut builder = BatchBuilder::new(CompressionType::None);
    for record in small(0) {
        let headers: Vec<_> = record
            .headers
            .iter()
            .map(|(key, value)| (std::str::from_utf8(key).unwrap(), value.as_deref()))
            .collect();
        builder.record(record.timestamp, record.key.as_deref(), record.value.as_deref(), &headers);
    }
    let mut ours = builder.build().to_vec();
    // Java's log side stamped leader epoch 7, outside of the CRC.
    ours[12..16].copy_from_slice(&7i32.to_be_bytes());
    assert_eq!(ours, golden("small-none"));
}

/// The batch that `Golden` hands to its cleaner.
fn uncleaned(codec: CompressionType) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    builder.producer(77, 5, 40);
    for record in small(1000) {
        let headers = record.headers.iter().map(|(key, value)| (&key[..], value.as_deref()));
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        builder.raw_record(record.timestamp, key, value, headers);
    }
    let mut bytes = builder.build().to_vec();
    bytes[..8].copy_from_slice(&1000i64.to_be_bytes());
    bytes[12..16].copy_from_slice(&7i32.to_be_bytes());
    bytes.into()
}

/// `Golden` cleans at 1700000020000, with a delete retention of a day.
const HORIZON: i64 = 1_700_000_020_000 + 86_400_000;

fn cleaned(batch: &Bytes, keep: impl Fn(i64) -> bool) -> Bytes {
    match rewrite(batch, LIMIT, Some(HORIZON), |record| keep(record.offset)).unwrap() {
        BatchRewriteResult::Unchanged => batch.clone(),
        BatchRewriteResult::Changed(bytes) | BatchRewriteResult::Empty(bytes) => bytes,
    }
}

/// The same batch, byte for byte; but the same records packed can be other bytes.
fn assert_same(ours: &Bytes, java: &Bytes) {
    let (mut our_header, java_header) = (BatchHeader::parse(ours).unwrap(), check_intact(java));
    check_intact(ours);
    assert_eq!(read(ours), read(java));
    if java_header.compression() == Ok(CompressionType::None) {
        return assert_eq!(ours, java);
    }
    (our_header.length, our_header.crc) = (java_header.length, java_header.crc);
    assert_eq!(our_header, java_header);
}

fn check_intact(batch: &Bytes) -> BatchHeader {
    let header = BatchHeader::parse(batch).unwrap();
    assert_eq!(header.total_bytes(), batch.len());
    assert_eq!(header.crc, crc32c::crc32c(&batch[HEADER_BYTES - 40..]));
    header
}

#[test]
fn a_batch_is_cleaned_to_what_java_cleans_it_to() {
    for codec in CompressionType::ALL {
        let java = |case: &str| golden(&format!("cleaned-{case}-{}", name(codec)));
        let batch = uncleaned(codec);
        assert_same(&cleaned(&batch, |offset| offset == 1001), &java("first-gone"));
        let horizon = cleaned(&batch, |offset| offset != 1001);
        assert_same(&horizon, &java("horizon"));
        assert_same(&cleaned(&horizon, |offset| offset != 1002), &java("tombstone-gone"));
        assert_same(&cleaned(&horizon, |_| false), &java("empty"));
    }
    let appended = golden("log-append-time");
    assert_same(&cleaned(&appended, |offset| offset != 1000), &golden("cleaned-log-append-time"));
}

#[test]
fn a_delete_horizon_that_java_wrote_is_read_and_moves_no_time() {
    for codec in CompressionType::ALL {
        let batch = golden(&format!("cleaned-horizon-{}", name(codec)));
        assert_eq!(check_intact(&batch).delete_horizon_ms(), Some(HORIZON));
        let expected = vec![(1000, 1_700_000_000_000), (1002, 1_700_000_005_000)];
        assert_eq!(times(&batch, LIMIT), Ok(expected));
        assert_eq!(time_range(&batch, LIMIT), Ok((1_700_000_000_000, 1_700_000_005_000)));
    }
    assert_eq!(check(&golden("small-none")).unwrap().delete_horizon_ms(), None);
}

#[test]
fn a_marker_is_never_touched() {
    let marker = golden("commit-marker");
    assert_eq!(
        rewrite(&marker, LIMIT, Some(HORIZON), |_| false),
        Ok(BatchRewriteResult::Unchanged)
    );
}
