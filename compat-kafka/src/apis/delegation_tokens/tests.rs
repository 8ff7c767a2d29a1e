use std::sync::Arc;

use engine::security::{
    AclRule, Actor, DelegationToken, Operation, PatternType, Permission, Principal, ResourceType,
    ScramMechanism, SecurityChange, SecurityOptions, TokenKey,
};
use kafka_connections::KafkaListener;
use kafka_protocol::messages::create_delegation_token_request::CreatableRenewers;
use kafka_protocol::messages::describe_delegation_token_request::DescribeDelegationTokenOwner;
use kafka_protocol::messages::*;
use kafka_sasl::SaslOptions;

use super::super::alter_user_scram_credentials::tests::set;
use super::super::cluster_security::tests::{SecurityFixture, fixture_with, options, text};
use super::*;
use crate::request::{ApiHandler, ConnectionState};

fn fixture() -> SecurityFixture {
    fixture_with(SecurityOptions { token_key: Some(TokenKey::new("key")), ..options(true) })
}

/// Over a connection with authentication.
async fn ask<R: ApiHandler>(fixture: &SecurityFixture, user: &str, request: R) -> R::Response {
    let listener = KafkaListener { sasl: Some(SaslOptions::default()), ..KafkaListener::plain() };
    let connection = ConnectionState::for_test_on(Arc::new(listener), Principal::user(user));
    fixture.ask_over(connection, R::SERVED_VERSIONS.max, request).await
}

fn create(renewer: &str) -> CreateDelegationTokenRequest {
    let renewer = CreatableRenewers::default()
        .with_principal_type(text("User"))
        .with_principal_name(text(renewer));
    CreateDelegationTokenRequest::default()
        .with_owner_principal_type(None)
        .with_owner_principal_name(None)
        .with_renewers(vec![renewer])
        .with_max_lifetime_ms(-1)
}

fn create_for(owner: &str) -> CreateDelegationTokenRequest {
    create("r")
        .with_owner_principal_type(Some(text("User")))
        .with_owner_principal_name(Some(text(owner)))
}

fn renew(hmac: &bytes::Bytes, period: i64) -> RenewDelegationTokenRequest {
    RenewDelegationTokenRequest::default().with_hmac(hmac.clone()).with_renew_period_ms(period)
}

fn expire(hmac: &bytes::Bytes, period: i64) -> ExpireDelegationTokenRequest {
    ExpireDelegationTokenRequest::default()
        .with_hmac(hmac.clone())
        .with_expiry_time_period_ms(period)
}

/// The ids that somebody sees.
async fn seen(fixture: &SecurityFixture, user: &str, owner: Option<&str>) -> Vec<String> {
    let name = |owner: &str| {
        DescribeDelegationTokenOwner::default()
            .with_principal_type(text("User"))
            .with_principal_name(text(owner))
    };
    let owners = owner.map(|owner| vec![name(owner)]);
    let request = DescribeDelegationTokenRequest::default().with_owners(owners);
    let answer = ask(fixture, user, request).await;
    assert_eq!(answer.error_code, 0);
    answer.tokens.iter().map(|token| token.token_id.to_string()).collect()
}

async fn allow(fixture: &SecurityFixture, user: &str, operation: Operation, owner: &str) {
    let rule = AclRule {
        resource_type: ResourceType::User,
        pattern: PatternType::Literal,
        name: format!("User:{owner}"),
        principal: format!("User:{user}"),
        host: "*".to_owned(),
        operation,
        permission: Permission::Allow,
    };
    let actor = Actor { principal: "User:admin".to_owned(), from: "a test".to_owned() };
    let changes = vec![SecurityChange::AclAdded(rule)];
    fixture.kafka.engine.security().change(actor, |_| (changes, ())).await.unwrap();
}

const DAY_MS: i64 = 24 * 3600 * 1000;

#[tokio::test]
async fn a_token_is_made_seen_renewed_and_ended_by_those_whose_it_is() {
    let fixture = fixture();
    let made = ask(&fixture, "a", create("r")).await;
    assert_eq!((made.error_code, &*made.principal_name, made.hmac.len()), (0, "a", 64));
    assert_eq!(&*made.token_requester_principal_name, "a");
    assert_eq!(made.expiry_timestamp_ms - made.issue_timestamp_ms, DAY_MS);
    assert_eq!(made.max_timestamp_ms - made.issue_timestamp_ms, 7 * DAY_MS);
    let id = made.token_id.to_string();
    for (user, owner, is_seen) in [
        ("a", None, true),
        ("r", None, true),
        ("a", Some("a"), true),
        ("r", Some("r"), true),
        ("a", Some("b"), false),
        ("b", None, false),
        ("b", Some("a"), false),
        ("admin", None, true),
    ] {
        let expected = if is_seen { vec![id.clone()] } else { Vec::new() };
        assert_eq!(seen(&fixture, user, owner).await, expected, "{user} {owner:?}");
    }
    let expiry = |period| made.issue_timestamp_ms + period;
    for (user, period, expected) in [
        ("r", 5000, Ok(5000)),
        ("a", -1, Ok(DAY_MS)),
        ("a", 100 * DAY_MS, Ok(DAY_MS)),
        ("b", 5000, Err(ResponseError::DelegationTokenOwnerMismatch)),
    ] {
        let renewed = ask(&fixture, user, renew(&made.hmac, period)).await;
        let code = expected.err().map_or(0, |error| error.code());
        assert_eq!(renewed.error_code, code, "{user} {period}");
        assert_eq!(renewed.expiry_timestamp_ms, expected.map_or(NO_TIME, expiry));
    }
    let unknown = ask(&fixture, "a", renew(&vec![1; 64].into(), 1)).await;
    assert_eq!(unknown.error_code, ResponseError::DelegationTokenNotFound.code());
    // At a time, then over, then forgotten.
    let later = ask(&fixture, "a", expire(&made.hmac, 2000)).await;
    assert_eq!((later.error_code, later.expiry_timestamp_ms), (0, expiry(2000)));
    fixture.clock.advance(std::time::Duration::from_secs(3));
    assert!(seen(&fixture, "a", None).await.is_empty());
    let expired = ask(&fixture, "a", renew(&made.hmac, 1)).await;
    assert_eq!(expired.error_code, ResponseError::DelegationTokenExpired.code());
    assert_eq!(ask(&fixture, "a", expire(&made.hmac, -1)).await.error_code, 0);
    let expired = ask(&fixture, "a", expire(&made.hmac, -1)).await;
    assert_eq!(expired.error_code, ResponseError::DelegationTokenNotFound.code());
    assert!(fixture.kafka.engine.security().state().tokens().is_empty());
}

#[tokio::test]
async fn expired_tokens_are_forgotten_when_another_one_is_made() {
    let fixture = fixture();
    let short_lived = create("r").with_max_lifetime_ms(1000);
    for _ in 0..3 {
        let created = ask(&fixture, "a", short_lived.clone()).await;
        assert_eq!(created.max_timestamp_ms - created.issue_timestamp_ms, 1000);
        assert_eq!(created.expiry_timestamp_ms, created.max_timestamp_ms);
    }
    fixture.clock.advance(std::time::Duration::from_secs(2));
    assert_eq!(fixture.kafka.engine.security().state().tokens().len(), 3);
    ask(&fixture, "a", create("r")).await;
    assert_eq!(fixture.kafka.engine.security().state().tokens().len(), 1);
}

#[tokio::test]
async fn a_token_for_somebody_else_takes_a_right() {
    let fixture = fixture();
    let refused = ask(&fixture, "a", create_for("b")).await;
    let denied = ResponseError::DelegationTokenAuthorizationFailed.code();
    assert_eq!((refused.error_code, &*refused.principal_name), (denied, "b"));
    allow(&fixture, "a", Operation::CreateTokens, "b").await;
    let created = ask(&fixture, "a", create_for("b")).await;
    assert_eq!((created.error_code, &*created.principal_name), (0, "b"));
    assert_eq!(&*created.token_requester_principal_name, "a");
    // The requester of the token sees it, and has no say in how long it lives.
    assert_eq!(seen(&fixture, "a", None).await.len(), 1);
    let mismatch = ResponseError::DelegationTokenOwnerMismatch.code();
    assert_eq!(ask(&fixture, "a", renew(&created.hmac, 1000)).await.error_code, mismatch);
    assert_eq!(ask(&fixture, "b", renew(&created.hmac, 1000)).await.error_code, 0);
    assert_eq!(seen(&fixture, "b", None).await.len(), 1);
    assert!(seen(&fixture, "c", None).await.is_empty());
    allow(&fixture, "c", Operation::DescribeTokens, "b").await;
    assert_eq!(seen(&fixture, "c", None).await.len(), 1);
}

#[tokio::test]
async fn who_has_not_said_who_it_is_and_a_server_without_a_key_have_no_tokens() {
    let (fixture, keyless) = (fixture(), fixture_with(options(true)));
    let plain = ResponseError::DelegationTokenRequestNotAllowed.code();
    assert_eq!(fixture.ask_as("a", 3, create("r")).await.error_code, plain);
    assert_eq!(fixture.ask_as("a", 2, renew(&vec![1].into(), 1)).await.error_code, plain);
    assert_eq!(fixture.ask_as("a", 2, expire(&vec![1].into(), 1)).await.error_code, plain);
    let describe = DescribeDelegationTokenRequest::default().with_owners(None);
    assert_eq!(fixture.ask_as("a", 3, describe).await.error_code, plain);
    let disabled = ResponseError::DelegationTokenAuthDisabled.code();
    assert_eq!(ask(&keyless, "a", create("r")).await.error_code, disabled);
    let group = CreatableRenewers::default().with_principal_type(text("Group"));
    let wrong = create("r").with_renewers(vec![group.with_principal_name(text("g"))]);
    let code = ResponseError::InvalidPrincipalType.code();
    assert_eq!(ask(&fixture, "a", wrong).await.error_code, code);
}

/// Every authenticated user may create tokens.
#[tokio::test]
async fn tokens_of_one_are_few_and_small() {
    let fixture = fixture();
    let renewer = |name: &str| {
        CreatableRenewers::default()
            .with_principal_type(text("User"))
            .with_principal_name(text(name))
    };
    for (renewers, error) in [
        (vec![renewer("r"); 20], None),
        (vec![renewer("r"); 21], Some(ResponseError::PolicyViolation)),
        (vec![renewer(&"r".repeat(257))], Some(ResponseError::InvalidPrincipalType)),
    ] {
        let created = ask(&fixture, "a", create("r").with_renewers(renewers)).await;
        assert_eq!(created.error_code, error.map_or(0, |error: ResponseError| error.code()));
    }
    let short_lived = create("r").with_max_lifetime_ms(1000);
    for _ in 0..999 {
        assert_eq!(ask(&fixture, "a", short_lived.clone()).await.error_code, 0);
    }
    let too_many = ResponseError::PolicyViolation.code();
    assert_eq!(ask(&fixture, "a", create("r")).await.error_code, too_many);
    assert_eq!(ask(&fixture, "b", create("r")).await.error_code, 0);
    // Expired tokens do not count.
    fixture.clock.advance(std::time::Duration::from_secs(2));
    assert_eq!(ask(&fixture, "a", create("r")).await.error_code, 0);
}

#[tokio::test]
async fn nobody_gets_tokens_of_others_because_there_is_no_rule() {
    let mut options = options(true);
    options.authorizer.allow_everyone_if_no_acl_found = true;
    let fixture =
        fixture_with(SecurityOptions { token_key: Some(TokenKey::new("key")), ..options });
    let refused = ask(&fixture, "a", create_for("admin")).await.error_code;
    assert_eq!(refused, ResponseError::DelegationTokenAuthorizationFailed.code());
    assert_eq!(ask(&fixture, "admin", create("r")).await.error_code, 0);
    assert!(seen(&fixture, "a", None).await.is_empty());
}

/// Sets the password of a user to `secret`; returns the number of tokens that this ended, by the
/// answer.
async fn set_password(fixture: &SecurityFixture, user: &str) -> Option<u32> {
    let upsertions = vec![set(user, ScramMechanism::Sha256.code())];
    let request = AlterUserScramCredentialsRequest::default().with_upsertions(upsertions);
    let answer = fixture.ask(0, request).await.results.remove(0);
    assert_eq!((answer.error_code, &*answer.user), (0, user));
    let count = answer.unknown_tagged_fields.get(&10_000)?;
    Some(u32::from_be_bytes(*count.first_chunk().unwrap()))
}

#[tokio::test]
async fn tokens_end_with_the_password_of_owner_or_requester() {
    let fixture = fixture();
    assert_eq!(set_password(&fixture, "a").await, None, "there was none before");
    allow(&fixture, "a", Operation::CreateTokens, "b").await;
    for (user, request) in [
        ("a", create("r")),
        ("a", create_for("b")),
        ("b", create("a")),
        ("a", create("r").with_max_lifetime_ms(1000)),
    ] {
        assert_eq!(ask(&fixture, user, request).await.error_code, 0);
    }
    fixture.clock.advance(std::time::Duration::from_secs(2));
    assert_eq!(set_password(&fixture, "c").await, None);
    let tokens = |fixture: &SecurityFixture| {
        let state = fixture.kafka.engine.security().state();
        state.tokens().values().map(|token| token.owner.clone()).collect::<Vec<_>>()
    };
    assert_eq!(tokens(&fixture).len(), 4);
    assert_eq!(set_password(&fixture, "a").await, Some(2), "one had expired");
    assert_eq!(tokens(&fixture), ["User:b"], "whoever may only renew it has not lost it");
    assert_eq!(set_password(&fixture, "a").await, Some(0));
}

#[tokio::test]
async fn no_token_is_had_by_a_password_that_was_replaced() {
    let fixture = fixture();
    let security = fixture.kafka.engine.security();
    set_password(&fixture, "a").await;
    let address = [127, 0, 0, 1].into();
    let login = security.check_password("a", "secret", address).await.unwrap();
    assert!(security.state().is_current(&login));
    let removal = SecurityChange::CredentialRemoved {
        user: "a".to_owned(),
        mechanism: ScramMechanism::Sha256,
    };
    let actor = Actor { principal: "User:admin".to_owned(), from: "a test".to_owned() };
    security.change_users(actor.clone(), |_| (vec![removal], ())).await.unwrap();
    assert!(!security.state().is_current(&login));
    // As a request that was let through before the removal.
    let token = DelegationToken {
        owner: "User:a".to_owned(),
        requester: "User:a".to_owned(),
        renewers: Vec::new(),
        issued_ms: 0,
        expires_ms: u64::MAX,
        max_ms: u64::MAX,
    };
    let created = security.create_token(actor, token, Some(login)).await.unwrap();
    assert_eq!(created, Err(TokenRefusal::StaleLogin));
}
