//! The client's side: it proves that it knows the password, and sees that the server knows it too.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use crate::credential::{ScramCredential, ScramMechanism, random_bytes};

/// The most rounds that a server may ask of a client: a second of its time.
const ITERATIONS_ACCEPTED_MAX: u32 = 1 << 20;
/// The header of a client that binds to no channel, in base64 and not.
const HEADER: &str = "n,,";

/// The reason that a login went wrong, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server's part of the login is wrong: {0}")]
pub struct ScramClientError(&'static str);

/// A login under way. Each message of the server has one answer.
#[derive(Debug)]
pub struct ScramClient {
    mechanism: ScramMechanism,
    nonce: String,
    /// `n=NAME,r=NONCE[,EXTENSION]`
    first: String,
}

/// The last answer that the server has to give.
#[derive(Debug)]
pub struct ExpectedSignature(Vec<u8>);

impl ScramClient {
    pub fn new(mechanism: ScramMechanism, user: &str) -> ScramClient {
        ScramClient::with_nonce(mechanism, user, STANDARD_NO_PAD.encode(random_bytes::<24>()))
    }

    /// A client that has a delegation token of this id (KIP-48). Its password is the secret in
    /// base64.
    pub fn with_token(mechanism: ScramMechanism, id: &str) -> ScramClient {
        let ScramClient { mechanism, nonce, first } = ScramClient::new(mechanism, id);
        ScramClient { mechanism, nonce, first: format!("{first},tokenauth=true") }
    }

    fn with_nonce(mechanism: ScramMechanism, user: &str, nonce: String) -> ScramClient {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        let first = format!("n={user},r={nonce}");
        ScramClient { mechanism, nonce, first }
    }

    /// The first message.
    pub fn first_message(&self) -> String {
        format!("{HEADER}{}", self.first)
    }

    /// The final message, as a reply to the server's challenge; and the signature that the server
    /// then has to send.
    ///
    /// # Errors
    /// It is no challenge, it answers another client's message, or it demands too many iterations.
    pub fn final_message(
        &self,
        password: &str,
        challenge: &[u8],
    ) -> Result<(String, ExpectedSignature), ScramClientError> {
        let bad = || ScramClientError("its challenge does not read");
        let challenge = std::str::from_utf8(challenge).map_err(|_| bad())?;
        let mut attributes = challenge.split(',');
        let mut next =
            |name: &str| attributes.next().and_then(|attribute| attribute.strip_prefix(name));
        let (Some(nonce), Some(salt), Some(iterations)) = (next("r="), next("s="), next("i="))
        else {
            return Err(bad());
        };
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ScramClientError("its nonce does not continue ours"));
        }
        let salt = STANDARD.decode(salt).map_err(|_| bad())?;
        let iterations: u32 = iterations.parse().map_err(|_| bad())?;
        if !(1..=ITERATIONS_ACCEPTED_MAX).contains(&iterations) {
            return Err(ScramClientError("it asks for an absurd number of iterations"));
        }
        let salted = self.mechanism.salted_password(password, &salt, iterations);
        let binding = STANDARD.encode(HEADER);
        let without_proof = format!("c={binding},r={nonce}");
        let messages = format!("{},{challenge},{without_proof}", self.first);
        let credential =
            ScramCredential::from_salted_password(self.mechanism, &salted, salt, iterations);
        let proof = credential.prove(self.mechanism, &salted, messages.as_bytes());
        let signature = credential.server_signature(self.mechanism, messages.as_bytes());
        let proof = STANDARD.encode(proof);
        Ok((format!("{without_proof},p={proof}"), ExpectedSignature(signature)))
    }
}

impl ExpectedSignature {
    /// Checks the server's last message.
    ///
    /// # Errors
    /// The server does not know the password.
    pub fn check(&self, last: &[u8]) -> Result<(), ScramClientError> {
        let signature = last.strip_prefix(b"v=").and_then(|text| STANDARD.decode(text).ok());
        if signature.is_some_and(|signature| signature == self.0) {
            Ok(())
        } else {
            Err(ScramClientError("it does not know the password"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7677.
    #[test]
    fn a_login_is_that_of_the_rfc() {
        let nonce = "rOprNGfwEbeRWgbNEkqO".to_owned();
        let client = ScramClient::with_nonce(ScramMechanism::Sha256, "user", nonce);
        assert_eq!(client.first_message(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let (last, expected) = client.final_message("pencil", challenge).unwrap();
        assert_eq!(
            last,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        assert_eq!(expected.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Ok(()));
        for wrong in [&b""[..], b"v=", b"v=6rri", b"e=other-error"] {
            assert!(expected.check(wrong).is_err());
        }
    }

    #[test]
    fn a_server_that_breaks_the_rules_is_not_answered() {
        let client = ScramClient::with_nonce(ScramMechanism::Sha256, "a=b,c", "abc".to_owned());
        assert_eq!(client.first_message(), "n,,n=a=3Db=2Cc,r=abc");
        for challenge in [
            "",
            "r=abcd",
            "r=abcd,s=AAAA",
            "r=abcd,s=AAAA,i=",
            "r=abcd,s=AAAA,i=0",
            "r=abcd,s=AAAA,i=2000000000",
            "r=abcd,s=A,i=4096",
            "r=abc,s=AAAA,i=4096",
            "r=other,s=AAAA,i=4096",
            "s=AAAA,r=abcd,i=4096",
        ] {
            assert!(client.final_message("x", challenge.as_bytes()).is_err(), "{challenge}");
        }
        assert!(client.final_message("x", b"\xff").is_err());
    }
}
