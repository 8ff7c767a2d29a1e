//! Stored credentials of passwords: enough to check one, too little to log in with (RFC 5802, RFC
//! 7677).

use std::fmt;
use std::num::NonZeroU32;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{digest, hmac, pbkdf2, rand};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// A mechanism, by Kafka's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ScramMechanism {
    Sha256 = 1,
    Sha512 = 2,
}

impl fmt::Display for ScramMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Bytes that nobody can guess.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).expect("the kernel has random bytes");
    bytes
}

impl ScramMechanism {
    pub const ALL: &'static [ScramMechanism] = &[ScramMechanism::Sha256, ScramMechanism::Sha512];

    /// The name, as SASL has it.
    pub fn as_str(self) -> &'static str {
        match self {
            ScramMechanism::Sha256 => "SCRAM-SHA-256",
            ScramMechanism::Sha512 => "SCRAM-SHA-512",
        }
    }

    /// Kafka's number.
    pub fn code(self) -> i8 {
        self as i8
    }

    /// The one with this number.
    pub fn of_code(code: i8) -> Option<ScramMechanism> {
        ScramMechanism::ALL.iter().copied().find(|mechanism| mechanism.code() == code)
    }

    /// The length of its hashes in bytes.
    pub fn hash_bytes(self) -> usize {
        self.digest().output_len()
    }

    fn digest(self) -> &'static digest::Algorithm {
        match self {
            ScramMechanism::Sha256 => &digest::SHA256,
            ScramMechanism::Sha512 => &digest::SHA512,
        }
    }

    fn hmac(self, key: &[u8], text: &[u8]) -> Vec<u8> {
        let algorithm = match self {
            ScramMechanism::Sha256 => hmac::HMAC_SHA256,
            ScramMechanism::Sha512 => hmac::HMAC_SHA512,
        };
        hmac::sign(&hmac::Key::new(algorithm, key), text).as_ref().to_vec()
    }

    /// The key that a password and a salt give after `iterations` rounds: a round takes about half
    /// a microsecond.
    pub fn salted_password(
        self,
        password: &str,
        salt: &[u8],
        iterations: u32,
    ) -> Zeroizing<Vec<u8>> {
        let algorithm = match self {
            ScramMechanism::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            ScramMechanism::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        };
        let mut salted = Zeroizing::new(vec![0; self.hash_bytes()]);
        let rounds = NonZeroU32::new(iterations).unwrap_or(NonZeroU32::MIN);
        pbkdf2::derive(algorithm, rounds, salt, password.as_bytes(), &mut salted);
        salted
    }
}

/// The fewest rounds that a password may have.
pub const ITERATIONS_MIN: u32 = 4096;
/// The most: a client has to compute them, and the server too, for a password in the clear.
pub const ITERATIONS_MAX: u32 = 16384;

/// A password, salted and hashed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScramCredential {
    pub salt: Vec<u8>,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
    pub iterations: u32,
}

impl ScramCredential {
    /// From a password that is salted and hashed `iterations` times already.
    pub fn from_salted_password(
        mechanism: ScramMechanism,
        salted: &[u8],
        salt: Vec<u8>,
        iterations: u32,
    ) -> ScramCredential {
        let client_key = mechanism.hmac(salted, b"Client Key");
        let stored_key = digest::digest(mechanism.digest(), &client_key).as_ref().to_vec();
        let server_key = mechanism.hmac(salted, b"Server Key");
        ScramCredential { salt, stored_key, server_key, iterations }
    }

    pub fn from_password(
        mechanism: ScramMechanism,
        password: &str,
        salt: Vec<u8>,
        iterations: u32,
    ) -> ScramCredential {
        let salted = mechanism.salted_password(password, &salt, iterations);
        ScramCredential::from_salted_password(mechanism, &salted, salt, iterations)
    }

    /// Returns true if `password` is the one. It takes as long as
    /// [`ScramMechanism::salted_password`].
    pub fn is_password(&self, mechanism: ScramMechanism, password: &str) -> bool {
        let salt = self.salt.clone();
        let derived = ScramCredential::from_password(mechanism, password, salt, self.iterations);
        verify_slices_are_equal(&derived.stored_key, &self.stored_key).is_ok()
    }

    /// Returns true if `proof` is from a client that knows the password, over these messages.
    pub fn is_proof(&self, mechanism: ScramMechanism, messages: &[u8], proof: &[u8]) -> bool {
        let signature = mechanism.hmac(&self.stored_key, messages);
        if proof.len() != signature.len() {
            return false;
        }
        let client_key: Vec<u8> =
            proof.iter().zip(&signature).map(|(proof, signature)| proof ^ signature).collect();
        let stored_key = digest::digest(mechanism.digest(), &client_key);
        verify_slices_are_equal(stored_key.as_ref(), &self.stored_key).is_ok()
    }

    /// The proof for the client that the server knows the password too.
    pub fn server_signature(&self, mechanism: ScramMechanism, messages: &[u8]) -> Vec<u8> {
        mechanism.hmac(&self.server_key, messages)
    }

    /// The proof of knowing the password, from the salted password `salted`.
    pub(crate) fn prove(
        &self,
        mechanism: ScramMechanism,
        salted: &[u8],
        messages: &[u8],
    ) -> Vec<u8> {
        let client_key = mechanism.hmac(salted, b"Client Key");
        let signature = mechanism.hmac(&self.stored_key, messages);
        client_key.iter().zip(&signature).map(|(key, signature)| key ^ signature).collect()
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.salt.len() + self.stored_key.len() + self.server_key.len()
    }
}

/// Without the keys: they would let others guess the password, or pretend to be the server.
impl fmt::Debug for ScramCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramCredential")
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// The example of RFC 7677.
    #[test]
    fn a_proof_of_the_password_is_accepted_and_no_other() {
        let (client_first, server_first, client_final) = (
            "n=user,r=rOprNGfwEbeRWgbNEkqO",
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        );
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let mechanism = ScramMechanism::Sha256;
        let credential = ScramCredential::from_password(mechanism, "pencil", salt, 4096);
        let messages = format!("{client_first},{server_first},{client_final}");
        let proof = STANDARD.decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=").unwrap();
        assert!(credential.is_proof(mechanism, messages.as_bytes(), &proof));
        let signature = credential.server_signature(mechanism, messages.as_bytes());
        assert_eq!(STANDARD.encode(signature), "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        for bit in 0..proof.len() * 8 {
            let mut forged = proof.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(!credential.is_proof(mechanism, messages.as_bytes(), &forged));
        }
        assert!(!credential.is_proof(mechanism, messages.as_bytes(), &proof[1..]));
        assert!(!credential.is_proof(mechanism, messages.as_bytes(), &[]));
        assert!(!credential.is_proof(mechanism, b"other messages", &proof));
    }

    #[test]
    fn a_password_is_recognized_by_each_mechanism() {
        for mechanism in ScramMechanism::ALL {
            let credential = |password| {
                ScramCredential::from_password(*mechanism, password, vec![7; 16], ITERATIONS_MIN)
            };
            assert!(credential("secret").is_password(*mechanism, "secret"));
            assert!(!credential("secret").is_password(*mechanism, "Secret"));
            assert!(!credential("secret").is_password(*mechanism, ""));
            assert!(!format!("{:?}", credential("secret")).contains("key"));
        }
    }
}
