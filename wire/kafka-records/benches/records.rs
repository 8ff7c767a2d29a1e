//! The cost of a batch of about 1 MB: to check it, to read its times, to read it in full.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kafka_records::{
    BatchBuilder, CompressionType, DecompressionLimit, check, records, time_range, times,
};
use testkit::rng::SeededRng;

const LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 16 << 20 };

/// 10,000 records of 100 bytes.
fn batch(codec: CompressionType) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    for index in 0..10_000u64 {
        let word = index.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let mut value = [b'x'; 100];
        value[..8].copy_from_slice(&word);
        builder.record(1_700_000_000_000 + index as i64, None, Some(&value), &[]);
    }
    builder.build()
}

/// The same with values as in logs: lines of JSON whose words repeat.
fn text(codec: CompressionType) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    let mut random = SeededRng::new(1);
    for index in 0..5_000u64 {
        let (a, b, c) = (random.next_u64(), random.below(10_000), random.below(7));
        let value = format!(
            r#"{{"order":"{a:016x}","customer":{b},"state":"{}","amount":{}.{:02},"currency":"EUR","source":"web","retries":{c},"note":"delivered to the front door"}}"#,
            ["new", "paid", "packed", "sent", "back", "lost", "closed"][c as usize],
            random.below(500),
            random.below(100)
        );
        builder.record(1_700_000_000_000 + index as i64, None, Some(value.as_bytes()), &[]);
    }
    builder.build()
}

fn benches(criterion: &mut Criterion) {
    let plain = batch(CompressionType::None);
    let mut group = criterion.benchmark_group("1 MB");
    group.throughput(Throughput::Bytes(plain.len() as u64));
    group.bench_function("check", |bench| bench.iter(|| check(black_box(&plain))));
    for codec in CompressionType::ALL {
        let batch = batch(codec);
        group.bench_function(format!("times {codec:?}"), |bench| {
            bench.iter(|| times(black_box(&batch), LIMIT));
        });
    }
    group.finish();
    for codec in CompressionType::ALL {
        let batch = text(codec);
        let mut group = criterion.benchmark_group("text");
        // Of stored bytes.
        group.throughput(Throughput::Bytes(batch.len() as u64));
        group.bench_function(format!("range {codec:?}"), |bench| {
            bench.iter(|| time_range(black_box(&batch), LIMIT));
        });
        group.finish();
    }
    let mut group = criterion.benchmark_group("1 MB");
    group.throughput(Throughput::Bytes(plain.len() as u64));
    group.bench_function("every record", |bench| {
        bench.iter(|| {
            let records = records(black_box(&plain), LIMIT).expect("a sound batch");
            records
                .map(|record| record.expect("a sound record"))
                .fold(0, |bytes, record| bytes + record.value.as_ref().map_or(0, Bytes::len))
        });
    });
    group.bench_function("build", |bench| {
        bench.iter(|| black_box(crate::batch(CompressionType::None)))
    });
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
