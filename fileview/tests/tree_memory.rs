//! A small request does not use much memory: batches that decompress to very much are measured and
//! read in pieces, and open nodes use little memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod fixture;

use kafka_records::CompressionType;

use fixture::{TreeFixture, record};

/// Resets the peak of memory use, and returns its new value.
fn reset_peak() -> usize {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    peak()
}

/// The peak memory use of this process.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

const VALUE_BYTES: usize = 4 << 20;
const BATCHES: usize = 16;

/// A topic with few compressed bytes and many decompressed ones, all with keys of their own.
async fn compression_bombs() -> TreeFixture {
    let fixture = TreeFixture::new();
    fixture.topic("t", 1, &[]).await;
    for nth in 0..BATCHES {
        let records = [record(&format!("k{nth}"), &"x".repeat(VALUE_BYTES), 1)];
        fixture.produce_as("t", 0, &records, CompressionType::Zstd).await;
    }
    fixture
}

/// One test, because other tests in the same process would be measured with it.
#[tokio::test]
async fn what_is_held_does_not_grow_with_what_batches_unpack_to() {
    let fixture = compression_bombs().await;
    let before = reset_peak();
    let node = fixture.node("/topics/t/0.values").await.unwrap();
    let size = (BATCHES * (VALUE_BYTES + 1)) as u64;
    assert_eq!(fixture.tree.stat(&node).await.unwrap().size, size);
    let mut opened = Vec::new();
    for nth in 0..BATCHES {
        let open = fixture.tree.open(&node).await.unwrap();
        let at = (nth * (VALUE_BYTES + 1) + VALUE_BYTES - 10) as u64;
        let read = open.read(at, 21).await.unwrap();
        let expected = if nth + 1 == BATCHES { "xxxxxxxxxx\n" } else { "xxxxxxxxxx\nxxxxxxxxxx" };
        assert_eq!(read, expected);
        opened.push(open);
    }
    // The same for values of keys: open handles hold none of them, and they are read one after the
    // other.
    for nth in 0..BATCHES {
        let node = fixture.node(&format!("/topics/t/by-key/k{nth}")).await.unwrap();
        opened.push(fixture.tree.open(&node).await.unwrap());
    }
    for open in &opened[BATCHES..] {
        assert_eq!(open.size().await.unwrap(), VALUE_BYTES as u64);
        for at in [0, VALUE_BYTES - 3] {
            assert_eq!(open.read(at as u64, 5).await.unwrap(), &"xxxxx"[..5.min(VALUE_BYTES - at)]);
        }
    }
    let grown = peak() - before;
    // One decompressed batch, with room to grow.
    assert!(grown < 6 * VALUE_BYTES, "{} MiB more", grown >> 20);
}
