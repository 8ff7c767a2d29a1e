//! `freezeframe cat`: the contents of a topic or partition, to its end.

use anyhow::Context;
use client::Client;
use fileview::{Format, RenderError, Selection, base64};
use hlc::Ask;

use super::Server;
use crate::moments::{At, TypedPath};
use crate::output::{Output, UsageError};
use crate::reading::{Source, pin_user};
use crate::tree_path::{AnyPath, name_of};

/// Arguments of `cat`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
PATH is TOPIC, TOPIC/PARTITION, or either with @MOMENT or @FIRST..SECOND behind
it. It reads to the end as of now, or as of the moment, and never follows. Of
several partitions, one comes after the other.

A moment of system time gives what the server had accepted before it. A moment
of user time gives the exact set of records that say of themselves that they
happened before it.

With --keys it prints the state of a topic: of each key the newest record, if it
has a value. `values` prints the key, a tab and the value.

A path that begins with a slash leads into the tree of files (see `ls /`).

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
pub(crate) struct Args {
    /// TOPIC or TOPIC/PARTITION, and @MOMENT behind it if wanted; or a path in the tree of files
    #[arg(value_parser = AnyPath::parse)]
    path: AnyPath,
    /// The moment, if it is not in the path.
    #[arg(long, value_parser = At::parse, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<At>,
    /// How the contents look.
    #[arg(long, short, value_enum, default_value = "values")]
    format: FormatArg,
    /// Of each key the newest record alone.
    #[arg(long)]
    keys: bool,
}

/// Formats, on the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum FormatArg {
    /// The batches, byte for byte as they are on the wire.
    Raw,
    /// Each value and a newline.
    Values,
    /// One JSON object a record and line; `produce --json` reads it.
    Jsonl,
}

impl From<FormatArg> for Format {
    fn from(format: FormatArg) -> Format {
        match format {
            FormatArg::Raw => Format::Raw,
            FormatArg::Values => Format::Values,
            FormatArg::Jsonl => Format::Jsonl,
        }
    }
}

/// Prints it.
pub(crate) async fn run(args: Args, server: &Server) -> anyhow::Result<()> {
    let path = match args.path {
        AnyPath::Tree(_) if args.keys => {
            let message = "--keys goes with a topic: TOPIC, or TOPIC@MOMENT".to_owned();
            return Err(UsageError(message).into());
        }
        AnyPath::Tree(path) => {
            let path = path.with_at(args.at)?;
            path.announce();
            return file(&mut server.connect().await?, &path.to_string(), &mut Output::lock())
                .await;
        }
        AnyPath::Topic(path) => path.with_at(args.at)?,
    };
    if args.keys {
        return keys(&mut server.connect().await?, &path, args.format).await;
    }
    let is_user = path.at.as_ref().is_some_and(|at| Selection::user_times(&at.ask).is_some());
    if is_user && matches!(args.format, FormatArg::Raw) {
        return Err(UsageError(RenderError::RawOfUserTime.to_string()).into());
    }
    let mut client = server.connect().await?;
    // By what the topic says user time is: only the server can tell.
    if let Some(at) = path.at.as_ref().filter(|_| is_user)
        && let Some(pinned) = pin_user(&mut client, &path.topic, at).await?
    {
        return user_set(&mut client, &path, &pinned, args.format).await;
    }
    let source = Source::find(&mut client, &path).await?;
    let bounds = source.bounds(&mut client, &path).await?;
    let mut output = Output::lock();
    let mut out = Vec::new();
    for bound in &bounds {
        let mut reader = source.reader(std::slice::from_ref(bound), args.format.into())?;
        while !reader.is_done() {
            let read = reader.step(&mut client, u64::MAX, &mut out).await;
            // What came before an error is shown before the error is.
            output.bytes(&out)?;
            out.clear();
            if read.is_err() {
                output.flush()?;
            }
            read?;
        }
    }
    Ok(output.flush()?)
}

/// How much of a file is asked for at once.
const PART_BYTES: usize = 512 << 10;

/// Prints a file of the tree, as it was when it was opened.
async fn file(client: &mut Client, path: &str, output: &mut Output) -> anyhow::Result<()> {
    let opened = client.tree_open(path).await?;
    let mut at = 0;
    while at < opened.size {
        let wanted = PART_BYTES.min(usize::try_from(opened.size - at).unwrap_or(usize::MAX));
        let part = match client.tree_read(&opened, at, wanted).await {
            Ok(part) => bytes_of(&part)?,
            Err(error) => {
                // What came before an error is shown before the error is.
                output.flush()?;
                return Err(error.into());
            }
        };
        if part.is_empty() {
            anyhow::bail!(
                "{path} has {} bytes, but the server gives none from {at} on",
                opened.size
            );
        }
        output.bytes(&part)?;
        at += part.len() as u64;
    }
    client.tree_close(opened).await?;
    Ok(output.flush()?)
}

fn bytes_of(part: &str) -> anyhow::Result<Vec<u8>> {
    base64::decode(part).context("the server answered with something that is not base64")
}

/// Prints the exact set of records of a moment of user time, one partition after the other.
async fn user_set(
    client: &mut Client,
    path: &TypedPath,
    ask: &Ask,
    format: FormatArg,
) -> anyhow::Result<()> {
    let extension = if matches!(format, FormatArg::Jsonl) { "jsonl" } else { "values" };
    let directory = format!("/.at/{ask}/topics/{}", path.topic);
    let mut partitions: Vec<u32> = Vec::new();
    match path.partition {
        Some(partition) => partitions.push(partition),
        None => {
            let mut after = 0;
            loop {
                let page = client.tree_list(&directory, after, false).await?;
                let Some(last) = page.last() else { break };
                after = last.cookie;
                partitions.extend(page.iter().filter_map(|listed| {
                    let name = name_of(&listed.name);
                    name.strip_suffix(extension)?.strip_suffix('.')?.parse::<u32>().ok()
                }));
            }
        }
    }
    partitions.sort_unstable();
    let mut output = Output::lock();
    for partition in partitions {
        file(client, &format!("{directory}/{partition}.{extension}"), &mut output).await?;
    }
    Ok(())
}

/// Prints the newest record of each key.
async fn keys(client: &mut Client, path: &TypedPath, format: FormatArg) -> anyhow::Result<()> {
    let format = match format {
        FormatArg::Raw => {
            let message = "--keys picks single records, and raw gives whole batches".to_owned();
            return Err(UsageError(message).into());
        }
        FormatArg::Values => "values",
        FormatArg::Jsonl => "jsonl",
    };
    if path.partition.is_some() {
        let message = "--keys is about a whole topic: a key may be in any partition".to_owned();
        return Err(UsageError(message).into());
    }
    if let Some(at) = &path.at {
        at.announce();
    }
    let mut at = path.at.as_ref().map(|at| at.ask.to_string());
    let (mut output, mut after) = (Output::lock(), None::<String>);
    loop {
        let page = client.tree_keys(&path.topic, at.as_deref(), format, after.as_deref()).await?;
        output.bytes(&bytes_of(&page.base64)?)?;
        at = Some(page.at);
        after = page.next;
        if after.is_none() {
            return Ok(output.flush()?);
        }
    }
}
