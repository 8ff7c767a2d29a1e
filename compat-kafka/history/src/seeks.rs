//! Resets a group's offsets to a moment, or to what it had committed at one.

use std::sync::Arc;

use engine::groups::{
    GroupSeekTarget, GroupSetError, GroupSetMode, GroupSetResult, OffsetChange, SkippedPartition,
};
use engine::security::{Operation, Resource};
use engine::{Engine, Isolation, WaitPolicy};
use history_documents::{
    GroupSeekResult, HistoryErrorCode, RestoreGroupRequest, SeekGroupRequest, SeekOffsetChange,
    SkippedOffset,
};
use hlc::{Cut, Moment};

use crate::access::{HistoryAccess, refusal};
use crate::context::{HistoryContext, HistoryGroups};
use crate::error::HistoryApiError;
use crate::moment::{engine_isolation, parse_cut, parse_moment, partition_number, when};

pub(crate) async fn seek(
    context: &HistoryContext,
    access: &HistoryAccess,
    request: SeekGroupRequest,
) -> Result<GroupSeekResult, HistoryApiError> {
    let SeekGroupRequest { group, at, topics, dry_run, when: policy, patience_ms, isolation } =
        request;
    let when = when(context, policy, patience_ms);
    if topics.as_ref().is_some_and(Vec::is_empty) {
        return Err(HistoryApiError::new(
            HistoryErrorCode::BadRequest,
            "name a topic, or leave topics out",
        ));
    }
    let isolation = engine_isolation(isolation);
    let setting =
        NewGroupOffsets::Seek { moment: parse_moment(context, access, &at)?, topics, isolation };
    set_group(context, access, &group, setting, when, dry_run).await
}

pub(crate) async fn restore(
    context: &HistoryContext,
    access: &HistoryAccess,
    request: RestoreGroupRequest,
) -> Result<GroupSeekResult, HistoryApiError> {
    let RestoreGroupRequest { group, at, dry_run, when: policy, patience_ms } = request;
    let when = when(context, policy, patience_ms);
    let setting = NewGroupOffsets::Restore(parse_cut(context, access, &at)?);
    set_group(context, access, &group, setting, when, dry_run).await
}

/// The new offsets of a group.
enum NewGroupOffsets {
    Seek { moment: Moment, topics: Option<Vec<String>>, isolation: Isolation },
    Restore(Cut),
}

impl NewGroupOffsets {
    /// The same with an absolute and final moment.
    fn at_moment(self, moment: Moment) -> NewGroupOffsets {
        match (self, moment) {
            (NewGroupOffsets::Seek { topics, isolation, .. }, moment) => {
                NewGroupOffsets::Seek { moment, topics, isolation }
            }
            (NewGroupOffsets::Restore(_), Moment::Sys(cut)) => NewGroupOffsets::Restore(cut),
            (restore, Moment::User { .. }) => restore,
        }
    }

    /// Refuses those who may not commit offsets of all these topics. A topic that the one who asks
    /// did not name, and may not see, is not named.
    async fn require(
        &self,
        engine: &Engine,
        access: &HistoryAccess,
        group: &str,
        when: WaitPolicy,
    ) -> Result<(), HistoryApiError> {
        access.require(Operation::Read, Resource::group(group))?;
        if access.is_unlimited() {
            return Ok(());
        }
        let mut offsets = engine.groups().committed_offsets(Some(group))?;
        match self {
            NewGroupOffsets::Seek { topics: Some(topics), .. } => {
                return access.require_topics(Operation::Read, topics);
            }
            NewGroupOffsets::Seek { topics: None, .. } => {}
            NewGroupOffsets::Restore(cut) => {
                offsets.extend(engine.groups().offsets_at(Some(group), *cut, when).await?.2);
            }
        }
        for offset in &offsets {
            let topic = Resource::topic(&offset.topic);
            if !access.allows(Operation::Describe, topic) {
                let message = "no rule allows READ on each TOPIC that the group has committed for";
                return Err(refusal(message));
            }
            access.require(Operation::Read, topic)?;
        }
        Ok(())
    }

    async fn apply(
        &self,
        engine: &Engine,
        group: &str,
        when: WaitPolicy,
        mode: GroupSetMode,
    ) -> Result<GroupSetResult, GroupSetError> {
        match self {
            NewGroupOffsets::Seek { moment, topics, isolation } => {
                let (moment, isolation) = (*moment, *isolation);
                let target = GroupSeekTarget { moment, topics: topics.as_deref(), isolation };
                engine.groups().seek(group, target, when, mode).await
            }
            NewGroupOffsets::Restore(cut) => engine.groups().restore(group, *cut, when, mode).await,
        }
    }
}

/// The longest name of a group, as in Kafka.
const GROUP_BYTES_MAX: usize = i16::MAX as usize;
/// The most bytes of the names of all offsets that are set at once.
const NAMES_BYTES_MAX: usize = 128 << 20;

/// Sets the offsets of a group without members, and keeps members away meanwhile. A member that
/// joined just before would have read the old offsets, and continue from there.
async fn set_group(
    context: &HistoryContext,
    access: &HistoryAccess,
    group: &str,
    setting: NewGroupOffsets,
    when: WaitPolicy,
    dry_run: bool,
) -> Result<GroupSeekResult, HistoryApiError> {
    if group.is_empty() || group.len() > GROUP_BYTES_MAX {
        let message = "a group has a name of 1 to 32767 bytes";
        return Err(HistoryApiError::new(HistoryErrorCode::BadRequest, message));
    }
    setting.require(&context.engine, access, group, when).await?;
    // A failed request must not leave a group behind that did not exist.
    let planned = setting.apply(&context.engine, group, when, GroupSetMode::DryRun).await?;
    // Each offset is kept by the group's name.
    if planned.offsets.len() * group.len() > NAMES_BYTES_MAX {
        let message =
            "there are too many partitions for a group with so long a name: name some topics";
        return Err(HistoryApiError::new(HistoryErrorCode::TooLarge, message));
    }
    if dry_run {
        return Ok(result(group, &planned));
    }
    let setting = setting.at_moment(planned.at);
    // In a task of its own: when the client disconnects, members must stay out until it is done.
    let (engine, groups) = (Arc::clone(&context.engine), Arc::clone(&context.groups));
    let setting = commit(engine, groups, access.clone(), group.to_owned(), setting);
    match tokio::spawn(setting).await {
        Ok(set) => Ok(result(group, &set?)),
        Err(error) => Err(HistoryApiError::new(
            HistoryErrorCode::Internal,
            format!("the group may not be set: {error}"),
        )),
    }
}

async fn commit(
    engine: Arc<Engine>,
    groups: Arc<dyn HistoryGroups>,
    access: HistoryAccess,
    group: String,
    setting: NewGroupOffsets,
) -> Result<GroupSetResult, HistoryApiError> {
    let hold = groups.hold(&group, &access.holder())?;
    // The group may have committed for other topics meanwhile.
    setting.require(&engine, &access, &group, WaitPolicy::Refuse).await?;
    // The plan has waited for the moment already.
    let set = setting.apply(&engine, &group, WaitPolicy::Refuse, GroupSetMode::Commit).await?;
    drop(hold);
    let partitions = set.offsets.len();
    let resource = format_args!("GROUP {group} to {}: {partitions} partitions", set.at);
    access.record_change("seek_group", resource);
    Ok(set)
}

fn result(group: &str, set: &GroupSetResult) -> GroupSeekResult {
    let offset = |change: &OffsetChange| SeekOffsetChange {
        topic: change.topic.clone(),
        partition: partition_number(change.partition),
        before: change.before,
        after: change.after,
    };
    let skipped = |skipped: &SkippedPartition| SkippedOffset {
        topic: skipped.topic.clone(),
        partition: partition_number(skipped.partition),
        offset: skipped.offset,
    };
    GroupSeekResult {
        group: group.to_owned(),
        at: set.at.to_string(),
        frontier: set.frontier.into(),
        frontier_ms: set.frontier.time().0,
        offsets: set.offsets.iter().map(offset).collect(),
        skipped: set.skipped.iter().map(skipped).collect(),
        committed: set.committed.map(Into::into),
        committed_ms: set.committed.map(|committed| committed.time().0),
    }
}
