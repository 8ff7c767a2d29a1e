//! The authorization of requests. Every handler asks here, by the operation and the resource.

use std::fmt::Display;

use engine::security::{Operation, Requester, Resource, ResourceType, base_resource};
use kafka_protocol::ResponseError;

use crate::kafka_server::KafkaServer;
use crate::request::RequestContext;
use crate::routes;

impl KafkaServer {
    /// Checks that the client may do `operation` to `resource`. A moment of a topic is that topic:
    /// today's rules say who may read its past.
    ///
    /// # Errors
    /// Kafka's code for a refusal, by the type of the resource.
    pub(crate) fn authorize(
        &self,
        context: &RequestContext,
        operation: Operation,
        resource: Resource<'_>,
    ) -> Result<(), ResponseError> {
        context.connection.count_authorization();
        if !self.is_authorizing() {
            return Ok(());
        }
        let (who, asked) = (context.connection.requester(), base_resource(resource));
        if self.engine.security().authorize_named(&who, operation, asked) {
            Ok(())
        } else {
            Err(refusal(resource.kind))
        }
    }

    /// Records a change that a request made, in the audit log.
    pub(crate) fn record_change(&self, context: &RequestContext, resource: impl Display) {
        let operation = routes::name(context.api_key);
        self.record_change_by(&context.connection.requester(), &operation, resource);
    }

    pub(crate) fn record_change_by(
        &self,
        requester: &Requester,
        operation: &str,
        resource: impl Display,
    ) {
        let audit = self.engine.security().audit();
        audit.record_change(requester.audit_subject(), operation, resource);
    }

    /// [`KafkaServer::authorize`], for a caller that leaves out what it refuses. That is no denial
    /// for the audit log.
    pub(crate) fn is_authorized(
        &self,
        context: &RequestContext,
        operation: Operation,
        resource: Resource<'_>,
    ) -> bool {
        context.connection.count_authorization();
        if !self.is_authorizing() {
            return true;
        }
        let (who, asked) = (context.connection.requester(), base_resource(resource));
        self.engine.security().authorize(&who, operation, asked)
    }

    /// True if the client may do `operation` to any resource of a type at all.
    pub(crate) fn is_authorized_for_any(
        &self,
        context: &RequestContext,
        operation: Operation,
        kind: ResourceType,
    ) -> bool {
        context.connection.count_authorization();
        self.engine.security().authorize_any(&context.connection.requester(), operation, kind)
    }

    /// The operations that the client may do to a resource, one bit each, as clients ask for them
    /// (KIP-430).
    pub(crate) fn authorized_operations(
        &self,
        context: &RequestContext,
        resource: Resource<'_>,
    ) -> i32 {
        let operations = resource.kind.operations().iter();
        let allowed =
            operations.filter(|operation| self.is_authorized(context, **operation, resource));
        allowed.fold(0, |bits, operation| bits | 1 << operation.code())
    }

    /// The operations that the client may do to the cluster; none if it may not describe the
    /// cluster.
    pub(crate) fn cluster_operations(&self, context: &RequestContext) -> i32 {
        if self.is_authorized(context, Operation::Describe, Resource::CLUSTER) {
            self.authorized_operations(context, Resource::CLUSTER)
        } else {
            0
        }
    }
}

fn refusal(kind: ResourceType) -> ResponseError {
    match kind {
        ResourceType::Topic => ResponseError::TopicAuthorizationFailed,
        ResourceType::Group => ResponseError::GroupAuthorizationFailed,
        ResourceType::Cluster => ResponseError::ClusterAuthorizationFailed,
        ResourceType::TransactionalId => ResponseError::TransactionalIdAuthorizationFailed,
        ResourceType::DelegationToken | ResourceType::User => {
            ResponseError::DelegationTokenAuthorizationFailed
        }
    }
}

#[cfg(test)]
pub(crate) mod test_authorizer;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod walk;
