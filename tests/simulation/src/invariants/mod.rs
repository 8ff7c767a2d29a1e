//! The claims that must hold in every world: one invariant per file.

mod acknowledged_is_never_lost;
mod answers_as_they_were;
mod compaction_keeps_the_newest;
mod consumed_is_never_lost;
mod cuts_are_closed;
mod cuts_are_exact;
mod cuts_repeat;
mod deleted_history_is_refused;
mod fenced_clock_refuses_writes;
mod fenced_producers_write_nothing;
mod files_as_they_were;
mod files_follow_posix;
mod frontier_never_falls;
mod futures_are_refused;
mod history_is_immutable;
mod later_changes_win;
mod members_keep_what_they_commit;
mod moments_are_prefixes;
mod nothing_below_the_frontier;
mod offsets_are_dense;
mod offsets_go_with_their_topic;
mod partitions_have_one_owner;
mod pins_keep_the_past;
mod pins_last_until_they_expire;
mod prefix_durability;
mod processed_records_stay_so;
mod retries_are_not_duplicated;
mod small_files_are_readable;
mod stamps_increase;
mod synced_files_are_never_lost;
mod tombstones_respect_retention;
mod topic_names_do_not_collide;
mod transactions_are_whole;
mod unconfirmed_clock_keeps_history;
mod user_time_ends_are_exact;
mod user_times_are_exact;

use crate::audit::NodeAudit;
use crate::facts::SimFact;
use crate::ledger::{LedgerStep, SimLedger};

/// `Ok` if it still holds, or the violation.
pub(crate) type InvariantResult = Result<(), String>;

/// Something that always holds.
pub(crate) trait Invariant {
    /// Its claim; mostly the name of its file.
    fn name(&self) -> &'static str;

    /// Handles a fact that became known at a step.
    fn on_fact(&mut self, fact: &SimFact, step: LedgerStep, ledger: &SimLedger) -> InvariantResult {
        let _ = (fact, step, ledger);
        Ok(())
    }

    /// Handles an audit of the node. The ledger does not have it yet.
    fn on_audit(&mut self, audit: &NodeAudit, ledger: &SimLedger) -> InvariantResult {
        let _ = (audit, ledger);
        Ok(())
    }
}

/// All invariants, in their initial state.
pub(crate) fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(acknowledged_is_never_lost::NoAcknowledgedLoss::default()),
        Box::new(consumed_is_never_lost::NoConsumedLoss::default()),
        Box::new(prefix_durability::PrefixDurability::default()),
        Box::new(offsets_are_dense::OffsetsAreDense),
        Box::new(retries_are_not_duplicated::NoRetryDuplicates),
        Box::new(stamps_increase::StampsIncrease),
        Box::new(history_is_immutable::HistoryIsImmutable),
        Box::new(frontier_never_falls::FrontierNeverFalls::default()),
        Box::new(nothing_below_the_frontier::NothingBelowTheFrontier::default()),
        Box::new(cuts_repeat::CutsRepeat::default()),
        Box::new(cuts_are_exact::CutsAreExact),
        Box::new(cuts_are_closed::CutClosure),
        Box::new(moments_are_prefixes::MomentsArePrefixes),
        Box::new(user_times_are_exact::UserTimesAreExact),
        Box::new(user_time_ends_are_exact::UserTimeEndsAreExact),
        Box::new(compaction_keeps_the_newest::CompactionKeepsTheNewest),
        Box::new(tombstones_respect_retention::TombstonesRespectRetention::default()),
        Box::new(partitions_have_one_owner::OneOwner::default()),
        Box::new(processed_records_stay_so::ProcessedStaysSo::default()),
        Box::new(pins_keep_the_past::PinsKeepThePast::default()),
        Box::new(pins_last_until_they_expire::PinsLastUntilTheyExpire),
        Box::new(deleted_history_is_refused::DeletedHistoryRefusal),
        Box::new(futures_are_refused::FutureMomentRefusal::default()),
        Box::new(unconfirmed_clock_keeps_history::UnconfirmedClockKeepsHistory::default()),
        Box::new(fenced_clock_refuses_writes::FencedClockRefusesWrites::default()),
        Box::new(transactions_are_whole::TransactionsAreWhole::default()),
        Box::new(fenced_producers_write_nothing::FencedProducersWriteNothing),
        Box::new(answers_as_they_were::AnswersAsTheyWere::topics()),
        Box::new(answers_as_they_were::AnswersAsTheyWere::offsets()),
        Box::new(answers_as_they_were::AnswersAsTheyWere::znodes()),
        Box::new(offsets_go_with_their_topic::OffsetsGoWithTheirTopic),
        Box::new(later_changes_win::LaterChangesWin),
        Box::new(members_keep_what_they_commit::MembersKeepWhatTheyCommit),
        Box::new(topic_names_do_not_collide::TopicNamesDoNotCollide),
        Box::new(files_as_they_were::FilesAsTheyWere),
        Box::new(files_follow_posix::FilesFollowPosix),
        Box::new(small_files_are_readable::SmallFilesAreReadable),
        Box::new(synced_files_are_never_lost::NoSyncedFileLoss),
    ]
}
