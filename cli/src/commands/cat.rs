//! `freezeframe cat`: prints a topic or a partition to its end.

use client::tree::TreeKeysFormat;
use client::{Client, Isolation};
use fileview::{RecordSelection, RenderError, ViewFormat};

use super::{IsolationArgs, LinkArgs, ServerAddress};
use crate::completion;
use crate::moments::{MomentArg, TypedPath};
use crate::output::{StandardOutput, UsageError};
use crate::topic_reader::{TopicSource, fix_user_moment};
use crate::tree_path::AnyPath;
use crate::tree_reader::{TreeFileReader, partition_files};

/// Arguments of `cat`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
PATH is TOPIC, TOPIC/PARTITION, or either with @MOMENT or @FIRST..SECOND behind
it. It reads to the end as of now, or as of the moment, and never follows. Of
several partitions, one comes after the other.

A moment of system time gives what the server had accepted before it. A moment
of user time gives the exact set of records that say of themselves that they
happened before it.

Records of transactions are printed if they are committed, or were before the
moment. With --isolation uncommitted all are, and raw has their markers too.

With --keys it prints the state of a topic: of each key the newest record, if it
has a value. `values` prints the key, a tab and the value.

A path that begins with a slash leads into the tree of files (see `ls /`).
Bytes that are no text do not go to a terminal, and control characters go there
as \\x1b, unless --force is given.

Examples:
  freezeframe cat orders
  freezeframe cat orders/0 --format jsonl
  freezeframe cat 'orders@5 minutes ago'
  freezeframe cat orders --at 'yesterday 14:00..yesterday 15:00'
  freezeframe cat 'orders@u:2026-11-21 09:00'
  freezeframe cat orders/0 --format raw > orders-0.batches
  freezeframe cat orders --keys --at '1 hour ago'
  freezeframe cat /topics/orders/by-key/17
  freezeframe cat /files/report.csv@s1795252948259")]
pub(crate) struct CatArgs {
    /// TOPIC or TOPIC/PARTITION, with @MOMENT if wanted; or a path in the tree of files
    #[arg(value_parser = AnyPath::parse, add = completion::paths())]
    path: AnyPath,
    /// The moment, if it is not in the path.
    #[arg(long, value_parser = MomentArg::parse, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// The output format.
    #[arg(long, short, value_enum, default_value = "values")]
    format: FormatArg,
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

/// The formats on the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum FormatArg {
    /// The batches, byte for byte as on the wire.
    Raw,
    /// Each value and a newline.
    Values,
    /// One JSON object a line for each record; `produce --json` reads it.
    Jsonl,
}

impl From<FormatArg> for ViewFormat {
    fn from(format: FormatArg) -> ViewFormat {
        match format {
            FormatArg::Raw => ViewFormat::Raw,
            FormatArg::Values => ViewFormat::Values,
            FormatArg::Jsonl => ViewFormat::Jsonl,
        }
    }
}

/// Runs `cat`.
pub(crate) async fn run(args: CatArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let mut output = StandardOutput::lock().forced(args.force);
    if matches!(args.format, FormatArg::Raw) {
        output.check_binary()?;
    }
    let isolation = args.isolation.isolation();
    let path = match args.path {
        AnyPath::Tree(_) if args.keys => {
            let message = "--keys goes with a topic: TOPIC, or TOPIC@MOMENT".to_owned();
            return Err(UsageError(message).into());
        }
        AnyPath::Tree(path) => {
            let path = path.with_at(args.at)?;
            path.announce();
            let mut client = server.connect().await?;
            return print_file(&mut client, &path.to_string(), isolation, &mut output).await;
        }
        AnyPath::Topic(path) => path.with_at(args.at)?,
    };
    let is_user = path.at.as_ref().is_some_and(|at| RecordSelection::user_times(&at.ask).is_some());
    if args.keys {
        let format = keys_format(args.format)?;
        let mut client = server.connect().await?;
        return print_keys(&mut client, &path, format, isolation, &mut output).await;
    }
    if is_user && matches!(args.format, FormatArg::Raw) {
        return Err(UsageError(RenderError::RawOfUserTime.to_string()).into());
    }
    let mut client = server.connect_with(args.link.options()).await?;
    // The topic's settings say what user time is, so only the server can tell.
    if let Some(at) = path.at.as_ref().filter(|_| is_user)
        && let Some(pinned) = fix_user_moment(&mut client, &path.topic, at).await?
    {
        let extension = if matches!(args.format, FormatArg::Jsonl) { "jsonl" } else { "values" };
        for file in partition_files(&mut client, &path, &pinned, extension).await? {
            print_file(&mut client, &file, isolation, &mut output).await?;
        }
        return Ok(());
    }
    let source = TopicSource::find(&mut client, &path).await?;
    let source = source.with_isolation(isolation);
    let bounds = source.bounds(&mut client, &path).await?;
    let mut out = Vec::new();
    for bound in &bounds {
        let mut reader = source.reader(std::slice::from_ref(bound), args.format.into())?;
        while !reader.is_done() {
            let read = reader.step(&mut client, u64::MAX, &mut out).await;
            // Print what was read before the error.
            output.contents(&out)?;
            out.clear();
            if read.is_err() {
                output.flush()?;
            }
            read?;
        }
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
            Ok(Some(part)) => output.contents(&part)?,
            Ok(None) => return Ok(output.flush()?),
            Err(error) => {
                // Print what was read before the error.
                output.flush()?;
                return Err(error);
            }
        }
    }
}

fn keys_format(format: FormatArg) -> Result<TreeKeysFormat, UsageError> {
    match format {
        FormatArg::Values => Ok(TreeKeysFormat::Values),
        FormatArg::Jsonl => Ok(TreeKeysFormat::Jsonl),
        FormatArg::Raw => {
            Err(UsageError("--keys picks single records, and raw gives whole batches".to_owned()))
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
    let mut at = path.at.as_ref().map(|at| at.ask.to_string());
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
