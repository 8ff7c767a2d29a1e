//! The differences between two moments.

use std::collections::{BTreeMap, BTreeSet};

use engine::Topic;
use engine::diff::{DiffCursor, DiffPageRequest, DiffSection, Difference};
use engine::groups::{CommittedOffset, GroupDifference, OffsetDifference, StoredGroup};
use engine::security::{CursorSeal, Operation, Resource, ResourceType};
use engine::znodes::acl::{self, AclEntry, check_permission};
use engine::znodes::{SessionId, ZnodeAtMoment, ZnodeDifference};
use history_documents::{
    BeforeAndAfter, DiffCategory, DiffChange, DiffRequest, DiffResponse, GroupMembership,
    HistoryErrorCode, OffsetAtMoment, ZnodeDiffEntry, ZnodeSummary,
};

use crate::access::{AnswerFilter, HistoryAccess, refusal};
use crate::context::HistoryContext;
use crate::error::HistoryApiError;
use crate::groups::shown_membership;
use crate::moment::{
    engine_isolation, moment_text, offset_number, parse_window, partition_count, partition_number,
    topic_id, when,
};
use crate::topics::shown_settings;
use crate::turns::HistoryTurns;

/// The default number of differences on a page.
const LIMIT: usize = 1000;
/// The most differences on a page.
const LIMIT_MAX: usize = 10_000;
/// The first character of a sealed cursor, and of no other.
const SEALED: char = 'e';

pub(crate) async fn diff(
    context: &HistoryContext,
    access: &HistoryAccess,
    seal: &CursorSeal,
    turns: &HistoryTurns,
    request: DiffRequest,
) -> Result<DiffResponse, HistoryApiError> {
    let (from, until) = parse_window(context, access, &request.from, &request.until)?;
    let filter = access.filter();
    let sections = covered_sections(access, &filter, &request)?;
    let is_unlimited = access.is_unlimited();
    let after = request.after.as_deref().map(|after| {
        if is_unlimited && !after.starts_with(SEALED) {
            after.parse()
        } else {
            // A text that was not sealed here is no cursor, and parsing it says so.
            let opened = seal.open(after).and_then(|cursor| String::from_utf8(cursor).ok());
            opened.as_deref().unwrap_or("").parse()
        }
    });
    let after: Option<DiffCursor> = after.transpose()?;
    let ask = DiffPageRequest {
        from,
        until,
        topics: request.topics.as_deref(),
        only: sections.as_deref(),
        isolation: engine_isolation(request.isolation),
        after: after.as_ref(),
        limit: request.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX),
    };
    let when = when(context, request.when, request.patience_ms);
    let shows = |section: DiffSection, topic: &str| {
        let operation = match section {
            DiffSection::Records => Operation::Read,
            DiffSection::Topics
            | DiffSection::Pins
            | DiffSection::Offsets
            | DiffSection::Groups
            | DiffSection::Znodes => Operation::Describe,
        };
        filter.shows(operation, Resource::topic(topic))
    };
    // Wait for the moment first: a turn is not held meanwhile.
    context.engine.wait_until_closed(until, when).await?;
    let turn = turns.take(&access.holder()).await;
    let page = context.engine.diff_of_topics(ask, &shows, when).await?;
    drop(turn);
    // It may have waited for its moment.
    if covered_sections(access, &filter, &request)? != sections {
        let message = "what you may read has changed meanwhile. Try again";
        return Err(HistoryApiError::new(HistoryErrorCode::Unauthorized, message));
    }
    let changes = page.differences.iter();
    let changes = changes.filter_map(|difference| change(context, &filter, difference)).collect();
    Ok(DiffResponse {
        from: moment_text(page.from),
        until: moment_text(page.until),
        frontier: page.frontier.into(),
        frontier_ms: page.frontier.time().0,
        changes,
        next: page.next.map(|next| {
            if is_unlimited && !matches!(next, DiffCursor::Znode(_)) {
                next.to_string()
            } else {
                // Also where nobody is asked who he is, a znode has its list.
                seal.seal(next.to_string().as_bytes())
            }
        }),
        complete: filter.is_complete(),
    })
}

/// The sections that the answer covers. One that is asked for by itself is refused if it may not be
/// seen; otherwise it is left out.
fn covered_sections(
    access: &HistoryAccess,
    filter: &AnswerFilter,
    request: &DiffRequest,
) -> Result<Option<Vec<DiffSection>>, HistoryApiError> {
    if let Some(sections) = &request.only {
        let topics = request.topics.as_deref();
        sections.iter().try_for_each(|category| require_section(access, *category, topics))?;
        // Topics that are named are looked up, also for sections that are not about topics.
        if let Some(topics) = topics
            && !sections.iter().any(|category| is_of_topics(*category))
        {
            access.require_topics(Operation::Describe, topics)?;
        }
        return Ok(Some(sections.iter().copied().map(section).collect()));
    }
    if let Some(topics) = &request.topics {
        access.require_topics(Operation::Describe, topics)?;
    }
    if access.is_unlimited() {
        return Ok(None);
    }
    let mut covered = Vec::new();
    // With named topics, there is nothing else.
    let are_named = request.topics.is_some();
    let categories = [
        DiffCategory::Topics,
        DiffCategory::Records,
        DiffCategory::Pins,
        DiffCategory::Offsets,
        DiffCategory::Groups,
        DiffCategory::Znodes,
    ];
    for category in categories {
        if are_named && !is_of_topics(category) {
            continue;
        }
        if needs_of(category).iter().all(|(operation, kind)| filter.shows_any(*operation, *kind)) {
            covered.push(section(category));
        }
    }
    if covered.is_empty() {
        Err(refusal("no rule allows DESCRIBE on any TOPIC, GROUP or the CLUSTER"))
    } else {
        Ok(Some(covered))
    }
}

/// The operations that a requester must be allowed, each on a type, to see anything of a category.
fn needs_of(category: DiffCategory) -> &'static [(Operation, ResourceType)] {
    use Operation::{Describe, Read};
    use ResourceType::{Cluster, Group, Topic};
    match category {
        DiffCategory::Topics => &[(Describe, Topic)],
        DiffCategory::Records => &[(Read, Topic)],
        DiffCategory::Pins | DiffCategory::Znodes => &[(Describe, Cluster)],
        DiffCategory::Offsets => &[(Describe, Group), (Describe, Topic)],
        DiffCategory::Groups => &[(Describe, Group)],
    }
}

/// Returns true if a category is about topics.
fn is_of_topics(category: DiffCategory) -> bool {
    needs_of(category).iter().any(|(_, kind)| *kind == ResourceType::Topic)
}

/// Refuses those who may not see a category of these topics; of any, if none are named.
fn require_section(
    access: &HistoryAccess,
    category: DiffCategory,
    topics: Option<&[String]>,
) -> Result<(), HistoryApiError> {
    for (operation, kind) in needs_of(category) {
        match (kind, topics) {
            (ResourceType::Topic, Some(topics)) => access.require_topics(*operation, topics)?,
            (ResourceType::Cluster, _) => access.require(*operation, Resource::CLUSTER)?,
            (kind, _) => access.require_any(*operation, *kind)?,
        }
    }
    Ok(())
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
fn change(
    context: &HistoryContext,
    filter: &AnswerFilter,
    difference: &Difference,
) -> Option<DiffChange> {
    Some(match difference {
        Difference::TopicCreated(topic) => DiffChange::TopicCreated {
            topic: topic.name.to_string(),
            id: topic_id(topic),
            partitions: partition_count(topic),
            configs: shown_settings(filter, topic),
            stamp: topic.created.into(),
            stamp_ms: topic.created.time().0,
        },
        Difference::TopicChanged { before, after } => DiffChange::TopicChanged {
            topic: after.name.to_string(),
            id: topic_id(after),
            partitions: BeforeAndAfter {
                before: partition_count(before),
                after: partition_count(after),
            },
            configs: shown_config_changes(filter, before, after),
        },
        Difference::TopicDeleted { topic, stamp } => DiffChange::TopicDeleted {
            topic: topic.name.to_string(),
            id: topic_id(topic),
            partitions: partition_count(topic),
            stamp: (*stamp).into(),
            stamp_ms: stamp.time().0,
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
            stamp_ms: stamp.time().0,
        },
        Difference::PinRemoved { name, stamp } => {
            let (pin, stamp_ms) = (name.clone(), stamp.time().0);
            DiffChange::PinRemoved { pin, stamp: (*stamp).into(), stamp_ms }
        }
        Difference::Offset(offset) if !filter.shows_group(&offset.group) => return None,
        Difference::Group(group) if !filter.shows_group(&group.group) => return None,
        Difference::Offset(offset) => offset_change(offset),
        Difference::Group(group) => group_change(context, filter, group),
        Difference::Znode(znode) => return znode_change(znode),
    })
}

/// A client of this API has no identity that ZooKeeper knows.
fn znode_change(difference: &ZnodeDifference) -> Option<DiffChange> {
    let ZnodeDifference { path, before, after } = difference;
    let is_open = |znode: &ZnodeAtMoment| check_permission(&znode.acl, acl::READ, &[]).is_ok();
    if ![before, after].into_iter().flatten().all(is_open) {
        return None;
    }
    let summary = |znode: &ZnodeAtMoment| ZnodeSummary {
        version: znode.stat.version,
        aversion: znode.stat.aversion,
        data_length: znode.stat.data_length,
        ephemeral_owner: SessionId(znode.stat.ephemeral_owner).to_string(),
        acl: znode.acl.iter().map(AclEntry::shown).collect(),
    };
    let (before, after) = (before.as_ref().map(summary), after.as_ref().map(summary));
    let change = match (&before, &after) {
        (None, _) => DiffChange::ZnodeCreated,
        (Some(_), None) => DiffChange::ZnodeDeleted,
        (Some(_), Some(_)) => DiffChange::ZnodeChanged,
    };
    Some(change(ZnodeDiffEntry { path: path.clone(), before, after }))
}

/// The settings that differ, for those who may know them.
fn shown_config_changes(
    filter: &AnswerFilter,
    before: &Topic,
    after: &Topic,
) -> BTreeMap<String, BeforeAndAfter<Option<String>>> {
    let topic = Resource::topic(&after.name);
    let (before, after) = (before.config.overrides(), after.config.overrides());
    if before == after || !filter.shows_settings(topic) {
        return BTreeMap::new();
    }
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

fn group_change(
    context: &HistoryContext,
    filter: &AnswerFilter,
    difference: &GroupDifference,
) -> DiffChange {
    let membership = |stored: &Option<StoredGroup>| -> Option<GroupMembership> {
        let membership = context.groups.membership(stored.as_ref()?)?;
        Some(shown_membership(filter, membership))
    };
    let group = difference.group.clone();
    let (before, after) = (membership(&difference.before), membership(&difference.after));
    match (&difference.before, &difference.after) {
        (None, _) => DiffChange::GroupCreated { group, before, after },
        (Some(_), None) => DiffChange::GroupDeleted { group, before, after },
        (Some(_), Some(_)) => DiffChange::GroupChanged { group, before, after },
    }
}
