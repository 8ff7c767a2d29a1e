//! What logins of every kind share: the check of a password, and the count of failures.
//!
//! No password is stored. What is stored for SCRAM says whether one is right, after thousands of hashes. They run on
//! a thread that may block, few at a time, so that wrong passwords at full speed keep nobody else from being served.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::hmac;
use parking_lot::Mutex;
use scram::{ITERATIONS_MIN, ScramCredential, ScramMechanism, random_bytes};
use storage::LogThrottle;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::security::Security;

/// How many bytes a salt has.
const SALT_BYTES: usize = 24;
/// How many passwords are checked at a time. Each takes a thread for milliseconds.
const PASSWORD_CHECKS_MAX: usize = 1;

/// What logins share.
pub struct Logins {
    /// Makes salts for users that are not there, the same for a name as long as the server runs.
    secret: [u8; 32],
    password_checks: Semaphore,
    failed: AtomicU64,
    warnings: Mutex<LogThrottle>,
    begun: Instant,
}

impl Logins {
    pub(crate) fn new() -> Logins {
        Logins {
            secret: random_bytes(),
            password_checks: Semaphore::new(PASSWORD_CHECKS_MAX),
            failed: AtomicU64::new(0),
            warnings: Mutex::default(),
            begun: Instant::now(),
        }
    }

    /// A credential for a user that is not there, which no password fits.
    pub fn unknown_user(&self, mechanism: ScramMechanism, user: &str) -> ScramCredential {
        let key = hmac::Key::new(hmac::HMAC_SHA512, &self.secret);
        let random = hmac::sign(&key, user.as_bytes());
        let (salt, salted) = random.as_ref().split_at(SALT_BYTES);
        ScramCredential::from_salted_password(mechanism, salted, salt.to_vec(), ITERATIONS_MIN)
    }

    /// Counts a client that is not who it says, and warns now and then. `way` is how it logged in.
    pub fn record_failure(&self, way: impl fmt::Display, why: &str) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        if let Some(logins) = self.warnings.lock().record_failure(self.begun.elapsed()) {
            tracing::warn!(%way, why, logins, "logins fail");
        }
    }

    /// How many logins have failed.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}

impl Security {
    /// Whether a user has this password. It takes as long for a user that is not there.
    pub async fn is_password(&self, user: &str, password: &str) -> bool {
        let found = {
            let state = self.state();
            // The cheaper one first.
            [ScramMechanism::Sha256, ScramMechanism::Sha512]
                .into_iter()
                .find_map(|mechanism| Some((mechanism, state.credential(user, mechanism)?.clone())))
        };
        let is_known = found.is_some();
        let (mechanism, credential) = found.unwrap_or_else(|| {
            let mechanism = ScramMechanism::Sha256;
            (mechanism, self.logins().unknown_user(mechanism, user))
        });
        let permit = self.logins().password_checks.acquire().await;
        let _permit = permit.expect("the semaphore is never closed");
        let password = password.to_owned();
        let checking =
            tokio::task::spawn_blocking(move || credential.is_password(mechanism, &password));
        checking.await.unwrap_or(false) && is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_is_not_there_has_the_same_salt_each_time_and_another_one_than_others() {
        let logins = Logins::new();
        let salt = |user| logins.unknown_user(ScramMechanism::Sha256, user).salt;
        assert_eq!(salt("nobody"), salt("nobody"));
        assert_ne!(salt("nobody"), salt("no one"));
        assert_ne!(
            salt("nobody"),
            Logins::new().unknown_user(ScramMechanism::Sha256, "nobody").salt
        );
    }

    #[test]
    fn failures_are_counted() {
        let logins = Logins::new();
        logins.record_failure("HTTP", "the user or the password is wrong");
        assert_eq!(logins.failed(), 1);
    }
}
