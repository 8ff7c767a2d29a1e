//! Transactions that were decided and are not applied yet: on their way to the disk, or behind it.
//!
//! A transaction is checked against the tree and against all that waits in front of it, so that
//! many transactions that depend on each other share one sync. ZooKeeper calls these
//! `outstandingChanges`.
//!
//! Invariant: the state of a path here is the state that the tree will have once all pending
//! transactions are applied.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use admission::Holder;
use bytes::Bytes;
use zk_wire::ZkCode;

use crate::acl::{self, AclId, check_permission};
use crate::charges::{ChargeChange, STATS_BYTES, ZnodeBudgets, ZnodeCharge};
use crate::meta::{TransactionTime, ZnodeMeta, ZnodeOwner, check_version};
use crate::path::{check_path, key_of, sequential_path, split_path};
use crate::quota::path_of_stats;
use crate::request::{SessionId, ZnodeOp, ZnodeRefusal, ZnodeTransaction};
use crate::subtree_guard::{SubtreeGuard, SubtreeGuards};
use crate::tree::ZnodeTree;

/// The requester of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransactionActor<'a> {
    pub(crate) session: SessionId,
    /// The ids of its connection.
    pub(crate) held: &'a [AclId],
    /// The holder that it is charged to.
    pub(crate) holder: &'a Holder,
}

/// A znode, and the holder that it is charged to.
#[derive(Clone, Debug)]
struct HeldZnode {
    meta: ZnodeMeta,
    holder: Holder,
}

/// A change of what is charged, so that it can be undone.
#[derive(Debug)]
struct PendingCharge {
    zxid: i64,
    change: ChargeChange,
}

/// A znode as some transactions that wait will leave it.
#[derive(Clone, Debug)]
struct PendingZnode {
    /// The last of these transactions.
    zxid: i64,
    /// `None` once it is deleted.
    znode: Option<HeldZnode>,
}

/// A change of [`PendingTree::znodes`], so that it can be undone.
#[derive(Debug)]
struct PendingUndo {
    zxid: i64,
    path: Arc<str>,
    before: Option<PendingZnode>,
}

#[derive(Debug, Default)]
pub(crate) struct PendingTree {
    znodes: HashMap<Arc<str>, PendingZnode, ahash::RandomState>,
    /// The ephemeral ones of `znodes`, by session.
    ephemerals: BTreeSet<(SessionId, Arc<str>)>,
    undo: VecDeque<PendingUndo>,
    /// `None` where nothing is charged.
    budgets: Option<ZnodeBudgets>,
    charges: VecDeque<PendingCharge>,
    /// The places of changes whose znodes stay charged to the holder before, of the transaction
    /// that is decided.
    kept: Vec<u32>,
    /// The sessions whose end waits, and the transaction that ends them.
    closing: HashMap<SessionId, i64>,
    /// The sessions that begin with a transaction that waits.
    beginning: HashMap<SessionId, i64>,
    guards: SubtreeGuards,
    /// The last transaction that was decided.
    decided: i64,
    applied: i64,
    enforces_quotas: bool,
}

fn length(data: &Option<Bytes>) -> i64 {
    data.as_ref().map_or(0, Bytes::len) as i64
}

/// The server writes the usage of a quota, and counts it with a fixed size.
fn check_stats_data(path: &str, data: &Option<Bytes>) -> Result<(), ZkCode> {
    if path_of_stats(path).is_some() && length(data) > STATS_BYTES as i64 {
        return Err(ZkCode::BadArguments);
    }
    Ok(())
}

impl PendingTree {
    pub(crate) fn new(enforces_quotas: bool, budgets: Option<ZnodeBudgets>) -> PendingTree {
        PendingTree { enforces_quotas, budgets, ..PendingTree::default() }
    }

    /// Decides about a transaction, and takes it into account if it is not refused. With `refusal`,
    /// one more change would follow that cannot be made. Returns the places of the changes whose
    /// znodes are not charged to the actor.
    pub(crate) fn decide(
        &mut self,
        tree: &ZnodeTree,
        at: TransactionTime,
        actor: TransactionActor<'_>,
        transaction: &ZnodeTransaction,
        refusal: Option<ZkCode>,
    ) -> Result<Vec<u32>, ZnodeRefusal> {
        let session = actor.session;
        self.kept.clear();
        let refusal = match transaction {
            ZnodeTransaction::Ops(ops) => {
                let decided = self.decide_ops(tree, at, actor, ops, refusal);
                if decided.is_err() {
                    self.roll_back(at.zxid);
                }
                decided.err()
            }
            ZnodeTransaction::SessionCreated { .. } => {
                self.beginning.insert(session, at.zxid);
                None
            }
            ZnodeTransaction::SessionClosed => {
                self.close_session(tree, at, session);
                None
            }
            ZnodeTransaction::Reaped { path } => {
                self.reap(tree, at, path).err().map(|code| ZnodeRefusal { code, op: 0 })
            }
        };
        self.guards.decided(refusal.is_some());
        self.decided = at.zxid;
        refusal.map_or_else(|| Ok(std::mem::take(&mut self.kept)), Err)
    }

    /// Guards a subtree against changes that are decided from now on. Returns the last transaction
    /// that was decided before.
    pub(crate) fn guard_subtree(&mut self, path: &str) -> (SubtreeGuard, i64) {
        (self.guards.add(path), self.decided)
    }

    /// The last transaction that was decided, and will be applied.
    pub(crate) fn decided(&self) -> i64 {
        self.decided
    }

    fn decide_ops(
        &mut self,
        tree: &ZnodeTree,
        at: TransactionTime,
        actor: TransactionActor<'_>,
        ops: &[ZnodeOp],
        refusal: Option<ZkCode>,
    ) -> Result<(), ZnodeRefusal> {
        let refused = |place: usize, code| ZnodeRefusal { code, op: place as u32 };
        if self.has_ended(tree, actor.session) && (refusal.is_some() || !ops.is_empty()) {
            return Err(refused(0, ZkCode::SessionExpired));
        }
        for (place, op) in ops.iter().enumerate() {
            let decided = self.decide_op(tree, at, actor, place as u32, op);
            decided.map_err(|code| refused(place, code))?;
        }
        refusal.map_or(Ok(()), |code| Err(refused(ops.len(), code)))
    }

    fn decide_op(
        &mut self,
        tree: &ZnodeTree,
        at: TransactionTime,
        actor: TransactionActor<'_>,
        place: u32,
        op: &ZnodeOp,
    ) -> Result<(), ZkCode> {
        let TransactionActor { session, held, holder } = actor;
        match op {
            ZnodeOp::Create { path, data, acl, lifetime, is_sequential } => {
                let (parent, _) = split_path(path)?;
                let mut above = self.existing(tree, parent)?;
                check_permission(&above.meta.acl, acl::CREATE, held)?;
                let path = if *is_sequential {
                    sequential_path(path, above.meta.creates)
                } else {
                    path.clone()
                };
                check_path(&path)?;
                if self.existing(tree, &path).is_ok() {
                    return Err(ZkCode::NodeExists);
                }
                if matches!(above.meta.owner, ZnodeOwner::Session(_)) {
                    return Err(ZkCode::NoChildrenForEphemerals);
                }
                if self.enforces_quotas {
                    tree.check_quota(&path, 1, length(data))?;
                }
                check_stats_data(&path, data)?;
                above.meta.create_child(at);
                self.set(at, parent, Some(above));
                let owner = ZnodeOwner::of(*lifetime, session);
                let created = ZnodeMeta::new(at, owner, acl::Acl::clone(acl), data.as_deref());
                self.guards.touch(&path, owner);
                let created = HeldZnode { meta: created, holder: holder.clone() };
                self.charge(at, &path, None, Some(&created))?;
                self.set(at, &path, Some(created));
            }
            ZnodeOp::Delete { path, version } => {
                let (parent, _) = split_path(path)?;
                let above = self.existing(tree, parent)?;
                check_permission(&above.meta.acl, acl::DELETE, held)?;
                let deleted = self.existing(tree, path)?;
                check_version(deleted.meta.version, *version)?;
                if deleted.meta.children > 0 {
                    return Err(ZkCode::NotEmpty);
                }
                self.guards.touch(path, deleted.meta.owner);
                self.delete(at, path, &deleted, parent, above);
            }
            ZnodeOp::SetData { path, data, version } => {
                let before = self.existing(tree, path)?;
                let mut meta = before.meta.clone();
                check_permission(&meta.acl, acl::WRITE, held)?;
                if self.enforces_quotas {
                    tree.check_quota(path, 0, length(data) - i64::from(meta.data_length))?;
                }
                check_version(meta.version, *version)?;
                check_stats_data(path, data)?;
                meta.set_data(at, data.as_deref());
                self.guards.touch(path, meta.owner);
                let after = self.overwrite(at, path, place, &before, meta, holder)?;
                self.set(at, path, Some(after));
            }
            ZnodeOp::SetAcl { path, acl, version } => {
                let before = self.existing(tree, path)?;
                let mut meta = before.meta.clone();
                check_permission(&meta.acl, acl::ADMIN, held)?;
                check_version(meta.aversion, *version)?;
                meta.set_acl(acl::Acl::clone(acl));
                self.guards.touch(path, meta.owner);
                let after = self.overwrite(at, path, place, &before, meta, holder)?;
                self.set(at, path, Some(after));
            }
            ZnodeOp::Check { path, version } => {
                let ZnodeMeta { acl, version: current, .. } = self.existing(tree, path)?.meta;
                check_permission(&acl, acl::READ, held)?;
                check_version(current, *version)?;
            }
            ZnodeOp::RaiseSequence { path, next } => {
                let mut znode = self.existing(tree, path)?;
                let is_below = znode.meta.is_below_sequence(*next);
                let required = if is_below { acl::CREATE } else { acl::CREATE | acl::READ };
                // The creator of a znode decides where its numbers begin.
                if znode.meta.czxid != at.zxid {
                    check_permission(&znode.meta.acl, required, held)?;
                }
                if matches!(znode.meta.owner, ZnodeOwner::Session(_)) {
                    return Err(ZkCode::NoChildrenForEphemerals);
                }
                if is_below {
                    znode.meta.raise_sequence(at, *next);
                    self.guards.touch(path, znode.meta.owner);
                    self.set(at, path, Some(znode));
                }
            }
        }
        Ok(())
    }

    fn reap(&mut self, tree: &ZnodeTree, at: TransactionTime, path: &str) -> Result<(), ZkCode> {
        let (parent, _) = split_path(path)?;
        let reaped = self.existing(tree, path)?;
        let above = self.existing(tree, parent)?;
        if reaped.meta.children > 0 {
            return Err(ZkCode::NotEmpty);
        }
        // The caller has looked at how long a container that was never used may stay.
        if !reaped.meta.may_be_reaped(at.ms, Some(-1)) {
            return Err(ZkCode::BadVersion);
        }
        self.guards.touch(path, reaped.meta.owner);
        self.delete(at, path, &reaped, parent, above);
        Ok(())
    }

    fn delete(
        &mut self,
        at: TransactionTime,
        path: &str,
        deleted: &HeldZnode,
        parent: &str,
        mut above: HeldZnode,
    ) {
        let released = self.charge(at, path, Some(deleted), None);
        released.expect("nothing more is charged");
        above.meta.delete_child(at);
        self.set(at, parent, Some(above));
        self.set(at, path, None);
    }

    /// A znode that `holder` changes is charged to it from now on. If that has no room for it and
    /// the znode does not grow, it stays charged to the holder before.
    fn overwrite(
        &mut self,
        at: TransactionTime,
        path: &str,
        place: u32,
        before: &HeldZnode,
        meta: ZnodeMeta,
        holder: &Holder,
    ) -> Result<HeldZnode, ZkCode> {
        let after = HeldZnode { meta, holder: holder.clone() };
        let refused = match self.charge(at, path, Some(before), Some(&after)) {
            Ok(()) => return Ok(after),
            Err(refused) => refused,
        };
        let charged = HeldZnode { holder: before.holder.clone(), ..after };
        let bytes = |znode: &HeldZnode| ZnodeCharge::new(&znode.holder, path, &znode.meta).bytes;
        if bytes(&charged) > bytes(before) {
            return Err(refused);
        }
        self.charge(at, path, Some(before), Some(&charged))?;
        self.kept.push(place);
        Ok(charged)
    }

    /// Charges a change of a znode.
    ///
    /// # Errors
    /// There is no room for it: every client knows this code.
    fn charge(
        &mut self,
        at: TransactionTime,
        path: &str,
        before: Option<&HeldZnode>,
        after: Option<&HeldZnode>,
    ) -> Result<(), ZkCode> {
        let Some(budgets) = &self.budgets else { return Ok(()) };
        let charge = |znode: &HeldZnode| ZnodeCharge::new(&znode.holder, path, &znode.meta);
        let change = ChargeChange { before: before.map(charge), after: after.map(charge) };
        if let Err(error) = budgets.change(&change) {
            budgets.report(&error, Duration::from_millis(at.ms as u64));
            return Err(ZkCode::SystemError);
        }
        self.charges.push_back(PendingCharge { zxid: at.zxid, change });
        Ok(())
    }

    /// Deletes the session's ephemeral znodes: those in the tree, and those of pending
    /// transactions.
    fn close_session(&mut self, tree: &ZnodeTree, at: TransactionTime, session: SessionId) {
        let of_session = (session, Arc::from(""))..;
        let waiting = self.ephemerals.range(of_session).take_while(|(owner, _)| *owner == session);
        let mut paths: Vec<Arc<str>> = waiting.map(|(_, path)| Arc::clone(path)).collect();
        let applied = tree.session(session).into_iter().flat_map(|session| session.ephemerals());
        paths.extend(applied.filter(|path| !self.znodes.contains_key(*path)).map(Arc::from));
        for path in paths {
            let (parent, _) = split_path(&path).expect("a znode has a path");
            let Ok(above) = self.existing(tree, parent) else { continue };
            let Ok(deleted) = self.existing(tree, &path) else { continue };
            self.delete(at, &path, &deleted, parent, above);
        }
        self.beginning.remove(&session);
        // If this one is undone, the one before it stays.
        self.closing.entry(session).or_insert(at.zxid);
    }

    fn has_ended(&self, tree: &ZnodeTree, session: SessionId) -> bool {
        self.closing.contains_key(&session)
            || (tree.session(session).is_none() && !self.beginning.contains_key(&session))
    }

    fn existing(&self, tree: &ZnodeTree, path: &str) -> Result<HeldZnode, ZkCode> {
        match self.znodes.get(key_of(path)) {
            Some(pending) => pending.znode.clone(),
            None => tree.held_meta(path).map(|(meta, holder)| HeldZnode { meta, holder }),
        }
        .ok_or(ZkCode::NoNode)
    }

    fn set(&mut self, at: TransactionTime, path: &str, znode: Option<HeldZnode>) {
        let (path, zxid) = (key_of(path), at.zxid);
        // Many changes in a row are of one parent.
        let path = match self.znodes.get_key_value(path) {
            Some((path, _)) => Arc::clone(path),
            None => path.into(),
        };
        let before = self.replace(&path, Some(PendingZnode { zxid, znode }));
        self.undo.push_back(PendingUndo { zxid, path, before });
    }

    /// Puts another value in place of what waits for a path; returns the one before.
    fn replace(&mut self, path: &Arc<str>, after: Option<PendingZnode>) -> Option<PendingZnode> {
        let owner =
            |pending: &Option<PendingZnode>| match pending.as_ref()?.znode.as_ref()?.meta.owner {
                ZnodeOwner::Session(session) => Some((session, Arc::clone(path))),
                ZnodeOwner::None | ZnodeOwner::Container | ZnodeOwner::Ttl(_) => None,
            };
        let owner_after = owner(&after);
        let before = match after {
            Some(after) => self.znodes.insert(Arc::clone(path), after),
            None => self.znodes.remove(&**path),
        };
        if let Some(ephemeral) = owner(&before) {
            self.ephemerals.remove(&ephemeral);
        }
        self.ephemerals.extend(owner_after);
        before
    }

    /// Undoes the transactions from `zxid` on: they will never be applied.
    pub(crate) fn roll_back(&mut self, zxid: i64) {
        while let Some(undo) = self.undo.pop_back_if(|undo| undo.zxid >= zxid) {
            // Transactions that were applied meanwhile are in the tree.
            let before = undo.before.filter(|before| before.zxid > self.applied);
            self.replace(&undo.path, before);
        }
        while let Some(charge) = self.charges.pop_back_if(|charge| charge.zxid >= zxid) {
            if let Some(budgets) = &self.budgets {
                budgets.undo(&charge.change);
            }
        }
        self.closing.retain(|_, ends| *ends < zxid);
        self.beginning.retain(|_, begins| *begins < zxid);
        self.decided = self.decided.min(zxid - 1);
    }

    /// Forgets the transactions up to `zxid`: the tree has them.
    pub(crate) fn forget_applied(&mut self, zxid: i64) {
        self.applied = zxid;
        self.decided = self.decided.max(zxid);
        while let Some(undo) = self.undo.pop_front_if(|undo| undo.zxid <= zxid) {
            if self.znodes.get(&undo.path).is_some_and(|pending| pending.zxid <= zxid) {
                self.replace(&undo.path, None);
            }
        }
        while self.charges.pop_front_if(|charge| charge.zxid <= zxid).is_some() {}
        self.closing.retain(|_, ends| *ends > zxid);
        self.beginning.retain(|_, begins| *begins > zxid);
    }
}
