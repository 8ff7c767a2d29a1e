use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

type Subscriptions = Vec<BTreeSet<TopicId>>;

fn topic(number: u8) -> TopicId {
    [number; 16]
}

fn assign(
    assignor: Assignor,
    topics: &BTreeMap<TopicId, u32>,
    subscriptions: &Subscriptions,
    before: &[PartitionSet],
) -> Vec<PartitionSet> {
    let ids: Vec<String> = (0..subscriptions.len()).map(|nth| format!("m{nth:03}")).collect();
    let mut members = Vec::new();
    for ((subscribed, id), before) in subscriptions.iter().zip(&ids).zip(before) {
        members.push(AssignableMember { id, instance: None, subscribed, before });
    }
    let task = AssignmentTask { members, topics };
    assignor.assign(&task)
}

/// Every partition of a topic with subscribers has one owner, who subscribes to it.
fn check(
    topics: &BTreeMap<TopicId, u32>,
    subscriptions: &Subscriptions,
    assigned: &[PartitionSet],
) {
    let mut owners = BTreeSet::new();
    for (subscribed, assigned) in subscriptions.iter().zip(assigned) {
        for (topic, indexes) in assigned {
            assert!(subscribed.contains(topic) && !indexes.is_empty());
            for index in indexes {
                assert!(*index < topics[topic]);
                assert!(owners.insert((*topic, *index)), "one owner");
            }
        }
    }
    let partitions: usize = topics
        .iter()
        .filter(|(topic, _)| subscriptions.iter().any(|subscribed| subscribed.contains(*topic)))
        .map(|(_, count)| *count as usize)
        .sum();
    assert_eq!(owners.len(), partitions);
}

fn count(assigned: &PartitionSet) -> usize {
    assigned.values().map(BTreeSet::len).sum()
}

/// No move of one partition between two members would make their counts more alike.
fn check_balanced(subscriptions: &Subscriptions, assigned: &[PartitionSet]) {
    for from in assigned {
        for (nth, to) in assigned.iter().enumerate() {
            let may_move = from.keys().any(|topic| subscriptions[nth].contains(topic));
            assert!(!may_move || count(from) <= count(to) + 1, "{assigned:?}");
        }
    }
}

fn subscriptions(members: usize) -> impl Strategy<Value = Subscriptions> {
    let subscribed = proptest::collection::btree_set(0u8..6, 0..6)
        .prop_map(|topics| topics.into_iter().map(topic).collect::<BTreeSet<_>>());
    prop_oneof![
        proptest::collection::vec(subscribed.clone(), 1..=members),
        (subscribed, 1..=members).prop_map(|(subscribed, members)| vec![subscribed; members]),
    ]
}

fn topics() -> impl Strategy<Value = BTreeMap<TopicId, u32>> {
    proptest::collection::vec(1u32..20, 6).prop_map(|counts| {
        counts.into_iter().enumerate().map(|(nth, count)| (topic(nth as u8), count)).collect()
    })
}

proptest! {
    #[test]
    fn every_partition_has_one_owner_and_counts_are_even_whatever_was_before(
        counts in proptest::collection::vec(topics(), 3),
        subscribed in proptest::collection::vec(subscriptions(9), 3),
    ) {
        let mut before: Vec<PartitionSet> = Vec::new();
        for (topics, subscriptions) in counts.iter().zip(&subscribed) {
            before.resize(subscriptions.len(), PartitionSet::new());
            let assigned = assign(Assignor::Uniform, topics, subscriptions, &before);
            check(topics, subscriptions, &assigned);
            check_balanced(subscriptions, &assigned);
            let again = assign(Assignor::Uniform, topics, subscriptions, &assigned);
            prop_assert_eq!(&again, &assigned, "what is even stays");
            let ranges = assign(Assignor::Range, topics, subscriptions, &before);
            check(topics, subscriptions, &ranges);
            before = assigned;
        }
    }
}

#[test]
fn a_member_that_joins_takes_only_its_share() {
    let topics = BTreeMap::from([(topic(1), 7), (topic(2), 3)]);
    let topic_ids: BTreeSet<TopicId> = topics.keys().copied().collect();
    let of_three = assign(
        Assignor::Uniform,
        &topics,
        &vec![topic_ids.clone(); 3],
        &vec![PartitionSet::new(); 3],
    );
    assert_eq!(of_three.iter().map(count).collect::<Vec<_>>(), [4, 3, 3]);
    let mut before = of_three.clone();
    before.push(PartitionSet::new());
    let of_four = assign(Assignor::Uniform, &topics, &vec![topic_ids; 4], &before);
    assert_eq!(count(&of_four[3]), 2);
    for (before, after) in of_three.iter().zip(&of_four) {
        let stayed = after.iter().all(|(topic, after)| after.is_subset(&before[topic]));
        assert!(stayed, "{before:?} {after:?}");
    }
}

#[test]
fn ranges_of_all_topics_meet_and_static_members_come_first() {
    let topics = BTreeMap::from([(topic(1), 4), (topic(2), 4)]);
    let topic_ids: BTreeSet<TopicId> = topics.keys().copied().collect();
    let before = PartitionSet::new();
    let member =
        |id, instance| AssignableMember { id, instance, subscribed: &topic_ids, before: &before };
    let members = vec![member("a", None), member("b", Some("i2")), member("c", Some("i1"))];
    let assigned = Assignor::Range.assign(&AssignmentTask { members, topics: &topics });
    let of_both_topics = |indexes: &[u32]| {
        let indexes: BTreeSet<u32> = indexes.iter().copied().collect();
        PartitionSet::from([(topic(1), indexes.clone()), (topic(2), indexes)])
    };
    assert_eq!(assigned, [of_both_topics(&[3]), of_both_topics(&[2]), of_both_topics(&[0, 1])]);
}
