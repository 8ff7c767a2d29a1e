//! The records of a topic as of a moment, a page at a time, in the format that a reader asks for.

use bytes::Bytes;
use engine::security::{Operation, Resource};
use fileview::tree::{RecordsCursor, RecordsQuery, TreeError, ViewTree};
use fileview::{RecordRenderer, RecordSelection, ViewFormat};
use history_documents::{HistoryErrorCode, RecordsFormat, RecordsRequest};
use hlc::{Cut, Hlc, Moment, MomentSelector};
use kafka_records::KafkaRecord;
use record_columns::{ArrowStreamWriter, RecordColumns, record_schema};
use serde_json::json;

use crate::access::HistoryAccess;
use crate::context::HistoryContext;
use crate::error::HistoryApiError;
use crate::moment::{
    bad_moment, engine_isolation, parse_cut, parse_moment, parse_selector, partition_number,
};
use crate::turns::HistoryTurns;

/// The default number of records on a page.
const LIMIT: usize = 1000;
/// The most records on a page.
const LIMIT_MAX: usize = 100_000;
/// The most bytes of a page of several records. A page is in memory until its reader has taken it.
const PAGE_BYTES: usize = 4 << 20;
/// The most bytes that a record takes on a page.
const RECORD_BYTES_MAX: usize = 16 << 20;
/// The bytes of a row of columns beside keys, values and headers, approximately.
const COLUMN_ROW_BYTES: usize = 40;
/// The bytes of a line beside the topic, the key, the value and the headers, at most.
const LINE_BYTES: usize = 256;
/// The bytes of a header beside its key and value, approximately.
const HEADER_BYTES: usize = 16;
/// A byte of text takes at most this many bytes in a line of JSON: `\u0000`.
const ESCAPED_BYTES: usize = 6;

/// A page of records, encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordsAnswer {
    pub format: RecordsFormat,
    /// The moment of the page, which is final.
    pub at: String,
    /// The cursor of the next page, if there may be more. Only JSON has it in its body too.
    pub next: Option<String>,
    pub body: Vec<u8>,
}

/// Reads a page of the records of a topic, or of one of its partitions.
pub(crate) async fn records(
    context: &HistoryContext,
    access: &HistoryAccess,
    tree: &ViewTree,
    turns: &HistoryTurns,
    topic: &str,
    partition: Option<u32>,
    request: RecordsRequest,
) -> Result<RecordsAnswer, HistoryApiError> {
    access.require(Operation::Read, Resource::topic(topic))?;
    let after = request.after.as_deref().map(|after| {
        let bad = |error: TreeError| {
            HistoryApiError::new(HistoryErrorCode::BadRequest, format!("after: {error}"))
        };
        after.parse::<RecordsCursor>().map_err(bad)
    });
    let after = after.transpose()?;
    let at = match after {
        Some(after) => after.moment(),
        None => selector(context, access, &request)?,
    };
    let tree = tree.with_isolation(engine_isolation(request.isolation));
    // A turn is not held while the moment is waited for.
    let at = tree.wait_until_closed(at).await?;
    let _turn = turns.take(&access.holder()).await;
    let query = RecordsQuery {
        topic,
        partition,
        at,
        after,
        records_max: request.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX),
        bytes_max: PAGE_BYTES,
    };
    let moment = at.to_string();
    let mut page = PageEncoder::new(request.format, topic, &moment);
    let mut push = |partition, record: &_, stamp, left| page.push(partition, record, stamp, left);
    let next = tree.records_page(&query, &mut push).await.map_err(|error| match error {
        TreeError::NotFound(what) => HistoryApiError::new(HistoryErrorCode::UnknownTopic, what),
        error => error.into(),
    })?;
    let next = next.map(|next| next.to_string());
    let body = page.finish(&moment, next.as_deref())?;
    Ok(RecordsAnswer { format: request.format, at: moment, next, body })
}

/// The moment or the window of a request.
fn selector(
    context: &HistoryContext,
    access: &HistoryAccess,
    request: &RecordsRequest,
) -> Result<MomentSelector, HistoryApiError> {
    let now = || Moment::Sys(Cut::through(context.engine.frontier()));
    let end = match (&request.at, &request.until) {
        (None, None) => None,
        (Some(end), None) | (None, Some(end)) => Some(end),
        (Some(_), Some(until)) => Some(until),
    };
    let has_two_ends = request.at.is_some() && request.until.is_some();
    let Some(from) = &request.from else {
        return match end {
            None => Ok(MomentSelector::At(now())),
            Some(end) if !has_two_ends => {
                Ok(as_known_now(context, parse_selector(context, access, end)?))
            }
            Some(_) => Err(bad_moment(
                "at and until are the same without from: leave one out; user time as it was known at a system time is u…@s…",
            )),
        };
    };
    let end = end.map(|end| parse_moment(context, access, end)).transpose()?;
    let window = match (parse_moment(context, access, from)?, end) {
        (Moment::Sys(_), _) if has_two_ends => {
            return Err(bad_moment("a window of system time ends at until: leave at out"));
        }
        (from @ Moment::Sys(_), end) => MomentSelector::window(from, end.unwrap_or_else(now)),
        (from, Some(Moment::User { before, known })) if has_two_ends => {
            let at = request.at.as_deref().map(|at| parse_cut(context, access, at)).transpose()?;
            MomentSelector::window(from, Moment::User { before, known: known.max(at) })
        }
        (from, Some(end)) => MomentSelector::window(from, end),
        (_, None) => return Err(bad_moment("a window of user time has two ends: give until")),
    };
    let window = window.map_err(|error| bad_moment(error.to_string()))?;
    Ok(as_known_now(context, window))
}

/// A moment of user time as it is known now, if it does not say as of when. Pages have it in their
/// cursor.
fn as_known_now(context: &HistoryContext, selector: MomentSelector) -> MomentSelector {
    let now = || Cut::through(context.engine.frontier());
    selector.known_as_of(selector.known().unwrap_or_else(now))
}

/// Encodes the records of a page.
struct PageEncoder<'a> {
    topic: &'a str,
    body: PageBody<'a>,
    /// The error of a record that no page has room for.
    too_large: Option<HistoryApiError>,
}

enum PageBody<'a> {
    Lines(PageLines<'a>),
    Columns(Box<RecordColumns>),
}

/// Records as lines of JSON.
struct PageLines<'a> {
    topic: &'a str,
    /// The renderer for the partition of the last record.
    renderer: Option<(u32, RecordRenderer)>,
    text: Vec<u8>,
    /// True if the lines become an array.
    is_document: bool,
}

impl<'a> PageEncoder<'a> {
    /// An encoder of records of `topic` as of `at`.
    fn new(format: RecordsFormat, topic: &'a str, at: &str) -> PageEncoder<'a> {
        let body = match format {
            RecordsFormat::Json | RecordsFormat::Jsonl => {
                let is_document = format == RecordsFormat::Json;
                PageBody::Lines(PageLines { topic, renderer: None, text: Vec::new(), is_document })
            }
            RecordsFormat::Arrow => {
                PageBody::Columns(Box::new(RecordColumns::new(record_schema(topic, Some(at)))))
            }
        };
        PageEncoder { topic, body, too_large: None }
    }

    /// Adds a record, and returns the bytes that it takes; `None` if those are more than `left`.
    fn push(
        &mut self,
        partition: u32,
        record: &KafkaRecord,
        stamp: Hlc,
        left: usize,
    ) -> Option<usize> {
        let bytes = match &mut self.body {
            PageBody::Lines(lines) => {
                let most = LINE_BYTES + self.topic.len() + ESCAPED_BYTES * record_bytes(record);
                // Only a record that may be too long is rendered twice.
                if most > left.min(RECORD_BYTES_MAX) {
                    lines.renderer(partition).rendered_length(record, Some(stamp)) as usize
                } else {
                    most
                }
            }
            PageBody::Columns(_) => COLUMN_ROW_BYTES + record_bytes(record),
        };
        if bytes > left {
            return None;
        }
        if bytes > RECORD_BYTES_MAX {
            self.too_large = Some(self.record_too_large(partition, record.offset));
            return Some(0);
        }
        match &mut self.body {
            PageBody::Lines(lines) => {
                let begin = lines.text.len();
                lines.push(partition, record, stamp);
                Some(lines.text.len() - begin)
            }
            PageBody::Columns(columns) => {
                if columns.push(partition_number(partition), record).is_err() {
                    self.too_large = Some(self.record_too_large(partition, record.offset));
                }
                Some(bytes)
            }
        }
    }

    fn record_too_large(&self, partition: u32, offset: i64) -> HistoryApiError {
        let topic = self.topic;
        let message = format!(
            "record {offset} of {topic}/{partition} has more than {RECORD_BYTES_MAX} bytes here: read it from /v1/tree/topics/{topic}/{partition}.jsonl"
        );
        HistoryApiError::new(HistoryErrorCode::TooLarge, message)
    }

    /// The body of the page.
    fn finish(self, at: &str, next: Option<&str>) -> Result<Vec<u8>, HistoryApiError> {
        if let Some(error) = self.too_large {
            return Err(error);
        }
        match self.body {
            PageBody::Lines(lines) => Ok(lines.finish(at, next)),
            PageBody::Columns(mut columns) => {
                let stream = ArrowStreamWriter::try_new(Vec::new(), columns.schema());
                let stream = stream.and_then(|mut stream| {
                    stream.write(&columns.finish())?;
                    stream.into_inner()
                });
                stream.map_err(|error| {
                    let message = format!("not written as Arrow: {error}");
                    HistoryApiError::new(HistoryErrorCode::Internal, message)
                })
            }
        }
    }
}

/// The bytes of a record's parts, with something for each header.
fn record_bytes(record: &KafkaRecord) -> usize {
    let header = |(key, value): &(Bytes, Option<Bytes>)| {
        HEADER_BYTES + key.len() + value.as_ref().map_or(0, Bytes::len)
    };
    record.content_bytes() + record.headers.iter().map(header).sum::<usize>()
}

impl PageLines<'_> {
    fn renderer(&mut self, partition: u32) -> &RecordRenderer {
        let is_same = self.renderer.as_ref().is_some_and(|(of, _)| *of == partition);
        if !is_same {
            self.renderer = None;
        }
        let (_, renderer) = self.renderer.get_or_insert_with(|| {
            let (lines, all) = (ViewFormat::Jsonl, RecordSelection::all());
            let renderer = RecordRenderer::new(self.topic, partition, lines, all);
            (partition, renderer.expect("only raw batches are refused"))
        });
        renderer
    }

    fn push(&mut self, partition: u32, record: &KafkaRecord, stamp: Hlc) {
        let mut text = std::mem::take(&mut self.text);
        self.renderer(partition).append_record(record, Some(stamp), &mut text);
        self.text = text;
    }

    fn finish(self, at: &str, next: Option<&str>) -> Vec<u8> {
        let mut text = self.text;
        if !self.is_document {
            return text;
        }
        // No line has a newline in it, and each ends with one.
        text.pop();
        text.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b',');
        let mut body = format!("{{\"at\":{},\"records\":[", json!(at)).into_bytes();
        body.append(&mut text);
        body.extend_from_slice(format!("],\"next\":{}}}\n", json!(next)).as_bytes());
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(value: Vec<u8>, headers: usize) -> KafkaRecord {
        KafkaRecord {
            offset: 7,
            timestamp: 1,
            key: None,
            value: Some(value.into()),
            headers: vec![(Bytes::new(), None); headers],
        }
    }

    const FORMATS: [RecordsFormat; 3] =
        [RecordsFormat::Json, RecordsFormat::Jsonl, RecordsFormat::Arrow];

    #[test]
    fn a_page_takes_no_more_bytes_than_it_has_room_for() {
        for format in FORMATS {
            // Each byte of the value is six in a line.
            for (value, headers) in [(vec![0; 1000], 0), (Vec::new(), 1000), (vec![b'x'; 1000], 3)]
            {
                let record = record(value, headers);
                let mut page = PageEncoder::new(format, "orders", "s5");
                let bytes = page.push(0, &record, Hlc::ZERO, usize::MAX).unwrap();
                assert!(bytes >= 1000, "{format:?} {headers}");
                assert_eq!(page.push(0, &record, Hlc::ZERO, bytes - 1), None, "{format:?}");
                assert_eq!(page.push(1, &record, Hlc::ZERO, bytes), Some(bytes), "{format:?}");
                let body = page.finish("s5", None).unwrap();
                let envelope = if format == RecordsFormat::Arrow { 4096 } else { 100 };
                assert!(body.len() <= 2 * bytes + envelope, "{format:?} {}", body.len());
            }
        }
    }

    #[test]
    fn a_record_that_is_too_long_is_refused_and_not_kept() {
        for format in FORMATS {
            let mut page = PageEncoder::new(format, "orders", "s5");
            let long = record(vec![0; RECORD_BYTES_MAX + 1], 0);
            assert_eq!(page.push(3, &long, Hlc::ZERO, usize::MAX), Some(0), "{format:?}");
            let refusal = page.finish("s5", None).unwrap_err();
            assert_eq!(refusal.code(), HistoryErrorCode::TooLarge);
            assert!(refusal.to_string().contains("/v1/tree/topics/orders/3.jsonl"), "{refusal}");
        }
    }
}
