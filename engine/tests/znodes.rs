//! Transactions on znodes against a model that does them one after the other, with many on their way
//! together; through crashes, and through a disk that refuses them.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::znodes::acl::{self, Acl, AclId};
use engine::znodes::{
    ChangesQuery, FetchedData, OpOutcome, RestoreError, SessionId, TransactionDraft,
    TransactionOutcome, TransactionRequest, ZkCode, ZnodeChangeKind, ZnodeData, ZnodeLifetime,
    ZnodeOp, ZnodeOptions, ZnodeRef, ZnodeRefusal, ZnodeStat, ZnodeTree, Znodes,
};
use engine::{EngineError, EngineOptions, Offset, PinError, SeekError, WaitPolicy};
use engine_core::numbering::ZNODES_LOG;
use hlc::{Cut, Hlc, ManualClock, SysTime};
use proptest::prelude::*;
use storage::disk::{DiskFault, MemoryDisk};
use testkit::directory::TestDirectory;
use testkit::engine::{EngineFixture, START};
use tokio::sync::oneshot;

type Answer = Result<TransactionOutcome, EngineError>;

/// Submits a transaction; its answer comes later.
fn submit(
    znodes: &Znodes,
    session: SessionId,
    request: TransactionRequest,
) -> oneshot::Receiver<Answer> {
    let (sender, receiver) = oneshot::channel();
    let done = move |_: &ZnodeTree, answer| {
        let _ = sender.send(answer);
    };
    let draft = TransactionDraft::new(session, Arc::new([]), "test", request);
    znodes.submit(draft, Box::new(done));
    receiver
}

async fn begin_session(znodes: &Znodes) -> SessionId {
    let request = TransactionRequest::CreateSession { timeout_ms: 4000, password: [7; 16] };
    submit(znodes, SessionId(0), request).await.unwrap().unwrap().session
}

fn ops(ops: impl IntoIterator<Item = ZnodeOp>) -> TransactionRequest {
    TransactionRequest::Ops { ops: ops.into_iter().collect(), refusal: None }
}

fn create(path: &str) -> ZnodeOp {
    create_as(path, ZnodeLifetime::Persistent, false)
}

fn create_as(path: &str, lifetime: ZnodeLifetime, is_sequential: bool) -> ZnodeOp {
    let data = Some(Bytes::from_static(b"x"));
    ZnodeOp::Create { path: path.to_owned(), data, acl: open_acl(), lifetime, is_sequential }
}

fn delete(path: &str) -> ZnodeOp {
    ZnodeOp::Delete { path: path.to_owned(), version: -1 }
}

fn set(path: &str, version: i32) -> ZnodeOp {
    ZnodeOp::SetData { path: path.to_owned(), data: None, version }
}

fn open_acl() -> Acl {
    acl::anyone(acl::ALL)
}

/// All that the tree says of znodes, but for times.
fn dump(znodes: &Znodes) -> ZnodeDump {
    let tree = znodes.tree();
    let mut found = BTreeMap::new();
    let mut open = vec![String::new()];
    while let Some(path) = open.pop() {
        let znode = tree.get(&path).unwrap();
        open.extend(znode.children().map(|name| format!("{path}/{name}")));
        let stat = ZnodeStat { ctime: 0, mtime: 0, ..znode.stat() };
        let data = data_of(znodes, &path, znode);
        found.insert(path, (stat, data));
    }
    found
}

/// A znode's data, from memory or not.
fn data_of(znodes: &Znodes, path: &str, znode: ZnodeRef<'_>) -> Option<Vec<u8>> {
    match znode.data() {
        ZnodeData::Here(data) => data.map(<[u8]>::to_vec),
        ZnodeData::Elsewhere => {
            let data = znodes.history().data_since(path, znode.stat().mzxid).unwrap();
            data.map(|data| data.to_vec())
        }
    }
}

/// The same of the past, by the catalog.
fn dump_past(znodes: &Znodes, cut: Cut) -> ZnodeDump {
    let mut found = BTreeMap::new();
    let mut open = vec![String::new()];
    while let Some(path) = open.pop() {
        let znode = znodes.history().get(&path, cut).unwrap().unwrap();
        let names = znodes.history().children(&path, cut).unwrap();
        open.extend(names.iter().map(|name| format!("{path}/{name}")));
        let stat = ZnodeStat { ctime: 0, mtime: 0, ..znode.stat };
        found.insert(path, (stat, znode.data));
    }
    found
}

/// What a test asks for: names are chosen from few, so that requests meet.
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
    let op = (0..9u8, path, version, lifetime, data);
    let op = op.prop_map(|(kind, path, version, lifetime, data)| {
        let path = path.to_owned();
        let acl = open_acl();
        match kind {
            0..=2 => ZnodeOp::Create { path, data, acl, lifetime, is_sequential: false },
            3 => ZnodeOp::Create { path, data, acl, lifetime, is_sequential: true },
            4 | 5 => ZnodeOp::Delete { path, version },
            6 => ZnodeOp::SetData { path, data, version },
            7 => ZnodeOp::SetAcl { path, acl: acl::anyone(acl::READ | acl::ADMIN), version },
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

#[derive(Clone, Debug)]
struct ModelZnode {
    stat: ZnodeStat,
    creates: i32,
    data: Option<Vec<u8>>,
    /// Whether its list permits changes.
    is_open: bool,
    owner: Option<SessionId>,
}

/// ZooKeeper, one transaction after the other, on a plain map.
#[derive(Clone, Debug)]
struct ZnodeModel {
    znodes: BTreeMap<String, ModelZnode>,
    ended: BTreeSet<SessionId>,
    zxid: i64,
}

impl ZnodeModel {
    fn new() -> ZnodeModel {
        let built_in = |aversion, is_open| ModelZnode {
            stat: ZnodeStat { aversion, ..ZnodeStat::default() },
            creates: 0,
            data: Some(Vec::new()),
            is_open,
            owner: None,
        };
        let paths = ["", "/zookeeper", "/zookeeper/quota"];
        let mut znodes: BTreeMap<String, ModelZnode> =
            paths.map(|path| (path.to_owned(), built_in(0, true))).into();
        znodes.insert("/zookeeper/config".to_owned(), built_in(-1, false));
        ZnodeModel { znodes, ended: BTreeSet::new(), zxid: 0 }
    }

    fn children(&self, path: &str) -> i32 {
        let prefix = format!("{path}/");
        let below = |other: &&String| {
            other.strip_prefix(&prefix).is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
        };
        self.znodes.keys().filter(below).count() as i32
    }

    fn stat(&self, path: &str) -> ZnodeStat {
        let (znode, children) = (&self.znodes[path], self.children(path));
        ZnodeStat {
            cversion: znode.creates * 2 - children,
            num_children: children,
            data_length: znode.data.as_ref().map_or(0, Vec::len) as i32,
            ..znode.stat
        }
    }

    fn dump(&self) -> ZnodeDump {
        let all = self.znodes.iter();
        all.map(|(path, znode)| (path.clone(), (self.stat(path), znode.data.clone()))).collect()
    }

    fn run(&mut self, session: SessionId, ops: &[ZnodeOp]) -> Result<Vec<OpOutcome>, ZnodeRefusal> {
        self.zxid += 1;
        let mut after = self.clone();
        let mut outcomes = Vec::new();
        for (place, op) in ops.iter().enumerate() {
            match after.run_op(session, op) {
                Ok(outcome) => outcomes.push(outcome),
                Err(code) => return Err(ZnodeRefusal { code, op: place as u32 }),
            }
        }
        *self = after;
        Ok(outcomes)
    }

    fn run_op(&mut self, session: SessionId, op: &ZnodeOp) -> Result<OpOutcome, ZkCode> {
        if self.ended.contains(&session) {
            return Err(ZkCode::SessionExpired);
        }
        let zxid = self.zxid;
        match op {
            ZnodeOp::Create { path, data, lifetime, is_sequential, .. } => {
                let parent = path.rsplit_once('/').unwrap().0;
                let above = self.znodes.get_mut(parent).ok_or(ZkCode::NoNode)?;
                if !above.is_open {
                    return Err(ZkCode::NoAuth);
                }
                let (is_ephemeral, creates) = (above.owner.is_some(), above.creates);
                let path =
                    if *is_sequential { format!("{path}{creates:010}") } else { path.clone() };
                if self.znodes.contains_key(&path) {
                    return Err(ZkCode::NodeExists);
                }
                if is_ephemeral {
                    return Err(ZkCode::NoChildrenForEphemerals);
                }
                let above = self.znodes.get_mut(parent).unwrap();
                above.creates += 1;
                above.stat.pzxid = zxid;
                let owner = (*lifetime == ZnodeLifetime::Ephemeral).then_some(session);
                let stat = ZnodeStat {
                    czxid: zxid,
                    mzxid: zxid,
                    pzxid: zxid,
                    ephemeral_owner: owner.map_or(0, |owner| owner.0),
                    ..ZnodeStat::default()
                };
                let data = data.as_ref().map(|data| data.to_vec());
                let znode = ModelZnode { stat, creates: 0, data, is_open: true, owner };
                self.znodes.insert(path.clone(), znode);
                let stat = self.stat(&path);
                Ok(OpOutcome::Created(path, stat))
            }
            ZnodeOp::Delete { path, version } => {
                let parent = path.rsplit_once('/').unwrap().0.to_owned();
                let above = self.znodes.get(&parent).ok_or(ZkCode::NoNode)?;
                if !above.is_open {
                    return Err(ZkCode::NoAuth);
                }
                let znode = self.znodes.get(path).ok_or(ZkCode::NoNode)?;
                check(znode.stat.version, *version)?;
                if self.children(path) > 0 {
                    return Err(ZkCode::NotEmpty);
                }
                self.remove(path);
                Ok(OpOutcome::Deleted)
            }
            ZnodeOp::SetData { path, data, version } => {
                let znode = self.znodes.get_mut(path).ok_or(ZkCode::NoNode)?;
                if !znode.is_open {
                    return Err(ZkCode::NoAuth);
                }
                check(znode.stat.version, *version)?;
                znode.stat.version += 1;
                znode.stat.mzxid = zxid;
                znode.data = data.as_ref().map(|data| data.to_vec());
                Ok(OpOutcome::DataSet(self.stat(path)))
            }
            ZnodeOp::SetAcl { path, version, .. } => {
                let znode = self.znodes.get_mut(path).ok_or(ZkCode::NoNode)?;
                check(znode.stat.aversion, *version)?;
                znode.stat.aversion += 1;
                znode.is_open = false;
                Ok(OpOutcome::AclSet(self.stat(path)))
            }
            ZnodeOp::Check { path, version } => {
                let znode = self.znodes.get(path).ok_or(ZkCode::NoNode)?;
                check(znode.stat.version, *version)?;
                Ok(OpOutcome::Checked)
            }
        }
    }

    fn remove(&mut self, path: &str) {
        self.znodes.remove(path);
        let parent = path.rsplit_once('/').unwrap().0;
        self.znodes.get_mut(parent).unwrap().stat.pzxid = self.zxid;
    }

    fn close(&mut self, session: SessionId) {
        self.zxid += 1;
        self.ended.insert(session);
        let own = |(path, znode): (&String, &ModelZnode)| {
            (znode.owner == Some(session)).then(|| path.clone())
        };
        for path in self.znodes.iter().filter_map(own).collect::<Vec<_>>() {
            self.remove(&path);
        }
    }
}

fn check(current: i32, wanted: i32) -> Result<(), ZkCode> {
    if wanted == -1 || wanted == current { Ok(()) } else { Err(ZkCode::BadVersion) }
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

/// Answers that are on their way, and what the model says.
type Expected = (oneshot::Receiver<Answer>, i64, Result<Vec<OpOutcome>, ZnodeRefusal>);

async fn settle(waiting: &mut Vec<Expected>) {
    for (answer, zxid, expected) in waiting.drain(..) {
        let outcome = answer.await.unwrap().unwrap();
        assert_eq!(outcome.zxid, zxid);
        let result = outcome.result.map(|all| all.into_iter().map(without_times).collect());
        assert_eq!(result, expected, "at {zxid}");
    }
}

/// Each checkpoint is due, and history is kept for few milliseconds.
fn options(cached_bytes_max: u64) -> EngineOptions {
    let znodes = ZnodeOptions {
        history_retention: Duration::from_millis(3),
        checkpoint_bytes_min: 1,
        cached_bytes_max,
        ..ZnodeOptions::default()
    };
    EngineOptions { znodes, ..EngineOptions::default() }
}

/// Starts again on what a crash leaves, with a catalog that has to be made again.
fn crash(fixture: EngineFixture, cached_bytes_max: u64) -> EngineFixture {
    let (left, clock) = (fixture.disk.after_crash(|_| 0), Arc::clone(&fixture.clock));
    drop(fixture.engine);
    EngineFixture::with(left, clock, options(cached_bytes_max))
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

/// What is said to be the same still is that, with its children.
fn check_unchanged(znodes: &Znodes, then: &ZnodeDump, zxid: i64) {
    let paths: Vec<String> = dump(znodes).into_keys().collect();
    let tree = znodes.tree();
    for path in &paths {
        let Some(znode) = tree.unchanged_since(path, zxid) else { continue };
        let stat = ZnodeStat { ctime: 0, mtime: 0, ..znode.stat() };
        assert_eq!(then.get(path), Some(&(stat, data_of(znodes, path, znode))), "{path}");
        let below = |child: &str| then.contains_key(&format!("{path}/{child}"));
        assert!(znode.children().all(below), "{path}");
        assert_eq!(znode.children().len(), stat.num_children as usize, "{path}");
    }
}

type ZnodeDump = BTreeMap<String, (ZnodeStat, Option<Vec<u8>>)>;
/// A moment, what the model was then, and its last transaction.
type PastDump = (Cut, ZnodeDump, i64);

fn is_built_in(path: &str) -> bool {
    matches!(path, "" | "/zookeeper" | "/zookeeper/quota" | "/zookeeper/config")
}

/// The changes lead from an empty tree, or from the first moment that is kept, to each later one; those of
/// one znode are among them.
fn check_changes(znodes: &Znodes, past: &[PastDump]) {
    let all = |path: &str, recursive| {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let (until, limit) = (i64::MAX, 3);
            let query = ChangesQuery { path, recursive, after, until, limit };
            let page = znodes.history().changes(query).unwrap();
            assert!(page.transactions.len() <= limit);
            found.extend(page.transactions);
            if page.through == znodes.tree().last_zxid() {
                return found;
            }
            assert!(Some(page.through) > after, "a page leads on");
            after = Some(page.through);
        }
    };
    let transactions = all("/", true);
    assert!(transactions.is_sorted_by_key(|transaction| transaction.zxid));
    let own = |dump: &ZnodeDump| -> BTreeMap<String, (i32, Option<Vec<u8>>)> {
        let own = dump.iter().filter(|(path, _)| !is_built_in(path));
        own.map(|(path, (stat, data))| (path.clone(), (stat.version, data.clone()))).collect()
    };
    let is_whole = znodes.history().check_retained(Cut::below(Hlc::ZERO)).is_ok();
    let (first, begin) = match past.first() {
        Some((_, dump, zxid)) if !is_whole => (own(dump), *zxid),
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
                ZnodeChangeKind::AclChanged => {}
            }
        }
        assert_eq!(state, own(expected), "up to {zxid}");
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
    let own = |dump: &ZnodeDump, path: &String| {
        let (stat, data) = dump.get(path)?;
        Some((stat.czxid, stat.mzxid, stat.version, stat.aversion, data.clone()))
    };
    for pair in past.windows(2) {
        let [(from, before, _), (until, after, _)] = pair else { unreachable!("two of them") };
        let paths: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let differs = paths.into_iter().filter(|path| own(before, path) != own(after, path));
        let expected: BTreeSet<String> = differs.cloned().collect();
        let (mut found, mut next) = (Vec::new(), None);
        loop {
            let page = znodes.history().diff("/", (*from, *until), next.as_deref(), 2).unwrap();
            found.extend(page.differences.into_iter().map(|difference| difference.path));
            match page.next {
                Some(after) => next = Some(after),
                None => break,
            }
        }
        let count = found.len();
        let found: BTreeSet<String> = found.into_iter().collect();
        assert_eq!(found.len(), count, "each once");
        assert_eq!(found, expected);
    }
}

/// What is fetched is what the znodes have, and no more than may be in memory stays there.
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

/// A restore leaves what was there then, but for ephemeral znodes; or something ephemeral is in the way.
async fn check_restore(znodes: &Znodes, cut: Cut, expected: &ZnodeDump) {
    let then = znodes.history().subtree("/", cut).unwrap();
    let changes = then.changes_from(znodes);
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
    let held = Arc::new([AclId::new("super", "")]);
    let request = TransactionRequest::Ops { ops: changes, refusal: None };
    let (sender, receiver) = oneshot::channel();
    let done = move |_: &ZnodeTree, answer| {
        let _ = sender.send(answer);
    };
    znodes.submit(TransactionDraft::new(session, held, "test", request), Box::new(done));
    receiver.await.unwrap().unwrap().result.unwrap();
    let lasting = |dump: ZnodeDump| -> BTreeMap<String, Option<Vec<u8>>> {
        let lasting = dump.into_iter().filter(|(path, (stat, _))| {
            stat.ephemeral_owner == 0 && !path.starts_with("/zookeeper")
        });
        lasting.map(|(path, (_, data))| (path, data)).collect()
    };
    assert_eq!(lasting(dump(znodes)), lasting(expected.clone()));
    assert!(then.changes_from(znodes).unwrap().is_empty(), "nothing is left to change");
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

/// What was decided on the way to a disk that refuses it never happened, and what comes later is
/// decided without it.
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
    let gone = submit(znodes, session, ops([delete("/a/b")])).await.unwrap().unwrap();
    assert_eq!(gone.result, Err(ZnodeRefusal { code: ZkCode::NoNode, op: 0 }));
}

/// A change that fails whatever the tree is like fails in its turn: one in front of it may fail first.
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

/// What is older than the retention is gone with its disk space; what is kept reads as before, also after
/// a crash; and a pin keeps what it shows.
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
        let kept = znodes.history().changes(ChangesQuery { after: None, ..first }).unwrap();
        assert_eq!(kept.transactions.last().unwrap().changes[0].stat.version, 30);
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
    let kept = fixture.now();
    let when = WaitPolicy::Wait(Duration::from_secs(1));
    fixture.advance_clock(1);
    let (pins, expires) = (fixture.engine.pins(), SysTime(START + 1_000_000));
    let late = pins.set("late", moments[0].0, when, expires, None).await;
    assert!(matches!(late, Err(PinError::Seek(SeekError::BeforeZnodes { .. }))), "{late:?}");
    pins.set("p", kept, when, expires, None).await.unwrap();
    for _ in 0..30 {
        fixture.advance_clock(1);
        znodes.apply_retention().await.unwrap();
        let session = begin_session(znodes).await;
        submit(znodes, session, ops([set("/a", -1)])).await.unwrap().unwrap();
    }
    assert_eq!(znodes.history().get("/a", kept).unwrap().unwrap().stat.version, 30);
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
    let most = |counts: &[usize]| *counts.iter().max().unwrap();
    let (early, late) = (most(&counts[20..60]), most(&counts[80..]));
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
    let (kept, when) = (Cut::below(last.stamp), WaitPolicy::Wait(Duration::from_secs(1)));
    fixture.advance_clock(10);
    let expires = SysTime(START + 1_000_000);
    fixture.engine.pins().set("p", kept, when, expires, None).await.unwrap();
    assert!(znodes.apply_retention().await.unwrap(), "a checkpoint is due");
    fixture.advance_clock(10);
    znodes.apply_retention().await.unwrap();
    let znode = znodes.history().get("/large", kept).unwrap();
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
        let done = submit(znodes, session, ops([op])).await.unwrap().unwrap();
        done.result.unwrap();
        zxids.push(done.zxid);
    }
    let tree = znodes.tree();
    let is_same = |path, nth: usize| tree.unchanged_since(path, zxids[nth]).is_some();
    assert!(!is_same("/a", 3) && is_same("/a", 4) && is_same("/a", 5));
    assert!(!is_same("/b", 2) && is_same("/b", 3), "a child is a change");
    assert!(!is_same("/list", 5), "a list that was ever changed says nothing");
    assert!(tree.unchanged_since("/a", zxids[5] + 1).is_none(), "that is not applied yet");
    assert!(!is_same("/zookeeper", 5) && !is_same("/none", 5));
}

/// A catalog that an earlier start left knows znodes that were deleted in transactions which are removed
/// since: nothing of it may be seen.
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
        match path.is_dir() {
            true => copy_directory(&path, &to.join(name)),
            false => drop(std::fs::copy(&path, to.join(name)).unwrap()),
        }
    }
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
    let made = [
        create_as("/c", ZnodeLifetime::Container, false),
        create("/c/x"),
        create_as("/unused", ZnodeLifetime::Container, false),
        create_as("/t", ZnodeLifetime::Ttl(1000), false),
    ];
    submit(znodes, session, ops(made)).await.unwrap().unwrap().result.unwrap();
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
