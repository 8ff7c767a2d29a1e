//! Records by each link: the same bytes, without copies.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use client::{ClientError, FetchOptions, LinkChoice, RequiredAcks};
use compat_kafka::KafkaOptions;
use kafka_records::BatchIterator;

use crate::fixture::{LinkServer, MIB, batch, produce, record_values, run, values};

#[test]
fn what_was_written_by_one_link_is_read_by_every_other() {
    run(async {
        let server = LinkServer::start().await;
        for link in server.choices() {
            let topic = format!("{link:?}");
            server.topic(&topic, 1).await;
            let mut client = server.client(link).await;
            // Shorter than what is sent without a link, around the lengths of buffers, and longer.
            let lengths = [(1, 10), (100, 40), (1, 100_000), (3, 300_000), (1, 5_000_000)];
            let (mut expected, mut end) = (Vec::new(), 0);
            for (seed, (count, length)) in lengths.into_iter().enumerate() {
                let batch = batch(seed as u64, count, length);
                assert_eq!(produce(&mut client, &topic, 0, &batch).await, end);
                end += count as i64;
                expected.extend(record_values(&batch));
            }
            for reader in server.choices() {
                let mut client = server.client(reader).await;
                assert!(
                    values(&mut client, &topic, 0, end).await == expected,
                    "{link:?} {reader:?}"
                );
            }
        }
    });
}

/// Zero copies of payloads on the server, whichever way they came (F25).
#[test]
fn payloads_in_memory_are_not_copied_for_a_link() {
    run(async {
        let server = LinkServer::start().await;
        if !server.has_device {
            return;
        }
        server.topic("t", 2).await;
        let (small, large) = (batch(1, 10, 100), batch(2, 1, 2_000_000));
        for (partition, link) in [(0, LinkChoice::Tcp), (1, LinkChoice::Rdma)] {
            let mut writer = server.client(link).await;
            for batch in [&small, &large, &small] {
                produce(&mut writer, "t", partition, batch).await;
            }
        }
        let (_, read, _) = server.moved();
        assert!(
            read as usize > large.len(),
            "the server read what the second client wrote: {read}"
        );
        let mut reader = server.client(LinkChoice::Rdma).await;
        for partition in [0, 1] {
            let expected = [&small, &large, &small].map(record_values).concat();
            assert!(values(&mut reader, "t", partition, 21).await == expected);
        }
        let (written, _, copied) = server.moved();
        assert!(written as usize > 2 * large.len(), "{written}");
        assert_eq!(copied, 0);
    });
}

/// Links go on with copies of payloads that do not fit into the memory that devices may use.
#[test]
fn a_link_copies_what_did_not_fit_and_a_response_finds_the_room_that_it_needs() {
    run(async {
        let server = LinkServer::start_with_arena(64 * MIB, 4 * MIB).await;
        if !server.has_device {
            return;
        }
        server.topic("t", 1).await;
        let mut writer = server.client(LinkChoice::Rdma).await;
        let mut written = Vec::new();
        for seed in 0..6 {
            let batch = batch(seed, 1, 3_000_000);
            produce(&mut writer, "t", 0, &batch).await;
            written.extend(record_values(&batch));
        }
        let mut reader = server.client(LinkChoice::Rdma).await;
        // Far less than the first batch.
        let options = FetchOptions {
            wait_max: Duration::ZERO,
            partition_bytes_max: 1000,
            bytes_max: 1000,
            ..FetchOptions::default()
        };
        for (offset, value) in written.iter().enumerate() {
            let fetched = reader.fetch("t", &[(0, offset as i64)], &options).await.unwrap();
            assert!(record_values(&fetched[0].batches) == [value.clone()], "{offset}");
        }
        assert!(server.moved().2 > 0, "some were copied");
    });
}

/// Zero copies of what is read from files either: it is read to where the device sends from.
#[test]
fn payloads_in_files_are_not_copied_for_a_link() {
    run(async {
        // With room for blocks of files, and without.
        for tail_bytes_max in [16 * MIB, MIB] {
            let server = LinkServer::start_with_tail(tail_bytes_max).await;
            server.topic("t", 1).await;
            let lengths = [1_000_000, 5000, 40_000, 1_000_000, 2_500_000];
            let mut writer = server.client(LinkChoice::Tcp).await;
            let mut written = Vec::new();
            for (seed, length) in lengths.into_iter().cycle().take(40).enumerate() {
                let batch = batch(seed as u64, 1, length);
                produce(&mut writer, "t", 0, &batch).await;
                written.extend(record_values(&batch));
            }
            for link in server.choices() {
                let mut reader = server.client(link).await;
                assert!(values(&mut reader, "t", 0, 40).await == written, "{link:?}");
            }
            let (sent, _, copied) = server.moved();
            assert_eq!(sent > 30_000_000, server.has_device, "{sent}");
            assert_eq!(copied, 0);
        }
    });
}

#[test]
fn a_million_records_are_the_same_byte_by_byte() {
    run(async {
        const BATCHES: u64 = 1000;
        const RECORDS: usize = 1000;
        let server = LinkServer::start().await;
        for link in server.choices() {
            let topic = format!("{link:?}");
            server.topic(&topic, 1).await;
            let mut client = server.client(link).await;
            for seed in 0..BATCHES {
                produce(&mut client, &topic, 0, &batch(seed, RECORDS, 20)).await;
            }
            let options = FetchOptions { wait_max: Duration::ZERO, ..FetchOptions::default() };
            let (mut next, mut seed) = (0, 0);
            while seed < BATCHES {
                let fetched = client.fetch(&topic, &[(0, next)], &options).await.unwrap();
                for found in BatchIterator::new(&fetched[0].batches) {
                    let Ok((header, bytes)) = found else { break };
                    assert_eq!(header.base_offset, seed as i64 * RECORDS as i64);
                    let written = batch(seed, RECORDS, 20);
                    // The server fills the offset and the epoch in; the rest is the client's.
                    assert!(bytes[17..] == written[17..], "batch {seed}");
                    (next, seed) = (header.last_offset() + 1, seed + 1);
                }
            }
        }
    });
}

#[test]
fn responses_that_are_in_use_are_not_written_over() {
    run(async {
        let server = LinkServer::start().await;
        for link in server.choices() {
            let topic = format!("{link:?}");
            server.topic(&topic, 1).await;
            let mut client = server.client(link).await;
            for seed in 0..40 {
                produce(&mut client, &topic, 0, &batch(seed, 1, 100_000)).await;
            }
            // More than a client has regions for. A client that must have a link is refused then,
            // and any other one goes over TCP.
            let options = FetchOptions { bytes_max: 1, ..FetchOptions::default() };
            let mut kept = Vec::new();
            for offset in 0..40 {
                match client.fetch(&topic, &[(0, offset)], &options).await {
                    Ok(fetched) => kept.push((offset, fetched[0].batches.clone())),
                    Err(error) => {
                        assert!(matches!(error, ClientError::NoLink { .. }), "{error}");
                        assert_eq!(kept.len(), 32);
                        break;
                    }
                }
            }
            for (offset, batches) in &kept {
                assert!(batches[61..] == batch(*offset as u64, 1, 100_000)[61..], "{offset}");
            }
            kept.clear();
            client.fetch(&topic, &[(0, 39)], &options).await.unwrap();
        }
    });
}

#[test]
fn a_client_without_a_device_is_told_so_if_it_must_have_one() {
    run(async {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let server = LinkServer::start_with(local, KafkaOptions::default(), MIB).await;
        server.topic("t", 1).await;
        let mut client = server.client(LinkChoice::Rdma).await;
        let batches = BTreeMap::from([(0, batch(1, 1, 10))]);
        let error = client.produce("t", RequiredAcks::All, batches.clone()).await.unwrap_err();
        assert!(matches!(&error, ClientError::NoLink { .. }), "{error}");
        assert!(error.to_string().contains("RDMA device"), "{error}");
        let mut client = server.client(LinkChoice::Auto).await;
        client.produce("t", RequiredAcks::All, batches).await.unwrap();
    });
}
