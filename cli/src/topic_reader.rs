//! Reading a topic, now or as of a moment, for `cat` and `consume`.
//!
//! System time is the server's to cut: the topic as of a moment is a topic of another name on Kafka's
//! wire. User time is cut here, record by record, because the exact set is no prefix of a partition:
//! the whole topic is read as it was known at one system time, and what does not belong is left out. Where
//! the user times of its records are not their timestamps, the server is asked what they are.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use client::history::{PendingMomentPolicy, moment_topic};
use client::{Client, ClientError, FetchOptions, OffsetSpec};
use fileview::{RecordRenderer, RecordSelection, RenderProgress, ViewFormat};
use hlc::{Cut, Moment, MomentSelector, UserTime};
use kafka_records::{BatchIterator, KafkaRecord};

use crate::moments::{MomentArg, TypedPath, describe_ask, now};

const PATIENCE: Duration = Duration::from_secs(5);
const WAIT_MAX: Duration = Duration::from_millis(500);
/// How often in a row nothing may come of what a partition is said to hold.
const EMPTY_IN_A_ROW_MAX: u32 = 10;
const BATCH_BYTES_MAX: i32 = 100 << 20;
/// How many partitions without a beginning are named.
const LOG_STARTS_NAMED_MAX: usize = 3;

/// A topic to read, found.
pub(crate) struct TopicSource {
    /// Its name on the wire: that of a moment, or its own.
    wire: String,
    /// Its own name.
    topic: String,
    /// The partitions asked for.
    pub(crate) partitions: Vec<i32>,
    user: Option<Range<UserTime>>,
}

impl TopicSource {
    /// Finds what a path names; of user time, all that may be in the exact set.
    pub(crate) async fn find(client: &mut Client, path: &TypedPath) -> anyhow::Result<TopicSource> {
        let user = path.at.as_ref().and_then(|at| RecordSelection::user_times(&at.ask));
        let wire = match &path.at {
            Some(at) if user.is_some() => {
                at.announce();
                wire_topic_of_user_moment(client, &path.topic, &at.ask).await?
            }
            _ => return TopicSource::find_prefix(client, path).await,
        };
        TopicSource::find_wire(client, path, wire, user).await
    }

    /// Finds what a path names, as Kafka's clients see it: of user time, the prefix before the first
    /// record that does not belong.
    pub(crate) async fn find_prefix(
        client: &mut Client,
        path: &TypedPath,
    ) -> anyhow::Result<TopicSource> {
        let wire = match &path.at {
            None => path.topic.clone(),
            Some(at) => {
                at.announce();
                moment_topic(&path.topic, &at.ask)
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
        let mut source =
            TopicSource { wire, topic: path.topic.clone(), partitions: Vec::new(), user };
        let found = match client.topic(&source.wire).await {
            Ok(found) => found,
            Err(error) => return Err(source.explain(client, path, error).await),
        };
        source.partitions = found.partitions.iter().map(|found| found.partition).collect();
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

    /// The offsets that each partition holds, of those in the answer.
    pub(crate) async fn bounds(
        &self,
        client: &mut Client,
        path: &TypedPath,
    ) -> anyhow::Result<Vec<(i32, Range<i64>)>> {
        let both = async {
            let starts = client.offsets(&self.wire, &self.partitions, OffsetSpec::Earliest).await?;
            let ends = client.offsets(&self.wire, &self.partitions, OffsetSpec::Latest).await?;
            Ok((starts, ends))
        };
        let (starts, ends) = match both.await {
            Ok(found) => found,
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

    /// A moment begins where its partitions begin now: that the beginning is missing stands in no
    /// record. (A window begins where its first moment ends, which tells nothing.)
    fn report_log_starts(&self, path: &TypedPath, bounds: &[(i32, Range<i64>)]) {
        let is_moment =
            path.at.as_ref().is_some_and(|at| matches!(at.ask, MomentSelector::At(Moment::Sys(_))));
        if let Some(told) = log_start_message(&self.topic, bounds).filter(|_| is_moment) {
            eprintln!("{told}");
        }
    }

    /// A reader of these offsets.
    pub(crate) fn reader(
        &self,
        bounds: &[(i32, Range<i64>)],
        format: ViewFormat,
    ) -> anyhow::Result<TopicReader> {
        let mut positions = Vec::with_capacity(bounds.len());
        for (partition, offsets) in bounds {
            let selection =
                RecordSelection::between(offsets.start, offsets.end).and_user(self.user.clone());
            let renderer =
                RecordRenderer::new(&self.topic, partition.cast_unsigned(), format, selection)?;
            positions.push(PartitionCursor {
                partition: *partition,
                next: offsets.start,
                end: offsets.end,
                renderer,
            });
        }
        Ok(TopicReader {
            wire: self.wire.clone(),
            positions,
            options: FetchOptions { wait_max: WAIT_MAX, ..FetchOptions::default() },
            times: self.user.is_some().then(RecordUserTimes::default),
            empty_in_a_row: 0,
        })
    }

    /// Kafka's errors say little about a moment. Our own API says why there is no such topic then.
    async fn explain(
        &self,
        client: &mut Client,
        path: &TypedPath,
        error: ClientError,
    ) -> anyhow::Error {
        let of_server = error.response_error().is_some();
        let Some(at) = path.at.as_ref().filter(|_| of_server && self.wire != self.topic) else {
            return error.into();
        };
        let (MomentSelector::At(moment) | MomentSelector::Window(_, moment)) = at.ask;
        let moment = match moment {
            Moment::User { known: Some(known), .. } => Moment::Sys(known),
            moment => moment,
        };
        let topics = [path.topic.clone()];
        let doing = format!("read {} at {}", path.topic, at.ask);
        match client.cut(&moment, Some(&topics), PendingMomentPolicy::Wait, PATIENCE).await {
            Err(reason @ (ClientError::History(_) | ClientError::NotFreezeframe { .. })) => {
                anyhow::Error::new(reason).context(doing)
            }
            _ => anyhow::Error::new(error).context(doing),
        }
    }
}

/// Says which partitions have no beginning any more; the first few by name.
fn log_start_message(topic: &str, bounds: &[(i32, Range<i64>)]) -> Option<String> {
    let late = || bounds.iter().filter(|(_, offsets)| offsets.start > 0);
    let named = late().take(LOG_STARTS_NAMED_MAX);
    let named: Vec<String> = named
        .map(|(partition, offsets)| format!("{topic}/{partition} begins at {}", offsets.start))
        .collect();
    let more = match late().count() - named.len() {
        0 => String::new(),
        more => format!(", and {more} more begin late"),
    };
    (!named.is_empty())
        .then(|| format!("retention removed what came before: {}{more}", named.join(", ")))
}

/// The topic as known at the moment's second part. If it has none, at the server's frontier, which
/// makes the answer repeatable; from a stock Kafka, as it is now.
async fn wire_topic_of_user_moment(
    client: &mut Client,
    topic: &str,
    ask: &MomentSelector,
) -> anyhow::Result<String> {
    let Some(known) = known_as_of(client, topic, ask).await? else {
        eprintln!(
            "the exact set of records of {}, as known now; this server is not Freezeframe, so asking again may show more",
            describe_ask(ask)
        );
        return Ok(topic.to_owned());
    };
    let pinned = with_known(ask, known);
    eprintln!("the exact set of records of {pinned}; ask for that moment to see the same again");
    Ok(moment_topic(topic, &MomentSelector::At(Moment::Sys(known))))
}

async fn known_as_of(
    client: &mut Client,
    topic: &str,
    ask: &MomentSelector,
) -> anyhow::Result<Option<Cut>> {
    match known_of(ask) {
        Some(known) => Ok(Some(known)),
        None => frontier(client, topic).await,
    }
}

/// A moment of user time, with the moment as known at which it is read here and whenever it is asked
/// for again. `None` from a server that is not Freezeframe.
pub(crate) async fn fix_user_moment(
    client: &mut Client,
    topic: &str,
    at: &MomentArg,
) -> anyhow::Result<Option<MomentSelector>> {
    let Some(frontier) = frontier(client, topic).await? else { return Ok(None) };
    at.announce();
    let pinned = with_known(&at.ask, known_of(&at.ask).unwrap_or(frontier));
    eprintln!("the exact set of records of {pinned}; ask for that moment to see the same again");
    Ok(Some(pinned))
}

fn known_of(ask: &MomentSelector) -> Option<Cut> {
    let known = |moment: &Moment| match moment {
        Moment::User { known, .. } => *known,
        Moment::Sys(_) => None,
    };
    match ask {
        MomentSelector::At(moment) => known(moment),
        // Two views of one window: what was known later has all that was known earlier.
        MomentSelector::Window(first, second) => known(first).max(known(second)),
    }
}

fn with_known(ask: &MomentSelector, known: Cut) -> MomentSelector {
    let pin = |moment: Moment| match moment {
        Moment::User { before, .. } => Moment::User { before, known: Some(known) },
        moment => moment,
    };
    match *ask {
        MomentSelector::At(moment) => MomentSelector::At(pin(moment)),
        MomentSelector::Window(first, second) => MomentSelector::Window(pin(first), pin(second)),
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

/// A partition's number as Kafka's wire has it.
pub(crate) fn wire_partition(partition: u32) -> i32 {
    i32::try_from(partition).expect("a path refuses partitions that do not fit")
}

/// Reads partitions side by side.
pub(crate) struct TopicReader {
    wire: String,
    positions: Vec<PartitionCursor>,
    options: FetchOptions,
    /// Where user times pick the records.
    times: Option<RecordUserTimes>,
    empty_in_a_row: u32,
}

/// The user times of records, where the server may have found them elsewhere than in their timestamps.
#[derive(Default)]
struct RecordUserTimes {
    /// Partitions of which it is known that theirs are their timestamps.
    own: HashSet<i32>,
}

impl RecordUserTimes {
    /// The user time of each record in `batches` that has one; `None` where timestamps are it.
    async fn of(
        &mut self,
        client: &mut Client,
        wire: &str,
        position: &PartitionCursor,
        batches: &Bytes,
    ) -> anyhow::Result<Option<HashMap<i64, UserTime>>> {
        let last = BatchIterator::new(batches).filter_map(Result::ok).last();
        let Some((last, _)) = last.filter(|_| !self.own.contains(&position.partition)) else {
            return Ok(None);
        };
        let end = last.last_offset().saturating_add(1).min(position.end);
        let (mut next, mut found) = (position.next, HashMap::new());
        while next < end {
            let times = match client.user_times(wire, position.partition, next).await {
                // A stock Kafka knows of timestamps only.
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
            let known = times.times.into_iter();
            found.extend(known.filter_map(|(offset, ms)| Some((offset, UserTime(ms?)))));
        }
        Ok(Some(found))
    }
}

struct PartitionCursor {
    partition: i32,
    next: i64,
    /// `i64::MAX` where there is no end.
    end: i64,
    renderer: RecordRenderer,
}

impl PartitionCursor {
    fn is_done(&self) -> bool {
        self.next >= self.end
    }
}

impl TopicReader {
    /// Whether everything has been read.
    pub(crate) fn is_done(&self) -> bool {
        self.positions.iter().all(PartitionCursor::is_done)
    }

    /// Fetches once, and appends what is to be seen of it to `out`. Answers how many records that was.
    pub(crate) async fn step(
        &mut self,
        client: &mut Client,
        records_max: u64,
        out: &mut Vec<u8>,
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
            let left = records_max - records;
            let RenderProgress { records: shown, next_offset } = match &mut self.times {
                None => position.renderer.render(&fetched.batches, left, out)?,
                Some(times) => {
                    let found = times.of(client, &self.wire, position, &fetched.batches).await?;
                    match found {
                        None => position.renderer.render(&fetched.batches, left, out)?,
                        Some(found) => {
                            let time_of = |record: &KafkaRecord| found.get(&record.offset).copied();
                            let renderer = &position.renderer;
                            renderer.render_with_user_times(
                                &fetched.batches,
                                left,
                                &time_of,
                                out,
                            )?
                        }
                    }
                }
            };
            records += shown;
            if let Some(next) = next_offset.filter(|next| *next > position.next) {
                position.next = next;
                has_moved = true;
            } else if left > 0 {
                self.options.partition_bytes_max = larger_fetch_bytes(&self.options)?;
            }
        }
        // A server fills its answer in the order asked for: let everyone be first at times.
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

/// A limit that a larger batch fits in.
fn larger_fetch_bytes(options: &FetchOptions) -> anyhow::Result<i32> {
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
        let told = |starts: &[i64]| {
            let bounds: Vec<_> = (0..).zip(starts.iter().map(|start| *start..9)).collect();
            log_start_message("t", &bounds)
        };
        assert_eq!(told(&[0, 0]), None);
        assert_eq!(told(&[0, 7]).unwrap(), "retention removed what came before: t/1 begins at 7");
        let many = told(&[1, 2, 3, 4, 5]).unwrap();
        assert!(many.ends_with("t/2 begins at 3, and 2 more begin late"), "{many}");
    }

    #[test]
    fn a_moment_of_user_time_is_pinned_to_what_was_known() {
        let pinned = |text: &str| {
            let known = "s9".parse().map(|moment| match moment {
                Moment::Sys(cut) => cut,
                Moment::User { .. } => unreachable!("it is of system time"),
            });
            with_known(&text.parse().unwrap(), known.unwrap()).to_string()
        };
        assert_eq!(pinned("u5"), "u5@s9");
        assert_eq!(pinned("u5..u6"), "u5@s9..u6@s9");
    }

    #[test]
    fn of_two_views_of_a_window_the_later_is_read() {
        let known = |text: &str| known_of(&text.parse().unwrap()).map(|cut| cut.bound().time().0);
        assert_eq!(known("u5"), None);
        assert_eq!(known("u5@s7"), Some(7));
        assert_eq!(known("u5@s7..u6@s9"), Some(9));
        assert_eq!(known("u5@s7..u6"), Some(7));
    }
}
