//! `kafka-protocol`'s own encoding of every request in the table, whatever its type.

use bytes::Bytes;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Encodable, Request, VersionRange};

pub(super) struct MessageCodec {
    pub(super) api_key: i16,
    /// The versions that the decoder accepts.
    pub(super) versions: VersionRange,
    /// The type's `Default`, encoded.
    pub(super) default: fn(version: i16) -> Vec<u8>,
    /// Decodes a body at the front, and encodes it again; `None` if the decoder refuses it.
    pub(super) reencode: fn(&mut Bytes, version: i16) -> Option<Vec<u8>>,
    /// Decodes a body at the front and drops it; false if the decoder refuses it.
    pub(super) decodes: fn(&mut Bytes, version: i16) -> bool,
}

pub(super) fn codec(api_key: i16) -> &'static MessageCodec {
    CODECS.iter().find(|codec| codec.api_key == api_key).expect("a codec for every request")
}

pub(super) fn encoded(message: &impl Encodable, version: i16) -> Vec<u8> {
    let mut body = Vec::new();
    message.encode(&mut body, version).unwrap();
    body
}

const fn of<R: Request + Default>() -> MessageCodec {
    MessageCodec {
        api_key: R::KEY,
        versions: R::VERSIONS,
        default: |version| encoded(&R::default(), version),
        reencode: |body, version| R::decode(body, version).ok().map(|body| encoded(&body, version)),
        decodes: |body, version| R::decode(body, version).is_ok(),
    }
}

macro_rules! codecs {
    ($($request:ident)*) => { &[$(of::<$request>()),*] };
}

static CODECS: &[MessageCodec] = codecs! {
    ProduceRequest FetchRequest ListOffsetsRequest MetadataRequest OffsetCommitRequest
    OffsetFetchRequest FindCoordinatorRequest JoinGroupRequest HeartbeatRequest LeaveGroupRequest
    SyncGroupRequest DescribeGroupsRequest ListGroupsRequest SaslHandshakeRequest ApiVersionsRequest
    CreateTopicsRequest DeleteTopicsRequest DeleteRecordsRequest InitProducerIdRequest
    OffsetForLeaderEpochRequest AddPartitionsToTxnRequest AddOffsetsToTxnRequest EndTxnRequest
    WriteTxnMarkersRequest TxnOffsetCommitRequest DescribeAclsRequest CreateAclsRequest
    DeleteAclsRequest DescribeConfigsRequest AlterConfigsRequest AlterReplicaLogDirsRequest
    DescribeLogDirsRequest SaslAuthenticateRequest CreatePartitionsRequest
    CreateDelegationTokenRequest RenewDelegationTokenRequest ExpireDelegationTokenRequest
    DescribeDelegationTokenRequest DeleteGroupsRequest ElectLeadersRequest
    IncrementalAlterConfigsRequest AlterPartitionReassignmentsRequest
    ListPartitionReassignmentsRequest OffsetDeleteRequest DescribeClientQuotasRequest
    AlterClientQuotasRequest DescribeUserScramCredentialsRequest AlterUserScramCredentialsRequest
    DescribeQuorumRequest UpdateFeaturesRequest DescribeClusterRequest DescribeProducersRequest
    UnregisterBrokerRequest DescribeTransactionsRequest ListTransactionsRequest
    ConsumerGroupHeartbeatRequest ConsumerGroupDescribeRequest GetTelemetrySubscriptionsRequest
    PushTelemetryRequest ListConfigResourcesRequest DescribeTopicPartitionsRequest
    ShareGroupHeartbeatRequest ShareGroupDescribeRequest ShareFetchRequest ShareAcknowledgeRequest
    AddRaftVoterRequest RemoveRaftVoterRequest InitializeShareGroupStateRequest
    ReadShareGroupStateRequest WriteShareGroupStateRequest DeleteShareGroupStateRequest
    ReadShareGroupStateSummaryRequest DescribeShareGroupOffsetsRequest AlterShareGroupOffsetsRequest
    DeleteShareGroupOffsetsRequest
};
