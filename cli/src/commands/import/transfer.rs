//! Moves batches: a task reads from the source while this one writes to the target.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::Context;
use client::{Client, FetchOptions, FetchPosition, FetchedPartition, ImportedBatches, Isolation};
use indicatif::ProgressBar;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::copied_batches::{BatchRun, CopiedBatches};
use super::origin::{PartitionOrigins, write_origins};
use super::plan::{ImportPlan, PartitionCopy};
use crate::output::note;
use crate::rate_limit::RateLimiter;
use crate::topic_reader::{WAIT_MAX, larger_fetch_bytes};

/// Requests that are read and not yet written.
const CHUNKS_AHEAD: usize = 2;
/// The most bytes of a request, and a batch more.
const CHUNK_BYTES_MAX: usize = 16 << 20;
const FETCH_BYTES_MIN: i32 = 64 << 10;
/// A partition that gives nothing so often in a row has nothing. A leader that has not caught up, and one
/// whose records are on remote storage, give nothing for a while.
const EMPTY_ANSWERS_MAX: u32 = 10;
/// The interval at which an import that follows looks for new topics and partitions.
const REFRESH_AFTER: Duration = Duration::from_secs(30);
/// The interval at which the group remembers the progress of the import.
const REMEMBER_AFTER: Duration = Duration::from_secs(5);

/// Batches for one request, at most one run of each partition.
type TransferChunk = Vec<PartitionRun>;

/// Batches of a partition.
struct PartitionRun {
    batches: ImportedBatches,
    /// The end of the partition after these batches.
    end: i64,
    records: u64,
}

/// Records and bytes written of a topic.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TopicTransfer {
    pub(super) records: u64,
    pub(super) bytes: u64,
}

/// The end of a reader that met no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReaderEnd {
    /// Everything was read, or the user stopped it.
    Done,
    /// It is time to look for new topics and partitions.
    Refresh,
}

/// Reads the source.
pub(super) struct SourceReader {
    client: Client,
    partitions: Vec<PartitionCopy>,
    options: FetchOptions,
    limiter: RateLimiter,
    follow: bool,
    stop: watch::Receiver<bool>,
    /// The index of the partition that is first in the next request.
    turn: usize,
}

impl SourceReader {
    pub(super) fn new(
        client: Client,
        partitions: Vec<PartitionCopy>,
        limiter: RateLimiter,
        follow: bool,
        stop: watch::Receiver<bool>,
    ) -> SourceReader {
        let mut options = FetchOptions {
            wait_max: WAIT_MAX,
            isolation: Isolation::Committed,
            ..FetchOptions::default()
        };
        // About a second at a time.
        if let Some(rate) = limiter.bytes_per_second() {
            let rate = i32::try_from(rate).unwrap_or(i32::MAX).max(FETCH_BYTES_MIN);
            options.partition_bytes_max = options.partition_bytes_max.min(rate);
            options.bytes_max = options.bytes_max.min(rate);
        }
        SourceReader { client, partitions, options, limiter, follow, stop, turn: 0 }
    }

    /// Reads to the end, until it is stopped, or until nobody writes what it reads.
    async fn run_for(self, chunks: mpsc::Sender<TransferChunk>) -> anyhow::Result<ReaderEnd> {
        tokio::select! {
            end = self.run(chunks.clone()) => end,
            () = chunks.closed() => anyhow::bail!("the writer has ended"),
        }
    }

    async fn run(mut self, chunks: mpsc::Sender<TransferChunk>) -> anyhow::Result<ReaderEnd> {
        let refresh_at = Instant::now() + REFRESH_AFTER;
        let mut stop = self.stop.clone();
        self.cover_empty(&chunks).await?;
        loop {
            let is_done = self.partitions.iter().all(|partition| partition.next >= partition.end);
            if is_done && !self.follow {
                return Ok(ReaderEnd::Done);
            }
            if self.follow && Instant::now() >= refresh_at {
                return Ok(ReaderEnd::Refresh);
            }
            let fetched = tokio::select! {
                fetched = self.fetch() => fetched.context("read from the source")?,
                () = stopped(&mut stop) => return Ok(ReaderEnd::Done),
            };
            let has_moved = self.pass_on(fetched, &chunks).await?;
            if !has_moved && !self.follow {
                self.probe(&chunks).await?;
            }
        }
    }

    /// Covers the offsets of partitions from which the source removed everything.
    async fn cover_empty(&mut self, chunks: &mpsc::Sender<TransferChunk>) -> anyhow::Result<()> {
        let is_empty = |partition: &&mut PartitionCopy| {
            partition.next >= partition.end && partition.filled < partition.end
        };
        let empty = self.partitions.iter_mut().filter(is_empty);
        send(chunks, empty.map(cover_rest).collect()).await
    }

    /// Fetches from all partitions. They take turns at the front, because a server fills its response in
    /// the order of the request.
    async fn fetch(&mut self) -> Result<Vec<(String, FetchedPartition)>, client::ClientError> {
        let due = self.partitions.iter().filter(|partition| partition.next < partition.end);
        let mut positions: Vec<_> = due.map(position).collect();
        if positions.is_empty() {
            // There is nothing yet to follow.
            tokio::time::sleep(WAIT_MAX).await;
            return Ok(Vec::new());
        }
        self.turn = (self.turn + 1) % positions.len();
        let first = positions[self.turn].clone();
        // The partitions of a topic stand together.
        positions.sort_by_cached_key(|position| {
            let is_of_first = position.topic == first.topic;
            let is_turned = is_of_first && position.partition < first.partition;
            (!is_of_first, position.topic.clone(), is_turned, position.partition)
        });
        self.client.fetch_topics(&positions, &self.options).await
    }

    /// Reads each partition alone where all together gave nothing. One that gives nothing alone, again and
    /// again, has no records up to its end: compaction removed them. Whatever else is not given is an error,
    /// because what is covered is never read again.
    async fn probe(&mut self, chunks: &mpsc::Sender<TransferChunk>) -> anyhow::Result<()> {
        let mut has_partial_batch = false;
        for index in 0..self.partitions.len() {
            let partition = &self.partitions[index];
            if partition.next >= partition.end {
                continue;
            }
            let (topic, request) =
                (partition.topic.clone(), [(partition.partition, partition.next)]);
            let fetched = self.client.fetch(&topic, &request, &self.options).await?;
            let Some(fetched) = fetched.into_iter().next() else { continue };
            let partition = &mut self.partitions[index];
            if fetched.batches.is_empty() {
                partition.empty_answers += 1;
                if partition.empty_answers < EMPTY_ANSWERS_MAX {
                    continue;
                }
                anyhow::ensure!(
                    partition.is_compacted && fetched.end >= partition.end,
                    "the source gives no records of {topic}/{} from {} on, and said that it has them up to {}: run \
                     the import again when it is well",
                    partition.partition,
                    partition.next,
                    partition.end
                );
                let runs = cover_rest(partition);
                send(chunks, vec![runs]).await?;
            } else {
                partition.empty_answers = 0;
                has_partial_batch |= !self.pass_on(vec![(topic, fetched)], chunks).await?;
            }
        }
        if has_partial_batch {
            let larger = larger_fetch_bytes(&self.options).context("read from the source")?;
            self.options.partition_bytes_max = larger;
        }
        Ok(())
    }

    /// Passes on what was fetched. Returns true if it had whole batches.
    async fn pass_on(
        &mut self,
        fetched: Vec<(String, FetchedPartition)>,
        chunks: &mpsc::Sender<TransferChunk>,
    ) -> anyhow::Result<bool> {
        let (mut has_moved, mut queues) = (false, Vec::new());
        for (topic, fetched) in fetched {
            let number = fetched.partition;
            let is_it = |partition: &&mut PartitionCopy| {
                partition.topic == topic && partition.partition == number
            };
            let Some(partition) = self.partitions.iter_mut().find(is_it) else { continue };
            self.limiter.admit(fetched.batches.len() as u64).await;
            let mut copied = CopiedBatches::default();
            let next = copied
                .copy(&fetched, partition.shift, partition.filled, partition.next)
                .with_context(|| format!("copy {topic}/{number}"))?;
            if next == partition.next {
                continue;
            }
            (partition.filled, partition.next) = (next, next);
            has_moved = true;
            queues.push(runs_of(&topic, number, copied));
        }
        send(chunks, queues).await?;
        Ok(has_moved)
    }
}

fn position(partition: &PartitionCopy) -> FetchPosition {
    FetchPosition {
        topic: partition.topic.clone(),
        partition: partition.partition,
        offset: partition.next,
    }
}

/// The runs of a partition, in order.
type PartitionRuns = VecDeque<PartitionRun>;

fn runs_of(topic: &str, partition: i32, copied: CopiedBatches) -> PartitionRuns {
    let run = |run: BatchRun| PartitionRun {
        end: run.end_offset,
        records: run.records,
        batches: ImportedBatches {
            topic: topic.to_owned(),
            partition,
            base_offset: run.base_offset,
            batches: run.bytes.freeze(),
        },
    };
    copied.into_runs().into_iter().map(run).collect()
}

/// Batches without records up to the end of a partition.
fn cover_rest(partition: &mut PartitionCopy) -> PartitionRuns {
    let mut copied = CopiedBatches::default();
    copied.cover_gap(partition.shift, partition.filled, partition.end);
    (partition.filled, partition.next) = (partition.end, partition.end);
    runs_of(&partition.topic, partition.partition, copied)
}

/// Sends the runs of several partitions.
async fn send(
    chunks: &mpsc::Sender<TransferChunk>,
    mut queues: Vec<PartitionRuns>,
) -> anyhow::Result<()> {
    loop {
        queues.retain(|queue| !queue.is_empty());
        if queues.is_empty() {
            return Ok(());
        }
        let (mut chunk, mut bytes) = (TransferChunk::new(), 0);
        for run in queues.iter_mut().filter_map(VecDeque::pop_front) {
            bytes += run.batches.batches.len();
            chunk.push(run);
            if bytes >= CHUNK_BYTES_MAX {
                break;
            }
        }
        // The writer ends first only with an error, which is the one to report.
        chunks.send(chunk).await.ok().context("the writer has ended")?;
    }
}

/// Waits until the user stops the import.
pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Writes to the target.
pub(super) struct TargetWriter<'a> {
    pub(super) client: &'a mut Client,
    pub(super) plan: &'a mut ImportPlan,
    pub(super) progress: &'a ProgressBar,
    /// Records and bytes written, by topic.
    pub(super) transfers: &'a mut BTreeMap<String, TopicTransfer>,
}

impl TargetWriter<'_> {
    /// Writes what the reader reads. Returns how the reader ended.
    pub(super) async fn write_from(&mut self, reader: SourceReader) -> anyhow::Result<ReaderEnd> {
        let (sender, mut chunks) = mpsc::channel(CHUNKS_AHEAD);
        // On a thread of its own: it computes checksums while this one does.
        let runtime = Handle::current();
        let reader = tokio::task::spawn_blocking(move || runtime.block_on(reader.run_for(sender)));
        let mut remembered = PartitionOrigins::new();
        let mut remember_at = Instant::now() + REMEMBER_AFTER;
        self.advance_log_starts().await?;
        while let Some(chunk) = chunks.recv().await {
            self.write(chunk, &mut remembered).await?;
            if Instant::now() >= remember_at {
                write_origins(self.client, &self.plan.group, &remembered).await?;
                remembered.clear();
                remember_at = Instant::now() + REMEMBER_AFTER;
            }
        }
        write_origins(self.client, &self.plan.group, &remembered).await?;
        reader.await.context("the reader of the source has panicked")?
    }

    async fn write(
        &mut self,
        chunk: TransferChunk,
        remembered: &mut PartitionOrigins,
    ) -> anyhow::Result<()> {
        let (batches, ends): (Vec<_>, Vec<_>) =
            chunk.into_iter().map(|run| (run.batches, (run.end, run.records))).unzip();
        self.client.import(&batches).await.context("write to the server")?;
        for (batches, (end, records)) in batches.into_iter().zip(ends) {
            let transfer = self.transfers.entry(batches.topic.clone()).or_default();
            transfer.records += records;
            transfer.bytes += batches.batches.len() as u64;
            self.progress.inc((end - batches.base_offset).unsigned_abs());
            let key = (batches.topic, batches.partition);
            if let Some(origin) = self.plan.origins.get_mut(&key) {
                origin.target_end = end;
                remembered.insert(key, origin.clone());
            }
        }
        self.advance_log_starts().await
    }

    /// Lets logs begin where those of the source did.
    async fn advance_log_starts(&mut self) -> anyhow::Result<()> {
        let is_due = |(key, start): &(&(String, i32), &i64)| {
            self.plan.origins.get(*key).is_some_and(|origin| origin.target_end >= **start)
        };
        let due = self.plan.log_starts.iter().filter(is_due);
        let due: BTreeMap<_, _> = due.map(|(key, start)| (key.clone(), *start)).collect();
        let origins = self.plan.origins.iter().filter(|(key, _)| due.contains_key(*key));
        let origins = origins.map(|(key, origin)| (key.clone(), origin.clone())).collect();
        // No batch says afterwards how far the partition is.
        write_origins(self.client, &self.plan.group, &origins).await?;
        for (key, start) in due {
            let (topic, partition) = &key;
            match self.client.delete_records(topic, &[(*partition, start)]).await {
                Err(error) if error.response_error().is_some() => note(&format!(
                    "{topic}/{partition} begins at 0 here, with a gap up to {start} where the source begins: {error}"
                )),
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
            self.plan.log_starts.remove(&key);
        }
        Ok(())
    }
}
