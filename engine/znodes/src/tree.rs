//! The tree of znodes as of the last transaction applied, in memory.
//!
//! Applying is deterministic: the same transactions give the same tree, also in a replay. What must
//! hold for a transaction was checked before it was written ([`crate::pending`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use hlc::Hlc;
use serde::{Deserialize, Serialize};

use crate::acl::{self, Acl};
use crate::path::{sequential_path, split_path};
use crate::request::{
    OpOutcome, SessionId, ZnodeLifetime, ZnodeOp, ZnodeRefusal, ZnodeTransaction,
};
use crate::stat::ZnodeStat;

/// The place of a znode in the tree's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ZnodeSlot(u32);

const ROOT: ZnodeSlot = ZnodeSlot(0);

#[derive(Debug)]
struct Znode {
    czxid: i64,
    mzxid: i64,
    pzxid: i64,
    ctime: i64,
    mtime: i64,
    version: i32,
    /// How many children were ever created: ZooKeeper's cversion before it is shown.
    creates: i32,
    aversion: i32,
    owner: ZnodeOwner,
    acl: Acl,
    data: Option<Box<[u8]>>,
    children: BTreeMap<Box<str>, ZnodeSlot>,
}

/// What a znode's lifetime depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ZnodeOwner {
    None,
    Session(SessionId),
    Container,
    /// In milliseconds.
    Ttl(i64),
}

impl ZnodeOwner {
    pub(crate) fn of(lifetime: ZnodeLifetime, session: SessionId) -> ZnodeOwner {
        match lifetime {
            ZnodeLifetime::Persistent => ZnodeOwner::None,
            ZnodeLifetime::Ephemeral => ZnodeOwner::Session(session),
            ZnodeLifetime::Container => ZnodeOwner::Container,
            ZnodeLifetime::Ttl(ms) => ZnodeOwner::Ttl(ms),
        }
    }

    /// The owner that a stat shows: a session, or 0.
    pub(crate) fn shown(self) -> i64 {
        match self {
            ZnodeOwner::Session(session) => session.0,
            ZnodeOwner::None | ZnodeOwner::Container | ZnodeOwner::Ttl(_) => 0,
        }
    }
}

/// What decides whether a change of a znode, or of its children, is possible.
#[derive(Clone, Debug)]
pub(crate) struct ZnodeSummary {
    pub(crate) version: i32,
    pub(crate) aversion: i32,
    pub(crate) creates: i32,
    pub(crate) children: usize,
    pub(crate) owner: ZnodeOwner,
    pub(crate) mtime: i64,
    pub(crate) acl: Acl,
}

/// A session as its transactions made it.
#[derive(Clone, Debug)]
pub struct ZkSession {
    pub timeout_ms: u32,
    pub password: [u8; 16],
    /// The paths of its ephemeral znodes, and how many it had created before each of them.
    ephemerals: BTreeMap<Box<str>, u64>,
    created: u64,
}

impl ZkSession {
    /// The paths of its ephemeral znodes, in byte order.
    pub fn ephemerals(&self) -> impl ExactSizeIterator<Item = &str> {
        self.ephemerals.keys().map(AsRef::as_ref)
    }

    /// The paths in the order of the Java `HashSet` in which ZooKeeper has them: it deletes them in
    /// this order, and clients see their events in it. The set is a copy with few buckets of one with
    /// more of them.
    fn ephemerals_in_java_order(&self) -> Vec<&str> {
        const BUCKETS_MIN: usize = 16;
        let buckets = (self.ephemerals.len() * 4 / 3 + 1).next_power_of_two();
        let key = |(path, created): &(&str, u64)| {
            let hash = |hash: u32, unit: u16| hash.wrapping_mul(31).wrapping_add(unit.into());
            let hash = path.encode_utf16().fold(0, hash);
            let hash = (hash ^ (hash >> 16)) as usize;
            (hash & (buckets - 1), hash & (buckets.max(BUCKETS_MIN) - 1), *created)
        };
        let held = self.ephemerals.iter();
        let mut ordered: Vec<_> = held.map(|(path, created)| (path.as_ref(), *created)).collect();
        ordered.sort_by_cached_key(key);
        ordered.into_iter().map(|(path, _)| path).collect()
    }
}

/// What a transaction did to a znode, for watches.
#[derive(Clone, Copy, Debug)]
pub struct TreeChange<'a> {
    pub kind: TreeChangeKind,
    pub path: &'a str,
    /// The znode's list, at a deletion its last.
    pub acl: &'a Acl,
    /// The list of its parent.
    pub parent_acl: &'a Acl,
    pub zxid: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeChangeKind {
    Created,
    Deleted,
    DataChanged,
}

/// Called for each change, in order, while the tree is locked.
pub type ChangeVisitor<'a> = &'a mut dyn FnMut(&TreeChange<'_>);

/// When a transaction takes effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransactionTime {
    pub(crate) zxid: i64,
    /// Milliseconds since 1970.
    pub(crate) ms: i64,
}

/// When the transaction of a stamp takes effect.
pub(crate) fn time_of(zxid: i64, stamp: Hlc) -> TransactionTime {
    TransactionTime { zxid, ms: stamp.time().0 as i64 }
}

/// The tree, and the sessions.
#[derive(Debug)]
pub struct ZnodeTree {
    nodes: Vec<Option<Znode>>,
    free: Vec<ZnodeSlot>,
    acls: HashSet<Acl>,
    sessions: HashMap<SessionId, ZkSession>,
    /// The paths of containers and of znodes with a time to live.
    reapable: BTreeSet<Box<str>>,
    data_bytes: u64,
    last_zxid: i64,
}

impl Default for ZnodeTree {
    fn default() -> ZnodeTree {
        ZnodeTree::new()
    }
}

impl ZnodeTree {
    /// The tree before the first transaction: the root, and `/zookeeper` with what belongs to it.
    pub fn new() -> ZnodeTree {
        let mut tree = ZnodeTree {
            nodes: Vec::new(),
            free: Vec::new(),
            acls: HashSet::new(),
            sessions: HashMap::new(),
            reapable: BTreeSet::new(),
            data_bytes: 0,
            last_zxid: 0,
        };
        let open = tree.intern(&acl::anyone(acl::ALL));
        let read = tree.intern(&acl::anyone(acl::READ));
        let built_in = |acl: &Acl, aversion: i32| Znode {
            czxid: 0,
            mzxid: 0,
            pzxid: 0,
            ctime: 0,
            mtime: 0,
            version: 0,
            creates: 0,
            aversion,
            owner: ZnodeOwner::None,
            acl: Acl::clone(acl),
            data: Some(Box::default()),
            children: BTreeMap::new(),
        };
        let root = tree.insert(built_in(&open, 0));
        debug_assert_eq!(root, ROOT);
        let zookeeper = tree.insert(built_in(&open, 0));
        let quota = tree.insert(built_in(&open, 0));
        let config = tree.insert(built_in(&read, -1));
        tree.node_mut(ROOT).children.insert("zookeeper".into(), zookeeper);
        tree.node_mut(zookeeper)
            .children
            .extend([("quota".into(), quota), ("config".into(), config)]);
        tree
    }

    /// The zxid of the last transaction applied.
    pub fn last_zxid(&self) -> i64 {
        self.last_zxid
    }

    /// How many znodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes of data all znodes hold.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// A session that has not ended.
    pub fn session(&self, id: SessionId) -> Option<&ZkSession> {
        self.sessions.get(&id)
    }

    /// All sessions that have not ended.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &ZkSession)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    /// A znode, to be read.
    pub fn get(&self, path: &str) -> Option<ZnodeRef<'_>> {
        Some(ZnodeRef(self.node(self.find(path)?)))
    }

    /// How many znodes are below `path`.
    pub fn descendants(&self, path: &str) -> Option<usize> {
        let mut open = vec![self.find(path)?];
        let mut count = 0;
        while let Some(slot) = open.pop() {
            let children = &self.node(slot).children;
            count += children.len();
            open.extend(children.values());
        }
        Some(count)
    }

    /// The paths of containers and of znodes with a time to live that may be removed at `now_ms`.
    /// A container of which no child was ever created is removed after `never_used_ms`, if that is
    /// given.
    pub fn reapable(&self, now_ms: i64, never_used_ms: Option<i64>) -> Vec<String> {
        let is_due = |path: &str| {
            self.get(path).is_some_and(|znode| znode.may_be_reaped(now_ms, never_used_ms))
        };
        let paths = self.reapable.iter().map(AsRef::as_ref);
        paths.filter(|path| is_due(path)).map(str::to_owned).collect()
    }

    pub(crate) fn summary(&self, path: &str) -> Option<ZnodeSummary> {
        let node = self.node(self.find(path)?);
        Some(ZnodeSummary {
            version: node.version,
            aversion: node.aversion,
            creates: node.creates,
            children: node.children.len(),
            owner: node.owner,
            mtime: node.mtime,
            acl: Acl::clone(&node.acl),
        })
    }

    /// Applies a transaction of `session` that was not refused.
    ///
    /// # Errors
    /// In words: the tree is not the one that the transaction was checked against.
    pub(crate) fn apply(
        &mut self,
        at: TransactionTime,
        session: SessionId,
        transaction: &ZnodeTransaction,
        visit: ChangeVisitor<'_>,
    ) -> Result<Vec<OpOutcome>, String> {
        self.last_zxid = at.zxid;
        match transaction {
            ZnodeTransaction::Ops(ops) => {
                ops.iter().map(|op| self.apply_op(at, session, op, visit)).collect()
            }
            ZnodeTransaction::SessionCreated { timeout_ms, password } => {
                let (timeout_ms, password) = (*timeout_ms, *password);
                let ephemerals = BTreeMap::new();
                let begun = ZkSession { timeout_ms, password, ephemerals, created: 0 };
                match self.sessions.insert(session, begun) {
                    None => Ok(Vec::new()),
                    Some(_) => Err(format!("session {session} was created twice")),
                }
            }
            ZnodeTransaction::SessionClosed => {
                // Closed twice, by its client and because it expired.
                let Some(ended) = self.sessions.remove(&session) else { return Ok(Vec::new()) };
                for path in ended.ephemerals_in_java_order() {
                    self.delete(at.zxid, path, visit)?;
                }
                Ok(Vec::new())
            }
            ZnodeTransaction::Reaped { path } => {
                self.delete(at.zxid, path, visit)?;
                Ok(vec![OpOutcome::Deleted])
            }
        }
    }

    /// Records that a transaction failed.
    pub(crate) fn skip(&mut self, zxid: i64, _refusal: ZnodeRefusal) {
        self.last_zxid = zxid;
    }

    fn apply_op(
        &mut self,
        at: TransactionTime,
        session: SessionId,
        op: &ZnodeOp,
        visit: ChangeVisitor<'_>,
    ) -> Result<OpOutcome, String> {
        match op {
            ZnodeOp::Create { path, data, acl, lifetime, is_sequential } => {
                let owner = ZnodeOwner::of(*lifetime, session);
                let created = Znode {
                    czxid: at.zxid,
                    mzxid: at.zxid,
                    pzxid: at.zxid,
                    ctime: at.ms,
                    mtime: at.ms,
                    version: 0,
                    creates: 0,
                    aversion: 0,
                    owner,
                    acl: self.intern(acl),
                    data: data.as_deref().map(Box::from),
                    children: BTreeMap::new(),
                };
                self.create(path, *is_sequential, created, visit)
            }
            ZnodeOp::Delete { path, .. } => {
                self.delete(at.zxid, path, visit)?;
                Ok(OpOutcome::Deleted)
            }
            ZnodeOp::SetData { path, data, .. } => {
                let slot = self.existing(path)?;
                let node = self.node_mut(slot);
                let before = node.data.as_ref().map_or(0, |data| data.len());
                node.data = data.as_deref().map(Box::from);
                (node.mzxid, node.mtime) = (at.zxid, at.ms);
                node.version = next_version(node.version);
                let (stat, acl) = (ZnodeRef(node).stat(), Acl::clone(&node.acl));
                self.data_bytes += data.as_ref().map_or(0, |data| data.len()) as u64;
                self.data_bytes -= before as u64;
                let kind = TreeChangeKind::DataChanged;
                visit(&TreeChange { kind, path, acl: &acl, parent_acl: &acl, zxid: at.zxid });
                Ok(OpOutcome::DataSet(stat))
            }
            ZnodeOp::SetAcl { path, acl, .. } => {
                let slot = self.existing(path)?;
                let acl = self.intern(acl);
                let node = self.node_mut(slot);
                node.aversion = next_version(node.aversion);
                let before = std::mem::replace(&mut node.acl, acl);
                let stat = ZnodeRef(node).stat();
                self.release(before);
                Ok(OpOutcome::AclSet(stat))
            }
            ZnodeOp::Check { .. } => Ok(OpOutcome::Checked),
        }
    }

    fn create(
        &mut self,
        path: &str,
        is_sequential: bool,
        created: Znode,
        visit: ChangeVisitor<'_>,
    ) -> Result<OpOutcome, String> {
        let (zxid, owner, acl) = (created.czxid, created.owner, Acl::clone(&created.acl));
        let (parent, _) = split_path(path).map_err(|_| format!("{path} has no parent"))?;
        let parent = self.existing(parent)?;
        let path = match is_sequential {
            true => sequential_path(path, self.node(parent).creates),
            false => path.to_owned(),
        };
        let (_, name) = split_path(&path).expect("as before");
        self.data_bytes += created.data.as_ref().map_or(0, |data| data.len()) as u64;
        let stat = ZnodeRef(&created).stat();
        let slot = self.insert(created);
        let node = self.node_mut(parent);
        node.creates = node.creates.wrapping_add(1);
        node.pzxid = zxid;
        if node.children.insert(name.into(), slot).is_some() {
            return Err(format!("{path} was created twice"));
        }
        let parent_acl = Acl::clone(&node.acl);
        match owner {
            ZnodeOwner::None => {}
            ZnodeOwner::Session(owner) => {
                let session = self.sessions.get_mut(&owner);
                let session = session.ok_or_else(|| format!("there is no session {owner}"))?;
                session.ephemerals.insert((*path).into(), session.created);
                session.created += 1;
            }
            ZnodeOwner::Container | ZnodeOwner::Ttl(_) => {
                self.reapable.insert((*path).into());
            }
        }
        let kind = TreeChangeKind::Created;
        visit(&TreeChange { kind, path: &path, acl: &acl, parent_acl: &parent_acl, zxid });
        Ok(OpOutcome::Created(path, stat))
    }

    fn delete(&mut self, zxid: i64, path: &str, visit: ChangeVisitor<'_>) -> Result<(), String> {
        let (parent, name) = split_path(path).map_err(|_| format!("{path} has no parent"))?;
        let parent = self.existing(parent)?;
        let node = self.node_mut(parent);
        let slot = node.children.remove(name).ok_or_else(|| format!("there is no {path}"))?;
        node.pzxid = zxid;
        let parent_acl = Acl::clone(&node.acl);
        let deleted = self.nodes[slot.0 as usize].take().expect("a child is in the table");
        self.free.push(slot);
        if !deleted.children.is_empty() {
            return Err(format!("{path} has children"));
        }
        self.data_bytes -= deleted.data.as_ref().map_or(0, |data| data.len()) as u64;
        match deleted.owner {
            ZnodeOwner::None => {}
            ZnodeOwner::Session(owner) => {
                if let Some(session) = self.sessions.get_mut(&owner) {
                    session.ephemerals.remove(path);
                }
            }
            ZnodeOwner::Container | ZnodeOwner::Ttl(_) => {
                self.reapable.remove(path);
            }
        }
        let (kind, acl) = (TreeChangeKind::Deleted, &deleted.acl);
        visit(&TreeChange { kind, path, acl, parent_acl: &parent_acl, zxid });
        self.release(deleted.acl);
        Ok(())
    }

    /// The znode at a path. The empty path is the root too.
    fn find(&self, path: &str) -> Option<ZnodeSlot> {
        let names = match path {
            "" | "/" => return Some(ROOT),
            _ => path.strip_prefix('/')?,
        };
        names.split('/').try_fold(ROOT, |at, name| self.node(at).children.get(name).copied())
    }

    fn existing(&self, path: &str) -> Result<ZnodeSlot, String> {
        self.find(path).ok_or_else(|| format!("there is no {path}"))
    }

    fn node(&self, slot: ZnodeSlot) -> &Znode {
        self.nodes[slot.0 as usize].as_ref().expect("a slot in use")
    }

    fn node_mut(&mut self, slot: ZnodeSlot) -> &mut Znode {
        self.nodes[slot.0 as usize].as_mut().expect("a slot in use")
    }

    fn insert(&mut self, node: Znode) -> ZnodeSlot {
        match self.free.pop() {
            Some(slot) => {
                self.nodes[slot.0 as usize] = Some(node);
                slot
            }
            None => {
                let slot = u32::try_from(self.nodes.len()).expect("fewer znodes than 2^32");
                self.nodes.push(Some(node));
                ZnodeSlot(slot)
            }
        }
    }

    fn intern(&mut self, acl: &Acl) -> Acl {
        if let Some(shared) = self.acls.get(acl) {
            return Acl::clone(shared);
        }
        self.acls.insert(Acl::clone(acl));
        Acl::clone(acl)
    }

    /// Forgets a list that no znode has any more.
    fn release(&mut self, acl: Acl) {
        const THE_TABLE_AND_ACL: usize = 2;
        if Acl::strong_count(&acl) == THE_TABLE_AND_ACL {
            self.acls.remove(&acl);
        }
    }
}

/// The version after `version`. It is never -1, which means any version in a request.
pub(crate) fn next_version(version: i32) -> i32 {
    match version.wrapping_add(1) {
        -1 => 0,
        next => next,
    }
}

/// A znode in a tree.
#[derive(Clone, Copy, Debug)]
pub struct ZnodeRef<'a>(&'a Znode);

impl<'a> ZnodeRef<'a> {
    pub fn stat(self) -> ZnodeStat {
        let node = self.0;
        let children = node.children.len() as i32;
        ZnodeStat {
            czxid: node.czxid,
            mzxid: node.mzxid,
            ctime: node.ctime,
            mtime: node.mtime,
            version: node.version,
            // Each child that is gone was created and deleted.
            cversion: node.creates.wrapping_mul(2).wrapping_sub(children),
            aversion: node.aversion,
            ephemeral_owner: node.owner.shown(),
            data_length: node.data.as_ref().map_or(0, |data| data.len() as i32),
            num_children: children,
            pzxid: node.pzxid,
        }
    }

    /// Its data. None differs from empty.
    pub fn data(self) -> Option<&'a [u8]> {
        self.0.data.as_deref()
    }

    pub fn acl(self) -> &'a Acl {
        &self.0.acl
    }

    /// The names of its children, in byte order.
    pub fn children(self) -> impl ExactSizeIterator<Item = &'a str> {
        self.0.children.keys().map(|name| &**name)
    }

    fn may_be_reaped(self, now_ms: i64, never_used_ms: Option<i64>) -> bool {
        let node = self.0;
        node.children.is_empty()
            && match node.owner {
                ZnodeOwner::Container if node.creates > 0 => true,
                ZnodeOwner::Container => never_used_ms.is_some_and(|ms| now_ms - node.ctime > ms),
                ZnodeOwner::Ttl(ms) => now_ms - node.mtime > ms,
                ZnodeOwner::None | ZnodeOwner::Session(_) => false,
            }
    }
}
