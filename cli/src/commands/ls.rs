//! `freezeframe ls`: lists topics, or the partitions of one.

use std::collections::BTreeMap;

use client::Client;
use client::tree::{TreeDirectoryEntry, TreeNodeKind, TreeNodeStat};
use fileview::RecordSelection;
use hlc::MomentSelector;
use serde::Serialize;

use super::ServerAddress;
use super::topics::{NO_TOPICS, stamp_date};
use crate::completion;
use crate::moments::{MomentArg, TypedPath};
use crate::output::{UsageError, note_incomplete, print_list, print_list_or};
use crate::topic_reader::TopicSource;
use crate::tree_path::{AnyPath, TreePath, kind_of, mode_of, name_of, print_name, time_of};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe ls                     topics
  freezeframe ls orders              partitions: first offset, end, bytes
  freezeframe ls orders/3
  freezeframe ls --at '1 hour ago'   topics that existed then
  freezeframe ls 'orders@1 hour ago' where its partitions ended then

A path that begins with a slash leads into the tree of files:
  freezeframe ls /                   topics, offsets, files, .at
  freezeframe ls -l /topics/orders   with sizes and times
  freezeframe ls /topics/orders/by-key --at '1 hour ago'
  freezeframe ls -l /.at/s1795252948259/files")]
pub(crate) struct LsArgs {
    /// TOPIC or TOPIC/PARTITION, with @MOMENT if wanted; or a path in the tree of files. The
    /// default is all topics.
    #[arg(value_parser = AnyPath::parse, add = completion::paths())]
    path: Option<AnyPath>,
    /// The moment, if it is not in the path.
    #[arg(long, value_parser = MomentArg::parse, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// Show sizes and modification times too, for a path in the tree of files.
    #[arg(long, short)]
    long: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: LsArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let path = match args.path {
        Some(AnyPath::Tree(path)) => {
            let path = path.with_at(args.at)?;
            return tree(&mut server.connect().await?, &path, args.long, args.json).await;
        }
        Some(AnyPath::Topic(path)) => Some(path.with_at(args.at.clone())?),
        None => None,
    };
    if args.long {
        let message = "-l goes with a path that begins with a slash".to_owned();
        return Err(UsageError(message).into());
    }
    let mut client = server.connect().await?;
    match (path, args.at) {
        (Some(path), _) => partitions(&mut client, &path, args.json).await,
        (None, None) => topics_now(&mut client, args.json).await,
        (None, Some(at)) => topics_at_moment(&mut client, &at, args.json).await,
    }
}

#[derive(Serialize)]
struct TopicItem {
    topic: String,
    partitions: usize,
}

async fn topics_now(client: &mut Client, json: bool) -> anyhow::Result<()> {
    let topics = client.topics().await?.into_iter().filter(|topic| !topic.is_internal);
    let items =
        topics.map(|topic| TopicItem { partitions: topic.partitions.len(), topic: topic.name });
    print_topics(items, json, NO_TOPICS)
}

async fn topics_at_moment(client: &mut Client, at: &MomentArg, json: bool) -> anyhow::Result<()> {
    let MomentSelector::At(moment) = at.ask() else {
        let message = format!("topics exist at a moment, not in a window: {}", at.ask());
        return Err(UsageError(message).into());
    };
    at.announce();
    let topics = client.topics_at(Some(&moment)).await?;
    if !json {
        for topic in &topics.topics {
            if let Some(deleted) = topic.deleted {
                eprintln!("{} was deleted at {}", topic.name, stamp_date(deleted));
            }
        }
    }
    let items = topics
        .topics
        .into_iter()
        .map(|topic| TopicItem { topic: topic.name, partitions: topic.partitions as usize });
    print_topics(items, json, "")?;
    note_incomplete(topics.complete);
    Ok(())
}

fn print_topics(
    topics: impl Iterator<Item = TopicItem>,
    json: bool,
    hint: &str,
) -> anyhow::Result<()> {
    let items = topics.map(|topic| {
        let cells = [topic.topic.clone(), topic.partitions.to_string()];
        (topic, cells)
    });
    print_list_or(json, &["topic", "partitions"], items, hint)
}

#[derive(Serialize)]
struct PartitionItem {
    topic: String,
    partition: i32,
    start: i64,
    end: i64,
    bytes: Option<i64>,
}

async fn partitions(client: &mut Client, path: &TypedPath, json: bool) -> anyhow::Result<()> {
    // Offsets bound prefixes, so a user-time moment is read as Kafka's clients read it.
    let is_user =
        path.at.as_ref().is_some_and(|at| RecordSelection::user_times(&at.ask()).is_some());
    let source = if is_user {
        eprintln!("of user time, offsets bound a prefix; `cat` gives the exact set");
        TopicSource::find_prefix(client, path).await?
    } else {
        TopicSource::find(client, path).await?
    };
    let bounds = source.bounds(client, path).await?;
    let bytes = match path.at {
        None => client.partition_bytes(&path.topic, &source.partitions).await?,
        Some(_) => BTreeMap::new(),
    };
    let items = bounds.into_iter().map(|(partition, offsets)| {
        let bytes = bytes.get(&partition).copied();
        let (start, end) = (offsets.start, offsets.end);
        let size = bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        let topic = path.topic.clone();
        let cells = [partition.to_string(), start.to_string(), end.to_string(), size];
        (PartitionItem { topic, partition, start, end, bytes }, cells)
    });
    print_list(json, &["partition", "start", "end", "bytes"], items)
}

/// Longer listings are not sorted: they come in the server's order.
const SORTED_MAX: usize = 10_000;

/// A name in the tree, to be printed.
#[derive(Serialize)]
struct TreeEntryItem {
    name: String,
    kind: TreeNodeKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    stat: Option<TreeNodeStat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

async fn tree(client: &mut Client, path: &TreePath, long: bool, json: bool) -> anyhow::Result<()> {
    path.announce();
    let path = path.to_string();
    let stat = client.tree_stat(&path).await?;
    if stat.kind != TreeNodeKind::Directory {
        let name = path.rsplit('/').next().unwrap_or(&path).to_owned();
        let kind = stat.kind;
        let stat = long.then_some(stat);
        return print_entries(vec![TreeEntryItem { name, kind, stat, error: None }], long, json);
    }
    let (mut names, mut after, mut is_sorted) = (Vec::new(), 0, true);
    loop {
        let page = client.tree_list(&path, after, long).await?;
        let Some(last) = page.last() else { break };
        after = last.cookie;
        names.extend(page.into_iter().map(tree_entry_item));
        if names.len() > SORTED_MAX {
            is_sorted = false;
            print_entries(std::mem::take(&mut names), long, json)?;
        }
    }
    if is_sorted {
        names.sort_by(|a, b| natural_order(&a.name).cmp(&natural_order(&b.name)));
    }
    print_entries(names, long, json)
}

fn tree_entry_item(entry: TreeDirectoryEntry) -> TreeEntryItem {
    let TreeDirectoryEntry { name, kind, stat, error, .. } = entry;
    TreeEntryItem { name: name_of(&name), kind, stat, error }
}

/// Sorts partitions by number.
fn natural_order(name: &str) -> (Option<u64>, &str) {
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    (name[..digits].parse().ok(), name)
}

fn print_entries(names: Vec<TreeEntryItem>, long: bool, json: bool) -> anyhow::Result<()> {
    if !long {
        let items = names.into_iter().map(|entry| {
            let shown_name = print_name(&entry.name, entry.kind, None);
            (entry, [shown_name])
        });
        return print_list(json, &["name"], items);
    }
    let items = names.into_iter().map(|entry| {
        let target = entry.stat.as_ref().and_then(|stat| stat.target.as_ref()).map(name_of);
        let name = print_name(&entry.name, entry.kind, target.as_deref());
        let cells = match &entry.stat {
            Some(stat) => [
                format!("{}{}", kind_of(stat.kind), mode_of(stat.mode)),
                stat.links.to_string(),
                stat.uid.to_string(),
                stat.gid.to_string(),
                stat.size.to_string(),
                time_of(stat.modified),
                name,
            ],
            None => {
                let reason = entry.error.as_deref().unwrap_or("not known");
                let unknown = || "?".to_owned();
                [
                    unknown(),
                    unknown(),
                    unknown(),
                    unknown(),
                    unknown(),
                    unknown(),
                    format!("{name} ({reason})"),
                ]
            }
        };
        (entry, cells)
    });
    print_list(json, &["mode", "links", "uid", "gid", "bytes", "modified", "name"], items)
}
