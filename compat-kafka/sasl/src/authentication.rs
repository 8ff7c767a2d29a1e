//! The identity of a connection's client, and the state of SASL there.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use engine::security::{LoginCredentials, Requester, Security};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::{SaslError, SaslExchange, SaslMechanism, SaslOptions, SaslStep, SaslSuccess};

/// The longest session. Java's clients count its nanoseconds in 64 bits.
const SESSION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The state of SASL on a connection.
#[derive(Debug, Default)]
enum SaslPhase {
    /// The client has not chosen a mechanism, at all or again.
    #[default]
    Begin,
    /// Messages of this mechanism follow.
    Exchange(SaslMechanism, Box<SaslExchange>),
    /// It was refused.
    Failed,
}

/// The identity of a connection's client.
#[derive(Debug)]
pub struct Authentication {
    /// The ways in which the client has to authenticate; `None` for a port without authentication.
    options: Option<SaslOptions>,
    requester: RwLock<Arc<Requester>>,
    /// It is never held while an exchange computes.
    state: Mutex<AuthenticationState>,
}

#[derive(Debug, Default)]
struct AuthenticationState {
    phase: SaslPhase,
    /// True if the client has ever authenticated.
    is_done: bool,
    /// The mechanism of the authentication. A re-authentication has to use the same one, as in
    /// Kafka.
    mechanism: Option<SaslMechanism>,
    /// True if the client showed a delegation token.
    has_token: bool,
    /// The credentials of a user that logged in by a password.
    login: Option<LoginCredentials>,
    /// Messages of the exchange come without headers (SaslHandshake of version 0).
    is_bare: bool,
    /// The time by which the client has to re-authenticate.
    expires: Option<Instant>,
}

/// The answer to a message of SASL, and the length of the session.
#[derive(Debug, PartialEq, Eq)]
pub struct SaslOutcome {
    pub answer: Vec<u8>,
    /// The time until the client has to re-authenticate; zero if nothing limits it.
    pub session: Duration,
}

impl Authentication {
    /// `requester` is the client before it authenticates.
    pub fn new(options: Option<SaslOptions>, requester: Requester) -> Authentication {
        let (requester, state) = (RwLock::new(Arc::new(requester)), Mutex::default());
        Authentication { options, requester, state }
    }

    pub fn requester(&self) -> Arc<Requester> {
        Arc::clone(&self.requester.read())
    }

    /// The ways in which the client authenticates, if it has to.
    pub fn options(&self) -> Option<&SaslOptions> {
        self.options.as_ref()
    }

    /// True if the client may send any request.
    pub fn is_done(&self) -> bool {
        self.options.is_none() || self.state.lock().is_done
    }

    /// True if the client has authenticated by a delegation token.
    pub fn has_token(&self) -> bool {
        self.options.is_some() && self.state.lock().has_token
    }

    /// The credentials that the client had at its login, if it logged in by a password.
    pub fn login(&self) -> Option<LoginCredentials> {
        self.state.lock().login.clone()
    }

    /// True if re-authentication is overdue.
    pub fn is_expired(&self) -> bool {
        self.options.is_some()
            && self.state.lock().expires.is_some_and(|expires| expires <= Instant::now())
    }

    /// True if the connection ends with the answers that it was given.
    pub fn has_failed(&self) -> bool {
        self.options.is_some() && matches!(self.state.lock().phase, SaslPhase::Failed)
    }

    /// True if the next frame is a message of an exchange, without a header.
    pub fn expects_bare_message(&self) -> bool {
        if self.options.is_none() {
            return false;
        }
        let state = self.state.lock();
        state.is_bare && matches!(state.phase, SaslPhase::Exchange(..))
    }

    /// Begins an exchange. `is_bare` says whether its messages come without headers.
    ///
    /// # Errors
    /// The mechanism is not offered; the connection ends.
    pub fn begin(&self, mechanism: &str, is_bare: bool) -> Result<(), SaslError> {
        let options = self.options.as_ref().expect("the port has SASL");
        let mut state = self.state.lock();
        let offered = SaslMechanism::named(mechanism);
        match offered.filter(|mechanism| options.mechanisms.contains(mechanism)) {
            Some(mechanism) => {
                state.phase =
                    SaslPhase::Exchange(mechanism, Box::new(SaslExchange::new(mechanism)));
                state.is_bare = is_bare;
                Ok(())
            }
            None => {
                state.phase = SaslPhase::Failed;
                Err(SaslError::Refused("the mechanism is not offered"))
            }
        }
    }

    /// True if an exchange has begun and not ended.
    pub fn is_under_way(&self) -> bool {
        matches!(self.state.lock().phase, SaslPhase::Exchange(..))
    }

    /// True if the next message of the exchange has a token in it.
    pub fn expects_token(&self) -> bool {
        matches!(self.state.lock().phase, SaslPhase::Exchange(SaslMechanism::OauthBearer, _))
    }

    /// Answers a message of the exchange.
    ///
    /// # Errors
    /// In words for the client; the connection ends.
    pub async fn step(&self, security: &Security, message: &[u8]) -> Result<SaslOutcome, String> {
        let options = self.options.as_ref().expect("the port has SASL");
        // An exchange that is abandoned here has failed.
        let phase = std::mem::replace(&mut self.state.lock().phase, SaslPhase::Failed);
        let SaslPhase::Exchange(mechanism, mut exchange) = phase else {
            return Err("no exchange of SASL has begun".to_owned());
        };
        let earlier = self.state.lock().mechanism;
        if let Some(earlier) = earlier.filter(|earlier| *earlier != mechanism) {
            return Err(format!(
                "SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of mechanism '{earlier}'"
            ));
        }
        let requester = self.requester();
        let address = requester.address();
        let step = match exchange.step(security, options, address, message).await {
            Ok(SaslStep::Continue(answer)) => {
                self.state.lock().phase = SaslPhase::Exchange(mechanism, exchange);
                return Ok(SaslOutcome { answer, session: Duration::ZERO });
            }
            Ok(SaslStep::Done(success)) => self.finish(options, mechanism, success),
            Err(error) => Err(error),
        };
        if let Err(error) = &step {
            security.audit().record_login_failure(requester.host(), mechanism, &error.to_string());
            delay_refusal(options).await;
        }
        step.map_err(|error| match error {
            SaslError::Told(message) => message,
            SaslError::Refused(_) | SaslError::Password(_) if mechanism == SaslMechanism::Plain => {
                "Authentication failed: Invalid username or password".to_owned()
            }
            SaslError::Refused(_) | SaslError::Password(_) => format!(
                "Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
            ),
        })
    }

    /// Ends an exchange in the middle of which the client sends something else.
    pub async fn abandon(&self, security: &Security) {
        let options = self.options.as_ref().expect("the port has SASL");
        self.state.lock().phase = SaslPhase::Failed;
        let requester = self.requester();
        let why = "the client sends a request in the middle of its login";
        security.audit().record_login_failure(requester.host(), "SASL", why);
        delay_refusal(options).await;
    }

    fn finish(
        &self,
        options: &SaslOptions,
        mechanism: SaslMechanism,
        success: SaslSuccess,
    ) -> Result<SaslOutcome, SaslError> {
        let SaslSuccess { principal, answer, expires, has_token, login } = success;
        let until_expiry =
            expires.map(|at| at.duration_since(SystemTime::now()).unwrap_or_default());
        let session = match (until_expiry, options.reauthentication_max) {
            (Some(expiry), Some(max)) => Some(expiry.min(max)),
            (expiry, max) => expiry.or(max),
        };
        let session = session.map(|session| session.min(SESSION_MAX));
        let mut state = self.state.lock();
        let mut requester = self.requester.write();
        if state.is_done && requester.principal != principal {
            return Err(SaslError::Told(format!(
                "Cannot change principals during re-authentication from {} to {principal}",
                requester.principal
            )));
        }
        if requester.principal != principal {
            *requester = Arc::new(requester.with_principal(principal));
        }
        let expires = session.map(|session| Instant::now() + session);
        *state = AuthenticationState {
            is_done: true,
            mechanism: Some(mechanism),
            has_token,
            login,
            expires,
            ..AuthenticationState::default()
        };
        Ok(SaslOutcome { answer, session: session.unwrap_or_default() })
    }
}

/// Lets a client wait for its refusal. A timer takes a millisecond at least, so none is started for
/// no time.
async fn delay_refusal(options: &SaslOptions) {
    if !options.failure_delay.is_zero() {
        tokio::time::sleep(options.failure_delay).await;
    }
}
