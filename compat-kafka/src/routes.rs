//! The APIs that are served, and their versions: one table, which ApiVersions reads too.

use std::sync::Arc;

use bytes::Bytes;
use kafka_connections::{QuotaPermit, units};
use kafka_guard::RequestBodyError;
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
    PushTelemetryRequest, RenewDelegationTokenRequest, RequestHeader, SaslAuthenticateRequest,
    SaslHandshakeRequest, ShareGroupDescribeRequest, ShareGroupHeartbeatRequest, SyncGroupRequest,
    TxnOffsetCommitRequest, UnregisterBrokerRequest, UpdateFeaturesRequest, WriteTxnMarkersRequest,
};
use kafka_protocol::protocol::{Decodable, VersionRange};

use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::quotas::serve_within_quota;
use crate::request::{
    ApiHandler, BadRequest, RequestBody, RequestContext, ResponseFuture, ResponseResult, decode,
    encode,
};
use crate::{apis, extension};

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

    fn serves(&self, version: i16) -> bool {
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

/// Serves a request of any API but that of links. It has `request_bytes` bytes.
///
/// # Errors
/// The API is not served in this version.
pub(crate) fn serve(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: Bytes,
    request_bytes: usize,
) -> Result<ResponseFuture, BadRequest> {
    let Some(quota) = kafka.request_quota(&context) else {
        return serve_unlimited(kafka, context, body);
    };
    let limited = RequestContext { quota: Some(Arc::clone(&quota)), ..context.clone() };
    let serving = serve_unlimited(Arc::clone(&kafka), limited, body)?;
    Ok(Box::pin(serve_within_quota(kafka, context, quota, request_bytes, serving)))
}

fn serve_unlimited(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: Bytes,
) -> Result<ResponseFuture, BadRequest> {
    let (api, version) = (context.api_key, context.version);
    if api == extension::API_KEY {
        return Ok(Box::pin(async move { extension::handle(&kafka, &context, body).await }));
    }
    if api == ApiKey::ApiVersions as i16 && version > apis::api_versions::SERVED_VERSIONS.max {
        return Ok(Box::pin(
            async move { apis::api_versions::unsupported_version(&kafka, &context) },
        ));
    }
    let Some(row) = route(api).filter(|row| row.serves(version)) else {
        add(&kafka.metrics().bad_frames, 1);
        let reason = "this API is not served in this version".to_owned();
        return Err(BadRequest { api, version, reason });
    };
    // Batches must not overtake each other while they wait for it, and take it in their turn.
    if body.len() < LONG_BODY_BYTES || api == ApiKey::Produce as i16 {
        return Ok(row.call(kafka, context, body));
    }
    let mut body = RequestBody::from(body);
    Ok(Box::pin(async move {
        let _room = take_room_to_decode(&context, &mut body).await?;
        row.call(kafka, context, body).await
    }))
}

/// From this length on, a body may take much more memory once it is decoded.
const LONG_BODY_BYTES: usize = 16 << 10;
/// The most memory of a decoded request that needs no room.
const DECODED_BYTES_MIN: usize = 256 << 10;
/// A request and its response may take so many times what decoding takes: a key of 32 bytes is
/// answered by a coordinator of 150.
const RESPONSE_FACTOR: usize = 6;

/// The room is at most one part in this many of what an address may hold.
const ROOM_SHARE: u32 = 4;

/// Waits for room for what a request takes besides its own bytes, if that is much.
///
/// # Errors
/// The body must not be decoded, or there was no room in time.
pub(crate) async fn take_room_to_decode(
    context: &RequestContext,
    body: &mut RequestBody,
) -> Result<Option<QuotaPermit>, BadRequest> {
    if body.len() < LONG_BODY_BYTES {
        return Ok(None);
    }
    let bad = |reason| BadRequest { api: context.api_key, version: context.version, reason };
    let bytes = match body.check_once(context) {
        Ok(bytes) if bytes > DECODED_BYTES_MIN => RESPONSE_FACTOR * bytes,
        Ok(_) => return Ok(None),
        // Requests that the codec does not know are read otherwise.
        Err(RequestBodyError::NoSchema { .. }) => {
            RESPONSE_FACTOR * kafka_guard::memory_bytes_max(body.len())
        }
        Err(error) => return Err(bad(error.to_string())),
    };
    let quota = &context.connection.request_quotas.large;
    // The room fits beside the frame that the connection holds.
    let units = units(bytes).min(quota.units_max() / ROOM_SHARE);
    let room = quota.take_out_of_turn(units).await;
    room.map(Some).map_err(|error| bad(error.to_string()))
}

/// The route of an API. The rows are ordered by key.
pub(crate) fn route(key: i16) -> Option<&'static ApiRoute> {
    ROUTES.binary_search_by_key(&key, |route| route.key).ok().map(|index| &ROUTES[index])
}

/// True if an API is served in a version, which the codec may not have.
fn is_served(api: i16, version: i16) -> bool {
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

/// Splits a frame into its header and its body.
pub(crate) fn header(mut frame: Bytes) -> Result<(i16, i16, RequestHeader, Bytes), BadRequest> {
    let (Some(api), Some(version)) = (i16_at(&frame, 0), i16_at(&frame, 2)) else {
        let reason = format!("a request has a header of 8 bytes and more. bytes={}", frame.len());
        return Err(BadRequest { api: -1, version: -1, reason });
    };
    let bad = |reason| BadRequest { api, version, reason };
    let header_version = match ApiKey::try_from(api) {
        Ok(ApiKey::ApiVersions) if version > apis::api_versions::SERVED_VERSIONS.max => 2,
        Ok(key)
            if version >= 0 && (key.valid_versions().max >= version || is_served(api, version)) =>
        {
            key.request_header_version(version)
        }
        // The codec does not know it, so it is new, and flexible.
        Err(_) if is_served(api, version) => FLEXIBLE_HEADER,
        // An extension API key, or an unknown one: the fields that all header versions share come
        // first.
        _ => 1,
    };
    kafka_guard::check_header(header_version, &frame).map_err(|error| bad(error.to_string()))?;
    let header = RequestHeader::decode(&mut frame, header_version)
        .map_err(|error| bad(format!("the request's header cannot be decoded: {error:#}")))?;
    Ok((api, version, header, frame))
}

/// The version of the header of a flexible request.
const FLEXIBLE_HEADER: i16 = 2;

fn i16_at(bytes: &Bytes, at: usize) -> Option<i16> {
    Some(i16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests;
