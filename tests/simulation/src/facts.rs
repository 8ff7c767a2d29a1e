//! What becomes known in a run: each invariant learns each fact.

use std::collections::BTreeMap;

use bytes::Bytes;
use hlc::Hlc;

use crate::audit::AuditRecord;
use crate::ledger::LedgerStep;
use crate::model_tree::TreeSnapshot;

/// How an incarnation of the node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeExitKind {
    /// It was asked to stop.
    Clean,
    /// Its process was killed: what it wrote stays.
    Killed,
    /// The machine lost power: what was not synced may be gone.
    PowerLoss,
}

/// Offsets that a partition has in a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffsetSpan {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The answer to a question for a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SimCut {
    pub(crate) at: Hlc,
    pub(crate) frontier: Hlc,
    pub(crate) is_durable: bool,
    pub(crate) hash: String,
    pub(crate) spans: BTreeMap<(String, u32), OffsetSpan>,
}

/// What a partition of a topic's moment had in it.
#[derive(Clone, Debug)]
pub(crate) struct MomentContents {
    pub(crate) topic: String,
    pub(crate) partition: u32,
    pub(crate) at: Hlc,
    /// What the wall clock showed when it was answered.
    pub(crate) wall_ms: u64,
    pub(crate) span: OffsetSpan,
    pub(crate) records: Vec<AuditRecord>,
}

/// A question for the first record at or after a user time, and its answer.
#[derive(Clone, Debug)]
pub(crate) struct UserTimeSearch {
    pub(crate) topic: String,
    pub(crate) partition: u32,
    /// The moment in which it was looked for.
    pub(crate) at: Hlc,
    pub(crate) time: i64,
    pub(crate) found: Option<(u64, i64)>,
}

/// Something that is known as of a moment, in words, and what is known to hold of it, if that is.
#[derive(Clone, Debug)]
pub(crate) struct AsOfAnswer {
    pub(crate) at: Hlc,
    pub(crate) frontier: Hlc,
    pub(crate) answer: Vec<String>,
    pub(crate) expected: Option<Vec<String>>,
}

/// Why a moment was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MomentRefusal {
    /// It lies in the far future.
    Future,
    /// It is not past yet; ask again.
    NotYet,
    /// What it held has been removed.
    BeforeHistory,
    /// There was no such topic.
    UnknownTopic,
    /// Invalid, by Kafka's code: any of the above but the second.
    Invalid,
}

/// Something that became known.
#[derive(Clone, Debug)]
pub(crate) enum SimFact {
    /// A producer was told where its batch is.
    Acked { batch: u64 },
    /// A consumer was shown a batch.
    Consumed { batch: u64 },
    /// A cut was answered, that was asked for at a step.
    Cut { request_step: LedgerStep, cut: SimCut },
    /// A cut was refused.
    CutRefused { at: Hlc, wall_ms: u64, reason: MomentRefusal },
    /// A partition was read as of a moment.
    Moment(MomentContents),
    /// It was not.
    MomentRefused { topic: String, at: Hlc, reason: MomentRefusal },
    /// A user time was looked for.
    UserTimeSearch(UserTimeSearch),
    /// A partition was asked where it ends as of a user time, as known at a moment.
    UserTimeEnd { topic: String, partition: u32, time: i64, known: Hlc, end: u64 },
    /// Which topics there were.
    Topics { request_step: LedgerStep, topics: AsOfAnswer },
    /// Which offsets were committed.
    Offsets { request_step: LedgerStep, offsets: AsOfAnswer },
    /// In the middle of a group, as its journal is synced: how far partitions could be read, and what
    /// was promised.
    SyncObservation { frontier: Hlc, ends: Vec<(crate::audit::PartitionKey, u64)> },
    /// All files were looked at, as they were in the cut with a bound, or as they are now.
    Files { at: Option<Hlc>, snapshot: TreeSnapshot },
    /// All files, as the first look in an incarnation of the node finds them.
    FilesAtStart { lost_power: bool, snapshot: TreeSnapshot },
    /// A change to files was answered, and by the rules it should be done, or not.
    FileChange { change: String, is_allowed: bool, refused: Option<String> },
    /// One of very many files was read, as it was in the cut with a bound.
    SmallFile { nth: usize, at: Hlc, bytes: Bytes },
    /// Which pins stand, when the wall clock showed this much at least.
    Pins { listed: Vec<String>, at_least_ms: u64 },
    /// No pin stands, and what was old when the wall clock showed this was removed.
    RetentionApplied { wall_ms: u64 },
    /// Compacted topics were compacted to their end, twice and with time enough in between for tombstones
    /// that are stamped before.
    TombstonesCleaned { before: Hlc },
    /// An incarnation of the node ended.
    NodeExited(NodeExitKind),
    /// The wall clock jumped so far ahead that nobody trusts it; or that is over.
    ClockJumped(bool),
    /// The node starts under a clock that is far ahead and wrong, which nobody confirms; or that is over.
    ClockUnconfirmed(bool),
    /// Somebody confirmed a wall clock behind stamps that were given out.
    StampsAhead,
}
