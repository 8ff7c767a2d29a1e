//! The admin port: health, readiness, metrics, confirming the clock, and questions about the past.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use compat_kafka::HistoryErrorCode;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::http_answer::refuse_with;
use crate::http_hosts::HttpHosts;
use crate::status::{Status, Why};
use crate::{api, http_hosts, metrics};

type Shared = State<Arc<Status>>;

/// Answers until `stop` turns true, and then whatever was asked before.
pub(crate) async fn serve(
    status: Arc<Status>,
    hosts: HttpHosts,
    listener: TcpListener,
    mut stop: watch::Receiver<bool>,
) {
    let routes = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(read_metrics))
        .route("/clock/confirm", post(confirm_clock))
        .merge(api::routes())
        .fallback(nowhere)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(hosts, http_hosts::check))
        .with_state(status);
    let stopped = async move {
        let _ = stop.wait_for(|stop| *stop).await;
    };
    if let Err(error) = axum::serve(listener, routes).with_graceful_shutdown(stopped).await {
        tracing::error!(%error, "the admin port ended");
    }
}

/// Whoever tries the port in a browser learns what there is.
async fn nowhere() -> Response {
    let there_is = "there is /healthz, /readyz, /metrics, and /v1/cut, diff, topics, groups, offsets, pins; POST: /clock/confirm, /v1";
    refuse_with(HistoryErrorCode::UnknownPath, there_is)
}

/// The header `Allow` says which method is right.
async fn wrong_method(method: Method) -> Response {
    let what = format!("this path is not for {method}: see the header Allow");
    refuse_with(HistoryErrorCode::MethodNotAllowed, what)
}

async fn healthz(State(status): Shared) -> Response {
    verdict(status.health().map(|()| None))
}

async fn readyz(State(status): Shared) -> Response {
    verdict(status.readiness())
}

fn verdict(verdict: Result<Option<String>, Why>) -> Response {
    match verdict {
        Ok(None) => "ok\n".into_response(),
        Ok(Some(warning)) => format!("ok\n{warning}\n").into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn read_metrics(State(status): Shared) -> Response {
    // It counts the catalog's groups, on disk.
    match tokio::task::spawn_blocking(move || metrics::text(&status)).await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Ok(Err(_)) | Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn confirm_clock(State(status): Shared, headers: HeaderMap) -> Response {
    // It has no body; a form has one, also when it is empty.
    if headers.contains_key(header::CONTENT_TYPE) && !api::is_json(&headers) {
        let what = "send no body, or one with the header Content-Type: application/json";
        return refuse_with(HistoryErrorCode::UnsupportedMediaType, what);
    }
    let Some(parts) = status.parts() else {
        return verdict(Err("starting: there is no clock yet".to_owned()));
    };
    match parts.engine.timekeeper().confirm() {
        Some(fence) => (StatusCode::CONFLICT, format!("still fenced: {fence}\n")).into_response(),
        None => {
            tracing::info!("an operator confirmed the clock over HTTP");
            "confirmed\n".into_response()
        }
    }
}
