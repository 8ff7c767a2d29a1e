//! Keyed hashes of names: they say nothing of the name, and nobody without the key can compute
//! them.

use std::fmt;

use aws_lc_rs::hmac;
use scram::random_bytes;

/// The length of a key.
const KEY_BYTES: usize = 32;

/// The key of keyed hashes. That of a data directory is the same after a restart.
#[derive(Clone)]
pub struct NameKey([u8; KEY_BYTES]);

impl NameKey {
    pub fn new(key: [u8; KEY_BYTES]) -> NameKey {
        NameKey(key)
    }

    /// A key that nobody can guess.
    pub fn random() -> NameKey {
        NameKey(random_bytes())
    }

    /// A key for one purpose. It tells nothing of the keys for others.
    pub fn derive(&self, purpose: &str) -> NameKey {
        let mut derived = [0; KEY_BYTES];
        derived.copy_from_slice(&self.hash(purpose.as_bytes())[..KEY_BYTES]);
        NameKey(derived)
    }

    /// The hash of a name.
    pub fn hash(&self, name: &[u8]) -> [u8; 64] {
        let key = hmac::Key::new(hmac::HMAC_SHA512, &self.0);
        let mut hash = [0; 64];
        hash.copy_from_slice(hmac::sign(&key, name).as_ref());
        hash
    }
}

impl fmt::Debug for NameKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_the_key_the_purpose_and_the_name() {
        let key = NameKey::new([7; KEY_BYTES]);
        let same = NameKey::new([7; KEY_BYTES]);
        assert_eq!(key.derive("a").hash(b"n"), same.derive("a").hash(b"n"));
        assert_ne!(key.derive("a").hash(b"n"), key.derive("b").hash(b"n"));
        assert_ne!(key.derive("a").hash(b"n"), key.derive("a").hash(b"m"));
        assert_ne!(key.hash(b"n"), NameKey::random().hash(b"n"));
        assert_eq!(format!("{key:?}"), "NameKey(…)");
    }
}
