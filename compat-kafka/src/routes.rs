//! The APIs that are served, and their versions: one table, which ApiVersions reads too.

use std::sync::Arc;

use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, AlterClientQuotasRequest,
    AlterConfigsRequest, AlterPartitionReassignmentsRequest, AlterReplicaLogDirsRequest,
    AlterShareGroupOffsetsRequest, AlterUserScramCredentialsRequest, ApiKey,
    ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, CreateAclsRequest,
    CreateDelegationTokenRequest, CreatePartitionsRequest, CreateTopicsRequest, DeleteAclsRequest,
    DeleteGroupsRequest, DeleteRecordsRequest, DeleteShareGroupOffsetsRequest, DeleteTopicsRequest,
    DescribeAclsRequest, DescribeClientQuotasRequest, DescribeClusterRequest,
    DescribeConfigsRequest, DescribeDelegationTokenRequest, DescribeGroupsRequest,
    DescribeProducersRequest, DescribeQuorumRequest, DescribeTopicPartitionsRequest,
    DescribeTransactionsRequest, DescribeUserScramCredentialsRequest, ElectLeadersRequest,
    EndTxnRequest, ExpireDelegationTokenRequest, FindCoordinatorRequest,
    GetTelemetrySubscriptionsRequest, HeartbeatRequest, IncrementalAlterConfigsRequest,
    InitProducerIdRequest, JoinGroupRequest, LeaveGroupRequest, ListConfigResourcesRequest,
    ListGroupsRequest, ListOffsetsRequest, ListPartitionReassignmentsRequest,
    ListTransactionsRequest, MetadataRequest, OffsetDeleteRequest, OffsetForLeaderEpochRequest,
    PushTelemetryRequest, RenewDelegationTokenRequest, SaslAuthenticateRequest,
    SaslHandshakeRequest, ShareGroupDescribeRequest, ShareGroupHeartbeatRequest, SyncGroupRequest,
    TxnOffsetCommitRequest, UnregisterBrokerRequest, UpdateFeaturesRequest, WriteTxnMarkersRequest,
};
use kafka_protocol::protocol::VersionRange;

use crate::apis;
use crate::kafka_server::KafkaServer;
use crate::request::{
    ApiHandler, RequestBody, RequestContext, ResponseFuture, ResponseResult, decode, encode,
};

/// One row of the table.
pub(crate) struct ApiRoute {
    pub(crate) key: i16,
    /// The versions that are served.
    pub(crate) versions: VersionRange,
    /// The versions in ApiVersions.
    pub(crate) advertised: VersionRange,
    call: fn(Arc<KafkaServer>, RequestContext, RequestBody) -> ResponseFuture,
}

impl ApiRoute {
    fn of<R: ApiHandler + 'static>() -> ApiRoute {
        ApiRoute {
            key: R::KEY,
            versions: R::SERVED_VERSIONS,
            advertised: R::SERVED_VERSIONS,
            call: |kafka, context, body| Box::pin(call::<R>(kafka, context, body)),
        }
    }

    pub(crate) fn serves(&self, version: i16) -> bool {
        self.versions.min <= version && version <= self.versions.max
    }

    pub(crate) fn call(
        &self,
        kafka: Arc<KafkaServer>,
        context: RequestContext,
        body: impl Into<RequestBody>,
    ) -> ResponseFuture {
        (self.call)(kafka, context, body.into())
    }
}

/// The route of an API. The rows are ordered by key.
pub(crate) fn route(key: i16) -> Option<&'static ApiRoute> {
    ROUTES.binary_search_by_key(&key, |route| route.key).ok().map(|index| &ROUTES[index])
}

/// The name of an API as in Kafka's documentation; of others the key.
pub(crate) fn name(key: i16) -> String {
    match ApiKey::try_from(key) {
        Ok(api) => format!("{api:?}"),
        Err(()) => key.to_string(),
    }
}

/// True if an API is served in a version, which the codec may not have.
pub(crate) fn is_served(api: i16, version: i16) -> bool {
    route(api).is_some_and(|route| route.serves(version))
}

/// Every API that is served.
pub(crate) fn routes() -> &'static [ApiRoute] {
    &ROUTES
}

static ROUTES: std::sync::LazyLock<Vec<ApiRoute>> = std::sync::LazyLock::new(|| {
    let mut routes = vec![
        ApiRoute {
            key: ApiKey::Produce as i16,
            versions: apis::produce::SERVED_VERSIONS,
            // Old librdkafka compresses only if version 0 is offered (KAFKA-18659).
            advertised: VersionRange { min: 0, ..apis::produce::SERVED_VERSIONS },
            call: |kafka, context, body| Box::pin(apis::produce::handle(kafka, context, body)),
        },
        ApiRoute {
            key: ApiKey::Fetch as i16,
            versions: apis::fetch::SERVED_VERSIONS,
            advertised: apis::fetch::SERVED_VERSIONS,
            call: |kafka, context, body| Box::pin(apis::fetch::handle(kafka, context, body)),
        },
        ApiRoute {
            key: ApiKey::ApiVersions as i16,
            versions: apis::api_versions::SERVED_VERSIONS,
            advertised: apis::api_versions::SERVED_VERSIONS,
            call: |kafka, context, body| {
                Box::pin(async move { apis::api_versions::handle(&kafka, &context, body) })
            },
        },
        ApiRoute::of::<ListOffsetsRequest>(),
        ApiRoute::of::<MetadataRequest>(),
        ApiRoute {
            key: ApiKey::OffsetCommit as i16,
            versions: apis::offset_commit::SERVED_VERSIONS,
            advertised: apis::offset_commit::SERVED_VERSIONS,
            call: |kafka, context, body| {
                Box::pin(apis::offset_commit::handle(kafka, context, body))
            },
        },
        ApiRoute {
            key: ApiKey::OffsetFetch as i16,
            versions: apis::offset_fetch::SERVED_VERSIONS,
            advertised: apis::offset_fetch::SERVED_VERSIONS,
            call: |kafka, context, body| Box::pin(apis::offset_fetch::handle(kafka, context, body)),
        },
        ApiRoute::of::<FindCoordinatorRequest>(),
        ApiRoute::of::<JoinGroupRequest>(),
        ApiRoute::of::<HeartbeatRequest>(),
        ApiRoute::of::<LeaveGroupRequest>(),
        ApiRoute::of::<SyncGroupRequest>(),
        ApiRoute::of::<DescribeGroupsRequest>(),
        ApiRoute::of::<ListGroupsRequest>(),
        ApiRoute::of::<CreateTopicsRequest>(),
        ApiRoute::of::<DeleteTopicsRequest>(),
        ApiRoute::of::<DeleteRecordsRequest>(),
        ApiRoute::of::<InitProducerIdRequest>(),
        ApiRoute::of::<OffsetForLeaderEpochRequest>(),
        ApiRoute::of::<AddPartitionsToTxnRequest>(),
        ApiRoute::of::<AddOffsetsToTxnRequest>(),
        ApiRoute::of::<EndTxnRequest>(),
        ApiRoute::of::<WriteTxnMarkersRequest>(),
        ApiRoute::of::<TxnOffsetCommitRequest>(),
        ApiRoute::of::<DescribeProducersRequest>(),
        ApiRoute::of::<DescribeTransactionsRequest>(),
        ApiRoute::of::<ListTransactionsRequest>(),
        ApiRoute::of::<DescribeAclsRequest>(),
        ApiRoute::of::<CreateAclsRequest>(),
        ApiRoute::of::<DeleteAclsRequest>(),
        ApiRoute::of::<DescribeConfigsRequest>(),
        ApiRoute::of::<AlterConfigsRequest>(),
        ApiRoute {
            key: ApiKey::DescribeLogDirs as i16,
            versions: apis::describe_log_dirs::SERVED_VERSIONS,
            advertised: apis::describe_log_dirs::SERVED_VERSIONS,
            call: |kafka, context, body| {
                Box::pin(apis::describe_log_dirs::handle(kafka, context, body))
            },
        },
        ApiRoute::of::<CreatePartitionsRequest>(),
        ApiRoute::of::<DeleteGroupsRequest>(),
        ApiRoute::of::<IncrementalAlterConfigsRequest>(),
        ApiRoute::of::<ListPartitionReassignmentsRequest>(),
        ApiRoute::of::<UpdateFeaturesRequest>(),
        ApiRoute::of::<UnregisterBrokerRequest>(),
        ApiRoute::of::<ElectLeadersRequest>(),
        ApiRoute::of::<DescribeQuorumRequest>(),
        ApiRoute::of::<AlterReplicaLogDirsRequest>(),
        ApiRoute::of::<AlterPartitionReassignmentsRequest>(),
        ApiRoute::of::<OffsetDeleteRequest>(),
        ApiRoute::of::<DescribeClientQuotasRequest>(),
        ApiRoute::of::<AlterClientQuotasRequest>(),
        ApiRoute::of::<DescribeUserScramCredentialsRequest>(),
        ApiRoute::of::<AlterUserScramCredentialsRequest>(),
        ApiRoute::of::<DescribeClusterRequest>(),
        ApiRoute::of::<ConsumerGroupHeartbeatRequest>(),
        ApiRoute::of::<ConsumerGroupDescribeRequest>(),
        ApiRoute::of::<GetTelemetrySubscriptionsRequest>(),
        ApiRoute::of::<PushTelemetryRequest>(),
        ApiRoute::of::<ListConfigResourcesRequest>(),
        ApiRoute::of::<DescribeTopicPartitionsRequest>(),
        ApiRoute::of::<ShareGroupHeartbeatRequest>(),
        ApiRoute::of::<ShareGroupDescribeRequest>(),
        ApiRoute {
            key: ApiKey::ShareFetch as i16,
            versions: apis::share_fetch::SERVED_VERSIONS,
            advertised: apis::share_fetch::SERVED_VERSIONS,
            call: |kafka, context, body| Box::pin(apis::share_fetch::handle(kafka, context, body)),
        },
        ApiRoute {
            key: ApiKey::ShareAcknowledge as i16,
            versions: apis::share_acknowledge::SERVED_VERSIONS,
            advertised: apis::share_acknowledge::SERVED_VERSIONS,
            call: |kafka, context, body| {
                Box::pin(apis::share_acknowledge::handle(kafka, context, body))
            },
        },
        ApiRoute {
            key: ApiKey::DescribeShareGroupOffsets as i16,
            versions: apis::describe_share_group_offsets::SERVED_VERSIONS,
            advertised: apis::describe_share_group_offsets::SERVED_VERSIONS,
            call: |kafka, context, body| {
                Box::pin(apis::describe_share_group_offsets::handle(kafka, context, body))
            },
        },
        ApiRoute {
            key: apis::streams_group_heartbeat::API_KEY,
            versions: apis::streams_group_heartbeat::SERVED_VERSIONS,
            advertised: apis::streams_group_heartbeat::SERVED_VERSIONS,
            call: |kafka, context, body| {
                Box::pin(apis::streams_group_heartbeat::handle(kafka, context, body))
            },
        },
        ApiRoute {
            key: apis::streams_group_describe::API_KEY,
            versions: apis::streams_group_describe::SERVED_VERSIONS,
            advertised: apis::streams_group_describe::SERVED_VERSIONS,
            call: |kafka, context, body| {
                Box::pin(
                    async move { apis::streams_group_describe::handle(&kafka, &context, body) },
                )
            },
        },
        ApiRoute::of::<SaslHandshakeRequest>(),
        ApiRoute::of::<CreateDelegationTokenRequest>(),
        ApiRoute::of::<RenewDelegationTokenRequest>(),
        ApiRoute::of::<ExpireDelegationTokenRequest>(),
        ApiRoute::of::<DescribeDelegationTokenRequest>(),
        ApiRoute::of::<SaslAuthenticateRequest>(),
        ApiRoute::of::<AlterShareGroupOffsetsRequest>(),
        ApiRoute::of::<DeleteShareGroupOffsetsRequest>(),
    ];
    routes.sort_by_key(|route| route.key);
    routes
});

async fn call<R: ApiHandler>(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: RequestBody,
) -> ResponseResult {
    let request = decode::<R>(&context, body)?;
    let response = request.handle(&kafka, &context).await;
    encode::<R>(&context, &response).map(Some)
}

#[cfg(test)]
mod tests;
