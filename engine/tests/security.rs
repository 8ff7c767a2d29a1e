//! Users, access control lists and quotas after a restart, after a crash, and in the past.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::security::{
    AclFilter, AclRule, Actor, ChangeLogEntry, DelegationToken, ITERATIONS_MIN, Operation,
    PatternType, Permission, QuotaEntity, QuotaName, ResourceType, ScramCredential, ScramMechanism,
    Security, SecurityChange, SecurityError, SecurityOptions, SecurityState,
};
use engine::{EngineOptions, Offset, WaitPolicy};
use hlc::{Cut, ManualClock, SysTime};
use proptest::prelude::*;
use storage::disk::{DiskFault, MemoryDisk};
use testkit::engine::{EngineFixture, START};

/// The current state, changed the plain way.
#[derive(Clone, Debug, Default, PartialEq)]
struct SecurityModel {
    acls: BTreeSet<AclRule>,
    credentials: BTreeMap<(String, ScramMechanism), ScramCredential>,
    quotas: BTreeMap<QuotaEntity, BTreeMap<String, f64>>,
    tokens: BTreeMap<String, DelegationToken>,
}

impl SecurityModel {
    fn apply(&mut self, change: &SecurityChange) {
        match change.clone() {
            SecurityChange::AclAdded(rule) => drop(self.acls.insert(rule)),
            SecurityChange::AclRemoved(rule) => drop(self.acls.remove(&rule)),
            SecurityChange::CredentialSet { user, mechanism, credential } => {
                self.credentials.insert((user, mechanism), credential);
            }
            SecurityChange::CredentialRemoved { user, mechanism } => {
                self.credentials.remove(&(user, mechanism));
            }
            SecurityChange::QuotasSet { entity, quotas } => {
                self.quotas.insert(entity, quotas);
                self.quotas.retain(|_, quotas| !quotas.is_empty());
            }
            SecurityChange::TokenSet { id, token } => drop(self.tokens.insert(id, token)),
            SecurityChange::TokenRemoved { id } => drop(self.tokens.remove(&id)),
        }
    }

    fn of(state: &SecurityState) -> SecurityModel {
        let acls = state.acls(&AclFilter::default());
        assert_eq!(state.acl_count(), acls.len());
        assert!(acls.iter().all(|rule| state.has_acl(rule)));
        let credentials = state.users().iter().flat_map(|(user, of_user)| {
            assert!(!of_user.is_empty(), "a user without a password is not listed");
            of_user.iter().map(|(mechanism, credential)| {
                assert_eq!(state.credential(user, *mechanism), Some(credential));
                ((user.clone(), *mechanism), credential.clone())
            })
        });
        SecurityModel {
            acls: acls.into_iter().collect(),
            credentials: credentials.collect(),
            quotas: state.quotas().clone(),
            tokens: state.tokens().clone(),
        }
    }
}

fn actor(nth: usize) -> Actor {
    Actor { principal: format!("User:{nth}"), from: "1.1.1.1".to_owned() }
}

fn open(disk: MemoryDisk, clock: Arc<ManualClock>, snapshot_bytes_min: usize) -> EngineFixture {
    let security = SecurityOptions { snapshot_bytes_min, ..SecurityOptions::default() };
    let options = EngineOptions { security, ..EngineOptions::default() };
    EngineFixture::with(disk, clock, options)
}

fn open_new(snapshot_bytes_min: usize) -> EngineFixture {
    open(MemoryDisk::new(), Arc::new(ManualClock::at(SysTime(START))), snapshot_bytes_min)
}

fn reopen(fixture: EngineFixture, snapshot_bytes_min: usize) -> EngineFixture {
    let EngineFixture { disk, clock, engine } = fixture;
    engine.close();
    drop(engine);
    open(disk, clock, snapshot_bytes_min)
}

async fn make(
    security: &Arc<Security>,
    nth: usize,
    changes: Vec<SecurityChange>,
) -> Result<(), SecurityError> {
    security.change(actor(nth), |_| (changes, ())).await
}

/// All changes, a few at a time.
async fn change_log(security: &Security, until: Cut, count: usize) -> Vec<ChangeLogEntry> {
    let (mut all, mut from) = (Vec::new(), Some(Offset(0)));
    while let Some(offset) = from {
        let read = security.change_log(offset, until, WaitPolicy::Refuse, count).await;
        let page = read.unwrap();
        let changes = |entries: &[ChangeLogEntry]| -> usize {
            entries.iter().map(|entry| entry.changes.len()).sum()
        };
        let but_last = page.entries.split_last().map_or(&[][..], |(_, rest)| rest);
        assert!(changes(but_last) < count && page.next.is_none_or(|next| next > offset));
        all.extend(page.entries);
        from = page.next;
    }
    all
}

fn one_of(all: &'static [&'static str]) -> impl Strategy<Value = String> {
    proptest::sample::select(all).prop_map(str::to_owned)
}

fn rule() -> impl Strategy<Value = AclRule> {
    let pattern = proptest::sample::select(PatternType::ALL);
    let permission = proptest::sample::select(Permission::ALL);
    (pattern, one_of(&["a", "ab", "*"]), one_of(&["User:x", "User:*"]), permission).prop_map(
        |(pattern, name, principal, permission)| AclRule {
            resource_type: ResourceType::Topic,
            pattern,
            name,
            principal,
            host: "*".to_owned(),
            operation: Operation::Read,
            permission,
        },
    )
}

fn credential(mechanism: ScramMechanism, seed: u8) -> ScramCredential {
    ScramCredential::from_salted_password(mechanism, &[seed], vec![seed; 8], ITERATIONS_MIN)
}

fn entity() -> impl Strategy<Value = QuotaEntity> {
    let name = || {
        let names =
            prop_oneof![Just(QuotaName::Default), one_of(&["a", "b"]).prop_map(QuotaName::Named)];
        proptest::option::of(names)
    };
    (name(), name()).prop_map(|(user, client_id)| QuotaEntity { user, client_id, ip: None })
}

fn change() -> impl Strategy<Value = SecurityChange> {
    let mechanism = || proptest::sample::select(ScramMechanism::ALL);
    let user = || one_of(&["x", "y"]);
    let quotas = proptest::collection::btree_map(
        one_of(&["producer_byte_rate", "consumer_byte_rate"]),
        1.0..1e9,
        0..3,
    );
    prop_oneof![
        3 => rule().prop_map(SecurityChange::AclAdded),
        2 => rule().prop_map(SecurityChange::AclRemoved),
        2 => (user(), mechanism(), any::<u8>()).prop_map(|(user, mechanism, seed)| {
            let credential = credential(mechanism, seed);
            SecurityChange::CredentialSet { user, mechanism, credential }
        }),
        1 => (user(), mechanism())
            .prop_map(|(user, mechanism)| SecurityChange::CredentialRemoved { user, mechanism }),
        2 => (entity(), quotas)
            .prop_map(|(entity, quotas)| SecurityChange::QuotasSet { entity, quotas }),
        2 => (one_of(&["i", "j"]), user(), any::<u32>()).prop_map(|(id, user, at)| {
            let token = DelegationToken {
                owner: user.clone(),
                requester: user.clone(),
                renewers: vec![user],
                issued_ms: 0,
                expires_ms: at.into(),
                max_ms: u64::MAX,
            };
            SecurityChange::TokenSet { id, token }
        }),
        1 => one_of(&["i", "j"]).prop_map(|id| SecurityChange::TokenRemoved { id }),
    ]
}

/// The entries of a run, and after how many of them it starts again.
fn run() -> impl Strategy<Value = (Vec<Vec<SecurityChange>>, usize, usize)> {
    let entries = proptest::collection::vec(proptest::collection::vec(change(), 1..4), 1..25);
    (entries, 1..12_usize, proptest::sample::select(&[1_usize, 300, 64 << 10][..]))
}

async fn check_run(entries: Vec<Vec<SecurityChange>>, restart_every: usize, bytes_min: usize) {
    let mut fixture = open_new(bytes_min);
    let mut models = vec![SecurityModel::default()];
    for (nth, changes) in entries.iter().enumerate() {
        let version_before = fixture.engine.security().quota_version();
        make(fixture.engine.security(), nth, changes.clone()).await.unwrap();
        let version = fixture.engine.security().quota_version();
        let mut model = models.last().unwrap().clone();
        changes.iter().for_each(|change| model.apply(change));
        assert_eq!(version == 0, model.quotas.is_empty(), "entry {nth}");
        if version != version_before {
            let sets = |change: &SecurityChange| matches!(change, SecurityChange::QuotasSet { .. });
            assert!(changes.iter().any(sets), "entry {nth}");
        } else {
            assert_eq!(model.quotas, models.last().unwrap().quotas, "entry {nth}");
        }
        models.push(model);
        if nth % restart_every == 0 {
            let bytes = fixture.engine.security().state().bytes();
            fixture = reopen(fixture, bytes_min);
            assert_eq!(fixture.engine.security().state().bytes(), bytes);
        }
        assert_eq!(&SecurityModel::of(&fixture.engine.security().state()), models.last().unwrap());
    }
    fixture.advance_clock(1000);
    let (security, now) = (fixture.engine.security(), fixture.now());
    let logged = change_log(security, now, 3).await;
    let actors: Vec<Actor> = (0..entries.len()).map(actor).collect();
    assert_eq!(logged.iter().map(|entry| entry.by.clone()).collect::<Vec<_>>(), actors);
    assert!(logged.is_sorted_by(|a, b| a.stamp < b.stamp && a.offset < b.offset));
    for (nth, entry) in logged.iter().enumerate() {
        assert_eq!(entry.changes, entries[nth]);
        for (cut, model) in
            [(Cut::below(entry.stamp), &models[nth]), (Cut::through(entry.stamp), &models[nth + 1])]
        {
            let (read, _, state) = security.at(cut, WaitPolicy::Refuse).await.unwrap();
            assert_eq!((read, &SecurityModel::of(&state)), (cut, model), "entry {nth}");
        }
        let until = Cut::through(entry.stamp);
        assert_eq!(change_log(security, until, 100).await, logged[..=nth]);
        let after = security.offset_at(until, WaitPolicy::Refuse).await.unwrap();
        assert_eq!(after, Offset(entry.offset.0 + 1));
    }
    let all = security.change_log(logged[0].offset, now, WaitPolicy::Refuse, 100).await.unwrap();
    assert_eq!((all.entries, all.next), (logged, None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_moment_of_any_changes_reads_as_it_was((entries, restart_every, bytes_min) in run()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check_run(entries, restart_every, bytes_min));
    }
}

fn topic_rule(name: &str) -> AclRule {
    AclRule {
        resource_type: ResourceType::Topic,
        pattern: PatternType::Literal,
        name: name.to_owned(),
        principal: "User:x".to_owned(),
        host: "*".to_owned(),
        operation: Operation::Read,
        permission: Permission::Allow,
    }
}

/// Changes of which the last ones take back what the first ones did.
fn script() -> Vec<Vec<SecurityChange>> {
    let add = |nth: usize| SecurityChange::AclAdded(topic_rule(&format!("t{nth}")));
    let remove = |nth: usize| SecurityChange::AclRemoved(topic_rule(&format!("t{nth}")));
    let mechanism = ScramMechanism::Sha256;
    let mut script: Vec<_> = (0..5).map(|nth| vec![add(nth), add(nth + 10)]).collect();
    let user = "x".to_owned();
    let credential = credential(mechanism, 1);
    script.push(vec![SecurityChange::CredentialSet { user, mechanism, credential }]);
    script.extend((0..3).map(|nth| vec![remove(nth)]));
    script
}

#[tokio::test]
async fn a_snapshot_comes_when_there_were_as_many_bytes_of_changes_as_the_last_one_has() {
    // Of the entries, as they are without snapshots.
    let plain = open_new(64 << 10);
    for (nth, changes) in script().into_iter().enumerate() {
        make(plain.engine.security(), nth, changes).await.unwrap();
    }
    plain.advance_clock(1000);
    let offsets = |log: &[ChangeLogEntry]| log.iter().map(|e| e.offset.0).collect::<Vec<_>>();
    let logged = change_log(plain.engine.security(), plain.now(), 100).await;
    assert_eq!(offsets(&logged), (0..9).collect::<Vec<u64>>());

    let often = open_new(1);
    for (nth, changes) in script().into_iter().enumerate() {
        make(often.engine.security(), nth, changes).await.unwrap();
    }
    often.advance_clock(1000);
    let often = reopen(often, 1);
    let logged = change_log(often.engine.security(), often.now(), 100).await;
    let offsets = offsets(&logged);
    assert_eq!(offsets[..2], [0, 2], "a snapshot follows the first");
    assert!(*offsets.last().unwrap() < 16, "not every one: {offsets:?}");
    let model = SecurityModel::of(&plain.engine.security().state());
    assert_eq!(SecurityModel::of(&often.engine.security().state()), model);
}

#[tokio::test]
async fn what_changes_nothing_is_no_entry_and_what_is_too_much_is_refused() {
    let security = SecurityOptions { bytes_max: 2000, ..SecurityOptions::default() };
    let options = EngineOptions { security, ..EngineOptions::default() };
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    let fixture = EngineFixture::with(MemoryDisk::new(), clock, options);
    let security = fixture.engine.security();
    make(security, 0, Vec::new()).await.unwrap();
    let add = |name: &str| vec![SecurityChange::AclAdded(topic_rule(name))];
    make(security, 1, add("t")).await.unwrap();
    let refused = make(security, 2, add(&"t".repeat(2000))).await;
    assert!(matches!(refused, Err(SecurityError::TooMuch { max: 2000, .. })), "{refused:?}");
    // An entry makes room for itself with what it removes and replaces.
    let half = "h".repeat(900);
    make(security, 3, add(&half)).await.unwrap();
    let changes =
        [add(&"i".repeat(900)), vec![SecurityChange::AclRemoved(topic_rule(&half))]].concat();
    make(security, 4, changes).await.unwrap();
    let refused = make(security, 5, add(&half)).await;
    assert!(matches!(refused, Err(SecurityError::TooMuch { .. })), "{refused:?}");
    let back: Vec<_> = vec![SecurityChange::AclRemoved(topic_rule(&"i".repeat(900)))];
    make(security, 6, back).await.unwrap();
    let acl_count =
        security.change(actor(3), |state| (Vec::new(), state.acl_count())).await.unwrap();
    assert_eq!(acl_count, 1);
    fixture.advance_clock(1000);
    let logged = change_log(security, fixture.now(), 100).await;
    assert_eq!(
        logged.iter().map(|entry| entry.by.clone()).collect::<Vec<_>>(),
        [1, 3, 4, 6].map(actor)
    );
}

/// The power goes at each operation of the disk in turn: between a change and its snapshot too.
#[tokio::test]
async fn a_crash_loses_no_change_that_was_made_and_no_part_of_one() {
    let script = script();
    let mut models = vec![SecurityModel::default()];
    for changes in &script {
        let mut model = models.last().unwrap().clone();
        changes.iter().for_each(|change| model.apply(change));
        models.push(model);
    }
    let (mut between, mut has_crashed) = (0, true);
    let mut after = 0;
    while has_crashed {
        let fixture = open_new(1);
        fixture.disk.arm(DiskFault::CrashAt(fixture.disk.operations() + after));
        let mut count = 0;
        for (nth, changes) in script.iter().enumerate() {
            if make(fixture.engine.security(), nth, changes.clone()).await.is_err() {
                break;
            }
            count = nth + 1;
            if fixture.disk.has_crashed() {
                between += 1;
                break;
            }
        }
        has_crashed = fixture.disk.has_crashed();
        for choice in 0..2 {
            let disk = fixture.disk.after_crash(|choices| choice.min(choices - 1));
            let again = open(disk, Arc::clone(&fixture.clock), 1);
            let model = SecurityModel::of(&again.engine.security().state());
            let expected = &models[count..models.len().min(count + 2)];
            assert!(expected.contains(&model), "{count} were made before operation {after}");
            let next = SecurityChange::AclAdded(topic_rule("next"));
            make(again.engine.security(), 99, vec![next]).await.unwrap();
            let now = SecurityModel::of(&again.engine.security().state());
            let again = reopen(again, 1);
            assert_eq!(SecurityModel::of(&again.engine.security().state()), now);
        }
        after += 1;
    }
    assert!(after > 20, "{after} operations");
    assert!(between > 0, "some crashes come behind a change, before its snapshot");
}
