//! Cuts: one moment across all partitions.

use engine::{CutAnswer, CutPartition};
use history_documents::{CutPartitionOffsets, CutRequest, CutResponse, Isolation};
use hlc::Moment;
use serde::{Serialize, Serializer};

use crate::context::HistoryContext;
use crate::document::long_document_text;
use crate::error::HistoryApiError;
use crate::moment::{engine_isolation, offset_number, parse_moment, partition_number, when};

/// The approximate length of a partition's text.
const PARTITION_BYTES: usize = 80;

/// The partitions of a cut. A cut may have very many: they are written without a copy.
#[derive(Debug)]
struct CutRows<'a>(&'a [CutPartition]);

impl Serialize for CutRows<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(self.0.iter().map(|row| CutPartitionOffsets {
            topic: &*row.topic,
            partition: partition_number(row.partition),
            start: offset_number(row.start),
            end: offset_number(row.end),
        }))
    }
}

/// Answers with the text of the document.
pub(crate) async fn cut(
    context: &HistoryContext,
    request: CutRequest,
) -> Result<String, HistoryApiError> {
    let CutRequest { at, topics, when: policy, patience_ms, isolation } = request;
    let when = when(context, policy, patience_ms);
    let cuts = context.engine.cuts().with_isolation(engine_isolation(isolation));
    let answer = cuts.at_moment(parse_moment(&at)?, topics.as_deref(), when).await?;
    let zxid = match answer.moment {
        Moment::Sys(cut) => context.engine.znodes().history().zxid_at(cut).ok(),
        Moment::User { .. } => None,
    };
    long_document_text(&cut_document(&answer, zxid), answer.partitions.len() * PARTITION_BYTES)
}

fn cut_document(answer: &CutAnswer, zxid: Option<i64>) -> CutResponse<CutRows<'_>> {
    CutResponse {
        at: answer.moment.to_string(),
        kind: "prefix".to_owned(),
        closed: matches!(answer.moment, Moment::Sys(_)),
        frontier: answer.frontier.into(),
        skew_ms: answer.precision.skew_max_ms,
        clock_error_ms: answer.precision.error_ms,
        clock_synchronised: answer.precision.is_synchronised,
        ahead_ms: answer.precision.ahead_ms,
        durable: answer.durable,
        hash: format!("{:032x}", answer.hash),
        isolation: match answer.isolation {
            engine::Isolation::Committed => Isolation::Committed,
            engine::Isolation::Uncommitted => Isolation::Uncommitted,
        },
        zxid,
        partitions: CutRows(&answer.partitions),
    }
}
