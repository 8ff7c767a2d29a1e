//! What logins of all connections share.

use aws_lc_rs::{hmac, rand};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use engine::LogThrottle;
use engine::security::{ITERATIONS_MIN, ScramCredential, ScramMechanism};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::metrics::KafkaMetrics;
use crate::metrics::add;
use crate::sasl::SaslMechanism;

/// How many bytes a salt and a nonce have.
const RANDOM_BYTES: usize = 24;
/// How many passwords are checked at a time. Each takes a thread for milliseconds.
const PASSWORD_CHECKS_MAX: usize = 1;

/// What logins share.
pub(crate) struct Logins {
    /// Makes salts for users that are not there, the same for a name as long as the server runs.
    secret: [u8; 32],
    password_checks: Semaphore,
    failures: Mutex<LogThrottle>,
    begun: Instant,
    metrics: std::sync::Arc<KafkaMetrics>,
}

impl Logins {
    pub(crate) fn new(metrics: std::sync::Arc<KafkaMetrics>) -> Logins {
        Logins {
            secret: random(),
            password_checks: Semaphore::new(PASSWORD_CHECKS_MAX),
            failures: Mutex::default(),
            begun: Instant::now(),
            metrics,
        }
    }

    /// A nonce of the server, in printable characters without commas.
    pub(crate) fn new_nonce(&self) -> String {
        STANDARD_NO_PAD.encode(random::<RANDOM_BYTES>())
    }

    /// A credential for a user that is not there, which no password fits.
    pub(crate) fn unknown_user_of(&self, mechanism: ScramMechanism, user: &str) -> ScramCredential {
        let key = hmac::Key::new(hmac::HMAC_SHA512, &self.secret);
        let random = hmac::sign(&key, user.as_bytes());
        let (salt, salted) = random.as_ref().split_at(RANDOM_BYTES);
        ScramCredential::from_salted_password(mechanism, salted, salt.to_vec(), ITERATIONS_MIN)
    }

    /// [`Logins::unknown_user_of`] the mechanism that passwords in the clear are checked with.
    pub(crate) fn unknown_user(&self, user: &str) -> (ScramMechanism, ScramCredential) {
        let mechanism = ScramMechanism::Sha256;
        (mechanism, self.unknown_user_of(mechanism, user))
    }

    /// Waits until a password may be checked.
    pub(crate) async fn password_check_permit(&self) -> SemaphorePermit<'_> {
        self.password_checks.acquire().await.expect("it is never closed")
    }

    /// Counts a client that is not who it says, and warns now and then.
    pub(crate) fn record_failure(&self, mechanism: SaslMechanism, why: &str) {
        add(&self.metrics.logins_failed, 1);
        if let Some(logins) = self.failures.lock().record_failure(self.begun.elapsed()) {
            tracing::warn!(%mechanism, why, logins, "logins fail");
        }
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).expect("the kernel has random bytes");
    bytes
}
