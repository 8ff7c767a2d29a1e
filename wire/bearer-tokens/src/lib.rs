//! Bearer tokens: JSON Web Tokens (RFC 7519) that somebody trusted has signed, whose keys are a
//! JSON Web Key Set (RFC 7517) in a file or at a URL.

#![forbid(unsafe_code)]

mod error;
mod fetch;
mod key_set;
mod validator;

pub use error::TokenError;
pub use key_set::KeySource;
pub use validator::{BearerToken, TokenOptions, TokenValidator};
