//! JSON responses of the admin port, and the HTTP status of each error.

use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use history_api::HistoryApiError;
use history_documents::HistoryErrorCode;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{Predicate, SizeAbove};

/// A shorter response is not packed.
const PACKED_BYTES_MIN: u16 = 1024;

const JSON: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

const HARDENING: [(header::HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];

/// The response with a document, or with the error.
pub(crate) fn respond(answer: Result<String, HistoryApiError>) -> Response {
    match answer {
        Ok(text) => (JSON, text + "\n").into_response(),
        Err(refusal) => refuse(&refusal),
    }
}

/// An error response.
pub(crate) fn refuse(refusal: &HistoryApiError) -> Response {
    let body = refusal.document() + "\n";
    let mut response = (status_of(refusal.code()), JSON, body).into_response();
    if let Some(retry_ms) = refusal.retry_ms() {
        // In whole seconds, rounded up.
        response.headers_mut().insert(header::RETRY_AFTER, retry_ms.div_ceil(1000).max(1).into());
    }
    // The guard of the route reads the code, to challenge an anonymous client.
    response.extensions_mut().insert(refusal.code());
    response
}

/// Adds to every response what keeps a browser from doing anything with it but show it, and from
/// keeping it, unless the response says how long it may be kept.
pub(crate) async fn harden(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in HARDENING {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Packs the texts of responses for clients that accept gzip. Files are left as they are: their
/// parts are asked for by position, and their ETags are those of their bytes.
pub(crate) fn compression() -> CompressionLayer<impl Predicate> {
    let is_text = |_: StatusCode, _: Version, headers: &HeaderMap, _: &Extensions| {
        let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let begins = |prefix| media_type.is_some_and(|media_type| media_type.starts_with(prefix));
        ["application/json", "application/x-ndjson", "application/openmetrics-text", "text/"]
            .into_iter()
            .any(begins)
    };
    CompressionLayer::new()
        .quality(CompressionLevel::Fastest)
        .compress_when(SizeAbove::new(PACKED_BYTES_MIN).and(is_text))
}

/// [`refuse`] with a code and a message.
pub(crate) fn refuse_with(code: HistoryErrorCode, message: impl Into<String>) -> Response {
    refuse(&HistoryApiError::new(code, message))
}

fn status_of(code: HistoryErrorCode) -> StatusCode {
    use HistoryErrorCode as Code;
    match code {
        Code::BadMoment
        | Code::BadRequest
        | Code::BadPin
        | Code::BadPlugin
        | Code::BadSpec
        | Code::BadPath
        | Code::FarFuture
        | Code::IsDirectory
        | Code::NotDirectory
        | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::Forbidden | Code::Unauthorized => StatusCode::FORBIDDEN,
        Code::NotFound
        | Code::UnknownGroup
        | Code::UnknownOp
        | Code::UnknownPath
        | Code::UnknownPin
        | Code::UnknownPlugin
        | Code::UnknownTopic => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::Conflict
        | Code::GroupActive
        | Code::GroupBusy
        | Code::PinTaken
        | Code::TooManyGroups
        | Code::TooManyPins => StatusCode::CONFLICT,
        Code::BeforeHistory | Code::Gone => StatusCode::GONE,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
        Code::ForeignHost => StatusCode::MISDIRECTED_REQUEST,
        Code::Unreadable => StatusCode::UNPROCESSABLE_ENTITY,
        Code::NotYet => StatusCode::TOO_EARLY,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Code::Fenced | Code::Loading | Code::Starting | Code::Stopping | Code::Unfinished => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_the_status_that_the_manual_says() {
        let manual = include_str!("../../docs/HISTORY-API.md");
        let (_, table) = manual.split_once("| code | HTTP | means |").unwrap();
        let rows: Vec<&str> =
            table.lines().skip(2).take_while(|line| line.starts_with("| `")).collect();
        assert_eq!(rows.len(), HistoryErrorCode::ALL.len());
        for (row, code) in rows.iter().zip(HistoryErrorCode::ALL) {
            let expected = format!("| `{code}` | {} |", status_of(*code).as_u16());
            assert!(row.starts_with(&expected), "{expected} {row}");
            let is_ours = status_of(*code).is_server_error();
            let may_be = ["fenced", "loading", "starting", "stopping", "unfinished", "internal"];
            assert_eq!(is_ours, may_be.contains(&code.name()), "{code}");
        }
    }

    #[test]
    fn a_refusal_says_when_to_ask_again() {
        let refusal = HistoryApiError::new(HistoryErrorCode::NotYet, "soon").retry_in(1001);
        let response = respond(Err(refusal));
        assert_eq!(response.status().as_u16(), 425);
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
        assert_eq!(respond(Ok("{}".to_owned())).status(), StatusCode::OK);
    }
}
