//! What logins of every kind share: the check of a password, and the count of failures.
//!
//! No password is stored. What is stored for SCRAM says whether one is right, after thousands of hashes. They run on
//! a thread that may block, few at a time, so that wrong passwords at full speed keep nobody else from being served.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_lc_rs::hmac;
use parking_lot::Mutex;
use scram::{ScramCredential, ScramMechanism, random_bytes};
use storage::LogThrottle;

use crate::password_turns::{PasswordTurn, PasswordTurns};
use crate::security::Security;

/// How a password is hashed and salted where nobody has one: as `freezeframe users add` does it.
const NO_USERS: (u32, usize) = (8192, 24);

/// What logins share.
pub struct Logins {
    /// Makes salts for users that are not there, the same for a name as long as the server runs.
    secret: [u8; 32],
    password_turns: PasswordTurns,
    failed: AtomicU64,
    warnings: Mutex<LogThrottle>,
}

impl Logins {
    pub(crate) fn new() -> Logins {
        Logins {
            secret: random_bytes(),
            password_turns: PasswordTurns::new(),
            failed: AtomicU64::new(0),
            warnings: Mutex::default(),
        }
    }

    /// A credential that no password fits, with as many iterations and as long a salt as `example`.
    fn unknown_user(
        &self,
        mechanism: ScramMechanism,
        user: &str,
        example: Option<&ScramCredential>,
    ) -> ScramCredential {
        let (iterations, salt_bytes) =
            example.map_or(NO_USERS, |example| (example.iterations, example.salt.len()));
        let key = hmac::Key::new(hmac::HMAC_SHA512, &self.secret);
        let mut salt = Vec::new();
        for block in 0u32.. {
            let text = [user.as_bytes(), &[0], &block.to_be_bytes()].concat();
            salt.extend_from_slice(hmac::sign(&key, &text).as_ref());
            if salt.len() >= salt_bytes {
                break;
            }
        }
        salt.truncate(salt_bytes);
        let nobodys = hmac::sign(&key, &salt);
        ScramCredential::from_salted_password(mechanism, nobodys.as_ref(), salt, iterations)
    }

    /// Waits for the turn to hash a password that comes from this address.
    pub(crate) async fn password_turn(&self, address: IpAddr) -> PasswordTurn {
        self.password_turns.take(address).await
    }

    /// A salt for the secret of a token, the same as long as the server runs. It says nothing of the secret.
    pub(crate) fn token_salt(&self, id: &str) -> Vec<u8> {
        let key = hmac::Key::new(hmac::HMAC_SHA512, &self.secret);
        let (_, salt_bytes) = NO_USERS;
        hmac::sign(&key, format!("a token {id}").as_bytes()).as_ref()[..salt_bytes].to_vec()
    }

    /// How many logins have failed.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}

impl Security {
    /// What is known of a user's password, and whether there is such a user. One that is not there looks as one that
    /// is: as the next by name, so that its challenge says nothing, and is the same each time.
    pub fn credential_or_unknown(
        &self,
        user: &str,
        mechanism: ScramMechanism,
    ) -> (ScramCredential, bool) {
        let state = self.state();
        match state.credential(user, mechanism) {
            Some(known) => (known.clone(), true),
            None => {
                let example = state.similar_credential(user, mechanism);
                (self.logins().unknown_user(mechanism, user, example), false)
            }
        }
    }

    /// By which of a user's credentials a password is checked: the cheaper one first.
    fn password_mechanism(&self, user: &str) -> ScramMechanism {
        // Locked once: a second time would wait behind a writer that waits for the first.
        let state = self.state();
        let has = |mechanism| state.credential(user, mechanism).is_some();
        match has(ScramMechanism::Sha512) && !has(ScramMechanism::Sha256) {
            true => ScramMechanism::Sha512,
            false => ScramMechanism::Sha256,
        }
    }

    /// Counts a client that is not who it says, and warns now and then. `way` is how it logged in.
    pub fn record_login_failure(&self, way: impl fmt::Display, why: &str) {
        let logins = self.logins();
        logins.failed.fetch_add(1, Ordering::Relaxed);
        let now = Duration::from_millis(self.wall_now().0);
        if let Some(logins) = logins.warnings.lock().record_failure(now) {
            tracing::warn!(%way, why, logins, "logins fail");
        }
    }

    /// Whether a user has this password, which comes from this address. It takes as long for a user that is not
    /// there.
    pub async fn is_password(&self, user: &str, password: &str, address: IpAddr) -> bool {
        let mechanism = self.password_mechanism(user);
        let (credential, is_known) = self.credential_or_unknown(user, mechanism);
        let turn = self.logins().password_turn(address).await;
        let (password, before) = (password.to_owned(), credential.clone());
        let checking = tokio::task::spawn_blocking(move || {
            // It is over when this is, also if the client has gone.
            let _turn = turn;
            credential.is_password(mechanism, &password)
        });
        let is_right = checking.await.unwrap_or(false) && is_known;
        // It may have been changed, or the user removed, while that took its time.
        is_right && self.credential_or_unknown(user, mechanism) == (before, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_is_not_there_has_the_same_salt_each_time_and_another_one_than_others() {
        let logins = Logins::new();
        let unknown = |user| logins.unknown_user(ScramMechanism::Sha256, user, None);
        assert_eq!(unknown("nobody").salt, unknown("nobody").salt);
        assert_ne!(unknown("nobody").salt, unknown("no one").salt);
        let other = Logins::new().unknown_user(ScramMechanism::Sha256, "nobody", None);
        assert_ne!(unknown("nobody").salt, other.salt);
    }

    #[test]
    fn a_user_that_is_not_there_looks_as_one_that_is() {
        let logins = Logins::new();
        for (iterations, salt_bytes) in [(4096, 16), (16384, 200)] {
            let salt = vec![7; salt_bytes];
            let mechanism = ScramMechanism::Sha512;
            let example = ScramCredential::from_password(mechanism, "x", salt, iterations);
            let unknown = logins.unknown_user(mechanism, "nobody", Some(&example));
            assert_eq!((unknown.iterations, unknown.salt.len()), (iterations, salt_bytes));
            assert_ne!(unknown.salt, example.salt);
        }
    }
}
