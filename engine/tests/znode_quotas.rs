//! Quotas of znodes: counts and refusals, now, after a crash and in the past.

use std::sync::Arc;

use bytes::Bytes;
use engine::EngineOptions;
use engine::znodes::acl;
use engine::znodes::{ZkCode, ZnodeLifetime, ZnodeOp, ZnodeOptions, ZnodeRefusal};
use hlc::{Cut, ManualClock, SysTime};
use storage::disk::MemoryDisk;
use testkit::engine::{EngineFixture, START};
use testkit::znodes::change_znode;

const LIMITS: &str = "/zookeeper/quota/a/zookeeper_limits";
const STATS: &str = "/zookeeper/quota/a/zookeeper_stats";

fn create(path: &str, data: &str) -> ZnodeOp {
    let (path, lifetime, acl) = (path.to_owned(), ZnodeLifetime::Persistent, acl::anyone(acl::ALL));
    let data = Some(Bytes::copy_from_slice(data.as_bytes()));
    ZnodeOp::Create { path, data, acl, lifetime, is_sequential: false }
}

fn set(path: &str, data: &str) -> ZnodeOp {
    let data = Some(Bytes::copy_from_slice(data.as_bytes()));
    ZnodeOp::SetData { path: path.to_owned(), data, version: -1 }
}

fn fixture(enforces_quotas: bool) -> EngineFixture {
    let znodes = ZnodeOptions { enforces_quotas, ..ZnodeOptions::default() };
    let options = EngineOptions { znodes, ..EngineOptions::default() };
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    EngineFixture::with(MemoryDisk::new(), clock, options)
}

fn change(fixture: &EngineFixture, op: ZnodeOp) -> Result<(), ZkCode> {
    let changed = change_znode(fixture.engine.znodes(), op);
    changed.map(drop).map_err(|ZnodeRefusal { code, .. }| code)
}

/// The usage that the server shows. Checks that its stat has the same length.
fn usage(fixture: &EngineFixture) -> String {
    let tree = fixture.engine.znodes().tree();
    let stats = tree.get(STATS).unwrap();
    let text = String::from_utf8(stats.data().here().flatten().unwrap().to_vec()).unwrap();
    assert_eq!(stats.stat().data_length as usize, text.len());
    assert_eq!(stats.stat().version, 0, "it has no version");
    text
}

fn usage_then(fixture: &EngineFixture, cut: Cut) -> String {
    let stats = fixture.engine.znodes().history().get(STATS, cut).unwrap().unwrap();
    String::from_utf8(stats.data.unwrap()).unwrap()
}

fn moment(fixture: &EngineFixture) -> Cut {
    let now = fixture.now();
    fixture.advance_clock(1);
    now
}

#[test]
fn the_usage_is_that_of_the_subtree_now_after_a_crash_and_then() {
    let fixture = fixture(false);
    for op in [create("/a", "four"), create("/a/b", "xx"), create("/ab", "not below /a")] {
        change(&fixture, op).unwrap();
    }
    for op in [
        create("/zookeeper/quota/a", ""),
        create(LIMITS, "count=-1,bytes=-1=;countHardLimit=1"),
        create(STATS, "count=-1,bytes=-1"),
    ] {
        change(&fixture, op).unwrap();
    }
    assert_eq!(usage(&fixture), "count=2,bytes=6");
    let first = moment(&fixture);
    for op in [create("/a/b/c", "y"), set("/a", "1234567890"), create("/a/d", "")] {
        change(&fixture, op).unwrap();
    }
    assert_eq!(usage(&fixture), "count=4,bytes=13");
    let second = moment(&fixture);
    change(&fixture, ZnodeOp::Delete { path: "/a/b/c".to_owned(), version: -1 }).unwrap();
    assert_eq!(usage(&fixture), "count=3,bytes=12");
    let fixture = fixture.crash(|_| 0);
    assert_eq!(usage(&fixture), "count=3,bytes=12");
    assert_eq!(usage_then(&fixture, first), "count=2,bytes=6");
    assert_eq!(usage_then(&fixture, second), "count=4,bytes=13");
    change(&fixture, ZnodeOp::Delete { path: LIMITS.to_owned(), version: -1 }).unwrap();
    change(&fixture, create("/a/e", "")).unwrap();
    assert_eq!(usage(&fixture), "count=3,bytes=12", "without a limit nothing is counted");
}

#[test]
fn what_exceeds_a_hard_limit_is_refused_if_that_is_enforced() {
    for enforces in [true, false] {
        let fixture = fixture(enforces);
        for op in [
            create("/a", ""),
            create("/zookeeper/quota/a", ""),
            create(LIMITS, "count=1,bytes=1=;countHardLimit=3;byteHardLimit=10"),
            create(STATS, "count=0,bytes=0"),
            create("/a/b", "0123456789"),
        ] {
            change(&fixture, op).unwrap();
        }
        let refused = if enforces { Err(ZkCode::QuotaExceeded) } else { Ok(()) };
        assert_eq!(change(&fixture, set("/a/b", "0123456789x")), refused);
        assert_eq!(change(&fixture, set("/a/b", "012")), Ok(()), "it needs less");
        assert_eq!(change(&fixture, create("/a/c", "0123456789")), refused);
        let fourth = [create("/a/d", ""), create("/a/d/e", "")];
        let outcomes = fourth.map(|op| change(&fixture, op));
        assert_eq!(outcomes[0], Ok(()));
        assert_eq!(outcomes[1], refused);
        assert_eq!(change(&fixture, create("/b", "not below it")), Ok(()));
    }
}
