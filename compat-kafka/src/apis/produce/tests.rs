use std::collections::BTreeMap;
use std::task::Poll;

use bytes::BytesMut;
use kafka_protocol::messages::produce_request::TopicProduceData;
use kafka_protocol::messages::{ApiKey, ResponseHeader, TopicName};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion};
use kafka_records::{BatchBuilder, CompressionType, offset_gap, set_crc};

use super::super::support::new_topic_id;
use super::*;
use crate::apis::test_server::{kafka, kafka_with};
use crate::options::KafkaOptions;
use crate::response::ResponseChunk;

const WHY: &str = "Compacted topic cannot accept message without key in topic partition";

async fn topic(kafka: &Arc<KafkaServer>, name: &str, policy: &str) {
    let configs = BTreeMap::from([("cleanup.policy".to_owned(), policy.to_owned())]);
    kafka.engine.topics().create(name, 1, configs, new_topic_id(kafka), false).await.unwrap();
}

fn batch(codec: CompressionType, keys: &[Option<&str>]) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    for key in keys {
        builder.record(1, key.map(str::as_bytes), Some(b"value"), &[]);
    }
    builder.build()
}

/// The response for a batch, as a client of that version decodes it.
async fn produce(
    kafka: &Arc<KafkaServer>,
    version: i16,
    topic: &str,
    batch: Bytes,
) -> PartitionProduceResponse {
    let partition = PartitionProduceData::default().with_records(Some(batch));
    produce_partition(kafka, version, topic, partition).await
}

/// The response to batches that an importer sends, which begin at `base`.
async fn import(
    kafka: &Arc<KafkaServer>,
    topic: &str,
    base: &[u8],
    batches: &[Bytes],
) -> PartitionProduceResponse {
    let mut partition = PartitionProduceData::default().with_records(Some(batches.concat().into()));
    partition.unknown_tagged_fields.insert(10_001, Bytes::copy_from_slice(base));
    produce_partition(kafka, 9, topic, partition).await
}

async fn produce_partition(
    kafka: &Arc<KafkaServer>,
    version: i16,
    topic: &str,
    partition: PartitionProduceData,
) -> PartitionProduceResponse {
    let id = uuid::Uuid::from_bytes(kafka.engine.topics().named(topic).unwrap().id);
    let data = TopicProduceData::default().with_partition_data(vec![partition]);
    let data = match version {
        13.. => data.with_topic_id(id),
        _ => data.with_name(TopicName(StrBytes::from_string(topic.to_owned()))),
    };
    let request = ProduceRequest::default().with_acks(-1).with_topic_data(vec![data]);
    let context = RequestContext {
        api_key: ApiKey::Produce as i16,
        version,
        correlation_id: 1,
        client_id: "test".to_owned(),
        received_at: tokio::time::Instant::now(),
        peer: ([127, 0, 0, 1], 50_000).into(),
        local: ([127, 0, 0, 1], 9092).into(),
        connection: crate::request::ConnectionState::for_test(),
        quota: None,
    };
    let mut body = BytesMut::new();
    request.encode(&mut body, version).unwrap();
    let answer = handle(Arc::clone(kafka), context, body.freeze().into()).await.unwrap().unwrap();
    let mut frame = BytesMut::new();
    for chunk in answer.into_frame() {
        let ResponseChunk::Encoded(bytes) = chunk else { panic!("no file is in the answer") };
        frame.extend_from_slice(&bytes);
    }
    let mut frame = frame.freeze().slice(4..);
    ResponseHeader::decode(&mut frame, ProduceResponse::header_version(version)).unwrap();
    let mut response = ProduceResponse::decode(&mut frame, version).unwrap();
    response.responses.remove(0).partition_responses.remove(0)
}

fn errors(answer: &PartitionProduceResponse) -> Vec<(i32, &str)> {
    let message = |error: &'_ BatchIndexAndErrorMessage| error.batch_index_error_message.is_some();
    assert!(answer.record_errors.iter().all(message));
    let errors = answer.record_errors.iter();
    errors
        .map(|error| (error.batch_index, error.batch_index_error_message.as_deref().unwrap()))
        .collect()
}

#[tokio::test]
async fn a_compacted_topic_takes_no_record_without_a_key_and_names_each() {
    let kafka = kafka();
    for policy in ["compact", "compact,delete"] {
        topic(&kafka, policy.replace(',', "-").as_str(), policy).await;
    }
    for (name, version) in [("compact", 12), ("compact", 13), ("compact-delete", 8)] {
        for codec in CompressionType::ALL {
            let keyless = batch(codec, &[Some("a"), None, Some(""), None]);
            let answer = produce(&kafka, version, name, keyless).await;
            assert_eq!(answer.error_code, ResponseError::InvalidRecord.code(), "{codec:?}");
            let message = format!("{WHY} {name}-0");
            assert_eq!(errors(&answer), [(1, &message[..]), (3, &message)]);
            assert_eq!(
                answer.error_message.as_deref().unwrap(),
                format!(
                    "One or more records have been rejected due to 2 record errors in total, and only showing the first three errors at most: [RecordError(batchIndex=1, message='{message}'), RecordError(batchIndex=3, message='{message}')]"
                )
            );
        }
    }
    // A refused batch has no effect.
    assert_eq!(kafka.engine.topics().named("compact").unwrap().partitions[0].end().0, 0);
}

#[tokio::test]
async fn records_with_keys_are_taken_and_other_topics_need_none() {
    let kafka = kafka();
    topic(&kafka, "compacted", "compact").await;
    topic(&kafka, "deleted", "delete").await;
    let mut end = 0;
    for codec in CompressionType::ALL {
        let answer = produce(&kafka, 9, "compacted", batch(codec, &[Some("a"), Some("")])).await;
        assert_eq!((answer.error_code, answer.base_offset), (0, end), "{codec:?}");
        let answer = produce(&kafka, 9, "deleted", batch(codec, &[None, Some("a")])).await;
        assert_eq!((answer.error_code, answer.base_offset), (0, end), "{codec:?}");
        end += 2;
    }
}

#[tokio::test]
async fn a_version_that_cannot_name_records_is_answered_without() {
    let kafka = kafka();
    topic(&kafka, "t", "compact").await;
    let answer = produce(&kafka, 7, "t", batch(CompressionType::None, &[None])).await;
    assert_eq!(answer.error_code, ResponseError::InvalidRecord.code());
    assert!(answer.record_errors.is_empty());
}

#[tokio::test]
async fn of_very_many_bad_records_the_first_are_named() {
    let kafka = kafka();
    topic(&kafka, "t", "compact").await;
    let answer = produce(&kafka, 9, "t", batch(CompressionType::Zstd, &vec![None; 5000])).await;
    assert_eq!(answer.record_errors.len(), RECORD_ERRORS_MAX);
    assert!(answer.error_message.unwrap().contains("due to 5000 record errors in total"));
}

#[tokio::test]
async fn what_unpacks_to_too_much_is_refused_as_too_large_so_that_producers_split_it() {
    let kafka =
        kafka_with(KafkaOptions { decompressed_bytes_max: 1 << 20, ..KafkaOptions::default() });
    let mut builder = BatchBuilder::new(CompressionType::Zstd);
    builder.record(1, Some(b"key"), Some(&vec![0; 2 << 20]), &[]);
    let batch = builder.build();
    for policy in ["compact", "delete"] {
        topic(&kafka, policy, policy).await;
        let answer = produce(&kafka, 9, policy, batch.clone()).await;
        assert_eq!(answer.error_code, ResponseError::MessageTooLarge.code(), "{policy}");
        assert!(answer.error_message.unwrap().contains("bytes when decompressed"));
    }
}

#[tokio::test]
async fn a_client_cannot_set_a_delete_horizon() {
    let kafka = kafka();
    topic(&kafka, "t", "compact").await;
    let batch = batch(CompressionType::None, &[Some("a")]);
    let mut header = BatchHeader::parse(&batch).unwrap();
    header.attributes |= 1 << 6;
    let mut bytes = header.to_bytes();
    set_crc(&mut bytes, &batch[HEADER_BYTES..]);
    let forged = [&bytes, &batch[HEADER_BYTES..]].concat();
    let answer = produce(&kafka, 9, "t", forged.into()).await;
    assert_eq!(answer.error_code, ResponseError::InvalidRecord.code());
}

#[test]
fn a_payload_that_is_small_in_its_memory_is_copied_and_a_large_one_is_not() {
    for (frame_bytes, part_bytes, copied) in [
        (1 << 20, 1 << 10, true),
        (1 << 20, (512 << 10) - 1, true),
        (1 << 20, 512 << 10, false),
        (1 << 20, 1 << 20, false),
        // Small frames share a block.
        (200, 100, true),
        (LARGE_BYTES_MIN - 1, LARGE_BYTES_MIN - 1, true),
        (LARGE_BYTES_MIN, LARGE_BYTES_MIN, false),
    ] {
        let frame = Bytes::from(vec![7; frame_bytes]);
        let slice = frame.slice(frame_bytes - part_bytes..);
        let copy = copy_if_small(&FrameBufferPool::default(), slice.clone(), frame_bytes);
        assert_eq!(copy, slice);
        assert_eq!(copy.as_ptr() != slice.as_ptr(), copied, "{part_bytes} of {frame_bytes}");
    }
}

/// True if it would wait, polled once.
async fn waits<T>(mut task: std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(task.as_mut().poll(context).is_pending())).await
}

#[tokio::test]
async fn a_large_batch_waits_for_its_turn_to_be_unpacked_and_small_ones_go_on() {
    let kafka = kafka();
    topic(&kafka, "t", "delete").await;
    let turns = kafka.admission.decompressions.available_permits() as u32;
    let permits = kafka.admission.decompressions.acquire_many(turns).await.unwrap();
    let value = vec![0; 2 * INLINE_DECOMPRESSION.decompressed_bytes_max];
    let large = BatchBuilder::new(CompressionType::Zstd).record(1, None, Some(&value), &[]).build();
    assert!(large.len() < 1 << 20);
    let mut waiting = std::pin::pin!(produce(&kafka, 9, "t", large));
    assert!(waits(waiting.as_mut()).await);
    for (base, codec) in (0..).zip(CompressionType::ALL) {
        let answer = produce(&kafka, 9, "t", batch(codec, &[None])).await;
        assert_eq!((answer.error_code, answer.base_offset), (0, base));
    }
    assert!(waits(waiting.as_mut()).await);
    drop(permits);
    let answer = waiting.await;
    assert_eq!((answer.error_code, answer.base_offset), (0, CompressionType::ALL.len() as i64));
}

#[tokio::test]
async fn a_batch_that_unpacks_to_too_much_is_refused_wherever_it_is_unpacked() {
    let bytes_max = 4 << 20;
    for unpacked_bytes_max in [1 << 10, bytes_max] {
        let kafka = kafka_with(KafkaOptions {
            decompressed_bytes_max: unpacked_bytes_max,
            ..KafkaOptions::default()
        });
        topic(&kafka, "t", "delete").await;
        let value = vec![0; bytes_max + 1];
        let large =
            BatchBuilder::new(CompressionType::Zstd).record(1, None, Some(&value), &[]).build();
        let answer = produce(&kafka, 9, "t", large).await;
        assert_eq!(answer.error_code, ResponseError::MessageTooLarge.code());
    }
}

/// A batch at an offset, with its header changed.
fn placed(batch: &Bytes, base: i64, change: impl FnOnce(&mut BatchHeader)) -> Bytes {
    let mut header = BatchHeader::parse(batch).unwrap();
    header.base_offset = base;
    change(&mut header);
    let mut bytes = header.to_bytes();
    set_crc(&mut bytes, &batch[HEADER_BYTES..]);
    [&bytes, &batch[HEADER_BYTES..]].concat().into()
}

#[tokio::test]
async fn an_importer_chooses_offsets_and_appends_nothing_twice() {
    let kafka = kafka();
    topic(&kafka, "t", "delete").await;
    let two = batch(CompressionType::Zstd, &[Some("a"), Some("b")]);
    let end = || kafka.engine.topics().named("t").unwrap().partitions[0].end();
    let batches = [
        offset_gap(0, 5),
        placed(&two, 5, |header| header.base_sequence = -8),
        placed(&two, 7, |header| header.last_offset_delta = 9),
    ];
    let answer = import(&kafka, "t", &0_i64.to_be_bytes(), &batches).await;
    assert_eq!((answer.error_code, answer.base_offset, end()), (0, 0, Offset(17)));
    // The same again, and batches that leave offsets out.
    for (base, batches) in [
        (0_i64, batches.to_vec()),
        (17, vec![placed(&two, 18, |_| {})]),
        (18, vec![placed(&two, 18, |_| {})]),
        (17, vec![placed(&two, 17, |_| {}), placed(&two, 20, |_| {})]),
    ] {
        let answer = import(&kafka, "t", &base.to_be_bytes(), &batches).await;
        assert_ne!(answer.error_code, 0, "{base}: {answer:?}");
        assert_eq!(end(), Offset(17));
    }
    let answer = import(&kafka, "t", &0_i64.to_be_bytes(), &batches).await;
    assert_eq!(answer.error_code, ResponseError::OffsetOutOfRange.code());
    // Other producers go on behind them.
    assert_eq!(produce(&kafka, 9, "t", two).await.base_offset, 17);
}

#[tokio::test]
async fn an_importer_cannot_write_what_a_log_never_holds() {
    let kafka = kafka();
    topic(&kafka, "t", "delete").await;
    let one = batch(CompressionType::None, &[Some("a")]);
    let refused = async |base: &[u8], batches: &[Bytes], words: &str| {
        let answer = import(&kafka, "t", base, batches).await;
        assert_ne!(answer.error_code, 0, "{words}");
        assert!(answer.error_message.as_deref().unwrap().contains(words), "{answer:?}");
    };
    let zero = 0_i64.to_be_bytes();
    refused(&[0; 7], std::slice::from_ref(&one), "is 8 bytes").await;
    refused(&(-1_i64).to_be_bytes(), std::slice::from_ref(&one), "not negative").await;
    refused(&zero, &[], "at least one").await;
    refused(&zero, &[one.clone(), one.slice(..70)], "whole batches").await;
    let producer = placed(&one, 0, |header| {
        (header.producer_id, header.producer_epoch, header.base_sequence) = (5, 0, 0);
    });
    refused(&zero, &[producer], "has no producer").await;
    let control = placed(&one, 0, |header| header.attributes |= 1 << 5);
    refused(&zero, &[control], "no marker").await;
    let records = placed(&one, 0, |header| header.record_count = 2);
    refused(&zero, &[records], "must not hold more records").await;
    let empty = placed(&one, 0, |header| header.record_count = 0);
    refused(&zero, &[empty], "without records").await;
    let mut corrupt = one.to_vec();
    corrupt[65] ^= 1;
    refused(&zero, &[corrupt.into()], "corrupt").await;
    assert_eq!(kafka.engine.topics().named("t").unwrap().partitions[0].end(), Offset(0));
}
