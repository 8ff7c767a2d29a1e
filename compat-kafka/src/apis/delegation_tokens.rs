//! Shared code of the APIs of delegation tokens.

use engine::security::{ANONYMOUS, TokenRefusal, USER_TYPE};
use kafka_errors::security_error;
use kafka_protocol::ResponseError;
use kafka_protocol::protocol::StrBytes;

use crate::kafka_server::KafkaServer;
use crate::request::RequestContext;

/// The longest name of a renewer or an owner, in bytes: any authenticated client may make tokens,
/// and each is in memory.
const NAME_BYTES_MAX: usize = 256;
/// In place of a time, where there is an error.
pub(super) const NO_TIME: i64 = -1;

/// Checks that a client may ask for tokens: it is authenticated, not by a token, and not by a
/// password that has been replaced or removed since.
///
/// # Errors
/// It may not, or there are no tokens.
pub(super) fn check_tokens(
    kafka: &KafkaServer,
    context: &RequestContext,
) -> Result<(), ResponseError> {
    let connection = &context.connection;
    let listener = &connection.listener;
    let is_anonymous = connection.requester().principal.name() == ANONYMOUS;
    let is_known = listener.sasl.is_some() || (listener.tls.is_some() && !is_anonymous);
    if !is_known || connection.authentication.has_token() {
        return Err(ResponseError::DelegationTokenRequestNotAllowed);
    }
    let security = kafka.engine.security();
    let login = connection.authentication.login();
    if login.is_some_and(|login| !security.state().is_current(&login)) {
        return Err(ResponseError::DelegationTokenRequestNotAllowed);
    }
    match security.token_key() {
        Some(_) => Ok(()),
        None => Err(ResponseError::DelegationTokenAuthDisabled),
    }
}

pub(super) fn refusal(refusal: TokenRefusal) -> ResponseError {
    match refusal {
        TokenRefusal::Unknown => ResponseError::DelegationTokenNotFound,
        TokenRefusal::Expired => ResponseError::DelegationTokenExpired,
        TokenRefusal::NotTheirs => ResponseError::DelegationTokenOwnerMismatch,
        TokenRefusal::TooMany => ResponseError::PolicyViolation,
        TokenRefusal::StaleLogin => ResponseError::DelegationTokenRequestNotAllowed,
    }
}

pub(super) fn failure(error: &engine::security::SecurityError) -> ResponseError {
    tracing::warn!(%error, "delegation tokens are not changed");
    security_error(error)
}

/// A principal as requests name it.
///
/// # Errors
/// It is no user, or its name is longer than names are.
pub(super) fn user(kind: &str, name: &str) -> Result<String, ResponseError> {
    if kind == USER_TYPE && name.len() <= NAME_BYTES_MAX {
        Ok(format!("{USER_TYPE}:{name}"))
    } else {
        Err(ResponseError::InvalidPrincipalType)
    }
}

/// The type and the name of a principal.
pub(super) fn parts(principal: &str) -> (StrBytes, StrBytes) {
    let (kind, name) = principal.split_once(':').unwrap_or((USER_TYPE, principal));
    (StrBytes::from_string(kind.to_owned()), StrBytes::from_string(name.to_owned()))
}

/// A time as responses have it.
pub(super) fn timestamp(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// The end of a period that a client asks for, and that is cut to `max`.
pub(super) fn until(kafka: &KafkaServer, asked_ms: i64, max: std::time::Duration) -> u64 {
    let max_ms = u64::try_from(max.as_millis()).unwrap_or(u64::MAX);
    let length = match u64::try_from(asked_ms) {
        Ok(0) | Err(_) => max_ms,
        Ok(requested_ms) => requested_ms.min(max_ms),
    };
    kafka.engine.wall_now().0.saturating_add(length)
}

#[cfg(test)]
pub(super) mod tests;
