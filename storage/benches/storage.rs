//! The cost of the journal compared with plain `write(2)` of the same bytes, and whether the cost
//! of a log depends on its length (F14: it must not).
//!
//! In addition to criterion's numbers, each comparison prints a ratio. A store passes each append
//! to its writer's thread and back; "one by one" pays for that, "many in flight" shows the
//! throughput.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hlc::{Cut, Hlc, OsClock, WallClock};
use storage::disk::RealDisk;
use storage::{Durability, LogAppend, LogId, Options, Payload};
use testkit::directory::TestDirectory;
use testkit::rng::SeededRng;
use testkit::store::{StageVerdict, StoreFixture, append};

/// The plain file is created again at this length, and so is the store: benches share the disk.
const FILE_BYTES_MAX: u64 = 1 << 30;

fn steady() -> Duration {
    OsClock.read().steady
}

/// A store in a real directory, created again when it has grown too long.
struct BenchStore {
    fixture: Option<StoreFixture>,
    directory: TestDirectory,
    written: u64,
}

impl BenchStore {
    fn new() -> BenchStore {
        let directory = TestDirectory::new();
        BenchStore { fixture: Some(BenchStore::open(&directory)), directory, written: 0 }
    }

    fn open(directory: &TestDirectory) -> StoreFixture {
        let disk = RealDisk::open(directory.path()).expect("a directory opens");
        let options = Options { tail_bytes_max: 16 << 20, ..Options::default() };
        StoreFixture::open_on(Arc::new(disk), options, Arc::new(OsClock)).expect("a store opens")
    }

    /// Appends `payload` `count` times with at most `window` in flight; returns how long that took.
    fn run(
        &mut self,
        payload: &Bytes,
        durability: Durability,
        count: u64,
        window: usize,
    ) -> Duration {
        let mut elapsed = Duration::ZERO;
        let mut remaining = count;
        while remaining > 0 {
            let batch = remaining.min((FILE_BYTES_MAX / payload.len() as u64 / 4).max(1));
            if self.written > FILE_BYTES_MAX {
                self.fixture = None;
                self.directory = TestDirectory::new();
                self.fixture = Some(BenchStore::open(&self.directory));
                self.written = 0;
            }
            let fixture = self.fixture.as_ref().expect("a store is open");
            let began = steady();
            let mut waiting = std::collections::VecDeque::new();
            for _ in 0..batch {
                let payload = Payload::without_header(payload.clone());
                let append: LogAppend<StageVerdict> = LogAppend { payload, ..append(1, b"") };
                waiting.push_back(fixture.begin_append(vec![append], durability));
                if waiting.len() >= window {
                    wait(waiting.pop_front());
                }
            }
            while !waiting.is_empty() {
                wait(waiting.pop_front());
            }
            elapsed += steady() - began;
            self.written += batch * payload.len() as u64;
            remaining -= batch;
        }
        elapsed
    }
}

type BenchResultReceiver = std::sync::mpsc::Receiver<Vec<testkit::store::StageAppendResult>>;

fn wait(receiver: Option<BenchResultReceiver>) {
    let results = receiver.expect("something is in flight").recv().expect("a result comes");
    results[0].as_ref().expect("the disk is well");
}

/// The same bytes with `write(2)`, and `fdatasync(2)` after every `window`th.
struct BenchPlainFile {
    file: File,
    at: u64,
    _directory: TestDirectory,
}

impl BenchPlainFile {
    fn new() -> BenchPlainFile {
        let directory = TestDirectory::new();
        let path = directory.path().join("plain");
        let file = OpenOptions::new().write(true).create_new(true).open(path).expect("a file");
        BenchPlainFile { file, at: 0, _directory: directory }
    }

    fn run(
        &mut self,
        payload: &Bytes,
        durability: Durability,
        count: u64,
        window: usize,
    ) -> Duration {
        let mut elapsed = Duration::ZERO;
        for index in 0..count {
            if self.at > FILE_BYTES_MAX {
                self.file.set_len(0).expect("a file can be cut");
                self.at = 0;
            }
            let began = steady();
            self.file.write_all_at(payload, self.at).expect("the disk has room");
            if durability == Durability::Synced && (index + 1) % window as u64 == 0 {
                self.file.sync_data().expect("the disk is well");
            }
            elapsed += steady() - began;
            self.at += payload.len() as u64;
        }
        elapsed
    }
}

fn appending(criterion: &mut Criterion) {
    let sizes = [("1KiB", 1 << 10), ("16KiB", 16 << 10), ("1MiB", 1 << 20)];
    for (durability, name) in [(Durability::Written, "written"), (Durability::Synced, "synced")] {
        for (window, flight) in [(1, "one by one"), (16, "16 in flight")] {
            let mut group = criterion.benchmark_group(format!("append/{name}/{flight}"));
            group.sample_size(10).warm_up_time(Duration::from_millis(300));
            group.measurement_time(Duration::from_secs(1));
            for (size, length) in sizes {
                let payload = Bytes::from(vec![0x5a; length]);
                group.throughput(Throughput::Bytes(length as u64));
                let (mut journal, mut plain) = (BenchStore::new(), BenchPlainFile::new());
                // The last sample of each, for the ratio.
                let mut means = [0f64; 2];
                group.bench_function(BenchmarkId::new("store", size), |bencher| {
                    bencher.iter_custom(|count| {
                        let elapsed = journal.run(&payload, durability, count, window);
                        means[0] = elapsed.as_secs_f64() / count as f64;
                        elapsed
                    });
                });
                group.bench_function(BenchmarkId::new("write(2)", size), |bencher| {
                    bencher.iter_custom(|count| {
                        let elapsed = plain.run(&payload, durability, count, window);
                        means[1] = elapsed.as_secs_f64() / count as f64;
                        elapsed
                    });
                });
                let [store, plain] = means.map(|mean| mean * 1e6);
                let ratio = store / plain;
                println!(
                    "ratio append/{name}/{flight}/{size}: {ratio:.2} ({store:.1} us / {plain:.1} us)"
                );
            }
            group.finish();
        }
    }
}

/// F14.
fn by_length(criterion: &mut Criterion) {
    let directory = TestDirectory::new();
    let fixture = BenchStore::open(&directory);
    let mut group = criterion.benchmark_group("by length");
    group.sample_size(20).warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_secs(1));
    for target in [1_000u64, 10_000, 100_000, 1_000_000] {
        // A log for each length; appending below makes it a little longer.
        for _ in 0..target / 1_000 {
            fixture.append(
                (0..1_000).map(|_| append(target, &[7; 16])).collect(),
                Durability::Written,
            );
        }
        let log = fixture.store.log(LogId(target)).expect("an index");
        let first = log
            .entry_at(storage::Offset(0))
            .expect("an index")
            .expect("it has entries")
            .stamp
            .bits();
        let last = log.tip().stamp.bits();
        let mut random = SeededRng::new(1);
        group.bench_function(BenchmarkId::new("offset_at", target), |bencher| {
            bencher.iter(|| {
                let stamp = first + random.below(last - first);
                black_box(log.offset_at(Cut::below(Hlc::from_bits(stamp))))
            });
        });
        group.bench_function(BenchmarkId::new("append of 100", target), |bencher| {
            bencher.iter(|| {
                let appends = (0..100).map(|_| append(target, &[7; 16])).collect();
                fixture.append(appends, Durability::Written)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, appending, by_length);
criterion_main!(benches);
