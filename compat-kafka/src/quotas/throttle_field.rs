//! The field of responses that says how long their client is made to wait.

use kafka_protocol::messages::ApiKey;

use crate::response::KafkaResponse;

/// The place of the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThrottleField {
    /// This number of bytes after the beginning.
    After(usize),
    /// This number of bytes before the end.
    BeforeEnd(usize),
}

/// Kafka's API keys are lower; ours have no such field.
const KAFKA_KEY_END: i16 = 1000;

/// The bytes of the field.
const FIELD_BYTES: usize = 4;

/// Says in a response for how many milliseconds its client is made to wait. Not all responses can
/// say that.
pub(crate) fn set_throttle_time(
    response: &mut KafkaResponse,
    api_key: i16,
    version: i16,
    throttle_ms: u64,
) {
    let Some(field) = throttle_field(api_key, version) else { return };
    let ms = i32::try_from(throttle_ms).unwrap_or(i32::MAX);
    let at = match field {
        ThrottleField::After(before) => before,
        ThrottleField::BeforeEnd(after) => response.len().saturating_sub(after + FIELD_BYTES),
    };
    response.overwrite(at, &ms.to_be_bytes());
}

/// The field of an API's response.
fn throttle_field(api_key: i16, version: i16) -> Option<ThrottleField> {
    // The id of the request, and behind it, where the response is flexible, the tags.
    const HEADER: usize = 4;
    const FLEXIBLE_HEADER: usize = HEADER + 1;
    let Ok(key) = ApiKey::try_from(api_key) else {
        // The codec does not know it: it is new, and flexible, or an API of ours.
        let is_kafkas = api_key < KAFKA_KEY_END;
        return is_kafkas.then_some(ThrottleField::After(FLEXIBLE_HEADER));
    };
    let is_flexible = key.response_header_version(version) > 0;
    let first = ThrottleField::After(if is_flexible { FLEXIBLE_HEADER } else { HEADER });
    let since = match key {
        // At the end, before the tags.
        ApiKey::CreateDelegationToken
        | ApiKey::RenewDelegationToken
        | ApiKey::ExpireDelegationToken
        | ApiKey::DescribeDelegationToken => {
            return Some(ThrottleField::BeforeEnd(usize::from(is_flexible)));
        }
        // Behind the error.
        ApiKey::OffsetDelete => return Some(ThrottleField::After(HEADER + 2)),
        ApiKey::Produce if version >= 9 => return Some(ThrottleField::BeforeEnd(1)),
        ApiKey::Produce => return Some(ThrottleField::BeforeEnd(0)),
        // They have none, or not at one place: what one asks before anything else is no load.
        ApiKey::ApiVersions
        | ApiKey::SaslHandshake
        | ApiKey::SaslAuthenticate
        | ApiKey::DescribeQuorum
        | ApiKey::WriteTxnMarkers => return None,
        ApiKey::Metadata | ApiKey::OffsetCommit | ApiKey::OffsetFetch => 3,
        ApiKey::ListOffsets
        | ApiKey::OffsetForLeaderEpoch
        | ApiKey::JoinGroup
        | ApiKey::CreateTopics => 2,
        ApiKey::FindCoordinator
        | ApiKey::Heartbeat
        | ApiKey::LeaveGroup
        | ApiKey::SyncGroup
        | ApiKey::DescribeGroups
        | ApiKey::ListGroups
        | ApiKey::DeleteTopics
        | ApiKey::Fetch => 1,
        _ => 0,
    };
    (version >= since).then_some(first)
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, Bytes, BytesMut};
    use kafka_protocol::messages::*;
    use kafka_protocol::protocol::{Encodable, HeaderVersion, Request};

    use super::*;
    use crate::apis::{streams_group_describe, streams_group_heartbeat};
    use crate::response::ResponseChunk;
    use crate::routes::{route, routes};

    const MARK: i32 = 0x7a7a_7a7a;

    fn encoded<R: Request>(version: i16, response: &R::Response) -> Bytes {
        let mut bytes = BytesMut::new();
        let header = R::Response::header_version(version);
        ResponseHeader::default().encode(&mut bytes, header).unwrap();
        response.encode(&mut bytes, version).unwrap();
        bytes.freeze()
    }

    /// `marked` is the default but for the field.
    fn check<R: Request>(default: &R::Response, marked: &R::Response) -> i16 {
        let versions = route(R::KEY).unwrap().versions;
        let codec = ApiKey::try_from(R::KEY).unwrap().valid_versions();
        for version in versions.min..=versions.max.min(codec.max) {
            let mut response = KafkaResponse::new();
            response.write(|out| out.put_slice(&encoded::<R>(version, default)));
            set_throttle_time(&mut response, R::KEY, version, MARK as u64);
            let written = match Vec::from(response.into_chunks()).as_slice() {
                [ResponseChunk::Encoded(bytes)] => bytes.clone(),
                chunks => panic!("{chunks:?} are not one"),
            };
            let api = ApiKey::try_from(R::KEY);
            assert_eq!(written, encoded::<R>(version, marked), "{api:?} {version}");
        }
        R::KEY
    }

    macro_rules! check_all {
        ($($request:ident)*) => {
            vec![$({
                let default = <$request as Request>::Response::default();
                let marked = default.clone().with_throttle_time_ms(MARK);
                check::<$request>(&default, &marked)
            }),*]
        };
    }

    #[test]
    fn the_field_is_where_the_codec_has_it_in_every_version_that_is_served() {
        let mut checked = check_all!(
            CreateDelegationTokenRequest RenewDelegationTokenRequest ExpireDelegationTokenRequest
            DescribeDelegationTokenRequest
            AddOffsetsToTxnRequest AddPartitionsToTxnRequest AlterClientQuotasRequest
            AlterConfigsRequest AlterPartitionReassignmentsRequest AlterReplicaLogDirsRequest ElectLeadersRequest UnregisterBrokerRequest UpdateFeaturesRequest AlterShareGroupOffsetsRequest AlterUserScramCredentialsRequest
            ConsumerGroupDescribeRequest ConsumerGroupHeartbeatRequest CreateAclsRequest
            CreatePartitionsRequest CreateTopicsRequest DeleteAclsRequest DeleteGroupsRequest
            DeleteRecordsRequest DeleteShareGroupOffsetsRequest DeleteTopicsRequest
            DescribeAclsRequest DescribeClientQuotasRequest DescribeClusterRequest
            DescribeConfigsRequest DescribeGroupsRequest DescribeLogDirsRequest
            DescribeProducersRequest DescribeShareGroupOffsetsRequest DescribeTopicPartitionsRequest
            DescribeTransactionsRequest DescribeUserScramCredentialsRequest EndTxnRequest
            FetchRequest FindCoordinatorRequest GetTelemetrySubscriptionsRequest HeartbeatRequest
            IncrementalAlterConfigsRequest InitProducerIdRequest JoinGroupRequest LeaveGroupRequest
            ListConfigResourcesRequest ListGroupsRequest ListOffsetsRequest
            ListPartitionReassignmentsRequest ListTransactionsRequest MetadataRequest
            OffsetCommitRequest OffsetDeleteRequest OffsetFetchRequest OffsetForLeaderEpochRequest
            ProduceRequest PushTelemetryRequest ShareAcknowledgeRequest ShareFetchRequest
            ShareGroupDescribeRequest ShareGroupHeartbeatRequest SyncGroupRequest
            TxnOffsetCommitRequest
        );
        let not_in_codec = [streams_group_heartbeat::API_KEY, streams_group_describe::API_KEY];
        let without = [
            ApiKey::ApiVersions,
            ApiKey::SaslHandshake,
            ApiKey::SaslAuthenticate,
            ApiKey::DescribeQuorum,
            ApiKey::WriteTxnMarkers,
        ];
        checked.extend(not_in_codec.into_iter().chain(without.map(|key| key as i16)));
        checked.sort_unstable();
        let served: Vec<i16> = routes().iter().map(|route| route.key).collect();
        assert_eq!(checked, served);
    }
}
