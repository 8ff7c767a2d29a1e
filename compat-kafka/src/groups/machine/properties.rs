//! Whatever clients, time and the log do, in whatever order: what must hold, holds.
//!
//! The bench checks `assert_sound` after every event, and that nothing is answered twice. Here is
//! what spans events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::super::{
    CommitFence, CommitKind, GroupError, GroupSnapshot, GroupState, JoinRequest, Options,
};
use super::bench::{Bench, consumer, protocols, s};
use super::{Group, Token, WriteResult};

/// Who acts: one of the ids that were ever answered, or nobody the group knows.
type Who = usize;

#[derive(Debug, Clone)]
enum Event {
    Join {
        who: Who,
        known: bool,
        instance: Option<u8>,
        protocols: u8,
        old_client: bool,
    },
    Sync {
        who: Who,
        stale: bool,
    },
    Heartbeat {
        who: Who,
    },
    Leave {
        who: Who,
        by_instance: Option<u8>,
    },
    Commit {
        who: Who,
    },
    EndWrite {
        stored: bool,
    },
    Pass {
        ms: u64,
    },
    /// All but one go on as they should, until each has an assignment that may not be stored yet.
    Settle {
        absent: Who,
    },
    /// All members heartbeat, and time passes.
    Live {
        ms: u64,
    },
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    let who = || 0..8usize;
    let instance = || proptest::option::weighted(0.4, 0..3u8);
    prop_oneof![
        8 => (who(), any::<bool>(), instance(), 0..4u8, prop::bool::weighted(0.2)).prop_map(
            |(who, known, instance, protocols, old_client)| Event::Join {
                who, known, instance, protocols, old_client
            }
        ),
        8 => (who(), prop::bool::weighted(0.1)).prop_map(|(who, stale)| Event::Sync { who, stale }),
        4 => who().prop_map(|who| Event::Heartbeat { who }),
        2 => (who(), instance()).prop_map(|(who, by_instance)| Event::Leave { who, by_instance }),
        1 => who().prop_map(|who| Event::Commit { who }),
        5 => prop::bool::weighted(0.8).prop_map(|stored| Event::EndWrite { stored }),
        3 => (0..7_000u64).prop_map(|ms| Event::Pass { ms }),
        1 => (7_000..90_000u64).prop_map(|ms| Event::Pass { ms }),
        5 => who().prop_map(|absent| Event::Settle { absent }),
        3 => (0..7_000u64).prop_map(|ms| Event::Live { ms }),
        1 => Just(Event::Restart),
    ]
}

/// A bench, and what the clients of the group know.
struct World {
    bench: Bench,
    options: Options,
    ids: Vec<(String, Option<String>)>,
    joining: BTreeMap<Token, Option<String>>,
    syncing: BTreeSet<Token>,
    generation: i32,
}

impl World {
    fn new() -> World {
        let options =
            Options { group_max_size: 4, new_member_join_timeout: s(40), ..Options::default() };
        let mut bench = Bench::with(options.clone());
        bench.holds_writes = true;
        let (joining, syncing) = (BTreeMap::new(), BTreeSet::new());
        World { bench, options, ids: Vec::new(), joining, syncing, generation: 0 }
    }

    fn identity(&self, who: Who) -> (String, Option<String>) {
        let from_newest = self.ids.iter().rev().nth(who).cloned();
        from_newest.unwrap_or_else(|| ("nobody".to_owned(), None))
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Join { who, known, instance, protocols, old_client } => {
                self.join(who, known, instance, protocols, old_client);
            }
            Event::Sync { who, stale } => self.sync(who, stale),
            Event::Heartbeat { who } => drop(self.bench.heartbeat(&self.identity(who).0)),
            Event::Leave { by_instance: Some(instance), .. } => {
                self.bench.leave("", Some(&instance.to_string()));
            }
            Event::Leave { who, .. } => drop(self.bench.leave(&self.identity(who).0, None)),
            Event::Commit { who } => self.commit(who),
            Event::EndWrite { stored } => self.end_write(stored),
            Event::Pass { ms } => self.bench.pass(Duration::from_millis(ms)),
            Event::Settle { absent } => self.settle(absent),
            Event::Live { ms } => self.live(Duration::from_millis(ms)),
            Event::Restart => self.restart(),
        }
        self.collect();
        self.check();
    }

    fn join(&mut self, who: Who, known: bool, fresh: Option<u8>, set: u8, old_client: bool) {
        let names: &[&str] = match set {
            0 | 1 => &["range", "sticky"],
            2 => &["sticky", "range"],
            _ => &["range"],
        };
        let (member_id, group_instance_id) = match known {
            true => self.identity(who),
            false => (String::new(), fresh.map(|instance| instance.to_string())),
        };
        let request = JoinRequest {
            require_known_member_id: !old_client && group_instance_id.is_none(),
            supports_skip_assignment: !old_client,
            protocols: protocols(names),
            group_instance_id: group_instance_id.clone(),
            ..consumer(&member_id)
        };
        let token = self.bench.join(request);
        self.joining.insert(token, group_instance_id);
    }

    fn sync(&mut self, who: Who, stale: bool) {
        let ids = self.ids.clone();
        let all: Vec<_> = ids.iter().map(|(id, _)| (id.as_str(), id.as_str())).collect();
        let mut request = self.bench.sync_request(&self.identity(who).0, &all);
        request.generation_id -= i32::from(stale);
        let token = self.bench.sync_with(request);
        self.syncing.insert(token);
    }

    fn settle(&mut self, absent: Who) {
        self.bench.gather();
        self.collect();
        let mut ids = self.bench.group.roster.ids();
        if absent < ids.len() {
            ids.remove(absent);
        }
        for id in ids {
            let request = self.bench.sync_request(&id, &[(&id, &id)]);
            let token = self.bench.sync_with(request);
            self.syncing.insert(token);
        }
    }

    fn live(&mut self, time: Duration) {
        for id in self.bench.group.roster.ids() {
            let _ = self.bench.heartbeat(&id);
        }
        self.bench.pass(time);
    }

    fn commit(&mut self, who: Who) {
        let (member_id, group_instance_id) = self.identity(who);
        let generation_id = self.bench.group.generation();
        let kind = CommitKind::Plain;
        let fence = CommitFence { member_id, group_instance_id, generation_id, kind };
        let _ = self.bench.group.check_commit(self.bench.now, &fence);
    }

    fn end_write(&mut self, stored: bool) {
        if !self.bench.held.is_empty() {
            let result = if stored { WriteResult::Stored } else { WriteResult::Failed };
            self.bench.end_write(result);
        }
    }

    /// All connections are lost, and the group is what the log has.
    fn restart(&mut self) {
        let (held_options, now) = (Arc::new(self.options.clone()), self.bench.now);
        let group = match self.bench.stored.take() {
            None => Group::new(held_options),
            Some(snapshot) => {
                let snapshot = GroupSnapshot::decode(&snapshot.encode()).expect("it was encoded");
                self.bench.stored = Some(snapshot.clone());
                Group::restore(held_options, snapshot, now).expect("a group wrote it").0
            }
        };
        self.generation = group.generation();
        self.bench.group = group;
        self.bench.held.clear();
        self.joining.clear();
        self.syncing.clear();
    }

    fn collect(&mut self) {
        for (token, answer) in self.bench.joins.drain() {
            let instance = self.joining.remove(&token).expect("only what was asked is answered");
            let is_told = answer.error.is_none_or(|error| error == GroupError::MemberIdRequired);
            if is_told && !self.ids.iter().any(|(id, _)| *id == answer.member_id) {
                self.ids.push((answer.member_id.clone(), instance));
            }
            if answer.error.is_none() {
                assert!(answer.generation_id <= self.bench.group.generation());
                assert!(answer.protocol_name.is_some() && !answer.leader.is_empty());
            }
        }
        for (token, answer) in self.bench.syncs.drain() {
            assert!(self.syncing.remove(&token), "only what was asked is answered");
            let is_own = |id: &Bytes| self.ids.iter().any(|(known, _)| known.as_bytes() == id);
            assert!(answer.assignment.is_empty() || is_own(&answer.assignment));
        }
    }

    fn check(&mut self) {
        let group = &self.bench.group;
        assert!(group.generation() >= self.generation, "the generation never decreases");
        self.generation = group.generation();
        let waits = !self.joining.is_empty() || !self.syncing.is_empty();
        let ends = group.next_deadline().is_some() || !self.bench.held.is_empty();
        assert!(!waits || ends, "who waits is waited for");
        let waiting: Vec<Token> = group.roster.iter().filter_map(|member| member.join).collect();
        assert!(waiting.iter().all(|token| self.joining.contains_key(token)));
        assert_eq!(waiting.len(), self.joining.len(), "each waiting join is one member's");
    }

    /// With no more requests, and a log that works again, everything comes to its end.
    fn wind_down(&mut self) {
        let mut rounds = 0..100;
        while !self.bench.group.is_idle() && rounds.next().is_some() {
            while !self.bench.held.is_empty() {
                self.end_write(true);
            }
            self.bench.pass(s(60));
            self.collect();
            self.check();
        }
        assert!(self.joining.is_empty() && self.syncing.is_empty(), "all are answered");
        assert_eq!(self.bench.group.state(), GroupState::Empty);
        assert!(self.bench.group.is_idle());
        assert_eq!(self.bench.group.next_deadline(), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn whatever_happens_all_invariants_hold_and_all_who_wait_are_answered(
        events in prop::collection::vec(event(), 0..150)
    ) {
        let mut world = World::new();
        for event in events {
            world.apply(event);
        }
        world.wind_down();
    }
}
