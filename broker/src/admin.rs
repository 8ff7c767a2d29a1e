//! The admin port: health, readiness, metrics, clock confirmation, and the history API.
//!
//! A supervisor that gets no answer assumes that the server is dead, so no client may keep others
//! out. When all connections are taken, an idle one makes room ([`crate::http_connections`]). The
//! head of a request must arrive within `HEADER_READ_MAX`. No connection, however slowly it sends
//! or reads, lasts longer than `CONNECTION_AGE_MAX` plus `LAST_RESPONSE_MAX`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state, map_response};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use compat_zk::ZkServer;
use engine::security::{Operation, Principal, PrincipalRules};
use futures_util::future::{AbortHandle, Abortable};
use history_api::HistoryApiError;
use history_documents::HistoryErrorCode;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use tls::{TlsServer, client_name};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};

use crate::home_page::home_page;
use crate::http_access::{
    CertifiedUser, HttpAccess, HttpRequester, HttpRoute, PeerAddress, RouteAccess,
};
use crate::http_hosts::HttpHosts;
use crate::http_response::{compression, harden, refuse, refuse_with};
use crate::http_sessions::session_methods;
use crate::metrics::MetricsFormat;
use crate::process::build_target;
use crate::status::{ServerStatus, UnhealthyReason};
use crate::{api, http_contents, http_hosts, metrics, traces};

type StatusState = State<Arc<ServerStatus>>;

/// The time limit of the head of a request, including the first one.
const HEADER_READ_MAX: Duration = Duration::from_secs(10);
/// The age up to which a connection may send new requests.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(60);
/// The time limit of the last request and its response. A request for a moment that is not final
/// yet waits up to 60 s.
const LAST_RESPONSE_MAX: Duration = Duration::from_secs(90);
/// The pause after `accept` fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` turns true, then finishes the requests in progress.
pub(crate) async fn serve(
    access: HttpAccess,
    hosts: HttpHosts,
    listener: TcpListener,
    tls: Option<HttpTls>,
    mut stop: watch::Receiver<bool>,
) {
    let table = Arc::clone(access.status.http_connections());
    let routes = routes(access, hosts);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        while connections.try_join_next().is_some() {}
        let Ok((stream, peer)) = accepted.inspect_err(|error| {
            tracing::debug!(%error, "a connection to the admin port was not accepted");
        }) else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (handle, registration) = AbortHandle::new_pair();
        let place = match table.open(peer.ip(), handle) {
            Ok(place) => place,
            Err(error) => {
                tracing::debug!(%peer, %error, "a connection to the admin port was refused");
                continue;
            }
        };
        let routes = routes
            .clone()
            .layer(Extension(place.requests().clone()))
            .layer(Extension(PeerAddress(peer.ip())));
        let (tls, stop) = (tls.clone(), stop.clone());
        let serving = async move {
            let _place = place;
            match tls {
                None => serve_connection(stream, routes, stop).await,
                Some(tls) => serve_over_tls(tls, stream, routes, stop).await,
            }
        };
        let serving = Abortable::new(serving, registration);
        connections.spawn(async move {
            let _ended_or_made_room = serving.await;
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// The TLS server of a port, and the rules that make principals of its clients' certificates.
#[derive(Clone, Debug)]
pub(crate) struct HttpTls {
    pub(crate) server: Arc<TlsServer>,
    pub(crate) principal_rules: PrincipalRules,
}

/// Shakes hands, and serves the connection.
async fn serve_over_tls(
    tls: HttpTls,
    stream: TcpStream,
    routes: Router,
    stop: watch::Receiver<bool>,
) {
    let accepted = tokio::time::timeout(HEADER_READ_MAX, tls.server.accept(stream)).await;
    let named_stream = accepted.unwrap_or_else(|slow| Err(slow.into())).and_then(|stream| {
        let name = client_name(&stream)?;
        Ok((stream, name))
    });
    match named_stream {
        Ok((stream, name)) => {
            let user = name.map(|name| Principal::user(&tls.principal_rules.apply(&name)));
            serve_connection(stream, routes.layer(Extension(CertifiedUser(user))), stop).await;
        }
        Err(error) => tracing::debug!(%error, "no connection to the admin port"),
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    routes: Router,
    mut stop: watch::Receiver<bool>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let mut connection = pin!(connection);
    tokio::select! {
        // It does not matter how a client disconnects.
        _ = connection.as_mut() => return,
        _ = stop.wait_for(|stop| *stop) => {}
        () = tokio::time::sleep(CONNECTION_AGE_MAX) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(LAST_RESPONSE_MAX, connection).await;
}

fn routes(access: HttpAccess, hosts: HttpHosts) -> Router {
    let status = Arc::clone(&access.status);
    let routes = served_routes()
        .into_iter()
        .fold(Router::new(), |router, route| router.route(route.path, route.guarded(&access)));
    routes
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(hosts, http_hosts::check))
        .layer(compression())
        .layer(map_response(harden))
        .layer(from_fn(traces::trace_request))
        .with_state(status)
}

/// Every path, with the access that it requires.
pub(crate) fn served_routes() -> Vec<HttpRoute> {
    let describe = RouteAccess::Cluster(Operation::Describe);
    let alter = RouteAccess::Cluster(Operation::Alter);
    let rows = [
        ("/healthz", RouteAccess::Open, get(healthz)),
        ("/livez", RouteAccess::Open, get(healthz)),
        ("/readyz", RouteAccess::Open, get(readyz)),
        ("/", RouteAccess::Open, get(home_page)),
        ("/version", describe, get(version)),
        ("/session", RouteAccess::Login, session_methods()),
        ("/metrics", describe, get(read_metrics)),
        ("/metrics/clients", describe, get(read_client_metrics)),
        ("/metrics/zookeeper", describe, get(read_zookeeper_metrics)),
        ("/clock/confirm", alter, post(confirm_clock)),
        ("/commands", describe, get(list_commands)),
        ("/commands/{command}", describe, get(run_command)),
    ];
    let rows = rows.into_iter().map(|(path, access, methods)| HttpRoute { path, access, methods });
    rows.chain(api::routes()).chain(http_contents::routes()).collect()
}

/// Lists the paths, for a person who opens the port in a browser.
async fn not_found() -> Response {
    let paths: Vec<&str> = served_routes().iter().map(|route| route.path).collect();
    let message = format!("there is {}; /v1/openapi.json says more", paths.join(", "));
    refuse_with(HistoryErrorCode::UnknownPath, message)
}

/// The header `Allow` names the right method.
async fn method_not_allowed(method: Method) -> Response {
    let message = format!("this path is not for {method}: see the header Allow");
    refuse_with(HistoryErrorCode::MethodNotAllowed, message)
}

async fn healthz(State(status): StatusState) -> Response {
    health_response(status.health().map(|()| None))
}

async fn readyz(State(status): StatusState) -> Response {
    health_response(status.readiness())
}

/// The version of the program, the format of its data directories, and what it was built for.
async fn version() -> Response {
    let document = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "format": storage::FORMAT_VERSION,
        "build": build_target(),
    });
    ([(header::CONTENT_TYPE, "application/json")], format!("{document}\n")).into_response()
}

fn health_response(verdict: Result<Option<String>, UnhealthyReason>) -> Response {
    match verdict {
        Ok(None) => "ok\n".into_response(),
        Ok(Some(warning)) => format!("ok\n{warning}\n").into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

/// The number of pages that are rendered at once.
static RENDERS: Semaphore = Semaphore::const_new(2);

/// Makes a page on a thread of its own.
async fn render<T: Send + 'static>(
    make: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let turn = RENDERS.acquire().await.expect("the semaphore is never closed");
    let make = move || {
        // It is over when this is, also if the client has gone.
        let _turn = turn;
        make()
    };
    tokio::task::spawn_blocking(make).await
}

async fn read_metrics(State(status): StatusState, headers: HeaderMap) -> Response {
    // It counts the catalog's groups, which reads the disk.
    metrics_page(&headers, move || metrics::encode_text(&status)).await
}

async fn read_client_metrics(State(status): StatusState, headers: HeaderMap) -> Response {
    metrics_page(&headers, move || metrics::encode_clients(&status)).await
}

async fn read_zookeeper_metrics(State(status): StatusState, headers: HeaderMap) -> Response {
    // mntr counts open files, so it lists a directory.
    metrics_page(&headers, move || metrics::encode_zookeeper(&status)).await
}

/// A page of metrics in the format that its reader accepts.
async fn metrics_page(
    headers: &HeaderMap,
    encode: impl FnOnce() -> Result<String, std::fmt::Error> + Send + 'static,
) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = MetricsFormat::accepted(accept.unwrap_or_default());
    match render(move || Ok::<_, std::fmt::Error>(format.of_open_metrics(encode()?))).await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Ok(Err(_)) | Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The commands of ZooKeeper's AdminServer, as links.
async fn list_commands() -> Html<String> {
    let link = |name| format!("<a href=\"/commands/{name}\">{name}</a>\n<br/>\n");
    Html(ZkServer::admin_commands().map(link).collect())
}

/// True if the browser says that it asks for a page of another origin.
fn is_from_another_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    site.is_some_and(|site| site != b"same-origin" && site != b"none")
}

async fn run_command(
    State(status): StatusState,
    Extension(who): Extension<HttpRequester>,
    UrlPath(command): UrlPath<String>,
    headers: HeaderMap,
) -> Response {
    if ZkServer::is_changing_command(&command) && is_from_another_site(&headers) {
        let message = "a page of another site does not change anything here";
        return refuse(&HistoryApiError::new(HistoryErrorCode::Forbidden, message));
    }
    if ZkServer::is_changing_command(&command)
        && let Some(server) = status.parts()
        && let Err(refusal) = who.require(server.engine.security(), Operation::Alter)
    {
        return refuse(&refusal);
    }
    let server = status.parts().and_then(|server| server.zookeeper.clone());
    let document = match server {
        // It may read an index, and lists files.
        Some(server) => render(move || server.admin_command(&command)).await,
        None => Ok(json!({
            "command": command,
            "error": "This ZooKeeper instance is not currently serving requests",
        })),
    };
    match document {
        Ok(document) => {
            let headers = [(header::CONTENT_TYPE, "application/json")];
            (headers, format!("{document:#}\n")).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn confirm_clock(State(status): StatusState, headers: HeaderMap) -> Response {
    // The request has no body. A form has a content type, even when it is empty.
    if headers.contains_key(header::CONTENT_TYPE) && !api::is_json(&headers) {
        let message = "send no body, or one with the header Content-Type: application/json";
        return refuse_with(HistoryErrorCode::UnsupportedMediaType, message);
    }
    let Some(server) = status.parts() else {
        return health_response(Err("starting: there is no clock yet".to_owned()));
    };
    match server.engine.timekeeper().confirm() {
        Some(fence) => (StatusCode::CONFLICT, format!("still fenced: {fence}\n")).into_response(),
        None => {
            tracing::info!("an operator confirmed the clock over HTTP");
            "confirmed\n".into_response()
        }
    }
}
