//! The differences between two moments.

use std::collections::{BTreeMap, BTreeSet};

use engine::Topic;
use engine::diff::{DiffCursor, DiffPageRequest, DiffSection, Difference};
use engine::groups::{CommittedOffset, GroupDifference, OffsetDifference, StoredGroup};
use engine::znodes::acl::{self, AclEntry, check_permission};
use engine::znodes::{SessionId, ZnodeAtMoment, ZnodeDifference};
use history_documents::{
    BeforeAndAfter, DiffCategory, DiffChange, DiffRequest, DiffResponse, OffsetAtMoment,
    ZnodeDiffEntry, ZnodeSummary,
};

use crate::context::HistoryContext;
use crate::error::HistoryApiError;
use crate::moment::{
    engine_isolation, moment_text, offset_number, parse_window, partition_count, partition_number,
    topic_id, when,
};

/// The default number of differences on a page.
const LIMIT: usize = 1000;
/// The most differences on a page.
const LIMIT_MAX: usize = 10_000;

pub(crate) async fn diff(
    context: &HistoryContext,
    request: DiffRequest,
) -> Result<DiffResponse, HistoryApiError> {
    let (from, until) = parse_window(&request.from, &request.until)?;
    let after: Option<DiffCursor> = request.after.as_deref().map(str::parse).transpose()?;
    let only = request.only.map(|only| only.into_iter().map(section).collect::<Vec<_>>());
    let ask = DiffPageRequest {
        from,
        until,
        topics: request.topics.as_deref(),
        only: only.as_deref(),
        isolation: engine_isolation(request.isolation),
        after: after.as_ref(),
        limit: request.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX),
    };
    let when = when(context, request.when, request.patience_ms);
    let page = context.engine.diff(ask, when).await?;
    Ok(DiffResponse {
        from: moment_text(page.from),
        until: moment_text(page.until),
        frontier: page.frontier.into(),
        changes: page
            .differences
            .iter()
            .filter_map(|difference| change(context, difference))
            .collect(),
        next: page.next.map(|next| next.to_string()),
    })
}

fn section(category: DiffCategory) -> DiffSection {
    match category {
        DiffCategory::Topics => DiffSection::Topics,
        DiffCategory::Records => DiffSection::Records,
        DiffCategory::Pins => DiffSection::Pins,
        DiffCategory::Offsets => DiffSection::Offsets,
        DiffCategory::Groups => DiffSection::Groups,
        DiffCategory::Znodes => DiffSection::Znodes,
    }
}

/// `None` for what not everybody may see.
fn change(context: &HistoryContext, difference: &Difference) -> Option<DiffChange> {
    Some(match difference {
        Difference::TopicCreated(topic) => DiffChange::TopicCreated {
            topic: topic.name.to_string(),
            id: topic_id(topic),
            partitions: partition_count(topic),
            configs: topic.config.overrides().clone(),
            stamp: topic.created.into(),
        },
        Difference::TopicChanged { before, after } => DiffChange::TopicChanged {
            topic: after.name.to_string(),
            id: topic_id(after),
            partitions: BeforeAndAfter {
                before: partition_count(before),
                after: partition_count(after),
            },
            configs: config_changes(before, after),
        },
        Difference::TopicDeleted { topic, stamp } => DiffChange::TopicDeleted {
            topic: topic.name.to_string(),
            id: topic_id(topic),
            partitions: partition_count(topic),
            stamp: (*stamp).into(),
        },
        Difference::Appended { topic, partition, start, end, records, bytes } => {
            DiffChange::Appended {
                topic: topic.name.to_string(),
                id: topic_id(topic),
                partition: partition_number(*partition),
                start: offset_number(*start),
                end: offset_number(*end),
                records: *records,
                bytes: *bytes,
            }
        }
        Difference::PinSet { name, at, expires, stamp } => DiffChange::PinSet {
            pin: name.clone(),
            at: moment_text(*at),
            expires_ms: expires.0,
            stamp: (*stamp).into(),
        },
        Difference::PinRemoved { name, stamp } => {
            DiffChange::PinRemoved { pin: name.clone(), stamp: (*stamp).into() }
        }
        Difference::Offset(offset) => offset_change(offset),
        Difference::Group(group) => group_change(context, group),
        Difference::Znode(znode) => return znode_change(znode),
    })
}

/// A client of this API has no identity that ZooKeeper knows.
fn znode_change(difference: &ZnodeDifference) -> Option<DiffChange> {
    let ZnodeDifference { path, before, after } = difference;
    let is_open = |then: &ZnodeAtMoment| check_permission(&then.acl, acl::READ, &[]).is_ok();
    if ![before, after].into_iter().flatten().all(is_open) {
        return None;
    }
    let summary = |then: &ZnodeAtMoment| ZnodeSummary {
        version: then.stat.version,
        aversion: then.stat.aversion,
        data_length: then.stat.data_length,
        ephemeral_owner: SessionId(then.stat.ephemeral_owner).to_string(),
        acl: then.acl.iter().map(AclEntry::shown).collect(),
    };
    let (before, after) = (before.as_ref().map(summary), after.as_ref().map(summary));
    let change = match (&before, &after) {
        (None, _) => DiffChange::ZnodeCreated,
        (Some(_), None) => DiffChange::ZnodeDeleted,
        (Some(_), Some(_)) => DiffChange::ZnodeChanged,
    };
    Some(change(ZnodeDiffEntry { path: path.clone(), before, after }))
}

/// The settings that differ.
fn config_changes(
    before: &Topic,
    after: &Topic,
) -> BTreeMap<String, BeforeAndAfter<Option<String>>> {
    let (before, after) = (before.config.overrides(), after.config.overrides());
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differs = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    let values = |key: &String| BeforeAndAfter {
        before: before.get(key).cloned(),
        after: after.get(key).cloned(),
    };
    differs.map(|key| (key.clone(), values(key))).collect()
}

fn offset_change(offset: &OffsetDifference) -> DiffChange {
    let committed = |committed: &CommittedOffset| OffsetAtMoment {
        offset: committed.offset,
        leader_epoch: committed.leader_epoch,
        metadata: committed.metadata.clone(),
    };
    DiffChange::Offset {
        group: offset.group.clone(),
        topic: offset.topic.clone(),
        partition: partition_number(offset.partition),
        before: offset.before.as_ref().map(committed),
        after: offset.after.as_ref().map(committed),
    }
}

fn group_change(context: &HistoryContext, difference: &GroupDifference) -> DiffChange {
    let membership = |stored: &Option<StoredGroup>| {
        stored.as_ref().and_then(|stored| context.groups.membership(stored))
    };
    let group = difference.group.clone();
    let (before, after) = (membership(&difference.before), membership(&difference.after));
    match (&difference.before, &difference.after) {
        (None, _) => DiffChange::GroupCreated { group, before, after },
        (Some(_), None) => DiffChange::GroupDeleted { group, before, after },
        (Some(_), Some(_)) => DiffChange::GroupChanged { group, before, after },
    }
}
