//! `freezeframe cat`: prints topics and partitions to their end, and files.

use client::tree::TreeKeysFormat;
use client::{Client, Isolation};
use fileview::{RenderError, ViewFormat};

use super::{IsolationArgs, LinkArgs, ServerAddress};
use crate::completion;
use crate::moments::{MomentArg, TypedPath};
use crate::output::{StandardOutput, UsageError};
use crate::record_args::{RecordArgs, RecordFormat, RecordReader, layout_help};
use crate::time_order::TimeOrderedReader;
use crate::topic_reader::TopicSource;
use crate::tree_path::AnyPath;
use crate::tree_reader::{TreeFileReader, user_time_files};

#[derive(Debug, clap::Args)]
#[command(after_help = concat!("\
PATH is TOPIC, TOPIC/PARTITION, or either with @MOMENT or @FIRST..SECOND behind
it. It reads to the end as of now, or as of the moment, and never follows.

With --by time, the records of all partitions and topics come in the order in
which the server accepted them, as of one moment. On a terminal, that is the
default for several partitions.

A moment of system time gives what the server had accepted before it. A moment
of user time gives the exact set of records that say of themselves that they
happened before it.

Records of transactions are printed if they are committed, or were before the
moment. With --isolation uncommitted all are, and raw has their markers too.

With --keys it prints the state of a topic: of each key the newest record, if it
has a value. `values` prints the key, a tab and the value.

", layout_help!(), "

A path that begins with a slash leads into the tree of files (see `ls /`).
Bytes that are no text do not go to a terminal, and control characters go there
as \\x1b, unless --force is given.

Examples:
  freezeframe cat orders
  freezeframe cat orders/0 --format jsonl
  freezeframe cat orders payments --by time -f '%a %t %k=%v'
  freezeframe cat 'orders@5 minutes ago'
  freezeframe cat orders --at 'yesterday 14:00..yesterday 15:00'
  freezeframe cat 'orders@u:2026-11-21 09:00'
  freezeframe cat orders/0 --format raw > orders-0.batches
  freezeframe cat orders --keys --at '1 hour ago'
  freezeframe cat /topics/orders/by-key/17
  freezeframe cat /files/report.csv@s1795252948259"))]
pub(crate) struct CatArgs {
    /// TOPIC or TOPIC/PARTITION, with @MOMENT if wanted; or a path in the tree of files
    #[arg(
        value_parser = AnyPath::parse,
        add = completion::paths(),
        required = true,
        value_name = "PATH"
    )]
    paths: Vec<AnyPath>,
    /// The moment, if it is not in the path.
    #[arg(long, value_parser = MomentArg::parse, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    #[command(flatten)]
    records: RecordArgs,
    /// Only the newest record of each key.
    #[arg(long)]
    keys: bool,
    #[command(flatten)]
    isolation: IsolationArgs,
    #[command(flatten)]
    link: LinkArgs,
    /// Print binary data and control characters to a terminal as they are.
    #[arg(long)]
    force: bool,
}

pub(crate) async fn run(args: CatArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let mut output = StandardOutput::lock().forced(args.force);
    if args.records.format.is_raw() {
        output.check_binary()?;
    }
    let (mut topics, mut files) = (Vec::new(), Vec::new());
    for path in &args.paths {
        match path.clone() {
            AnyPath::Tree(path) => files.push(path.with_at(args.at.clone())?),
            AnyPath::Topic(path) => topics.push(path.with_at(args.at.clone())?),
        }
    }
    if !files.is_empty() && (args.keys || args.records.wants_time() || !topics.is_empty()) {
        let message = if args.keys {
            "--keys goes with a topic: TOPIC, or TOPIC@MOMENT"
        } else if args.records.wants_time() {
            "--by time goes with a topic: TOPIC, or TOPIC@MOMENT"
        } else {
            "give topics, or paths in the tree of files, but not both"
        };
        return Err(UsageError(message.to_owned()).into());
    }
    let isolation = args.isolation.isolation();
    let mut client = server.connect_with(args.link.options()).await?;
    for path in files {
        path.announce();
        print_file(&mut client, &path.to_string(), isolation, &mut output).await?;
    }
    if args.keys {
        let format = keys_format(&args.records.format)?;
        for path in &topics {
            print_keys(&mut client, path, format, isolation, &mut output).await?;
        }
        return Ok(());
    }
    print_topics(&mut client, &topics, &args, &mut output).await
}

async fn print_topics(
    client: &mut Client,
    paths: &[TypedPath],
    args: &CatArgs,
    output: &mut StandardOutput,
) -> anyhow::Result<()> {
    let (format, isolation) = (&args.records.format, args.isolation.isolation());
    if format.is_raw() && paths.iter().any(TypedPath::is_of_user_time) {
        return Err(UsageError(RenderError::RawOfUserTime.to_string()).into());
    }
    let mut sources = Vec::new();
    for path in paths {
        if let Some(extension) = args.records.extension()
            && let Some(files) = user_time_files(client, path, extension).await?
        {
            for file in files {
                print_file(client, &file, isolation, output).await?;
            }
            continue;
        }
        let source = TopicSource::find(client, path).await?;
        sources.push((path, source.with_isolation(isolation)));
    }
    let partitions = sources.iter().map(|(_, source)| source.partitions.len()).sum();
    if args.records.is_by_time(partitions)
        && let Some(now) = args.records.present(client).await?
    {
        let mut topics = Vec::with_capacity(sources.len());
        for (path, source) in sources {
            let source = if path.at.is_none() { source.at_cut(now) } else { source };
            let bounds = source.bounds(client, path).await?;
            topics.push(source.ordered(&bounds, &format.layout())?);
        }
        let reader = TimeOrderedReader::new(topics, isolation);
        return print_records(client, RecordReader::ByTime(reader), output).await;
    }
    for (path, source) in sources {
        for bound in source.bounds(client, path).await? {
            let reader = source.reader(&[bound], &format.layout())?;
            print_records(client, RecordReader::ByPartition(reader), output).await?;
        }
    }
    Ok(())
}

async fn print_records(
    client: &mut Client,
    mut reader: RecordReader,
    output: &mut StandardOutput,
) -> anyhow::Result<()> {
    let mut out = Vec::new();
    while !reader.is_done() {
        let read = reader.step(client, u64::MAX, &mut out).await;
        // Print what was read before the error.
        output.contents(&out)?;
        out.clear();
        if read.is_err() {
            output.flush()?;
        }
        read?;
    }
    Ok(output.flush()?)
}

/// Prints a file of the tree, as it was when it was opened.
async fn print_file(
    client: &mut Client,
    path: &str,
    isolation: Isolation,
    output: &mut StandardOutput,
) -> anyhow::Result<()> {
    let mut file = TreeFileReader::open(client, path, isolation).await?;
    loop {
        match file.next_part(client).await {
            Ok(Some(bytes)) => output.contents(&bytes)?,
            Ok(None) => return Ok(output.flush()?),
            Err(error) => {
                // Print what was read before the error.
                output.flush()?;
                return Err(error);
            }
        }
    }
}

fn keys_format(format: &RecordFormat) -> Result<TreeKeysFormat, UsageError> {
    match format {
        RecordFormat::View(ViewFormat::Values) => Ok(TreeKeysFormat::Values),
        RecordFormat::View(ViewFormat::Jsonl) => Ok(TreeKeysFormat::Jsonl),
        RecordFormat::View(ViewFormat::Raw) => {
            Err(UsageError("--keys picks single records, and raw gives whole batches".to_owned()))
        }
        RecordFormat::Template(_) => {
            Err(UsageError("--keys prints values or jsonl; jsonl has all of a record".to_owned()))
        }
    }
}

/// Prints the newest record of each key.
async fn print_keys(
    client: &mut Client,
    path: &TypedPath,
    format: TreeKeysFormat,
    isolation: Isolation,
    output: &mut StandardOutput,
) -> anyhow::Result<()> {
    if path.partition.is_some() {
        let message = "--keys is about a whole topic: a key may be in any partition".to_owned();
        return Err(UsageError(message).into());
    }
    if let Some(at) = &path.at {
        at.announce();
    }
    let mut at = path.at.as_ref().map(|at| at.ask().to_string());
    let mut after = None::<String>;
    loop {
        let page = client
            .tree_keys(&path.topic, at.as_deref(), format, isolation, after.as_deref())
            .await?;
        output.contents(&page.base64.0)?;
        at = Some(page.at);
        after = page.next;
        if after.is_none() {
            return Ok(output.flush()?);
        }
    }
}
