//! Resets a group to a moment, or restores what it had committed.

use anyhow::{Context, bail};
use client::ClientError;
use client::history::{
    GroupSeekResult, HistoryErrorCode, PendingMomentPolicy, SeekGroupRequest, SeekOffsetChange,
    Stamp,
};
use hlc::{Cut, Moment};

use super::super::topics::parse_topic;
use super::super::{IsolationArgs, ServerAddress};
use crate::completion;
use crate::moments::{MomentArg, describe_ask};
use crate::output::{StandardOutput, note, quoted};
use crate::table::OutputTable;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every partition of every topic that the group has committed something for is set
to the first offset that is not in the moment, all at once; partitions that such
a topic gets later begin at their beginning. By user time (u…) that is the first
record of that time or later. Members that read committed records begin at the
first record of the oldest transaction that was not decided at the moment. The
group must have no members: they would go on from where they are, and commit
that.

Examples:
  freezeframe groups seek billing --at '1 hour ago' --dry-run
  freezeframe groups seek billing --at s1795252948259
  freezeframe groups seek billing --at u:2026-11-21T09:00:00Z
  freezeframe groups seek new-group --at 'yesterday 14:00' --topic orders")]
pub(super) struct SeekGroupArgs {
    /// The group.
    #[arg(add = completion::groups())]
    group: String,
    /// The moment.
    #[arg(long, value_parser = MomentArg::parse_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    at: MomentArg,
    /// Only this topic. May be given more than once. Required for a group that has committed
    /// nothing.
    #[arg(long, value_name = "TOPIC", value_parser = parse_topic, add = completion::topics())]
    topic: Vec<String>,
    #[command(flatten)]
    isolation: IsolationArgs,
    /// Show what would happen, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
What the group had committed at the moment is committed again, all at once;
where it had committed nothing, it has nothing. That is not what seek does,
which looks for what had been written by then. The group must have no members.

Examples:
  freezeframe groups restore billing --at 'yesterday 14:00' --dry-run
  freezeframe groups restore billing --at s1795252948259")]
pub(super) struct RestoreGroupArgs {
    /// The group.
    #[arg(add = completion::groups())]
    group: String,
    /// The moment, by system time.
    #[arg(long, value_parser = parse_system_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    at: MomentArg,
    /// Show what would happen, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn parse_system_moment(text: &str) -> Result<MomentArg, String> {
    let at = MomentArg::parse_moment(text)?;
    match at.moment() {
        Moment::Sys(_) => Ok(at),
        Moment::User { .. } => Err("offsets were committed at system times (s…)".to_owned()),
    }
}

pub(super) async fn seek(args: &SeekGroupArgs, server: &ServerAddress) -> anyhow::Result<()> {
    args.at.announce();
    let (group, at) = (&args.group, args.at.moment());
    let topics = (!args.topic.is_empty()).then(|| args.topic.clone());
    let is_of_all = topics.is_none();
    let mut client = server.connect().await?;
    let request = SeekGroupRequest {
        group: group.clone(),
        at: at.to_string(),
        topics,
        dry_run: args.dry_run,
        when: PendingMomentPolicy::default(),
        patience_ms: None,
        isolation: args.isolation.isolation(),
    };
    let result = client.seek_group(request).await;
    if let (true, Err(ClientError::History(refusal))) = (is_of_all, &result)
        && refusal.code == HistoryErrorCode::UnknownGroup
    {
        bail!(
            "group {group} has committed nothing, so it is not known what it reads: name its topics with --topic"
        );
    }
    print_result(&result.with_context(|| format!("set group {group} to {at}"))?, args.json)
}

pub(super) async fn restore(args: &RestoreGroupArgs, server: &ServerAddress) -> anyhow::Result<()> {
    args.at.announce();
    let (group, at) = (&args.group, args.at.moment());
    let mut client = server.connect().await?;
    let result = client.restore_group(group, &at, args.dry_run).await;
    print_result(&result.with_context(|| format!("set group {group} back to {at}"))?, args.json)
}

fn print_result(result: &GroupSeekResult, json: bool) -> anyhow::Result<()> {
    let mut output = StandardOutput::lock();
    if json {
        output.json(result)?;
        return Ok(output.flush()?);
    }
    let mut table = OutputTable::new(&["topic", "partition", "before", "after"]);
    let number = |offset: Option<i64>| offset.map_or_else(|| "-".to_owned(), |n| n.to_string());
    for SeekOffsetChange { topic, partition, before, after } in &result.offsets {
        table.row([topic.clone(), partition.to_string(), number(*before), number(*after)]);
    }
    output.table(&table)?;
    output.flush()?;
    for skipped in &result.skipped {
        let (topic, partition) = (&skipped.topic, skipped.partition);
        eprintln!("left out {topic}/{partition} at {}: that topic is gone", skipped.offset);
    }
    let at = result.at.parse().map_or_else(|_| result.at.clone(), |ask| describe_ask(&ask));
    match result.committed {
        // A group that had committed nothing before has no state to restore.
        Some(Stamp(committed)) if result.offsets.iter().any(|change| change.before.is_some()) => {
            let (group, before) = (quoted(&result.group), Moment::Sys(Cut::below(committed)));
            note(&format!(
                "{} is set to {at}; to undo this: freezeframe groups restore {group} --at {before}",
                result.group
            ));
        }
        Some(_) => note(&format!("{} is set to {at}", result.group)),
        None => note(&format!("{} would be set to {at}; nothing was changed", result.group)),
    }
    Ok(())
}
