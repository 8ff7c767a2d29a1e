//! Checkpoints of znodes, and the retention of their history.
//!
//! A checkpoint is written once as many bytes of transactions came since the last one as that one
//! has. So checkpoints are at most as long as the transactions, and a start replays about as much
//! as it loads. The history begins at the newest checkpoint that is older than
//! [`ZnodeOptions::history_retention`]; everything in front of it is removed.

use std::sync::Arc;
use std::time::Duration;

use engine_core::EngineError;
use engine_core::numbering::{ZNODE_CHECKPOINTS_LOG, ZNODES_LOG};
use hlc::{Cut, SysTime};
use storage::Offset;

use crate::checkpoint::{CheckpointSeal, seals};
use crate::znodes::Znodes;

#[derive(Clone, Copy, Debug)]
pub struct ZnodeOptions {
    /// The least time that the history of znodes is kept.
    pub history_retention: Duration,
    /// No checkpoint is written before so many bytes of transactions came.
    pub checkpoint_bytes_min: u64,
    /// The approximate bytes of data in memory. Other data is read when it is asked for.
    pub cached_bytes_max: u64,
    /// The most znodes that there may be.
    pub znodes_max: u64,
    /// The most bytes that their paths, data and lists may have.
    pub znode_bytes_max: u64,
    /// `enforceQuota`: whether a change that exceeds a hard limit is refused.
    pub enforces_quotas: bool,
}

impl Default for ZnodeOptions {
    fn default() -> ZnodeOptions {
        ZnodeOptions {
            history_retention: Duration::from_secs(7 * 24 * 60 * 60),
            checkpoint_bytes_min: 16 << 20,
            cached_bytes_max: 1 << 30,
            znodes_max: 10_000_000,
            znode_bytes_max: 16 << 30,
            enforces_quotas: false,
        }
    }
}

impl Znodes {
    /// Writes a checkpoint, and removes history that is older than its retention, where that is
    /// due. Returns whether anything was done.
    ///
    /// # Errors
    /// The disk or the catalog fails.
    pub async fn apply_retention(self: &Arc<Znodes>) -> Result<bool, EngineError> {
        let znodes = Arc::clone(self);
        self.core().spawn_blocking(move || znodes.apply_retention_blocking()).await
    }

    fn apply_retention_blocking(&self) -> Result<bool, EngineError> {
        let is_written =
            self.is_checkpoint_due()? && self.history().write_checkpoint(self.core())?;
        Ok(self.advance_start()? || is_written)
    }

    fn is_checkpoint_due(&self) -> Result<bool, EngineError> {
        let log = self.core().store().log(ZNODES_LOG)?;
        let last = self.newest_checkpoint()?;
        let (start, bytes) = last.map_or((0, 0), |seal| (seal.start, seal.bytes));
        let since = log.bytes_between(Offset(start).max(log.start()), log.end())?;
        Ok(since >= self.options().checkpoint_bytes_min.max(bytes))
    }

    fn newest_checkpoint(&self) -> Result<Option<CheckpointSeal>, EngineError> {
        let checkpoints = self.core().store().log(ZNODE_CHECKPOINTS_LOG)?;
        seals(&checkpoints).next().transpose()
    }

    /// Removes everything in front of the newest checkpoint that is old enough; returns true if
    /// there was one.
    fn advance_start(&self) -> Result<bool, EngineError> {
        let core = self.core();
        let Some(until) = self.retention_cut() else { return Ok(false) };
        let (log, checkpoints) =
            (core.store().log(ZNODES_LOG)?, core.store().log(ZNODE_CHECKPOINTS_LOG)?);
        let old_enough = |seal: &CheckpointSeal| seal.cut() <= until;
        let last_seal = seals(&checkpoints)
            .find(|seal| seal.as_ref().map_or(true, old_enough))
            .transpose()?
            .filter(|seal| Offset(seal.start) > log.start());
        let Some(seal) = last_seal else { return Ok(false) };
        // A catalog on disk that lacks transactions below the new start would be rebuilt at the
        // next start.
        self.history().catch_up(usize::MAX)?;
        core.catalog().get()?.flush();
        // No pin is set at an earlier moment while the start moves.
        let Some(lock) = core.lock_changes_blocking() else { return Ok(false) };
        if self.retention_cut().is_none_or(|until| until < seal.cut()) {
            return Ok(false);
        }
        core.store().advance_log_start(&[
            (ZNODES_LOG, Offset(seal.start)),
            (ZNODE_CHECKPOINTS_LOG, Offset(seal.first)),
        ])?;
        drop(lock);
        let versions = self.history().prune(seal.cut())?;
        let (horizon, start) = (seal.cut().bound(), seal.start);
        tracing::info!(%horizon, start, versions, "advanced the start of the history of znodes");
        Ok(true)
    }

    /// Everything before this cut may be removed; `None` while the clock cannot be trusted.
    fn retention_cut(&self) -> Option<Cut> {
        let core = self.core();
        let now: SysTime = core.retention_time()?;
        let until = Cut::before(now.saturating_sub(self.options().history_retention));
        let until = until.min(Cut::through(core.frontier()));
        Some(core.pins().holds(None).earliest.map_or(until, |hold| until.min(hold.at)))
    }
}
