//! Cuts: one moment across all partitions.

use engine::security::{Operation, Resource, ResourceType};
use engine::{CutAnswer, CutPartition, WaitPolicy};
use history_documents::{CutPartitionOffsets, CutRequest, CutResponse, Isolation};
use hlc::{Cut, Moment};
use serde::{Serialize, Serializer};

use crate::access::HistoryAccess;
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
    access: &HistoryAccess,
    request: CutRequest,
) -> Result<String, HistoryApiError> {
    let CutRequest { at, topics, when: policy, patience_ms, isolation } = request;
    let when = when(context, policy, patience_ms);
    let named_topics = topics.clone();
    let covered = match topics {
        Some(topics) => {
            access.require_topics(Operation::Describe, &topics)?;
            CoveredTopics::Named(topics)
        }
        None => CoveredTopics::All,
    };
    let moment = parse_moment(context, access, &at)?;
    let (moment, when, covered, is_complete) = match covered {
        CoveredTopics::All if !access.is_unlimited() => {
            let (moment, known_cut) = access_checked_moment(context, access, moment, when).await?;
            let (covered, is_complete) = shown_topics(context, access, known_cut).await?;
            (moment, WaitPolicy::Refuse, covered, is_complete)
        }
        covered => (moment, when, covered, true),
    };
    let cuts = context.engine.cuts().with_isolation(engine_isolation(isolation));
    let answer = cuts.at_moment(moment, covered.names(), when).await?;
    if let Some(topics) = &named_topics {
        // It may have waited for its moment.
        access.require_topics(Operation::Describe, topics)?;
    }
    let (zxid, security) = match answer.moment {
        Moment::Sys(cut) if access.allows(Operation::Describe, Resource::CLUSTER) => {
            let security = context.engine.security().offset_at(cut, WaitPolicy::Refuse).await?;
            (context.engine.znodes().history().zxid_at(cut).ok(), Some(security.0))
        }
        Moment::Sys(_) | Moment::User { .. } => (None, None),
    };
    let document = cut_document(&answer, zxid, security, is_complete);
    long_document_text(&document, answer.partitions.len() * PARTITION_BYTES)
}

/// The topics that a cut covers.
enum CoveredTopics {
    All,
    Named(Vec<String>),
}

impl CoveredTopics {
    fn names(&self) -> Option<&[String]> {
        match self {
            CoveredTopics::All => None,
            CoveredTopics::Named(names) => Some(names),
        }
    }
}

/// The moment in its final form, and the system time as of which its topics are known.
async fn access_checked_moment(
    context: &HistoryContext,
    access: &HistoryAccess,
    moment: Moment,
    when: WaitPolicy,
) -> Result<(Moment, Cut), HistoryApiError> {
    access.require_any(Operation::Describe, ResourceType::Topic)?;
    Ok(context.engine.seek().resolve_moment(moment, when).await?)
}

/// The topics that are shown of those that were there, and whether those are all. The cut is made
/// of these alone, so neither its hash nor an error tells anything of the others.
async fn shown_topics(
    context: &HistoryContext,
    access: &HistoryAccess,
    known_cut: Cut,
) -> Result<(CoveredTopics, bool), HistoryApiError> {
    let (.., topics) = context.engine.topics().at(known_cut, WaitPolicy::Refuse).await?;
    let filter = access.filter();
    let names = topics.iter().map(|(topic, _)| &topic.name);
    let visible = names.filter(|name| filter.shows_topic(name)).map(|name| name.to_string());
    let visible = visible.collect();
    Ok(if filter.is_complete() {
        (CoveredTopics::All, true)
    } else {
        (CoveredTopics::Named(visible), false)
    })
}

fn cut_document(
    answer: &CutAnswer,
    zxid: Option<i64>,
    security: Option<u64>,
    is_complete: bool,
) -> CutResponse<CutRows<'_>> {
    CutResponse {
        at: answer.moment.to_string(),
        kind: "prefix".to_owned(),
        closed: matches!(answer.moment, Moment::Sys(_)),
        frontier: answer.frontier.into(),
        frontier_ms: answer.frontier.time().0,
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
        security,
        complete: is_complete,
        partitions: CutRows(&answer.partitions),
    }
}
