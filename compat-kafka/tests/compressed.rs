//! Compressed batches with false headers: the records count.

use std::sync::Arc;

use bytes::Bytes;
use compat_kafka::KafkaOptions;
use kafka_protocol::messages::ListOffsetsRequest;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_records::{BatchBuilder, BatchHeader, CompressionType, HEADER_BYTES, set_crc};
use storage::disk::MemoryDisk;
use testkit::kafka::{START, TestKafkaConnection, TestKafkaServer};
use testkit::requests::topic_name;

const INVALID_RECORD: i16 = 87;
const INVALID_TIMESTAMP: i16 = 32;

fn with_header(batch: &Bytes, change: impl FnOnce(&mut BatchHeader)) -> Bytes {
    let mut header = BatchHeader::parse(batch).expect("a batch");
    change(&mut header);
    let mut bytes = header.to_bytes();
    set_crc(&mut bytes, &batch[HEADER_BYTES..]);
    [&bytes, &batch[HEADER_BYTES..]].concat().into()
}

fn batch(codec: CompressionType, times: &[i64]) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    for time in times {
        builder.record(*time, None, Some(b"value"), &[]);
    }
    builder.build()
}

/// The offset of the first record at or after `time`.
async fn offset_at(wire: &mut TestKafkaConnection, time: i64) -> i64 {
    let partition = ListOffsetsPartition::default().with_timestamp(time);
    let topic =
        ListOffsetsTopic::default().with_name(topic_name("t")).with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default().with_topics(vec![topic]);
    let answer = wire.ask(6, &request).await.expect("an answer");
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    answer.topics[0].partitions[0].offset
}

async fn start_server(configs: &[(&str, &str)]) -> TestKafkaServer {
    let server =
        TestKafkaServer::start(Arc::new(MemoryDisk::new()), KafkaOptions::default(), 64 << 20)
            .await;
    server.topic("t", configs).await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_claims_less_or_more_than_its_records_hold_hides_none_of_them() {
    let server = start_server(&[]).await;
    let mut wire = server.connect().await;
    let mut base = 0;
    for codec in CompressionType::ALL {
        for claimed in [i64::MIN, -1, 0, START as i64 + 1_000_000] {
            let (from, offset) = (1000 * (base + 1), base);
            let honest = batch(codec, &[from, from + 500, from + 200]);
            let liar = with_header(&honest, |header| header.max_timestamp = claimed);
            assert_eq!(wire.produce("t", liar).await, (0, offset));
            let found = (
                offset_at(&mut wire, from).await,
                offset_at(&mut wire, from + 1).await,
                offset_at(&mut wire, from + 500).await,
                offset_at(&mut wire, from + 501).await,
            );
            let said = format!("{codec:?} claims {claimed}");
            assert_eq!(found, (offset, offset + 1, offset + 1, -1), "{said}");
            base += 3;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_its_records_do_not_bear_out_is_refused() {
    let server = start_server(&[]).await;
    let mut wire = server.connect().await;
    for codec in CompressionType::ALL {
        let honest = batch(codec, &[1, 2, 3]);
        for count in [2, 4] {
            let liar = with_header(&honest, |header| {
                (header.record_count, header.last_offset_delta) = (count, count - 1);
            });
            assert_eq!(wire.produce("t", liar).await, (INVALID_RECORD, -1), "{codec:?} {count}");
        }
    }
    assert_eq!(
        wire.produce("t", batch(CompressionType::Lz4, &[1])).await,
        (0, 0),
        "nothing was written"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_too_old_is_refused_whatever_packs_it() {
    let server = start_server(&[("message.timestamp.before.max.ms", "1000")]).await;
    let mut wire = server.connect().await;
    let now = START as i64;
    for (nth, codec) in CompressionType::ALL.into_iter().enumerate() {
        let (old, new) = (batch(codec, &[now, now - 1001]), batch(codec, &[now, now - 1000]));
        assert_eq!(wire.produce("t", old).await, (INVALID_TIMESTAMP, -1), "{codec:?}");
        assert_eq!(wire.produce("t", new).await, (0, 2 * nth as i64), "{codec:?}");
    }
}
