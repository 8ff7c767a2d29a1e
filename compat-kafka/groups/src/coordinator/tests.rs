//! The coordinator, under tokio's paused clock: time passes when all tasks wait.

use std::collections::HashMap;

use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::{advance, sleep};

use super::super::commit::CommitKind;
use super::super::options::{ConsumerOptions, MigrationPolicy};
use super::super::state::ClassicGroupState;
use super::super::test_topics::TestTopics;
use super::*;

/// A log in memory that can be made to fail or to hang.
#[derive(Default)]
struct MemoryGroupLog {
    snapshots: Mutex<HashMap<String, StoredGroup>>,
    with_offsets: Mutex<Vec<String>>,
    behavior: Mutex<LogBehavior>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum LogBehavior {
    #[default]
    Healthy,
    Failing,
    Slow(Duration),
}

impl MemoryGroupLog {
    fn set_behavior(&self, mood: LogBehavior) {
        *self.behavior.lock() = mood;
    }

    fn answer(&self) -> GroupLogFuture<Result<(), String>> {
        let mood = *self.behavior.lock();
        Box::pin(async move {
            match mood {
                LogBehavior::Healthy => Ok(()),
                LogBehavior::Failing => Err("disk on fire".to_owned()),
                LogBehavior::Slow(time) => {
                    sleep(time).await;
                    Ok(())
                }
            }
        })
    }
}

impl GroupLog for MemoryGroupLog {
    fn put(&self, group: &str, change: GroupChange) -> GroupLogFuture<Result<(), String>> {
        if *self.behavior.lock() != LogBehavior::Failing {
            let mut snapshots = self.snapshots.lock();
            let empty = || StoredGroup::whole(Vec::new());
            change.apply(snapshots.entry(group.to_owned()).or_insert_with(empty));
        }
        self.answer()
    }

    fn delete(&self, group: &str) -> GroupLogFuture<Result<(), String>> {
        if *self.behavior.lock() != LogBehavior::Failing {
            self.snapshots.lock().remove(group);
        }
        self.answer()
    }

    fn has_offsets(&self, group: &str) -> GroupLogFuture<bool> {
        let has_offsets = self.with_offsets.lock().iter().any(|id| id == group);
        Box::pin(async move { has_offsets })
    }
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn start(options: Options) -> (GroupCoordinator, Arc<MemoryGroupLog>) {
    let log = Arc::new(MemoryGroupLog::default());
    let mut next = 0;
    let member_ids = move || {
        next += 1;
        Uuid::from_u128(next)
    };
    let topics = Arc::new(TestTopics::new(&[("t", 4)]));
    (GroupCoordinator::new(options, log.clone(), topics, member_ids), log)
}

fn consumer(member_id: &str) -> JoinRequest {
    JoinRequest {
        member_id: member_id.to_owned(),
        group_instance_id: None,
        client_id: "app".to_owned(),
        client_host: "/10.0.0.1".to_owned(),
        session_timeout: s(10),
        rebalance_timeout: s(60),
        protocol_type: "consumer".to_owned(),
        protocols: vec![("range".to_owned(), Bytes::new())],
        require_known_member_id: true,
        supports_skip_assignment: true,
        reason: None,
    }
}

fn sync(member_id: &str, generation_id: i32, assignments: &[(&str, &str)]) -> SyncRequest {
    let assignment = |(id, bytes): &(&str, &str)| (id.to_string(), Bytes::from(bytes.to_string()));
    SyncRequest {
        member_id: member_id.to_owned(),
        group_instance_id: None,
        generation_id,
        protocol_type: None,
        protocol_name: None,
        assignments: assignments.iter().map(assignment).collect(),
    }
}

fn beat(member_id: &str, generation_id: i32) -> GroupHeartbeatRequest {
    GroupHeartbeatRequest {
        member_id: member_id.to_owned(),
        group_instance_id: None,
        generation_id,
    }
}

fn leaving(member_id: &str) -> LeaveMemberRequest {
    LeaveMemberRequest { member_id: member_id.to_owned(), group_instance_id: None, reason: None }
}

fn simple_commit() -> CommitFence {
    let (member_id, kind) = (String::new(), CommitKind::Plain);
    let (group_instance_id, knows_epochs) = (None, true);
    CommitFence { member_id, group_instance_id, generation_id: -1, kind, knows_epochs }
}

/// As a client does: asks for an id first, and joins with it.
async fn join(coordinator: &GroupCoordinator, group: &str) -> JoinResult {
    let answer = coordinator.join(group, consumer("")).await;
    assert_eq!(answer.error, Some(GroupError::MemberIdRequired));
    coordinator.join(group, consumer(&answer.member_id)).await
}

fn spawn_join(coordinator: &GroupCoordinator, group: &'static str) -> JoinHandle<JoinResult> {
    let coordinator = coordinator.clone();
    tokio::spawn(async move { join(&coordinator, group).await })
}

/// A stable group of one member, which it returns.
async fn stable(coordinator: &GroupCoordinator, group: &str) -> String {
    let joined = join(coordinator, group).await;
    let id = joined.member_id;
    let request = sync(&id, joined.generation_id, &[(&id, "p0")]);
    assert_eq!(coordinator.sync(group, request).await.assignment, "p0");
    id
}

fn state(coordinator: &GroupCoordinator, group: &str) -> Result<ClassicGroupState, GroupError> {
    coordinator.describe(group).map(|description| description.state)
}

fn waiters(coordinator: &GroupCoordinator) -> usize {
    let groups = coordinator.shared.groups.lock();
    let waiting = |slot: &Arc<GroupSlot>| {
        let inner = slot.inner.lock();
        inner.joins.len() + inner.syncs.len()
    };
    groups.by_id.values().map(waiting).sum()
}

#[tokio::test(start_paused = true)]
async fn two_members_join_sync_and_heartbeat() {
    let (coordinator, log) = start(Options::default());
    let began = Instant::now();
    let second = spawn_join(&coordinator, "g");
    let first_result = join(&coordinator, "g").await;
    let second_result = second.await.unwrap();
    assert!((s(3)..s(7)).contains(&began.elapsed()), "{:?}", began.elapsed());
    let (leader, follower) = if first_result.leader == first_result.member_id {
        (first_result.member_id, second_result.member_id)
    } else {
        (second_result.member_id, first_result.member_id)
    };
    let (leads, follows) = tokio::join!(
        coordinator.sync("g", sync(&leader, 1, &[(&leader, "p0"), (&follower, "p1")])),
        coordinator.sync("g", sync(&follower, 1, &[])),
    );
    assert_eq!((&leads.assignment[..], &follows.assignment[..]), (&b"p0"[..], &b"p1"[..]));
    assert_eq!(coordinator.heartbeat("g", &beat(&leader, 1)), Ok(()));
    assert!(log.snapshots.lock().contains_key("g"));
    assert_eq!(waiters(&coordinator), 0);
}

#[tokio::test(start_paused = true)]
async fn a_silent_member_is_dropped_by_the_timer_task() {
    let (coordinator, _) = start(Options::default());
    let id = stable(&coordinator, "g").await;
    for _ in 0..5 {
        sleep(s(9)).await;
        assert_eq!(coordinator.heartbeat("g", &beat(&id, 1)), Ok(()));
    }
    sleep(s(9)).await;
    assert_eq!(state(&coordinator, "g"), Ok(ClassicGroupState::Stable));
    sleep(s(2)).await;
    assert_eq!(state(&coordinator, "g"), Ok(ClassicGroupState::Empty));
    assert_eq!(coordinator.heartbeat("g", &beat(&id, 1)), Err(GroupError::UnknownMemberId));
}

#[tokio::test(start_paused = true)]
async fn a_join_whose_connection_goes_away_leaves_no_waiter_and_hangs_nobody() {
    let (coordinator, _) = start(Options::default());
    let id = stable(&coordinator, "g").await;
    let newcomer = spawn_join(&coordinator, "g");
    sleep(s(1)).await;
    assert_eq!(coordinator.heartbeat("g", &beat(&id, 1)), Err(GroupError::RebalanceInProgress));
    assert_eq!(waiters(&coordinator), 1);
    newcomer.abort();
    assert!(newcomer.await.unwrap_err().is_cancelled());
    assert_eq!(waiters(&coordinator), 0);

    let joined = coordinator.join("g", consumer(&id)).await;
    assert_eq!((joined.error, joined.members.len()), (None, 2), "it may come back");
    let request = sync(&id, joined.generation_id, &[(&id, "p0")]);
    assert_eq!(coordinator.sync("g", request).await.error, None);
    sleep(s(9)).await;
    assert_eq!(coordinator.heartbeat("g", &beat(&id, 2)), Ok(()));
    sleep(s(2)).await;
    let after = coordinator.heartbeat("g", &beat(&id, 2));
    assert_eq!(after, Err(GroupError::RebalanceInProgress), "its session has ended");
}

#[tokio::test(start_paused = true)]
async fn a_sync_whose_connection_goes_away_takes_no_write_with_it() {
    let (coordinator, log) = start(Options::default());
    let joined = join(&coordinator, "g").await;
    log.set_behavior(LogBehavior::Slow(s(2)));
    let id = joined.member_id.clone();
    let request = sync(&id, 1, &[(&id, "p0")]);
    let cloned = coordinator.clone();
    let syncing = tokio::spawn(async move { cloned.sync("g", request).await });
    sleep(s(1)).await;
    syncing.abort();
    sleep(s(2)).await;
    assert_eq!(
        (state(&coordinator, "g"), waiters(&coordinator)),
        (Ok(ClassicGroupState::Stable), 0)
    );
    let resynced = coordinator.sync("g", sync(&id, 1, &[])).await;
    assert_eq!(resynced.assignment, "p0");
}

#[tokio::test(start_paused = true)]
async fn a_log_that_fails_or_hangs_makes_the_members_join_again() {
    for mood in [LogBehavior::Failing, LogBehavior::Slow(s(60))] {
        let (coordinator, log) = start(Options::default());
        let joined = join(&coordinator, "g").await;
        log.set_behavior(mood);
        let id = joined.member_id;
        let answer = coordinator.sync("g", sync(&id, 1, &[(&id, "p0")])).await;
        assert_eq!(answer.error, Some(GroupError::CoordinatorNotAvailable));
        assert_eq!(state(&coordinator, "g"), Ok(ClassicGroupState::PreparingRebalance));

        log.set_behavior(LogBehavior::Healthy);
        let joined = coordinator.join("g", consumer(&id)).await;
        assert_eq!((joined.error, joined.generation_id), (None, 2));
        let answer = coordinator.sync("g", sync(&id, 2, &[(&id, "p1")])).await;
        assert_eq!(answer.assignment, "p1");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_members_heartbeat_on() {
    let (coordinator, log) = start(Options::default());
    let id = stable(&coordinator, "g").await;
    let snapshot = log.snapshots.lock()["g"].clone();
    let (restarted, _) = start(Options::default());
    restarted.restore("g", &snapshot).unwrap();
    assert_eq!(restarted.heartbeat("g", &beat(&id, 1)), Ok(()));
    assert_eq!(restarted.sync("g", sync(&id, 1, &[])).await.assignment, "p0");
    sleep(s(11)).await;
    assert_eq!(state(&restarted, "g"), Ok(ClassicGroupState::Empty));
    assert!(restarted.restore("h", &StoredGroup::whole(b"\x07nonsense".to_vec())).is_err());
}

#[tokio::test(start_paused = true)]
async fn requests_for_a_group_that_is_not_there_are_answered_as_to_an_unknown_member() {
    let (coordinator, _) = start(Options::default());
    let joined = coordinator.join("g", consumer("x")).await;
    assert_eq!(joined.error, Some(GroupError::UnknownMemberId));
    let synced = coordinator.sync("g", sync("x", 1, &[])).await;
    assert_eq!(synced.error, Some(GroupError::UnknownMemberId));
    assert_eq!(coordinator.heartbeat("g", &beat("x", 1)), Err(GroupError::UnknownMemberId));
    let results = coordinator.leave("g", &[leaving("x")]).await.unwrap();
    assert_eq!(results[0].error, Some(GroupError::UnknownMemberId));
    assert_eq!(coordinator.delete("g").await, Err(GroupError::GroupIdNotFound));
    assert_eq!(state(&coordinator, "g"), Err(GroupError::GroupIdNotFound));
    let member = CommitFence { generation_id: 1, ..simple_commit() };
    assert_eq!(
        coordinator.commit("g", &member, &Vec::new, || ()),
        Err(GroupError::GroupIdNotFound)
    );
    assert!(coordinator.list().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_group_without_an_id_is_refused_but_for_commits() {
    let (coordinator, _) = start(Options::default());
    let joined = coordinator.join("", consumer("")).await;
    assert_eq!(joined.error, Some(GroupError::InvalidGroupId));
    assert_eq!(coordinator.heartbeat("", &beat("x", 1)), Err(GroupError::InvalidGroupId));
    assert_eq!(coordinator.commit("", &simple_commit(), &Vec::new, || ()), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_group_is_deleted_once_it_is_empty_and_can_be_joined_again() {
    let (coordinator, log) = start(Options::default());
    let id = stable(&coordinator, "g").await;
    assert_eq!(coordinator.delete("g").await, Err(GroupError::NonEmptyGroup));
    assert_eq!(coordinator.leave("g", &[leaving(&id)]).await.unwrap()[0].error, None);
    assert_eq!(coordinator.delete("g").await, Ok(()));
    sleep(s(1)).await;
    assert!(log.snapshots.lock().is_empty(), "the write of the empty group came not after");
    assert_eq!(coordinator.delete("g").await, Err(GroupError::GroupIdNotFound));
    let joined = join(&coordinator, "g").await;
    assert_eq!((joined.error, joined.generation_id), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_deleted_stays_and_meanwhile_is_not_available() {
    let (coordinator, log) = start(Options::default());
    let id = stable(&coordinator, "g").await;
    coordinator.leave("g", &[leaving(&id)]).await.unwrap();
    sleep(s(1)).await;
    log.set_behavior(LogBehavior::Slow(s(60)));
    let cloned = coordinator.clone();
    let deleting = tokio::spawn(async move { cloned.delete("g").await });
    sleep(s(1)).await;
    let joined = coordinator.join("g", consumer("")).await;
    assert_eq!(joined.error, Some(GroupError::CoordinatorNotAvailable));
    assert_eq!(deleting.await.unwrap(), Err(GroupError::CoordinatorNotAvailable));
    assert_eq!(state(&coordinator, "g"), Ok(ClassicGroupState::Empty));
    log.set_behavior(LogBehavior::Healthy);
    assert_eq!(coordinator.delete("g").await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn groups_are_bounded_and_idle_ones_without_offsets_make_room() {
    let (coordinator, log) = start(Options { groups_max: 2, ..Options::default() });
    let id = stable(&coordinator, "left").await;
    coordinator.leave("left", &[leaving(&id)]).await.unwrap();
    assert_eq!(coordinator.commit("offsets", &simple_commit(), &Vec::new, || ()), Ok(()));
    log.with_offsets.lock().push("offsets".to_owned());
    let joined = coordinator.join("third", consumer("")).await;
    assert_eq!(joined.error, Some(GroupError::TooManyGroups));
    sleep(s(601)).await;
    let overviews = coordinator.list();
    assert_eq!(
        overviews.iter().map(|group| group.group_id.as_str()).collect::<Vec<_>>(),
        ["offsets"]
    );
    assert!(log.snapshots.lock().is_empty());
    assert_eq!(join(&coordinator, "third").await.error, None);

    log.with_offsets.lock().clear();
    sleep(s(601)).await;
    assert_eq!(state(&coordinator, "offsets"), Err(GroupError::GroupIdNotFound));
}

#[tokio::test(start_paused = true)]
async fn members_of_all_groups_share_a_budget_and_those_who_leave_make_room() {
    let (coordinator, _) = start(Options {
        groups_bytes_max: 16 << 10,
        initial_rebalance_delay: Duration::ZERO,
        ..Options::default()
    });
    let mut members = Vec::new();
    let refused = loop {
        let group = format!("g{}", members.len());
        let answer = coordinator.join(&group, consumer("")).await;
        let joined = match answer.error {
            Some(GroupError::MemberIdRequired) => {
                coordinator.join(&group, consumer(&answer.member_id)).await
            }
            _ => answer,
        };
        let Some(error) = joined.error else {
            let assigned = sync(&joined.member_id, joined.generation_id, &[]);
            assert_eq!(coordinator.sync(&group, assigned).await.error, None);
            members.push(joined.member_id);
            continue;
        };
        assert_eq!(error, GroupError::TooManyBytes);
        break group;
    };
    assert!((4..16).contains(&members.len()), "{members:?}");
    // Members may join again, but with no more bytes than there is room for.
    let rejoined = coordinator.join("g0", consumer(&members[0])).await;
    assert_eq!(rejoined.error, None);
    let large = "x".repeat(16 << 10);
    let request = sync(&members[0], rejoined.generation_id, &[(&members[0], &large)]);
    assert_eq!(coordinator.sync("g0", request).await.error, Some(GroupError::TooManyBytes));
    assert_eq!(
        coordinator.commit("simple", &simple_commit(), &Vec::new, || ()),
        Err(GroupError::TooManyBytes)
    );

    for (nth, member) in members.iter().enumerate() {
        let group = format!("g{nth}");
        coordinator.leave(&group, &[leaving(member)]).await.unwrap();
        assert_eq!(coordinator.delete(&group).await, Ok(()));
    }
    assert_eq!(join(&coordinator, "g0").await.error, None);
    sleep(s(3600)).await;
    assert!(coordinator.list().is_empty(), "{refused} and g0 are removed");
    assert_eq!(coordinator.shared.budgets.bytes.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn groups_of_which_there_are_only_offsets_are_listed_as_empty() {
    let (coordinator, _) = start(Options::default());
    coordinator.restore_without_members("b");
    stable(&coordinator, "a").await;
    coordinator.restore_without_members("a");
    let overviews = coordinator.list();
    let groups: Vec<_> = overviews
        .iter()
        .map(|group| (group.group_id.as_str(), group.protocol_type.as_str(), group.state))
        .collect();
    assert_eq!(groups, [("a", "consumer", "Stable"), ("b", "", "Empty")]);
}

#[tokio::test(start_paused = true)]
async fn closing_answers_all_that_wait_and_refuses_the_rest() {
    let (coordinator, _) = start(Options::default());
    let waiting = spawn_join(&coordinator, "g");
    sleep(s(1)).await;
    coordinator.close();
    assert_eq!(waiting.await.unwrap().error, Some(GroupError::CoordinatorNotAvailable));
    let late_join = coordinator.join("g", consumer("")).await;
    assert_eq!(late_join.error, Some(GroupError::CoordinatorNotAvailable));
}

#[tokio::test(start_paused = true)]
async fn the_timer_task_ends_with_the_last_clone() {
    let (coordinator, _) = start(Options::default());
    stable(&coordinator, "g").await;
    let shared = Arc::downgrade(&coordinator.shared);
    let alarms = Arc::downgrade(&coordinator.shared.timers);
    drop(coordinator);
    sleep(s(1)).await;
    assert!(shared.upgrade().is_none() && alarms.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_group_has_one_timer_however_often_its_deadlines_move() {
    let (coordinator, _) = start(Options::default());
    let id = stable(&coordinator, "g").await;
    for _ in 0..200 {
        advance(Duration::from_millis(700)).await;
        coordinator.heartbeat("g", &beat(&id, 1)).unwrap();
        let _ = coordinator.join("g", consumer("")).await;
        assert_eq!(coordinator.shared.timers.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_of_many_groups_at_once_all_get_an_assignment() {
    let delay = Duration::from_millis(20);
    let options = Options { initial_rebalance_delay: delay, ..Options::default() };
    let (coordinator, _) = start(options);
    let clients: Vec<JoinHandle<()>> = (0..40)
        .map(|client| {
            let coordinator = coordinator.clone();
            tokio::spawn(async move { take_part(&coordinator, ["a", "b", "c"][client % 3]).await })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(waiters(&coordinator), 0);
}

/// Joins and syncs, over and over, until there is an assignment. Then it leaves, so that no request
/// waits for a member that is done.
async fn take_part(coordinator: &GroupCoordinator, group: &str) {
    let mut id = coordinator.join(group, consumer("")).await.member_id;
    loop {
        let joined = coordinator.join(group, consumer(&id)).await;
        match joined.error {
            None => {}
            Some(GroupError::UnknownMemberId) => {
                id = coordinator.join(group, consumer("")).await.member_id;
                continue;
            }
            Some(error) => panic!("{error}"),
        }
        let ids = joined.members.iter().map(|member| member.member_id.as_str());
        let assignments: Vec<(&str, &str)> = ids.map(|id| (id, id)).collect();
        let synced = coordinator.sync(group, sync(&id, joined.generation_id, &assignments)).await;
        match synced.error {
            None => {
                assert_eq!(synced.assignment, id);
                coordinator.leave(group, &[leaving(&id)]).await.unwrap();
                return;
            }
            Some(GroupError::RebalanceInProgress | GroupError::UnknownMemberId) => {}
            Some(GroupError::IllegalGeneration) => {}
            Some(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_acts_on_a_group_that_is_held_and_one_with_members_is_not_held() {
    let (coordinator, _) = start(Options::default());
    let hold = coordinator.hold("g").unwrap();
    assert_eq!(coordinator.hold("g").err(), Some(GroupError::CoordinatorNotAvailable));
    let answer = coordinator.join("g", consumer("")).await;
    assert_eq!(answer.error, Some(GroupError::CoordinatorNotAvailable));
    let fence = CommitFence {
        member_id: String::new(),
        group_instance_id: None,
        generation_id: -1,
        kind: CommitKind::Plain,
        knows_epochs: true,
    };
    let refused = coordinator.commit("g", &fence, &Vec::new, || ());
    assert_eq!(refused, Err(GroupError::CoordinatorNotAvailable));
    assert_eq!(coordinator.delete("g").await, Err(GroupError::CoordinatorNotAvailable));
    drop(hold);
    assert_eq!(coordinator.commit("g", &fence, &Vec::new, || ()), Ok(()));
    let answer = coordinator.join("g", consumer("")).await;
    assert_eq!(answer.error, Some(GroupError::MemberIdRequired));
    let answer = coordinator.join("g", consumer(&answer.member_id)).await;
    assert_eq!(answer.error, None);
    assert_eq!(coordinator.hold("g").err(), Some(GroupError::NonEmptyGroup));
    assert_eq!(coordinator.hold("").err(), Some(GroupError::InvalidGroupId));
}

/// A consumer of the classic protocol that reads the topic `t`.
fn reader(member_id: &str) -> JoinRequest {
    let metadata = [&[0, 0, 0, 0, 0, 1, 0, 1, b't'][..], &[0xff; 4]].concat();
    JoinRequest { protocols: vec![("range".to_owned(), metadata.into())], ..consumer(member_id) }
}

fn heartbeat(member_id: &str, member_epoch: i32) -> ConsumerHeartbeat {
    let joins = member_epoch == 0;
    ConsumerHeartbeat {
        member_id: member_id.to_owned(),
        member_epoch,
        rebalance_timeout: joins.then_some(s(60)),
        topics: joins.then(|| ["t".to_owned()].into()),
        owned: joins.then(Default::default),
        ..ConsumerHeartbeat::default()
    }
}

fn assigned_count(answer: &ConsumerHeartbeatAnswer) -> usize {
    answer.assignment.iter().flat_map(|topics| topics.values()).map(|indexes| indexes.len()).sum()
}

/// The partitions of `t` in an assignment of the classic protocol.
fn classic_count(assignment: &[u8]) -> usize {
    crate::assigned(Some("consumer"), assignment).unwrap().remove("t").unwrap_or_default().len()
}

#[tokio::test(start_paused = true)]
async fn a_classic_group_changes_its_kind_with_its_members_and_back() {
    let (coordinator, log) = start(Options::default());
    let answer = coordinator.join("g", reader("")).await;
    let old = answer.member_id;
    let generation = coordinator.join("g", reader(&old)).await.generation_id;
    let four_partitions =
        [0, 0, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3];
    let four_partitions = Bytes::from([&four_partitions[..], &[0xff; 4]].concat());
    let assigning = SyncRequest {
        assignments: vec![(old.clone(), four_partitions)],
        ..sync(&old, generation, &[])
    };
    assert_eq!(classic_count(&coordinator.sync("g", assigning).await.assignment), 4);

    let joined = coordinator.consumer_heartbeat("g", heartbeat("new", 0), &|_| true).await.unwrap();
    assert_eq!((joined.member_epoch, assigned_count(&joined)), (generation + 1, 0));
    assert_eq!(coordinator.list()[0].group_type.name(), "consumer");
    assert_eq!(state(&coordinator, "g"), Err(GroupError::OtherGroupType));
    let answer = coordinator.heartbeat("g", &beat(&old, generation));
    assert_eq!(answer, Err(GroupError::RebalanceInProgress));
    // It still has all, and learns what to give up.
    let metadata = |owned: &[u8]| {
        let count = owned.len() as u8;
        let owned = owned.iter().flat_map(|index| [0, 0, 0, *index]);
        let head = [0, 1, 0, 0, 0, 1, 0, 1, b't', 0xff, 0xff, 0xff, 0xff];
        let tail = [0, 0, 0, 1, 0, 1, b't', 0, 0, 0, count].into_iter().chain(owned);
        Bytes::from(head.into_iter().chain(tail).collect::<Vec<u8>>())
    };
    let rejoin = |owned: &[u8]| JoinRequest {
        protocols: vec![("range".to_owned(), metadata(owned))],
        ..reader(&old)
    };
    let first = coordinator.join("g", rejoin(&[0, 1, 2, 3])).await;
    assert_eq!((first.error, first.generation_id), (None, generation));
    let synced = coordinator.sync("g", sync(&old, first.generation_id, &[])).await;
    assert_eq!((synced.error, classic_count(&synced.assignment)), (None, 2));
    let second = coordinator.join("g", rejoin(&[0, 1])).await;
    assert_eq!(second.generation_id, generation + 1);
    let synced = coordinator.sync("g", sync(&old, second.generation_id, &[])).await;
    assert_eq!((synced.error, classic_count(&synced.assignment)), (None, 2));
    let alive = ConsumerHeartbeat {
        owned: Some(Default::default()),
        ..heartbeat("new", joined.member_epoch)
    };
    let alive = coordinator.consumer_heartbeat("g", alive, &|_| true).await.unwrap();
    assert_eq!(assigned_count(&alive), 2);

    coordinator.consumer_heartbeat("g", heartbeat("new", -1), &|_| true).await.unwrap();
    assert_eq!(state(&coordinator, "g"), Ok(ClassicGroupState::PreparingRebalance));
    let stored = log.snapshots.lock()["g"].clone();
    assert!(stored.members.is_empty() && GroupSnapshot::decode(&stored.snapshot).is_ok());
    let last = coordinator.join("g", reader(&old)).await;
    assert_eq!((last.error, last.generation_id), (None, generation + 3));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_stored_is_not_given_and_the_next_request_tries_again() {
    let (coordinator, log) = start(Options::default());
    log.set_behavior(LogBehavior::Failing);
    let unavailable = Err(GroupError::CoordinatorNotAvailable);
    assert_eq!(
        coordinator.consumer_heartbeat("g", heartbeat("m", 0), &|_| true).await,
        unavailable
    );
    assert_eq!(
        coordinator.consumer_heartbeat("g", heartbeat("m", 0), &|_| true).await,
        unavailable
    );
    assert!(log.snapshots.lock().is_empty());
    log.set_behavior(LogBehavior::Healthy);
    let joined = coordinator.consumer_heartbeat("g", heartbeat("m", 0), &|_| true).await.unwrap();
    assert_eq!((joined.member_epoch, assigned_count(&joined)), (1, 4));
    let (restarted, _) = start(Options::default());
    restarted.restore("g", &log.snapshots.lock()["g"]).unwrap();
    let alive = restarted.consumer_heartbeat("g", heartbeat("m", 1), &|_| true).await.unwrap();
    assert_eq!(alive.member_epoch, 1);
    log.set_behavior(LogBehavior::Slow(s(6)));
    assert_eq!(
        coordinator.consumer_heartbeat("g", heartbeat("n", 0), &|_| true).await,
        unavailable
    );
}

#[tokio::test(start_paused = true)]
async fn members_that_change_meanwhile_share_one_write() {
    let (coordinator, log) = start(Options::default());
    log.set_behavior(LogBehavior::Slow(s(1)));
    let began = Instant::now();
    let join = |nth: usize| {
        let coordinator = coordinator.clone();
        tokio::spawn(async move {
            coordinator.consumer_heartbeat("g", heartbeat(&format!("m{nth}"), 0), &|_| true).await
        })
    };
    for join in (0..50).map(join).collect::<Vec<_>>() {
        join.await.unwrap().unwrap();
    }
    assert!(began.elapsed() <= s(2), "{:?}", began.elapsed());
    assert_eq!(log.snapshots.lock()["g"].members.len(), 50);
}

#[tokio::test(start_paused = true)]
async fn the_policy_says_which_groups_may_change_their_kind() {
    let upgrade_only = |migration| Options {
        consumer: ConsumerOptions { migration, ..ConsumerOptions::default() },
        ..Options::default()
    };
    let (coordinator, _) = start(upgrade_only(MigrationPolicy::Disabled));
    stable(&coordinator, "g").await;
    let refused = coordinator.consumer_heartbeat("g", heartbeat("new", 0), &|_| true).await;
    assert_eq!(refused, Err(GroupError::GroupIdNotFound));
    assert_eq!(state(&coordinator, "g"), Ok(ClassicGroupState::Stable));
    let (coordinator, _) = start(upgrade_only(MigrationPolicy::Bidirectional));
    let connect = JoinRequest { protocol_type: "connect".to_owned(), ..consumer("") };
    let answer = coordinator.join("g", connect.clone()).await;
    let joining = JoinRequest { member_id: answer.member_id, ..connect };
    assert_eq!(coordinator.join("g", joining).await.error, None);
    let refused = coordinator.consumer_heartbeat("g", heartbeat("new", 0), &|_| true).await;
    assert_eq!(refused, Err(GroupError::GroupIdNotFound), "not consumers");
}

/// Asserts that the contents of the log can be restored, and are the group.
fn assert_stored(coordinator: &GroupCoordinator, log: &MemoryGroupLog) {
    let stored = log.snapshots.lock()["g"].clone();
    let (restarted, _) = start(Options::default());
    restarted.restore("g", &stored).unwrap();
    assert_eq!(restarted.describe_consumer("g"), coordinator.describe_consumer("g"));
}

#[tokio::test(start_paused = true)]
async fn a_group_that_changes_its_kind_twice_during_a_write_is_stored_as_what_it_is() {
    let (coordinator, log) = start(Options::default());
    coordinator.consumer_heartbeat("g", heartbeat("a", 0), &|_| true).await.unwrap();
    let classic = coordinator.join("g", reader("b")).await;
    assert_eq!(classic.error, None);
    log.set_behavior(LogBehavior::Slow(s(2)));
    let spawn = |request: ConsumerHeartbeat| {
        let coordinator = coordinator.clone();
        tokio::spawn(async move { coordinator.consumer_heartbeat("g", request, &|_| true).await })
    };
    // A write is on its way while the group becomes a classic one, and a new one.
    let rejoined = spawn(ConsumerHeartbeat { regex: Some("t.*".into()), ..heartbeat("a", 0) });
    sleep(Duration::from_millis(500)).await;
    let leaving = spawn(heartbeat("a", -1));
    sleep(Duration::from_millis(100)).await;
    assert_eq!(state(&coordinator, "g"), Ok(ClassicGroupState::PreparingRebalance));
    let joining = spawn(heartbeat("d", 0));
    sleep(Duration::from_millis(1600)).await;
    assert!(!joining.is_finished(), "its own write is on its way");
    for answer in [rejoined, leaving, joining] {
        assert!(answer.await.unwrap().is_ok());
    }
    assert_stored(&coordinator, &log);
    assert!(!log.snapshots.lock()["g"].members.contains_key("a"));
}

#[tokio::test(start_paused = true)]
async fn the_last_member_s_leave_is_answered_and_stored_whoever_joins_meanwhile() {
    let (coordinator, log) = start(Options::default());
    coordinator.consumer_heartbeat("g", heartbeat("a", 0), &|_| true).await.unwrap();
    log.set_behavior(LogBehavior::Slow(s(1)));
    let leaving = {
        let coordinator = coordinator.clone();
        tokio::spawn(async move {
            coordinator.consumer_heartbeat("g", heartbeat("a", -1), &|_| true).await
        })
    };
    sleep(Duration::from_millis(10)).await;
    assert_eq!(coordinator.join("g", reader("")).await.error, Some(GroupError::MemberIdRequired));
    let began = Instant::now();
    assert!(leaving.await.unwrap().is_ok());
    assert!(began.elapsed() <= s(2), "{:?}", began.elapsed());
    assert!(log.snapshots.lock()["g"].members.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_stored_is_stored_though_nobody_names_the_group_again() {
    let (coordinator, log) = start(Options::default());
    coordinator.consumer_heartbeat("g", heartbeat("a", 0), &|_| true).await.unwrap();
    log.set_behavior(LogBehavior::Failing);
    assert!(coordinator.consumer_heartbeat("g", heartbeat("a", -1), &|_| true).await.is_err());
    log.set_behavior(LogBehavior::Healthy);
    sleep(s(6)).await;
    assert!(log.snapshots.lock()["g"].members.is_empty());
}
