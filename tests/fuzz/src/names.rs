//! Names of files: paths of the tree, and `TOPIC/PARTITION@MOMENT`.

use fileview::ViewPath;
use fileview::tree::ViewNode;

use crate::texts;
use crate::world::{PATIENCE, with_world};

pub(crate) fn run(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input)
        && let Ok(path) = text.parse::<ViewPath>()
    {
        let again = path.to_string().parse::<ViewPath>();
        assert_eq!(again.map(|again| again.to_string()), Ok(path.to_string()), "{text}");
    }
    with_world(|world| {
        let walk = async {
            let mut node = world.tree.root();
            for name in input.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
                let Ok(child) = world.tree.lookup(&node, name).await else { return };
                node = child;
            }
            let listed = world.tree.list(&node, 0, 100).await;
            let _ = world.tree.stat(&node).await;
            if let Ok(open) = world.tree.open(&node).await {
                let _ = open.read(0, 1000).await;
            }
            if !node.is_present() {
                return;
            }
            // Listed entries can be looked up.
            for entry in listed.into_iter().flatten().take(3) {
                let found = world.tree.lookup(&node, &entry.name).await;
                let is_moments = matches!(node, ViewNode::Moments);
                assert!(found.is_ok() || is_moments, "{input:?} {:?}", entry.name);
            }
        };
        let walked = world.runtime.block_on(async { tokio::time::timeout(PATIENCE, walk).await });
        assert!(walked.is_ok(), "a walk hangs");
    });
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    texts(&[
        "t/0@s1795252948000",
        "t@u5@s6",
        "topics/t/0.log",
        "topics/t/1.jsonl@s1795252948000",
        "topics/t/by-key/%41%00%~",
        "topics/t@2026-11-21T09:00:00Z/0.values",
        ".at/s1795252948000/topics/t/0.log",
        ".at/s5..s1795252948000/offsets/g/t/0",
        ".at/u5@s1795252948000/topics/t/by-key",
        "files/a/b@s5",
        "znodes/zookeeper/quota/data",
        "offsets/g%2Fh/t/0",
        "../..",
    ])
}
