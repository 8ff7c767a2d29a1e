//! Checks tokens.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use parking_lot::RwLock;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::error::TokenError;
use crate::fetch::fetch;
use crate::key_set::{KeySource, SigningKey, parse_keys};

/// The accepted algorithms. All are asymmetric: with a shared key, every validator could sign.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];
/// A token with an unknown key makes the keys be read again, but no more often than this.
const UNKNOWN_KEY_REFRESH_MIN: Duration = Duration::from_secs(10);

/// The latest time at which a token expires, since 1970: the end of the year 9999.
const EXPIRY_MAX: Duration = Duration::from_secs(253_402_300_799);

/// The conditions of accepting a token. Names in parentheses are Kafka's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenOptions {
    /// The keys (`sasl.oauthbearer.jwks.endpoint.url`).
    pub keys: KeySource,
    /// The authorities for a server of keys; `None` for those of the system.
    pub trust: Option<PathBuf>,
    /// The interval of reading the keys again (`sasl.oauthbearer.jwks.endpoint.refresh.ms`).
    pub refresh: Duration,
    /// The first pause after the keys could not be read
    /// (`sasl.oauthbearer.jwks.endpoint.retry.backoff.ms`), and the longest (`….max.ms`).
    pub retry: (Duration, Duration),
    /// The accepted audiences; none for any (`sasl.oauthbearer.expected.audience`).
    pub audiences: BTreeSet<String>,
    /// The accepted issuer (`sasl.oauthbearer.expected.issuer`).
    pub issuer: Option<String>,
    /// The greatest difference between clocks (`sasl.oauthbearer.clock.skew.seconds`).
    pub clock_skew: Duration,
    /// The claim with the name of the user (`sasl.oauthbearer.sub.claim.name`).
    pub subject_claim: String,
}

/// The claims of an accepted token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BearerToken {
    /// The user that bears it.
    pub subject: String,
    pub expires: SystemTime,
}

/// The keys, and when they were read or that was tried last.
#[derive(Default)]
struct KeyState {
    keys: Arc<Vec<SigningKey>>,
    tried: Option<Instant>,
}

/// Checks tokens by keys that it keeps.
pub struct TokenValidator {
    options: TokenOptions,
    state: RwLock<KeyState>,
    /// Held while the keys are read.
    refreshing: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for TokenValidator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenValidator").field("options", &self.options).finish_non_exhaustive()
    }
}

impl TokenValidator {
    /// It has no keys before [`TokenValidator::refresh`].
    pub fn new(options: TokenOptions) -> TokenValidator {
        let (state, refreshing) = Default::default();
        TokenValidator { options, state, refreshing }
    }

    /// Reads the keys.
    ///
    /// # Errors
    /// In words. The keys that were read before stay.
    pub async fn refresh(&self) -> Result<(), String> {
        let _held = self.refreshing.lock().await;
        self.read_keys().await
    }

    async fn read_keys(&self) -> Result<(), String> {
        let document = fetch(&self.options.keys, self.options.trust.as_deref()).await;
        let keys = document.and_then(|document| parse_keys(&document));
        let mut state = self.state.write();
        state.tried = Some(Instant::now());
        state.keys = Arc::new(keys?);
        Ok(())
    }

    /// Reads the keys again and again.
    pub async fn run(self: Arc<TokenValidator>) {
        let (retry_min, retry_max) = self.options.retry;
        let mut retry = retry_min;
        loop {
            let pause = match self.refresh().await {
                Ok(()) => {
                    retry = retry_min;
                    self.options.refresh
                }
                Err(why) => {
                    tracing::warn!(why, "the keys that sign tokens cannot be read");
                    retry = (retry * 2).clamp(retry_min, retry_max);
                    retry
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Checks a token.
    ///
    /// # Errors
    /// It is not accepted.
    pub async fn validate(&self, token: &str) -> Result<BearerToken, TokenError> {
        let keys = Arc::clone(&self.state.read().keys);
        match self.check(token, &keys) {
            Err(TokenError::UnknownKey | TokenError::NoKeys) => {
                self.refresh_for_unknown_key().await;
                let keys = Arc::clone(&self.state.read().keys);
                self.check(token, &keys)
            }
            checked => checked,
        }
    }

    /// Reads the keys again, unless that was just tried.
    async fn refresh_for_unknown_key(&self) {
        let _held = self.refreshing.lock().await;
        let tried = self.state.read().tried;
        if tried.is_some_and(|tried| tried.elapsed() < UNKNOWN_KEY_REFRESH_MIN) {
            return;
        }
        if let Err(why) = self.read_keys().await {
            tracing::debug!(why, "the keys that sign tokens cannot be read");
        }
    }

    fn check(&self, token: &str, keys: &[SigningKey]) -> Result<BearerToken, TokenError> {
        let header = decode_header(token).map_err(|error| match error.kind() {
            ErrorKind::InvalidAlgorithmName | ErrorKind::UnsupportedAlgorithm => {
                TokenError::Algorithm
            }
            _ => TokenError::Malformed,
        })?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(TokenError::Algorithm);
        }
        if keys.is_empty() {
            return Err(TokenError::NoKeys);
        }
        let validation = self.validation(header.alg);
        let mut checked = Err(TokenError::UnknownKey);
        for key in keys.iter().filter(|key| key.fits(header.kid.as_deref(), header.alg)) {
            match decode::<Map<String, Value>>(token, &key.key, &validation) {
                Ok(data) => return self.read_claims(&data.claims),
                // Another key may have signed it.
                Err(error) if matches!(error.kind(), ErrorKind::InvalidSignature) => {
                    checked = Err(TokenError::Signature);
                }
                Err(error) => return Err(refusal(&error)),
            }
        }
        checked
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.leeway = self.options.clock_skew.as_secs();
        validation.validate_nbf = true;
        let mut required = vec!["exp"];
        if self.options.audiences.is_empty() {
            validation.validate_aud = false;
        } else {
            let audiences: Vec<&String> = self.options.audiences.iter().collect();
            validation.set_audience(&audiences);
            required.push("aud");
        }
        if let Some(issuer) = &self.options.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        validation.set_required_spec_claims(&required);
        validation
    }

    fn read_claims(&self, claims: &Map<String, Value>) -> Result<BearerToken, TokenError> {
        let missing = |name: &str| TokenError::MissingClaim(name.to_owned());
        let name = &self.options.subject_claim;
        // As it is: two names that differ in spaces are two users.
        let subject = claims.get(name).and_then(Value::as_str);
        let subject = subject.filter(|subject| !subject.trim().is_empty());
        let subject = subject.ok_or_else(|| missing(name))?;
        let seconds = claims.get("exp").and_then(Value::as_f64).ok_or_else(|| missing("exp"))?;
        if seconds.is_nan() || seconds < 0.0 {
            return Err(TokenError::Malformed);
        }
        let since = Duration::try_from_secs_f64(seconds).unwrap_or(EXPIRY_MAX).min(EXPIRY_MAX);
        let expires = SystemTime::UNIX_EPOCH + since;
        Ok(BearerToken { subject: subject.to_owned(), expires })
    }
}

fn refusal(error: &Error) -> TokenError {
    match error.kind() {
        ErrorKind::ExpiredSignature => TokenError::Expired,
        ErrorKind::ImmatureSignature => TokenError::NotYetValid,
        ErrorKind::InvalidAudience => TokenError::Audience,
        ErrorKind::InvalidIssuer => TokenError::Issuer,
        ErrorKind::InvalidAlgorithm => TokenError::Algorithm,
        ErrorKind::MissingRequiredClaim(name) => TokenError::MissingClaim(name.clone()),
        // A kind that is not known yet is a token that is not accepted.
        _ => TokenError::Malformed,
    }
}

#[cfg(test)]
mod tests;
