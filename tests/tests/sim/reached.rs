//! What a run has come upon. A simulation that never gets to where a fault could be proves nothing: some
//! run of each set must have come upon each of these.

use std::collections::BTreeMap;

use hlc::Hlc;

use crate::audit::Record;
use crate::catalog::Left;
use crate::facts::{Death, Fact, Moment, Refusal};
use crate::ledger::{Acks, Ledger};
use crate::tree::difference;

/// Something that not every run comes upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reached {
    /// A batch of an idempotent producer was acknowledged.
    Idempotent,
    /// One was acknowledged that had been sent more than once.
    Retried,
    /// A batch was acknowledged that a crash may take back.
    Leader,
    /// A cut had something in it that was not durable.
    CutNotDurable,
    /// A cut lay in front of what is kept.
    CutGivenUp,
    /// A cut lay in the far future.
    CutAhead,
    /// A cut was not past yet.
    CutNotYet,
    /// A moment of a partition was read from which the front is missing.
    MomentFromStart,
    /// A moment of a partition that is compacted.
    MomentCompacted,
    /// A moment of a topic that was deleted since.
    MomentOfDeleted,
    /// A user time was found.
    Found,
    /// A partition was shown as of a user time.
    UserEnd,
    /// A cut was answered at a moment that a pin keeps.
    Pinned,
    /// Records were not deleted since a pin keeps them.
    PinHeld,
    /// A pin was listed no more.
    PinExpired,
    /// No pin stood, and what was old went.
    LetGo,
    /// The state by key was read in which a key's tombstone is.
    MomentTombstone,
    /// And one in which it is not any more, nor anything of the key.
    MomentCleaned,
    /// All tombstones have had their time.
    Cleaned,
    /// Files were seen as they are not any more.
    FilesThen,
    /// A file was written that has no name any more.
    FileWithoutName,
    /// A change to files that was not synced went with the machine.
    FilesLost,
    /// A file was read that was written long before, in a log that little was said of since.
    Hoarded,
    /// There were more than a hundred stretches of history.
    ManyStretches,
    /// Stretches of history were merged.
    Merged,
    /// What was committed long ago was given up.
    OffsetsGivenUp,
    /// Committed offsets expired.
    OffsetsExpired,
    /// Topics were forgotten that had been deleted.
    TopicsForgotten,
    /// A life of the node found this of its catalog.
    Catalog(Left),
    /// A catalog failed, and another one was made while the node lived.
    CatalogRebuilt,
    /// A catalog was made in memory, for its disk was full.
    CatalogInMemory,
    /// On a rotten disk the node did not start.
    RotRefused,
    /// On a rotten disk something could not be read, and all else could.
    RotFound,
    /// On a rotten disk everything was answered.
    RotHarmless,
    /// The node died in this way.
    Died(Death),
    /// The machine stopped while the node started.
    CrashAtStart,
    /// The store stopped by itself.
    Stopped,
    /// A clock had jumped.
    Mistrusted,
    /// A node started under a clock that was far ahead.
    Doubted,
    /// Stamps were far ahead of a clock that was confirmed.
    RanAhead,
    /// A client that sent its request a byte at a time was ended.
    SlowSender,
    /// One that took its answers a byte at a time was ended.
    SlowReader,
    /// A file could not be opened, for there was no descriptor.
    NoDescriptor,
}

/// All of them.
pub(crate) const ALL: [Reached; 47] = [
    Reached::Idempotent,
    Reached::Retried,
    Reached::Leader,
    Reached::CutNotDurable,
    Reached::CutGivenUp,
    Reached::CutAhead,
    Reached::CutNotYet,
    Reached::MomentFromStart,
    Reached::MomentCompacted,
    Reached::MomentOfDeleted,
    Reached::Found,
    Reached::UserEnd,
    Reached::Pinned,
    Reached::PinHeld,
    Reached::PinExpired,
    Reached::LetGo,
    Reached::MomentTombstone,
    Reached::MomentCleaned,
    Reached::Cleaned,
    Reached::FilesThen,
    Reached::FileWithoutName,
    Reached::FilesLost,
    Reached::Hoarded,
    Reached::ManyStretches,
    Reached::Merged,
    Reached::OffsetsGivenUp,
    Reached::OffsetsExpired,
    Reached::TopicsForgotten,
    Reached::Catalog(Left::Last),
    Reached::Catalog(Left::Stale),
    Reached::Catalog(Left::Nothing),
    Reached::CatalogRebuilt,
    Reached::CatalogInMemory,
    Reached::RotRefused,
    Reached::RotFound,
    Reached::RotHarmless,
    Reached::Died(Death::InOrder),
    Reached::Died(Death::Killed),
    Reached::Died(Death::PowerLost),
    Reached::CrashAtStart,
    Reached::Stopped,
    Reached::Mistrusted,
    Reached::Doubted,
    Reached::RanAhead,
    Reached::SlowSender,
    Reached::SlowReader,
    Reached::NoDescriptor,
];

impl Reached {
    /// What a fact shows.
    pub(crate) fn by(fact: &Fact, ledger: &Ledger) -> Vec<Reached> {
        match fact {
            Fact::Acked { batch } => {
                let batch = ledger.batch(*batch);
                let leader = (batch.acks == Acks::Leader).then_some(Reached::Leader);
                leader.into_iter().chain(batch.sequence.map(|_| Reached::Idempotent)).collect()
            }
            Fact::Cut { cut, .. } => {
                let is_pinned = ledger.pins.iter().any(|pin| !pin.is_over && pin.at == cut.at);
                let pinned = is_pinned.then_some(Reached::Pinned);
                let not_durable = (!cut.is_durable).then_some(Reached::CutNotDurable);
                pinned.into_iter().chain(not_durable).collect()
            }
            Fact::Pins { listed, .. } => {
                let is_gone = ledger.pins.iter().any(|pin| !listed.contains(&pin.name));
                is_gone.then_some(Reached::PinExpired).into_iter().collect()
            }
            Fact::Hoarded { .. } => vec![Reached::Hoarded],
            Fact::LetGo { .. } => vec![Reached::LetGo],
            Fact::CutRefused { why: Refusal::GivenUp, .. } => vec![Reached::CutGivenUp],
            Fact::CutRefused { why: Refusal::Future, .. } => vec![Reached::CutAhead],
            Fact::CutRefused { why: Refusal::NotYet, .. } => vec![Reached::CutNotYet],
            Fact::Moment(moment) => {
                let mut reached = by_tombstones(moment, ledger);
                if moment.span.start > 0 {
                    reached.push(Reached::MomentFromStart);
                }
                let seen = ledger.partition_at(&moment.topic, moment.partition, moment.at);
                if seen.is_some_and(|seen| seen.now.compacted_to > Hlc::ZERO) {
                    reached.push(Reached::MomentCompacted);
                }
                if seen.is_some_and(|seen| seen.now.deleted.is_some()) {
                    reached.push(Reached::MomentOfDeleted);
                }
                reached
            }
            Fact::Sought(sought) if sought.found.is_some() => vec![Reached::Found],
            Fact::UserEnd { .. } => vec![Reached::UserEnd],
            Fact::Files { at: Some(_), sight } => {
                let is_past = difference(&ledger.files.newest().tree.sight(), sight).is_some();
                is_past.then_some(Reached::FilesThen).into_iter().collect()
            }
            Fact::Cleaned { .. } => vec![Reached::Cleaned],
            Fact::Died(death) => vec![Reached::Died(*death)],
            Fact::Mistrusted(true) => vec![Reached::Mistrusted],
            Fact::Doubted(true) => vec![Reached::Doubted],
            _ => Vec::new(),
        }
    }
}

/// What a moment shows of keys that were deleted.
fn by_tombstones(moment: &Moment, ledger: &Ledger) -> Vec<Reached> {
    let seen = ledger.partition_at(&moment.topic, moment.partition, moment.at);
    let Some(seen) = seen.filter(|seen| seen.now.compacted_to > Hlc::ZERO) else {
        return Vec::new();
    };
    let replayed = seen.within(moment.at).flat_map(|entry| &entry.records);
    let newest: BTreeMap<_, _> = replayed.map(|record| (&record.key, record)).collect();
    let deleted = newest.values().filter(|record| record.is_tombstone);
    let by = |record: &&Record| match moment.records.contains(record) {
        true => Reached::MomentTombstone,
        false => Reached::MomentCleaned,
    };
    deleted.map(by).collect()
}
