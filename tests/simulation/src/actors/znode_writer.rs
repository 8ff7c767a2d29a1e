//! The only actor that changes znodes but for those of [`super::znode_client`], so it knows the
//! present and the past ones. Several of its transactions are on their way at a time, and each has
//! to end as a model of one after the other says.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::znodes::{
    SessionId, TransactionDraft, TransactionOutcome, TransactionRequest, ZkCode, ZnodeData,
    ZnodeLifetime, ZnodeOp, ZnodeTree, acl,
};
use engine::{Engine, EngineError, SeekError};
use hlc::{Cut, Hlc, SysTime};
use testkit::rng::SeededRng;
use tokio::sync::oneshot;

use super::znode_client::CLIENT_ROOT;
use super::{pause, unless_node_exits};
use crate::coverage::CoveragePoint;
use crate::facts::{AsOfAnswer, SimFact};
use crate::node::ZNODES_RETENTION;
use crate::world::SimWorld;

const WHO: &str = "znode_writer";
const PATHS: [&str; 5] = ["/a", "/b", "/a/c", "/a/d", "/a/c/e"];
/// The number of transactions that are on their way at a time.
const ON_THEIR_WAY_MAX: u64 = 5;

/// The time limit of an answer: longer than any disk is full or hangs.
const ANSWER_MAX: Duration = Duration::from_secs(10);

type PendingOutcome = oneshot::Receiver<Result<TransactionOutcome, EngineError>>;

/// A znode of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ModelZnode {
    version: i32,
    data: String,
    /// The session that it ends with; 0 for none.
    owner: i64,
}

/// All znodes but the root and what belongs to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ModelZnodes(BTreeMap<String, ModelZnode>);

impl ModelZnodes {
    /// Does what a transaction of `session` does, if it is not refused.
    fn apply(&mut self, session: SessionId, request: &TransactionRequest) -> Result<(), ZkCode> {
        match request {
            TransactionRequest::CloseSession => self.0.retain(|_, znode| znode.owner != session.0),
            TransactionRequest::Ops { ops, .. } => {
                let mut after = self.clone();
                ops.iter().try_for_each(|op| after.apply_op(session, op))?;
                *self = after;
            }
            TransactionRequest::CreateSession { .. } | TransactionRequest::Reap { .. } => {}
        }
        Ok(())
    }

    fn apply_op(&mut self, session: SessionId, op: &ZnodeOp) -> Result<(), ZkCode> {
        let text = |data: &Option<Bytes>| {
            let bytes = data.as_deref().unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        match op {
            ZnodeOp::Create { path, data, lifetime, .. } => {
                let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                let above = self.0.get(parent);
                if above.is_none() && !parent.is_empty() {
                    return Err(ZkCode::NoNode);
                }
                if self.0.contains_key(path) {
                    return Err(ZkCode::NodeExists);
                }
                if above.is_some_and(|above| above.owner != 0) {
                    return Err(ZkCode::NoChildrenForEphemerals);
                }
                let owner = match lifetime {
                    ZnodeLifetime::Ephemeral => session.0,
                    _ => 0,
                };
                let created = ModelZnode { version: 0, data: text(data), owner };
                self.0.insert(path.clone(), created);
            }
            ZnodeOp::SetData { path, data, version } => {
                let znode = self.0.get_mut(path).ok_or(ZkCode::NoNode)?;
                if *version != -1 && *version != znode.version {
                    return Err(ZkCode::BadVersion);
                }
                znode.version += 1;
                znode.data = text(data);
            }
            ZnodeOp::Delete { path, .. } => {
                if !self.0.contains_key(path) {
                    return Err(ZkCode::NoNode);
                }
                let below = format!("{path}/");
                if self.0.keys().any(|other| other.starts_with(&below)) {
                    return Err(ZkCode::NotEmpty);
                }
                self.0.remove(path);
            }
            ZnodeOp::SetAcl { .. } | ZnodeOp::Check { .. } | ZnodeOp::RaiseSequence { .. } => {
                unreachable!("nobody asks for it")
            }
        }
        Ok(())
    }

    fn describe(&self) -> Vec<String> {
        let line = |(path, znode): (&String, &ModelZnode)| {
            let ModelZnode { version, data, owner } = znode;
            let mark = if *owner != 0 { " ephemeral" } else { "" };
            format!("{path}={version}:{data}{mark}")
        };
        self.0.iter().map(line).collect()
    }
}

pub(crate) struct ZnodeWriter {
    world: Rc<SimWorld>,
    rng: SeededRng,
    session: Option<SessionId>,
    /// `None` while the end of some transactions is unknown.
    model: Option<ModelZnodes>,
    /// The last transaction that was acknowledged.
    acknowledged: i64,
    incarnation: Option<u64>,
    known_bounds: Vec<Hlc>,
    next: u64,
}

impl ZnodeWriter {
    pub(crate) fn new(world: &Rc<SimWorld>, rng: SeededRng) -> ZnodeWriter {
        ZnodeWriter {
            world: Rc::clone(world),
            rng,
            session: None,
            model: None,
            acknowledged: 0,
            incarnation: None,
            known_bounds: Vec::new(),
            next: 0,
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 20, 200).await;
            let Some(engine) = self.world.engine() else { continue };
            let life = self.world.incarnation.get();
            if self.incarnation != Some(life) || self.model.is_none() {
                self.incarnation = Some(life);
                self.take_over(&engine);
            }
            match self.rng.below(5) {
                0..3 => self.change(&engine, life).await,
                _ => self.read_past(&engine),
            }
        }
    }

    /// Takes over what the tree has, which has to be what is known.
    fn take_over(&mut self, engine: &Engine) {
        // The journal of a store that has stopped may have more than it shows.
        if engine.stop_reason().is_some() {
            return;
        }
        let found = match present(engine) {
            Ok(found) => found,
            Err(EngineError::Loading(_)) => return,
            Err(_) if !self.world.has_disk() => return,
            Err(error) => {
                return self.world.fail(WHO, &format!("data cannot be read: {error}"));
            }
        };
        let tree = engine.znodes().tree();
        if tree.has_data_elsewhere() {
            self.world.cover(CoveragePoint::ZnodeDataElsewhere);
        }
        if tree.last_zxid() < self.acknowledged {
            let (last, acknowledged) = (tree.last_zxid(), self.acknowledged);
            self.world.fail(WHO, &format!("{acknowledged} was acknowledged, and {last} is last"));
        }
        if let Some(known) = self.model.as_ref().filter(|known| **known != found) {
            let (known, found) = (known.describe(), found.describe());
            self.world.fail(WHO, &format!("there was {known:?}, and a start finds {found:?}"));
        }
        self.session = self.session.filter(|session| tree.session(*session).is_some());
        self.world.note(WHO, &format!("finds {} znodes", found.0.len()));
        self.model = Some(found);
    }

    /// Carries out some transactions together.
    async fn change(&mut self, engine: &Arc<Engine>, life: u64) {
        let Some(mut model) = self.model.take() else { return };
        let mut requests = Vec::new();
        let session = match self.session {
            Some(session) => session,
            None => {
                // The server, which hears nothing of it, does not end it.
                let timeout_ms = u32::MAX;
                let begun = TransactionRequest::CreateSession { timeout_ms, password: [7; 16] };
                let answer = submit(engine, SessionId(0), begun);
                let Some(Ok(outcome)) = self.wait_for(engine, life, answer).await else { return };
                self.acknowledged = outcome.zxid;
                outcome.session
            }
        };
        self.session = Some(session);
        for _ in 0..self.rng.between(1, ON_THEIR_WAY_MAX) {
            requests.push(self.random_request());
        }
        let mut expected = Vec::new();
        let mut is_closed = false;
        for request in &requests {
            let is_late = is_closed && matches!(request, TransactionRequest::Ops { .. });
            expected.push(if is_late {
                Err(ZkCode::SessionExpired)
            } else {
                model.apply(session, request)
            });
            is_closed |= matches!(request, TransactionRequest::CloseSession);
        }
        if is_closed {
            self.session = None;
        }
        let answers: Vec<_> =
            requests.into_iter().map(|request| submit(engine, session, request)).collect();
        let mut is_known = true;
        for (answer, expected) in answers.into_iter().zip(&expected) {
            match self.wait_for(engine, life, answer).await {
                Some(Ok(outcome)) => {
                    self.check_outcome(&outcome, *expected, is_known);
                    self.acknowledged = outcome.zxid;
                }
                // Refused by the store, or the node exits: what was on its way behind it depends on
                // it.
                Some(_) | None => is_known = false,
            }
        }
        self.world.note(WHO, &format!("changes: {expected:?}, known {is_known}"));
        if is_known {
            self.model = Some(model);
            self.read_present(engine);
        }
    }

    /// Waits for an answer; `None` if none comes any more.
    async fn wait_for(
        &self,
        engine: &Engine,
        life: u64,
        answer: PendingOutcome,
    ) -> Option<Result<TransactionOutcome, EngineError>> {
        let answer = tokio::time::timeout(ANSWER_MAX, answer);
        let answer = unless_node_exits(&self.world, life, answer).await?;
        let Ok(answer) = answer else {
            if self.world.has_disk() && engine.stop_reason().is_none() {
                self.world.fail(WHO, "a transaction gets no answer");
            }
            return None;
        };
        answer.ok()
    }

    fn random_request(&mut self) -> TransactionRequest {
        if self.rng.one_in(40) {
            return TransactionRequest::CloseSession;
        }
        let count = if self.rng.one_in(4) { 2 } else { 1 };
        let ops = (0..count).map(|_| self.random_op()).collect();
        TransactionRequest::Ops { ops, refusal: None }
    }

    fn random_op(&mut self) -> ZnodeOp {
        self.next += 1;
        let path = (*self.rng.pick(&PATHS)).to_owned();
        // Some of it is long enough to be left out of memory.
        let data =
            if self.rng.one_in(2) { self.next.to_string() } else { format!("{:.<50}", self.next) };
        let data = Some(Bytes::from(data));
        match self.rng.below(6) {
            0..3 => {
                let lifetime = if self.rng.one_in(3) {
                    ZnodeLifetime::Ephemeral
                } else {
                    ZnodeLifetime::Persistent
                };
                let acl = acl::anyone(acl::ALL);
                ZnodeOp::Create { path, data, acl, lifetime, is_sequential: false }
            }
            3 | 4 => {
                let version = if self.rng.one_in(3) { self.rng.below(3) as i32 } else { -1 };
                ZnodeOp::SetData { path, data, version }
            }
            _ => ZnodeOp::Delete { path, version: -1 },
        }
    }

    fn check_outcome(
        &self,
        outcome: &TransactionOutcome,
        expected: Result<(), ZkCode>,
        is_known: bool,
    ) {
        if outcome.zxid <= self.acknowledged {
            let why = format!("zxid {} came behind {}", outcome.zxid, self.acknowledged);
            self.world.fail(WHO, &why);
        }
        let found = outcome.result.as_ref().map(drop).map_err(|refusal| refusal.code);
        if is_known && found != expected {
            self.world.fail(WHO, &format!("a transaction is {found:?}, and not {expected:?}"));
        }
    }

    /// Reads all znodes as of the frontier, where nothing of this actor is on its way.
    fn read_present(&mut self, engine: &Engine) {
        let frontier = engine.frontier();
        let at = frontier.next();
        let history = engine.znodes().history();
        let is_all = history.zxid_at(Cut::below(at)).is_ok_and(|last| last >= self.acknowledged);
        let expected = if is_all { self.model.as_ref().map(ModelZnodes::describe) } else { None };
        self.read(engine, at, frontier, expected);
    }

    /// Reads all znodes as of a moment of the wall clock, or one that was read before.
    fn read_past(&mut self, engine: &Engine) {
        let frontier = engine.frontier();
        let at = if self.known_bounds.is_empty() || self.rng.one_in(3) {
            Hlc::at(SysTime(self.world.clock.wall_ms() - self.rng.below(4000)))
        } else {
            *self.rng.pick(&self.known_bounds)
        };
        if Cut::below(at).is_closed_by(frontier) {
            self.read(engine, at, frontier, None);
        }
    }

    fn read(&mut self, engine: &Engine, at: Hlc, frontier: Hlc, expected: Option<Vec<String>>) {
        let answer = match past(engine, Cut::below(at)) {
            Ok(found) => found.describe(),
            Err(SeekError::Engine(EngineError::Loading(_))) => return,
            Err(SeekError::BeforeZnodes { .. }) => {
                let shown = SysTime(self.world.clock.shown_ms());
                if at.time() > shown.saturating_sub(ZNODES_RETENTION) {
                    self.world.fail(WHO, &format!("what is kept was removed: {at}"));
                }
                self.world.cover(CoveragePoint::ZnodesRemoved);
                return;
            }
            Err(_) if !self.world.has_disk() || engine.stop_reason().is_some() => return,
            Err(error) => return self.world.fail(WHO, &format!("{at} cannot be read: {error}")),
        };
        if self.model.as_ref().is_some_and(|model| model.describe() != answer) {
            self.world.cover(CoveragePoint::ZnodesInPast);
        }
        self.world.note(WHO, &format!("at {at}: {}", answer.join(" ")));
        self.known_bounds.push(at);
        self.world.report(&SimFact::Znodes(AsOfAnswer { at, frontier, answer, expected }));
    }
}

/// Submits a transaction; the answer comes later.
fn submit(engine: &Engine, session: SessionId, request: TransactionRequest) -> PendingOutcome {
    let (sender, receiver) = oneshot::channel();
    let draft = TransactionDraft::new(session, Arc::new([]), "sim", request);
    let done = move |_: &ZnodeTree, outcome| drop(sender.send(outcome));
    engine.znodes().submit(draft, Box::new(done));
    receiver
}

fn model_znode(version: i32, owner: i64, data: Option<&[u8]>) -> ModelZnode {
    let data = String::from_utf8_lossy(data.unwrap_or_default()).into_owned();
    ModelZnode { version, data, owner }
}

/// All znodes of the tree, in which nothing changes meanwhile.
fn present(engine: &Engine) -> Result<ModelZnodes, EngineError> {
    let (znodes, mut found, mut open) = (engine.znodes(), BTreeMap::new(), vec![String::new()]);
    let tree = znodes.tree();
    while let Some(path) = open.pop() {
        let Some(znode) = tree.get(&path) else { continue };
        let below = znode.children().map(|name| format!("{path}/{name}"));
        open.extend(below.filter(|path| path != "/zookeeper" && path != CLIENT_ROOT));
        if !path.is_empty() {
            let stat = znode.stat();
            let read;
            let data = match znode.data() {
                ZnodeData::Here(data) => data,
                ZnodeData::Elsewhere => {
                    read = znodes.history().data_since(&path, stat.mzxid)?;
                    read.as_deref()
                }
            };
            found.insert(path, model_znode(stat.version, stat.ephemeral_owner, data));
        }
    }
    Ok(ModelZnodes(found))
}

/// All znodes as of a moment.
fn past(engine: &Engine, cut: Cut) -> Result<ModelZnodes, SeekError> {
    let history = engine.znodes().history();
    let (mut found, mut open) = (BTreeMap::new(), vec![String::new()]);
    while let Some(path) = open.pop() {
        let Some(znode) = history.get(&path, cut)? else { continue };
        let names = history.children(&path, cut)?;
        let below = names.iter().map(|name| format!("{path}/{name}"));
        open.extend(below.filter(|path| path != "/zookeeper" && path != CLIENT_ROOT));
        if !path.is_empty() {
            let stat = znode.stat;
            let data = znode.data.as_deref();
            found.insert(path, model_znode(stat.version, stat.ephemeral_owner, data));
        }
    }
    Ok(ModelZnodes(found))
}
