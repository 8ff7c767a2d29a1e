//! `groups describe`: what a group has committed and reads, now or as of a moment.

use std::collections::BTreeMap;

use anyhow::Context;
use client::history::{
    CutRequest, GroupAtMoment, HistoryErrorCode, Isolation, PendingMomentPolicy, Stamp,
};
use client::{Client, ClientError, ConsumerGroupDescription, GroupCommittedOffset, OffsetSpec};
use hlc::Moment;
use serde::Serialize;

use super::super::topics::stamp_date;
use super::DescribeGroupArgs;
use crate::output::{StandardOutput, counted, note, note_incomplete};
use crate::table::OutputTable;

/// One partition, as a group uses it.
#[derive(Serialize)]
struct GroupPartition {
    topic: String,
    partition: i32,
    committed: Option<i64>,
    /// The time of the commit. Only a moment of the past knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    committed_stamp: Option<Stamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    committed_stamp_ms: Option<u64>,
    end: Option<i64>,
    lag: Option<i64>,
    /// The client id of its member. Several of a share group may read it.
    member: Option<String>,
    host: Option<String>,
}

/// A group, now or then.
#[derive(Serialize)]
struct GroupDetail {
    group: String,
    state: String,
    assignor: String,
    members: usize,
    partitions: Vec<GroupPartition>,
    #[serde(flatten)]
    then: Option<GroupThen>,
}

/// Facts about a group that only a moment of the past knows.
#[derive(Serialize)]
struct GroupThen {
    at: String,
    /// The generation of its members; `None` if it never had a member.
    generation: Option<i32>,
    /// The time at which the last rebalance before the moment completed.
    changed: Option<Stamp>,
    changed_ms: Option<u64>,
    /// For each topic that the group was reset in, the moment.
    sought: BTreeMap<String, String>,
    /// The settings that it had of its own.
    settings: BTreeMap<String, String>,
    #[serde(skip)]
    is_complete: bool,
}

/// Partitions by topic and number.
#[derive(Default)]
struct PartitionRows(BTreeMap<(String, i32), GroupPartition>);

impl PartitionRows {
    fn row(&mut self, topic: &str, partition: i32) -> &mut GroupPartition {
        self.0.entry((topic.to_owned(), partition)).or_insert_with(|| GroupPartition {
            topic: topic.to_owned(),
            partition,
            committed: None,
            committed_stamp: None,
            committed_stamp_ms: None,
            end: None,
            lag: None,
            member: None,
            host: None,
        })
    }

    fn assign(&mut self, assigned: &BTreeMap<String, Vec<i32>>, member: &str, host: &str) {
        for (topic, partitions) in assigned {
            for partition in partitions {
                let row = self.row(topic, *partition);
                add_to_list(&mut row.member, member);
                add_to_list(&mut row.host, host);
            }
        }
    }

    fn into_rows(self) -> Vec<GroupPartition> {
        self.0.into_values().collect()
    }
}

fn add_to_list(list: &mut Option<String>, text: &str) {
    *list = Some(match list.take() {
        Some(before) => before + "," + text,
        None => text.to_owned(),
    });
}

pub(super) async fn describe(args: &DescribeGroupArgs, client: &mut Client) -> anyhow::Result<()> {
    let detail = match &args.at {
        Some(at) => {
            at.announce();
            detail_at(client, &args.group, &at.moment()).await?
        }
        None => detail_now(client, &args.group).await?,
    };
    let mut output = StandardOutput::lock();
    if args.json {
        output.json(&detail)?;
        output.flush()?;
        note_incomplete(detail.then.is_none_or(|membership| membership.is_complete));
        return Ok(());
    }
    output.table(&table(&detail))?;
    output.flush()?;
    say(&detail);
    Ok(())
}

async fn detail_now(client: &mut Client, group: &str) -> anyhow::Result<GroupDetail> {
    let described = client.describe_group(group).await?;
    let committed = client.committed_offsets(group).await?;
    let mut partitions = rows_now(&described, committed);
    for topic_partitions in partitions.chunk_by_mut(|a, b| a.topic == b.topic) {
        let topic = topic_partitions[0].topic.clone();
        let numbers: Vec<i32> = topic_partitions.iter().map(|row| row.partition).collect();
        match client.offsets(&topic, &numbers, OffsetSpec::Latest).await {
            Ok(ends) => {
                set_ends(topic_partitions, |partition| ends.get(&partition).copied().flatten())
            }
            // Offsets outlive the topic that they are of.
            Err(ClientError::UnknownTopic(_) | ClientError::UnknownPartition { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(GroupDetail {
        group: described.group,
        state: described.state,
        assignor: described.assignor,
        members: described.members.len(),
        partitions,
        then: None,
    })
}

fn rows_now(
    described: &ConsumerGroupDescription,
    committed: Vec<GroupCommittedOffset>,
) -> Vec<GroupPartition> {
    let mut rows = PartitionRows::default();
    for offset in committed {
        rows.row(&offset.topic, offset.partition).committed = Some(offset.offset);
    }
    for member in &described.members {
        rows.assign(&member.assigned, &member.client_id, &member.host);
    }
    rows.into_rows()
}

async fn detail_at(client: &mut Client, group: &str, at: &Moment) -> anyhow::Result<GroupDetail> {
    let groups = client.groups_at(Some(at), Some(group)).await;
    let groups = groups.with_context(|| format!("describe group {group} at {at}"))?;
    let found_group = groups.groups.into_iter().find(|candidate| candidate.group == group);
    let found_group = found_group.with_context(|| format!("there was no group {group} at {at}"))?;
    let mut partitions = rows_at(&found_group);
    for of_topic in partitions.chunk_by_mut(|a, b| a.topic == b.topic) {
        let request = CutRequest {
            at: groups.at.clone(),
            topics: Some(vec![of_topic[0].topic.clone()]),
            when: PendingMomentPolicy::Wait,
            patience_ms: None,
            isolation: Isolation::Uncommitted,
        };
        match client.cut_of(request).await {
            Ok(cut) => set_ends(of_topic, |partition| {
                let bounds = cut.partitions.iter().find(|bounds| bounds.partition == partition);
                bounds.map(|bounds| bounds.end)
            }),
            // A topic may be older or younger than what can be read of it.
            Err(ClientError::History(refusal))
                if refusal.code == HistoryErrorCode::UnknownTopic
                    || refusal.code == HistoryErrorCode::BeforeHistory => {}
            Err(error) => return Err(error.into()),
        }
    }
    let membership = found_group.membership.as_ref();
    let text = |text: Option<&String>| text.cloned().unwrap_or_default();
    Ok(GroupDetail {
        group: found_group.group,
        state: membership.map_or_else(|| "Empty".to_owned(), |membership| membership.state.clone()),
        assignor: text(membership.and_then(|membership| membership.protocol.as_ref())),
        members: membership.map_or(0, |membership| membership.members.len()),
        partitions,
        then: Some(GroupThen {
            at: groups.at,
            generation: membership.map(|membership| membership.generation),
            changed: found_group.changed,
            changed_ms: found_group.changed_ms,
            sought: found_group.sought,
            settings: found_group.settings,
            is_complete: groups.complete,
        }),
    })
}

fn rows_at(group: &GroupAtMoment) -> Vec<GroupPartition> {
    let mut rows = PartitionRows::default();
    for offset in &group.offsets {
        let row = rows.row(&offset.topic, offset.partition);
        row.committed = Some(offset.offset);
        row.committed_stamp = Some(offset.committed);
        row.committed_stamp_ms = Some(offset.committed_ms);
    }
    for member in group.membership.iter().flat_map(|membership| &membership.members) {
        if let Some(assigned) = &member.reads {
            rows.assign(assigned, &member.client_id, &member.host);
        }
    }
    rows.into_rows()
}

fn set_ends(rows: &mut [GroupPartition], end: impl Fn(i32) -> Option<i64>) {
    for row in rows {
        row.end = end(row.partition);
        row.lag = row.end.zip(row.committed).map(|(end, committed)| (end - committed).max(0));
    }
}

fn table(detail: &GroupDetail) -> OutputTable {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let number = |number: Option<i64>| or_dash(number.map(|number| number.to_string()));
    let cells = |row: &GroupPartition| {
        let (topic, partition) = (row.topic.clone(), row.partition.to_string());
        let [committed, end, lag] = [row.committed, row.end, row.lag].map(number);
        let [member, host] = [&row.member, &row.host].map(|cell| or_dash(cell.clone()));
        vec![topic, partition, committed, end, lag, member, host]
    };
    let mut table = OutputTable::new(match detail.then {
        None => &["topic", "partition", "committed", "end", "lag", "member", "host"],
        Some(_) => &["topic", "partition", "committed", "end", "lag", "member", "host", "when"],
    });
    for row in &detail.partitions {
        let mut cells = cells(row);
        if detail.then.is_some() {
            cells.push(or_dash(row.committed_stamp.map(stamp_date)));
        }
        table.row(cells);
    }
    table
}

/// Says about the group as a whole what the table does not.
fn say(detail: &GroupDetail) {
    let (group, state, members) = (&detail.group, &detail.state, counted(detail.members, "member"));
    let Some(past) = &detail.then else {
        note(&format!("{group}: {state}, {members}"));
        return;
    };
    match past.generation {
        Some(generation) => {
            let since = past.changed.map(stamp_date).unwrap_or_default();
            note(&format!("{group}: {state}, {members}, generation {generation} since {since}"));
        }
        None => note(&format!("{group}: nobody had ever joined it")),
    }
    for (topic, at) in &past.sought {
        note(&format!("{topic} was set to {at}"));
    }
    for (name, value) in &past.settings {
        note(&format!("{name}={value}"));
    }
    note_incomplete(past.is_complete);
}

#[cfg(test)]
mod tests {
    use client::GroupMemberDescription;

    use super::*;

    #[test]
    fn a_partition_is_listed_once_whether_committed_or_read_or_both() {
        let member = GroupMemberDescription {
            id: "m-1".to_owned(),
            client_id: "c".to_owned(),
            host: "/h".to_owned(),
            assigned: BTreeMap::from([("a".to_owned(), vec![0, 1])]),
        };
        let described = ConsumerGroupDescription {
            group: "g".to_owned(),
            state: "Stable".to_owned(),
            assignor: "range".to_owned(),
            members: vec![member],
        };
        let committed = |topic: &str, partition, offset| GroupCommittedOffset {
            topic: topic.to_owned(),
            partition,
            offset,
            metadata: String::new(),
        };
        let now = rows_now(&described, vec![committed("a", 1, 7), committed("b", 0, 3)]);
        let group: GroupAtMoment = serde_json::from_str(
            r#"{"group":"g","membership":{"generation":2,"state":"Stable","kind":"consumer",
                "protocol":"range","leader":"m","members":[{"id":"m","instance":null,"client_id":"c",
                "host":"/h","reads":{"a":[0,1]}}]},"changed":"sh0000000000050001","changed_ms":5,"offsets":[
                {"topic":"a","partition":1,"offset":7,"committed":"sh0000000000050001","committed_ms":5},
                {"topic":"b","partition":0,"offset":3,"committed":"sh0000000000050001","committed_ms":5}],"sought":{}}"#,
        )
        .unwrap();
        for rows in [now, rows_at(&group)] {
            let cells: Vec<_> = rows
                .iter()
                .map(|row| (&*row.topic, row.partition, row.committed, row.member.as_deref()))
                .collect();
            assert_eq!(
                cells,
                [("a", 0, None, Some("c")), ("a", 1, Some(7), Some("c")), ("b", 0, Some(3), None)]
            );
        }
    }

    #[test]
    fn a_lag_is_never_below_nothing() {
        let mut rows = PartitionRows::default();
        rows.row("a", 0).committed = Some(9);
        rows.row("a", 1);
        let mut rows = rows.into_rows();
        set_ends(&mut rows, |_| Some(5));
        assert_eq!(rows.iter().map(|row| row.lag).collect::<Vec<_>>(), [Some(0), None]);
    }
}
