//! Every API asks whether the client may do what it asks for, or is in a list with the reason why
//! it does not.
//!
//! A plain user without any right sends a small request of each.

use std::collections::BTreeMap;

use bytes::Bytes;
use engine::security::{Operation, Resource, ResourceType};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::Request;
use testkit::requests::encode_frame;
use testkit::streams::{TestStreamsHeartbeat, TestTopology, describe_streams_frame};
use uuid::Uuid;

use super::test_authorizer::{TestAuthorizer, text, topic_name};
use crate::routes;

/// The APIs that ask nobody, in Kafka too.
const ASKING_NOBODY: [(ApiKey, &str); 9] = [
    (ApiKey::ApiVersions, "it is asked before anybody says who it is"),
    (ApiKey::SaslHandshake, "by it a client begins to say who it is"),
    (ApiKey::SaslAuthenticate, "by it a client says who it is"),
    (
        ApiKey::GetTelemetrySubscriptions,
        "it tells what operators want to know of the client itself",
    ),
    (ApiKey::CreateDelegationToken, "everybody may have a token of their own"),
    (ApiKey::RenewDelegationToken, "whoever has a token's secret, and is one of its renewers"),
    (ApiKey::ExpireDelegationToken, "likewise"),
    (ApiKey::DescribeDelegationToken, "everybody may see their own; of the others it asks"),
    (ApiKey::PushTelemetry, "what a client says of itself, if an operator has asked for it"),
];

/// A request's version and its body, by API.
#[derive(Default)]
struct RequestTable(BTreeMap<i16, (i16, Bytes)>);

impl RequestTable {
    fn add<R: Request>(&mut self, version: i16, request: &R) {
        self.add_frame(encode_frame(version, request));
    }

    fn add_frame(&mut self, frame: Vec<u8>) {
        let (api, version, _, body) =
            crate::frame_reader::split_header(Bytes::from(frame).slice(size_of::<i32>()..))
                .unwrap();
        assert!(self.0.insert(api, (version, body)).is_none(), "{api} has two requests");
    }
}

fn group() -> GroupId {
    GroupId(text("g"))
}

fn transaction() -> TransactionalId {
    TransactionalId(text("x"))
}

fn add_data(table: &mut RequestTable, id: Uuid) {
    use fetch_request::{FetchPartition, FetchTopic};
    use produce_request::{PartitionProduceData, TopicProduceData};
    let topic = TopicProduceData::default()
        .with_topic_id(id)
        .with_partition_data(vec![PartitionProduceData::default()]);
    table.add(13, &ProduceRequest::default().with_acks(-1).with_topic_data(vec![topic]));
    let topic =
        FetchTopic::default().with_topic_id(id).with_partitions(vec![FetchPartition::default()]);
    let fetch = FetchRequest::default().with_session_epoch(-1).with_topics(vec![topic]);
    table.add(13, &fetch);
    let topic = list_offsets_request::ListOffsetsTopic::default().with_name(topic_name("t"));
    table.add(7, &ListOffsetsRequest::default().with_topics(vec![topic]));
    let topic = offset_for_leader_epoch_request::OffsetForLeaderTopic::default()
        .with_topic(topic_name("t"));
    table.add(4, &OffsetForLeaderEpochRequest::default().with_topics(vec![topic]));
    let topic = delete_records_request::DeleteRecordsTopic::default().with_name(topic_name("t"));
    table.add(2, &DeleteRecordsRequest::default().with_topics(vec![topic]));
    let topic = describe_producers_request::TopicRequest::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(vec![0]);
    table.add(0, &DescribeProducersRequest::default().with_topics(vec![topic]));
}

fn add_topics(table: &mut RequestTable) {
    table.add(12, &MetadataRequest::default().with_topics(None));
    table.add(0, &DescribeTopicPartitionsRequest::default().with_cursor(None));
    let topic = create_topics_request::CreatableTopic::default().with_name(topic_name("new"));
    table.add(7, &CreateTopicsRequest::default().with_topics(vec![topic]));
    table.add(6, &DeleteTopicsRequest::default());
    let topic = create_partitions_request::CreatePartitionsTopic::default()
        .with_name(topic_name("t"))
        .with_assignments(None);
    table.add(3, &CreatePartitionsRequest::default().with_topics(vec![topic]));
    let topic = describe_configs_request::DescribeConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text("t"));
    table.add(4, &DescribeConfigsRequest::default().with_resources(vec![topic]));
    let topic = alter_configs_request::AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text("t"));
    table.add(2, &AlterConfigsRequest::default().with_resources(vec![topic]));
    let topic = incremental_alter_configs_request::AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text("t"));
    table.add(1, &IncrementalAlterConfigsRequest::default().with_resources(vec![topic]));
}

fn add_cluster(table: &mut RequestTable) {
    table.add(1, &ListConfigResourcesRequest::default());
    table.add(4, &DescribeLogDirsRequest::default().with_topics(None));
    table.add(0, &ListPartitionReassignmentsRequest::default().with_topics(None));
    let reassign = AlterPartitionReassignmentsRequest::default();
    table.add(1, &reassign);
    table.add(2, &AlterReplicaLogDirsRequest::default());
    table.add(2, &DescribeQuorumRequest::default());
    table.add(2, &ElectLeadersRequest::default());
    table.add(2, &UpdateFeaturesRequest::default());
    table.add(0, &UnregisterBrokerRequest::default());
    // Cluster membership is public.
    let cluster =
        DescribeClusterRequest::default().with_include_cluster_authorized_operations(true);
    table.add(1, &cluster);
    table.add(3, &DescribeAclsRequest::default());
    table.add(3, &CreateAclsRequest::default());
    table.add(3, &DeleteAclsRequest::default());
    table.add(1, &DescribeClientQuotasRequest::default());
    table.add(1, &AlterClientQuotasRequest::default());
    table.add(0, &DescribeUserScramCredentialsRequest::default());
    table.add(0, &AlterUserScramCredentialsRequest::default());
}

fn add_transactions(table: &mut RequestTable) {
    table.add(4, &InitProducerIdRequest::default().with_transactional_id(Some(transaction())));
    let id = transaction();
    let partitions = AddPartitionsToTxnRequest::default().with_v3_and_below_transactional_id(id);
    table.add(3, &partitions);
    table.add(3, &AddOffsetsToTxnRequest::default().with_transactional_id(transaction()));
    table.add(3, &EndTxnRequest::default().with_transactional_id(transaction()));
    table.add(1, &WriteTxnMarkersRequest::default());
    table.add(3, &TxnOffsetCommitRequest::default().with_transactional_id(transaction()));
    let ids = vec![transaction()];
    table.add(0, &DescribeTransactionsRequest::default().with_transactional_ids(ids));
    table.add(2, &ListTransactionsRequest::default());
}

fn add_groups(table: &mut RequestTable) {
    let member = || text("nobody");
    table.add(4, &FindCoordinatorRequest::default().with_coordinator_keys(vec![text("g")]));
    table.add(9, &JoinGroupRequest::default().with_group_id(group()).with_member_id(member()));
    table.add(4, &SyncGroupRequest::default().with_group_id(group()).with_member_id(member()));
    table.add(4, &HeartbeatRequest::default().with_group_id(group()).with_member_id(member()));
    table.add(5, &LeaveGroupRequest::default().with_group_id(group()));
    table.add(5, &DescribeGroupsRequest::default().with_groups(vec![group()]));
    table.add(5, &ListGroupsRequest::default());
    table.add(2, &DeleteGroupsRequest::default().with_groups_names(vec![group()]));
    let topic =
        offset_commit_request::OffsetCommitRequestTopic::default().with_name(topic_name("t"));
    let commit = OffsetCommitRequest::default().with_group_id(group()).with_topics(vec![topic]);
    table.add(8, &commit);
    let asked = offset_fetch_request::OffsetFetchRequestGroup::default()
        .with_group_id(group())
        .with_topics(None);
    table.add(9, &OffsetFetchRequest::default().with_groups(vec![asked]));
    table.add(0, &OffsetDeleteRequest::default().with_group_id(group()));
    let heartbeat = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group())
        .with_member_id(text("m"))
        .with_rebalance_timeout_ms(1000)
        .with_subscribed_topic_names(Some(vec![topic_name("t")]))
        .with_topic_partitions(Some(Vec::new()));
    table.add(1, &heartbeat);
    table.add(1, &ConsumerGroupDescribeRequest::default().with_group_ids(vec![group()]));
    let topology = Some(TestTopology::counting("t", "r", "c"));
    let (group, member) = ("g".to_owned(), "m".to_owned());
    let heartbeat =
        TestStreamsHeartbeat { group, member, topology, ..TestStreamsHeartbeat::default() };
    table.add_frame(heartbeat.frame());
    table.add_frame(describe_streams_frame(&["g"]));
}

fn add_share_groups(table: &mut RequestTable, id: Uuid) {
    let heartbeat = ShareGroupHeartbeatRequest::default()
        .with_group_id(group())
        .with_member_id(text("m"))
        .with_subscribed_topic_names(Some(vec![topic_name("t")]));
    table.add(1, &heartbeat);
    table.add(1, &ShareGroupDescribeRequest::default().with_group_ids(vec![group()]));
    let topic = share_fetch_request::FetchTopic::default()
        .with_topic_id(id)
        .with_partitions(vec![share_fetch_request::FetchPartition::default()]);
    let fetch = ShareFetchRequest::default()
        .with_group_id(Some(group()))
        .with_member_id(Some(text("m")))
        .with_topics(vec![topic]);
    table.add(1, &fetch);
    let acknowledge = ShareAcknowledgeRequest::default()
        .with_group_id(Some(group()))
        .with_member_id(Some(text("m")))
        .with_share_session_epoch(1);
    table.add(1, &acknowledge);
    let asked =
        describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup::default()
            .with_group_id(group())
            .with_topics(None);
    table.add(0, &DescribeShareGroupOffsetsRequest::default().with_groups(vec![asked]));
    table.add(0, &AlterShareGroupOffsetsRequest::default().with_group_id(group()));
    table.add(0, &DeleteShareGroupOffsetsRequest::default().with_group_id(group()));
}

/// A server with a topic and a transaction: what filters a list asks for each item.
async fn server() -> TestAuthorizer {
    let test = TestAuthorizer::with_topic("t", 1).await;
    let id = Resource { kind: ResourceType::TransactionalId, name: "x" };
    test.allow(Operation::Write, id).await;
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(transaction()))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    assert_eq!(test.ask(4, request).await.error_code, 0);
    test.revoke(Operation::Write, id).await;
    test
}

#[tokio::test]
async fn every_api_asks_whether_the_client_may() {
    let test = server().await;
    let (mut table, id) = (RequestTable::default(), test.id("t"));
    add_data(&mut table, id);
    add_topics(&mut table);
    add_cluster(&mut table);
    add_transactions(&mut table);
    add_groups(&mut table);
    add_share_groups(&mut table, id);
    let mut missing = Vec::new();
    for route in routes::routes() {
        let api = route.key;
        if ASKING_NOBODY.iter().any(|(key, _)| *key as i16 == api) {
            assert!(!table.0.contains_key(&api), "{api} is in both lists");
            continue;
        }
        let (version, body) =
            table.0.get(&api).unwrap_or_else(|| panic!("{api} needs a request in this test"));
        let before = test.authorizations();
        test.serve(api, *version, body.clone()).await.unwrap();
        if test.authorizations() == before {
            missing.push(ApiKey::try_from(api).map_or(format!("{api}"), |key| format!("{key:?}")));
        }
    }
    assert!(missing.is_empty(), "these APIs ask nobody: {missing:?}");
}
