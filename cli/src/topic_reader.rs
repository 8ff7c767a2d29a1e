//! Reads a topic, now or as of a moment, for `cat` and `consume`.
//!
//! The server applies a moment of system time: the topic as of a moment has another name in Kafka's
//! protocol. A moment of user time is applied here, record by record, because the exact set is not
//! a prefix of a partition. The reader reads the whole topic as it was known at one system time,
//! and skips the records that do not belong. If the user times of its records are not their
//! timestamps, the reader requests them from the server.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use client::history::{PendingMomentPolicy, moment_topic};
use client::{Client, ClientError, FetchOptions, Isolation, OffsetSpec};
use fileview::{
    BatchFacts, RecordLayout, RecordRenderer, RecordSelection, RenderError, RenderProgress,
};
use hlc::{Cut, Hlc, Moment, MomentSelector, UserTime};
use kafka_records::{BatchIterator, CommittedBatches, KafkaRecord};

use crate::moments::{MomentArg, TypedPath, describe_ask, now};
use crate::time_order::OrderedTopic;

/// The longest wait for a moment that is not past yet.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The longest wait of a server for records that a fetch can return.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(500);
/// The most fetches in a row that make no progress in a partition that has records.
const EMPTY_IN_A_ROW_MAX: u32 = 10;
const BATCH_BYTES_MAX: i32 = 100 << 20;
/// The number of partitions with an advanced log start that a message names.
const LOG_STARTS_NAMED_MAX: usize = 3;

/// A topic to read, resolved.
pub(crate) struct TopicSource {
    /// Its name in Kafka's protocol: a moment topic, or its own name.
    wire: String,
    /// Its own name.
    topic: String,
    /// The requested partitions.
    pub(crate) partitions: Vec<i32>,
    user: Option<Range<UserTime>>,
    isolation: Isolation,
}

impl TopicSource {
    /// The same source, as of a moment that the caller chose.
    pub(crate) fn at_cut(self, cut: Cut) -> TopicSource {
        let wire = moment_topic(&self.topic, &MomentSelector::At(Moment::Sys(cut)));
        TopicSource { wire, ..self }
    }

    /// The same source, for a reader that wants these records of transactions.
    pub(crate) fn with_isolation(self, isolation: Isolation) -> TopicSource {
        TopicSource { isolation, ..self }
    }

    /// Resolves a path. For user time, the source is everything that can be in the exact set.
    pub(crate) async fn find(client: &mut Client, path: &TypedPath) -> anyhow::Result<TopicSource> {
        let user = path.at.as_ref().and_then(|at| RecordSelection::user_times(&at.ask()));
        let wire = match &path.at {
            Some(at) if user.is_some() => {
                at.announce();
                wire_topic_of_user_moment(client, &path.topic, &at.ask()).await?
            }
            _ => return TopicSource::find_prefix(client, path).await,
        };
        TopicSource::find_wire(client, path, wire, user).await
    }

    /// Resolves a path as Kafka's clients see it. For user time, the source is the prefix before
    /// the first record that does not belong.
    pub(crate) async fn find_prefix(
        client: &mut Client,
        path: &TypedPath,
    ) -> anyhow::Result<TopicSource> {
        let wire = match &path.at {
            None => path.topic.clone(),
            Some(at) => {
                at.announce();
                moment_topic(&path.topic, &at.ask())
            }
        };
        TopicSource::find_wire(client, path, wire, None).await
    }

    async fn find_wire(
        client: &mut Client,
        path: &TypedPath,
        wire: String,
        user: Option<Range<UserTime>>,
    ) -> anyhow::Result<TopicSource> {
        let mut source = TopicSource {
            wire,
            topic: path.topic.clone(),
            partitions: Vec::new(),
            user,
            isolation: Isolation::Committed,
        };
        let topic = match client.topic(&source.wire).await {
            Ok(topic) => topic,
            Err(error) => return Err(source.explain(client, path, error).await),
        };
        source.partitions = topic.partitions.iter().map(|partition| partition.partition).collect();
        if let Some(partition) = path.partition.map(wire_partition) {
            if !source.partitions.contains(&partition) {
                let count = source.partitions.len();
                let topic = path.topic.clone();
                return Err(ClientError::UnknownPartition { topic, partition, count }.into());
            }
            source.partitions = vec![partition];
        }
        Ok(source)
    }

    /// The offsets that each partition holds, within the source.
    pub(crate) async fn bounds(
        &self,
        client: &mut Client,
        path: &TypedPath,
    ) -> anyhow::Result<Vec<(i32, Range<i64>)>> {
        let bounds = async {
            let starts = client.offsets(&self.wire, &self.partitions, OffsetSpec::Earliest).await?;
            let end = match self.isolation {
                Isolation::Committed => OffsetSpec::LatestStable,
                Isolation::Uncommitted => OffsetSpec::Latest,
            };
            let ends = client.offsets(&self.wire, &self.partitions, end).await?;
            Ok((starts, ends))
        };
        let (starts, ends) = match bounds.await {
            Ok(bounds) => bounds,
            Err(error) => return Err(self.explain(client, path, error).await),
        };
        let bound = |partition: &i32| {
            let start = starts.get(partition).copied().flatten().unwrap_or(0);
            let end = ends.get(partition).copied().flatten().unwrap_or(start);
            (*partition, start..end)
        };
        let bounds: Vec<_> = self.partitions.iter().map(bound).collect();
        self.report_log_starts(path, &bounds);
        Ok(bounds)
    }

    /// Reports log starts. A topic as of a moment starts at the current log starts, and no record
    /// shows that earlier ones are missing. (A window starts where its first moment ends, so its
    /// start tells nothing.)
    fn report_log_starts(&self, path: &TypedPath, bounds: &[(i32, Range<i64>)]) {
        let is_moment = path
            .at
            .as_ref()
            .is_some_and(|at| matches!(at.ask(), MomentSelector::At(Moment::Sys(_))));
        if is_moment && let Some(message) = log_start_message(&self.topic, bounds) {
            eprintln!("{message}");
        }
    }

    /// A reader of these offsets.
    pub(crate) fn reader(
        &self,
        bounds: &[(i32, Range<i64>)],
        layout: &RecordLayout,
    ) -> anyhow::Result<TopicReader> {
        Ok(TopicReader {
            wire: self.wire.clone(),
            positions: self.cursors(bounds, layout)?,
            options: FetchOptions {
                wait_max: WAIT_MAX,
                isolation: self.isolation,
                wants_stamps: true,
                ..FetchOptions::default()
            },
            times: self.user.is_some().then(RecordUserTimes::default),
            empty_in_a_row: 0,
        })
    }

    /// These offsets, for a reader of several topics.
    pub(crate) fn ordered(
        &self,
        bounds: &[(i32, Range<i64>)],
        layout: &RecordLayout,
    ) -> anyhow::Result<OrderedTopic> {
        Ok(OrderedTopic {
            wire: self.wire.clone(),
            partitions: self.cursors(bounds, layout)?,
            times: self.user.is_some().then(RecordUserTimes::default),
        })
    }

    fn cursors(
        &self,
        bounds: &[(i32, Range<i64>)],
        layout: &RecordLayout,
    ) -> anyhow::Result<Vec<PartitionCursor>> {
        let cursor = |(partition, offsets): &(i32, Range<i64>)| {
            let selection =
                RecordSelection::between(offsets.start, offsets.end).and_user(self.user.clone());
            let number = partition.cast_unsigned();
            let renderer = RecordRenderer::new(&self.topic, number, layout.clone(), selection)?;
            let (next, end) = (offsets.start, offsets.end);
            Ok(PartitionCursor { partition: *partition, next, end, renderer })
        };
        bounds.iter().map(cursor).collect()
    }

    /// Explains an error. Kafka's errors say little about a moment. Our own API says why the topic
    /// does not exist at that moment.
    async fn explain(
        &self,
        client: &mut Client,
        path: &TypedPath,
        error: ClientError,
    ) -> anyhow::Error {
        let of_server = error.response_error().is_some();
        if !of_server || self.wire == self.topic {
            return error.into();
        }
        let Some(at) = &path.at else { return error.into() };
        let (MomentSelector::At(moment) | MomentSelector::Window(_, moment)) = at.ask();
        let moment = match moment {
            Moment::User { known: Some(known), .. } => Moment::Sys(known),
            moment => moment,
        };
        let topics = [path.topic.clone()];
        let doing = format!("read {} at {}", path.topic, at.ask());
        match client.cut(&moment, Some(&topics), PendingMomentPolicy::Wait, PATIENCE).await {
            Err(reason @ (ClientError::History(_) | ClientError::NotFreezeframe { .. })) => {
                anyhow::Error::new(reason).context(doing)
            }
            _ => anyhow::Error::new(error).context(doing),
        }
    }
}

/// The message that names partitions whose beginning was removed; only the first few by name.
fn log_start_message(topic: &str, bounds: &[(i32, Range<i64>)]) -> Option<String> {
    let late = || bounds.iter().filter(|(_, offsets)| offsets.start > 0);
    let first = late().take(LOG_STARTS_NAMED_MAX);
    let first: Vec<String> = first
        .map(|(partition, offsets)| format!("{topic}/{partition} begins at {}", offsets.start))
        .collect();
    let suffix = match late().count() - first.len() {
        0 => String::new(),
        count => format!(", and {count} more begin late"),
    };
    (!first.is_empty())
        .then(|| format!("retention removed what came before: {}{suffix}", first.join(", ")))
}

/// The topic as known at the system time of the moment. If the moment has none, it is the server's
/// frontier, which makes the result repeatable; with a stock Kafka, it is the present.
async fn wire_topic_of_user_moment(
    client: &mut Client,
    topic: &str,
    ask: &MomentSelector,
) -> anyhow::Result<String> {
    let Some(known_cut) = known_as_of(client, topic, ask).await? else {
        eprintln!(
            "the exact set of records of {}, as known now; this server is not Freezeframe, so asking again may show more",
            describe_ask(ask)
        );
        return Ok(topic.to_owned());
    };
    let pinned = ask.known_as_of(known_cut);
    eprintln!("the exact set of records of {pinned}; ask for that moment to see the same again");
    Ok(moment_topic(topic, &MomentSelector::At(Moment::Sys(known_cut))))
}

async fn known_as_of(
    client: &mut Client,
    topic: &str,
    ask: &MomentSelector,
) -> anyhow::Result<Option<Cut>> {
    match ask.known() {
        Some(cut) => Ok(Some(cut)),
        None => frontier(client, topic).await,
    }
}

/// Completes a user-time moment with the system time as of which it is read, now and at each
/// repetition. `None` if the server is not Freezeframe.
pub(crate) async fn fix_user_moment(
    client: &mut Client,
    topic: &str,
    at: &MomentArg,
) -> anyhow::Result<Option<MomentSelector>> {
    let Some(frontier) = frontier(client, topic).await? else { return Ok(None) };
    at.announce();
    let ask = at.ask();
    let pinned = ask.known_as_of(ask.known().unwrap_or(frontier));
    eprintln!("the exact set of records of {pinned}; ask for that moment to see the same again");
    Ok(Some(pinned))
}

/// Now, with all that was acknowledged before; `None` if the server is not Freezeframe.
pub(crate) async fn present(client: &mut Client) -> anyhow::Result<Option<Cut>> {
    match client.now().await {
        Ok(now) => Ok(Some(now)),
        Err(ClientError::NotFreezeframe { .. }) => Ok(None),
        Err(error) => Err(error).context("ask the server which moment it is"),
    }
}

async fn frontier(client: &mut Client, topic: &str) -> anyhow::Result<Option<Cut>> {
    let moment = Moment::Sys(Cut::before(now()));
    let topics = [topic.to_owned()];
    match client.cut(&moment, Some(&topics), PendingMomentPolicy::Frontier, PATIENCE).await {
        Ok(cut) => match cut.at.parse() {
            Ok(Moment::Sys(at)) => Ok(Some(at)),
            _ => bail!("the server answered for {:?}, which is no moment of system time", cut.at),
        },
        Err(ClientError::NotFreezeframe { .. }) => Ok(None),
        Err(error) => Err(error).context("ask how far the server can answer"),
    }
}

/// A partition number as Kafka's protocol has it.
pub(crate) fn wire_partition(partition: u32) -> i32 {
    i32::try_from(partition).expect("a path refuses partitions that do not fit")
}

/// Reads several partitions in parallel.
pub(crate) struct TopicReader {
    wire: String,
    positions: Vec<PartitionCursor>,
    options: FetchOptions,
    /// Only for a selection by user time.
    times: Option<RecordUserTimes>,
    empty_in_a_row: u32,
}

/// The user times of records, which may differ from their timestamps.
#[derive(Default)]
pub(crate) struct RecordUserTimes {
    /// The partitions whose user times are known to be the timestamps.
    own: HashSet<i32>,
}

impl RecordUserTimes {
    /// The user time of each record in `batches` that has one; `None` if the user times are the
    /// timestamps.
    pub(crate) async fn of(
        &mut self,
        client: &mut Client,
        wire: &str,
        position: &PartitionCursor,
        batches: &Bytes,
    ) -> anyhow::Result<Option<HashMap<i64, UserTime>>> {
        if self.own.contains(&position.partition) {
            return Ok(None);
        }
        let last = BatchIterator::new(batches).filter_map(Result::ok).last();
        let Some((last, _)) = last else { return Ok(None) };
        let end = last.last_offset().saturating_add(1).min(position.end);
        let (mut next, mut user_times) = (position.next, HashMap::new());
        while next < end {
            let times = match client.user_times(wire, position.partition, next).await {
                // A stock Kafka has timestamps only.
                Err(ClientError::NotFreezeframe { .. }) => None,
                times => Some(times?),
            };
            let Some(times) = times.filter(|times| !times.own) else {
                self.own.insert(position.partition);
                return Ok(None);
            };
            if times.next <= next {
                bail!(
                    "{wire}/{} holds records from {next} on, but the server knows no times of them",
                    position.partition
                );
            }
            next = times.next;
            let known_times = times.times.into_iter();
            user_times.extend(known_times.filter_map(|(offset, ms)| Some((offset, UserTime(ms?)))));
        }
        Ok(Some(user_times))
    }
}

/// The progress of reading a partition.
pub(crate) struct PartitionCursor {
    pub(crate) partition: i32,
    pub(crate) next: i64,
    /// `i64::MAX` if there is no end.
    pub(crate) end: i64,
    pub(crate) renderer: RecordRenderer,
}

impl PartitionCursor {
    pub(crate) fn is_done(&self) -> bool {
        self.next >= self.end
    }
}

/// Renders batches of a partition, as many records as a number at most.
type RenderStep<'a> = dyn FnMut(&PartitionCursor, &Bytes, BatchFacts<'_>, u64) -> Result<RenderProgress, RenderError>
    + 'a;

impl TopicReader {
    /// True if everything has been read.
    pub(crate) fn is_done(&self) -> bool {
        self.positions.iter().all(PartitionCursor::is_done)
    }

    /// Fetches once, and appends the selected records to `out`. Returns their number.
    pub(crate) async fn step(
        &mut self,
        client: &mut Client,
        records_max: u64,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<u64> {
        let mut render =
            |position: &PartitionCursor, batches: &Bytes, facts: BatchFacts<'_>, max: u64| {
                position.renderer.render_with(batches, facts, max, out)
            };
        self.step_with(client, records_max, &mut render).await
    }

    /// Fetches once, and visits the selected records. Returns their number.
    pub(crate) async fn visit(
        &mut self,
        client: &mut Client,
        visit: &mut dyn FnMut(&PartitionCursor, &KafkaRecord, Option<Hlc>),
    ) -> anyhow::Result<u64> {
        let mut each =
            |position: &PartitionCursor, batches: &Bytes, facts: BatchFacts<'_>, max: u64| {
                let mut visit =
                    |record: &KafkaRecord, stamp: Option<Hlc>| visit(position, record, stamp);
                position.renderer.visit_with(batches, facts, max, &mut visit)
            };
        self.step_with(client, u64::MAX, &mut each).await
    }

    /// The offsets that are still to be read.
    pub(crate) fn offsets_left(&self) -> u64 {
        let left =
            |position: &PartitionCursor| (position.end - position.next).max(0).unsigned_abs();
        self.positions.iter().map(left).sum()
    }

    async fn step_with(
        &mut self,
        client: &mut Client,
        records_max: u64,
        render: &mut RenderStep<'_>,
    ) -> anyhow::Result<u64> {
        let wanted: Vec<_> = self
            .positions
            .iter()
            .filter(|position| !position.is_done())
            .map(|position| (position.partition, position.next))
            .collect();
        let fetched = client.fetch(&self.wire, &wanted, &self.options).await?;
        let (mut records, mut has_moved) = (0, false);
        for fetched in fetched.iter().filter(|fetched| !fetched.batches.is_empty()) {
            let position = self.positions.iter_mut().find(|p| p.partition == fetched.partition);
            let Some(position) = position else { continue };
            let records_left = records_max - records;
            let times = match &mut self.times {
                None => None,
                Some(times) => times.of(client, &self.wire, position, &fetched.batches).await?,
            };
            let time_of = |record: &KafkaRecord| match &times {
                None => Some(UserTime(record.timestamp)),
                Some(times) => times.get(&record.offset).copied(),
            };
            let committed = || CommittedBatches::new(fetched.aborted.iter().copied());
            let committed = (self.options.isolation == Isolation::Committed).then(committed);
            let stamps = fetched.stamps.as_ref().map_or(&[][..], |stamps| &stamps.batches);
            let facts = BatchFacts { time_of: &time_of, committed, stamps };
            let RenderProgress { records: shown, next_offset } =
                render(position, &fetched.batches, facts, records_left)?;
            records += shown;
            if let Some(next) = next_offset.filter(|next| *next > position.next) {
                position.next = next;
                has_moved = true;
            } else if records_left > 0 {
                self.options.partition_bytes_max = larger_fetch_bytes(&self.options)?;
            }
        }
        // A server fills its response in the order of the request, so the partitions take turns at
        // the front.
        if let Some(last) = self.positions.len().checked_sub(1) {
            self.positions.rotate_left(last.min(1));
        }
        self.count_empty(has_moved)?;
        Ok(records)
    }

    fn count_empty(&mut self, has_moved: bool) -> anyhow::Result<()> {
        self.empty_in_a_row = if has_moved { 0 } else { self.empty_in_a_row + 1 };
        let due = self.positions.iter().find(|p| p.end != i64::MAX && !p.is_done());
        match due {
            Some(due) if self.empty_in_a_row >= EMPTY_IN_A_ROW_MAX => bail!(
                "{}/{} holds records up to offset {}, but the server gives none from {} on",
                self.wire,
                due.partition,
                due.end,
                due.next
            ),
            _ => Ok(()),
        }
    }
}

/// A larger limit, so that a larger batch fits.
pub(crate) fn larger_fetch_bytes(options: &FetchOptions) -> anyhow::Result<i32> {
    if options.partition_bytes_max >= BATCH_BYTES_MAX {
        bail!("a batch is larger than {BATCH_BYTES_MAX} bytes");
    }
    Ok(options.partition_bytes_max.saturating_mul(2).min(BATCH_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_whose_log_start_advanced_are_reported_and_a_few_named() {
        let message_of = |starts: &[i64]| {
            let bounds: Vec<_> = (0..).zip(starts.iter().map(|start| *start..9)).collect();
            log_start_message("t", &bounds)
        };
        assert_eq!(message_of(&[0, 0]), None);
        assert_eq!(
            message_of(&[0, 7]).unwrap(),
            "retention removed what came before: t/1 begins at 7"
        );
        let message = message_of(&[1, 2, 3, 4, 5]).unwrap();
        assert!(message.ends_with("t/2 begins at 3, and 2 more begin late"), "{message}");
    }
}
