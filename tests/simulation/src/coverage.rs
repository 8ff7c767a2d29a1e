//! The coverage of a run. A simulation that never gets to where a fault could be proves nothing:
//! some run of each set must have reached each of these points.

use std::collections::{BTreeMap, BTreeSet};

use hlc::Hlc;

use crate::audit::AuditRecord;
use crate::catalog::CatalogAge;
use crate::facts::{CommittedContents, MomentContents, MomentRefusal, NodeExitKind, SimFact};
use crate::ledger::{AckMode, SimLedger};
use crate::model_tree::first_difference;

/// A point that not every run reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CoveragePoint {
    /// A batch of an idempotent producer was acknowledged.
    IdempotentBatch,
    /// A batch was acknowledged that had been sent more than once.
    RetriedBatch,
    /// A batch was acknowledged that a crash may take back.
    LeaderAck,
    /// A transaction was read, of several batches.
    TransactionRead,
    /// A transaction was left out that had been written before the moment.
    TransactionLeftOut,
    /// The node did not answer whether a transaction is committed.
    TransactionOutcomeUnknown,
    /// A producer was fenced.
    ProducerFenced,
    /// A member of a group has a share of its partitions.
    PartitionsShared,
    /// A member of a classic group has a share of its partitions.
    ClassicPartitionsShared,
    /// A thread of an application has a share of its tasks.
    TasksShared,
    /// A member of a share group processed records.
    RecordsProcessed,
    /// Records of a share group were delivered again.
    RecordsRedelivered,
    /// A fetch session of several partitions has shown all that could be read.
    SessionQuiet,
    /// A cut contained something that was not durable.
    CutNotDurable,
    /// A cut was before the log start.
    CutBeforeHistory,
    /// A cut lay in the far future.
    CutInFuture,
    /// A cut was not final yet.
    CutNotYet,
    /// A moment of a partition was read whose first records are missing.
    MomentTruncated,
    /// A moment of a compacted partition was read.
    MomentCompacted,
    /// A moment of a topic was read that was deleted since.
    MomentOfDeleted,
    UserTimeFound,
    /// The end of a partition was read as of a user time.
    UserTimeEnd,
    /// A cut was answered at a moment that a pin keeps.
    PinnedCut,
    /// Records were not deleted, because a pin keeps them.
    PinBlockedDelete,
    /// An expired pin was no longer listed.
    PinExpired,
    /// No pin stood, and retention removed old records.
    RetentionApplied,
    /// The state by key was read with a key's tombstone in it.
    MomentWithTombstone,
    /// The state by key was read with neither a deleted key nor its tombstone in it.
    MomentWithoutTombstone,
    /// All tombstones have expired and were removed.
    TombstonesCleaned,
    /// Files were read as of a moment at which they were different.
    FilesInPast,
    /// A file was written that has no name any more.
    UnlinkedFileWrite,
    /// A change to files that was not synced was lost with the machine.
    FilesLost,
    /// A file was read that was written long before, in a log with few later entries.
    SmallFileRead,
    /// There were more than a hundred segments.
    ManySegments,
    SegmentsMerged,
    /// Znodes were read as of a moment at which they were different.
    ZnodesInPast,
    /// The data of a znode was not in memory.
    ZnodeDataElsewhere,
    ZkSessionExpired,
    /// A watch fired.
    ZkEvent,
    /// History of znodes was removed.
    ZnodesRemoved,
    /// Old committed offsets were removed from the log.
    OffsetsLogStartAdvanced,
    OffsetsExpired,
    /// Deleted topics were forgotten.
    TopicsRemoved,
    /// An offset was committed while its topic was deleted.
    CommitBesideDeletion,
    /// An offset was committed while a transaction ended that had an earlier one.
    CommitBesideEnd,
    /// A group was deleted while a transaction ended that had an offset of it.
    GroupDeletedBesideEnd,
    /// A member committed while its group's offsets were deleted.
    CommitBesideOffsetDelete,
    /// Of two topics whose names collide, created at the same time, one was refused.
    CollidingTopicsCreated,
    /// An incarnation found this of its catalog.
    Catalog(CatalogAge),
    /// A catalog failed, and was rebuilt while the node ran.
    CatalogRebuilt,
    /// A catalog was created in memory, because its disk was full.
    CatalogInMemory,
    /// On a corrupt disk the node did not start.
    CorruptionRefused,
    /// On a corrupt disk something could not be read, and all else could.
    CorruptionFound,
    /// On a corrupt disk everything was answered.
    CorruptionHarmless,
    /// The node exited in this way.
    NodeExited(NodeExitKind),
    /// The machine lost power while the node started.
    PowerLossAtStart,
    /// The store stopped by itself.
    StoreStopped,
    ClockJumped,
    /// A node started under a clock that was far ahead.
    ClockUnconfirmed,
    /// Stamps were far ahead of a clock that was confirmed.
    StampsAhead,
    /// A client that sent its request a byte at a time was ended.
    SlowSenderClosed,
    /// A client that read its responses a byte at a time was ended.
    SlowReaderClosed,
    /// A file could not be opened, because there was no descriptor.
    DescriptorsExhausted,
}

/// All of them.
pub const ALL: [CoveragePoint; 67] = [
    CoveragePoint::IdempotentBatch,
    CoveragePoint::RetriedBatch,
    CoveragePoint::LeaderAck,
    CoveragePoint::TransactionRead,
    CoveragePoint::TransactionLeftOut,
    CoveragePoint::TransactionOutcomeUnknown,
    CoveragePoint::ProducerFenced,
    CoveragePoint::PartitionsShared,
    CoveragePoint::ClassicPartitionsShared,
    CoveragePoint::TasksShared,
    CoveragePoint::RecordsProcessed,
    CoveragePoint::RecordsRedelivered,
    CoveragePoint::SessionQuiet,
    CoveragePoint::CutNotDurable,
    CoveragePoint::CutBeforeHistory,
    CoveragePoint::CutInFuture,
    CoveragePoint::CutNotYet,
    CoveragePoint::MomentTruncated,
    CoveragePoint::MomentCompacted,
    CoveragePoint::MomentOfDeleted,
    CoveragePoint::UserTimeFound,
    CoveragePoint::UserTimeEnd,
    CoveragePoint::PinnedCut,
    CoveragePoint::PinBlockedDelete,
    CoveragePoint::PinExpired,
    CoveragePoint::RetentionApplied,
    CoveragePoint::MomentWithTombstone,
    CoveragePoint::MomentWithoutTombstone,
    CoveragePoint::TombstonesCleaned,
    CoveragePoint::FilesInPast,
    CoveragePoint::UnlinkedFileWrite,
    CoveragePoint::FilesLost,
    CoveragePoint::SmallFileRead,
    CoveragePoint::ManySegments,
    CoveragePoint::SegmentsMerged,
    CoveragePoint::ZnodesInPast,
    CoveragePoint::ZnodeDataElsewhere,
    CoveragePoint::ZkSessionExpired,
    CoveragePoint::ZkEvent,
    CoveragePoint::ZnodesRemoved,
    CoveragePoint::OffsetsLogStartAdvanced,
    CoveragePoint::OffsetsExpired,
    CoveragePoint::TopicsRemoved,
    CoveragePoint::CommitBesideDeletion,
    CoveragePoint::CommitBesideEnd,
    CoveragePoint::GroupDeletedBesideEnd,
    CoveragePoint::CommitBesideOffsetDelete,
    CoveragePoint::CollidingTopicsCreated,
    CoveragePoint::Catalog(CatalogAge::Latest),
    CoveragePoint::Catalog(CatalogAge::Stale),
    CoveragePoint::Catalog(CatalogAge::Missing),
    CoveragePoint::CatalogRebuilt,
    CoveragePoint::CatalogInMemory,
    CoveragePoint::CorruptionRefused,
    CoveragePoint::CorruptionFound,
    CoveragePoint::CorruptionHarmless,
    CoveragePoint::NodeExited(NodeExitKind::Clean),
    CoveragePoint::NodeExited(NodeExitKind::Killed),
    CoveragePoint::NodeExited(NodeExitKind::PowerLoss),
    CoveragePoint::PowerLossAtStart,
    CoveragePoint::StoreStopped,
    CoveragePoint::ClockJumped,
    CoveragePoint::ClockUnconfirmed,
    CoveragePoint::StampsAhead,
    CoveragePoint::SlowSenderClosed,
    CoveragePoint::SlowReaderClosed,
    CoveragePoint::DescriptorsExhausted,
];

impl CoveragePoint {
    /// The points that a fact reaches.
    pub(crate) fn of_fact(fact: &SimFact, ledger: &SimLedger) -> Vec<CoveragePoint> {
        match fact {
            SimFact::Acked { batch } => {
                let batch = ledger.batch(*batch);
                let leader = (batch.acks == AckMode::Leader).then_some(CoveragePoint::LeaderAck);
                leader
                    .into_iter()
                    .chain(batch.sequence.map(|_| CoveragePoint::IdempotentBatch))
                    .collect()
            }
            SimFact::Cut { cut, .. } => {
                let is_pinned = ledger.pins.iter().any(|pin| !pin.is_over && pin.at == cut.at);
                let pinned = is_pinned.then_some(CoveragePoint::PinnedCut);
                let not_durable = (!cut.is_durable).then_some(CoveragePoint::CutNotDurable);
                pinned.into_iter().chain(not_durable).collect()
            }
            SimFact::Pins { listed, .. } => {
                let is_gone = ledger.pins.iter().any(|pin| !listed.contains(&pin.name));
                is_gone.then_some(CoveragePoint::PinExpired).into_iter().collect()
            }
            SimFact::SessionQuiet => vec![CoveragePoint::SessionQuiet],
            SimFact::SmallFile { .. } => vec![CoveragePoint::SmallFileRead],
            SimFact::RetentionApplied { .. } => vec![CoveragePoint::RetentionApplied],
            SimFact::CutRefused { reason: MomentRefusal::BeforeHistory, .. } => {
                vec![CoveragePoint::CutBeforeHistory]
            }
            SimFact::CutRefused { reason: MomentRefusal::Future, .. } => {
                vec![CoveragePoint::CutInFuture]
            }
            SimFact::CutRefused { reason: MomentRefusal::NotYet, .. } => {
                vec![CoveragePoint::CutNotYet]
            }
            SimFact::Moment(moment) => {
                let mut reached = tombstone_points(moment, ledger);
                if moment.span.start > 0 {
                    reached.push(CoveragePoint::MomentTruncated);
                }
                let seen = ledger.partition_at(&moment.topic, moment.partition, moment.at);
                if seen.is_some_and(|seen| seen.now.compacted_to > Hlc::ZERO) {
                    reached.push(CoveragePoint::MomentCompacted);
                }
                if seen.is_some_and(|seen| seen.now.deleted.is_some()) {
                    reached.push(CoveragePoint::MomentOfDeleted);
                }
                reached
            }
            SimFact::Owned(owned) => {
                let others = owned.partitions.len() < 4 && !owned.partitions.is_empty();
                let point = if owned.is_of_tasks() {
                    CoveragePoint::TasksShared
                } else if owned.is_of_classic() {
                    CoveragePoint::ClassicPartitionsShared
                } else {
                    CoveragePoint::PartitionsShared
                };
                others.then_some(point).into_iter().collect()
            }
            SimFact::Processed { .. } => vec![CoveragePoint::RecordsProcessed],
            SimFact::Delivered { deliveries, .. } if *deliveries > 1 => {
                vec![CoveragePoint::RecordsRedelivered]
            }
            SimFact::Committed(contents) => transaction_points(contents, ledger),
            SimFact::UserTimeSearch(sought) if sought.found.is_some() => {
                vec![CoveragePoint::UserTimeFound]
            }
            SimFact::UserTimeEnd { .. } => vec![CoveragePoint::UserTimeEnd],
            SimFact::Files { at: Some(_), snapshot: sight } => {
                let is_past =
                    first_difference(&ledger.files.newest().tree.snapshot(), sight).is_some();
                is_past.then_some(CoveragePoint::FilesInPast).into_iter().collect()
            }
            SimFact::TombstonesCleaned { .. } => vec![CoveragePoint::TombstonesCleaned],
            SimFact::NodeExited(death) => vec![CoveragePoint::NodeExited(*death)],
            SimFact::ClockJumped(true) => vec![CoveragePoint::ClockJumped],
            SimFact::ClockUnconfirmed(true) => vec![CoveragePoint::ClockUnconfirmed],
            _ => Vec::new(),
        }
    }
}

/// The points that a moment with transactions reaches.
fn transaction_points(contents: &CommittedContents, ledger: &SimLedger) -> Vec<CoveragePoint> {
    let mut batches: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
    let mut reached = Vec::new();
    for ((topic, partition), (span, records)) in &contents.partitions {
        for id in records.iter().map(|record| record.batch) {
            if let Some(number) = ledger.batch(id).transaction {
                batches.entry(number).or_default().insert(id);
            }
        }
        let Some(seen) = ledger.partition_at(topic, *partition, contents.at) else { continue };
        let kept = seen.entries_before(contents.at).filter(|entry| entry.base >= span.start);
        let mut stored = kept.filter_map(|entry| entry.batch());
        let shown = |id: u64| records.iter().any(|record| record.batch == id);
        if stored.any(|id| ledger.batch(id).transaction.is_some() && !shown(id)) {
            reached.push(CoveragePoint::TransactionLeftOut);
        }
    }
    if batches.values().any(|batches| batches.len() > 1) {
        reached.push(CoveragePoint::TransactionRead);
    }
    reached
}

/// The points that a moment with deleted keys reaches.
fn tombstone_points(moment: &MomentContents, ledger: &SimLedger) -> Vec<CoveragePoint> {
    let seen = ledger.partition_at(&moment.topic, moment.partition, moment.at);
    let Some(seen) = seen.filter(|seen| seen.now.compacted_to > Hlc::ZERO) else {
        return Vec::new();
    };
    let replayed = seen.entries_before(moment.at).flat_map(|entry| &entry.records);
    let newest: BTreeMap<_, _> = replayed.map(|record| (&record.key, record)).collect();
    let deleted = newest.values().filter(|record| record.is_tombstone);
    let by = |record: &&AuditRecord| {
        if moment.records.contains(record) {
            CoveragePoint::MomentWithTombstone
        } else {
            CoveragePoint::MomentWithoutTombstone
        }
    };
    deleted.map(by).collect()
}
