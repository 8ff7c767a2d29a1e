//! `freezeframe produce`: lines of standard input become records.
//!
//! A thread reads the lines, because a read from a terminal may block forever. Lines are
//! sent as soon as no more input is waiting, so that a slow pipe is not delayed until a batch is
//! full.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use client::{Client, ClientError, RequiredAcks, partition_of_key};
use fileview::RecordLine;
use hlc::{Moment, MomentSelector, OsClock, WallClock};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use jiff::tz::TimeZone;
use kafka_records::{BatchBuilder, CompressionType};
use tokio::sync::mpsc;

use super::{LinkArgs, ServerAddress};
use crate::completion;
use crate::moments::now;
use crate::output::counted;

/// By default a server accepts a batch of 1 MiB and a little more.
const BATCH_BYTES_MAX: usize = 900 << 10;
/// The most bytes of records that are sent at once, to all partitions together.
const REQUEST_BYTES_MAX: usize = 8 << 20;
const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS_AHEAD: usize = 8;
const LINE_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line of standard input is the value of one record. A record with a key goes
where Kafka's own producer would put it; records without a key are spread over
the partitions, batch by batch.

With --json, a line's key, value, headers, timestamp and partition are used, and
its topic and offset are not. Only the value is required. --header may be given
more than once.

Examples:
  echo hello | freezeframe produce orders
  freezeframe produce orders -K: < orders.txt
  echo paid | freezeframe produce orders --key 17 --header source=web
  echo late | freezeframe produce orders --timestamp 'yesterday 14:00'
  printf '%s\\n' '{\"key\":\"k\",\"value\":null}' | freezeframe produce orders --json")]
pub(crate) struct ProduceArgs {
    /// The topic.
    #[arg(value_parser = super::topics::parse_topic, add = completion::topics())]
    topic: String,
    /// A line is KEY, this separator, and the value. \t is a tab.
    #[arg(long, short = 'K', value_name = "SEPARATOR", value_parser = parse_separator, conflicts_with = "json")]
    key_separator: Option<String>,
    /// The key of every record.
    #[arg(long, short, conflicts_with_all = ["json", "key_separator"])]
    key: Option<String>,
    /// A header of every record.
    #[arg(long, short = 'H', value_name = "NAME=VALUE", value_parser = parse_header, conflicts_with = "json")]
    header: Vec<(String, Bytes)>,
    /// The timestamp of every record [default: now].
    #[arg(long, value_name = "TIME", value_parser = parse_timestamp, conflicts_with = "json", allow_hyphen_values = true)]
    timestamp: Option<i64>,
    /// A line is a JSON object, as `cat --format jsonl` prints it.
    #[arg(long)]
    json: bool,
    /// When a record counts as written.
    #[arg(long, value_enum, default_value = "all")]
    acks: AcksArg,
    /// The compression of batches.
    #[arg(long, value_enum, default_value = "none")]
    compression: CodecArg,
    #[command(flatten)]
    link: LinkArgs,
    /// Write every record to this partition.
    #[arg(long, short, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum AcksArg {
    /// Once it was sent. Failures go unnoticed.
    #[value(name = "0")]
    None,
    /// Once the leader has written it.
    #[value(name = "1")]
    Leader,
    /// Once every in-sync replica has written it.
    #[value(name = "all", alias = "-1")]
    All,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum CodecArg {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

fn parse_separator(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a separator is not empty".to_owned()),
        text => Ok(text.replace("\\t", "\t")),
    }
}

fn parse_header(text: &str) -> Result<(String, Bytes), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            Ok((name.to_owned(), Bytes::copy_from_slice(value.as_bytes())))
        }
        _ => Err("a header is NAME=VALUE".to_owned()),
    }
}

fn parse_timestamp(text: &str) -> Result<i64, String> {
    let moment = hlc::parse_selector(text, now(), &TimeZone::system());
    match moment.map_err(|error| error.to_string())? {
        MomentSelector::At(Moment::Sys(cut)) => Ok(cut.bound().time().0 as i64),
        _ => Err("give a time, such as 2026-11-21T09:00:00Z or 'yesterday 14:00'".to_owned()),
    }
}

pub(crate) async fn run(args: ProduceArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let mut client = server.connect_with(args.link.options()).await?;
    let topic = match client.topic(&args.topic).await {
        // A mistyped name would otherwise create a topic.
        Err(error @ ClientError::UnknownTopic(_)) => {
            let hint = format!("{error}; make it with: freezeframe topics create {}", args.topic);
            return Err(anyhow::Error::from(error).context(hint));
        }
        result => result?,
    };
    let partitions = topic.partitions.len();
    let partitions = i32::try_from(partitions).context("count partitions")?;
    let mut producer = ConsoleProducer::new(&args, partitions)?;
    let mut chunks = read_input();
    let progress = progress();
    let outcome = producer.send_all(&mut client, &mut chunks, &progress).await;
    progress.finish_and_clear();
    eprintln!("{}", producer.summary(args.acks));
    outcome
}

/// A progress bar, if the input has an end and standard error is a terminal.
fn progress() -> ProgressBar {
    let bytes = if console_is_watched() { input_bytes() } else { None };
    let Some(bytes) = bytes else { return ProgressBar::hidden() };
    let style =
        ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
            .expect("the template is a constant that parses");
    ProgressBar::new(bytes).with_style(style)
}

fn console_is_watched() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stderr())
}

/// The number of remaining bytes, if standard input is a file.
fn input_bytes() -> Option<u64> {
    let mut file = File::from(std::io::stdin().as_fd().try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some(metadata.len().saturating_sub(file.stream_position().ok()?))
}

type LineChunk = Vec<Vec<u8>>;

/// Reads standard input in a thread, and passes lines on as they arrive.
fn read_input() -> mpsc::Receiver<std::io::Result<LineChunk>> {
    let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
    std::thread::spawn(move || {
        let mut input = BufReader::with_capacity(CHUNK_BYTES, std::io::stdin());
        loop {
            let chunk = read_chunk(&mut input);
            let is_last = !matches!(&chunk, Ok(lines) if !lines.is_empty());
            if matches!(&chunk, Ok(lines) if lines.is_empty()) {
                return;
            }
            if sender.blocking_send(chunk).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// Reads lines until the next read would block. Returns none at the end.
fn read_chunk(input: &mut BufReader<impl Read>) -> std::io::Result<LineChunk> {
    let (mut lines, mut bytes) = (LineChunk::new(), 0);
    while bytes < CHUNK_BYTES {
        let mut line = Vec::new();
        let limit = LINE_BYTES_MAX as u64 + 1;
        if input.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.len() > LINE_BYTES_MAX {
            let message = format!("a line is longer than {LINE_BYTES_MAX} bytes");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, message));
        }
        bytes += line.len();
        line.pop_if(|last| *last == b'\n');
        lines.push(line);
        if !input.buffer().contains(&b'\n') {
            break;
        }
    }
    Ok(lines)
}

/// Collects records into batches and sends them.
struct ConsoleProducer {
    topic: String,
    spelling: InputFormat,
    /// The parts of a record that a line does not say.
    same_in_all: RecordLine,
    acks: RequiredAcks,
    codec: CompressionType,
    /// The number of partitions.
    partitions: i32,
    fixed: Option<i32>,
    /// The partition of records without a key, until the next request.
    sticky: i32,
    pending: BTreeMap<i32, BatchBuilder>,
    pending_bytes: usize,
    line: u64,
    records_sent: u64,
    bytes_sent: u64,
    started: Instant,
}

/// The format of a line.
enum InputFormat {
    Value,
    KeyAndValue(String),
    Json,
}

impl ConsoleProducer {
    fn new(args: &ProduceArgs, partitions: i32) -> anyhow::Result<ConsoleProducer> {
        if partitions == 0 {
            bail!("topic {} has no partitions", args.topic);
        }
        if let Some(partition) = args.partition.filter(|partition| *partition >= partitions) {
            bail!(
                "topic {} has {}, and none is {partition}",
                args.topic,
                counted(partitions, "partition")
            );
        }
        let spelling = match (&args.key_separator, args.json) {
            (Some(separator), _) => InputFormat::KeyAndValue(separator.clone()),
            (None, true) => InputFormat::Json,
            (None, false) => InputFormat::Value,
        };
        Ok(ConsoleProducer {
            topic: args.topic.clone(),
            spelling,
            same_in_all: RecordLine {
                partition: None,
                timestamp: args.timestamp,
                key: args.key.clone().map(Bytes::from),
                value: None,
                headers: args
                    .header
                    .iter()
                    .map(|(name, value)| (name.clone(), Some(value.clone())))
                    .collect(),
            },
            acks: match args.acks {
                AcksArg::None => RequiredAcks::None,
                AcksArg::Leader => RequiredAcks::Leader,
                AcksArg::All => RequiredAcks::All,
            },
            codec: match args.compression {
                CodecArg::None => CompressionType::None,
                CodecArg::Gzip => CompressionType::Gzip,
                CodecArg::Snappy => CompressionType::Snappy,
                CodecArg::Lz4 => CompressionType::Lz4,
                CodecArg::Zstd => CompressionType::Zstd,
            },
            partitions,
            fixed: args.partition,
            // So that many short runs do not all fill the first partition.
            sticky: (OsClock.read().wall.0 % partitions.cast_unsigned() as u64) as i32,
            pending: BTreeMap::new(),
            pending_bytes: 0,
            line: 0,
            records_sent: 0,
            bytes_sent: 0,
            started: Instant::now(),
        })
    }

    async fn send_all(
        &mut self,
        client: &mut Client,
        chunks: &mut mpsc::Receiver<std::io::Result<LineChunk>>,
        progress: &ProgressBar,
    ) -> anyhow::Result<()> {
        while let Some(chunk) = chunks.recv().await {
            for line in chunk.context("read standard input")? {
                self.line += 1;
                let record = match self.read(&line) {
                    Ok(record) => record,
                    Err(error) => {
                        // Send the lines before the bad one, so that the count says where to
                        // continue.
                        self.send(client).await?;
                        return Err(error.context(format!("line {}", self.line)));
                    }
                };
                self.add(client, &record).await?;
                progress.inc(line.len() as u64 + 1);
            }
            if chunks.is_empty() {
                self.send(client).await?;
            }
        }
        self.send(client).await
    }

    fn read(&self, line: &[u8]) -> anyhow::Result<RecordLine> {
        let plain = |key: Option<&[u8]>, value: &[u8]| RecordLine {
            key: key.map(Bytes::copy_from_slice).or_else(|| self.same_in_all.key.clone()),
            value: Some(Bytes::copy_from_slice(value)),
            ..self.same_in_all.clone()
        };
        let record = match &self.spelling {
            InputFormat::Value => plain(None, line),
            InputFormat::KeyAndValue(separator) => {
                let (key, value) = split(line, separator.as_bytes())
                    .with_context(|| format!("it has no separator {separator:?}"))?;
                plain(Some(key), value)
            }
            InputFormat::Json => RecordLine::parse(line)?,
        };
        if let Some(partition) = record.partition.filter(|partition| *partition >= self.partitions)
            && self.fixed.is_none()
        {
            bail!(
                "it was in partition {partition}, and {} has {}; put all into one with --partition",
                self.topic,
                counted(self.partitions, "partition")
            );
        }
        Ok(record)
    }

    /// The partition of a record.
    fn partition_of(&self, record: &RecordLine) -> i32 {
        let by_key = || record.key.as_ref().map(|key| partition_of_key(key, self.partitions));
        self.fixed.or(record.partition).or_else(by_key).unwrap_or(self.sticky)
    }

    async fn add(&mut self, client: &mut Client, record: &RecordLine) -> anyhow::Result<()> {
        let partition = self.partition_of(record);
        let bytes = record_bytes(record);
        let is_full = |batch: &BatchBuilder| batch.uncompressed_bytes() + bytes > BATCH_BYTES_MAX;
        let is_too_much = self.pending_bytes + bytes > REQUEST_BYTES_MAX;
        if is_too_much || self.pending.get(&partition).is_some_and(is_full) {
            self.send(client).await?;
        }
        self.pending_bytes += bytes;
        let now = || i64::try_from(OsClock.read().wall.0).unwrap_or(i64::MAX / 2);
        let headers: Vec<_> =
            record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
        // After a request, records without a key may belong to another partition.
        self.pending
            .entry(self.partition_of(record))
            .or_insert_with(|| BatchBuilder::new(self.codec))
            .record(
                record.timestamp.unwrap_or_else(now),
                record.key.as_deref(),
                record.value.as_deref(),
                &headers,
            );
        Ok(())
    }

    /// Sends the pending batches, and waits for the acknowledgements.
    async fn send(&mut self, client: &mut Client) -> anyhow::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        if pending.is_empty() {
            return Ok(());
        }
        let records: usize = pending.values().map(BatchBuilder::record_count).sum();
        let bytes: usize = pending.values().map(BatchBuilder::uncompressed_bytes).sum();
        let batches = pending.iter().map(|(partition, batch)| (*partition, batch.build()));
        client.produce(&self.topic, self.acks, batches.collect()).await?;
        self.records_sent += records as u64;
        self.bytes_sent += bytes as u64;
        self.sticky = (self.sticky + 1) % self.partitions;
        Ok(())
    }

    fn summary(&self, acks: AcksArg) -> String {
        let took = self.started.elapsed().max(Duration::from_millis(1)).as_secs_f64();
        let each_second = |count: u64| (count as f64 / took) as u64;
        let verb = if matches!(acks, AcksArg::None) { "sent" } else { "written" };
        let noun = if self.records_sent == 1 { "record" } else { "records" };
        format!(
            "{} {noun} {verb}, {} in {took:.3} s ({}/s, {}/s)",
            HumanCount(self.records_sent),
            HumanBytes(self.bytes_sent),
            HumanCount(each_second(self.records_sent)),
            HumanBytes(each_second(self.bytes_sent)),
        )
    }
}

/// About how many bytes a record takes in a batch.
fn record_bytes(record: &RecordLine) -> usize {
    let length = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map_or(0, |bytes| bytes.len());
    let headers = record.headers.iter().map(|(name, value)| name.len() + length(value) + 10);
    length(&record.key) + length(&record.value) + headers.sum::<usize>() + 40
}

/// Splits at the first separator.
fn split<'a>(line: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let position = line.windows(separator.len()).position(|window| window == separator)?;
    Some((&line[..position], &line[position + separator.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(input: &str) -> Vec<String> {
        let mut input = BufReader::with_capacity(8, input.as_bytes());
        let mut written = Vec::new();
        loop {
            let chunk = read_chunk(&mut input).unwrap();
            if chunk.is_empty() {
                return written;
            }
            written.extend(chunk.into_iter().map(|line| String::from_utf8(line).unwrap()));
        }
    }

    #[test]
    fn a_line_is_what_stands_before_its_newline_and_the_last_needs_none() {
        assert_eq!(
            lines("a\nbb\n\nlonger than the buffer\r\nend"),
            ["a", "bb", "", "longer than the buffer\r", "end"]
        );
        assert_eq!(lines(""), [""; 0]);
        assert_eq!(lines("\n"), [""]);
    }

    #[test]
    fn a_line_splits_at_its_first_separator() {
        assert_eq!(split(b"k::v::w", b"::"), Some((&b"k"[..], &b"v::w"[..])));
        assert_eq!(split(b"::v", b"::"), Some((&b""[..], &b"v"[..])));
        assert_eq!(split(b"kv", b"::"), None);
        assert_eq!(split(b":", b"::"), None);
    }
}
