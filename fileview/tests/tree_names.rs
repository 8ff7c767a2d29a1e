//! Names in the tree refer to what was there at the requested moment (B13), a path never leaves the
//! tree, and each refusal has its own error number.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::Durability;
use fileview::tree::{TreeError, TreeOptions, ViewNode, ViewNodeKind};
use hlc::{Cut, Moment, SysTime};
use kafka_records::CompressionType;
use proptest::prelude::*;
use testkit::kafka::START;

use crate::fixture::{TreeFixture, read_node, record};

fn at(cut: Cut) -> String {
    Moment::Sys(cut).to_string()
}

/// A topic, a file and a committed offset. Then the topic is deleted and created again.
async fn orders_fixture() -> (TreeFixture, String, String) {
    let fixture = TreeFixture::new();
    fixture.topic("orders", 2, &[]).await;
    fixture.produce("orders", 0, &[record("a", "1", 10), record("b", "2", 20)]).await;
    fixture.produce("orders", 1, &[record("c", "3", 15)]).await;
    fixture.commit("g/1", "orders", 1, 7).await;
    let files = fixture.engine.files();
    files.mkdir(b"d", 0o755).await.unwrap();
    let file = files.create(b"d/f", 0o640).await.unwrap();
    file.write_at(0, b"first".as_slice().into(), Durability::Written).await.unwrap();
    let moment = at(fixture.now());
    file.write_at(0, b"second".as_slice().into(), Durability::Written).await.unwrap();
    let topic = fixture.engine.topics().named("orders").unwrap();
    fixture.engine.topics().delete(topic.id).await.unwrap();
    fixture.advance_clock(1);
    let between = at(fixture.now());
    fixture.topic("orders", 1, &[]).await;
    fixture.produce("orders", 0, &[record("a", "9", 5)]).await;
    fixture.advance_clock(1);
    (fixture, moment, between)
}

#[tokio::test]
async fn everything_has_its_place_and_its_past() {
    let (fixture, moment, between) = orders_fixture().await;
    assert_eq!(fixture.names("/").await, [".at", "files", "offsets", "topics", "znodes"]);
    assert_eq!(fixture.names("/topics").await, ["orders"]);
    assert_eq!(fixture.names("/topics/orders").await, ["0.jsonl", "0.log", "0.values", "by-key"]);
    assert_eq!(fixture.text("/topics/orders/0.values").await, "9\n");
    let names = fixture.names(&format!("/.at/{moment}/topics/orders")).await;
    assert_eq!(names.len(), 7, "two partitions: {names:?}");
    for path in [
        format!("/.at/{moment}/topics/orders/0.values"),
        format!("topics/orders@{moment}/0.values"),
        format!("topics/orders/0.values@{moment}"),
        format!("/topics/../topics/./orders/0.values@{moment}"),
    ] {
        assert_eq!(fixture.text(&path).await, "1\n2\n", "{path}");
    }
    assert_eq!(fixture.names(&format!("/.at/{between}/topics")).await, [""; 0]);
    assert_eq!(fixture.errno(&format!("topics/orders/0.values@{between}")).await, 2);
    let names = fixture.names(&format!("/.at/{moment}")).await;
    assert_eq!(names, ["files", "offsets", "topics", "znodes"]);
    let by_key = fixture.names(&format!("/.at/{moment}/topics/orders/by-key")).await;
    assert_eq!(by_key, ["a", "b", "c"]);
    assert_eq!(fixture.text("/topics/orders/by-key/a").await, "9");
    assert_eq!(fixture.text(&format!("/topics/orders/by-key/a@{moment}")).await, "1");
    // The commits of a topic are deleted with it, but not from the past.
    assert_eq!(fixture.names("/offsets").await, [""; 0]);
    assert_eq!(fixture.names(&format!("/.at/{moment}/offsets")).await, ["g%2F1"]);
    assert_eq!(fixture.text(&format!("/.at/{moment}/offsets/g%2F1/orders/1")).await, "7\n");
    assert_eq!(fixture.text("/files/d/f").await, "second");
    assert_eq!(fixture.text(&format!("/files/d/f@{moment}")).await, "first");
    assert_eq!(fixture.text(&format!("/files/d@{moment}/f")).await, "first");
    assert_eq!(fixture.text(&format!("/.at/{moment}/files/d/f")).await, "first");
    let stat = fixture.tree.stat(&fixture.node("/files/d/f").await.unwrap()).await.unwrap();
    assert_eq!((stat.mode, stat.size, stat.grows), (0o640, 6, true));
}

#[tokio::test]
async fn a_file_renamed_or_deleted_since_is_found_by_the_path_that_it_had() {
    let (fixture, moment, _) = orders_fixture().await;
    let files = fixture.engine.files();
    files.rename(b"d", b"e").await.unwrap();
    files.mkdir(b"d", 0o755).await.unwrap();
    assert_eq!(fixture.errno("/files/d/f").await, 2);
    assert_eq!(fixture.text(&format!("/files/d/f@{moment}")).await, "first");
    files.rmdir(b"d").await.unwrap();
    files.unlink(b"e/f").await.unwrap();
    assert_eq!(fixture.text(&format!("/files/d/f@{moment}")).await, "first");
    assert_eq!(fixture.text(&format!("/.at/{moment}/files/d/f")).await, "first");
}

#[tokio::test]
async fn a_name_with_an_at_of_its_own_wins_over_a_moment() {
    let (fixture, moment, _) = orders_fixture().await;
    let files = fixture.engine.files();
    let name = format!("d/f@{moment}");
    assert_eq!(fixture.text(&format!("/files/{name}")).await, "first");
    let file = files.create(name.as_bytes(), 0o644).await.unwrap();
    file.write_at(0, b"its own".as_slice().into(), Durability::Written).await.unwrap();
    assert_eq!(fixture.text(&format!("/files/{name}")).await, "its own");
    fixture.advance_clock(1);
    let later = at(fixture.now());
    assert_eq!(fixture.text(&format!("/files/{name}@{later}")).await, "its own");
    // A program that is about to create a file learns that it does not exist, whatever the name
    // looks like.
    for name in ["x@y", "x@s5", "x@u5", "x@s1..s2", "x@s9999999999999", "@", "x@", "\u{fc}@1"] {
        assert_eq!(fixture.errno(&format!("/files/{name}")).await, 2, "{name}");
    }
}

#[tokio::test]
async fn by_user_time_a_partition_is_the_exact_set_and_a_window_what_lies_in_it() {
    let (fixture, moment, _) = orders_fixture().await;
    let path = |selector: &str| format!("/.at/{selector}@{moment}/topics/orders/0.values");
    assert_eq!(fixture.text(&path("u15")).await, "1\n");
    assert_eq!(fixture.text(&path("u10")).await, "");
    assert_eq!(fixture.text(&path("u99")).await, "1\n2\n");
    let window = format!("/.at/u10@{moment}..u20@{moment}/topics/orders");
    assert_eq!(fixture.text(&format!("{window}/0.values")).await, "1\n");
    assert_eq!(fixture.names(&format!("{window}/by-key")).await, ["a", "c"]);
    assert_eq!(fixture.errno(&format!("{window}/0.log")).await, 22);
    assert_eq!(fixture.names(&format!("/.at/u15@{moment}")).await, ["topics"]);
    for path in ["files/d/f", "offsets"] {
        assert_eq!(fixture.errno(&format!("/.at/u15@{moment}/{path}")).await, 22, "{path}");
    }
    fixture.produce("orders", 0, &[record("a", "10", 6)]).await;
    fixture.advance_clock(1);
    let now = at(fixture.now());
    let rest = format!("/.at/{moment}..{now}");
    assert_eq!(fixture.text(&format!("{rest}/topics/orders/0.values")).await, "9\n10\n");
    assert_eq!(fixture.errno(&format!("{rest}/files")).await, 22);
}

#[tokio::test]
async fn by_user_time_what_was_removed_by_retention_is_an_error_and_not_less() {
    for is_freed in [false, true] {
        let fixture = TreeFixture::new();
        let topic = fixture.topic("t", 1, &[]).await;
        for time in [10, 20, 30] {
            fixture.produce("t", 0, &[record("k", &time.to_string(), time)]).await;
        }
        fixture.advance_clock(1);
        fixture.roll_and_index().await;
        let open = fixture.node("/topics/t/0.values@u5..u25").await.unwrap();
        let open = fixture.tree.open(&open).await.unwrap();
        fixture.engine.topics().delete_records(&topic, 0, 2).await.unwrap();
        if is_freed {
            fixture.reclaim().await;
        }
        fixture.advance_clock(1);
        let now = at(fixture.now());
        for selector in ["u10", "u15", "u20", "u5..u15", "u10..u20", "u20..u40", "u15..u25"] {
            for (from, name) in [("topics/t", "0.values"), ("topics", "t/by-key")] {
                let selector = selector.replace("..", &format!("@{now}.."));
                let path = format!("/.at/{selector}@{now}/{from}/{name}");
                let result = match fixture.node(&path).await {
                    Ok(node) if name == "t/by-key" => {
                        fixture.tree.list(&node, 0, 10).await.map(drop)
                    }
                    Ok(_) => fixture.read(&path).await.map(drop),
                    Err(error) => Err(error),
                };
                let refused = matches!(result, Err(TreeError::BeforeHistory(_)));
                assert!(refused, "{path}, reclaimed={is_freed}: {result:?}");
            }
        }
        assert_eq!(open.read(0, 10).await.unwrap_err().errno(), 116, "also of what was opened");
        // Moments after everything that was removed are complete.
        for selector in ["u30", "u35", "u25..u35", "u30..u31", "u21..u30"] {
            let expected = if ["u30", "u21..u30"].contains(&selector) { "" } else { "30\n" };
            assert_eq!(
                fixture.text(&format!("/.at/{selector}/topics/t/0.values")).await,
                expected,
                "{selector}"
            );
        }
    }
}

/// A record that was superseded by one with a later user time is gone, but it belongs to the
/// moment.
#[tokio::test]
async fn by_user_time_what_was_compacted_is_an_error_and_not_less() {
    let fixture = TreeFixture::new();
    let configs = [("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0")];
    fixture.topic("t", 1, &configs).await;
    fixture.produce("t", 0, &[record("k", "old", 10)]).await;
    fixture.advance_clock(1);
    fixture.produce("t", 0, &[record("k", "new", 20)]).await;
    fixture.advance_clock(1);
    fixture.roll_and_index().await;
    assert_eq!(fixture.engine.maintenance().compact_due().await.unwrap(), 1);
    fixture.produce("t", 0, &[record("l", "later", 30)]).await;
    fixture.advance_clock(1);
    for selector in ["u15", "u20", "u5..u15"] {
        assert_eq!(
            fixture.errno(&format!("/.at/{selector}/topics/t/0.values")).await,
            116,
            "{selector}"
        );
    }
    assert_eq!(fixture.text("/.at/u25..u35/topics/t/0.values").await, "later\n");
}

#[tokio::test]
async fn a_user_time_is_as_known_when_it_was_first_asked_for() {
    let (fixture, ..) = orders_fixture().await;
    assert_eq!(fixture.text("/.at/u6/topics/orders/0.values").await, "9\n");
    fixture.produce("orders", 0, &[record("z", "late", 4)]).await;
    fixture.advance_clock(1);
    assert_eq!(fixture.text("/.at/u6/topics/orders/0.values").await, "9\n");
    assert_eq!(fixture.text("/.at/u7/topics/orders/0.values").await, "9\nlate\n");
}

#[tokio::test]
async fn pins_are_links_to_their_moments() {
    let (fixture, moment, _) = orders_fixture().await;
    let Ok(Moment::Sys(cut)) = moment.parse() else { panic!("{moment}") };
    let expires = SysTime(START + 1_000_000);
    let topics = ["orders".to_owned()];
    fixture
        .engine
        .pins()
        .set("audit", cut, engine::WaitPolicy::Refuse, expires, Some(&topics))
        .await
        .unwrap();
    assert_eq!(fixture.names("/.at").await, ["audit"]);
    let node = fixture.node("/.at/audit").await.unwrap();
    assert_eq!(fixture.tree.stat(&node).await.unwrap().kind, ViewNodeKind::Symlink);
    assert_eq!(fixture.tree.read_link(&node).await.unwrap(), moment.as_bytes());
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_with_a_number_of_its_own() {
    let options = TreeOptions { patience: Duration::from_millis(50), ..TreeOptions::default() };
    let fixture = TreeFixture::with(options);
    fixture.topic("t", 1, &[]).await;
    fixture.produce("t", 0, &[record("a", "1", 10)]).await;
    fixture.advance_clock(1);
    let early = at(fixture.now());
    fixture.produce("t", 0, &[record("b", "2", 10)]).await;
    fixture.produce("t", 0, &[record("c", "3", 10)]).await;
    let long = "x".repeat(256);
    for (path, errno) in [
        ("/nothing", 2),
        ("/topics/u", 2),
        ("/topics/t/1.log", 2),
        ("/topics/t/00.log", 2),
        ("/topics/t/0", 2),
        ("/topics/t/by-key/%zz", 2),
        ("/.at/s1/topics/t/0.log", 2),
        ("/topics/t/0.log/x", 20),
        ("/topics/t", 21),
        ("/files", 21),
        ("/..", 18),
        ("/topics/../../etc/passwd", 18),
        ("/topics/t\0", 22),
        ("/topics/t@yesterday/0.log", 22),
        ("/.at/yesterday", 22),
        ("/.at/s5..s5", 22),
        ("/.at/s9..s5", 22),
        ("/.at/s5..u6", 22),
        ("/.at/s9999999999999/topics", 34),
        ("/topics/t@s9999999999999", 34),
        (&format!("/topics/{long}"), 36),
        (&"x/".repeat(4000), 36),
    ] {
        assert_eq!(fixture.errno(path).await, errno, "{path:?}");
    }
    let nested = format!("/.at/{early}/topics/t@{early}");
    assert_eq!(fixture.errno(&nested).await, 22);
    let topic = fixture.engine.topics().named("t").unwrap();
    let open = fixture.tree.open(&fixture.node("/topics/t/0.values").await.unwrap()).await.unwrap();
    fixture.engine.topics().delete_records(&topic, 0, 2).await.unwrap();
    assert_eq!(fixture.errno(&format!("/.at/{early}/topics/t/0.values")).await, 116);
    assert_eq!(open.read(4, 10).await.unwrap(), "3\n");
    assert!(matches!(open.read(0, 10).await, Err(TreeError::Gone(_))));
}

#[tokio::test]
async fn what_a_moment_shows_has_another_version_once_it_is_less_or_compacted() {
    let fixture = TreeFixture::new();
    let configs = [
        ("cleanup.policy", "compact"),
        ("min.cleanable.dirty.ratio", "0"),
        ("retention.ms", "300"),
    ];
    fixture.topic("t", 1, &configs).await;
    for value in ["1", "2", "3"] {
        fixture.produce("t", 0, &[record("a", value, 10)]).await;
    }
    fixture.advance_clock(1);
    let moment = at(fixture.now());
    fixture.advance_clock(1);
    let mut nodes = Vec::new();
    for name in ["0.values", "0.log", "by-key/a"] {
        nodes.push(fixture.node(&format!("/.at/{moment}/topics/t/{name}")).await.unwrap());
    }
    let versions = async || {
        let mut versions = Vec::new();
        for node in &nodes {
            versions.push(fixture.tree.version(node).await.unwrap());
        }
        versions
    };
    let first = versions().await;
    let topic = fixture.engine.topics().named("t").unwrap();
    fixture.engine.topics().delete_records(&topic, 0, 1).await.unwrap();
    let second = versions().await;
    fixture.advance_clock(1000);
    fixture.roll_and_index().await;
    assert_eq!(fixture.engine.maintenance().compact_due().await.unwrap(), 1);
    let third = versions().await;
    fixture.produce("t", 0, &[record("b", "4", 10)]).await;
    assert_eq!(versions().await, third, "what comes later is no part of it");
    for nth in 0..nodes.len() {
        assert_ne!(first[nth], second[nth], "{nth}");
        assert_ne!(second[nth], third[nth], "{nth}");
        assert_ne!(first[nth], third[nth], "{nth}");
    }
    let present = fixture.node("/topics/t/0.values").await.unwrap();
    assert_eq!(fixture.tree.version(&present).await.unwrap(), 0);
}

#[tokio::test]
async fn a_node_keeps_its_number_and_others_have_others() {
    let (fixture, moment, between) = orders_fixture().await;
    let mut numbers = std::collections::BTreeMap::new();
    let paths = [
        "/".to_owned(),
        "/.at".to_owned(),
        "/topics".to_owned(),
        "/topics/orders".to_owned(),
        "/topics/orders/0.log".to_owned(),
        "/topics/orders/0.values".to_owned(),
        "/topics/orders/by-key".to_owned(),
        "/topics/orders/by-key/a".to_owned(),
        "/files".to_owned(),
        "/files/d".to_owned(),
        "/files/d/f".to_owned(),
        "/offsets".to_owned(),
        format!("/.at/{moment}"),
        format!("/.at/{moment}/topics"),
        format!("/.at/{moment}/topics/orders"),
        format!("/.at/{moment}/files"),
        format!("/.at/{moment}/files/d/f"),
        format!("/.at/{between}/files/d/f"),
        format!("/.at/{moment}/offsets/g%2F1/orders/1"),
    ];
    for path in &paths {
        numbers.insert(fixture.node(path).await.unwrap().inode(), path.clone());
    }
    assert_eq!(numbers.len(), paths.len(), "{numbers:?}");
    let fixture = fixture.restart();
    for (number, path) in &numbers {
        assert_eq!(fixture.node(path).await.unwrap().inode(), *number, "{path}");
    }
}

#[tokio::test]
async fn a_growing_partition_can_be_followed_and_a_moment_of_it_does_not_move() {
    let fixture = TreeFixture::new();
    fixture.topic("t", 1, &[]).await;
    fixture.produce("t", 0, &[record("a", "one", 1)]).await;
    fixture.advance_clock(1);
    let moment = at(fixture.now());
    for extension in ["values", "jsonl", "log"] {
        let growing = format!("/topics/t/0.{extension}");
        let open = fixture.tree.open(&fixture.node(&growing).await.unwrap()).await.unwrap();
        let past =
            fixture.tree.open(&fixture.node(&format!("{growing}@{moment}")).await.unwrap()).await;
        let past = past.unwrap();
        let (before, pinned) = (open.size().await.unwrap(), past.size().await.unwrap());
        fixture.produce("t", 0, &[record("a", "two", 1)]).await;
        let appended = open.read(before, 1 << 20).await.unwrap();
        assert_eq!(open.size().await.unwrap(), before + appended.len() as u64, "{extension}");
        assert!(!appended.is_empty(), "{extension}");
        assert_eq!(past.size().await.unwrap(), pinned);
        assert!(past.read(pinned, 100).await.unwrap().is_empty());
    }
}

/// More than what is cached between two reads.
#[tokio::test]
async fn a_batch_that_unpacks_to_much_is_read_in_parts() {
    let fixture = TreeFixture::new();
    fixture.topic("t", 1, &[]).await;
    let line = |nth: u8| String::from(char::from(b'a' + nth)).repeat(100_000);
    for batch in 0..2 {
        let records: Vec<_> = (0..20).map(|nth| record("k", &line(nth + batch), 1)).collect();
        fixture.produce_as("t", 0, &records, CompressionType::Lz4).await;
    }
    let all: String = (0..2)
        .flat_map(|batch| (0..20).map(move |nth| nth + batch))
        .map(|nth| line(nth) + "\n")
        .collect();
    let node = fixture.node("/topics/t/0.values").await.unwrap();
    assert!(read_node(&fixture.tree, &node, 128 << 10).await.unwrap() == all.as_bytes());
    let open = fixture.tree.open(&node).await.unwrap();
    for at in [3_000_000, 100_000, 1_999_999, 2_000_001, 0] {
        let read = open.read(at as u64, 300_000).await.unwrap();
        assert!(read == all.as_bytes()[at..at + 300_000], "at {at}");
    }
}

/// F44.
#[tokio::test]
async fn one_file_is_open_at_a_hundred_moments_at_once() {
    let fixture = TreeFixture::new();
    fixture.topic("t", 1, &[]).await;
    let mut opened = Vec::new();
    for count in 0..100 {
        let path = format!("/topics/t/0.values@{}", at(fixture.now()));
        opened.push((count, fixture.tree.open(&fixture.node(&path).await.unwrap()).await.unwrap()));
        fixture.produce("t", 0, &[record("a", &format!("value {count}"), count)]).await;
        fixture.advance_clock(1);
    }
    let all = fixture.text("/topics/t/0.values").await;
    for (count, open) in opened.iter().rev() {
        let length = all.split_inclusive('\n').take(*count as usize).map(str::len).sum();
        assert_eq!(open.read(0, 1 << 20).await.unwrap(), all[..length], "{count}");
    }
}

#[test]
fn a_tree_is_used_by_many_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<fileview::tree::ViewTree>();
    shared::<fileview::tree::OpenNode>();
    fn sent<T: Send>(_: T) {}
    let fixture = TreeFixture::new();
    let node = ViewNode::Root(None);
    sent(fixture.tree.resolve(b"/"));
    sent(fixture.tree.stat(&node));
    sent(fixture.tree.list(&node, 0, 1));
    sent(async {
        let open = fixture.tree.open(&node).await?;
        open.read(0, 1).await
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_path_panics_and_none_leads_out(
        parts in prop::collection::vec(
            prop_oneof![
                "topics|offsets|files|\\.at|t|\\.\\.|\\.|by-key|0\\.log|0\\.values|0\\.jsonl|s5|u5@s6",
                "[a-z0-9@.%/:+s u\\x00-]{0,12}",
            ],
            0..6,
        ),
    ) {
        let path = parts.join("/");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let options = TreeOptions { patience: Duration::ZERO, ..TreeOptions::default() };
            let fixture = TreeFixture::with(options);
            fixture.topic("t", 1, &[]).await;
            if let Ok(node) = fixture.tree.resolve(path.as_bytes()).await {
                let kind = fixture.tree.stat(&node).await.map(|stat| stat.kind);
                match kind {
                    Ok(ViewNodeKind::Directory) => {
                        fixture.tree.list(&node, 0, 10).await.unwrap();
                        assert!(fixture.tree.open(&node).await.is_err());
                    }
                    Ok(_) => assert!(fixture.tree.list(&node, 0, 10).await.is_err()),
                    Err(_) => {}
                }
            }
        });
    }
}

/// One change of an extended attribute, of one of three files.
fn change() -> impl Strategy<Value = (usize, usize, Option<u8>)> {
    (0..3usize, 0..3usize, prop::option::weighted(0.7, any::<u8>()))
}

async fn attributes_are_what_they_were(changes: Vec<(usize, usize, Option<u8>)>) {
    const FILES: [&str; 3] = ["a", "b@c", "directory"];
    const NAMES: [&str; 3] = ["user.x", "user.a/b", "trusted.y"];
    let fixture = TreeFixture::new();
    let files = fixture.engine.files();
    let mut inodes = Vec::new();
    for name in &FILES[..2] {
        inodes.push(files.create(*name, 0o644).await.unwrap().inode());
    }
    inodes.push(files.mkdir(FILES[2], 0o755).await.unwrap());
    let mut model: [BTreeMap<&str, Vec<u8>>; 3] = Default::default();
    let mut moments = vec![(Moment::Sys(fixture.now()).to_string(), model.clone())];
    for (file, name, value) in changes {
        let value = value.map(|byte| vec![byte; usize::from(byte)]);
        files.set_xattr(inodes[file], NAMES[name].as_bytes(), value.as_deref()).await.unwrap();
        match value {
            Some(value) => drop(model[file].insert(NAMES[name], value)),
            None => drop(model[file].remove(NAMES[name])),
        }
        moments.push((Moment::Sys(fixture.now()).to_string(), model.clone()));
    }
    // A file without a name still has a past.
    files.unlink(FILES[0]).await.unwrap();
    fixture.roll_and_index().await;
    let fixture = fixture.restart();
    for (moment, model) in &moments {
        for (file, expected) in FILES.iter().zip(model) {
            for path in [format!("/files/{file}@{moment}"), format!("/.at/{moment}/files/{file}")] {
                let node = fixture.node(&path).await.unwrap();
                let names = fixture.tree.extended_attribute_names(&node).unwrap();
                assert!(names.iter().eq(expected.keys().map(|name| name.as_bytes())), "{path}");
                for name in NAMES {
                    let value = fixture.tree.extended_attribute(&node, name.as_bytes()).unwrap();
                    assert_eq!(value.as_ref(), expected.get(name), "{path} {name}");
                }
            }
        }
    }
    let partition = fixture.node("/topics").await.unwrap();
    assert_eq!(fixture.tree.extended_attribute(&partition, b"user.x").unwrap(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn extended_attributes_of_a_moment_are_those_of_a_plain_model(
        changes in prop::collection::vec(change(), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(attributes_are_what_they_were(changes));
    }
}
