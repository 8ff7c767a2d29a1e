//! Records and files over HTTP, as they are stored: `GET /v1/records/TOPIC[/PARTITION]` returns
//! pages of records, `GET /v1/tree/PATH` the bytes of a file or the names in a directory.
//! `docs/HISTORY-API.md` describes them.
//!
//! A file as of a moment has an ETag, so that a client can ask whether the bytes that it has are
//! still those of the moment: retention and compaction may change them. The question is authorized
//! as the file is.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use history_api::{HistoryApiError, OpenTreeContents, RecordsAnswer, TreeContents};
use history_documents::{HistoryErrorCode, RecordsFormat, RecordsRequest, TreeQuery};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{percent_decode, query_document};
use crate::http_access::{HttpRequester, HttpRoute, RouteAccess};
use crate::http_response::{refuse, refuse_with, respond};
use crate::status::ServerStatus;

/// The exact moment of a page of records.
const AT: HeaderName = HeaderName::from_static("freezeframe-at");
/// The cursor of the next page of records; absent at the end.
const NEXT: HeaderName = HeaderName::from_static("freezeframe-next");
const TREE: &str = "/v1/tree/";
/// The bytes of a page that are handed to the connection at a time.
const PIECE_BYTES: usize = 128 << 10;

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
        let server = status.started()?;
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
    let (length, body) = (body.len(), Bytes::from(body));
    // In pieces, so that the request is under way until the client has nearly all of it.
    let begins = (0..length).step_by(PIECE_BYTES);
    let pieces = begins.map(move |at| body.slice(at..(at + PIECE_BYTES).min(length)));
    let pieces = stream::iter(pieces.map(Ok::<_, Infallible>));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(media_type)),
        (header::CONTENT_LENGTH, length.into()),
    ];
    let mut response = (headers, Body::from_stream(pieces)).into_response();
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
    method: Method,
    uri: Uri,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let contents = async {
        // A name in the tree need not be UTF-8.
        let path = uri.path().strip_prefix(TREE).unwrap_or_default();
        let path = percent_decode(path.as_bytes()).map_err(bad_request)?;
        let query: TreeQuery = parse_query(query.as_deref(), &["limit", "stat"])?;
        let server = status.started()?;
        let access = who.history_access(server.engine.security());
        server.kafka.history().tree_contents(&path, query, &access).await
    };
    match contents.await {
        Ok(TreeContents::Directory(document)) => respond(Ok(document)),
        Ok(TreeContents::File(file)) => file_response(*file, &method, &headers),
        Err(refusal) => refuse(&refusal),
    }
}

/// The response with the bytes of a file, or with those that the headers ask for.
fn file_response(file: OpenTreeContents, method: &Method, headers: &HeaderMap) -> Response {
    let etag = file.tag().and_then(|tag| HeaderValue::try_from(format!("\"{tag}\"")).ok());
    let size = file.size();
    let mut response = if etag.as_ref().is_some_and(|etag| is_client_up_to_date(headers, etag)) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let condition = headers.get(header::IF_RANGE);
        let may_be_part = condition.is_none() || condition == etag.as_ref();
        // RFC 9110 has ranges for GET only.
        let is_part = method == Method::GET && may_be_part;
        let range = if is_part { headers.get(header::RANGE) } else { None };
        let range = range.and_then(|range| range.to_str().ok());
        match range.map_or(ByteRange::All, |range| ByteRange::parse(range, size)) {
            ByteRange::All => {
                let mut response = Response::new(body(file, 0, size));
                response.headers_mut().insert(header::CONTENT_LENGTH, size.into());
                response
            }
            ByteRange::Part { first, length } => {
                let last = first + length - 1;
                let mut response = Response::new(body(file, first, length));
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_LENGTH, length.into());
                headers
                    .insert(header::CONTENT_RANGE, content_range(&format!("{first}-{last}"), size));
                response
            }
            ByteRange::None => {
                let message = format!("the file has {size} bytes");
                let mut response = refuse_with(HistoryErrorCode::OutOfRange, message);
                *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
                response.headers_mut().insert(header::CONTENT_RANGE, content_range("*", size));
                return response;
            }
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Some(etag) = etag {
        headers.insert(header::ETAG, etag);
        // Whoever keeps it asks each time whether it is still right, and allowed.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    }
    response
}

/// True if the client has what the ETag stands for.
fn is_client_up_to_date(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    let given = headers.get_all(header::IF_NONE_MATCH).iter();
    let mut tags = given.filter_map(|tags| tags.to_str().ok()).flat_map(|tags| tags.split(','));
    tags.any(|tag| {
        let tag = tag.trim();
        tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).as_bytes() == etag.as_bytes()
    })
}

fn content_range(part: &str, size: u64) -> HeaderValue {
    HeaderValue::try_from(format!("bytes {part}/{size}")).expect("numbers are plain text")
}

/// The bytes that a header `Range` asks for, as RFC 9110 has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteRange {
    /// Everything: the header asks for several ranges, which are not served, or is no range.
    All,
    Part {
        first: u64,
        length: u64,
    },
    /// The file has no such bytes.
    None,
}

impl ByteRange {
    /// The range in a file of `size` bytes.
    fn parse(header: &str, size: u64) -> ByteRange {
        let range = header.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-'));
        let Some((first, last)) = range else { return ByteRange::All };
        let numbers = match (first.trim(), last.trim()) {
            ("", last) => last.parse().map(|length: u64| (size.saturating_sub(length), u64::MAX)),
            (first, "") => first.parse().map(|first| (first, u64::MAX)),
            (first, last) => {
                first.parse().and_then(|first: u64| last.parse().map(|last| (first, last)))
            }
        };
        match numbers {
            Err(_) => ByteRange::All,
            Ok((first, last)) if last < first => ByteRange::All,
            Ok((first, _)) if first >= size => ByteRange::None,
            Ok((first, last)) => ByteRange::Part { first, length: last.min(size - 1) - first + 1 },
        }
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

/// A query as a document whose fields in `plain` are JSON already.
fn parse_query<T: DeserializeOwned>(
    query: Option<&str>,
    plain: &[&str],
) -> Result<T, HistoryApiError> {
    let fields = query_document(query.unwrap_or_default(), plain, &[]).map_err(bad_request)?;
    serde_json::from_value(Value::Object(fields)).map_err(|error| bad_request(error.to_string()))
}

fn bad_request(message: impl Into<String>) -> HistoryApiError {
    HistoryApiError::new(HistoryErrorCode::BadRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_one_part_of_the_file_or_all_of_it() {
        use ByteRange::{All, None, Part};
        for (header, size, expected) in [
            ("bytes=0-0", 10, Part { first: 0, length: 1 }),
            ("bytes=3-", 10, Part { first: 3, length: 7 }),
            ("bytes=3-99", 10, Part { first: 3, length: 7 }),
            ("bytes=3-18446744073709551615", 10, Part { first: 3, length: 7 }),
            ("bytes=-3", 10, Part { first: 7, length: 3 }),
            ("bytes=-99", 10, Part { first: 0, length: 10 }),
            ("bytes=10-", 10, None),
            ("bytes=-0", 10, None),
            ("bytes=0-", 0, None),
            ("bytes=-5", 0, None),
            ("bytes=5-2", 10, All),
            ("bytes=0-1,3-4", 10, All),
            ("bytes=-", 10, All),
            ("bytes=x-y", 10, All),
            ("bytes=0-18446744073709551616", 10, All),
            ("lines=0-1", 10, All),
            ("", 10, All),
        ] {
            assert_eq!(ByteRange::parse(header, size), expected, "{header} of {size}");
        }
    }
}
