//! `freezeframe groups`: consumer groups, their members, and their committed offsets.

mod describe;
mod seek;

use anyhow::Context;
use client::Client;
use client::history::GroupAtMoment;
use serde::Serialize;

use super::ServerAddress;
use crate::completion;
use crate::moments::MomentArg;
use crate::output::{note, note_incomplete, print_list, print_list_or};

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
    /// Describe the group as of a moment.
    #[arg(long, value_parser = MomentArg::parse_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: GroupsArgs, server: &ServerAddress) -> anyhow::Result<()> {
    match args.command.unwrap_or(GroupsCommand::List(args.list)) {
        GroupsCommand::List(ListGroupsArgs { at: None, json }) => {
            list_now(&mut server.connect().await?, json).await
        }
        GroupsCommand::List(ListGroupsArgs { at: Some(at), json }) => {
            at.announce();
            list_at_moment(&mut server.connect().await?, &at, json).await
        }
        GroupsCommand::Describe(args) => {
            describe::describe(&args, &mut server.connect().await?).await
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
        let item = GroupListItem { group: &group.group, state, kind, protocol };
        (item, [&*group.group, state, kind, protocol].map(str::to_owned))
    });
    let hint = "there are no groups; a consumer makes one, or: freezeframe groups seek NAME --at now --topic TOPIC";
    print_list_or(json, &["group", "state", "kind", "protocol"], items, hint)
}

async fn list_at_moment(client: &mut Client, at: &MomentArg, json: bool) -> anyhow::Result<()> {
    let moment = at.moment();
    let groups = client.groups_at(Some(&moment), None).await;
    let groups = groups.with_context(|| format!("list groups at {moment}"))?;
    let cells = |group: &GroupAtMoment| {
        let membership = group.membership.as_ref();
        [
            group.group.clone(),
            membership.map_or_else(|| "Empty".to_owned(), |membership| membership.state.clone()),
            membership.map_or(0, |membership| membership.members.len()).to_string(),
            group.offsets.len().to_string(),
        ]
    };
    let items = groups.groups.iter().map(|group| (group, cells(group)));
    print_list(json, &["group", "state", "members", "partitions"], items)?;
    note_incomplete(groups.complete);
    Ok(())
}
