//! ApiVersions (18): the served versions, from the table that requests are routed by.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::api_versions_response::{
    ApiVersion, FinalizedFeatureKey, SupportedFeatureKey,
};
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use rdma::protocol::LINK_API_KEY;

use crate::extension;
use crate::kafka_server::KafkaServer;
use crate::request::{BadRequest, RequestBody, RequestContext, ResponseResult, decode, encode};
use crate::response::KafkaResponse;
use crate::routes::routes;

pub(crate) const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 4 };

/// The name by which our own clients ask for the APIs that Kafka does not have.
const OWN_CLIENT: &str = "freezeframe";

/// The most bytes of a client's name and version that are kept.
const WORDS_BYTES_MAX: usize = 256;

pub(crate) fn handle(
    kafka: &KafkaServer,
    context: &RequestContext,
    body: RequestBody,
) -> ResponseResult {
    let request = decode::<ApiVersionsRequest>(context, body)?;
    let mut response = listing(kafka);
    if *request.client_software_name == *OWN_CLIENT {
        let own_keys = [extension::API_KEY, LINK_API_KEY].into_iter();
        response.api_keys.extend(own_keys.map(|key| ApiVersion::default().with_api_key(key)));
    }
    // KIP-511: a client's name must fit into metrics.
    let words = |word: &str| {
        word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
            && !word.is_empty()
    };
    let has_names = words(&request.client_software_name) && words(&request.client_software_version);
    if context.version >= 3 && !has_names {
        response.error_code = ResponseError::InvalidRequest.code();
    } else if has_names && words_are_short(&request) {
        let name = request.client_software_name.to_string();
        // The first one counts: a client sends it before anything else.
        let _ =
            context.connection.software.set((name, request.client_software_version.to_string()));
    }
    encode::<ApiVersionsRequest>(context, &response).map(Some)
}

/// True if the name and the version of a client are short enough to keep.
fn words_are_short(request: &ApiVersionsRequest) -> bool {
    request.client_software_name.len() + request.client_software_version.len() <= WORDS_BYTES_MAX
}

/// A version newer than ours is answered in version 0, with the versions that are served (KIP-511).
pub(crate) fn unsupported_version(
    kafka: &KafkaServer,
    context: &RequestContext,
) -> Result<Option<KafkaResponse>, BadRequest> {
    let mut response = listing(kafka);
    response.error_code = ResponseError::UnsupportedVersion.code();
    let context = RequestContext { version: 0, ..context.clone() };
    encode::<ApiVersionsRequest>(&context, &response).map(Some)
}

/// The APIs by which clients push metrics (KIP-714). A client that sees them asks what to push, and
/// some print a line when the answer is nothing. So they are listed once there is a subscription,
/// as Kafka lists them once there is a plug-in.
const TELEMETRY: [i16; 2] =
    [ApiKey::GetTelemetrySubscriptions as i16, ApiKey::PushTelemetry as i16];

fn listing(kafka: &KafkaServer) -> ApiVersionsResponse {
    let has_telemetry = kafka.client_metrics.has_subscriptions();
    let api_keys = routes()
        .iter()
        .filter(|route| has_telemetry || !TELEMETRY.contains(&route.key))
        .map(|route| {
            ApiVersion::default()
                .with_api_key(route.key)
                .with_min_version(route.advertised.min)
                .with_max_version(route.advertised.max)
        })
        .collect();
    let (supported, finalized) =
        FEATURES.iter().map(|(name, version)| feature(name, *version)).unzip();
    ApiVersionsResponse::default()
        .with_api_keys(api_keys)
        .with_supported_features(supported)
        .with_finalized_features_epoch(FEATURES_EPOCH)
        .with_finalized_features(finalized)
}

/// Features of a cluster (KIP-584), each with its only version.
pub(super) const FEATURES: &[(&str, i16)] = &[
    // Groups whose partitions the server assigns (KIP-848).
    ("group.version", 1),
    // The level of Kafka 4.3, whose tools and settings this server supports.
    ("metadata.version", 30),
    // Share groups (KIP-932).
    ("share.version", 1),
    // Streams groups (KIP-1071).
    ("streams.version", 1),
    // Clients do without AddPartitionsToTxn, and each end of a transaction raises their epoch
    // (KIP-890).
    ("transaction.version", 2),
];
/// Features do not change while a server runs.
const FEATURES_EPOCH: i64 = 0;

fn feature(name: &'static str, version: i16) -> (SupportedFeatureKey, FinalizedFeatureKey) {
    let name = StrBytes::from_static_str(name);
    let supported = SupportedFeatureKey::default()
        .with_name(name.clone())
        .with_min_version(version)
        .with_max_version(version);
    let finalized = FinalizedFeatureKey::default()
        .with_name(name)
        .with_min_version_level(version)
        .with_max_version_level(version);
    (supported, finalized)
}
