//! Whole worlds in one thread: a node with its clock, its disk, its network and its clients, all from one
//! seed. `docs/TESTING.md` says what is simulated, and what each invariant has caught.
//!
//!     FREEZEFRAME_SIM_SEED=7 cargo test -p tests --test sim       # one world, printed as it goes
//!     FREEZEFRAME_SIM_SEEDS=5000 cargo test -p tests --test sim   # so many worlds

mod actors;
mod audit;
mod chance;
mod clock;
mod disk;
mod facts;
mod invariants;
mod ledger;
mod network;
mod node;
mod trace;
mod wire;
mod world;

use std::env;

/// How many worlds are tried if nobody says.
const SEEDS: u64 = 24;

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// Runs the world of a seed.
///
/// # Errors
/// What did not hold, and how to see it again.
fn holds(seed: u64, prints: bool) -> Result<(u64, u64), String> {
    let again = format!("FREEZEFRAME_SIM_SEED={seed} cargo test -p tests --test sim");
    let why = match std::panic::catch_unwind(|| world::run(seed, prints)) {
        Ok(world::Outcome { failure: None, fingerprint }) => return Ok(fingerprint),
        Ok(world::Outcome { failure: Some(why), .. }) => why,
        Err(_) => "the node panicked".to_owned(),
    };
    Err(format!("seed {seed}: {why}\nsee it again with\n  {again}\n"))
}

#[test]
fn every_invariant_holds_in_every_world() {
    let (first, count) = match number("FREEZEFRAME_SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (
            number("FREEZEFRAME_SIM_FIRST").unwrap_or(1),
            number("FREEZEFRAME_SIM_SEEDS").unwrap_or(SEEDS),
        ),
    };
    let prints = number("FREEZEFRAME_SIM_SEED").is_some();
    let mut failed = Vec::new();
    for seed in first..first + count {
        if let Err(why) = holds(seed, prints) {
            eprintln!("{why}");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "what should hold does not, in the worlds of seeds {failed:?}");
}

#[test]
fn a_seed_gives_the_same_world_each_time() {
    for seed in 1000..1003 {
        let (first, second) = (holds(seed, false), holds(seed, false));
        assert_eq!(first, second, "events and their fingerprint, of seed {seed}");
        let (events, _) = first.expect("every invariant holds");
        assert!(events > 100, "something happens: {events} events");
    }
}
