//! The assignor of share groups, which Kafka calls simple: every partition has members, as many as
//! every other, and every member has partitions, as many as every other; they stay where they are
//! if they can.

use std::collections::{BTreeMap, BTreeSet};

use engine::TopicId;

use super::super::partitions::PartitionSet;

/// A member, as the assignor sees it.
pub(super) struct AssignableMember<'a> {
    /// The topics that it subscribes to, and that exist.
    pub(super) subscribed: &'a BTreeSet<TopicId>,
    /// Its last target.
    pub(super) before: &'a PartitionSet,
}

/// Assigns every partition of the topics that members subscribe to. Returns what each member gets.
pub(super) fn assign(
    members: &[AssignableMember<'_>],
    topics: &BTreeMap<TopicId, u32>,
) -> Vec<PartitionSet> {
    // Topics with the same subscribers are assigned together.
    let mut by_subscribers = BTreeMap::<Vec<usize>, Vec<(TopicId, u32)>>::new();
    for (topic, partitions) in topics {
        let is_subscriber = |nth: &usize| members[*nth].subscribed.contains(topic);
        let subscribers: Vec<usize> = (0..members.len()).filter(is_subscriber).collect();
        if !subscribers.is_empty() {
            let indexes = (0..*partitions).map(|index| (*topic, index));
            by_subscribers.entry(subscribers).or_default().extend(indexes);
        }
    }
    let mut assigned = vec![PartitionSet::new(); members.len()];
    let mut loads = vec![0; members.len()];
    for (subscribers, partitions) in by_subscribers {
        assign_to(&subscribers, &partitions, members, &mut loads, &mut assigned);
    }
    assigned
}

/// Assigns partitions to members all of which subscribe to all of them.
fn assign_to(
    subscribers: &[usize],
    partitions: &[(TopicId, u32)],
    members: &[AssignableMember<'_>],
    loads: &mut [usize],
    assigned: &mut [PartitionSet],
) {
    if partitions.is_empty() {
        return;
    }
    // The number of members that each partition has.
    let sharing = subscribers.len().div_ceil(partitions.len());
    let places = sharing * partitions.len();
    let (least, mut fuller) = (places / subscribers.len(), places % subscribers.len());
    let mut free = vec![sharing; partitions.len()];
    let mut held = vec![BTreeSet::<usize>::new(); subscribers.len()];
    for (nth, member) in subscribers.iter().enumerate() {
        for (at, (topic, index)) in partitions.iter().enumerate() {
            let was_assigned =
                members[*member].before.get(topic).is_some_and(|indexes| indexes.contains(index));
            let has_room = held[nth].len() < least || held[nth].len() == least && fuller > 0;
            if was_assigned && has_room && free[at] > 0 {
                fuller -= usize::from(held[nth].len() == least);
                held[nth].insert(at);
                free[at] -= 1;
            }
        }
    }
    // Members with the least to do get the next partition.
    let load = |nth: usize, has: &[BTreeSet<usize>]| (has[nth].len(), loads[subscribers[nth]], nth);
    let mut order: BTreeSet<_> = (0..subscribers.len()).map(|nth| load(nth, &held)).collect();
    for (at, free) in free.into_iter().enumerate() {
        for _ in 0..free {
            let lacks = |(_, _, nth): &&(usize, usize, usize)| !held[*nth].contains(&at);
            let next =
                *order.iter().find(lacks).expect("a partition has no more members than there are");
            order.remove(&next);
            held[next.2].insert(at);
            order.insert(load(next.2, &held));
        }
    }
    for (nth, member) in subscribers.iter().enumerate() {
        loads[*member] += held[nth].len();
        for at in &held[nth] {
            let (topic, index) = partitions[*at];
            assigned[*member].entry(topic).or_default().insert(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::test_topics::id;
    use super::*;

    const TOPICS: [&str; 3] = ["t0", "t1", "t2"];

    fn counts(partitions: &[u32]) -> BTreeMap<TopicId, u32> {
        TOPICS.iter().map(|name| id(name)).zip(partitions.iter().copied()).collect()
    }

    fn run(
        subscribed: &[BTreeSet<TopicId>],
        before: &[PartitionSet],
        topics: &BTreeMap<TopicId, u32>,
    ) -> Vec<PartitionSet> {
        let members: Vec<_> = subscribed
            .iter()
            .zip(before)
            .map(|(subscribed, before)| AssignableMember { subscribed, before })
            .collect();
        assign(&members, topics)
    }

    fn sizes(assigned: &[PartitionSet]) -> Vec<usize> {
        assigned.iter().map(|partitions| partitions.values().map(BTreeSet::len).sum()).collect()
    }

    #[test]
    fn more_members_than_partitions_share_them_evenly() {
        let topics = counts(&[3]);
        let subscribed = vec![BTreeSet::from([id("t0")]); 7];
        let assigned = run(&subscribed, &vec![PartitionSet::new(); 7], &topics);
        // Nine places for seven members.
        assert_eq!(sizes(&assigned).iter().filter(|size| **size == 2).count(), 2);
        assert_eq!(sizes(&assigned).iter().filter(|size| **size == 1).count(), 5);
        for index in 0..3 {
            let holders =
                assigned.iter().filter(|partitions| partitions[&id("t0")].contains(&index)).count();
            assert_eq!(holders, 3);
        }
    }

    proptest! {
        #[test]
        fn all_partitions_have_members_and_what_is_even_stays(
            partitions in prop::collection::vec(0u32..6, 1..4),
            masks in prop::collection::vec(0u8..8, 1..8),
            later in prop::collection::vec(0u8..8, 1..8),
        ) {
            let topics = counts(&partitions);
            let subscribed = |mask: &u8| -> BTreeSet<TopicId> {
                let named = TOPICS.iter().enumerate().filter(|(nth, _)| mask & 1 << nth != 0);
                named.map(|(_, name)| id(name)).filter(|id| topics.contains_key(id)).collect()
            };
            let mut before = vec![PartitionSet::new(); masks.len()];
            for masks in [&masks, &later] {
                let subscribed: Vec<BTreeSet<TopicId>> = masks.iter().map(subscribed).collect();
                before.resize(masks.len(), PartitionSet::new());
                let assigned = run(&subscribed, &before, &topics);
                for (topic, count) in &topics {
                    let members = subscribed.iter().filter(|indexes| indexes.contains(topic)).count();
                    for index in 0..*count {
                        let has = |partitions: &&PartitionSet| {
                            partitions.get(topic).is_some_and(|indexes| indexes.contains(&index))
                        };
                        let having = assigned.iter().filter(has).count();
                        prop_assert!(having >= 1 || members == 0);
                    }
                }
                for (set, subscribed) in assigned.iter().zip(&subscribed) {
                    prop_assert!(set.keys().all(|topic| subscribed.contains(topic)));
                }
                let is_one_class = subscribed.windows(2).all(|two| two[0] == two[1]);
                let sizes = sizes(&assigned);
                let (least, most) = (sizes.iter().min(), sizes.iter().max());
                prop_assert!(!is_one_class || most.unwrap() - least.unwrap() <= 1);
                prop_assert_eq!(&run(&subscribed, &assigned, &topics), &assigned);
                before = assigned;
            }
        }
    }
}
