//! The events of a run in order: as text for people, and as one number to compare two runs.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// The number of lines that a failure shows.
const LINES_SHOWN: usize = 80;

/// The events of a run.
#[derive(Debug)]
pub(crate) struct SimTrace {
    lines: VecDeque<String>,
    count: u64,
    hasher: DefaultHasher,
    prints: bool,
}

impl SimTrace {
    /// `prints` also prints every line at once.
    pub(crate) fn new(prints: bool) -> SimTrace {
        SimTrace { lines: VecDeque::new(), count: 0, hasher: DefaultHasher::new(), prints }
    }

    pub(crate) fn note(&mut self, at: Duration, who: &str, what: &str) {
        let line = format!("{:>9.3}s {who:<10} {what}", at.as_secs_f64());
        line.hash(&mut self.hasher);
        self.count += 1;
        if self.prints {
            eprintln!("{line}");
        }
        if self.lines.len() == LINES_SHOWN {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Equal for two runs with the same events.
    pub(crate) fn fingerprint(&self) -> (u64, u64) {
        (self.count, self.hasher.finish())
    }

    /// The last events.
    pub(crate) fn tail(&self) -> String {
        self.lines.iter().map(|line| format!("  {line}\n")).collect()
    }
}
