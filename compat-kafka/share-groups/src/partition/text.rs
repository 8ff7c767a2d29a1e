//! The state that survives a restart: the start offset, and a text for the records after it, which
//! is stored as the metadata of the group's offset.
//!
//! The text has the runs from the start offset on, separated by spaces: the number of records, then
//! `f` with the number of deliveries for those that are available, `d` for those that were
//! processed, `x` for those that were given up. `12f2 3d 1x` is twelve records that were delivered
//! twice, three that are done, and one that is not delivered any more. Records that a member has
//! are stored as they were before: after a restart they are delivered again.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{RecordRun, RecordState, SharePartition};

impl SharePartition {
    /// The text of the records from the start on.
    pub(crate) fn text(&self) -> String {
        let (mut text, mut waiting) = (String::new(), None::<(i64, StoredState)>);
        for (first, run) in &self.runs {
            let count = run.last - first + 1;
            let state = StoredState::of(run);
            match &mut waiting {
                Some((counted, last_state)) if *last_state == state => *counted += count,
                _ => {
                    write_run(&mut text, waiting.take());
                    waiting = Some((count, state));
                }
            }
        }
        // Records at the end that were not delivered need no mention.
        write_run(&mut text, waiting.filter(|(_, state)| *state != StoredState::Free(0)));
        text
    }

    /// The partition with a start offset and a text; `None` if it is not such a text.
    pub(crate) fn parse(start: i64, text: &str) -> Option<SharePartition> {
        let mut partition = SharePartition { runs: BTreeMap::new(), ..SharePartition::new(start) };
        for run in text.split(' ').filter(|run| !run.is_empty()) {
            let end = run.find(|c: char| !c.is_ascii_digit())?;
            let count: i64 = run[..end].parse().ok().filter(|count| *count > 0)?;
            let (state, deliveries) = match run[end..].split_at_checked(1)? {
                ("f", deliveries) => (RecordState::Available, deliveries.parse().ok()?),
                ("d", "") => (RecordState::Acknowledged, 0),
                ("x", "") => (RecordState::Archived, 0),
                _ => return None,
            };
            partition.end.checked_add(count)?;
            partition.append(partition.end + count - 1, state, deliveries);
        }
        partition.advance();
        Some(partition)
    }
}

/// A state as it is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoredState {
    /// Available, with the number of its deliveries.
    Free(u16),
    Done,
    GivenUp,
}

impl StoredState {
    fn of(run: &RecordRun) -> StoredState {
        match run.state {
            RecordState::Available => StoredState::Free(run.deliveries),
            RecordState::Acquired { .. } => StoredState::Free(run.deliveries.saturating_sub(1)),
            RecordState::Acknowledged => StoredState::Done,
            RecordState::Archived => StoredState::GivenUp,
        }
    }
}

fn write_run(text: &mut String, run: Option<(i64, StoredState)>) {
    let Some((count, state)) = run else { return };
    let space = if text.is_empty() { "" } else { " " };
    let written = match state {
        StoredState::Free(deliveries) => write!(text, "{space}{count}f{deliveries}"),
        StoredState::Done => write!(text, "{space}{count}d"),
        StoredState::GivenUp => write!(text, "{space}{count}x"),
    };
    written.expect("a text can be written to");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_reads_as_what_it_says() {
        let partition = SharePartition::parse(10, "2f1 3d 1x 4f0 1d").unwrap();
        assert_eq!((partition.start(), partition.end, partition.final_count()), (10, 21, 5));
        assert_eq!(partition.text(), "2f1 3d 1x 4f0 1d");
        let partition = SharePartition::parse(10, "3d 2f1").unwrap();
        assert_eq!((partition.start(), partition.text().as_str()), (13, "2f1"));
        assert_eq!(SharePartition::parse(7, "").unwrap().next_offset(), 7);
        for wrong in
            ["x", "3", "0d", "-1d", "3q", "3d1", "3f", "9999999999999999999d", "3f70000", "3é"]
        {
            assert!(SharePartition::parse(0, wrong).is_none(), "{wrong}");
        }
        assert!(SharePartition::parse(i64::MAX, "1d").is_none());
    }
}
