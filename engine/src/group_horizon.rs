//! How far back committed offsets and groups can be read.
//!
//! Their log would grow with every commit for ever. So its beginning is given up, once it is older than
//! [`EngineOptions::offsets_retention`](crate::EngineOptions): what was there at a moment, the
//! *horizon*, is said again at the log's end, durably, and everything before that moment goes.
//!
//! What holds true of it:
//! - The horizon is the moment behind the last entry that was given up, so the log's start tells which
//!   restatement belongs to it. It never falls, and no cut before it is answered.
//! - What is restated, and the entries from the log's start on, make the catalog anew as it was, for
//!   every cut from the horizon on. Restatements of other horizons are passed over: those of earlier
//!   ones would bring back what was removed since, and of later ones the entries are still there.
//! - A restatement that was broken off belongs to no start, or stands in front of a whole one of the
//!   same moment, which says the same.

use std::sync::Arc;

use hlc::{Cut, Hlc, SysTime};
use storage::{Log, Offset};

use crate::engine::{CatalogFillError, Engine, EventReader};
use crate::error::EngineError;
use crate::groups::GroupCatalog;
use crate::namespace::GROUPS_LOG;
use crate::namespace::event::MetadataEvent;
use crate::seek::{SeekError, earliest_bound, is_retained};

/// So many bytes are worth the effort, however small a part of the log they are.
const TRUNCATION_BYTES_MIN: u64 = 1 << 20;
/// Or this part of the log.
const TRUNCATION_SHARE_DIVISOR: u64 = 4;
/// What is written anew is at most this part of what goes: so the log grows to at most about twice of
/// what was committed since the horizon.
const RESTATED_SHARE_DIVISOR: u64 = 2;

/// What of the groups' log is to go.
struct GroupTruncationPlan {
    /// The moment that is restated.
    horizon: Cut,
    /// The first offset that stays.
    start: Offset,
}

impl Engine {
    /// Whether committed offsets and groups can still be read at `cut`.
    pub(crate) fn check_groups_retained(&self, cut: Cut) -> Result<(), SeekError> {
        let horizon = self.groups_log.horizon();
        if is_retained(&horizon, cut) {
            return Ok(());
        }
        Err(SeekError::BeforeOffsets { earliest: earliest_bound(&horizon) })
    }

    /// The earliest bound of a cut at which committed offsets and groups can be read.
    pub fn offsets_horizon(&self) -> Hlc {
        earliest_bound(&self.groups_log.horizon())
    }

    /// How many bytes of events of offsets and groups are kept.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn offsets_bytes(&self) -> Result<u64, EngineError> {
        Ok(self.groups_log.bytes()?)
    }

    /// Gives up what committed offsets and groups were longer ago than is to be read, if that is worth
    /// the effort; whether it was.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn apply_group_retention(self: &Arc<Engine>) -> Result<bool, EngineError> {
        let engine = Arc::clone(self);
        self.spawn_blocking(move || engine.apply_group_retention_blocking()).await
    }

    fn apply_group_retention_blocking(&self) -> Result<bool, EngineError> {
        let Some(GroupTruncationPlan { horizon, start }) = self.plan_group_truncation()? else {
            return Ok(false);
        };
        let groups = self.shared.groups()?;
        let bytes_max = self.options.maintenance.restated_bytes_max;
        // This may take long, and holds nobody up.
        groups.restate(horizon, bytes_max, &mut |event| {
            self.submit_event_blocking(event).map(drop)
        })?;
        // One that forgot more than the log still has would be made anew at the next start.
        groups.catalog().flush();
        // No pin is set at a moment before the horizon while it moves. If one was set meanwhile, what was
        // restated belongs to no start.
        let Some(held) = self.lock_changes_blocking() else { return Ok(false) };
        let until = self.retention_time().map(|now| self.offset_retention_cut(now));
        if until.is_none_or(|until| until < horizon) {
            return Ok(false);
        }
        self.store.advance_log_start(&[(GROUPS_LOG, start)])?;
        drop(held);
        let versions = groups.prune(horizon.bound())?;
        tracing::info!(horizon = %horizon.bound(), start = start.0, versions, "advanced the log start of offsets");
        Ok(true)
    }

    fn plan_group_truncation(&self) -> Result<Option<GroupTruncationPlan>, EngineError> {
        // A clock that cannot be trusted makes nothing old.
        let Some(now) = self.retention_time() else { return Ok(None) };
        let until = self.offset_retention_cut(now);
        let log = &self.groups_log;
        let tip = log.tip_at(until)?;
        // What the cut admits has to be in the catalog, which is asked what was there.
        if tip.end <= log.start() || !self.has_applied(until)? {
            return Ok(None);
        }
        let going = log.bytes_between(log.start(), tip.end)?;
        if going < TRUNCATION_BYTES_MIN && going < log.bytes()?.div_ceil(TRUNCATION_SHARE_DIVISOR) {
            return Ok(None);
        }
        let horizon = Cut::through(tip.stamp);
        let restated = self.shared.groups()?.restated_bytes(horizon)?;
        Ok((restated <= going / RESTATED_SHARE_DIVISOR)
            .then_some(GroupTruncationPlan { horizon, start: tip.end }))
    }

    /// What lies before this is to go.
    fn offset_retention_cut(&self, now: SysTime) -> Cut {
        let until = Cut::before(now.saturating_sub(self.options.offsets_retention));
        let until = until.min(Cut::through(self.frontier()));
        self.pin_holds(None).earliest.map_or(until, |hold| until.min(hold.at))
    }
}

/// Begins the catalog anew, with what was restated for the start that the log has.
pub(crate) fn refill_groups(groups: &GroupCatalog, log: &Arc<Log>) -> Result<(), CatalogFillError> {
    groups.clear()?;
    if log.start() == Offset(0) {
        return Ok(());
    }
    let kept_from = earliest_bound(&log.horizon());
    for event in EventReader::new(Arc::clone(log), log.start()) {
        let (MetadataEvent::GroupsRestated { horizon, offsets, groups: states, is_last }, ..) =
            event?
        else {
            continue;
        };
        if Hlc::from_bits(horizon) == kept_from {
            groups.load_restatement(&offsets, &states)?;
            if is_last {
                return Ok(());
            }
        }
    }
    let why = format!(
        "the log start of offsets and groups advanced without a restatement. horizon={kept_from}"
    );
    Err(CatalogFillError::Journal(why))
}
