//! Groups at a moment: their members, and their committed offsets.

use std::sync::Arc;

use admission::{BudgetKind, BudgetQueue, BudgetRegistry, BudgetSpec, QueueGrant};
use engine::WaitPolicy;
use engine::groups::{GroupAtCut, GroupOffset};
use engine::security::{Operation, Resource, ResourceType};
use history_documents::{
    CommittedOffsetAtMoment, GroupAtMoment, GroupMembership, GroupMomentRequest,
    GroupOffsetsAtMoment, GroupsResponse, HistoryErrorCode, OffsetsResponse,
};
use hlc::Cut;

use crate::access::{AnswerFilter, HistoryAccess};
use crate::context::HistoryContext;
use crate::error::HistoryApiError;
use crate::moment::{moment_text, parse_or_frontier, partition_number, when};

/// The most answers about all groups that are made at a time: each takes as much memory as there is
/// of them.
const ALL_GROUPS_MAX: u64 = 2;

const ALL_GROUPS: BudgetSpec = BudgetSpec {
    name: "group-answers",
    unit: "answers about all groups at a time",
    setting: None,
    kind: BudgetKind::Kept,
};

/// Answers about all groups.
pub(crate) struct GroupTurns(Arc<BudgetQueue>);

impl GroupTurns {
    pub(crate) fn new(budgets: &BudgetRegistry) -> GroupTurns {
        GroupTurns(BudgetQueue::new(budgets.budget(ALL_GROUPS, ALL_GROUPS_MAX)))
    }

    /// Waits until a moment is over, and then for a turn if all groups are asked for.
    async fn take(
        &self,
        context: &HistoryContext,
        access: &HistoryAccess,
        group: Option<&str>,
        cut: Cut,
        when: WaitPolicy,
    ) -> Result<Option<QueueGrant>, HistoryApiError> {
        if group.is_some() {
            return Ok(None);
        }
        context.engine.core().wait_until_closed(cut, when).await?;
        Ok(Some(self.0.take(&access.holder(), 1).await))
    }
}

pub(crate) async fn offsets(
    context: &HistoryContext,
    access: &HistoryAccess,
    turns: &GroupTurns,
    request: GroupMomentRequest,
) -> Result<OffsetsResponse, HistoryApiError> {
    let GroupMomentRequest { at, group, when: policy, patience_ms } = request;
    require_groups(access, group.as_deref())?;
    let (cut, when) =
        parse_or_frontier(context, access, at.as_deref(), when(context, policy, patience_ms))?;
    let _turn = turns.take(context, access, group.as_deref(), cut, when).await?;
    let (at, frontier, offsets) =
        context.engine.groups().offsets_at(group.as_deref(), cut, when).await?;
    let filter = access.filter();
    let groups = offsets.chunk_by(|a, b| a.group == b.group);
    let visible = groups.filter(|of_group| filter.shows_group(&of_group[0].group));
    let groups = visible.map(|of_group| GroupOffsetsAtMoment {
        group: of_group[0].group.clone(),
        offsets: committed(&filter, of_group),
    });
    Ok(OffsetsResponse {
        at: Some(moment_text(at)),
        frontier: frontier.into(),
        frontier_ms: frontier.time().0,
        groups: groups.collect(),
        complete: filter.is_complete(),
    })
}

pub(crate) async fn groups(
    context: &HistoryContext,
    access: &HistoryAccess,
    turns: &GroupTurns,
    request: GroupMomentRequest,
) -> Result<GroupsResponse, HistoryApiError> {
    let GroupMomentRequest { at, group, when: policy, patience_ms } = request;
    require_groups(access, group.as_deref())?;
    let (cut, when) =
        parse_or_frontier(context, access, at.as_deref(), when(context, policy, patience_ms))?;
    let _turn = turns.take(context, access, group.as_deref(), cut, when).await?;
    let (at, frontier, groups) = context.engine.groups().at(group.as_deref(), cut, when).await?;
    if groups.is_empty()
        && let Some(group) = group
    {
        let message = format!("there was no such group at that moment: {group}");
        return Err(HistoryApiError::new(HistoryErrorCode::UnknownGroup, message));
    }
    let filter = access.filter();
    let visible = groups.into_iter().filter(|group| filter.shows_group(&group.group));
    Ok(GroupsResponse {
        at: moment_text(at),
        frontier: frontier.into(),
        frontier_ms: frontier.time().0,
        groups: visible.map(|group| group_at_moment(context, &filter, group)).collect(),
        complete: filter.is_complete(),
    })
}

/// Refuses those who may not see the group, or not any if none is named.
fn require_groups(access: &HistoryAccess, group: Option<&str>) -> Result<(), HistoryApiError> {
    match group {
        Some(group) => access.require(Operation::Describe, Resource::group(group)),
        None => access.require_any(Operation::Describe, ResourceType::Group),
    }
}

fn group_at_moment(
    context: &HistoryContext,
    filter: &AnswerFilter,
    group_at_cut: GroupAtCut,
) -> GroupAtMoment {
    let GroupAtCut { group, snapshot, offsets, seek_moments, config } = group_at_cut;
    let changed = snapshot.as_ref().map(|(saved, _)| *saved);
    let membership = snapshot.as_ref().and_then(|(_, stored)| context.groups.membership(stored));
    let may_know = config.is_empty() || filter.shows_settings(Resource::group(&group));
    GroupAtMoment {
        group,
        membership: membership.map(|membership| shown_membership(filter, membership)),
        changed: changed.map(Into::into),
        changed_ms: changed.map(|changed| changed.time().0),
        offsets: committed(filter, &offsets),
        sought: seek_moments.into_iter().filter(|(topic, _)| filter.shows_topic(topic)).collect(),
        settings: if may_know { config } else { Default::default() },
    }
}

/// The membership without the topics that are not shown.
pub(crate) fn shown_membership(
    filter: &AnswerFilter,
    mut membership: GroupMembership,
) -> GroupMembership {
    for member in &mut membership.members {
        if let Some(reads) = &mut member.reads {
            reads.retain(|topic, _| filter.shows_topic(topic));
        }
    }
    membership
}

fn committed(filter: &AnswerFilter, offsets: &[GroupOffset]) -> Vec<CommittedOffsetAtMoment> {
    let document = |offset: &GroupOffset| CommittedOffsetAtMoment {
        topic: offset.topic.clone(),
        partition: partition_number(offset.partition),
        offset: offset.committed.offset,
        leader_epoch: offset.committed.leader_epoch,
        metadata: offset.committed.metadata.clone(),
        committed: offset.stamp.into(),
        committed_ms: offset.stamp.time().0,
    };
    offsets.iter().filter(|offset| filter.shows_topic(&offset.topic)).map(document).collect()
}
