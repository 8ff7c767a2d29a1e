//! `freezeframe topics`: the topics that exist, and those that existed at a moment.

mod restore;

use std::collections::BTreeMap;

use anyhow::Context;
use client::history::{Stamp, TopicAtMoment};
use client::{Client, NewTopic, ResponseError};
use hlc::Moment;
use serde::Serialize;

use super::ServerAddress;
use crate::completion;
use crate::moments::{MomentArg, TypedPath, date};
use crate::output::{
    StandardOutput, UsageError, counted, note, note_incomplete, print_list, print_list_or,
};
use crate::table::OutputTable;
use crate::topic_reader::{TopicSource, present};

/// The hint of an empty list of topics.
pub(super) const NO_TOPICS: &str = "there are no topics; make one: freezeframe topics create NAME";

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  freezeframe topics
  freezeframe topics --at 'yesterday 14:00'   also those deleted since
  freezeframe topics create orders --partitions 3 --config retention.ms=-1
  freezeframe topics create orders payments --partitions 3
  freezeframe topics describe orders
  freezeframe topics alter orders --set retention.ms=86400000 --partitions 6
  freezeframe topics trim orders --at '7 days ago'
  freezeframe topics delete orders
  freezeframe topics restore orders --at '1 hour ago'          it comes back
  freezeframe topics restore prices --at '1 hour ago' --keys   undo what changed"
)]
pub(crate) struct TopicsArgs {
    #[command(subcommand)]
    command: Option<TopicsCommand>,
    #[command(flatten)]
    list: ListTopicsArgs,
}

#[derive(Debug, clap::Subcommand)]
enum TopicsCommand {
    /// List topics (also without a subcommand).
    #[command(after_help = "\
Examples:
  freezeframe topics list --json
  freezeframe topics list --at '1 hour ago'")]
    List(ListTopicsArgs),
    /// Create topics.
    #[command(after_help = "\
Examples:
  freezeframe topics create orders payments
  freezeframe topics create orders --partitions 3 --config retention.ms=86400000")]
    Create(CreateTopicArgs),
    /// Change the settings of a topic, or add partitions.
    #[command(after_help = "\
Examples:
  freezeframe topics alter orders --set retention.ms=86400000
  freezeframe topics alter orders --reset retention.ms
  freezeframe topics alter orders --partitions 6")]
    Alter(AlterTopicArgs),
    /// Remove the records of a topic that were accepted before a moment, or before an offset.
    #[command(after_help = "\
They cannot be read any more, as of no moment. A pin that shows them holds them.

Examples:
  freezeframe topics trim orders --at '7 days ago'
  freezeframe topics trim orders/0 --before 1000")]
    Trim(TrimTopicArgs),
    /// Write what a topic had at a moment as new records; without --yes, say what would be written.
    #[command(after_help = "\
A topic that was deleted comes back with its settings and its committed records,
in their partitions, with their keys, headers and timestamps. Their offsets, and
the times at which they were accepted, are new.

With --keys, a topic that exists gets the values back that its keys had: the
undo of a bad deploy. Keys that did not exist then are deleted by a record
without a value.

Everything is written in one transaction: readers of committed records see all
of it or nothing, and an interrupted restore can be started again.

Examples:
  freezeframe topics restore orders --at '1 hour ago' --yes
  freezeframe topics restore orders --at pin:audit --as orders-audit --yes
  freezeframe topics restore prices --at '1 hour ago' --keys")]
    Restore(restore::RestoreTopicArgs),
    /// Delete topics. Their past stays readable as long as it is retained.
    #[command(after_help = "\
Examples:
  freezeframe topics delete orders payments")]
    Delete(DeleteTopicArgs),
    /// Show the partitions and settings of a topic.
    #[command(after_help = "\
Examples:
  freezeframe topics describe orders
  freezeframe topics describe orders --at '1 hour ago' --json")]
    Describe(DescribeTopicArgs),
}

#[derive(Debug, clap::Args)]
struct ListTopicsArgs {
    /// The topics that existed at a moment.
    #[arg(long, value_parser = MomentArg::parse_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// Also list internal topics.
    #[arg(long)]
    internal: bool,
    /// Print one JSON object a line for each topic.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct CreateTopicArgs {
    /// The names of the topics.
    #[arg(required = true, value_parser = parse_topic)]
    topics: Vec<String>,
    /// The number of partitions. The default is the server's.
    #[arg(long, short, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
    /// The number of replicas. The default is the server's.
    #[arg(long, value_parser = clap::value_parser!(i16).range(1..))]
    replication_factor: Option<i16>,
    /// A setting. May be given more than once.
    #[arg(long, value_parser = parse_config, value_name = "NAME=VALUE")]
    config: Vec<(String, String)>,
}

#[derive(Debug, clap::Args)]
struct DeleteTopicArgs {
    /// The topics.
    #[arg(required = true, value_parser = parse_topic, add = completion::topics())]
    topics: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct AlterTopicArgs {
    /// The topic.
    #[arg(value_parser = parse_topic, add = completion::topics())]
    topic: String,
    /// A setting. May be given more than once.
    #[arg(long, value_parser = parse_config, value_name = "NAME=VALUE")]
    set: Vec<(String, String)>,
    /// A setting that gets the server's default. May be given more than once.
    #[arg(long, value_name = "NAME")]
    reset: Vec<String>,
    /// The new number of partitions; it can only grow.
    #[arg(long, short, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
}

#[derive(Debug, clap::Args)]
struct TrimTopicArgs {
    /// TOPIC or TOPIC/PARTITION
    #[arg(value_parser = TypedPath::parse, value_name = "TOPIC", add = completion::topics())]
    path: TypedPath,
    /// The moment, by system time.
    #[arg(
        long,
        value_parser = MomentArg::parse_system_moment,
        value_name = "MOMENT",
        allow_hyphen_values = true,
        required_unless_present = "before",
        conflicts_with = "before"
    )]
    at: Option<MomentArg>,
    /// The first offset that stays, in each partition.
    #[arg(long, value_name = "OFFSET", value_parser = clap::value_parser!(i64).range(0..))]
    before: Option<i64>,
}

#[derive(Debug, clap::Args)]
struct DescribeTopicArgs {
    /// The topic.
    #[arg(value_parser = parse_topic, add = completion::topics())]
    topic: String,
    /// The topic as of a moment.
    #[arg(long, value_parser = MomentArg::parse_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Parses a topic name.
pub(crate) fn parse_topic(text: &str) -> Result<String, fileview::TopicNameError> {
    fileview::check_topic(text).map(|()| text.to_owned())
}

fn parse_config(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a setting is NAME=VALUE".to_owned()),
    }
}

pub(crate) async fn run(args: TopicsArgs, server: &ServerAddress) -> anyhow::Result<()> {
    match args.command.unwrap_or(TopicsCommand::List(args.list)) {
        TopicsCommand::List(ListTopicsArgs { at: Some(at), json, .. }) => {
            at.announce();
            list_at_moment(&mut server.connect().await?, &at, json).await
        }
        TopicsCommand::List(args) => list_now(&mut server.connect().await?, &args).await,
        TopicsCommand::Create(args) => create(&mut server.connect().await?, args).await,
        TopicsCommand::Alter(args) => alter(&mut server.connect().await?, args).await,
        TopicsCommand::Trim(args) => trim(&mut server.connect().await?, args).await,
        TopicsCommand::Restore(args) => restore::run(args, &mut server.connect().await?).await,
        TopicsCommand::Delete(args) => delete(&mut server.connect().await?, &args).await,
        TopicsCommand::Describe(DescribeTopicArgs { topic, at: Some(at), json }) => {
            at.announce();
            describe_at_moment(&mut server.connect().await?, &topic, &at, json).await
        }
        TopicsCommand::Describe(args) => describe_now(&mut server.connect().await?, &args).await,
    }
}

#[derive(Serialize)]
struct TopicListItem<'a> {
    name: &'a str,
    id: &'a str,
    partitions: usize,
}

async fn list_now(client: &mut Client, args: &ListTopicsArgs) -> anyhow::Result<()> {
    let topics = client.topics().await?;
    let visible = topics.iter().filter(|topic| args.internal || !topic.is_internal);
    let items = visible.map(|topic| {
        let partitions = topic.partitions.len();
        let item = TopicListItem { name: &topic.name, id: &topic.id, partitions };
        (item, [topic.name.clone(), partitions.to_string()])
    });
    print_list_or(args.json, &["topic", "partitions"], items, NO_TOPICS)
}

async fn list_at_moment(client: &mut Client, at: &MomentArg, json: bool) -> anyhow::Result<()> {
    let topics = client.topics_at(Some(&at.moment())).await?;
    let items = topics.topics.iter().map(|topic| {
        let deleted = topic.deleted.map(stamp_date).unwrap_or_default();
        let partitions = topic.partitions.to_string();
        (topic, [topic.name.clone(), partitions, stamp_date(topic.created), deleted])
    });
    print_list(json, &["topic", "partitions", "created", "deleted since"], items)?;
    note_incomplete(topics.complete);
    Ok(())
}

/// The date of a stamp.
pub(crate) fn stamp_date(stamp: Stamp) -> String {
    date(stamp.0.time())
}

async fn create(client: &mut Client, args: CreateTopicArgs) -> anyhow::Result<()> {
    let CreateTopicArgs { topics, partitions, replication_factor, config } = args;
    let configs: BTreeMap<String, String> = config.into_iter().collect();
    for name in topics {
        let configs = configs.clone();
        let topic = NewTopic { name, partitions, replication_factor, configs };
        client.create_topic(&topic).await?;
        eprintln!("created {}", topic.name);
    }
    Ok(())
}

async fn alter(client: &mut Client, args: AlterTopicArgs) -> anyhow::Result<()> {
    let AlterTopicArgs { topic, set, reset, partitions } = args;
    let set = set.into_iter().map(|(name, value)| (name, Some(value)));
    let changes: Vec<_> = set.chain(reset.into_iter().map(|name| (name, None))).collect();
    if changes.is_empty() && partitions.is_none() {
        let message = "give what is to change: --set, --reset or --partitions";
        return Err(UsageError(message.to_owned()).into());
    }
    if !changes.is_empty() {
        client.alter_topic_configs(&topic, &changes).await?;
        eprintln!("changed {} of {topic}", counted(changes.len() as u64, "setting"));
    }
    if let Some(count) = partitions {
        client.add_topic_partitions(&topic, count).await?;
        eprintln!("{topic} has {}", counted(count.unsigned_abs(), "partition"));
    }
    Ok(())
}

async fn trim(client: &mut Client, args: TrimTopicArgs) -> anyhow::Result<()> {
    let TrimTopicArgs { path, at, before } = args;
    if path.at.is_some() {
        let message = "give the moment with --at: what is trimmed is the topic of now";
        return Err(UsageError(message.to_owned()).into());
    }
    let bounds = match at {
        // The topic is to begin where it ended at the moment.
        Some(at) => {
            let topics = client.topics_at(Some(&at.moment())).await?.topics;
            let topic_then = topics.iter().find(|topic| topic.name == path.topic);
            let now = client.topic(&path.topic).await?;
            if topic_then.is_none_or(|topic| topic.id != now.id) {
                note(&format!("{} did not exist then: there is nothing to trim", path.topic));
                return Ok(());
            }
            let path_then = path.clone().with_at(Some(at))?;
            let source = TopicSource::find_prefix(client, &path_then).await?;
            source.bounds(client, &path).await?
        }
        None => {
            let source = TopicSource::find(client, &path).await?;
            let offset = before.unwrap_or_default();
            source.partitions.iter().map(|partition| (*partition, 0..offset)).collect()
        }
    };
    let before: Vec<_> =
        bounds.into_iter().map(|(partition, range)| (partition, range.end)).collect();
    let removed = client.delete_records(&path.topic, &before).await;
    let removed = match removed {
        Err(error) if error.response_error() == Some(ResponseError::PolicyViolation) => {
            let topic = &path.topic;
            let reason = format!(
                "a pin shows records of {topic} that would go (freezeframe pins), or {topic} is only compacted (cleanup.policy)"
            );
            return Err(anyhow::Error::from(error).context(reason));
        }
        removed => removed?,
    };
    for (partition, start) in removed {
        eprintln!("{}/{partition} begins at {start}", path.topic);
    }
    Ok(())
}

async fn delete(client: &mut Client, args: &DeleteTopicArgs) -> anyhow::Result<()> {
    for topic in &args.topics {
        // A principal that may delete a topic may not be allowed to ask for the moment.
        let before = present(client).await.ok().flatten();
        client.delete_topic(topic).await?;
        let undo = before.map(|at| {
            let at = Moment::Sys(at);
            format!("; to undo this: freezeframe topics restore {topic} --at {at} --yes")
        });
        note(&format!("deleted {topic}{}", undo.unwrap_or_default()));
    }
    Ok(())
}

#[derive(Serialize)]
struct TopicDetail<'a> {
    name: &'a str,
    id: &'a str,
    partitions: Vec<PartitionDetail<'a>>,
    configs: BTreeMap<&'a str, Option<&'a str>>,
}

#[derive(Serialize)]
struct PartitionDetail<'a> {
    partition: i32,
    leader: Option<i32>,
    replicas: &'a [i32],
    in_sync: &'a [i32],
}

async fn describe_now(client: &mut Client, args: &DescribeTopicArgs) -> anyhow::Result<()> {
    let topic = client.topic(&args.topic).await?;
    let configs = client.topic_configs(&args.topic).await?;
    let mut output = StandardOutput::lock();
    if args.json {
        let partitions = topic.partitions.iter().map(|partition| PartitionDetail {
            partition: partition.partition,
            leader: partition.leader,
            replicas: &partition.replicas,
            in_sync: &partition.in_sync,
        });
        output.json(&TopicDetail {
            name: &topic.name,
            id: &topic.id,
            partitions: partitions.collect(),
            configs: configs.iter().map(|c| (c.name.as_str(), c.value.as_deref())).collect(),
        })?;
        return Ok(output.flush()?);
    }
    let mut table = OutputTable::new(&["partition", "leader", "replicas", "in sync"]);
    let ids = |ids: &[i32]| ids.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
    for partition in &topic.partitions {
        let leader =
            partition.leader.map_or_else(|| "none".to_owned(), |leader| leader.to_string());
        table.row([
            partition.partition.to_string(),
            leader,
            ids(&partition.replicas),
            ids(&partition.in_sync),
        ]);
    }
    output.table(&table)?;
    output.flush()?;
    eprintln!("{}, id {}", topic.name, topic.id);
    for config in configs.iter().filter(|config| config.is_own) {
        eprintln!("  {}={}", config.name, config.value.as_deref().unwrap_or("(secret)"));
    }
    Ok(())
}

async fn describe_at_moment(
    client: &mut Client,
    name: &str,
    at: &MomentArg,
    json: bool,
) -> anyhow::Result<()> {
    let topics = client.topics_at(Some(&at.moment())).await?;
    let topic = topics
        .topics
        .iter()
        .find(|topic| topic.name == name)
        .with_context(|| format!("there was no topic {name} at {}", at.ask()))?;
    let mut output = StandardOutput::lock();
    if json {
        output.json(topic)?;
    } else {
        output.table(&topic_table(topic))?;
    }
    Ok(output.flush()?)
}

fn topic_table(topic: &TopicAtMoment) -> OutputTable {
    let mut table = OutputTable::new(&["what", "value"]);
    let mut row = |label: &str, value: String| table.row([label.to_owned(), value]);
    row("name", topic.name.clone());
    row("id", topic.id.clone());
    row("partitions", topic.partitions.to_string());
    row("created", stamp_date(topic.created));
    row("deleted since", topic.deleted.map(stamp_date).unwrap_or_default());
    for (name, value) in &topic.configs {
        row(name, value.clone());
    }
    table
}
