//! PLAIN (RFC 4616): a name and a password in the clear, so only over TLS.
//!
//! No password is stored. What is stored for SCRAM says whether it is the right one, after thousands of hashes.
//! They run on a thread that may block, few at a time, so that wrong passwords at full speed keep nobody else
//! from being served.

use engine::security::{Principal, ScramMechanism};

use super::{SaslError, SaslStep, SaslSuccess};
use crate::core::KafkaServer;

pub(super) async fn check_plain(
    kafka: &KafkaServer,
    message: &[u8],
) -> Result<SaslStep, SaslError> {
    let (name, password) = parse(message)?;
    let found = {
        let state = kafka.engine.security().state();
        // The cheaper one first.
        let mechanisms = [ScramMechanism::Sha256, ScramMechanism::Sha512].into_iter();
        mechanisms
            .filter_map(|mechanism| Some((mechanism, state.credential(name, mechanism)?.clone())))
            .next()
    };
    // The same work for a user that is not there.
    let is_known = found.is_some();
    let (mechanism, credential) = found.unwrap_or_else(|| kafka.logins.unknown_user(name));
    let _permit = kafka.logins.password_check_permit().await;
    let password = password.to_owned();
    let checking =
        tokio::task::spawn_blocking(move || credential.is_password(mechanism, &password));
    let is_right = checking.await.unwrap_or(false);
    if !(is_known && is_right) {
        return Err(SaslError::Refused("the user or the password is wrong"));
    }
    let principal = Principal::user(name);
    Ok(SaslStep::Done(SaslSuccess { principal, answer: Vec::new(), expires: None }))
}

/// The name and the password of `[authzid] NUL authcid NUL passwd`.
fn parse(message: &[u8]) -> Result<(&str, &str), SaslError> {
    let text =
        std::str::from_utf8(message).map_err(|_| SaslError::Refused("the message is not UTF-8"))?;
    let mut parts = text.split('\0');
    let (Some(for_whom), Some(name), Some(password), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(SaslError::Refused("the message has not three parts"));
    };
    if name.is_empty() || password.is_empty() {
        return Err(SaslError::Refused("there is no name, or no password"));
    }
    if !for_whom.is_empty() && for_whom != name {
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
        for bad in [
            &b""[..],
            b"alice",
            b"\0alice",
            b"\0alice\0",
            b"\0\0secret",
            b"bob\0alice\0secret",
            b"\0alice\0secret\0more",
            b"\0\xff\0secret",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
