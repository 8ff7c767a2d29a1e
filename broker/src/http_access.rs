//! Authentication and authorization over HTTP. Every route declares the access that it requires,
//! and is served through this module.
//!
//! Without an authorizer, requests are not authenticated. With one, a client authenticates by a
//! name and password of SASL (Basic, RFC 7617), by a token (RFC 6750), by the cookie of a session
//! that began with one of them, or by a certificate. Any other client is `User:ANONYMOUS`, and is
//! challenged where that user is refused.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use admission::Holder;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::MethodRouter;
use bearer_tokens::TokenValidator;
use engine::security::{Operation, Principal, Requester, Resource, Security};
use futures_util::StreamExt;
use history_api::{HistoryAccess, HistoryApiError};
use history_documents::{Base64Bytes, DOCUMENT_BYTES_MAX, HistoryErrorCode};

use crate::http_connections::RequestsUnderWay;
use crate::http_response::{refuse, refuse_with};
use crate::http_sessions::{HttpSessions, LoggedIn, LoginProof, SessionContext};
use crate::status::ServerStatus;

/// The delay of the answer to a wrong password.
const FAILURE_DELAY: Duration = Duration::from_millis(100);
/// The header that asks browsers and tools for a name and a password.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"freezeframe\"");

/// The access that a route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteAccess {
    /// Nothing: it is for supervisors, and tells nothing of anybody's data.
    Open,
    /// This operation on the cluster.
    Cluster(Operation),
    /// The rights that the handler asks for, by what the request is about.
    History,
    /// No right: clients authenticate here.
    Login,
}

/// A path that is served.
pub(crate) struct HttpRoute {
    pub(crate) path: &'static str,
    pub(crate) access: RouteAccess,
    pub(crate) methods: MethodRouter<Arc<ServerStatus>>,
}

impl HttpRoute {
    /// Its methods, behind its access check.
    pub(crate) fn guarded(self, http: &HttpAccess) -> MethodRouter<Arc<ServerStatus>> {
        match self.access {
            RouteAccess::Open => self.methods,
            access => {
                let guard = RouteGuard { http: http.clone(), access };
                self.methods.route_layer(from_fn_with_state(guard, check))
            }
        }
    }
}

/// The address that a connection comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerAddress(pub(crate) IpAddr);

/// The principal of a connection's client by its certificate, if it showed one.
#[derive(Clone, Debug)]
pub(crate) struct CertifiedUser(pub(crate) Option<Principal>);

/// The client of a request. Handlers behind a guard get it.
#[derive(Clone, Debug)]
pub(crate) struct HttpRequester(Arc<Requester>);

impl HttpRequester {
    /// Its rights by the rules of `security`.
    pub(crate) fn history_access(&self, security: &Arc<Security>) -> HistoryAccess {
        HistoryAccess::new(Arc::clone(security), Arc::clone(&self.0))
    }

    /// Refuses it if it may not do this to the cluster.
    ///
    /// # Errors
    /// `unauthorized`, and what is missing.
    pub(crate) fn require(
        &self,
        security: &Security,
        operation: Operation,
    ) -> Result<(), HistoryApiError> {
        let cluster = Resource::CLUSTER;
        if security.authorize_named(&self.0, operation, cluster) {
            return Ok(());
        }
        let Resource { kind, name } = cluster;
        let message = format!("no rule allows {operation} on {kind} {name}");
        Err(HistoryApiError::new(HistoryErrorCode::Unauthorized, message))
    }
}

/// The authorization of requests over HTTP.
#[derive(Clone, Debug)]
pub(crate) struct HttpAccess {
    /// False if requests are not authorized at all.
    pub(crate) is_enabled: bool,
    pub(crate) status: Arc<ServerStatus>,
    /// Checks the tokens of clients, if any are taken.
    pub(crate) tokens: Option<Arc<TokenValidator>>,
    pub(crate) sessions: Arc<HttpSessions>,
}

#[derive(Clone, Debug)]
struct RouteGuard {
    http: HttpAccess,
    access: RouteAccess,
}

/// Authenticates a request, and refuses it if its user may not make it.
async fn check(State(guard): State<RouteGuard>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<PeerAddress>();
    let PeerAddress(address) = *peer.expect("every connection has the address of its peer");
    let anonymous = Requester::new(Principal::anonymous(), address);
    if !guard.http.is_enabled {
        request.extensions_mut().insert(HttpRequester(Arc::new(anonymous)));
        return answer(&guard, &Holder::address(address), request, next).await;
    }
    let server = match guard.http.status.started() {
        Ok(server) => server,
        Err(refusal) => return refuse(&refusal),
    };
    let security = server.engine.security();
    let certified = request.extensions().get::<CertifiedUser>();
    let has_tls = certified.is_some();
    let certified = certified.and_then(|CertifiedUser(user)| user.clone());
    let certified =
        certified.map(|principal| LoggedIn { principal, proof: LoginProof::Certificate });
    let tokens = guard.http.tokens.as_deref();
    let user = match authenticate(security, request.headers(), tokens, address).await {
        Ok(Some(user)) => Some(user),
        Ok(None) => match guard.http.sessions.find(security, request.headers(), has_tls) {
            Some(session) => Some(LoggedIn::by_session(session)),
            None => certified,
        },
        Err(refusal) => return challenge(refuse(&refusal)),
    };
    if let Some(LoggedIn { proof: LoginProof::Session(session), .. }) = &user
        && !request.method().is_safe()
        && let Err(refusal) = session.check_change(request.headers())
    {
        return refuse(&refusal);
    }
    let is_anonymous = user.is_none();
    let principal = user.as_ref().map(|user| user.principal.clone());
    let requester = principal.map_or(anonymous.clone(), |user| anonymous.with_principal(user));
    let holder = security.holder(&requester);
    let requester = HttpRequester(Arc::new(requester));
    let allowed = match guard.access {
        RouteAccess::Cluster(operation) => requester.require(security, operation),
        RouteAccess::Open | RouteAccess::History | RouteAccess::Login => Ok(()),
    };
    if guard.access == RouteAccess::Login {
        let sessions = Arc::clone(&guard.http.sessions);
        let context = SessionContext { sessions, user, has_tls };
        request.extensions_mut().insert(context);
    }
    request.extensions_mut().insert(requester);
    let response = match allowed {
        Ok(()) => answer(&guard, &holder, request, next).await,
        Err(refusal) => refuse(&refusal),
    };
    let is_refused = response.extensions().get() == Some(&HistoryErrorCode::Unauthorized);
    if is_anonymous && is_refused { challenge(response) } else { response }
}

/// Answers a request once its body has arrived, unless its holder has too many. One counts until the
/// client has taken the answer.
async fn answer(guard: &RouteGuard, holder: &Holder, request: Request, next: Next) -> Response {
    let requests = request.extensions().get::<RequestsUnderWay>();
    let requests = requests.expect("every connection counts its requests").clone();
    let request = match read_body(request).await {
        Ok(request) => request,
        Err(refusal) => return refuse(&refusal),
    };
    let under_way = requests.begin();
    let grant = match guard.http.status.http_connections().begin_request(holder) {
        Ok(grant) => grant,
        Err(error) => return refuse_with(HistoryErrorCode::TooManyRequests, error.to_string()),
    };
    under_way.until_taken(grant, next.run(request).await)
}

/// Reads the body of a request.
async fn read_body(request: Request) -> Result<Request, HistoryApiError> {
    let (head, body) = request.into_parts();
    let (mut pieces, mut bytes) = (body.into_data_stream(), Vec::new());
    while let Some(chunk) = pieces.next().await {
        let chunk = chunk.map_err(|error| {
            HistoryApiError::new(HistoryErrorCode::BadRequest, error.to_string())
        })?;
        if bytes.len() + chunk.len() > DOCUMENT_BYTES_MAX {
            let message = format!("a document is not longer than {DOCUMENT_BYTES_MAX} bytes");
            return Err(HistoryApiError::new(HistoryErrorCode::TooLarge, message));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Request::from_parts(head, Body::from(bytes)))
}

/// Asks for a name and a password.
fn challenge(mut response: Response) -> Response {
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    response.headers_mut().insert(header::WWW_AUTHENTICATE, CHALLENGE);
    response
}

/// The user that a request says it comes from, by a name and a password or by a token; `None` if it
/// does not say.
async fn authenticate(
    security: &Security,
    headers: &HeaderMap,
    tokens: Option<&TokenValidator>,
    address: IpAddr,
) -> Result<Option<LoggedIn>, HistoryApiError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(credentials) = values.next() else { return Ok(None) };
    let is_one = values.next().is_none();
    let token = if is_one { parse_bearer(credentials) } else { None };
    if let Some((tokens, token)) = tokens.zip(token) {
        return match tokens.validate(token).await {
            Ok(claims) => Ok(Some(LoggedIn {
                principal: Principal::user(&claims.subject),
                proof: LoginProof::Token(claims.expires),
            })),
            Err(error) => Err(refuse_login(security, address, &error.to_string()).await),
        };
    }
    let basic = if is_one { parse_basic(credentials) } else { None };
    let reason = match basic {
        Some((name, password)) => {
            match security.check_password(&name, &password, address).await {
                Ok(login) => {
                    let (principal, proof) = (Principal::user(&name), LoginProof::Password(login));
                    return Ok(Some(LoggedIn { principal, proof }));
                }
                Err(refusal) => refusal.to_string(),
            }
        }
        None if token.is_some() => "this server takes no tokens".to_owned(),
        None => {
            "the header Authorization has one name and password, as Basic has them, or a token, as Bearer has it".to_owned()
        }
    };
    Err(refuse_login(security, address, &reason).await)
}

/// Counts and delays a refusal.
async fn refuse_login(security: &Security, address: IpAddr, reason: &str) -> HistoryApiError {
    security.audit().record_login_failure(&address.to_canonical().to_string(), "HTTP", reason);
    tokio::time::sleep(FAILURE_DELAY).await;
    HistoryApiError::new(HistoryErrorCode::Unauthorized, reason)
}

/// The token in `Bearer TOKEN`.
fn parse_bearer(credentials: &HeaderValue) -> Option<&str> {
    let (scheme, token) = credentials.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim())
}

/// The name and the password in `Basic` and the base64 of `NAME:PASSWORD`.
fn parse_basic(credentials: &HeaderValue) -> Option<(String, String)> {
    let (scheme, encoded) = credentials.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("Basic") {
        return None;
    }
    let Base64Bytes(bytes) = Base64Bytes::try_from(encoded.trim().to_owned()).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (name, password) = text.split_once(':')?;
    let is_whole = !name.is_empty() && !password.is_empty();
    is_whole.then(|| (name.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_a_name_and_a_password_in_base64() {
        let parse = |text: &str| parse_basic(&HeaderValue::from_str(text).unwrap());
        let alice = Some(("alice".to_owned(), "se:cret".to_owned()));
        assert_eq!(parse("Basic YWxpY2U6c2U6Y3JldA=="), alice);
        assert_eq!(parse("basic  YWxpY2U6c2U6Y3JldA=="), alice);
        for header in [
            "",
            "Basic",
            "Basic ",
            "Basic ?",
            "Basic YWxpY2U=",
            "Basic YWxpY2U6",
            "Basic OnNlY3JldA==",
            "Basic /zo=",
            "Bearer YWxpY2U6c2U6Y3JldA==",
        ] {
            assert_eq!(parse(header), None, "{header}");
        }
    }
}
