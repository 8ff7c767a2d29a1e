//! Bearer tokens: JSON Web Tokens (RFC 7519), signed with a key of a JSON Web Key Set (RFC 7517) in
//! a file or at a URL.

#![forbid(unsafe_code)]

mod error;
mod fetch;
mod key_set;
mod validator;

pub use error::TokenError;
pub use key_set::KeySource;
pub use validator::{BearerToken, TokenOptions, TokenValidator};
