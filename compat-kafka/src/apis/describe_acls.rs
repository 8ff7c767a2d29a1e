//! DescribeAcls (29): the rules that a filter finds, by the resources that they are for.

use std::sync::Arc;

use engine::security::{
    AclFilter, AclRule, Operation, PatternFilter, PatternType, Permission, ResourceType,
};
use kafka_protocol::messages::describe_acls_response::{AclDescription, DescribeAclsResource};
use kafka_protocol::messages::{DescribeAclsRequest, DescribeAclsResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::cluster_security::{check_authorizer, check_cluster, invalid_request, owned};
use super::support::{KafkaApiError, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// Kafka's number for whatever there is, in each part of a filter.
pub(super) const ANY: i8 = 1;
/// Kafka's number for the patterns that apply to a name.
pub(super) const MATCH: i8 = 2;

impl ApiHandler for DescribeAclsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 3 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DescribeAclsResponse {
        match describe(kafka, context, &self) {
            Ok(rules) => DescribeAclsResponse::default()
                .with_error_message(None)
                .with_resources(by_resource(rules)),
            Err(error) => {
                let (code, message) = error_fields(&Err(error));
                DescribeAclsResponse::default().with_error_code(code).with_error_message(message)
            }
        }
    }
}

fn describe(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: &DescribeAclsRequest,
) -> Result<Vec<AclRule>, KafkaApiError> {
    check_cluster(kafka, context, Operation::Describe)?;
    check_authorizer(kafka, "No Authorizer is configured on the broker")?;
    let pattern = request.pattern_type_filter;
    let filter = AclFilter {
        resource_type: filtered_type(request.resource_type_filter)?,
        pattern: filtered_pattern(pattern)?,
        name: owned(request.resource_name_filter.as_ref()),
        principal: owned(request.principal_filter.as_ref()),
        host: owned(request.host_filter.as_ref()),
        operation: filtered_entry(request.operation, Operation::of_code)?,
        permission: filtered_entry(request.permission_type, Permission::of_code)?,
    };
    Ok(kafka.engine.security().state().acls(&filter))
}

pub(super) fn filtered_type(code: i8) -> Result<Option<ResourceType>, KafkaApiError> {
    let unknown = || invalid_request("Unknown patternFilter.");
    if code == ANY { Ok(None) } else { ResourceType::of_code(code).map(Some).ok_or_else(unknown) }
}

pub(super) fn filtered_pattern(code: i8) -> Result<PatternFilter, KafkaApiError> {
    match code {
        ANY => Ok(PatternFilter::Any),
        MATCH => Ok(PatternFilter::Match),
        code => {
            let exact = PatternType::of_code(code).map(PatternFilter::Exactly);
            exact.ok_or_else(|| invalid_request("Unknown patternFilter."))
        }
    }
}

pub(super) fn filtered_entry<T>(
    code: i8,
    of_code: impl Fn(i8) -> Option<T>,
) -> Result<Option<T>, KafkaApiError> {
    let unknown = || invalid_request("Unknown entryFilter.");
    if code == ANY { Ok(None) } else { of_code(code).map(Some).ok_or_else(unknown) }
}

/// `rules` are sorted.
fn by_resource(rules: Vec<AclRule>) -> Vec<DescribeAclsResource> {
    let mut resources: Vec<DescribeAclsResource> = Vec::new();
    for rule in rules {
        let description = AclDescription::default()
            .with_principal(StrBytes::from_string(rule.principal))
            .with_host(StrBytes::from_string(rule.host))
            .with_operation(rule.operation.code())
            .with_permission_type(rule.permission.code());
        let (kind, pattern) = (rule.resource_type.code(), rule.pattern.code());
        match resources.last_mut() {
            Some(last)
                if (last.resource_type, last.pattern_type) == (kind, pattern)
                    && *last.resource_name == *rule.name =>
            {
                last.acls.push(description);
            }
            _ => resources.push(
                DescribeAclsResource::default()
                    .with_resource_type(kind)
                    .with_resource_name(StrBytes::from_string(rule.name))
                    .with_pattern_type(pattern)
                    .with_acls(vec![description]),
            ),
        }
    }
    resources
}

#[cfg(test)]
mod tests {
    use kafka_protocol::ResponseError;
    use kafka_protocol::messages::CreateAclsRequest;

    use super::super::cluster_security::tests::{
        assert_refused, fixture, fixture_with, options, text,
    };
    use super::super::create_acls::tests::allow;
    use super::*;

    fn all() -> DescribeAclsRequest {
        DescribeAclsRequest::default()
            .with_resource_type_filter(ANY)
            .with_resource_name_filter(None)
            .with_pattern_type_filter(ANY)
            .with_principal_filter(None)
            .with_host_filter(None)
            .with_operation(ANY)
            .with_permission_type(ANY)
    }

    fn listed(response: &DescribeAclsResponse) -> Vec<String> {
        assert_eq!((response.error_code, &response.error_message), (0, &None));
        let resources = response.resources.iter().map(|resource| {
            let acls = resource.acls.iter().map(|acl| {
                let (host, operation) = (&acl.host, acl.operation);
                format!(" {}@{host}:{operation}/{}", &*acl.principal, acl.permission_type)
            });
            let (kind, pattern) = (resource.resource_type, resource.pattern_type);
            format!("{kind}/{pattern} {}:{}", &*resource.resource_name, acls.collect::<String>())
        });
        resources.collect()
    }

    #[tokio::test]
    async fn rules_are_listed_by_resource_in_every_version() {
        let fixture = fixture();
        let rules = vec![
            allow("b", 3, "User:x"),
            allow("a", 4, "User:y").with_operation(4).with_permission_type(2),
            allow("a", 4, "User:x").with_host(text("1.1.1.1")),
            allow("a", 3, "User:x"),
            allow("a", 3, "User:x").with_resource_type(3),
        ];
        let created = fixture.ask(3, CreateAclsRequest::default().with_creations(rules)).await;
        assert!(created.results.iter().all(|result| result.error_code == 0));
        for version in 1..=3 {
            let expected = [
                "2/3 a: User:x@*:3/3",
                "2/3 b: User:x@*:3/3",
                "2/4 a: User:x@1.1.1.1:3/3 User:y@*:4/2",
                "3/3 a: User:x@*:3/3",
            ];
            assert_eq!(listed(&fixture.ask(version, all()).await), expected);
            let of_name = |name: &str| all().with_resource_name_filter(Some(text(name)));
            let matching = of_name("ab").with_pattern_type_filter(MATCH);
            assert_eq!(listed(&fixture.ask(version, matching).await), expected[2..3]);
            let exact = of_name("a").with_pattern_type_filter(3).with_resource_type_filter(2);
            assert_eq!(listed(&fixture.ask(version, exact).await), expected[..1]);
            let denied = all().with_permission_type(2);
            assert_eq!(listed(&fixture.ask(version, denied).await), ["2/4 a: User:y@*:4/2"]);
            let of_y = all().with_principal_filter(Some(text("User:y"))).with_operation(3);
            assert!(listed(&fixture.ask(version, of_y).await).is_empty());
            let with_host = all().with_host_filter(Some(text("1.1.1.1")));
            assert_eq!(
                listed(&fixture.ask(version, with_host).await),
                ["2/4 a: User:x@1.1.1.1:3/3"]
            );
        }
    }

    #[tokio::test]
    async fn who_may_not_ask_and_what_no_filter_is_is_refused() {
        let fixture = fixture();
        let denied = fixture.ask_as("nobody", 3, all()).await;
        let error = ResponseError::ClusterAuthorizationFailed;
        assert_refused(denied.error_code, &denied.error_message, error, "authorization failed");
        for (request, words) in [
            (all().with_resource_type_filter(0), "Unknown patternFilter."),
            (all().with_resource_type_filter(99), "Unknown patternFilter."),
            (all().with_pattern_type_filter(5), "Unknown patternFilter."),
            (all().with_operation(-1), "Unknown entryFilter."),
            (all().with_permission_type(4), "Unknown entryFilter."),
        ] {
            let refused = fixture.ask(2, request).await;
            let invalid = ResponseError::InvalidRequest;
            assert_refused(refused.error_code, &refused.error_message, invalid, words);
        }
        let result = fixture_with(options(false)).ask_as("nobody", 1, all()).await;
        let disabled = ResponseError::SecurityDisabled;
        assert_refused(result.error_code, &result.error_message, disabled, "No Authorizer");
    }
}
