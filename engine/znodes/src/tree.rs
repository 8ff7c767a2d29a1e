//! The tree of znodes as of the last transaction applied, in memory.
//!
//! Applying is deterministic: the same transactions give the same tree, also in a replay. What must
//! hold for a transaction was checked before it was written ([`crate::pending`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use zk_wire::{ZkCode, ZnodeStat};

use crate::acl::Acl;
use crate::checkpoint::{CheckpointPart, CheckpointSession, CheckpointZnode};
use crate::meta::{TransactionTime, ZnodeMeta, ZnodeOwner};
use crate::path::{sequential_path, split_path};
use crate::quota::{QuotaFigures, limits_path, path_of_limits, path_of_stats, stats_path};
use crate::request::{OpOutcome, SessionId, ZnodeLifetime, ZnodeOp, ZnodeTransaction};

/// The place of a znode in the tree's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ZnodeSlot(u32);

const ROOT: ZnodeSlot = ZnodeSlot(0);

#[derive(Debug)]
struct Znode {
    meta: ZnodeMeta,
    data: Option<Box<[u8]>>,
    children: BTreeMap<Box<str>, ZnodeSlot>,
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
    fn new(timeout_ms: u32, password: [u8; 16]) -> ZkSession {
        ZkSession { timeout_ms, password, ephemerals: BTreeMap::new(), created: 0 }
    }

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

/// The tree, and the sessions.
#[derive(Debug)]
pub struct ZnodeTree {
    nodes: Vec<Option<Znode>>,
    free: Vec<ZnodeSlot>,
    acls: HashSet<Acl>,
    sessions: HashMap<SessionId, ZkSession>,
    /// The paths of containers and of znodes with a time to live.
    reapable: BTreeSet<Box<str>>,
    /// The paths that have quotas.
    quotas: BTreeSet<Box<str>>,
    data_bytes: u64,
    /// How many bytes the paths of all znodes have.
    path_bytes: u64,
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
            quotas: BTreeSet::new(),
            data_bytes: 0,
            path_bytes: 0,
            last_zxid: 0,
        };
        let mut insert = |path: &str| {
            let mut meta = ZnodeMeta::built_in(path).expect("a built-in path");
            meta.acl = tree.intern(&meta.acl);
            tree.insert(Znode { meta, data: Some(Box::default()), children: BTreeMap::new() })
        };
        let [_, zookeeper, quota, config] =
            ["", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"].map(&mut insert);
        tree.node_mut(ROOT).children.insert("zookeeper".into(), zookeeper);
        let below = [("quota".into(), quota), ("config".into(), config)];
        tree.node_mut(zookeeper).children.extend(below);
        tree.path_bytes = ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"]
            .iter()
            .map(|path| path.len() as u64)
            .sum();
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

    /// As many as ZooKeeper shows for the same tree: it counts its root twice, as `/` and as the empty
    /// path.
    pub fn len_as_zookeeper_counts(&self) -> usize {
        self.len() + 1
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes of data all znodes hold.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// How many bytes the paths of all znodes have.
    pub fn path_bytes(&self) -> u64 {
        self.path_bytes
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

    /// A znode as it was after the transaction `zxid`, if it is the same still: neither its data nor its
    /// children changed, and its list never did. `None` says nothing.
    pub fn unchanged_since(&self, path: &str, zxid: i64) -> Option<ZnodeRef<'_>> {
        // Quotas change without a transaction.
        if zxid > self.last_zxid || path.starts_with("/zookeeper") {
            return None;
        }
        let znode = self.node(self.find(path)?);
        let ZnodeMeta { czxid, mzxid, pzxid, aversion, .. } = znode.meta;
        (aversion == 0 && czxid.max(mzxid).max(pzxid) <= zxid).then_some(ZnodeRef(znode))
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
            self.meta(path).is_some_and(|meta| meta.may_be_reaped(now_ms, never_used_ms))
        };
        let paths = self.reapable.iter().map(AsRef::as_ref);
        paths.filter(|path| is_due(path)).map(str::to_owned).collect()
    }

    /// Whether a change below a quota is within its hard limits. As in ZooKeeper, what waits in front
    /// of the change is not counted.
    ///
    /// # Errors
    /// [`ZkCode::QuotaExceeded`]
    pub(crate) fn check_quota(&self, path: &str, count: i64, bytes: i64) -> Result<(), ZkCode> {
        let Some(of) = self.quota_above(path) else { return Ok(()) };
        let figures = |path: String| self.get(&path).map(|znode| QuotaFigures::parse(znode.data()));
        let (limits, usage) = (figures(limits_path(of)), figures(stats_path(of)));
        let (Some(limits), Some(mut usage)) = (limits, usage) else { return Ok(()) };
        usage.add(count, bytes);
        match limits.is_exceeded_by(&usage, (count != 0, bytes != 0)) {
            true => Err(ZkCode::QuotaExceeded),
            false => Ok(()),
        }
    }

    /// The path of the nearest quota at or above a path.
    fn quota_above<'a>(&self, path: &'a str) -> Option<&'a str> {
        if self.quotas.is_empty() {
            return None;
        }
        let mut above = path;
        while !above.is_empty() {
            if self.quotas.contains(above) {
                return Some(above);
            }
            above = above.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
        None
    }

    /// Counts a change in the usage of the quota that it falls under.
    fn charge(&mut self, path: &str, count: i64, bytes: i64) {
        let Some(slot) = self.quota_above(path).and_then(|of| self.find(&stats_path(of))) else {
            return;
        };
        let mut usage = QuotaFigures::parse(self.node(slot).data.as_deref());
        usage.add(count, bytes);
        self.set_usage(slot, &usage);
    }

    fn set_usage(&mut self, slot: ZnodeSlot, usage: &QuotaFigures) {
        let data = usage.to_string().into_bytes();
        let node = self.node_mut(slot);
        let before = std::mem::replace(&mut node.meta.data_length, data.len() as i32);
        node.data = Some(data.into());
        let after = node.meta.data_length;
        self.data_bytes = self.data_bytes + after as u64 - before as u64;
    }

    /// Counts all of the znodes at and below a quota.
    fn recount(&mut self, of: &str) {
        let (Some(top), Some(stats)) = (self.find(of), self.find(&stats_path(of))) else { return };
        let (mut open, mut count, mut bytes) = (vec![top], 0, 0);
        while let Some(slot) = open.pop() {
            let Znode { meta, children, .. } = self.node(slot);
            count += 1;
            bytes += i64::from(meta.data_length);
            open.extend(children.values());
        }
        self.set_usage(stats, &QuotaFigures::new(count, bytes));
    }

    /// Counts all again, after a start.
    pub(crate) fn recount_quotas(&mut self) {
        for of in self.quotas.clone() {
            self.recount(&of);
        }
    }

    pub(crate) fn meta(&self, path: &str) -> Option<&ZnodeMeta> {
        Some(&self.node(self.find(path)?).meta)
    }

    /// Takes over a part of a checkpoint, in order.
    ///
    /// # Errors
    /// In words: the parts do not fit together.
    pub(crate) fn load(&mut self, part: CheckpointPart) -> Result<(), String> {
        match part {
            CheckpointPart::Sessions(sessions) => {
                for CheckpointSession { id, timeout_ms, password } in sessions {
                    self.sessions.insert(id, ZkSession::new(timeout_ms, password));
                }
                Ok(())
            }
            CheckpointPart::Znodes(znodes) => {
                znodes.into_iter().try_for_each(|znode| self.load_znode(znode))
            }
            CheckpointPart::Seal(_) => Ok(()),
        }
    }

    fn load_znode(&mut self, znode: CheckpointZnode) -> Result<(), String> {
        let CheckpointZnode { path, mut meta, data } = znode;
        meta.acl = self.intern(&meta.acl);
        let data: Option<Box<[u8]>> = data.as_deref().map(Box::from);
        self.data_bytes += meta.data_length as u64;
        if let Some(slot) = self.find(&path) {
            // A built-in one, which has no data before.
            let node = self.node_mut(slot);
            (node.meta, node.data) = (meta, data);
            return Ok(());
        }
        let (parent, name) = split_path(&path).map_err(|_| format!("{path} has no parent"))?;
        let parent = self.existing(parent)?;
        let owner = meta.owner;
        self.path_bytes += path.len() as u64;
        let slot = self.insert(Znode { meta, data, children: BTreeMap::new() });
        self.node_mut(parent).children.insert(name.into(), slot);
        if let Some(of) = path_of_limits(&path) {
            self.quotas.insert(of.into());
        }
        self.own(&path, owner)
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
                let begun = ZkSession::new(*timeout_ms, *password);
                match self.sessions.insert(session, begun) {
                    None => Ok(Vec::new()),
                    Some(_) => Err(format!("session {session} was created twice")),
                }
            }
            ZnodeTransaction::SessionClosed => {
                // Closed twice, by its client and because it expired.
                let Some(ended) = self.sessions.remove(&session) else { return Ok(Vec::new()) };
                for path in ended.ephemerals_in_java_order() {
                    self.delete(at, path, visit)?;
                }
                Ok(Vec::new())
            }
            ZnodeTransaction::Reaped { path } => {
                self.delete(at, path, visit)?;
                Ok(vec![OpOutcome::Deleted])
            }
        }
    }

    /// Records that a transaction failed.
    pub(crate) fn skip(&mut self, zxid: i64) {
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
                let meta = ZnodeMeta::new(at, owner, self.intern(acl), data.as_deref());
                let data = data.as_deref().map(Box::from);
                let created = Znode { meta, data, children: BTreeMap::new() };
                self.create(at, path, *is_sequential, created, visit)
            }
            ZnodeOp::Delete { path, .. } => {
                self.delete(at, path, visit)?;
                Ok(OpOutcome::Deleted)
            }
            ZnodeOp::SetData { path, data, .. } => {
                let slot = self.existing(path)?;
                let node = self.node_mut(slot);
                let before = node.meta.data_length;
                node.meta.set_data(at, data.as_deref());
                node.data = data.as_deref().map(Box::from);
                let ZnodeMeta { data_length, .. } = node.meta;
                let (stat, acl) = (node.meta.stat(), Acl::clone(&node.meta.acl));
                self.data_bytes = self.data_bytes + data_length as u64 - before as u64;
                self.charge(path, 0, i64::from(data_length) - i64::from(before));
                let kind = TreeChangeKind::DataChanged;
                visit(&TreeChange { kind, path, acl: &acl, parent_acl: &acl, zxid: at.zxid });
                Ok(OpOutcome::DataSet(stat))
            }
            ZnodeOp::SetAcl { path, acl, .. } => {
                let slot = self.existing(path)?;
                let acl = self.intern(acl);
                let meta = &mut self.node_mut(slot).meta;
                let before = meta.set_acl(acl);
                let stat = meta.stat();
                self.release(before);
                Ok(OpOutcome::AclSet(stat))
            }
            ZnodeOp::Check { .. } => Ok(OpOutcome::Checked),
        }
    }

    fn create(
        &mut self,
        at: TransactionTime,
        path: &str,
        is_sequential: bool,
        created: Znode,
        visit: ChangeVisitor<'_>,
    ) -> Result<OpOutcome, String> {
        let ZnodeMeta { owner, data_length, .. } = created.meta;
        let (acl, stat) = (Acl::clone(&created.meta.acl), created.meta.stat());
        let (parent, _) = split_path(path).map_err(|_| format!("{path} has no parent"))?;
        let parent = self.existing(parent)?;
        let path = match is_sequential {
            true => sequential_path(path, self.node(parent).meta.creates),
            false => path.to_owned(),
        };
        let (_, name) = split_path(&path).expect("as before");
        self.data_bytes += data_length as u64;
        self.path_bytes += path.len() as u64;
        let slot = self.insert(created);
        let node = self.node_mut(parent);
        node.meta.create_child(at);
        if node.children.insert(name.into(), slot).is_some() {
            return Err(format!("{path} was created twice"));
        }
        let parent_acl = Acl::clone(&node.meta.acl);
        self.own(&path, owner)?;
        if let Some(of) = path_of_limits(&path) {
            self.quotas.insert(of.into());
        }
        if let Some(of) = path_of_stats(&path) {
            self.recount(of);
        }
        self.charge(&path, 1, data_length.into());
        let (kind, zxid) = (TreeChangeKind::Created, at.zxid);
        visit(&TreeChange { kind, path: &path, acl: &acl, parent_acl: &parent_acl, zxid });
        Ok(OpOutcome::Created(path, stat))
    }

    /// Notes a new znode where its owner is looked up.
    fn own(&mut self, path: &str, owner: ZnodeOwner) -> Result<(), String> {
        match owner {
            ZnodeOwner::None => {}
            ZnodeOwner::Session(owner) => {
                let session = self.sessions.get_mut(&owner);
                let session = session.ok_or_else(|| format!("there is no session {owner}"))?;
                session.ephemerals.insert(path.into(), session.created);
                session.created += 1;
            }
            ZnodeOwner::Container | ZnodeOwner::Ttl(_) => {
                self.reapable.insert(path.into());
            }
        }
        Ok(())
    }

    fn delete(
        &mut self,
        at: TransactionTime,
        path: &str,
        visit: ChangeVisitor<'_>,
    ) -> Result<(), String> {
        let (parent, name) = split_path(path).map_err(|_| format!("{path} has no parent"))?;
        let parent = self.existing(parent)?;
        let node = self.node_mut(parent);
        let slot = node.children.remove(name).ok_or_else(|| format!("there is no {path}"))?;
        node.meta.delete_child(at);
        let parent_acl = Acl::clone(&node.meta.acl);
        let deleted = self.nodes[slot.0 as usize].take().expect("a child is in the table");
        self.free.push(slot);
        if !deleted.children.is_empty() {
            return Err(format!("{path} has children"));
        }
        self.data_bytes -= deleted.meta.data_length as u64;
        self.path_bytes -= path.len() as u64;
        match deleted.meta.owner {
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
        if let Some(of) = path_of_limits(path) {
            self.quotas.remove(of);
        }
        self.charge(path, -1, -i64::from(deleted.meta.data_length));
        let (kind, acl) = (TreeChangeKind::Deleted, &deleted.meta.acl);
        visit(&TreeChange { kind, path, acl, parent_acl: &parent_acl, zxid: at.zxid });
        self.release(deleted.meta.acl);
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

/// A znode in a tree.
#[derive(Clone, Copy, Debug)]
pub struct ZnodeRef<'a>(&'a Znode);

impl<'a> ZnodeRef<'a> {
    pub fn stat(self) -> ZnodeStat {
        self.0.meta.stat()
    }

    pub fn lifetime(self) -> ZnodeLifetime {
        self.0.meta.owner.lifetime()
    }

    /// Its data. None differs from empty.
    pub fn data(self) -> Option<&'a [u8]> {
        self.0.data.as_deref()
    }

    pub fn acl(self) -> &'a Acl {
        &self.0.meta.acl
    }

    /// The names of its children, in byte order.
    pub fn children(self) -> impl ExactSizeIterator<Item = &'a str> {
        self.0.children.keys().map(|name| &**name)
    }
}
