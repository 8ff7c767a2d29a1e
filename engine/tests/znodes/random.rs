//! Many transactions on their way together, through crashes, against the model.

use super::dumps::*;
use super::model::ZnodeModel;
use super::*;

/// A step of a test: names are chosen from few, so that requests meet.
#[derive(Clone, Debug)]
enum ZnodeStep {
    Ops(usize, Vec<ZnodeOp>),
    CloseSession(usize),
    /// All answers are awaited before the next request.
    Wait,
    /// A checkpoint is written, and history in front of an old one is removed.
    Retention,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<ZnodeStep>> {
    let path = prop::sample::select(vec!["/a", "/b", "/a/c", "/a/d", "/a/c/e", "/zookeeper/q"]);
    let version = prop_oneof![3 => Just(-1), 1 => 0..3i32];
    let lifetime = prop_oneof![
        3 => Just(ZnodeLifetime::Persistent),
        2 => Just(ZnodeLifetime::Ephemeral),
        1 => Just(ZnodeLifetime::Container),
    ];
    // Some of it is long enough to be left out of memory, and to be apart in the catalog.
    let data = prop::option::of(
        (0..4u8, prop::sample::select(vec![0, 1, 47, 48, 80, 256, 257, 400]))
            .prop_map(|(byte, length)| Bytes::from(vec![byte; length])),
    );
    let op = (0..10u8, path, version, lifetime, data);
    let op = op.prop_map(|(kind, path, version, lifetime, data)| {
        let path = path.to_owned();
        let acl = open_acl();
        match kind {
            0..=2 => ZnodeOp::Create { path, data, acl, lifetime, is_sequential: false },
            3 => ZnodeOp::Create { path, data, acl, lifetime, is_sequential: true },
            4 | 5 => ZnodeOp::Delete { path, version },
            6 => ZnodeOp::SetData { path, data, version },
            7 => ZnodeOp::SetAcl { path, acl: acl::anyone(acl::READ | acl::ADMIN), version },
            8 => ZnodeOp::RaiseSequence { path, next: version + 2 },
            _ => ZnodeOp::Check { path, version },
        }
    });
    let step = prop_oneof![
        12 => (0..3usize, prop::collection::vec(op.clone(), 1)).prop_map(|(s, ops)| ZnodeStep::Ops(s, ops)),
        6 => (0..3usize, prop::collection::vec(op, 0..4)).prop_map(|(s, ops)| ZnodeStep::Ops(s, ops)),
        1 => (0..3usize).prop_map(ZnodeStep::CloseSession),
        3 => Just(ZnodeStep::Wait),
        1 => Just(ZnodeStep::Retention),
        1 => Just(ZnodeStep::Crash),
    ];
    prop::collection::vec(step, 1..60)
}

fn without_times(outcome: OpOutcome) -> OpOutcome {
    let strip = |stat: ZnodeStat| ZnodeStat { ctime: 0, mtime: 0, ..stat };
    match outcome {
        OpOutcome::Created(path, stat) => OpOutcome::Created(path, strip(stat)),
        OpOutcome::DataSet(stat) => OpOutcome::DataSet(strip(stat)),
        OpOutcome::AclSet(stat) => OpOutcome::AclSet(strip(stat)),
        other => other,
    }
}

/// Pending answers, with the answers of the model.
type Expected = (oneshot::Receiver<Answer>, i64, Result<Vec<OpOutcome>, ZnodeRefusal>);

async fn settle(waiting: &mut Vec<Expected>) {
    for (answer, zxid, expected) in waiting.drain(..) {
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.zxid, zxid);
        let result = outcome.result.map(|all| all.into_iter().map(without_times).collect());
        assert_eq!(result, expected, "at {zxid}");
    }
}

async fn play(steps: Vec<ZnodeStep>, cached_bytes_max: u64) {
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    let mut fixture = EngineFixture::with(MemoryDisk::new(), clock, options(cached_bytes_max));
    let mut model = ZnodeModel::new();
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(begin_session(fixture.engine.znodes()).await);
        model.zxid += 1;
    }
    let (mut waiting, mut past) = (Vec::new(), Vec::new());
    for step in steps {
        let znodes = fixture.engine.znodes();
        match step {
            ZnodeStep::Ops(session, changes) => {
                let session = sessions[session];
                let expected = model.run(session, &changes);
                waiting.push((submit(znodes, session, ops(changes)), model.zxid, expected));
            }
            ZnodeStep::CloseSession(session) => {
                let session = sessions[session];
                model.close(session);
                let answer = submit(znodes, session, TransactionRequest::CloseSession);
                waiting.push((answer, model.zxid, Ok(Vec::new())));
            }
            ZnodeStep::Wait => {
                settle(&mut waiting).await;
                check_fetches(znodes, &model);
                past.push((fixture.now(), model.dump(), model.zxid));
                fixture.advance_clock(1);
            }
            ZnodeStep::Retention => {
                znodes.apply_retention().await.unwrap();
            }
            ZnodeStep::Crash => {
                settle(&mut waiting).await;
                fixture = crash(fixture, cached_bytes_max);
            }
        }
    }
    settle(&mut waiting).await;
    assert_eq!(dump(fixture.engine.znodes()), model.dump());
    let fixture = crash(fixture, cached_bytes_max);
    assert_eq!(dump_past(fixture.engine.znodes(), Cut::ALL), model.dump());
    let znodes = fixture.engine.znodes();
    let history = znodes.history();
    past.retain(|(cut, ..)| {
        let is_kept = history.check_retained(*cut).is_ok();
        let refused = history.get("/", *cut);
        assert_eq!(matches!(refused, Err(SeekError::BeforeZnodes { .. })), !is_kept, "{cut:?}");
        is_kept
    });
    for (cut, expected, zxid) in &past {
        assert_eq!(dump_past(znodes, *cut), *expected, "{cut:?}");
        assert_eq!(history.zxid_at(*cut).unwrap(), *zxid);
        check_unchanged(znodes, expected, *zxid);
    }
    check_changes(znodes, &past);
    check_differences(znodes, &past);
    assert_eq!(dump(znodes), model.dump(), "after a crash");
    {
        let tree = znodes.tree();
        assert_eq!(tree.last_zxid(), model.zxid);
        for session in sessions {
            assert_eq!(tree.session(session).is_none(), model.ended.contains(&session));
        }
    }
    if let Some((cut, expected, _)) = past.first() {
        check_restore(znodes, *cut, expected).await;
    }
}

/// A znode that is reported as unchanged is the same, with its children.
fn check_unchanged(znodes: &Znodes, before: &ZnodeDump, zxid: i64) {
    let paths: Vec<String> = dump(znodes).into_keys().collect();
    let tree = znodes.tree();
    for path in &paths {
        let Some(znode) = tree.unchanged_since(path, zxid) else { continue };
        let stat = ZnodeStat { ctime: 0, mtime: 0, ..znode.stat() };
        assert_eq!(before.get(path), Some(&(stat, data_of(znodes, path, znode))), "{path}");
        let below = |child: &str| before.contains_key(&format!("{path}/{child}"));
        assert!(znode.children().all(below), "{path}");
        assert_eq!(znode.children().len(), stat.num_children as usize, "{path}");
    }
}

fn is_built_in(path: &str) -> bool {
    matches!(path, "" | "/zookeeper" | "/zookeeper/quota" | "/zookeeper/config")
}

/// The changes lead from an empty tree, or from the first moment that is kept, to each later one;
/// those of one znode are among them.
fn check_changes(znodes: &Znodes, past: &[PastDump]) {
    let all = |path: &str, recursive| {
        let (mut transactions, mut after) = (Vec::new(), None);
        loop {
            let (until, limit) = (i64::MAX, 3);
            let query = ChangesQuery { path, recursive, after, until, limit };
            let page = znodes.history().changes(query).unwrap();
            assert!(page.transactions.len() <= limit);
            transactions.extend(page.transactions);
            if page.through == znodes.tree().last_zxid() {
                return transactions;
            }
            assert!(Some(page.through) > after, "a page leads on");
            after = Some(page.through);
        }
    };
    let transactions = all("/", true);
    assert!(transactions.is_sorted_by_key(|transaction| transaction.zxid));
    let without_built_in = |dump: &ZnodeDump| -> BTreeMap<String, (i32, Option<Vec<u8>>)> {
        let znodes = dump.iter().filter(|(path, _)| !is_built_in(path));
        znodes.map(|(path, (stat, data))| (path.clone(), (stat.version, data.clone()))).collect()
    };
    let is_whole = znodes.history().check_retained(Cut::below(Hlc::ZERO)).is_ok();
    let (first, begin) = match past.first() {
        Some((_, dump, zxid)) if !is_whole => (without_built_in(dump), *zxid),
        _ => (BTreeMap::new(), 0),
    };
    for (_, expected, zxid) in past {
        let mut state = first.clone();
        let between = begin + 1..=*zxid;
        let before = transactions.iter().filter(|entry| between.contains(&entry.zxid));
        for change in before.flat_map(|transaction| &transaction.changes) {
            let data = change.data.as_ref().map(|data| data.to_vec());
            let path = change.path.clone();
            match change.kind {
                ZnodeChangeKind::Created => {
                    assert_eq!(state.insert(path, (0, data)), None, "{}", change.path);
                }
                ZnodeChangeKind::Deleted => assert!(state.remove(&path).is_some(), "{path}"),
                ZnodeChangeKind::DataChanged => {
                    state.insert(path, (change.stat.version, data)).expect("it was created");
                }
                ZnodeChangeKind::AclChanged | ZnodeChangeKind::SequenceRaised => {}
            }
        }
        assert_eq!(state, without_built_in(expected), "up to {zxid}");
    }
    for path in ["/a", "/a/c", "/a/c0000000000"] {
        let mut expected = transactions.clone();
        for transaction in &mut expected {
            transaction.changes.retain(|change| change.path == path);
        }
        expected.retain(|transaction| !transaction.changes.is_empty());
        assert_eq!(all(path, false), expected, "{path}");
    }
}

/// Two moments differ where the model does.
fn check_differences(znodes: &Znodes, past: &[PastDump]) {
    let state = |dump: &ZnodeDump, path: &String| {
        let (stat, data) = dump.get(path)?;
        Some((stat.czxid, stat.mzxid, stat.version, stat.aversion, data.clone()))
    };
    for pair in past.windows(2) {
        let [(from, before, _), (until, after, _)] = pair else { unreachable!("two of them") };
        let paths: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let differs = paths.into_iter().filter(|path| state(before, path) != state(after, path));
        let expected: BTreeSet<String> = differs.cloned().collect();
        let (mut paths, mut next) = (Vec::new(), None);
        loop {
            let page = znodes.history().diff("/", (*from, *until), next.as_deref(), 2).unwrap();
            paths.extend(page.differences.into_iter().map(|difference| difference.path));
            match page.next {
                Some(after) => next = Some(after),
                None => break,
            }
        }
        let count = paths.len();
        let paths: BTreeSet<String> = paths.into_iter().collect();
        assert_eq!(paths.len(), count, "each once");
        assert_eq!(paths, expected);
    }
}

/// A fetch returns the data of the znode, and no more than may be in memory stays there.
fn check_fetches(znodes: &Znodes, model: &ZnodeModel) {
    for (path, znode) in &model.znodes {
        if let Some(FetchedData { mzxid, data }) = znodes.fetch(path).unwrap() {
            assert_eq!((mzxid, data.as_deref()), (znode.stat.mzxid, znode.data.as_deref()));
        }
    }
    let tree = znodes.tree();
    let lengths = model.znodes.values().filter_map(|znode| znode.data.as_ref()).map(Vec::len);
    assert_eq!(tree.data_bytes(), lengths.clone().sum::<usize>() as u64);
    let short: usize = lengths.filter(|length| *length < 48).sum();
    let max = znodes.options().cached_bytes_max.saturating_add(short as u64);
    assert!(tree.cached_bytes() <= max, "{} of {max}", tree.cached_bytes());
}

/// A restore leaves what was there then, but for ephemeral znodes; or something ephemeral is in the
/// way.
async fn check_restore(znodes: &Znodes, cut: Cut, expected: &ZnodeDump) {
    let subtree = znodes.history().subtree("/", cut).unwrap();
    let changes = subtree.changes_from(znodes);
    let changes = match changes {
        Ok(changes) => changes,
        Err(RestoreError::Ephemeral { path }) => {
            let owner = znodes.tree().get(&path).unwrap().stat().ephemeral_owner;
            assert_ne!(owner, 0, "{path}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let session = begin_session(znodes).await;
    let ids = Arc::new([AclId::new("super", "")]);
    let request = TransactionRequest::Ops { ops: changes, refusal: None };
    let (sender, receiver) = oneshot::channel();
    let done = move |_: &ZnodeTree, answer| {
        let _ = sender.send(answer);
    };
    znodes.submit(TransactionDraft::new(session, ids, "test", request), Box::new(done));
    receiver.await.unwrap().unwrap().result.unwrap();
    let lasting = |dump: ZnodeDump| -> BTreeMap<String, Option<Vec<u8>>> {
        let lasting = dump.into_iter().filter(|(path, (stat, _))| {
            stat.ephemeral_owner == 0 && !path.starts_with("/zookeeper")
        });
        lasting.map(|(path, (_, data))| (path, data)).collect()
    };
    assert_eq!(lasting(dump(znodes)), lasting(expected.clone()));
    {
        let (tree, history) = (znodes.tree(), znodes.history());
        for path in lasting(expected.clone()).keys() {
            let (now, past) = (tree.get(path).unwrap(), history.get(path, cut).unwrap().unwrap());
            assert_eq!(now.lifetime(), past.lifetime, "{path}");
            assert!(now.stat().next_sequence() >= past.stat.next_sequence(), "{path}");
        }
    }
    assert!(subtree.changes_from(znodes).unwrap().is_empty(), "nothing is left to change");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn transactions_on_their_way_together_are_as_if_one_came_after_the_other(
        steps in steps(),
        cached_bytes_max in prop::sample::select(vec![0, 150, u64::MAX])
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(play(steps, cached_bytes_max));
    }
}
