//! `freezeframe topics restore`: what a topic had at a moment becomes new records.
//!
//! One transaction writes all of it. Readers of committed records see all of it or nothing. An
//! interrupted restore leaves nothing: the next one begins a transaction of the same name, which
//! aborts it.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use client::history::{TopicAtMoment, moment_topic};
use client::tree::TreeKeysFormat;
use client::{
    Client, ClientError, ClientTransaction, FetchOptions, Isolation, NewTopic, OffsetSpec,
};
use fileview::RecordLine;
use hlc::{Cut, Moment, MomentSelector, OsClock, WallClock};
use indicatif::ProgressBar;
use kafka_records::{
    BatchBuilder, BatchIterator, CommittedBatches, CompressionType, DecompressionLimit,
    KafkaRecord, records,
};

use super::parse_topic;
use crate::completion;
use crate::moments::MomentArg;
use crate::output::{StandardOutput, UsageError, counted, note, progress_bar};

/// By default a server accepts a batch of 1 MiB and a little more.
const BATCH_BYTES_MAX: usize = 900 << 10;
/// The most bytes of records that are sent at once.
const REQUEST_BYTES_MAX: usize = 8 << 20;
/// The longest time that a transaction may be open where nothing else is set: Kafka's
/// `transaction.max.timeout.ms`.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(15 * 60);
const UNPACKED_LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 256 << 20 };
/// The pause of a throttled client, and the most pauses before it gives up.
const THROTTLED_PAUSE: Duration = Duration::from_millis(200);
const THROTTLED_MAX: u32 = 100;
/// The most changes that a dry run shows.
const SHOWN_MAX: usize = 10;

#[derive(Debug, clap::Args)]
pub(crate) struct RestoreTopicArgs {
    /// The topic. It may have been deleted.
    #[arg(value_parser = parse_topic, add = completion::topics())]
    topic: String,
    /// The moment, by system time.
    #[arg(long, value_parser = MomentArg::parse_system_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    at: MomentArg,
    /// The name of the new topic. The default is its old one.
    #[arg(long = "as", value_parser = parse_topic, value_name = "NAME", conflicts_with = "keys")]
    new_name: Option<String>,
    /// Of a topic that exists: write of each key the value that it had, and delete keys that it did
    /// not have.
    #[arg(long)]
    keys: bool,
    /// Restore what is left, if retention removed records of then.
    #[arg(long, conflicts_with = "keys")]
    allow_partial: bool,
    /// Do it. Otherwise only say what would be done.
    #[arg(long, short)]
    yes: bool,
}

pub(crate) async fn run(args: RestoreTopicArgs, client: &mut Client) -> anyhow::Result<()> {
    args.at.announce();
    let Moment::Sys(at) = args.at.moment() else {
        return Err(UsageError("give a moment of system time (s…)".to_owned()).into());
    };
    if args.keys {
        restore_keys(&args, at, client).await
    } else {
        restore_topic(&args, at, client).await
    }
}

/// Writes records in a transaction.
struct TransactionWriter {
    topic: String,
    transaction: ClientTransaction,
    /// The sequence number of the next record of each partition.
    next: BTreeMap<i32, i32>,
    pending: BTreeMap<i32, BatchBuilder>,
    pending_bytes: usize,
}

/// A record to write.
struct NewRecord<'a> {
    partition: i32,
    timestamp: i64,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers: Vec<(&'a [u8], Option<&'a [u8]>)>,
}

impl TransactionWriter {
    /// Begins the transaction, which aborts the one of a restore of the topic that was interrupted.
    async fn begin(client: &mut Client, topic: &str) -> anyhow::Result<TransactionWriter> {
        let id = format!("freezeframe-restore-{topic}");
        let transaction = client.begin_transaction(&id, TRANSACTION_TIMEOUT).await?;
        let (next, pending) = (BTreeMap::new(), BTreeMap::new());
        Ok(TransactionWriter {
            topic: topic.to_owned(),
            transaction,
            next,
            pending,
            pending_bytes: 0,
        })
    }

    async fn add(&mut self, client: &mut Client, record: NewRecord<'_>) -> anyhow::Result<()> {
        let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
        let headers = record.headers.iter().map(|(name, value)| name.len() + length(*value));
        let bytes = length(record.key) + length(record.value) + headers.sum::<usize>();
        let is_full = |batch: &BatchBuilder| batch.uncompressed_bytes() + bytes > BATCH_BYTES_MAX;
        let is_far = |first: i64| record.timestamp.checked_sub(first).is_none();
        let is_next = self
            .pending
            .get(&record.partition)
            .is_none_or(|batch| !is_full(batch) && !batch.first_timestamp().is_some_and(is_far));
        if !is_next || self.pending_bytes + bytes > REQUEST_BYTES_MAX {
            self.send(client).await?;
        }
        let (producer, epoch) = self.transaction.producer;
        let sequence = self.next.get(&record.partition).copied().unwrap_or(0);
        // A record that is too long for a batch was compressed when it came.
        let codec =
            if bytes > BATCH_BYTES_MAX { CompressionType::Zstd } else { CompressionType::None };
        let new_batch = || {
            let mut batch = BatchBuilder::new(codec);
            batch.producer(producer, epoch, sequence).transactional();
            batch
        };
        let batch = self.pending.entry(record.partition).or_insert_with(new_batch);
        let headers = record.headers.into_iter();
        batch.raw_record(record.timestamp, record.key, record.value, headers);
        self.pending_bytes += bytes;
        Ok(())
    }

    async fn send(&mut self, client: &mut Client) -> anyhow::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        if pending.is_empty() {
            return Ok(());
        }
        for (partition, batch) in &pending {
            let next = self.next.entry(*partition).or_default();
            // A sequence number follows the largest with 0.
            let sum = i64::from(*next) + batch.record_count() as i64;
            *next = (sum % (i64::from(i32::MAX) + 1)) as i32;
        }
        let batches = pending.into_iter().map(|(partition, batch)| (partition, batch.build()));
        let (topic, batches) = (self.topic.clone(), batches.collect());
        client.produce_in(&mut self.transaction, &topic, batches).await?;
        Ok(())
    }

    /// Commits the records of `write`. On failure or interruption it aborts the transaction, which
    /// would otherwise hold readers back.
    async fn commit_if(
        mut self,
        client: &mut Client,
        write: impl AsyncFnOnce(&mut TransactionWriter, &mut Client) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let written = tokio::select! {
            written = async {
                write(&mut self, client).await?;
                self.send(client).await
            } => written,
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted; nothing was restored")),
        };
        match written {
            Ok(()) => Ok(client.commit_transaction(self.transaction).await?),
            Err(error) => {
                // The server aborts it after its timeout otherwise.
                let _ = client.abort_transaction(self.transaction).await;
                Err(error)
            }
        }
    }
}

/// Makes a new topic with the settings and the records that one had.
async fn restore_topic(
    args: &RestoreTopicArgs,
    at: Cut,
    client: &mut Client,
) -> anyhow::Result<()> {
    let (name, moment) = (&args.topic, Moment::Sys(at));
    let target = args.new_name.as_ref().unwrap_or(name);
    let topics = client.topics_at(Some(&moment)).await?;
    let topic = topics.topics.into_iter().find(|topic| topic.name == *name);
    let topic = topic.with_context(|| format!("there was no topic {name} at {moment}"))?;
    let source = moment_topic(name, &MomentSelector::At(moment));
    let bounds = bounds_of(client, &source, topic.partitions).await?;
    let is_missing = |(_, start, _): &&(i32, i64, i64)| *start > 0;
    let missing: i64 = bounds.iter().filter(is_missing).map(|(_, start, _)| *start).sum();
    if missing > 0 && !args.allow_partial {
        let (partition, start, _) = bounds.iter().find(is_missing).expect("one begins late");
        bail!(
            "retention removed records from before that moment: {name}/{partition} begins at {start}, and {missing} offsets are \
             missing in all; nothing was done; --allow-partial restores the rest"
        );
    }
    let records: i64 = bounds.iter().map(|(_, start, end)| end - start).sum();
    let plan = format!(
        "{target} with {}, {} of then, and up to {}",
        counted(topic.partitions, "partition"),
        counted(topic.configs.len() as u64, "setting"),
        counted(records.unsigned_abs(), "record")
    );
    if !args.yes {
        check_target(client, target, &topic).await?;
        note(&format!("would make {plan}; --yes does it"));
        return Ok(());
    }
    // Beginning aborts an interrupted restore, so the check below sees none of its records.
    let writer = TransactionWriter::begin(client, target).await?;
    if check_target(client, target, &topic).await? {
        make_topic(client, target, &topic).await?;
    } else if !topic.configs.is_empty() {
        let configs = topic.configs.iter().map(|(name, value)| (name.clone(), Some(value.clone())));
        client.alter_topic_configs(target, &configs.collect::<Vec<_>>()).await?;
    }
    let bar = progress_bar(records.unsigned_abs());
    let mut written = 0_u64;
    writer
        .commit_if(client, async |writer, client| {
            for (partition, start, end) in bounds {
                written += copy(client, writer, &source, partition, start..end, &bar).await?;
            }
            Ok(())
        })
        .await?;
    bar.finish_and_clear();
    note(&format!("restored {target} as of {moment}: {}", counted(written, "record")));
    Ok(())
}

/// Checks that a topic does not exist, or has nothing: a restore that was interrupted left it.
/// Returns whether it is to be made.
async fn check_target(
    client: &mut Client,
    target: &str,
    source: &TopicAtMoment,
) -> anyhow::Result<bool> {
    let topic = match client.topic(target).await {
        Err(ClientError::UnknownTopic(_)) => return Ok(true),
        result => result?,
    };
    let partitions = u32::try_from(topic.partitions.len()).context("count partitions")?;
    for (partition, mut next, end) in bounds_of(client, target, partitions).await? {
        let mut committed = 0;
        while next < end {
            next = page_of(client, target, partition, next..end, &mut |_| committed += 1).await?;
            ensure!(
                committed == 0,
                "topic {target} exists and has records: restore it under another name with --as, or its keys with \
                 --keys"
            );
        }
    }
    ensure!(
        partitions == source.partitions,
        "topic {target} exists with {}, and had {} then: delete it, or restore under another name with --as",
        counted(partitions, "partition"),
        source.partitions
    );
    Ok(false)
}

async fn make_topic(client: &mut Client, name: &str, source: &TopicAtMoment) -> anyhow::Result<()> {
    let topic = NewTopic {
        name: name.to_owned(),
        partitions: Some(i32::try_from(source.partitions).context("count partitions")?),
        replication_factor: None,
        configs: source.configs.clone(),
    };
    Ok(client.create_topic(&topic).await?)
}

/// The partitions of a topic, and the first offset and the end of each.
async fn bounds_of(
    client: &mut Client,
    topic: &str,
    partitions: u32,
) -> anyhow::Result<Vec<(i32, i64, i64)>> {
    let partitions: Vec<i32> = (0..i32::try_from(partitions)?).collect();
    let starts = client.offsets(topic, &partitions, OffsetSpec::Earliest).await?;
    let ends = client.offsets(topic, &partitions, OffsetSpec::LatestStable).await?;
    let bound = |partition: i32| {
        let start = starts.get(&partition).copied().flatten().unwrap_or(0);
        (partition, start, ends.get(&partition).copied().flatten().unwrap_or(start))
    };
    Ok(partitions.into_iter().map(bound).collect())
}

/// Copies the committed records of a partition. Returns their number.
async fn copy(
    client: &mut Client,
    writer: &mut TransactionWriter,
    source: &str,
    partition: i32,
    offsets: std::ops::Range<i64>,
    bar: &ProgressBar,
) -> anyhow::Result<u64> {
    let (mut next, mut written) = (offsets.start, 0);
    while next < offsets.end {
        let mut page = Vec::new();
        next = page_of(client, source, partition, next..offsets.end, &mut |record| {
            page.push(record.clone());
        })
        .await?;
        for record in &page {
            let new = NewRecord {
                partition,
                timestamp: record.timestamp,
                key: record.key.as_deref(),
                value: record.value.as_deref(),
                headers: record
                    .headers
                    .iter()
                    .map(|(name, value)| (&**name, value.as_deref()))
                    .collect(),
            };
            writer.add(client, new).await?;
        }
        written += page.len() as u64;
        bar.set_position(bar.position() + page.len() as u64);
    }
    Ok(written)
}

/// Visits the committed records of some batches. Returns the offset behind them.
async fn page_of(
    client: &mut Client,
    topic: &str,
    partition: i32,
    offsets: std::ops::Range<i64>,
    visit: &mut impl FnMut(&KafkaRecord),
) -> anyhow::Result<i64> {
    let options = FetchOptions { isolation: Isolation::Committed, ..FetchOptions::default() };
    let mut fetched = None;
    for _ in 0..THROTTLED_MAX {
        let answer = client.fetch(topic, &[(partition, offsets.start)], &options).await?;
        fetched = answer.into_iter().next();
        if fetched.is_some() {
            break;
        }
        // A server that throttles a client leaves partitions out.
        tokio::time::sleep(THROTTLED_PAUSE).await;
    }
    let fetched = fetched.with_context(|| format!("the server leaves {topic}/{partition} out"))?;
    // The first batch that is there is always in a response, so compaction left nothing up to the
    // end.
    if fetched.batches.is_empty() {
        return Ok(offsets.end);
    }
    let mut committed = CommittedBatches::new(fetched.aborted);
    let mut next = offsets.start;
    for batch in BatchIterator::new(&fetched.batches) {
        let doing = || format!("read {topic}/{partition} from {next} on");
        let (header, bytes) = batch.with_context(doing)?;
        let bytes = fetched.batches.slice_ref(bytes);
        if committed.admits(&header, &bytes) {
            for record in records(&bytes, UNPACKED_LIMIT).with_context(doing)? {
                let record = record.with_context(doing)?;
                if offsets.contains(&record.offset) {
                    visit(&record);
                }
            }
        }
        next = header.last_offset().saturating_add(1);
    }
    ensure!(
        next > offsets.start,
        "the server gives no records of {topic}/{partition} from {next} on"
    );
    Ok(next)
}

/// The records that bring the keys back to their earlier values.
#[derive(Default)]
struct KeyChanges {
    /// Records of then: of keys that are gone, or that have another value.
    put: Vec<RecordLine>,
    /// Keys that were not there, and the partition of each.
    delete: Vec<(Bytes, i32)>,
    unchanged: u64,
}

async fn restore_keys(args: &RestoreTopicArgs, at: Cut, client: &mut Client) -> anyhow::Result<()> {
    let moment = Moment::Sys(at);
    let now = Moment::Sys(client.now().await?).to_string();
    let changes = changes_of_keys(client, &args.topic, &moment.to_string(), &now).await?;
    let summary = format!(
        "{} as of {moment},\n   and delete {} that did not exist then; {} that value now",
        counted(changes.put.len() as u64, "key"),
        changes.delete.len(),
        match changes.unchanged {
            1 => "1 has".to_owned(),
            count => format!("{count} have"),
        }
    );
    if !args.yes {
        print_changes(&changes)?;
        note(&format!("would write {summary}.\n   Give --yes to do it"));
        return Ok(());
    }
    let timestamp = i64::try_from(OsClock.read().wall.0).unwrap_or(i64::MAX / 2);
    let writer = TransactionWriter::begin(client, &args.topic).await?;
    let write = async |writer: &mut TransactionWriter, client: &mut Client| {
        for record in &changes.put {
            let headers = record.headers.iter();
            let new = NewRecord {
                partition: record.partition.context("the server names no partition")?,
                timestamp,
                key: record.key.as_deref(),
                value: record.value.as_deref(),
                headers: headers.map(|(name, value)| (name.as_bytes(), value.as_deref())).collect(),
            };
            writer.add(client, new).await?;
        }
        for (key, partition) in &changes.delete {
            let (partition, key) = (*partition, Some(&**key));
            let new = NewRecord { partition, timestamp, key, value: None, headers: Vec::new() };
            writer.add(client, new).await?;
        }
        Ok(())
    };
    writer.commit_if(client, write).await?;
    note(&format!("done: write {summary}"));
    note(&format!(
        "to undo this: freezeframe topics restore {} --keys --at {now} --yes",
        args.topic
    ));
    Ok(())
}

/// Compares the state by key at two moments. It keeps a number for each key of now, and what
/// changes.
async fn changes_of_keys(
    client: &mut Client,
    topic: &str,
    past: &str,
    now: &str,
) -> anyhow::Result<KeyChanges> {
    let mut current: HashMap<Bytes, (u64, i32)> = HashMap::new();
    each_key(client, topic, now, &mut |record| {
        let key = record.key.clone().unwrap_or_default();
        current.insert(key, (contents_hash(&record), record.partition.unwrap_or(0)));
    })
    .await?;
    let mut changes = KeyChanges::default();
    each_key(client, topic, past, &mut |mut record| {
        let key = record.key.clone().unwrap_or_default();
        match current.remove(&key) {
            Some((contents, _)) if contents == contents_hash(&record) => changes.unchanged += 1,
            current => {
                // The key may be in another partition by now, if there are more.
                record.partition = current.map(|(_, partition)| partition).or(record.partition);
                changes.put.push(record);
            }
        }
    })
    .await?;
    changes.delete = current.into_iter().map(|(key, (_, partition))| (key, partition)).collect();
    changes.delete.sort();
    Ok(changes)
}

fn contents_hash(record: &RecordLine) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&record.value, &record.headers).hash(&mut hasher);
    hasher.finish()
}

async fn each_key(
    client: &mut Client,
    topic: &str,
    at: &str,
    visit: &mut impl FnMut(RecordLine),
) -> anyhow::Result<()> {
    let mut after = None::<String>;
    loop {
        let (format, isolation) = (TreeKeysFormat::Jsonl, Isolation::Committed);
        let page = client.tree_keys(topic, Some(at), format, isolation, after.as_deref()).await?;
        for line in page.base64.0.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            visit(
                RecordLine::parse(line)
                    .context("the server answered with a line that is no record")?,
            );
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Prints the first changes: the key, and its value, if it is to have one.
fn print_changes(changes: &KeyChanges) -> anyhow::Result<()> {
    let mut output = StandardOutput::lock();
    let put = changes.put.iter().map(|record| {
        (record.key.as_deref().unwrap_or_default(), record.value.as_deref().unwrap_or_default())
    });
    let deleted = changes.delete.iter().map(|(key, _)| (&**key, &b"(deleted)"[..]));
    let mut count = 0;
    for (key, value) in put.chain(deleted) {
        count += 1;
        if count <= SHOWN_MAX {
            output.contents(&[key, b"\t", value, b"\n"].concat())?;
        }
    }
    output.flush()?;
    if count > SHOWN_MAX {
        note(&format!("and {} more", counted((count - SHOWN_MAX) as u64, "key")));
    }
    Ok(())
}
