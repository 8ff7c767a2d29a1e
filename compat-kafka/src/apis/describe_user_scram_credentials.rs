//! DescribeUserScramCredentials (50): which users have a password, by which mechanisms.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::security::{Operation, SecurityState};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_user_scram_credentials_request::UserName;
use kafka_protocol::messages::describe_user_scram_credentials_response::{
    CredentialInfo, DescribeUserScramCredentialsResult,
};
use kafka_protocol::messages::{
    DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse,
};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::cluster_security::{check_cluster, shown};
use super::support::{KafkaApiError, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for DescribeUserScramCredentialsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DescribeUserScramCredentialsResponse {
        let authorized = check_cluster(kafka, context, Operation::Describe);
        let (code, message) = error_fields(&authorized);
        let response = DescribeUserScramCredentialsResponse::default()
            .with_error_code(code)
            .with_error_message(message);
        if authorized.is_err() {
            return response;
        }
        let state = kafka.engine.security().state();
        let results = match self.users {
            Some(users) if !users.is_empty() => describe_named(&state, &users),
            _ => {
                let users = state.users().keys();
                users.map(|user| result(user, credentials(&state, user))).collect()
            }
        };
        response.with_results(results)
    }
}

fn describe_named(
    state: &SecurityState,
    names: &[UserName],
) -> Vec<DescribeUserScramCredentialsResult> {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    names.iter().for_each(|user| *times.entry(&user.name).or_default() += 1);
    let described = times.into_iter().map(|(user, times)| {
        let described = if times == 1 { credentials(state, user) } else { Err(named_twice(user)) };
        result(user, described)
    });
    described.collect()
}

fn credentials(state: &SecurityState, user: &str) -> Result<Vec<CredentialInfo>, KafkaApiError> {
    let credentials = state.users().get(user).ok_or_else(|| {
        KafkaApiError::new(
            ResponseError::ResourceNotFound,
            format!("Attempt to describe a user credential that does not exist: {}", shown(user)),
        )
    })?;
    let info = credentials.iter().map(|(mechanism, credential)| {
        CredentialInfo::default()
            .with_mechanism(mechanism.code())
            .with_iterations(i32::try_from(credential.iterations).unwrap_or(i32::MAX))
    });
    Ok(info.collect())
}

fn named_twice(user: &str) -> KafkaApiError {
    KafkaApiError::new(
        ResponseError::DuplicateResource,
        format!(
            "Cannot describe SCRAM credentials for the same user twice in a single request: {}",
            shown(user)
        ),
    )
}

fn result(
    user: &str,
    described: Result<Vec<CredentialInfo>, KafkaApiError>,
) -> DescribeUserScramCredentialsResult {
    let (infos, (code, message)) = match described {
        Ok(infos) => (infos, (0, None)),
        Err(error) => (Vec::new(), error_fields(&Err(error))),
    };
    DescribeUserScramCredentialsResult::default()
        .with_user(StrBytes::from_string(user.to_owned()))
        .with_error_code(code)
        .with_error_message(message)
        .with_credential_infos(infos)
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::AlterUserScramCredentialsRequest;

    use super::super::alter_user_scram_credentials::tests::set;
    use super::super::cluster_security::tests::{assert_refused, fixture, text};
    use super::*;

    fn named(users: &[&str]) -> DescribeUserScramCredentialsRequest {
        let user = |name: &&str| UserName::default().with_name(text(name));
        DescribeUserScramCredentialsRequest::default()
            .with_users(Some(users.iter().map(user).collect()))
    }

    fn listed(response: &DescribeUserScramCredentialsResponse) -> Vec<(&str, Vec<(i8, i32)>)> {
        let results = response.results.iter().map(|result| {
            assert_eq!((result.error_code, &result.error_message), (0, &None));
            let infos = result.credential_infos.iter();
            (&*result.user, infos.map(|info| (info.mechanism, info.iterations)).collect())
        });
        results.collect()
    }

    #[tokio::test]
    async fn users_are_described_by_name_or_all() {
        let fixture = fixture();
        let request = DescribeUserScramCredentialsRequest::default().with_users(None);
        assert!(listed(&fixture.ask(0, request.clone()).await).is_empty());
        for upsertion in [set("b", 1), set("a", 2).with_iterations(5000), set("b", 2)] {
            let request =
                AlterUserScramCredentialsRequest::default().with_upsertions(vec![upsertion]);
            assert_eq!(fixture.ask(0, request).await.results[0].error_code, 0);
        }
        let expected = [("a", vec![(2, 5000)]), ("b", vec![(1, 4096), (2, 4096)])];
        assert_eq!(listed(&fixture.ask(0, request).await), expected);
        assert_eq!(listed(&fixture.ask(0, named(&[])).await), expected);
        assert_eq!(listed(&fixture.ask(0, named(&["b"])).await), expected[1..]);
        let mixed = fixture.ask(0, named(&["x", "b", "a", "b"])).await;
        let results: Vec<_> = mixed.results.iter().map(|result| (&*result.user, result)).collect();
        assert_eq!(results.iter().map(|(user, _)| *user).collect::<Vec<_>>(), ["a", "b", "x"]);
        assert_eq!(results[0].1.credential_infos.len(), 1);
        for (nth, error, words) in [
            (1, ResponseError::DuplicateResource, "twice in a single request: b"),
            (2, ResponseError::ResourceNotFound, "does not exist: x"),
        ] {
            let result = results[nth].1;
            assert_refused(result.error_code, &result.error_message, error, words);
            assert!(result.credential_infos.is_empty());
        }
    }

    #[tokio::test]
    async fn who_may_not_describe_the_cluster_is_refused() {
        let denied = fixture().ask_as("x", 0, named(&["a"])).await;
        let error = ResponseError::ClusterAuthorizationFailed;
        assert_refused(denied.error_code, &denied.error_message, error, "authorization failed");
        assert!(denied.results.is_empty());
    }
}
