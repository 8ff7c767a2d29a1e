//! AlterUserScramCredentials (51): sets and removes passwords, all that are valid at once. Clients
//! send passwords salted and hashed. Delegation tokens end with the password of their owner or
//! requester; a tagged field, which other clients skip, says how many.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use engine::security::{
    EndedTokens, ITERATIONS_MAX, ITERATIONS_MIN, Operation, ScramCredential, ScramMechanism,
    SecurityChange, SecurityState,
};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_user_scram_credentials_request::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use kafka_protocol::messages::alter_user_scram_credentials_response::AlterUserScramCredentialsResult;
use kafka_protocol::messages::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse,
};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::cluster_security::{actor, check_change_count, check_cluster, check_name_length};
use super::support::{KafkaApiError, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// The tagged field with the number of delegation tokens that ended, as four bytes. It is there if
/// a credential was replaced or removed.
const ENDED_TOKENS_TAG: i32 = 10_000;
/// The longest salt. The server sends it to every client that begins to log in.
const SALT_BYTES_MAX: usize = 1024;

/// The result of each user's changes: made, or the reason why they were not.
type UserResults = BTreeMap<String, Result<(), KafkaApiError>>;

impl ApiHandler for AlterUserScramCredentialsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> AlterUserScramCredentialsResponse {
        let deleted = self.deletions.iter().map(|deletion| &deletion.name);
        let names = deleted.chain(self.upsertions.iter().map(|upsertion| &upsertion.name));
        let users: Vec<String> = names.map(StrBytes::to_string).collect();
        let altered = alter(kafka, context, users.len(), self).await;
        let (results, ended_by_user) = altered.unwrap_or_else(|error| {
            let refused = users.into_iter().map(|user| (user, Err(error.clone())));
            (refused.collect(), EndedTokens::new())
        });
        let results = results.into_iter().map(|(user, result)| {
            let (code, message) = error_fields(&result);
            let mut altered = AlterUserScramCredentialsResult::default()
                .with_error_code(code)
                .with_error_message(message);
            if let Some(ended_count) = ended_by_user.get(&user) {
                let count = Bytes::copy_from_slice(&(*ended_count as u32).to_be_bytes());
                altered.unknown_tagged_fields.insert(ENDED_TOKENS_TAG, count);
            }
            altered.with_user(StrBytes::from_string(user))
        });
        AlterUserScramCredentialsResponse::default().with_results(results.collect())
    }
}

async fn alter(
    kafka: &KafkaServer,
    context: &RequestContext,
    count: usize,
    request: AlterUserScramCredentialsRequest,
) -> Result<(UserResults, EndedTokens), KafkaApiError> {
    check_cluster(kafka, context, Operation::Alter)?;
    check_change_count(count)?;
    let security = kafka.engine.security();
    Ok(security.change_users(actor(context), |state| decide(state, request)).await?)
}

/// The changes, and what happens to each user. A user that is named twice does not change.
fn decide(
    state: &SecurityState,
    request: AlterUserScramCredentialsRequest,
) -> (Vec<SecurityChange>, UserResults) {
    let mut decided: BTreeMap<String, Result<SecurityChange, KafkaApiError>> = BTreeMap::new();
    let mut decide = |user: &StrBytes, change: Result<SecurityChange, KafkaApiError>| {
        let duplicate = || {
            let message = "A user credential cannot be altered twice in the same request";
            KafkaApiError::new(ResponseError::DuplicateResource, message)
        };
        let first = decided.get_mut(&**user);
        match first {
            None => drop(decided.insert(user.to_string(), change)),
            Some(first) if first.is_ok() => *first = Err(duplicate()),
            Some(_) => {}
        }
    };
    for deletion in &request.deletions {
        decide(&deletion.name, deletion_change(state, deletion));
    }
    for upsertion in &request.upsertions {
        decide(&upsertion.name, upsertion_change(upsertion));
    }
    let (mut changes, mut results) = (Vec::new(), UserResults::new());
    for (user, decided) in decided {
        results.insert(user, decided.map(|change| changes.push(change)));
    }
    (changes, results)
}

fn deletion_change(
    state: &SecurityState,
    deletion: &ScramCredentialDeletion,
) -> Result<SecurityChange, KafkaApiError> {
    let mechanism = check_user(&deletion.name, deletion.mechanism)?;
    if state.credential(&deletion.name, mechanism).is_none() {
        return Err(KafkaApiError::new(
            ResponseError::ResourceNotFound,
            "Attempt to delete a user credential that does not exist",
        ));
    }
    Ok(SecurityChange::CredentialRemoved { user: deletion.name.to_string(), mechanism })
}

fn upsertion_change(upsertion: &ScramCredentialUpsertion) -> Result<SecurityChange, KafkaApiError> {
    let mechanism = check_user(&upsertion.name, upsertion.mechanism)?;
    let iterations = match u32::try_from(upsertion.iterations) {
        Ok(iterations) if iterations > ITERATIONS_MAX => {
            return Err(unacceptable("Too many iterations"));
        }
        Ok(iterations) if iterations >= ITERATIONS_MIN => iterations,
        _ => return Err(unacceptable("Too few iterations")),
    };
    if upsertion.salt.is_empty() {
        return Err(unacceptable("Salt must not be empty"));
    }
    if upsertion.salt.len() > SALT_BYTES_MAX {
        return Err(unacceptable(format!("Salt is longer than {SALT_BYTES_MAX} bytes")));
    }
    if upsertion.salted_password.is_empty() {
        return Err(unacceptable("Salted password must not be empty"));
    }
    let salt = upsertion.salt.to_vec();
    let credential = ScramCredential::from_salted_password(
        mechanism,
        &upsertion.salted_password,
        salt,
        iterations,
    );
    Ok(SecurityChange::CredentialSet { user: upsertion.name.to_string(), mechanism, credential })
}

fn check_user(user: &str, mechanism: i8) -> Result<ScramMechanism, KafkaApiError> {
    if user.is_empty() {
        return Err(unacceptable("Username must not be empty"));
    }
    check_name_length("The username", user)?;
    ScramMechanism::of_code(mechanism).ok_or_else(|| {
        let error = ResponseError::UnsupportedSaslMechanism;
        KafkaApiError::new(error, "Unknown SCRAM mechanism")
    })
}

fn unacceptable(message: impl Into<String>) -> KafkaApiError {
    KafkaApiError::new(ResponseError::UnacceptableCredential, message)
}

#[cfg(test)]
pub(super) mod tests {
    use engine::security::SecurityOptions;

    use super::super::cluster_security::tests::{
        SecurityFixture, assert_refused, fixture, fixture_with, options, text,
    };
    use super::*;

    const SALT: &[u8] = b"a salt";

    /// Sets a user's password to `secret`.
    pub(in crate::apis) fn set(user: &str, mechanism: i8) -> ScramCredentialUpsertion {
        let known_mechanism = ScramMechanism::of_code(mechanism).unwrap_or(ScramMechanism::Sha256);
        ScramCredentialUpsertion::default()
            .with_name(text(user))
            .with_mechanism(mechanism)
            .with_iterations(4096)
            .with_salt(Bytes::from_static(SALT))
            .with_salted_password(
                known_mechanism.salted_password("secret", SALT, 4096).to_vec().into(),
            )
    }

    fn delete(user: &str, mechanism: i8) -> ScramCredentialDeletion {
        ScramCredentialDeletion::default().with_name(text(user)).with_mechanism(mechanism)
    }

    fn request(
        deletions: Vec<ScramCredentialDeletion>,
        upsertions: Vec<ScramCredentialUpsertion>,
    ) -> AlterUserScramCredentialsRequest {
        AlterUserScramCredentialsRequest::default()
            .with_deletions(deletions)
            .with_upsertions(upsertions)
    }

    async fn alter(
        fixture: &SecurityFixture,
        deletions: Vec<ScramCredentialDeletion>,
        upsertions: Vec<ScramCredentialUpsertion>,
    ) -> Vec<(String, i16)> {
        let results = fixture.ask(0, request(deletions, upsertions)).await.results;
        results.iter().map(|result| (result.user.to_string(), result.error_code)).collect()
    }

    fn results(expected: &[(&str, Option<ResponseError>)]) -> Vec<(String, i16)> {
        let code = |error: Option<ResponseError>| error.map_or(0, |error| error.code());
        expected.iter().map(|(user, error)| ((*user).to_owned(), code(*error))).collect()
    }

    #[tokio::test]
    async fn passwords_are_set_replaced_and_removed_in_one_entry_a_request() {
        let fixture = fixture();
        let upsertions = vec![set("b", 1), set("a", 2)];
        assert_eq!(alter(&fixture, vec![], upsertions).await, results(&[("a", None), ("b", None)]));
        let users: Vec<String> = fixture
            .only_entry()
            .await
            .into_iter()
            .map(|change| match change {
                SecurityChange::CredentialSet { user, .. } => user,
                change => panic!("{change:?}"),
            })
            .collect();
        assert_eq!(users, ["a", "b"]);
        let is_password = |user: &str, mechanism, password: &str| {
            let state = fixture.kafka.engine.security().state();
            let credential = state.credential(user, mechanism).unwrap();
            credential.is_password(mechanism, password)
        };
        assert!(is_password("a", ScramMechanism::Sha512, "secret"));
        assert!(!is_password("b", ScramMechanism::Sha256, "Secret"));
        let new_password = ScramMechanism::Sha512.salted_password("other", SALT, 4096);
        let upsertion = set("a", 2).with_salted_password(new_password.to_vec().into());
        let altered = alter(&fixture, vec![delete("b", 1)], vec![upsertion]).await;
        assert_eq!(altered, results(&[("a", None), ("b", None)]));
        assert!(is_password("a", ScramMechanism::Sha512, "other"));
        let users = fixture.kafka.engine.security().state().users().clone();
        assert_eq!(users.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(fixture.change_log().await.len(), 2);
    }

    #[tokio::test]
    async fn a_user_that_is_named_twice_or_not_there_does_not_change() {
        let fixture = fixture();
        alter(&fixture, vec![], vec![set("a", 1), set("b", 1)]).await;
        let (duplicate, missing) =
            (ResponseError::DuplicateResource, ResponseError::ResourceNotFound);
        let altered = alter(
            &fixture,
            vec![delete("a", 1), delete("b", 2), delete("b", 1), delete("d", 1)],
            vec![set("a", 2), set("c", 1), set("c", 2), set("c", 1), set("e", 1)],
        );
        let expected = [
            ("a", Some(duplicate)),
            ("b", Some(missing)),
            ("c", Some(duplicate)),
            ("d", Some(missing)),
            ("e", None),
        ];
        assert_eq!(altered.await, results(&expected));
        let state = fixture.kafka.engine.security().state();
        let counts: Vec<_> =
            state.users().iter().map(|(user, credentials)| (&**user, credentials.len())).collect();
        assert_eq!(counts, [("a", 1), ("b", 1), ("e", 1)]);
    }

    #[tokio::test]
    async fn what_is_no_credential_is_refused_in_words() {
        let fixture = fixture();
        let unacceptable = ResponseError::UnacceptableCredential;
        let long_salt: Bytes = vec![7; SALT_BYTES_MAX + 1].into();
        for (upsertion, error, words) in [
            (set("", 1), unacceptable, "Username must not be empty"),
            (set("a", 0), ResponseError::UnsupportedSaslMechanism, "Unknown SCRAM mechanism"),
            (set("a", 3), ResponseError::UnsupportedSaslMechanism, "Unknown SCRAM mechanism"),
            (set("a", 1).with_iterations(4095), unacceptable, "Too few iterations"),
            (set("a", 1).with_iterations(-1), unacceptable, "Too few iterations"),
            (set("a", 1).with_iterations(16385), unacceptable, "Too many iterations"),
            (set("a", 1).with_salt(Bytes::new()), unacceptable, "Salt must not be empty"),
            (set("a", 1).with_salt(long_salt), unacceptable, "Salt is longer than 1024 bytes"),
            (set("a", 1).with_salted_password(Bytes::new()), unacceptable, "Salted password"),
            (set(&"a".repeat(40_000), 1), ResponseError::InvalidRequest, "longer than 32767"),
        ] {
            let result = fixture.ask(0, request(vec![], vec![upsertion])).await.results.remove(0);
            assert_refused(result.error_code, &result.error_message, error, words);
        }
        let result = fixture.ask(0, request(vec![delete("a", 9)], vec![])).await.results.remove(0);
        let error = ResponseError::UnsupportedSaslMechanism;
        assert_refused(result.error_code, &result.error_message, error, "Unknown SCRAM");
        assert!(fixture.change_log().await.is_empty());
        let max_iterations = set("a", 1).with_iterations(16384);
        assert_eq!(alter(&fixture, vec![], vec![max_iterations]).await, results(&[("a", None)]));
    }

    #[tokio::test]
    async fn who_may_not_alter_the_cluster_and_what_is_too_much_changes_nothing() {
        let upsertions = |count: usize| -> Vec<_> {
            let password = set("", 1);
            (0..count).map(|nth| password.clone().with_name(text(&format!("u{nth}")))).collect()
        };
        let small = SecurityOptions { bytes_max: 1000, ..options(true) };
        let policy = ResponseError::PolicyViolation;
        for (options, user, count, error, words) in [
            (options(true), "x", 2, ResponseError::ClusterAuthorizationFailed, "authorization"),
            (options(true), "admin", 10_001, policy, "excessively large batch"),
            (small, "admin", 10, policy, "limits.security-bytes-max"),
        ] {
            let fixture = fixture_with(options);
            let results = fixture.ask_as(user, 0, request(vec![], upsertions(count))).await.results;
            assert_eq!(results.len(), count);
            assert!(results.is_sorted_by(|a, b| a.user < b.user));
            for result in &results {
                assert_refused(result.error_code, &result.error_message, error, words);
            }
            assert!(fixture.kafka.engine.security().state().users().is_empty());
        }
        // Users have passwords without rules too.
        let fixture = fixture_with(options(false));
        let results = fixture.ask_as("x", 0, request(vec![], upsertions(10_000))).await.results;
        assert!(results.iter().all(|result| result.error_code == 0));
    }
}
