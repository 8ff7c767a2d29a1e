//! Worlds of many seeds. `../README.md` says how to run one, or more.

use std::collections::BTreeSet;
use std::env;

use simulation::{ALL_COVERAGE_POINTS, run_world};

/// How many worlds run without `FREEZEFRAME_SIM_SEEDS`.
const SEEDS: u64 = 30;

fn env_number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

#[test]
fn every_invariant_holds_in_every_world() {
    let replayed = env_number("FREEZEFRAME_SIM_SEED");
    let (first, count) = match replayed {
        Some(seed) => (seed, 1),
        None => (
            env_number("FREEZEFRAME_SIM_FIRST").unwrap_or(1),
            env_number("FREEZEFRAME_SIM_SEEDS").unwrap_or(SEEDS),
        ),
    };
    let (mut failed, mut covered) = (Vec::new(), BTreeSet::new());
    for seed in first..first + count {
        match run_world(seed, replayed.is_some()) {
            Ok(report) => covered.extend(report.coverage),
            Err(why) => {
                eprintln!("{why}");
                failed.push(seed);
            }
        }
    }
    assert!(failed.is_empty(), "an invariant is broken in the worlds of seeds {failed:?}");
    let missed: Vec<_> = ALL_COVERAGE_POINTS.iter().filter(|it| !covered.contains(it)).collect();
    assert!(count < SEEDS || missed.is_empty(), "no world covers {missed:?}");
}

#[test]
fn a_seed_gives_the_same_world_each_time() {
    for seed in 1000..1003 {
        let fingerprint = || run_world(seed, false).expect("every invariant holds").fingerprint;
        let (first, second) = (fingerprint(), fingerprint());
        assert_eq!(first, second, "events and their fingerprint, of seed {seed}");
        let (events, _) = first;
        assert!(events > 100, "something happens: {events} events");
    }
}
