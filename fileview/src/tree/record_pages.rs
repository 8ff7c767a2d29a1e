//! The records of a topic as of a moment, page by page.

use std::fmt;
use std::str::FromStr;

use engine::Offset;
use engine::blocking::block_in_place;
use hlc::{Cut, Hlc, Moment, MomentSelector};
use kafka_records::KafkaRecord;

use super::scan::{VisibleRange, for_each_record, read_step};
use super::stat::ATTEMPTS_MAX;
use super::{GuardedPlace, TopicNode, TreeError, ViewTree};
use crate::check_topic;

/// The number of bytes of batches that are read in one step.
const STEP_BYTES: usize = 1 << 20;
/// The number of bytes of batches that are read for one page, approximately. A page of a moment of
/// user time, or of aborted transactions, may show few of them.
const PAGE_READ_BYTES: usize = 64 << 20;
/// The number of partitions that are looked at for one page: most may be empty.
const PAGE_PARTITIONS: u32 = 1000;

/// The position where a stream of records continues, and its moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordsCursor {
    at: MomentSelector,
    partition: u32,
    offset: Offset,
}

impl RecordsCursor {
    /// The moment of its pages.
    pub fn moment(&self) -> MomentSelector {
        self.at
    }
}

impl fmt::Display for RecordsCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecordsCursor { at, partition, offset } = self;
        write!(f, "{at}~{partition}~{}", offset.0)
    }
}

impl FromStr for RecordsCursor {
    type Err = TreeError;

    fn from_str(text: &str) -> Result<RecordsCursor, TreeError> {
        let bad = || TreeError::Invalid("not a cursor of records".to_owned());
        let mut fields = text.split('~');
        let mut field = || fields.next().ok_or_else(bad);
        let at = field()?.parse().map_err(|_| bad())?;
        let partition = field()?.parse().map_err(|_| bad())?;
        let offset = Offset(field()?.parse().map_err(|_| bad())?);
        match fields.next() {
            None => Ok(RecordsCursor { at, partition, offset }),
            Some(_) => Err(bad()),
        }
    }
}

/// The records that a page is asked for.
#[derive(Clone, Debug)]
pub struct RecordsQuery<'a> {
    pub topic: &'a str,
    /// The only partition; `None` for all.
    pub partition: Option<u32>,
    /// The moment, or the window; `None` for now. A cursor has its own.
    pub at: Option<MomentSelector>,
    /// The cursor of the page before.
    pub after: Option<RecordsCursor>,
    /// The most records of the page.
    pub records_max: usize,
    /// The page ends with the record that reaches this many bytes.
    pub bytes_max: usize,
}

/// A page of records.
#[derive(Clone, Debug)]
pub struct RecordsPage {
    /// The moment of the page, which is final.
    pub at: MomentSelector,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<RecordsCursor>,
}

/// Takes a record of a partition, with the stamp of its batch, and returns the bytes it takes.
pub type TakeRecord<'a> = &'a mut (dyn FnMut(u32, &KafkaRecord, Hlc) -> usize + Send);

impl ViewTree {
    /// A page of the records of a topic as of a moment, in the order of partitions and offsets.
    ///
    /// Without a moment it is as of now, and so are the pages after it. A page may be empty though
    /// others follow.
    ///
    /// # Errors
    /// [`TreeError`]. Records may have been taken before; they do not make a page.
    pub async fn records_page(
        &self,
        query: &RecordsQuery<'_>,
        take: TakeRecord<'_>,
    ) -> Result<RecordsPage, TreeError> {
        let name = query.topic;
        check_topic(name).map_err(|_| TreeError::NotFound(format!("there was no topic {name}")))?;
        self.check(GuardedPlace::Records(name))?;
        let at = query.after.map(|after| after.at).or(query.at);
        let now = || MomentSelector::At(Moment::Sys(Cut::through(self.engine.frontier())));
        let at = self.wait_until_closed(at.unwrap_or_else(now)).await?;
        let topic = self.topic(name, Some(at)).await?;
        let count = self.topic_at_moment(&topic).await?.partitions.len() as u32;
        let partitions = match query.partition {
            None => 0..count,
            Some(one) if one < count => one..one + 1,
            Some(one) => {
                let message = format!("the topic {name} had no partition {one}, but {count}");
                return Err(TreeError::NotFound(message));
            }
        };
        let first = RecordsCursor { at, partition: partitions.start, offset: Offset(0) };
        let from = query.after.unwrap_or(first);
        let mut page = RecordsPageBuilder { query, take, records: 0, bytes: 0, read: 0 };
        for partition in from.partition.max(partitions.start)..partitions.end {
            let offset = if partition == from.partition { from.offset } else { Offset(0) };
            let cursor = |offset| RecordsCursor { at, partition, offset };
            if partition - from.partition >= PAGE_PARTITIONS {
                return Ok(RecordsPage { at, next: Some(cursor(offset)) });
            }
            if let Some(next) = page.read_partition(self, &topic, cursor(offset)).await? {
                return Ok(RecordsPage { at, next: Some(cursor(next)) });
            }
        }
        Ok(RecordsPage { at, next: None })
    }
}

/// A page under construction.
struct RecordsPageBuilder<'a> {
    query: &'a RecordsQuery<'a>,
    take: TakeRecord<'a>,
    records: usize,
    bytes: usize,
    read: usize,
}

impl RecordsPageBuilder<'_> {
    fn is_full(&self) -> bool {
        self.records >= self.query.records_max || self.bytes >= self.query.bytes_max
    }

    /// Takes the records of a partition from a position on. Returns where the next page continues;
    /// `None` if the partition has no more.
    async fn read_partition(
        &mut self,
        tree: &ViewTree,
        topic: &TopicNode,
        from: RecordsCursor,
    ) -> Result<Option<Offset>, TreeError> {
        let mut range = tree.visible_range(topic, from.partition).await?;
        if Offset(0) < from.offset && from.offset < range.start {
            let RecordsCursor { partition, offset, .. } = from;
            return Err(TreeError::Gone(format!(
                "record {} of partition {partition} is not kept any more",
                offset.0
            )));
        }
        let mut next = from.offset.max(range.start);
        let mut tries = 1;
        while next < range.end {
            if self.is_full() || self.read >= PAGE_READ_BYTES {
                break;
            }
            // No record of a failed step was taken.
            match block_in_place(|| self.read_step(&range, next)) {
                Ok(after) => next = after,
                Err(TreeError::Gone(_)) if tries < ATTEMPTS_MAX => {
                    tries += 1;
                    range = tree.visible_range(topic, from.partition).await?;
                }
                Err(error) => return Err(error),
            }
            tokio::task::yield_now().await;
        }
        range.check_kept()?;
        Ok((next < range.end).then_some(next))
    }

    /// Takes the records of some batches, until the page is full.
    fn read_step(&mut self, range: &VisibleRange, from: Offset) -> Result<Offset, TreeError> {
        let step = read_step(&range.partition, &range.transactions, from, range.end, STEP_BYTES)?;
        let mut stopped = None;
        for batch in &step.batches {
            self.read += batch.bytes.len();
            for_each_record(batch, &(from..range.end), range.user.as_ref(), |record| {
                if stopped.is_none() && self.is_full() {
                    stopped = Some(Offset(record.offset as u64));
                }
                if stopped.is_none() {
                    self.records += 1;
                    self.bytes += (self.take)(range.partition.index, record, batch.stamp());
                }
                Ok(())
            })?;
            if stopped.is_some() {
                break;
            }
        }
        Ok(stopped.unwrap_or(step.next))
    }
}
