//! Questions about the past over HTTP: the documents of Kafka's extension API, with HTTP's own ways of
//! saying how it went. `docs/OPERATING.md` lists them.
//!
//! `POST /v1` takes any document. `GET /v1/<op>?field=value` asks what only reads, and makes the
//! document of the query. Every answer is JSON; a refusal is the API's own, beside a status.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use compat_kafka::Refusal;
use serde_json::{Map, Value, json};

use crate::status::Status;

/// What may be asked with GET: it changes nothing.
const READS: [&str; 6] = ["cut", "diff", "topics", "groups", "offsets", "pins"];
/// The longest document.
const BODY_BYTES_MAX: usize = 1 << 20;

pub(crate) fn routes() -> Router<Arc<Status>> {
    Router::new()
        .route("/v1", post(ask))
        .route("/v1/{op}", get(read))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

async fn ask(
    State(status): State<Arc<Status>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    // A browser says which page asks: no page has any business here.
    if headers.contains_key(header::ORIGIN) {
        return refused(StatusCode::FORBIDDEN, "forbidden", "not for web pages");
    }
    let body = match body {
        Ok(body) => body,
        Err(rejection) => {
            return refused(rejection.status(), "bad_request", &rejection.body_text());
        }
    };
    match serde_json::from_slice(&body) {
        Ok(document) => answer(&status, document).await,
        Err(error) => {
            refused(StatusCode::BAD_REQUEST, "bad_request", &format!("not JSON: {error}"))
        }
    }
}

async fn read(
    State(status): State<Arc<Status>>,
    Path(op): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    if !READS.contains(&op.as_str()) {
        let message = format!("there is {}, and POST /v1 for the rest", READS.join(", "));
        return refused(StatusCode::NOT_FOUND, "unknown_op", &message);
    }
    match document(&op, query.as_deref().unwrap_or_default()) {
        Ok(document) => answer(&status, document).await,
        Err(message) => refused(StatusCode::BAD_REQUEST, "bad_request", &message),
    }
}

async fn answer(status: &Status, document: Value) -> Response {
    let Some(parts) = status.parts() else {
        let message = "the data directory is being opened";
        return refused(StatusCode::SERVICE_UNAVAILABLE, "starting", message);
    };
    respond(compat_kafka::ask_text(&parts.kafka, document).await)
}

fn refused(status: StatusCode, code: &str, message: &str) -> Response {
    let error = json!({ "error": { "code": code, "message": message, "frontier": null } });
    (status, JSON, error.to_string()).into_response()
}

const JSON: [(header::HeaderName, &str); 2] =
    [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];

fn respond(answer: Result<String, Refusal>) -> Response {
    match answer {
        Ok(text) => (JSON, text + "\n").into_response(),
        Err(refusal) => {
            refusal_response(refusal.code(), refusal.retry_ms(), refusal.document() + "\n")
        }
    }
}

fn refusal_response(code: &str, retry_ms: Option<u64>, text: String) -> Response {
    let mut response = (status_of(code), JSON, text).into_response();
    if let Some(retry_ms) = retry_ms {
        // In whole seconds, and rather late than early.
        response.headers_mut().insert(header::RETRY_AFTER, retry_ms.div_ceil(1000).max(1).into());
    }
    response
}

fn status_of(code: &str) -> StatusCode {
    match code {
        "not_yet" => StatusCode::TOO_EARLY,
        "before_history" => StatusCode::GONE,
        "pin_taken" | "group_active" | "group_busy" => StatusCode::CONFLICT,
        code if code.starts_with("too_many_") => StatusCode::CONFLICT,
        "fenced" => StatusCode::SERVICE_UNAVAILABLE,
        "far_future" => StatusCode::BAD_REQUEST,
        code if code.starts_with("bad_") => StatusCode::BAD_REQUEST,
        code if code.starts_with("unknown_") => StatusCode::NOT_FOUND,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The document of a query. Its fields are texts, but for numbers, and for lists with commas between.
fn document(op: &str, query: &str) -> Result<Value, String> {
    let mut fields = Map::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decoded(name)?, decoded(value)?);
        let field = match name.as_str() {
            "patience_ms" | "limit" => {
                let number: Result<u64, _> = value.parse();
                json!(number.map_err(|_| format!("not a number. {name}={value}"))?)
            }
            "topics" | "only" => json!(value.split(',').collect::<Vec<_>>()),
            _ => json!(value),
        };
        if name == "op" || fields.insert(name.clone(), field).is_some() {
            return Err(format!("once is enough. field={name}"));
        }
    }
    fields.insert("op".to_owned(), json!(op));
    Ok(Value::Object(fields))
}

/// Takes percent-encoding back. A plus stands for itself, as in a time with a zone: no field has spaces.
fn decoded(text: &str) -> Result<String, String> {
    let bad = || format!("not percent-encoded text. text={text}");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let high = digit().ok_or_else(bad)?;
        let low = digit().ok_or_else(bad)?;
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_becomes_the_document_that_asks_the_same() {
        let query = "at=s2026-11-21T10:00:00%2b01:00&topics=a,b&when=refuse&patience_ms=5";
        let expected = json!({
            "op": "cut",
            "at": "s2026-11-21T10:00:00+01:00",
            "topics": ["a", "b"],
            "when": "refuse",
            "patience_ms": 5,
        });
        assert_eq!(document("cut", query), Ok(expected.clone()));
        assert_eq!(document("cut", &query.replace("%2b", "+")), Ok(expected));
        assert_eq!(document("pins", ""), Ok(json!({"op": "pins"})));
        for query in ["at=1&at=2", "op=pin", "limit=x", "at=%", "at=%2", "at=%zz", "at=%ff"] {
            assert!(document("cut", query).is_err(), "{query}");
        }
    }

    #[test]
    fn a_refusal_has_the_status_that_http_has_for_it() {
        for (code, status) in [
            ("bad_moment", 400),
            ("bad_request", 400),
            ("far_future", 400),
            ("unknown_topic", 404),
            ("unknown_group", 404),
            ("group_active", 409),
            ("before_history", 410),
            ("not_yet", 425),
            ("internal", 500),
            ("fenced", 503),
        ] {
            let response = refusal_response(code, Some(1001), String::new());
            assert_eq!(response.status().as_u16(), status, "{code}");
            assert_eq!(response.headers()[header::RETRY_AFTER], "2");
        }
        assert_eq!(respond(Ok("{}".to_owned())).status(), StatusCode::OK);
        let refusal = Refusal::new("unknown_topic", "it is not there");
        assert_eq!(respond(Err(refusal)).status(), StatusCode::NOT_FOUND);
    }
}
