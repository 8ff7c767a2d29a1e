//! The range assignor: of each topic, its members get ranges of about the same length, in the same
//! order for all topics.

use std::collections::BTreeMap;

use engine::TopicId;

use super::super::super::partitions::PartitionSet;
use super::{AssignableMember, AssignmentTask};

/// The partitions that are left of a topic.
struct RangeCursor {
    next: u32,
    quota: u32,
    /// The number of members that get one more.
    extra: u32,
}

pub(super) fn assign(task: &AssignmentTask<'_>) -> Vec<PartitionSet> {
    let mut subscribers = BTreeMap::<TopicId, u32>::new();
    for topic in task.members.iter().flat_map(|member| member.subscribed) {
        *subscribers.entry(*topic).or_default() += 1;
    }
    let cursor = |(topic, members): (TopicId, u32)| {
        let partitions = task.topics.get(&topic).copied().unwrap_or(0);
        let (quota, extra) = (partitions / members, partitions % members);
        (topic, RangeCursor { next: 0, quota, extra })
    };
    let mut cursors: BTreeMap<TopicId, RangeCursor> = subscribers.into_iter().map(cursor).collect();
    let mut order: Vec<usize> = (0..task.members.len()).collect();
    order.sort_by_key(|nth| rank(&task.members[*nth]));
    let mut assigned = vec![PartitionSet::new(); task.members.len()];
    for nth in order {
        for topic in task.members[nth].subscribed {
            let Some(cursor) = cursors.get_mut(topic) else { continue };
            let extra = u32::from(cursor.extra > 0);
            cursor.extra -= extra;
            let range = cursor.next..cursor.next + cursor.quota + extra;
            cursor.next = range.end;
            if !range.is_empty() {
                assigned[nth].insert(*topic, range.collect());
            }
        }
    }
    assigned
}

/// Static members come first, so that their ranges do not move when others come and go.
fn rank<'a>(member: &AssignableMember<'a>) -> (bool, &'a str) {
    match member.instance {
        Some(instance) => (false, instance),
        None => (true, member.id),
    }
}
