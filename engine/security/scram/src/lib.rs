//! SCRAM (RFC 5802, RFC 7677): passwords that are proved and not sent. For servers and clients; it
//! knows no wire.

#![forbid(unsafe_code)]

mod client;
mod credential;

pub use client::{ScramClient, ScramClientError};
pub use credential::{
    ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential, ScramMechanism, random_bytes,
};
