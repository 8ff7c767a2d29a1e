//! What is given up or compacted between two steps of one answer.

use super::raw::OpenRaw;
use super::rig::{Rig, record};
use super::text::OpenText;
use super::{Node, TreeError};
use crate::Format;

const COMPACTED: [(&str, &str); 3] = [
    ("cleanup.policy", "compact"),
    ("min.cleanable.dirty.ratio", "0"),
    ("delete.retention.ms", "0"),
];

/// Two keys, of which the value of one is superseded behind the moment that is returned.
async fn superseded() -> (Rig, String) {
    let rig = Rig::new();
    rig.topic("t", 2, &COMPACTED).await;
    rig.produce("t", 0, &[record("other", "0", 1)]).await;
    rig.produce("t", 1, &[record("key", "1", 1)]).await;
    rig.pass(1);
    let then = hlc::Moment::Sys(rig.now()).to_string();
    rig.produce("t", 1, &[record("key", "2", 1)]).await;
    rig.pass(1);
    rig.settle().await;
    (rig, then)
}

async fn compact(rig: &Rig) {
    assert!(rig.engine.compact_due().await.unwrap() > 0);
}

#[tokio::test]
async fn what_is_compacted_after_it_was_seen_has_no_size_and_cannot_be_opened() {
    let (rig, then) = superseded().await;
    let tree = &rig.tree;
    let node = tree.resolve(format!("/topics/t/1.values@{then}").as_bytes()).await.unwrap();
    let Node::Partition { topic, partition, .. } = node else { panic!("{node:?}") };
    let seen = tree.seen_one(&topic, partition).await.unwrap();
    compact(&rig).await;
    let text = OpenText::new(&tree.texts, &seen, Format::Values, false, &tree.options).await;
    assert!(matches!(text.err(), Some(TreeError::BeforeHistory(_))));
    assert!(matches!(OpenRaw::new(&seen, false).err(), Some(TreeError::BeforeHistory(_))));
    for format in [Format::Raw, Format::Values] {
        let size = tree.size(&seen, format).await;
        assert!(matches!(size, Err(TreeError::BeforeHistory(_))), "{format:?}: {size:?}");
    }
}
