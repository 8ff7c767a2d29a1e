//! What a run has come upon. A simulation that never gets to where a fault could be proves nothing: some
//! run of each set must have come upon each of these.

use std::collections::BTreeMap;

use hlc::Hlc;

use crate::audit::AuditRecord;
use crate::catalog::CatalogAge;
use crate::facts::{MomentContents, MomentRefusal, NodeExitKind, SimFact};
use crate::ledger::{AckMode, SimLedger};
use crate::model_tree::first_difference;

/// Something that not every run comes upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CoveragePoint {
    /// A batch of an idempotent producer was acknowledged.
    IdempotentBatch,
    /// One was acknowledged that had been sent more than once.
    RetriedBatch,
    /// A batch was acknowledged that a crash may take back.
    LeaderAck,
    /// A cut had something in it that was not durable.
    CutNotDurable,
    /// A cut lay in front of what is kept.
    CutBeforeHistory,
    /// A cut lay in the far future.
    CutInFuture,
    /// A cut was not past yet.
    CutNotYet,
    /// A moment of a partition was read from which the front is missing.
    MomentTruncated,
    /// A moment of a partition that is compacted.
    MomentCompacted,
    /// A moment of a topic that was deleted since.
    MomentOfDeleted,
    /// A user time was found.
    UserTimeFound,
    /// A partition was shown as of a user time.
    UserTimeEnd,
    /// A cut was answered at a moment that a pin keeps.
    PinnedCut,
    /// Records were not deleted since a pin keeps them.
    PinBlockedDelete,
    /// A pin was listed no more.
    PinExpired,
    /// No pin stood, and what was old went.
    RetentionApplied,
    /// The state by key was read in which a key's tombstone is.
    MomentWithTombstone,
    /// And one in which it is not any more, nor anything of the key.
    MomentWithoutTombstone,
    /// All tombstones have had their time.
    TombstonesCleaned,
    /// Files were seen as they are not any more.
    FilesInPast,
    /// A file was written that has no name any more.
    UnlinkedFileWrite,
    /// A change to files that was not synced went with the machine.
    FilesLost,
    /// A file was read that was written long before, in a log that little was said of since.
    SmallFileRead,
    /// There were more than a hundred segments of history.
    ManySegments,
    /// Stretches of history were merged.
    SegmentsMerged,
    /// What was committed long ago was removed.
    OffsetsLogStartAdvanced,
    /// Committed offsets expired.
    OffsetsExpired,
    /// Topics were forgotten that had been deleted.
    TopicsRemoved,
    /// An incarnation of the node found this of its catalog.
    Catalog(CatalogAge),
    /// A catalog failed, and another one was made while the node lived.
    CatalogRebuilt,
    /// A catalog was made in memory, for its disk was full.
    CatalogInMemory,
    /// On a corrupt disk the node did not start.
    CorruptionRefused,
    /// On a corrupt disk something could not be read, and all else could.
    CorruptionFound,
    /// On a corrupt disk everything was answered.
    CorruptionHarmless,
    /// The node died in this way.
    NodeExited(NodeExitKind),
    /// The machine stopped while the node started.
    PowerLossAtStart,
    /// The store stopped by itself.
    StoreStopped,
    /// A clock had jumped.
    ClockJumped,
    /// A node started under a clock that was far ahead.
    ClockUnconfirmed,
    /// Stamps were far ahead of a clock that was confirmed.
    StampsAhead,
    /// A client that sent its request a byte at a time was ended.
    SlowSenderClosed,
    /// One that took its answers a byte at a time was ended.
    SlowReaderClosed,
    /// A file could not be opened, for there was no descriptor.
    DescriptorsExhausted,
}

/// All of them.
pub const ALL: [CoveragePoint; 47] = [
    CoveragePoint::IdempotentBatch,
    CoveragePoint::RetriedBatch,
    CoveragePoint::LeaderAck,
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
    CoveragePoint::OffsetsLogStartAdvanced,
    CoveragePoint::OffsetsExpired,
    CoveragePoint::TopicsRemoved,
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
    /// What a fact shows.
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

/// What a moment shows of keys that were deleted.
fn tombstone_points(moment: &MomentContents, ledger: &SimLedger) -> Vec<CoveragePoint> {
    let seen = ledger.partition_at(&moment.topic, moment.partition, moment.at);
    let Some(seen) = seen.filter(|seen| seen.now.compacted_to > Hlc::ZERO) else {
        return Vec::new();
    };
    let replayed = seen.entries_before(moment.at).flat_map(|entry| &entry.records);
    let newest: BTreeMap<_, _> = replayed.map(|record| (&record.key, record)).collect();
    let deleted = newest.values().filter(|record| record.is_tombstone);
    let by = |record: &&AuditRecord| match moment.records.contains(record) {
        true => CoveragePoint::MomentWithTombstone,
        false => CoveragePoint::MomentWithoutTombstone,
    };
    deleted.map(by).collect()
}
