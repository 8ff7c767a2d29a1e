//! The view of readers while transactions are open, and as of a moment.

use std::sync::Arc;

use engine::diff::{DiffPageRequest, DiffSection, Difference};
use engine::groups::{GroupSeekTarget, GroupSetMode};
use engine::{Isolation, SeekError, WaitPolicy};
use fileview::tree::{TreeOptions, ViewTree};
use hlc::{Cut, Moment};
use storage::disk::MemoryDisk;
use testkit::kafka::{TestKafkaServer, one_record_batch};
use testkit::requests::list_offsets_request;

use super::fixture::{
    COMMITTED, Protocol, TransactionalProducer, UNCOMMITTED, create, read, server_on,
};

/// The name of a topic as of now: everything that happened before the call, and nothing after it.
pub(crate) fn moment_topic(server: &TestKafkaServer, topic: &str) -> String {
    format!("{topic}@{}", Moment::Sys(Cut::through(server.engine.last_stamp())))
}

#[tokio::test]
async fn an_open_transaction_holds_readers_of_what_is_committed_and_no_others() {
    let server = server_on(&MemoryDisk::new()).await;
    create(&server, "t", 1).await;
    let mut plain = server.connect().await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
    plain.produce("t", one_record_batch(b"before")).await;
    producer.must_send("t", 0, "inside").await;
    plain.produce("t", one_record_batch(b"behind")).await;
    let committed = read(&mut plain, "t", 0, COMMITTED).await;
    assert_eq!((committed.values, committed.last_stable), (vec!["before".to_owned()], 1));
    let all = read(&mut plain, "t", 0, UNCOMMITTED).await;
    assert_eq!((all.values.len(), all.last_stable, all.high_watermark), (3, 1, 3));
    for (isolation, end) in [(COMMITTED, 1), (UNCOMMITTED, 3)] {
        let request = list_offsets_request("t", 0, -1).with_isolation_level(isolation);
        let answer = plain.ask(8, &request).await.unwrap();
        assert_eq!(answer.topics[0].partitions[0].offset, end);
    }
    producer.must_end(true).await;
    let committed = read(&mut plain, "t", 0, COMMITTED).await;
    assert_eq!(committed.values, ["before", "inside", "behind"]);
    assert_eq!((committed.last_stable, committed.high_watermark), (4, 4));
}

/// The bytes of a file of the tree.
async fn read_file(tree: &ViewTree, path: &str) -> String {
    let mut node = tree.root();
    for name in path.split('/') {
        node = tree.lookup(&node, name.as_bytes()).await.unwrap();
    }
    let open = tree.open(&node).await.unwrap();
    let bytes = open.read(0, 1 << 16).await.unwrap();
    assert_eq!((open.size().await.unwrap(), bytes.len()), (bytes.len() as u64, bytes.len()));
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_show_what_is_committed_or_all_and_share_what_they_keep_in_memory() {
    let server = server_on(&MemoryDisk::new()).await;
    create(&server, "t", 1).await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
    producer.must_send("t", 0, "aborted").await;
    producer.must_end(false).await;
    producer.must_send("t", 0, "kept").await;
    producer.must_end(true).await;
    producer.must_send("t", 0, "open").await;
    let moment = moment_topic(&server, "t");
    let committed = ViewTree::new(Arc::clone(&server.engine), TreeOptions::default());
    let all = committed.with_isolation(Isolation::Uncommitted);
    // Both ways round, so that what one has kept would be found by the other.
    for trees in [[&committed, &all], [&all, &committed]] {
        for tree in trees {
            let expected =
                if std::ptr::eq(tree, &all) { "aborted\nkept\nopen\n" } else { "kept\n" };
            for topic in ["t", &moment] {
                let path = format!("topics/{topic}/0.values");
                assert_eq!(read_file(tree, &path).await, expected, "{path}");
            }
        }
    }
    producer.must_end(true).await;
    assert_eq!(read_file(&committed, "topics/t/0.values").await, "kept\nopen\n");
    let path = format!("topics/{moment}/0.values");
    assert_eq!(read_file(&committed, &path).await, "kept\n", "it was open then");
}

/// The offsets and the records that were appended to the first partition of `t` between two
/// moments.
async fn appended(
    server: &TestKafkaServer,
    from: Cut,
    until: Cut,
    isolation: Isolation,
) -> Result<Option<(u64, u64, u64)>, SeekError> {
    let topics = ["t".to_owned()];
    let ask = DiffPageRequest {
        from,
        until,
        topics: Some(&topics),
        only: Some(&[DiffSection::Records]),
        isolation,
        after: None,
        limit: 10,
    };
    let page = server.engine.diff(ask, WaitPolicy::Refuse).await?;
    assert_eq!(page.next, None);
    Ok(page.differences.iter().find_map(|difference| match difference {
        Difference::Appended { partition: 0, start, end, records, .. } => {
            Some((start.0, end.0, *records))
        }
        Difference::Appended { .. } => None,
        _ => panic!("{difference:?}"),
    }))
}

#[tokio::test]
async fn a_difference_has_the_records_of_a_transaction_when_it_is_committed() {
    const C: Isolation = Isolation::Committed;
    const U: Isolation = Isolation::Uncommitted;
    let server = server_on(&MemoryDisk::new()).await;
    let now = || Cut::through(server.engine.last_stamp());
    create(&server, "t", 2).await;
    let mut plain = server.connect().await;
    let mut kept = TransactionalProducer::start(&server, Protocol::V1, "kept").await;
    let mut aborted = TransactionalProducer::start(&server, Protocol::V2, "aborted").await;
    let empty = now();
    kept.must_send("t", 0, "kept").await;
    kept.must_send("t", 1, "kept").await;
    aborted.must_send("t", 0, "aborted").await;
    plain.produce("t", one_record_batch(b"plain")).await;
    let open = now();
    assert_eq!(appended(&server, empty, open, C).await.unwrap(), Some((2, 3, 1)));
    assert_eq!(appended(&server, empty, open, U).await.unwrap(), Some((0, 3, 3)));
    aborted.must_end(false).await;
    let other_aborted = now();
    assert_eq!(appended(&server, open, other_aborted, C).await.unwrap(), None);
    assert_eq!(appended(&server, open, other_aborted, U).await.unwrap(), Some((3, 4, 1)));
    plain.produce("t", one_record_batch(b"plain")).await;
    kept.must_end(true).await;
    let ended = now();
    assert_eq!(appended(&server, open, ended, C).await.unwrap(), Some((0, 5, 2)));
    assert_eq!(appended(&server, other_aborted, ended, C).await.unwrap(), Some((0, 5, 2)));
    assert_eq!(appended(&server, empty, ended, C).await.unwrap(), Some((0, 5, 3)));
    // The records before the earlier moment are gone, and the transaction began there.
    let topic = server.engine.topics().named("t").unwrap();
    for partition in 0..2 {
        server.engine.topics().delete_records(&topic, partition, 1).await.unwrap();
    }
    let refused = appended(&server, open, ended, C).await;
    let Err(SeekError::BeforeHistory { lost }) = refused else { panic!("{refused:?}") };
    assert_eq!(lost.iter().map(|one| one.partition).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(appended(&server, open, ended, U).await.unwrap(), Some((3, 6, 3)));
    let earliest = Cut::below(lost[0].earliest);
    assert!(open < earliest && earliest <= ended);
    assert_eq!(appended(&server, earliest, ended, C).await.unwrap(), None);
}

#[tokio::test]
async fn what_is_committed_after_its_topic_was_deleted_was_never_appended() {
    let server = server_on(&MemoryDisk::new()).await;
    let now = || Cut::through(server.engine.last_stamp());
    create(&server, "t", 1).await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
    let empty = now();
    producer.must_send("t", 0, "committed").await;
    producer.must_end(true).await;
    let committed = now();
    producer.must_send("t", 0, "open").await;
    let open = now();
    let topic = server.engine.topics().named("t").unwrap();
    server.engine.topics().delete(topic.id).await.unwrap();
    producer.must_end(true).await;
    let ended = now();
    const C: Isolation = Isolation::Committed;
    assert_eq!(appended(&server, empty, open, C).await.unwrap(), Some((0, 1, 1)));
    assert_eq!(appended(&server, committed, ended, C).await.unwrap(), None);
    assert_eq!(appended(&server, open, ended, C).await.unwrap(), None);
    let all = appended(&server, committed, ended, Isolation::Uncommitted).await.unwrap();
    assert_eq!(all, Some((2, 3, 1)));
}

#[tokio::test]
async fn what_is_aborted_is_left_out_also_where_it_began_before_others_that_are_open() {
    let server = server_on(&MemoryDisk::new()).await;
    create(&server, "t", 1).await;
    let mut first = TransactionalProducer::start(&server, Protocol::V1, "first").await;
    let mut second = TransactionalProducer::start(&server, Protocol::V2, "second").await;
    for round in 0..3 {
        first.must_send("t", 0, &format!("aborted {round}")).await;
        second.must_send("t", 0, &format!("kept {round}")).await;
        first.must_end(false).await;
        let found = read(&mut first.connection, "t", 0, COMMITTED).await;
        assert_eq!(found.values.len(), round, "the second is open");
        second.must_end(true).await;
        let found = read(&mut first.connection, "t", 0, COMMITTED).await;
        assert_eq!(found.values.len(), round + 1);
        assert!(found.values.iter().all(|value| value.starts_with("kept")));
    }
    assert_eq!(read(&mut first.connection, "t", 0, UNCOMMITTED).await.values.len(), 6);
}

#[tokio::test]
async fn a_moment_has_a_transaction_if_it_was_decided_before_and_is_never_held_back() {
    let server = server_on(&MemoryDisk::new()).await;
    create(&server, "t", 1).await;
    let mut reader = server.connect().await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
    producer.must_send("t", 0, "first").await;
    producer.must_end(true).await;
    let decided = moment_topic(&server, "t");
    producer.must_send("t", 0, "second").await;
    let open = moment_topic(&server, "t");
    for (moment, committed, all) in [(&decided, 1, 1), (&open, 1, 2)] {
        let found = read(&mut reader, moment, 0, COMMITTED).await;
        assert_eq!(found.values.len(), committed, "{moment}");
        assert_eq!(found.last_stable, found.high_watermark, "a moment is stable to its end");
        assert_eq!(read(&mut reader, moment, 0, UNCOMMITTED).await.values.len(), all);
    }
    producer.must_end(true).await;
    let later = moment_topic(&server, "t");
    // The same moment shows the same, although its transaction is committed since.
    assert_eq!(read(&mut reader, &open, 0, COMMITTED).await.values, ["first"]);
    assert_eq!(read(&mut reader, &later, 0, COMMITTED).await.values, ["first", "second"]);
}

/// The bound of a cut is any stamp, also one between a decision and its markers.
#[tokio::test]
async fn at_every_stamp_a_transaction_is_on_all_partitions_or_on_none() {
    for commits in [true, false] {
        let server = server_on(&MemoryDisk::new()).await;
        create(&server, "t", 3).await;
        let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
        for partition in 0..3 {
            producer.must_send("t", partition, "value").await;
        }
        let written = server.engine.last_stamp();
        producer.must_end(commits).await;
        let mut reader = server.connect().await;
        let (mut stamp, mut seen, mut hashes) = (written, Vec::new(), Vec::new());
        while stamp <= server.engine.last_stamp() {
            stamp = stamp.next();
            let cut = Cut::below(stamp);
            let name = format!("t@{}", Moment::Sys(cut));
            let mut shown = Vec::new();
            for partition in 0..3 {
                shown.push(read(&mut reader, &name, partition, COMMITTED).await.values.len());
            }
            assert!(shown.iter().all(|count| *count == shown[0]), "{name}: {shown:?}");
            seen.push(shown[0]);
            let cuts = server.engine.cuts().with_isolation(Isolation::Committed);
            hashes.push(cuts.at(cut, None, WaitPolicy::Refuse).await.unwrap().hash);
        }
        let changes = seen.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(changes, usize::from(commits), "{seen:?}");
        // The decision makes another cut, although no partition has another record.
        let at = seen.iter().position(|count| *count > 0);
        if let Some(at) = at {
            assert_ne!(hashes[at - 1], hashes[at]);
        }
    }
}

#[tokio::test]
async fn a_group_that_reads_committed_records_goes_on_where_the_oldest_was_not_decided() {
    let server = server_on(&MemoryDisk::new()).await;
    create(&server, "t", 1).await;
    let mut plain = server.connect().await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
    plain.produce("t", one_record_batch(b"before")).await;
    producer.must_send("t", 0, "open").await;
    plain.produce("t", one_record_batch(b"behind")).await;
    let moment = Moment::Sys(Cut::through(server.engine.last_stamp()));
    producer.must_end(true).await;
    let topics = ["t".to_owned()];
    for (isolation, next) in [(Isolation::Committed, 1), (Isolation::Uncommitted, 3)] {
        let target = GroupSeekTarget { moment, topics: Some(&topics), isolation };
        let groups = server.engine.groups();
        let set = groups.seek("g", target, WaitPolicy::Refuse, GroupSetMode::DryRun).await.unwrap();
        let after: Vec<_> = set.offsets.iter().filter_map(|offset| offset.after).collect();
        assert_eq!(after, [next], "{isolation:?}");
    }
}
