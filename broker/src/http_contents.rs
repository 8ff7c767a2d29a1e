//! Records and files over HTTP, as they are stored: `GET /v1/records/TOPIC[/PARTITION]` returns
//! pages of records, `GET /v1/tree/PATH` the bytes of a file or the names in a directory.
//! `docs/HISTORY-API.md` describes them.
//!
//! What was once returned for a final moment is returned for it again, or is refused. So a file
//! has an ETag if it is as of a moment, and a browser or proxy may keep one whose moment is spelled
//! out.

use std::ops::RangeInclusive;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use history_api::{
    HistoryApiError, OpenTreeContents, RecordsAnswer, TreeContents, TreeFileRequest,
};
use history_documents::{HistoryErrorCode, RecordsFormat, RecordsRequest, TreeQuery};
use hlc::{Moment, MomentSelector};
use http_range_header::parse_range_header;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{percent_decode, query_fields};
use crate::http_access::{HttpRequester, HttpRoute, RouteAccess};
use crate::http_response::{refuse, refuse_with, respond};
use crate::status::{ServerParts, ServerStatus};

/// The exact moment of a page of records.
const AT: HeaderName = HeaderName::from_static("freezeframe-at");
/// The cursor of the next page of records; absent at the end.
const NEXT: HeaderName = HeaderName::from_static("freezeframe-next");
const TREE: &str = "/v1/tree/";

type StatusState = State<Arc<ServerStatus>>;

pub(crate) fn routes() -> [HttpRoute; 4] {
    let route = |path, methods| HttpRoute { path, access: RouteAccess::History, methods };
    [
        route("/v1/records/{topic}", get(topic_records)),
        route("/v1/records/{topic}/{partition}", get(partition_records)),
        route(TREE, get(tree_contents)),
        route("/v1/tree/{*path}", get(tree_contents)),
    ]
}

async fn topic_records(
    status: StatusState,
    who: Extension<HttpRequester>,
    topic: Result<Path<String>, PathRejection>,
    query: RawQuery,
) -> Response {
    let place = topic.map(|Path(topic)| (topic, None));
    records(status, who, place, query).await
}

async fn partition_records(
    status: StatusState,
    who: Extension<HttpRequester>,
    place: Result<Path<(String, u32)>, PathRejection>,
    query: RawQuery,
) -> Response {
    let place = place.map(|Path((topic, partition))| (topic, Some(partition)));
    records(status, who, place, query).await
}

async fn records(
    State(status): StatusState,
    Extension(who): Extension<HttpRequester>,
    place: Result<(String, Option<u32>), PathRejection>,
    RawQuery(query): RawQuery,
) -> Response {
    let answer = async {
        let (topic, partition) = place.map_err(|error| bad_request(error.body_text()))?;
        let request: RecordsRequest = parse_query(query.as_deref(), &["limit"])?;
        let server = started(&status)?;
        let access = who.history_access(server.engine.security());
        server.kafka.history().records(&topic, partition, request, &access).await
    };
    match answer.await {
        Ok(page) => records_response(page),
        Err(refusal) => refuse(&refusal),
    }
}

fn records_response(RecordsAnswer { format, at, next, body }: RecordsAnswer) -> Response {
    let media_type = match format {
        RecordsFormat::Json => "application/json",
        RecordsFormat::Jsonl => "application/x-ndjson",
        RecordsFormat::Arrow => "application/vnd.apache.arrow.stream",
    };
    let mut response = ([(header::CONTENT_TYPE, media_type)], body).into_response();
    let moments = [(AT, Some(at)), (NEXT, next)];
    for (name, value) in moments {
        // Moments and cursors are plain text.
        if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

async fn tree_contents(
    State(status): StatusState,
    Extension(who): Extension<HttpRequester>,
    uri: Uri,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let contents = async {
        // A name in the tree need not be UTF-8.
        let path = uri.path().strip_prefix(TREE).unwrap_or_default();
        let path = percent_decode(path.as_bytes()).map_err(bad_request)?;
        let TreeQuery { at, after, limit, stat } =
            parse_query(query.as_deref(), &["limit", "stat"])?;
        let is_fixed = at.as_deref().is_some_and(is_spelled_out);
        let server = started(&status)?;
        let access = who.history_access(server.engine.security());
        let request = TreeFileRequest { path, at, after, limit, stat };
        Ok((server.kafka.history().tree_contents(request, &access).await?, is_fixed))
    };
    match contents.await {
        Ok((TreeContents::Directory(document), _)) => respond(Ok(document)),
        Ok((TreeContents::File(file), is_fixed)) => file_response(file, is_fixed, &headers),
        Err(refusal) => refuse(&refusal),
    }
}

/// True if a moment means the same for ever.
fn is_spelled_out(at: &str) -> bool {
    let is_known = |moment| !matches!(moment, Moment::User { known: None, .. });
    match at.parse() {
        Ok(MomentSelector::At(moment)) => is_known(moment),
        Ok(MomentSelector::Window(first, second)) => is_known(first) || is_known(second),
        Err(_) => false,
    }
}

/// The response with the bytes of a file, or with those that the header `Range` asks for.
fn file_response(file: OpenTreeContents, is_fixed: bool, headers: &HeaderMap) -> Response {
    let etag = file.moment().and_then(|at| HeaderValue::try_from(format!("\"{at}\"")).ok());
    let is_etag = |name: HeaderName| {
        let given = headers.get(name);
        given.is_some() && given == etag.as_ref()
    };
    let size = file.size();
    let mut response = if is_etag(header::IF_NONE_MATCH) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let may_be_part = !headers.contains_key(header::IF_RANGE) || is_etag(header::IF_RANGE);
        let range = headers.get(header::RANGE).filter(|_| may_be_part);
        match range.and_then(|range| requested_range(range, size)) {
            None => {
                let mut response = Response::new(body(file, 0, size));
                response.headers_mut().insert(header::CONTENT_LENGTH, size.into());
                response
            }
            Some(Err(())) => {
                let message = format!("the file has {size} bytes");
                let mut response = refuse_with(HistoryErrorCode::OutOfRange, message);
                *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
                response.headers_mut().insert(
                    header::CONTENT_RANGE,
                    HeaderValue::try_from(format!("bytes */{size}"))
                        .expect("a number is plain text"),
                );
                return response;
            }
            Some(Ok(range)) => {
                let (first, last) = range.into_inner();
                let length = last - first + 1;
                let place = format!("bytes {first}-{last}/{size}");
                let mut response = Response::new(body(file, first, length));
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_LENGTH, length.into());
                headers.insert(
                    header::CONTENT_RANGE,
                    HeaderValue::try_from(place).expect("numbers are plain text"),
                );
                response
            }
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Some(etag) = etag {
        headers.insert(header::ETAG, etag);
        let kept =
            if is_fixed { "private, max-age=31536000, immutable" } else { "private, no-cache" };
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(kept));
    }
    response
}

/// The range that a header asks for: none if all is to be sent, an error if the file has no such
/// bytes. Of several ranges, none is served, as RFC 9110 allows.
fn requested_range(range: &HeaderValue, size: u64) -> Option<Result<RangeInclusive<u64>, ()>> {
    let parsed = parse_range_header(range.to_str().ok()?).ok()?;
    match parsed.validate(size) {
        Ok(mut ranges) if ranges.len() == 1 => ranges.pop().map(Ok),
        Ok(_) => None,
        Err(_) => Some(Err(())),
    }
}

/// The bytes of a file, which are read as the client takes them. One that ends early, because it
/// was cut meanwhile, ends the connection.
fn body(file: OpenTreeContents, from: u64, length: u64) -> Body {
    let begin = (file, from, length);
    Body::from_stream(stream::try_unfold(begin, async |(file, at, left)| {
        if left == 0 {
            return Ok(None);
        }
        let bytes: Bytes = file.read(at, left).await?;
        let read = bytes.len() as u64;
        if read == 0 {
            let message = format!("the file ended at {at}, {left} bytes early");
            return Err(HistoryApiError::new(HistoryErrorCode::Gone, message));
        }
        Ok(Some((bytes, (file, at + read, left - read))))
    }))
}

fn started(status: &ServerStatus) -> Result<&ServerParts, HistoryApiError> {
    let message = "the data directory is being opened";
    status.parts().ok_or_else(|| HistoryApiError::new(HistoryErrorCode::Starting, message))
}

/// A query as a document of fields, of which those in `plain` are JSON already: numbers, `true`.
fn parse_query<T: DeserializeOwned>(
    query: Option<&str>,
    plain: &[&str],
) -> Result<T, HistoryApiError> {
    let mut fields = query_fields(query.unwrap_or_default()).map_err(bad_request)?;
    for name in plain {
        if let Some(value) = fields.get_mut(*name)
            && let Value::String(text) = value
        {
            let message = format!("{name} does not take {text:?}");
            *value = text.parse().map_err(|_| bad_request(message))?;
        }
    }
    serde_json::from_value(Value::Object(fields)).map_err(|error| bad_request(error.to_string()))
}

fn bad_request(message: impl Into<String>) -> HistoryApiError {
    HistoryApiError::new(HistoryErrorCode::BadRequest, message)
}
