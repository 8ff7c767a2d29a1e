//! OAUTHBEARER (RFC 7628, KIP-255): a token that somebody trusted has signed says who the client
//! is.

use bearer_tokens::TokenValidator;
use engine::security::Principal;

use super::{SaslError, SaslStep, SaslSuccess};

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
    pub(super) async fn step(
        &mut self,
        tokens: Option<&TokenValidator>,
        message: &[u8],
    ) -> Result<SaslStep, SaslError> {
        if let Some(why) = self.refusal.take() {
            return Err(SaslError::Told(why));
        }
        let (for_whom, token) = parse(message)?;
        let tokens = tokens.ok_or(SaslError::Refused("there are no keys for tokens"))?;
        let checked = tokens.validate(token).await;
        let refused = match checked {
            Ok(found) if for_whom.is_none_or(|name| name == found.subject) => {
                return Ok(SaslStep::Done(SaslSuccess {
                    principal: Principal::user(&found.subject),
                    answer: Vec::new(),
                    expires: Some(found.expires),
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

/// The user for whom a client wants to act, if it names one, and its token.
fn parse(message: &[u8]) -> Result<(Option<&str>, &str), SaslError> {
    let bad = || SaslError::Refused("the message does not read");
    let text = std::str::from_utf8(message).map_err(|_| bad())?;
    let (header, rest) = text.split_once(SEPARATOR).ok_or_else(bad)?;
    let for_whom = match header.strip_prefix("n,").and_then(|rest| rest.strip_suffix(',')) {
        Some("") => None,
        Some(name) => Some(name.strip_prefix("a=").ok_or_else(bad)?),
        None => return Err(bad()),
    };
    let pairs = rest.strip_suffix(SEPARATOR).ok_or_else(bad)?;
    let pairs = pairs.strip_suffix(SEPARATOR).ok_or_else(bad)?;
    let mut token = None;
    for pair in pairs.split(SEPARATOR) {
        let (name, value) = pair.split_once('=').ok_or_else(bad)?;
        if name == "auth" {
            let (scheme, given) = value.split_once(' ').ok_or_else(bad)?;
            if !scheme.eq_ignore_ascii_case("bearer") || token.is_some() {
                return Err(bad());
            }
            token = Some(given.trim());
        }
    }
    Ok((for_whom, token.filter(|token| !token.is_empty()).ok_or_else(bad)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_token() {
        let parsed = |text: &str| {
            parse(text.as_bytes()).map(|(who, token)| (who.map(str::to_owned), token.to_owned()))
        };
        assert_eq!(parsed("n,,\u{1}auth=Bearer a.b.c\u{1}\u{1}"), Ok((None, "a.b.c".to_owned())));
        assert_eq!(
            parsed("n,a=alice,\u{1}auth=bearer x\u{1}logicalCluster=1\u{1}\u{1}"),
            Ok((Some("alice".to_owned()), "x".to_owned()))
        );
        for bad in [
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
            assert!(parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(parse(b"n,,\x01auth=Bearer \xff\x01\x01").is_err());
    }
}
