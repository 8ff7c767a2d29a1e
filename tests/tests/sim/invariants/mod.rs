//! What must hold in every world: one invariant a file.

mod acknowledged_is_never_lost;
mod compaction_keeps_the_newest;
mod cuts_are_closed;
mod cuts_are_exact;
mod cuts_repeat;
mod doubt_gives_nothing_up;
mod fenced_refuses;
mod files_as_they_were;
mod files_keep_the_rules;
mod frontier_never_falls;
mod futures_are_refused;
mod given_up_is_said;
mod history_stands_still;
mod hoards_are_found_again;
mod moments_are_prefixes;
mod names_as_they_were;
mod nothing_below_the_frontier;
mod offsets_are_dense;
mod offsets_as_they_were;
mod pins_keep_the_past;
mod pins_stand_until_they_expire;
mod prefix_durability;
mod retries_are_not_doubled;
mod shown_is_never_lost;
mod stamps_rise;
mod synced_files_are_never_lost;
mod tombstones_stay_their_time;
mod user_moments_end_exactly;
mod user_times_are_exact;

use crate::audit::Audit;
use crate::facts::Fact;
use crate::ledger::{Ledger, Step};

/// Whether it still holds; or what was seen that must not be.
pub(crate) type Verdict = Result<(), String>;

/// Something that holds whatever happens.
pub(crate) trait Invariant {
    /// Its file's name.
    fn name(&self) -> &'static str;

    /// Something became known at a step.
    fn on_fact(&mut self, fact: &Fact, step: Step, ledger: &Ledger) -> Verdict {
        let _ = (fact, step, ledger);
        Ok(())
    }

    /// The node was audited. The ledger does not know of it yet.
    fn on_audit(&mut self, audit: &Audit, ledger: &Ledger) -> Verdict {
        let _ = (audit, ledger);
        Ok(())
    }
}

/// All of them, as they are before anything has happened.
pub(crate) fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(acknowledged_is_never_lost::AcknowledgedIsNeverLost::default()),
        Box::new(shown_is_never_lost::ShownIsNeverLost::default()),
        Box::new(prefix_durability::PrefixDurability::default()),
        Box::new(offsets_are_dense::OffsetsAreDense),
        Box::new(retries_are_not_doubled::RetriesAreNotDoubled),
        Box::new(stamps_rise::StampsRise),
        Box::new(history_stands_still::HistoryStandsStill),
        Box::new(frontier_never_falls::FrontierNeverFalls::default()),
        Box::new(nothing_below_the_frontier::NothingBelowTheFrontier::default()),
        Box::new(cuts_repeat::CutsRepeat::default()),
        Box::new(cuts_are_exact::CutsAreExact),
        Box::new(cuts_are_closed::CutsAreClosed),
        Box::new(moments_are_prefixes::MomentsArePrefixes),
        Box::new(user_times_are_exact::UserTimesAreExact),
        Box::new(user_moments_end_exactly::UserMomentsEndExactly),
        Box::new(compaction_keeps_the_newest::CompactionKeepsTheNewest),
        Box::new(tombstones_stay_their_time::TombstonesStayTheirTime::default()),
        Box::new(pins_keep_the_past::PinsKeepThePast::default()),
        Box::new(pins_stand_until_they_expire::PinsStandUntilTheyExpire),
        Box::new(given_up_is_said::GivenUpIsSaid),
        Box::new(futures_are_refused::FuturesAreRefused::default()),
        Box::new(doubt_gives_nothing_up::DoubtGivesNothingUp::default()),
        Box::new(fenced_refuses::FencedRefuses::default()),
        Box::new(names_as_they_were::NamesAsTheyWere::default()),
        Box::new(offsets_as_they_were::OffsetsAsTheyWere::default()),
        Box::new(files_as_they_were::FilesAsTheyWere),
        Box::new(files_keep_the_rules::FilesKeepTheRules),
        Box::new(hoards_are_found_again::HoardsAreFoundAgain),
        Box::new(synced_files_are_never_lost::SyncedFilesAreNeverLost),
    ]
}
