//! Groups as of a moment.

use std::collections::BTreeMap;

use anyhow::Context;
use client::Client;
use client::history::{CommittedOffsetAtMoment, GroupAtMoment, MemberAtMoment};

use super::super::topics::stamp_date;
use crate::moments::MomentArg;
use crate::output::{StandardOutput, counted, note, note_incomplete, print_list};
use crate::table::OutputTable;

pub(super) async fn list_at_moment(
    client: &mut Client,
    at: &MomentArg,
    json: bool,
) -> anyhow::Result<()> {
    let moment = at.moment();
    let then = client.groups_at(Some(&moment), None).await;
    let then = then.with_context(|| format!("list groups at {moment}"))?;
    let cells = |group: &GroupAtMoment| {
        let membership = group.membership.as_ref();
        [
            group.group.clone(),
            membership.map_or_else(|| "Empty".to_owned(), |then| then.state.clone()),
            membership.map_or(0, |then| then.members.len()).to_string(),
            group.offsets.len().to_string(),
        ]
    };
    let items = then.groups.iter().map(|group| (group, cells(group)));
    print_list(json, &["group", "state", "members", "partitions"], items)?;
    note_incomplete(then.complete);
    Ok(())
}

pub(super) async fn describe_at_moment(
    client: &mut Client,
    group: &str,
    at: &MomentArg,
    json: bool,
) -> anyhow::Result<()> {
    let moment = at.moment();
    let then = client.groups_at(Some(&moment), Some(group)).await;
    let then = then.with_context(|| format!("describe group {group} at {moment}"))?;
    let found = then.groups.iter().find(|found| found.group == group);
    let found = found.with_context(|| format!("there was no group {group} at {moment}"))?;
    let mut output = StandardOutput::lock();
    if json {
        output.json(found)?;
        return Ok(output.flush()?);
    }
    output.table(&group_table(found))?;
    output.flush()?;
    match &found.membership {
        Some(then) => {
            let (state, generation, members) = (&then.state, then.generation, then.members.len());
            let since = found.changed.map(stamp_date).unwrap_or_default();
            let members = counted(members, "member");
            note(&format!("{group}: {state}, {members}, generation {generation} since {since}"));
        }
        None => note(&format!("{group}: nobody had ever joined it")),
    }
    for (topic, at) in &found.sought {
        note(&format!("{topic} was set to {at}"));
    }
    for (name, value) in &found.settings {
        note(&format!("{name}={value}"));
    }
    Ok(())
}

/// The cells of one partition of a group.
#[derive(Default)]
struct GroupPartitionCells<'a> {
    committed: Option<&'a CommittedOffsetAtMoment>,
    /// Several of a share group may read it.
    members: Vec<&'a MemberAtMoment>,
}

fn group_table(group: &GroupAtMoment) -> OutputTable {
    let mut lines = BTreeMap::<(&str, i32), GroupPartitionCells<'_>>::new();
    for offset in &group.offsets {
        lines.entry((&offset.topic, offset.partition)).or_default().committed = Some(offset);
    }
    for member in group.membership.iter().flat_map(|then| &then.members) {
        for (topic, partitions) in member.reads.iter().flatten() {
            for partition in partitions {
                lines.entry((topic, *partition)).or_default().members.push(member);
            }
        }
    }
    let mut table =
        OutputTable::new(&["topic", "partition", "committed", "when", "member", "host"]);
    let nothing = || "-".to_owned();
    for ((topic, partition), GroupPartitionCells { committed, members }) in lines {
        table.row([
            topic.to_owned(),
            partition.to_string(),
            committed.map_or_else(nothing, |then| then.offset.to_string()),
            committed.map_or_else(nothing, |then| stamp_date(then.committed)),
            list(members.iter().map(|member| member.client_id.as_str())),
            list(members.iter().map(|member| member.host.as_str())),
        ]);
    }
    table
}

/// The texts in one cell.
fn list<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let texts: Vec<&str> = texts.collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_listed_once_whether_committed_or_read_or_both() {
        let group: GroupAtMoment = serde_json::from_str(
            r#"{"group":"g","membership":{"generation":2,"state":"Stable","kind":"consumer",
                "protocol":"range","leader":"m","members":[{"id":"m","instance":null,"client_id":"c",
                "host":"/h","reads":{"a":[0,1]}}]},"changed":"sh0000000000050001","offsets":[
                {"topic":"a","partition":1,"offset":7,"committed":"sh0000000000050001"},
                {"topic":"b","partition":0,"offset":3,"committed":"sh0000000000050001"}],"sought":{}}"#,
        )
        .unwrap();
        let plain = group_table(&group).plain();
        let rows: Vec<Vec<&str>> = plain.lines().map(|line| line.split('\t').collect()).collect();
        let shown: Vec<[&str; 4]> =
            rows.iter().map(|row| [row[0], row[1], row[2], row[4]]).collect();
        assert_eq!(shown, [["a", "0", "-", "c"], ["a", "1", "7", "c"], ["b", "0", "3", "-"]]);
    }
}
