//! The lag of consumer groups behind the ends of their topics.
//!
//! Committed offsets are in the catalog, and there may be millions of them. Each page looks at a
//! bounded number of them, and goes on where the page before it ended. Up to that number, a page
//! has the lag of now; with more, the lag of the last sweep over all of them.

use std::sync::Arc;

use engine::groups::GroupOffset;
use engine::{Engine, EngineError};
use parking_lot::Mutex;

use super::largest_rows::LargestRows;

/// The most committed offsets that a page looks at. Each takes two seeks in the catalog.
const OFFSETS_MAX: usize = 10_000;

/// The names of the groups in which `freezeframe import` keeps its progress begin so. Nobody reads
/// with them.
pub const IMPORT_GROUP_PREFIX: &str = "freezeframe-import-";

/// A group and a topic that it reads.
pub(super) type GroupTopic = (String, Arc<str>);

/// A sweep over all committed offsets, in the order of groups, topics and partitions.
#[derive(Debug, Default)]
struct LagSweep {
    /// The key to go on after.
    after: Option<Vec<u8>>,
    /// The lag in a topic some of whose partitions were looked at.
    current: Option<(GroupTopic, u64)>,
    rows: LargestRows<GroupTopic>,
}

impl LagSweep {
    fn record(&mut self, engine: &Engine, offset: &GroupOffset) {
        if offset.group.starts_with(IMPORT_GROUP_PREFIX) {
            return;
        }
        let Some(lag) = lag_of(engine, offset) else { return };
        match &mut self.current {
            Some(((group, topic), sum)) if *group == offset.group && **topic == *offset.topic => {
                *sum = sum.saturating_add(lag);
            }
            _ => {
                self.end_topic();
                self.current = Some(((offset.group.clone(), offset.topic.as_str().into()), lag));
            }
        }
    }

    fn end_topic(&mut self) {
        if let Some((key, lag)) = self.current.take() {
            self.rows.push(lag, key);
        }
    }
}

/// The lag of groups, between two pages.
#[derive(Debug, Default)]
pub(crate) struct GroupLags {
    sweep: Mutex<LagSweep>,
    /// The result of the last whole sweep.
    last: Mutex<Option<LargestRows<GroupTopic>>>,
}

impl GroupLags {
    /// Looks at some offsets; returns the lags of the last whole sweep, if there was one.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub(super) fn read(
        &self,
        engine: &Engine,
    ) -> Result<Option<LargestRows<GroupTopic>>, EngineError> {
        self.advance(engine, OFFSETS_MAX)?;
        Ok(self.last.lock().clone())
    }

    fn advance(&self, engine: &Engine, offsets_max: usize) -> Result<(), EngineError> {
        // Of two pages at a time, the second one has what the first one found.
        let mut sweep = self.sweep.lock();
        let groups = engine.groups();
        let (offsets, next) =
            groups.committed_offsets_after(sweep.after.as_deref(), offsets_max)?;
        offsets.iter().for_each(|offset| sweep.record(engine, offset));
        sweep.after = next;
        if sweep.after.is_none() {
            sweep.end_topic();
            *self.last.lock() = Some(std::mem::take(&mut *sweep).rows);
        }
        Ok(())
    }
}

/// The records from a committed offset to the end of its partition, if that exists.
fn lag_of(engine: &Engine, offset: &GroupOffset) -> Option<u64> {
    let topic = engine.topics().named(&offset.topic)?;
    let partition = topic.partitions.get(usize::try_from(offset.partition).ok()?)?;
    let committed = u64::try_from(offset.committed.offset).ok()?;
    // Removed records are not read any more.
    Some(partition.log.end().0.saturating_sub(committed.max(partition.start().0)))
}

#[cfg(test)]
mod tests {
    use engine::groups::OffsetCommit;
    use testkit::engine::EngineFixture;

    use super::*;

    async fn commit(fixture: &EngineFixture, group: &str, offsets: &[(&str, u32, i64)]) {
        let commit = |(topic, partition, offset): &(&str, u32, i64)| OffsetCommit {
            topic: (*topic).to_owned(),
            partition: *partition,
            offset: *offset,
            leader_epoch: -1,
            metadata: String::new(),
            retention_ms: None,
        };
        let offsets = offsets.iter().map(commit).collect();
        fixture.engine.groups().commit(group, offsets).await.expect("it is committed");
    }

    fn rows(lags: &GroupLags) -> Option<Vec<(String, String, u64)>> {
        let rows = lags.last.lock().clone()?;
        let row =
            |((group, topic), lag): (&GroupTopic, u64)| (group.clone(), topic.to_string(), lag);
        let mut rows: Vec<_> = rows.iter().map(row).collect();
        rows.sort();
        Some(rows)
    }

    #[tokio::test]
    async fn a_sweep_goes_on_where_the_last_page_ended() {
        let fixture = EngineFixture::new();
        let (a, b) = (fixture.topic("a", 3).await, fixture.topic("b", 1).await);
        for (topic, partition, records) in [(&a, 0, 10), (&a, 1, 5), (&b, 0, 7)] {
            let times: Vec<i64> = (0..records).collect();
            fixture.append(topic, partition, &times).await.expect("it is appended");
        }
        commit(&fixture, "first", &[("a", 0, 4), ("a", 1, 5), ("a", 2, 0)]).await;
        commit(&fixture, "second", &[("a", 0, 0), ("b", 0, 1), ("gone", 0, 1)]).await;
        commit(&fixture, &format!("{IMPORT_GROUP_PREFIX}of-a-source"), &[("a", 0, 0)]).await;
        let row = |group: &str, topic: &str, lag| (group.to_owned(), topic.to_owned(), lag);
        let expected = [row("first", "a", 6), row("second", "a", 10), row("second", "b", 6)];

        let lags = GroupLags::default();
        lags.advance(&fixture.engine, 2).expect("it can be read");
        assert_eq!(rows(&lags), None, "no sweep is over");
        for _ in 0..4 {
            lags.advance(&fixture.engine, 2).expect("it can be read");
        }
        assert_eq!(rows(&lags).expect("a sweep is over"), expected);

        // The end of the log moves on, and so does the next sweep.
        commit(&fixture, "second", &[("b", 0, 7)]).await;
        lags.advance(&fixture.engine, 100).expect("it can be read");
        assert_eq!(rows(&lags).expect("a sweep is over")[2], row("second", "b", 0));
        fixture.engine.close();
    }
}
