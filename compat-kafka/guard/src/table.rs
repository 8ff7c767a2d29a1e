//! The shape of every request a Kafka client may send to a broker, and of the header before it.
//!
//! Written by `compat-kafka/guard/generate.py` from the message schemas of Kafka 4.1.0: edit that.
//! A field without `since` or `until` is there in all versions of what it stands in.

use kafka_protocol::messages::*;

use crate::schema::*;

/// The header before the body: version 1, or 2 where the request's version is flexible.
pub(crate) static HEADER: RequestSchema = request(-1, "RequestHeader", (1, 2), 2, &[
    int16("request_api_key"), int16("request_api_version"), int32("correlation_id"),
    short_string("client_id"),
]);

/// Sorted by API key.
pub(crate) static REQUESTS: &[RequestSchema] = &[
    request(0, "Produce", (3, 13), 9, &[
        string("transactional_id"), int16("acks"), int32("timeout_ms"),
        array::<produce_request::TopicProduceData>("topic_data", &[
            string("name").until(12), uuid("topic_id").since(13),
            array::<produce_request::PartitionProduceData>("partition_data", &[
                int32("index"), bytes("records"),
            ]),
        ]),
    ]),
    request(1, "Fetch", (4, 18), 12, &[
        string("cluster_id").since(12).tag(0), int32("replica_id").until(14),
        inline("replica_state", &[
            int32("replica_id"), int64("replica_epoch"),
        ]).since(15).tag(1),
        int32("max_wait_ms"), int32("min_bytes"), int32("max_bytes"), int8("isolation_level"),
        int32("session_id").since(7), int32("session_epoch").since(7),
        array::<fetch_request::FetchTopic>("topics", &[
            string("topic").until(12), uuid("topic_id").since(13),
            array::<fetch_request::FetchPartition>("partitions", &[
                int32("partition"), int32("current_leader_epoch").since(9), int64("fetch_offset"),
                int32("last_fetched_epoch").since(12), int64("log_start_offset").since(5),
                int32("partition_max_bytes"), uuid("replica_directory_id").since(17).tag(0),
                int64("high_watermark").since(18).tag(1),
            ]),
        ]),
        array::<fetch_request::ForgottenTopic>("forgotten_topics_data", &[
            string("topic").until(12), uuid("topic_id").since(13), int32s("partitions"),
        ]).since(7),
        string("rack_id").since(11),
    ]),
    request(2, "ListOffsets", (1, 10), 6, &[
        int32("replica_id"), int8("isolation_level").since(2),
        array::<list_offsets_request::ListOffsetsTopic>("topics", &[
            string("name"),
            array::<list_offsets_request::ListOffsetsPartition>("partitions", &[
                int32("partition_index"), int32("current_leader_epoch").since(4),
                int64("timestamp"),
            ]),
        ]),
        int32("timeout_ms").since(10),
    ]),
    request(3, "Metadata", (0, 13), 9, &[
        array::<metadata_request::MetadataRequestTopic>("topics", &[
            uuid("topic_id").since(10), string("name"),
        ]),
        bool("allow_auto_topic_creation").since(4),
        bool("include_cluster_authorized_operations").since(8).until(10),
        bool("include_topic_authorized_operations").since(8),
    ]),
    request(8, "OffsetCommit", (2, 9), 8, &[
        string("group_id"), int32("generation_id_or_member_epoch"), string("member_id"),
        string("group_instance_id").since(7), int64("retention_time_ms").until(4),
        array::<offset_commit_request::OffsetCommitRequestTopic>("topics", &[
            string("name"),
            array::<offset_commit_request::OffsetCommitRequestPartition>("partitions", &[
                int32("partition_index"), int64("committed_offset"),
                int32("committed_leader_epoch").since(6), string("committed_metadata"),
            ]),
        ]),
    ]),
    request(9, "OffsetFetch", (1, 9), 6, &[
        string("group_id").until(7),
        array::<offset_fetch_request::OffsetFetchRequestTopic>("topics", &[
            string("name"), int32s("partition_indexes"),
        ]).until(7),
        array::<offset_fetch_request::OffsetFetchRequestGroup>("groups", &[
            string("group_id"), string("member_id").since(9), int32("member_epoch").since(9),
            array::<offset_fetch_request::OffsetFetchRequestTopics>("topics", &[
                string("name"), int32s("partition_indexes"),
            ]),
        ]).since(8),
        bool("require_stable").since(7),
    ]),
    request(10, "FindCoordinator", (0, 6), 3, &[
        string("key").until(3), int8("key_type").since(1), strings("coordinator_keys").since(4),
    ]),
    request(11, "JoinGroup", (0, 9), 6, &[
        string("group_id"), int32("session_timeout_ms"), int32("rebalance_timeout_ms").since(1),
        string("member_id"), string("group_instance_id").since(5), string("protocol_type"),
        array::<join_group_request::JoinGroupRequestProtocol>("protocols", &[
            string("name"), bytes("metadata"),
        ]),
        string("reason").since(8),
    ]),
    request(12, "Heartbeat", (0, 4), 4, &[
        string("group_id"), int32("generation_id"), string("member_id"),
        string("group_instance_id").since(3),
    ]),
    request(13, "LeaveGroup", (0, 5), 4, &[
        string("group_id"), string("member_id").until(2),
        array::<leave_group_request::MemberIdentity>("members", &[
            string("member_id"), string("group_instance_id"), string("reason").since(5),
        ]).since(3),
    ]),
    request(14, "SyncGroup", (0, 5), 4, &[
        string("group_id"), int32("generation_id"), string("member_id"),
        string("group_instance_id").since(3), string("protocol_type").since(5),
        string("protocol_name").since(5),
        array::<sync_group_request::SyncGroupRequestAssignment>("assignments", &[
            string("member_id"), bytes("assignment"),
        ]),
    ]),
    request(15, "DescribeGroups", (0, 6), 5, &[
        strings("groups"), bool("include_authorized_operations").since(3),
    ]),
    request(16, "ListGroups", (0, 5), 3, &[
        strings("states_filter").since(4), strings("types_filter").since(5),
    ]),
    request(17, "SaslHandshake", (0, 1), NEVER, &[
        string("mechanism"),
    ]),
    request(18, "ApiVersions", (0, 4), 3, &[
        string("client_software_name").since(3), string("client_software_version").since(3),
    ]),
    request(19, "CreateTopics", (2, 7), 5, &[
        array::<create_topics_request::CreatableTopic>("topics", &[
            string("name"), int32("num_partitions"), int16("replication_factor"),
            array::<create_topics_request::CreatableReplicaAssignment>("assignments", &[
                int32("partition_index"), int32s("broker_ids"),
            ]),
            array::<create_topics_request::CreatableTopicConfig>("configs", &[
                string("name"), string("value"),
            ]),
        ]),
        int32("timeout_ms"), bool("validate_only"),
    ]),
    request(20, "DeleteTopics", (1, 6), 4, &[
        array::<delete_topics_request::DeleteTopicState>("topics", &[
            string("name"), uuid("topic_id"),
        ]).since(6),
        strings("topic_names").until(5), int32("timeout_ms"),
    ]),
    request(21, "DeleteRecords", (0, 2), 2, &[
        array::<delete_records_request::DeleteRecordsTopic>("topics", &[
            string("name"),
            array::<delete_records_request::DeleteRecordsPartition>("partitions", &[
                int32("partition_index"), int64("offset"),
            ]),
        ]),
        int32("timeout_ms"),
    ]),
    request(22, "InitProducerId", (0, 5), 2, &[
        string("transactional_id"), int32("transaction_timeout_ms"), int64("producer_id").since(3),
        int16("producer_epoch").since(3),
    ]),
    request(23, "OffsetForLeaderEpoch", (2, 4), 4, &[
        int32("replica_id").since(3),
        array::<offset_for_leader_epoch_request::OffsetForLeaderTopic>("topics", &[
            string("topic"),
            array::<offset_for_leader_epoch_request::OffsetForLeaderPartition>("partitions", &[
                int32("partition"), int32("current_leader_epoch"), int32("leader_epoch"),
            ]),
        ]),
    ]),
    request(24, "AddPartitionsToTxn", (0, 5), 3, &[
        array::<add_partitions_to_txn_request::AddPartitionsToTxnTransaction>("transactions", &[
            string("transactional_id"), int64("producer_id"), int16("producer_epoch"),
            bool("verify_only"),
            array::<add_partitions_to_txn_request::AddPartitionsToTxnTopic>("topics", &[
                string("name"), int32s("partitions"),
            ]),
        ]).since(4),
        string("v3_and_below_transactional_id").until(3),
        int64("v3_and_below_producer_id").until(3), int16("v3_and_below_producer_epoch").until(3),
        array::<add_partitions_to_txn_request::AddPartitionsToTxnTopic>("v3_and_below_topics", &[
            string("name"), int32s("partitions"),
        ]).until(3),
    ]),
    request(25, "AddOffsetsToTxn", (0, 4), 3, &[
        string("transactional_id"), int64("producer_id"), int16("producer_epoch"),
        string("group_id"),
    ]),
    request(26, "EndTxn", (0, 5), 3, &[
        string("transactional_id"), int64("producer_id"), int16("producer_epoch"),
        bool("committed"),
    ]),
    request(27, "WriteTxnMarkers", (1, 1), 1, &[
        array::<write_txn_markers_request::WritableTxnMarker>("markers", &[
            int64("producer_id"), int16("producer_epoch"), bool("transaction_result"),
            array::<write_txn_markers_request::WritableTxnMarkerTopic>("topics", &[
                string("name"), int32s("partition_indexes"),
            ]),
            int32("coordinator_epoch"),
        ]),
    ]),
    request(28, "TxnOffsetCommit", (0, 5), 3, &[
        string("transactional_id"), string("group_id"), int64("producer_id"),
        int16("producer_epoch"), int32("generation_id").since(3), string("member_id").since(3),
        string("group_instance_id").since(3),
        array::<txn_offset_commit_request::TxnOffsetCommitRequestTopic>("topics", &[
            string("name"),
            array::<txn_offset_commit_request::TxnOffsetCommitRequestPartition>("partitions", &[
                int32("partition_index"), int64("committed_offset"),
                int32("committed_leader_epoch").since(2), string("committed_metadata"),
            ]),
        ]),
    ]),
    request(29, "DescribeAcls", (1, 3), 2, &[
        int8("resource_type_filter"), string("resource_name_filter"), int8("pattern_type_filter"),
        string("principal_filter"), string("host_filter"), int8("operation"),
        int8("permission_type"),
    ]),
    request(30, "CreateAcls", (1, 3), 2, &[
        array::<create_acls_request::AclCreation>("creations", &[
            int8("resource_type"), string("resource_name"), int8("resource_pattern_type"),
            string("principal"), string("host"), int8("operation"), int8("permission_type"),
        ]),
    ]),
    request(31, "DeleteAcls", (1, 3), 2, &[
        array::<delete_acls_request::DeleteAclsFilter>("filters", &[
            int8("resource_type_filter"), string("resource_name_filter"),
            int8("pattern_type_filter"), string("principal_filter"), string("host_filter"),
            int8("operation"), int8("permission_type"),
        ]),
    ]),
    request(32, "DescribeConfigs", (1, 4), 4, &[
        array::<describe_configs_request::DescribeConfigsResource>("resources", &[
            int8("resource_type"), string("resource_name"), strings("configuration_keys"),
        ]),
        bool("include_synonyms"), bool("include_documentation").since(3),
    ]),
    request(33, "AlterConfigs", (0, 2), 2, &[
        array::<alter_configs_request::AlterConfigsResource>("resources", &[
            int8("resource_type"), string("resource_name"),
            array::<alter_configs_request::AlterableConfig>("configs", &[
                string("name"), string("value"),
            ]),
        ]),
        bool("validate_only"),
    ]),
    request(34, "AlterReplicaLogDirs", (1, 2), 2, &[
        array::<alter_replica_log_dirs_request::AlterReplicaLogDir>("dirs", &[
            string("path"),
            array::<alter_replica_log_dirs_request::AlterReplicaLogDirTopic>("topics", &[
                string("name"), int32s("partitions"),
            ]),
        ]),
    ]),
    request(35, "DescribeLogDirs", (1, 4), 2, &[
        array::<describe_log_dirs_request::DescribableLogDirTopic>("topics", &[
            string("topic"), int32s("partitions"),
        ]),
    ]),
    request(36, "SaslAuthenticate", (0, 2), 2, &[
        bytes("auth_bytes"),
    ]),
    request(37, "CreatePartitions", (0, 3), 2, &[
        array::<create_partitions_request::CreatePartitionsTopic>("topics", &[
            string("name"), int32("count"),
            array::<create_partitions_request::CreatePartitionsAssignment>("assignments", &[
                int32s("broker_ids"),
            ]),
        ]),
        int32("timeout_ms"), bool("validate_only"),
    ]),
    request(38, "CreateDelegationToken", (1, 3), 2, &[
        string("owner_principal_type").since(3), string("owner_principal_name").since(3),
        array::<create_delegation_token_request::CreatableRenewers>("renewers", &[
            string("principal_type"), string("principal_name"),
        ]),
        int64("max_lifetime_ms"),
    ]),
    request(39, "RenewDelegationToken", (1, 2), 2, &[
        bytes("hmac"), int64("renew_period_ms"),
    ]),
    request(40, "ExpireDelegationToken", (1, 2), 2, &[
        bytes("hmac"), int64("expiry_time_period_ms"),
    ]),
    request(41, "DescribeDelegationToken", (1, 3), 2, &[
        array::<describe_delegation_token_request::DescribeDelegationTokenOwner>("owners", &[
            string("principal_type"), string("principal_name"),
        ]),
    ]),
    request(42, "DeleteGroups", (0, 2), 2, &[
        strings("groups_names"),
    ]),
    request(43, "ElectLeaders", (0, 2), 2, &[
        int8("election_type").since(1),
        array::<elect_leaders_request::TopicPartitions>("topic_partitions", &[
            string("topic"), int32s("partitions"),
        ]),
        int32("timeout_ms"),
    ]),
    request(44, "IncrementalAlterConfigs", (0, 1), 1, &[
        array::<incremental_alter_configs_request::AlterConfigsResource>("resources", &[
            int8("resource_type"), string("resource_name"),
            array::<incremental_alter_configs_request::AlterableConfig>("configs", &[
                string("name"), int8("config_operation"), string("value"),
            ]),
        ]),
        bool("validate_only"),
    ]),
    request(45, "AlterPartitionReassignments", (0, 1), 0, &[
        int32("timeout_ms"), bool("allow_replication_factor_change").since(1),
        array::<alter_partition_reassignments_request::ReassignableTopic>("topics", &[
            string("name"),
            array::<alter_partition_reassignments_request::ReassignablePartition>("partitions", &[
                int32("partition_index"), int32s("replicas"),
            ]),
        ]),
    ]),
    request(46, "ListPartitionReassignments", (0, 0), 0, &[
        int32("timeout_ms"),
        array::<list_partition_reassignments_request::ListPartitionReassignmentsTopics>("topics", &[
            string("name"), int32s("partition_indexes"),
        ]),
    ]),
    request(47, "OffsetDelete", (0, 0), NEVER, &[
        string("group_id"),
        array::<offset_delete_request::OffsetDeleteRequestTopic>("topics", &[
            string("name"),
            array::<offset_delete_request::OffsetDeleteRequestPartition>("partitions", &[
                int32("partition_index"),
            ]),
        ]),
    ]),
    request(48, "DescribeClientQuotas", (0, 1), 1, &[
        array::<describe_client_quotas_request::ComponentData>("components", &[
            string("entity_type"), int8("match_type"), string("match"),
        ]),
        bool("strict"),
    ]),
    request(49, "AlterClientQuotas", (0, 1), 1, &[
        array::<alter_client_quotas_request::EntryData>("entries", &[
            array::<alter_client_quotas_request::EntityData>("entity", &[
                string("entity_type"), string("entity_name"),
            ]),
            array::<alter_client_quotas_request::OpData>("ops", &[
                string("key"), float64("value"), bool("remove"),
            ]),
        ]),
        bool("validate_only"),
    ]),
    request(50, "DescribeUserScramCredentials", (0, 0), 0, &[
        array::<describe_user_scram_credentials_request::UserName>("users", &[
            string("name"),
        ]),
    ]),
    request(51, "AlterUserScramCredentials", (0, 0), 0, &[
        array::<alter_user_scram_credentials_request::ScramCredentialDeletion>("deletions", &[
            string("name"), int8("mechanism"),
        ]),
        array::<alter_user_scram_credentials_request::ScramCredentialUpsertion>("upsertions", &[
            string("name"), int8("mechanism"), int32("iterations"), bytes("salt"),
            bytes("salted_password"),
        ]),
    ]),
    request(55, "DescribeQuorum", (0, 2), 0, &[
        array::<describe_quorum_request::TopicData>("topics", &[
            string("topic_name"),
            array::<describe_quorum_request::PartitionData>("partitions", &[
                int32("partition_index"),
            ]),
        ]),
    ]),
    request(57, "UpdateFeatures", (0, 2), 0, &[
        int32("timeout_ms"),
        array::<update_features_request::FeatureUpdateKey>("feature_updates", &[
            string("feature"), int16("max_version_level"), bool("allow_downgrade").until(0),
            int8("upgrade_type").since(1),
        ]),
        bool("validate_only").since(1),
    ]),
    request(60, "DescribeCluster", (0, 2), 0, &[
        bool("include_cluster_authorized_operations"), int8("endpoint_type").since(1),
        bool("include_fenced_brokers").since(2),
    ]),
    request(61, "DescribeProducers", (0, 0), 0, &[
        array::<describe_producers_request::TopicRequest>("topics", &[
            string("name"), int32s("partition_indexes"),
        ]),
    ]),
    request(64, "UnregisterBroker", (0, 0), 0, &[
        int32("broker_id"),
    ]),
    request(65, "DescribeTransactions", (0, 0), 0, &[
        strings("transactional_ids"),
    ]),
    request(66, "ListTransactions", (0, 2), 0, &[
        strings("state_filters"), int64s("producer_id_filters"), int64("duration_filter").since(1),
        string("transactional_id_pattern").since(2),
    ]),
    request(68, "ConsumerGroupHeartbeat", (0, 1), 0, &[
        string("group_id"), string("member_id"), int32("member_epoch"), string("instance_id"),
        string("rack_id"), int32("rebalance_timeout_ms"), strings("subscribed_topic_names"),
        string("subscribed_topic_regex").since(1), string("server_assignor"),
        array::<consumer_group_heartbeat_request::TopicPartitions>("topic_partitions", &[
            uuid("topic_id"), int32s("partitions"),
        ]),
    ]),
    request(69, "ConsumerGroupDescribe", (0, 1), 0, &[
        strings("group_ids"), bool("include_authorized_operations"),
    ]),
    request(71, "GetTelemetrySubscriptions", (0, 0), 0, &[
        uuid("client_instance_id"),
    ]),
    request(72, "PushTelemetry", (0, 0), 0, &[
        uuid("client_instance_id"), int32("subscription_id"), bool("terminating"),
        int8("compression_type"), bytes("metrics"),
    ]),
    request(74, "ListConfigResources", (0, 1), 0, &[
        int8s("resource_types").since(1),
    ]),
    request(75, "DescribeTopicPartitions", (0, 0), 0, &[
        array::<describe_topic_partitions_request::TopicRequest>("topics", &[
            string("name"),
        ]),
        int32("response_partition_limit"),
        nullable("cursor", &[
            string("topic_name"), int32("partition_index"),
        ]),
    ]),
    request(76, "ShareGroupHeartbeat", (1, 1), 0, &[
        string("group_id"), string("member_id"), int32("member_epoch"), string("rack_id"),
        strings("subscribed_topic_names"),
    ]),
    request(77, "ShareGroupDescribe", (1, 1), 0, &[
        strings("group_ids"), bool("include_authorized_operations"),
    ]),
    request(78, "ShareFetch", (1, 1), 0, &[
        string("group_id"), string("member_id"), int32("share_session_epoch"), int32("max_wait_ms"),
        int32("min_bytes"), int32("max_bytes"), int32("max_records"), int32("batch_size"),
        array::<share_fetch_request::FetchTopic>("topics", &[
            uuid("topic_id"),
            array::<share_fetch_request::FetchPartition>("partitions", &[
                int32("partition_index"),
                array::<share_fetch_request::AcknowledgementBatch>("acknowledgement_batches", &[
                    int64("first_offset"), int64("last_offset"), int8s("acknowledge_types"),
                ]),
            ]),
        ]),
        array::<share_fetch_request::ForgottenTopic>("forgotten_topics_data", &[
            uuid("topic_id"), int32s("partitions"),
        ]),
    ]),
    request(79, "ShareAcknowledge", (1, 1), 0, &[
        string("group_id"), string("member_id"), int32("share_session_epoch"),
        array::<share_acknowledge_request::AcknowledgeTopic>("topics", &[
            uuid("topic_id"),
            array::<share_acknowledge_request::AcknowledgePartition>("partitions", &[
                int32("partition_index"),
                array::<share_acknowledge_request::AcknowledgementBatch>("acknowledgement_batches", &[
                    int64("first_offset"), int64("last_offset"), int8s("acknowledge_types"),
                ]),
            ]),
        ]),
    ]),
    request(80, "AddRaftVoter", (0, 0), 0, &[
        string("cluster_id"), int32("timeout_ms"), int32("voter_id"), uuid("voter_directory_id"),
        array::<add_raft_voter_request::Listener>("listeners", &[
            string("name"), string("host"), uint16("port"),
        ]),
    ]),
    request(81, "RemoveRaftVoter", (0, 0), 0, &[
        string("cluster_id"), int32("voter_id"), uuid("voter_directory_id"),
    ]),
    request(83, "InitializeShareGroupState", (0, 0), 0, &[
        string("group_id"),
        array::<initialize_share_group_state_request::InitializeStateData>("topics", &[
            uuid("topic_id"),
            array::<initialize_share_group_state_request::PartitionData>("partitions", &[
                int32("partition"), int32("state_epoch"), int64("start_offset"),
            ]),
        ]),
    ]),
    request(84, "ReadShareGroupState", (0, 0), 0, &[
        string("group_id"),
        array::<read_share_group_state_request::ReadStateData>("topics", &[
            uuid("topic_id"),
            array::<read_share_group_state_request::PartitionData>("partitions", &[
                int32("partition"), int32("leader_epoch"),
            ]),
        ]),
    ]),
    request(85, "WriteShareGroupState", (0, 0), 0, &[
        string("group_id"),
        array::<write_share_group_state_request::WriteStateData>("topics", &[
            uuid("topic_id"),
            array::<write_share_group_state_request::PartitionData>("partitions", &[
                int32("partition"), int32("state_epoch"), int32("leader_epoch"),
                int64("start_offset"),
                array::<write_share_group_state_request::StateBatch>("state_batches", &[
                    int64("first_offset"), int64("last_offset"), int8("delivery_state"),
                    int16("delivery_count"),
                ]),
            ]),
        ]),
    ]),
    request(86, "DeleteShareGroupState", (0, 0), 0, &[
        string("group_id"),
        array::<delete_share_group_state_request::DeleteStateData>("topics", &[
            uuid("topic_id"),
            array::<delete_share_group_state_request::PartitionData>("partitions", &[
                int32("partition"),
            ]),
        ]),
    ]),
    request(87, "ReadShareGroupStateSummary", (0, 0), 0, &[
        string("group_id"),
        array::<read_share_group_state_summary_request::ReadStateSummaryData>("topics", &[
            uuid("topic_id"),
            array::<read_share_group_state_summary_request::PartitionData>("partitions", &[
                int32("partition"), int32("leader_epoch"),
            ]),
        ]),
    ]),
    request(90, "DescribeShareGroupOffsets", (0, 0), 0, &[
        array::<describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup>("groups", &[
            string("group_id"),
            array::<describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestTopic>("topics", &[
                string("topic_name"), int32s("partitions"),
            ]),
        ]),
    ]),
    request(91, "AlterShareGroupOffsets", (0, 0), 0, &[
        string("group_id"),
        array::<alter_share_group_offsets_request::AlterShareGroupOffsetsRequestTopic>("topics", &[
            string("topic_name"),
            array::<alter_share_group_offsets_request::AlterShareGroupOffsetsRequestPartition>("partitions", &[
                int32("partition_index"), int64("start_offset"),
            ]),
        ]),
    ]),
    request(92, "DeleteShareGroupOffsets", (0, 0), 0, &[
        string("group_id"),
        array::<delete_share_group_offsets_request::DeleteShareGroupOffsetsRequestTopic>("topics", &[
            string("topic_name"),
        ]),
    ]),
];
