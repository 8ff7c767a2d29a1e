//! Which records of transactions a reader wants.

/// Which records of transactions a reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// Those of transactions that are committed, by the stamp of their decision (TIME.md 7).
    Committed,
    /// All of them.
    Uncommitted,
}
