//! Isolation levels of readers.

/// The isolation level of a reader: it selects the records of transactions that the reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// The records of transactions that are committed, by the stamp of their decision (TIME.md 7).
    Committed,
    /// All of them.
    Uncommitted,
}
