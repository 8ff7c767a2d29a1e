//! The uniform assignor: members get about as many partitions each, and keep what they have if they
//! can.
//!
//! If all members subscribe to the same topics, shares follow from a division. Otherwise partitions
//! go to the subscriber with the fewest, and then move from those with more to those with fewer,
//! as long as that makes any two subscribers of a topic more alike.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use engine::TopicId;

use super::super::super::partitions::PartitionSet;
use super::AssignmentTask;

/// A bound on the passes that even out assignments of different subscriptions. Each pass only
/// improves; a few are enough.
const PASSES_MAX: usize = 64;

pub(super) fn assign(task: &AssignmentTask<'_>) -> Vec<PartitionSet> {
    let Some(first) = task.members.first() else { return Vec::new() };
    let mut assigned = kept(task);
    if task.members.iter().all(|member| member.subscribed == first.subscribed) {
        share_evenly(task, &mut assigned);
    } else {
        assign_rest(task, &mut assigned);
        even_out(task, &mut assigned);
    }
    assigned
}

/// The partitions that each member may keep of its last target.
fn kept(task: &AssignmentTask<'_>) -> Vec<PartitionSet> {
    let mut assigned = HashSet::new();
    let mut keep = |subscribed: &BTreeSet<TopicId>, before: &PartitionSet| {
        let mut kept = PartitionSet::new();
        for (topic, indexes) in before.iter().filter(|(topic, _)| subscribed.contains(*topic)) {
            let count = task.topics.get(topic).copied().unwrap_or(0);
            let is_free = |index: &&u32| **index < count && assigned.insert((*topic, **index));
            let indexes: BTreeSet<u32> = indexes.iter().filter(is_free).copied().collect();
            if !indexes.is_empty() {
                kept.insert(*topic, indexes);
            }
        }
        kept
    };
    task.members.iter().map(|member| keep(member.subscribed, member.before)).collect()
}

fn count(assigned: &PartitionSet) -> usize {
    assigned.values().map(BTreeSet::len).sum()
}

/// The unassigned partitions of each topic.
fn unassigned(task: &AssignmentTask<'_>, assigned: &[PartitionSet]) -> PartitionSet {
    let mut free: PartitionSet =
        task.topics.iter().map(|(topic, count)| (*topic, (0..*count).collect())).collect();
    for (topic, indexes) in assigned.iter().flatten() {
        if let Some(free) = free.get_mut(topic) {
            indexes.iter().for_each(|index| _ = free.remove(index));
        }
    }
    free
}

/// Every member gets its share of all partitions: those with the most keep one more.
fn share_evenly(task: &AssignmentTask<'_>, assigned: &mut [PartitionSet]) {
    let subscribed = task.members[0].subscribed;
    let total: usize = subscribed.iter().map(|topic| task.topics[topic] as usize).sum();
    let (share, extra) = (total / assigned.len(), total % assigned.len());
    let mut by_count: Vec<usize> = (0..assigned.len()).collect();
    by_count.sort_by_key(|nth| std::cmp::Reverse(count(&assigned[*nth])));
    let mut shares = vec![share; assigned.len()];
    by_count.iter().take(extra).for_each(|nth| shares[*nth] += 1);
    for (assigned, share) in assigned.iter_mut().zip(&shares) {
        truncate(assigned, *share);
    }
    let free = unassigned(task, assigned);
    let mut free = free
        .into_iter()
        .filter(|(topic, _)| subscribed.contains(topic))
        .flat_map(|(topic, indexes)| indexes.into_iter().map(move |index| (topic, index)));
    for (assigned, share) in assigned.iter_mut().zip(&shares) {
        let missing = share - count(assigned);
        for (topic, index) in free.by_ref().take(missing) {
            assigned.entry(topic).or_default().insert(index);
        }
    }
}

/// Takes the last partitions away, down to `share`.
fn truncate(assigned: &mut PartitionSet, share: usize) {
    let mut excess = count(assigned).saturating_sub(share);
    while excess > 0 {
        let Some(mut last) = assigned.last_entry() else { return };
        last.get_mut().pop_last();
        if last.get().is_empty() {
            last.remove();
        }
        excess -= 1;
    }
}

/// The members that subscribe to each topic.
fn subscribers(task: &AssignmentTask<'_>) -> BTreeMap<TopicId, Vec<usize>> {
    let mut subscribers = BTreeMap::<TopicId, Vec<usize>>::new();
    for (nth, member) in task.members.iter().enumerate() {
        for topic in member.subscribed {
            subscribers.entry(*topic).or_default().push(nth);
        }
    }
    subscribers
}

/// Gives unassigned partitions to the subscriber with the fewest. Topics with few subscribers come
/// first: they have the least choice.
fn assign_rest(task: &AssignmentTask<'_>, assigned: &mut [PartitionSet]) {
    let mut counts: Vec<usize> = assigned.iter().map(count).collect();
    let free = unassigned(task, assigned);
    let mut topics: Vec<(TopicId, Vec<usize>)> = subscribers(task).into_iter().collect();
    topics.sort_by_key(|(_, members)| members.len());
    for (topic, members) in topics {
        let mut least: BTreeSet<(usize, usize)> =
            members.iter().map(|nth| (counts[*nth], *nth)).collect();
        for index in free.get(&topic).into_iter().flatten() {
            let (before, nth) = least.pop_first().expect("a topic here has subscribers");
            assigned[nth].entry(topic).or_default().insert(*index);
            counts[nth] = before + 1;
            least.insert((before + 1, nth));
        }
    }
}

/// Moves partitions from members with more to members with fewer, topic by topic.
fn even_out(task: &AssignmentTask<'_>, assigned: &mut [PartitionSet]) {
    let mut counts: Vec<usize> = assigned.iter().map(count).collect();
    let topics = subscribers(task);
    for _ in 0..PASSES_MAX {
        let mut is_any_moved = false;
        for (topic, members) in &topics {
            is_any_moved |= even_out_topic(*topic, members, assigned, &mut counts);
        }
        if !is_any_moved {
            return;
        }
    }
}

fn even_out_topic(
    topic: TopicId,
    members: &[usize],
    assigned: &mut [PartitionSet],
    counts: &mut [usize],
) -> bool {
    let mut by_count: BTreeSet<(usize, usize)> =
        members.iter().map(|nth| (counts[*nth], *nth)).collect();
    let has_topic = |assigned: &[PartitionSet], nth: usize| assigned[nth].contains_key(&topic);
    let mut givers: BTreeSet<(usize, usize)> =
        by_count.iter().filter(|(_, nth)| has_topic(assigned, *nth)).copied().collect();
    let mut is_any_moved = false;
    while let (Some(&(most, from)), Some(&(least, to))) = (givers.last(), by_count.first()) {
        if most <= least + 1 {
            break;
        }
        is_any_moved = true;
        for set in [&mut by_count, &mut givers] {
            set.remove(&(most, from));
            set.remove(&(least, to));
        }
        let giver = assigned[from].get_mut(&topic).expect("a giver has a partition of the topic");
        let index = giver.pop_last().expect("no topic is empty");
        if giver.is_empty() {
            assigned[from].remove(&topic);
        }
        assigned[to].entry(topic).or_default().insert(index);
        (counts[from], counts[to]) = (most - 1, least + 1);
        for nth in [from, to] {
            by_count.insert((counts[nth], nth));
            if has_topic(assigned, nth) {
                givers.insert((counts[nth], nth));
            }
        }
    }
    is_any_moved
}
