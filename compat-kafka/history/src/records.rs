//! The records of a topic as of a moment, a page at a time, in the format that a reader asks for.

use std::collections::HashMap;

use fileview::tree::{RecordsCursor, RecordsQuery, TreeError, ViewTree};
use fileview::{RecordRenderer, RecordSelection, ViewFormat};
use history_documents::{HistoryErrorCode, RecordsFormat, RecordsRequest};
use hlc::{Cut, Hlc, Moment, MomentSelector};
use kafka_records::KafkaRecord;
use record_columns::{ArrowStreamWriter, ColumnsFull, RecordColumns, record_schema};
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
/// A page ends with the record that reaches this many bytes. A page is in memory until its reader
/// has taken it.
const PAGE_BYTES: usize = 4 << 20;
/// The bytes of a row of columns beside keys, values and headers, approximately.
const COLUMN_ROW_BYTES: usize = 40;

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

/// The topic of a request, and the partition if it is about one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordsPlace<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: Option<u32>,
}

/// Reads a page of the records of a topic, or of one of its partitions.
pub(crate) async fn records(
    context: &HistoryContext,
    access: &HistoryAccess,
    tree: &ViewTree,
    turns: &HistoryTurns,
    RecordsPlace { topic, partition }: RecordsPlace<'_>,
    request: RecordsRequest,
) -> Result<RecordsAnswer, HistoryApiError> {
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
        at: Some(at),
        after,
        records_max: request.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX),
        bytes_max: PAGE_BYTES,
    };
    let moment = at.to_string();
    let mut page = PageEncoder::new(request.format, topic, &moment);
    let mut push = |partition, record: &_, stamp| page.push(partition, record, stamp);
    let read = tree.records_page(&query, &mut push).await.map_err(|error| match error {
        TreeError::NotFound(what) => HistoryApiError::new(HistoryErrorCode::UnknownTopic, what),
        error => error.into(),
    })?;
    let next = read.next.map(|next| next.to_string());
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
            Some(end) if !has_two_ends => parse_selector(context, access, end),
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
    window.map_err(|error| bad_moment(error.to_string()))
}

/// Encodes the records of a page.
enum PageEncoder {
    Lines(PageLines),
    Columns { columns: RecordColumns, overflow: Option<ColumnsFull> },
}

/// Records as lines of JSON.
struct PageLines {
    topic: String,
    /// The renderer for the partition of the last record.
    renderer: Option<(u32, RecordRenderer)>,
    text: Vec<u8>,
    /// True if the lines become an array.
    is_document: bool,
}

impl PageEncoder {
    /// An encoder of records of `topic` as of `at`.
    fn new(format: RecordsFormat, topic: &str, at: &str) -> PageEncoder {
        if format == RecordsFormat::Arrow {
            let metadata = [("freezeframe.topic", topic), ("freezeframe.moment", at)];
            let metadata = metadata.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let columns = RecordColumns::new(record_schema(HashMap::from(metadata)));
            return PageEncoder::Columns { columns, overflow: None };
        }
        let is_document = format == RecordsFormat::Json;
        let (topic, text) = (topic.to_owned(), Vec::new());
        PageEncoder::Lines(PageLines { topic, renderer: None, text, is_document })
    }

    /// Adds a record, and returns the bytes that it takes.
    fn push(&mut self, partition: u32, record: &KafkaRecord, stamp: Hlc) -> usize {
        match self {
            PageEncoder::Lines(lines) => lines.push(partition, record, stamp),
            PageEncoder::Columns { columns, overflow } => {
                let before = columns.content_bytes();
                if let Err(full) = columns.push(partition_number(partition), record) {
                    *overflow = Some(full);
                }
                COLUMN_ROW_BYTES + columns.content_bytes() - before
            }
        }
    }

    /// The body of the page.
    fn finish(self, at: &str, next: Option<&str>) -> Result<Vec<u8>, HistoryApiError> {
        match self {
            PageEncoder::Lines(lines) => Ok(lines.finish(at, next)),
            PageEncoder::Columns { overflow: Some(full), .. } => {
                Err(HistoryApiError::new(HistoryErrorCode::TooLarge, full.to_string()))
            }
            PageEncoder::Columns { mut columns, overflow: None } => {
                let stream = ArrowStreamWriter::new(Vec::new(), columns.schema());
                let stream = stream.and_then(|mut stream| {
                    stream.write(&columns.finish())?;
                    stream.finish()
                });
                stream.map_err(|error| {
                    let message = format!("not written as Arrow: {error}");
                    HistoryApiError::new(HistoryErrorCode::Internal, message)
                })
            }
        }
    }
}

impl PageLines {
    fn push(&mut self, partition: u32, record: &KafkaRecord, stamp: Hlc) -> usize {
        let begin = self.text.len();
        let renderer = match self.renderer.take() {
            Some((of, renderer)) if of == partition => renderer,
            _ => {
                let (lines, all) = (ViewFormat::Jsonl, RecordSelection::all());
                let renderer = RecordRenderer::new(&self.topic, partition, lines, all);
                renderer.expect("only raw batches are refused")
            }
        };
        renderer.append_record(record, Some(stamp), &mut self.text);
        self.renderer = Some((partition, renderer));
        self.text.len() - begin
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
