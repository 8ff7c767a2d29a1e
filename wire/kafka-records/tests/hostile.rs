//! Hostile bytes: nothing panics, and nothing is read out of bounds.

use std::ops::ControlFlow;

use bytes::Bytes;
use kafka_records::{
    BatchBuilder, BatchError, BatchHeader, BatchIterator, CompressionType, DecompressionLimit,
    HEADER_BYTES, check, for_each_record, records, set_crc, time_range, times,
};
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 64 << 10 };

type RecordTuple = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(String, Option<Vec<u8>>)>);

fn codec() -> impl Strategy<Value = CompressionType> {
    proptest::sample::select(CompressionType::ALL.to_vec())
}

fn some_records() -> impl Strategy<Value = Vec<RecordTuple>> {
    let time = -1..=i64::MAX / 2;
    let bytes = || option::of(vec(any::<u8>(), 0..80));
    let headers = vec(("[a-c]{0,2}", option::of(vec(any::<u8>(), 0..10))), 0..5);
    vec((time, bytes(), bytes(), headers), 1..20)
}

fn build(codec: CompressionType, fields: &[RecordTuple]) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    for (timestamp, key, value, headers) in fields {
        let headers: Vec<_> =
            headers.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
        builder.record(*timestamp, key.as_deref(), value.as_deref(), &headers);
    }
    builder.build()
}

/// Calls all functions that read. Returns the number of bytes in the records.
fn read_all(bytes: &Bytes) -> usize {
    let _ = (check(bytes), BatchHeader::parse(bytes), times(bytes, LIMIT));
    let _ = time_range(bytes, LIMIT);
    assert!(BatchIterator::new(bytes).count() <= 1 + bytes.len() / HEADER_BYTES);
    let Ok(records) = records(bytes, LIMIT) else { return 0 };
    let header_bytes = |headers: &[(Bytes, Option<Bytes>)]| -> usize {
        headers.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Bytes::len)).sum()
    };
    let bytes = |field: &Option<Bytes>| field.as_ref().map_or(0, Bytes::len);
    records
        .flatten()
        .map(|record| bytes(&record.key) + bytes(&record.value) + header_bytes(&record.headers))
        .sum()
}

fn room(bytes: &Bytes) -> usize {
    bytes.len().max(LIMIT.decompressed_bytes_max)
}

proptest! {
    #[test]
    fn what_was_built_reads_back(codec in codec(), fields in some_records()) {
        let batch = build(codec, &fields);
        let header = check(&batch).unwrap();
        prop_assert_eq!(header.compression(), Ok(codec));
        let read: Vec<_> = records(&batch, LIMIT).unwrap().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read.len(), fields.len());
        for (index, (record, fields)) in read.iter().zip(&fields).enumerate() {
            prop_assert_eq!(record.offset, index as i64);
            prop_assert_eq!(record.timestamp, fields.0);
            prop_assert_eq!(record.key.as_deref(), fields.1.as_deref());
            prop_assert_eq!(record.value.as_deref(), fields.2.as_deref());
            let headers: Vec<_> = record.headers.iter()
                .map(|(key, value)| {
                    let key = String::from_utf8(key.to_vec()).unwrap();
                    (key, value.as_ref().map(|value| value.to_vec()))
                })
                .collect();
            prop_assert_eq!(&headers, &fields.3);
        }
        let expected: Vec<_> = read.iter().map(|record| (record.offset, record.timestamp)).collect();
        let newest = expected.iter().map(|(_, time)| *time).max().unwrap();
        let oldest = expected.iter().map(|(_, time)| *time).min().unwrap();
        prop_assert_eq!(times(&batch, LIMIT), Ok(expected));
        prop_assert_eq!(time_range(&batch, LIMIT), Ok((oldest, newest)));
        prop_assert_eq!(header.max_timestamp, newest);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        let bytes = Bytes::from(bytes);
        prop_assert!(read_all(&bytes) <= room(&bytes));
    }

    /// The header fits the body, and the codec is any, so that the decoders and the record reader
    /// get the body, not only the first length check.
    #[test]
    fn arbitrary_bodies_never_panic(
        attributes in 0..64i16,
        count in prop_oneof![0..20, any::<i32>()],
        delta in prop_oneof![0..20, any::<i32>()],
        times in any::<(i64, i64)>(),
        base_offset in any::<i64>(),
        magic in any::<bool>(),
        body in vec(any::<u8>(), 0..300),
    ) {
        let start: &[u8] = match attributes & 7 {
            1 if magic => &[0x1f, 0x8b, 8, 0],
            2 if magic => b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01",
            3 if magic => &[4, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82],
            4 if magic => &[0x28, 0xb5, 0x2f, 0xfd],
            _ => &[],
        };
        let mut batch = build(CompressionType::None, &[(0, None, None, Vec::new())]).to_vec();
        let mut header = BatchHeader::parse(&batch).unwrap();
        (header.attributes, header.record_count) = (attributes, count);
        header.last_offset_delta = delta;
        (header.base_timestamp, header.max_timestamp) = times;
        header.base_offset = base_offset;
        header.length = (49 + start.len() + body.len()) as i32;
        batch.truncate(HEADER_BYTES);
        batch.extend_from_slice(start);
        batch.extend_from_slice(&body);
        let mut bytes = header.to_bytes();
        set_crc(&mut bytes, &batch[HEADER_BYTES..]);
        batch[..HEADER_BYTES].copy_from_slice(&bytes);
        let batch = Bytes::from(batch);
        prop_assert!(read_all(&batch) <= room(&batch));
    }

    #[test]
    fn mutated_batches_never_panic(
        codec in codec(),
        fields in some_records(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in option::of(any::<prop::sample::Index>()),
    ) {
        let mut batch = build(codec, &fields).to_vec();
        if let Some(cut) = cut {
            batch.truncate(cut.index(batch.len()).max(HEADER_BYTES));
            let length = (batch.len() - 12) as i32;
            batch[8..12].copy_from_slice(&length.to_be_bytes());
        }
        for (at, byte) in changes {
            let at = at.index(batch.len());
            batch[at] = byte;
        }
        let batch = Bytes::from(batch);
        prop_assert!(read_all(&batch) <= room(&batch));
    }
}

/// A batch around a hand-made body.
fn batch_of(codec: CompressionType, count: i32, body: &[u8]) -> Bytes {
    let mut batch = build(codec, &[(0, None, None, Vec::new())]).to_vec();
    batch.truncate(HEADER_BYTES);
    batch.extend_from_slice(body);
    let mut header = BatchHeader::parse(&batch).unwrap();
    (header.length, header.record_count) = ((49 + body.len()) as i32, count);
    header.last_offset_delta = count - 1;
    let mut bytes = header.to_bytes();
    set_crc(&mut bytes, &batch[HEADER_BYTES..]);
    batch[..HEADER_BYTES].copy_from_slice(&bytes);
    batch.into()
}

fn first_error(batch: &Bytes) -> BatchError {
    match records(batch, LIMIT) {
        Ok(records) => records.map(|record| record.err()).find_map(|error| error).unwrap(),
        Err(error) => error,
    }
}

#[test]
fn counts_and_lengths_that_the_bytes_cannot_hold_are_refused() {
    // Length 7: attributes, deltas, null key, null value, header count.
    let record = |headers: &[u8]| [&[12, 0, 0, 0, 1, 1][..], headers].concat();
    let sound = record(&[0]);
    assert!(
        records(&batch_of(CompressionType::None, 1, &sound), LIMIT).unwrap().all(|r| r.is_ok())
    );
    let bad = |index, what| BatchError::BadRecord { index, what };
    for (count, body, error) in [
        (i32::MAX, sound.clone(), None),
        (2, sound.clone(), None),
        (0, sound.clone(), Some(bad(0, "bytes follow the last record"))),
        (1, [&sound[..], &sound].concat(), Some(bad(1, "bytes follow the last record"))),
        (2, [&sound[..], &sound].concat(), Some(bad(1, "its offset does not rise"))),
        (1, record(&[2]), Some(bad(0, "its header count does not fit its bytes"))),
        (1, record(&[1]), Some(bad(0, "its header count is negative"))),
        (1, vec![12, 0, 0, 2, 1, 1, 0], Some(bad(0, "its offset lies beyond the batch"))),
        (1, vec![12, 0, 0, 0, 20, 1, 0], Some(bad(0, "a length reaches beyond the end"))),
        (1, vec![14, 0, 0, 0, 1, 1, 0, 0], Some(bad(0, "bytes follow its headers"))),
        (1, vec![200, 1, 0, 0, 0, 1, 1, 0], Some(bad(0, "a length reaches beyond the end"))),
        (1, vec![1, 0, 0, 0, 1, 1, 0], Some(bad(0, "a length is negative"))),
    ] {
        let batch = batch_of(CompressionType::None, count, &body);
        let expected = error.unwrap_or(BatchError::Incoherent {
            what: "the record count must fit the bytes",
            value: count.into(),
        });
        assert_eq!(first_error(&batch), expected, "count {count}, body {body:?}");
    }
}

#[test]
fn times_and_offsets_that_overflow_are_refused() {
    let mut batch = batch_of(CompressionType::None, 1, &[12, 0, 2, 0, 1, 1, 0]).to_vec();
    batch[27..35].copy_from_slice(&i64::MAX.to_be_bytes());
    let what = "its timestamp overflows";
    assert_eq!(first_error(&batch.into()), BatchError::BadRecord { index: 0, what });
    let mut batch = batch_of(
        CompressionType::None,
        2,
        &[[12, 0, 0, 0, 1, 1, 0], [12, 0, 0, 2, 1, 1, 0]].concat(),
    )
    .to_vec();
    batch[..8].copy_from_slice(&i64::MAX.to_be_bytes());
    let what = "its offset overflows";
    assert_eq!(first_error(&batch.into()), BatchError::BadRecord { index: 1, what });
}

#[test]
fn raw_snappy_is_read_too() {
    // As librdkafka writes it: no framing.
    let body = snap::raw::Encoder::new().compress_vec(&[12, 0, 0, 0, 1, 1, 0]).unwrap();
    assert_eq!(times(&batch_of(CompressionType::Snappy, 1, &body), LIMIT), Ok(vec![(0, 0)]));
}

#[test]
fn linked_lz4_blocks_with_all_checksums_are_read() {
    use std::io::Write;
    let mut builder = BatchBuilder::new(CompressionType::None);
    let value = b"the same again, and again, and again, ".repeat(80);
    for time in 0..400 {
        builder.record(time, None, Some(&value), &[]);
    }
    let plain = builder.build();
    let body = &plain[HEADER_BYTES..];
    for size in [BlockSize::Max64KB, BlockSize::Max256KB, BlockSize::Max4MB] {
        let frame = FrameInfo::new()
            .block_mode(BlockMode::Linked)
            .block_size(size)
            .block_checksums(true)
            .content_checksum(true)
            .content_size(Some(body.len() as u64));
        let mut encoder = FrameEncoder::with_frame_info(frame, Vec::new());
        encoder.write_all(body).unwrap();
        let batch = batch_of(CompressionType::Lz4, 400, &encoder.finish().unwrap());
        let limit = DecompressionLimit { decompressed_bytes_max: 2 << 20 };
        let read: Vec<_> = records(&batch, limit).unwrap().collect::<Result<_, _>>().unwrap();
        assert!(read.len() == 400 && read.iter().all(|r| r.value.as_deref() == Some(&value[..])));
    }
}

#[test]
fn gzip_members_and_zstd_frames_in_a_row_are_one_body() {
    use std::io::Write;
    let halves = [[12, 0, 0, 0, 1, 1, 0], [12, 0, 0, 2, 1, 1, 0]];
    let gzip = halves.map(|half| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&half).unwrap();
        encoder.finish().unwrap()
    });
    let zstd = halves.map(|half| zstd::encode_all(&half[..], 1).unwrap());
    for (codec, members) in [(CompressionType::Gzip, gzip), (CompressionType::Zstd, zstd)] {
        let batch = batch_of(codec, 2, &members.concat());
        assert_eq!(times(&batch, LIMIT), Ok(vec![(0, 0), (1, 0)]), "{codec:?}");
    }
}

#[test]
fn a_body_of_just_the_limit_is_read_and_one_byte_more_is_not() {
    for codec in [
        CompressionType::Gzip,
        CompressionType::Snappy,
        CompressionType::Lz4,
        CompressionType::Zstd,
    ] {
        for value in [1000, 70_000, 200_000] {
            let mut builder = BatchBuilder::new(codec);
            builder.record(0, None, Some(&vec![7; value]), &[]);
            let batch = builder.build();
            let body = builder.uncompressed_bytes() - HEADER_BYTES;
            let limit = |bytes| DecompressionLimit { decompressed_bytes_max: bytes };
            assert_eq!(times(&batch, limit(body)), Ok(vec![(0, 0)]), "{codec:?} {value}");
            assert_eq!(
                times(&batch, limit(body - 1)),
                Err(BatchError::TooLarge { max: body - 1 }),
                "{codec:?} {value}"
            );
        }
    }
}

#[test]
fn a_window_beyond_128_mib_is_refused() {
    use std::io::Write;
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.window_log(28).unwrap();
    // Flushed before the end: a frame whose content is known to be small asks for a small window.
    encoder.write_all(&[0]).unwrap();
    encoder.flush().unwrap();
    let batch = batch_of(CompressionType::Zstd, 1, &encoder.finish().unwrap());
    assert!(matches!(times(&batch, LIMIT), Err(BatchError::Undecodable { .. })));
}

#[test]
fn announced_sizes_reserve_nothing() {
    let raw_snappy = [0xff, 0xff, 0xff, 0xff, 0x0f, 0];
    // A frame that announces 4 MiB blocks, and holds one that claims all of them.
    let lz4 = [4, 0x22, 0x4d, 0x18, 0x60, 0x70, 0x73, 0, 0, 0x40, 0];
    for (codec, body) in [(CompressionType::Snappy, &raw_snappy[..]), (CompressionType::Lz4, &lz4)]
    {
        let batch = batch_of(codec, 1, body);
        let error = times(&batch, LIMIT).unwrap_err();
        assert!(matches!(error, BatchError::Undecodable { .. }), "{error}");
    }
}

/// An LZ4 frame without its end mark, of compressed or stored blocks.
fn lz4_frame(mode: BlockMode, blocks: &[(&[u8], bool)]) -> Vec<u8> {
    let frame = FrameInfo::new().block_mode(mode).block_size(BlockSize::Max64KB);
    let empty = FrameEncoder::with_frame_info(frame, Vec::new()).finish().unwrap();
    let (start, end) = empty.split_at(7);
    let mut bytes = start.to_vec();
    for (block, is_stored) in blocks {
        let word = block.len() as u32 | u32::from(*is_stored) << 31;
        bytes.extend(word.to_le_bytes());
        bytes.extend_from_slice(block);
    }
    [&bytes, end].concat()
}

/// Checks whether a body can be decompressed, whatever records are in it.
fn unpack(body: &[u8], limit: usize) -> Result<(), BatchError> {
    let limit = DecompressionLimit { decompressed_bytes_max: limit };
    records(&batch_of(CompressionType::Lz4, 1, body), limit).map(drop)
}

#[test]
fn blocks_of_lz4_are_no_longer_than_their_frame_says() {
    const MAX: usize = 64 << 10;
    for (length, fits) in [(MAX - 1, true), (MAX, true), (MAX + 1, false), (5 * MAX, false)] {
        let plain = vec![3; length];
        let packed = lz4_flex::block::compress(&plain);
        for (block, is_stored) in [(&plain, true), (&packed, false)] {
            let frame = lz4_frame(BlockMode::Independent, &[(block, is_stored)]);
            let unpacked = unpack(&frame, 10 * MAX);
            let is_refused = matches!(unpacked, Err(BatchError::Undecodable { .. }));
            assert_eq!((unpacked.is_ok(), is_refused), (fits, !fits), "{length} {is_stored}");
            // If the limit is lower, that is the error.
            if fits {
                assert_eq!(unpack(&frame, length), Ok(()));
                assert_eq!(
                    unpack(&frame, length - 1),
                    Err(BatchError::TooLarge { max: length - 1 })
                );
            }
        }
    }
}

#[test]
fn a_block_of_lz4_that_is_independent_does_not_refer_to_the_one_before() {
    let first = b"something that comes again, and not in itself";
    let second = lz4_flex::block::compress_with_dict(first, first);
    let blocks = [(&first[..], true), (&second[..], false)];
    assert_eq!(unpack(&lz4_frame(BlockMode::Linked, &blocks), 1 << 20), Ok(()));
    let refused = unpack(&lz4_frame(BlockMode::Independent, &blocks), 1 << 20);
    assert!(matches!(refused, Err(BatchError::Undecodable { .. })), "{refused:?}");
}

#[test]
fn records_say_how_many_are_left() {
    let mut builder = BatchBuilder::new(CompressionType::None);
    (0..3).for_each(|time| _ = builder.record(time, None, Some(b"v"), &[]));
    let mut records_left = records(&builder.build(), LIMIT).unwrap();
    for left in (0..=3).rev() {
        // One more, for an error after the last.
        assert_eq!(
            (records_left.remaining(), records_left.size_hint()),
            (left, (0, Some(left + 1)))
        );
        assert_eq!(records_left.next().is_some(), left > 0);
    }
    assert_eq!((records_left.remaining(), records_left.size_hint()), (0, (0, Some(0))));
    // No error, after a malformed record.
    let bad = batch_of(
        CompressionType::None,
        2,
        &[[12, 0, 0, 5, 1, 1, 0], [12, 0, 0, 6, 1, 1, 0]].concat(),
    );
    let mut broken = records(&bad, LIMIT).unwrap();
    assert_eq!(broken.remaining(), 2);
    assert!(broken.next().unwrap().is_err());
    assert_eq!((broken.remaining(), broken.size_hint(), broken.next()), (0, (0, Some(0)), None));
}

#[test]
fn bytes_behind_a_record_s_headers_are_refused_by_whoever_reads_it() {
    let batch = batch_of(CompressionType::None, 1, &[14, 0, 0, 0, 1, 1, 0, 9]);
    let expected = BatchError::BadRecord { index: 0, what: "bytes follow its headers" };
    assert_eq!(first_error(&batch), expected);
    assert_eq!(for_each_record(&batch, LIMIT, |_| ControlFlow::Continue(())), Err(expected));
}
