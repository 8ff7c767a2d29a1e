//! Tests of one share group: its members join, share partitions, and go; and property tests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use engine::groups::StoredGroup;
use proptest::prelude::*;

use super::super::error::GroupError;
use super::super::modern_group::ModernState;
use super::super::options::Options;
use super::super::partitions::PartitionSet;
use super::super::test_topics::{TestTopics, id};
use super::{ShareGroup, ShareGroupState, ShareHeartbeat, ShareHeartbeatAnswer};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

struct TestShareGroup {
    group: ShareGroup,
    topics: TestTopics,
    now: Duration,
    log: StoredGroup,
}

impl TestShareGroup {
    fn new(topics: &[(&str, u32)]) -> TestShareGroup {
        TestShareGroup {
            group: ShareGroup::new(Arc::new(Options::default())),
            topics: TestTopics::new(topics),
            now: s(100),
            log: StoredGroup::whole(Vec::new()),
        }
    }

    fn beat(
        &mut self,
        id: &str,
        epoch: i32,
        topics: Option<&[&str]>,
    ) -> Result<ShareHeartbeatAnswer, GroupError> {
        let topics = topics.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        let (member_id, client_id) = (id.to_owned(), "app".to_owned());
        let request = ShareHeartbeat {
            member_id,
            member_epoch: epoch,
            topics,
            client_id,
            ..ShareHeartbeat::default()
        };
        request.check(&Options::default())?;
        let answer = self.group.heartbeat(self.now, &request, &self.topics);
        self.group.assert_sound();
        answer
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.group.tick(self.now);
        self.group.assert_sound();
    }

    fn save(&mut self) {
        if self.group.base.unsaved.is_any() {
            let (count, change) = self.group.take_unsaved();
            change.apply(&mut self.log);
            self.group.base.unsaved.saved(count);
        }
    }

    fn restart(&mut self) {
        let options = Arc::new(Options::default());
        self.group = if self.log.snapshot.is_empty() {
            ShareGroup::new(options)
        } else {
            ShareGroup::restore(options, &self.log, self.now, &self.topics).unwrap()
        };
        self.group.assert_sound();
    }

    fn sizes(&self) -> Vec<usize> {
        let size = |partitions: &PartitionSet| partitions.values().map(BTreeSet::len).sum();
        self.group.describe().members.iter().map(|member| size(&member.assigned)).collect()
    }
}

#[test]
fn members_share_partitions_and_have_them_with_their_next_heartbeat() {
    let mut test = TestShareGroup::new(&[("t", 2)]);
    let first = test.beat("a", 0, Some(&["t"])).unwrap();
    assert_eq!(first.assignment.unwrap()[&id("t")], BTreeSet::from([0, 1]));
    test.pass(s(1));
    let second = test.beat("b", 0, Some(&["t"])).unwrap();
    assert_eq!(second.assignment.unwrap().values().map(BTreeSet::len).sum::<usize>(), 1);
    // The first one learns of it, without anybody waiting.
    let repeated = test.beat("a", first.member_epoch, None).unwrap();
    assert_eq!(repeated.member_epoch, second.member_epoch);
    assert!(repeated.assignment.is_some());
    assert_eq!(test.sizes(), [1, 1]);
    for (nth, member) in ["c", "d", "e"].iter().enumerate() {
        test.pass(s(1));
        test.beat(member, 0, Some(&["t"])).unwrap();
        assert_eq!(test.group.base.members.len(), nth + 3);
    }
    for (id, epoch) in [("a", repeated.member_epoch), ("b", second.member_epoch)] {
        test.beat(id, epoch, None).unwrap();
    }
    let sizes = test.sizes();
    assert!(sizes.iter().all(|size| (1..=2).contains(size)), "{sizes:?}");
}

#[test]
fn a_heartbeat_that_changes_nothing_writes_nothing() {
    let mut test = TestShareGroup::new(&[("t", 2)]);
    let epoch = test.beat("a", 0, Some(&["t"])).unwrap().member_epoch;
    test.save();
    test.pass(s(1));
    let answer = test.beat("a", epoch, None).unwrap();
    assert_eq!((answer.assignment, answer.member_epoch), (None, epoch));
    assert!(!test.group.base.unsaved.is_any());
}

#[test]
fn wrong_epochs_and_members_are_refused() {
    let mut test = TestShareGroup::new(&[("t", 2)]);
    assert_eq!(test.beat("", 0, Some(&["t"])), Err(GroupError::InvalidShareRequest));
    assert_eq!(test.beat("a", 0, None), Err(GroupError::InvalidShareRequest));
    assert_eq!(test.beat("a", 0, Some(&[])), Err(GroupError::InvalidShareRequest));
    assert_eq!(test.beat("a", -2, None), Err(GroupError::InvalidShareRequest));
    assert_eq!(test.beat("a", 1, None), Err(GroupError::UnknownMemberId));
    assert_eq!(test.beat("a", -1, None), Err(GroupError::UnknownMemberId));
    let epoch = test.beat("a", 0, Some(&["t"])).unwrap().member_epoch;
    assert_eq!(test.beat("a", epoch + 1, None), Err(GroupError::FencedMemberEpoch));
    test.beat("a", epoch, None).unwrap();
    test.beat("a", -1, None).unwrap();
    assert_eq!(test.group.state(), ShareGroupState::Empty);
    assert_eq!(test.group.base.check_delete(), Ok(()));
}

#[test]
fn silent_members_are_removed_and_their_partitions_go_to_others() {
    let mut test = TestShareGroup::new(&[("t", 2)]);
    let mut epoch = test.beat("a", 0, Some(&["t"])).unwrap().member_epoch;
    test.beat("b", 0, Some(&["t"])).unwrap();
    for _ in 0..5 {
        test.pass(s(10));
        epoch = test.beat("a", epoch, None).unwrap().member_epoch;
    }
    assert_eq!(test.sizes(), [2]);
    test.topics.set("t", 4);
    epoch = test.beat("a", epoch, None).unwrap().member_epoch;
    test.pass(s(2));
    test.beat("a", epoch, None).unwrap();
    assert_eq!(test.sizes(), [4], "topics grow");
}

proptest! {
    /// In the end each partition has a member, whatever the order of heartbeats, silence, topics
    /// and restarts.
    #[test]
    fn in_the_end_each_partition_has_a_member(
        events in prop::collection::vec((0..4usize, 0..6u8, 0..30u64), 1..40),
    ) {
        let mut test = TestShareGroup::new(&[("t", 3), ("u", 2)]);
        let mut epochs = [0; 4];
        let names = |member: usize| if member == 0 { vec!["t"] } else { vec!["t", "u"] };
        let beat = |test: &mut TestShareGroup, epochs: &mut [i32; 4], member: usize| {
            let topics = names(member);
            let said = (epochs[member] == 0).then_some(&topics[..]);
            let answer = test.beat(&format!("m{member}"), epochs[member], said);
            epochs[member] = answer.map_or(0, |answer| answer.member_epoch);
        };
        for (member, what, seconds) in events {
            match what {
                0..=2 => beat(&mut test, &mut epochs, member),
                3 => {
                    let _ = test.beat(&format!("m{member}"), -1, None);
                    epochs[member] = 0;
                }
                4 => test.topics.set(if member < 2 { "t" } else { "u" }, seconds as u32 % 5),
                _ => {
                    test.save();
                    test.restart();
                }
            }
            test.save();
            test.pass(s(seconds));
        }
        for _ in 0..4 {
            (0..4).for_each(|member| beat(&mut test, &mut epochs, member));
            test.pass(s(2));
        }
        for (topic, count) in test.topics.partitions() {
            for index in 0..count {
                let has = |partitions: &PartitionSet| partitions.get(&topic).is_some_and(|indexes| indexes.contains(&index));
                let members = test.group.describe().members;
                prop_assert!(members.iter().any(|member| has(&member.assigned)));
            }
        }
        prop_assert_eq!(test.group.base.members.len(), 4);
    }
}
