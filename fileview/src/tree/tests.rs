//! Retention and compaction between two steps of one read.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use engine::Offset;

use super::fixture::{TreeFixture, record};
use super::raw::OpenRaw;
use super::text::OpenText;
use super::{TreeError, ViewNode, ViewTree, encode};
use crate::ViewFormat;

const COMPACTED: [(&str, &str); 3] = [
    ("cleanup.policy", "compact"),
    ("min.cleanable.dirty.ratio", "0"),
    ("delete.retention.ms", "0"),
];

/// Two keys. One of them is overwritten after the returned moment.
async fn superseded_key() -> (TreeFixture, String) {
    let fixture = TreeFixture::new();
    fixture.topic("t", 2, &COMPACTED).await;
    fixture.produce("t", 0, &[record("other", "0", 1)]).await;
    fixture.produce("t", 1, &[record("key", "1", 1)]).await;
    fixture.advance_clock(1);
    let moment = hlc::Moment::Sys(fixture.now()).to_string();
    fixture.produce("t", 1, &[record("key", "2", 1)]).await;
    fixture.advance_clock(1);
    fixture.roll_and_index().await;
    (fixture, moment)
}

async fn compact(fixture: &TreeFixture) {
    assert!(fixture.engine.maintenance().compact_due().await.unwrap() > 0);
}

#[tokio::test]
async fn what_is_compacted_after_it_was_seen_has_no_size_and_cannot_be_opened() {
    let (fixture, moment) = superseded_key().await;
    let tree = &fixture.tree;
    let node = tree.resolve(format!("/topics/t/1.values@{moment}").as_bytes()).await.unwrap();
    let ViewNode::Partition { topic, partition, .. } = node else { panic!("{node:?}") };
    let range = tree.visible_range(&topic, partition).await.unwrap();
    compact(&fixture).await;
    let text = OpenText::new(&tree.texts, &range, ViewFormat::Values, false, &tree.options).await;
    assert!(matches!(text.err(), Some(TreeError::BeforeHistory(_))));
    assert!(matches!(OpenRaw::new(&range, false).err(), Some(TreeError::BeforeHistory(_))));
    for format in [ViewFormat::Raw, ViewFormat::Values] {
        let size = tree.size(&range, format).await;
        assert!(matches!(size, Err(TreeError::BeforeHistory(_))), "{format:?}: {size:?}");
    }
}

/// Runs `meanwhile` after `answer` was polled that many times, unless the answer is ready before.
async fn interrupted<T>(
    answer: impl Future<Output = T>,
    polls: usize,
    meanwhile: impl Future<Output = ()>,
) -> T {
    let mut answer = pin!(answer);
    for _ in 0..polls {
        if let Poll::Ready(ready) = answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return ready;
        }
    }
    meanwhile.await;
    answer.await
}

#[tokio::test]
async fn keys_that_are_compacted_on_the_way_are_an_error_and_not_less() {
    let (mut failed_listings, mut streamed) = (0, 0);
    for polls in 0..6 {
        let (fixture, moment) = superseded_key().await;
        let node = fixture.node(&format!("/topics/t/by-key@{moment}")).await.unwrap();
        let listing = fixture.tree.list(&node, 0, 10);
        match interrupted(listing, polls, compact(&fixture)).await {
            Ok(names) => assert_eq!(names.len(), 2, "after {polls} polls"),
            Err(TreeError::BeforeHistory(_)) => failed_listings += 1,
            Err(error) => panic!("{error}"),
        }
        let (fixture, moment) = superseded_key().await;
        let node = fixture.node(&format!("/topics/t@{moment}")).await.unwrap();
        let ViewNode::Topic(topic) = node else { panic!("{node:?}") };
        let page = fixture.tree.keys_page(&topic, ViewFormat::Values, None, 1000);
        match interrupted(page, polls, compact(&fixture)).await {
            Ok(page) => assert_eq!(page.text.len(), "key\t1\nother\t0\n".len(), "{polls} polls"),
            Err(TreeError::BeforeHistory(_)) => streamed += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(failed_listings > 1 && streamed > 2, "{failed_listings} and {streamed}");
}

#[tokio::test]
async fn keys_of_the_present_are_looked_for_again_if_they_are_compacted_on_the_way() {
    for polls in 0..6 {
        let (fixture, _) = superseded_key().await;
        fixture.produce("t", 1, &[record("key", "3", 1)]).await;
        fixture.advance_clock(1);
        let node = fixture.node("/topics/t/by-key").await.unwrap();
        let listing = fixture.tree.list(&node, 0, 10);
        let names = interrupted(listing, polls, async {
            fixture.produce("t", 1, &[record("key", "4", 1)]).await;
            fixture.advance_clock(1);
            fixture.roll_and_index().await;
            compact(&fixture).await;
        });
        assert_eq!(names.await.unwrap().len(), 2, "after {polls} polls");
    }
}

/// Both the value and the tombstone are gone at the next read.
#[tokio::test]
async fn a_deleted_key_does_not_stay_because_its_tombstone_was_compacted_too() {
    let (fixture, _) = superseded_key().await;
    assert_eq!(fixture.names("/topics/t/by-key").await, ["key", "other"]);
    assert_eq!(fixture.text("/topics/t/by-key/key").await, "2");
    fixture.produce("t", 1, &[(Some(b"key".to_vec()), None, 1)]).await;
    let topic = fixture.engine.topics().named("t").unwrap();
    let tombstone = Offset(topic.partitions[1].end().0 - 1);
    for round in 0..4 {
        fixture.produce("t", 1, &[record("more", "1", 1)]).await;
        fixture.advance_clock(1);
        fixture.roll_and_index().await;
        fixture.engine.maintenance().compact_due().await.unwrap();
        let entry = topic.partitions[1].log.entry_at(tombstone).unwrap();
        if entry.is_none_or(|entry| entry.base > tombstone) {
            break;
        }
        assert!(round < 3, "the tombstone is still there");
    }
    assert_eq!(fixture.names("/topics/t/by-key").await, ["more", "other"]);
    assert_eq!(fixture.errno("/topics/t/by-key/key").await, 2);
}

/// Retries until there is an answer. Returns the number of attempts and the answer.
async fn ask_until_finished(tree: &ViewTree, path: &[u8]) -> (usize, Result<Vec<u8>, TreeError>) {
    for tries in 1..1000 {
        let read = async {
            let node = tree.resolve(path).await?;
            super::fixture::read_node(tree, &node, 1000).await
        };
        match read.await {
            Err(TreeError::Unfinished(_)) => {}
            read => return (tries, read),
        }
    }
    panic!("there is no end of {}", path.escape_ascii());
}

#[tokio::test]
async fn a_key_is_looked_for_a_part_at_a_time_and_found_or_not_as_in_one_go() {
    const SCAN_BYTES: u64 = 1000;
    let fixture = TreeFixture::new();
    fixture.topic("t", 2, &[]).await;
    let long = "k".repeat(300);
    for round in 0..40 {
        let own_key = format!("key-{round}");
        let keys = [own_key.as_str(), "often", &long, "gone"];
        let records = keys.map(|key| record(key, &format!("{round}"), 1));
        fixture.produce("t", round % 2, &records).await;
        fixture.advance_clock(1);
    }
    let moment = hlc::Moment::Sys(fixture.now()).to_string();
    fixture.produce("t", 0, &[(Some("gone".into()), None, 1)]).await;
    fixture.advance_clock(1);
    fixture.roll_and_index().await;
    let bounded = fixture.tree.with_key_scan_limit(SCAN_BYTES);
    let name = String::from_utf8(encode(long.as_bytes())).unwrap();
    let absent = name.replace('k', "j");
    let keys = ["key-3", "key-38", "often", "gone", "never", &name, &absent];
    let mut paths = Vec::new();
    for key in keys {
        paths.push(format!("/topics/t/by-key/{key}"));
        paths.push(format!("/topics/t/by-key/{key}@{moment}"));
    }
    // Each search starts before any of them is finished: they do not undo each other's progress.
    for path in &paths {
        let begun = bounded.resolve(path.as_bytes()).await;
        assert!(matches!(begun, Err(TreeError::Unfinished(_))), "{path}: {begun:?}");
    }
    for path in &paths {
        let whole = fixture.read(path).await;
        let (tries, read) = ask_until_finished(&bounded, path.as_bytes()).await;
        match (whole, read) {
            (Ok(whole), Ok(read)) => assert_eq!(whole, read, "{path}"),
            (Err(TreeError::NotFound(_)), Err(TreeError::NotFound(_))) => {}
            other => panic!("{path}: {other:?}"),
        }
        assert!(tries < 40, "{path} was asked for {tries} times");
    }
    // If a table of all keys exists, it is used.
    let (tries, _) = ask_until_finished(&bounded, b"/topics/t/by-key/key-5").await;
    assert_eq!(tries, 1);
}

#[tokio::test]
async fn a_search_begins_again_where_the_topic_is_compacted_on_the_way() {
    let (fixture, _) = superseded_key().await;
    for round in 0..40 {
        fixture.produce("t", 1, &[record(&format!("other-{round}"), "x", 1)]).await;
    }
    fixture.advance_clock(1);
    fixture.roll_and_index().await;
    let bounded = fixture.tree.with_key_scan_limit(500);
    let path = b"/topics/t/by-key/key";
    assert!(matches!(bounded.resolve(path).await, Err(TreeError::Unfinished(_))));
    compact(&fixture).await;
    let (_, read) = ask_until_finished(&bounded, path).await;
    assert_eq!(read.unwrap(), b"2");
}
