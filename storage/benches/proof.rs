//! The cost of making history verifiable (G15): leaves of frames in memory, by the size of their
//! payload, compared with CRC-32C over the same bytes; and the proof of a whole segment on a real
//! disk.
//!
//! In addition to criterion's numbers, each prints CPU seconds a GB: hashing runs on one thread and
//! waits for nothing, so that is its time.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hlc::{OsClock, WallClock};
use storage::disk::{Disk, RealDisk};
use storage::journal::{FRAME_BYTES, segment_name};
use storage::proof::{Digest, ProofBuilder, write_proof};
use storage::{Durability, Options};
use testkit::directory::TestDirectory;
use testkit::store::{StoreFixture, append};

const SEGMENT_BYTES: u64 = 64 << 20;

fn say(name: &str, bytes: u64, elapsed: Duration) {
    let seconds = elapsed.as_secs_f64();
    let gigabytes = bytes as f64 / 1e9;
    println!("{name}: {:.2} GB/s, {:.3} CPU s/GB", gigabytes / seconds, seconds / gigabytes);
}

fn leaves(c: &mut Criterion) {
    let mut group = c.benchmark_group("leaves");
    for payload_bytes in [1 << 10, 16 << 10, 256 << 10] {
        let payload = vec![0xa5; payload_bytes];
        let header = [7; FRAME_BYTES];
        let frame_bytes = (payload_bytes + FRAME_BYTES) as u64;
        group.throughput(Throughput::Bytes(frame_bytes));
        let id = BenchmarkId::new("proof", payload_bytes);
        let (mut bytes, mut total) = (0, Duration::ZERO);
        group.bench_with_input(id, &payload, |bench, payload| {
            bench.iter_custom(|count| {
                let mut proof = ProofBuilder::new(0, Digest::BIRTH);
                let began = OsClock.read().steady;
                for index in 0..count {
                    proof.frame(index * frame_bytes, &header, &[payload]);
                    if proof.filled_bytes() > 1 << 20 {
                        black_box(proof.take_blocks());
                    }
                }
                let elapsed = OsClock.read().steady - began;
                bytes += count * frame_bytes;
                total += elapsed;
                elapsed
            });
        });
        say(&format!("leaves of {payload_bytes} bytes"), bytes, total);
        let id = BenchmarkId::new("crc32c", payload_bytes);
        group.bench_with_input(id, &payload, |bench, payload| {
            bench.iter(|| crc32c::crc32c(black_box(payload)));
        });
    }
    group.finish();
}

fn segments(c: &mut Criterion) {
    let mut group = c.benchmark_group("segment");
    group.sample_size(10);
    for payload_bytes in [1 << 10, 16 << 10, 256 << 10] {
        let directory = TestDirectory::new();
        let disk = RealDisk::open(directory.path()).expect("a directory opens");
        let end = fill(&directory, payload_bytes);
        group.throughput(Throughput::Bytes(end));
        group.bench_function(BenchmarkId::new("write_proof", payload_bytes), |bench| {
            bench.iter(|| {
                let go_on = &mut |_| ControlFlow::Continue(());
                write_proof(&disk, 0..end, Digest::BIRTH, None, go_on).expect("it is written")
            });
        });
    }
    group.finish();
}

/// Fills one segment with frames of that length; returns where it ends.
fn fill(directory: &TestDirectory, payload_bytes: usize) -> u64 {
    let disk = RealDisk::open(directory.path()).expect("a directory opens");
    let options = Options {
        segment_bytes_max: SEGMENT_BYTES,
        manual_maintenance: true,
        ..Options::default()
    };
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let fixture = StoreFixture::open_on(Arc::clone(&disk), options, Arc::new(OsClock))
        .expect("a store opens");
    let payload = Bytes::from(vec![0xa5; payload_bytes]);
    loop {
        let group = (0..64).map(|_| append(1, &payload)).collect();
        for result in fixture.append(group, Durability::Written) {
            result.expect("a healthy disk takes an append");
        }
        let mut starts: Vec<u64> = disk
            .list()
            .expect("names")
            .iter()
            .filter_map(|name| name.strip_suffix(".journal"))
            .map(|digits| digits.parse().expect("a position"))
            .collect();
        starts.sort_unstable();
        if let [first, second, ..] = starts[..] {
            assert!(disk.open(&segment_name(first)).is_ok());
            fixture.store.close();
            return second;
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .without_plots();
    targets = leaves, segments
}
criterion_main!(benches);
