//! The history: its retention, and the parts of it that have not changed since.

use super::*;

/// History older than the retention is gone with its disk space; the rest reads as before, also
/// after a crash; and a pin keeps the history that it shows.
#[tokio::test]
async fn history_that_is_old_enough_is_removed_and_the_rest_stays() {
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    let fixture = EngineFixture::with(MemoryDisk::new(), clock, options(u64::MAX));
    let znodes = fixture.engine.znodes();
    let session = begin_session(znodes).await;
    let ephemeral = create_as("/e", ZnodeLifetime::Ephemeral, false);
    submit(znodes, session, ops([create("/a"), ephemeral])).await.unwrap().unwrap();
    let mut moments = Vec::new();
    for version in 0..30 {
        moments.push((fixture.now(), version));
        fixture.advance_clock(1);
        submit(znodes, session, ops([set("/a", version)])).await.unwrap().unwrap();
        znodes.apply_retention().await.unwrap();
    }
    let check = |znodes: &Znodes| {
        let mut refused = 0;
        for (cut, version) in &moments {
            match znodes.history().get("/a", *cut) {
                Ok(znode) => assert_eq!(znode.unwrap().stat.version, *version),
                Err(SeekError::BeforeZnodes { earliest }) => {
                    assert!(cut.bound() < earliest);
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        let first = ChangesQuery {
            path: "/a",
            recursive: false,
            after: Some(0),
            until: i64::MAX,
            limit: 9,
        };
        let refused_changes = znodes.history().changes(first);
        assert!(matches!(refused_changes, Err(SeekError::BeforeZnodes { .. })));
        let page = znodes.history().changes(ChangesQuery { after: None, ..first }).unwrap();
        assert_eq!(page.transactions.last().unwrap().changes[0].stat.version, 30);
        refused
    };
    let refused = check(znodes);
    assert!((10..=27).contains(&refused), "{refused} of 30 are gone; 27 are older than 3 ms");
    let log = fixture.engine.store().log(ZNODES_LOG).unwrap();
    assert!(log.start() > Offset(5), "{:?}", log.start());
    let fixture = crash(fixture, u64::MAX);
    let znodes = fixture.engine.znodes();
    assert_eq!(check(znodes), refused);
    assert!(znodes.tree().session(session).is_some());
    submit(znodes, session, TransactionRequest::CloseSession).await.unwrap().unwrap();
    assert!(znodes.tree().get("/e").is_none(), "it went with its session");
    let pinned = fixture.now();
    let when = WaitPolicy::Wait(Duration::from_secs(1));
    fixture.advance_clock(1);
    let (pins, expires) = (fixture.engine.pins(), SysTime(START + 1_000_000));
    let late = pins.set("late", moments[0].0, when, expires, None).await;
    assert!(matches!(late, Err(PinError::Seek(SeekError::BeforeZnodes { .. }))), "{late:?}");
    pins.set("p", pinned, when, expires, None).await.unwrap();
    for _ in 0..30 {
        fixture.advance_clock(1);
        znodes.apply_retention().await.unwrap();
        let session = begin_session(znodes).await;
        submit(znodes, session, ops([set("/a", -1)])).await.unwrap().unwrap();
    }
    assert_eq!(znodes.history().get("/a", pinned).unwrap().unwrap().stat.version, 30);
}

/// Neither sessions that ended nor znodes that were deleted leave anything behind for ever.
#[tokio::test]
async fn what_is_gone_and_forgotten_takes_no_room() {
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    let fixture = EngineFixture::with(MemoryDisk::new(), clock, options(u64::MAX));
    let znodes = fixture.engine.znodes();
    let mut counts = Vec::new();
    for round in 0..120 {
        let session = begin_session(znodes).await;
        let ephemeral = create_as("/e-", ZnodeLifetime::Ephemeral, true);
        let lasting = create(&format!("/n{round}"));
        submit(znodes, session, ops([ephemeral, lasting])).await.unwrap().unwrap();
        submit(znodes, session, ops([delete(&format!("/n{round}"))])).await.unwrap().unwrap();
        submit(znodes, session, TransactionRequest::CloseSession).await.unwrap().unwrap();
        fixture.advance_clock(1);
        znodes.apply_retention().await.unwrap();
        counts.push(fixture.engine.catalog().get().unwrap().version_count());
    }
    let maximum = |counts: &[usize]| *counts.iter().max().unwrap();
    let (early, late) = (maximum(&counts[20..60]), maximum(&counts[80..]));
    assert!(late <= early + early / 4, "versions grow from {early} to {late}");
}

/// The last transaction of a checkpoint is the one that a pinned moment just does not admit.
#[tokio::test]
async fn a_pin_right_in_front_of_a_checkpoint_keeps_its_moment() {
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    let fixture = EngineFixture::with(MemoryDisk::new(), clock, options(u64::MAX));
    let znodes = fixture.engine.znodes();
    let session = begin_session(znodes).await;
    let data = Some(Bytes::from(vec![7; 10_000]));
    let (acl, lifetime) = (open_acl(), ZnodeLifetime::Persistent);
    let path = "/large".to_owned();
    let large = ZnodeOp::Create { path, data, acl, lifetime, is_sequential: false };
    submit(znodes, session, ops([large])).await.unwrap().unwrap();
    submit(znodes, session, ops([delete("/large")])).await.unwrap().unwrap();
    let log = fixture.engine.store().log(ZNODES_LOG).unwrap();
    let last = log.entry_at(Offset(log.end().0 - 1)).unwrap().unwrap();
    let (pinned, when) = (Cut::below(last.stamp), WaitPolicy::Wait(Duration::from_secs(1)));
    fixture.advance_clock(10);
    let expires = SysTime(START + 1_000_000);
    fixture.engine.pins().set("p", pinned, when, expires, None).await.unwrap();
    assert!(znodes.apply_retention().await.unwrap(), "a checkpoint is due");
    fixture.advance_clock(10);
    znodes.apply_retention().await.unwrap();
    let znode = znodes.history().get("/large", pinned).unwrap();
    assert_eq!(znode.unwrap().stat.data_length, 10_000);
}

#[tokio::test]
async fn a_znode_is_known_to_be_the_same_until_something_of_it_changes() {
    let fixture = EngineFixture::new();
    let znodes = fixture.engine.znodes();
    let session = begin_session(znodes).await;
    let (path, acl, version) = ("/list".to_owned(), open_acl(), -1);
    let mut zxids = Vec::new();
    for op in [
        create("/a"),
        create("/b"),
        create("/list"),
        create("/b/c"),
        set("/a", -1),
        ZnodeOp::SetAcl { path, acl, version },
    ] {
        let outcome = submit(znodes, session, ops([op])).await.unwrap().unwrap();
        outcome.result.unwrap();
        zxids.push(outcome.zxid);
    }
    let tree = znodes.tree();
    let is_same = |path, nth: usize| tree.unchanged_since(path, zxids[nth]).is_some();
    assert!(!is_same("/a", 3) && is_same("/a", 4) && is_same("/a", 5));
    assert!(!is_same("/b", 2) && is_same("/b", 3), "a child is a change");
    assert!(!is_same("/list", 5), "a list that was ever changed says nothing");
    assert!(tree.unchanged_since("/a", zxids[5] + 1).is_none(), "that is not applied yet");
    assert!(!is_same("/zookeeper", 5) && !is_same("/none", 5));
}

/// A catalog that an earlier start left knows znodes that were deleted in transactions which are
/// removed since: nothing of it may be seen.
#[tokio::test]
async fn a_catalog_from_before_the_history_is_not_used() {
    let (home, copy) = (TestDirectory::new(), TestDirectory::new());
    let open = |disk: MemoryDisk, clock: &Arc<ManualClock>, catalog: &TestDirectory| {
        let mut options = options(u64::MAX);
        options.core.catalog = Some(catalog.path().join("catalog"));
        EngineFixture::with(disk, Arc::clone(clock), options)
    };
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    let fixture = open(MemoryDisk::new(), &clock, &home);
    let znodes = fixture.engine.znodes();
    let session = begin_session(znodes).await;
    for op in [create("/gone"), create("/stays")] {
        submit(znodes, session, ops([op])).await.unwrap().unwrap().result.unwrap();
    }
    assert!(znodes.history().get("/gone", Cut::ALL).unwrap().is_some(), "the catalog has it");
    fixture.engine.close();
    let disk = fixture.disk.clone();
    drop(fixture);
    copy_directory(&home.path().join("catalog"), &copy.path().join("catalog"));
    let fixture = open(disk, &clock, &home);
    let znodes = fixture.engine.znodes();
    submit(znodes, session, ops([delete("/gone")])).await.unwrap().unwrap().result.unwrap();
    for _ in 0..20 {
        fixture.advance_clock(1);
        submit(znodes, session, ops([set("/stays", -1)])).await.unwrap().unwrap();
        znodes.apply_retention().await.unwrap();
    }
    let log = fixture.engine.store().log(ZNODES_LOG).unwrap();
    assert!(log.start() > Offset(4), "the deletion is removed: {:?}", log.start());
    fixture.engine.close();
    let disk = fixture.disk.clone();
    drop((log, fixture));
    let fixture = open(disk, &clock, &copy);
    let history = fixture.engine.znodes().history();
    assert!(history.get("/gone", Cut::ALL).unwrap().is_none());
    assert!(history.get("/stays", Cut::ALL).unwrap().is_some());
}

fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        if path.is_dir() {
            copy_directory(&path, &to.join(name));
        } else {
            std::fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

/// Children of the past cost what was there then, however many are gone, and read as they were:
/// through rewrites of the list, and a restart with a new catalog.
#[tokio::test]
async fn children_of_the_past_cost_what_was_there_then() {
    const GONE: usize = 4000;
    const AT_ONCE: usize = 50;
    const STAYING: usize = 200;
    let fixture = EngineFixture::new();
    let znodes = fixture.engine.znodes();
    let session = begin_session(znodes).await;
    submit(znodes, session, ops([create("/q")])).await.unwrap().unwrap();
    let staying: Vec<String> = (0..STAYING).map(|nth| format!("/q/stays{nth:04}")).collect();
    let created = ops(staying.iter().map(|path| create(path)));
    submit(znodes, session, created).await.unwrap().unwrap().result.unwrap();
    let mut moments = Vec::new();
    for turn in 0..GONE / AT_ONCE {
        let paths: Vec<String> =
            (0..AT_ONCE).map(|nth| format!("/q/n{:05}", turn * AT_ONCE + nth)).collect();
        let created = ops(paths.iter().map(|path| create(path)));
        submit(znodes, session, created).await.unwrap().unwrap().result.unwrap();
        moments.push((fixture.now(), AT_ONCE, paths[0].clone()));
        for path in &paths[1..] {
            submit(znodes, session, ops([delete(path)])).await.unwrap().unwrap().result.unwrap();
        }
        moments.push((fixture.now(), 1, paths[0].clone()));
        submit(znodes, session, ops([delete(&paths[0])])).await.unwrap().unwrap().result.unwrap();
    }
    let check = |znodes: &Znodes, catalog: &storage::catalog::Catalog| {
        znodes.history().children("/q", Cut::ALL).unwrap();
        for (cut, other_count, other) in &moments {
            let before = catalog.read_count();
            let names = znodes.history().children("/q", *cut).unwrap();
            let visited = catalog.read_count() - before;
            assert_eq!(names.len(), STAYING + other_count, "{cut:?}");
            assert!(names.iter().any(|name| other.ends_with(name)), "{other}");
            assert!(visited <= 2 * names.len() as u64, "{visited} entries for {}", names.len());
        }
    };
    check(znodes, &fixture.engine.catalog().get().unwrap());
    let fixture = crash(fixture, u64::MAX);
    check(fixture.engine.znodes(), &fixture.engine.catalog().get().unwrap());
}

/// A read of an early moment does not wait for later transactions.
#[tokio::test]
async fn a_read_of_the_past_applies_only_its_own_cut() {
    let fixture = EngineFixture::new();
    let znodes = fixture.engine.znodes();
    let session = begin_session(znodes).await;
    submit(znodes, session, ops([create("/a")])).await.unwrap().unwrap().result.unwrap();
    let early = fixture.now();
    for _ in 0..100 {
        submit(znodes, session, ops([set("/a", -1)])).await.unwrap().unwrap().result.unwrap();
    }
    let history = znodes.history();
    assert_eq!(history.get("/a", early).unwrap().unwrap().stat.version, 0);
    assert_eq!(history.children("/", early).unwrap(), ["a", "zookeeper"]);
    let catalog = fixture.engine.catalog().get().unwrap();
    let applied = catalog.applied_in(ZNODES_LOG).unwrap().unwrap();
    assert_eq!(applied.offset, Offset(1), "the session and the znode");
    assert_eq!(history.get("/a", fixture.now()).unwrap().unwrap().stat.version, 100);
}

/// A znode that has a time to live is not the persistent one that was there.
#[tokio::test]
async fn a_restore_gives_a_znode_its_kind_back() {
    let fixture = EngineFixture::new();
    let znodes = fixture.engine.znodes();
    let session = begin_session(znodes).await;
    let creates = ["/a", "/a/b", "/a/b/c", "/a/d"].map(create);
    submit(znodes, session, ops(creates)).await.unwrap().unwrap().result.unwrap();
    let moment = fixture.now();
    let deletes = ["/a/b/c", "/a/b"].map(delete);
    let creates = [create_as("/a/b", ZnodeLifetime::Ttl(1), false), create("/a/b/c")];
    let changes = deletes.into_iter().chain(creates);
    submit(znodes, session, ops(changes)).await.unwrap().unwrap().result.unwrap();
    let subtree = znodes.history().subtree("/a", moment).unwrap();
    let changes = subtree.changes_from(znodes).unwrap();
    submit(znodes, session, ops(changes)).await.unwrap().unwrap().result.unwrap();
    let lifetime = |path: &str| znodes.tree().get(path).unwrap().lifetime();
    assert_eq!(lifetime("/a/b"), ZnodeLifetime::Persistent);
    assert_eq!(lifetime("/a/b/c"), ZnodeLifetime::Persistent);
    assert!(znodes.tree().reapable(i64::MAX, None).is_empty(), "nothing is reaped later");
    assert!(subtree.changes_from(znodes).unwrap().is_empty());
}
