//! Authentication by SASL.

use std::time::Duration;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::{SaslAuthenticateRequest, SaslHandshakeRequest};
use kafka_protocol::protocol::StrBytes;
use scram::{ScramClient, ScramMechanism};
use tls::Secret;

use crate::ClientError;
use crate::connection::ServerConnection;

/// The SASL mechanism by which a password is shown to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginMechanism {
    /// In the clear: only over TLS.
    Plain,
    /// By a proof that we know it.
    Scram(ScramMechanism),
}

impl LoginMechanism {
    /// All of them.
    pub const ALL: [LoginMechanism; 3] = [
        LoginMechanism::Scram(ScramMechanism::Sha512),
        LoginMechanism::Scram(ScramMechanism::Sha256),
        LoginMechanism::Plain,
    ];

    /// The name, as SASL has it.
    pub fn as_str(self) -> &'static str {
        match self {
            LoginMechanism::Plain => "PLAIN",
            LoginMechanism::Scram(mechanism) => mechanism.as_str(),
        }
    }
}

/// A name and a password.
#[derive(Clone, Debug)]
pub struct ClientLogin {
    /// The name.
    pub user: String,
    /// The password.
    pub password: Secret,
    /// The mechanism by which the password is shown.
    pub mechanism: LoginMechanism,
}

impl ServerConnection {
    /// Authenticates. This comes before all requests but the request for versions.
    pub(crate) async fn log_in(
        &mut self,
        login: &ClientLogin,
        patience: Duration,
    ) -> Result<(), ClientError> {
        let name = login.mechanism.as_str();
        let request =
            SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str(name));
        let answer = self.call_unstamped(&request, patience).await?;
        match ResponseError::try_from_code(answer.error_code) {
            None => {}
            Some(ResponseError::UnsupportedSaslMechanism) => {
                let offered: Vec<&str> = answer.mechanisms.iter().map(|name| &**name).collect();
                let offered = offered.join(", ");
                let reason = format!(
                    "it does not offer {name}; give one of these with --sasl-mechanism: {offered}"
                );
                return Err(self.login_error(login, reason));
            }
            Some(ResponseError::IllegalSaslState) => {
                let reason = "it asks nobody for a name and a password at this port";
                return Err(self.login_error(login, reason.to_owned()));
            }
            Some(error) => return Err(ClientError::kafka("log in", error, None)),
        }
        let password = login.password.expose();
        match login.mechanism {
            LoginMechanism::Plain => {
                let message = format!("\0{}\0{password}", login.user);
                self.show(login, message.into_bytes(), patience).await.map(drop)
            }
            LoginMechanism::Scram(mechanism) => {
                let client = ScramClient::new(mechanism, &login.user);
                let first = client.first_message().into_bytes();
                let challenge = self.show(login, first, patience).await?;
                let final_message = client.final_message(password, &challenge);
                let (last, expected) =
                    final_message.map_err(|error| self.login_error(login, error.to_string()))?;
                let proof = self.show(login, last.into_bytes(), patience).await?;
                expected.check(&proof).map_err(|error| self.login_error(login, error.to_string()))
            }
        }
    }

    /// Sends a message of the exchange; returns what the server says to it.
    async fn show(
        &mut self,
        login: &ClientLogin,
        message: Vec<u8>,
        patience: Duration,
    ) -> Result<Vec<u8>, ClientError> {
        let request = SaslAuthenticateRequest::default().with_auth_bytes(message.into());
        let answer = self.call_unstamped(&request, patience).await?;
        if answer.error_code == 0 {
            return Ok(answer.auth_bytes.to_vec());
        }
        let reason = answer.error_message.map(|reason| reason.to_string());
        let reason = reason.unwrap_or_else(|| format!("error {}", answer.error_code));
        Err(self.login_error(login, reason))
    }

    fn login_error(&self, login: &ClientLogin, reason: String) -> ClientError {
        ClientError::Login {
            address: self.address().to_owned(),
            user: login.user.clone(),
            why: reason,
        }
    }
}
