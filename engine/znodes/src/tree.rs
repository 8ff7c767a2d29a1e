//! The tree of znodes as of the last transaction applied, in memory.
//!
//! Applying is deterministic: the same transactions give the same tree, also in a replay. The
//! conditions of a transaction were checked before it was written ([`crate::pending`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use admission::Holder;
use zk_wire::{ZkCode, ZnodeStat};

use crate::acl::Acl;
use crate::charges::{ZnodeCharge, acl_bytes, charged_data_bytes};
use crate::checkpoint::{CheckpointPart, CheckpointSession, CheckpointZnode};
use crate::meta::{TransactionTime, ZnodeMeta, ZnodeOwner};
use crate::path::{OWN, sequential_path, split_path};
use crate::quota::{QuotaFigures, limits_path, path_of_limits, path_of_stats, stats_path};
use crate::request::{OpOutcome, SessionId, ZnodeLifetime, ZnodeOp, ZnodeTransaction};
use crate::table::{ROOT, TableMeta, ZnodeData, ZnodeSlot, ZnodeTable};

/// A session as its transactions made it.
#[derive(Clone, Debug)]
pub struct ZkSession {
    pub timeout_ms: u32,
    pub password: [u8; 16],
    /// The paths of its ephemeral znodes, each with the number that it had created before.
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
    /// this order, and clients see their events in it. The set is a copy with few buckets of one
    /// with more of them.
    fn ephemerals_in_java_order(&self) -> Vec<&str> {
        const BUCKETS_MIN: usize = 16;
        let buckets = (self.ephemerals.len() * 4 / 3 + 1).next_power_of_two();
        let key = |(path, created): &(&str, u64)| {
            let hash = |hash: u32, unit: u16| hash.wrapping_mul(31).wrapping_add(unit.into());
            let hash = path.encode_utf16().fold(0, hash);
            let hash = (hash ^ (hash >> 16)) as usize;
            (hash & (buckets - 1), hash & (buckets.max(BUCKETS_MIN) - 1), *created)
        };
        let ephemerals = self.ephemerals.iter();
        let mut ordered: Vec<_> =
            ephemerals.map(|(path, created)| (path.as_ref(), *created)).collect();
        ordered.sort_by_cached_key(key);
        ordered.into_iter().map(|(path, _)| path).collect()
    }
}

/// A change that a transaction made to a znode, for watches.
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

/// A znode that a transaction creates.
#[derive(Clone, Copy, Debug)]
struct ZnodeCreation<'a> {
    /// The path, without the number of a sequential znode.
    path: &'a str,
    is_sequential: bool,
    meta: &'a ZnodeMeta,
    data: Option<&'a [u8]>,
    holder: &'a Holder,
}

/// The tree, and the sessions.
#[derive(Debug)]
pub struct ZnodeTree {
    table: ZnodeTable,
    sessions: HashMap<SessionId, ZkSession>,
    /// The paths of containers and of znodes with a time to live.
    reapable: BTreeSet<Box<str>>,
    /// The paths that have quotas.
    quotas: BTreeSet<Box<str>>,
    data_bytes: u64,
    /// The bytes of the paths of all znodes.
    path_bytes: u64,
    last_zxid: i64,
}

impl ZnodeTree {
    /// The tree before the first transaction: the root, and `/zookeeper` with what belongs to it.
    /// About `cached_bytes_max` bytes of data are in memory, if there are more.
    pub(crate) fn new(cached_bytes_max: u64) -> ZnodeTree {
        let built_in = |path| ZnodeMeta::built_in(path).expect("a built-in path");
        let holder = &Holder::restored();
        let mut table = ZnodeTable::new(&built_in(""), holder, cached_bytes_max);
        let mut insert = |parent, name, path| {
            table.insert(parent, name, &built_in(path), Some(&[]), holder).expect("names differ")
        };
        let zookeeper = insert(ROOT, "zookeeper", "/zookeeper");
        insert(zookeeper, "quota", "/zookeeper/quota");
        insert(zookeeper, "config", "/zookeeper/config");
        let paths = ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"];
        ZnodeTree {
            table,
            sessions: HashMap::new(),
            reapable: BTreeSet::new(),
            quotas: BTreeSet::new(),
            data_bytes: 0,
            path_bytes: paths.iter().map(|path| path.len() as u64).sum(),
            last_zxid: 0,
        }
    }

    /// The zxid of the last transaction applied.
    pub fn last_zxid(&self) -> i64 {
        self.last_zxid
    }

    /// The number of znodes.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// The number that ZooKeeper shows for the same tree: it counts its root twice, as `/` and as
    /// the empty path.
    pub fn len_as_zookeeper_counts(&self) -> usize {
        self.len() + 1
    }

    /// Returns true if there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of data of all znodes.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// The bytes of it that are in memory.
    pub fn cached_bytes(&self) -> u64 {
        self.table.cached_bytes()
    }

    /// Returns true if some znode's data is not in memory.
    pub fn has_data_elsewhere(&self) -> bool {
        self.table.elsewhere() > 0
    }

    /// The bytes of the paths of all znodes.
    pub fn path_bytes(&self) -> u64 {
        self.path_bytes
    }

    /// The charge for all znodes together.
    pub(crate) fn charge(&self) -> ZnodeCharge {
        let (mut open, mut data_bytes) = (vec![OWN.to_owned()], self.data_bytes);
        while let Some(path) = open.pop() {
            let Some(slot) = self.find(&path) else { continue };
            let length = self.table.meta(slot).data_length as u64;
            data_bytes = data_bytes - length + charged_data_bytes(&path, length);
            let names = self.table.children(slot).map(|slot| self.table.name(slot));
            open.extend(names.map(|name| format!("{path}/{name}")));
        }
        let acls = self.table.acls().map(|(acl, znodes)| acl_bytes(acl) * znodes);
        // The root has no path there.
        let path_bytes = self.path_bytes - 1;
        ZnodeCharge {
            holder: Holder::restored(),
            znodes: self.len() as u64,
            bytes: path_bytes + data_bytes + acls.sum::<u64>(),
        }
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
        let slot = self.find(path)?;
        Some(ZnodeRef { table: &self.table, slot, meta: self.table.meta(slot) })
    }

    /// A znode as it was after the transaction `zxid`, if it is the same still: neither its data
    /// nor its children changed, and its list never did. `None` says nothing.
    pub fn unchanged_since(&self, path: &str, zxid: i64) -> Option<ZnodeRef<'_>> {
        // Quotas change without a transaction.
        if zxid > self.last_zxid || path.starts_with("/zookeeper") {
            return None;
        }
        let znode = self.get(path)?;
        let ZnodeMeta { czxid, mzxid, pzxid, aversion, .. } = znode.meta;
        (aversion == 0 && czxid.max(mzxid).max(pzxid) <= zxid).then_some(znode)
    }

    /// The number of znodes below `path`.
    pub fn descendants(&self, path: &str) -> Option<usize> {
        let mut open = vec![self.find(path)?];
        let mut count = 0;
        while let Some(slot) = open.pop() {
            let children = self.table.children(slot);
            count += children.len();
            open.extend(children);
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

    /// Checks that a change below a quota is within its hard limits. As in ZooKeeper, changes that
    /// wait in front of it are not counted.
    ///
    /// # Errors
    /// [`ZkCode::QuotaExceeded`]
    pub(crate) fn check_quota(&self, path: &str, count: i64, bytes: i64) -> Result<(), ZkCode> {
        let Some(quota) = self.quota_above(path) else { return Ok(()) };
        let figures = |path: String| self.find(&path).map(|slot| self.figures(slot));
        let (limits, usage) = (figures(limits_path(quota)), figures(stats_path(quota)));
        let (Some(limits), Some(mut usage)) = (limits, usage) else { return Ok(()) };
        usage.add(count, bytes);
        if limits.is_exceeded_by(&usage, count != 0, bytes != 0) {
            Err(ZkCode::QuotaExceeded)
        } else {
            Ok(())
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
    fn charge_quota(&mut self, path: &str, count: i64, bytes: i64) {
        let Some(slot) = self.quota_above(path).and_then(|quota| self.find(&stats_path(quota)))
        else {
            return;
        };
        let mut usage = self.figures(slot);
        usage.add(count, bytes);
        self.set_usage(slot, &usage);
    }

    fn set_usage(&mut self, slot: ZnodeSlot, usage: &QuotaFigures) {
        let data = usage.to_string().into_bytes();
        let meta = self.table.meta(slot);
        let (before, after) = (meta.data_length, data.len() as i32);
        self.table.set_data(slot, ZnodeMeta { data_length: after, ..meta }, Some(&data));
        self.data_bytes = self.data_bytes + after as u64 - before as u64;
    }

    /// The limits or the usage in a znode, whose data is always in memory.
    fn figures(&self, slot: ZnodeSlot) -> QuotaFigures {
        QuotaFigures::parse(self.table.data(slot).here().flatten())
    }

    /// Counts all of the znodes at and below a quota.
    fn recount(&mut self, quota: &str) {
        let (Some(top), Some(stats)) = (self.find(quota), self.find(&stats_path(quota))) else {
            return;
        };
        let (mut open, mut count, mut bytes) = (vec![top], 0, 0);
        while let Some(slot) = open.pop() {
            count += 1;
            bytes += i64::from(self.table.meta(slot).data_length);
            open.extend(self.table.children(slot));
        }
        self.set_usage(stats, &QuotaFigures::new(count, bytes));
    }

    /// Counts all again, after a start.
    pub(crate) fn recount_quotas(&mut self) {
        for quota in self.quotas.clone() {
            self.recount(&quota);
        }
    }

    fn meta(&self, path: &str) -> Option<ZnodeMeta> {
        Some(self.held_meta(path)?.0)
    }

    /// The same, and whose share the znode is charged to.
    pub(crate) fn held_meta(&self, path: &str) -> Option<(ZnodeMeta, Holder)> {
        let meta = self.table.meta(self.find(path)?);
        let acl = Acl::clone(self.table.acl(meta.acl));
        Some((meta.with_acl(acl), self.table.holder(meta.acl).clone()))
    }

    /// Keeps the data that a znode had after the transaction `mzxid` in memory, if it has that
    /// still.
    pub(crate) fn keep(&mut self, path: &str, mzxid: i64, data: Option<&[u8]>) {
        let Some(slot) = self.find(path) else { return };
        let meta = self.table.meta(slot);
        if meta.mzxid == mzxid && self.table.data(slot) == ZnodeData::Elsewhere {
            self.table.set_data(slot, meta, data);
        }
    }

    /// Takes over a part of a checkpoint, in order.
    ///
    /// # Errors
    /// In words: the parts do not fit together.
    pub(crate) fn load(&mut self, entry: CheckpointPart) -> Result<(), String> {
        match entry {
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
        let CheckpointZnode { path, meta, data } = znode;
        self.data_bytes += meta.data_length as u64;
        if let Some(slot) = self.find(&path) {
            // A built-in one, which has no data before.
            self.table.set_acl(slot, &meta.acl);
            let meta = meta.with_acl(self.table.meta(slot).acl);
            self.table.set_data(slot, meta, data.as_deref());
            return Ok(());
        }
        let (parent, name) = split_path(&path).map_err(|_| format!("{path} has no parent"))?;
        let parent = self.existing(parent)?;
        self.path_bytes += path.len() as u64;
        let holder = &Holder::restored();
        let inserted = self.table.insert(parent, name, &meta, data.as_deref(), holder);
        inserted.ok_or_else(|| format!("{path} is there twice"))?;
        if let Some(quota) = path_of_limits(&path) {
            self.quotas.insert(quota.into());
        }
        self.own(&path, meta.owner)
    }

    /// Applies a transaction of `session` that was not refused. Values that its changes set are
    /// charged to `holder`, except those that the changes at the places `uncharged` set.
    ///
    /// # Errors
    /// In words: the tree is not the one that the transaction was checked against.
    pub(crate) fn apply(
        &mut self,
        at: TransactionTime,
        session: SessionId,
        holder: &Holder,
        uncharged: &[u32],
        transaction: &ZnodeTransaction,
        visit: ChangeVisitor<'_>,
    ) -> Result<Vec<OpOutcome>, String> {
        self.last_zxid = at.zxid;
        match transaction {
            ZnodeTransaction::Ops(ops) => {
                let apply = |(place, op)| {
                    let holder = (!uncharged.contains(&(place as u32))).then_some(holder);
                    self.apply_op(at, session, holder, op, visit)
                };
                ops.iter().enumerate().map(apply).collect()
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
        holder: Option<&Holder>,
        op: &ZnodeOp,
        visit: ChangeVisitor<'_>,
    ) -> Result<OpOutcome, String> {
        match op {
            ZnodeOp::Create { path, data, acl, lifetime, is_sequential } => {
                let (owner, data) = (ZnodeOwner::of(*lifetime, session), data.as_deref());
                let meta = ZnodeMeta::new(at, owner, Acl::clone(acl), data);
                let holder = holder.ok_or_else(|| format!("{path} is charged to nobody"))?;
                let is_sequential = *is_sequential;
                let created = ZnodeCreation { path, is_sequential, meta: &meta, data, holder };
                self.create(at, created, visit)
            }
            ZnodeOp::Delete { path, .. } => {
                self.delete(at, path, visit)?;
                Ok(OpOutcome::Deleted)
            }
            ZnodeOp::SetData { path, data, .. } => {
                let (slot, data) = (self.existing(path)?, data.as_deref());
                let mut meta = self.table.meta(slot);
                let before = meta.data_length;
                meta.set_data(at, data);
                self.table.set_data(slot, meta, data);
                if let Some(holder) = holder {
                    self.table.set_holder(slot, holder);
                }
                let (stat, data_length) = (meta.stat(), meta.data_length);
                let acl = Acl::clone(self.table.acl(meta.acl));
                self.data_bytes = self.data_bytes + data_length as u64 - before as u64;
                self.charge_quota(path, 0, i64::from(data_length) - i64::from(before));
                let kind = TreeChangeKind::DataChanged;
                visit(&TreeChange { kind, path, acl: &acl, parent_acl: &acl, zxid: at.zxid });
                Ok(OpOutcome::DataSet(stat))
            }
            ZnodeOp::SetAcl { path, acl, .. } => {
                let slot = self.existing(path)?;
                self.table.set_acl(slot, acl);
                if let Some(holder) = holder {
                    self.table.set_holder(slot, holder);
                }
                let stat = self.table.update(slot, |meta| _ = meta.set_acl(meta.acl)).stat();
                Ok(OpOutcome::AclSet(stat))
            }
            ZnodeOp::Check { .. } => Ok(OpOutcome::Checked),
            ZnodeOp::RaiseSequence { path, next } => {
                let slot = self.existing(path)?;
                self.table.update(slot, |meta| meta.raise_sequence(at, *next));
                Ok(OpOutcome::SequenceRaised)
            }
        }
    }

    fn create(
        &mut self,
        at: TransactionTime,
        created: ZnodeCreation<'_>,
        visit: ChangeVisitor<'_>,
    ) -> Result<OpOutcome, String> {
        let ZnodeCreation { path, is_sequential, meta, data, holder } = created;
        let ZnodeMeta { owner, data_length, ref acl, .. } = *meta;
        let (parent, _) = split_path(path).map_err(|_| format!("{path} has no parent"))?;
        let parent = self.existing(parent)?;
        let path = if is_sequential {
            sequential_path(path, self.table.meta(parent).creates)
        } else {
            path.to_owned()
        };
        let (_, name) = split_path(&path).expect("as before");
        self.data_bytes += data_length as u64;
        self.path_bytes += path.len() as u64;
        let inserted = self.table.insert(parent, name, meta, data, holder);
        inserted.ok_or_else(|| format!("{path} was created twice"))?;
        let parent = self.table.update(parent, |meta| meta.create_child(at));
        let parent_acl = Acl::clone(self.table.acl(parent.acl));
        self.own(&path, owner)?;
        if let Some(quota) = path_of_limits(&path) {
            self.quotas.insert(quota.into());
        }
        if let Some(quota) = path_of_stats(&path) {
            self.recount(quota);
        }
        self.charge_quota(&path, 1, data_length.into());
        let (kind, zxid) = (TreeChangeKind::Created, at.zxid);
        visit(&TreeChange { kind, path: &path, acl, parent_acl: &parent_acl, zxid });
        Ok(OpOutcome::Created(path, meta.stat()))
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
        let deleted = self.table.remove(parent, name);
        let deleted = deleted.ok_or_else(|| format!("there is no {path} without children"))?;
        let parent = self.table.update(parent, |meta| meta.delete_child(at));
        let parent_acl = Acl::clone(self.table.acl(parent.acl));
        self.data_bytes -= deleted.data_length as u64;
        self.path_bytes -= path.len() as u64;
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
        if let Some(quota) = path_of_limits(path) {
            self.quotas.remove(quota);
        }
        self.charge_quota(path, -1, -i64::from(deleted.data_length));
        let (kind, acl) = (TreeChangeKind::Deleted, &deleted.acl);
        visit(&TreeChange { kind, path, acl, parent_acl: &parent_acl, zxid: at.zxid });
        Ok(())
    }

    /// The znode at a path. The empty path is the root too.
    fn find(&self, path: &str) -> Option<ZnodeSlot> {
        let names = match path {
            "" | "/" => return Some(ROOT),
            _ => path.strip_prefix('/')?,
        };
        names.split('/').try_fold(ROOT, |at, name| self.table.child(at, name))
    }

    fn existing(&self, path: &str) -> Result<ZnodeSlot, String> {
        self.find(path).ok_or_else(|| format!("there is no {path}"))
    }
}

/// A znode in a tree.
#[derive(Clone, Copy, Debug)]
pub struct ZnodeRef<'a> {
    table: &'a ZnodeTable,
    slot: ZnodeSlot,
    meta: TableMeta,
}

impl<'a> ZnodeRef<'a> {
    pub fn stat(self) -> ZnodeStat {
        self.meta.stat()
    }

    pub fn lifetime(self) -> ZnodeLifetime {
        self.meta.owner.lifetime()
    }

    pub fn data(self) -> ZnodeData<'a> {
        self.table.data(self.slot)
    }

    pub fn acl(self) -> &'a Acl {
        self.table.acl(self.meta.acl)
    }

    /// The names of its children, in byte order.
    pub fn children(self) -> impl ExactSizeIterator<Item = &'a str> {
        self.table.children(self.slot).map(|slot| self.table.name(slot))
    }
}
