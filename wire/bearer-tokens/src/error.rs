//! Reasons to refuse a token.

/// In words without anything that the token has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("the token does not read")]
    Malformed,
    #[error("the token is signed by an algorithm that is not accepted; RSA, ECDSA and Ed25519 are")]
    Algorithm,
    #[error("the token is signed by a key that is not known")]
    UnknownKey,
    #[error("the token's signature is wrong")]
    Signature,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
    #[error("the token is for another audience")]
    Audience,
    #[error("the token is from another issuer")]
    Issuer,
    #[error("the token lacks the claim {0}")]
    MissingClaim(String),
    #[error("the keys that sign tokens cannot be read for now")]
    NoKeys,
}
