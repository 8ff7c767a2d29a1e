//! The APIs that the client uses, with the versions of each, in one table.
//!
//! Fetch and Produce stay below version 13, where requests name topics by id only. A moment topic
//! needs its name. Metadata starts at version 4, because older versions may create the requested
//! topic.

use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Request, VersionRange};

/// A request that this library sends.
pub(crate) trait ClientApi: Request {
    /// The API's name, for messages.
    const NAME: &'static str;
    /// The versions that this library supports.
    const OURS: VersionRange;
}

macro_rules! apis {
    ($($request:ty, $name:literal, $min:literal..=$max:literal;)*) => {$(
        impl ClientApi for $request {
            const NAME: &'static str = $name;
            const OURS: VersionRange = VersionRange { min: $min, max: $max };
        }
    )*};
}

apis! {
    ProduceRequest, "Produce", 3..=9;
    FetchRequest, "Fetch", 4..=12;
    ListOffsetsRequest, "ListOffsets", 1..=7;
    MetadataRequest, "Metadata", 4..=12;
    OffsetFetchRequest, "OffsetFetch", 2..=7;
    OffsetCommitRequest, "OffsetCommit", 2..=9;
    FindCoordinatorRequest, "FindCoordinator", 0..=3;
    InitProducerIdRequest, "InitProducerId", 0..=4;
    AddPartitionsToTxnRequest, "AddPartitionsToTxn", 0..=3;
    EndTxnRequest, "EndTxn", 0..=3;
    ListTransactionsRequest, "ListTransactions", 0..=1;
    DescribeTransactionsRequest, "DescribeTransactions", 0..=0;
    DeleteGroupsRequest, "DeleteGroups", 0..=2;
    DescribeGroupsRequest, "DescribeGroups", 0..=6;
    ListGroupsRequest, "ListGroups", 0..=5;
    CreateTopicsRequest, "CreateTopics", 2..=7;
    DeleteTopicsRequest, "DeleteTopics", 1..=5;
    CreatePartitionsRequest, "CreatePartitions", 0..=3;
    DeleteRecordsRequest, "DeleteRecords", 0..=2;
    IncrementalAlterConfigsRequest, "IncrementalAlterConfigs", 0..=1;
    DescribeConfigsRequest, "DescribeConfigs", 1..=4;
    DescribeLogDirsRequest, "DescribeLogDirs", 1..=4;
    ConsumerGroupDescribeRequest, "ConsumerGroupDescribe", 0..=1;
    SaslHandshakeRequest, "SaslHandshake", 1..=1;
    SaslAuthenticateRequest, "SaslAuthenticate", 0..=2;
    DescribeAclsRequest, "DescribeAcls", 1..=3;
    CreateAclsRequest, "CreateAcls", 1..=3;
    DeleteAclsRequest, "DeleteAcls", 1..=3;
    DescribeClientQuotasRequest, "DescribeClientQuotas", 0..=1;
    AlterClientQuotasRequest, "AlterClientQuotas", 0..=1;
    DescribeUserScramCredentialsRequest, "DescribeUserScramCredentials", 0..=0;
    AlterUserScramCredentialsRequest, "AlterUserScramCredentials", 0..=0;
}

/// The highest version that both sides support; `None` if there is none.
pub(crate) fn negotiated_version(ours: VersionRange, theirs: Option<&VersionRange>) -> Option<i16> {
    let common = ours.intersect(theirs?);
    (!common.is_empty()).then_some(common.max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: i16, max: i16) -> VersionRange {
        VersionRange { min, max }
    }

    #[test]
    fn the_highest_version_that_both_know_is_agreed_on() {
        assert_eq!(negotiated_version(range(4, 12), Some(&range(0, 18))), Some(12));
        assert_eq!(negotiated_version(range(4, 12), Some(&range(0, 7))), Some(7));
        assert_eq!(negotiated_version(range(4, 12), Some(&range(13, 18))), None);
        assert_eq!(negotiated_version(range(4, 12), None), None);
    }
}
