//! The size of responses compared with their requests: no request makes the server repeat the same
//! thing over and over, or return more of the past than a response may hold.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use compat_kafka::KafkaOptions;
use engine::groups::OffsetCommit;
use engine::security::{AuthorizerOptions, SecurityOptions};
use engine::{CoreOptions, EngineOptions};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Request, StrBytes};
use storage::disk::MemoryDisk;
use testkit::kafka::{TestKafkaConnection, TestKafkaServer};
use testkit::requests::{encode_frame, topic_name};
use testkit::streams::{TestStreamsHeartbeat, TestTopology, describe_streams_frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The number of partitions of the large topic.
const PARTITIONS: u32 = 2000;
const GROUPS: usize = 20;
/// The number of times that a request names the same thing.
const TIMES: usize = 2000;
/// The most bytes that a response may hold for each byte of the request.
const PER_REQUEST_BYTE: usize = 32;
/// The allowance beyond that and the existing objects: for errors, and for the broker.
const SLACK_BYTES: usize = 64 << 10;
/// The most bytes in which a response may describe moments: 100,000 partitions or settings.
const PAST_BYTES: usize = 16 << 20;

/// A request that asks for a thing once, and one that asks for it many times.
struct ResponseSizeCase {
    api: i16,
    once: Vec<u8>,
    often: Vec<u8>,
    /// The additional bytes that the response may hold.
    more: usize,
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn group(nth: usize) -> GroupId {
    GroupId(text(&format!("g{nth}")))
}

/// A member that joins a streams group.
fn streams_join() -> TestStreamsHeartbeat {
    TestStreamsHeartbeat {
        group: "streams".to_owned(),
        member: "m".to_owned(),
        topology: Some(TestTopology::counting("t", "r", "c")),
        ..TestStreamsHeartbeat::default()
    }
}

/// `ask` builds a request from names, or from as many items.
fn case<R: Request, T: Clone>(
    version: i16,
    all: Vec<T>,
    ask: impl Fn(Vec<T>) -> R,
) -> ResponseSizeCase {
    let often = all.iter().cycle().take(TIMES.max(all.len())).cloned().collect();
    ResponseSizeCase {
        api: R::KEY,
        once: encode_frame(version, &ask(all)),
        often: encode_frame(version, &ask(often)),
        more: 0,
    }
}

/// A request that cannot ask for more than one thing.
fn single<R: Request>(version: i16, request: &R) -> ResponseSizeCase {
    let frame = encode_frame(version, request);
    ResponseSizeCase { api: R::KEY, once: frame.clone(), often: frame, more: 0 }
}

/// The same, for different moments of the large topic.
fn moments<R: Request>(version: i16, ask: impl Fn(Vec<String>) -> R) -> ResponseSizeCase {
    let names = (0..TIMES).map(|nth| format!("t@u{nth}")).collect();
    let once = encode_frame(version, &ask(vec!["t".to_owned()]));
    ResponseSizeCase {
        api: R::KEY,
        once,
        often: encode_frame(version, &ask(names)),
        more: PAST_BYTES,
    }
}

fn metadata(names: Vec<String>) -> MetadataRequest {
    let topic = |name: String| {
        metadata_request::MetadataRequestTopic::default().with_name(Some(topic_name(&name)))
    };
    MetadataRequest::default().with_topics(Some(names.into_iter().map(topic).collect()))
}

fn metadata_by_id(ids: Vec<[u8; 16]>) -> MetadataRequest {
    let topic = |id: [u8; 16]| {
        let topic = metadata_request::MetadataRequestTopic::default().with_name(None);
        topic.with_topic_id(uuid::Uuid::from_bytes(id))
    };
    MetadataRequest::default().with_topics(Some(ids.into_iter().map(topic).collect()))
}

fn describe_configs(names: Vec<(i8, String)>) -> DescribeConfigsRequest {
    let resource = |(kind, name): (i8, String)| {
        describe_configs_request::DescribeConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(text(&name))
            .with_configuration_keys(None)
    };
    DescribeConfigsRequest::default()
        .with_resources(names.into_iter().map(resource).collect())
        .with_include_synonyms(true)
}

fn offset_fetch(groups: Vec<usize>) -> OffsetFetchRequest {
    let asked = |nth| {
        offset_fetch_request::OffsetFetchRequestGroup::default()
            .with_group_id(group(nth))
            .with_topics(None)
    };
    OffsetFetchRequest::default().with_groups(groups.into_iter().map(asked).collect())
}

fn offset_fetch_named(indexes: Vec<i32>) -> OffsetFetchRequest {
    let topic = offset_fetch_request::OffsetFetchRequestTopics::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(indexes);
    let group = offset_fetch_request::OffsetFetchRequestGroup::default()
        .with_group_id(group(0))
        .with_topics(Some(vec![topic]));
    OffsetFetchRequest::default().with_groups(vec![group])
}

fn offset_fetch_unbatched(indexes: Vec<i32>) -> OffsetFetchRequest {
    let topic = offset_fetch_request::OffsetFetchRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(indexes);
    OffsetFetchRequest::default().with_group_id(group(0)).with_topics(Some(vec![topic]))
}

fn create_topics(names: Vec<String>) -> CreateTopicsRequest {
    let topic = |name: String| {
        create_topics_request::CreatableTopic::default()
            .with_name(topic_name(&name))
            .with_num_partitions(1)
            .with_replication_factor(1)
    };
    CreateTopicsRequest::default()
        .with_topics(names.into_iter().map(topic).collect())
        .with_validate_only(true)
}

fn fetch(indexes: Vec<i32>) -> FetchRequest {
    let partition = |index| {
        fetch_request::FetchPartition::default()
            .with_partition(index)
            .with_partition_max_bytes(1 << 20)
    };
    let topic = fetch_request::FetchTopic::default()
        .with_topic(topic_name("t"))
        .with_partitions(indexes.into_iter().map(partition).collect());
    FetchRequest::default().with_max_bytes(1 << 20).with_topics(vec![topic])
}

fn list_offsets(indexes: Vec<i32>) -> ListOffsetsRequest {
    let partition = |index| {
        list_offsets_request::ListOffsetsPartition::default()
            .with_partition_index(index)
            .with_timestamp(-3)
    };
    let topic = list_offsets_request::ListOffsetsTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(indexes.into_iter().map(partition).collect());
    ListOffsetsRequest::default().with_topics(vec![topic])
}

fn describe_log_dirs(names: Vec<String>) -> DescribeLogDirsRequest {
    let topic = |name: String| {
        describe_log_dirs_request::DescribableLogDirTopic::default()
            .with_topic(topic_name(&name))
            .with_partitions((0..4).collect())
    };
    DescribeLogDirsRequest::default().with_topics(Some(names.into_iter().map(topic).collect()))
}

fn describe_topic_partitions(names: Vec<String>) -> DescribeTopicPartitionsRequest {
    let topic = |name: String| {
        describe_topic_partitions_request::TopicRequest::default().with_name(topic_name(&name))
    };
    DescribeTopicPartitionsRequest::default()
        .with_topics(names.into_iter().map(topic).collect())
        .with_response_partition_limit(i32::MAX)
        .with_cursor(None)
}

/// Requests that describe topics, groups and settings.
fn describing(topic: [u8; 16]) -> Vec<ResponseSizeCase> {
    let t = || vec!["t".to_owned()];
    let past = |name: String| (2, name);
    vec![
        case(12, t(), metadata),
        case(12, vec![topic], metadata_by_id),
        moments(12, metadata),
        case(4, vec![(2, "t".to_owned()), (4, "1".to_owned())], describe_configs),
        // A number can be written in many ways.
        ResponseSizeCase {
            often: encode_frame(
                4,
                &describe_configs((1..TIMES).map(|n| (4, format!("{:0n$}", 1))).collect()),
            ),
            ..case(4, vec![(4, "1".to_owned())], describe_configs)
        },
        moments(4, |names| describe_configs(names.into_iter().map(past).collect())),
        case(4, t(), describe_log_dirs),
        case(0, t(), describe_topic_partitions),
        moments(0, describe_topic_partitions),
        case(5, (0..GROUPS).map(group).collect(), |groups| {
            DescribeGroupsRequest::default().with_groups(groups)
        }),
        case(1, (0..GROUPS).map(group).collect(), |groups| {
            ConsumerGroupDescribeRequest::default().with_group_ids(groups)
        }),
        single(
            1,
            &ConsumerGroupHeartbeatRequest::default()
                .with_group_id(group(0))
                .with_member_id(text("m"))
                .with_rebalance_timeout_ms(1000)
                .with_subscribed_topic_names(Some(vec![topic_name("t")]))
                .with_topic_partitions(Some(Vec::new())),
        ),
        case(1, (0..GROUPS).map(group).collect(), |groups| {
            ShareGroupDescribeRequest::default().with_group_ids(groups)
        }),
        single(
            1,
            &ShareGroupHeartbeatRequest::default()
                .with_group_id(group(GROUPS + 1))
                .with_member_id(text("m"))
                .with_subscribed_topic_names(Some(vec![topic_name("t")])),
        ),
        ResponseSizeCase {
            api: 88,
            once: streams_join().frame(),
            often: streams_join().frame(),
            more: 0,
        },
        ResponseSizeCase {
            api: 89,
            once: describe_streams_frame(&["g0", "streams"]),
            often: describe_streams_frame(&["g0", "streams"].repeat(TIMES)),
            more: 0,
        },
        case(0, (0..GROUPS + 2).collect(), |groups| {
            use describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;
            let group = |nth| {
                let asked = DescribeShareGroupOffsetsRequestGroup::default();
                asked.with_group_id(group(nth)).with_topics(None)
            };
            let groups = groups.into_iter().map(group).collect();
            DescribeShareGroupOffsetsRequest::default().with_groups(groups)
        }),
        case(0, (0..40).collect(), |indexes: Vec<i32>| {
            use alter_share_group_offsets_request as alter;
            let partition = |index| {
                let asked = alter::AlterShareGroupOffsetsRequestPartition::default();
                asked.with_partition_index(index)
            };
            let topic = alter::AlterShareGroupOffsetsRequestTopic::default()
                .with_topic_name(topic_name("t"))
                .with_partitions(indexes.into_iter().map(partition).collect());
            AlterShareGroupOffsetsRequest::default()
                .with_group_id(group(GROUPS + 1))
                .with_topics(vec![topic])
        }),
        case(0, (0..40).collect(), |topics: Vec<i32>| {
            use delete_share_group_offsets_request::DeleteShareGroupOffsetsRequestTopic;
            let topic = |nth: i32| {
                let asked = DeleteShareGroupOffsetsRequestTopic::default();
                asked.with_topic_name(topic_name(&format!("t{nth}")))
            };
            DeleteShareGroupOffsetsRequest::default()
                .with_group_id(group(GROUPS + 1))
                .with_topics(topics.into_iter().map(topic).collect())
        }),
        case(1, (0..40).collect(), |indexes: Vec<i32>| {
            use share_fetch_request::{FetchPartition, FetchTopic};
            let partition = |index| FetchPartition::default().with_partition_index(index);
            let topic =
                FetchTopic::default().with_partitions(indexes.into_iter().map(partition).collect());
            ShareFetchRequest::default()
                .with_group_id(Some(group(GROUPS + 1)))
                .with_member_id(Some(text("m")))
                .with_max_bytes(1)
                .with_max_records(1)
                .with_topics(vec![topic])
        }),
        case(1, (0..40).collect(), |indexes: Vec<i32>| {
            use share_acknowledge_request::{AcknowledgePartition, AcknowledgeTopic};
            let partition = |index| AcknowledgePartition::default().with_partition_index(index);
            let topic = AcknowledgeTopic::default()
                .with_partitions(indexes.into_iter().map(partition).collect());
            ShareAcknowledgeRequest::default()
                .with_group_id(Some(group(GROUPS + 1)))
                .with_member_id(Some(text("m")))
                .with_share_session_epoch(1)
                .with_topics(vec![topic])
        }),
        case(9, (0..GROUPS).collect(), offset_fetch),
        case(9, (0..40).collect(), offset_fetch_named),
        case(7, (0..40).collect(), offset_fetch_unbatched),
        single(1, &DescribeClusterRequest::default().with_endpoint_type(1)),
        case(5, vec![text("Stable")], |states| {
            ListGroupsRequest::default().with_states_filter(states)
        }),
        case(1, vec![2i8], |kinds| {
            ListConfigResourcesRequest::default().with_resource_types(kinds)
        }),
        single(0, &GetTelemetrySubscriptionsRequest::default()),
        single(0, &PushTelemetryRequest::default()),
        single(0, &ListPartitionReassignmentsRequest::default().with_topics(None)),
        single(3, &ApiVersionsRequest::default()),
    ]
}

/// Requests that read, write and look up.
fn reading() -> Vec<ResponseSizeCase> {
    let indexes = || vec![0, 1, 2, 3];
    vec![
        case(12, indexes(), fetch),
        case(7, indexes(), list_offsets),
        case(9, indexes(), |indexes| {
            let data = |index| produce_request::PartitionProduceData::default().with_index(index);
            let topic = produce_request::TopicProduceData::default()
                .with_name(topic_name("t"))
                .with_partition_data(indexes.into_iter().map(data).collect());
            ProduceRequest::default().with_acks(-1).with_topic_data(vec![topic])
        }),
        case(4, indexes(), |indexes| {
            use offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
            let partition = |index| OffsetForLeaderPartition::default().with_partition(index);
            let topic = OffsetForLeaderTopic::default()
                .with_topic(topic_name("t"))
                .with_partitions(indexes.into_iter().map(partition).collect());
            OffsetForLeaderEpochRequest::default().with_topics(vec![topic])
        }),
        case(4, vec![text("k")], |keys| {
            FindCoordinatorRequest::default().with_coordinator_keys(keys)
        }),
        single(4, &InitProducerIdRequest::default()),
    ]
}

/// Requests that change groups and their offsets.
fn grouping() -> Vec<ResponseSizeCase> {
    let member = || text("nobody");
    vec![
        single(9, &JoinGroupRequest::default().with_group_id(group(0)).with_member_id(member())),
        single(5, &SyncGroupRequest::default().with_group_id(group(0)).with_member_id(member())),
        single(4, &HeartbeatRequest::default().with_group_id(group(0)).with_member_id(member())),
        case(5, vec![member()], |members| {
            let identity =
                |member| leave_group_request::MemberIdentity::default().with_member_id(member);
            LeaveGroupRequest::default()
                .with_group_id(group(0))
                .with_members(members.into_iter().map(identity).collect())
        }),
        case(8, vec![0, 1], |indexes| {
            use offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
            let partition =
                |index| OffsetCommitRequestPartition::default().with_partition_index(index);
            let topic = OffsetCommitRequestTopic::default()
                .with_name(topic_name("t"))
                .with_partitions(indexes.into_iter().map(partition).collect());
            OffsetCommitRequest::default().with_group_id(group(0)).with_topics(vec![topic])
        }),
        case(0, vec![3000, 3001], |indexes| {
            use offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
            let partition =
                |index| OffsetDeleteRequestPartition::default().with_partition_index(index);
            let topic = OffsetDeleteRequestTopic::default()
                .with_name(topic_name("t"))
                .with_partitions(indexes.into_iter().map(partition).collect());
            OffsetDeleteRequest::default().with_group_id(group(0)).with_topics(vec![topic])
        }),
        case(2, vec![GroupId(text("nobody"))], |groups| {
            DeleteGroupsRequest::default().with_groups_names(groups)
        }),
    ]
}

fn txn_id() -> TransactionalId {
    TransactionalId(text("x"))
}

/// Requests of producers, and about their transactions.
fn transacting() -> Vec<ResponseSizeCase> {
    let fenced = (ProducerId(0), -2);
    vec![
        case(3, vec![0, 1], |indexes| {
            use add_partitions_to_txn_request::AddPartitionsToTxnTopic;
            let topic = AddPartitionsToTxnTopic::default()
                .with_name(topic_name("t"))
                .with_partitions(indexes);
            AddPartitionsToTxnRequest::default()
                .with_v3_and_below_transactional_id(txn_id())
                .with_v3_and_below_producer_epoch(fenced.1)
                .with_v3_and_below_topics(vec![topic])
        }),
        single(4, &AddOffsetsToTxnRequest::default().with_transactional_id(txn_id())),
        single(
            5,
            &EndTxnRequest::default().with_transactional_id(txn_id()).with_producer_id(fenced.0),
        ),
        case(5, vec![0, 1], |indexes| {
            use txn_offset_commit_request::{
                TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
            };
            let partition =
                |index| TxnOffsetCommitRequestPartition::default().with_partition_index(index);
            let topic = TxnOffsetCommitRequestTopic::default()
                .with_name(topic_name("t"))
                .with_partitions(indexes.into_iter().map(partition).collect());
            TxnOffsetCommitRequest::default()
                .with_transactional_id(txn_id())
                .with_group_id(GroupId(text("new")))
                .with_generation_id(-1)
                .with_topics(vec![topic])
        }),
        case(1, vec![0, 1], |indexes| {
            use write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
            let topic = WritableTxnMarkerTopic::default()
                .with_name(topic_name("t"))
                .with_partition_indexes(indexes);
            let marker = WritableTxnMarker::default().with_topics(vec![topic]);
            WriteTxnMarkersRequest::default().with_markers(vec![marker])
        }),
        case(0, vec![0], |indexes| {
            use describe_producers_request::TopicRequest;
            let topic =
                TopicRequest::default().with_name(topic_name("t")).with_partition_indexes(indexes);
            DescribeProducersRequest::default().with_topics(vec![topic])
        }),
        case(0, vec![txn_id()], |ids| {
            DescribeTransactionsRequest::default().with_transactional_ids(ids)
        }),
        single(2, &ListTransactionsRequest::default()),
    ]
}

/// A transaction on all partitions, and producers of the first one.
async fn open_transaction(wire: &mut TestKafkaConnection) {
    use add_partitions_to_txn_request::AddPartitionsToTxnTopic;
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(txn_id()))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    let producer = wire.ask(4, &request).await.unwrap();
    let topic = AddPartitionsToTxnTopic::default()
        .with_name(topic_name("t"))
        .with_partitions((0..PARTITIONS as i32).collect());
    let request = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(txn_id())
        .with_v3_and_below_producer_id(producer.producer_id)
        .with_v3_and_below_producer_epoch(producer.producer_epoch)
        .with_v3_and_below_topics(vec![topic]);
    let added = wire.ask(3, &request).await.unwrap().results_by_topic_v3_and_below;
    assert_eq!(added[0].results_by_partition[0].partition_error_code, 0);
    for id in 100..200 {
        let mut batch = kafka_records::BatchBuilder::new(kafka_records::CompressionType::None);
        let batch = batch.producer(id, 0, 0).record(0, None, Some(b"x"), &[]).build();
        assert_eq!(wire.produce("t", batch).await.0, 0);
    }
}

/// Requests that change topics; here they change nothing.
fn changing() -> Vec<ResponseSizeCase> {
    let many = (0..10 * TIMES).map(|nth| format!("n{nth}")).collect();
    vec![
        case(7, vec!["new".to_owned()], create_topics),
        // Each could be created, and none is.
        ResponseSizeCase {
            often: encode_frame(7, &create_topics(many)),
            ..case(7, vec!["new".to_owned()], create_topics)
        },
        case(3, vec!["t"], |names| {
            let topic = |name| {
                create_partitions_request::CreatePartitionsTopic::default()
                    .with_name(topic_name(name))
                    .with_assignments(None)
            };
            CreatePartitionsRequest::default()
                .with_topics(names.into_iter().map(topic).collect())
                .with_validate_only(true)
        }),
        case(6, vec!["nothing"], |names| {
            let topic = |name| {
                delete_topics_request::DeleteTopicState::default().with_name(Some(topic_name(name)))
            };
            DeleteTopicsRequest::default().with_topics(names.into_iter().map(topic).collect())
        }),
        case(2, vec![0, 1], |indexes| {
            use delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
            let partition = |index| DeleteRecordsPartition::default().with_partition_index(index);
            let topic = DeleteRecordsTopic::default()
                .with_name(topic_name("t"))
                .with_partitions(indexes.into_iter().map(partition).collect());
            DeleteRecordsRequest::default().with_topics(vec![topic])
        }),
        case(2, vec!["t"], |names| {
            let resource = |name| {
                alter_configs_request::AlterConfigsResource::default()
                    .with_resource_type(2)
                    .with_resource_name(text(name))
            };
            AlterConfigsRequest::default()
                .with_resources(names.into_iter().map(resource).collect())
                .with_validate_only(true)
        }),
        case(1, vec!["t"], |names| {
            let resource = |name| {
                incremental_alter_configs_request::AlterConfigsResource::default()
                    .with_resource_type(2)
                    .with_resource_name(text(name))
            };
            IncrementalAlterConfigsRequest::default()
                .with_resources(names.into_iter().map(resource).collect())
                .with_validate_only(true)
        }),
    ]
}

/// Partitions of one topic whose name is as long as it may be, and of which there are too few.
fn administering() -> Vec<ResponseSizeCase> {
    let name = || topic_name(&"n".repeat(249));
    vec![
        case(2, vec![0, 1], |partitions| {
            let topic = elect_leaders_request::TopicPartitions::default()
                .with_topic(name())
                .with_partitions(partitions);
            ElectLeadersRequest::default().with_topic_partitions(Some(vec![topic]))
        }),
        case(1, vec![0, 1], |partitions| {
            use alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
            let partition = |index| {
                ReassignablePartition::default()
                    .with_partition_index(index)
                    .with_replicas(Some(Vec::new()))
            };
            let topic = ReassignableTopic::default()
                .with_name(name())
                .with_partitions(partitions.into_iter().map(partition).collect());
            AlterPartitionReassignmentsRequest::default().with_topics(vec![topic])
        }),
        case(2, vec![0, 1], |partitions| {
            use alter_replica_log_dirs_request::{AlterReplicaLogDir, AlterReplicaLogDirTopic};
            let topic =
                AlterReplicaLogDirTopic::default().with_name(name()).with_partitions(partitions);
            let directory =
                AlterReplicaLogDir::default().with_path(text("/d")).with_topics(vec![topic]);
            AlterReplicaLogDirsRequest::default().with_dirs(vec![directory])
        }),
        case(2, vec![0, 1], |partitions| {
            use describe_quorum_request::{PartitionData, TopicData};
            let partition = |index| PartitionData::default().with_partition_index(index);
            let topic = TopicData::default()
                .with_topic_name(name())
                .with_partitions(partitions.into_iter().map(partition).collect());
            DescribeQuorumRequest::default().with_topics(vec![topic])
        }),
        case(1, vec!["transaction.version"], |names| {
            let update = |name| {
                update_features_request::FeatureUpdateKey::default()
                    .with_feature(text(name))
                    .with_max_version_level(2)
            };
            UpdateFeaturesRequest::default()
                .with_feature_updates(names.into_iter().map(update).collect())
        }),
        single(0, &UnregisterBrokerRequest::default()),
    ]
}

/// Any rule that there is.
fn any_rule() -> delete_acls_request::DeleteAclsFilter {
    delete_acls_request::DeleteAclsFilter::default()
        .with_resource_type_filter(1)
        .with_resource_name_filter(None)
        .with_pattern_type_filter(1)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1)
}

/// A rule for a topic, which only a principal of the form `TYPE:NAME` may have.
fn rule(topic: &str, principal: &str) -> create_acls_request::AclCreation {
    create_acls_request::AclCreation::default()
        .with_resource_type(2)
        .with_resource_name(text(topic))
        .with_resource_pattern_type(3)
        .with_principal(text(principal))
        .with_host(text("*"))
        .with_operation(3)
        .with_permission_type(3)
}

fn create_rules(rules: Vec<create_acls_request::AclCreation>) -> CreateAclsRequest {
    CreateAclsRequest::default().with_creations(rules)
}

fn describe_users(names: Vec<String>) -> DescribeUserScramCredentialsRequest {
    let user = |name: String| {
        describe_user_scram_credentials_request::UserName::default().with_name(text(&name))
    };
    DescribeUserScramCredentialsRequest::default()
        .with_users(Some(names.into_iter().map(user).collect()))
}

fn delete_users(names: Vec<String>) -> AlterUserScramCredentialsRequest {
    let deletion = |name: String| {
        alter_user_scram_credentials_request::ScramCredentialDeletion::default()
            .with_name(text(&name))
            .with_mechanism(1)
    };
    AlterUserScramCredentialsRequest::default()
        .with_deletions(names.into_iter().map(deletion).collect())
}

/// Quotas of users; those of the user without a name are refused.
fn alter_quotas(names: Vec<String>) -> AlterClientQuotasRequest {
    use alter_client_quotas_request::{EntityData, EntryData, OpData};
    let entry = |name: String| {
        let user = EntityData::default().with_entity_type(text("user"));
        let rate = OpData::default().with_key(text("producer_byte_rate")).with_value(1.0);
        EntryData::default()
            .with_entity(vec![user.with_entity_name(Some(text(&name)))])
            .with_ops(vec![rate])
    };
    AlterClientQuotasRequest::default().with_entries(names.into_iter().map(entry).collect())
}

/// Requests about access control lists, users and quotas, and those of logins.
fn securing() -> Vec<ResponseSizeCase> {
    let nobody = |count: usize| (0..count).map(|nth| format!("{nth}")).collect::<Vec<_>>();
    let describe_all = DescribeAclsRequest::default()
        .with_resource_type_filter(1)
        .with_resource_name_filter(None)
        .with_pattern_type_filter(1)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1);
    let delete = |filter, times: usize| {
        let filters = vec![filter; times];
        encode_frame(3, &DeleteAclsRequest::default().with_filters(filters))
    };
    vec![
        single(3, &describe_all),
        case(3, vec![rule("", "")], create_rules),
        case(3, vec![rule("t", "")], create_rules),
        ResponseSizeCase {
            api: DeleteAclsRequest::KEY,
            once: delete(any_rule().with_operation(4), 1),
            often: delete(any_rule(), TIMES),
            more: PAST_BYTES,
        },
        case(0, vec!["u".to_owned()], describe_users),
        case(0, nobody(TIMES), describe_users),
        case(0, vec!["u".to_owned()], delete_users),
        case(0, nobody(TIMES), delete_users),
        single(3, &CreateDelegationTokenRequest::default()),
        single(2, &RenewDelegationTokenRequest::default()),
        single(2, &ExpireDelegationTokenRequest::default()),
        single(3, &DescribeDelegationTokenRequest::default().with_owners(None)),
        single(1, &DescribeClientQuotasRequest::default()),
        case(1, vec![String::new()], alter_quotas),
        case(1, nobody(TIMES), alter_quotas),
        single(1, &SaslHandshakeRequest::default().with_mechanism(text("PLAIN"))),
        single(2, &SaslAuthenticateRequest::default()),
    ]
}

/// Rules and quotas that are there.
async fn secure(wire: &mut TestKafkaConnection) {
    let rules = (0..GROUPS).map(|nth| rule(&format!("t{nth}"), "User:x")).collect();
    let created = wire.ask(3, &create_rules(rules)).await.unwrap().results;
    assert!(created.iter().all(|result| result.error_code == 0), "{created:?}");
    let names = (0..GROUPS).map(|nth| format!("u{nth}")).collect();
    let altered = wire.ask(1, &alter_quotas(names)).await.unwrap().entries;
    assert!(altered.iter().all(|entry| entry.error_code == 0), "{altered:?}");
}

async fn response_bytes(wire: &mut TestKafkaConnection, frame: &[u8]) -> usize {
    wire.0.write_all(frame).await.unwrap();
    let answered = async {
        let length = wire.0.read_u32().await.unwrap() as usize;
        let mut left = length;
        let mut bytes = vec![0; 1 << 16];
        while left > 0 {
            let most = left.min(bytes.len());
            left -= wire.0.read(&mut bytes[..most]).await.unwrap();
        }
        length
    };
    tokio::time::timeout(testkit::kafka::PATIENCE, answered).await.expect("an answer comes")
}

/// The only member of its group, with long metadata.
async fn join(wire: &mut TestKafkaConnection, nth: usize) {
    let protocol = join_group_request::JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(vec![0; 20_000].into());
    let request = JoinGroupRequest::default()
        .with_group_id(group(nth))
        .with_session_timeout_ms(30_000)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    assert_eq!(wire.ask(3, &request).await.unwrap().error_code, 0);
}

/// A large topic, and groups that have committed offsets in it.
async fn server_with_groups() -> (TestKafkaServer, [u8; 16]) {
    let directory = compat_kafka::BrokerSetting {
        name: "log.dirs".to_owned(),
        type_name: "LIST",
        value: Some("x".repeat(100_000)),
        given: Vec::new(),
        default: None,
        is_dynamic: false,
        documentation: String::new(),
    };
    let broker_settings = vec![directory];
    let dynamic = compat_kafka::DynamicOptions { broker_settings, ..Default::default() };
    let mut options = KafkaOptions { dynamic, ..KafkaOptions::default() };
    options.groups.initial_rebalance_delay = Duration::ZERO;
    let storage = storage::Options { tail_bytes_max: 64 << 20, ..storage::Options::default() };
    // The client may do everything, by rules that it may change.
    let authorizer = AuthorizerOptions {
        is_enabled: true,
        super_users: ["User:ANONYMOUS".to_owned()].into(),
        ..AuthorizerOptions::default()
    };
    let engine = EngineOptions {
        core: CoreOptions { storage, ..CoreOptions::default() },
        security: SecurityOptions { authorizer, ..SecurityOptions::default() },
        ..EngineOptions::default()
    };
    let (disk, local) = (Arc::new(MemoryDisk::new()), [127, 0, 0, 1].into());
    let server = TestKafkaServer::start_engine(local, disk, options, engine).await;
    let (id, mut wire) = ([9; 16], server.connect().await);
    server.engine.topics().create("t", PARTITIONS, BTreeMap::new(), id, false).await.unwrap();
    let offset = |partition| OffsetCommit {
        topic: "t".to_owned(),
        partition,
        offset: 1,
        leader_epoch: -1,
        metadata: "m".repeat(1000),
        retention_ms: None,
    };
    for nth in 0..GROUPS {
        join(&mut wire, nth).await;
        server.engine.groups().commit(&group(nth), (0..40).map(offset).collect()).await.unwrap();
    }
    open_transaction(&mut wire).await;
    secure(&mut wire).await;
    server.clock.advance(Duration::from_millis(10));
    (server, id)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_response_is_larger_than_what_there_is_and_so_much_for_each_byte_of_the_request() {
    let (server, topic) = server_with_groups().await;
    let mut wire = server.connect().await;
    let cases: Vec<ResponseSizeCase> = describing(topic)
        .into_iter()
        .chain(reading())
        .chain(grouping())
        .chain(transacting())
        .chain(changing())
        .chain(administering())
        .chain(securing())
        .collect();
    let served = wire.ask(3, &ApiVersionsRequest::default()).await.unwrap();
    for api in served.api_keys {
        let is_tried = cases.iter().any(|case| case.api == api.api_key);
        assert!(is_tried, "{:?} has a case here", ApiKey::try_from(api.api_key));
    }
    for case in cases {
        let api = ApiKey::try_from(case.api).map_err(|()| case.api);
        let once = response_bytes(&mut wire, &case.once).await;
        let often = response_bytes(&mut wire, &case.often).await;
        let most = once + PER_REQUEST_BYTE * case.often.len() + SLACK_BYTES + case.more;
        assert!(often <= most, "{api:?}: {} bytes ask for {often}, once {once}", case.often.len());
    }
}
