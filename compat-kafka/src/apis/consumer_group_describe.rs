//! ConsumerGroupDescribe (69): groups of the newer kind (KIP-848). There are none here.
//!
//! A classic group gets Kafka's answer for it: Java's admin client sends this request first, and on
//! that answer falls back to DescribeGroups.

use std::sync::Arc;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::consumer_group_describe_response::DescribedGroup;
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, GroupId,
};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use crate::core::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for ConsumerGroupDescribeRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 1 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        _: &RequestContext,
    ) -> ConsumerGroupDescribeResponse {
        let groups = self.group_ids.into_iter().map(|id| not_of_that_kind(kafka, id)).collect();
        ConsumerGroupDescribeResponse::default().with_groups(groups)
    }
}

fn not_of_that_kind(kafka: &KafkaServer, id: GroupId) -> DescribedGroup {
    let is_there = kafka.groups.contains(&id);
    let what = if is_there { "is not a consumer group" } else { "not found" };
    let message = format!("Group {} {what}.", id.as_str());
    DescribedGroup::default()
        .with_error_code(ResponseError::GroupIdNotFound.code())
        .with_error_message(Some(StrBytes::from_string(message)))
        .with_group_id(id)
}

#[cfg(test)]
mod tests {
    use super::super::join_group::test_kafka_api::{TestKafkaApi, group_id};
    use super::*;

    #[tokio::test]
    async fn no_group_is_of_the_newer_kind() {
        let api = TestKafkaApi::new();
        api.stable_group("g").await;
        for version in 0..=1 {
            let request = ConsumerGroupDescribeRequest::default()
                .with_group_ids(vec![group_id("g"), group_id("x")])
                .with_include_authorized_operations(true);
            let groups = api.ask(version, request).await.groups;
            let said: Vec<(&str, i16, &str)> = groups
                .iter()
                .map(|one| (one.group_id.as_str(), one.error_code, one.error_message.as_deref()))
                .map(|(id, code, message)| (id, code, message.unwrap()))
                .collect();
            let expected =
                [("g", 69, "Group g is not a consumer group."), ("x", 69, "Group x not found.")];
            assert_eq!(said, expected);
        }
    }
}
