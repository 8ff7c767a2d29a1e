//! A delegation token (KIP-48), and its secret: the journal does not have it. It follows from the
//! id and a key that operators set.

use std::fmt;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use scram::{ScramCredential, ScramMechanism};
use serde::{Deserialize, Serialize};

/// The most tokens that there may be. Clients name a token by its secret, and all are looked
/// through for that.
pub const TOKENS_MAX: usize = 10_000;
/// The most tokens that one principal may have requested.
pub(crate) const OWN_TOKENS_MAX: usize = 1000;
/// The length of the secret of a token.
pub(crate) const SECRET_BYTES: usize = 64;
/// The iterations of SCRAM over the secret of a token, as in Kafka. It is long, and nobody guesses
/// it.
const ITERATIONS: u32 = 4096;

/// A delegation token. Times are in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelegationToken {
    /// The principal that a client with the token becomes: `User:alice`.
    pub owner: String,
    /// The principal that requested it.
    pub requester: String,
    /// The principals that may renew it besides.
    pub renewers: Vec<String>,
    pub issued_ms: u64,
    /// The time at which it expires unless it is renewed.
    pub expires_ms: u64,
    /// The time at which it expires in any case.
    pub max_ms: u64,
}

impl DelegationToken {
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.min(self.max_ms) < now_ms
    }

    /// Returns true if a principal may renew it and end it.
    pub fn may_renew(&self, principal: &str) -> bool {
        self.owner == principal || self.renewers.iter().any(|renewer| renewer == principal)
    }

    /// Returns true if a principal may see it.
    pub fn is_of(&self, principal: &str) -> bool {
        self.requester == principal || self.may_renew(principal)
    }
}

/// The key that the secrets of tokens follow from (`delegation.token.secret.key`).
#[derive(Clone)]
pub struct TokenKey(hmac::Key);

impl TokenKey {
    pub fn new(secret: &str) -> TokenKey {
        TokenKey(hmac::Key::new(hmac::HMAC_SHA512, secret.as_bytes()))
    }

    /// The secret of the token with this id.
    pub fn token_secret(&self, id: &str) -> Vec<u8> {
        hmac::sign(&self.0, id.as_bytes()).as_ref().to_vec()
    }

    pub(crate) fn is_secret_of(&self, id: &str, secret: &[u8]) -> bool {
        hmac::verify(&self.0, id.as_bytes(), secret).is_ok()
    }

    /// The SCRAM credential of a client that has the secret of a token. It takes some milliseconds.
    pub(crate) fn credential(
        &self,
        id: &str,
        mechanism: ScramMechanism,
        salt: Vec<u8>,
    ) -> ScramCredential {
        let password = STANDARD.encode(self.token_secret(id));
        ScramCredential::from_password(mechanism, &password, salt, ITERATIONS)
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_of_a_token_proves_it_and_nothing_shows_the_key() {
        let key = TokenKey::new("operators' secret");
        let secret = key.token_secret("id");
        assert!(key.is_secret_of("id", &secret));
        assert!(!key.is_secret_of("other", &secret) && !key.is_secret_of("id", &secret[1..]));
        assert!(!TokenKey::new("another").is_secret_of("id", &secret));
        assert!(!format!("{key:?}").contains("secret"));
        for mechanism in ScramMechanism::ALL {
            let credential = key.credential("id", *mechanism, vec![7; 24]);
            assert!(credential.is_password(*mechanism, &STANDARD.encode(&secret)));
            assert!(!credential.is_password(*mechanism, "id"));
        }
    }
}
