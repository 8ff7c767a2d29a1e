//! ListPartitionReassignments (46): there is one broker, so nothing ever moves.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_protocol::messages::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};
use kafka_protocol::protocol::VersionRange;

use super::support::{authorize, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for ListPartitionReassignmentsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> ListPartitionReassignmentsResponse {
        let allowed = authorize(kafka, context, Operation::Describe, Resource::CLUSTER);
        let (code, message) = error_fields(&allowed);
        ListPartitionReassignmentsResponse::default()
            .with_error_code(code)
            .with_error_message(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apis::test_server::{ask, kafka, topic};

    #[tokio::test]
    async fn nothing_moves() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let request = ListPartitionReassignmentsRequest::default().with_topics(None);
        let answer = ask(&kafka, 0, request).await;
        assert_eq!((answer.error_code, answer.error_message, answer.topics), (0, None, vec![]));
    }
}
