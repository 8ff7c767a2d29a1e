//! The records of a topic as of a moment, page by page.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use engine::blocking::block_in_place;
use engine::{Offset, Partition, Topic};
use hlc::{Hlc, Moment, MomentSelector};
use kafka_records::KafkaRecord;

use super::scan::{LogGeneration, VisibleRange, for_each_record, read_step};
use super::stat::ATTEMPTS_MAX;
use super::{GuardedPlace, TopicNode, TreeError, ViewTree};
use crate::check_topic;

/// The number of bytes of batches that are read in one step.
const STEP_BYTES: usize = 1 << 20;
/// The number of bytes of batches that are read for one page, packed or not, approximately. A page
/// of a moment of user time, or of aborted transactions, may show few of them.
const PAGE_READ_BYTES: usize = 64 << 20;
/// The number of partitions that are looked at for one page: most may be empty.
const PAGE_PARTITIONS: u32 = 1000;

/// The position where a stream of records continues, and what must not have changed since its first
/// page. Retention and compaction change what a moment shows, so pages from before and after are
/// not of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordsCursor {
    at: MomentSelector,
    partition: u32,
    /// The next record of the partition; 0 if none of its records was looked for yet.
    offset: Offset,
    /// The generation of the partition, if some of its records were looked for.
    generation: LogGeneration,
    /// The sum of the log starts of the partitions of which none was looked for. Log starts only
    /// rise, so an equal sum means that none has.
    unread_starts: u64,
}

impl RecordsCursor {
    /// The moment of its pages.
    pub fn moment(&self) -> MomentSelector {
        self.at
    }

    /// True if a partition's records were not looked for yet.
    fn is_unread(&self, partition: u32) -> bool {
        partition > self.partition || (partition == self.partition && self.offset == Offset(0))
    }
}

impl fmt::Display for RecordsCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecordsCursor { at, partition, offset, generation, unread_starts } = self;
        write!(f, "{at}~{partition}~{}~{}~{unread_starts}", offset.0, generation.number())
    }
}

impl FromStr for RecordsCursor {
    type Err = TreeError;

    fn from_str(text: &str) -> Result<RecordsCursor, TreeError> {
        let bad = || TreeError::Invalid("not a cursor of records".to_owned());
        let fields: Vec<&str> = text.split('~').take(6).collect();
        let [at, partition, offset, generation, unread_starts] = fields[..] else {
            return Err(bad());
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
        Ok(RecordsCursor {
            at: at.parse().map_err(|_| bad())?,
            partition: partition.parse().map_err(|_| bad())?,
            offset: Offset(number(offset)?),
            generation: LogGeneration::from_number(number(generation)?),
            unread_starts: number(unread_starts)?,
        })
    }
}

/// The records that a page is asked for.
#[derive(Clone, Debug)]
pub struct RecordsQuery<'a> {
    pub topic: &'a str,
    /// The only partition; `None` for all.
    pub partition: Option<u32>,
    /// The moment or the window, as [`ViewTree::wait_until_closed`] returns it.
    pub at: MomentSelector,
    /// The cursor of the page before, which is of that moment.
    pub after: Option<RecordsCursor>,
    /// The most records of the page.
    pub records_max: usize,
    /// The most bytes of the page, unless it is of one record.
    pub bytes_max: usize,
}

/// Takes a record of a partition, with the stamp of its batch, and returns the bytes that it takes.
/// `None` if those are more than the bytes that are left: the last argument.
pub type TakeRecord<'a> =
    &'a mut (dyn FnMut(u32, &KafkaRecord, Hlc, usize) -> Option<usize> + Send);

impl ViewTree {
    /// A page of the records of a topic as of a moment, in the order of partitions and offsets.
    /// Returns the cursor of the next page; `None` at the end. A page may be empty though others
    /// follow.
    ///
    /// # Errors
    /// [`TreeError`]; [`TreeError::Gone`] if retention or compaction has changed since the first
    /// page what the moment shows. Records may have been taken before; they do not make a page.
    pub async fn records_page(
        &self,
        query: &RecordsQuery<'_>,
        take: TakeRecord<'_>,
    ) -> Result<Option<RecordsCursor>, TreeError> {
        let name = query.topic;
        check_topic(name).map_err(|_| TreeError::NotFound(format!("there was no topic {name}")))?;
        self.check(GuardedPlace::Records(name))?;
        let topic = self.topic(name, Some(query.at)).await?;
        let topic_then = self.topic_at_moment(&topic).await?;
        let shown = ShownPartitions::new(&topic_then, query.at, query.partition)?;
        let from = query.after.unwrap_or_else(|| shown.first_cursor());
        let mut page = RecordsPageBuilder { query, take, records: 0, bytes: 0, read: 0 };
        let mut next = None;
        for partition in from.partition.max(shown.range.start)..shown.range.end {
            let unread = RecordsCursor { partition, offset: Offset(0), ..shown.first_cursor() };
            let cursor = if partition == from.partition { from } else { unread };
            next = if partition - from.partition < PAGE_PARTITIONS {
                page.read_partition(self, &topic, cursor).await?
            } else {
                Some(cursor)
            };
            if next.is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        if shown.unread_starts(&from) != from.unread_starts {
            let message =
                format!("records of {name} are not kept any more that the first page knew of");
            return Err(TreeError::Gone(message));
        }
        Ok(next.map(|next| RecordsCursor { unread_starts: shown.unread_starts(&next), ..next }))
    }
}

/// The partitions that the pages of a query show.
struct ShownPartitions<'a> {
    at: MomentSelector,
    partitions: &'a [Arc<Partition>],
    range: Range<u32>,
}

impl ShownPartitions<'_> {
    fn new(
        topic: &Topic,
        at: MomentSelector,
        only: Option<u32>,
    ) -> Result<ShownPartitions<'_>, TreeError> {
        let count = topic.partitions.len() as u32;
        let range = match only {
            None => 0..count,
            Some(one) if one < count => one..one + 1,
            Some(one) => {
                let message =
                    format!("the topic {} had no partition {one}, but {count}", topic.name);
                return Err(TreeError::NotFound(message));
            }
        };
        Ok(ShownPartitions { at, partitions: &topic.partitions, range })
    }

    fn first_cursor(&self) -> RecordsCursor {
        let first = RecordsCursor {
            at: self.at,
            partition: self.range.start,
            offset: Offset(0),
            generation: LogGeneration::from_number(0),
            unread_starts: 0,
        };
        RecordsCursor { unread_starts: self.unread_starts(&first), ..first }
    }

    /// [`RecordsCursor::unread_starts`] now. Only a moment of system time needs it: other reads are
    /// refused if a record that belongs to them was removed.
    fn unread_starts(&self, cursor: &RecordsCursor) -> u64 {
        if !matches!(self.at, MomentSelector::At(Moment::Sys(_))) {
            return 0;
        }
        let shown = self.partitions.iter().filter(|partition| {
            self.range.contains(&partition.index) && cursor.is_unread(partition.index)
        });
        shown.fold(0, |sum, partition| sum.wrapping_add(partition.start().0))
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
    /// Takes the records of a partition from a position on. Returns where the next page continues;
    /// `None` if the partition has no more.
    async fn read_partition(
        &mut self,
        tree: &ViewTree,
        topic: &TopicNode,
        from: RecordsCursor,
    ) -> Result<Option<RecordsCursor>, TreeError> {
        let mut range = tree.visible_range(topic, from.partition).await?;
        let is_begun = from.offset > Offset(0);
        if is_begun && from.offset < range.start {
            return Err(TreeError::Gone(format!(
                "record {} of partition {} is not kept any more",
                from.offset.0, from.partition
            )));
        }
        let mut generation =
            if is_begun { from.generation } else { LogGeneration::of(&range.partition) };
        let mut first = from.offset.max(range.start);
        let (mut next, mut tries) = (first, 1);
        while next < range.end {
            if self.records >= self.query.records_max || self.read >= PAGE_READ_BYTES {
                break;
            }
            match block_in_place(|| self.read_step(&range, next, generation)) {
                Ok(RecordsStep { next: after, is_full }) => {
                    next = after;
                    if is_full {
                        break;
                    }
                }
                // No record of it was taken, so it may begin with what is left.
                Err(TreeError::Gone(_)) if !is_begun && next == first && tries < ATTEMPTS_MAX => {
                    tries += 1;
                    range = tree.visible_range(topic, from.partition).await?;
                    generation = LogGeneration::of(&range.partition);
                    first = range.start;
                    next = first;
                }
                Err(error) => return Err(error),
            }
            tokio::task::yield_now().await;
        }
        range.check_kept()?;
        let is_more = next < range.end;
        Ok(is_more.then_some(RecordsCursor { offset: next, generation, ..from }))
    }

    /// Takes the records of some batches, until the page is full.
    fn read_step(
        &mut self,
        range: &VisibleRange,
        from: Offset,
        generation: LogGeneration,
    ) -> Result<RecordsStep, TreeError> {
        let step = read_step(&range.partition, &range.transactions, from, range.end, STEP_BYTES)?;
        generation.check(&range.partition, from)?;
        let (mut stopped, mut unpacked) = (None, 0);
        for batch in &step.batches {
            unpacked +=
                for_each_record(batch, &(from..range.end), range.user.as_ref(), |record| {
                    if stopped.is_none()
                        && !self.take_record(range.partition.index, record, batch.stamp())
                    {
                        stopped = Some(Offset(record.offset as u64));
                    }
                    Ok(())
                })?;
            if stopped.is_some() {
                break;
            }
        }
        self.read += step.bytes.max(unpacked);
        let is_full = stopped.is_some();
        Ok(RecordsStep { next: stopped.unwrap_or(step.next), is_full })
    }

    /// Takes a record, unless the page is full.
    fn take_record(&mut self, partition: u32, record: &KafkaRecord, stamp: Hlc) -> bool {
        if self.records >= self.query.records_max {
            return false;
        }
        let left = match self.records {
            0 => usize::MAX,
            _ => self.query.bytes_max.saturating_sub(self.bytes),
        };
        let Some(bytes) = (self.take)(partition, record, stamp, left) else { return false };
        self.records += 1;
        self.bytes += bytes;
        true
    }
}

/// The result of a step.
struct RecordsStep {
    /// The position after the last record that was looked at.
    next: Offset,
    /// True if a record did not fit.
    is_full: bool,
}
