//! Records of several partitions, and of several topics, in the order in which the service accepted
//! them.
//!
//! One clock stamps every batch of a server, so its stamps are the order. A batch is printed once
//! no partition can show an earlier one any more: an answer says up to which stamp it knows its
//! partition ([`BatchStamps::closed`]). So the reader fetches from the partitions that hold the
//! others back, and from these alone.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use client::{BatchStamps, Client, FetchOptions, FetchPosition, FetchedPartition, Isolation};
use fileview::BatchFacts;
use hlc::{Hlc, UserTime};
use kafka_records::{BatchIterator, CommittedBatches, KafkaRecord};

use crate::topic_reader::{PartitionCursor, RecordUserTimes, WAIT_MAX};

/// The most bytes of batches that wait for earlier ones, but for batches that are longer than a
/// partition's share. With 1,000 partitions, the process has 64 MiB then, and half the rate of plain
/// `cat`; with less, smaller answers cost more of the rate.
const WAITING_BYTES_MAX: usize = 15 << 20;
const PARTITION_BYTES: std::ops::RangeInclusive<usize> = 4 << 10..=2 << 20;
/// The most bytes of an answer.
const ANSWER_BYTES_MAX: i32 = 4 << 20;
/// The least that is rendered in one step, if it is there, in bytes.
const STEP_BYTES: usize = 1 << 20;
/// The first pause while a partition holds back what was read from others. It doubles.
const PAUSE: Duration = Duration::from_millis(1);
/// The most fetches in a row that read nothing of partitions that have an end.
const EMPTY_IN_A_ROW_MAX: u32 = 10;

/// Items of several partitions, which leave in the order of their stamps.
#[derive(Debug)]
struct TimeMerge<T> {
    partitions: Vec<WaitingItems<T>>,
    /// The first stamp of each partition that has items.
    first: BinaryHeap<Reverse<(Hlc, usize)>>,
    /// The partitions without items, and up to which stamp each is known.
    unknown: BTreeSet<(Hlc, usize)>,
}

#[derive(Debug)]
struct WaitingItems<T> {
    items: VecDeque<(Hlc, T)>,
    /// Items that are added later have later stamps.
    closed: Hlc,
}

impl<T> TimeMerge<T> {
    fn new(partitions: usize) -> TimeMerge<T> {
        let empty = || WaitingItems { items: VecDeque::new(), closed: Hlc::ZERO };
        TimeMerge {
            partitions: (0..partitions).map(|_| empty()).collect(),
            first: BinaryHeap::new(),
            unknown: (0..partitions).map(|partition| (Hlc::ZERO, partition)).collect(),
        }
    }

    /// Adds items to a partition, behind those that wait, and says up to which stamp it is known
    /// behind them.
    fn add(&mut self, partition: usize, items: VecDeque<(Hlc, T)>, closed: Hlc) {
        let waiting = &mut self.partitions[partition];
        let was_empty = waiting.items.is_empty();
        self.unknown.remove(&(waiting.closed, partition));
        waiting.closed = closed;
        waiting.items.extend(items);
        match waiting.items.front() {
            Some((stamp, _)) if was_empty => self.first.push(Reverse((*stamp, partition))),
            Some(_) => {}
            None => self.mark_unknown(partition),
        }
    }

    /// A partition of which everything is known holds nothing back.
    fn mark_unknown(&mut self, partition: usize) {
        let closed = self.partitions[partition].closed;
        if closed < Hlc::MAX {
            self.unknown.insert((closed, partition));
        }
    }

    /// The stamp and the partition of the earliest item, if no partition can have an earlier one.
    fn next(&self) -> Option<(Hlc, usize)> {
        let Reverse((stamp, partition)) = *self.first.peek()?;
        let is_next = self.unknown.first().is_none_or(|(closed, _)| *closed >= stamp);
        is_next.then_some((stamp, partition))
    }

    fn can_pop(&self) -> bool {
        self.next().is_some()
    }

    /// Takes the earliest item, if no partition can have an earlier one.
    fn pop(&mut self) -> Option<(usize, Hlc, T)> {
        let (stamp, partition) = self.next()?;
        self.first.pop();
        let waiting = &mut self.partitions[partition];
        let (_, item) = waiting.items.pop_front()?;
        match waiting.items.front() {
            Some((next, _)) => self.first.push(Reverse((*next, partition))),
            None => self.mark_unknown(partition),
        }
        Some((partition, stamp, item))
    }

    /// True if items wait for other partitions.
    fn is_held_back(&self) -> bool {
        !self.first.is_empty()
    }

    /// The partitions to read next, the one first that holds back most: those that may have
    /// something earlier than what waits, or all without items.
    fn wanted(&self) -> impl Iterator<Item = usize> {
        let first = self.first.peek().map(|Reverse((stamp, _))| *stamp);
        let holds_back = move |closed: Hlc| first.is_none_or(|first| closed < first);
        let unknown = self.unknown.iter();
        unknown.take_while(move |(closed, _)| holds_back(*closed)).map(|(_, partition)| *partition)
    }

    fn is_done(&self) -> bool {
        self.first.is_empty() && self.unknown.is_empty()
    }
}

/// A topic whose partitions are read, as Kafka's protocol names it.
pub(crate) struct OrderedTopic {
    pub(crate) wire: String,
    pub(crate) partitions: Vec<PartitionCursor>,
    /// Only for a selection by user time.
    pub(crate) times: Option<RecordUserTimes>,
}

/// A batch that waits for its turn.
struct FetchedBatch {
    bytes: Bytes,
    /// The user times of its records, if they are not the timestamps.
    times: Option<Arc<HashMap<i64, UserTime>>>,
}

/// Reads topics in the order in which their records were accepted.
pub(crate) struct TimeOrderedReader {
    topics: Vec<OrderedTopic>,
    /// The topic of each partition, and its index there.
    places: Vec<(usize, usize)>,
    merge: TimeMerge<FetchedBatch>,
    /// The bytes of each partition's batches that wait.
    waiting_bytes: Vec<usize>,
    isolation: Isolation,
    /// The number of fetches in a row that let nothing through that waits.
    fetches_held_back: u32,
    /// The number of fetches in a row that read nothing of partitions that have an end.
    fetches_in_vain: u32,
}

impl TimeOrderedReader {
    pub(crate) fn new(topics: Vec<OrderedTopic>, isolation: Isolation) -> TimeOrderedReader {
        let of_topic = |(topic, partitions): (usize, &OrderedTopic)| {
            (0..partitions.partitions.len()).map(move |index| (topic, index))
        };
        let places: Vec<_> = topics.iter().enumerate().flat_map(of_topic).collect();
        let mut merge = TimeMerge::new(places.len());
        for (partition, (topic, index)) in places.iter().enumerate() {
            if topics[*topic].partitions[*index].is_done() {
                merge.add(partition, VecDeque::new(), Hlc::MAX);
            }
        }
        TimeOrderedReader {
            waiting_bytes: vec![0; places.len()],
            topics,
            places,
            merge,
            isolation,
            fetches_held_back: 0,
            fetches_in_vain: 0,
        }
    }

    /// True if everything has been read.
    pub(crate) fn is_done(&self) -> bool {
        self.merge.is_done()
    }

    /// Appends the selected records of the next batches to `out`, and fetches if there are none.
    /// Returns the number of records.
    pub(crate) async fn step(
        &mut self,
        client: &mut Client,
        records_max: u64,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<u64> {
        let mut records = 0;
        while records < records_max && out.len() < STEP_BYTES {
            let Some((partition, stamp, batch)) = self.merge.pop() else { break };
            self.waiting_bytes[partition] -= batch.bytes.len();
            let (topic, index) = self.places[partition];
            let time_of = |record: &KafkaRecord| match &batch.times {
                None => Some(UserTime(record.timestamp)),
                Some(times) => times.get(&record.offset).copied(),
            };
            let facts = BatchFacts { time_of: &time_of, committed: None, stamps: &[stamp] };
            let renderer = &self.topics[topic].partitions[index].renderer;
            records +=
                renderer.render_with(&batch.bytes, facts, records_max - records, out)?.records;
        }
        if out.is_empty() && records == 0 && !self.is_done() {
            self.fetch(client).await?;
        }
        Ok(records)
    }

    async fn fetch(&mut self, client: &mut Client) -> anyhow::Result<()> {
        let share = (WAITING_BYTES_MAX / self.places.len().max(1) / 2)
            .clamp(*PARTITION_BYTES.start(), *PARTITION_BYTES.end());
        let mut wanted: Vec<usize> = self.merge.wanted().collect();
        if self.merge.is_held_back() {
            // Others are about to hold back too: one request for many.
            let is_short = |partition: &usize| {
                let waiting = self.waiting_bytes[*partition];
                waiting > 0 && waiting < share * 3 / 4 && !self.cursor(*partition).is_done()
            };
            wanted.extend((0..self.places.len()).filter(is_short));
        }
        // A request names the partitions of a topic together, and the topic first that holds back
        // most.
        let mut order: Vec<usize> = Vec::new();
        for partition in &wanted {
            let (topic, _) = self.places[*partition];
            if !order.contains(&topic) {
                order.push(topic);
            }
        }
        wanted.sort_by_key(|partition| {
            order.iter().position(|topic| *topic == self.places[*partition].0)
        });
        let positions: Vec<FetchPosition> =
            wanted.iter().map(|partition| self.position(*partition)).collect();
        let options = FetchOptions {
            wait_max: self.wait_max(),
            partition_bytes_max: share as i32,
            bytes_max: ANSWER_BYTES_MAX,
            isolation: self.isolation,
            wants_stamps: true,
        };
        let fetched = client.fetch_topics(&positions, &options).await?;
        let is_shared =
            fetched.iter().filter(|(_, partition)| !partition.batches.is_empty()).count() > 1;
        let mut by_name: HashMap<(&str, i32), &FetchedPartition> = HashMap::new();
        for (topic, partition) in &fetched {
            by_name.insert((topic, partition.partition), partition);
        }
        let has_end = wanted.iter().any(|partition| self.cursor(*partition).end != i64::MAX);
        let mut has_moved = false;
        for (partition, position) in wanted.into_iter().zip(&positions) {
            let name = (&*position.topic, position.partition);
            // A server that throttles a client leaves partitions out.
            let Some(fetched_partition) = by_name.get(&name) else { continue };
            has_moved |= self.add(client, partition, fetched_partition, is_shared).await?;
        }
        self.count_in_vain(has_moved, has_end)
    }

    fn cursor(&self, partition: usize) -> &PartitionCursor {
        let (topic, index) = self.places[partition];
        &self.topics[topic].partitions[index]
    }

    fn position(&self, partition: usize) -> FetchPosition {
        let (topic, _) = self.places[partition];
        let cursor = self.cursor(partition);
        let topic = self.topics[topic].wire.clone();
        FetchPosition { topic, partition: cursor.partition, offset: cursor.next }
    }

    /// The longest wait of a server for records. If something waits here, the server only has to
    /// tell that there is nothing earlier, and what is to come may be held back by a transaction
    /// that is open.
    fn wait_max(&self) -> Duration {
        if !self.merge.is_held_back() {
            return WAIT_MAX;
        }
        match self.fetches_held_back {
            0 => Duration::ZERO,
            times => PAUSE.saturating_mul(1 << times.min(10)).min(WAIT_MAX),
        }
    }

    /// Adds the batches fetched from a partition. Returns true if there were any.
    async fn add(
        &mut self,
        client: &mut Client,
        partition: usize,
        fetched: &FetchedPartition,
        is_shared: bool,
    ) -> anyhow::Result<bool> {
        let (topic, index) = self.places[partition];
        let OrderedTopic { wire, partitions, times } = &mut self.topics[topic];
        let cursor = &mut partitions[index];
        let BatchStamps { closed, batches: stamps } =
            fetched.stamps.as_ref().with_context(|| {
                format!(
                    "{wire}/{}: the server does not say when it accepted records",
                    cursor.partition
                )
            })?;
        let times = match times {
            None => None,
            Some(times) => times.of(client, wire, cursor, &fetched.batches).await?.map(Arc::new),
        };
        // A slice would keep the batches of all partitions of the response in memory.
        let batches = if is_shared {
            Bytes::copy_from_slice(&fetched.batches)
        } else {
            fetched.batches.clone()
        };
        let mut committed = (self.isolation == Isolation::Committed)
            .then(|| CommittedBatches::new(fetched.aborted.iter().copied()));
        let (mut items, mut stamps) = (VecDeque::new(), stamps.iter());
        let first = cursor.next;
        for batch in BatchIterator::new(&batches) {
            let reading = || format!("read {wire}/{} from {} on", cursor.partition, cursor.next);
            let (header, bytes) = batch.with_context(reading)?;
            let stamp = *stamps.next().with_context(reading)?;
            let bytes = batches.slice_ref(bytes);
            cursor.next = cursor.next.max(header.last_offset().saturating_add(1));
            let is_shown = committed.as_mut().is_none_or(|filter| filter.admits(&header, &bytes));
            if is_shown && !header.is_control() {
                self.waiting_bytes[partition] += bytes.len();
                items.push_back((stamp, FetchedBatch { bytes, times: times.clone() }));
            }
        }
        if stamps.next().is_some() {
            bail!("{wire}/{}: the response has a part of a batch", cursor.partition);
        }
        let closed = if cursor.is_done() { Hlc::MAX } else { *closed };
        let has_moved = cursor.next > first;
        self.merge.add(partition, items, closed);
        Ok(has_moved)
    }

    fn count_in_vain(&mut self, has_moved: bool, has_end: bool) -> anyhow::Result<()> {
        let is_held_back = self.merge.is_held_back() && !self.merge.can_pop();
        self.fetches_held_back = if is_held_back { self.fetches_held_back + 1 } else { 0 };
        self.fetches_in_vain = if has_moved || !has_end { 0 } else { self.fetches_in_vain + 1 };
        let due = self.merge.wanted().next().map(|partition| self.position(partition));
        match due {
            Some(FetchPosition { topic, partition, offset })
                if self.fetches_in_vain >= EMPTY_IN_A_ROW_MAX =>
            {
                bail!(
                    "{topic}/{partition} holds more records, but the server gives none from {offset} on"
                )
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_item_waits_for_a_partition_that_may_have_an_earlier_one() {
        let mut merge = TimeMerge::new(2);
        let stamp = Hlc::from_bits;
        assert_eq!(merge.wanted().collect::<Vec<_>>(), [0, 1]);
        merge.add(0, [(stamp(5), "five")].into(), stamp(5));
        assert!(merge.pop().is_none() && merge.is_held_back());
        assert_eq!(merge.wanted().collect::<Vec<_>>(), [1]);
        merge.add(1, VecDeque::new(), stamp(4));
        assert!(merge.pop().is_none());
        merge.add(1, VecDeque::new(), stamp(5));
        assert_eq!(merge.pop(), Some((0, stamp(5), "five")));
        merge.add(0, VecDeque::new(), Hlc::MAX);
        assert!(!merge.is_done());
        merge.add(1, VecDeque::new(), Hlc::MAX);
        assert!(merge.is_done());
    }

    /// The stamps of a history, each with its partition.
    fn histories() -> impl Strategy<Value = Vec<usize>> {
        (1..6_usize).prop_flat_map(|count| proptest::collection::vec(0..count, 0..200))
    }

    proptest! {
        /// However a history is read in pieces, and however late each partition is known, items
        /// leave in its order.
        #[test]
        fn items_leave_in_the_order_of_their_stamps(
            history in histories(),
            pieces in proptest::collection::vec((0..4_usize, 0..3_u64), 1..50),
        ) {
            let count = 6;
            let stamped = |nth: usize| Hlc::from_bits(2 * nth as u64 + 2);
            let mut left: Vec<VecDeque<Hlc>> = vec![VecDeque::new(); count];
            for (nth, partition) in history.iter().enumerate() {
                left[*partition].push_back(stamped(nth));
            }
            let (mut merge, mut shown) = (TimeMerge::new(count), Vec::new());
            let mut pieces = pieces.iter().cycle();
            while !merge.is_done() {
                // A partition may be read on while it has items.
                let early = pieces.next().map_or(0, |(size, _)| *size);
                if let Some(rest) = left.get_mut(early).filter(|rest| !rest.is_empty()) {
                    let stamp = rest.pop_front().expect("it has one");
                    let closed = if rest.is_empty() { Hlc::MAX } else { stamp };
                    merge.add(early, [(stamp, stamp)].into(), closed);
                }
                while let Some((partition, stamp, item)) = merge.pop() {
                    prop_assert_eq!(history[(stamp.bits() as usize - 2) / 2], partition);
                    prop_assert_eq!(item, stamp);
                    shown.push(stamp);
                }
                let wanted: Vec<usize> = merge.wanted().collect();
                prop_assert!(merge.is_done() || !wanted.is_empty(), "it stands still");
                for (nth, partition) in wanted.into_iter().enumerate() {
                    let (size, early) = *pieces.next().expect("they repeat");
                    // The partition that holds back most makes progress.
                    let size = if nth == 0 { size.max(1) } else { size };
                    let rest = &mut left[partition];
                    let piece: VecDeque<(Hlc, Hlc)> =
                        rest.drain(..size.min(rest.len())).map(|stamp| (stamp, stamp)).collect();
                    let last = piece.back().map_or(Hlc::ZERO, |(stamp, _)| *stamp);
                    let closed = match rest.front() {
                        None => Hlc::MAX,
                        Some(next) => Hlc::from_bits(next.bits() - 1 - early.min(1)).max(last),
                    };
                    merge.add(partition, piece, closed);
                }
            }
            let all: Vec<Hlc> = (0..history.len()).map(stamped).collect();
            prop_assert_eq!(shown, all);
        }
    }
}
