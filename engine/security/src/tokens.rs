//! Delegation tokens (KIP-48): an authenticated client gets a token, and others authenticate with
//! it as that client for a while.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use scram::{ScramCredential, ScramMechanism, random_bytes};

use crate::entry::{Actor, SecurityChange};
use crate::error::SecurityError;
use crate::security::Security;
use crate::state::{LoginCredentials, SecurityState};
use crate::token::{DelegationToken, OWN_TOKENS_MAX, SECRET_BYTES, TOKENS_MAX, TokenKey};

/// The reason that a token is not renewed or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRefusal {
    Unknown,
    Expired,
    /// It is neither theirs nor theirs to renew.
    NotTheirs,
    /// There are as many as there may be.
    TooMany,
    /// The password by which the requester logged in has been replaced or removed since.
    StaleLogin,
}

/// The number of delegation tokens that ended with the password of each user. Has an entry for each
/// user of whom a credential was replaced or removed.
pub type EndedTokens = BTreeMap<String, usize>;

/// The tokens that end with the credentials that `changes` replace or remove.
fn end_tokens(
    state: &SecurityState,
    changes: &[SecurityChange],
    now_ms: u64,
) -> (Vec<SecurityChange>, EndedTokens) {
    let (mut removed, mut ended) = (BTreeMap::new(), EndedTokens::new());
    for change in changes {
        let (user, mechanism) = match change {
            SecurityChange::CredentialSet { user, mechanism, .. }
            | SecurityChange::CredentialRemoved { user, mechanism } => (user, *mechanism),
            _ => continue,
        };
        if state.credential(user, mechanism).is_none() || ended.contains_key(user) {
            continue;
        }
        let tokens = state.tokens_of(user);
        let live = tokens.filter(|(id, token)| {
            removed.insert((*id).clone(), SecurityChange::TokenRemoved { id: (*id).clone() });
            !token.is_expired(now_ms)
        });
        ended.insert(user.clone(), live.count());
    }
    (removed.into_values().collect(), ended)
}

/// The change of the time at which a token expires.
#[derive(Clone, Copy, Debug)]
pub enum TokenExpiry {
    /// At this time, or earlier if it may not live as long.
    At(u64),
    /// Now, and it is forgotten.
    Now,
}

impl Security {
    /// The key of tokens, if there are any.
    pub fn token_key(&self) -> Option<&TokenKey> {
        self.options().token_key.as_ref()
    }

    /// Changes credentials. If a credential of a user is replaced or removed, this ends the
    /// delegation tokens that the user owns or has requested: a thief of the old password may have
    /// one.
    ///
    /// # Errors
    /// As [`Security::change`].
    pub async fn change_users<T: Send + 'static>(
        self: &Arc<Security>,
        by: Actor,
        decide: impl FnOnce(&SecurityState) -> (Vec<SecurityChange>, T) + Send + 'static,
    ) -> Result<(T, EndedTokens), SecurityError> {
        let now = self.wall_now().0;
        self.change(by, move |state| {
            let (mut changes, result) = decide(state);
            let (removed, ended) = end_tokens(state, &changes, now);
            changes.extend(removed);
            (changes, (result, ended))
        })
        .await
    }

    /// Makes a token; returns its id. Expired tokens are forgotten. `login` has the credentials
    /// that its requester logged in by, if it did by a password.
    ///
    /// # Errors
    /// There would be too much, or the disk fails.
    pub async fn create_token(
        self: &Arc<Security>,
        by: Actor,
        token: DelegationToken,
        login: Option<LoginCredentials>,
    ) -> Result<Result<String, TokenRefusal>, SecurityError> {
        let id = URL_SAFE_NO_PAD.encode(random_bytes::<16>());
        let new = id.clone();
        let created = self.change(by, move |state| {
            if login.is_some_and(|login| !state.is_current(&login)) {
                return (Vec::new(), Err(TokenRefusal::StaleLogin));
            }
            let expired =
                state.tokens().iter().filter(|(_, other)| other.is_expired(token.issued_ms));
            let expired = expired.map(|(id, _)| SecurityChange::TokenRemoved { id: id.clone() });
            let mut changes: Vec<SecurityChange> = expired.collect();
            let is_own = |other: &&DelegationToken| {
                other.requester == token.requester && !other.is_expired(token.issued_ms)
            };
            let own_tokens = state.tokens().values().filter(is_own);
            let is_full = state.tokens().len() - changes.len() >= TOKENS_MAX;
            if is_full || own_tokens.count() >= OWN_TOKENS_MAX {
                return (changes, Err(TokenRefusal::TooMany));
            }
            changes.push(SecurityChange::TokenSet { id: new, token });
            (changes, Ok(()))
        });
        Ok(created.await?.map(|()| id))
    }

    /// Changes the expiry of the token with this secret, if the caller may. Returns the new expiry.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn expire_token(
        self: &Arc<Security>,
        by: Actor,
        secret: Vec<u8>,
        expiry: TokenExpiry,
    ) -> Result<Result<u64, TokenRefusal>, SecurityError> {
        if secret.len() != SECRET_BYTES {
            return Ok(Err(TokenRefusal::Unknown));
        }
        let (key, now) = (self.token_key().cloned(), self.wall_now().0);
        let principal = by.principal.clone();
        self.change(by, move |state| {
            let mut tokens = state.tokens().iter();
            let is_meant = |id: &str| key.as_ref().is_some_and(|key| key.is_secret_of(id, &secret));
            let Some((id, token)) = tokens.find(|(id, _)| is_meant(id)) else {
                return (Vec::new(), Err(TokenRefusal::Unknown));
            };
            if !token.may_renew(&principal) {
                return (Vec::new(), Err(TokenRefusal::NotTheirs));
            }
            match expiry {
                TokenExpiry::Now => {
                    (vec![SecurityChange::TokenRemoved { id: id.clone() }], Ok(now))
                }
                TokenExpiry::At(_) if token.is_expired(now) => {
                    (Vec::new(), Err(TokenRefusal::Expired))
                }
                TokenExpiry::At(at) => {
                    let expires_ms = at.min(token.max_ms);
                    let token = DelegationToken { expires_ms, ..token.clone() };
                    (vec![SecurityChange::TokenSet { id: id.clone(), token }], Ok(expires_ms))
                }
            }
        })
        .await
    }

    /// Returns true if there is a delegation token of this id, which has not expired.
    pub fn has_token(&self, id: &str) -> bool {
        let now = self.wall_now().0;
        self.state().tokens().get(id).is_some_and(|token| !token.is_expired(now))
    }

    /// The SCRAM credential of a client that has the token of this id, and the token, if there is
    /// one that has not expired. Without, it takes as long and is never right.
    pub async fn token_credential(
        &self,
        id: &str,
        mechanism: ScramMechanism,
        address: IpAddr,
    ) -> Option<(ScramCredential, Option<DelegationToken>)> {
        let key = self.token_key()?.clone();
        let now = self.wall_now().0;
        let token = self.state().tokens().get(id).filter(|token| !token.is_expired(now)).cloned();
        let (id, salt) = (id.to_owned(), self.logins().token_salt(id));
        let turn = self.logins().password_turn(address).await;
        let hashing = tokio::task::spawn_blocking(move || {
            // It is over when this is, also if the client has gone.
            let _turn = turn;
            key.credential(&id, mechanism, salt)
        });
        Some((hashing.await.ok()?, token))
    }
}
