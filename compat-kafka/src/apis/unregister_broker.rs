//! UnregisterBroker (64): the one broker stays.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{BrokerId, UnregisterBrokerRequest, UnregisterBrokerResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::support::{KafkaApiError, authorize, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for UnregisterBrokerRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> UnregisterBrokerResponse {
        let allowed = authorize(kafka, context, Operation::Alter, Resource::CLUSTER);
        let result = allowed.and_then(|()| Err(refusal(kafka, self.broker_id.0)));
        let (code, message): (i16, Option<StrBytes>) = error_fields(&result);
        UnregisterBrokerResponse::default().with_error_code(code).with_error_message(message)
    }
}

fn refusal(kafka: &KafkaServer, id: i32) -> KafkaApiError {
    if kafka.cluster.contains(BrokerId(id)) {
        let message = format!("Broker {id} is the only one, and it runs. Stop it instead.");
        return KafkaApiError::new(ResponseError::InvalidRequest, message);
    }
    let message = format!("Broker ID {id} is not currently registered");
    KafkaApiError::new(ResponseError::BrokerIdNotRegistered, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apis::test_server::{ask, kafka};

    #[tokio::test]
    async fn no_broker_goes() {
        let kafka = kafka();
        for (id, error) in
            [(1, ResponseError::InvalidRequest), (2, ResponseError::BrokerIdNotRegistered)]
        {
            let request = UnregisterBrokerRequest::default().with_broker_id(BrokerId(id));
            let answer = ask(&kafka, 0, request).await;
            assert_eq!(answer.error_code, error.code());
            assert!(answer.error_message.unwrap().contains(&id.to_string()));
        }
    }
}
