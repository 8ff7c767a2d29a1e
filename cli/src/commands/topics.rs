//! `freezeframe topics`: the topics that exist, and those that existed at a moment.

use std::collections::BTreeMap;

use anyhow::Context;
use client::history::{Stamp, TopicAtMoment};
use client::{Client, NewTopic};
use serde::Serialize;

use super::ServerAddress;
use crate::completion;
use crate::moments::{MomentArg, date};
use crate::output::{StandardOutput, note_incomplete, print_list};
use crate::table::OutputTable;

/// Arguments of `topics`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  freezeframe topics
  freezeframe topics --at 'yesterday 14:00'     also those that were deleted since
  freezeframe topics create orders --partitions 3 --config retention.ms=-1
  freezeframe topics describe orders
  freezeframe topics delete orders"
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
    /// Create a topic.
    #[command(after_help = "\
Examples:
  freezeframe topics create orders
  freezeframe topics create orders --partitions 3 --config retention.ms=86400000")]
    Create(CreateTopicArgs),
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
    /// The name of the topic.
    #[arg(value_parser = parse_topic)]
    topic: String,
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

/// Runs `topics`.
pub(crate) async fn run(args: TopicsArgs, server: &ServerAddress) -> anyhow::Result<()> {
    match args.command.unwrap_or(TopicsCommand::List(args.list)) {
        TopicsCommand::List(ListTopicsArgs { at: Some(at), json, .. }) => {
            at.announce();
            list_at_moment(&mut server.connect().await?, &at, json).await
        }
        TopicsCommand::List(args) => list_now(&mut server.connect().await?, &args).await,
        TopicsCommand::Create(args) => create(&mut server.connect().await?, args).await,
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
    let shown = topics.iter().filter(|topic| args.internal || !topic.is_internal);
    let items = shown.map(|topic| {
        let partitions = topic.partitions.len();
        let listed = TopicListItem { name: &topic.name, id: &topic.id, partitions };
        (listed, [topic.name.clone(), partitions.to_string()])
    });
    print_list(args.json, &["topic", "partitions"], items)
}

async fn list_at_moment(client: &mut Client, at: &MomentArg, json: bool) -> anyhow::Result<()> {
    let then = client.topics_at(Some(&at.moment())).await?;
    let items = then.topics.iter().map(|topic| {
        let deleted = topic.deleted.map(stamp_date).unwrap_or_default();
        let partitions = topic.partitions.to_string();
        (topic, [topic.name.clone(), partitions, stamp_date(topic.created), deleted])
    });
    print_list(json, &["topic", "partitions", "created", "deleted since"], items)?;
    note_incomplete(then.complete);
    Ok(())
}

/// The date of a stamp.
pub(crate) fn stamp_date(stamp: Stamp) -> String {
    date(stamp.0.time())
}

async fn create(client: &mut Client, args: CreateTopicArgs) -> anyhow::Result<()> {
    let topic = NewTopic {
        name: args.topic,
        partitions: args.partitions,
        replication_factor: args.replication_factor,
        configs: args.config.into_iter().collect(),
    };
    client.create_topic(&topic).await?;
    eprintln!("created {}", topic.name);
    Ok(())
}

async fn delete(client: &mut Client, args: &DeleteTopicArgs) -> anyhow::Result<()> {
    for topic in &args.topics {
        client.delete_topic(topic).await?;
        eprintln!("deleted {topic}");
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
        let partitions = topic.partitions.iter().map(|part| PartitionDetail {
            partition: part.partition,
            leader: part.leader,
            replicas: &part.replicas,
            in_sync: &part.in_sync,
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
    for part in &topic.partitions {
        let leader = part.leader.map_or_else(|| "none".to_owned(), |leader| leader.to_string());
        table.row([part.partition.to_string(), leader, ids(&part.replicas), ids(&part.in_sync)]);
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
    let then = client.topics_at(Some(&at.moment())).await?;
    let topic = then
        .topics
        .iter()
        .find(|topic| topic.name == name)
        .with_context(|| format!("there was no topic {name} at {}", at.ask))?;
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
    let mut row = |what: &str, value: String| table.row([what.to_owned(), value]);
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
