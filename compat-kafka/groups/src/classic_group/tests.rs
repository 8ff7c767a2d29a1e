//! One group, step by step.

use std::sync::Arc;
use std::time::Duration;

use super::super::{
    ClassicGroupState, CommitFence, CommitKind, GroupError, GroupHeartbeatRequest, GroupSnapshot,
    JoinRequest, Options, SyncRequest,
};
use super::test_classic_group::{TestClassicGroup, consumer, protocols, s, static_consumer};
use super::{ClassicGroup, WriteResult};

fn two() -> (TestClassicGroup, String, String) {
    let mut fixture = TestClassicGroup::new();
    let ids = fixture.stable(&[consumer(""), consumer("")]);
    let [leader, follower] = ids.try_into().expect("two members");
    (fixture, leader, follower)
}

fn fence(member_id: &str, generation_id: i32) -> CommitFence {
    let member_id = member_id.to_owned();
    let (group_instance_id, kind, knows_epochs) = (None, CommitKind::Plain, true);
    CommitFence { member_id, group_instance_id, generation_id, kind, knows_epochs }
}

// Joining

#[test]
fn a_member_without_an_id_is_given_one_and_counts_only_once_it_joins_with_it() {
    let mut fixture = TestClassicGroup::new();
    let first = fixture.join(consumer(""));
    assert_eq!(fixture.refused(first), GroupError::MemberIdRequired);
    let id = fixture.joins[&first].member_id.clone();
    assert_eq!(id, "app-00000000-0000-0000-0000-000000000001");
    assert_eq!(
        (fixture.group.state(), fixture.group.member_count()),
        (ClassicGroupState::Empty, 0)
    );

    let second = fixture.join(consumer(&id));
    fixture.advance_clock(s(3));
    let answer = fixture.joined(second);
    assert_eq!((answer.generation_id, answer.leader.as_str()), (1, id.as_str()));
    assert_eq!(answer.protocol_name.as_deref(), Some("range"));
    assert_eq!(answer.members[0].metadata, "range");
}

#[test]
fn an_id_that_was_given_out_and_not_used_expires_with_its_session() {
    let mut fixture = TestClassicGroup::new();
    let answer = fixture.join(consumer(""));
    let id = fixture.joins[&answer].member_id.clone();
    fixture.advance_clock(s(10));
    let late_join = fixture.join(consumer(&id));
    assert_eq!(fixture.refused(late_join), GroupError::UnknownMemberId);
}

#[test]
fn old_clients_are_added_without_an_id_and_static_ones_by_their_instance() {
    let mut fixture = TestClassicGroup::new();
    let old = fixture.join(JoinRequest { require_known_member_id: false, ..consumer("") });
    let fixed = fixture.join(static_consumer("node-1"));
    fixture.advance_clock(s(6));
    assert!(fixture.joined(old).member_id.starts_with("app-"));
    assert!(fixture.joined(fixed).member_id.starts_with("node-1-"));
}

#[test]
fn the_first_rebalance_is_put_off_for_as_long_as_members_keep_coming() {
    let mut fixture = TestClassicGroup::new();
    let first = fixture.join_fully(consumer(""));
    fixture.advance_clock(s(2));
    let second = fixture.join_fully(consumer(""));
    fixture.advance_clock(s(3));
    assert!(!fixture.joins.contains_key(&first), "a member came within the first 3 s");
    fixture.advance_clock(s(1));
    assert_eq!(fixture.joined(first).generation_id, 1);
    assert_eq!(fixture.joined(second).generation_id, 1);
}

#[test]
fn the_first_rebalance_is_put_off_no_longer_than_the_rebalance_timeout() {
    let mut fixture = TestClassicGroup::new();
    let hasty = || JoinRequest { rebalance_timeout: s(7), ..consumer("") };
    let first = fixture.join_fully(hasty());
    for _ in 0..7 {
        assert!(!fixture.joins.contains_key(&first));
        fixture.join_fully(hasty());
        fixture.advance_clock(s(1));
    }
    assert_eq!(fixture.joined(first).generation_id, 1);
}

#[test]
fn all_members_learn_the_leader_and_only_the_leader_learns_the_members() {
    let mut fixture = TestClassicGroup::new();
    let tokens = [fixture.join_fully(consumer("")), fixture.join_fully(consumer(""))];
    fixture.advance_clock(s(6));
    let [leader, follower] = tokens.map(|token| fixture.joined(token));
    assert_eq!(leader.leader, leader.member_id);
    assert_eq!(follower.leader, leader.member_id);
    assert_eq!((leader.members.len(), follower.members.len()), (2, 0));
}

#[test]
fn the_protocol_with_the_most_votes_among_those_that_all_support_wins() {
    let mut fixture = TestClassicGroup::new();
    let join_with = |names: &[&str]| JoinRequest { protocols: protocols(names), ..consumer("") };
    let join = fixture.join_fully(join_with(&["only-mine", "range", "sticky"]));
    fixture.join_fully(join_with(&["sticky", "range"]));
    fixture.join_fully(join_with(&["sticky", "range"]));
    fixture.gather();
    assert_eq!(fixture.joined(join).protocol_name.as_deref(), Some("sticky"));
}

#[test]
fn a_tie_between_protocols_goes_to_the_first_by_name() {
    let mut fixture = TestClassicGroup::new();
    let join_with = |names: &[&str]| JoinRequest { protocols: protocols(names), ..consumer("") };
    let join = fixture.join_fully(join_with(&["b", "a"]));
    fixture.join_fully(join_with(&["a", "b"]));
    fixture.gather();
    assert_eq!(fixture.joined(join).protocol_name.as_deref(), Some("a"));
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
    let (mut fixture, ..) = two();
    for (request, error) in table {
        let join = fixture.join(request);
        assert_eq!(fixture.refused(join), error);
        assert_eq!(fixture.group.state(), ClassicGroupState::Stable);
    }
}

#[test]
fn a_full_group_takes_no_new_member_but_lets_its_own_come_back() {
    let mut fixture = TestClassicGroup::with(Options { group_max_size: 2, ..Options::default() });
    let ids = fixture.stable(&[consumer(""), static_consumer("node-1")]);
    let third = fixture.join(consumer(""));
    assert_eq!(fixture.refused(third), GroupError::GroupMaxSizeReached);
    let rejoined = fixture.join(static_consumer("node-1"));
    assert_eq!(fixture.joined(rejoined).generation_id, 1);
    let rejoined = fixture.join(consumer(ids.iter().find(|id| id.starts_with("app")).unwrap()));
    assert_ne!(
        fixture.joins.get(&rejoined).and_then(|answer| answer.error),
        Some(GroupError::GroupMaxSizeReached)
    );
}

#[test]
fn a_group_takes_no_more_bytes_than_it_may() {
    let mut fixture =
        TestClassicGroup::with(Options { group_bytes_max: 1000, ..Options::default() });
    fixture.join_fully(consumer(""));
    let mut refused = 0;
    for _ in 0..5 {
        let join = fixture.join_fully(consumer(""));
        refused += usize::from(fixture.joins.contains_key(&join));
    }
    assert_eq!((fixture.group.member_count(), refused), (2, 4));
}

#[test]
fn only_so_many_ids_are_given_out_at_a_time() {
    let mut fixture =
        TestClassicGroup::with(Options { pending_members_max: 1, ..Options::default() });
    fixture.join(consumer(""));
    let second = fixture.join(consumer(""));
    assert_eq!(fixture.refused(second), GroupError::GroupMaxSizeReached);
}

#[test]
fn a_follower_that_joins_again_unchanged_is_told_the_generation_that_stands() {
    let (mut fixture, leader, follower) = two();
    let join = fixture.join(consumer(&follower));
    let answer = fixture.joined(join);
    assert_eq!((answer.generation_id, answer.leader), (1, leader));
    assert_eq!(fixture.group.state(), ClassicGroupState::Stable);
}

#[test]
fn a_leader_that_joins_again_begins_a_rebalance() {
    let (mut fixture, leader, follower) = two();
    let join = fixture.join(consumer(&leader));
    assert_eq!(fixture.group.state(), ClassicGroupState::PreparingRebalance);
    assert_eq!(fixture.heartbeat(&follower), Err(GroupError::RebalanceInProgress));
    let joined = fixture.join(consumer(&follower));
    assert_eq!(fixture.joined(join).generation_id, 2);
    assert_eq!(fixture.joined(joined).leader, leader);
}

#[test]
fn a_member_with_other_metadata_begins_a_rebalance() {
    let (mut fixture, _, follower) = two();
    fixture.join(JoinRequest { protocols: protocols(&["range", "x"]), ..consumer(&follower) });
    assert_eq!(fixture.group.state(), ClassicGroupState::PreparingRebalance);
}

#[test]
fn while_an_assignment_is_due_a_member_may_ask_again_what_it_was_told() {
    let (mut fixture, leader, follower) = two();
    fixture.join(consumer(&leader));
    fixture.join(consumer(&follower));
    assert_eq!(fixture.group.state(), ClassicGroupState::CompletingRebalance);
    let rejoined = fixture.join(consumer(&leader));
    assert_eq!(fixture.joined(rejoined).members.len(), 2);
    assert_eq!(fixture.group.state(), ClassicGroupState::CompletingRebalance);
}

#[test]
fn a_join_that_is_sent_twice_is_answered_twice() {
    let mut fixture = TestClassicGroup::new();
    let answer = fixture.join(consumer(""));
    let id = fixture.joins[&answer].member_id.clone();
    let (first, second) = (fixture.join(consumer(&id)), fixture.join(consumer(&id)));
    fixture.gather();
    assert_eq!(fixture.refused(first), GroupError::RebalanceInProgress);
    assert_eq!(fixture.joined(second).generation_id, 1);
}

#[test]
fn dynamic_members_that_do_not_join_in_time_are_dropped_and_another_leads() {
    let (mut fixture, leader, follower) = two();
    let changed = JoinRequest { protocols: protocols(&["range", "x"]), ..consumer(&follower) };
    let join = fixture.join(changed);
    for _ in 0..12 {
        fixture.advance_clock(s(5));
        let _ = fixture.heartbeat(&leader);
    }
    let answer = fixture.joined(join);
    assert_eq!((answer.leader, answer.members.len()), (follower, 1));
    assert_eq!(fixture.heartbeat(&leader), Err(GroupError::UnknownMemberId));
}

#[test]
fn static_members_that_do_not_join_stay_until_their_session_ends() {
    let mut fixture = TestClassicGroup::new();
    let patient = |name| JoinRequest { session_timeout: s(90), ..static_consumer(name) };
    let ids = fixture.stable(&[patient("a"), patient("b")]);
    let instance = Some(ids[0][..1].to_owned());
    let join = fixture.join(JoinRequest { group_instance_id: instance, ..consumer(&ids[0]) });
    fixture.advance_clock(s(60));
    assert_eq!(fixture.joined(join).members.len(), 2);
    assert_eq!(fixture.group.generation(), 2);
    fixture.advance_clock(s(90));
    assert_eq!(fixture.group.member_count(), 0);
}

#[test]
fn a_rebalance_that_nobody_joins_goes_on_until_the_sessions_end() {
    let mut fixture = TestClassicGroup::new();
    let patient = JoinRequest { session_timeout: s(600), ..static_consumer("a") };
    let leaver = fixture.stable(&[patient, consumer("")]);
    let dynamic = leaver.iter().find(|id| id.starts_with("app")).unwrap();
    assert_eq!(fixture.leave(dynamic, None), None);
    fixture.advance_clock(s(300));
    assert_eq!(fixture.group.state(), ClassicGroupState::PreparingRebalance);
    fixture.advance_clock(s(600));
    assert_eq!(fixture.group.state(), ClassicGroupState::Empty);
}

#[test]
fn a_new_member_that_waits_too_long_for_its_first_answer_is_told_to_start_over() {
    let mut fixture = TestClassicGroup::new();
    let slow = JoinRequest { session_timeout: s(600), rebalance_timeout: s(900), ..consumer("") };
    fixture.stable(std::slice::from_ref(&slow));
    let join = fixture.join_fully(slow);
    fixture.advance_clock(s(300));
    assert_eq!(fixture.refused(join), GroupError::UnknownMemberId);
    assert_eq!(fixture.joins[&join].member_id, "");
}

// Syncing

#[test]
fn a_member_that_asks_for_its_assignment_again_is_alive() {
    let (mut fixture, leader, follower) = two();
    fixture.advance_clock(s(9));
    let _ = fixture.heartbeat(&leader);
    let join = fixture.join(consumer(&follower));
    assert_eq!(fixture.joined(join).generation_id, fixture.group.generation());
    let sync = fixture.sync(&follower, &[]);
    fixture.synced(sync);
    fixture.advance_clock(s(9));
    assert_eq!(fixture.group.member_count(), 2);
    assert_eq!(fixture.heartbeat(&follower), Ok(()));
}

#[test]
fn no_sync_is_answered_before_the_assignment_is_stored() {
    let mut fixture = TestClassicGroup::new();
    let joins = [fixture.join_fully(consumer("")), fixture.join_fully(consumer(""))];
    fixture.gather();
    let [leader, follower] = joins.map(|join| fixture.joined(join).member_id);
    fixture.holds_writes = true;
    let waiting = fixture.sync(&follower, &[]);
    let leading = fixture.sync(&leader, &[(&follower, "p0"), ("invented", "p1")]);
    assert!(fixture.syncs.is_empty());
    fixture.end_write(WriteResult::Stored);
    assert_eq!(fixture.synced(waiting), "p0");
    assert_eq!(fixture.synced(leading), "", "whom the leader forgot is assigned nothing");
    let stored = fixture.stored.take().unwrap();
    assert_eq!((stored.generation, stored.members.len()), (1, 2));
}

#[test]
fn an_assignment_that_cannot_be_stored_makes_all_join_again() {
    let (mut fixture, leader, follower) = two();
    fixture.join(consumer(&leader));
    fixture.join(consumer(&follower));
    fixture.holds_writes = true;
    let syncs = [fixture.sync(&follower, &[]), fixture.sync(&leader, &[])];
    fixture.end_write(WriteResult::Failed);
    for sync in syncs {
        assert_eq!(fixture.sync_refused(sync), GroupError::CoordinatorNotAvailable);
    }
    assert_eq!(fixture.group.state(), ClassicGroupState::PreparingRebalance);
}

#[test]
fn an_assignment_stored_too_late_does_not_count() {
    let (mut fixture, leader, follower) = two();
    fixture.join(consumer(&leader));
    fixture.join(consumer(&follower));
    fixture.holds_writes = true;
    let sync = fixture.sync(&leader, &[]);
    fixture.join_fully(consumer(""));
    assert_eq!(fixture.sync_refused(sync), GroupError::RebalanceInProgress);
    fixture.end_write(WriteResult::Stored);
    assert_eq!(fixture.group.state(), ClassicGroupState::PreparingRebalance);
}

#[test]
fn assignments_larger_than_the_group_may_be_are_refused() {
    let mut fixture =
        TestClassicGroup::with(Options { group_bytes_max: 1000, ..Options::default() });
    let join = fixture.join_fully(consumer(""));
    fixture.gather();
    let id = fixture.joined(join).member_id;
    let large = "x".repeat(1000);
    let sync = fixture.sync(&id, &[(&id, &large)]);
    assert_eq!(fixture.sync_refused(sync), GroupError::TooLarge);
}

#[test]
fn a_sync_that_does_not_fit_the_group_is_refused_with_a_reason_of_its_own() {
    let (mut fixture, leader, _) = two();
    let fits = fixture.sync_request(&leader, &[]);
    let owned = |name: &str| Some(name.to_owned());
    let table = [
        (SyncRequest { member_id: "x".into(), ..fits.clone() }, GroupError::UnknownMemberId),
        (SyncRequest { generation_id: 7, ..fits.clone() }, GroupError::IllegalGeneration),
        (
            SyncRequest { protocol_type: owned("connect"), ..fits.clone() },
            GroupError::InconsistentGroupProtocol,
        ),
        (
            SyncRequest { protocol_name: owned("sticky"), ..fits.clone() },
            GroupError::InconsistentGroupProtocol,
        ),
        (
            SyncRequest { group_instance_id: owned("nobody"), ..fits.clone() },
            GroupError::UnknownMemberId,
        ),
    ];
    for (request, error) in table {
        let sync = fixture.sync_with(request);
        assert_eq!(fixture.sync_refused(sync), error);
    }
    let old_client = SyncRequest { protocol_type: None, ..fits };
    let sync = fixture.sync_with(old_client);
    assert_eq!(fixture.synced(sync), leader);
}

#[test]
fn a_sync_during_a_rebalance_is_told_to_join_and_in_a_stable_group_gets_what_stands() {
    let (mut fixture, leader, follower) = two();
    let stable = fixture.sync(&follower, &[]);
    assert_eq!(fixture.synced(stable), follower);
    fixture.join(consumer(&leader));
    let early_sync = fixture.sync(&follower, &[]);
    assert_eq!(fixture.sync_refused(early_sync), GroupError::RebalanceInProgress);
}

#[test]
fn members_that_never_sync_are_dropped_after_the_rebalance_timeout() {
    let (mut fixture, leader, follower) = two();
    fixture.join(consumer(&leader));
    fixture.join(consumer(&follower));
    fixture.sync(&leader, &[]);
    assert_eq!(fixture.group.state(), ClassicGroupState::Stable);
    for _ in 0..12 {
        assert_eq!(fixture.heartbeat(&follower), Ok(()));
        let _ = fixture.heartbeat(&leader);
        fixture.advance_clock(s(5));
    }
    assert_eq!(fixture.heartbeat(&follower), Err(GroupError::UnknownMemberId));
    assert_eq!(fixture.heartbeat(&leader), Err(GroupError::RebalanceInProgress));
}

// Heartbeats and sessions

#[test]
fn a_silent_member_is_dropped_and_the_others_hear_of_it() {
    let (mut fixture, leader, follower) = two();
    fixture.advance_clock(s(6));
    assert_eq!(fixture.heartbeat(&leader), Ok(()));
    fixture.advance_clock(s(6));
    assert_eq!(fixture.heartbeat(&leader), Err(GroupError::RebalanceInProgress));
    assert_eq!(fixture.heartbeat(&follower), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_group_whose_members_all_fall_silent_becomes_empty_and_keeps_its_generation() {
    let (mut fixture, ..) = two();
    fixture.advance_clock(s(100));
    assert_eq!(fixture.group.state(), ClassicGroupState::Empty);
    let stored = fixture.stored.clone().unwrap();
    assert_eq!((stored.members.len(), stored.protocol), (0, None));
    assert_eq!(stored.protocol_type.as_deref(), Some("consumer"));
    assert!(stored.generation > 1);
}

#[test]
fn heartbeats_of_another_generation_or_a_fenced_instance_are_refused() {
    let mut fixture = TestClassicGroup::new();
    let ids = fixture.stable(&[static_consumer("node-1")]);
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
        assert_eq!(fixture.group.heartbeat(fixture.now, &request), result, "{request:?}");
    }
}

// Static members

#[test]
fn a_static_member_comes_back_to_a_stable_group_unnoticed() {
    let mut fixture = TestClassicGroup::new();
    let ids = fixture.stable(&[static_consumer("a"), static_consumer("b")]);
    let (leader, follower) = (&ids[0], &ids[1]);
    let rejoined = fixture.join(static_consumer(&follower[..1]));
    let answer = fixture.joined(rejoined);
    assert_ne!(answer.member_id, *follower);
    assert_eq!((answer.generation_id, &answer.leader), (1, leader));
    assert!(!answer.skip_assignment && answer.members.is_empty());
    assert_eq!(fixture.group.state(), ClassicGroupState::Stable);
    assert!(
        fixture.stored.clone().unwrap().members.iter().any(|m| m.member_id == answer.member_id)
    );

    let sync = fixture.sync(&answer.member_id, &[]);
    assert_eq!(fixture.synced(sync), *follower, "the assignment of the id before");
    assert_eq!(fixture.heartbeat(leader), Ok(()));
    assert_eq!(fixture.heartbeat(follower), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_leader_that_comes_back_skips_the_assignment_or_does_not_learn_that_it_leads() {
    for supports_skip_assignment in [true, false] {
        let mut fixture = TestClassicGroup::new();
        let ids = fixture.stable(&[static_consumer("a"), static_consumer("b")]);
        let rejoin = static_consumer(&ids[0][..1]);
        let join = fixture.join(JoinRequest { supports_skip_assignment, ..rejoin });
        let answer = fixture.joined(join);
        assert_eq!(answer.skip_assignment, supports_skip_assignment);
        assert_eq!(answer.leader == answer.member_id, supports_skip_assignment);
        assert_eq!(answer.members.len(), if supports_skip_assignment { 2 } else { 0 });
        assert_eq!(fixture.group.state(), ClassicGroupState::Stable);
    }
}

#[test]
fn a_static_member_whose_new_id_cannot_be_stored_stays_who_it_was() {
    let mut fixture = TestClassicGroup::new();
    let ids = fixture.stable(&[static_consumer("a"), static_consumer("b")]);
    fixture.holds_writes = true;
    let rejoined = fixture.join(static_consumer(&ids[1][..1]));
    fixture.end_write(WriteResult::Failed);
    assert_eq!(fixture.refused(rejoined), GroupError::CoordinatorNotAvailable);
    assert_eq!(fixture.heartbeat(&ids[1]), Ok(()));
}

#[test]
fn a_static_member_whose_return_changes_the_protocol_begins_a_rebalance() {
    let mut fixture = TestClassicGroup::new();
    let join_with =
        |name, names: &[&str]| JoinRequest { protocols: protocols(names), ..static_consumer(name) };
    fixture.stable(&[join_with("a", &["range", "sticky"])]);
    fixture.join(join_with("a", &["sticky", "range"]));
    assert_eq!(fixture.group.generation(), 2);
}

#[test]
fn a_static_member_that_is_replaced_is_fenced_where_it_waits() {
    let mut fixture = TestClassicGroup::new();
    let joining = fixture.join(static_consumer("a"));
    let taking_over = fixture.join(static_consumer("a"));
    assert_eq!(fixture.refused(joining), GroupError::FencedInstanceId);
    fixture.gather();
    let id = fixture.joined(taking_over).member_id;
    fixture.holds_writes = true;
    let syncing = fixture.sync(&id, &[]);
    let third = fixture.join(static_consumer("a"));
    assert_eq!(fixture.sync_refused(syncing), GroupError::FencedInstanceId);
    assert_eq!(fixture.joined(third).generation_id, 2);
    assert_eq!(fixture.group.member_count(), 1);
}

#[test]
fn a_static_member_that_comes_back_before_it_has_synced_costs_nobody_a_rebalance() {
    let mut fixture = TestClassicGroup::new();
    let patient = |name| JoinRequest { session_timeout: s(600), ..static_consumer(name) };
    let joins = [fixture.join(patient("a")), fixture.join(patient("b"))];
    fixture.gather();
    let leader = fixture.joined(joins[0]).leader;
    fixture.sync(&leader, &[]);
    let follower = if leader.starts_with('a') { "b" } else { "a" };
    let rejoined = fixture.join(patient(follower));
    fixture.advance_clock(s(120));
    assert_eq!(fixture.joined(rejoined).generation_id, 1);
    assert_eq!((fixture.group.state(), fixture.group.generation()), (ClassicGroupState::Stable, 1));
}

#[test]
fn a_rebalance_that_begins_while_a_new_id_is_stored_answers_its_join() {
    let mut fixture = TestClassicGroup::new();
    let ids = fixture.stable(&[static_consumer("a"), static_consumer("b")]);
    fixture.holds_writes = true;
    let rejoined = fixture.join(static_consumer(&ids[1][..1]));
    assert_eq!(fixture.leave(&ids[0], None), None);
    assert_eq!(fixture.joined(rejoined).generation_id, 2);
    fixture.end_write(WriteResult::Failed);
    assert_eq!(fixture.heartbeat(&fixture.joined(rejoined).member_id), Ok(()));
}

// Leaving

#[test]
fn members_leave_by_id_or_by_instance_and_the_rest_rebalance() {
    let mut fixture = TestClassicGroup::new();
    let ids = fixture.stable(&[static_consumer("a"), static_consumer("b"), consumer("")]);
    assert_eq!(fixture.leave("", Some("a")), None);
    assert_eq!(fixture.leave("", Some("a")), Some(GroupError::UnknownMemberId));
    assert_eq!(fixture.leave("", None), Some(GroupError::UnknownMemberId));
    assert_eq!(fixture.leave("other", Some("b")), Some(GroupError::FencedInstanceId));
    let dynamic = ids.iter().find(|id| id.starts_with("app")).unwrap();
    assert_eq!(fixture.leave(dynamic, None), None);
    assert_eq!(fixture.group.state(), ClassicGroupState::PreparingRebalance);
    assert_eq!(fixture.leave("", Some("b")), None);
    assert_eq!((fixture.group.state(), fixture.group.generation()), (ClassicGroupState::Empty, 2));
}

#[test]
fn an_id_that_was_given_out_can_be_returned_without_a_rebalance() {
    let (mut fixture, ..) = two();
    let answer = fixture.join(consumer(""));
    let id = fixture.joins[&answer].member_id.clone();
    assert_eq!(fixture.leave(&id, None), None);
    assert_eq!(fixture.group.state(), ClassicGroupState::Stable);
}

#[test]
fn a_member_that_leaves_while_its_join_waits_is_told_that_it_is_unknown() {
    let (mut fixture, leader, _) = two();
    let join = fixture.join(consumer(&leader));
    assert_eq!(fixture.leave(&leader, None), None);
    assert_eq!(fixture.refused(join), GroupError::UnknownMemberId);
}

#[test]
fn when_the_last_that_is_waited_for_leaves_the_rest_go_on() {
    let (mut fixture, leader, follower) = two();
    let join = fixture.join(consumer(&leader));
    assert_eq!(fixture.leave(&follower, None), None);
    assert_eq!(fixture.joined(join).members.len(), 1);
}

// Commits and deletion

#[test]
fn an_empty_group_lets_anyone_commit_who_claims_no_generation() {
    let mut fixture = TestClassicGroup::new();
    assert_eq!(fixture.group.check_commit(fixture.now, &fence("", -1)), Ok(()));
    assert_eq!(fixture.group.check_commit(fixture.now, &fence("x", -1)), Ok(()));
    let claims = fence("x", 1);
    assert_eq!(fixture.group.check_commit(fixture.now, &claims), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_group_with_members_lets_only_them_commit_and_only_in_their_generation() {
    let (mut fixture, leader, follower) = two();
    let fenced = CommitFence { group_instance_id: Some("x".into()), ..fence(&leader, 1) };
    let without_id = fence("", -1);
    let in_transaction = CommitFence { kind: CommitKind::Transactional, ..without_id.clone() };
    let table = [
        (fence(&leader, 1), Ok(())),
        (fence(&leader, 0), Err(GroupError::IllegalGeneration)),
        (fence(&leader, -1), Err(GroupError::IllegalGeneration)),
        (fence("nobody", 1), Err(GroupError::UnknownMemberId)),
        (fenced, Err(GroupError::UnknownMemberId)),
        (without_id, Err(GroupError::UnknownMemberId)),
        (in_transaction, Ok(())),
    ];
    for (request, result) in table {
        assert_eq!(fixture.group.check_commit(fixture.now, &request), result, "{request:?}");
    }
    fixture.join(consumer(&leader));
    let while_preparing = fixture.group.check_commit(fixture.now, &fence(&follower, 1));
    assert_eq!(while_preparing, Ok(()), "a member commits before it joins again");
    fixture.join(consumer(&follower));
    let while_completing = fixture.group.check_commit(fixture.now, &fence(&follower, 2));
    assert_eq!(while_completing, Err(GroupError::RebalanceInProgress));
}

#[test]
fn a_commit_is_a_sign_of_life() {
    let (mut fixture, leader, _) = two();
    for _ in 0..5 {
        fixture.advance_clock(s(6));
        let commit = fence(&leader, fixture.group.generation());
        let _ = fixture.group.check_commit(fixture.now, &commit);
        if fixture.group.state() == ClassicGroupState::PreparingRebalance {
            fixture.join(consumer(&leader));
            fixture.sync(&leader, &[]);
        }
    }
    assert_eq!(fixture.heartbeat(&leader), Ok(()));
}

#[test]
fn only_groups_without_members_can_be_deleted() {
    let (mut fixture, leader, _) = two();
    assert_eq!(fixture.group.check_delete(), Err(GroupError::NonEmptyGroup));
    fixture.join(consumer(&leader));
    assert_eq!(fixture.group.check_delete(), Err(GroupError::NonEmptyGroup));
    fixture.advance_clock(s(200));
    assert_eq!(fixture.group.check_delete(), Ok(()));
    fixture.group.close();
    assert_eq!(fixture.group.check_delete(), Err(GroupError::GroupIdNotFound));
}

#[test]
fn offsets_of_topics_that_a_member_reads_cannot_be_deleted() {
    let mut fixture = TestClassicGroup::new();
    assert!(!fixture.group.check_offset_delete().unwrap().include("t"));
    let metadata = bytes::Bytes::from_static(b"\0\x01\0\0\0\x01\0\x01t\xff\xff\xff\xff");
    let protocols = vec![("range".to_owned(), metadata)];
    fixture.stable(&[JoinRequest { protocols, ..consumer("") }]);
    let subscriptions = fixture.group.check_offset_delete().unwrap();
    assert!(subscriptions.include("t") && !subscriptions.include("u"));
    fixture.advance_clock(s(60));
    assert!(!fixture.group.check_offset_delete().unwrap().include("t"));
}

#[test]
fn offsets_of_a_group_that_is_not_consumers_are_kept_while_it_has_members() {
    let mut fixture = TestClassicGroup::new();
    let worker = JoinRequest { protocol_type: "connect".to_owned(), ..consumer("") };
    fixture.join_fully(worker);
    assert_eq!(fixture.group.check_offset_delete(), Err(GroupError::NonEmptyGroup));
}

// Description, snapshots, closing

#[test]
fn metadata_is_described_only_while_the_group_is_stable() {
    let (mut fixture, leader, follower) = two();
    let stable = fixture.group.describe();
    assert_eq!((stable.state, stable.protocol_data.as_str()), (ClassicGroupState::Stable, "range"));
    let member = stable.members.iter().find(|member| member.member_id == follower).unwrap();
    assert_eq!(
        (&member.metadata[..], &member.assignment[..]),
        (&b"range"[..], follower.as_bytes())
    );
    fixture.join(consumer(&leader));
    let preparing = fixture.group.describe();
    assert_eq!(
        (preparing.protocol_type.as_str(), preparing.protocol_data.as_str()),
        ("consumer", "")
    );
    assert!(preparing.members.iter().all(|member| member.metadata.is_empty()));
}

#[test]
fn a_group_that_is_restored_goes_on_without_a_rebalance() {
    let mut fixture = TestClassicGroup::new();
    let ids = fixture.stable(&[consumer(""), static_consumer("node-1")]);
    let bytes = fixture.stored.clone().unwrap().encode();
    let snapshot = GroupSnapshot::decode(&bytes).unwrap();
    let options = Arc::new(Options::default());
    let (group, effects) = ClassicGroup::restore(options, snapshot, s(1000)).unwrap();
    assert!(effects.is_empty());
    assert_eq!(group.describe(), fixture.group.describe());
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
    let (fixture, ..) = two();
    let options = Arc::new(Options { group_max_size: 1, ..Options::default() });
    let snapshot = fixture.stored.clone().unwrap();
    let (group, _) = ClassicGroup::restore(options, snapshot, Duration::ZERO).unwrap();
    assert_eq!(group.state(), ClassicGroupState::PreparingRebalance);
}

#[test]
fn a_snapshot_that_contradicts_itself_is_refused() {
    let (fixture, leader, _) = two();
    let valid = fixture.stored.clone().unwrap();
    let restore = |snapshot| ClassicGroup::restore(Arc::new(Options::default()), snapshot, s(0));
    assert!(restore(valid.clone()).is_ok());
    let changed = |change: fn(&mut GroupSnapshot)| {
        let mut snapshot = valid.clone();
        change(&mut snapshot);
        snapshot
    };
    let table = [
        changed(|snapshot| snapshot.generation = -1),
        changed(|snapshot| snapshot.leader = None),
        changed(|snapshot| snapshot.leader = Some("nobody".to_owned())),
        changed(|snapshot| snapshot.protocol = Some("other".to_owned())),
        changed(|snapshot| snapshot.protocol_type = None),
        changed(|snapshot| snapshot.members.clear()),
        changed(|snapshot| snapshot.members.push(snapshot.members[0].clone())),
        changed(|snapshot| {
            snapshot.members.iter_mut().for_each(|m| m.group_instance_id = Some("i".to_owned()));
        }),
    ];
    for snapshot in table {
        assert!(restore(snapshot.clone()).is_err(), "{leader} {snapshot:?}");
    }
    let bytes = valid.encode();
    assert!((0..bytes.len()).all(|len| GroupSnapshot::decode(&bytes[..len]).is_err()));
    assert!(GroupSnapshot::decode(&[2, 0]).is_err());
}

#[test]
fn all_that_wait_are_answered_when_the_group_is_closed() {
    let (mut fixture, leader, _) = two();
    let join = fixture.join(consumer(&leader));
    let effects = fixture.group.close();
    assert_eq!(effects.len(), 1);
    assert!(matches!(&effects[0], super::GroupEffect::Join { token, answer }
        if *token == join && answer.error == Some(GroupError::CoordinatorNotAvailable)));
    assert_eq!(fixture.heartbeat(&leader), Err(GroupError::CoordinatorNotAvailable));
    assert_eq!(fixture.group.next_deadline(), None);
}
