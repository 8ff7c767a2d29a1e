//! The cost of reading a partition through the tree: the size of its text for the first time and
//! again, sequential reads, random reads, and key lookups. The disk is in memory, so that only the
//! tree is measured.

#![allow(missing_docs, reason = "criterion's macros document nothing")]

#[path = "../tests/fixture.rs"]
mod fixture;

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fileview::tree::{TreeOptions, ViewNode, ViewTree};
use tokio::runtime::Runtime;

use fixture::{TreeFixture, TreeTestRecord};

const BATCHES: u64 = 2000;
const RECORDS: u64 = 160;
/// The size of the kernel's reads.
const READ_BYTES: usize = 128 << 10;

async fn filled_fixture() -> TreeFixture {
    let fixture = TreeFixture::new();
    fixture.topic("t", 1, &[]).await;
    for batch in 0..BATCHES {
        let record = |nth: u64| -> TreeTestRecord {
            let number = batch * RECORDS + nth;
            (Some(format!("key-{}", number % 50_000).into()), Some(vec![b'v'; 100]), number as i64)
        };
        fixture.produce("t", 0, &(0..RECORDS).map(record).collect::<Vec<_>>()).await;
    }
    fixture.roll_and_index().await;
    fixture
}

fn node(runtime: &Runtime, fixture: &TreeFixture, path: &str) -> ViewNode {
    runtime.block_on(fixture.node(path)).expect("it is there")
}

async fn read_to_end(tree: &ViewTree, node: &ViewNode) -> u64 {
    let open = tree.open(node).await.expect("it opens");
    let mut at = 0;
    loop {
        let read = open.read(at, READ_BYTES).await.expect("it can be read");
        if read.is_empty() {
            return at;
        }
        at += black_box(read).len() as u64;
    }
}

fn tree(criterion: &mut Criterion) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let fixture = runtime.block_on(filled_fixture());
    let mut group = criterion.benchmark_group("tree");
    group.sample_size(10);
    for extension in ["log", "values", "jsonl"] {
        let node = node(&runtime, &fixture, &format!("/topics/t/0.{extension}"));
        let size = runtime.block_on(fixture.tree.stat(&node)).expect("it is there").size;
        group.throughput(Throughput::Bytes(size));
        group.bench_function(format!("{extension}/size for the first time"), |bencher| {
            bencher.iter(|| {
                let tree = ViewTree::new(Arc::clone(&fixture.engine), TreeOptions::default());
                runtime.block_on(tree.stat(&node)).expect("it is there").size
            });
        });
        group.bench_function(format!("{extension}/read on"), |bencher| {
            bencher.iter(|| assert_eq!(runtime.block_on(read_to_end(&fixture.tree, &node)), size));
        });
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("{extension}/size again"), |bencher| {
            bencher.iter(|| runtime.block_on(fixture.tree.stat(&node)).expect("it is there").size);
        });
        let open = runtime.block_on(fixture.tree.open(&node)).expect("it opens");
        let mut at = 0;
        group.bench_function(format!("{extension}/4 KiB anywhere"), |bencher| {
            bencher.iter(|| {
                at = (at + 7_777_777) % size;
                runtime.block_on(open.read(at, 4096)).expect("it can be read")
            });
        });
    }
    let keys: Vec<ViewNode> = (0..100)
        .map(|key| node(&runtime, &fixture, &format!("/topics/t/by-key/key-{}", key * 499)))
        .collect();
    let mut nth = 0;
    group.bench_function("by-key/the value of one of 50,000", |bencher| {
        bencher.iter(|| {
            nth = (nth + 1) % keys.len();
            let open = runtime.block_on(fixture.tree.open(&keys[nth])).expect("it is there");
            runtime.block_on(open.read(0, 4096)).expect("it can be read")
        });
    });
    group.finish();
}

criterion_group!(benches, tree);
criterion_main!(benches);
