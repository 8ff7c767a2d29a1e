use std::sync::Arc;

use uuid::Uuid;

use super::super::classic_group::ClassicGroup;
use super::super::commit::{CommitFence, CommitKind};
use super::super::error::GroupError;
use super::super::snapshot::{GroupSnapshot, MemberSnapshot};
use super::super::test_topics::id;
use super::super::topic_subscription::ClientTopics;
use super::member::LEFT_EPOCH;
use super::test_consumer_group::{TestClient, TestConsumerGroup, partitions, s};
use super::{ConsumerGroup, ConsumerGroupState, ConsumerHeartbeat};

fn count(client: &TestClient) -> usize {
    client.owned.values().map(|indexes| indexes.len()).sum()
}

fn commit(member: &str, epoch: i32) -> CommitFence {
    CommitFence {
        member_id: member.to_owned(),
        group_instance_id: None,
        generation_id: epoch,
        kind: CommitKind::Plain,
        knows_epochs: true,
    }
}

#[test]
fn the_first_member_gets_everything_with_its_first_answer() {
    let mut test = TestConsumerGroup::new(&[("t", 4)]);
    let mut a = TestClient::new("a", &["t"]);
    test.client(&mut a);
    assert_eq!((a.epoch, &a.owned), (1, &partitions("t", &[0, 1, 2, 3])));
    assert_eq!(test.group.state(), ConsumerGroupState::Stable);
    let bare_request = ConsumerHeartbeat { owned: None, ..a.request() };
    let answer = test.beat(&bare_request).unwrap();
    assert_eq!((answer.member_epoch, answer.assignment), (1, None));
    assert!(!test.group.base.unsaved.is_any(), "a heartbeat that changes nothing writes nothing");
}

#[test]
fn a_partition_moves_only_once_its_member_has_given_it_up() {
    let mut test = TestConsumerGroup::new(&[("t", 4)]);
    let (mut a, mut b) = (TestClient::new("a", &["t"]), TestClient::new("b", &["t"]));
    test.client(&mut a);
    test.pass(s(1));
    test.client(&mut b);
    assert_eq!((b.epoch, count(&b)), (2, 0), "a has all of them still");
    let before = a.owned.clone();
    let answer = test.beat(&a.request()).unwrap();
    assert_eq!((answer.member_epoch, answer.assignment.unwrap()[&id("t")].len()), (1, 2));
    test.client(&mut b);
    assert_eq!(count(&b), 0, "a has not confirmed anything");
    assert_eq!(a.owned, before);
    a.owned = partitions("t", &[0, 1]);
    test.client(&mut a);
    assert_eq!(a.epoch, 2);
    test.client(&mut b);
    assert_eq!(b.owned, partitions("t", &[2, 3]));
    assert_eq!(test.group.state(), ConsumerGroupState::Stable);
}

#[test]
fn a_member_that_does_not_give_partitions_up_in_time_is_removed() {
    let mut test = TestConsumerGroup::new(&[("t", 2)]);
    let (mut a, mut b) = (TestClient::new("a", &["t"]), TestClient::new("b", &["t"]));
    test.client(&mut a);
    test.pass(s(1));
    test.client(&mut b);
    for _ in 0..7 {
        test.pass(s(10));
        let _ = test.beat(&ConsumerHeartbeat { owned: None, ..a.request() });
        test.client(&mut b);
    }
    assert_eq!(test.beat(&a.request()), Err(GroupError::UnknownMemberId));
    test.pass(s(1));
    test.client(&mut b);
    test.client(&mut b);
    assert_eq!(count(&b), 2);
}

#[test]
fn a_member_that_hears_an_error_has_its_whole_time_to_give_partitions_up() {
    let mut test = TestConsumerGroup::new(&[("t", 2)]);
    let (mut a, mut b) = (TestClient::new("a", &["t"]), TestClient::new("b", &["t"]));
    test.client(&mut a);
    test.pass(s(1));
    test.client(&mut b);
    // The revocation from `a` cannot be stored, and `a` hears an error. The heartbeat of `b` stores
    // it.
    test.pass(s(1));
    test.beat(&a.request()).unwrap();
    test.fail_to_save();
    test.client(&mut b);
    test.pass(s(40));
    a.says_all = true;
    test.client(&mut a);
    test.client(&mut b);
    test.pass(s(40));
    test.client(&mut a);
    assert_eq!(count(&a), 1);
}

#[test]
fn a_silent_member_is_removed_when_its_session_ends_and_heartbeats_keep_it() {
    let mut test = TestConsumerGroup::new(&[("t", 2)]);
    let (mut a, mut b) = (TestClient::new("a", &["t"]), TestClient::new("b", &["t"]));
    test.settle(&mut [&mut a, &mut b]);
    for _ in 0..4 {
        test.pass(s(20));
        test.client(&mut b);
    }
    assert_eq!(test.group.base.members.len(), 1);
    test.settle(&mut [&mut b]);
    assert_eq!(count(&b), 2);
    assert_eq!(test.beat(&a.request()), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_lost_answer_is_given_again_and_other_epochs_are_fenced() {
    let mut test = TestConsumerGroup::new(&[("t", 2)]);
    let mut a = TestClient::new("a", &["t"]);
    let join = a.request();
    let first = test.beat(&join).unwrap();
    assert_eq!(test.beat(&join).unwrap(), first, "the answer to the join was lost");
    a.hear(Ok(first));
    test.topics.set("t", 3);
    test.pass(s(1));
    let old = a.request();
    let second = test.beat(&old).unwrap();
    assert_eq!(second.member_epoch, 2);
    let rejoined = test.beat(&ConsumerHeartbeat {
        rebalance_timeout: Some(s(60)),
        topics: Some(a.topics.clone()),
        ..old.clone()
    });
    assert_eq!(rejoined.unwrap(), second, "the member owns no more than it was given");
    let greedy = ConsumerHeartbeat { owned: Some(partitions("t", &[0, 9])), ..old.clone() };
    assert_eq!(test.beat(&greedy), Err(GroupError::FencedMemberEpoch));
    let later = ConsumerHeartbeat { member_epoch: 3, ..old };
    assert_eq!(test.beat(&later), Err(GroupError::FencedMemberEpoch));
}

#[test]
fn topics_that_come_grow_and_go_are_assigned_anew() {
    let mut test = TestConsumerGroup::new(&[("t", 1)]);
    let mut a = TestClient::new("a", &["t", "later"]);
    a.regex = "x-.*".to_owned();
    test.settle(&mut [&mut a]);
    assert_eq!(count(&a), 1);
    test.topics.set("later", 2);
    test.topics.set("x-1", 3);
    test.topics.set("y", 5);
    test.settle(&mut [&mut a]);
    assert_eq!(count(&a), 6);
    test.topics.set("t", 4);
    test.topics.set("later", 0);
    test.settle(&mut [&mut a]);
    assert_eq!(count(&a), 7);
    a.regex = String::new();
    a.says_all = true;
    test.settle(&mut [&mut a]);
    assert_eq!(a.owned, partitions("t", &[0, 1, 2, 3]));
    assert!(test.group.subscriptions().include("t") && !test.group.subscriptions().include("x-1"));
    test.beat(&ConsumerHeartbeat { member_epoch: -1, ..a.request() }).unwrap();
    assert!(!test.group.subscriptions().include("t"), "nobody reads it any more");
}

/// A heartbeat of a client that may know of all topics but one.
fn beat_without(test: &mut TestConsumerGroup, client: &mut TestClient, hidden: &str) {
    let may_know = |name: &str| name != hidden;
    let topics = ClientTopics { topics: &test.topics, may_know: &may_know };
    let mut new_id = || Uuid::from_u128(7);
    let answer = test.group.heartbeat(test.now, &client.request(), &topics, &mut new_id);
    test.save();
    client.hear(answer);
}

#[test]
fn regular_expressions_find_what_a_client_may_know_of() {
    let mut test = TestConsumerGroup::new(&[("x-1", 1), ("x-2", 1)]);
    test.topics.restrict();
    let mut a = TestClient { regex: "x-.*".to_owned(), ..TestClient::new("a", &[]) };
    beat_without(&mut test, &mut a, "x-2");
    assert_eq!(a.owned, partitions("x-1", &[0]));
    let epoch = test.group.base.epoch;

    test.restart();
    assert!(test.group.subscriptions().include("x-2"), "it may be any topic");
    test.group.update_topics(test.now, false, &test.topics);
    test.group.update_targets(test.now);
    assert_eq!(test.group.base.epoch, epoch, "nothing follows from what nobody has asked for");
    beat_without(&mut test, &mut a, "x-2");
    assert_eq!((&a.owned, test.group.base.epoch), (&partitions("x-1", &[0]), epoch));
    assert!(!test.group.subscriptions().include("x-2"));

    // The rules change; no topic does.
    beat_without(&mut test, &mut a, "");
    assert_eq!(test.group.base.epoch, epoch, "they are looked at again later");
    test.now += s(600);
    beat_without(&mut test, &mut a, "");
    assert_eq!((count(&a), test.group.base.epoch), (2, epoch + 1));
}

#[test]
fn a_static_member_comes_back_for_what_it_had() {
    let mut test = TestConsumerGroup::new(&[("t", 4)]);
    let mut a = TestClient { instance: Some("i".into()), ..TestClient::new("a", &["t"]) };
    let mut b = TestClient::new("b", &["t"]);
    test.settle(&mut [&mut a, &mut b]);
    let mut second = TestClient { instance: Some("i".into()), ..TestClient::new("c", &["t"]) };
    assert_eq!(test.beat(&second.request()), Err(GroupError::UnreleasedInstanceId));
    let pause = ConsumerHeartbeat { member_epoch: LEFT_EPOCH, ..a.request() };
    assert_eq!(test.beat(&pause).unwrap().member_epoch, LEFT_EPOCH);
    test.settle(&mut [&mut b]);
    assert_eq!(count(&b), 2, "nobody else gets what it had");
    let epoch = test.group.base.epoch;
    test.client(&mut second);
    assert_eq!((&second.owned, test.group.base.epoch), (&a.owned, epoch));
    assert_eq!(test.beat(&a.request()), Err(GroupError::FencedInstanceId));
}

#[test]
fn requests_that_contradict_themselves_change_nothing() {
    let mut test = TestConsumerGroup::new(&[("t", 1)]);
    let join = TestClient::new("a", &["t"]).request();
    let invalid = [
        ConsumerHeartbeat { rebalance_timeout: None, ..join.clone() },
        ConsumerHeartbeat { owned: None, ..join.clone() },
        ConsumerHeartbeat { owned: Some(partitions("t", &[0])), ..join.clone() },
        ConsumerHeartbeat { topics: None, regex: None, ..join.clone() },
        ConsumerHeartbeat { instance_id: Some(String::new()), ..join.clone() },
        ConsumerHeartbeat { rack: Some(String::new()), ..join.clone() },
        ConsumerHeartbeat { member_epoch: -3, ..join.clone() },
        ConsumerHeartbeat { member_epoch: -2, ..join.clone() },
        ConsumerHeartbeat { member_epoch: 1, member_id: String::new(), ..join.clone() },
    ];
    for request in invalid {
        assert_eq!(test.beat(&request), Err(GroupError::InvalidRequest), "{request:?}");
    }
    let assignor = ConsumerHeartbeat { assignor: Some("best".into()), ..join.clone() };
    assert_eq!(test.beat(&assignor), Err(GroupError::UnsupportedAssignor));
    let regex = ConsumerHeartbeat { regex: Some("(".into()), ..join.clone() };
    assert_eq!(test.beat(&regex), Err(GroupError::InvalidRegularExpression));
    let long_regex = ConsumerHeartbeat { regex: Some("x".repeat(1 << 20)), ..join };
    assert_eq!(test.beat(&long_regex), Err(GroupError::TooLarge));
    assert_eq!((test.group.base.members.len(), test.group.base.epoch), (0, 0));
    assert!(!test.group.base.unsaved.is_any());
}

#[test]
fn the_assignor_is_the_one_that_most_members_prefer() {
    let mut test = TestConsumerGroup::new(&[("t", 3), ("u", 3)]);
    for (member, assignor) in [("a", Some("range")), ("b", Some("range")), ("c", Some("uniform"))] {
        let join = TestClient::new(member, &["t", "u"]).request();
        let assignor = assignor.map(str::to_owned);
        test.beat(&ConsumerHeartbeat { assignor, ..join }).unwrap();
        test.pass(s(1));
    }
    assert_eq!(test.group.describe().assignor, "range");
}

#[test]
fn commits_need_an_epoch_since_which_the_member_has_the_partition() {
    let mut test = TestConsumerGroup::new(&[("t", 2)]);
    let (mut a, mut b) = (TestClient::new("a", &["t"]), TestClient::new("b", &["t"]));
    test.settle(&mut [&mut a]);
    let first = a.epoch;
    test.settle(&mut [&mut a, &mut b]);
    assert_eq!((count(&a), count(&b)), (1, 1));
    let group = &test.group;
    let mine = || {
        a.owned.iter().flat_map(|(id, indexes)| indexes.iter().map(|index| (*id, *index))).collect()
    };
    let theirs = || {
        b.owned.iter().flat_map(|(id, indexes)| indexes.iter().map(|index| (*id, *index))).collect()
    };
    let stale = Err(GroupError::StaleMemberEpoch);
    assert_eq!(group.check_commit(&commit("a", a.epoch), &theirs), Ok(()));
    assert_eq!(group.check_commit(&commit("a", first), &mine), Ok(()), "it had it since then");
    assert_eq!(group.check_commit(&commit("a", first), &theirs), stale);
    assert_eq!(group.check_commit(&commit("b", first), &theirs), stale, "it was given later");
    assert_eq!(group.check_commit(&commit("a", a.epoch + 1), &mine), stale);
    assert_eq!(group.check_commit(&commit("x", 1), &mine), Err(GroupError::UnknownMemberId));
    assert_eq!(group.check_commit(&commit("", -1), &mine), Err(GroupError::UnknownMemberId));
    let old = CommitFence { knows_epochs: false, ..commit("a", a.epoch) };
    assert_eq!(group.check_commit(&old, &mine), Err(GroupError::UnsupportedVersion));
    assert_eq!(group.base.check_fetch(Some("a"), a.epoch), Ok(()));
    assert_eq!(group.base.check_fetch(Some("a"), first), stale);
    assert_eq!(group.base.check_fetch(None, -1), Ok(()));
}

#[test]
fn a_restart_loses_nothing_that_was_answered() {
    let mut test = TestConsumerGroup::new(&[("t", 4)]);
    let (mut a, mut b) = (TestClient::new("a", &["t"]), TestClient::new("b", &["t"]));
    test.client(&mut a);
    test.pass(s(1));
    test.client(&mut b);
    test.client(&mut a);
    let described = test.group.describe();
    test.restart();
    assert_eq!(test.group.describe(), described);
    test.settle(&mut [&mut a, &mut b]);
    assert_eq!((count(&a), count(&b)), (2, 2));
    let (epoch, described) = (test.group.base.epoch, test.group.describe());
    test.restart();
    test.settle(&mut [&mut a, &mut b]);
    assert_eq!((test.group.base.epoch, test.group.describe()), (epoch, described));
    test.topics.set("t", 5);
    test.restart();
    test.settle(&mut [&mut a, &mut b]);
    assert_eq!(count(&a) + count(&b), 5, "it is noticed that a topic has grown meanwhile");
}

#[test]
fn a_classic_group_whose_assignor_gives_a_partition_to_two_members_stays_classic() {
    let metadata = [&[0, 0, 0, 0, 0, 1, 0, 1, b't'][..], &[0xff; 4]].concat();
    let assignment =
        [&[0, 0, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 0][..], &[0xff; 4]].concat();
    let member = |id: &str| MemberSnapshot {
        member_id: id.to_owned(),
        group_instance_id: None,
        client_id: "app".to_owned(),
        client_host: "/10.0.0.1".to_owned(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocols: vec![("broadcast".to_owned(), metadata.clone())],
        assignment: assignment.clone(),
    };
    let snapshot = |members: Vec<MemberSnapshot>| GroupSnapshot {
        generation: 3,
        protocol_type: Some("consumer".to_owned()),
        protocol: Some("broadcast".to_owned()),
        leader: Some("a".to_owned()),
        members,
    };
    let test = TestConsumerGroup::new(&[("t", 1)]);
    let upgraded = |members| {
        let options = Arc::clone(&test.group.base.options);
        let (classic, _) = ClassicGroup::restore(options, snapshot(members), s(0)).unwrap();
        ConsumerGroup::from_classic(&classic, s(0), &test.topics).map(|group| group.base.epoch)
    };
    assert_eq!(upgraded(vec![member("a")]), Ok(3));
    assert_eq!(upgraded(vec![member("a"), member("b")]), Err(GroupError::GroupIdNotFound));
}
