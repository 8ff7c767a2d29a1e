//! FindCoordinator (10): the coordinator of a group or a transaction, which is always this node.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::error_message;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{BrokerId, FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use crate::cluster_view::ClusterNode;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
const SHARE: i8 = 2;
/// From here on, a request asks for several keys.
const BATCHED: i16 = 4;
/// From here on, a request may ask for the coordinator of a share partition (KIP-932).
const SHARE_PARTITIONS: i16 = 6;

impl ApiHandler for FindCoordinatorRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 6 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> FindCoordinatorResponse {
        // It is the same for every key.
        let node = kafka.cluster.coordinator(context);
        let find = |key: &str| check(kafka, context, self.key_type, key).map(|()| &node);
        if context.version >= BATCHED {
            let answer = |key: StrBytes| {
                let coordinator_node = find(&key);
                coordinator(key, coordinator_node)
            };
            let coordinators = self.coordinator_keys.into_iter().map(answer).collect();
            return FindCoordinatorResponse::default().with_coordinators(coordinators);
        }
        let coordinator = coordinator(StrBytes::new(), find(&self.key));
        FindCoordinatorResponse::default()
            .with_error_code(coordinator.error_code)
            .with_error_message(coordinator.error_message)
            .with_node_id(coordinator.node_id)
            .with_host(coordinator.host)
            .with_port(coordinator.port)
    }
}

/// Fails if there is no coordinator of that key, or the client may not know of it.
fn check(
    kafka: &KafkaServer,
    context: &RequestContext,
    key_type: i8,
    key: &str,
) -> Result<(), ResponseError> {
    match key_type {
        GROUP => kafka.authorize(context, Operation::Describe, Resource::group(key)),
        TRANSACTION => {
            kafka.authorize(context, Operation::Describe, Resource::transactional_id(key))
        }
        // No other node keeps the state of share partitions (KIP-932), so nobody has to find it.
        SHARE if context.version >= SHARE_PARTITIONS => {
            kafka.authorize(context, Operation::ClusterAction, Resource::CLUSTER)?;
            Err(ResponseError::InvalidRequest)
        }
        _ => Err(ResponseError::InvalidRequest),
    }
}

fn coordinator(key: StrBytes, broker: Result<&ClusterNode, ResponseError>) -> Coordinator {
    let answer = Coordinator::default().with_key(key).with_error_message(None);
    match broker {
        Ok(node) => {
            answer.with_node_id(node.id).with_host(node.host.clone()).with_port(node.port.into())
        }
        Err(error) => answer
            .with_error_code(error.code())
            .with_error_message(Some(error_message(error)))
            .with_node_id(BrokerId(-1))
            .with_port(-1),
    }
}

#[cfg(test)]
mod tests {
    use super::super::join_group::test_kafka_api::TestKafkaApi;
    use super::*;

    #[tokio::test]
    async fn this_node_coordinates_every_group_and_transaction() {
        let api = TestKafkaApi::new();
        for version in 0..=3 {
            for key_type in [GROUP, TRANSACTION] {
                let request = FindCoordinatorRequest::default()
                    .with_key(StrBytes::from_static_str("k"))
                    .with_key_type(if version == 0 { GROUP } else { key_type });
                let answer = api.ask(version, request).await;
                assert_eq!((answer.error_code, answer.node_id), (0, BrokerId(7)));
                assert_eq!((answer.host.as_str(), answer.port), ("there", 9092));
            }
        }
        for version in 4..=6 {
            let keys = ["k", ""].map(StrBytes::from_static_str).to_vec();
            let request = FindCoordinatorRequest::default().with_coordinator_keys(keys.clone());
            let coordinators = api.ask(version, request).await.coordinators;
            let found_keys: Vec<StrBytes> =
                coordinators.iter().map(|coordinator| coordinator.key.clone()).collect();
            assert_eq!(found_keys, keys);
            assert!(coordinators.iter().all(
                |coordinator| coordinator.error_code == 0 && coordinator.node_id == BrokerId(7)
            ));
            assert!(coordinators.iter().all(
                |coordinator| coordinator.host.as_str() == "there" && coordinator.port == 9092
            ));
        }
    }

    #[tokio::test]
    async fn share_groups_have_no_coordinator() {
        let api = TestKafkaApi::new();
        let invalid = ResponseError::InvalidRequest.code();
        let request = FindCoordinatorRequest::default().with_key_type(SHARE);
        let refused = api.ask(3, request.clone()).await;
        assert_eq!(
            (refused.error_code, refused.node_id, refused.port),
            (invalid, BrokerId(-1), -1)
        );
        let keys = vec![StrBytes::from_static_str("g:x:0")];
        let refused = api.ask(6, request.with_coordinator_keys(keys)).await;
        assert_eq!(refused.coordinators[0].error_code, invalid);
        assert_eq!(refused.coordinators[0].node_id, BrokerId(-1));
    }
}
