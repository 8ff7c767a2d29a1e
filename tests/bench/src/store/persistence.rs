//! F32: the same appends with a disk that does nothing, with the page cache, and with a sync of each
//! group. Five runs each, as in the paper. Its authors found no difference, with a network that was
//! slower than the disk; here nothing lies before the disk, and so it shows.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::append_rate::append_and_close;
use super::finding::Findings;
use super::null_disk::NullDisk;
use super::rig::{Durability, Rig};
use super::rounds::{Side, Turns, take_turns};
use super::{Bench, size_label};

const SIZES: [u64; 3] = [16 << 10, 256 << 10, 1 << 20];
const RUNS: Turns = Turns { discard: 1, least: 5, time: Duration::ZERO };
const TAIL_BYTES: usize = 64 << 20;

pub(super) fn run(bench: &Bench) -> Result<Findings> {
    let mut found = Findings::default();
    for size in SIZES {
        let off = || -> Result<_> {
            let rig = Rig::open_unread(Arc::new(NullDisk::default()), TAIL_BYTES)?;
            append_and_close(bench, rig, size, Durability::Written)
        };
        let real = |how| {
            let scratch = bench.scratch("persistence")?;
            append_and_close(bench, Rig::open(scratch.path(), TAIL_BYTES)?, size, how)
        };
        let sides = vec![
            Side::new("off", move |_| off()),
            Side::new("on", move |_| real(Durability::Written)),
            Side::new("sync", move |_| real(Durability::Synced)),
        ];
        let measured = take_turns(RUNS, sides)?;
        found.add(size as f64, &size_label(size), &measured);
    }
    Ok(found)
}
