//! F32: the same appends with a disk that does nothing, with the page cache, and with a sync of
//! each group. Five runs each, as in the paper. Its authors found no difference, with a network
//! that was slower than the disk. Here no network hides the disk, so there is one.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::append_rate::append_and_close;
use super::experiment::ExperimentResults;
use super::null_disk::NullDisk;
use super::rounds::{ComparisonSide, RoundLimits, run_interleaved};
use super::store_driver::{Durability, StoreDriver};
use super::{StorageContext, size_label};

const SIZES: [u64; 3] = [16 << 10, 256 << 10, 1 << 20];
const RUNS: RoundLimits = RoundLimits { discard: 1, least: 5, time: Duration::ZERO };
const TAIL_BYTES: usize = 64 << 20;

pub(super) fn run(bench: &StorageContext) -> Result<ExperimentResults> {
    let mut found = ExperimentResults::default();
    for size in SIZES {
        let off = || -> Result<_> {
            let driver = StoreDriver::open_unsealed(Arc::new(NullDisk::default()), TAIL_BYTES)?;
            append_and_close(bench, driver, size, Durability::Written)
        };
        let real = |how| {
            let scratch = bench.scratch("persistence")?;
            append_and_close(bench, StoreDriver::open(scratch.path(), TAIL_BYTES)?, size, how)
        };
        let sides = vec![
            ComparisonSide::new("off", move |_| off()),
            ComparisonSide::new("on", move |_| real(Durability::Written)),
            ComparisonSide::new("sync", move |_| real(Durability::Synced)),
        ];
        let measured = run_interleaved(RUNS, sides)?;
        found.add(size as f64, &size_label(size), &measured);
    }
    Ok(found)
}
