//! The horizon of committed offsets and groups: the earliest moment at which they can be read.
//!
//! Their log would grow with every commit for ever. So its log start advances past entries that are
//! older than [`GroupOptions::offsets_retention`](crate::GroupOptions). Before that, the state at
//! a moment, the *horizon*, is restated at the log's end, durably. Then everything before that
//! moment is removed.
//!
//! Invariants:
//! - The horizon is the moment after the last removed entry, so the log start identifies the
//!   restatement that belongs to it. It never falls, and no cut before it is answered.
//! - The restatement and the entries from the log start on rebuild the catalog as it was, for every
//!   cut from the horizon on. Restatements of other horizons are skipped: those of earlier horizons
//!   would bring back what was removed since, and for those of later horizons the entries are still
//!   there.
//! - An interrupted restatement belongs to no log start, or precedes a complete restatement of the
//!   same moment, which says the same.

use engine_core::log_history::{earliest_bound, is_retained};
use engine_core::numbering::GROUPS_LOG;
use engine_core::{EngineError, SeekError};
use hlc::{Cut, Hlc, SysTime};
use storage::Offset;

use crate::group_projection::GroupProjection;
use crate::groups::Groups;

/// Advancing the log start is worth it from so many bytes on, however small a share of the log they
/// are.
const TRUNCATION_BYTES_MIN: u64 = 1 << 20;
/// Or from this share of the log on.
const TRUNCATION_SHARE_DIVISOR: u64 = 4;
/// The restatement is at most this share of what is removed. So the log grows to at most about
/// twice of what was committed since the horizon.
const RESTATED_SHARE_DIVISOR: u64 = 2;

/// The range of the groups' log that is to be removed.
struct GroupTruncationPlan {
    /// The moment that is restated.
    horizon: Cut,
    /// The new log start.
    start: Offset,
}

impl Groups {
    /// Checks that committed offsets and groups can still be read at `cut`.
    ///
    /// # Errors
    /// [`SeekError::BeforeOffsets`].
    pub fn check_retained(&self, cut: Cut) -> Result<(), SeekError> {
        let horizon = self.log.horizon();
        if is_retained(&horizon, cut) {
            return Ok(());
        }
        Err(SeekError::BeforeOffsets { earliest: earliest_bound(&horizon) })
    }

    /// The earliest bound of a cut at which committed offsets and groups can be read.
    pub fn horizon(&self) -> Hlc {
        earliest_bound(&self.log.horizon())
    }

    /// The bytes of events of offsets and groups that are kept.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn bytes(&self) -> Result<u64, EngineError> {
        Ok(self.log.bytes()?)
    }

    /// Advances the log start of offsets and groups past the offsets retention, if that is worth
    /// it; returns true if it did.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn apply_retention(&self) -> Result<bool, EngineError> {
        let groups = self.clone();
        self.core.spawn_blocking(move || groups.apply_retention_blocking()).await
    }

    fn apply_retention_blocking(&self) -> Result<bool, EngineError> {
        let Some(GroupTruncationPlan { horizon, start }) = self.plan_group_truncation()? else {
            return Ok(false);
        };
        let groups = self.catalog()?;
        let bytes_max = self.core.options().maintenance.restated_bytes_max;
        // This may take long, and blocks nobody.
        groups.restate(horizon, bytes_max, &mut |event| {
            let payload = event.encode();
            self.core.submit_projected_blocking(&GroupProjection, payload).map(drop)
        })?;
        // A catalog on disk that lacks entries below the new log start would be rebuilt at the next
        // start.
        groups.catalog().flush();
        // No pin is set at a moment before the horizon while the horizon moves. If one was set
        // since the plan was made, the restatement belongs to no log start.
        let Some(lock) = self.core.lock_changes_blocking() else { return Ok(false) };
        let until = self.core.retention_time().map(|now| self.offset_retention_cut(now));
        if until.is_none_or(|until| until < horizon) {
            return Ok(false);
        }
        self.core.store().advance_log_start(&[(GROUPS_LOG, start)])?;
        drop(lock);
        let versions = groups.prune(horizon.bound())?;
        tracing::info!(horizon = %horizon.bound(), start = start.0, versions, "advanced the log start of offsets");
        Ok(true)
    }

    fn plan_group_truncation(&self) -> Result<Option<GroupTruncationPlan>, EngineError> {
        // While the clock cannot be trusted, nothing expires by age.
        let Some(now) = self.core.retention_time() else { return Ok(None) };
        let until = self.offset_retention_cut(now);
        let log = &self.log;
        let tip = log.tip_at(until)?;
        // The catalog must have everything that the cut admits, because the restatement is read
        // from it.
        if tip.end <= log.start() || !self.core.has_applied(until)? {
            return Ok(None);
        }
        let going = log.bytes_between(log.start(), tip.end)?;
        if going < TRUNCATION_BYTES_MIN && going < log.bytes()?.div_ceil(TRUNCATION_SHARE_DIVISOR) {
            return Ok(None);
        }
        let horizon = Cut::through(tip.stamp);
        let restated = self.catalog()?.restated_bytes(horizon)?;
        Ok((restated <= going / RESTATED_SHARE_DIVISOR)
            .then_some(GroupTruncationPlan { horizon, start: tip.end }))
    }

    /// Everything before this cut may be removed.
    fn offset_retention_cut(&self, now: SysTime) -> Cut {
        let until = Cut::before(now.saturating_sub(self.options.offsets_retention));
        let until = until.min(Cut::through(self.core.frontier()));
        self.core.pins().holds(None).earliest.map_or(until, |hold| until.min(hold.at))
    }
}
