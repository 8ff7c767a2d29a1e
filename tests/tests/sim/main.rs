//! Whole worlds in one thread: a node with its clock, its disk, its network and its clients, all from one
//! seed. `docs/TESTING.md` says what is simulated, and what each invariant has caught.
//!
//!     FREEZEFRAME_SIM_SEED=7 cargo test -p tests --test sim       # one world, printed as it goes
//!     FREEZEFRAME_SIM_SEEDS=5000 cargo test -p tests --test sim   # so many worlds

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
mod rng;
mod small_files;
mod trace;
mod tree_versions;
mod wire;
mod world;

use std::collections::BTreeSet;
use std::env;

/// The default number of worlds.
const SEEDS: u64 = 24;

fn env_number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// Runs the world of a seed.
///
/// # Errors
///
/// What did not hold, and how to reproduce it.
fn run_seed(seed: u64, prints: bool) -> Result<world::SimOutcome, String> {
    let again = format!("FREEZEFRAME_SIM_SEED={seed} cargo test -p tests --test sim");
    let why = match std::panic::catch_unwind(|| world::run(seed, prints)) {
        Ok(outcome @ world::SimOutcome { failure: None, .. }) => return Ok(outcome),
        Ok(world::SimOutcome { failure: Some(why), .. }) => why,
        Err(_) => "the node panicked".to_owned(),
    };
    Err(format!("seed {seed}: {why}\nsee it again with\n  {again}\n"))
}

#[test]
fn every_invariant_holds_in_every_world() {
    let (first, count) = match env_number("FREEZEFRAME_SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (
            env_number("FREEZEFRAME_SIM_FIRST").unwrap_or(1),
            env_number("FREEZEFRAME_SIM_SEEDS").unwrap_or(SEEDS),
        ),
    };
    let prints = env_number("FREEZEFRAME_SIM_SEED").is_some();
    let (mut failed, mut reached) = (Vec::new(), BTreeSet::new());
    for seed in first..first + count {
        match run_seed(seed, prints) {
            Ok(outcome) => reached.extend(outcome.coverage),
            Err(why) => {
                eprintln!("{why}");
                failed.push(seed);
            }
        }
    }
    assert!(failed.is_empty(), "what should hold does not, in the worlds of seeds {failed:?}");
    let missed: Vec<_> = coverage::ALL.iter().filter(|what| !reached.contains(what)).collect();
    assert!(count < SEEDS || missed.is_empty(), "no world came upon {missed:?}");
}

#[test]
fn a_seed_gives_the_same_world_each_time() {
    for seed in 1000..1003 {
        let fingerprint = || run_seed(seed, false).expect("every invariant holds").fingerprint;
        let (first, second) = (fingerprint(), fingerprint());
        assert_eq!(first, second, "events and their fingerprint, of seed {seed}");
        let (events, _) = first;
        assert!(events > 100, "something happens: {events} events");
    }
}
