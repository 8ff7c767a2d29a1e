//! Measures several ways of doing the same in turn, A B A B …, so that changes of the machine
//! affect all.

use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

use super::value_spread::ValueSpread;

const ROUNDS_MAX: usize = 15;

/// Wall time and this process's CPU time since a moment.
pub(crate) struct Stopwatch {
    began: Instant,
    cpu: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch { cpu: cpu(), began: Instant::now() }
    }

    pub(crate) fn wall(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn cpu(&self) -> Duration {
        cpu().saturating_sub(self.cpu)
    }
}

/// The CPU time of all threads of this process. The kernel's later write-back is not included.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// The figures of one round of one side.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundFigures(pub(crate) Vec<(&'static str, f64)>);

impl RoundFigures {
    pub(crate) fn with(mut self, name: &'static str, value: f64) -> RoundFigures {
        self.0.push((name, value));
        self
    }

    /// The rate and the cost of moving `bytes`, read now.
    pub(crate) fn with_rate(self, stopwatch: &Stopwatch, bytes: u64) -> RoundFigures {
        self.rate(stopwatch, bytes, "MB/s", "CPU s/GB")
    }

    /// [`RoundFigures::with_rate`], by the time when all of it is on stable storage.
    pub(crate) fn with_synced_rate(self, stopwatch: &Stopwatch, bytes: u64) -> RoundFigures {
        self.rate(stopwatch, bytes, "MB/s with the last sync", "CPU s/GB with the last sync")
    }

    fn rate(
        self,
        stopwatch: &Stopwatch,
        bytes: u64,
        rate: &'static str,
        cost: &'static str,
    ) -> RoundFigures {
        let (wall, cpu) = (stopwatch.wall().as_secs_f64(), stopwatch.cpu().as_secs_f64());
        self.with(rate, bytes as f64 / 1e6 / wall).with(cost, cpu / (bytes as f64 / 1e9))
    }
}

/// One way of doing it.
pub(crate) struct ComparisonSide<'a> {
    pub(crate) name: String,
    run: Box<dyn FnMut(usize) -> Result<RoundFigures> + 'a>,
}

impl<'a> ComparisonSide<'a> {
    /// `run` gets the number of the round.
    pub(crate) fn new(
        name: &str,
        run: impl FnMut(usize) -> Result<RoundFigures> + 'a,
    ) -> ComparisonSide<'a> {
        ComparisonSide { name: name.to_owned(), run: Box::new(run) }
    }
}

/// The number of rounds of each side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundLimits {
    /// Rounds before those that count.
    pub(crate) discard: usize,
    pub(crate) least: usize,
    /// More rounds begin until this has passed.
    pub(crate) time: Duration,
}

/// The results of a side's rounds.
#[derive(Clone, Debug)]
pub(crate) struct SideFigures {
    pub(crate) name: String,
    pub(crate) figures: Vec<(&'static str, ValueSpread)>,
}

impl SideFigures {
    pub(crate) fn figure(&self, name: &str) -> Option<&ValueSpread> {
        self.figures.iter().find(|(of, _)| *of == name).map(|(_, spread)| spread)
    }

    fn of(name: String, rounds: &[RoundFigures]) -> SideFigures {
        let names = rounds.first().map_or(&[][..], |round| &round.0);
        let values = |nth: usize| rounds.iter().map(|round| round.0[nth].1).collect();
        let figures = names.iter().enumerate();
        let figures = figures
            .filter_map(|(nth, (name, _))| Some((*name, ValueSpread::of(values(nth))?)))
            .collect();
        SideFigures { name, figures }
    }
}

/// Measures every side in every round. Before each, earlier writes go to the disk.
pub(crate) fn run_interleaved(
    turns: RoundLimits,
    mut sides: Vec<ComparisonSide<'_>>,
) -> Result<Vec<SideFigures>> {
    let mut rounds = vec![Vec::new(); sides.len()];
    let began = Instant::now();
    for nth in 0..turns.discard + ROUNDS_MAX.max(turns.least) {
        if nth >= turns.discard + turns.least && began.elapsed() >= turns.time {
            break;
        }
        for (side, rounds) in sides.iter_mut().zip(&mut rounds) {
            rustix::fs::sync();
            let round = (side.run)(nth)?;
            if nth >= turns.discard {
                rounds.push(round);
            }
        }
    }
    let named = sides.into_iter().map(|side| side.name).zip(rounds);
    Ok(named.map(|(name, rounds)| SideFigures::of(name, &rounds)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_take_turns_and_the_first_rounds_do_not_count() {
        let order = std::cell::RefCell::new(Vec::new());
        let side = |name: &'static str| {
            let order = &order;
            ComparisonSide::new(name, move |nth| {
                order.borrow_mut().push((name, nth));
                Ok(RoundFigures::default().with("nth", nth as f64))
            })
        };
        let turns = RoundLimits { discard: 1, least: 2, time: Duration::ZERO };
        let measured = run_interleaved(turns, vec![side("a"), side("b")]).unwrap();
        let expected = [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)];
        assert_eq!(*order.borrow(), expected);
        assert_eq!(measured[1].figure("nth"), ValueSpread::of(vec![1.0, 2.0]).as_ref());
        assert_eq!(measured[1].figure("other"), None);
    }
}
