//! OAUTHBEARER (RFC 7628, KIP-255): a token that somebody trusted has signed says who the client
//! is.

use bearer_tokens::TokenValidator;
use engine::security::Principal;

use crate::{SaslError, SaslStep, SaslSuccess};

/// The separator of the parts of a message.
const SEPARATOR: char = '\u{1}';
/// The answer to a token that is refused. The client says that it saw it, and the exchange ends.
const REFUSAL: &[u8] = br#"{"status":"invalid_token"}"#;

#[derive(Debug, Default)]
pub(crate) struct OauthBearerExchange {
    /// The reason of the refusal, once the token was refused.
    refusal: Option<String>,
}

impl OauthBearerExchange {
    pub(crate) async fn step(
        &mut self,
        tokens: Option<&TokenValidator>,
        message: &[u8],
    ) -> Result<SaslStep, SaslError> {
        if let Some(message) = self.refusal.take() {
            return Err(SaslError::Told(message));
        }
        let (authzid, token) = parse(message)?;
        let tokens = tokens.ok_or(SaslError::Refused("there are no keys for tokens"))?;
        let checked = tokens.validate(token).await;
        let refused = match checked {
            Ok(claims) if authzid.is_none_or(|name| name == claims.subject) => {
                return Ok(SaslStep::Done(SaslSuccess {
                    principal: Principal::user(&claims.subject),
                    answer: Vec::new(),
                    expires: Some(claims.expires),
                    has_token: false,
                    login: None,
                }));
            }
            Ok(_) => "the client asks to act for somebody else".to_owned(),
            Err(error) => error.to_string(),
        };
        self.refusal = Some(refused);
        Ok(SaslStep::Continue(REFUSAL.to_vec()))
    }
}

/// The authorization identity that a client names, if any, and its token.
fn parse(message: &[u8]) -> Result<(Option<&str>, &str), SaslError> {
    let malformed = || SaslError::Refused("the message does not read");
    let text = std::str::from_utf8(message).map_err(|_| malformed())?;
    let (header, rest) = text.split_once(SEPARATOR).ok_or_else(malformed)?;
    let authzid = match header.strip_prefix("n,").and_then(|rest| rest.strip_suffix(',')) {
        Some("") => None,
        Some(name) => Some(name.strip_prefix("a=").ok_or_else(malformed)?),
        None => return Err(malformed()),
    };
    let pairs = rest.strip_suffix(SEPARATOR).ok_or_else(malformed)?;
    let pairs = pairs.strip_suffix(SEPARATOR).ok_or_else(malformed)?;
    let mut token = None;
    for pair in pairs.split(SEPARATOR) {
        let (name, value) = pair.split_once('=').ok_or_else(malformed)?;
        if name == "auth" {
            let (scheme, bearer) = value.split_once(' ').ok_or_else(malformed)?;
            if !scheme.eq_ignore_ascii_case("bearer") || token.is_some() {
                return Err(malformed());
            }
            token = Some(bearer.trim());
        }
    }
    Ok((authzid, token.filter(|token| !token.is_empty()).ok_or_else(malformed)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_token() {
        let parsed = |text: &str| {
            parse(text.as_bytes())
                .map(|(authzid, token)| (authzid.map(str::to_owned), token.to_owned()))
        };
        assert_eq!(parsed("n,,\u{1}auth=Bearer a.b.c\u{1}\u{1}"), Ok((None, "a.b.c".to_owned())));
        assert_eq!(
            parsed("n,a=alice,\u{1}auth=bearer x\u{1}logicalCluster=1\u{1}\u{1}"),
            Ok((Some("alice".to_owned()), "x".to_owned()))
        );
        for message in [
            "",
            "\u{1}",
            "n,,",
            "n,,\u{1}\u{1}\u{1}",
            "n,,\u{1}auth=Bearer x",
            "n,,\u{1}auth=Bearer x\u{1}",
            "n,,\u{1}auth=Bearer \u{1}\u{1}",
            "n,,\u{1}auth=Basic x\u{1}\u{1}",
            "n,,\u{1}auth=Bearer x\u{1}auth=Bearer y\u{1}\u{1}",
            "n,,\u{1}other=x\u{1}\u{1}",
            "y,,\u{1}auth=Bearer x\u{1}\u{1}",
            "n,alice,\u{1}auth=Bearer x\u{1}\u{1}",
        ] {
            assert!(parse(message.as_bytes()).is_err(), "{message:?}");
        }
        assert!(parse(b"n,,\x01auth=Bearer \xff\x01\x01").is_err());
    }
}
