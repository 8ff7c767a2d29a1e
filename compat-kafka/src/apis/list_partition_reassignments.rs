//! ListPartitionReassignments (46): there is one broker, so nothing ever moves.

use std::sync::Arc;

use kafka_protocol::messages::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};
use kafka_protocol::protocol::VersionRange;

use crate::core::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for ListPartitionReassignmentsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

    async fn handle(
        self,
        _kafka: &Arc<KafkaServer>,
        _context: &RequestContext,
    ) -> ListPartitionReassignmentsResponse {
        ListPartitionReassignmentsResponse::default().with_error_message(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::create_topics::tests::{ask, kafka, topic};
    use super::*;

    #[tokio::test]
    async fn nothing_moves() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let request = ListPartitionReassignmentsRequest::default().with_topics(None);
        let answer = ask(&kafka, 0, request).await;
        assert_eq!((answer.error_code, answer.error_message, answer.topics), (0, None, vec![]));
    }
}
