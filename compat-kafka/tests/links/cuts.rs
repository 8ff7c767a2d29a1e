//! Cuts of many partitions, and the stamps on messages.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use client::history::PendingMomentPolicy;
use client::{Client, ClientError, FetchOptions, LinkChoice, RequiredAcks};
use hlc::{Cut, Hlc, Moment, MomentSelector};
use kafka_records::BatchIterator;

use crate::fixture::{LIMIT, LinkServer, batch, produce, record_values, run};

/// A cut of many partitions, complete or not at all, by either link.
#[test]
fn a_cut_of_100_partitions_is_what_they_were() {
    run(async {
        let server = LinkServer::start().await;
        let topics = ["a", "b", "c", "d"];
        for topic in topics {
            server.topic(topic, 25).await;
        }
        let mut writer = server.client(LinkChoice::Tcp).await;
        // Three rounds, with a moment after the first two. One partition is long, one has nothing.
        let (mut rounds, mut moments) = (Vec::new(), Vec::new());
        for round in 0..3_u64 {
            let mut written = BTreeMap::new();
            for (topic, seed) in topics.iter().zip(0..) {
                for partition in 0..25 {
                    let place = (seed, partition);
                    let length = match place {
                        (1, 7) => 3_000_000,
                        (2, 3) => continue,
                        _ => 5000,
                    };
                    let seed = (round * 100 + seed) * 100 + partition as u64;
                    let batch = batch(seed, 3, length);
                    produce(&mut writer, topic, partition, &batch).await;
                    written.insert((topic.to_string(), partition), record_values(&batch));
                }
            }
            rounds.push(written);
            server.server.clock.advance(Duration::from_secs(1));
            moments.push(Moment::Sys(Cut::before(server.server.engine.wall_now())));
            server.server.clock.advance(Duration::from_secs(1));
        }
        let window = MomentSelector::window(moments[0], moments[1]).unwrap();
        let asks = [
            (MomentSelector::At(moments[0]), &rounds[..1]),
            (MomentSelector::At(moments[1]), &rounds[..2]),
            (window, &rounds[1..2]),
        ];
        for link in server.choices() {
            let mut client = server.client(link).await;
            for (selector, expected) in &asks {
                let read = async |client: &mut Client| {
                    client.read_cut(selector, None, Duration::from_secs(5)).await.unwrap()
                };
                let found = read(&mut client).await;
                assert_eq!(found.partitions.len(), 100);
                for partition in &found.partitions {
                    let key = (partition.topic.clone(), partition.partition);
                    let expected: Vec<Bytes> = expected
                        .iter()
                        .flat_map(|round| round.get(&key))
                        .flatten()
                        .cloned()
                        .collect();
                    assert_eq!(partition.end - partition.start, expected.len() as i64, "{key:?}");
                    let batches: Bytes = partition.batches.concat().into();
                    let found: Vec<Bytes> = BatchIterator::new(&batches)
                        .flat_map(|batch| record_values(&Bytes::copy_from_slice(batch.unwrap().1)))
                        .collect();
                    assert!(found == expected, "{link:?} {selector} {key:?}");
                }
                let again = read(&mut client).await;
                assert_eq!(again.cut.hash, found.cut.hash);
            }
        }
        let (written, _, copied) = server.moved();
        assert_eq!(written > 0, server.has_device);
        assert_eq!(copied, 0);
        // Removed records are an error, and so is a topic that never was.
        let mut client = server.client(server.choices()[1]).await;
        let topic = server.server.engine.topics().named("b").unwrap();
        server.server.engine.topics().delete_records(&topic, 7, 5).await.unwrap();
        let patience = Duration::from_secs(5);
        let missing = client.read_cut(&asks[0].0, None, patience).await.map(drop).unwrap_err();
        assert!(missing.to_string().contains("b/7"), "{missing}");
        let only = |topic: &str| vec![topic.to_owned()];
        client.read_cut(&asks[0].0, Some(&only("c")), patience).await.unwrap();
        assert!(client.read_cut(&asks[0].0, Some(&only("x")), patience).await.is_err());
    });
}

/// TIME.md 2: an action of a client has a later stamp than everything that the client learned
/// before.
#[test]
fn stamps_travel_both_ways() {
    run(async {
        let server = LinkServer::start().await;
        server.topic("t", 1).await;
        for link in server.choices() {
            let mut client = server.client(link).await;
            let placed = produce(&mut client, "t", 0, &batch(1, 1, 100)).await;
            let written = client.stamp();
            // The answer's stamp is at or above that of the batch, so a cut after it has the batch.
            let end_at = async |client: &mut Client, stamp: Hlc| {
                let moment = Moment::Sys(Cut::below(stamp));
                let wait = PendingMomentPolicy::Wait;
                client.cut(&moment, None, wait, LIMIT).await.unwrap().partitions[0].end
            };
            server.server.clock.advance(Duration::from_secs(2));
            assert_eq!(end_at(&mut client, written.next()).await, placed + 1);
            // Another server's clock is ahead of this one's. A batch that is written now is after
            // that.
            let ahead = Hlc::new(
                server.server.engine.wall_now().saturating_add(Duration::from_millis(400)),
                7,
            );
            client.observe_stamp(ahead);
            let placed = produce(&mut client, "t", 0, &batch(2, 1, 100)).await;
            assert!(client.stamp() > ahead, "{} {ahead}", client.stamp());
            let mut reader = server.client(link).await;
            server.server.clock.advance(Duration::from_secs(2));
            assert_eq!(end_at(&mut reader, ahead.next()).await, placed, "the batch is later");
            // And so is what a reader of it writes, who has no other news.
            assert!(reader.stamp() > ahead);
            // A clock that is wrong by far is not followed: nothing is written, and it is counted.
            let (_, refused) = server.server.engine.timekeeper().counts();
            let wrong =
                Hlc::at(server.server.engine.wall_now().saturating_add(Duration::from_secs(60)));
            client.observe_stamp(wrong);
            let batches = BTreeMap::from([(0, batch(3, 1, 100))]);
            let refused_one = client.produce("t", RequiredAcks::All, batches.clone()).await;
            let error = refused_one.unwrap_err();
            assert!(matches!(&error, ClientError::Refused { .. }), "{error}");
            assert!(error.to_string().contains("peer clock is ahead"), "{error}");
            // Of a request that has no answer, the end of the connection says so.
            let sent = client.produce("t", RequiredAcks::None, batches.clone()).await;
            assert!(sent.is_ok(), "nobody waits for it");
            let error = client.produce("t", RequiredAcks::All, batches).await.unwrap_err();
            assert!(
                matches!(&error, ClientError::Closed { .. } | ClientError::Io { .. }),
                "{error}"
            );
            assert!(server.server.engine.timekeeper().counts().1 > refused);
            assert!(server.server.engine.last_stamp() < wrong);
            let fetched = reader.fetch("t", &[(0, placed + 1)], &FetchOptions::default()).await;
            assert_eq!(fetched.unwrap()[0].end, placed + 1);
        }
    });
}
