//! SASL: clients authenticate before anything else on a connection, and again later (KIP-43,
//! KIP-152, KIP-368).
//!
//! An exchange computes its hashes without a lock, and a refusal is delayed. There are no frames
//! here: [`Authentication`] gets the bytes of messages.

#![forbid(unsafe_code)]

mod authentication;
mod oauth_bearer;
mod plain;
mod scram;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bearer_tokens::TokenValidator;
use engine::security::{LoginCredentials, PasswordRefusal, Principal, ScramMechanism, Security};

pub use authentication::Authentication;
use oauth_bearer::OauthBearerExchange;
use plain::check_plain;
use scram::ScramExchange;

/// A mechanism, by Kafka's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SaslMechanism {
    Plain,
    Scram(ScramMechanism),
    OauthBearer,
}

impl SaslMechanism {
    /// All mechanisms that are served.
    pub const ALL: [SaslMechanism; 4] = [
        SaslMechanism::OauthBearer,
        SaslMechanism::Plain,
        SaslMechanism::Scram(ScramMechanism::Sha256),
        SaslMechanism::Scram(ScramMechanism::Sha512),
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            SaslMechanism::OauthBearer => "OAUTHBEARER",
            SaslMechanism::Plain => "PLAIN",
            SaslMechanism::Scram(mechanism) => mechanism.as_str(),
        }
    }

    /// The mechanism of that name, if it is served.
    pub fn named(name: &str) -> Option<SaslMechanism> {
        SaslMechanism::ALL.into_iter().find(|mechanism| mechanism.as_str() == name)
    }
}

impl fmt::Display for SaslMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The authentication of the clients of a port. Names in parentheses are Kafka's settings.
#[derive(Clone, Debug)]
pub struct SaslOptions {
    /// (`sasl.enabled.mechanisms`)
    pub mechanisms: BTreeSet<SaslMechanism>,
    /// The time after which a client has to re-authenticate (`connections.max.reauth.ms`).
    pub reauthentication_max: Option<Duration>,
    /// The longest message of a client that has not authenticated, in bytes
    /// (`sasl.server.max.receive.size`).
    pub receive_bytes_max: usize,
    /// The delay of a refusal (`connection.failed.authentication.delay.ms`).
    pub failure_delay: Duration,
    /// Checks the tokens of [`SaslMechanism::OauthBearer`].
    pub tokens: Option<Arc<TokenValidator>>,
}

impl Default for SaslOptions {
    fn default() -> SaslOptions {
        SaslOptions {
            mechanisms: BTreeSet::from(
                [ScramMechanism::Sha256, ScramMechanism::Sha512].map(SaslMechanism::Scram),
            ),
            reauthentication_max: None,
            receive_bytes_max: 512 << 10,
            failure_delay: Duration::from_millis(100),
            tokens: None,
        }
    }
}

/// The reason that an authentication failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaslError {
    /// A password is wrong, or not checked.
    #[error(transparent)]
    Password(#[from] PasswordRefusal),
    /// In words for the log, without secrets.
    #[error("{0}")]
    Refused(&'static str),
    /// In words for the client too.
    #[error("{0}")]
    Told(String),
}

/// An exchange of messages.
#[derive(Debug)]
pub(crate) enum SaslExchange {
    Plain,
    Scram(ScramExchange),
    OauthBearer(OauthBearerExchange),
}

/// The answer of the server to a message of the client.
pub(crate) enum SaslStep {
    /// The exchange goes on with this answer.
    Continue(Vec<u8>),
    /// The client is this principal.
    Done(SaslSuccess),
}

pub(crate) struct SaslSuccess {
    pub(crate) principal: Principal,
    pub(crate) answer: Vec<u8>,
    /// The time at which the credential that the client showed expires by itself.
    pub(crate) expires: Option<SystemTime>,
    /// True if the client showed a delegation token.
    pub(crate) has_token: bool,
    /// The credentials of a user that logged in by a password.
    pub(crate) login: Option<LoginCredentials>,
}

impl SaslExchange {
    pub(crate) fn new(mechanism: SaslMechanism) -> SaslExchange {
        match mechanism {
            SaslMechanism::OauthBearer => SaslExchange::OauthBearer(OauthBearerExchange::default()),
            SaslMechanism::Plain => SaslExchange::Plain,
            SaslMechanism::Scram(mechanism) => SaslExchange::Scram(ScramExchange::new(mechanism)),
        }
    }

    /// Answers a message of a client at this address.
    pub(crate) async fn step(
        &mut self,
        security: &Security,
        options: &SaslOptions,
        address: IpAddr,
        message: &[u8],
    ) -> Result<SaslStep, SaslError> {
        match self {
            SaslExchange::OauthBearer(exchange) => {
                exchange.step(options.tokens.as_deref(), message).await
            }
            SaslExchange::Plain => check_plain(security, address, message).await,
            SaslExchange::Scram(exchange) => exchange.step(security, address, message).await,
        }
    }
}
