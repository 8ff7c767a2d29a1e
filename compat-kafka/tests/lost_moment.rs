//! A client that keeps using a moment by its id gets an error when it is no longer complete.

use std::sync::Arc;

use compat_kafka::KafkaOptions;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{FetchRequest, MetadataRequest};
use storage::disk::MemoryDisk;
use testkit::kafka::{START, TestKafkaServer, one_record_batch};
use testkit::requests::topic_name;

const INVALID_TOPIC: i16 = 17;

#[tokio::test(flavor = "multi_thread")]
async fn a_moment_that_is_fetched_by_id_is_refused_once_records_of_it_were_deleted() {
    let server =
        TestKafkaServer::start(Arc::new(MemoryDisk::new()), KafkaOptions::default(), 64 << 20)
            .await;
    server.topic("t", &[]).await;
    let mut wire = server.connect().await;
    for value in [b"0", b"1", b"2"] {
        assert_eq!(wire.produce("t", one_record_batch(value)).await.0, 0);
    }
    server.clock.advance(std::time::Duration::from_millis(10));
    let moment = format!("t.__at.s{}", START + 5);
    assert_eq!(wire.produce("t", one_record_batch(b"3")).await, (0, 3));
    let asked = MetadataRequestTopic::default().with_name(Some(topic_name(&moment)));
    let request = MetadataRequest::default().with_topics(Some(vec![asked]));
    let metadata = wire.ask(12, &request).await.expect("an answer");
    let id = metadata.topics[0].topic_id;
    let partition =
        FetchPartition::default().with_fetch_offset(0).with_partition_max_bytes(1 << 20);
    let topic = FetchTopic::default().with_topic_id(id).with_partitions(vec![partition]);
    let fetch = FetchRequest::default().with_max_bytes(1 << 20).with_topics(vec![topic]);
    let answer = wire.ask(13, &fetch).await.expect("an answer");
    let answer = &answer.responses[0].partitions[0];
    assert_eq!((answer.error_code, answer.high_watermark), (0, 3));

    let topic = server.engine.topics().named("t").expect("the topic");
    server.engine.topics().delete_records(&topic, 0, 4).await.expect("records are deleted");
    let answer = wire.ask(13, &fetch).await.expect("an answer");
    assert_eq!(answer.responses[0].partitions[0].error_code, INVALID_TOPIC);
}
