//! TLS for servers and clients: keys and trusted certificates from PEM or PKCS#12 files, which may
//! change while a server runs, and principals from client certificates.
//!
//! The protocol is rustls with aws-lc.

#![forbid(unsafe_code)]

mod client;
mod distinguished_name;
mod error;
mod kernel;
mod record_handshake;
mod server;
mod socket;
mod stores;
mod suites;

pub use client::{TlsClient, TlsClientOptions};
pub use distinguished_name::subject_name;
pub use error::{StoreError, TlsError};
pub use kernel::probe_kernel_tls;
pub use server::{
    ClientAuthentication, PreparedTls, TlsOptions, TlsServer, TlsStream, TlsVersion,
    all_cipher_suites, client_name,
};
pub use socket::TlsSocket;
pub use stores::{Secret, StoreFile};
