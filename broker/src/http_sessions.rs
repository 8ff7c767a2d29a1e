//! Sessions of browsers: a cookie stands for a login until the session ends.
//!
//! The cookie goes to this site alone, from its own pages (`SameSite=Strict`), and no script reads
//! it (`HttpOnly`); over TLS it is never sent in the open (`__Host-`, `Secure`). A request with it
//! that changes something has to have the session's second secret too, in a header, which no page
//! of another site knows.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use admission::{Budget, BudgetKind, BudgetRegistry, BudgetSpec, Holder, SessionTable};
use axum::Extension;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use engine::security::{LoginCredentials, Principal, Security};
use history_api::HistoryApiError;
use history_documents::HistoryErrorCode;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use uuid::Uuid;

use crate::http_response::{refuse_with, respond};

/// The header with the second secret of a session.
pub(crate) const CSRF_HEADER: &str = "x-csrf-token";
/// The cookie over TLS: browsers take it from this host alone.
const SECURE_COOKIE: &str = "__Host-freezeframe";
/// The cookie in the open.
const OPEN_COOKIE: &str = "freezeframe";
/// The longest life of a session.
const SESSION_MAX: Duration = Duration::from_secs(8 * 60 * 60);
/// The longest life of a session that is not used.
const IDLE_MAX: Duration = Duration::from_secs(60 * 60);
/// The most sessions of one user. The least recently used one makes room.
const SESSIONS_OF_USER_MAX: usize = 20;
/// The most sessions. The least recently used one of the user with the most makes room.
const SESSIONS_MAX: u64 = 1000;
const SESSIONS: BudgetSpec = BudgetSpec {
    name: "http-sessions",
    unit: "sessions of browsers",
    setting: None,
    kind: BudgetKind::Yielding,
};

/// The way in which a client authenticated.
#[derive(Clone, Debug)]
pub(crate) enum LoginProof {
    /// By a name and a password: the user's credentials then.
    Password(LoginCredentials),
    /// By a token, which ends then.
    Token(SystemTime),
    /// By the cookie of a session.
    Session(Arc<HttpSession>),
    /// By the certificate of the connection.
    Certificate,
}

/// An authenticated user.
#[derive(Clone, Debug)]
pub(crate) struct LoggedIn {
    pub(crate) principal: Principal,
    pub(crate) proof: LoginProof,
}

impl LoggedIn {
    pub(crate) fn by_session(session: Arc<HttpSession>) -> LoggedIn {
        LoggedIn { principal: session.principal.clone(), proof: LoginProof::Session(session) }
    }
}

#[derive(Debug)]
pub(crate) struct HttpSession {
    id: String,
    principal: Principal,
    /// The second secret.
    csrf: String,
    /// `None` for one that began with a token.
    login: Option<LoginCredentials>,
    begun: Instant,
    begun_at: SystemTime,
    lasts: Duration,
}

impl HttpSession {
    /// True if it has lasted long enough, or was not used for long.
    fn has_ended(&self, used: Instant, now: Instant) -> bool {
        now.duration_since(self.begun) >= self.lasts || now.duration_since(used) >= IDLE_MAX
    }

    /// Checks the second secret that comes with a request.
    ///
    /// # Errors
    /// It is missing, or another one.
    pub(crate) fn check_change(&self, headers: &HeaderMap) -> Result<(), HistoryApiError> {
        let token = headers.get(CSRF_HEADER).map(HeaderValue::as_bytes);
        if token == Some(self.csrf.as_bytes()) {
            return Ok(());
        }
        let message = "a request with a cookie that changes something has the header X-CSRF-Token, with the csrf of GET /session";
        Err(HistoryApiError::new(HistoryErrorCode::Forbidden, message))
    }
}

/// Sessions by the secret in their cookies, ranked by the time of their last use.
type HttpSessionTable = SessionTable<String, Arc<HttpSession>, Instant>;

/// The sessions that there are, of all ports. A restart ends them.
#[derive(Debug)]
pub(crate) struct HttpSessions {
    budget: Arc<Budget>,
    table: Mutex<HttpSessionTable>,
}

impl Default for HttpSessions {
    fn default() -> HttpSessions {
        HttpSessions { budget: Budget::new(SESSIONS, SESSIONS_MAX), table: Mutex::default() }
    }
}

impl HttpSessions {
    /// Lists the budget.
    pub(crate) fn register(&self, budgets: &BudgetRegistry) {
        budgets.register(Arc::<Budget>::clone(&self.budget));
    }

    fn begin(&self, user: &LoggedIn) -> Result<Arc<HttpSession>, HistoryApiError> {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let (lasts, login) = match &user.proof {
            LoginProof::Password(login) => (SESSION_MAX, Some(login.clone())),
            LoginProof::Token(until) => {
                (until.duration_since(wall).unwrap_or_default().min(SESSION_MAX), None)
            }
            LoginProof::Session(_) | LoginProof::Certificate => {
                let message = "a session begins with a name and a password, or a token, in the header Authorization";
                return Err(HistoryApiError::new(HistoryErrorCode::BadRequest, message));
            }
        };
        let secret = || format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let session = Arc::new(HttpSession {
            id: secret(),
            principal: user.principal.clone(),
            csrf: secret(),
            login,
            begun: now,
            begun_at: wall,
            lasts,
        });
        let holder = Holder::principal(user.principal.as_str(), false);
        let mut sessions = self.table.lock();
        remove_ended(&mut sessions, now);
        let has_most = sessions.count_of(&holder) >= SESSIONS_OF_USER_MAX;
        let grant = if has_most && sessions.remove_lowest_of(&holder).is_some() {
            Ok(self.budget.take_always(&holder, 1))
        } else {
            self.budget.take_evicting(&holder, 1, |refusal| {
                let yields = refusal.yields.as_ref().unwrap_or(&holder);
                sessions.remove_lowest_of(yields).is_some()
            })
        };
        let grant = grant.map_err(|refusal| {
            HistoryApiError::new(HistoryErrorCode::TooManyRequests, refusal.to_string())
        })?;
        sessions.insert(session.id.clone(), Arc::clone(&session), grant, now);
        Ok(session)
    }

    /// The session of a cookie, if it has not ended.
    pub(crate) fn find(
        &self,
        security: &Security,
        headers: &HeaderMap,
        has_tls: bool,
    ) -> Option<Arc<HttpSession>> {
        let id = session_cookie(headers, has_tls)?;
        let now = Instant::now();
        let mut sessions = self.table.lock();
        let (session, used) = (Arc::clone(sessions.get(id)?), sessions.rank(id)?);
        let login = session.login.as_ref();
        let is_current = login.is_none_or(|login| security.state().is_current(login));
        if session.has_ended(used, now) || !is_current {
            sessions.remove(&session.id);
            return None;
        }
        sessions.set_rank(&session.id, now);
        Some(session)
    }

    fn end(&self, session: &HttpSession) {
        self.table.lock().remove(&session.id);
    }
}

/// Removes the sessions that have ended.
fn remove_ended(sessions: &mut HttpSessionTable, now: Instant) {
    let ended = sessions.iter().filter(|(_, session, used)| session.has_ended(*used, now));
    let ended: Vec<String> = ended.map(|(id, ..)| id.clone()).collect();
    for id in ended {
        sessions.remove(&id);
    }
}

/// The id in the one cookie of ours. Browsers keep those of a host's ports together, and over TLS
/// only one of its own counts: another host of its domain can plant the other one.
fn session_cookie(headers: &HeaderMap, has_tls: bool) -> Option<&str> {
    let cookie_name = if has_tls { SECURE_COOKIE } else { OPEN_COOKIE };
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies.filter_map(|cookies| cookies.to_str().ok());
    let pairs = cookies.flat_map(|cookies| cookies.split(';'));
    let pairs = pairs.filter_map(|pair| pair.trim().split_once('='));
    let mut cookies = pairs.filter(|(name, _)| *name == cookie_name);
    let (_, id) = cookies.next()?;
    cookies.next().is_none().then_some(id)
}

/// The connection and the sessions, as far as handlers need them.
#[derive(Clone, Debug)]
pub(crate) struct SessionContext {
    pub(crate) sessions: Arc<HttpSessions>,
    /// `None` for an anonymous client.
    pub(crate) user: Option<LoggedIn>,
    pub(crate) has_tls: bool,
}

impl SessionContext {
    /// The header that gives the browser its cookie, or takes it back.
    fn cookie(&self, id: &str, max_age: Duration) -> HeaderValue {
        let name = if self.has_tls { SECURE_COOKIE } else { OPEN_COOKIE };
        let mut text = format!(
            "{name}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}",
            max_age.as_secs()
        );
        if self.has_tls {
            write!(text, "; Secure").expect("memory takes it");
        }
        HeaderValue::from_str(&text).expect("it is plain text")
    }

    fn begin(&self) -> Result<Response, HistoryApiError> {
        let user = self.user.as_ref().ok_or_else(nobody)?;
        let session = self.sessions.begin(user)?;
        let mut response = respond(Ok(document(&session)));
        response.headers_mut().insert(header::SET_COOKIE, self.cookie(&session.id, session.lasts));
        Ok(response)
    }

    fn show(&self) -> Result<Response, HistoryApiError> {
        let user = self.user.as_ref().ok_or_else(nobody)?;
        let body = match &user.proof {
            LoginProof::Session(session) => document(session),
            _ => json!({ "principal": user.principal.as_str() }).to_string(),
        };
        Ok(respond(Ok(body)))
    }

    fn end(&self) -> Result<Response, HistoryApiError> {
        let user = self.user.as_ref().ok_or_else(nobody)?;
        let LoginProof::Session(session) = &user.proof else {
            let message = "no session comes with this request";
            return Err(HistoryApiError::new(HistoryErrorCode::BadRequest, message));
        };
        self.sessions.end(session);
        let mut response = axum::http::StatusCode::NO_CONTENT.into_response();
        response.headers_mut().insert(header::SET_COOKIE, self.cookie("", Duration::ZERO));
        Ok(response)
    }
}

fn nobody() -> HistoryApiError {
    let message =
        "say who you are: by a name and a password, or a token, in the header Authorization";
    HistoryApiError::new(HistoryErrorCode::Unauthorized, message)
}

fn document(session: &HttpSession) -> String {
    let ends_at = session.begun_at + session.lasts;
    let ends_ms = ends_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let principal = session.principal.as_str();
    json!({ "principal": principal, "csrf": session.csrf, "ends_ms": ends_ms as u64 }).to_string()
}

/// `/session`: show the user (GET), begin a session (POST), end it (DELETE).
pub(crate) fn session_methods<S: Clone + Send + Sync + 'static>() -> MethodRouter<S> {
    type Context = Option<Extension<SessionContext>>;
    fn with(
        context: Context,
        serve: fn(&SessionContext) -> Result<Response, HistoryApiError>,
    ) -> Response {
        let Some(Extension(context)) = context else {
            let message = "nobody is asked who they are here, so there are no sessions (authorizer.class.name)";
            return refuse_with(HistoryErrorCode::Conflict, message);
        };
        serve(&context).unwrap_or_else(|refusal| crate::http_response::refuse(&refusal))
    }
    get(async |context: Context| with(context, SessionContext::show))
        .post(async |context: Context| with(context, SessionContext::begin))
        .delete(async |context: Context| with(context, SessionContext::end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookies(texts: &[&str]) -> HeaderMap {
        let pair = |text: &&str| (header::COOKIE, HeaderValue::from_str(text).unwrap());
        texts.iter().map(pair).collect()
    }

    #[test]
    fn the_one_cookie_of_ours_is_found_among_others() {
        let two_cookies = cookies(&["a=b; __Host-freezeframe=x; c=d", "freezeframe=y"]);
        assert_eq!(session_cookie(&two_cookies, true), Some("x"));
        assert_eq!(session_cookie(&two_cookies, false), Some("y"));
        assert_eq!(session_cookie(&cookies(&["freezeframe=y"]), true), None);
        for cookie_headers in
            [&["a=b"][..], &[], &["freezeframe"], &["freezeframe=x; freezeframe=y"]]
        {
            assert_eq!(session_cookie(&cookies(cookie_headers), false), None, "{cookie_headers:?}");
        }
    }

    fn token_of(name: &str, lasts: Duration) -> LoggedIn {
        let principal = Principal::user(name);
        LoggedIn { principal, proof: LoginProof::Token(SystemTime::now() + lasts) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_with_many_sessions_ends_its_own_and_first_those_that_are_over() {
        let (sessions, hour) = (HttpSessions::default(), Duration::from_secs(60 * 60));
        let is_open = |session: &HttpSession| sessions.table.lock().contains(&session.id);
        let begin = |name: &str, lasts| sessions.begin(&token_of(name, lasts)).unwrap();
        let (of_other, first) = (begin("alice", hour), begin("bob", hour));
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..2 * SESSIONS_OF_USER_MAX {
            begin("bob", Duration::ZERO);
        }
        assert!(is_open(&first), "the others are over");
        for _ in 0..SESSIONS_OF_USER_MAX {
            begin("bob", hour);
        }
        assert!(!is_open(&first) && is_open(&of_other));
        let bob = Holder::principal(Principal::user("bob").as_str(), false);
        assert_eq!(sessions.table.lock().count_of(&bob), SESSIONS_OF_USER_MAX);
        assert_eq!(sessions.budget.held(&bob), SESSIONS_OF_USER_MAX as u64);
    }
}
