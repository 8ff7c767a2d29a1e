//! Errors of reads of a moment.

use std::sync::Arc;

use hlc::{Cut, Hlc, Moment, MomentSelector};

use storage::StorageError;

use crate::error::EngineError;

/// The reason that a moment cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SeekError {
    /// The moment is not past yet.
    #[error(
        "the moment {} is not past yet (now is {}): ask again in {retry_ms} ms, or wait for it",
        Moment::Sys(*.cut), Moment::Sys(Cut::before(.frontier.time()))
    )]
    NotYet {
        /// The requested cut.
        cut: Cut,
        frontier: Hlc,
        /// The milliseconds until the moment is past.
        retry_ms: u64,
    },
    /// The moment is further ahead than the caller's patience.
    #[error(
        "the moment lies in the future: {}, and now is {}",
        Moment::Sys(*.cut), Moment::Sys(Cut::before(.frontier.time()))
    )]
    FarFuture {
        /// The requested cut.
        cut: Cut,
        frontier: Hlc,
    },
    /// Records that belong to the moment have been removed.
    #[error("history before the moment has been removed: {}", list(.lost))]
    BeforeHistory {
        /// Each such partition, and its earliest readable moment.
        lost: Vec<TruncatedPartition>,
    },
    /// Offsets and groups of that moment have been removed.
    #[error(
        "offsets and groups before the moment have been removed: they begin at {}",
        Moment::Sys(Cut::below(*.earliest))
    )]
    BeforeOffsets {
        /// The bound of their earliest readable cut.
        earliest: Hlc,
    },
    /// Transactions on znodes that the moment does not admit all of have been removed.
    #[error(
        "the history of znodes before the moment has been removed: it begins at {}",
        Moment::Sys(Cut::below(*.earliest))
    )]
    BeforeZnodes {
        /// The bound of their earliest readable cut.
        earliest: Hlc,
    },
    /// A topic of the moment may have been removed, because none of its records were left; or the
    /// events of pins of that moment have been removed.
    #[error(
        "what topics and pins there were at the moment is not known any more: it is from {} on",
        Moment::Sys(Cut::below(*.earliest))
    )]
    BeforeNames {
        /// The bound of the first later cut at which topics and pins are known.
        earliest: Hlc,
    },
    /// No such topic existed at that moment.
    #[error("there was no such topic at that moment: {topic} at {selector}")]
    NoTopic {
        topic: String,
        /// The moment.
        selector: MomentSelector,
    },
    /// Stored data cannot be read.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<StorageError> for SeekError {
    fn from(error: StorageError) -> SeekError {
        SeekError::Engine(error.into())
    }
}

/// A partition whose history does not reach back to a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TruncatedPartition {
    pub topic: Arc<str>,
    pub partition: u32,
    /// The bound of its earliest readable cut.
    pub earliest: Hlc,
}

fn list(lost: &[TruncatedPartition]) -> String {
    const SHOWN: usize = 5;
    let mut text: Vec<String> = lost
        .iter()
        .take(SHOWN)
        .map(|lost| {
            let earliest = Moment::Sys(Cut::below(lost.earliest));
            format!("{}/{} begins at {earliest}", lost.topic, lost.partition)
        })
        .collect();
    if lost.len() > SHOWN {
        text.push(format!("and {} more", lost.len() - SHOWN));
    }
    text.join(", ")
}
