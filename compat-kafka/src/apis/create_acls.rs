//! CreateAcls (30): adds rules, all that are valid at once. A rule that is there already stays.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::security::{
    AclRule, CLUSTER, Operation, PatternType, Permission, ResourceType, SecurityChange,
};
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::create_acls_response::AclCreationResult;
use kafka_protocol::messages::{CreateAclsRequest, CreateAclsResponse};
use kafka_protocol::protocol::VersionRange;

use super::cluster_security::{
    actor, check_authorizer, check_change_count, check_cluster, check_name_length, invalid_request,
    shown,
};
use super::describe_acls::{ANY, MATCH};
use super::support::{KafkaApiError, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for CreateAclsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 3 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> CreateAclsResponse {
        let count = self.creations.len();
        let created = create(kafka, context, self.creations).await;
        let results = created.unwrap_or_else(|error| vec![Err(error); count]);
        let results = results.iter().map(|result| {
            let (code, message) = error_fields(result);
            AclCreationResult::default().with_error_code(code).with_error_message(message)
        });
        CreateAclsResponse::default().with_results(results.collect())
    }
}

async fn create(
    kafka: &KafkaServer,
    context: &RequestContext,
    creations: Vec<AclCreation>,
) -> Result<Vec<Result<(), KafkaApiError>>, KafkaApiError> {
    check_cluster(kafka, context, Operation::Alter)?;
    check_authorizer(kafka, "No Authorizer is configured.")?;
    let mut valid = Vec::new();
    let mut results: Vec<Result<(), KafkaApiError>> =
        creations.iter().map(|creation| rule(creation).map(|rule| valid.push(rule))).collect();
    if let Err(error) = add(kafka, context, valid).await {
        results.iter_mut().filter(|result| result.is_ok()).for_each(|result| {
            *result = Err(error.clone());
        });
    }
    Ok(results)
}

async fn add(
    kafka: &KafkaServer,
    context: &RequestContext,
    rules: Vec<AclRule>,
) -> Result<(), KafkaApiError> {
    let security = kafka.engine.security();
    let added = security.change(actor(context), |state| {
        let new: BTreeSet<AclRule> =
            rules.into_iter().filter(|rule| !state.has_acl(rule)).collect();
        match check_change_count(new.len()) {
            Ok(()) => (new.into_iter().map(SecurityChange::AclAdded).collect(), Ok(())),
            refused => (Vec::new(), refused),
        }
    });
    added.await?
}

fn rule(creation: &AclCreation) -> Result<AclRule, KafkaApiError> {
    let (name, principal) = (&*creation.resource_name, &*creation.principal);
    if creation.resource_type == ResourceType::Cluster.code() && name != CLUSTER {
        let message = format!("The only valid name for the CLUSTER resource is {CLUSTER}");
        return Err(invalid_request(message));
    }
    if name.is_empty() {
        return Err(invalid_request("Invalid empty resource name"));
    }
    let invalid = |field: &str, code: i8| {
        let word = match (field, code) {
            (_, ANY) => "ANY",
            ("patternType", MATCH) => "MATCH",
            _ => "UNKNOWN",
        };
        invalid_request(format!("Invalid {field} {word}"))
    };
    let (kind, pattern) = (creation.resource_type, creation.resource_pattern_type);
    let (operation, permission) = (creation.operation, creation.permission_type);
    let rule = AclRule {
        resource_type: ResourceType::of_code(kind).ok_or_else(|| invalid("resourceType", kind))?,
        pattern: PatternType::of_code(pattern).ok_or_else(|| invalid("patternType", pattern))?,
        operation: Operation::of_code(operation).ok_or_else(|| invalid("operation", operation))?,
        permission: Permission::of_code(permission)
            .ok_or_else(|| invalid("permissionType", permission))?,
        name: name.to_owned(),
        principal: principal.to_owned(),
        host: creation.host.to_string(),
    };
    if !principal.contains(':') {
        return Err(invalid_request(format!(
            "Could not parse principal from `{}` (no colon is present separating the principal type \
             from the principal name)",
            shown(principal)
        )));
    }
    check_name_length("The resource name", name)?;
    check_name_length("The principal", principal)?;
    check_name_length("The host", &rule.host)?;
    Ok(rule)
}

#[cfg(test)]
pub(super) mod tests {
    use engine::security::{AclFilter, SecurityOptions};
    use kafka_protocol::ResponseError;

    use super::super::cluster_security::tests::{
        SecurityFixture, assert_refused, fixture, fixture_with, options, text,
    };
    use super::*;

    /// Lets a principal read a topic, or those that begin so.
    pub(in crate::apis) fn allow(name: &str, pattern: i8, principal: &str) -> AclCreation {
        AclCreation::default()
            .with_resource_type(2)
            .with_resource_name(text(name))
            .with_resource_pattern_type(pattern)
            .with_principal(text(principal))
            .with_host(text("*"))
            .with_operation(3)
            .with_permission_type(3)
    }

    fn request(creations: Vec<AclCreation>) -> CreateAclsRequest {
        CreateAclsRequest::default().with_creations(creations)
    }

    async fn codes(fixture: &SecurityFixture, version: i16, rules: Vec<AclCreation>) -> Vec<i16> {
        let results = fixture.ask(version, request(rules)).await.results;
        results.iter().map(|result| result.error_code).collect()
    }

    #[tokio::test]
    async fn the_valid_rules_of_a_request_are_one_entry_and_each_has_its_result() {
        let fixture = fixture();
        let invalid = ResponseError::InvalidRequest.code();
        let cluster = allow(CLUSTER, 3, "User:x").with_resource_type(4).with_operation(7);
        let rules = vec![
            allow("b", 3, "User:x"),
            allow("a", 4, "nobody"),
            allow("a", 4, "User:x"),
            allow("b", 3, "User:x"),
            cluster,
        ];
        assert_eq!(codes(&fixture, 1, rules.clone()).await, [0, invalid, 0, 0, 0]);
        let rule = |index: usize| SecurityChange::AclAdded(rule(&rules[index]).unwrap());
        assert_eq!(fixture.only_entry().await, [rule(0), rule(2), rule(4)]);
        // They are there already.
        for version in 2..=3 {
            assert_eq!(codes(&fixture, version, rules.clone()).await, [0, invalid, 0, 0, 0]);
        }
        assert_eq!(fixture.change_log().await.len(), 1);
        assert_eq!(fixture.kafka.engine.security().state().acl_count(), 3);
    }

    #[tokio::test]
    async fn a_rule_holds_from_its_creation_on() {
        let fixture = fixture();
        let alter = |user| allow(CLUSTER, 3, user).with_resource_type(4).with_operation(7);
        let alteration = || request(vec![alter("User:x")]);
        let denied = fixture.ask_as("x", 3, alteration()).await.results.remove(0);
        let error = ResponseError::ClusterAuthorizationFailed;
        assert_refused(denied.error_code, &denied.error_message, error, "authorization failed");
        assert_eq!(codes(&fixture, 3, vec![alter("User:x")]).await, [0]);
        assert_eq!(fixture.ask_as("x", 3, alteration()).await.results[0].error_code, 0);
    }

    #[tokio::test]
    async fn what_is_no_rule_is_refused_in_words() {
        let fixture = fixture();
        let rule = || allow("a", 3, "User:x");
        let long_name = "x".repeat(40_000);
        let refusals = [
            (rule().with_resource_type(0), "Invalid resourceType UNKNOWN"),
            (rule().with_resource_type(1), "Invalid resourceType ANY"),
            (rule().with_resource_type(8), "Invalid resourceType UNKNOWN"),
            (rule().with_resource_type(4), "The only valid name for the CLUSTER resource is"),
            (rule().with_resource_pattern_type(0), "Invalid patternType UNKNOWN"),
            (rule().with_resource_pattern_type(1), "Invalid patternType ANY"),
            (rule().with_resource_pattern_type(2), "Invalid patternType MATCH"),
            (rule().with_operation(1), "Invalid operation ANY"),
            (rule().with_operation(2).with_permission_type(1), "Invalid permissionType ANY"),
            (rule().with_operation(16), "Invalid operation UNKNOWN"),
            (rule().with_permission_type(-1), "Invalid permissionType UNKNOWN"),
            (rule().with_resource_name(text("")), "Invalid empty resource name"),
            (rule().with_principal(text("x")), "Could not parse principal from `x` (no colon"),
            (rule().with_principal(text(&long_name)), "(no colon is present"),
            (rule().with_resource_name(text(&long_name)), "longer than 32767 bytes"),
            (rule().with_principal(text(&format!("User:{long_name}"))), "longer than 32767 bytes"),
            (rule().with_host(text(&long_name)), "longer than 32767 bytes"),
        ];
        let (rules, words): (Vec<_>, Vec<_>) = refusals.into_iter().unzip();
        let results = fixture.ask(3, request(rules)).await.results;
        for (result, words) in results.iter().zip(words) {
            let error = ResponseError::InvalidRequest;
            assert_refused(result.error_code, &result.error_message, error, words);
        }
        assert!(fixture.change_log().await.is_empty());
    }

    #[tokio::test]
    async fn without_an_authorizer_and_beyond_the_limits_nothing_is_created() {
        let creations = |count: usize| {
            (0..count).map(|nth| allow(&format!("t{nth}"), 3, "User:x")).collect::<Vec<_>>()
        };
        let refused = async |options: SecurityOptions, rules: Vec<AclCreation>, error, words| {
            let fixture = fixture_with(options);
            let count = rules.len();
            let results = fixture.ask(3, request(rules)).await.results;
            assert_eq!(results.len(), count);
            for result in &results {
                assert_refused(result.error_code, &result.error_message, error, words);
            }
            let state = fixture.kafka.engine.security().state();
            assert!(state.acls(&AclFilter::default()).is_empty());
        };
        let (disabled, policy) = (ResponseError::SecurityDisabled, ResponseError::PolicyViolation);
        refused(options(false), creations(2), disabled, "No Authorizer is configured.").await;
        refused(options(true), creations(10_001), policy, "excessively large batch").await;
        let small = SecurityOptions { bytes_max: 1000, ..options(true) };
        refused(small, creations(10), policy, "limits.security-bytes-max").await;
        let fixture = fixture();
        assert_eq!(codes(&fixture, 3, creations(10_000)).await, vec![0; 10_000]);
    }
}
