//! State that logins of every kind share: the check of a password, and the count of failures.
//!
//! No password is stored. A stored SCRAM credential says whether a password is right, after
//! thousands of hashes. They run on a thread that may block, few at a time, so that wrong passwords
//! at full speed keep nobody else from being served.

use std::net::IpAddr;
use std::sync::Arc;

use admission::{BudgetKind, BudgetQueue, BudgetRegistry, BudgetSpec, Holder, QueueGrant};
use scram::{ScramCredential, ScramMechanism};

use crate::guess_limits::GuessLimits;
use crate::name_key::NameKey;
use crate::security::Security;
use crate::state::LoginCredentials;

/// The SCRAM iterations and the salt length of a challenge while there are no users: those of
/// `freezeframe users add`.
const NO_USERS: (u32, usize) = (8192, 24);

/// The reason that a password is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordRefusal {
    #[error("the user or the password is wrong")]
    Wrong,
    #[error("too many wrong passwords came from this address. Try again in a minute")]
    TooMany,
}

/// The most passwords that are hashed at a time: each takes a thread for milliseconds.
const PASSWORDS_MAX: u64 = 1;

/// A client that guesses at full speed keeps nobody else from logging in.
const PASSWORDS: BudgetSpec = BudgetSpec {
    name: "password-checks",
    unit: "passwords that are checked at a time",
    setting: None,
    kind: BudgetKind::Kept,
};

/// State that all logins share.
pub struct Logins {
    /// Makes salts for users that are not there. They outlive a restart, as those of users do.
    user_salts: NameKey,
    token_salts: NameKey,
    guesses: GuessLimits,
    password_turns: Arc<BudgetQueue>,
}

impl Logins {
    pub(crate) fn new(key: &NameKey, budgets: &BudgetRegistry) -> Logins {
        Logins {
            user_salts: key.derive("salts of unknown users"),
            token_salts: key.derive("salts of delegation tokens"),
            guesses: GuessLimits::default(),
            password_turns: BudgetQueue::new(budgets.budget(PASSWORDS, PASSWORDS_MAX)),
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
        let mut salt = Vec::new();
        for block in 0u32.. {
            let text = [user.as_bytes(), &[0], &block.to_be_bytes()].concat();
            salt.extend_from_slice(&self.user_salts.hash(&text));
            if salt.len() >= salt_bytes {
                break;
            }
        }
        salt.truncate(salt_bytes);
        let nobodys = self.user_salts.hash(&salt);
        ScramCredential::from_salted_password(mechanism, &nobodys, salt, iterations)
    }

    /// Waits for the turn to hash a password that comes from this address.
    pub(crate) async fn password_turn(&self, address: IpAddr) -> QueueGrant {
        self.password_turns.take(&Holder::address(address), 1).await
    }

    /// A salt for the secret of a token. It says nothing of the secret.
    pub(crate) fn token_salt(&self, id: &str) -> Vec<u8> {
        let (_, salt_bytes) = NO_USERS;
        self.token_salts.hash(id.as_bytes())[..salt_bytes].to_vec()
    }
}

impl Security {
    /// The credential of a user's password, and whether there is such a user. An unknown user looks
    /// like a known one: like the next by name, so that its challenge says nothing, and is the same
    /// each time.
    pub fn credential_or_unknown(
        &self,
        user: &str,
        mechanism: ScramMechanism,
    ) -> (ScramCredential, bool) {
        let state = self.state();
        let credential = state.credential(user, mechanism);
        let example = credential.or_else(|| state.similar_credential(user, mechanism));
        // Also computed for a user that is there: the time is the same.
        let unknown = self.logins().unknown_user(mechanism, user, example);
        match credential {
            Some(credential) => (credential.clone(), true),
            None => (unknown, false),
        }
    }

    /// Checks the password of a user, which comes from this address; returns the credentials that
    /// it proves. It takes as long for every user, and for a name without one.
    ///
    /// # Errors
    /// The password is wrong, or too many wrong ones came from there.
    pub async fn check_password(
        &self,
        user: &str,
        password: &str,
        address: IpAddr,
    ) -> Result<LoginCredentials, PasswordRefusal> {
        // One of an address at a time: the next sees the guesses of those before it.
        let turn = self.logins().password_turn(address).await;
        self.admit_guess(user, address)?;
        let (checked, login, rounds) = {
            let state = self.state();
            let checked = state.checked_credential(user);
            let rounds = state.password_rounds().after(checked.as_ref());
            (checked, state.login_credentials(user), rounds)
        };
        let (text, credential) = (password.to_owned(), checked.clone());
        let checking = tokio::task::spawn_blocking(move || {
            let is_right = credential.is_some_and(|credential| credential.is_password(&text));
            for (mechanism, rounds) in rounds {
                std::hint::black_box(mechanism.salted_password(&text, &[], rounds));
            }
            // The turn is over when this is, also if the client has gone.
            (is_right, turn)
        });
        let Ok((is_right, turn)) = checking.await else { return Err(PasswordRefusal::Wrong) };
        // The credential may have been changed, or the user removed, while that took its time.
        let is_right = is_right && self.state().checked_credential(user) == checked;
        if !is_right {
            self.record_guess(user, address);
        }
        drop(turn);
        if is_right { Ok(login) } else { Err(PasswordRefusal::Wrong) }
    }

    /// Checks that a password for this name from this address may be checked.
    ///
    /// # Errors
    /// Too many wrong ones came from there.
    pub fn admit_guess(&self, user: &str, address: IpAddr) -> Result<(), PasswordRefusal> {
        if self.logins().guesses.admits(user, address, self.wall_now().0) {
            Ok(())
        } else {
            Err(PasswordRefusal::TooMany)
        }
    }

    /// Counts a wrong password.
    pub fn record_guess(&self, user: &str, address: IpAddr) {
        self.logins().guesses.record(user, address, self.wall_now().0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salts_of_unknown_users_outlive_a_restart() {
        let key = NameKey::random();
        let unknown = |key, user| {
            Logins::new(key, &BudgetRegistry::default())
                .unknown_user(ScramMechanism::Sha256, user, None)
                .salt
        };
        assert_eq!(unknown(&key, "nobody"), unknown(&key, "nobody"));
        assert_ne!(unknown(&key, "nobody"), unknown(&key, "no one"));
        assert_ne!(unknown(&key, "nobody"), unknown(&NameKey::random(), "nobody"));
    }

    #[test]
    fn a_user_that_is_not_there_looks_as_one_that_is() {
        let logins = Logins::new(&NameKey::random(), &BudgetRegistry::default());
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
