//! Charges for znodes: the holder that is charged, also after a crash, and that all is given back.

use std::sync::{Arc, mpsc};

use admission::{BudgetUsage, Holder};
use bytes::Bytes;
use engine::EngineOptions;
use engine::znodes::acl::{self, AclEntry, AclId};
use engine::znodes::{
    SessionId, TransactionDraft, TransactionOutcome, TransactionRequest, ZkCode, ZnodeLifetime,
    ZnodeOp, ZnodeOptions, ZnodeTree,
};
use hlc::{ManualClock, SysTime};
use storage::disk::MemoryDisk;
use testkit::engine::{EngineFixture, START};

fn options() -> EngineOptions {
    let znodes = ZnodeOptions {
        znodes_max: 1000,
        znode_bytes_max: 100_000,
        checkpoint_bytes_min: 1,
        ..ZnodeOptions::default()
    };
    EngineOptions { znodes, ..EngineOptions::default() }
}

fn fixture() -> EngineFixture {
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    EngineFixture::with(MemoryDisk::new(), clock, options())
}

fn crash(fixture: EngineFixture) -> EngineFixture {
    let (disk, clock) = (fixture.disk.after_crash(|_| 0), Arc::clone(&fixture.clock));
    drop(fixture.engine);
    EngineFixture::with(disk, clock, options())
}

fn user(name: &str) -> Holder {
    Holder::principal(name, false)
}

fn submit(
    fixture: &EngineFixture,
    session: SessionId,
    holder: &Holder,
    request: TransactionRequest,
) -> TransactionOutcome {
    let (sender, receiver) = mpsc::channel();
    let draft = TransactionDraft::new(session, Arc::new([]), "test", request);
    let done = move |_: &ZnodeTree, outcome| drop(sender.send(outcome));
    fixture.engine.znodes().submit(draft.charged_to(holder.clone()), Box::new(done));
    receiver.recv().unwrap().unwrap()
}

fn begin(fixture: &EngineFixture) -> SessionId {
    let request = TransactionRequest::CreateSession { timeout_ms: 4000, password: [7; 16] };
    submit(fixture, SessionId(0), &Holder::server(), request).session
}

fn change(
    fixture: &EngineFixture,
    session: SessionId,
    holder: &Holder,
    ops: Vec<ZnodeOp>,
) -> Result<(), ZkCode> {
    let request = TransactionRequest::Ops { ops, refusal: None };
    let outcome = submit(fixture, session, holder, request);
    outcome.result.map(drop).map_err(|refusal| refusal.code)
}

fn create(path: &str, bytes: usize, lifetime: ZnodeLifetime) -> ZnodeOp {
    let (path, data) = (path.to_owned(), Some(Bytes::from(vec![7; bytes])));
    ZnodeOp::Create { path, data, acl: acl::anyone(acl::ALL), lifetime, is_sequential: false }
}

fn persistent(path: &str, bytes: usize) -> ZnodeOp {
    create(path, bytes, ZnodeLifetime::Persistent)
}

fn set(path: &str, bytes: usize) -> ZnodeOp {
    let (path, data) = (path.to_owned(), Some(Bytes::from(vec![8; bytes])));
    ZnodeOp::SetData { path, data, version: -1 }
}

fn delete(path: &str) -> ZnodeOp {
    ZnodeOp::Delete { path: path.to_owned(), version: -1 }
}

fn usage(fixture: &EngineFixture, name: &str) -> BudgetUsage {
    let usages = fixture.engine.core().budgets().usages();
    usages.into_iter().find(|usage| usage.name == name).unwrap()
}

fn used(fixture: &EngineFixture) -> [u64; 2] {
    ["znodes", "znode-bytes"].map(|name| usage(fixture, name).used)
}

#[test]
fn a_flood_of_bytes_is_refused_and_others_store_more() {
    let fixture = fixture();
    let session = begin(&fixture);
    let mut stored = 0;
    while change(&fixture, session, &user("b"), vec![persistent(&format!("/b{stored}"), 1000)])
        .is_ok()
    {
        stored += 1;
    }
    assert!((50..=75).contains(&stored), "{stored}");
    let set_more = change(&fixture, session, &user("b"), vec![set("/b0", 9000)]);
    assert_eq!(set_more, Err(ZkCode::SystemError));
    assert_eq!(change(&fixture, session, &user("b"), vec![set("/b0", 10)]), Ok(()));
    assert_eq!(change(&fixture, session, &user("a"), vec![persistent("/a", 1000)]), Ok(()));
}

#[test]
fn a_transaction_that_is_refused_is_charged_for_nothing() {
    let fixture = fixture();
    let session = begin(&fixture);
    let before = used(&fixture);
    let ops = vec![persistent("/a", 100), set("/a", 5), persistent("/a", 1)];
    assert_eq!(change(&fixture, session, &user("a"), ops), Err(ZkCode::NodeExists));
    assert_eq!(used(&fixture), before);
}

#[test]
fn what_is_deleted_is_given_back() {
    let fixture = fixture();
    let session = begin(&fixture);
    let before = used(&fixture);
    let list: acl::Acl =
        Arc::from([AclEntry { permissions: acl::ALL, id: AclId::new("digest", &"x".repeat(500)) }]);
    let set_acl = ZnodeOp::SetAcl { path: "/l".to_owned(), acl: list, version: -1 };
    let open = user("a");
    let ops = vec![
        persistent("/a", 100),
        persistent("/a/b", 10),
        set("/a/b", 300),
        persistent("/l", 0),
        set_acl,
        create("/e", 50, ZnodeLifetime::Ephemeral),
    ];
    assert_eq!(change(&fixture, session, &open, ops), Ok(()));
    assert_eq!(used(&fixture)[0], before[0] + 4);
    assert!(used(&fixture)[1] > before[1] + 900, "the list counts too");
    let ops = vec![delete("/a/b"), delete("/a"), delete("/l")];
    assert_eq!(change(&fixture, session, &user("other"), ops), Ok(()));
    submit(&fixture, session, &Holder::server(), TransactionRequest::CloseSession);
    assert_eq!(used(&fixture), before);
}

/// Also with the usage of a quota, whose length the server changes.
#[test]
fn a_restart_charges_what_was_there_before() {
    let mut fixture = fixture();
    let session = begin(&fixture);
    let mut ops = vec![persistent("/zookeeper/quota/q", 0)];
    for (name, data) in [("zookeeper_limits", "count=5,bytes=-1"), ("zookeeper_stats", "")] {
        let ZnodeOp::Create { acl, lifetime, is_sequential, .. } = persistent("/", 0) else {
            unreachable!()
        };
        let path = format!("/zookeeper/quota/q/{name}");
        let data = Some(Bytes::from_static(data.as_bytes()));
        ops.push(ZnodeOp::Create { path, data, acl, lifetime, is_sequential });
    }
    ops.extend([persistent("/q", 12), set("/q", 400), persistent("/q/r", 30)]);
    assert_eq!(change(&fixture, session, &user("a"), ops), Ok(()));
    let before = used(&fixture);
    fixture = crash(fixture);
    assert_eq!(used(&fixture), before);
    let largest = usage(&fixture, "znodes").largest.unwrap();
    assert_eq!((&*largest.name, largest.used), ("restored at the start", before[0]));
    let session = begin(&fixture);
    assert_eq!(change(&fixture, session, &user("b"), vec![set("/q", 400)]), Ok(()));
    assert_eq!(usage(&fixture, "znodes").largest.unwrap().used, before[0] - 1);
    assert_eq!(used(&fixture), before);
    let stats = "/zookeeper/quota/q/zookeeper_stats";
    assert_eq!(change(&fixture, session, &user("b"), vec![delete(stats)]), Ok(()));
    let long = change(&fixture, session, &user("b"), vec![persistent(stats, 2000)]);
    assert_eq!(long, Err(ZkCode::BadArguments), "it counts with a fixed size");
}

#[test]
fn a_holder_without_room_still_overwrites() {
    let fixture = fixture();
    let session = begin(&fixture);
    for nth in 0..900 {
        let changed = change(
            &fixture,
            session,
            &Holder::restored(),
            vec![persistent(&format!("/r{nth}"), 1)],
        );
        assert_eq!(changed, Ok(()), "{nth}");
    }
    for nth in 0..900 {
        let path = format!("/r{nth}");
        assert_eq!(change(&fixture, session, &user("a"), vec![set(&path, 1)]), Ok(()), "{nth}");
    }
    for nth in 0..900 {
        let path = format!("/r{nth}");
        assert_eq!(change(&fixture, session, &user("a"), vec![delete(&path)]), Ok(()), "{nth}");
    }
    assert!(used(&fixture)[0] < 10);
}
