//! Worlds of many seeds. `../README.md` says how to run one, or more.

use std::collections::BTreeSet;
use std::env;
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use simulation::{ALL_COVERAGE_POINTS, CoveragePoint, run_world};

/// The number of worlds that run without `FREEZEFRAME_SIM_SEEDS`.
const SEEDS: u64 = 30;

fn env_number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// Runs the worlds of these seeds, one on each processor at a time. Returns the seeds that failed,
/// and what all worlds covered.
fn run_worlds(seeds: Range<u64>, prints: bool) -> (BTreeSet<u64>, BTreeSet<CoveragePoint>) {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let (mut failed, mut covered) = (BTreeSet::new(), BTreeSet::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) {
                return (failed, covered);
            }
            match run_world(seed, prints) {
                Ok(report) => covered.extend(report.coverage),
                Err(why) => {
                    eprintln!("{why}");
                    failed.insert(seed);
                }
            }
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let (mut failed, mut covered) = (BTreeSet::new(), BTreeSet::new());
        for worker in workers {
            let (its_failed, its_covered) = worker.join().expect("a world does not panic");
            failed.extend(its_failed);
            covered.extend(its_covered);
        }
        (failed, covered)
    })
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
    let (failed, covered) = run_worlds(first..first + count, replayed.is_some());
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
