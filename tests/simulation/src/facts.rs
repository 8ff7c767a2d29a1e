//! The facts of a run: each invariant gets each fact.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use hlc::Hlc;
use tokio::time::Instant;
use uuid::Uuid;

use crate::audit::AuditRecord;
use crate::ledger::LedgerStep;
use crate::model_tree::TreeSnapshot;

/// The way in which an incarnation of the node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeExitKind {
    /// It stopped cleanly.
    Clean,
    /// Its process was killed: what it wrote stays.
    Killed,
    /// The machine lost power: what was not synced may be gone.
    PowerLoss,
}

/// A range of offsets of a partition in a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffsetSpan {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The answer to a query for a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SimCut {
    pub(crate) at: Hlc,
    pub(crate) frontier: Hlc,
    pub(crate) is_durable: bool,
    pub(crate) hash: String,
    pub(crate) spans: BTreeMap<(String, u32), OffsetSpan>,
}

/// The contents of a partition at a topic's moment.
#[derive(Clone, Debug)]
pub(crate) struct MomentContents {
    pub(crate) topic: String,
    pub(crate) partition: u32,
    pub(crate) at: Hlc,
    /// The wall clock at the time of the answer.
    pub(crate) wall_ms: u64,
    pub(crate) span: OffsetSpan,
    pub(crate) records: Vec<AuditRecord>,
}

/// The committed contents of a topic's partitions at a moment: their spans, and the records.
#[derive(Clone, Debug)]
pub(crate) struct CommittedContents {
    pub(crate) at: Hlc,
    pub(crate) partitions: BTreeMap<(String, u32), (OffsetSpan, Vec<AuditRecord>)>,
}

/// A query for the first record at or after a user time, and its answer.
#[derive(Clone, Debug)]
pub(crate) struct UserTimeSearch {
    pub(crate) topic: String,
    pub(crate) partition: u32,
    /// The moment in which it was searched.
    pub(crate) at: Hlc,
    pub(crate) time: i64,
    pub(crate) found: Option<(u64, i64)>,
}

/// Something that is known as of a moment, as text, and what is known to be true of it, if
/// anything.
#[derive(Clone, Debug)]
pub(crate) struct AsOfAnswer {
    pub(crate) at: Hlc,
    pub(crate) frontier: Hlc,
    pub(crate) answer: Vec<String>,
    pub(crate) expected: Option<Vec<String>>,
}

/// The reason why a moment was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MomentRefusal {
    /// It lies in the far future.
    Future,
    /// It is not final yet: retry.
    NotYet,
    /// Its contents have been removed.
    BeforeHistory,
    /// There was no such topic.
    UnknownTopic,
    /// Invalid, by Kafka's code: any of the above except the second.
    Invalid,
}

/// Members of a streams group have this number, or a higher one.
pub(crate) const FIRST_THREAD: usize = 100;
/// Members of a classic group have this number, or a higher one.
pub(crate) const FIRST_CLASSIC: usize = 200;

/// The partitions that a member of a group owns, from now on.
#[derive(Clone, Debug)]
pub(crate) struct OwnedPartitions {
    pub(crate) member: usize,
    /// Topic ids and partitions; of a streams group the numbers of subtopologies, and their tasks;
    /// of a classic group partitions of a topic of its own.
    pub(crate) partitions: BTreeSet<(Uuid, i32)>,
    pub(crate) now: Instant,
    /// The end of its session, unless it is heard again.
    pub(crate) until: Instant,
}

impl OwnedPartitions {
    /// True if these are tasks of a streams group.
    pub(crate) fn is_of_tasks(&self) -> bool {
        (FIRST_THREAD..FIRST_CLASSIC).contains(&self.member)
    }

    /// True if a member of a classic group has these.
    pub(crate) fn is_of_classic(&self) -> bool {
        self.member >= FIRST_CLASSIC
    }
}

/// Records of a partition that a member of a share group had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedRange {
    pub(crate) topic: Uuid,
    pub(crate) partition: i32,
    pub(crate) first: i64,
    pub(crate) last: i64,
}

impl SharedRange {
    /// True if both have a record in common.
    pub(crate) fn meets(&self, other: &SharedRange) -> bool {
        (self.topic, self.partition) == (other.topic, other.partition)
            && self.first <= other.last
            && other.first <= self.last
    }
}

/// Two changes of a group's offsets that were sent at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffsetRace {
    /// An offset was committed while its topic was deleted. Another one of that name was created
    /// after both.
    TopicRecreated,
    /// An offset was committed while a transaction ended that had an earlier one.
    CommittedLater { later: u64 },
    /// The group was deleted while a transaction ended that had an offset.
    GroupDeleted,
    /// A member joined and committed an offset while the group's offsets were deleted.
    MemberCommitted { committed: u64 },
}

/// Something that became known.
#[derive(Clone, Debug)]
pub(crate) enum SimFact {
    /// A producer got the offset of its batch.
    Acked { batch: u64 },
    /// A consumer read a batch.
    Consumed { batch: u64 },
    /// A fetch session of several partitions had nothing new, and had shown all that could be read.
    SessionQuiet,
    /// A cut was answered, that was asked for at a step.
    Cut { request_step: LedgerStep, cut: SimCut },
    /// A cut was refused.
    CutRefused { at: Hlc, wall_ms: u64, reason: MomentRefusal },
    /// A partition was read as of a moment.
    Moment(MomentContents),
    /// Committed records were read as of a moment.
    Committed(CommittedContents),
    /// A member of a group owns something, or nothing any more.
    Owned(OwnedPartitions),
    /// A member of a share group got records that it asked for at a time.
    Delivered { asked: Instant, range: SharedRange, deliveries: i16 },
    /// A member of a share group was told that records are done with.
    Processed { now: Instant, range: SharedRange },
    /// A partition was not read as of a moment.
    MomentRefused { topic: String, at: Hlc, reason: MomentRefusal },
    /// A user time was searched.
    UserTimeSearch(UserTimeSearch),
    /// The end of a partition was read as of a user time, as known at a moment.
    UserTimeEnd { topic: String, partition: u32, time: i64, known: Hlc, end: u64 },
    /// The topics of a moment were listed.
    Topics { request_step: LedgerStep, topics: AsOfAnswer },
    /// The committed offsets of a moment were read.
    Offsets { request_step: LedgerStep, offsets: AsOfAnswer },
    /// The offset that is found after a race.
    OffsetRaced { race: OffsetRace, found: Option<u64> },
    /// The znodes of a moment were read.
    Znodes(AsOfAnswer),
    /// In the middle of a group, as its journal is synced: the readable end of each partition, and
    /// the frontier.
    SyncObservation { frontier: Hlc, ends: Vec<(crate::audit::PartitionKey, u64)> },
    /// All files were read, as of the cut with a bound or at present.
    Files { at: Option<Hlc>, snapshot: TreeSnapshot },
    /// All files, as the first read of an incarnation finds them.
    FilesAtStart { lost_power: bool, snapshot: TreeSnapshot },
    /// A change to files was answered, and POSIX allows it or not.
    FileChange { change: String, is_allowed: bool, refused: Option<String> },
    /// One of very many files was read, as of the cut with a bound.
    SmallFile { nth: usize, at: Hlc, bytes: Bytes },
    /// The pins that stand, when the wall clock showed at least this.
    Pins { listed: Vec<String>, at_least_ms: u64 },
    /// No pin stands, and retention has removed what was old when the wall clock showed this.
    RetentionApplied { wall_ms: u64 },
    /// Compacted topics were compacted to their end, twice, with enough time in between for
    /// tombstones that are stamped before this.
    TombstonesCleaned { before: Hlc },
    /// An incarnation of the node ended.
    NodeExited(NodeExitKind),
    /// The wall clock jumped so far ahead that it is not trusted; or that is over.
    ClockJumped(bool),
    /// The node starts under a clock that is far ahead and wrong, and not confirmed; or that is
    /// over.
    ClockUnconfirmed(bool),
    /// A wall clock behind issued stamps was confirmed.
    StampsAhead,
}
