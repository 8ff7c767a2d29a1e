//! DescribeCluster (60): one broker, which is also the controller.

use std::sync::Arc;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::{DescribeClusterRequest, DescribeClusterResponse};
use kafka_protocol::protocol::VersionRange;

use super::support::{KafkaApiError, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// The endpoint type of brokers.
const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;
const NOT_REQUESTED: i32 = i32::MIN;

impl ApiHandler for DescribeClusterRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 2 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DescribeClusterResponse {
        let result = check_endpoint(self.endpoint_type, context.version);
        if result.is_err() {
            let (code, message) = error_fields(&result);
            return DescribeClusterResponse::default()
                .with_error_code(code)
                .with_error_message(message);
        }
        let brokers = kafka.cluster.nodes(context).into_iter().map(|node| {
            DescribeClusterBroker::default()
                .with_broker_id(node.id)
                .with_host(node.host)
                .with_port(node.port.into())
                .with_rack(node.rack)
        });
        let operations = if self.include_cluster_authorized_operations {
            kafka.cluster_operations(context)
        } else {
            NOT_REQUESTED
        };
        DescribeClusterResponse::default()
            .with_error_message(None)
            .with_endpoint_type(BROKERS)
            .with_cluster_id(kafka.cluster.id())
            .with_controller_id(kafka.cluster.controller())
            .with_brokers(brokers.collect())
            .with_cluster_authorized_operations(operations)
    }
}

fn check_endpoint(endpoint_type: i8, version: i16) -> Result<(), KafkaApiError> {
    let (error, message) = match endpoint_type {
        BROKERS => return Ok(()),
        CONTROLLERS => (
            ResponseError::MismatchedEndpointType,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of \
             type CONTROLLER"
                .to_owned(),
        ),
        unknown => {
            (ResponseError::UnsupportedEndpointType, format!("Unsupported endpoint type {unknown}"))
        }
    };
    // Version 0 has neither error.
    let error = if version == 0 { ResponseError::InvalidRequest } else { error };
    Err(KafkaApiError::new(error, message))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::BrokerId;

    use super::*;
    use crate::apis::test_server::{ask, kafka, kafka_with};
    use crate::options::KafkaOptions;

    #[tokio::test]
    async fn the_cluster_is_this_broker_in_every_version() {
        let options =
            KafkaOptions { rack: Some("r1".to_owned()), node_id: 7, ..KafkaOptions::default() };
        let kafka = kafka_with(options);
        for version in 0..=2 {
            let cluster = ask(&kafka, version, DescribeClusterRequest::default()).await;
            assert_eq!((cluster.error_code, &cluster.error_message), (0, &None));
            assert_eq!(&*cluster.cluster_id, "freezeframe");
            assert_eq!(cluster.controller_id, BrokerId(7));
            assert_eq!(cluster.cluster_authorized_operations, i32::MIN);
            let [broker] = &cluster.brokers[..] else { panic!("{cluster:?}") };
            assert_eq!(broker.broker_id, BrokerId(7));
            assert_eq!((&*broker.host, broker.port), ("there", 9092));
            assert_eq!(broker.rack.as_deref(), Some("r1"));
        }
        let request =
            DescribeClusterRequest::default().with_include_cluster_authorized_operations(true);
        assert_eq!(ask(&kafka, 0, request).await.cluster_authorized_operations, 8096);
    }

    #[tokio::test]
    async fn a_request_for_controllers_is_refused_as_these_are_brokers() {
        let kafka = kafka();
        for (endpoint, error) in [
            (CONTROLLERS, ResponseError::MismatchedEndpointType),
            (0, ResponseError::UnsupportedEndpointType),
            (3, ResponseError::UnsupportedEndpointType),
        ] {
            let request = DescribeClusterRequest::default().with_endpoint_type(endpoint);
            let cluster = ask(&kafka, 1, request).await;
            assert_eq!(cluster.error_code, error.code());
            assert!(cluster.error_message.is_some() && cluster.brokers.is_empty());
        }
    }
}
