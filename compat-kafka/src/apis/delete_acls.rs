//! DeleteAcls (31): removes the rules that filters find, all at once. Each filter finds what there
//! was before.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::security::{
    AclFilter, AclRule, AclSearchBudget, Operation, Permission, SecurityChange, SecurityState,
};
use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;
use kafka_protocol::messages::delete_acls_response::{
    DeleteAclsFilterResult, DeleteAclsMatchingAcl,
};
use kafka_protocol::messages::{DeleteAclsRequest, DeleteAclsResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::cluster_security::{
    CHANGES_MAX, actor, check_authorizer, check_cluster, invalid_request, owned,
};
use super::describe_acls::{filtered_entry, filtered_pattern, filtered_type};
use super::support::{KafkaApiError, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// The budget of the filters of a request for rules that they look at and find. A rule is returned
/// for each filter that finds it.
const SEARCH_BUDGET: AclSearchBudget = AclSearchBudget { rules: 5_000_000, bytes: 16 << 20 };

type FilterResult = Result<Vec<AclRule>, KafkaApiError>;

impl ApiHandler for DeleteAclsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 3 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DeleteAclsResponse {
        let count = self.filters.len();
        let deleted = delete(kafka, context, self.filters).await;
        let results = deleted.unwrap_or_else(|error| vec![Err(error); count]);
        let results = results.into_iter().map(filter_result).collect();
        DeleteAclsResponse::default().with_filter_results(results)
    }
}

async fn delete(
    kafka: &KafkaServer,
    context: &RequestContext,
    filters: Vec<DeleteAclsFilter>,
) -> Result<Vec<FilterResult>, KafkaApiError> {
    check_cluster(kafka, context, Operation::Alter)?;
    check_authorizer(kafka, "No Authorizer is configured.")?;
    let filters: Vec<Result<AclFilter, KafkaApiError>> = filters.iter().map(filter).collect();
    let deleted =
        kafka.engine.security().change(actor(context), |state| match find(state, filters) {
            Ok((rules, results)) => {
                (rules.into_iter().map(SecurityChange::AclRemoved).collect(), Ok(results))
            }
            Err(error) => (Vec::new(), Err(error)),
        });
    deleted.await?
}

/// The rules that filters find, all together and each.
fn find(
    state: &SecurityState,
    filters: Vec<Result<AclFilter, KafkaApiError>>,
) -> Result<(BTreeSet<AclRule>, Vec<FilterResult>), KafkaApiError> {
    let (mut matching, mut budget) = (BTreeSet::new(), SEARCH_BUDGET);
    let mut results = Vec::with_capacity(filters.len());
    for filter in filters {
        let filter = match filter {
            Ok(filter) => filter,
            Err(error) => {
                results.push(Err(error));
                continue;
            }
        };
        let rules = state.acls_within(&filter, &mut budget).ok_or_else(|| {
            invalid_request("The filters find too much in all. Give fewer of them in a request.")
        })?;
        matching.extend(rules.iter().cloned());
        if matching.len() > CHANGES_MAX {
            let message =
                format!("Cannot remove more than {CHANGES_MAX} acls in a single delete operation.");
            return Err(invalid_request(message));
        }
        results.push(Ok(rules));
    }
    Ok((matching, results))
}

fn filter(filter: &DeleteAclsFilter) -> Result<AclFilter, KafkaApiError> {
    Ok(AclFilter {
        resource_type: filtered_type(filter.resource_type_filter)?,
        pattern: filtered_pattern(filter.pattern_type_filter)?,
        name: owned(filter.resource_name_filter.as_ref()),
        principal: owned(filter.principal_filter.as_ref()),
        host: owned(filter.host_filter.as_ref()),
        operation: filtered_entry(filter.operation, Operation::of_code)?,
        permission: filtered_entry(filter.permission_type, Permission::of_code)?,
    })
}

fn filter_result(result: FilterResult) -> DeleteAclsFilterResult {
    let (rules, (code, message)) = match result {
        Ok(rules) => (rules, (0, None)),
        Err(error) => (Vec::new(), error_fields(&Err(error))),
    };
    DeleteAclsFilterResult::default()
        .with_error_code(code)
        .with_error_message(message)
        .with_matching_acls(rules.into_iter().map(matching_acl).collect())
}

fn matching_acl(rule: AclRule) -> DeleteAclsMatchingAcl {
    DeleteAclsMatchingAcl::default()
        .with_error_message(None)
        .with_resource_type(rule.resource_type.code())
        .with_resource_name(StrBytes::from_string(rule.name))
        .with_pattern_type(rule.pattern.code())
        .with_principal(StrBytes::from_string(rule.principal))
        .with_host(StrBytes::from_string(rule.host))
        .with_operation(rule.operation.code())
        .with_permission_type(rule.permission.code())
}

#[cfg(test)]
mod tests {
    use kafka_protocol::ResponseError;
    use kafka_protocol::messages::CreateAclsRequest;

    use super::super::cluster_security::tests::{
        SecurityFixture, assert_refused, fixture, fixture_with, options, text,
    };
    use super::super::create_acls::tests::allow;
    use super::*;

    const ANY: i8 = 1;

    fn all() -> DeleteAclsFilter {
        DeleteAclsFilter::default()
            .with_resource_type_filter(ANY)
            .with_resource_name_filter(None)
            .with_pattern_type_filter(ANY)
            .with_principal_filter(None)
            .with_host_filter(None)
            .with_operation(ANY)
            .with_permission_type(ANY)
    }

    fn named(name: &str) -> DeleteAclsFilter {
        all().with_resource_name_filter(Some(text(name)))
    }

    fn request(filters: Vec<DeleteAclsFilter>) -> DeleteAclsRequest {
        DeleteAclsRequest::default().with_filters(filters)
    }

    async fn create(fixture: &SecurityFixture, names: impl Iterator<Item = String>) {
        let rules: Vec<_> = names.map(|name| allow(&name, 3, "User:x")).collect();
        for rules in rules.chunks(10_000) {
            let request = CreateAclsRequest::default().with_creations(rules.to_vec());
            let results = fixture.ask(3, request).await.results;
            assert!(results.iter().all(|result| result.error_code == 0));
        }
    }

    fn found(result: &DeleteAclsFilterResult) -> Vec<&str> {
        assert_eq!((result.error_code, &result.error_message), (0, &None));
        let rules = result.matching_acls.iter().map(|rule| {
            assert_eq!((rule.error_code, &rule.error_message), (0, &None));
            assert_eq!((rule.resource_type, rule.pattern_type), (2, 3));
            assert_eq!((&*rule.principal, &*rule.host), ("User:x", "*"));
            assert_eq!((rule.operation, rule.permission_type), (3, 3));
            &*rule.resource_name
        });
        rules.collect()
    }

    #[tokio::test]
    async fn each_filter_returns_what_it_finds_and_all_of_it_goes_at_once() {
        for version in 1..=3 {
            let fixture = fixture();
            create(&fixture, ["a", "b", "c", "*"].into_iter().map(str::to_owned)).await;
            let filters = vec![
                named("b"),
                named("b").with_pattern_type_filter(2),
                named("nothing"),
                named("a").with_operation(99),
                named("b"),
            ];
            let results = fixture.ask(version, request(filters)).await.filter_results;
            let invalid = ResponseError::InvalidRequest;
            assert_refused(
                results[3].error_code,
                &results[3].error_message,
                invalid,
                "Unknown entryFilter.",
            );
            let deleted: Vec<_> = [0, 1, 2, 4].iter().map(|nth| found(&results[*nth])).collect();
            assert_eq!(deleted, [vec!["b"], vec!["*", "b"], vec![], vec!["b"]]);
            let log = fixture.change_log().await;
            let removed: Vec<String> = log[1]
                .changes
                .iter()
                .map(|change| match change {
                    SecurityChange::AclRemoved(rule) => rule.name.clone(),
                    change => panic!("{change:?}"),
                })
                .collect();
            assert_eq!((log.len(), removed), (2, vec!["*".to_owned(), "b".to_owned()]));
            let repeated = fixture.ask(version, request(vec![named("b")])).await.filter_results;
            assert!(repeated[0].matching_acls.is_empty());
            assert_eq!(fixture.change_log().await.len(), 2);
        }
    }

    #[tokio::test]
    async fn who_may_not_delete_and_what_is_too_much_deletes_nothing() {
        let fixture = fixture();
        create(&fixture, (0..10_001).map(|nth| format!("t{nth}"))).await;
        let denied = fixture.ask_as("x", 3, request(vec![all(), all()])).await.filter_results;
        let count = || fixture.kafka.engine.security().state().acl_count();
        let error = ResponseError::ClusterAuthorizationFailed;
        for result in &denied {
            assert_refused(result.error_code, &result.error_message, error, "authorization");
        }
        let results = fixture.ask(3, request(vec![named("t1"), all()])).await.filter_results;
        let invalid = ResponseError::InvalidRequest;
        for result in &results {
            assert_refused(
                result.error_code,
                &result.error_message,
                invalid,
                "Cannot remove more than 10000 acls",
            );
        }
        assert_eq!((denied.len(), results.len(), count()), (2, 2, 10_001));
        // Filters that find the same rules again and again, and filters that look at all rules to
        // find none.
        let repeated = vec![named("t1"); 200_000];
        let idle = vec![all().with_operation(4); 1000];
        for filters in [repeated, idle] {
            let results = fixture.ask(3, request(filters)).await.filter_results;
            assert_refused(
                results[0].error_code,
                &results[0].error_message,
                invalid,
                "The filters find too much in all.",
            );
        }
        assert_eq!(count(), 10_001);
        let results = fixture.ask(3, request(vec![named("t1")])).await.filter_results;
        assert_eq!((found(&results[0]), count()), (vec!["t1"], 10_000));
        let rest = fixture.ask(3, request(vec![all()])).await.filter_results;
        assert_eq!((rest[0].matching_acls.len(), count()), (10_000, 0));
    }

    #[tokio::test]
    async fn without_an_authorizer_there_are_no_rules() {
        let fixture = fixture_with(options(false));
        let results = fixture.ask_as("x", 3, request(vec![all()])).await.filter_results;
        assert_refused(
            results[0].error_code,
            &results[0].error_message,
            ResponseError::SecurityDisabled,
            "No Authorizer is configured.",
        );
    }
}
