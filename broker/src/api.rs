//! The history API over HTTP: the same documents as over Kafka's wire, with the status codes of
//! HTTP. `docs/HISTORY-API.md` lists them.
//!
//! `POST /v1` takes any document. `GET /v1/<op>?field=value` serves the operations that only read,
//! and builds the document from the query. Every response is JSON. An error response has the
//! history API's document and an HTTP status.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use axum::routing::{get, post};
use history_api::HistoryApiError;
use history_documents::{HistoryErrorCode, HistoryRequest};
use serde_json::{Map, Value, json};

use crate::http_access::{HttpRequester, HttpRoute, RouteAccess};
use crate::http_response::{refuse_with, respond};
use crate::openapi::{self, GET_OPERATIONS, GetOperation};
use crate::status::ServerStatus;

pub(crate) fn routes() -> [HttpRoute; 3] {
    let access = RouteAccess::History;
    [
        HttpRoute { path: "/v1", access, methods: post(post_document) },
        HttpRoute { path: "/v1/{op}", access, methods: get(get_operation) },
        HttpRoute {
            path: "/v1/openapi.json",
            access: RouteAccess::Open,
            methods: get(openapi::description),
        },
    ]
}

async fn post_document(
    State(status): State<Arc<ServerStatus>>,
    Extension(who): Extension<HttpRequester>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    // A web page may send other content types to any server without a CORS preflight.
    if !is_json(&headers) {
        let message = "a document is sent with the header Content-Type: application/json";
        return refuse_with(HistoryErrorCode::UnsupportedMediaType, message);
    }
    match serde_json::from_slice(&body) {
        Ok(document) => respond(answer(&status, &who, document).await),
        Err(error) => refuse_with(HistoryErrorCode::BadRequest, format!("not JSON: {error}")),
    }
}

/// True if the `Content-Type` of the body is JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let media_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|media_type| media_type.to_str().ok())
        .unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

async fn get_operation(
    State(status): State<Arc<ServerStatus>>,
    Extension(who): Extension<HttpRequester>,
    op: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Response {
    let op = op.map(|Path(op)| op).unwrap_or_default();
    let Some(operation) = GET_OPERATIONS.iter().find(|operation| operation.name == op) else {
        let names: Vec<&str> = GET_OPERATIONS.iter().map(|operation| operation.name).collect();
        let message = format!("there is {}, and POST /v1 for the rest", names.join(", "));
        return refuse_with(HistoryErrorCode::UnknownOp, message);
    };
    match operation_document(operation, query.as_deref().unwrap_or_default()) {
        Ok(document) => respond(answer(&status, &who, document).await),
        Err(message) => refuse_with(HistoryErrorCode::BadRequest, message),
    }
}

async fn answer(
    status: &ServerStatus,
    requester: &HttpRequester,
    document: Value,
) -> Result<String, HistoryApiError> {
    let server = status.started()?;
    let request = HistoryRequest::from_document(document)?;
    let access = requester.history_access(server.engine.security());
    server.kafka.history().answer(request, &access).await
}

/// Builds the document of an operation from a query.
fn operation_document(operation: &GetOperation, query: &str) -> Result<Value, String> {
    let mut fields = query_document(query, operation.plain, operation.lists)?;
    if fields.insert("op".to_owned(), json!(operation.name)).is_some() {
        return Err("the path names the operation: leave op out".to_owned());
    }
    Ok(Value::Object(fields))
}

/// A query as a document. The fields in `plain` are JSON already, such as numbers and `true`. Those
/// in `lists` are text with commas. All others are text.
pub(crate) fn query_document(
    query: &str,
    plain: &[&str],
    lists: &[&str],
) -> Result<Map<String, Value>, String> {
    let mut fields = Map::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, text) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, text) = (decode_text(name)?, decode_text(text)?);
        let value = if plain.contains(&name.as_str()) {
            text.parse()
                .map_err(|_| format!("{name} takes a number, true or false, not {text:?}"))?
        } else if lists.contains(&name.as_str()) {
            json!(text.split(',').collect::<Vec<_>>())
        } else {
            Value::String(text)
        };
        if fields.insert(name.clone(), value).is_some() {
            return Err(format!("{name} is given more than once"));
        }
    }
    Ok(fields)
}

/// Decodes a name or a value of a query. A plus is a space, as forms send it, but for the one of a
/// zone, `10:00:00+01:00`: people write that as it is.
fn decode_text(text: &str) -> Result<String, String> {
    let is_colon = |text: &[u8]| matches!(text, [b':', ..] | [b'%', b'3', b'A' | b'a', ..]);
    let mut spaced = text.as_bytes().to_vec();
    let mut has_time = false;
    for at in 0..spaced.len() {
        has_time = is_colon(&spaced[at..]) || (has_time && !spaced[at..].starts_with(b".."));
        let is_zone = has_time && spaced.get(at + 1).is_some_and(u8::is_ascii_digit);
        if spaced[at] == b'+' && !is_zone {
            spaced[at] = b' ';
        }
    }
    String::from_utf8(percent_decode(&spaced)?)
        .map_err(|_| format!("{text:?} is not percent-encoded text"))
}

/// Decodes percent-encoding.
pub(crate) fn percent_decode(text: &[u8]) -> Result<Vec<u8>, String> {
    let malformed = || format!("{:?} is not percent-encoded text", text.escape_ascii().to_string());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let mut digit = || char::from(*rest.next()?).to_digit(16);
        let high = digit().ok_or_else(malformed)?;
        let low = digit().ok_or_else(malformed)?;
        bytes.push((high * 16 + low) as u8);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_becomes_the_document_that_asks_the_same() {
        let document = |op: &str, query: &str| {
            let operation = GET_OPERATIONS.iter().find(|operation| operation.name == op);
            operation_document(operation.unwrap(), query)
        };
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
        let at = |query: &str| document("cut", query).map(|fields| fields["at"].clone());
        for (query, expected) in [
            ("at=yesterday+14%3A00", "yesterday 14:00"),
            ("at=2026-11-21+14:00", "2026-11-21 14:00"),
            ("at=2026-11-21+14%3A00%2B01:00", "2026-11-21 14:00+01:00"),
            ("at=5+minutes+ago", "5 minutes ago"),
            ("at=yesterday+14%3A00..yesterday+15:00", "yesterday 14:00..yesterday 15:00"),
        ] {
            assert_eq!(at(query), Ok(json!(expected)), "{query}");
        }
        assert_eq!(document("pins", ""), Ok(json!({"op": "pins"})));
        let page = document("security-log", "after=7&limit=5");
        assert_eq!(page, Ok(json!({"op": "security-log", "after": 7, "limit": 5})));
        let page = document("diff", "after=7&limit=5");
        assert_eq!(page, Ok(json!({"op": "diff", "after": "7", "limit": 5})));
        for query in ["at=1&at=2", "op=pin", "patience_ms=x", "at=%", "at=%2", "at=%zz", "at=%ff"] {
            assert!(document("cut", query).is_err(), "{query}");
        }
    }
}
