//! `freezeframe consume`: prints records of a topic, all partitions in parallel.

use std::time::{Duration, Instant};

use anyhow::Context;
use client::{Client, ClientError};
use fileview::{RecordLine, RecordSelection, ViewFormat};
use hlc::MomentSelector;

use super::{IsolationArgs, LinkArgs, ServerAddress};
use crate::completion;
use crate::moments::{MomentArg, TypedPath};
use crate::output::{StandardOutput, UsageError};
use crate::topic_reader::{TopicReader, TopicSource, fix_user_moment};
use crate::tree_reader::{TreeFileReader, partition_files};

/// How long to wait for a server that went away.
const RECONNECT_PATIENCE: Duration = Duration::from_secs(60);
const PAUSE_BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);

/// Arguments of `consume`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without options it prints new records as they come, until Ctrl-C. With
--from-beginning it prints what is there and ends; with --follow too, it goes on
with what comes. With --at it prints what was there at a moment, or happened in
a window, and ends. No group is joined and no offset is committed.

Examples:
  freezeframe consume orders
  freezeframe consume orders --from-beginning
  freezeframe consume orders --from-beginning --follow -n 100 --format jsonl
  freezeframe consume orders --at '10 minutes ago..5 minutes ago'
  freezeframe consume orders/3 --from-beginning | head")]
pub(crate) struct ConsumeArgs {
    /// TOPIC or TOPIC/PARTITION, with @MOMENT if wanted
    #[arg(value_parser = TypedPath::parse, value_name = "TOPIC", add = completion::topics())]
    path: TypedPath,
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
    /// The output format.
    #[arg(long, short, value_enum, default_value = "values")]
    format: RecordFormat,
    #[command(flatten)]
    isolation: IsolationArgs,
    #[command(flatten)]
    link: LinkArgs,
    /// Print binary data to a terminal too.
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RecordFormat {
    /// Each value and a newline.
    Values,
    /// One JSON object a line for each record; `produce --json` reads it.
    Jsonl,
}

/// Runs `consume`.
pub(crate) async fn run(args: ConsumeArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let path = args.path.clone().with_at(args.at.clone())?;
    if path.at.is_some() && (args.follow || args.from_beginning) {
        let message =
            "the past has a beginning and an end: leave --from-beginning and --follow out";
        return Err(UsageError(message.to_owned()).into());
    }
    let mut client = server.connect_with(args.link.options()).await?;
    // The topic's settings say what user time is, so only the server can tell.
    if let Some(at) = path.at.as_ref().filter(|at| RecordSelection::user_times(&at.ask).is_some())
        && let Some(pinned) = fix_user_moment(&mut client, &path.topic, at).await?
    {
        return print_user_set(&mut client, &path, &pinned, &args).await;
    }
    let source = TopicSource::find(&mut client, &path).await?;
    let source = source.with_isolation(args.isolation.isolation());
    let mut bounds = source.bounds(&mut client, &path).await?;
    let starts_at_end = path.at.is_none() && !args.from_beginning;
    let follows = args.follow || starts_at_end;
    for (_, offsets) in &mut bounds {
        if starts_at_end {
            offsets.start = offsets.end;
        }
        if follows {
            offsets.end = i64::MAX;
        }
    }
    let format = match args.format {
        RecordFormat::Values => ViewFormat::Values,
        RecordFormat::Jsonl => ViewFormat::Jsonl,
    };
    let reader = source.reader(&bounds, format)?;
    let count = args.count.unwrap_or(u64::MAX);
    let output = StandardOutput::lock().forced(args.force);
    tokio::select! {
        printed = print(&mut client, reader, count, follows, output) => printed,
        // Everything that was read is printed: the output is flushed after every step.
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// Prints the exact set of records of a moment of user time, one partition after the other.
async fn print_user_set(
    client: &mut Client,
    path: &TypedPath,
    ask: &MomentSelector,
    args: &ConsumeArgs,
) -> anyhow::Result<()> {
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut output = StandardOutput::lock().forced(args.force);
    for path in partition_files(client, path, ask, "jsonl").await? {
        let mut file = TreeFileReader::open(client, &path, args.isolation.isolation()).await?;
        // A line is one record in JSON. As plain text, one value may take several lines.
        let mut rest = Vec::new();
        while left > 0
            && let Some(part) = file.next_part(client).await?
        {
            rest.extend_from_slice(&part);
            let lines = rest.split_inclusive(|byte| *byte == b'\n');
            let mut printed = 0;
            for line in lines.filter(|line| line.ends_with(b"\n")) {
                if left == 0 {
                    break;
                }
                print_line(line, args.format, &mut output)?;
                (printed, left) = (printed + line.len(), left - 1);
            }
            rest.drain(..printed);
            output.flush()?;
        }
    }
    Ok(())
}

fn print_line(
    line: &[u8],
    format: RecordFormat,
    output: &mut StandardOutput,
) -> anyhow::Result<()> {
    match format {
        RecordFormat::Jsonl => output.contents(line),
        RecordFormat::Values => {
            let record = RecordLine::parse(line)
                .context("the server answered with a line that is no record")?;
            output.contents(&record.value.unwrap_or_default())?;
            Ok(output.bytes(b"\n")?)
        }
    }
}

async fn print(
    client: &mut Client,
    mut reader: TopicReader,
    mut left: u64,
    follows: bool,
    mut output: StandardOutput,
) -> anyhow::Result<()> {
    let mut out = Vec::new();
    let mut gone_since = None;
    while left > 0 && !reader.is_done() {
        let read = reader.step(client, left, &mut out).await;
        output.contents(&out)?;
        output.flush()?;
        out.clear();
        match read {
            Ok(records) => {
                left -= records;
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

/// Whether to wait for a server that went away. Prints a message the first time.
fn may_reconnect(error: &anyhow::Error, gone_since: &mut Option<Instant>) -> bool {
    let is_gone = error.downcast_ref::<ClientError>().is_some_and(ClientError::is_connection_error);
    if is_gone && gone_since.is_none() {
        eprintln!("{error}; waiting for it to come back");
    }
    is_gone && gone_since.get_or_insert_with(Instant::now).elapsed() < RECONNECT_PATIENCE
}
