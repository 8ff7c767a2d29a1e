//! `freezeframe consume`: prints records of topics, all partitions side by side.

use std::time::{Duration, Instant};

use anyhow::Context;
use client::{Client, ClientError};
use fileview::RecordLine;

use super::{IsolationArgs, LinkArgs, ServerAddress};
use crate::completion;
use crate::moments::{MomentArg, TypedPath};
use crate::output::{StandardOutput, UsageError, hint};
use crate::record_args::{RecordArgs, RecordReader, layout_help};
use crate::time_order::TimeOrderedReader;
use crate::topic_reader::TopicSource;
use crate::tree_reader::{TreeFileReader, user_time_files};

/// The longest wait for a server that went away.
const RECONNECT_PATIENCE: Duration = Duration::from_secs(60);
const PAUSE_BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[command(after_help = concat!("\
Without options it prints new records as they come, until Ctrl-C. With
--from-beginning it prints what is there and ends; with --follow too, it goes on
with what comes. With --at it prints what was there at a moment, or happened in
a window, and ends. No group is joined and no offset is committed.

With --by time, the records of all partitions and topics come in the order in
which the server accepted them. On a terminal, that is the default for several
partitions. A transaction that is open holds back what was accepted after it
began, until it ends.

", layout_help!(), "

Examples:
  freezeframe consume orders
  freezeframe consume orders payments --by time -f '%a %t %k=%v'
  freezeframe consume orders --from-beginning
  freezeframe consume orders --from-beginning --follow -n 100 --format jsonl
  freezeframe consume orders --at '10 minutes ago..5 minutes ago'
  freezeframe consume orders/3 --from-beginning | head"))]
pub(crate) struct ConsumeArgs {
    /// TOPIC or TOPIC/PARTITION, with @MOMENT if wanted
    #[arg(
        value_parser = TypedPath::parse,
        value_name = "TOPIC",
        add = completion::topics(),
        required = true
    )]
    paths: Vec<TypedPath>,
    /// Start at the oldest record, not at the end.
    #[arg(long, conflicts_with = "at")]
    from_beginning: bool,
    /// Only what was there at a moment, or was written in a window.
    #[arg(long, value_parser = MomentArg::parse, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// Continue with new records.
    #[arg(long, short = 'F', conflicts_with = "at")]
    follow: bool,
    /// Stop after this many records.
    #[arg(long, short = 'n', value_name = "COUNT")]
    count: Option<u64>,
    #[command(flatten)]
    records: RecordArgs,
    #[command(flatten)]
    isolation: IsolationArgs,
    #[command(flatten)]
    link: LinkArgs,
    /// Print binary data to a terminal too.
    #[arg(long)]
    force: bool,
}

pub(crate) async fn run(args: ConsumeArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let with_at = |path: TypedPath| path.with_at(args.at.clone());
    let paths = args.paths.iter().cloned().map(with_at).collect::<Result<Vec<_>, _>>()?;
    check(&args, &paths)?;
    let mut client = server.connect_with(args.link.options()).await?;
    if let [path] = &paths[..]
        && let Some(extension) = args.records.extension()
        && let Some(files) = user_time_files(&mut client, path, "jsonl").await?
    {
        return print_user_set(&mut client, files, extension, &args).await;
    }
    let Some((reader, follows)) = open(&mut client, &paths, &args).await? else {
        let message = "give one topic, or --by time: several topics are printed in the order of \
                       time, and this server is not Freezeframe";
        return Err(UsageError(message.to_owned()).into());
    };
    if follows && !args.from_beginning {
        let topic = &paths[0].topic;
        hint(&format!("waiting for new records; freezeframe cat {topic} prints what is there"));
    }
    let count = args.count.unwrap_or(u64::MAX);
    let output = StandardOutput::lock().forced(args.force);
    tokio::select! {
        printed = print(&mut client, reader, count, follows, output) => printed,
        // Everything that was read is printed: the output is flushed after every step.
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// Checks what the command line cannot say by itself.
fn check(args: &ConsumeArgs, paths: &[TypedPath]) -> Result<(), UsageError> {
    let is_past = paths.iter().any(|path| path.at.is_some());
    let message = if is_past && (args.follow || args.from_beginning) {
        "the past has a beginning and an end: leave --from-beginning and --follow out"
    } else if is_past && paths.iter().any(|path| path.at.is_none()) {
        "give a moment for each topic, or for none: --at is for all"
    } else if args.records.format.is_raw() {
        "raw gives whole batches: freezeframe cat prints them"
    } else {
        return Ok(());
    };
    Err(UsageError(message.to_owned()))
}

/// A reader of all topics, and whether it has no end. `None` if they cannot be read together.
async fn open(
    client: &mut Client,
    paths: &[TypedPath],
    args: &ConsumeArgs,
) -> anyhow::Result<Option<(RecordReader, bool)>> {
    let isolation = args.isolation.isolation();
    let starts_at_end = paths.iter().all(|path| path.at.is_none()) && !args.from_beginning;
    let follows = args.follow || starts_at_end;
    let mut topics = Vec::with_capacity(paths.len());
    for path in paths {
        let source = TopicSource::find(client, path).await?.with_isolation(isolation);
        topics.push((path, source));
    }
    let partitions = topics.iter().map(|(_, source)| source.partitions.len()).sum();
    let present = if args.records.is_by_time(partitions) || paths.len() > 1 {
        args.records.present(client).await?
    } else {
        None
    };
    let (layout, mut readers) = (args.records.format.layout(), Vec::new());
    for (path, source) in topics {
        let source = match present {
            Some(now) if !follows && path.at.is_none() => source.at_cut(now),
            _ => source,
        };
        let mut bounds = source.bounds(client, path).await?;
        for (_, offsets) in &mut bounds {
            if starts_at_end {
                offsets.start = offsets.end;
            }
            if follows {
                offsets.end = i64::MAX;
            }
        }
        readers.push((source, bounds));
    }
    if present.is_some() {
        let topics = readers.iter().map(|(source, bounds)| source.ordered(bounds, &layout));
        let topics = topics.collect::<anyhow::Result<Vec<_>>>()?;
        let reader = TimeOrderedReader::new(topics, isolation);
        return Ok(Some((RecordReader::ByTime(reader), follows)));
    }
    let [(source, bounds)] = &readers[..] else { return Ok(None) };
    Ok(Some((RecordReader::ByPartition(source.reader(bounds, &layout)?), follows)))
}

/// Prints the exact set of records of a moment of user time, one partition after the other.
async fn print_user_set(
    client: &mut Client,
    files: Vec<String>,
    extension: &str,
    args: &ConsumeArgs,
) -> anyhow::Result<()> {
    let mut records_left = args.count.unwrap_or(u64::MAX);
    let mut output = StandardOutput::lock().forced(args.force);
    for path in files {
        let mut file = TreeFileReader::open(client, &path, args.isolation.isolation()).await?;
        // A line is one record in JSON. As plain text, one value may take several lines.
        let mut rest = Vec::new();
        while records_left > 0
            && let Some(bytes) = file.next_part(client).await?
        {
            rest.extend_from_slice(&bytes);
            let lines = rest.split_inclusive(|byte| *byte == b'\n');
            let mut printed = 0;
            for line in lines.filter(|line| line.ends_with(b"\n")) {
                if records_left == 0 {
                    break;
                }
                print_line(line, extension, &mut output)?;
                (printed, records_left) = (printed + line.len(), records_left - 1);
            }
            rest.drain(..printed);
            output.flush()?;
        }
    }
    Ok(())
}

fn print_line(line: &[u8], extension: &str, output: &mut StandardOutput) -> anyhow::Result<()> {
    if extension == "jsonl" {
        return output.contents(line);
    }
    let record =
        RecordLine::parse(line).context("the server answered with a line that is no record")?;
    output.contents(&record.value.unwrap_or_default())?;
    Ok(output.bytes(b"\n")?)
}

async fn print(
    client: &mut Client,
    mut reader: RecordReader,
    mut records_left: u64,
    follows: bool,
    mut output: StandardOutput,
) -> anyhow::Result<()> {
    let mut out = Vec::new();
    let mut gone_since = None;
    while records_left > 0 && !reader.is_done() {
        let read = reader.step(client, records_left, &mut out).await;
        output.contents(&out)?;
        output.flush()?;
        out.clear();
        match read {
            Ok(records) => {
                records_left -= records;
                gone_since = None;
            }
            Err(error) if follows && may_reconnect(&error, &mut gone_since) => {
                tokio::time::sleep(PAUSE_BETWEEN_ATTEMPTS).await;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// True if it is worth waiting for a server that went away. Prints a message the first time.
fn may_reconnect(error: &anyhow::Error, gone_since: &mut Option<Instant>) -> bool {
    let is_gone = error.downcast_ref::<ClientError>().is_some_and(ClientError::is_connection_error);
    if is_gone && gone_since.is_none() {
        eprintln!("{error}; waiting for it to come back");
    }
    is_gone && gone_since.get_or_insert_with(Instant::now).elapsed() < RECONNECT_PATIENCE
}
