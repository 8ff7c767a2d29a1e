//! PLAIN (RFC 4616): a name and a password in the clear, so only over TLS.

use std::net::IpAddr;

use engine::security::{Principal, Security};

use crate::{SaslError, SaslStep, SaslSuccess};

pub(crate) async fn check_plain(
    security: &Security,
    address: IpAddr,
    message: &[u8],
) -> Result<SaslStep, SaslError> {
    let (name, password) = parse(message)?;
    let login = security.check_password(name, password, address).await?;
    Ok(SaslStep::Done(SaslSuccess {
        principal: Principal::user(name),
        answer: Vec::new(),
        expires: None,
        has_token: false,
        login: Some(login),
    }))
}

/// The name and the password of `[authzid] NUL authcid NUL passwd`.
fn parse(message: &[u8]) -> Result<(&str, &str), SaslError> {
    let text =
        std::str::from_utf8(message).map_err(|_| SaslError::Refused("the message is not UTF-8"))?;
    let mut fields = text.split('\0');
    let (Some(authzid), Some(name), Some(password), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(SaslError::Refused("the message has not three parts"));
    };
    if name.is_empty() || password.is_empty() {
        return Err(SaslError::Refused("there is no name, or no password"));
    }
    if !authzid.is_empty() && authzid != name {
        return Err(SaslError::Refused("nobody may act for somebody else"));
    }
    Ok((name, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_name_and_a_password() {
        assert_eq!(parse(b"\0alice\0secret"), Ok(("alice", "secret")));
        assert_eq!(parse(b"alice\0alice\0secret"), Ok(("alice", "secret")));
        for message in [
            &b""[..],
            b"alice",
            b"\0alice",
            b"\0alice\0",
            b"\0\0secret",
            b"bob\0alice\0secret",
            b"\0alice\0secret\0more",
            b"\0\xff\0secret",
        ] {
            assert!(parse(message).is_err(), "{message:?}");
        }
    }
}
