//! SCRAM (RFC 5802, RFC 7677): the client proves that it knows the password, and the server that it
//! does too.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use engine::security::{
    LoginCredentials, PasswordRefusal, Principal, ScramCredential, ScramMechanism, Security,
    random_bytes,
};

use crate::{SaslError, SaslStep, SaslSuccess};

/// The header of a client that binds to no channel, and acts for itself.
const NO_BINDING: &str = "n,";
/// The extension of a client that has a delegation token, whose id is its name then.
const TOKEN_EXTENSION: &str = "tokenauth=true";
/// The number of random bytes in a nonce.
const NONCE_BYTES: usize = 24;

#[derive(Debug)]
pub(crate) struct ScramExchange {
    mechanism: ScramMechanism,
    challenge: Option<Box<ScramChallenge>>,
}

/// The exchange so far.
#[derive(Debug)]
struct ScramChallenge {
    principal: Principal,
    /// The user or the token that the client names.
    claimed: ClaimedName,
    /// True if there is such a user, or such a token.
    is_known: bool,
    /// The time at which the token expires, if the client has one.
    expires: Option<SystemTime>,
    credential: ScramCredential,
    header: String,
    /// The nonces of both sides.
    nonce: String,
    /// The first messages of both sides.
    messages: String,
}

#[derive(Clone, Debug)]
enum ClaimedName {
    User(String),
    Token(String),
}

impl ScramExchange {
    pub(crate) fn new(mechanism: ScramMechanism) -> ScramExchange {
        ScramExchange { mechanism, challenge: None }
    }

    pub(crate) async fn step(
        &mut self,
        security: &Security,
        address: IpAddr,
        message: &[u8],
    ) -> Result<SaslStep, SaslError> {
        let text = std::str::from_utf8(message)
            .map_err(|_| SaslError::Refused("the message is not UTF-8"))?;
        match self.challenge.take() {
            None => {
                let first = ClientFirst::parse(text)?;
                let claim = if first.has_token {
                    ScramClaim::of_token(security, &first.user, address, self.mechanism).await?
                } else {
                    ScramClaim::of_user(security, &first.user, self.mechanism)
                };
                let ScramClaim { principal, is_known, credential, expires } = claim;
                let nonce = format!("{}{}", first.nonce, new_nonce());
                let salt = STANDARD.encode(&credential.salt);
                let answer = format!("r={nonce},s={salt},i={}", credential.iterations);
                let ClientFirst { header, bare, user, has_token, .. } = first;
                let claimed =
                    if has_token { ClaimedName::Token(user) } else { ClaimedName::User(user) };
                let messages = format!("{bare},{answer}");
                self.challenge = Some(Box::new(ScramChallenge {
                    principal,
                    claimed,
                    is_known,
                    expires,
                    credential,
                    header,
                    nonce,
                    messages,
                }));
                Ok(SaslStep::Continue(answer.into_bytes()))
            }
            Some(challenge) => {
                if let ClaimedName::User(user) = &challenge.claimed {
                    security.admit_guess(user, address)?;
                }
                let claimed = challenge.claimed.clone();
                let checked = challenge.check(security, self.mechanism, text);
                if let (ClaimedName::User(user), Err(SaslError::Password(_))) = (claimed, &checked)
                {
                    security.record_guess(&user, address);
                }
                checked.map(SaslStep::Done)
            }
        }
    }
}

/// The identity that a client claims, and the credential that it has to prove for that.
struct ScramClaim {
    principal: Principal,
    is_known: bool,
    credential: ScramCredential,
    expires: Option<SystemTime>,
}

impl ScramClaim {
    /// A user that is not there gets a challenge as well.
    fn of_user(security: &Security, user: &str, mechanism: ScramMechanism) -> ScramClaim {
        let (credential, is_known) = security.credential_or_unknown(user, mechanism);
        ScramClaim { principal: Principal::user(user), is_known, credential, expires: None }
    }

    /// A token that is not there gets a challenge as well.
    async fn of_token(
        security: &Security,
        id: &str,
        address: IpAddr,
        mechanism: ScramMechanism,
    ) -> Result<ScramClaim, SaslError> {
        let credential = security.token_credential(id, mechanism, address).await;
        let no_tokens = SaslError::Refused("there are no delegation tokens");
        let (credential, token) = credential.ok_or(no_tokens)?;
        let owner = token.as_ref().map_or("", |token| &token.owner);
        let (_, name) = owner.split_once(':').unwrap_or(("", owner));
        let expires = token.as_ref().map(|token| token.expires_ms.min(token.max_ms));
        Ok(ScramClaim {
            principal: Principal::user(name),
            is_known: token.is_some(),
            credential,
            expires: expires.map(|ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms)),
        })
    }
}

/// A nonce of the server, in printable characters without commas.
fn new_nonce() -> String {
    STANDARD_NO_PAD.encode(random_bytes::<NONCE_BYTES>())
}

impl ScramChallenge {
    /// Returns whether the token still exists, or the user with the same password, and the user's
    /// credentials.
    fn confirm(
        &self,
        security: &Security,
        mechanism: ScramMechanism,
    ) -> (bool, Option<LoginCredentials>) {
        match &self.claimed {
            ClaimedName::User(user) => {
                let state = security.state();
                let is_kept = state.credential(user, mechanism) == Some(&self.credential);
                (is_kept, Some(state.login_credentials(user)))
            }
            ClaimedName::Token(id) => (security.has_token(id), None),
        }
    }

    fn check(
        self,
        security: &Security,
        mechanism: ScramMechanism,
        text: &str,
    ) -> Result<SaslSuccess, SaslError> {
        let refused = SaslError::Refused;
        let (without_proof, proof) =
            text.rsplit_once(",p=").ok_or(refused("the final message has no proof"))?;
        let mut attributes = without_proof.split(',');
        let binding = attributes.next().and_then(|attribute| attribute.strip_prefix("c="));
        let nonce = attributes.next().and_then(|attribute| attribute.strip_prefix("r="));
        let (Some(binding), Some(nonce)) = (binding, nonce) else {
            return Err(refused("the final message does not read"));
        };
        if STANDARD.decode(binding).ok().as_deref() != Some(self.header.as_bytes()) {
            return Err(refused("the final message has another header than the first"));
        }
        // librdkafka before 2.6 repeats its own nonce in front. Kafka accepts that: the server's
        // nonce is at the end.
        if !nonce.ends_with(&self.nonce) {
            return Err(refused("the final message is to another challenge"));
        }
        let proof = STANDARD.decode(proof).map_err(|_| refused("the proof is not in base64"))?;
        let messages = format!("{},{without_proof}", self.messages);
        let is_right = self.credential.is_proof(mechanism, messages.as_bytes(), &proof);
        let (is_kept, login) = self.confirm(security, mechanism);
        if !(is_right && self.is_known && is_kept) {
            return Err(PasswordRefusal::Wrong.into());
        }
        let signature = self.credential.server_signature(mechanism, messages.as_bytes());
        let answer = format!("v={}", STANDARD.encode(signature)).into_bytes();
        let (principal, expires) = (self.principal, self.expires);
        Ok(SaslSuccess { principal, answer, expires, has_token: expires.is_some(), login })
    }
}

/// The first message of a client: `n,[a=NAME],n=NAME,r=NONCE[,EXTENSIONS]`.
#[derive(Debug, PartialEq, Eq)]
struct ClientFirst {
    /// `n,[a=NAME],`
    header: String,
    /// The message after the header.
    bare: String,
    /// The name of the user, or the id of the token.
    user: String,
    nonce: String,
    /// True if the client has a delegation token (KIP-48).
    has_token: bool,
}

impl ClientFirst {
    fn parse(text: &str) -> Result<ClientFirst, SaslError> {
        let malformed = || SaslError::Refused("the first message does not read");
        let rest = text.strip_prefix(NO_BINDING).ok_or_else(malformed)?;
        let (authzid, bare) = rest.split_once(',').ok_or_else(malformed)?;
        let authzid = match authzid {
            "" => None,
            text => Some(
                unescape(text.strip_prefix("a=").ok_or_else(malformed)?).ok_or_else(malformed)?,
            ),
        };
        let mut attributes = bare.split(',');
        let user =
            attributes.next().and_then(|attribute| attribute.strip_prefix("n=")).and_then(unescape);
        let nonce = attributes.next().and_then(|attribute| attribute.strip_prefix("r="));
        let (Some(user), Some(nonce)) = (user, nonce) else { return Err(malformed()) };
        let has_token = attributes.any(|attribute| attribute == TOKEN_EXTENSION);
        let is_printable = nonce.bytes().all(|byte| (0x21..0x7f).contains(&byte));
        if user.is_empty() || nonce.is_empty() || !is_printable {
            return Err(malformed());
        }
        if authzid.is_some_and(|name| name != user) {
            return Err(SaslError::Refused("nobody may act for somebody else"));
        }
        let header = text[..text.len() - bare.len()].to_owned();
        let (bare, nonce) = (bare.to_owned(), nonce.to_owned());
        Ok(ClientFirst { header, bare, user, nonce, has_token })
    }
}

/// A name in which `=2C` is a comma and `=3D` an equals sign.
fn unescape(name: &str) -> Option<String> {
    let mut pieces = name.split('=');
    let mut unescaped = pieces.next()?.to_owned();
    for piece in pieces {
        let (escaped, rest) = piece.split_at_checked(2)?;
        unescaped.push(match escaped {
            "2C" => ',',
            "3D" => '=',
            _ => return None,
        });
        unescaped.push_str(rest);
    }
    Some(unescaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_message_names_the_user() {
        let first = ClientFirst::parse("n,,n=a=2Cb=3Dc,r=xyz,tokenauth=false").unwrap();
        assert_eq!((&*first.user, &*first.nonce, &*first.header), ("a,b=c", "xyz", "n,,"));
        assert_eq!(first.bare, "n=a=2Cb=3Dc,r=xyz,tokenauth=false");
        assert!(!first.has_token);
        assert!(ClientFirst::parse("n,,n=u,r=x,tokenauth=true").unwrap().has_token);
        assert!(ClientFirst::parse("n,,n=u,r=x,a=b,tokenauth=true").unwrap().has_token);
        assert_eq!(ClientFirst::parse("n,a=u,n=u,r=x").unwrap().header, "n,a=u,");
        for message in [
            "",
            "n,",
            "n,,",
            "y,,n=u,r=x",
            "p=tls-unique,,n=u,r=x",
            "n,,n=,r=x",
            "n,,n=u,r=",
            "n,,n=u",
            "n,,r=x,n=u",
            "n,,n=u=,r=x",
            "n,,n=u=2,r=x",
            "n,,n=u=é,r=x",
            "n,,n=u,r=a b",
            "n,a=v,n=u,r=x",
            "n,v,n=u,r=x",
        ] {
            assert!(ClientFirst::parse(message).is_err(), "{message}");
        }
    }
}
