//! Property tests: the invariants hold for any order of requests, time and log results.
//!
//! The fixture checks `assert_sound` after every event, and that nothing is answered twice. Here
//! are the invariants that span events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::super::{
    ClassicGroupState, CommitFence, CommitKind, GroupError, GroupSnapshot, JoinRequest, Options,
};
use super::test_classic_group::{TestClassicGroup, consumer, protocols, s};
use super::{ClassicGroup, RequestToken, WriteResult};

/// The acting member: one of the ids in earlier responses, or an unknown one.
type ActorIndex = usize;

#[derive(Debug, Clone)]
enum GroupEvent {
    Join {
        who: ActorIndex,
        known: bool,
        instance: Option<u8>,
        protocols: u8,
        old_client: bool,
    },
    Sync {
        who: ActorIndex,
        stale: bool,
    },
    Heartbeat {
        who: ActorIndex,
    },
    Leave {
        who: ActorIndex,
        by_instance: Option<u8>,
    },
    Commit {
        who: ActorIndex,
    },
    EndWrite {
        stored: bool,
    },
    Pass {
        ms: u64,
    },
    /// All but one proceed normally, until each has an assignment that may not be stored yet.
    SyncAllButOne {
        absent: ActorIndex,
    },
    /// All members heartbeat, and time passes.
    PassWithHeartbeats {
        ms: u64,
    },
    Restart,
}

fn event() -> impl Strategy<Value = GroupEvent> {
    let actor = || 0..8usize;
    let instance = || proptest::option::weighted(0.4, 0..3u8);
    prop_oneof![
        8 => (actor(), any::<bool>(), instance(), 0..4u8, prop::bool::weighted(0.2)).prop_map(
            |(who, known, instance, protocols, old_client)| GroupEvent::Join {
                who, known, instance, protocols, old_client
            }
        ),
        8 => (actor(), prop::bool::weighted(0.1)).prop_map(|(who, stale)| GroupEvent::Sync { who, stale }),
        4 => actor().prop_map(|who| GroupEvent::Heartbeat { who }),
        2 => (actor(), instance()).prop_map(|(who, by_instance)| GroupEvent::Leave { who, by_instance }),
        1 => actor().prop_map(|who| GroupEvent::Commit { who }),
        5 => prop::bool::weighted(0.8).prop_map(|stored| GroupEvent::EndWrite { stored }),
        3 => (0..7_000u64).prop_map(|ms| GroupEvent::Pass { ms }),
        1 => (7_000..90_000u64).prop_map(|ms| GroupEvent::Pass { ms }),
        5 => actor().prop_map(|absent| GroupEvent::SyncAllButOne { absent }),
        3 => (0..7_000u64).prop_map(|ms| GroupEvent::PassWithHeartbeats { ms }),
        1 => Just(GroupEvent::Restart),
    ]
}

/// A fixture, and what the clients of the group know.
struct GroupModel {
    fixture: TestClassicGroup,
    options: Options,
    ids: Vec<(String, Option<String>)>,
    joining: BTreeMap<RequestToken, Option<String>>,
    syncing: BTreeSet<RequestToken>,
    generation: i32,
}

impl GroupModel {
    fn new() -> GroupModel {
        let options =
            Options { group_max_size: 4, new_member_join_timeout: s(40), ..Options::default() };
        let mut fixture = TestClassicGroup::with(options.clone());
        fixture.holds_writes = true;
        let (joining, syncing) = (BTreeMap::new(), BTreeSet::new());
        GroupModel { fixture, options, ids: Vec::new(), joining, syncing, generation: 0 }
    }

    fn identity(&self, actor: ActorIndex) -> (String, Option<String>) {
        let from_newest = self.ids.iter().rev().nth(actor).cloned();
        from_newest.unwrap_or_else(|| ("nobody".to_owned(), None))
    }

    fn apply(&mut self, event: GroupEvent) {
        match event {
            GroupEvent::Join { who, known, instance, protocols, old_client } => {
                self.join(who, known, instance, protocols, old_client);
            }
            GroupEvent::Sync { who, stale } => self.sync(who, stale),
            GroupEvent::Heartbeat { who } => drop(self.fixture.heartbeat(&self.identity(who).0)),
            GroupEvent::Leave { by_instance: Some(instance), .. } => {
                self.fixture.leave("", Some(&instance.to_string()));
            }
            GroupEvent::Leave { who, .. } => drop(self.fixture.leave(&self.identity(who).0, None)),
            GroupEvent::Commit { who } => self.commit(who),
            GroupEvent::EndWrite { stored } => self.end_write(stored),
            GroupEvent::Pass { ms } => self.fixture.advance_clock(Duration::from_millis(ms)),
            GroupEvent::SyncAllButOne { absent } => self.sync_all_but_one(absent),
            GroupEvent::PassWithHeartbeats { ms } => {
                self.pass_with_heartbeats(Duration::from_millis(ms))
            }
            GroupEvent::Restart => self.restart(),
        }
        self.collect();
        self.check();
    }

    fn join(
        &mut self,
        actor: ActorIndex,
        is_known: bool,
        new_instance: Option<u8>,
        set: u8,
        old_client: bool,
    ) {
        let names: &[&str] = match set {
            0 | 1 => &["range", "sticky"],
            2 => &["sticky", "range"],
            _ => &["range"],
        };
        let (member_id, group_instance_id) = if is_known {
            self.identity(actor)
        } else {
            (String::new(), new_instance.map(|instance| instance.to_string()))
        };
        let request = JoinRequest {
            require_known_member_id: !old_client && group_instance_id.is_none(),
            supports_skip_assignment: !old_client,
            protocols: protocols(names),
            group_instance_id: group_instance_id.clone(),
            ..consumer(&member_id)
        };
        let token = self.fixture.join(request);
        self.joining.insert(token, group_instance_id);
    }

    fn sync(&mut self, actor: ActorIndex, stale: bool) {
        let ids = self.ids.clone();
        let assignments: Vec<_> = ids.iter().map(|(id, _)| (id.as_str(), id.as_str())).collect();
        let mut request = self.fixture.sync_request(&self.identity(actor).0, &assignments);
        request.generation_id -= i32::from(stale);
        let token = self.fixture.sync_with(request);
        self.syncing.insert(token);
    }

    fn sync_all_but_one(&mut self, absent: ActorIndex) {
        self.fixture.gather();
        self.collect();
        let mut ids = self.fixture.group.roster.ids();
        if absent < ids.len() {
            ids.remove(absent);
        }
        for id in ids {
            let request = self.fixture.sync_request(&id, &[(&id, &id)]);
            let token = self.fixture.sync_with(request);
            self.syncing.insert(token);
        }
    }

    fn pass_with_heartbeats(&mut self, time: Duration) {
        for id in self.fixture.group.roster.ids() {
            let _ = self.fixture.heartbeat(&id);
        }
        self.fixture.advance_clock(time);
    }

    fn commit(&mut self, actor: ActorIndex) {
        let (member_id, group_instance_id) = self.identity(actor);
        let generation_id = self.fixture.group.generation();
        let kind = CommitKind::Plain;
        let fence =
            CommitFence { member_id, group_instance_id, generation_id, kind, knows_epochs: true };
        let _ = self.fixture.group.check_commit(self.fixture.now, &fence);
    }

    fn end_write(&mut self, stored: bool) {
        if !self.fixture.held_writes.is_empty() {
            let result = if stored { WriteResult::Stored } else { WriteResult::Failed };
            self.fixture.end_write(result);
        }
    }

    /// All connections are lost, and the group is restored from the log.
    fn restart(&mut self) {
        let (held_options, now) = (Arc::new(self.options.clone()), self.fixture.now);
        let group = match self.fixture.stored.take() {
            None => ClassicGroup::new(held_options),
            Some(snapshot) => {
                let snapshot = GroupSnapshot::decode(&snapshot.encode()).expect("it was encoded");
                self.fixture.stored = Some(snapshot.clone());
                ClassicGroup::restore(held_options, snapshot, now).expect("a group wrote it").0
            }
        };
        self.generation = group.generation();
        self.fixture.group = group;
        self.fixture.held_writes.clear();
        self.joining.clear();
        self.syncing.clear();
    }

    fn collect(&mut self) {
        for (token, answer) in self.fixture.joins.drain() {
            let instance = self.joining.remove(&token).expect("only what was asked is answered");
            let is_told = answer.error.is_none_or(|error| error == GroupError::MemberIdRequired);
            if is_told && !self.ids.iter().any(|(id, _)| *id == answer.member_id) {
                self.ids.push((answer.member_id.clone(), instance));
            }
            if answer.error.is_none() {
                assert!(answer.generation_id <= self.fixture.group.generation());
                assert!(answer.protocol_name.is_some() && !answer.leader.is_empty());
            }
        }
        for (token, answer) in self.fixture.syncs.drain() {
            assert!(self.syncing.remove(&token), "only what was asked is answered");
            let is_own = |id: &Bytes| self.ids.iter().any(|(own_id, _)| own_id.as_bytes() == id);
            assert!(answer.assignment.is_empty() || is_own(&answer.assignment));
        }
    }

    fn check(&mut self) {
        let group = &self.fixture.group;
        assert!(group.generation() >= self.generation, "the generation never decreases");
        self.generation = group.generation();
        let waits = !self.joining.is_empty() || !self.syncing.is_empty();
        let ends = group.next_deadline().is_some() || !self.fixture.held_writes.is_empty();
        assert!(!waits || ends, "who waits is waited for");
        let waiting: Vec<RequestToken> =
            group.roster.iter().filter_map(|member| member.join).collect();
        assert!(waiting.iter().all(|token| self.joining.contains_key(token)));
        assert_eq!(waiting.len(), self.joining.len(), "each waiting join is one member's");
    }

    /// Without more requests, and with a working log, everything ends.
    fn wind_down(&mut self) {
        let mut rounds = 0..100;
        while !self.fixture.group.is_idle() && rounds.next().is_some() {
            while !self.fixture.held_writes.is_empty() {
                self.end_write(true);
            }
            self.fixture.advance_clock(s(60));
            self.collect();
            self.check();
        }
        assert!(self.joining.is_empty() && self.syncing.is_empty(), "all are answered");
        assert_eq!(self.fixture.group.state(), ClassicGroupState::Empty);
        assert!(self.fixture.group.is_idle());
        assert_eq!(self.fixture.group.next_deadline(), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn whatever_happens_all_invariants_hold_and_all_who_wait_are_answered(
        events in prop::collection::vec(event(), 0..150)
    ) {
        let mut world = GroupModel::new();
        for event in events {
            world.apply(event);
        }
        world.wind_down();
    }
}
