//! Groups at a moment: their members, and their committed offsets.

use engine::groups::{GroupAtCut, GroupOffset};
use history_documents::{
    CommittedOffsetAtMoment, GroupAtMoment, GroupMomentRequest, GroupOffsetsAtMoment,
    GroupsResponse, HistoryErrorCode, OffsetsResponse,
};

use crate::context::HistoryContext;
use crate::error::HistoryApiError;
use crate::moment::{moment_text, parse_or_frontier, partition_number, when};

pub(crate) async fn offsets(
    context: &HistoryContext,
    request: GroupMomentRequest,
) -> Result<OffsetsResponse, HistoryApiError> {
    let GroupMomentRequest { at, group, when: policy, patience_ms } = request;
    let (cut, when) = parse_or_frontier(at.as_deref(), when(context, policy, patience_ms))?;
    let (at, frontier, offsets) =
        context.engine.groups().offsets_at(group.as_deref(), cut, when).await?;
    let groups = offsets.chunk_by(|a, b| a.group == b.group).map(|of_group| GroupOffsetsAtMoment {
        group: of_group[0].group.clone(),
        offsets: committed(of_group),
    });
    Ok(OffsetsResponse {
        at: Some(moment_text(at)),
        frontier: frontier.into(),
        groups: groups.collect(),
    })
}

pub(crate) async fn groups(
    context: &HistoryContext,
    request: GroupMomentRequest,
) -> Result<GroupsResponse, HistoryApiError> {
    let GroupMomentRequest { at, group, when: policy, patience_ms } = request;
    let (cut, when) = parse_or_frontier(at.as_deref(), when(context, policy, patience_ms))?;
    let (at, frontier, groups) = context.engine.groups().at(group.as_deref(), cut, when).await?;
    if let Some(group) = group.filter(|_| groups.is_empty()) {
        let message = format!("there was no such group at that moment. group={group}");
        return Err(HistoryApiError::new(HistoryErrorCode::UnknownGroup, message));
    }
    Ok(GroupsResponse {
        at: moment_text(at),
        frontier: frontier.into(),
        groups: groups.into_iter().map(|then| group_at_moment(context, then)).collect(),
    })
}

fn group_at_moment(context: &HistoryContext, then: GroupAtCut) -> GroupAtMoment {
    let GroupAtCut { group, snapshot, offsets, seek_moments, config } = then;
    GroupAtMoment {
        group,
        membership: snapshot.as_ref().and_then(|(_, stored)| context.groups.membership(stored)),
        changed: snapshot.map(|(saved, _)| saved.into()),
        offsets: committed(&offsets),
        sought: seek_moments.into_iter().collect(),
        settings: config,
    }
}

fn committed(offsets: &[GroupOffset]) -> Vec<CommittedOffsetAtMoment> {
    let document = |offset: &GroupOffset| CommittedOffsetAtMoment {
        topic: offset.topic.clone(),
        partition: partition_number(offset.partition),
        offset: offset.committed.offset,
        leader_epoch: offset.committed.leader_epoch,
        metadata: offset.committed.metadata.clone(),
        committed: offset.stamp.into(),
    };
    offsets.iter().map(document).collect()
}
