//! Faults that a test injects into catalogs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{CatalogAccess, CatalogStepError};

/// The faults that occur in catalogs, and their times; none by default. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct CatalogFaults(Arc<CatalogFaultPlan>);

#[derive(Debug, Default)]
struct CatalogFaultPlan {
    /// 0: no step fails; 1: the next step fails; and so on.
    steps_until_failure: AtomicU64,
    /// The same for writes alone.
    writes_until_failure: AtomicU64,
    is_full: AtomicBool,
    panics_at_end: AtomicBool,
}

impl CatalogFaults {
    /// Makes a step fail after `steps` more reads and writes.
    pub fn fail_after(&self, steps: u64) {
        self.0.steps_until_failure.store(steps + 1, Ordering::Relaxed);
    }

    /// Makes a write fail after `writes` more writes. The number of reads depends on what a catalog
    /// has forgotten, which no seed decides; the number of writes does not.
    pub fn fail_write_after(&self, writes: u64) {
        self.0.writes_until_failure.store(writes + 1, Ordering::Relaxed);
    }

    /// Returns true if a failure is still pending.
    pub fn has_pending_failure(&self) -> bool {
        self.0.steps_until_failure.load(Ordering::Relaxed) > 0
    }

    /// Sets whether there is no space for catalogs on disk: none can be created or written.
    pub fn set_full(&self, is_full: bool) {
        self.0.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Makes the library panic when it ends.
    pub fn set_panic_at_end(&self) {
        self.0.panics_at_end.store(true, Ordering::Relaxed);
    }

    pub(super) fn panic_at_end(&self) {
        assert!(!self.0.panics_at_end.load(Ordering::Relaxed), "this was asked for");
    }

    /// The error of the next step, if it is to fail.
    pub(super) fn error_of(
        &self,
        is_on_disk: bool,
        access: CatalogAccess,
    ) -> Option<CatalogStepError> {
        if is_on_disk && access == CatalogAccess::Write && self.0.is_full.load(Ordering::Relaxed) {
            return Some(CatalogStepError {
                why: "no space is left".to_owned(),
                spares_files: true,
            });
        }
        let writes = access == CatalogAccess::Write && count_down(&self.0.writes_until_failure);
        let fails = count_down(&self.0.steps_until_failure) || writes;
        fails.then(|| CatalogStepError::new("a step fails, as asked"))
    }
}

/// Counts down to 0; returns whether this was the last step.
fn count_down(remaining: &AtomicU64) -> bool {
    remaining.load(Ordering::Relaxed) > 0 && remaining.fetch_sub(1, Ordering::Relaxed) == 1
}
