//! Single transactions.

use super::*;

/// A transaction that was decided on the way to a disk that refuses it never happened, and later
/// ones are decided without it.
#[tokio::test]
async fn what_the_disk_refuses_leaves_no_trace() {
    let fixture = EngineFixture::new();
    let znodes = fixture.engine.znodes();
    let session = begin_session(znodes).await;
    submit(znodes, session, ops([create("/a")])).await.unwrap().unwrap();
    fixture.disk.arm(DiskFault::FullAt(0));
    let refused = [
        submit(znodes, session, ops([create("/a/b")])),
        submit(znodes, session, ops([delete("/a")])),
        submit(znodes, session, ops([set("/a", -1)])),
    ];
    for answer in refused {
        answer.await.unwrap().unwrap_err();
    }
    assert_eq!(znodes.tree().last_zxid(), 2, "reads go on, and no zxid is lost");
    fixture.disk.remove_capacity_limit();
    let set = submit(znodes, session, ops([set("/a", 0)])).await.unwrap().unwrap();
    assert!(set.result.is_ok(), "the version is still 0: {set:?}");
    assert_eq!(set.zxid, 3);
    let outcome = submit(znodes, session, ops([delete("/a/b")])).await.unwrap().unwrap();
    assert_eq!(outcome.result, Err(ZnodeRefusal { code: ZkCode::NoNode, op: 0 }));
}

/// A change that fails whatever the tree is like fails in its turn: one in front of it may fail
/// first.
#[tokio::test]
async fn a_change_that_can_never_be_made_fails_behind_those_in_front_of_it() {
    let fixture = EngineFixture::new();
    let znodes = fixture.engine.znodes();
    let session = begin_session(znodes).await;
    let refused = |ops| TransactionRequest::Ops { ops, refusal: Some(ZkCode::BadArguments) };
    let answers = [
        submit(znodes, session, refused(vec![create("/a"), create("/b")])),
        submit(znodes, session, refused(vec![create("/a"), create("/a"), create("/b")])),
        submit(znodes, session, refused(vec![])),
        submit(znodes, SessionId(1), refused(vec![])),
        submit(znodes, session, ops([create("/a")])),
    ];
    let mut results = Vec::new();
    for answer in answers {
        results.push(answer.await.unwrap().unwrap().result.map(|outcomes| outcomes.len()));
    }
    let failed = |code, op| Err(ZnodeRefusal { code, op });
    let expected = [
        failed(ZkCode::BadArguments, 2),
        failed(ZkCode::NodeExists, 1),
        failed(ZkCode::BadArguments, 0),
        failed(ZkCode::SessionExpired, 0),
        Ok(1),
    ];
    assert_eq!(results, expected);
    assert!(znodes.tree().get("/b").is_none());
}

/// Closing a session twice, by its client and because it expired, is no corruption.
#[tokio::test]
async fn a_session_ends_once_and_may_be_closed_twice() {
    let fixture = EngineFixture::new();
    let znodes = fixture.engine.znodes();
    let session = begin_session(znodes).await;
    let other = begin_session(znodes).await;
    let ephemeral = create_as("/e", ZnodeLifetime::Ephemeral, false);
    let answers = [
        submit(znodes, session, ops([ephemeral])),
        submit(znodes, session, TransactionRequest::CloseSession),
        submit(znodes, session, TransactionRequest::CloseSession),
        submit(znodes, session, ops([create("/late")])),
        submit(znodes, other, ops([create("/e")])),
    ];
    let mut results = Vec::new();
    for answer in answers {
        results.push(answer.await.unwrap().unwrap().result.map(|outcomes| outcomes.len()));
    }
    let expired = Err(ZnodeRefusal { code: ZkCode::SessionExpired, op: 0 });
    assert_eq!(results, [Ok(1), Ok(0), Ok(0), expired, Ok(1)]);
    let fixture = fixture.crash(|_| 0);
    let tree = fixture.engine.znodes().tree();
    assert_eq!(tree.get("/e").unwrap().stat().czxid, 7);
    assert!(tree.get("/late").is_none());
}

#[tokio::test]
async fn a_container_goes_once_its_last_child_is_gone_and_a_time_to_live_once_it_is_over() {
    let fixture = EngineFixture::new();
    let znodes = fixture.engine.znodes();
    let session = begin_session(znodes).await;
    let creates = [
        create_as("/c", ZnodeLifetime::Container, false),
        create("/c/x"),
        create_as("/unused", ZnodeLifetime::Container, false),
        create_as("/t", ZnodeLifetime::Ttl(1000), false),
    ];
    submit(znodes, session, ops(creates)).await.unwrap().unwrap().result.unwrap();
    let due = |after_ms| znodes.tree().reapable(fixture.clock_ms() as i64 + after_ms, None);
    assert_eq!(due(1000), Vec::<String>::new());
    assert_eq!(due(2000), ["/t"]);
    let early = submit(znodes, SessionId(0), TransactionRequest::Reap { path: "/t".to_owned() });
    let early = early.await.unwrap().unwrap();
    assert_eq!(early.result, Err(ZnodeRefusal { code: ZkCode::BadVersion, op: 0 }));
    submit(znodes, session, ops([delete("/c/x")])).await.unwrap().unwrap().result.unwrap();
    assert_eq!(due(0), ["/c"]);
    let never_used = znodes.tree().reapable(fixture.clock_ms() as i64 + 10, Some(5));
    assert_eq!(never_used, ["/c", "/unused"]);
    let reaped = submit(znodes, SessionId(0), TransactionRequest::Reap { path: "/c".to_owned() });
    reaped.await.unwrap().unwrap().result.unwrap();
    assert!(znodes.tree().get("/c").is_none());
}

/// Changes something unless what is guarded has changed; returns whether it has.
async fn has_changed(znodes: &Znodes, session: SessionId, guard: SubtreeGuard) -> bool {
    let (sender, receiver) = oneshot::channel();
    let done = move |_: &ZnodeTree, answer: Answer| {
        let _ = sender.send(answer);
    };
    let draft = TransactionDraft::new(session, Arc::new([]), "test", ops([set("/a/b", -1)]));
    znodes.submit(draft.unless_changed(guard), Box::new(done));
    match receiver.await.unwrap().unwrap().result {
        Ok(_) => false,
        Err(refusal) => {
            assert_eq!(refusal, ZnodeRefusal { code: ZkCode::BadVersion, op: 0 });
            true
        }
    }
}

#[tokio::test]
async fn a_guard_knows_of_each_change_that_was_made_of_what_is_not_ephemeral() {
    let fixture = EngineFixture::new();
    let znodes = fixture.engine.znodes();
    let session = begin_session(znodes).await;
    let creates = ["/a", "/a/b", "/a/c", "/ab"].map(create);
    let ephemeral = |path| create_as(path, ZnodeLifetime::Ephemeral, false);
    submit(znodes, session, ops(creates)).await.unwrap().unwrap().result.unwrap();
    let (path, acl) = ("/a/c".to_owned(), open_acl());
    let set_acl = ZnodeOp::SetAcl { path, acl, version: -1 };
    let cases = [
        (ops([set("/a/c", -1)]), true),
        (ops([set_acl]), true),
        (ops([create("/a/c/new")]), true),
        (ops([delete("/a/c/new")]), true),
        (ops([delete("/a/c"), create("/a/c")]), true),
        (ops([set("/a", -1)]), true),
        (ops([set("/ab", -1), create("/ac"), set("/", -1)]), false),
        (ops([ephemeral("/a/e"), set("/a/e", -1), ephemeral("/a/c/e"), delete("/a/e")]), false),
        (ops([set("/a/c", -1), delete("/none")]), false),
        (ops([]), false),
    ];
    for (between, expected) in cases {
        let case = format!("{between:?}");
        let guard = znodes.guard_subtree("/a").await;
        let between = submit(znodes, session, between);
        assert_eq!(has_changed(znodes, session, guard).await, expected, "{case}");
        between.await.unwrap().unwrap();
    }
    let guard = znodes.guard_subtree("/").await;
    submit(znodes, session, ops([set("/zookeeper/quota", -1)])).await.unwrap().unwrap();
    assert!(!has_changed(znodes, session, guard).await);
}

/// After a subtree is guarded, the tree has all changes that were on their way before, except those
/// that the disk refused.
#[tokio::test]
async fn a_change_is_seen_or_the_guard_knows_of_it() {
    let fixture = EngineFixture::new();
    let znodes = fixture.engine.znodes();
    let session = begin_session(znodes).await;
    let creates = ["/a", "/a/b"].map(create);
    submit(znodes, session, ops(creates)).await.unwrap().unwrap().result.unwrap();
    for number in 0..500 {
        let path = format!("/n{number}");
        let created = submit(znodes, session, ops([create(&path)]));
        let guard = znodes.guard_subtree("/").await;
        let is_seen = znodes.tree().get(&path).is_some();
        assert!(has_changed(znodes, session, guard).await || is_seen, "{path}");
        created.await.unwrap().unwrap().result.unwrap();
    }
    fixture.disk.arm(DiskFault::FullAt(0));
    let refused = submit(znodes, session, ops([create("/refused")]));
    let guard = tokio::time::timeout(Duration::from_secs(60), znodes.guard_subtree("/")).await;
    refused.await.unwrap().unwrap_err();
    fixture.disk.remove_capacity_limit();
    drop(guard.unwrap());
}
