//! `freezeframe diff`: shows the differences between two moments.

use std::time::Duration;

use anyhow::Context;
use client::history::{
    BeforeAndAfter, DiffCategory, DiffChange, DiffQuery, GroupMembership, OffsetAtMoment,
    PendingMomentPolicy,
};
use client::zookeeper::{ZnodeDiffEntry, ZnodeSummary};
use hlc::{Cut, Moment, MomentSelector, SysTime};

use super::topics::{parse_topic, stamp_date};
use super::{IsolationArgs, ServerAddress};
use crate::completion;
use crate::moments::{MomentArg, date, describe_ask, moment_or_now, parse_patience};
use crate::output::{StandardOutput, UsageError, counted, note_incomplete};
use crate::table::OutputTable;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Both moments are of system time. What is shown is what differs: topics that were
created, changed or deleted, records that were appended, pins that were set or
removed, offsets that groups have committed, who is in groups, and znodes that
everybody may read. The same two moments have the same answer for ever. General
files are not in it.

Records of a transaction are appended when it is committed: they count if that
is between the moments, wherever they are in a partition. With --isolation
uncommitted, what was written between the moments counts, whatever became of it.

Examples:
  freezeframe diff 1h                    what changed in the last hour
  freezeframe diff 'monday 09:00' 'monday 10:00'
  freezeframe diff pin:audit --only topics --only records
  freezeframe diff s1795252940000 s1795252948259 --json
  freezeframe diff s1795252940000..s1795252948259 --topic orders
  freezeframe diff -90s now --only records --isolation uncommitted
  freezeframe diff '30 days ago' now --only topics   records of then may be gone")]
pub(crate) struct DiffArgs {
    /// The earlier moment, or both moments as a window.
    #[arg(value_parser = MomentArg::parse, value_name = "FROM", allow_hyphen_values = true)]
    from: MomentArg,
    /// The later moment. The default is now.
    #[arg(value_parser = MomentArg::parse_moment, value_name = "UNTIL", allow_hyphen_values = true)]
    until: Option<MomentArg>,
    /// Only this topic, and what was committed for it. May be given more than once.
    #[arg(long, value_name = "TOPIC", value_parser = parse_topic, add = completion::topics())]
    topic: Vec<String>,
    /// Only this category of changes. May be given more than once.
    #[arg(long, value_enum, value_name = "KIND")]
    only: Vec<DiffCategoryArg>,
    #[command(flatten)]
    isolation: IsolationArgs,
    /// How long the server may wait for the later moment, at most 60s.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = parse_patience)]
    patience: Duration,
    /// Print one JSON object a line for each change.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum DiffCategoryArg {
    /// Topics and their settings.
    Topics,
    /// Appended records.
    Records,
    /// Pins.
    Pins,
    /// Committed offsets.
    Offsets,
    /// Members of groups.
    Groups,
    /// Znodes that everybody may read.
    Znodes,
}

impl From<DiffCategoryArg> for DiffCategory {
    fn from(category: DiffCategoryArg) -> DiffCategory {
        match category {
            DiffCategoryArg::Topics => DiffCategory::Topics,
            DiffCategoryArg::Records => DiffCategory::Records,
            DiffCategoryArg::Pins => DiffCategory::Pins,
            DiffCategoryArg::Offsets => DiffCategory::Offsets,
            DiffCategoryArg::Groups => DiffCategory::Groups,
            DiffCategoryArg::Znodes => DiffCategory::Znodes,
        }
    }
}

/// Runs `diff`: requests one page after the other, and prints each.
pub(crate) async fn run(args: DiffArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let mut client = server.connect().await?;
    let now = match args.until {
        Some(_) => None,
        None => Some(moment_or_now(&mut client, None).await?),
    };
    let (from, until) = ends(&args, now)?;
    if args.from.was_relative() || args.until.as_ref().is_some_and(|at| at.was_relative()) {
        eprintln!("between {}", describe_ask(&MomentSelector::Window(from, until)));
    }
    let topics = (!args.topic.is_empty()).then_some(&args.topic[..]);
    let categories: Vec<DiffCategory> = args.only.iter().copied().map(DiffCategory::from).collect();
    let categories = (!categories.is_empty()).then_some(&categories[..]);
    let mut after: Option<String> = None;
    let (mut changes, mut is_complete) = (Vec::new(), true);
    loop {
        let ask = DiffQuery {
            from: &from,
            until: &until,
            topics,
            only: categories,
            isolation: args.isolation.isolation(),
            when: PendingMomentPolicy::Wait,
            patience: args.patience,
            after: after.as_deref(),
        };
        let page = client.diff(&ask).await.with_context(|| format!("diff {from} {until}"))?;
        page.changes.into_iter().for_each(|change| push_change(&mut changes, change));
        let is_last = page.next.is_none();
        // The next page may go on with the last partition.
        let is_whole =
            |change: &DiffChange| is_last || !matches!(change, DiffChange::Appended { .. });
        let rest = changes.len() - usize::from(changes.last().is_some_and(|last| !is_whole(last)));
        print(&changes[..rest], args.json)?;
        changes.drain(..rest);
        is_complete &= page.complete;
        if is_last {
            note_incomplete(is_complete);
            return Ok(());
        }
        after = page.next;
    }
}

/// The two moments.
fn ends(args: &DiffArgs, now: Option<Moment>) -> Result<(Moment, Moment), UsageError> {
    let ask = match (args.from.ask(), &args.until) {
        (MomentSelector::At(from), Some(until)) => MomentSelector::window(from, until.moment()),
        (MomentSelector::Window(from, until), None) => MomentSelector::window(from, until),
        (MomentSelector::At(from), None) => {
            MomentSelector::window(from, now.unwrap_or(Moment::Sys(Cut::ALL)))
        }
        (MomentSelector::Window(..), Some(_)) => {
            return Err(UsageError("give a window, or two moments, and not both".to_owned()));
        }
    };
    match ask.map_err(|error| UsageError(error.to_string()))? {
        MomentSelector::Window(from @ Moment::Sys(_), until) => Ok((from, until)),
        _ => Err(UsageError(
            "what differs is asked by system time (s…); by user time, consume a window of a topic"
                .to_owned(),
        )),
    }
}

/// Adds a change, or extends the last one if it is the next part of it.
fn push_change(changes: &mut Vec<DiffChange>, change: DiffChange) {
    if let DiffChange::Appended { id, partition, end, records, bytes, .. } = &change
        && let Some(DiffChange::Appended {
            id: last_id,
            partition: last_partition,
            end: last_end,
            records: last_records,
            bytes: last_bytes,
            ..
        }) = changes.last_mut()
        && (id, partition) == (&*last_id, &*last_partition)
    {
        *last_end = *end;
        *last_records += records;
        *last_bytes += bytes;
        return;
    }
    changes.push(change);
}

fn print(changes: &[DiffChange], json: bool) -> anyhow::Result<()> {
    let mut output = StandardOutput::lock();
    if json {
        for change in changes {
            output.json(change)?;
        }
        return Ok(output.flush()?);
    }
    let mut table = OutputTable::new(&["change", "of", "before", "after", "note"]);
    for change in changes {
        rows(change).into_iter().for_each(|row| table.row(row));
    }
    if table.count() > 0 {
        output.table(&table)?;
    }
    Ok(output.flush()?)
}

type DiffRow = [String; 5];

fn row(change: &str, subject: String, before: String, after: String, note: String) -> DiffRow {
    [change.to_owned(), subject, before, after, note]
}

/// The text of an empty cell.
fn empty_cell() -> String {
    "-".to_owned()
}

/// The rows of a change: one, except for a changed topic, which has one for each difference.
fn rows(change: &DiffChange) -> Vec<DiffRow> {
    match change {
        DiffChange::TopicCreated { topic, partitions, configs, stamp, .. } => {
            let configs: String =
                configs.iter().map(|(key, value)| format!(", {key}={value}")).collect();
            let after = format!("{}{configs}", counted(*partitions, "partition"));
            vec![row("topic created", topic.clone(), empty_cell(), after, stamp_date(*stamp))]
        }
        DiffChange::TopicDeleted { topic, partitions, stamp, .. } => {
            let before = counted(*partitions, "partition");
            vec![row("topic deleted", topic.clone(), before, empty_cell(), stamp_date(*stamp))]
        }
        DiffChange::TopicChanged { topic, partitions, configs, .. } => {
            let changed = |subject: &str, before, after| {
                row("topic changed", format!("{topic} {subject}"), before, after, String::new())
            };
            let BeforeAndAfter { before, after } = partitions;
            let counts = (before != after)
                .then(|| changed("partitions", before.to_string(), after.to_string()));
            let text = |value: &Option<String>| value.clone().unwrap_or_else(empty_cell);
            let settings = configs
                .iter()
                .map(|(key, change)| changed(key, text(&change.before), text(&change.after)));
            counts.into_iter().chain(settings).collect()
        }
        DiffChange::Appended { topic, partition, start, end, records, bytes, .. } => {
            let note = format!("{}, {}", counted(*records, "record"), counted(*bytes, "byte"));
            let subject = format!("{topic}/{partition}");
            vec![row("appended", subject, start.to_string(), end.to_string(), note)]
        }
        DiffChange::PinSet { pin, at, expires_ms, .. } => {
            let note = format!("until {}", date(SysTime(*expires_ms)));
            vec![row("pin set", pin.clone(), String::new(), at.clone(), note)]
        }
        DiffChange::PinRemoved { pin, stamp, .. } => {
            let note = stamp_date(*stamp);
            vec![row("pin removed", pin.clone(), String::new(), empty_cell(), note)]
        }
        DiffChange::Offset { group, topic, partition, before, after } => {
            let offset = |past: &Option<OffsetAtMoment>| {
                past.as_ref().map_or_else(empty_cell, |past| past.offset.to_string())
            };
            let kind = if after.is_some() { "committed" } else { "offset removed" };
            let subject = format!("{group} {topic}/{partition}");
            vec![row(kind, subject, offset(before), offset(after), String::new())]
        }
        DiffChange::GroupCreated { group, before, after } => {
            vec![membership_row("group created", group, before.as_ref(), after.as_ref())]
        }
        DiffChange::GroupChanged { group, before, after } => {
            vec![membership_row("group changed", group, before.as_ref(), after.as_ref())]
        }
        DiffChange::GroupDeleted { group, before, after } => {
            vec![membership_row("group deleted", group, before.as_ref(), after.as_ref())]
        }
        DiffChange::ZnodeCreated(znode) => vec![znode_row("znode created", znode)],
        DiffChange::ZnodeChanged(znode) => vec![znode_row("znode changed", znode)],
        DiffChange::ZnodeDeleted(znode) => vec![znode_row("znode deleted", znode)],
    }
}

fn znode_row(kind: &str, ZnodeDiffEntry { path, before, after }: &ZnodeDiffEntry) -> DiffRow {
    let summary = |znode: &Option<ZnodeSummary>| {
        znode.as_ref().map_or_else(empty_cell, |znode| {
            format!("version {}, {}", znode.version, counted(znode.data_length, "byte"))
        })
    };
    let lists = [before, after].map(|znode| znode.as_ref().map(|znode| &znode.acl));
    let note = match lists {
        [Some(before), Some(after)] if before != after => after.join(","),
        _ => String::new(),
    };
    row(kind, path.clone(), summary(before), summary(after), note)
}

fn membership_row(
    kind: &str,
    group: &str,
    before: Option<&GroupMembership>,
    after: Option<&GroupMembership>,
) -> DiffRow {
    let summary = |membership: Option<&GroupMembership>| {
        membership.map_or_else(empty_cell, |membership| {
            format!(
                "generation {}, {}",
                membership.generation,
                counted(membership.members.len(), "member")
            )
        })
    };
    row(kind, group.to_owned(), summary(before), summary(after), String::new())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct DiffCommandLine {
        #[command(flatten)]
        args: DiffArgs,
    }

    fn ends_of(words: &[&str]) -> Result<(Moment, Moment), UsageError> {
        let line =
            DiffCommandLine::try_parse_from(std::iter::once("diff").chain(words.iter().copied()));
        ends(&line.unwrap().args, None)
    }

    #[test]
    fn two_moments_or_a_window_are_the_same() {
        let window = ends_of(&["s5", "s6"]).unwrap();
        assert_eq!(ends_of(&["s5..s6"]).unwrap(), window);
        assert!(ends_of(&["-90s", "now"]).is_ok());
        assert!(ends_of(&["s5"]).is_ok(), "until now");
        for words in [&["s6", "s5"][..], &["s5", "s5"], &["s5", "u6"], &["u5", "u6"]] {
            assert!(ends_of(words).is_err(), "{words:?}");
        }
        assert!(ends_of(&["s5..s6", "s7"]).is_err());
    }

    #[test]
    fn the_parts_of_a_partition_are_one_row() {
        let appended = |partition: i32, start: i64, records: u64| DiffChange::Appended {
            topic: "a".to_owned(),
            id: "i".to_owned(),
            partition,
            start,
            end: start + 10,
            records,
            bytes: records,
        };
        let mut changes = Vec::new();
        for next in [appended(0, 0, 3), appended(0, 10, 4), appended(1, 10, 5), appended(1, 30, 1)]
        {
            push_change(&mut changes, next);
        }
        let rows: Vec<DiffRow> = changes.iter().flat_map(rows).collect();
        let expected = [
            ["appended", "a/0", "0", "20", "7 records, 7 bytes"],
            ["appended", "a/1", "10", "40", "6 records, 6 bytes"],
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn what_changed_of_a_topic_is_a_row_each() {
        let change = r#"{"kind":"topic_changed","topic":"a","id":"i","partitions":{"before":1,"after":2},
            "configs":{"k":{"before":null,"after":"v"}}}"#;
        let rows = rows(&serde_json::from_str(change).unwrap());
        let expected = [
            ["topic changed", "a partitions", "1", "2", ""],
            ["topic changed", "a k", "-", "v", ""],
        ];
        assert_eq!(rows, expected);
    }
}
