//! The rounds of hashing that a check of a password in the clear takes: as many for every user, and
//! for a name without one. Else the time would tell the mechanisms and iterations of a user, and
//! whether there is one.

use std::collections::BTreeMap;

use scram::{ScramCredential, ScramMechanism};

/// The rounds where nobody has a password: as `freezeframe users add` sets it.
const NO_USERS: (ScramMechanism, u32) = (ScramMechanism::Sha256, 8192);

/// The number of users for each mechanism and number of iterations by which passwords are checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct PasswordRounds(BTreeMap<(ScramMechanism, u32), usize>);

/// The credential by which a user's password is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckedCredential {
    pub(crate) mechanism: ScramMechanism,
    pub(crate) credential: ScramCredential,
}

impl CheckedCredential {
    /// That of the cheaper mechanism, if the user has both.
    pub(crate) fn of(
        of_user: &BTreeMap<ScramMechanism, ScramCredential>,
    ) -> Option<CheckedCredential> {
        let (mechanism, credential) = of_user.first_key_value()?;
        Some(CheckedCredential { mechanism: *mechanism, credential: credential.clone() })
    }

    pub(crate) fn is_password(&self, password: &str) -> bool {
        self.credential.is_password(self.mechanism, password)
    }

    fn key(&self) -> (ScramMechanism, u32) {
        (self.mechanism, self.credential.iterations)
    }
}

impl PasswordRounds {
    /// Counts a user with these credentials.
    pub(crate) fn add(&mut self, of_user: &BTreeMap<ScramMechanism, ScramCredential>) {
        if let Some(checked) = CheckedCredential::of(of_user) {
            *self.0.entry(checked.key()).or_default() += 1;
        }
    }

    /// Counts a user with these credentials no longer.
    pub(crate) fn remove(&mut self, of_user: &BTreeMap<ScramMechanism, ScramCredential>) {
        let Some(key) = CheckedCredential::of(of_user).map(|checked| checked.key()) else { return };
        let count = self.0.get_mut(&key).expect("each user is counted");
        *count -= 1;
        if *count == 0 {
            self.0.remove(&key);
        }
    }

    /// The rounds of a whole check, by mechanism: the most that any user needs.
    fn total(&self) -> BTreeMap<ScramMechanism, u32> {
        if self.0.is_empty() {
            return BTreeMap::from([NO_USERS]);
        }
        // In ascending order: the last of a mechanism is its most.
        self.0.keys().copied().collect()
    }

    /// The rounds that remain after the check of a user's credential; all of them without one.
    pub(crate) fn after(
        &self,
        checked: Option<&CheckedCredential>,
    ) -> BTreeMap<ScramMechanism, u32> {
        let mut rounds = self.total();
        if let Some(checked) = checked
            && let Some(total) = rounds.get_mut(&checked.mechanism)
        {
            *total = total.saturating_sub(checked.credential.iterations);
        }
        rounds.retain(|_, rounds| *rounds > 0);
        rounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA256: ScramMechanism = ScramMechanism::Sha256;
    const SHA512: ScramMechanism = ScramMechanism::Sha512;

    fn user(credentials: &[(ScramMechanism, u32)]) -> BTreeMap<ScramMechanism, ScramCredential> {
        let credential = |(mechanism, iterations): &(ScramMechanism, u32)| {
            let salt = vec![7; 16];
            let credential =
                ScramCredential::from_salted_password(*mechanism, b"x", salt, *iterations);
            (*mechanism, credential)
        };
        credentials.iter().map(credential).collect()
    }

    #[test]
    fn a_check_takes_the_same_rounds_for_every_user_and_for_none() {
        let users = [
            user(&[(SHA256, 8192), (SHA512, 8192)]),
            user(&[(SHA512, 4096)]),
            user(&[(SHA512, 10_000)]),
            user(&[(SHA256, 4096)]),
        ];
        let mut rounds = PasswordRounds::default();
        assert_eq!(rounds.after(None), BTreeMap::from([(SHA256, 8192)]));
        users.iter().for_each(|user| rounds.add(user));
        let nobody = rounds.after(None);
        assert_eq!(nobody, BTreeMap::from([(SHA256, 8192), (SHA512, 10_000)]));
        for user in &users {
            let checked = CheckedCredential::of(user).unwrap();
            let mut total = rounds.after(Some(&checked));
            *total.entry(checked.mechanism).or_default() += checked.credential.iterations;
            assert_eq!(total, nobody, "{user:?}");
        }
        rounds.remove(&users[0]);
        rounds.remove(&users[2]);
        assert_eq!(rounds.after(None), BTreeMap::from([(SHA256, 4096), (SHA512, 4096)]));
    }
}
