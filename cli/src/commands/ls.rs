//! `freezeframe ls`: topics, or the partitions of one.

use std::collections::BTreeMap;

use client::Client;
use fileview::Selection;
use hlc::Ask;
use serde::Serialize;

use super::Server;
use super::topics::stamp_date;
use crate::moments::{At, TypedPath};
use crate::output::{UsageError, list};
use crate::reading::Source;

/// Arguments of `ls`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe ls                     topics
  freezeframe ls orders              partitions with their first offset, their end, their bytes
  freezeframe ls orders/3
  freezeframe ls --at '1 hour ago'   topics that existed then
  freezeframe ls 'orders@1 hour ago' where its partitions ended then")]
pub(crate) struct Args {
    /// TOPIC or TOPIC/PARTITION, and @MOMENT behind it if wanted. All topics if not said.
    #[arg(value_parser = TypedPath::parse)]
    path: Option<TypedPath>,
    /// The moment, if it is not in the path.
    #[arg(long, value_parser = At::parse, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<At>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

/// Prints the list.
pub(crate) async fn run(args: Args, server: &Server) -> anyhow::Result<()> {
    let path = args.path.map(|path| path.with_at(args.at.clone())).transpose()?;
    let mut client = server.connect().await?;
    match (path, args.at) {
        (Some(path), _) => partitions(&mut client, &path, args.json).await,
        (None, None) => topics_now(&mut client, args.json).await,
        (None, Some(at)) => topics_then(&mut client, &at, args.json).await,
    }
}

#[derive(Serialize)]
struct ListedTopic {
    topic: String,
    partitions: usize,
}

async fn topics_now(client: &mut Client, json: bool) -> anyhow::Result<()> {
    let topics = client.topics().await?.into_iter().filter(|topic| !topic.is_internal);
    let listed =
        topics.map(|topic| ListedTopic { partitions: topic.partitions.len(), topic: topic.name });
    print_topics(listed, json)
}

async fn topics_then(client: &mut Client, at: &At, json: bool) -> anyhow::Result<()> {
    let Ask::At(moment) = at.ask else {
        let message = format!("topics exist at a moment, not in a window: {}", at.ask);
        return Err(UsageError(message).into());
    };
    at.announce();
    let then = client.topics_at(Some(&moment)).await?;
    for topic in then.topics.iter().filter(|_| !json) {
        if let Some(deleted) = topic.deleted {
            eprintln!("{} was deleted at {}", topic.name, stamp_date(deleted));
        }
    }
    let listed = then
        .topics
        .into_iter()
        .map(|topic| ListedTopic { topic: topic.name, partitions: topic.partitions as usize });
    print_topics(listed, json)
}

fn print_topics(topics: impl Iterator<Item = ListedTopic>, json: bool) -> anyhow::Result<()> {
    let items = topics.map(|topic| {
        let cells = [topic.topic.clone(), topic.partitions.to_string()];
        (topic, cells)
    });
    list(json, &["topic", "partitions"], items)
}

#[derive(Serialize)]
struct ListedPartition {
    topic: String,
    partition: i32,
    start: i64,
    end: i64,
    bytes: Option<i64>,
}

async fn partitions(client: &mut Client, path: &TypedPath, json: bool) -> anyhow::Result<()> {
    // Offsets bound prefixes: a moment of user time is read as Kafka's clients read it.
    let is_user = path.at.as_ref().is_some_and(|at| Selection::user_times(&at.ask).is_some());
    let source = if is_user {
        eprintln!("of user time, offsets bound a prefix; `cat` gives the exact set");
        Source::find_prefix(client, path).await?
    } else {
        Source::find(client, path).await?
    };
    let bounds = source.bounds(client, path).await?;
    let bytes = match path.at {
        None => client.partition_bytes(&path.topic, &source.partitions).await?,
        Some(_) => BTreeMap::new(),
    };
    let items = bounds.into_iter().map(|(partition, offsets)| {
        let bytes = bytes.get(&partition).copied();
        let (start, end) = (offsets.start, offsets.end);
        let shown = bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        let topic = path.topic.clone();
        let cells = [partition.to_string(), start.to_string(), end.to_string(), shown];
        (ListedPartition { topic, partition, start, end, bytes }, cells)
    });
    list(json, &["partition", "start", "end", "bytes"], items)
}
