use std::time::Duration;

use engine::groups::OffsetCommit;
use hlc::ManualClock;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{LeaveGroupRequest, OffsetCommitRequest};
use storage::disk::DiskFault;

use crate::apis::join_group::test_kafka_api::{
    TestGroupMember, TestKafkaApi, group_id, topic_name,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const SOON: Duration = Duration::from_secs(60);

async fn commit(api: &TestKafkaApi, group: &str, topic: &str, partition: u32) {
    let offset = OffsetCommit {
        topic: topic.to_owned(),
        partition,
        offset: 5,
        leader_epoch: -1,
        metadata: String::new(),
        retention_ms: None,
    };
    api.kafka.engine.groups().commit(group, vec![offset]).await.unwrap();
    api.kafka.coordinators.groups.restore_without_members(group);
}

fn held(api: &TestKafkaApi) -> Vec<(String, String, u32)> {
    let held = api.kafka.engine.groups().committed_offsets(None).unwrap();
    held.into_iter().map(|held| (held.group, held.topic, held.partition)).collect()
}

fn offset(group: &str, topic: &str, partition: u32) -> (String, String, u32) {
    (group.to_owned(), topic.to_owned(), partition)
}

/// Moves time for stamps, and for groups.
async fn pass(clock: &ManualClock, by: Duration) {
    clock.advance(by);
    tokio::time::pause();
    tokio::time::advance(by).await;
    tokio::time::resume();
}

async fn leave(api: &TestKafkaApi, group: &str, member: TestGroupMember) {
    let leave = LeaveGroupRequest::default().with_group_id(group_id(group));
    assert_eq!(api.ask(0, leave.with_member_id(member.id)).await.error_code, 0);
}

async fn expire(api: &TestKafkaApi) -> usize {
    api.kafka.expire_offsets().await.unwrap()
}

#[tokio::test]
async fn offsets_of_nobody_expire_a_week_after_they_were_committed_and_their_group_with_them() {
    let (api, clock) = TestKafkaApi::with_clock();
    commit(&api, "g", "a", 0).await;
    clock.advance(DAY);
    commit(&api, "g", "a", 1).await;
    clock.advance(DAY * 6 - Duration::from_millis(1));
    assert_eq!(expire(&api).await, 0);
    clock.advance(Duration::from_millis(1));
    assert_eq!(expire(&api).await, 1);
    assert_eq!(held(&api), [offset("g", "a", 1)]);
    clock.advance(DAY);
    assert_eq!(expire(&api).await, 1);
    assert!(held(&api).is_empty());
    let forgotten = async {
        while api.kafka.coordinators.groups.contains("g") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, forgotten).await.unwrap();
}

#[tokio::test]
async fn offsets_of_a_group_expire_a_week_after_its_last_member_left() {
    let (api, clock) = TestKafkaApi::with_clock();
    commit(&api, "g", "read", 0).await;
    let member = api.stable_group("g").await;
    clock.advance(DAY * 30);
    assert_eq!(expire(&api).await, 0, "a member reads it");
    leave(&api, "g", member).await;
    // At once, whether the log has the write or not.
    assert_eq!(expire(&api).await, 0);
    let emptied = async {
        let left = api.kafka.engine.wall_now();
        let saved = || api.kafka.engine.groups().saved_at("g").unwrap();
        while saved().is_none_or(|saved| saved.time() < left) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, emptied).await.unwrap();
    pass(&clock, DAY * 7 - Duration::from_secs(1)).await;
    assert_eq!(expire(&api).await, 0);
    pass(&clock, Duration::from_secs(2)).await;
    assert_eq!(expire(&api).await, 1);
    assert!(held(&api).is_empty());
}

/// The log may never learn that a group has no members any more; its coordinator knows.
#[tokio::test]
async fn a_group_that_was_left_while_the_disk_was_full_keeps_its_offsets_for_a_week() {
    let (api, clock) = TestKafkaApi::with_clock();
    commit(&api, "g", "read", 0).await;
    let member = api.stable_group("g").await;
    let saved = api.kafka.engine.groups().saved_at("g").unwrap();
    clock.advance(DAY * 30);
    api.disk.arm(DiskFault::FullAt(0));
    leave(&api, "g", member).await;
    let failed = async {
        while !api.kafka.coordinators.groups.is_idle("g") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, failed).await.unwrap();
    api.disk.remove_capacity_limit();
    assert_eq!(api.kafka.engine.groups().saved_at("g").unwrap(), saved, "it was not heard");
    pass(&clock, DAY * 6).await;
    assert_eq!(expire(&api).await, 0);
    pass(&clock, DAY).await;
    assert_eq!(expire(&api).await, 1);
}

#[tokio::test]
async fn of_a_group_that_reads_the_offsets_of_other_topics_expire() {
    let (api, clock) = TestKafkaApi::with_clock();
    commit(&api, "g", "read", 0).await;
    commit(&api, "g", "read no more", 0).await;
    api.stable_group("g").await;
    clock.advance(DAY * 8);
    assert_eq!(expire(&api).await, 1);
    assert_eq!(held(&api), [offset("g", "read", 0)]);
}

#[tokio::test]
async fn nothing_expires_by_a_clock_that_cannot_be_trusted() {
    let (api, clock) = TestKafkaApi::with_clock();
    commit(&api, "g", "a", 0).await;
    clock.step_to(hlc::SysTime(api.kafka.engine.wall_now().0 + 8 * 24 * 3600 * 1000));
    assert_eq!(expire(&api).await, 0);
    assert_eq!(held(&api), [offset("g", "a", 0)]);
}

/// While a server stops it has no groups any more, so none has members.
#[tokio::test]
async fn nothing_expires_once_groups_are_closed() {
    let (api, clock) = TestKafkaApi::with_clock();
    commit(&api, "g", "read", 0).await;
    api.stable_group("g").await;
    clock.advance(DAY * 30);
    api.kafka.close();
    assert_eq!(expire(&api).await, 0);
    assert_eq!(held(&api), [offset("g", "read", 0)]);
}

#[tokio::test]
async fn nothing_expires_of_a_group_that_is_just_being_set() {
    let (api, clock) = TestKafkaApi::with_clock();
    commit(&api, "g", "a", 0).await;
    clock.advance(DAY * 30);
    let setting = api.kafka.coordinators.groups.hold("g");
    assert_eq!(expire(&api).await, 0);
    drop(setting);
    assert_eq!(expire(&api).await, 1);
}

/// As after a return to an earlier version: its members may come back.
#[tokio::test]
async fn a_group_of_which_it_is_not_known_who_was_in_it_has_a_week() {
    let (api, clock) = TestKafkaApi::with_clock();
    commit(&api, "g", "a", 0).await;
    api.kafka.engine.groups().save("g", vec![255]).await.unwrap();
    clock.advance(DAY * 30);
    let api = api.restart_with_clock(&clock);
    assert_eq!(expire(&api).await, 0);
    pass(&clock, DAY * 7).await;
    assert_eq!(expire(&api).await, 1);
}

async fn commit_for(api: &TestKafkaApi, partition: i32, retention_ms: i64) {
    let committed = OffsetCommitRequestPartition::default()
        .with_partition_index(partition)
        .with_committed_offset(5);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![committed]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group_id("g"))
        .with_retention_time_ms(retention_ms)
        .with_topics(vec![topic]);
    // Between its creation and the commit, the group may have been idle for so long that it is just
    // being deleted. Clients retry then, and so does this.
    let retried = async {
        loop {
            match api.ask(2, request.clone()).await.topics[0].partitions[0].error_code {
                code if code == ResponseError::CoordinatorNotAvailable.code() => {
                    tokio::task::yield_now().await;
                }
                code => return code,
            }
        }
    };
    let code = tokio::time::timeout(Duration::from_secs(30), retried).await;
    assert_eq!(code.expect("it ends"), 0);
}

/// As clients before KIP-211 request it.
#[tokio::test]
async fn an_offset_with_a_retention_of_its_own_is_kept_for_that() {
    let (api, clock) = TestKafkaApi::with_clock();
    api.topic("t", 5).await;
    let day_ms = DAY.as_millis() as i64;
    for (partition, retention_ms) in
        [(0, -1), (1, day_ms), (2, 30 * day_ms), (3, i64::MAX), (4, -2)]
    {
        commit_for(&api, partition, retention_ms).await;
    }
    let left = |api: &TestKafkaApi| held(api).into_iter().map(|held| held.2).collect::<Vec<_>>();
    assert_eq!((expire(&api).await, left(&api)), (1, vec![0, 1, 2, 3]));
    clock.advance(DAY);
    assert_eq!((expire(&api).await, left(&api)), (1, vec![0, 2, 3]));
    clock.advance(DAY * 6);
    assert_eq!((expire(&api).await, left(&api)), (1, vec![2, 3]));
    clock.advance(DAY * 22);
    assert_eq!(expire(&api).await, 0);
    clock.advance(DAY);
    assert_eq!((expire(&api).await, left(&api)), (1, vec![3]));
    // Also of a group whose members have only just left, but not while they read it.
    commit_for(&api, 1, day_ms).await;
    api.topic("read", 1).await;
    let member = api.stable_group("g").await;
    clock.advance(DAY * 2);
    leave(&api, "g", member).await;
    assert_eq!((expire(&api).await, left(&api)), (1, vec![3]));
}

#[tokio::test]
async fn many_offsets_of_many_topics_and_groups_expire() {
    let (api, clock) = TestKafkaApi::with_clock();
    let offset = |topic: &str, partition| OffsetCommit {
        topic: topic.to_owned(),
        partition,
        offset: 1,
        leader_epoch: -1,
        metadata: String::new(),
        retention_ms: None,
    };
    let wide = (0..1500).map(|partition| offset("wide", partition));
    let narrow = (0..2100).map(|nth| offset(&format!("t{nth}"), 0));
    let offsets: Vec<OffsetCommit> = wide.chain(narrow).collect();
    let engine = &api.kafka.engine;
    engine.groups().commit("many", offsets).await.unwrap();
    api.kafka.coordinators.groups.restore_without_members("many");
    for nth in 0..150 {
        commit(&api, &format!("g{nth}"), "t", 0).await;
    }
    clock.advance(DAY * 6);
    commit(&api, "many", "t1000", 1).await;
    commit(&api, "g77", "t", 1).await;
    assert_eq!(expire(&api).await, 0);
    clock.advance(DAY);
    assert_eq!(expire(&api).await, 1500 + 2100 + 150);
    let left = [("g77", "t", 1), ("many", "t1000", 1)];
    assert_eq!(held(&api), left.map(|(group, topic, nth)| self::offset(group, topic, nth)));
}
