//! A few KB that decompress to 256 MiB. The test has a file, and so a process, of its own: it
//! measures the peak of the process's resident memory.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::io::Write;

use bytes::Bytes;
use kafka_records::{
    BatchBuilder, BatchError, BatchHeader, CompressionType, DecompressionLimit, records, set_crc,
    times,
};

const MIB: usize = 1 << 20;
const BOMB_BYTES: usize = 256 * MIB;
const LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: MIB };

fn batch_of(codec: CompressionType, body: &[u8]) -> Bytes {
    let batch = BatchBuilder::new(codec).record(0, None, None, &[]).build();
    let mut header = BatchHeader::parse(&batch).unwrap();
    header.length = (49 + body.len()) as i32;
    let mut bytes = header.to_bytes();
    set_crc(&mut bytes, body);
    Bytes::from([&bytes, body].concat())
}

fn gzip() -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&vec![0; MIB]).unwrap();
    encoder.finish().unwrap().repeat(BOMB_BYTES / MIB)
}

fn xerial() -> Vec<u8> {
    let block = snap::raw::Encoder::new().compress_vec(&vec![0; MIB / 2]).unwrap();
    let block = [&(block.len() as u32).to_be_bytes(), &block[..]].concat();
    [b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01", &block.repeat(2 * BOMB_BYTES / MIB)[..]].concat()
}

/// One zero, and then copies of 64 of the last byte.
fn raw_snappy() -> Vec<u8> {
    let mut body = vec![0x80, 0x80, 0x80, 0x80, 0x01, 0, 0];
    let copy = [63 << 2 | 2, 1, 0];
    body.extend(copy.repeat(BOMB_BYTES / 64));
    body
}

fn lz4(code: u8) -> Vec<u8> {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let (size, block_bytes) = match code {
        7 => (BlockSize::Max4MB, 4 * MIB),
        _ => (BlockSize::Max64KB, 64 << 10),
    };
    let frame = FrameInfo::new().block_size(size).block_mode(BlockMode::Independent);
    let mut encoder = FrameEncoder::with_frame_info(frame, Vec::new());
    encoder.write_all(&vec![0; block_bytes]).unwrap();
    let frame = encoder.finish().unwrap();
    let (start, block) = (&frame[..7], &frame[7..frame.len() - 4]);
    [start, &block.repeat(BOMB_BYTES / block_bytes), &[0; 4]].concat()
}

fn zstd(window_log: u32) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.window_log(window_log).unwrap();
    let zeros = vec![0; MIB];
    for _ in 0..BOMB_BYTES / MIB {
        encoder.write_all(&zeros).unwrap();
    }
    encoder.finish().unwrap()
}

/// Resets the peak, and returns its new value.
fn reset_peak() -> usize {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    peak()
}

fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn a_bomb_of_any_codec_is_refused_and_costs_little_more_than_the_limit() {
    // All are built first: memory freed by building one would hide the cost of refusing it.
    let bombs = [
        ("gzip", batch_of(CompressionType::Gzip, &gzip())),
        ("xerial snappy", batch_of(CompressionType::Snappy, &xerial())),
        ("raw snappy", batch_of(CompressionType::Snappy, &raw_snappy())),
        ("lz4, 64 KiB blocks", batch_of(CompressionType::Lz4, &lz4(4))),
        ("lz4, 4 MiB blocks", batch_of(CompressionType::Lz4, &lz4(7))),
        ("zstd, 2 MiB window", batch_of(CompressionType::Zstd, &zstd(21))),
        ("zstd, 128 MiB window", batch_of(CompressionType::Zstd, &zstd(27))),
    ];
    for (name, batch) in bombs {
        // A thread of its own has an arena of its own: pages that were freed before cannot serve
        // it.
        let cost = std::thread::spawn(move || cost_of_refusing(&batch)).join().unwrap();
        println!("{name}: peak + {cost}");
        assert!(cost < 4 * MIB, "{name}: the process grew by {cost} bytes");
    }
}

fn cost_of_refusing(batch: &Bytes) -> usize {
    let before = reset_peak();
    let refused = Err(BatchError::TooLarge { max: MIB });
    assert_eq!(times(batch, LIMIT), refused);
    assert_eq!(records(batch, LIMIT).map(drop), refused.map(drop));
    peak().saturating_sub(before)
}
