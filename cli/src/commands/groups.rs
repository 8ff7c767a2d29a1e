//! `freezeframe groups`: consumer groups, their members, and their committed offsets.

mod at_moment;
mod seek;

use std::collections::BTreeMap;

use client::{Client, ClientError, ConsumerGroupDescription, GroupCommittedOffset, OffsetSpec};
use serde::Serialize;

use super::ServerAddress;
use crate::completion;
use crate::moments::MomentArg;
use crate::output::{StandardOutput, counted, note, print_list_or};
use crate::table::OutputTable;

/// Arguments of `groups`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  freezeframe groups
  freezeframe groups describe billing
  freezeframe groups describe billing --at '1 hour ago'
  freezeframe groups seek billing --at '1 hour ago' --dry-run
  freezeframe groups restore billing --at 'yesterday 14:00'
  freezeframe groups delete billing"
)]
pub(crate) struct GroupsArgs {
    #[command(subcommand)]
    command: Option<GroupsCommand>,
    #[command(flatten)]
    list: ListGroupsArgs,
}

#[derive(Debug, clap::Subcommand)]
enum GroupsCommand {
    /// List groups (also without a subcommand).
    #[command(after_help = "\
Examples:
  freezeframe groups list --json
  freezeframe groups list --at '1 hour ago'")]
    List(ListGroupsArgs),
    /// Show the committed offsets, the lag and the members of a group.
    #[command(after_help = "\
Examples:
  freezeframe groups describe billing
  freezeframe groups describe billing --at s1795252948259 --json")]
    Describe(DescribeGroupArgs),
    /// Reset a group to a moment, in all its partitions at once.
    Seek(seek::SeekGroupArgs),
    /// Restore what a group had committed at a moment.
    Restore(seek::RestoreGroupArgs),
    /// Delete groups without members, and what they have committed. Their past stays readable.
    #[command(after_help = "\
Examples:
  freezeframe groups delete billing reports")]
    Delete(DeleteGroupsArgs),
}

#[derive(Debug, clap::Args)]
struct DeleteGroupsArgs {
    /// The groups.
    #[arg(required = true, add = completion::groups())]
    groups: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct ListGroupsArgs {
    /// The groups that existed at a moment.
    #[arg(long, value_parser = MomentArg::parse_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// Print one JSON object a line for each group.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct DescribeGroupArgs {
    /// The group.
    #[arg(add = completion::groups())]
    group: String,
    /// The members and the committed offsets as of a moment.
    #[arg(long, value_parser = MomentArg::parse_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs `groups`.
pub(crate) async fn run(args: GroupsArgs, server: &ServerAddress) -> anyhow::Result<()> {
    match args.command.unwrap_or(GroupsCommand::List(args.list)) {
        GroupsCommand::List(ListGroupsArgs { at: None, json }) => {
            list_now(&mut server.connect().await?, json).await
        }
        GroupsCommand::List(ListGroupsArgs { at: Some(at), json }) => {
            at.announce();
            at_moment::list_at_moment(&mut server.connect().await?, &at, json).await
        }
        GroupsCommand::Describe(DescribeGroupArgs { group, at: None, json }) => {
            describe_now(&mut server.connect().await?, &group, json).await
        }
        GroupsCommand::Describe(DescribeGroupArgs { group, at: Some(at), json }) => {
            at.announce();
            at_moment::describe_at_moment(&mut server.connect().await?, &group, &at, json).await
        }
        GroupsCommand::Seek(args) => seek::seek(&args, server).await,
        GroupsCommand::Restore(args) => seek::restore(&args, server).await,
        GroupsCommand::Delete(DeleteGroupsArgs { groups }) => {
            let mut client = server.connect().await?;
            for group in groups {
                client.delete_group(&group).await?;
                note(&format!("deleted {group}"));
            }
            Ok(())
        }
    }
}

#[derive(Serialize)]
struct GroupListItem<'a> {
    group: &'a str,
    state: &'a str,
    kind: &'a str,
    protocol: &'a str,
}

async fn list_now(client: &mut Client, json: bool) -> anyhow::Result<()> {
    let groups = client.groups().await?;
    let items = groups.iter().map(|group| {
        let (state, kind, protocol) = (&*group.state, &*group.kind, &*group.protocol);
        let listed = GroupListItem { group: &group.group, state, kind, protocol };
        (listed, [&*group.group, state, kind, protocol].map(str::to_owned))
    });
    let hint = "there are no groups; a consumer makes one, or: freezeframe groups seek NAME --at now --topic TOPIC";
    print_list_or(json, &["group", "state", "kind", "protocol"], items, hint)
}

/// One partition, as a group uses it.
#[derive(Serialize)]
struct GroupPartitionRow {
    topic: String,
    partition: i32,
    committed: Option<i64>,
    end: Option<i64>,
    lag: Option<i64>,
    member: Option<String>,
    host: Option<String>,
}

#[derive(Serialize)]
struct GroupDetail<'a> {
    group: &'a str,
    state: &'a str,
    assignor: &'a str,
    members: usize,
    partitions: &'a [GroupPartitionRow],
}

async fn describe_now(client: &mut Client, group: &str, json: bool) -> anyhow::Result<()> {
    let described = client.describe_group(group).await?;
    let committed = client.committed_offsets(group).await?;
    let mut reads = partition_rows(&described, committed);
    fill_ends(client, &mut reads).await?;
    let mut output = StandardOutput::lock();
    if json {
        output.json(&GroupDetail {
            group,
            state: &described.state,
            assignor: &described.assignor,
            members: described.members.len(),
            partitions: &reads,
        })?;
        return Ok(output.flush()?);
    }
    let mut table =
        OutputTable::new(&["topic", "partition", "committed", "end", "lag", "member", "host"]);
    let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    for part in reads {
        table.row([
            part.topic,
            part.partition.to_string(),
            number(part.committed),
            number(part.end),
            number(part.lag),
            part.member.unwrap_or_else(|| "-".to_owned()),
            part.host.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    output.table(&table)?;
    output.flush()?;
    let members = counted(described.members.len(), "member");
    note(&format!("{group}: {}, {members}", described.state));
    Ok(())
}

/// Joins the committed offsets and the assigned partitions, by topic and partition.
fn partition_rows(
    described: &ConsumerGroupDescription,
    committed: Vec<GroupCommittedOffset>,
) -> Vec<GroupPartitionRow> {
    let empty = |topic: &str, partition: i32| GroupPartitionRow {
        topic: topic.to_owned(),
        partition,
        committed: None,
        end: None,
        lag: None,
        member: None,
        host: None,
    };
    let mut reads: BTreeMap<(String, i32), GroupPartitionRow> = BTreeMap::new();
    for offset in committed {
        let key = (offset.topic.clone(), offset.partition);
        let entry = reads.entry(key).or_insert_with(|| empty(&offset.topic, offset.partition));
        entry.committed = Some(offset.offset);
    }
    for member in &described.members {
        for (topic, partitions) in &member.assigned {
            for partition in partitions {
                let key = (topic.clone(), *partition);
                let entry = reads.entry(key).or_insert_with(|| empty(topic, *partition));
                // Several of a share group may read it.
                add_to_list(&mut entry.member, &member.client_id);
                add_to_list(&mut entry.host, &member.host);
            }
        }
    }
    reads.into_values().collect()
}

fn add_to_list(list: &mut Option<String>, text: &str) {
    *list = Some(match list.take() {
        Some(before) => before + "," + text,
        None => text.to_owned(),
    });
}

/// Looks up the ends of the partitions. A topic may be deleted while its offsets still exist.
async fn fill_ends(client: &mut Client, reads: &mut [GroupPartitionRow]) -> anyhow::Result<()> {
    for of_topic in reads.chunk_by_mut(|a, b| a.topic == b.topic) {
        let topic = of_topic[0].topic.clone();
        let partitions: Vec<_> = of_topic.iter().map(|read| read.partition).collect();
        let ends = match client.offsets(&topic, &partitions, OffsetSpec::Latest).await {
            Err(ClientError::UnknownTopic(_) | ClientError::UnknownPartition { .. }) => continue,
            ends => ends?,
        };
        for read in of_topic {
            read.end = ends.get(&read.partition).copied().flatten();
            read.lag = read.end.zip(read.committed).map(|(end, at)| (end - at).max(0));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use client::GroupMemberDescription;

    use super::*;

    #[test]
    fn a_partition_is_listed_once_whether_committed_or_read_or_both() {
        let member = GroupMemberDescription {
            id: "m-1".to_owned(),
            client_id: "m".to_owned(),
            host: "/h".to_owned(),
            assigned: BTreeMap::from([("a".to_owned(), vec![0, 1])]),
        };
        let described = ConsumerGroupDescription {
            group: "g".to_owned(),
            state: "Stable".to_owned(),
            assignor: "range".to_owned(),
            members: vec![member],
        };
        let committed = |partition| GroupCommittedOffset {
            topic: "a".to_owned(),
            partition,
            offset: 5,
            metadata: String::new(),
        };
        let reads = partition_rows(&described, vec![committed(1), committed(2)]);
        let shown: Vec<_> =
            reads.iter().map(|r| (r.partition, r.committed, r.member.is_some())).collect();
        assert_eq!(shown, [(0, None, true), (1, Some(5), true), (2, Some(5), false)]);
    }
}
