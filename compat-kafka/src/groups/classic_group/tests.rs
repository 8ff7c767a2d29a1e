//! One group, step by step.

use super::super::{
    ClassicGroupState, CommitFence, CommitKind, GroupError, GroupHeartbeatRequest, GroupSnapshot,
    JoinRequest, Options, SyncRequest,
};
use super::test_classic_group::{TestClassicGroup, consumer, protocols, s, static_consumer};
use super::{ClassicGroup, WriteResult};
use std::sync::Arc;
use std::time::Duration;

fn two() -> (TestClassicGroup, String, String) {
    let mut bench = TestClassicGroup::new();
    let ids = bench.stable(&[consumer(""), consumer("")]);
    let [leader, follower] = ids.try_into().expect("two members");
    (bench, leader, follower)
}

fn fence(member_id: &str, generation_id: i32) -> CommitFence {
    let member_id = member_id.to_owned();
    CommitFence { member_id, group_instance_id: None, generation_id, kind: CommitKind::Plain }
}

// Joining

#[test]
fn a_member_without_an_id_is_given_one_and_counts_only_once_it_joins_with_it() {
    let mut bench = TestClassicGroup::new();
    let first = bench.join(consumer(""));
    assert_eq!(bench.refused(first), GroupError::MemberIdRequired);
    let id = bench.joins[&first].member_id.clone();
    assert_eq!(id, "app-00000000-0000-0000-0000-000000000001");
    assert_eq!((bench.group.state(), bench.group.member_count()), (ClassicGroupState::Empty, 0));

    let second = bench.join(consumer(&id));
    bench.advance_clock(s(3));
    let answer = bench.joined(second);
    assert_eq!((answer.generation_id, answer.leader.as_str()), (1, id.as_str()));
    assert_eq!(answer.protocol_name.as_deref(), Some("range"));
    assert_eq!(answer.members[0].metadata, "range");
}

#[test]
fn an_id_that_was_given_out_and_not_used_expires_with_its_session() {
    let mut bench = TestClassicGroup::new();
    let given = bench.join(consumer(""));
    let id = bench.joins[&given].member_id.clone();
    bench.advance_clock(s(10));
    let late = bench.join(consumer(&id));
    assert_eq!(bench.refused(late), GroupError::UnknownMemberId);
}

#[test]
fn old_clients_are_added_without_an_id_and_static_ones_by_their_instance() {
    let mut bench = TestClassicGroup::new();
    let old = bench.join(JoinRequest { require_known_member_id: false, ..consumer("") });
    let fixed = bench.join(static_consumer("node-1"));
    bench.advance_clock(s(6));
    assert!(bench.joined(old).member_id.starts_with("app-"));
    assert!(bench.joined(fixed).member_id.starts_with("node-1-"));
}

#[test]
fn the_first_rebalance_is_put_off_for_as_long_as_members_keep_coming() {
    let mut bench = TestClassicGroup::new();
    let first = bench.join_fully(consumer(""));
    bench.advance_clock(s(2));
    let second = bench.join_fully(consumer(""));
    bench.advance_clock(s(3));
    assert!(!bench.joins.contains_key(&first), "a member came within the first 3 s");
    bench.advance_clock(s(1));
    assert_eq!(bench.joined(first).generation_id, 1);
    assert_eq!(bench.joined(second).generation_id, 1);
}

#[test]
fn the_first_rebalance_is_put_off_no_longer_than_the_rebalance_timeout() {
    let mut bench = TestClassicGroup::new();
    let hasty = || JoinRequest { rebalance_timeout: s(7), ..consumer("") };
    let first = bench.join_fully(hasty());
    for _ in 0..7 {
        assert!(!bench.joins.contains_key(&first));
        bench.join_fully(hasty());
        bench.advance_clock(s(1));
    }
    assert_eq!(bench.joined(first).generation_id, 1);
}

#[test]
fn all_members_learn_the_leader_and_only_the_leader_learns_the_members() {
    let mut bench = TestClassicGroup::new();
    let tokens = [bench.join_fully(consumer("")), bench.join_fully(consumer(""))];
    bench.advance_clock(s(6));
    let [leader, follower] = tokens.map(|token| bench.joined(token));
    assert_eq!(leader.leader, leader.member_id);
    assert_eq!(follower.leader, leader.member_id);
    assert_eq!((leader.members.len(), follower.members.len()), (2, 0));
}

#[test]
fn the_protocol_with_the_most_votes_among_those_that_all_support_wins() {
    let mut bench = TestClassicGroup::new();
    let with = |names: &[&str]| JoinRequest { protocols: protocols(names), ..consumer("") };
    let join = bench.join_fully(with(&["only-mine", "range", "sticky"]));
    bench.join_fully(with(&["sticky", "range"]));
    bench.join_fully(with(&["sticky", "range"]));
    bench.gather();
    assert_eq!(bench.joined(join).protocol_name.as_deref(), Some("sticky"));
}

#[test]
fn a_tie_between_protocols_goes_to_the_first_by_name() {
    let mut bench = TestClassicGroup::new();
    let with = |names: &[&str]| JoinRequest { protocols: protocols(names), ..consumer("") };
    let join = bench.join_fully(with(&["b", "a"]));
    bench.join_fully(with(&["a", "b"]));
    bench.gather();
    assert_eq!(bench.joined(join).protocol_name.as_deref(), Some("a"));
}

#[test]
fn joins_that_the_group_cannot_take_are_refused_with_a_reason_of_their_own() {
    let other_type = JoinRequest { protocol_type: "connect".to_owned(), ..consumer("") };
    let other_protocol = JoinRequest { protocols: protocols(&["x"]), ..consumer("") };
    let no_protocol = JoinRequest { protocols: Vec::new(), ..consumer("") };
    let hasty = JoinRequest { session_timeout: s(5), ..consumer("") };
    let lazy = JoinRequest { session_timeout: s(1801), ..consumer("") };
    let huge = "x".repeat(2 << 20);
    let large = JoinRequest { protocols: protocols(&["range", &huge]), ..consumer("") };
    let table = [
        (other_type, GroupError::InconsistentGroupProtocol),
        (other_protocol, GroupError::InconsistentGroupProtocol),
        (no_protocol, GroupError::InconsistentGroupProtocol),
        (hasty, GroupError::InvalidSessionTimeout),
        (lazy, GroupError::InvalidSessionTimeout),
        (large, GroupError::TooLarge),
        (consumer("nobody"), GroupError::UnknownMemberId),
    ];
    let (mut bench, ..) = two();
    for (request, error) in table {
        let join = bench.join(request);
        assert_eq!(bench.refused(join), error);
        assert_eq!(bench.group.state(), ClassicGroupState::Stable);
    }
}

#[test]
fn a_full_group_takes_no_new_member_but_lets_its_own_come_back() {
    let mut bench = TestClassicGroup::with(Options { group_max_size: 2, ..Options::default() });
    let ids = bench.stable(&[consumer(""), static_consumer("node-1")]);
    let third = bench.join(consumer(""));
    assert_eq!(bench.refused(third), GroupError::GroupMaxSizeReached);
    let back = bench.join(static_consumer("node-1"));
    assert_eq!(bench.joined(back).generation_id, 1);
    let again = bench.join(consumer(ids.iter().find(|id| id.starts_with("app")).unwrap()));
    assert_ne!(
        bench.joins.get(&again).and_then(|answer| answer.error),
        Some(GroupError::GroupMaxSizeReached)
    );
}

#[test]
fn a_group_takes_no_more_bytes_than_it_may() {
    let mut bench = TestClassicGroup::with(Options { group_bytes_max: 1000, ..Options::default() });
    bench.join_fully(consumer(""));
    let mut refused = 0;
    for _ in 0..5 {
        let join = bench.join_fully(consumer(""));
        refused += usize::from(bench.joins.contains_key(&join));
    }
    assert_eq!((bench.group.member_count(), refused), (2, 4));
}

#[test]
fn only_so_many_ids_are_given_out_at_a_time() {
    let mut bench =
        TestClassicGroup::with(Options { pending_members_max: 1, ..Options::default() });
    bench.join(consumer(""));
    let second = bench.join(consumer(""));
    assert_eq!(bench.refused(second), GroupError::GroupMaxSizeReached);
}

#[test]
fn a_follower_that_joins_again_unchanged_is_told_the_generation_that_stands() {
    let (mut bench, leader, follower) = two();
    let join = bench.join(consumer(&follower));
    let answer = bench.joined(join);
    assert_eq!((answer.generation_id, answer.leader), (1, leader));
    assert_eq!(bench.group.state(), ClassicGroupState::Stable);
}

#[test]
fn a_leader_that_joins_again_begins_a_rebalance() {
    let (mut bench, leader, follower) = two();
    let join = bench.join(consumer(&leader));
    assert_eq!(bench.group.state(), ClassicGroupState::PreparingRebalance);
    assert_eq!(bench.heartbeat(&follower), Err(GroupError::RebalanceInProgress));
    let other = bench.join(consumer(&follower));
    assert_eq!(bench.joined(join).generation_id, 2);
    assert_eq!(bench.joined(other).leader, leader);
}

#[test]
fn a_member_with_other_metadata_begins_a_rebalance() {
    let (mut bench, _, follower) = two();
    bench.join(JoinRequest { protocols: protocols(&["range", "x"]), ..consumer(&follower) });
    assert_eq!(bench.group.state(), ClassicGroupState::PreparingRebalance);
}

#[test]
fn while_an_assignment_is_due_a_member_may_ask_again_what_it_was_told() {
    let (mut bench, leader, follower) = two();
    bench.join(consumer(&leader));
    bench.join(consumer(&follower));
    assert_eq!(bench.group.state(), ClassicGroupState::CompletingRebalance);
    let again = bench.join(consumer(&leader));
    assert_eq!(bench.joined(again).members.len(), 2);
    assert_eq!(bench.group.state(), ClassicGroupState::CompletingRebalance);
}

#[test]
fn a_join_that_is_sent_twice_is_answered_twice() {
    let mut bench = TestClassicGroup::new();
    let given = bench.join(consumer(""));
    let id = bench.joins[&given].member_id.clone();
    let (first, second) = (bench.join(consumer(&id)), bench.join(consumer(&id)));
    bench.gather();
    assert_eq!(bench.refused(first), GroupError::RebalanceInProgress);
    assert_eq!(bench.joined(second).generation_id, 1);
}

#[test]
fn dynamic_members_that_do_not_join_in_time_are_dropped_and_another_leads() {
    let (mut bench, leader, follower) = two();
    let changed = JoinRequest { protocols: protocols(&["range", "x"]), ..consumer(&follower) };
    let join = bench.join(changed);
    for _ in 0..12 {
        bench.advance_clock(s(5));
        let _ = bench.heartbeat(&leader);
    }
    let answer = bench.joined(join);
    assert_eq!((answer.leader, answer.members.len()), (follower, 1));
    assert_eq!(bench.heartbeat(&leader), Err(GroupError::UnknownMemberId));
}

#[test]
fn static_members_that_do_not_join_stay_until_their_session_ends() {
    let mut bench = TestClassicGroup::new();
    let patient = |name| JoinRequest { session_timeout: s(90), ..static_consumer(name) };
    let ids = bench.stable(&[patient("a"), patient("b")]);
    let instance = Some(ids[0][..1].to_owned());
    let join = bench.join(JoinRequest { group_instance_id: instance, ..consumer(&ids[0]) });
    bench.advance_clock(s(60));
    assert_eq!(bench.joined(join).members.len(), 2);
    assert_eq!(bench.group.generation(), 2);
    bench.advance_clock(s(90));
    assert_eq!(bench.group.member_count(), 0);
}

#[test]
fn a_rebalance_that_nobody_joins_goes_on_until_the_sessions_end() {
    let mut bench = TestClassicGroup::new();
    let patient = JoinRequest { session_timeout: s(600), ..static_consumer("a") };
    let leaver = bench.stable(&[patient, consumer("")]);
    let dynamic = leaver.iter().find(|id| id.starts_with("app")).unwrap();
    assert_eq!(bench.leave(dynamic, None), None);
    bench.advance_clock(s(300));
    assert_eq!(bench.group.state(), ClassicGroupState::PreparingRebalance);
    bench.advance_clock(s(600));
    assert_eq!(bench.group.state(), ClassicGroupState::Empty);
}

#[test]
fn a_new_member_that_waits_too_long_for_its_first_answer_is_told_to_start_over() {
    let mut bench = TestClassicGroup::new();
    let slow = JoinRequest { session_timeout: s(600), rebalance_timeout: s(900), ..consumer("") };
    bench.stable(std::slice::from_ref(&slow));
    let join = bench.join_fully(slow);
    bench.advance_clock(s(300));
    assert_eq!(bench.refused(join), GroupError::UnknownMemberId);
    assert_eq!(bench.joins[&join].member_id, "");
}

// Syncing

#[test]
fn no_sync_is_answered_before_the_assignment_is_stored() {
    let mut bench = TestClassicGroup::new();
    let joins = [bench.join_fully(consumer("")), bench.join_fully(consumer(""))];
    bench.gather();
    let [leader, follower] = joins.map(|join| bench.joined(join).member_id);
    bench.holds_writes = true;
    let waiting = bench.sync(&follower, &[]);
    let leading = bench.sync(&leader, &[(&follower, "p0"), ("invented", "p1")]);
    assert!(bench.syncs.is_empty());
    bench.end_write(WriteResult::Stored);
    assert_eq!(bench.synced(waiting), "p0");
    assert_eq!(bench.synced(leading), "", "whom the leader forgot is assigned nothing");
    let stored = bench.stored.take().unwrap();
    assert_eq!((stored.generation, stored.members.len()), (1, 2));
}

#[test]
fn an_assignment_that_cannot_be_stored_makes_all_join_again() {
    let (mut bench, leader, follower) = two();
    bench.join(consumer(&leader));
    bench.join(consumer(&follower));
    bench.holds_writes = true;
    let syncs = [bench.sync(&follower, &[]), bench.sync(&leader, &[])];
    bench.end_write(WriteResult::Failed);
    for sync in syncs {
        assert_eq!(bench.sync_refused(sync), GroupError::CoordinatorNotAvailable);
    }
    assert_eq!(bench.group.state(), ClassicGroupState::PreparingRebalance);
}

#[test]
fn an_assignment_stored_too_late_does_not_count() {
    let (mut bench, leader, follower) = two();
    bench.join(consumer(&leader));
    bench.join(consumer(&follower));
    bench.holds_writes = true;
    let sync = bench.sync(&leader, &[]);
    bench.join_fully(consumer(""));
    assert_eq!(bench.sync_refused(sync), GroupError::RebalanceInProgress);
    bench.end_write(WriteResult::Stored);
    assert_eq!(bench.group.state(), ClassicGroupState::PreparingRebalance);
}

#[test]
fn assignments_larger_than_the_group_may_be_are_refused() {
    let mut bench = TestClassicGroup::with(Options { group_bytes_max: 1000, ..Options::default() });
    let join = bench.join_fully(consumer(""));
    bench.gather();
    let id = bench.joined(join).member_id;
    let large = "x".repeat(1000);
    let sync = bench.sync(&id, &[(&id, &large)]);
    assert_eq!(bench.sync_refused(sync), GroupError::TooLarge);
}

#[test]
fn a_sync_that_does_not_fit_the_group_is_refused_with_a_reason_of_its_own() {
    let (mut bench, leader, _) = two();
    let fits = bench.sync_request(&leader, &[]);
    let some = |name: &str| Some(name.to_owned());
    let table = [
        (SyncRequest { member_id: "x".into(), ..fits.clone() }, GroupError::UnknownMemberId),
        (SyncRequest { generation_id: 7, ..fits.clone() }, GroupError::IllegalGeneration),
        (
            SyncRequest { protocol_type: some("connect"), ..fits.clone() },
            GroupError::InconsistentGroupProtocol,
        ),
        (
            SyncRequest { protocol_name: some("sticky"), ..fits.clone() },
            GroupError::InconsistentGroupProtocol,
        ),
        (
            SyncRequest { group_instance_id: some("nobody"), ..fits.clone() },
            GroupError::UnknownMemberId,
        ),
    ];
    for (request, error) in table {
        let sync = bench.sync_with(request);
        assert_eq!(bench.sync_refused(sync), error);
    }
    let old_client = SyncRequest { protocol_type: None, ..fits };
    let sync = bench.sync_with(old_client);
    assert_eq!(bench.synced(sync), leader);
}

#[test]
fn a_sync_during_a_rebalance_is_told_to_join_and_in_a_stable_group_gets_what_stands() {
    let (mut bench, leader, follower) = two();
    let stable = bench.sync(&follower, &[]);
    assert_eq!(bench.synced(stable), follower);
    bench.join(consumer(&leader));
    let early = bench.sync(&follower, &[]);
    assert_eq!(bench.sync_refused(early), GroupError::RebalanceInProgress);
}

#[test]
fn members_that_never_sync_are_dropped_after_the_rebalance_timeout() {
    let (mut bench, leader, follower) = two();
    bench.join(consumer(&leader));
    bench.join(consumer(&follower));
    bench.sync(&leader, &[]);
    assert_eq!(bench.group.state(), ClassicGroupState::Stable);
    for _ in 0..12 {
        assert_eq!(bench.heartbeat(&follower), Ok(()));
        let _ = bench.heartbeat(&leader);
        bench.advance_clock(s(5));
    }
    assert_eq!(bench.heartbeat(&follower), Err(GroupError::UnknownMemberId));
    assert_eq!(bench.heartbeat(&leader), Err(GroupError::RebalanceInProgress));
}

// Heartbeats and sessions

#[test]
fn a_silent_member_is_dropped_and_the_others_hear_of_it() {
    let (mut bench, leader, follower) = two();
    bench.advance_clock(s(6));
    assert_eq!(bench.heartbeat(&leader), Ok(()));
    bench.advance_clock(s(6));
    assert_eq!(bench.heartbeat(&leader), Err(GroupError::RebalanceInProgress));
    assert_eq!(bench.heartbeat(&follower), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_group_whose_members_all_fall_silent_becomes_empty_and_keeps_its_generation() {
    let (mut bench, ..) = two();
    bench.advance_clock(s(100));
    assert_eq!(bench.group.state(), ClassicGroupState::Empty);
    let stored = bench.stored.clone().unwrap();
    assert_eq!((stored.members.len(), stored.protocol), (0, None));
    assert_eq!(stored.protocol_type.as_deref(), Some("consumer"));
    assert!(stored.generation > 1);
}

#[test]
fn heartbeats_of_another_generation_or_a_fenced_instance_are_refused() {
    let mut bench = TestClassicGroup::new();
    let ids = bench.stable(&[static_consumer("node-1")]);
    let beat = |member_id: &str, instance: Option<&str>, generation_id| GroupHeartbeatRequest {
        member_id: member_id.to_owned(),
        group_instance_id: instance.map(str::to_owned),
        generation_id,
    };
    let table = [
        (beat(&ids[0], None, 1), Ok(())),
        (beat(&ids[0], Some("node-1"), 1), Ok(())),
        (beat(&ids[0], None, 0), Err(GroupError::IllegalGeneration)),
        (beat("other", Some("node-1"), 1), Err(GroupError::FencedInstanceId)),
        (beat(&ids[0], Some("node-2"), 1), Err(GroupError::UnknownMemberId)),
    ];
    for (request, result) in table {
        assert_eq!(bench.group.heartbeat(bench.now, &request), result, "{request:?}");
    }
}

// Static members

#[test]
fn a_static_member_comes_back_to_a_stable_group_unnoticed() {
    let mut bench = TestClassicGroup::new();
    let ids = bench.stable(&[static_consumer("a"), static_consumer("b")]);
    let (leader, follower) = (&ids[0], &ids[1]);
    let back = bench.join(static_consumer(&follower[..1]));
    let answer = bench.joined(back);
    assert_ne!(answer.member_id, *follower);
    assert_eq!((answer.generation_id, &answer.leader), (1, leader));
    assert!(!answer.skip_assignment && answer.members.is_empty());
    assert_eq!(bench.group.state(), ClassicGroupState::Stable);
    assert!(bench.stored.clone().unwrap().members.iter().any(|m| m.member_id == answer.member_id));

    let sync = bench.sync(&answer.member_id, &[]);
    assert_eq!(bench.synced(sync), *follower, "the assignment of the id before");
    assert_eq!(bench.heartbeat(leader), Ok(()));
    assert_eq!(bench.heartbeat(follower), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_leader_that_comes_back_skips_the_assignment_or_does_not_learn_that_it_leads() {
    for supports_skip_assignment in [true, false] {
        let mut bench = TestClassicGroup::new();
        let ids = bench.stable(&[static_consumer("a"), static_consumer("b")]);
        let back = static_consumer(&ids[0][..1]);
        let join = bench.join(JoinRequest { supports_skip_assignment, ..back });
        let answer = bench.joined(join);
        assert_eq!(answer.skip_assignment, supports_skip_assignment);
        assert_eq!(answer.leader == answer.member_id, supports_skip_assignment);
        assert_eq!(answer.members.len(), if supports_skip_assignment { 2 } else { 0 });
        assert_eq!(bench.group.state(), ClassicGroupState::Stable);
    }
}

#[test]
fn a_static_member_whose_new_id_cannot_be_stored_stays_who_it_was() {
    let mut bench = TestClassicGroup::new();
    let ids = bench.stable(&[static_consumer("a"), static_consumer("b")]);
    bench.holds_writes = true;
    let back = bench.join(static_consumer(&ids[1][..1]));
    bench.end_write(WriteResult::Failed);
    assert_eq!(bench.refused(back), GroupError::CoordinatorNotAvailable);
    assert_eq!(bench.heartbeat(&ids[1]), Ok(()));
}

#[test]
fn a_static_member_whose_return_changes_the_protocol_begins_a_rebalance() {
    let mut bench = TestClassicGroup::new();
    let with =
        |name, names: &[&str]| JoinRequest { protocols: protocols(names), ..static_consumer(name) };
    bench.stable(&[with("a", &["range", "sticky"])]);
    bench.join(with("a", &["sticky", "range"]));
    assert_eq!(bench.group.generation(), 2);
}

#[test]
fn a_static_member_that_is_replaced_is_fenced_where_it_waits() {
    let mut bench = TestClassicGroup::new();
    let joining = bench.join(static_consumer("a"));
    let taking_over = bench.join(static_consumer("a"));
    assert_eq!(bench.refused(joining), GroupError::FencedInstanceId);
    bench.gather();
    let id = bench.joined(taking_over).member_id;
    bench.holds_writes = true;
    let syncing = bench.sync(&id, &[]);
    let third = bench.join(static_consumer("a"));
    assert_eq!(bench.sync_refused(syncing), GroupError::FencedInstanceId);
    assert_eq!(bench.joined(third).generation_id, 2);
    assert_eq!(bench.group.member_count(), 1);
}

#[test]
fn a_static_member_that_comes_back_before_it_has_synced_costs_nobody_a_rebalance() {
    let mut bench = TestClassicGroup::new();
    let patient = |name| JoinRequest { session_timeout: s(600), ..static_consumer(name) };
    let joins = [bench.join(patient("a")), bench.join(patient("b"))];
    bench.gather();
    let leader = bench.joined(joins[0]).leader;
    bench.sync(&leader, &[]);
    let other = if leader.starts_with('a') { "b" } else { "a" };
    let back = bench.join(patient(other));
    bench.advance_clock(s(120));
    assert_eq!(bench.joined(back).generation_id, 1);
    assert_eq!((bench.group.state(), bench.group.generation()), (ClassicGroupState::Stable, 1));
}

#[test]
fn a_rebalance_that_begins_while_a_new_id_is_stored_answers_its_join() {
    let mut bench = TestClassicGroup::new();
    let ids = bench.stable(&[static_consumer("a"), static_consumer("b")]);
    bench.holds_writes = true;
    let back = bench.join(static_consumer(&ids[1][..1]));
    assert_eq!(bench.leave(&ids[0], None), None);
    assert_eq!(bench.joined(back).generation_id, 2);
    bench.end_write(WriteResult::Failed);
    assert_eq!(bench.heartbeat(&bench.joined(back).member_id), Ok(()));
}

// Leaving

#[test]
fn members_leave_by_id_or_by_instance_and_the_rest_rebalance() {
    let mut bench = TestClassicGroup::new();
    let ids = bench.stable(&[static_consumer("a"), static_consumer("b"), consumer("")]);
    assert_eq!(bench.leave("", Some("a")), None);
    assert_eq!(bench.leave("", Some("a")), Some(GroupError::UnknownMemberId));
    assert_eq!(bench.leave("", None), Some(GroupError::UnknownMemberId));
    assert_eq!(bench.leave("other", Some("b")), Some(GroupError::FencedInstanceId));
    let dynamic = ids.iter().find(|id| id.starts_with("app")).unwrap();
    assert_eq!(bench.leave(dynamic, None), None);
    assert_eq!(bench.group.state(), ClassicGroupState::PreparingRebalance);
    assert_eq!(bench.leave("", Some("b")), None);
    assert_eq!((bench.group.state(), bench.group.generation()), (ClassicGroupState::Empty, 2));
}

#[test]
fn an_id_that_was_given_out_can_be_returned_without_a_rebalance() {
    let (mut bench, ..) = two();
    let given = bench.join(consumer(""));
    let id = bench.joins[&given].member_id.clone();
    assert_eq!(bench.leave(&id, None), None);
    assert_eq!(bench.group.state(), ClassicGroupState::Stable);
}

#[test]
fn a_member_that_leaves_while_its_join_waits_is_told_that_it_is_unknown() {
    let (mut bench, leader, _) = two();
    let join = bench.join(consumer(&leader));
    assert_eq!(bench.leave(&leader, None), None);
    assert_eq!(bench.refused(join), GroupError::UnknownMemberId);
}

#[test]
fn when_the_last_that_is_waited_for_leaves_the_rest_go_on() {
    let (mut bench, leader, follower) = two();
    let join = bench.join(consumer(&leader));
    assert_eq!(bench.leave(&follower, None), None);
    assert_eq!(bench.joined(join).members.len(), 1);
}

// Commits and deletion

#[test]
fn an_empty_group_lets_anyone_commit_who_claims_no_generation() {
    let mut bench = TestClassicGroup::new();
    assert_eq!(bench.group.check_commit(bench.now, &fence("", -1)), Ok(()));
    assert_eq!(bench.group.check_commit(bench.now, &fence("x", -1)), Ok(()));
    let claims = fence("x", 1);
    assert_eq!(bench.group.check_commit(bench.now, &claims), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_group_with_members_lets_only_them_commit_and_only_in_their_generation() {
    let (mut bench, leader, follower) = two();
    let fenced = CommitFence { group_instance_id: Some("x".into()), ..fence(&leader, 1) };
    let bare = fence("", -1);
    let in_transaction = CommitFence { kind: CommitKind::Transactional, ..bare.clone() };
    let table = [
        (fence(&leader, 1), Ok(())),
        (fence(&leader, 0), Err(GroupError::IllegalGeneration)),
        (fence(&leader, -1), Err(GroupError::IllegalGeneration)),
        (fence("nobody", 1), Err(GroupError::UnknownMemberId)),
        (fenced, Err(GroupError::UnknownMemberId)),
        (bare, Err(GroupError::UnknownMemberId)),
        (in_transaction, Ok(())),
    ];
    for (asked, result) in table {
        assert_eq!(bench.group.check_commit(bench.now, &asked), result, "{asked:?}");
    }
    bench.join(consumer(&leader));
    let while_preparing = bench.group.check_commit(bench.now, &fence(&follower, 1));
    assert_eq!(while_preparing, Ok(()), "a member commits before it joins again");
    bench.join(consumer(&follower));
    let while_completing = bench.group.check_commit(bench.now, &fence(&follower, 2));
    assert_eq!(while_completing, Err(GroupError::RebalanceInProgress));
}

#[test]
fn a_commit_is_a_sign_of_life() {
    let (mut bench, leader, _) = two();
    for _ in 0..5 {
        bench.advance_clock(s(6));
        let commit = fence(&leader, bench.group.generation());
        let _ = bench.group.check_commit(bench.now, &commit);
        if bench.group.state() == ClassicGroupState::PreparingRebalance {
            bench.join(consumer(&leader));
            bench.sync(&leader, &[]);
        }
    }
    assert_eq!(bench.heartbeat(&leader), Ok(()));
}

#[test]
fn only_groups_without_members_can_be_deleted() {
    let (mut bench, leader, _) = two();
    assert_eq!(bench.group.check_delete(), Err(GroupError::NonEmptyGroup));
    bench.join(consumer(&leader));
    assert_eq!(bench.group.check_delete(), Err(GroupError::NonEmptyGroup));
    bench.advance_clock(s(200));
    assert_eq!(bench.group.check_delete(), Ok(()));
    bench.group.close();
    assert_eq!(bench.group.check_delete(), Err(GroupError::GroupIdNotFound));
}

#[test]
fn offsets_of_topics_that_a_member_reads_cannot_be_deleted() {
    let mut bench = TestClassicGroup::new();
    assert!(!bench.group.check_offset_delete().unwrap().include("t"));
    let metadata = bytes::Bytes::from_static(b"\0\x01\0\0\0\x01\0\x01t\xff\xff\xff\xff");
    let protocols = vec![("range".to_owned(), metadata)];
    bench.stable(&[JoinRequest { protocols, ..consumer("") }]);
    let read = bench.group.check_offset_delete().unwrap();
    assert!(read.include("t") && !read.include("u"));
    bench.advance_clock(s(60));
    assert!(!bench.group.check_offset_delete().unwrap().include("t"));
}

#[test]
fn offsets_of_a_group_that_is_not_consumers_are_kept_while_it_has_members() {
    let mut bench = TestClassicGroup::new();
    let worker = JoinRequest { protocol_type: "connect".to_owned(), ..consumer("") };
    bench.join_fully(worker);
    assert_eq!(bench.group.check_offset_delete(), Err(GroupError::NonEmptyGroup));
}

// Description, snapshots, closing

#[test]
fn metadata_is_described_only_while_the_group_is_stable() {
    let (mut bench, leader, follower) = two();
    let stable = bench.group.describe();
    assert_eq!((stable.state, stable.protocol_data.as_str()), (ClassicGroupState::Stable, "range"));
    let member = stable.members.iter().find(|member| member.member_id == follower).unwrap();
    assert_eq!(
        (&member.metadata[..], &member.assignment[..]),
        (&b"range"[..], follower.as_bytes())
    );
    bench.join(consumer(&leader));
    let preparing = bench.group.describe();
    assert_eq!(
        (preparing.protocol_type.as_str(), preparing.protocol_data.as_str()),
        ("consumer", "")
    );
    assert!(preparing.members.iter().all(|member| member.metadata.is_empty()));
}

#[test]
fn a_group_that_is_restored_goes_on_without_a_rebalance() {
    let mut bench = TestClassicGroup::new();
    let ids = bench.stable(&[consumer(""), static_consumer("node-1")]);
    let bytes = bench.stored.clone().unwrap().encode();
    let snapshot = GroupSnapshot::decode(&bytes).unwrap();
    let options = Arc::new(Options::default());
    let (group, effects) = ClassicGroup::restore(options, snapshot, s(1000)).unwrap();
    assert!(effects.is_empty());
    assert_eq!(group.describe(), bench.group.describe());
    let mut restored = TestClassicGroup::from_group(group, s(1000));
    for id in &ids {
        assert_eq!(restored.heartbeat(id), Ok(()));
        let sync = restored.sync(id, &[]);
        assert_eq!(restored.synced(sync), *id);
    }
    restored.advance_clock(s(60));
    assert_eq!(restored.group.state(), ClassicGroupState::Empty, "sessions began again, and ended");
}

#[test]
fn a_group_that_comes_back_with_too_many_members_rebalances() {
    let (bench, ..) = two();
    let options = Arc::new(Options { group_max_size: 1, ..Options::default() });
    let snapshot = bench.stored.clone().unwrap();
    let (group, _) = ClassicGroup::restore(options, snapshot, Duration::ZERO).unwrap();
    assert_eq!(group.state(), ClassicGroupState::PreparingRebalance);
}

#[test]
fn a_snapshot_that_contradicts_itself_is_refused() {
    let (bench, leader, _) = two();
    let good = bench.stored.clone().unwrap();
    let restore = |snapshot| ClassicGroup::restore(Arc::new(Options::default()), snapshot, s(0));
    assert!(restore(good.clone()).is_ok());
    let with = |change: fn(&mut GroupSnapshot)| {
        let mut snapshot = good.clone();
        change(&mut snapshot);
        snapshot
    };
    let table = [
        with(|snapshot| snapshot.generation = -1),
        with(|snapshot| snapshot.leader = None),
        with(|snapshot| snapshot.leader = Some("nobody".to_owned())),
        with(|snapshot| snapshot.protocol = Some("other".to_owned())),
        with(|snapshot| snapshot.protocol_type = None),
        with(|snapshot| snapshot.members.clear()),
        with(|snapshot| snapshot.members.push(snapshot.members[0].clone())),
        with(|snapshot| {
            snapshot.members.iter_mut().for_each(|m| m.group_instance_id = Some("i".to_owned()));
        }),
    ];
    for snapshot in table {
        assert!(restore(snapshot.clone()).is_err(), "{leader} {snapshot:?}");
    }
    let bytes = good.encode();
    assert!((0..bytes.len()).all(|len| GroupSnapshot::decode(&bytes[..len]).is_err()));
    assert!(GroupSnapshot::decode(&[2, 0]).is_err());
}

#[test]
fn all_that_wait_are_answered_when_the_group_is_closed() {
    let (mut bench, leader, _) = two();
    let join = bench.join(consumer(&leader));
    let effects = bench.group.close();
    assert_eq!(effects.len(), 1);
    assert!(matches!(&effects[0], super::GroupEffect::Join { token, answer }
        if *token == join && answer.error == Some(GroupError::CoordinatorNotAvailable)));
    assert_eq!(bench.heartbeat(&leader), Err(GroupError::CoordinatorNotAvailable));
    assert_eq!(bench.group.next_deadline(), None);
}
