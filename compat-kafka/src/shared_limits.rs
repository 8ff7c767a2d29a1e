//! Tests of the limits that clients share: one client that takes all it can leaves room for another
//! one.

use engine::CoreOptions;
use engine::security::Principal;
use kafka_groups::Options as GroupOptions;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, ConsumerGroupHeartbeatRequest,
    CreatePartitionsRequest, CreateTopicsRequest, DeleteGroupsRequest, DeleteTopicsRequest,
    InitProducerIdRequest, InitProducerIdResponse, MetadataRequest, OffsetCommitRequest,
    ProducerId, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use kafka_transactions::TransactionOptions;
use storage::disk::MemoryDisk;

use crate::apis::join_group::test_kafka_api::{
    MEMBER_ID_REQUIRED, TestKafkaApi, group_id, join_request, topic_name,
};
use crate::options::KafkaOptions;

/// COORDINATOR_NOT_AVAILABLE: clients try again.
const FULL: i16 = 15;

fn alice() -> Principal {
    Principal::user("alice")
}

fn bob() -> Principal {
    Principal::user("bob")
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn transactional(transactions: TransactionOptions) -> KafkaOptions {
    KafkaOptions { transactions, ..KafkaOptions::default() }
}

fn on(disk: MemoryDisk, options: KafkaOptions) -> TestKafkaApi {
    TestKafkaApi::with_limits(disk, CoreOptions::default(), options)
}

/// The largest holder of a budget, and its amount.
fn largest(api: &TestKafkaApi, budget: &str) -> (String, u64) {
    let usages = api.kafka.engine.budgets().usages();
    let usage = usages.into_iter().find(|usage| usage.name == budget).unwrap();
    usage.largest.map_or_else(Default::default, |largest| (largest.name, largest.used))
}

async fn init(api: &TestKafkaApi, who: Principal, id: &str) -> InitProducerIdResponse {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(TransactionalId(text(id))))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    api.ask_as(who, 4, request).await
}

#[tokio::test]
async fn a_flood_of_transactional_ids_leaves_room_for_others() {
    let options =
        || transactional(TransactionOptions { ids_bytes_max: 64 << 10, ..Default::default() });
    let api = on(MemoryDisk::new(), options());
    let mut count = 0;
    let id = |nth: i32| format!("{nth:0>900}");
    while init(&api, alice(), &id(count)).await.error_code == 0 {
        count += 1;
    }
    assert_eq!(init(&api, alice(), &id(count)).await.error_code, FULL);
    assert!((20..50).contains(&count), "{count}");
    assert_eq!(init(&api, bob(), "b").await.error_code, 0);
    let (holder, bytes) = largest(&api, "transactional-ids");
    assert_eq!(holder, "User:alice");

    // A restart does not know whose they are, until they are used again.
    let api = on(api.stop(), options());
    assert_eq!(largest(&api, "transactional-ids").0, "restored at the start");
    for nth in 0..count {
        assert_eq!(init(&api, alice(), &id(nth)).await.error_code, 0);
    }
    assert_eq!(largest(&api, "transactional-ids"), (holder, bytes));
}

#[tokio::test]
async fn a_new_transactional_id_is_no_longer_than_1024_bytes() {
    let api = on(MemoryDisk::new(), KafkaOptions::default());
    assert_eq!(init(&api, alice(), &"x".repeat(1024)).await.error_code, 0);
    let refused = init(&api, alice(), &"x".repeat(1025)).await.error_code;
    assert_eq!(refused, ResponseError::InvalidRequest.code());
}

/// Adds partitions to the transaction of an id; returns the error of the first.
async fn add(
    api: &TestKafkaApi,
    who: Principal,
    id: &str,
    producer: &InitProducerIdResponse,
    partitions: std::ops::Range<i32>,
) -> i16 {
    let topic = AddPartitionsToTxnTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(partitions.collect());
    let request = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(TransactionalId(text(id)))
        .with_v3_and_below_producer_id(producer.producer_id)
        .with_v3_and_below_producer_epoch(producer.producer_epoch)
        .with_v3_and_below_topics(vec![topic]);
    let answer = api.ask_as(who, 3, request).await;
    answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
}

#[tokio::test]
async fn partitions_of_open_transactions_leave_room_for_others() {
    let options = transactional(TransactionOptions { enlisted_max: 100, ..Default::default() });
    let api = on(MemoryDisk::new(), options);
    api.topic("t", 100).await;
    let (a, b) = (init(&api, alice(), "a").await, init(&api, bob(), "b").await);
    assert_eq!(add(&api, alice(), "a", &a, 0..60).await, 0);
    assert_eq!(add(&api, alice(), "a", &a, 60..90).await, FULL);
    assert_eq!(add(&api, alice(), "a", &a, 0..60).await, 0, "they are in it");
    assert_eq!(add(&api, bob(), "b", &b, 0..20).await, 0);
    assert_eq!(largest(&api, "transaction-partitions"), ("User:alice".to_owned(), 60));
    // A new producer aborts what the last one left.
    init(&api, alice(), "a").await;
    assert_eq!(largest(&api, "transaction-partitions"), ("User:bob".to_owned(), 20));
}

#[tokio::test]
async fn groups_of_open_transactions_leave_room_for_others() {
    let options = TransactionOptions { offsets_bytes_max: 16 << 10, ..Default::default() };
    let api = on(MemoryDisk::new(), transactional(options));
    let add = async |who, id: &str, producer: &InitProducerIdResponse, group: &str| {
        let request = AddOffsetsToTxnRequest::default()
            .with_transactional_id(TransactionalId(text(id)))
            .with_producer_id(producer.producer_id)
            .with_producer_epoch(producer.producer_epoch)
            .with_group_id(group_id(group));
        api.ask_as(who, 3, request).await.error_code
    };
    let (a, b) = (init(&api, alice(), "a").await, init(&api, bob(), "b").await);
    let mut refused = 0;
    for nth in 0..100 {
        let error = add(alice(), "a", &a, &format!("g{nth}")).await;
        assert!(error == 0 || error == FULL, "{error}");
        refused += u32::from(error == FULL);
    }
    assert!(refused > 0);
    assert_eq!(add(bob(), "b", &b, "g").await, 0);
}

#[tokio::test]
async fn a_flood_of_groups_of_any_kind_leaves_room_for_others() {
    let groups = GroupOptions {
        groups_max: 32,
        initial_rebalance_delay: std::time::Duration::ZERO,
        ..GroupOptions::default()
    };
    let options = KafkaOptions { groups, ..KafkaOptions::default() };
    let api = on(MemoryDisk::new(), options);
    api.topic("read", 1).await;
    let classic =
        async |who, group: &str| api.ask_as(who, 9, join_request(group, 9)).await.error_code;
    let consumer = async |who, group: &str| {
        let request = ConsumerGroupHeartbeatRequest::default()
            .with_group_id(group_id(group))
            .with_member_id(text("m"))
            .with_rebalance_timeout_ms(1000)
            .with_subscribed_topic_names(Some(vec![topic_name("read")]))
            .with_topic_partitions(Some(Vec::new()));
        api.ask_as(who, 1, request).await.error_code
    };
    let offsets = async |who, group: &str| {
        let partition = OffsetCommitRequestPartition::default().with_committed_offset(1);
        let topic = OffsetCommitRequestTopic::default()
            .with_name(topic_name("read"))
            .with_partitions(vec![partition]);
        let request = OffsetCommitRequest::default()
            .with_group_id(group_id(group))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(vec![topic]);
        api.ask_as(who, 8, request).await.topics[0].partitions[0].error_code
    };
    for nth in 0..8 {
        assert_eq!(classic(alice(), &format!("classic{nth}")).await, MEMBER_ID_REQUIRED);
        assert_eq!(consumer(alice(), &format!("consumer{nth}")).await, 0);
        assert_eq!(offsets(alice(), &format!("offsets{nth}")).await, 0);
        if api.kafka.coordinators.groups.list().len() >= 21 {
            break;
        }
    }
    while offsets(alice(), &format!("more{}", api.kafka.coordinators.groups.list().len())).await
        == 0
    {}
    let count = api.kafka.coordinators.groups.list().len() as u64;
    assert_eq!(largest(&api, "groups"), ("User:alice".to_owned(), count));
    assert!((21..=24).contains(&count), "{count}");
    assert_eq!(classic(alice(), "x").await, FULL);
    assert_eq!(consumer(alice(), "x").await, FULL);
    assert_eq!(classic(bob(), "b").await, MEMBER_ID_REQUIRED);
    assert_eq!(consumer(bob(), "c").await, 0);
    // Deleted groups make room.
    let request = DeleteGroupsRequest::default().with_groups_names(vec![group_id("offsets0")]);
    assert_eq!(api.ask_as(alice(), 2, request).await.results[0].error_code, 0);
    assert_eq!(largest(&api, "groups").1, count - 1);
}

#[tokio::test]
async fn groups_that_a_restart_finds_belong_to_those_who_use_them() {
    let api = on(MemoryDisk::new(), KafkaOptions::default());
    api.topic("read", 1).await;
    let consumer = || {
        ConsumerGroupHeartbeatRequest::default()
            .with_group_id(group_id("g"))
            .with_member_id(text("m"))
            .with_rebalance_timeout_ms(1000)
            .with_subscribed_topic_names(Some(vec![topic_name("read")]))
            .with_topic_partitions(Some(Vec::new()))
    };
    assert_eq!(api.ask_as(alice(), 1, consumer()).await.error_code, 0);
    assert_eq!(largest(&api, "groups").0, "User:alice");
    let bytes = largest(&api, "group-bytes");
    let api = on(api.stop(), KafkaOptions::default());
    assert_eq!(largest(&api, "groups").0, "restored at the start");
    assert_eq!(api.ask_as(alice(), 1, consumer()).await.error_code, 0);
    assert_eq!(largest(&api, "groups").0, "User:alice");
    assert_eq!(largest(&api, "group-bytes"), bytes);
}

fn creatable(name: &str, partitions: i32) -> CreateTopicsRequest {
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(1);
    CreateTopicsRequest::default().with_topics(vec![topic])
}

#[tokio::test]
async fn a_flood_of_partitions_leaves_room_for_others() {
    let core = || CoreOptions { topics_max: 20, all_partitions_max: 100, ..CoreOptions::default() };
    let api = TestKafkaApi::with_limits(MemoryDisk::new(), core(), KafkaOptions::default());
    let violated = ResponseError::PolicyViolation.code();
    let create = async |who, name: &str, partitions| {
        let result = api.ask_as(who, 7, creatable(name, partitions)).await.topics.remove(0);
        (result.error_code, result.error_message.map(|text| text.to_string()))
    };
    assert_eq!(create(alice(), "a", 70).await.0, 0);
    let (error, message) = create(alice(), "b", 20).await;
    let expected = "User:alice holds 70 of 100 partitions, 70 are taken, and the rest is for others; \
                    free some, or raise limits.all-partitions-max";
    assert_eq!((error, message.as_deref()), (violated, Some(expected)));
    let grown = CreatePartitionsTopic::default()
        .with_name(topic_name("a"))
        .with_count(90)
        .with_assignments(None);
    let request = CreatePartitionsRequest::default().with_topics(vec![grown]);
    // The partitions of a topic count for the one that created it.
    let answer = api.ask_as(bob(), 3, request).await.results.remove(0);
    assert_eq!((answer.error_code, answer.error_message.as_deref()), (violated, Some(expected)));
    assert_eq!(create(bob(), "b", 20).await.0, 0);
    let request = DeleteTopicsRequest::default().with_topic_names(vec![topic_name("a")]);
    assert_eq!(api.ask_as(bob(), 5, request).await.responses[0].error_code, 0);
    assert_eq!(largest(&api, "partitions"), ("User:bob".to_owned(), 20));

    // Topics that a request for them creates count too.
    for nth in 0..20 {
        let topic = MetadataRequestTopic::default().with_name(Some(topic_name(&format!("c{nth}"))));
        let request = MetadataRequest::default()
            .with_topics(Some(vec![topic]))
            .with_allow_auto_topic_creation(true);
        api.ask_as(alice(), 12, request).await;
    }
    let (holder, count) = largest(&api, "topics");
    assert!(holder == "User:alice" && (12..=15).contains(&count), "{holder} {count}");
    assert_eq!(create(bob(), "d", 1).await.0, 0);
    let api = TestKafkaApi::with_limits(api.stop(), core(), KafkaOptions::default());
    assert_eq!(largest(&api, "topics"), ("restored at the start".to_owned(), count + 2));
}
