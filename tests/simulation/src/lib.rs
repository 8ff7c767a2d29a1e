//! Whole worlds in one thread, each from one seed: a node with its clock, its disk, its network and
//! its clients. `README.md` says what is simulated, and how a seed is replayed.

#![forbid(unsafe_code)]

mod actors;
mod audit;
mod catalog;
mod clock;
mod corruption;
mod coverage;
mod disk;
mod facts;
mod invariants;
mod ledger;
mod model_tree;
mod network;
mod node;
mod run;
mod small_files;
mod topic_settings;
mod trace;
mod tree_versions;
mod wire;
mod world;

use std::collections::BTreeSet;

pub use catalog::CatalogAge;
pub use coverage::{ALL as ALL_COVERAGE_POINTS, CoveragePoint};
pub use facts::NodeExitKind;

/// The report of a world in which everything held.
#[derive(Clone, Debug)]
pub struct SimReport {
    /// The number of events and a hash of all of them: the same whenever the seed runs.
    pub fingerprint: (u64, u64),
    /// The rare things that happened.
    pub coverage: BTreeSet<CoveragePoint>,
}

/// Runs the world of `seed`, and prints each event if `prints`.
///
/// # Errors
/// Something did not hold: what, the last events, and how to replay the world.
pub fn run_world(seed: u64, prints: bool) -> Result<SimReport, String> {
    let result = std::panic::catch_unwind(|| run::run(seed, prints))
        .unwrap_or_else(|_| Err("the node panicked".to_owned()));
    let replay = format!("FREEZEFRAME_SIM_SEED={seed} cargo test -p simulation");
    result.map_err(|why| format!("seed {seed}: {why}\nreplay it with\n  {replay}\n"))
}
